"""When PyPI may replace the channels of a conda environment. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from retarget.core.conda import parse_spec, to_pypi
from retarget.core.environments import Environment
from retarget.core.errors import Invalid

AUTO, STRICT = "auto", "strict"  # the values of the setting `conda`

_OTHER_TARGET = "a target that can use the channels"


@dataclass(frozen=True, slots=True)
class Substitute:
    """What PyPI has of a conda environment. `refusal`: why it must not be used; None if it may."""

    requirements: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    refusal: str | None = None


def substitute_for(environment: Environment, policy: str) -> Substitute:
    """Return the PyPI packages for those of the channels. None is dropped unless requested."""
    try:
        mapped = to_pypi(environment.conda)
    except Invalid as error:
        return Substitute(refusal=str(error))
    refusal = None if environment.conda_from_pypi else _refusal(mapped.dropped, policy)
    return Substitute(mapped.requirements, mapped.dropped, refusal)


def conda_notice(environment: Environment, obstacle: str, policy: str) -> str:
    """Return what to say at submit about the packages of a conda file; empty if nothing.

    `obstacle` is why the target cannot use the channels; empty if it can. Raise Invalid if the
    environment can then not be built.
    """
    if not environment.conda or not (obstacle or environment.conda_from_pypi):
        return ""
    substitute = substitute_for(environment, policy)
    reason = obstacle or "--conda-from-pypi"
    if substitute.refusal:
        raise Invalid(
            f"environment: {unusable_channels(reason)}, and {substitute.refusal}",
            field="environment",
        )
    packages = ", ".join(substitute.requirements) or "nothing"
    missing = ", ".join([*substitute.dropped, *_builds(environment, substitute.dropped)])
    without = f"; without {missing}" if missing else ""
    cause = "--conda-from-pypi" if environment.conda_from_pypi else unusable_channels(reason)
    return f"built from PyPI instead of conda channels: {packages}{without} ({cause})"


def _builds(environment: Environment, dropped: Collection[str]) -> list[str]:
    """Name the builds that the packages must have: PyPI has none of them."""
    kept = [parse_spec(text) for text in environment.conda if text not in dropped]
    return [f"the build {spec.build} of {spec.name}" for spec in kept if spec.build]


def unusable_channels(reason: str) -> str:
    return f"the conda channels cannot be used: {reason}"


def _refusal(dropped: tuple[str, ...], policy: str) -> str | None:
    if policy == STRICT:
        return (
            "the setting `conda = strict` allows nothing else; build from PyPI with "
            f"--conda-from-pypi, or use {_OTHER_TARGET}"
        )
    if dropped:
        packages = "it" if len(dropped) == 1 else "them"
        return (
            f"PyPI has no equivalent of {', '.join(dropped)}; build without {packages} with "
            f"--conda-from-pypi, use an image that has {packages} (--image), or {_OTHER_TARGET}"
        )
    return None
