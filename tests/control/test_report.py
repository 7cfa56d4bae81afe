"""Times that machines tell, by clocks that may be wrong."""

import pytest

from retarget.control.report import by_our_clock

_EVENTS = [{"kind": "preparing", "at": 1000.0}, {"kind": "started", "at": 1002.5}]


@pytest.mark.parametrize(
    ("sent", "times"),
    [
        (1010.0, [2000.0, 2002.5]),  # its clock is far behind
        (13010.0, [-10000.0, -9997.5]),  # or ahead
        (2009.6, [1000.0, 1002.5]),  # right: it was under way for a while
        (None, [1000.0, 1002.5]),  # an older runner does not say
    ],
)
def test_the_clock_of_a_machine_may_be_wrong(sent: float | None, times: list[float]) -> None:
    told = by_our_clock(_EVENTS, sent=sent, now=2010.0)
    assert [event["at"] for event in told] == times
    assert [event["kind"] for event in told] == ["preparing", "started"]
