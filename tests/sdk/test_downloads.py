"""Which outputs a path names."""

import pytest

from retarget.core.errors import NotFound
from retarget.sdk.downloads import select_outputs
from retarget.sdk.records import Output

_OUTPUTS = [
    Output(path=path, size=1, digest="0" * 64)
    for path in (
        *(f"outputs/part-{number}.csv" for number in range(6)),
        *("workdir/checkpoints/a.pt", "workdir/checkpoints/b.pt", "workdir/model.pkl"),
    )
]


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("checkpoints", "did you mean 'workdir/checkpoints'?"),
        ("model.pkl", "did you mean 'workdir/model.pkl'?"),
        ("workdir/modl.pkl", "did you mean 'workdir/model.pkl'?"),
        (
            "x",
            "it has outputs/part-0.csv, outputs/part-1.csv, outputs/part-2.csv, "
            "outputs/part-3.csv, outputs/part-4.csv and 4 more",
        ),
    ],
)
def test_an_unknown_output_is_answered_with_what_may_be_meant(path: str, suggestion: str) -> None:
    with pytest.raises(NotFound) as raised:
        select_outputs(_OUTPUTS, path, "a")
    assert str(raised.value) == f"a has no output {path!r}; {suggestion}"
