"""Points of metrics, in SQL."""

from sqlalchemy import Engine


class Metrics:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
