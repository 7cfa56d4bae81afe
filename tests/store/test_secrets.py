"""Secrets in SQL."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from retarget.core.errors import NotFound
from retarget.core.jobs import Job
from retarget.store.jobs import Jobs
from retarget.store.secrets import Secrets


@pytest.fixture
def secrets(engine: Engine) -> Secrets:
    return Secrets(engine)


def test_a_secret_is_stored_replaced_and_deleted(secrets: Secrets) -> None:
    secrets.put("B", "sealed", 1.0)
    secrets.put("A", "sealed", 2.0)
    changed = secrets.put("B", "again", 3.0)
    assert (changed.created_at, changed.updated_at) == (1.0, 3.0)
    assert [stored.name for stored in secrets.list()] == ["A", "B"]
    assert secrets.sealed(["B", "C"]) == {"B": "again"}
    secrets.delete("B")
    with pytest.raises(NotFound, match="retarget secret set B"):
        secrets.delete("B")


def test_the_first_node_decides_what_an_attempt_takes(
    secrets: Secrets, add: Callable[..., Job]
) -> None:
    job = add("a")
    secrets.take(job.id, "key", {"A": "first"})
    secrets.take(job.id, "key", {"A": "second"})
    assert secrets.of_attempt(job.id, "key") == {"A": "first"}
    assert secrets.of_job(job.id) == {}


def test_values_are_removed_with_their_attempt(
    secrets: Secrets, jobs: Jobs, add: Callable[..., Job], place: Callable[[Job], Job]
) -> None:
    job = place(add("a"))
    key = f"{job.id}-1"
    secrets.take(job.id, key, {"A": "first"})
    secrets.take(job.id, "other", {"A": "second"})
    jobs.clear_handles([key])
    assert secrets.of_attempt(job.id, key) == {}
    assert secrets.of_attempt(job.id, "other") == {"A": "second"}
