"""The times of events by the clock of a host, which may be wrong."""

import pytest

from retarget.control.report import to_server_clock

_EVENTS = [{"kind": "preparing", "at": 1000.0}, {"kind": "started", "at": 1002.5}]


@pytest.mark.parametrize(
    ("sent", "times"),
    [
        (1010.0, [2000.0, 2002.5]),  # its clock is far behind
        (13010.0, [-10000.0, -9997.5]),  # or ahead
        (2009.6, [1000.0, 1002.5]),  # right: the report took a while to arrive
        (None, [1000.0, 1002.5]),  # an older runner does not send it
    ],
)
def test_the_clock_of_a_host_may_be_wrong(sent: float | None, times: list[float]) -> None:
    events = to_server_clock(_EVENTS, sent=sent, now=2010.0)
    assert [event["at"] for event in events] == times
    assert [event["kind"] for event in events] == ["preparing", "started"]
