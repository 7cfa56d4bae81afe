from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retarget.control.place import Demand, Shortage, never_fits, place
from retarget.core.targets import Allocation, Inventory, Node, NodeState, NodeType
from tests.control.jobs import inventory, job, running


def test_jobs_start_while_resources_are_free() -> None:
    first, second, third = place([job("a"), job("b"), job("c")], [], inventory(cpus=2))
    assert (first.starts, second.starts, third.starts) == (True, True, False)


def test_a_waiting_job_says_what_it_waits_for() -> None:
    (waiting,) = place([job("b", cpus=2)], [running("a")], inventory(cpus=2))
    assert waiting.reason == "waiting for 2 CPUs (1 of 2 free); held by a"
    assert waiting.behind == ("a",)


def test_a_job_behind_a_waiting_job_says_so() -> None:
    _, small = place([job("big", cpus=2), job("small")], [running("a")], inventory(cpus=2))
    assert small.reason == "waiting behind big, which was submitted earlier"
    assert small.behind == ("big",)


def test_a_higher_priority_ahead_is_named() -> None:
    queue = [job("urgent", cpus=2, priority=5), job("later")]
    assert place(queue, [running("a")], inventory(cpus=2))[1].reason == (
        "waiting behind urgent, which has a higher priority (5)"
    )


def test_a_large_job_is_not_overtaken() -> None:
    queue = [job("large", cpus=2), job("small")]
    placements = place(queue, [running("a")], inventory(cpus=2))
    assert not any(placement.starts for placement in placements)


def test_memory_is_counted() -> None:
    (waiting,) = place([job("b", memory="768m")], [running("a", memory="512m")], inventory())
    assert waiting.reason == (
        "waiting for 768.0 MiB of memory (512.0 MiB of 1.0 GiB free); held by a"
    )


def test_gpus_are_allocated_one_by_one() -> None:
    held = running("a", Allocation(node="n0", gpus=("0",)), gpus=1)
    first, second = place([job("b", gpus=1), job("c", gpus=2)], [held], inventory(cpus=8, gpus=3))
    assert first.allocations == (Allocation(node="n0", gpus=("1",)),)
    assert second.reason == "waiting for 2 GPUs (1 of 3 free); held by a, b"


def test_a_gang_takes_different_nodes_or_none() -> None:
    resources = inventory(cpus=2, nodes=3)
    (together,) = place([job("g", nodes=2, cpus=2)], [running("a")], resources)
    assert [allocation.node for allocation in together.allocations] == ["n1", "n2"]
    (alone,) = place([job("g", nodes=3, cpus=2)], [running("a")], resources)
    assert not alone.starts


def test_an_engine_with_its_own_queue_gets_all_jobs() -> None:
    own = Inventory(own_queue=True)
    assert all(placement.starts for placement in place([job("a"), job("b")], [], own))
    assert all(not placement.allocations for placement in place([job("a")], [], own))
    assert never_fits(job("a", cpus=10_000, nodes=99).spec, own, "t") is None
    shown = own.model_copy(update={"nodes": inventory(cpus=1).nodes})  # nodes are only displayed
    assert place([job("a", cpus=4)], [], shown)[0].starts
    assert never_fits(job("a", cpus=4).spec, shown, "t") is None


def test_a_target_without_nodes_starts_nothing_and_says_so() -> None:
    """No nodes now is not the same as a queue of its own."""
    first, second = place([job("a"), job("b")], [], Inventory())
    assert (first.starts, second.starts) == (False, False)
    assert first.reason == "waiting for a node; target 'local' has none now"
    assert first.demand == Demand(nodes=1, cpus=1, memory=0, gpus=0)
    assert never_fits(job("a").spec, Inventory(), "t") is None  # it may get nodes


def test_a_waiting_job_states_its_demand() -> None:
    resources = inventory(cpus=4, nodes=3, gpus=2)
    gang = job("g", nodes=3, cpus=3, memory="256m", gpus=1)
    waiting, behind = place([gang, job("b", cpus=2)], [running("a", cpus=2)], resources)
    assert waiting.demand == Demand(nodes=1, cpus=3, memory=2**28, gpus=1)  # two nodes fit
    assert waiting.reason == "waiting for 3 free nodes; held by a"
    assert behind.demand == Demand(nodes=1, cpus=2, memory=0, gpus=0)
    (large,) = place([job("l", cpus=4)], [running("a", cpus=3)], inventory(cpus=4))
    assert large.demand is not None
    assert large.demand.shortages == (Shortage("cpus", requested=4, free=1, total=4),)


def _typed(*, nodes: tuple[Node, ...] = (), large: int = 2) -> Inventory:
    small = NodeType(name="small", cpus=2, memory=2**30, min_nodes=1, max_nodes=4)
    gpu = NodeType(name="large", cpus=8, memory=2**35, gpus=2, max_nodes=large)
    return Inventory(nodes=nodes, node_types=(small, gpu))


def test_a_job_that_a_node_type_would_hold_waits_for_such_a_node() -> None:
    (any_type,) = place([job("a")], [], _typed())
    assert any_type.reason == "waiting for a node of type small or large"
    assert any_type.demand == Demand(
        nodes=1, cpus=1, memory=0, gpus=0, node_types=("small", "large")
    )
    small = Node(name="s1", cpus=2, memory=2**30, type="small")
    (too_large,) = place([job("a", cpus=4)], [], _typed(nodes=(small,)))
    assert too_large.reason == "waiting for a node of type large"
    (busy,) = place(
        [job("b", cpus=2)], [running("a", Allocation(node="s1"))], _typed(nodes=(small,))
    )
    assert busy.reason == "waiting for 2 CPUs (1 of 2 free); held by a"
    assert busy.demand is not None
    assert busy.demand.node_types == ("small", "large")


