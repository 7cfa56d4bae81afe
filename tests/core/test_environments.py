"""Environments as values: which fields can be combined, and what their digest covers."""

import pytest
from pydantic import ValidationError

from retarget.core.environments import Environment

CONTEXT = "a" * 64


def in_image(**fields: object) -> Environment:
    return Environment.model_validate({"kind": "image", **fields})


def test_the_digest_of_an_image_covers_everything_that_determines_what_runs() -> None:
    different = [
        in_image(image="python:3.12"),
        in_image(image="python:3.11"),
        in_image(image="python:3.12", pip=("idna",)),
        in_image(image="python:3.12", conda=("idna",)),
        in_image(dockerfile="Dockerfile", context=CONTEXT),
        in_image(dockerfile="other/Dockerfile", context=CONTEXT),
        in_image(dockerfile="Dockerfile", context="b" * 64),
        Environment(kind="system", pip=("idna",)),
    ]
    assert len({environment.digest for environment in different}) == len(different)
    assert in_image(image="python:3.12", name="mine").digest == different[0].digest


def test_the_digest_of_other_kinds_never_changes() -> None:
    environment = Environment(kind="system", pip=("idna",))
    assert environment.digest == "29894e4c15b39ef88e1112a7fa2d7b3e"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"kind": "image"}, "needs an image or a dockerfile"),
        ({"kind": "user", "image": "python"}, "needs an image or a dockerfile"),
        (
            {"kind": "system", "dockerfile": "D", "context": CONTEXT},
            "needs an image or a dockerfile",
        ),
        ({"image": "x", "dockerfile": "D", "context": CONTEXT}, "exclude each other"),
        ({"dockerfile": "Dockerfile"}, "must be set together"),
        ({"image": "python", "context": CONTEXT}, "must be set together"),
        ({"image": "--privileged"}, "is not an image name"),
        ({"image": "a b"}, "is not an image name"),
        ({"image": ""}, "is not an image name"),
        ({"dockerfile": "../Dockerfile", "context": CONTEXT}, "not a path within"),
        ({"dockerfile": "/etc/passwd", "context": CONTEXT}, "not a path within"),
        ({"dockerfile": "Dockerfile", "context": "abc"}, "not the digest"),
        ({"image": "python", "prefer": "/usr/bin/python"}, "no preferred interpreter"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    definition: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        in_image(**definition)


@pytest.mark.parametrize(
    "image",
    ["python", "python:3.12-slim", "ghcr.io/a/b_c:v1", "host:5000/x@sha256:" + "0" * 64],
)
def test_every_image_name_of_a_registry_is_accepted(image: str) -> None:
    assert in_image(image=image).image == image
