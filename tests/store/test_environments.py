"""Environments in SQL: by name, by digest, by the first digits of a digest."""

import pytest
from sqlalchemy import insert

from retarget.core.environments import Environment
from retarget.core.errors import Invalid, NotFound
from retarget.core.locks import Lock
from retarget.store.engine import writing
from retarget.store.environments import Environments, StoredEnvironment
from retarget.store.locks import Locks
from retarget.store.schema import environments as table

NUMPY = Environment(kind="system", python="3.11", pip=("numpy",), channels=("conda-forge",))
SCIPY = Environment(kind="system", pip=("scipy",))
LOCK = Lock(platform="linux-x86_64", python="3.11.7", packages=("numpy==2.0",))
USER_MANAGED = Environment(kind="user", python="/opt/lab/bin/python")


def test_an_environment_is_found_by_its_digest(environments: Environments) -> None:
    digest = environments.keep(NUMPY, 1.0)
    assert digest == NUMPY.digest
    stored = StoredEnvironment(None, digest, NUMPY, 1.0)
    assert environments.find(digest) == environments.find(digest[:8]) == stored
    environments.keep(NUMPY.model_copy(update={"name": "any"}), 2.0)
    assert environments.list() == [stored]


def test_an_environment_is_found_by_its_names(environments: Environments) -> None:
    environments.register("np", NUMPY, 1.0)
    environments.register("also", NUMPY, 2.0)
    named = NUMPY.model_copy(update={"name": "np", "version": 1})
    assert environments.find("np") == StoredEnvironment("np", str(NUMPY.digest), named, 1.0)
    assert environments.find(str(NUMPY.digest)).name == "also"
    assert [stored.name for stored in environments.list()] == ["also", "np"]


def test_a_changed_definition_is_a_new_version_of_its_name(environments: Environments) -> None:
    assert environments.register("mine", NUMPY, 1.0).version == 1
    assert environments.register("mine", SCIPY, 2.0).version == 2
    assert environments.register("mine", SCIPY, 3.0).created_at == 2.0
    assert environments.find("mine") == environments.find("mine@latest")
    assert environments.find("mine@latest") == environments.find("mine:2")
    assert environments.find("mine:1").digest == NUMPY.digest
    assert [stored.environment.label for stored in environments.list()] == ["mine:2", "mine:1"]
    assert environments.versions("mine") == environments.list()
    assert environments.register("mine", NUMPY, 4.0).version == 3
    assert environments.find("mine:3").digest == environments.find("mine:1").digest
    for text in ("mine:4", "mine:0", "mine@first", "mine:", "other:1"):
        with pytest.raises(NotFound):
            environments.find(text)
    with pytest.raises(NotFound, match="has no version 9; it has 1, 2, 3"):
        environments.find("mine:9")


def test_the_number_of_a_removed_version_is_not_used_again(environments: Environments) -> None:
    environments.register("mine", NUMPY, 1.0)
    environments.register("mine", SCIPY, 2.0)
    environments.remove_version("mine", 2)
    assert environments.find("mine").version == 1
    assert environments.register("mine", SCIPY, 3.0).version == 3
    environments.remove_name("mine")
    assert environments.register("mine", SCIPY, 4.0).version == 1


def test_an_update_is_a_version_that_was_never_resolved(environments: Environments) -> None:
    environments.register("mine", NUMPY, 1.0)
    second = environments.update("mine", 2.0)
    assert (second.version, second.environment.resolution) == (2, 1)
    assert second.digest != NUMPY.digest == environments.find("mine:1").digest
    assert environments.register("mine", NUMPY, 3.0) == second  # the file has not changed
    environments.register("other", NUMPY, 4.0)
    assert environments.update("other", 5.0).environment.resolution == 2
    environments.remove(second.digest)
    Locks(environments.engine).add(second.digest, LOCK, 6.0)  # locks outlive environments
    environments.remove(environments.find("other").digest)
    assert environments.update("mine", 7.0).environment.resolution == 2
    with pytest.raises(NotFound):
        environments.update("nobody", 8.0)


def test_a_user_managed_environment_can_have_a_name(environments: Environments) -> None:
    environments.register("lab", USER_MANAGED, 1.0)
    environments.register("theirs", Environment(python="/opt/theirs/bin/python"), 1.0)
    lab = environments.find("lab")
    assert lab.environment == USER_MANAGED.model_copy(update={"name": "lab", "version": 1})
    assert lab.digest != environments.find("theirs").digest
    environments.remove(lab.digest)
    assert [stored.name for stored in environments.list()] == ["theirs"]


def test_a_name_goes_before_a_digest(environments: Environments) -> None:
    digest = environments.keep(NUMPY, 1.0)
    environments.register(digest[:8], SCIPY, 1.0)
    assert environments.find(digest[:8]).digest == SCIPY.digest


def test_removing_a_definition_removes_its_names(environments: Environments) -> None:
    environments.register("np", NUMPY, 1.0)
    environments.register("sp", SCIPY, 1.0)
    environments.remove(str(NUMPY.digest))
    assert [stored.name for stored in environments.list()] == ["sp"]
    with pytest.raises(NotFound):
        environments.remove(str(NUMPY.digest))


def test_a_missing_environment_is_reported(environments: Environments) -> None:
    digest = environments.keep(NUMPY, 1.0)
    for text in ("x", digest[:7], "%", "ffff" * 8, digest.upper() + "Z"):
        with pytest.raises(NotFound, match="`retarget env list` shows them"):
            environments.find(text)


def test_a_prefix_of_several_digests_is_refused(environments: Environments) -> None:
    with writing(environments.engine) as db:
        for end in ("0", "f"):
            digest = "abcdef01" + end * 24
            db.execute(insert(table).values(digest=digest, definition={}, created_at=1.0))
    with pytest.raises(Invalid, match="begin with 'abcdef01'; use more digits"):
        environments.find("abcdef01")
    assert environments.find("abcdef010").digest == "abcdef01" + "0" * 24
