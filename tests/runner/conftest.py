"""A receiver, and a workshop that reports to it, for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retarget.testing import Receiver
from tests.runner.workshop import Workshop


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    yield receiver
    receiver.stop()


@pytest.fixture
def workshop(tmp_path: Path, receiver: Receiver) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path / "machine", receiver)
    yield workshop
    receiver.refuses.clear()
    receiver.start()
    workshop.end()
