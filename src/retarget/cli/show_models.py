"""Models for people."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.numbers import show_number
from retarget.cli.show import (
    describe_lock,
    new_grid,
    new_outputs_table,
    show_first,
    show_pairs,
    show_section,
)
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import print_status, show
from retarget.cli.times import show_age, utc_now
from retarget.sdk.display import show_time

if TYPE_CHECKING:
    from retarget.sdk.models import Model, ModelVersion


def show_models(models: "Sequence[Model]") -> None:
    if not models:
        command = "retarget model register NAME --job JOB --path PATH"
        print_status(f"no models; `{command}` registers one", "dim")
        return
    now = utc_now()
    titles = ("NAME", "NEWEST", "ALIASES", "CHANGED", "JOB", "DESCRIPTION")
    rows = [_row(model, now) for model in models]
    optional = ("CHANGED", "JOB", "ALIASES")
    show(new_table(titles, rows, flexible="DESCRIPTION", optional=optional))


def show_model(model: "Model") -> None:
    now = utc_now()
    rows: list[tuple[str, str | Text]] = [
        ("model", model.name),
        ("description", model.description),
        ("tags", show_pairs(model.tags)),
        ("created", _created(model.created_at, now)),
    ]
    show(new_grid(rows))
    titles = ("VERSION", "ALIASES", "CREATED", "JOB", "METRICS")
    versions = [_version_row(version, now) for version in model.versions()]
    optional = ("CREATED", "JOB")
    if versions:
        show_section("versions", new_table(titles, versions, flexible="METRICS", optional=optional))


def show_version(version: "ModelVersion") -> None:
    view, lineage = version.to_json(), version.lineage
    rows: list[tuple[str, str | Text]] = [
        ("model", version.name),
        ("version", str(version.version)),
        ("aliases", ", ".join(version.aliases)),
        ("stage", "" if view["stage"] == "None" else view["stage"]),
        ("description", version.description),
        ("tags", show_pairs(version.tags)),
        ("created", _created(version.created_at, utc_now())),
        ("source", view["source"]),
    ]
    show(new_grid(rows))
    origin: list[tuple[str, str | Text]] = [
        ("job", lineage.job_name or ""),
        ("job id", lineage.job_id or ""),
        ("snapshot", lineage.snapshot or ""),
        ("environment", lineage.environment or ""),
        ("versions", describe_lock(view.get("lock"))),
        ("metrics", _metrics(lineage.metrics)),
    ]
    if any(value for _, value in origin):
        show_section("lineage", new_grid(origin))
    files = version.files()
    if files:
        show_section("files", new_outputs_table(files))


def _created(created_at: datetime, now: datetime) -> str:
    return f"{show_time(created_at)} ({show_age(created_at, now)})"


def _row(model: "Model", now: datetime) -> list[Cell]:
    newest = model.latest
    return [
        model.name,
        "" if newest is None else str(newest.version),
        ", ".join(f"{alias}={version}" for alias, version in model.aliases.items()),
        show_age(model.changed_at, now),
        "" if newest is None else newest.lineage.job_name or "",
        model.description or ("" if newest is None else newest.description),
    ]


def _version_row(version: "ModelVersion", now: datetime) -> list[Cell]:
    return [
        str(version.version),
        ", ".join(version.aliases),
        show_age(version.created_at, now),
        version.lineage.job_name or "",
        _metrics(version.lineage.metrics),
    ]


def _metrics(metrics: Mapping[str, float]) -> str:
    return show_first({key: show_number(value) for key, value in metrics.items()}, "see --json")
