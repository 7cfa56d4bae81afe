"""Credentials in addresses are found and masked."""

import pytest

from retarget.core.credentials import credentials_refused, has_credentials, without_credentials
from retarget.core.environments import Environment


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://alice:s3cret@host/simple",
        "--extra-index-url=https://s3cret@host/simple",
        "pkg @ git+https://s3cret@github.com/a/b",
        "pkg @ git+ssh://alice:s3cret@host/b",
        "https://${USER}:s3cret@host/simple",
        "https://conda.host/t/s3cret/channel",
        "HTTPS://alice:s3cret@host/simple",
        "https://alice:p@s3cret@host/simple",
    ],
)
def test_credentials_are_found_and_masked(text: str) -> None:
    assert has_credentials(text)
    assert "s3cret" not in without_credentials(text)
    assert "s3cret" not in credentials_refused(text)
    with pytest.raises(ValueError, match=r"contains credentials") as caught:
        Environment(kind="system", pip=(text,))
    assert "s3cret" not in str(caught.value.errors()[0]["msg"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "--index-url https://${USER}:${TOKEN}@host/simple",
        "--index-url https://__token__:${TOKEN}@host/simple",
        "--index-url https://${TOKEN}@host/simple",
        "pkg @ git+ssh://git@github.com/a/b",
        "pkg @ git+https://github.com/a/b@main",
        "https://conda.anaconda.org/t/${TOKEN}/channel",
        "file:///tmp/t/channel/packages",
        "numpy>=1",
    ],
)
def test_variables_and_users_of_ssh_are_no_credentials(text: str) -> None:
    assert not has_credentials(text)
    assert without_credentials(text) == text
