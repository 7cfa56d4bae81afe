"""Environments as values: which parts go together, and what their digest covers."""

import pytest
from pydantic import ValidationError

from retarget.core.environments import Environment

CONTEXT = "a" * 64


def in_image(**more: object) -> Environment:
    return Environment.model_validate({"kind": "image", **more})


def test_the_digest_of_an_image_covers_all_that_decides_what_runs() -> None:
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
    assert len({each.digest for each in different}) == len(different)
    assert in_image(image="python:3.12", name="mine").digest == different[0].digest


def test_the_digest_of_what_is_no_image_is_what_it_always_was() -> None:
    environment = Environment(kind="system", pip=("idna",))
    assert environment.digest == "29894e4c15b39ef88e1112a7fa2d7b3e"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"kind": "image"}, "an image or a dockerfile"),
        ({"kind": "user", "image": "python"}, "an image or a dockerfile"),
        ({"kind": "system", "dockerfile": "D", "context": CONTEXT}, "an image or a dockerfile"),
        ({"image": "x", "dockerfile": "D", "context": CONTEXT}, "exclude each other"),
        ({"dockerfile": "Dockerfile"}, "go together"),
        ({"image": "python", "context": CONTEXT}, "go together"),
        ({"image": "--privileged"}, "is not the name of an image"),
        ({"image": "a b"}, "is not the name of an image"),
        ({"image": ""}, "is not the name of an image"),
        ({"dockerfile": "../Dockerfile", "context": CONTEXT}, "not a path within"),
        ({"dockerfile": "/etc/passwd", "context": CONTEXT}, "not a path within"),
        ({"dockerfile": "Dockerfile", "context": "abc"}, "not the digest"),
        ({"image": "python", "prefer": "/usr/bin/python"}, "no preferred interpreter"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(
    definition: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        in_image(**definition)


@pytest.mark.parametrize(
    "image",
    ["python", "python:3.12-slim", "ghcr.io/a/b_c:v1", "host:5000/x@sha256:" + "0" * 64],
)
def test_images_are_named_as_registries_name_them(image: str) -> None:
    assert in_image(image=image).image == image
