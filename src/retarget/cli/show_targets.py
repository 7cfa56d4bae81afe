"""Targets for people."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from rich.text import Text

from retarget.cli.kind_options import settings_of
from retarget.cli.show import new_grid, show_section
from retarget.cli.tables import Cell, new_table, without
from retarget.cli.terminal import printable, show
from retarget.cli.times import show_age, utc_now
from retarget.core.units import show_amount, show_count, show_memory

if TYPE_CHECKING:
    from retarget.sdk.records import Target

_Settings = dict[str, Any]


def show_targets(targets: "Sequence[Target]") -> None:
    titles = ["NAME", "KIND", "STATE", "CPUS", "MEMORY", "GPUS", "JOBS", "REASON"]
    rows = [_row(target) for target in targets]
    optional = ("KIND", "MEMORY", "GPUS", "CPUS", "JOBS")
    if any(row[-1] for row in rows):
        show(new_table(titles, rows, flexible="REASON", optional=optional))
    else:
        titles, rows = without("REASON", titles, rows)
        show(new_table(titles, rows, flexible="NAME", optional=optional))


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
        ("tags", _format(target.tags)),
    ]
    details: dict[str, str] = (target.inventory or {}).get("details", {})
    rows += [(name, str(value)) for name, value in details.items()]
    if target.checked_at is not None:
        rows.append(("checked", show_age(target.checked_at, utc_now())))
    show(new_grid(rows))
    _show_nodes(target)
    # mappings, such as the keys of hosts, are long, and the details show them
    settings = {name: value for name, value in target.config.items() if not isinstance(value, dict)}
    setting_rows = [  # with the names of the options
        (name.replace("_", "-"), _format_setting(name, value)) for name, value in settings.items()
    ]
    is_empty = not any(value for _, value in setting_rows)
    show_section("settings", None if is_empty else new_grid(setting_rows))


def _show_nodes(target: "Target") -> None:
    """Show the nodes of a target, and the types of those that it could add."""
    titles = ["NODE", "TYPE", "STATE", "SINCE", "CPUS", "MEMORY", "GPUS", "REASON"]
    rows = [_node_row(node) for node in _nodes(target)]
    for title in ("TYPE", "GPUS", "REASON"):
        if not any(row[titles.index(title)] for row in rows):
            titles, rows = without(title, titles, rows)
    flexible = "REASON" if "REASON" in titles else "NODE"
    optional = ("TYPE", "GPUS", "MEMORY", "CPUS", "SINCE")
    table = new_table(titles, rows, flexible=flexible, optional=optional) if rows else None
    show_section("nodes", table)
    types = [_type_row(node_type) for node_type in _node_types(target)]
    titles = ("NODE TYPE", "CPUS", "MEMORY", "GPUS", "NODES")
    show_section("node types", new_table(titles, types, flexible="NODE TYPE") if types else None)


def _node_row(node: dict[str, Any]) -> list[Cell]:
    changed_at = node["changed_at"]
    age = "" if changed_at is None else show_age(datetime.fromisoformat(changed_at), utc_now())
    is_known = bool(node["cpus"])
    return [
        node["name"],
        node["type"],
        Text(node["state"], "green" if node["state"] == "ready" else "red"),
        age,
        show_amount(node["cpus"]) if is_known else "",
        show_memory(node["memory"]) if is_known else "",
        ", ".join(gpu.get("name") or gpu["id"] for gpu in node["gpus"]),
        node["unavailable"].removeprefix(f"{node['name']}: "),
    ]


def _type_row(node_type: dict[str, Any]) -> list[Cell]:
    gpus = f"{node_type['gpus']} {node_type['gpu_name']}".strip() if node_type["gpus"] else ""
    resources = [show_amount(node_type["cpus"]), show_memory(node_type["memory"]), gpus]
    return [node_type["name"], *resources, f"{node_type['min_nodes']}-{node_type['max_nodes']}"]


def describe_target(target: "Target") -> str:
    """Return in one line what a target has: `2 CPUs, 23.5 GiB, Python 3.11`."""
    nodes = _nodes(target)
    if len(nodes) == 1:
        text = _describe_node(nodes[0])
    else:
        cpus, memory = (sum(node[name] for node in nodes) for name in ("cpus", "memory"))
        gpus = sum(len(node["gpus"]) for node in nodes)
        amounts = [show_count(len(nodes), "node"), f"{show_amount(cpus)} CPUs", show_memory(memory)]
        text = ", ".join([*amounts, *([show_count(gpus, "GPU")] if gpus else [])])
    python = (target.inventory or {}).get("details", {}).get("python")
    problem = _unavailable_nodes(target) if len(nodes) > 1 else ""
    return "; ".join(
        part for part in (f"{text}, Python {python}" if python else text, problem) if part
    )


def show_kinds(kinds: Sequence[dict[str, Any]]) -> None:
    rows: list[tuple[str, str | Text]] = []
    for kind in kinds:
        rows.append((kind["kind"], kind["description"] or kind["kind"]))
        rows.append(("", f"settings: {_settings(kind) or 'none'}"))
        if kind["missing"]:
            rows.append(("", Text(printable(f"needs: {kind['missing']}"), "yellow")))
    show(new_grid(rows))


def _row(target: "Target") -> list[Cell]:
    amounts = (_cpus(target), _memory(target), _gpus(target))
    reason = target.reason or _unavailable_nodes(target)
    return [target.name, target.kind, _state(target), *amounts, _jobs(target), reason]


def _unavailable_nodes(target: "Target") -> str:
    nodes = _nodes(target)
    names = [node["name"] for node in nodes if node["unavailable"]]
    return f"{len(names)} of {len(nodes)} nodes unavailable: {', '.join(names)}" if names else ""


def _state(target: "Target") -> Text:
    return Text("unusable", "red") if target.reason else Text("ready", "green")


def _format_setting(name: str, value: Any) -> str:
    return show_memory(value) if name == "memory" and value else _format(value)


def _format(value: Any) -> str:
    """Write the value of a setting as a person would."""
    if isinstance(value, float):
        return show_amount(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        items = cast(_Settings, value).items()
        return ", ".join(f"{name}={_format(item)}" for name, item in items)
    if isinstance(value, list):
        return ", ".join(_format(item) for item in cast(list[Any], value))
    return "" if value is None else str(value)


def _settings(kind: dict[str, Any]) -> str:
    return ", ".join(setting.option[2:] for setting in settings_of(kind["config_schema"] or {}))


def _nodes(target: "Target") -> list[dict[str, Any]]:
    return (target.inventory or {}).get("nodes", [])


def _node_types(target: "Target") -> list[dict[str, Any]]:
    return (target.inventory or {}).get("node_types", [])


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


def _describe_node(node: dict[str, Any]) -> str:
    gpus = [gpu.get("name") or gpu["id"] for gpu in node["gpus"]]
    cpus = f"{show_amount(node['cpus'])} CPU{'s' * (node['cpus'] != 1)}"
    resources = ", ".join([cpus, show_memory(node["memory"]), *gpus]) if node["cpus"] else ""
    if not node["unavailable"]:
        return resources
    reason = node["unavailable"].removeprefix(f"{node['name']}: ")
    return f"unavailable: {reason}" + (f" ({resources})" if resources else "")
