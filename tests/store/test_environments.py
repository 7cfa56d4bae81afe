"""Environments in SQL: by name, by digest, by the beginning of a digest."""

import pytest
from sqlalchemy import insert

from retarget.core.environments import Environment
from retarget.core.errors import Invalid, NotFound
from retarget.store.engine import writing
from retarget.store.environments import Environments, Known
from retarget.store.schema import environments as table

NUMPY = Environment(kind="system", python="3.11", pip=("numpy",), channels=("conda-forge",))
SCIPY = Environment(kind="system", pip=("scipy",))
OURS = Environment(kind="user", python="/opt/ours/bin/python")


def test_an_environment_is_found_by_its_digest(environments: Environments) -> None:
    digest = environments.keep(NUMPY, 1.0)
    assert digest == NUMPY.digest
    known = Known(None, digest, NUMPY, 1.0)
    assert environments.find(digest) == environments.find(digest[:8]) == known
    environments.keep(NUMPY.model_copy(update={"name": "any"}), 2.0)
    assert environments.list() == [known]


def test_an_environment_is_found_by_its_names(environments: Environments) -> None:
    environments.name("np", NUMPY, 1.0)
    environments.name("also", NUMPY, 2.0)
    named = NUMPY.model_copy(update={"name": "np"})
    assert environments.find("np") == Known("np", str(NUMPY.digest), named, 1.0)
    assert environments.find(str(NUMPY.digest)).name == "also"
    assert [known.name for known in environments.list()] == ["also", "np"]


def test_a_name_moves_to_another_definition(environments: Environments) -> None:
    environments.name("mine", NUMPY, 1.0)
    environments.name("mine", SCIPY, 2.0)
    assert environments.find("mine").digest == SCIPY.digest
    listed = [(known.name, known.digest) for known in environments.list()]
    assert listed == [("mine", SCIPY.digest), (None, NUMPY.digest)]


def test_a_user_managed_environment_can_have_a_name(environments: Environments) -> None:
    environments.name("ours", OURS, 1.0)
    environments.name("theirs", Environment(python="/opt/theirs/bin/python"), 1.0)
    known = environments.find("ours")
    assert known.environment == OURS.model_copy(update={"name": "ours"})
    assert known.digest != environments.find("theirs").digest
    environments.remove(known.digest)
    assert [known.name for known in environments.list()] == ["theirs"]


def test_a_name_goes_before_a_digest(environments: Environments) -> None:
    digest = environments.keep(NUMPY, 1.0)
    environments.name(digest[:8], SCIPY, 1.0)
    assert environments.find(digest[:8]).digest == SCIPY.digest


def test_removing_a_definition_removes_its_names(environments: Environments) -> None:
    environments.name("np", NUMPY, 1.0)
    environments.name("sp", SCIPY, 1.0)
    environments.remove(str(NUMPY.digest))
    assert [known.name for known in environments.list()] == ["sp"]
    with pytest.raises(NotFound):
        environments.remove(str(NUMPY.digest))


def test_what_cannot_be_found_is_told(environments: Environments) -> None:
    digest = environments.keep(NUMPY, 1.0)
    for text in ("x", digest[:7], "%", "ffff" * 8, digest.upper() + "Z"):
        with pytest.raises(NotFound, match="`retarget env list` shows them"):
            environments.find(text)


def test_a_beginning_that_fits_several_is_told(environments: Environments) -> None:
    with writing(environments.engine) as db:
        for end in ("0", "f"):
            digest = "abcdef01" + end * 24
            db.execute(insert(table).values(digest=digest, definition={}, created=1.0))
    with pytest.raises(Invalid, match="begin with 'abcdef01'; give more digits"):
        environments.find("abcdef01")
    assert environments.find("abcdef010").digest == "abcdef01" + "0" * 24
