import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.core.errors import Invalid
from retarget.core.jobs import JobSpec
from retarget.core.names import check_name, new_id, suggest_name
from retarget.core.units import parse_duration, parse_memory, show_memory
from retarget.runner.durations import show_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 * 2**20), ("2g", 2**31), ("1.5GiB", 3 * 2**29), ("4096", 4096), (7, 7)],
)
def test_memory_is_parsed_as_people_write_it(text: str | int, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["3x", "", "-1g", "0", "0.4", "1e3", "g", "1 2g", "9" * 40 + "t"])
def test_other_amounts_of_memory_are_refused_by_name(text: str) -> None:
    with pytest.raises(Invalid, match=r"memory: .* is not an amount"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("0.5d", 43200)]
)
def test_durations_are_parsed_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "0", "1h 30m", "5x", "nan", "inf"])
def test_other_durations_are_refused_by_name(text: str) -> None:
    with pytest.raises(Invalid, match=r"timeout: .* is not a duration"):
        parse_duration(text)


def test_amounts_are_formatted_for_people() -> None:
    assert [show_memory(size) for size in (0, 1023, 1536, 2**31)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "2.0 GiB",
    ]
    shown = {
        0.07: "70 ms", 0.9996: "1.0 s", 2.0: "2 s", 4.44: "4.4 s", 9.97: "10 s", 12.3: "12 s",
        59.7: "1m 0s", 90.0: "1m 30s", 200.0: "3m 20s", 7500.0: "2h 5m",
    }  # fmt: skip
    assert {number: show_duration(number) for number in shown} == shown


@pytest.mark.parametrize("name", ["", "a/b", "-x", ".x", "a b", "é", "a" * 64, "a\n", "\0"])
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(Invalid, match="is not a valid name"):
        check_name(name)


@given(st.integers(0, 8), st.randoms(use_true_random=False))
def test_generated_names_are_valid(tries: int, rng: random.Random) -> None:
    check_name(suggest_name(rng, tries=tries))


def test_ids_sort_by_time_and_have_32_digits() -> None:
    ids = [new_id(1_700_000_000 + n) for n in range(50)]
    assert ids == sorted(ids)
    assert {len(job_id) for job_id in ids} == {32}


@given(
    st.floats(min_value=1e-6, max_value=1e9) | st.sampled_from(["0.00001s", "10000d", "3m"]),
    st.integers(1, 2**59) | st.sampled_from(["1", "1.5k"]),
)
def test_an_accepted_spec_can_be_parsed_again(timeout: float | str, memory: int | str) -> None:
    spec = JobSpec.model_validate({"command": ["true"], "timeout": timeout, "memory": memory})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert JobSpec.model_validate(spec.model_dump()) == spec
