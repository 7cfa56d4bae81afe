"""What the agent takes in is what was sent, or nothing."""

import asyncio
import os
from hashlib import blake2b
from pathlib import Path

import pytest

from retarget.runner.agent import Agent

_PROGRAM = b"#!/bin/sh\necho works\n"
_WHOLE = {"size": len(_PROGRAM), "digest": blake2b(_PROGRAM).hexdigest()}


def _put(agent: Agent, turn: str, offset: int, content: bytes) -> int:
    request = {"do": "put", "name": "uv", "whole": {**_WHOLE, "turn": turn}, "offset": offset}
    return asyncio.run(agent.answer(request, content))


def test_a_program_is_there_when_all_of_it_is(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path))
    assert _put(agent, "a", 0, _PROGRAM[:5]) == 5
    assert _put(agent, "b", 0, _PROGRAM[:9]) == 9
    assert not (tmp_path / "bin/uv").exists()
    assert _put(agent, "a", 5, _PROGRAM[5:]) == len(_PROGRAM)
    assert _put(agent, "b", 9, _PROGRAM[9:]) == len(_PROGRAM)
    assert os.listdir(tmp_path / "bin") == ["uv"]
    assert (tmp_path / "bin/uv").read_bytes() == _PROGRAM
    assert os.access(tmp_path / "bin/uv", os.X_OK)


def test_a_program_that_was_damaged_on_its_way_is_not_kept(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path))
    with pytest.raises(OSError, match="it did not arrive as it was sent"):
        _put(agent, "a", 0, _PROGRAM.swapcase())
    assert os.listdir(tmp_path / "bin") == []
