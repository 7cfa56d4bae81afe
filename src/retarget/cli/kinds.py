"""Commands whose options depend on the kind of a target: its settings are asked of the server."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from retarget.cli.settings import Form, Given, Setting, settings_of, unknown_option
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.targets import Targets

_GIVEN = "retarget.given"  # where a command finds the options of its kind
_KIND = "retarget.kind"
_HELP = ("--help", "-h")


class OfKind(TyperCommand):
    """A command that takes the settings of the kind that `--kind` names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Part the options of the kind from those of the command."""
        if ctx.resilient_parsing or not args:  # the shell completes: no time to ask a server
            return super().parse_args(ctx, args)
        wants_help = any(each in args for each in _HELP)
        kind = self.kind_in(args, wants_help=wants_help)
        settings = [] if kind is None else _settings(kind)
        ctx.meta[_KIND] = kind, settings
        if wants_help:
            return super().parse_args(ctx, ["--help"])
        ours, given = _part(args, _own(self.params), settings, kind or "")
        ctx.meta[_GIVEN] = given
        return super().parse_args(ctx, ours)

    def kind_in(self, args: list[str], *, wants_help: bool) -> str | None:
        """Return the kind that is meant; None where only the general help is wanted."""
        for index, word in enumerate(args):
            name, equals, value = word.partition("=")
            if name == "--kind" and (equals or index + 1 < len(args)):
                return value if equals else args[index + 1]
        if wants_help:
            return None
        raise Invalid(f"of which kind is it? give --kind: {_known()}")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the command and, where the kind is known, its own."""
        super().format_options(ctx, formatter)
        kind, settings = ctx.meta.get(_KIND, (None, []))
        if settings:
            with formatter.section(f"Options of {kind} targets"):
                formatter.write_dl([setting.help for setting in settings])


class OfTarget(OfKind):
    """A command that takes the settings of the kind of the target that is its first word."""

    def kind_in(self, args: list[str], *, wants_help: bool) -> str | None:
        """Return the kind of the target."""
        if not args[0].startswith("-"):
            return _targets()[args[0]].kind
        if wants_help:
            return None
        raise Invalid("which target? name it first: retarget target update NAME --OPTION VALUE")


def given_to(ctx: Any) -> list[Given]:
    """Return the options of the kind that a command was given."""
    return ctx.meta.get(_GIVEN, [])


def defaults_of(ctx: Any, names: Iterable[str]) -> dict[str, None]:
    """Return settings, each named as its option is, as ones that are to have their defaults."""
    kind, settings = ctx.meta.get(_KIND, ("", []))
    named = {setting.option: setting.name for setting in settings}
    options = [f"--{name.lstrip('-')}" for name in names]
    for option in options:
        if option not in named:
            raise unknown_option(option, kind, named)
    return dict.fromkeys(named[option] for option in options)


def in_options(ctx: Any, error: Invalid) -> Invalid:
    """Return the same error in the words of the command: `--host` for `config.hosts`."""
    _, settings = ctx.meta.get(_KIND, (None, []))
    words = (error.field or "").split(".")
    for setting in settings:
        if words[:2] == ["config", setting.name]:
            told = str(error).removeprefix(f"{error.field}: ")
            return Invalid(f"{setting.option}: {told}", field=error.field)
    return Invalid(str(error).removeprefix("config: "), field=error.field)


def _own(params: list[Any]) -> dict[str, bool]:
    """Return the options of a command, and whether each takes a value."""
    options = [(name, param) for param in params for name in param.opts if name.startswith("-")]
    return {name: not param.is_flag for name, param in options}


def _part(
    args: list[str], own: Mapping[str, bool], settings: list[Setting], kind: str
) -> tuple[list[str], list[Given]]:
    """Part what the command itself takes from the options of the kind."""
    known = {option: setting for setting in settings for option in setting.options}
    ours, given, words = list[str](), list[Given](), list(reversed(args))
    while words:
        word = words.pop()
        name = word.partition("=")[0]
        if name in known:
            value = _value(word, known[name], words, {*own, *known}, is_named=_is_named(ours))
            given.append(Given(known[name], name, value))
        elif word.startswith("-") and name not in own:
            raise unknown_option(name, kind, known)
        else:
            ours.append(word)
            if own.get(name) and "=" not in word and words:
                ours.append(words.pop())
    return ours, given


def _is_named(ours: list[str]) -> bool:
    return bool(ours) and not ours[0].startswith("-")


def _value(
    word: str, setting: Setting, words: list[str], options: set[str], *, is_named: bool
) -> str | None:
    """Return the value of an option, taken from the words that follow if it is not joined to it."""
    name, equals, value = word.partition("=")
    if setting.options[name] == "":
        # the name of the target may follow; if it is there already, this can only be the secret
        follows = is_named and bool(words) and not words[-1].startswith("-")
        if equals or (follows and setting.form is Form.SECRET):
            raise _takes_none(name, setting)
        return None
    if equals:
        return value
    if not words or words[-1].partition("=")[0] in options:
        raise Invalid(f"{name} needs a value ({setting.about or setting.form.value})")
    return words.pop()


def _takes_none(name: str, setting: Setting) -> Invalid:
    if setting.form is not Form.SECRET:
        return Invalid(f"{name} takes no value; there are {' and '.join(setting.options)}")
    plain = setting.option
    return Invalid(
        f"{plain} takes no value, as others could read it there: alone it asks for it, and "
        f"{plain}-stdin reads it from stdin"
    )


def _settings(kind: str) -> list[Setting]:
    for each in _targets().kinds():
        if each["kind"] == kind:
            if each["missing"]:
                raise Invalid(f"the server cannot use this kind yet: {each['missing']}")
            return settings_of(each["config_schema"] or {})
    raise Invalid(f"unknown kind {kind!r}; this server knows {_known()}", field="kind")


def _known() -> str:
    return ", ".join(str(each["kind"]) for each in _targets().kinds())


def _targets() -> "Targets":
    from retarget.sdk.workspace import Workspace

    return Workspace().targets
