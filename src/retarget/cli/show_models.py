"""Models for people."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.show import ago, outputs_table, pairs, section, short_list, when
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import say, show

if TYPE_CHECKING:
    from retarget.sdk.models import Model, ModelVersion


def show_models(found: "Sequence[Model]") -> None:
    if not found:
        say("no models; `retarget model register NAME --job JOB --path PATH` makes one", "dim")
        return
    now = time.time()
    titles = ("NAME", "NEWEST", "ALIASES", "CHANGED", "JOB", "DESCRIPTION")
    rows = [_row(each, now) for each in found]
    optional = ("CHANGED", "JOB", "ALIASES")
    show(new_table(titles, rows, flexible="DESCRIPTION", optional=optional))


def show_model(model: "Model") -> None:
    now, view = time.time(), model.to_json()
    rows: list[tuple[str, str | Text]] = [
        ("model", model.name),
        ("description", model.description),
        ("tags", _words(model.tags)),
        ("created", f"{when(view['created'])} ({ago(now - view['created'])})"),
    ]
    show(pairs(rows))
    titles = ("VERSION", "ALIASES", "CREATED", "JOB", "METRICS")
    versions = [_version_row(each, now) for each in model.versions()]
    optional = ("CREATED", "JOB")
    if versions:
        section("versions", new_table(titles, versions, flexible="METRICS", optional=optional))


def show_version(version: "ModelVersion") -> None:
    now, view, lineage = time.time(), version.to_json(), version.lineage
    rows: list[tuple[str, str | Text]] = [
        ("model", version.name),
        ("version", str(version.version)),
        ("aliases", ", ".join(version.aliases)),
        ("stage", "" if view["stage"] == "None" else view["stage"]),
        ("description", version.description),
        ("tags", _words(version.tags)),
        ("created", f"{when(view['created'])} ({ago(now - view['created'])})"),
        ("source", view["source"]),
    ]
    show(pairs(rows))
    come: list[tuple[str, str | Text]] = [
        ("job", lineage.job_name or ""),
        ("job id", lineage.job_id or ""),
        ("snapshot", lineage.snapshot or ""),
        ("environment", lineage.environment or ""),
        ("metrics", _metrics(lineage.metrics)),
    ]
    if any(value for _, value in come):
        section("came from", pairs(come))
    files = version.files()
    if files:
        section("files", outputs_table(files))


def _row(model: "Model", now: float) -> list[Cell]:
    newest = model.latest
    return [
        model.name,
        "" if newest is None else str(newest.version),
        ", ".join(f"{alias}={version}" for alias, version in model.aliases.items()),
        ago(now - model.to_json()["changed"]),
        "" if newest is None else newest.lineage.job_name or "",
        model.description or ("" if newest is None else newest.description),
    ]


def _version_row(each: "ModelVersion", now: float) -> list[Cell]:
    created = ago(now - each.to_json()["created"])
    about = [str(each.version), ", ".join(each.aliases), created]
    return [*about, each.lineage.job_name or "", _metrics(each.lineage.metrics)]


def _metrics(metrics: Mapping[str, float]) -> str:
    return short_list({key: show_number(value) for key, value in metrics.items()}, "see --json")


def _words(tags: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in tags.items())
