"""The agent installs an upload only if it arrives unchanged."""

import asyncio
import os
from hashlib import blake2b
from pathlib import Path

import pytest

from retarget.runner.agent import Agent

_PROGRAM = b"#!/bin/sh\necho works\n"
_UPLOAD = {"size": len(_PROGRAM), "digest": blake2b(_PROGRAM).hexdigest()}


def _put(agent: Agent, upload: str, offset: int, content: bytes) -> int:
    request = {"do": "put", "name": "uv", "upload": {**_UPLOAD, "id": upload}, "offset": offset}
    return asyncio.run(agent.answer(request, content))


def test_a_program_is_installed_once_it_is_complete(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path))
    assert _put(agent, "a", 0, _PROGRAM[:5]) == 5
    assert _put(agent, "b", 0, _PROGRAM[:9]) == 9
    assert not (tmp_path / "bin/uv").exists()
    assert _put(agent, "a", 5, _PROGRAM[5:]) == len(_PROGRAM)
    assert _put(agent, "b", 9, _PROGRAM[9:]) == len(_PROGRAM)
    assert os.listdir(tmp_path / "bin") == ["uv"]
    assert (tmp_path / "bin/uv").read_bytes() == _PROGRAM
    assert os.access(tmp_path / "bin/uv", os.X_OK)


def test_a_damaged_upload_is_discarded(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path))
    with pytest.raises(OSError, match="its digest does not match"):
        _put(agent, "a", 0, _PROGRAM.swapcase())
    assert os.listdir(tmp_path / "bin") == []
