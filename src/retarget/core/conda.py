"""Parses conda match specs and maps them to PyPI, for hosts that cannot reach a channel."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retarget.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class Spec:
    """`channel::name` with constraints on version and build; None means any.

    `version` has conda's operators: `=1.2` matches 1.2 and 1.2.3, `==1.2` matches only 1.2.
    """

    name: str
    version: str | None = None
    build: str | None = None
    channel: str | None = None

    def __str__(self) -> str:
        """Return the canonical spelling of the spec."""
        channel = f"{self.channel}::" if self.channel else ""
        if self.build is None:
            return f"{channel}{self.name}{self.version or ''}"
        return f"{channel}{self.name}[version='{self.version or '*'}',build='{self.build}']"


@dataclass(frozen=True, slots=True)
class Mapped:
    """The PyPI requirements for a list of specs, and the specs that PyPI has no package for."""

    requirements: tuple[str, ...]
    dropped: tuple[str, ...]


def to_pypi(specs: Sequence[str]) -> Mapped:
    """Map specs to requirements. Raise Invalid for a version that PyPI cannot express."""
    parsed = [(text, parse_spec(text)) for text in specs]
    dropped = [text for text, spec in parsed if not _is_python_package(spec.name)]
    requirements = [
        _requirement(text, spec) for text, spec in parsed if _is_python_package(spec.name)
    ]
    return Mapped(_unique(requirements), _unique(dropped))


def parse_spec(text: str) -> Spec:
    """Parse a match spec, or raise Invalid that names it."""
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"{text!r} is not a conda package; write numpy, numpy=1.26 or numpy>=1.2,<2")
    options = _options(text, match["options"] or "")
    version, build = _version_and_build(match["rest"] or "")
    return Spec(
        name=match["name"].lower(),
        version=_normalize(text, options.get("version") or version),
        build=options.get("build") or build,
        channel=options.get("channel") or match["channel"],
    )


_PRINTABLE = r"[\t -Z\\^-~]"  # except brackets
_SPEC = re.compile(
    r"(?:(?P<channel>[^\s\[\]]+?)::)?(?P<name>\w(?:[\w.-]*[a-zA-Z0-9])?)"
    rf"\s*(?P<rest>{_PRINTABLE}*?)\s*(?:\[(?P<options>{_PRINTABLE}*)\])?",
    re.ASCII,
)
_OPTION = re.compile(r"""\s*(\w+)\s*=\s*(?:'([^']*)'|"([^"]*)"|([^\s,'"]+))\s*(?:,|$)""")
_TERM = re.compile(r"(==|!=|>=|<=|~=|=|>|<)?((?:[A-Za-z0-9][\w.!+-]*)?\*?)", re.ASCII)