def test_a_target_at_the_maximum_of_a_type_adds_no_node_of_it() -> None:
    large = Node(name="l1", cpus=8, memory=2**35, type="large")
    held = running("a", Allocation(node="l1"), cpus=8)
    (waiting,) = place([job("b", cpus=8)], [held], _typed(nodes=(large,), large=1))
    assert waiting.demand is not None
    assert waiting.demand.node_types == ()


def test_a_job_is_refused_if_neither_nodes_nor_types_can_ever_hold_it() -> None:
    lone = Node(name="x", cpus=16, memory=2**35)
    cases: list[tuple[Inventory, dict[str, Any], str | None]] = [
        (_typed(), {"cpus": 8}, None),
        (_typed(), {"cpus": 9}, "cpus: the job requests 9 per node; target 't' has 8"),
        (_typed(nodes=(lone,)), {"cpus": 9}, None),
        (_typed(), {"nodes": 6}, None),
        (_typed(), {"nodes": 7}, "nodes: the job requests 7; target 't' can have 6"),
        (_typed(nodes=(lone,)), {"nodes": 7}, None),
        (
            _typed(),
            {"gpus": 1, "nodes": 3},
            "target 't' does not have 3 node(s) with all of these resources",
        ),
        (_typed(large=0), {"gpus": 1}, "gpus: the job requests 1 per node; target 't' has 0"),
        (
            Inventory(node_types=(NodeType(name="n", cpus=1, memory=2**30, max_nodes=0),)),
            {},
            "nodes: the job requests 1; target 't' can have 0",
        ),
    ]
    for resources, request, reason in cases:
        assert never_fits(job("a", **request).spec, resources, "t") == reason


def test_a_node_that_starts_or_leaves_gets_no_job() -> None:
    (node,) = inventory().nodes
    for state in (NodeState.STARTING, NodeState.LEAVING):
        resources = Inventory(nodes=(node.model_copy(update={"state": state}),))
        (waiting,) = place([job("a")], [], resources)
        assert waiting.reason == f"waiting for a node; n0 is {state.value}"


def test_a_job_that_can_never_run_is_refused_with_the_numbers() -> None:
    resources = inventory(cpus=2, memory=2**30)
    memory: list[dict[str, Any]] = [{"memory": "2g"}, {"memory": 1000}]
    requests: list[dict[str, Any]] = [{"cpus": 3}, *memory, {"gpus": 1}, {"nodes": 2}, {}]
    reasons = [never_fits(job("a", **request).spec, resources, "local") for request in requests]
    assert reasons == [
        "cpus: the job requests 3 per node; target 'local' has 2",
        "memory: the job requests 2.0 GiB per node; target 'local' has 1.0 GiB",
        "memory: the job requests 1000 B per node; the minimum is 1.0 MiB",
        "gpus: the job requests 1 per node; target 'local' has 0",
        "nodes: the job requests 2; target 'local' has 1",
        None,
    ]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 2)), max_size=8),
    st.integers(1, 3),
)
def test_no_resource_is_ever_allocated_twice(
    requests: list[tuple[int, int, int]], nodes: int
) -> None:
    resources = inventory(cpus=4, gpus=2, nodes=nodes)
    queue = [
        job(str(n), cpus=cpus, gpus=gpus, nodes=gang)
        for n, (cpus, gpus, gang) in enumerate(requests)
    ]
    placements = place(queue, [], resources)
    started = [placement for placement in placements if placement.starts]
    for node in resources.nodes:
        on_node = [
            (placement.job, allocation)
            for placement in started
            for allocation in placement.allocations
            if allocation.node == node.name
        ]
        assert sum(user.spec.cpus for user, _ in on_node) <= node.cpus
        gpus = [gpu for _, allocation in on_node for gpu in allocation.gpus]
        assert len(gpus) == len(set(gpus)) == sum(user.spec.gpus for user, _ in on_node)
    # strictly in order: no job starts behind one that waits
    flags = [placement.starts for placement in placements]
    assert flags == sorted(flags, reverse=True)
    assert all(placement.starts or placement.reason for placement in placements)


def test_an_unavailable_node_gets_no_job_and_is_named() -> None:
    resources = inventory(cpus=2, nodes=2)
    silent = resources.nodes[1].model_copy(update={"unavailable": "timeout"})
    resources = resources.model_copy(update={"nodes": (resources.nodes[0], silent)})
    first, second = place([job("a", cpus=2), job("b", cpus=2)], [], resources)
    assert [allocation.node for allocation in first.allocations] == ["n0"]
    assert second.reason == (
        "waiting for 2 CPUs (0 of 2 free); held by a; n1 is unavailable: timeout"
    )
    (gang,) = place([job("g", nodes=2)], [], resources)
    assert gang.reason == "waiting for 2 free nodes; n1 is unavailable: timeout"


def test_with_every_node_unavailable_a_job_waits() -> None:
    (node,) = inventory().nodes
    resources = Inventory(nodes=(node.model_copy(update={"unavailable": "timeout"}),))
    (waiting,) = place([job("a")], [], resources)
    assert waiting.reason == "waiting for a node; n0 is unavailable: timeout"
    assert never_fits(job("a").spec, resources, "t") is None
