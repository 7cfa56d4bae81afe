"""What the drivers of a test keep open, for tests outside of the contract."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from retarget.core.links import Links


@pytest.fixture
def links() -> Iterator[Links]:
    with closing(Links()) as links:
        yield links
