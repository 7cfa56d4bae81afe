"""The catalogue of sizes of nodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retarget.core.units import show_amount, show_memory
from retarget.sdk import arguments
from retarget.sdk.arguments import address
from retarget.sdk.display import Collection, Columns, Displayable, Listing
from retarget.sdk.http import Connection
from retarget.sdk.records import record, records


@dataclass(frozen=True, slots=True)
class Size(Displayable):
    """What a node of one size has. Memory is in bytes, `gpu_memory` that of each GPU."""

    name: str
    series: str
    cpus: float
    memory: int
    gpus: int
    gpu_model: str
    gpu_memory: int | None
    isolated: bool
    restricted: bool

    def __repr__(self) -> str:
        return f"<Size {self.name}>"

    def _columns(self) -> Columns:
        return {
            "size": self.name,
            "series": self.series,
            "CPUs": show_amount(self.cpus),
            "memory": show_memory(self.memory),
            "GPUs": f"{self.gpus} {self.gpu_model}".strip() if self.gpus else "",
            "isolated": "yes" if self.isolated else "",
            "restricted": "yes" if self.restricted else "",
        }


class Sizes(Collection[Size]):
    """The sizes of nodes that the server knows: its catalogue, and those of its sizes.toml."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __getitem__(self, name: str) -> Size:
        """Return a size by its name, in upper or lower case; raise NotFound if there is none."""
        return record(Size, self._connection.get(address("/api/sizes", name, "a size")))

    def __iter__(self) -> Iterator[Size]:
        return iter(self.list())

    def list(
        self, *, series: str | Sequence[str] | None = None, gpus: bool = False
    ) -> Listing[Size]:
        """List sizes in the order of the catalogue.

        Args:
            series: Only sizes of this series, or of these, such as `"NCsv3"`.
            gpus: Only sizes with GPUs.
        """
        arguments.check("gpus", gpus, arguments.SWITCH)
        names = [series] if isinstance(series, str) else series or ()
        query = {
            "series": arguments.strings("series", names, "a list of series, such as ['NCsv3']"),
            "gpus": gpus,
        }
        return Listing(records(Size, self._connection.get("/api/sizes", query)))

    def _preview(self) -> Listing[Size]:
        return self.list()
