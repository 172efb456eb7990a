"""Cells are packed by memory; a process that fails costs its own cell."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.bench.cells import MOST_BYTES, Cell, allowed_bytes
from atoffer_rl.bench.waves import Prepare, make_cell_job, pack, run_wave, waves_of
from atoffer_rl.errors import MemoryTaken
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

GIB = 2**30


def cell(batch=1, seq_len=64):
    workload = Workload(batch=batch, seq_len=seq_len)
    return Cell(workload, (Choice(Run(1, 6), "rowwise"),), "hash")


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 40), st.integers(1, 8))
def test_groups_fit(sizes, room, most):
    groups = pack(sizes, room, most)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    for group in groups:
        assert len(group) <= most
        assert len(group) == 1 or sum(sizes[index] for index in group) <= room


def test_small_cells_share_a_wave_and_large_ones_do_not():
    small = [cell(batch) for batch in range(1, 17)]
    assert [len(wave) for wave in waves_of(small, 80 * GIB, 16)] == [16]
    assert [len(wave) for wave in waves_of(small, 80 * GIB, 6)] == [6, 6, 4]
    assert len(waves_of([cell(16, 2048), cell(8, 4096), cell(1, 64)], 30 * GIB, 16)) == 2


def test_float32_has_room_for_registers_that_spill():
    narrow, wide = (
        Cell(Workload(batch=1, seq_len=64, dtype=dtype), cell().fastest, "hash") for dtype in ("float16", "float32")
    )
    assert wide.process_bytes - wide.allowed_bytes > 10 * (narrow.process_bytes - narrow.allowed_bytes)
    assert len(waves_of([wide] * 4, 40 * GIB, 16)) == 2


def test_memory_grows_with_the_scores_up_to_a_limit():
    sizes = [allowed_bytes(Workload(batch=8, seq_len=seq_len)) for seq_len in (64, 512, 1024, 2048, 4096)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 2 * GIB
    assert sizes[-1] == MOST_BYTES
    assert allowed_bytes(Workload(batch=1, seq_len=4096)) > 48 * 12 * 4096**2


def make_job():
    """Prepares and times by the cell's batch: 2 fails to prepare, 3 dies while it is prepared, 4 hangs while timed.

    From 6 memory is taken while it is prepared, from 7 while it is timed, where others run beside it.
    """
    prepared = []

    def job(task):
        if isinstance(task, Prepare):
            batch = task.cell.workload.batch
            if batch == 2:
                raise ValueError("no peer\nno row")
            if batch == 3:
                os._exit(7)
            if batch == 6 and not task.is_alone:
                return MemoryTaken("gone")
            prepared.append(batch)
            return None
        if prepared == [7]:
            return MemoryTaken("gone")
        if prepared == [4]:
            time.sleep(60)
        return {"batch": prepared[0], "replays": task.replays}

    return job, None


def test_a_process_that_fails_costs_its_own_cell():
    ended = {}

    def on_end(cell, row, reason):
        ended[cell.workload.batch] = (row, reason)

    cells = [cell(batch) for batch in range(1, 8)]
    again = run_wave(cells, 25, on_end, make_job, prepare_seconds=30, seconds_a_replay=0.04)
    assert again == cells[5:]
    assert sorted(ended) == [1, 2, 3, 4, 5]
    assert ended[1] == ({"batch": 1, "replays": 25}, "")
    assert ended[5] == ({"batch": 5, "replays": 25}, "")
    assert ended[2] == (None, "while preparing: no peer")
    assert ended[3] == (None, "while preparing: the process died: exit status 7")
    assert ended[4] == (None, "while timing: killed at its time limit")


def test_a_cell_alone_is_told_so():
    ended = []
    assert run_wave([cell(6)], 25, lambda *end: ended.append(end), make_job) == []
    assert ended == [(cell(6), {"batch": 6, "replays": 25}, "")]


def test_a_cells_process_tells_whose_memory_ran_out(monkeypatch):
    """Its own GPU work is stood in for: it finds no memory, and the GPU has none."""

    def lacking(_, share):
        assert share.size_bytes == cell().allowed_bytes
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr("torch.cuda.init", lambda: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("atoffer_rl.bench.mha.CellBench", lacking)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    assert isinstance(make_cell_job()[0](Prepare(cell(), is_alone=False)), MemoryTaken)
    with pytest.raises(RuntimeError, match="out of memory"):
        make_cell_job()[0](Prepare(cell(), is_alone=True))


def make_no_job():
    raise RuntimeError("no GPU")


def test_a_process_that_does_not_start_costs_its_own_cell():
    ended = []
    run_wave([cell()], 25, lambda *end: ended.append(end[1:]), make_no_job)
    assert ended == [(None, "while preparing: no GPU")]


def test_what_is_interrupted_leaves_no_process():
    def on_end(cell, row, reason):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_wave([cell(1), cell(5)], 25, on_end, make_job)
