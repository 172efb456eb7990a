"""A search on the GPU survives a kernel that crashes, one that hangs and one that is wrong in a single column."""

from importlib import import_module
from pathlib import Path

import pytest

from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.store import Store
from atoffer_rl.trial import Status
from tests.kernels.paths import ROOT


def test_planted_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    planted = import_module("benchmarks.planted")
    choices = planted.planted_choices()
    assert set(choices.values()) == {Status.CRASHED, Status.TIMEOUT, Status.WRONG_RESULT}
    for choice in choices:
        program = planted.planted_program(planted.WORKLOAD, choice)
        assert isinstance(program, KernelProgram)
        assert compile_kernel(program, "sm_80").startswith(b"\x7fELF")


@pytest.mark.gpu(alone=True)
def test_the_search_ends_and_the_store_says_which_was_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    planted = import_module("benchmarks.planted")
    scheme = planted.search(tmp_path / "store.db", units=12)
    with Store(tmp_path / "store.db") as store:
        trials = {trial.choice: trial for trial in store.trials()}
    for choice, status in planted.planted_choices().items():
        assert trials[choice].status is status, trials[choice].reason
        assert choice not in scheme.choices
    assert all(trials[choice].ok for choice in scheme.choices)
    assert len(trials) >= 15 + 12
