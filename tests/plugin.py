"""A plug-in kind with secrets, `vault`, installed as its own package. It runs nothing."""

import textwrap
from pathlib import Path

_MODULE = '''
"""Machines in a vault."""

import os
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from retarget.core.driver import Phase, Observation
from retarget.core.errors import TargetUnreachable
from retarget.core.targets import Inventory, Node


class Host(BaseModel):
    model_config = ConfigDict(extra="forbid")
    address: str
    password: SecretStr | None = None


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str = Field(min_length=1, description="Where it is")
    hosts: list[str] = Field([], description="A machine of the vault")
    rooms: list[Host] = Field([], description="Its rooms")
    labels: dict[str, str] = Field({}, description="Labels of the rooms")
    password: SecretStr | None = Field(None, description="Password of the vault")
    key: SecretStr | None = Field(
        None, description="A private key", json_schema_extra={"cli": {"file": True}}
    )
    memory: int | None = Field(
        None, gt=0, description="To give out", json_schema_extra={"unit": "bytes"}
    )
    cpus: float = Field(2, gt=0, description="Cores to give out")
    depth: int = Field(1, description="Floors below ground")
    strict: bool = Field(True, description="Ask for the password twice")
    level: Literal["low", "high"] = Field("low", description="How well it is guarded")
    stamp: str = Field(default_factory=lambda: os.urandom(8).hex(), description="Made once")
    notes: Path | None = Field(None, description="A file to write to when it is released")


class Driver:
    Config = Config

    def __init__(self, config, links):
        self.config = config

    def check(self):
        if self.config.address == "slow":
            time.sleep(3)
        if self.config.address == "nowhere":
            raise TargetUnreachable("nowhere does not answer; is it switched on?")
        secrets = [self.config.password, self.config.key, *(r.password for r in self.config.rooms)]
        sizes = [len(secret.get_secret_value()) for secret in secrets if secret is not None]
        node = Node(name=self.config.address, cpus=self.config.cpus, memory=self.config.memory or 1)
        return Inventory(nodes=(node,), details={"secrets": str(sizes), "host key": "SHA256:abc"})

    def plan(self, launch):
        return {"at": self.config.address, "with": repr(self.config)}

    def launch(self, launch):
        raise TargetUnreachable("the vault is locked")

    def poll(self, handles):
        return [Observation(phase=Phase.GONE) for _ in handles]

    def cancel(self, handle): ...

    def forget(self, handle): ...

    def diagnose(self, handle):
        return "nothing is known"

    def release(self):
        if self.config.notes:
            self.config.notes.write_text("released")
'''


def install_vault(folder: Path) -> str:
    """Install the package into a folder, and return the folder for PYTHONPATH."""
    info = folder / "vault-1.dist-info"
    info.mkdir(parents=True)
    (folder / "vault_kind.py").write_text(textwrap.dedent(_MODULE).lstrip())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[retarget.drivers]\nvault = vault_kind:Driver\n")
    return str(folder)
