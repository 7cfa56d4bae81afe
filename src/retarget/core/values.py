"""The base of every value that crosses an edge: frozen, and strict about unknown fields."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
