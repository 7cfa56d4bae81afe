from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retarget.control.place import never_fits, place
from retarget.core.targets import Facts, Share
from tests.control.jobs import job, machine, running


def test_jobs_start_while_there_is_room() -> None:
    first, second, third = place([job("a"), job("b"), job("c")], [], machine(cpus=2))
    assert (first.starts, second.starts, third.starts) == (True, True, False)


def test_a_job_that_waits_says_for_what_and_behind_whom() -> None:
    (waiting,) = place([job("b", cpus=2)], [running("a")], machine(cpus=2))
    assert waiting.reason == "waiting for 2 CPUs (1 of 2 free); held by a"
    assert waiting.behind == ("a",)


def test_what_waits_behind_another_says_so() -> None:
    _, small = place([job("big", cpus=2), job("small")], [running("a")], machine(cpus=2))
    assert small.reason == "waiting behind big, which is ahead of it in the queue"
    assert small.behind == ("big",)


def test_a_higher_priority_ahead_is_named() -> None:
    queue = [job("urgent", cpus=2, priority=5), job("later")]
    assert place(queue, [running("a")], machine(cpus=2))[1].reason == (
        "waiting behind urgent, which has a higher priority (5)"
    )


def test_a_large_job_is_not_overtaken() -> None:
    queue = [job("large", cpus=2), job("small")]
    decided = place(queue, [running("a")], machine(cpus=2))
    assert not any(placement.starts for placement in decided)


def test_memory_is_counted() -> None:
    (waiting,) = place([job("b", memory="768m")], [running("a", memory="512m")], machine())
    assert waiting.reason == (
        "waiting for 768.0 MiB of memory (512.0 MiB of 1.0 GiB free); held by a"
    )


def test_gpus_are_given_out_one_by_one() -> None:
    held = running("a", Share(node="n0", gpus=("0",)), gpus=1)
    first, second = place([job("b", gpus=1), job("c", gpus=2)], [held], machine(cpus=8, gpus=3))
    assert first.shares == (Share(node="n0", gpus=("1",)),)
    assert second.reason == "waiting for 2 GPUs (1 of 3 free); held by a, b"


def test_a_gang_takes_different_nodes_or_none() -> None:
    facts = machine(cpus=2, nodes=3)
    (together,) = place([job("g", nodes=2, cpus=2)], [running("a")], facts)
    assert [share.node for share in together.shares] == ["n1", "n2"]
    (alone,) = place([job("g", nodes=3, cpus=2)], [running("a")], facts)
    assert not alone.starts


def test_an_engine_with_its_own_queue_gets_everything() -> None:
    assert all(placement.starts for placement in place([job("a"), job("b")], [], Facts()))


def test_what_can_never_run_is_told_with_the_numbers() -> None:
    facts = machine(cpus=2, memory=2**30)
    asked: list[dict[str, Any]] = [{"cpus": 3}, {"memory": "2g"}, {"gpus": 1}, {"nodes": 2}, {}]
    told = [never_fits(job("a", **each).spec, facts, "local") for each in asked]
    assert told == [
        "cpus: the job asks for 3 on each node; target 'local' has 2",
        "memory: the job asks for 2.0 GiB on each node; target 'local' has 1.0 GiB",
        "gpus: the job asks for 1; target 'local' has 0",
        "nodes: the job asks for 2; target 'local' has 1",
        None,
    ]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 2)), max_size=8),
    st.integers(1, 3),
)
def test_no_node_is_ever_given_out_twice(asked: list[tuple[int, int, int]], nodes: int) -> None:
    facts = machine(cpus=4, gpus=2, nodes=nodes)
    queue = [
        job(str(n), cpus=cpus, gpus=gpus, nodes=gang) for n, (cpus, gpus, gang) in enumerate(asked)
    ]
    decided = place(queue, [], facts)
    started = [placement for placement in decided if placement.starts]
    for node in facts.nodes:
        here = [(p.job, s) for p in started for s in p.shares if s.node == node.name]
        assert sum(each.spec.cpus for each, _ in here) <= node.cpus
        cards = [card for _, share in here for card in share.gpus]
        assert len(cards) == len(set(cards)) == sum(each.spec.gpus for each, _ in here)
    # strictly in order: nothing starts behind one that waits
    flags = [placement.starts for placement in decided]
    assert flags == sorted(flags, reverse=True)
    assert all(placement.starts or placement.reason for placement in decided)


def test_a_node_that_is_set_aside_gets_nothing_and_is_named() -> None:
    facts = machine(cpus=2, nodes=2)
    silent = facts.nodes[1].model_copy(update={"reason": "timeout"})
    facts = facts.model_copy(update={"nodes": (facts.nodes[0], silent)})
    first, second = place([job("a", cpus=2), job("b", cpus=2)], [], facts)
    assert [share.node for share in first.shares] == ["n0"]
    assert second.reason == (
        "waiting for 2 CPUs (0 of 2 free); held by a; n1 is set aside: timeout"
    )
    (gang,) = place([job("g", nodes=2)], [], facts)
    assert gang.reason == "waiting for 2 free nodes; n1 is set aside: timeout"


def test_with_every_node_set_aside_a_job_waits() -> None:
    (node,) = machine().nodes
    facts = Facts(nodes=(node.model_copy(update={"reason": "timeout"}),))
    (waiting,) = place([job("a")], [], facts)
    assert waiting.reason == "waiting for a node; n0 is set aside: timeout"
    assert never_fits(job("a").spec, facts, "t") is None
