"""Runs the command line in this process, as a person would see it."""

from dataclasses import dataclass

import pytest

from atoffer_rl.cli.app import run


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def atoffer(capsys):
    """Run `atoffer` with words; a failure must be one line."""

    def call(*words):
        status = run([str(word) for word in words])
        captured = capsys.readouterr()
        if status:
            assert captured.err.startswith("atoffer: ")
            assert captured.err.count("\n") == 1
        return Outcome(status, captured.out, captured.err)

    return call
