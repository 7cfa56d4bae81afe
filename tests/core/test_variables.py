"""Which variables are secrets, and what a secret may be."""

import pytest

from retarget.core.errors import Invalid
from retarget.core.variables import (
    MIN_SECRET_BYTES,
    check_secret_name,
    check_secret_value,
    looks_secret,
)
from retarget.runner.masking import MIN_BYTES


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "TOKEN", "DB_PASSWORD", "AWS_SECRET", "WANDB_API_KEY", "KEY", "my_key"]
)
def test_a_name_with_a_secret_word_at_its_end_looks_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["TOKENS", "MONKEY", "KEY_FILE", "TOKEN_LIMIT", "PATH", ""])
def test_other_names_do_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "É", "A" * 201, "RETARGET_JOB", "A\n"])
def test_a_secret_has_the_name_of_a_variable(name: str) -> None:
    with pytest.raises(Invalid):
        check_secret_name(name)


def test_the_size_of_a_value_is_counted_in_bytes() -> None:
    assert check_secret_value("äöü") == "äöü"
    for value in ("abcde", "a" * 65_537, "abcdef\0", "abcdef\ud800"):
        with pytest.raises(Invalid) as raised:
            check_secret_value(value)
        assert value not in str(raised.value)


def test_every_stored_secret_can_be_masked() -> None:
    assert MIN_SECRET_BYTES == MIN_BYTES
