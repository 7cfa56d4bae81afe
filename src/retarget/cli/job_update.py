"""`retarget job update`: change how a job is labelled."""

from typing import Annotated

import typer

from retarget.cli.lookup import AsJson, JobName, find_job
from retarget.cli.tags import parse_tags
from retarget.cli.terminal import print_status, write_json
from retarget.core.errors import Invalid


def update(
    name: JobName,
    display_name: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Name for people. An empty one: the name of the job again."
        ),
    ] = None,
    description: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the job is for.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Set a tag; K= removes it. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the display name, the description and the tags of a job.

    The job may be in any state.

    \b
    Examples:
      retarget job update night --display-name 'ResNet 50' --tag stage=final
      retarget job update night --tag stage=
    """
    if display_name is None and description is None and tag is None:
        raise Invalid("nothing to change; pass --display-name, --description or --tag")
    tags = {key: value or None for key, value in parse_tags(tag).items()}
    job = find_job(name).update(display_name=display_name, description=description, tags=tags)
    write_json(job.to_json()) if as_json else print_status(f"updated {job.name}", "dim")
