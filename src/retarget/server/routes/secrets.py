"""/api/secrets: values that jobs get as environment variables. No response contains a value."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from retarget.control.job_secrets import store_secret
from retarget.core.variables import (
    MAX_SECRET_BYTES,
    MIN_SECRET_BYTES,
    SECRET_NAME_PATTERN,
    check_secret_name,
)
from retarget.server.auth import ContextDep
from retarget.server.openapi_links import link_to
from retarget.server.request_bodies import BoundedRoute
from retarget.server.views import Timestamp
from retarget.store.secrets import StoredSecret

router = APIRouter(route_class=BoundedRoute, prefix="/api/secrets", tags=["secrets"])

_SecretName = Annotated[str, Path(json_schema_extra={"pattern": f"^{SECRET_NAME_PATTERN}$"})]
_VALUE_SCHEMA = {
    "type": "string",
    "description": f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES:,} bytes in UTF-8",
    "minLength": -(-MIN_SECRET_BYTES // 4),  # a schema counts characters, of up to 4 bytes
    "maxLength": MAX_SECRET_BYTES,
}


def _check_is_text(value: Any) -> str:
    # not pydantic's own check: its message would repeat the value
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


class SecretValue(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: Annotated[str, BeforeValidator(_check_is_text), WithJsonSchema(_VALUE_SCHEMA)]


class SecretView(BaseModel):
    """A secret without its value."""

    name: str
    created_at: Timestamp
    updated_at: Timestamp


@router.get("")
def list_secrets(context: ContextDep) -> list[SecretView]:
    """List the names of all secrets. Their values are never shown."""
    return [_view(stored) for stored in context.store.secrets.list()]


@router.put("/{secret}", responses={200: link_to("delete_secret", secret="$response.body#/name")})
def set_secret(secret: _SecretName, body: SecretValue, context: ContextDep) -> SecretView:
    """Store a secret under this name, or replace its value."""
    return _view(store_secret(context, check_secret_name(secret), body.value))


@router.delete("/{secret}", status_code=204)
def delete_secret(secret: _SecretName, context: ContextDep) -> Response:
    """Delete a secret. A queued job that uses it fails when it starts."""
    context.store.secrets.delete(secret)
    return Response(status_code=204)


def _view(stored: StoredSecret) -> SecretView:
    return SecretView(name=stored.name, created_at=stored.created_at, updated_at=stored.updated_at)
