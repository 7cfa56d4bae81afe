"""/api/sizes: the catalogue of sizes of nodes."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from retarget.control.sizes import read_catalogue
from retarget.core.sizes import Size
from retarget.server.auth import StateDep
from retarget.server.openapi_links import link_to
from retarget.server.request_bodies import BoundedRoute

router = APIRouter(route_class=BoundedRoute, prefix="/api/sizes", tags=["sizes"])

_MAX_SERIES = 100


class SizeView(BaseModel):
    name: str
    series: str
    cpus: float
    memory: int
    gpus: int
    gpu_model: str
    gpu_memory: int | None  # of each GPU
    isolated: bool  # a node of this size has a host of its own
    restricted: bool  # its provider gives it only on approval


@router.get("", responses={200: link_to("show_size", size="$response.body#/0/name")})
def list_sizes(
    state: StateDep,
    series: Annotated[
        list[str], Field(max_length=_MAX_SERIES), Query(description="Only sizes of these series")
    ] = [],  # noqa: B006  FastAPI copies it
    gpus: Annotated[bool, Query(description="Only sizes with GPUs")] = False,
) -> list[SizeView]:
    """List the sizes of the catalogue, those of the user's own sizes.toml included."""
    sizes = read_catalogue(state.home).select(series=series, with_gpus=gpus)
    return [_view(size) for size in sizes]


@router.get("/{size}")
def show_size(size: str, state: StateDep) -> SizeView:
    """Show the size with this name, in upper or lower case."""
    return _view(read_catalogue(state.home).find(size))


def _view(size: Size) -> SizeView:
    return SizeView(**size.model_dump())
