"""Experiments, in SQL."""

from sqlalchemy import Engine


class Experiments:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
