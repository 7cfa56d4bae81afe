"""Targets for people."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rich.text import Text

from retarget.cli.settings import settings_of
from retarget.cli.show import ago, pairs, section
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import show
from retarget.core.units import show_amount, show_memory

if TYPE_CHECKING:
    from retarget.sdk.records import Target

_Settings = dict[str, Any]


def show_targets(targets: "Sequence[Target]") -> None:
    titles = ("NAME", "KIND", "STATE", "CPUS", "MEMORY", "GPUS", "JOBS", "REASON")
    rows = [_row(target) for target in targets]
    optional = ("KIND", "MEMORY", "GPUS", "CPUS", "JOBS")
    show(new_table(titles, rows, flexible="REASON", optional=optional))


def show_target(target: "Target") -> None:
    rows: list[tuple[str, str | Text]] = [
        ("target", target.name),
        ("kind", target.kind),
        ("state", _state(target)),
        ("reason", target.reason),
        ("jobs", _jobs(target)),
        ("CPUs", _cpus(target)),
        ("memory", _memory(target)),
        ("GPUs", _gpus(target)),
        ("tags", _plain(target.tags)),
    ]
    rows += [(f"node {node['name']}", _node(node)) for node in _nodes(target)]
    details: dict[str, str] = (target.facts or {}).get("details", {})
    rows += [(name, str(value)) for name, value in details.items()]
    if target.checked is not None:
        rows.append(("checked", ago(time.time() - target.checked)))
    show(pairs(rows))
    # what a target has learnt by itself, such as its hosts' keys, is long and among the details
    settings = {k: value for k, value in target.config.items() if not isinstance(value, dict)}
    told = [(name, _setting(name, value)) for name, value in settings.items()]
    section("settings", pairs(told) if any(value for _, value in told) else None)


def show_kinds(kinds: Sequence[dict[str, Any]]) -> None:
    rows = [(kind["kind"], kind["missing"] or "nothing more", _settings(kind)) for kind in kinds]
    show(new_table(("KIND", "NEEDS", "SETTINGS"), rows, flexible="SETTINGS", wrap=True))


def _row(target: "Target") -> list[Cell]:
    amounts = (_cpus(target), _memory(target), _gpus(target))
    reason = target.reason or _aside(target)
    return [target.name, target.kind, _state(target), *amounts, _jobs(target), reason]


def _aside(target: "Target") -> str:
    aside = [node["name"] for node in _nodes(target) if node["reason"]]
    return f"{len(aside)} of {len(_nodes(target))} set aside: {', '.join(aside)}" if aside else ""


def _state(target: "Target") -> Text:
    return Text("unusable", "red") if target.reason else Text("ready", "green")


def _setting(name: str, value: Any) -> str:
    return show_memory(value) if name == "memory" and value else _plain(value)


def _plain(value: Any) -> str:
    """Write a setting as a person would."""
    if isinstance(value, float):
        return show_amount(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_plain(each)}" for name, each in cast(_Settings, value).items())
    if isinstance(value, list):
        return ", ".join(_plain(each) for each in cast(list[Any], value))
    return "" if value is None else str(value)


def _settings(kind: dict[str, Any]) -> str:
    return ", ".join(setting.option[2:] for setting in settings_of(kind["config_schema"] or {}))


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
    cpus = f"{show_amount(node['cpus'])} CPU{'s' * (node['cpus'] != 1)}"
    parts = ", ".join([cpus, show_memory(node["memory"]), *gpus]) if node["cpus"] else ""
    if not node["reason"]:
        return parts
    reason = node["reason"].removeprefix(f"{node['name']}: ")
    return f"set aside: {reason}" + (f" ({parts})" if parts else "")
