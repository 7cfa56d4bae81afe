"""No name that we bind is one of the words the glossary rules out."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_BETTER = {
    "told": "the noun: what the value is (arguments, payload, answer, message)",
    "given": "the noun: what the value is (arguments, options, initial)",
    "said": "the noun: what the value is (output, message, log)",
    "heard": "last_seen_at, events_acked or the noun",
    "wanted": "requirement, requested, needed or the noun",
    "ours": "the noun: what the value is (own_files, is_managed)",
    "arena": "the noun: what it is (hosts, engines)",
    "workshop": "the noun: what it is (hosts, engines)",
    "door": "relay port",
    "doors": "relay ports",
    "nursery": "fork server",
    "nurseries": "fork servers",
    "mend": "fix",
    "mended": "fixed",
    "mends": "fixes",
}
# as a whole name only: `retries_left` and `NotFound` say what they are
_BETTER_WHOLE = {
    "asked": "the noun: what the value is (query, options, request)",
    "got": "the noun: what the value is (content, response)",
    "mine": "the noun: what the value is (file, package)",
    "found": "the noun: what was looked for (match, package)",
    "left": "the noun: what remains (remaining, leftovers)",
    "each": "the noun: what is iterated over",
    "begun": "started, or the noun with _at",
    "spared": "the noun: what the value is (protected, excluded)",
    "taken": "the noun: what the value is (names, processed_bytes)",
    "theirs": "the noun: what the value is (child_descriptors)",
    "woken": "on_wake",
    "facts": "inventory",
    "fence": "lost_after",
}
_VAGUE_MODULES = {"utils", "helper", "helpers", "manager", "managers"}
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def _sources() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        listed = [_ROOT / line for line in done.stdout.splitlines()]
        return sorted(path for path in listed if path.exists())
    folders = ("src", "tests", "benchmarks", "examples", "docs", "scripts")
    return sorted(path for folder in folders for path in (_ROOT / folder).rglob("*.py"))


def _bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that the code binds, with its line. Imported names are others' own."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case (
                ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name, node.lineno
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((alias.asname, node.lineno) for alias in names if alias.asname)
            case _:
                pass


def _fields(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every key of a mapping that is written in the code: fields of JSON and of rows."""
    for node in ast.walk(tree):
        keys = node.keys if isinstance(node, ast.Dict) else ()
        keys = [node.slice] if isinstance(node, ast.Subscript) else keys
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key.lineno


def _ruled_out(name: str) -> str | None:
    whole = name.strip("_").lower()
    if whole in _BETTER_WHOLE:
        return whole
    words = (word.lower() for word in _WORD.findall(name))
    return next((word for word in words if word in _BETTER), None)


def offences(path: str, code: str) -> list[str]:
    """Return a sentence for every name in `code` that the glossary rules out."""
    modules = [part.removesuffix(".py") for part in Path(path).parts]
    tree = ast.parse(code)
    names = [(name, 1) for name in modules]
    names += [*_bound(tree), *(_fields(tree) if path.startswith("src/") else ())]
    better = _BETTER | _BETTER_WHOLE
    return [
        f"{path}:{line}: {name!r} has the word {word!r}; better: {better[word]}"
        for name, line in dict.fromkeys(names)
        if (word := _ruled_out(name)) is not None
    ] + [
        f"{path}: {module!r} says nothing; better: the role of the module"
        for module in modules
        if not _VAGUE_MODULES.isdisjoint(module.split("_"))
    ]


def test_no_name_is_ruled_out_by_the_glossary() -> None:
    sources = _sources()
    assert len(sources) > 100
    wrong = [
        sentence
        for path in sources
        for sentence in offences(str(path.relative_to(_ROOT)), path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "told = 1",
        "for given in (): pass",
        "def f(wanted): pass",
        "class NurseryClient: pass",
        "self.relay_door = 1",
        "def what_was_said(): pass",
        "try: pass\nexcept OSError as heard: pass",
        "import os as ours",
        "match 1:\n    case mended: pass",
        "x: int\ntoldThat: str = ''",
        "found = 1",
        "for _each in (): pass",
        "def f(*, left): pass",
        "taken = 1",
    ],
)
def test_every_kind_of_binding_is_seen(code: str) -> None:
    assert len(offences("a.py", code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "from hypothesis import given\n@given(1)\ndef test_f(): pass",
        "'told given said'",
        "print(x.door, door)",
        "colours = hours = indoors = 1",
        "retries_left = 1\nclass NotFound: pass",
        "{'told you': 1, 'a heard b': 2}",
    ],
)
def test_what_others_name_and_prose_are_free(code: str) -> None:
    assert offences("a.py", code) == []


def test_a_module_has_a_name_too() -> None:
    assert len(offences("src/nursery.py", "")) == 1
    assert len(offences("src/nursery/pool.py", "")) == 1
    assert len(offences("tests/root_helpers.py", "")) == 1


@pytest.mark.parametrize("code", ["{'heard': 1}", "row['pods_wanted']"])
def test_the_fields_of_the_package_have_names_too(code: str) -> None:
    assert len(offences("src/a.py", code)) == 1
