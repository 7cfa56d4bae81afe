from retarget.core.targets import Inventory, Node, NodeState


def pool(*nodes: Node) -> Inventory:
    return Inventory(nodes=nodes)


def test_a_node_is_in_its_state_since_it_changed() -> None:
    ready, silent = (
        Node(name="a", cpus=2, memory=4),
        Node(name="a", cpus=0, memory=0, unavailable="x"),
    )
    first = pool(ready).at(1.0, None)
    second = pool(ready).at(2.0, first)
    third = pool(silent).at(3.0, second)
    fourth = pool(silent.model_copy(update={"unavailable": "y"})).at(4.0, third)
    fifth = pool(ready).at(5.0, fourth)
    inventories = [first, second, third, fourth, fifth]
    assert [inventory.nodes[0].changed_at for inventory in inventories] == [1.0, 1.0, 3.0, 3.0, 5.0]
    assert [inventory.nodes[0].state.value for inventory in inventories] == [
        *("ready", "ready", "unavailable", "unavailable", "ready")
    ]
    assert [inventory.nodes[0].unavailable for inventory in inventories] == ["", "", "x", "y", ""]


def test_an_unavailable_node_keeps_its_resources() -> None:
    before = pool(Node(name="a", cpus=2, memory=4, type="large")).at(1.0, None)
    after = pool(Node(name="a", cpus=0, memory=0, unavailable="no route")).at(2.0, before)
    (node,) = after.nodes
    assert (node.cpus, node.memory, node.type, node.unavailable) == (2, 4, "large", "no route")


def test_a_node_that_is_unavailable_is_not_ready() -> None:
    assert Node(cpus=1, memory=1, unavailable="why").state is NodeState.UNAVAILABLE
    assert not Node(cpus=1, memory=1, unavailable="why").is_ready
    assert Node(cpus=1, memory=1).is_ready
    assert not Node(cpus=1, memory=1, state=NodeState.STARTING).is_ready
    leaving = Node(cpus=1, memory=1, state=NodeState.LEAVING, unavailable="it was reclaimed")
    assert leaving.state is NodeState.LEAVING
    assert Node.model_validate(leaving.model_dump(mode="json")) == leaving


def test_jobs_may_find_other_nodes_unless_there_is_only_one_or_the_target_decides() -> None:
    node = Node(name="a", cpus=1, memory=1)
    assert not pool(node).has_changing_nodes
    assert pool(node, node).has_changing_nodes
    assert pool().has_changing_nodes
    assert not Inventory(own_queue=True).has_changing_nodes
