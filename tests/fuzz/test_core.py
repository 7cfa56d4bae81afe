"""Everything that core parses: manifests, jobs, filters, amounts, names, specs, tokens."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from retarget.core import grammars
from retarget.core.conda import parse_spec, to_pypi
from retarget.core.environments import Environment
from retarget.core.filters import parse_filter, parse_orders
from retarget.core.grammars import Grammar
from retarget.core.jobs import JobSpec
from retarget.core.models import Registration, check_alias, check_model_name, check_version
from retarget.core.names import check_name
from retarget.core.pages import read_offset, read_token, write_token
from retarget.core.sizes import Catalogue, parse_sizes
from retarget.core.snapshots import Entry, Manifest, decode, digest_bytes
from retarget.core.tokens import is_token_for, key_of, script_token
from retarget.core.tracking import artifact_path
from retarget.core.units import parse_duration, parse_memory
from tests.fuzz.mutated import noise, noisy_text, read_or_refused

_DIGEST = digest_bytes(b"x")
_MANIFEST = Manifest(
    (
        Entry("src/train.py", size=7, digest=_DIGEST, executable=True),
        Entry("data/é", size=0, digest=_DIGEST),
        Entry("link", link="src/train.py"),
    )
)
_GRAMMARS = [
    pytest.param(value, id=name)
    for name, value in vars(grammars).items()
    if isinstance(value, Grammar)
]
_JOB = {
    "command": ["python", "train.py"],
    "name": "a-job",
    "memory": "2g",
    "timeout": "1h30m",
    "snapshot": _DIGEST,
    "variables": {"A": "b"},
    "environment": {"kind": "system", "python": "3.12", "pip": ["numpy>=2"]},
    "cpus": 0.5,
    "retries": 1,
}


@given(noise(_MANIFEST.encode()))
def test_manifests(content: bytes) -> None:
    read_or_refused(lambda: decode(content))


@given(noise(_MANIFEST.encode()))
def test_an_accepted_manifest_stays_in_its_folder(content: bytes) -> None:
    try:
        entries = decode(content).entries
    except Exception:  # noqa: BLE001  the test above checks which errors may be raised
        return
    for entry in entries:
        assert not {"", ".", ".."} & set(entry.path.split("/"))
        assert not entry.link.startswith("/")
    assert decode(Manifest(entries).encode()) == Manifest(
        tuple(sorted(entries, key=lambda entry: entry.path))
    )


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (JobSpec, _JOB),
        (Environment, _JOB["environment"]),
        (Registration, {"job": "a", "path": "outputs/x", "tags": {"a": "b"}}),
    ],
)
@given(data=st.data())
def test_requests(model: type[BaseModel], example: dict[str, Any], data: st.DataObject) -> None:
    content = data.draw(noise(json.dumps(example).encode()))

    def read() -> None:
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            return  # FastAPI reports this itself
        model.model_validate(body)

    read_or_refused(read, ValidationError)


@pytest.mark.parametrize("grammar", _GRAMMARS)
@given(text=noisy_text("metrics.`a b` > 0.5 AND params.x LIKE 'é%' and tags.y IN ('a', \"b\")"))
def test_filters(grammar: Grammar, text: str) -> None:
    read_or_refused(lambda: parse_filter(text, grammar))


@pytest.mark.parametrize("grammar", _GRAMMARS)
@given(text=noisy_text("metrics.`a b` DESC", "name", "creation_timestamp ASC"))
def test_orders(grammar: Grammar, text: str) -> None:
    read_or_refused(lambda: parse_orders([text], grammar))


@given(noisy_text(write_token({"offset": 5}), write_token({"offset": "5", "order_by": ["a"]})))
def test_page_tokens(text: str) -> None:
    read_or_refused(lambda: read_offset(text))
    read_or_refused(lambda: read_token(text))


@given(noisy_text("2g", "512MiB", "1.5 GB", "90", "1h30m", "2d"))
def test_amounts(text: str) -> None:
    read_or_refused(lambda: parse_memory(text))
    read_or_refused(lambda: parse_duration(text))


@given(noisy_text("a-name", "0123456789abcdef" * 2, "models:/a/1", "production"))
def test_names(text: str) -> None:
    for check in (check_name, check_model_name, check_alias, check_version):
        read_or_refused(lambda check=check: check(text))


@given(
    noise(b'[lab]\ncpus = 8\nmemory = "32g"\ngpus = 1', b"a = { cpus = 0.5, memory = 99999999 }")
)
def test_sizes(content: bytes) -> None:
    read_or_refused(lambda: Catalogue(parse_sizes(content, "sizes.toml")).select(with_gpus=True))


@given(noisy_text("numpy", "conda-forge::numpy>=2,<3", "numpy=1.2=py*", "a[version='>1',build=b]"))
def test_conda_specs(text: str) -> None:
    read_or_refused(lambda: parse_spec(text))
    read_or_refused(lambda: to_pypi([text]))


@given(noisy_text(script_token(b"secret", "0123")))
def test_tokens(text: str) -> None:
    assert not is_token_for(b"other", text, key_of(text))
    assert is_token_for(b"secret", text, key_of(text)) == (
        text == script_token(b"secret", key_of(text))
    )


@given(noisy_text("mlflow-artifacts:/0/a/artifacts", "s3://bucket/path?x=1", "http://[::1]:5/a"))
def test_addresses_of_artifacts(text: str) -> None:
    read_or_refused(lambda: artifact_path(text))
