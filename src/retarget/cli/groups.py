"""Creates groups of commands, all with the same settings."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_OTHER_OPTIONS = "Options"


class Command(TyperCommand):
    """A command whose help lists its options under the heading of each."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments first, then the options, those without a heading last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_heading(param), []).append(record)
        others = sections.pop(_OTHER_OPTIONS, [])
        for heading, records in [*sections.items(), (_OTHER_OPTIONS, others)]:
            with formatter.section(heading):
                formatter.write_dl(records)


def new_group(*, completion: bool = False, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=cls,
        no_args_is_help=True,
        add_completion=completion,
        rich_markup_mode=None,  # plain help: Rich would cost 100 ms per --help
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 80},
    )


def _heading(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or _OTHER_OPTIONS
