"""Runs, in SQL."""

from sqlalchemy import Engine


class Runs:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
