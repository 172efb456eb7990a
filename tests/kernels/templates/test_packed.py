"""Packed sequences, in every template that reads them: rendered, run on an emulated machine and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.errors import NoTemplate
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import all_templates, template_choices, template_named
from atoffer_rl.roofline import valid_share
from atoffer_rl.run import Run
from atoffer_rl.tensors import LENGTHS, OFFSETS, reads_lengths
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import assert_all_right
from tests.kernels.templates.gather_choices import LOW, ORDERS, PIECES, STEP_WARPS, possible_choice

SMALL = Workload(
    batch=3,
    seq_len=37,
    heads=2,
    head_dim=16,
    ffn_dim=16,
    mask="sliding:window=20",
    lengths="uniform:shortest=0",
    packed=True,
)
GATHERED = Workload(batch=3, seq_len=77, heads=1, head_dim=32, lengths="uniform:shortest=0", packed=True)
ATTENTION = [Run(1, 6), Run(2, 6)]
BY_SEQUENCE = [Run(1, 5), Run(2, 2), Run(2, 5), Run(3, 3), Run(4, 4), Run(5, 5), Run(5, 6), Run(6, 6), Run(6, 7)]
ONLY_ROWS = [Run(0, 0), Run(1, 1), Run(0, 1), Run(7, 7), Run(8, 9), Run(10, 11), Run(12, 13), Run(14, 14)]
SMALL_CHUNKS = {**LOW, "chunk": 32}
WAYS = [{}, *ORDERS, PIECES, STEP_WARPS, SMALL_CHUNKS]
BIGBIRD = "bigbird:window=8,global=2,random=1,block=8"
ODD_LENGTHS = ["list:77/77/77", "list:0/0/0", "list:1/64/65", "list:0/77/0", "list:33/0/44"]


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


def test_attention_is_legal_where_it_stores_rows_of_tokens():
    space = LegalSpace(SMALL)
    assert set(ATTENTION) | set(ONLY_ROWS) <= space.runs
    assert not space.runs.intersection(BY_SEQUENCE)


@pytest.mark.parametrize("run", BY_SEQUENCE)
def test_what_lies_by_sequence_is_named(run):
    assert "packed sequences lie in rows of tokens" in LegalSpace(SMALL).why(run)


def test_whatever_is_offered_reads_the_offsets_beside_the_lengths():
    workload = replace(Workload(), lengths="uniform", packed=True)
    for choice in LegalSpace(workload).all_choices:
        arguments = getattr(template_named(choice.template).program(workload, choice), "arguments", ())
        assert (LENGTHS in arguments) == (OFFSETS in arguments) == reads_lengths(workload, choice.run), choice


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("standalone", [False, True])
def test_the_layer_is_covered(standalone, dtype):
    runs = LegalSpace(replace(SMALL, dtype=dtype), standalone=standalone).unfused.runs
    assert runs == (Run(0, 0), Run(1, 1), Run(2, 6), *(Run(op, op) for op in range(7, 15)))


def test_where_it_is_not_the_limits_are_named():
    wide = Workload(batch=1, seq_len=64, heads=1, head_dim=2048, lengths="uniform", packed=True)
    with pytest.raises(NoTemplate, match=r"covers operator 2 .*--why 2 6.*: .*heads of up to 1024 channels") as caught:
        _ = LegalSpace(wide).runs
    assert "\n" not in str(caught.value)


def test_only_attention_is_another():
    padded = replace(SMALL, packed=False)
    for template in all_templates():
        for run in {*ATTENTION, *ONLY_ROWS} & template.runs:
            for choice in template_choices(template.name, SMALL, run)[:1]:
                same = template.program(padded, choice) == template.program(SMALL, choice)
                assert same == (run in ONLY_ROWS), choice


@pytest.mark.parametrize("name", ["gather", "rowwise"])
def test_less_is_stored(name):
    padded, choice = replace(SMALL, packed=False), default(name, SMALL, Run(2, 6))
    work, whole = (template_named(name).work(workload, choice) for workload in (SMALL, padded))
    assert (work.bytes_read, work.flops) == (whole.bytes_read, whole.flops)
    assert work.bytes_written - whole.bytes_written == round(37 * 3 * 32 * 2 * valid_share(SMALL)) - 37 * 3 * 32 * 2


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("run", ATTENTION)
@pytest.mark.parametrize("name", ["gather", "rowwise"])
def test_compiles(name, run, arch):
    workload = replace(Workload(), lengths="uniform", packed=True)
    program = template_named(name).program(workload, default(name, workload, run))
    assert compile_kernel(program, arch).startswith(b"\x7fELF")


# ---- What is computed.


@pytest.mark.parametrize(
    ("lengths", "run"),
    list(zip(["uniform:shortest=0", "list:37/37/37", "list:0/0/0", "list:1/0/36"], 2 * ATTENTION, strict=True)),
)
def test_rowwise_emulated(assert_emulated, lengths, run):
    workload = replace(SMALL, lengths=lengths)
    assert_emulated(workload, default("rowwise", workload, run))


@pytest.mark.parametrize("run", ATTENTION)
def test_a_mask_for_each_sequence_emulated(assert_emulated, varied, run):
    assert_emulated(varied, default("rowwise", varied, run))


@pytest.mark.parametrize(
    ("dtype", "values"), [*(("float16", values) for values in WAYS), ("float32", ORDERS[2]), ("float32", ORDERS[3])]
)
def test_gather_emulated(assert_emulated, dtype, values):
    workload = replace(GATHERED, dtype=dtype)
    assert_emulated(workload, possible_choice(workload, Run(1, 6), **values))


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [*(("fixed", lengths) for lengths in ODD_LENGTHS), ("dense", ODD_LENGTHS[2]), (BIGBIRD, ODD_LENGTHS[4])],
)
def test_masks_gathered_emulated(assert_emulated, mask, lengths):
    workload = replace(GATHERED, mask=mask, lengths=lengths)
    assert_emulated(workload, possible_choice(workload, Run(2, 6), **SMALL_CHUNKS))


@pytest.mark.parametrize("values", [{}, PIECES, ORDERS[2]])
def test_a_mask_for_each_sequence_gathered_emulated(assert_emulated, varied, values):
    workload = replace(varied, heads=1, head_dim=40)
    assert_emulated(workload, possible_choice(workload, Run(2, 6), **values))


def assert_other_rows_are_let_alone(workload, run, launch, device):
    """Rows of no sequence reach nothing where they are NaN in q, k and v, and in the result stay as they were."""
    import torch

    from atoffer_rl.kernels.inputs import Inputs, draw_inputs
    from atoffer_rl.kernels.packing import valid_rows
    from atoffer_rl.kernels.reference import run_reference

    inputs = draw_inputs(workload, run, Inputs.RANDOM, 1, device)
    valid, expected = valid_rows(workload, inputs[LENGTHS]), run_reference(workload, run, inputs)["merged"]
    for name in {"qkv", "qkv_raw"} & inputs.keys():
        inputs[name][~valid] = torch.nan
    merged = torch.full_like(expected, torch.nan, dtype=torch.float16)
    launch({name: tensor.data_ptr() for name, tensor in (inputs | {"merged": merged}).items()})
    torch.testing.assert_close(merged[valid].double(), expected[valid], rtol=0.01, atol=0.01)
    assert merged[~valid].isnan().all()


@pytest.mark.parametrize("run", ATTENTION)
def test_rows_of_no_sequence_are_let_alone_emulated(emulator, run):
    workload = replace(SMALL, lengths="list:17/0/20")
    kernel = emulator.load(workload, default("rowwise", workload, run))
    assert_other_rows_are_let_alone(workload, run, kernel.launch, "cpu")


@pytest.mark.parametrize("values", WAYS)
@pytest.mark.parametrize("run", ATTENTION)
def test_rows_of_no_sequence_are_not_gathered_emulated(emulator, run, values):
    workload = replace(GATHERED, lengths="list:33/0/44")
    kernel = emulator.load(workload, possible_choice(workload, run, **values))
    assert_other_rows_are_let_alone(workload, run, kernel.launch, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("lengths", ["uniform:shortest=0", "list:0/1/77/40/76", "uniform:shortest=77"])
@pytest.mark.parametrize("name", ["gather", "rowwise"])
def test_lengths_on_gpu(name, lengths, dtype):
    workload = Workload(
        batch=5, seq_len=77, heads=2, head_dim=64, ffn_dim=64, dtype=dtype, lengths=lengths, packed=True
    )
    assert_all_right([(workload, choice) for run in ATTENTION for choice in template_choices(name, workload, run)[::4]])


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["dense", "strided", "fixed", "sliding:window=10", "bigbird"])
@pytest.mark.parametrize("values", [{}, {"tile_rows": 32, "warps": 8, "step": 16}, {"order": 2}, {"splits": 3}])
def test_masks_gathered_on_gpu(values, mask):
    workload = Workload(batch=9, seq_len=300, heads=3, mask=mask, lengths="uniform:shortest=0", packed=True)
    if values.get("order") == 2 and mask in ("dense", "sliding:window=10"):
        values = {"order": 1}
    formats = [replace(workload, dtype=dtype) for dtype in ("float16", "bfloat16", "float32")]
    assert_all_right([(w, possible_choice(w, Run(1, 6), **values)) for w in formats])


@pytest.mark.gpu
@pytest.mark.parametrize("values", [{"order": 3, "stages": 5}, {"residents": 2}])
def test_two_passes_and_several_items_a_block_on_gpu(values):
    workload = Workload(batch=16, seq_len=512, lengths="uniform:shortest=0", packed=True)
    assert_all_right([(workload, possible_choice(workload, Run(1, 6), **values))])


@pytest.mark.gpu
@pytest.mark.parametrize("run", ATTENTION)
@pytest.mark.parametrize(("name", "values"), [("rowwise", {}), *(("gather", v) for v in ({}, {"order": 2}, PIECES))])
def test_rows_of_no_sequence_are_let_alone_on_gpu(name, values, run):
    import torch

    from atoffer_rl.kernels.launch import load_choice

    workload = Workload(batch=5, seq_len=150, heads=2, lengths="list:150/0/1/77/120", packed=True)
    choice = possible_choice(workload, run, **values) if name == "gather" else default(name, workload, run)
    loaded, stream = load_choice(workload, choice), torch.cuda.current_stream().cuda_stream
    assert_other_rows_are_let_alone(workload, run, lambda pointers: loaded.launch(pointers, stream), "cuda")
