"""PyPI replaces conda channels only where it has every package, or where that was requested."""

import pytest

from retarget.core.conda_policy import AUTO, STRICT, conda_notice, substitute_for
from retarget.core.environments import Environment
from retarget.core.errors import Invalid

NUMPY = Environment(kind="system", channels=("conda-forge",), conda=("numpy>=2",))
CODECS = Environment(kind="system", channels=("conda-forge",), conda=("ffmpeg", "numpy>=2", "x264"))
REQUESTED = CODECS.model_copy(update={"conda_from_pypi": True})
OBSTACLE = "conda-forge cannot be reached: no route"


def test_channels_that_can_be_used_need_no_notice() -> None:
    for policy in (AUTO, STRICT):
        assert conda_notice(NUMPY, "", policy) == conda_notice(CODECS, "", policy) == ""
    assert conda_notice(Environment(kind="system", pip=("numpy",)), OBSTACLE, STRICT) == ""


def test_packages_that_pypi_has_are_built_from_pypi_with_a_notice() -> None:
    assert conda_notice(NUMPY, OBSTACLE, AUTO) == (
        "built from PyPI instead of conda channels: numpy>=2 (the conda channels cannot be used: "
        "conda-forge cannot be reached: no route)"
    )


def test_packages_that_pypi_lacks_are_dropped_only_on_request() -> None:
    with pytest.raises(Invalid, match=r"PyPI has no equivalent of ffmpeg, x264; .*--conda-from-"):
        conda_notice(CODECS, OBSTACLE, AUTO)
    for obstacle in ("", OBSTACLE):
        notice = conda_notice(REQUESTED, obstacle, STRICT)
        assert notice.endswith("numpy>=2; without ffmpeg, x264 (--conda-from-pypi)")
    assert substitute_for(REQUESTED, AUTO).dropped == ("ffmpeg", "x264")


def test_a_refusal_names_what_works_on_every_kind_of_target() -> None:
    with pytest.raises(Invalid) as refused:
        conda_notice(CODECS, "targets of kind ssh build from PyPI", AUTO)
    assert str(refused.value).endswith(
        "PyPI has no equivalent of ffmpeg, x264; build without them with --conda-from-pypi, use an "
        "image that has them (--image), or a target that can use the channels"
    )


def test_a_build_that_pypi_does_not_have_is_named() -> None:
    pinned = CODECS.model_copy(update={"conda": ("ffmpeg=6=gpl_0", "numpy=1.26.*=py310*")})
    notice = conda_notice(pinned.model_copy(update={"conda_from_pypi": True}), OBSTACLE, AUTO)
    assert "numpy==1.26.*; without ffmpeg=6=gpl_0, the build py310* of numpy (" in notice
    numpy = pinned.model_copy(update={"conda": ("numpy=1.26.*=py310*",)})
    assert "numpy==1.26.*; without the build py310* of numpy (" in conda_notice(
        numpy, OBSTACLE, AUTO
    )


def test_a_strict_policy_refuses_what_pypi_has() -> None:
    with pytest.raises(Invalid, match="`conda = strict` allows nothing else"):
        conda_notice(NUMPY, OBSTACLE, STRICT)


def test_a_version_that_pypi_cannot_express_is_refused_only_if_pypi_is_needed() -> None:
    either = NUMPY.model_copy(update={"conda": ("numpy=1.2|=1.4",)})
    assert conda_notice(either, "", AUTO) == ""
    with pytest.raises(Invalid, match="PyPI cannot express this version"):
        conda_notice(either, OBSTACLE, AUTO)
