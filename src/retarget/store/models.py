"""The registry, in SQL."""

from sqlalchemy import Engine


class Models:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
