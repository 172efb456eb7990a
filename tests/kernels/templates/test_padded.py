"""Sequence lengths, in every template that implements the mask: rendered, run on an emulated machine and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import all_templates, template_choices, template_named
from atoffer_rl.operators import run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import LENGTHS, reads_lengths
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import assert_all_right
from tests.kernels.templates.gather_choices import LOW, ORDERS, PIECES, STEP_WARPS, possible_choice

SMALL = Workload(
    batch=3, seq_len=37, heads=1, head_dim=16, ffn_dim=16, mask="sliding:window=20", lengths="uniform:shortest=0"
)
MASKED = {
    "rowwise": [Run(1, 3), Run(1, 6), Run(2, 4), Run(2, 5), Run(2, 6), Run(3, 5)],
    "chain": [Run(3, 3), Run(3, 4)],
}
PAIRS = [(name, run) for name, runs in MASKED.items() for run in runs]
AFTER_THE_MASK = [("rowwise", Run(4, 6)), ("rowwise", Run(5, 5)), ("chain", Run(4, 4)), ("chain", Run(6, 6))]


GATHERED = Workload(batch=3, seq_len=77, heads=1, head_dim=32, lengths="uniform:shortest=0")
SMALL_CHUNKS = {**LOW, "chunk": 32}
WAYS = [{}, *ORDERS, PIECES, STEP_WARPS, SMALL_CHUNKS]


def default(name, workload, run):
    return template_choices(name, workload, run)[0]


@pytest.fixture
def varied(tmp_path):
    """A mask for each sequence, with rows that keep nothing."""
    keep = np.random.default_rng(0).random((3, 37, 37)) < 0.4
    keep[1, 5] = False
    np.save(tmp_path / "mask.npy", keep)
    return replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")


# ---- What is offered and rendered.


def test_whatever_is_offered_reads_the_lengths():
    workload = replace(Workload(), lengths="uniform")
    for choice in LegalSpace(workload).all_choices:
        program = template_named(choice.template).program(workload, choice)
        arguments = getattr(program, "arguments", ())
        assert (LENGTHS in arguments) == reads_lengths(workload, choice.run), choice


def test_the_layer_is_covered_with_and_without_libraries():
    for standalone in (False, True):
        assert LegalSpace(SMALL, standalone=standalone).unfused.runs


def test_full_lengths_leave_no_trace():
    workload = Workload()
    for template in all_templates():
        for run in sorted(template.runs):
            for choice in template_choices(template.name, workload, run)[:1]:
                program = template.program(workload, choice)
                assert LENGTHS not in getattr(program, "source", "")
                assert LENGTHS not in getattr(program, "arguments", ())


@pytest.mark.parametrize(("name", "run"), PAIRS)
def test_only_runs_with_the_mask_are_others(name, run):
    full = replace(SMALL, lengths="full")
    template, choice = template_named(name), default(name, full, run)
    assert template.program(full, choice) != template.program(SMALL, choice)
    for other, after in AFTER_THE_MASK:
        kept = default(other, full, after)
        assert template_named(other).program(full, kept) == template_named(other).program(SMALL, kept)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("name", "run"), PAIRS)
def test_compiles(name, run, arch):
    workload = replace(Workload(), lengths="uniform")
    program = template_named(name).program(workload, default(name, workload, run))
    assert compile_kernel(program, arch).startswith(b"\x7fELF")


# ---- What is computed.


@pytest.mark.parametrize(("name", "run"), PAIRS + AFTER_THE_MASK)
def test_lengths_emulated(assert_emulated, name, run):
    assert_emulated(SMALL, default(name, SMALL, run))


@pytest.mark.parametrize(("name", "run"), [("rowwise", Run(1, 6)), ("rowwise", Run(2, 3)), ("chain", Run(3, 4))])
def test_lengths_with_a_mask_for_each_sequence_emulated(assert_emulated, varied, name, run):
    assert_emulated(varied, default(name, varied, run))


@pytest.mark.parametrize(
    ("dtype", "values"), [*(("float16", values) for values in WAYS), ("float32", ORDERS[2]), ("float32", ORDERS[3])]
)
def test_lengths_gathered_emulated(assert_emulated, dtype, values):
    workload = replace(GATHERED, dtype=dtype)
    assert_emulated(workload, possible_choice(workload, Run(1, 6), **values))


@pytest.mark.parametrize("lengths", ["list:77/77/77", "list:0/0/0", "list:1/64/65"])
@pytest.mark.parametrize("mask", ["dense", "fixed", "bigbird:window=8,global=2,random=1,block=8"])
def test_masks_with_lengths_gathered_emulated(assert_emulated, mask, lengths):
    workload = replace(GATHERED, mask=mask, lengths=lengths)
    assert_emulated(workload, possible_choice(workload, Run(2, 5), **SMALL_CHUNKS))


@pytest.mark.parametrize("values", [{}, PIECES, ORDERS[2]])
def test_lengths_with_a_mask_for_each_sequence_gathered_emulated(assert_emulated, varied, values):
    workload = replace(varied, head_dim=40)
    assert_emulated(workload, possible_choice(workload, Run(2, 6), **values))


def test_chunks_beyond_a_length_are_not_taken():
    workload = replace(GATHERED, mask="dense")
    program = template_named("gather").program(workload, possible_choice(workload, **SMALL_CHUNKS))
    limits = program.plan()["gather_limits"]
    assert limits.shape == (1, 3, 4)
    assert sorted(limits[0, :, 0]) == [0, 32, 64]
    np.testing.assert_array_equal(limits[0, :, 1:], [[0, 32, 64]] * 3)
    full = replace(workload, lengths="full")
    work, whole = (template_named("gather").work(w, possible_choice(w, **SMALL_CHUNKS)) for w in (workload, full))
    assert work.flops < whole.flops
    assert work.bytes_read < whole.bytes_read


def attend_beside_nan(workload, run, launch, device):
    """What `launch` stores where q, k and v are NaN beyond the lengths, and what it should."""
    import torch

    from atoffer_rl.kernels.inputs import Inputs, draw_inputs
    from atoffer_rl.kernels.packing import valid_rows
    from atoffer_rl.kernels.reference import run_reference

    inputs = draw_inputs(workload, run, Inputs.RANDOM, 1, device)
    expected = run_reference(workload, run, inputs)
    for name in {"qkv", "qkv_raw"} & inputs.keys():
        inputs[name][~valid_rows(workload, inputs[LENGTHS])] = torch.nan
    stored = {name: torch.full_like(value, torch.nan, dtype=torch.float16) for name, value in expected.items()}
    launch({name: tensor.data_ptr() for name, tensor in (inputs | stored).items()})
    return stored, expected


FUSED = [("rowwise", Run(1, 5)), ("rowwise", Run(1, 6)), ("rowwise", Run(2, 6))]


@pytest.mark.parametrize(("name", "run"), FUSED)
def test_what_lies_beyond_a_length_is_not_read_emulated(emulator, name, run):
    import torch

    kernel = emulator.load(SMALL, default(name, SMALL, run))
    stored, expected = attend_beside_nan(SMALL, run, kernel.launch, "cpu")
    for result in run_results(run):
        torch.testing.assert_close(stored[result].double(), expected[result], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("values", WAYS)
@pytest.mark.parametrize("run", [Run(1, 6), Run(2, 5)])
def test_what_lies_beyond_a_length_is_not_gathered_emulated(emulator, run, values):
    import torch

    kernel = emulator.load(GATHERED, possible_choice(GATHERED, run, **values))
    stored, expected = attend_beside_nan(GATHERED, run, kernel.launch, "cpu")
    for result in run_results(run):
        torch.testing.assert_close(stored[result].double(), expected[result], rtol=0.01, atol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("lengths", ["uniform:shortest=0", "list:0/1/77/40/76", "uniform:shortest=77"])
def test_lengths_on_gpu(lengths, dtype):
    workload = Workload(batch=5, seq_len=77, heads=2, head_dim=64, ffn_dim=64, dtype=dtype, lengths=lengths)
    runs = [(name, run) for name, run in PAIRS + AFTER_THE_MASK if template_choices(name, workload, run)]
    assert_all_right([(workload, default(name, workload, run)) for name, run in runs])


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["dense", "strided", "fixed", "sliding:window=10", "longformer:window=8,global=3"])
@pytest.mark.parametrize(("name", "run"), FUSED)
def test_masks_with_lengths_on_gpu(name, run, mask):
    workload = Workload(batch=7, seq_len=300, heads=3, mask=mask, lengths="uniform:shortest=0")
    assert_all_right([(workload, choice) for choice in template_choices(name, workload, run)[::4]])


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["dense", "strided", "fixed", "sliding:window=10", "bigbird"])
@pytest.mark.parametrize("values", [{}, {"tile_rows": 32, "warps": 8, "step": 16}, {"order": 2}, {"splits": 3}])
@pytest.mark.parametrize("run", [Run(1, 6), Run(2, 5)])
def test_lengths_gathered_on_gpu(run, values, mask):
    workload = Workload(batch=9, seq_len=300, heads=3, mask=mask, lengths="uniform:shortest=0")
    if values.get("order") == 2 and mask in ("dense", "sliding:window=10"):
        values = {"order": 1}
    formats = [replace(workload, dtype=dtype) for dtype in ("float16", "bfloat16", "float32")]
    assert_all_right([(w, possible_choice(w, run, **values)) for w in formats])


@pytest.mark.gpu
@pytest.mark.parametrize("values", [{"order": 3, "stages": 5}, {"residents": 2}])
def test_two_passes_and_several_items_a_block_with_lengths_on_gpu(values):
    workload = Workload(batch=16, seq_len=512, lengths="uniform:shortest=0")
    assert_all_right([(workload, possible_choice(workload, Run(1, 6), **values))])


@pytest.mark.gpu
@pytest.mark.parametrize("values", [{}, {"order": 2}, {"splits": 3}])
def test_what_lies_beyond_a_length_is_not_gathered_on_gpu(values):
    import torch

    from atoffer_rl.kernels.launch import load_choice

    workload, run = Workload(batch=5, seq_len=150, heads=2, lengths="uniform:shortest=0"), Run(1, 6)
    loaded = load_choice(workload, possible_choice(workload, run, **values))
    stream = torch.cuda.current_stream().cuda_stream
    stored, expected = attend_beside_nan(workload, run, lambda pointers: loaded.launch(pointers, stream), "cuda")
    torch.testing.assert_close(stored["merged"].double(), expected["merged"], rtol=0.01, atol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "run"), FUSED)
def test_what_lies_beyond_a_length_is_not_read_on_gpu(name, run):
    import torch

    from atoffer_rl.kernels.launch import load_choice

    workload = Workload(batch=5, seq_len=150, heads=2, lengths="uniform:shortest=0")
    loaded, stream = load_choice(workload, default(name, workload, run)), torch.cuda.current_stream().cuda_stream
    stored, expected = attend_beside_nan(workload, run, lambda pointers: loaded.launch(pointers, stream), "cuda")
    for result in run_results(run):
        torch.testing.assert_close(stored[result].double(), expected[result], rtol=0.01, atol=0.01)
