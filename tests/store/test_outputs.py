"""Outputs in SQL: the files of each attempt, by path."""

from collections.abc import Callable

import pytest

from retarget.core.errors import NotFound
from retarget.core.jobs import Job, Output
from retarget.store.outputs import Outputs


def test_outputs_belong_to_one_attempt_and_come_by_path(
    outputs: Outputs, add: Callable[..., Job]
) -> None:
    job, another = add(), add()
    paths = ("outputs/b", "outputs/B", "outputs/a/é x", "outputs/a")
    for path in paths:
        outputs.put(job.id, 1, Output(path=path, size=5_000_000_000, digest="d"))
    outputs.put(job.id, 2, Output(path="outputs/other", size=0, digest="e"))
    outputs.put(another.id, 1, Output(path="outputs/c", size=0, digest="e"))
    assert [output.path for output in outputs.list(job.id, 1)] == sorted(paths)
    assert outputs.list(job.id, 2) == [Output(path="outputs/other", size=0, digest="e")]
    assert {output.size for output in outputs.list(job.id, 1)} == {5_000_000_000}


def test_a_file_written_again_replaces_the_first(outputs: Outputs, add: Callable[..., Job]) -> None:
    job = add()
    outputs.put(job.id, 1, Output(path="outputs/a", size=1, digest="d"))
    outputs.put(job.id, 1, Output(path="outputs/a", size=2, digest="e"))
    assert outputs.list(job.id, 1) == [Output(path="outputs/a", size=2, digest="e")]


def test_a_missing_job_is_reported(outputs: Outputs) -> None:
    with pytest.raises(NotFound, match="no job 'x'"):
        outputs.put("x", 1, Output(path="outputs/a", size=1, digest="d"))


def test_removing_a_file_twice_is_not_an_error(outputs: Outputs, add: Callable[..., Job]) -> None:
    job = add()
    outputs.put(job.id, 1, Output(path="outputs/a", size=1, digest="d"))
    outputs.put(job.id, 1, Output(path="outputs/b", size=1, digest="d"))
    outputs.remove(job.id, 1, "outputs/a")
    outputs.remove(job.id, 1, "outputs/a")
    assert [output.path for output in outputs.list(job.id, 1)] == ["outputs/b"]
