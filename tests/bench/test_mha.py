"""What is checked of a cell; a whole cell where there is a GPU."""

import pytest
import torch

from atoffer_rl.bench.cells import ATTENTION, Cell, choices_hash
from atoffer_rl.bench.contest import OURS
from atoffer_rl.bench.memory import MemoryShare
from atoffer_rl.bench.mha import CellBench, judge
from atoffer_rl.kernels.inputs import Inputs, draw_inputs
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.reference import Precision, run_reference
from atoffer_rl.workload import Workload

WORKLOAD = Workload(3, 19, 2, 8, dtype="float16", mask="strided")
CHUNKS = [slice(0, 2), slice(2, 3)]


@pytest.mark.parametrize("kind", [Inputs.RANDOM, Inputs.PEAKED])
def test_what_eager_computes_is_right(kind):
    inputs = draw_inputs(WORKLOAD, ATTENTION, kind, 0, "cpu")
    eager = run_reference(WORKLOAD, ATTENTION, inputs, Precision.EAGER)["merged"]
    (verdict,) = judge(WORKLOAD, inputs, [eager], CHUNKS)
    assert verdict.passed
    assert 0 < verdict.max_error < verdict.error_budget
    (easier,) = judge(WORKLOAD, inputs, [eager], CHUNKS, eager_error=1.0)
    assert easier.error_budget > 2.0


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_one_wrong_element_is_wrong_in_the_chunks_that_are_compared(value):
    inputs = draw_inputs(WORKLOAD, ATTENTION, Inputs.RANDOM, 0, "cpu")
    right = run_reference(WORKLOAD, ATTENTION, inputs)["merged"].half()
    wrong = right.clone()
    wrong[2, 0, 0] = value
    assert [verdict.passed for verdict in judge(WORKLOAD, inputs, [right, wrong], CHUNKS)] == [True, False]
    assert [verdict.passed for verdict in judge(WORKLOAD, inputs, [right, wrong], CHUNKS[:1])] == [True, True]


@pytest.mark.gpu
def test_a_cell_has_a_whole_row():
    from atoffer_rl.kernels.machine import current_device

    workload = Workload(2, 128, 2, 64, mask="causal")
    finalists = LegalSpace(workload, current_device()).choices(ATTENTION)[:2]
    try:
        cell = Cell(workload, finalists, choices_hash(workload, current_device()))
        row = CellBench(cell, MemoryShare(cell.allowed_bytes, is_promised=False)).time(24)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert row["ours_choice"] in map(str, finalists)
    assert OURS not in row["peer_options"]
    assert {"eager naive", "compile naive", "SDPA efficient", "SDPA flash is_causal", "Flex 128", "Flex 64"} <= set(
        row["peers"]
    )
    assert set(row["peer_errors"]) >= {"SDPA flash"}
    assert set(row["samples_us"]) == {OURS, *row["peers"]}
    assert row["max_error"] <= row["error_budget"]
    assert row["peaked_error"] <= row["peaked_budget"]
    assert row["bytes_floor_us"] == 2.0
