"""Compilers: several at once, under a time limit; a crash costs one job."""

import errno
from collections.abc import Iterable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess

import pytest

from atoffer_rl.kernels.anchors import anchor_programs
from atoffer_rl.kernels.compile_pool import Compiled, CompilePool
from atoffer_rl.kernels.program import KernelProgram
from tests.kernels import planted_jobs
from tests.kernels.paths import ROOT


def compile_all(pool: CompilePool, programs: Iterable[KernelProgram]) -> dict[int, Compiled]:
    for index, program in enumerate(programs):
        pool.submit(index, program, "sm_90a")
    ended = {}
    while pool.pending:
        wait(pool.waitables, pool.seconds_left)
        ended |= {compiled.token: compiled for compiled in pool.collect()}
    return ended


def toy(kind: int) -> KernelProgram:
    return KernelProgram("toy", f"kind {kind}", (), (1, 1, 1), (1, 1, 1), 0, ())


def test_crashing_and_hanging_compilers_cost_their_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    pool = CompilePool(2, limit_seconds=3.0, make_job=planted_jobs.make_compiler)
    kinds = [planted_jobs.COMPILER_HANGS, planted_jobs.COMPILER_DIES, 0, planted_jobs.WONT_COMPILE, 0, 1]
    ended = compile_all(pool, map(toy, kinds))
    pool.kill()
    assert [ended[index].cubin is not None for index in range(6)] == [False, False, True, False, True, True]
    assert [ended[index].answered for index in range(6)] == [False, False] + [True] * 4
    assert "longer than 3 s" in ended[0].reason
    assert "SIGSEGV" in ended[1].reason
    assert ended[3].reason == "error: expected a ;"
    assert ended[2].seconds == 0.25


def test_a_process_that_cannot_be_started_leaves_its_job_to_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    start = SpawnProcess.start

    def refuse_the_second(process: BaseProcess) -> None:
        if process.name.endswith("1"):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", refuse_the_second)
    pool = CompilePool(2, make_job=planted_jobs.make_compiler)
    ended = compile_all(pool, map(toy, [0, 1, 0]))
    pool.kill()
    assert all(ended[index].cubin is not None for index in range(3))


def test_real_kernels_compile_and_wrong_ones_are_refused() -> None:
    pool = CompilePool(1)
    wrong = KernelProgram("wrong", "no CUDA", (), (1, 1, 1), (1, 1, 1), 0, ())
    ended = compile_all(pool, [anchor_programs()["math"], wrong])
    pool.kill()
    assert (ended[0].cubin or b"").startswith(b"\x7fELF")
    assert ended[1].cubin is None
    assert "error" in ended[1].reason
    assert "\n" not in ended[1].reason
