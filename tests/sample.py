"""`--podman PERCENT` runs that share of the tests on Podman, chosen by `--seed`."""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("random choices")
    group.addoption("--seed", type=int, default=1, help="the seed of random choices")
    group.addoption("--podman", type=int, default=100, help="run this share (%%) on Podman")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, seed = int(config.option.podman), int(config.option.seed)
    excluded = [item for item in items if _on_podman(item) and not chosen(item.nodeid, share, seed)]
    if excluded:
        config.hook.pytest_deselected(items=excluded)
        items[:] = [item for item in items if item not in set(excluded)]


def chosen(test: str, share: int, seed: int) -> bool:
    """Decide for one test alone, so that all workers decide alike."""
    return random.Random(f"{seed} {test}").random() * 100 < share


def _on_podman(item: pytest.Item) -> bool:
    return "podman" in item.nodeid.lower() or "podman" in getattr(item, "fixturenames", ())
