"""`retarget size …`: show the catalogue of sizes of nodes."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.groups import new_group
from retarget.cli.lookup import AsJson
from retarget.cli.terminal import print_status, show, write_json

if TYPE_CHECKING:
    from retarget.sdk.sizes import Size

app = new_group()
# a group with a single command would be that command
app.callback()(lambda: None)


@app.command("list")
def list_sizes(
    series: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only sizes of this series; repeatable."),
    ] = None,
    gpus: Annotated[bool, typer.Option("--gpus", help="Only sizes with GPUs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the sizes of nodes in the catalogue.

    A file sizes.toml in RETARGET_HOME adds your own sizes.

    \b
    Examples:
      retarget size list --series Dv2
      retarget size list --gpus
    """
    from retarget.sdk.workspace import Workspace

    sizes = Workspace().sizes.list(series=series, gpus=gpus)
    if as_json:
        write_json([asdict(size) for size in sizes])
    elif not sizes:
        print_status("no matching sizes", "dim")
    else:
        _show(sizes)


def _show(sizes: "list[Size]") -> None:
    from retarget.cli.tables import new_table
    from retarget.core.units import show_amount, show_memory

    titles = ("NAME", "SERIES", "CPUS", "MEMORY", "GPUS", "NOTES")
    rows = [
        (
            size.name,
            size.series,
            show_amount(size.cpus),
            show_memory(size.memory),
            _describe_gpus(size),
            _notes(size),
        )
        for size in sizes
    ]
    show(new_table(titles, rows, flexible="NOTES", optional=("SERIES",)))


def _describe_gpus(size: "Size") -> str:
    return f"{size.gpus} {size.gpu_model}".strip() if size.gpus else ""


def _notes(size: "Size") -> str:
    notes = {"isolated": size.isolated, "restricted": size.restricted}
    return ", ".join(note for note, holds in notes.items() if holds)
