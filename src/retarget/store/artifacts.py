"""Files in the artifact tree, in SQL."""

from sqlalchemy import Engine


class Artifacts:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
