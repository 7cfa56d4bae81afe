"""The catalogue of sizes: its file, its look-up, and the node types made from it."""

import pytest

from retarget.control.sizes import packaged_sizes
from retarget.core.errors import Invalid, NotFound
from retarget.core.sizes import Catalogue, parse_sizes

PATH = "/home/me/.retarget/sizes.toml"
GIB = 2**30
CATALOGUE = Catalogue(packaged_sizes())


def test_a_file_of_sizes_is_read() -> None:
    content = b"""
    small = { cpus = 0.5, memory = "512m" }

    [lab-gpu]
    series = "lab"
    cpus = 16
    memory = "64g"
    gpus = 2
    gpu_model = "RTX 4090"
    gpu_memory = "24g"
    isolated = true
    """
    small, gpu = parse_sizes(content, PATH)
    assert (small.name, small.series, small.cpus, small.memory) == ("small", "", 0.5, 2**29)
    assert (small.gpus, small.gpu_memory, small.isolated, small.restricted) == (
        0,
        None,
        False,
        False,
    )
    assert (gpu.name, gpu.gpus, gpu.gpu_model, gpu.gpu_memory) == (
        *("lab-gpu", 2, "RTX 4090"),
        24 * GIB,
    )
    assert gpu.isolated
    assert parse_sizes(b"", PATH) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[a", "is not valid TOML"),
        (b"a = 1", "'a' is not a size; write [a] and its fields below it"),
        (b"[a]\ncpus = 1", "a: memory: is required"),
        (b"[a]\ncpus = 0\nmemory = '1g'", "a: cpus: must be greater than 0"),
        (b"[a]\ncpus = '2'\nmemory = '1g'", "a: cpus: must be a valid number"),
        (b"[a]\ncpus = 1\nmemory = 'much'", "a: memory: 'much' is not an amount of memory"),
        (b"[a]\ncpus = 1\nmemory = 28", "a: memory: 28 bytes are less than 1 MiB; write 512m or"),
        (b"[a]\ncpus = 1\nmemory = '1g'\ngpus = -1", "a: gpus: must be greater than or equal"),
        (b"[a]\ncpus = 1\nmemory = '1g'\ngpu = 1", "a: gpu: is not a field of a size"),
        (b"[a]\nname = 'b'\ncpus = 1\nmemory = '1g'", "a: the name of a size is that of its table"),
        (b"['a b']\ncpus = 1\nmemory = '1g'", "name: 'a b' is not a valid name"),
        (b"[a]\ncpus = 1\nmemory = '1g'\n[A]\ncpus = 1\nmemory = '1g'", "a and A differ only in"),
    ],
)
def test_a_wrong_file_is_refused_with_its_path_size_and_field(
    content: bytes, sentence: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse_sizes(content, PATH)
    assert str(refused.value).startswith(PATH)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_upper_and_lower_case_are_the_same() -> None:
    names = {CATALOGUE.find(name).name for name in ("standard_ds3_V2", "STANDARD_DS3_V2")}
    assert names == {"Standard_DS3_v2"}


def test_an_unknown_size_is_refused_with_similar_ones() -> None:
    with pytest.raises(NotFound) as refused:
        CATALOGUE.find("standard_nc7")
    assert "no size named 'standard_nc7'; similar: Standard_NC6, " in str(refused.value)
    with pytest.raises(NotFound, match=r"^no size named '\\xfc'; `retarget size list` shows all"):
        CATALOGUE.find("ü")


def test_the_later_of_two_sizes_with_one_name_counts() -> None:
    own = parse_sizes(b"[STANDARD_NC6]\ncpus = 3\nmemory = '7g'", PATH)
    catalogue = Catalogue([*packaged_sizes(), *own])
    assert catalogue.find("Standard_NC6") == own[0]
    assert len(catalogue.select()) == len(packaged_sizes())


def test_sizes_are_selected_by_series_and_by_gpus() -> None:
    assert [size.name for size in CATALOGUE.select(series=["hcs", "HBv2"])] == [
        *("Standard_HB120rs_v2", "Standard_HC44rs")
    ]
    with_gpus = CATALOGUE.select(with_gpus=True)
    assert {size.series[0] for size in with_gpus} == {"N"}
    assert CATALOGUE.select(series=["Dv2"], with_gpus=True) == []
    with pytest.raises(Invalid, match="series: 'Dv9' has no sizes; series are D, Dv2, DSv2"):
        CATALOGUE.select(series=["Dv9"])


def test_a_node_type_is_made_of_a_size() -> None:
    node_type = CATALOGUE.node_type("standard_nc24s_v3", min_nodes=1, max_nodes=4)
    assert (node_type.name, node_type.cpus, node_type.memory) == (
        *("Standard_NC24s_v3", 24),
        448 * GIB,
    )
    assert (node_type.gpus, node_type.gpu_name) == (4, "V100")
    assert (node_type.min_nodes, node_type.max_nodes) == (1, 4)
    with pytest.raises(NotFound):
        CATALOGUE.node_type("huge", max_nodes=1)


@pytest.mark.parametrize(
    ("min_nodes", "max_nodes", "sentence"),
    [
        (0, 0, "max_nodes: must be at least 1, not 0"),
        (-1, 2, "min_nodes: must be between 0 and max_nodes (2), not -1"),
        (3, 2, "min_nodes: must be between 0 and max_nodes (2), not 3"),
    ],
)
def test_a_node_type_has_possible_numbers(min_nodes: int, max_nodes: int, sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        CATALOGUE.node_type("Standard_D1", min_nodes=min_nodes, max_nodes=max_nodes)
    assert str(refused.value) == sentence


def test_the_package_has_the_sizes_that_azure_ml_code_names() -> None:
    restricted = {size.series for size in CATALOGUE.select() if size.restricted}
    assert restricted == {*("HBv2", "HCS", "M", "NCsv2", "NCsv3", "NDs", "NDv2", "NVv3")}
    free = {size.series for size in CATALOGUE.select() if not size.restricted}
    assert free >= {*("D", "Dv2", "Dv3", "DSv2", "DSv3", "FSv2", "NC", "NV")}
    assert not restricted & free
    isolated = ("Standard_M128ms", "Standard_F72s_v2", "Standard_NC24s_v3", "Standard_NC24rs_v3")
    assert all(CATALOGUE.find(name).isolated for name in isolated)
    for name in ("Standard_D2_v2", "Standard_DS3_v2", "Standard_DS5_v2", "Standard_E4s_v3"):
        assert not CATALOGUE.find(name).gpus
    for name in ("STANDARD_NC6", "STANDARD_NC4AS_T4_V3", "Standard_NC48ads_A100_v4"):
        assert CATALOGUE.find(name).gpu_memory


def test_every_packaged_size_with_gpus_says_which() -> None:
    for size in packaged_sizes():
        assert size.name.startswith("Standard_")
        assert size.series
        assert bool(size.gpus) == bool(size.gpu_model) == (size.gpu_memory is not None), size
        assert 1 * GIB <= size.memory / size.cpus <= 32 * GIB, size
