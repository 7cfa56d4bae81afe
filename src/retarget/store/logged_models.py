"""Models as runs logged them, in SQL."""

from sqlalchemy import Engine


class LoggedModels:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