def _options(text: str, brackets: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(brackets.rstrip()):
        match = _OPTION.match(brackets, position)
        if match is None or match[1] not in ("version", "build", "channel"):
            raise Invalid(f"{text!r}: only version, build and channel are supported in brackets")
        options[match[1]] = match[2] or match[3] or match[4] or ""
        position = match.end()
    return options


def _version_and_build(rest: str) -> tuple[str, str | None]:
    """Split what follows the name: `=1.26=py311_0`, `1.26.* py311_0`, `>=1.2, <2`."""
    rest = re.sub(r"\s*([,|<>=!~]+)\s*", r"\1", rest)
    version, _, build = rest.partition(" ")
    exact = re.fullmatch(r"=?([^=<>!~|,]+)=([^=<>!~|,]+)", version)
    if exact and not build:
        version, build = exact[1], exact[2]
    # with a build, `=1.26` means exactly 1.26
    if build and re.fullmatch(r"=[^=*]+", version):
        version = version[1:]
    return version, build if build and build != "*" else None


def _normalize(text: str, version: str) -> str | None:
    if re.search(r"[|()^$]", version):  # conda's own "or" and patterns stay as they are
        return re.sub(r"\s+", "", version)
    terms = [_term(text, term) for term in re.sub(r"\s+", "", version).split(",")]
    return ",".join(sorted({term for term in terms if term})) or None


def _term(text: str, term: str) -> str:
    match = _TERM.fullmatch(term)
    if match is None or (match[1] and not match[2]):
        raise Invalid(f"{text!r}: {term!r} is not a version; write =1.26, ==1.26.0 or >=1.2,<2")
    operator, number = match[1] or "==", match[2]
    if number in ("", "*"):
        return ""
    starred = number.endswith("*")
    number = number.removesuffix("*").removesuffix(".")
    if operator == "=" or (starred and operator == "=="):
        return f"={number}"
    return f"{operator}{number}" + (".*" if starred and operator == "!=" else "")


def _requirement(text: str, spec: Spec) -> str:
    name = _PYPI_NAMES.get(spec.name, re.sub(r"[-_.]+", "-", spec.name))
    version = spec.version or ""
    terms = [_pypi_term(term) for term in version.split(",") if term]
    if not all(_PYPI_TERM.fullmatch(term) for term in terms):
        raise Invalid(
            f"{text!r}: PyPI cannot express this version, and no conda channel can be reached; "
            f"write {spec.name}=1.2, {spec.name}==1.2.3 or {spec.name}>=1.2,<2"
        )
    return name + ",".join(terms)


def _pypi_term(term: str) -> str:
    return f"={term}.*" if re.match(r"=[^=]", term) else term


_NUMBER = r"(?:\d+!)?\d+(?:\.\d+)*"
_PYPI_TERM = re.compile(
    rf"(?:==|!=|>=|<=|>|<|~=){_NUMBER}(?:\.?(?:a|b|rc|post|dev)\d*)*"
    rf"|(?:==|!=){_NUMBER}\.\*"
)


def _is_python_package(name: str) -> bool:
    if name in _PYPI_NAMES or name in _PYTHON_DESPITE_PATTERN:
        return True
    return name not in _NOT_PYTHON and not _NOT_PYTHON_PATTERN.match(name)


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


_PYPI_NAMES = {
    "brotli-python": "brotli",
    "cupy-core": "cupy",
    "dask-core": "dask",
    "faiss": "faiss-cpu",
    "keras-base": "keras",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "numpy-base": "numpy",
    "onnxruntime-cpu": "onnxruntime",
    "opencv": "opencv-python",
    "psycopg2": "psycopg2-binary",
    "py-opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "py-xgboost-cpu": "xgboost",
    "py-xgboost-gpu": "xgboost",
    "pyarrow-core": "pyarrow",
    "pyg": "torch-geometric",
    "pyqt": "pyqt5",
    "pytables": "tables",
    "python-blosc": "blosc",
    "python-duckdb": "duckdb",
    "python-flatbuffers": "flatbuffers",
    "python-graphviz": "graphviz",
    "python-lmdb": "lmdb",
    "python-xxhash": "xxhash",
    "pytorch": "torch",
    "pytorch-cluster": "torch-cluster",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "pytorch-scatter": "torch-scatter",
    "pytorch-sparse": "torch-sparse",
    "pytorch_geometric": "torch-geometric",
    "ray-core": "ray",
    "ray-default": "ray[default]",
    "ray-tune": "ray[tune]",
    "redis-py": "redis",
    "ruamel_yaml": "ruamel-yaml",
    "seaborn-base": "seaborn",
    "tensorflow-base": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "tensorflow-mkl": "tensorflow",
    "xgboost-cpu": "xgboost",
}
# Python packages whose names match _NOT_PYTHON_PATTERN
_PYTHON_DESPITE_PATTERN = frozenset(
    {"cuda-python", "libarchive-c", "libcst", "libpysal", "librosa", "libsass", "libtmux"}
)
_NOT_PYTHON_PATTERN = re.compile(
    r"_|lib|cuda-|cudatoolkit|cudnn|cutensor|nccl|r-|perl|xorg-|fonts?-|gcc|gxx|gfortran|clang"
    r"|sysroot|binutils|ld_impl|kernel-headers|compiler-rt|vc14|vs20|m2-|m2w64-|aws-c-|rust-"
    r"|openmpi|mpich|texlive|gst-|.*_(?:linux|osx|win)-"
)
_NOT_PYTHON_NAMES = """
python python_abi
blas openblas mkl mkl-include mkl-devel nomkl blis lapack tbb tbb-devel intel-openmp llvm-openmp
openmp llvm llvmdev llvm-tools mpi cuda cpuonly pytorch-cuda pytorch-mutex magma
compilers c-compiler cxx-compiler fortran-compiler cmake make pkg-config autoconf automake m4 bison
flex swig patchelf patch ccache rust go nodejs yarn openjdk maven ruby julia
git git-lfs curl wget rsync openssh tmux vim nano htop tree jq zip unzip p7zip tar gzip bzip2 bash
coreutils sed grep gawk findutils less which
openssl ca-certificates zlib zlib-ng xz lz4-c zstd snappy brotli brotli-bin sqlite readline ncurses
tk tzdata gettext icu expat pcre pcre2 gmp mpfr mpc krb5 c-ares nghttp2 gnutls nettle yaml yaml-cpp
ffmpeg x264 x265 lame openh264 aom dav1d svt-av1 fftw hdf4 hdf5 geos proj gsl glpk ipopt metis
suitesparse boost boost-cpp eigen gflags glog grpc-cpp abseil-cpp arrow-cpp parquet-cpp orc re2
utf8proc double-conversion rapidjson jpeg lerc openjpeg giflib freetype fontconfig harfbuzz cairo
pango pixman glib gtk2 gtk3 gdk-pixbuf qt qt-main qt6-main dbus graphviz poppler tesseract
imagemagick pandoc postgresql mysql redis-server unixodbc zeromq nspr nss alsa-lib gstreamer ocl-icd
"""
_NOT_PYTHON = frozenset(_NOT_PYTHON_NAMES.split())
