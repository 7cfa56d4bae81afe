"""Commands whose options depend on the kind of a target; the server knows the kinds' settings."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from retarget.cli.kind_options import Form, ParsedOption, Setting, settings_of, unknown_option
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.targets import Targets

_OPTIONS = "retarget.kind_options"  # the key of ctx.meta for the parsed options of the kind
_KIND = "retarget.kind"  # the key of ctx.meta for the kind and its settings
_HELP = ("--help", "-h")


class KindCommand(TyperCommand):
    """A command that takes the settings of the kind that `--kind` names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Separate the options of the kind from those of the command."""
        if ctx.resilient_parsing or not args:  # the shell completes: do not wait for a server
            return super().parse_args(ctx, args)
        is_help = any(option in args for option in _HELP)
        kind = self.find_kind(args, is_help=is_help)
        settings = [] if kind is None else _settings(kind)
        ctx.meta[_KIND] = kind, settings
        if is_help:
            return super().parse_args(ctx, ["--help"])
        command_args, options = _split(args, _command_options(self.params), settings, kind or "")
        ctx.meta[_OPTIONS] = options
        return super().parse_args(ctx, command_args)

    def find_kind(self, args: list[str], *, is_help: bool) -> str | None:
        """Return the kind that `args` name; None for the general help."""
        for index, word in enumerate(args):
            name, equals, value = word.partition("=")
            if name == "--kind" and (equals or index + 1 < len(args)):
                return value if equals else args[index + 1]
        if is_help:
            return None
        raise Invalid(f"missing option --kind ({_kind_names()})")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the command and, if the kind is known, those of the kind."""
        super().format_options(ctx, formatter)
        kind, settings = ctx.meta.get(_KIND, (None, []))
        if settings:
            with formatter.section(f"Options of {kind} targets"):
                formatter.write_dl([setting.help for setting in settings])


class TargetCommand(KindCommand):
    """A command that takes the settings of the target that its first argument names."""

    def find_kind(self, args: list[str], *, is_help: bool) -> str | None:
        """Return the kind of the target."""
        if not args[0].startswith("-"):
            return _targets()[args[0]].kind
        if is_help:
            return None
        raise Invalid("missing target; write: retarget target update NAME --OPTION VALUE")


def kind_options(ctx: Any) -> list[ParsedOption]:
    """Return the options of the kind on the command line."""
    return ctx.meta.get(_OPTIONS, [])


def reset_settings(ctx: Any, names: Iterable[str]) -> dict[str, None]:
    """Return the settings of these options as None, which sets them to their defaults."""
    kind, settings = ctx.meta.get(_KIND, ("", []))
    by_option = {setting.option: setting.name for setting in settings}
    options = [f"--{name.lstrip('-')}" for name in names]
    for option in options:
        if option not in by_option:
            raise unknown_option(option, kind, by_option)
    return dict.fromkeys(by_option[option] for option in options)


def name_option(ctx: Any, error: Invalid) -> Invalid:
    """Return the same error with the name of the option: `--host` for `config.hosts`."""
    _, settings = ctx.meta.get(_KIND, (None, []))
    path = (error.field or "").split(".")
    for setting in settings:
        if path[:2] == ["config", setting.name]:
            message = str(error).removeprefix(f"{error.field}: ")
            return Invalid(f"{setting.option}: {message}", field=error.field)
    return Invalid(str(error).removeprefix("config: "), field=error.field)


def _command_options(params: list[Any]) -> dict[str, bool]:
    """Return the options of the command itself, and whether each takes a value."""
    options = [(name, param) for param in params for name in param.opts if name.startswith("-")]
    return {name: not param.is_flag for name, param in options}


def _split(
    args: list[str], command_options: Mapping[str, bool], settings: list[Setting], kind: str
) -> tuple[list[str], list[ParsedOption]]:
    """Separate the arguments of the command from the options of the kind."""
    by_option = {option: setting for setting in settings for option in setting.options}
    known = {*command_options, *by_option}
    command_args, options, rest = list[str](), list[ParsedOption](), list(reversed(args))
    while rest:
        word = rest.pop()
        name = word.partition("=")[0]
        if name in by_option:
            has_name = bool(command_args) and not command_args[0].startswith("-")
            value = _value(word, by_option[name], rest, known, has_name=has_name)
            options.append(ParsedOption(by_option[name], name, value))
        elif word.startswith("-") and name not in command_options:
            raise unknown_option(name, kind, by_option)
        else:
            command_args.append(word)
            if command_options.get(name) and "=" not in word and rest:
                command_args.append(rest.pop())
    return command_args, options


def _value(
    word: str, setting: Setting, rest: list[str], options: set[str], *, has_name: bool
) -> str | None:
    """Return the value of an option, from `--option=value` or from the next argument."""
    name, equals, value = word.partition("=")
    if setting.options[name] == "":
        # the next word may be the target's name; if that came before, it can only be the secret
        has_value = has_name and bool(rest) and not rest[-1].startswith("-")
        if equals or (has_value and setting.form is Form.SECRET):
            raise _takes_no_value(name, setting)
        return None
    if equals:
        return value
    if not rest or rest[-1].partition("=")[0] in options:
        raise Invalid(f"{name} needs a value ({setting.description or setting.form.value})")
    return rest.pop()


def _takes_no_value(name: str, setting: Setting) -> Invalid:
    if setting.form is not Form.SECRET:
        return Invalid(f"{name} takes no value; write {' or '.join(setting.options)}")
    option = setting.option
    return Invalid(
        f"{option} takes no value, because other users could see it in the process list; "
        f"{option} prompts for it and {option}-stdin reads it from stdin"
    )


def _settings(name: str) -> list[Setting]:
    for kind in _targets().kinds():
        if kind["kind"] == name:
            if kind["missing"]:
                raise Invalid(f"the server cannot use kind {name!r} yet: {kind['missing']}")
            return settings_of(kind["config_schema"] or {})
    raise Invalid(f"unknown kind {name!r}; this server knows {_kind_names()}", field="kind")


def _kind_names() -> str:
    return ", ".join(str(kind["kind"]) for kind in _targets().kinds())


def _targets() -> "Targets":
    from retarget.sdk.workspace import Workspace

    return Workspace().targets
