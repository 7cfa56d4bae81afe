"""What the script of a job may rename or delete: only what this job created itself."""

from sqlalchemy import ColumnElement, Connection, Table, func, select

from retarget.core.errors import Forbidden
from retarget.core.models import ModelVersion
from retarget.core.tracking import Experiment
from retarget.store.schema import model_versions, models, runs


def check_owns_experiment(db: Connection, experiment: Experiment, job_id: str | None) -> None:
    """Raise Forbidden if this job did not create the experiment with all its runs.

    None stands for a user, who may change everything.
    """
    if job_id is None:
        return
    resource = f"experiment {experiment.name!r}"
    _check_creator(experiment.created_by_job, job_id, resource)
    is_foreign = (runs.c.experiment_id == int(experiment.id)) & _is_other(runs, "job_id", job_id)
    if db.scalar(select(func.count()).select_from(runs).where(is_foreign)):
        raise _forbidden(resource, "it contains runs that this job did not create")


def check_owns_model(db: Connection, name: str, job_id: str | None) -> None:
    """Raise Forbidden if this job did not create the model with all its versions."""
    row = db.execute(select(models.c.created_by_job).where(models.c.name == name)).first()
    if job_id is None or row is None:  # the caller reports a missing model
        return
    resource = f"registered model {name!r}"
    _check_creator(row.created_by_job, job_id, resource)
    of_model = model_versions.c.name == name
    is_foreign = of_model & _is_other(model_versions, "created_by_job", job_id)
    if db.scalar(select(func.count()).select_from(model_versions).where(is_foreign)):
        raise _forbidden(resource, "it has versions that this job did not create")


def check_owns_version(version: ModelVersion, job_id: str | None) -> None:
    if job_id is not None:
        resource = f"version {version.version} of model {version.name!r}"
        _check_creator(version.created_by_job, job_id, resource)


def _check_creator(creator: str | None, job_id: str, resource: str) -> None:
    if creator != job_id:
        raise _forbidden(resource, "it was not created by this job")


def _is_other(table: Table, column: str, job_id: str) -> ColumnElement[bool]:
    return func.coalesce(table.c[column], "") != job_id


def _forbidden(resource: str, reason: str) -> Forbidden:
    return Forbidden(f"the token of a job cannot rename or delete {resource}: {reason}")
