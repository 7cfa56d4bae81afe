"""The experiment that each script requested by name last, until its next search or run."""

from sqlalchemy import Engine, bindparam, delete, select

from retarget.store.engine import reading, upsert, writing
from retarget.store.schema import experiment_choices


class ExperimentChoices:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def remember(self, attempt: str, experiment_id: int) -> None:
        row = {"attempt": attempt, "experiment_id": experiment_id}
        with writing(self.engine) as db:
            upsert(db, experiment_choices, row, replace=["experiment_id"])

    def forget(self, attempt: str) -> int | None:
        """Return the id of the experiment, once. Nothing is written if there is none."""
        with reading(self.engine) as db:
            chosen = db.scalar(_SELECT, {"of_attempt": attempt})
        if chosen is None:
            return None
        with writing(self.engine) as db:
            is_chosen = experiment_choices.c.experiment_id == chosen
            of_attempt = experiment_choices.c.attempt == attempt
            removed = db.execute(delete(experiment_choices).where(of_attempt, is_chosen))
        return chosen if removed.rowcount else None


_SELECT = select(experiment_choices.c.experiment_id).where(
    experiment_choices.c.attempt == bindparam("of_attempt")
)
