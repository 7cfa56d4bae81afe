"""`retarget secret …`: manage the secrets that jobs get as environment variables."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.completion import complete_secret
from retarget.cli.groups import new_group
from retarget.cli.lookup import AsJson
from retarget.cli.terminal import print_status, show, write_json
from retarget.core.errors import Invalid
from retarget.core.variables import MAX_SECRET_BYTES, check_secret_name, check_secret_value

if TYPE_CHECKING:
    from retarget.sdk.secrets import Secrets

app = new_group()

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the environment variable, such as HF_TOKEN.",
        autocompletion=complete_secret,
    ),
]


@app.command("set")
def set_secret(name: Name) -> None:
    """Store a secret, or replace its value.

    On a terminal the command asks for the value twice and does not show it. Otherwise it reads
    the value from stdin, without the line break at its end. A value has at least 6 bytes. Jobs
    get it with `retarget run --secret NAME`.

    \b
    Examples:
      retarget secret set HF_TOKEN
      retarget secret set DEPLOY_KEY < id_ed25519
    """
    check_secret_name(name)
    value = check_secret_value(_prompt(name) if sys.stdin.isatty() else _read_stdin())
    _secrets().set(name, value)
    print_status(f"stored {name}; use it with `retarget run --secret {name} …`", "dim")


@app.command("list")
def list_secrets(as_json: AsJson = False) -> None:
    """List the names of secrets. Values are never shown."""
    secrets = _secrets().list()
    if as_json:
        write_json([asdict(secret) for secret in secrets])
        return
    if not secrets:
        print_status("no secrets; `retarget secret set NAME` stores one", "dim")
        return
    from retarget.cli.tables import new_table
    from retarget.cli.times import show_age, utc_now

    now = utc_now()
    rows = [
        (secret.name, show_age(secret.created_at, now), show_age(secret.updated_at, now))
        for secret in secrets
    ]
    show(new_table(("NAME", "CREATED", "UPDATED"), rows, flexible="NAME"))


@app.command()
def delete(name: Name) -> None:
    """Delete a secret.

    Running jobs keep the value they have. A queued job that uses the secret fails when it starts.
    """
    _secrets().delete(name)
    print_status(f"deleted {name}", "dim")


def _prompt(name: str) -> str:
    from getpass import getpass

    try:
        value = getpass(f"{name}: ")
        if getpass(f"{name} again: ") != value:
            raise Invalid("the two values differ; nothing was stored")
    except EOFError:
        raise Invalid("the input ended; nothing was stored") from None
    return value


def _read_stdin() -> str:
    content = sys.stdin.buffer.read(MAX_SECRET_BYTES + 3)  # with a line break, and one more
    if len(content) == MAX_SECRET_BYTES + 3:
        raise Invalid(f"value: a secret must have at most {MAX_SECRET_BYTES:,} bytes")
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Invalid("value: stdin is not UTF-8 text; encode binary data, as in base64") from None


def _secrets() -> "Secrets":
    from retarget.sdk.workspace import Workspace

    return Workspace().secrets
