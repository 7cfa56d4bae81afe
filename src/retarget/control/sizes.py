"""Reads the catalogue of sizes: those of the package, and the user's own."""

from functools import cache
from importlib.resources import files

from retarget.control.home_files import read_home_file
from retarget.core.home import Home
from retarget.core.sizes import Catalogue, Size, parse_sizes


def read_catalogue(home: Home) -> Catalogue:
    """Return all sizes. Those in the home's sizes.toml replace others with the same name.

    The file is read at each call, so a change of it needs no restart. Raise Invalid if it is wrong.
    """
    own = parse_sizes(read_home_file(home.sizes), str(home.sizes))
    return Catalogue([*packaged_sizes(), *own])


@cache
def packaged_sizes() -> tuple[Size, ...]:
    """Return the sizes that come with the package."""
    resource = files("retarget.core").joinpath("sizes.toml")
    return tuple(parse_sizes(resource.read_bytes(), str(resource)))
