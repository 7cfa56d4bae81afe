"""One server for the scripts of a module."""

from tests.server.conftest import api

__all__ = ["api"]
