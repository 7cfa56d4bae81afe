"""What a job may be labelled with, and how labels change."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from retarget.core.errors import Invalid
from retarget.core.filters import Clause
from retarget.core.grammars import Kind
from retarget.core.labels import (
    DisplayName,
    LabelChanges,
    Properties,
    Tags,
    changed_labels,
    changed_tags,
    labels_of,
    parse_tags,
)

TAGS = {"mlflow.runName": "Night run", "mlflow.source.type": "JOB", "team": "vision"}


def test_the_labels_of_a_job_are_tags_of_its_run() -> None:
    labels = labels_of("night", TAGS | {"mlflow.note.content": "the\nlong one"})
    assert labels.display_name == "Night run"
    assert labels.description == "the\nlong one"
    assert labels.tags == {"team": "vision"}
    assert labels_of("night", {}).display_name == "night"


def test_only_what_is_set_changes() -> None:
    assert changed_tags("night", LabelChanges()) == {}
    assert changed_labels({"a": "1"}, {}, LabelChanges()) == {"tags": {"a": "1"}, "properties": {}}
    changes = LabelChanges(display_name="", description="", tags={"a": None, "b": "2"})
    assert changed_tags("night", changes) == {
        **{"a": None, "b": "2"},
        **{"mlflow.runName": "night", "mlflow.note.content": None},
    }
    assert changed_labels({"a": "1", "c": "3"}, {}, changes) == {
        "tags": {"b": "2", "c": "3"},
        "properties": {},
        "display_name": None,
        "description": "",
    }


def test_a_property_never_changes() -> None:
    again = LabelChanges(properties={"commit": "1f", "run": "2"})
    properties = changed_labels({}, {"commit": "1f"}, again)["properties"]
    assert properties == {"commit": "1f", "run": "2"}
    other = LabelChanges(properties={"commit": "2e"})
    with pytest.raises(Invalid, match="'commit' is '1f' already, and a property never changes"):
        changed_labels({}, {"commit": "1f"}, other)


def test_a_job_has_a_limited_number_of_labels() -> None:
    full = {f"k{number}": "" for number in range(100)}
    with pytest.raises(Invalid, match="tags: a job can have 100, with these it has 101"):
        changed_labels(full, {}, LabelChanges(tags={"more": "x"}))
    assert changed_labels(full, {}, LabelChanges(tags={"k0": None, "more": "x"}))
    with pytest.raises(Invalid, match="properties: a job can have 100, with these it has 101"):
        changed_labels({}, full, LabelChanges(properties={"more": "x"}))


@pytest.mark.parametrize("key", ["team", "a b", "val/acc", "x.y-z_1", "größe", "a:b", "k" * 250])
def test_a_valid_key_is_accepted(key: str) -> None:
    assert TypeAdapter(Tags).validate_python({key: "any\ntext"}) == {key: "any\ntext"}
    assert TypeAdapter(Properties).validate_python({key: ""}) == {key: ""}


@pytest.mark.parametrize(
    "key", ["", ".", "..", "/a", "a//b", "a/../b", "a=b", "a\n", "\x1b", "k" * 251, "\ud800", "*"]
)
def test_a_wrong_key_is_refused_in_one_sentence(key: str) -> None:
    for kind in (Tags, Properties):
        with pytest.raises(ValidationError, match="is not a valid key; use 1 to 250 letters"):
            TypeAdapter[Any](kind).validate_python({key: "x"})
    with pytest.raises(Invalid, match=r"^tag: .* is not a valid key"):
        parse_tags([f"{key.partition('=')[0]}*=x"])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"mlflow.runName": "x"}, "'mlflow.runName' is a tag of MLflow itself"),
        ({f"k{number}": "x" for number in range(10_000)}, "at most 100 are allowed, not 10,000"),
        ({"k": "x" * 8001}, "must have at most 8,000 characters, not 8,001"),
        ({"k": "a\0"}, "must be text without NUL characters"),
        ({"k": "\ud800"}, "must be text without NUL characters that can be encoded"),
    ],
)
def test_wrong_tags_are_refused_in_one_sentence(values: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        TypeAdapter(Tags).validate_python(values)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[31m", "x" * 501, "\ud800"])
def test_a_display_name_is_one_printable_line(name: str) -> None:
    with pytest.raises(ValidationError, match="a display name must have 1 to 500 printable"):
        TypeAdapter(DisplayName).validate_python(name)
    assert TypeAdapter(DisplayName).validate_python("ResNet, größer: 64/128") != ""


def test_a_tag_selects_a_value_or_any_value() -> None:
    assert parse_tags(["team=a=b", "final"]) == (
        Clause(Kind.TAG, "team", "=", "a=b"),
        Clause(Kind.TAG, "final", "IS NOT NULL", None),
    )
