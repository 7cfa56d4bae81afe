"""Conda match specs and their PyPI requirements."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from retarget.core.conda import Mapped, Spec, parse_spec, to_pypi
from retarget.core.errors import Invalid


@pytest.mark.parametrize(
    ("spec", "requirement"),
    [
        ("numpy", "numpy"),
        ("numpy=1.26", "numpy==1.26.*"),
        ("numpy = 1.26", "numpy==1.26.*"),
        ("numpy=1.26.*", "numpy==1.26.*"),
        ("numpy 1.26.*", "numpy==1.26.*"),
        ("numpy 1.26*", "numpy==1.26.*"),
        ("numpy==1.26.0", "numpy==1.26.0"),
        ("numpy 1.26.0", "numpy==1.26.0"),
        ("numpy>=1.2,<2", "numpy<2,>=1.2"),
        ("numpy >=1.2, <2", "numpy<2,>=1.2"),
        ("numpy!=1.5.*", "numpy!=1.5.*"),
        ("numpy>=1.2.*", "numpy>=1.2"),
        ("numpy~=1.4.2", "numpy~=1.4.2"),
        ("numpy=*", "numpy"),
        ("numpy=1.26.0=py311_0", "numpy==1.26.0"),
        ("numpy 1.26.0 py311_0", "numpy==1.26.0"),
        ("conda-forge::numpy=1.26", "numpy==1.26.*"),
        ("https://conda.example.org/main::numpy", "numpy"),
        ("numpy[version='>=1']", "numpy>=1"),
        ('numpy[version=">=1,<2", build="py*"]', "numpy<2,>=1"),
        ("PyYAML", "pyyaml"),
        ("huggingface_hub=0.20", "huggingface-hub==0.20.*"),
        ("ruamel.yaml", "ruamel-yaml"),
        ("ruamel_yaml", "ruamel-yaml"),
        ("pytorch::pytorch=2.1", "torch==2.1.*"),
        ("opencv", "opencv-python"),
        ("py-opencv", "opencv-python"),
        ("matplotlib-base", "matplotlib"),
        ("py-xgboost", "xgboost"),
        ("tensorflow-gpu=2.15", "tensorflow==2.15.*"),
        ("msgpack-python", "msgpack"),
        ("pytables", "tables"),
        ("pyqt", "pyqt5"),
        ("protobuf", "protobuf"),
        ("librosa", "librosa"),
        ("ninja", "ninja"),
    ],
)
def test_a_python_package_becomes_its_requirement(spec: str, requirement: str) -> None:
    assert to_pypi([spec]) == Mapped((requirement,), ())
    Requirement(requirement)


@pytest.mark.parametrize(
    "name",
    """python libgcc-ng openblas mkl cudatoolkit cuda-nvcc cudnn compilers nomkl blas llvm-openmp
    libstdcxx-ng ncurses openssl zlib xz sqlite readline tk ca-certificates git cmake make nodejs
    openjdk ffmpeg _libgcc_mutex r-base r-ggplot2 gcc_linux-64 gxx_linux-64 xorg-libx11 pytorch-cuda
    cpuonly hdf5 graphviz nccl""".split(),  # noqa: SIM905
)
def test_other_packages_are_dropped_and_named(name: str) -> None:
    # their versions need not be valid for PyPI
    assert to_pypi([f"{name}=1.1.1w|9e", "six"]) == Mapped(("six",), (f"{name}=1.1.1w|9e",))


def test_the_same_package_twice_is_one_requirement() -> None:
    assert to_pypi(["opencv", "py-opencv", "numpy", "NumPy", "git", "git"]) == Mapped(
        ("opencv-python", "numpy"), ("git",)
    )


@pytest.mark.parametrize(
    "spec", ["numpy=1.2|=1.3", "numpy ^1.2$", "numpy=2023c", "numpy=2.0rc1", "numpy>1|(<3,>2)"]
)
def test_a_version_that_only_conda_can_express_is_refused_by_name(spec: str) -> None:
    with pytest.raises(Invalid, match="no conda channel can be reached") as caught:
        to_pypi(["six", spec])
    assert repr(spec) in str(caught.value)
    assert parse_spec(spec).name == "numpy"


@pytest.mark.parametrize(
    "spec",
    ["", " ", "=1.2", "numpy=", "numpy>=", "numpy[md5=abc]", "numpy[", "a b c d]", "num py=="],
)
def test_a_malformed_spec_is_refused_by_name(spec: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_spec(spec)
    assert repr(spec) in str(caught.value)


_VERSIONS = st.lists(st.integers(0, 99), min_size=1, max_size=3).map(
    lambda numbers: ".".join(map(str, numbers))
)
_TERMS = st.tuples(st.sampled_from(["==", "!=", ">=", "<=", ">", "<", "="]), _VERSIONS).map("".join)
_SPECS = st.builds(
    Spec,
    name=st.from_regex(r"[a-z]([a-z0-9_-]{0,8}[a-z0-9])?", fullmatch=True),
    version=st.one_of(
        st.none(),
        st.sets(_TERMS, min_size=1, max_size=3).map(lambda terms: ",".join(sorted(terms))),
    ),
    build=st.one_of(st.none(), st.sampled_from(["py311_0", "*_cpython", "h1234_0"])),
    channel=st.one_of(st.none(), st.sampled_from(["conda-forge", "https://host/main"])),
)


@given(_SPECS)
def test_a_formatted_spec_is_parsed_to_the_same_spec(spec: Spec) -> None:
    assert parse_spec(str(spec)) == spec


@given(_SPECS)
def test_every_plain_spec_is_a_requirement_or_dropped(spec: Spec) -> None:
    mapped = to_pypi([str(spec)])
    assert len(mapped.requirements) + len(mapped.dropped) == 1
    for requirement in mapped.requirements:
        Requirement(requirement)


@example("0\x850)")
@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        spec = parse_spec(text)
    except Invalid:
        return
    assert parse_spec(str(spec)) == spec
