"""How every group of commands is made."""

import typer


def new_group(*, completion: bool = False) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=completion,
        rich_markup_mode=None,  # plain help: Rich's would cost 100 ms at every --help
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 80},
    )
