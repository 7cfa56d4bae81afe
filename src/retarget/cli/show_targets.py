"""Targets for people."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from retarget.cli.show import ago, new_table, pairs
from retarget.cli.terminal import console
from retarget.core.units import show_amount, show_memory

if TYPE_CHECKING:
    from retarget.sdk.records import Target


def show_targets(targets: "Sequence[Target]") -> None:
    table = new_table(
        "NAME", "KIND", "STATE", "CPUS", "MEMORY", "GPUS", "JOBS", "REASON", flexible="REASON"
    )
    for target in targets:
        state = Text("unusable", "red") if target.reason else Text("ready", "green")
        amounts = (_cpus(target), _memory(target), _gpus(target))
        table.add_row(
            Text(target.name), target.kind, state, *amounts, _jobs(target), Text(target.reason)
        )
    console().print(table)


def show_target(target: "Target") -> None:
    rows: list[tuple[str, str | Text]] = [
        ("target", target.name),
        ("kind", target.kind),
        ("state", Text("unusable", "red") if target.reason else Text("ready", "green")),
        ("reason", target.reason),
        ("jobs", _jobs(target)),
        ("CPUs", _cpus(target)),
        ("memory", _memory(target)),
        ("GPUs", _gpus(target)),
    ]
    rows += [(f"node {node['name']}", _node(node)) for node in _nodes(target)]
    details: dict[str, str] = (target.facts or {}).get("details", {})
    rows += [(name, str(value)) for name, value in details.items()]
    rows += [(name, json.dumps(value)) for name, value in target.config.items()]
    if target.checked is not None:
        rows.append(("checked", ago(time.time() - target.checked)))
    console().print(pairs(rows))


def show_kinds(kinds: Sequence[dict[str, Any]]) -> None:
    table = new_table("KIND", "SETTINGS", "NEEDS", flexible="SETTINGS")
    for kind in kinds:
        schema: dict[str, Any] = kind["config_schema"] or {}
        settings = ", ".join(schema.get("properties", {}))
        table.add_row(kind["kind"], Text(settings), Text(kind["missing"] or "nothing more"))
    console().print(table)


def _nodes(target: "Target") -> list[dict[str, Any]]:
    return (target.facts or {}).get("nodes", [])


def _cpus(target: "Target") -> str:
    total = sum(node["cpus"] for node in _nodes(target))
    return f"{show_amount(target.used['cpus'])}/{show_amount(total)}" if _nodes(target) else ""


def _memory(target: "Target") -> str:
    total = sum(node["memory"] for node in _nodes(target))
    used = show_memory(int(target.used["memory"]))
    return f"{used} / {show_memory(total)}" if _nodes(target) else ""


def _gpus(target: "Target") -> str:
    total = sum(len(node["gpus"]) for node in _nodes(target))
    return f"{show_amount(target.used['gpus'])}/{total}" if _nodes(target) else ""


def _jobs(target: "Target") -> str:
    return ", ".join(f"{count} {state}" for state, count in target.jobs.items() if count) or "none"


def _node(node: dict[str, Any]) -> str:
    gpus = [gpu.get("name") or gpu["id"] for gpu in node["gpus"]]
    parts = [f"{show_amount(node['cpus'])} CPUs", show_memory(node["memory"]), *gpus]
    return ", ".join(parts)
