"""Secrets that jobs get as environment variables: encrypted in the store, taken by an attempt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retarget.control.attempts import current_attempt
from retarget.control.context import Context
from retarget.control.sealing import Sealer, Unsealable
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import MAX_SECRETS, Job, JobSpec
from retarget.core.variables import check_secret_value, looks_secret
from retarget.runner.masking import Masker, mask_values
from retarget.store.secrets import StoredSecret

_PURPOSE = "retarget: secrets of jobs"


@dataclass(frozen=True)
class Draft:
    """A job to submit. `spec` has the names of all its secrets, `values` those of its own."""

    spec: JobSpec
    values: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


def store_secret(context: Context, name: str, value: str) -> StoredSecret:
    """Store a secret for all jobs, or replace its value."""
    sealed = _sealer(context).seal(check_secret_value(value), owner=_secret_owner(name))
    return context.store.secrets.put(name, sealed, context.clock())


def draft_of(spec: JobSpec) -> Draft:
    """Turn variables with secret-looking names into the job's own secrets. Pure."""
    both = [name for name in spec.secrets if name in spec.variables]
    if both:
        raise Invalid(f"secrets: {both[0]} is also set as a variable; choose one", field="secrets")
    own = {name: value for name, value in spec.variables.items() if value and looks_secret(name)}
    if (count := len(spec.secrets) + len(own)) > MAX_SECRETS:
        raise Invalid(
            f"secrets: a job may have {MAX_SECRETS:,}, this one has {count:,}; variables that are "
            "named like secrets count, too",
            field="secrets",
        )
    others = {name: value for name, value in spec.variables.items() if name not in own}
    change = {"variables": others, "secrets": (*spec.secrets, *own)}
    return Draft(spec.model_copy(update=change), own) if own else Draft(spec)


def draft_again(context: Context, job: Job, spec: JobSpec, *, stored: Sequence[str] = ()) -> Draft:
    """Return a draft of `spec` with the own secrets of an earlier job.

    It excludes those that `spec` sets again, and those that are `stored` on the server.
    """
    sealed = {
        name: value
        for name, value in context.store.secrets.of_job(job.id).items()
        if name not in stored
    }
    names = [name for name in spec.secrets if name not in sealed or name not in spec.variables]
    draft = draft_of(spec.model_copy(update={"secrets": tuple(names)}))
    own = {
        name: _unseal(context, sealed[name], _job_owner(job.id, name), name)
        for name in draft.spec.secrets
        if name in sealed and name not in draft.values
    }
    return Draft(draft.spec, {**own, **draft.values})


def check_secrets(context: Context, draft: Draft) -> None:
    """Raise Invalid if a secret of the job is neither its own nor stored."""
    names = [name for name in draft.spec.secrets if name not in draft.values]
    known = context.store.secrets.sealed(names) if names else {}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Invalid(
            f"secrets: no secret named {unknown[0]!r}; store it with "
            f"`retarget secret set {unknown[0]}`",
            field="secrets",
        )


def seal_own(context: Context, job_id: str, draft: Draft) -> dict[str, str]:
    """Encrypt the values of a job's own secrets."""
    sealer = _sealer(context)
    return {
        name: sealer.seal(value, owner=_job_owner(job_id, name))
        for name, value in draft.values.items()
    }


def take_secrets(context: Context, key: str) -> dict[str, str]:
    """Return the values of an attempt's secrets.

    The first call decides: a secret that is changed or deleted later keeps its value for this
    attempt, so that it can still be masked. Raise NotFound if a secret was deleted before.
    """
    job, _ = current_attempt(context, key)
    return secrets_of(context, job, key) if job.spec.secrets else {}


def mask_secrets(context: Context, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """Mask the secrets of an attempt in what its script sends."""
    return mask_values(Masker(take_secrets(context, key).values()), body)


def secrets_of(context: Context, job: Job, key: str) -> dict[str, str]:
    own = context.store.secrets.of_job(job.id)
    shared = [name for name in job.spec.secrets if name not in own]
    encrypted = _take(context, job, key, shared) if shared else {}
    values = {name: _unseal(context, own[name], _job_owner(job.id, name), name) for name in own}
    return values | {
        name: _unseal(context, encrypted[name], _attempt_owner(key, name), name) for name in shared
    }


def _take(context: Context, job: Job, key: str, names: Sequence[str]) -> dict[str, str]:
    encrypted = context.store.secrets.of_attempt(job.id, key)
    if all(name in encrypted for name in names):
        return encrypted
    stored, sealer, sealed = context.store.secrets.sealed(names), _sealer(context), dict[str, str]()
    for name in names:
        if name not in stored:
            raise NotFound(
                f"secret {name} was deleted after the job was submitted; store it again with "
                f"`retarget secret set {name}`, then rerun the job"
            )
        value = _unseal(context, stored[name], _secret_owner(name), name)
        sealed[name] = sealer.seal(value, owner=_attempt_owner(key, name))
    context.store.secrets.take(job.id, key, sealed)
    return context.store.secrets.of_attempt(job.id, key)


def _unseal(context: Context, sealed: str, owner: str, name: str) -> str:
    try:
        return _sealer(context).unseal(sealed, owner=owner)
    except Unsealable:
        raise Invalid(
            f"secret {name} cannot be decrypted because the server's secret has changed; store it "
            f"again with `retarget secret set {name}`"
        ) from None


def _sealer(context: Context) -> Sealer:
    return Sealer(context.settings.secret, _PURPOSE)


# The owner is part of what is encrypted: a value copied to another row cannot be decrypted there.
def _secret_owner(name: str) -> str:
    return f"secret/{name}"


def _job_owner(job_id: str, name: str) -> str:
    return f"job/{job_id}/{name}"


def _attempt_owner(key: str, name: str) -> str:
    return f"attempt/{key}/{name}"
