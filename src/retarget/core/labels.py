"""What people label a job with: a display name, a description, tags and properties.

The tags of a job are those of its run, which MLflow clients read and set, too. Its display name is
the name of the run, and its description the note of the run: MLflow has a tag for each.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from retarget.core.errors import Invalid
from retarget.core.filters import Clause
from retarget.core.grammars import Kind
from retarget.core.limits import (
    MAX_EXPERIMENT_NAME_LENGTH,
    MAX_KEY_LENGTH,
    MAX_TAG_LENGTH,
    check_key,
)
from retarget.core.tracking import MLFLOW_PREFIX, NAME_TAG, NOTE_TAG
from retarget.core.values import Value

MAX_LABELS = 100  # tags that one job is submitted with, and properties of one job
_SHOWN_CHARACTERS = 70


def _check_display_name(name: str) -> str:
    if not name.strip() or len(name) > MAX_EXPERIMENT_NAME_LENGTH or not name.isprintable():
        raise ValueError(
            f"a display name must have 1 to {MAX_EXPERIMENT_NAME_LENGTH} printable characters, at "
            "least one of them not a space"
        )
    return name


def _check_new_display_name(name: str) -> str:
    return _check_display_name(name) if name else name


def _check_text(text: str) -> str:
    if len(text) > MAX_TAG_LENGTH:
        raise ValueError(f"must have at most {MAX_TAG_LENGTH:,} characters, not {len(text):,}")
    if "\0" in text or not _is_unicode(text):
        raise ValueError("must be text without NUL characters that can be encoded as UTF-8")
    return text


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
    _check_count(tags)
    for key in tags:
        _check_tag_key(key)
    return tags


def _check_tag_changes(tags: dict[str, str | None]) -> dict[str, str | None]:
    _check_count(tags)
    for key in tags:
        _check_tag_key(key)
    return tags


def _check_properties(properties: dict[str, str]) -> dict[str, str]:
    _check_count(properties)
    for key in properties:
        _check_label_key(key)
    return properties


def _check_count(values: Mapping[str, Any]) -> None:
    if len(values) > MAX_LABELS:
        raise ValueError(f"at most {MAX_LABELS} are allowed, not {len(values):,}")


def _check_tag_key(key: str) -> None:
    _check_label_key(key)
    if key.startswith(MLFLOW_PREFIX):
        shown = key[:_SHOWN_CHARACTERS]
        raise ValueError(f"{shown!r} is a tag of MLflow itself; choose another key")


def _check_label_key(key: str) -> None:
    try:
        check_key(key, "key")
        is_valid = len(key) <= MAX_KEY_LENGTH
    except Invalid:
        is_valid = False
    if not is_valid:
        shown = ascii(key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…")
        raise ValueError(
            f"{shown} is not a valid key; use 1 to {MAX_KEY_LENGTH} letters, digits, spaces and "
            "any of '_-.:/', but no path that has a shorter form, such as 'a//b'"
        )


# what the validators allow, as far as /openapi.json can say it
_MAPPING_SCHEMA: dict[str, Any] = {
    "maxProperties": MAX_LABELS,
    "propertyNames": {"minLength": 1, "maxLength": MAX_KEY_LENGTH},
}
_MAPPING = Field(json_schema_extra=_MAPPING_SCHEMA)
_NAME_SCHEMA: dict[str, Any] = {"maxLength": MAX_EXPERIMENT_NAME_LENGTH}
_Text = Annotated[
    str, AfterValidator(_check_text), Field(json_schema_extra={"maxLength": MAX_TAG_LENGTH})
]

DisplayName = Annotated[
    str,
    AfterValidator(_check_display_name),
    Field(json_schema_extra={"minLength": 1, **_NAME_SCHEMA}),
]
Description = _Text
Tags = Annotated[dict[str, _Text], AfterValidator(_check_tags), _MAPPING]
Properties = Annotated[dict[str, _Text], AfterValidator(_check_properties), _MAPPING]


class Labels(Value):
    """What a job is labelled with now."""

    display_name: str  # the job's name if it has no other
    description: str = ""
    tags: dict[str, str] = {}  # without those that begin with `mlflow.`


class LabelChanges(Value):
    """What to change about the labels of a job; whatever is not set stays as it was."""

    # an empty one makes it the name of the job again
    display_name: (
        Annotated[
            str, AfterValidator(_check_new_display_name), Field(json_schema_extra=_NAME_SCHEMA)
        ]
        | None
    ) = None
    description: Description | None = None
    # added to those of the job; null removes one
    tags: Annotated[dict[str, _Text | None], AfterValidator(_check_tag_changes), _MAPPING] = {}
    properties: Properties = {}  # added to those of the job; a value that is set never changes


def labels_of(name: str, tags: Mapping[str, str]) -> Labels:
    """Return the labels of the job with this name from the tags of its run."""
    own = {key: value for key, value in tags.items() if not key.startswith(MLFLOW_PREFIX)}
    display_name, description = tags.get(NAME_TAG, name), tags.get(NOTE_TAG, "")
    return Labels(display_name=display_name, description=description, tags=own)


def changed_tags(name: str, changes: LabelChanges) -> dict[str, str | None]:
    """Return what changes about the tags of a run: new values, and None for those to remove."""
    tags: dict[str, str | None] = dict(changes.tags)
    if changes.display_name is not None:
        tags[NAME_TAG] = changes.display_name or name
    if changes.description is not None:
        tags[NOTE_TAG] = changes.description or None
    return tags


def changed_labels(
    tags: Mapping[str, str], properties: Mapping[str, str], changes: LabelChanges
) -> dict[str, Any]:
    """Return the requested labels that change, of a job with these tags and properties.

    Raise Invalid if a property has another value already, or if they are too many.
    """
    changed: dict[str, Any] = {
        "tags": _merged_tags(tags, changes.tags),
        "properties": _merged_properties(properties, changes.properties),
    }
    if changes.display_name is not None:
        changed["display_name"] = changes.display_name or None
    if changes.description is not None:
        changed["description"] = changes.description
    return changed


def parse_tags(texts: Iterable[str]) -> tuple[Clause, ...]:
    """Return the clauses that `team=vision`, or `team` with any value, stand for."""
    return tuple(_tag_clause(text) for text in texts)


def _tag_clause(text: str) -> Clause:
    key, equals, value = text.partition("=")
    try:
        _check_tag_key(key)
    except ValueError as error:
        raise Invalid(f"tag: {error}", field="tag") from None
    op, operand = ("=", value) if equals else ("IS NOT NULL", None)
    return Clause(Kind.TAG, key, op, operand)


def _merged_tags(tags: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**tags, **changes}
    return _limited("tags", {key: value for key, value in merged.items() if value is not None})


def _merged_properties(properties: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    for key, value in new.items():
        if properties.get(key, value) != value:
            shown = properties[key][:_SHOWN_CHARACTERS]
            raise Invalid(
                f"properties: {key!r} is {shown!r} already, and a property never changes; use a "
                "tag for what changes",
                field="properties",
            )
    return _limited("properties", {**properties, **new})


def _limited(field: str, values: dict[str, str]) -> dict[str, str]:
    if len(values) > MAX_LABELS:
        raise Invalid(
            f"{field}: a job can have {MAX_LABELS}, with these it has {len(values):,}", field=field
        )
    return values
