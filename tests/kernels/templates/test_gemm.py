from dataclasses import replace

import pytest

from atoffer_rl.device import H100
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.registry import MAX_CHOICES, template_choices
from atoffer_rl.kernels.templates.gemm import PARAMETERS, RUNS, TEMPLATE, problem_of, shared_bytes
from atoffer_rl.operators import run_activations, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import assert_all_right

BERT = Workload(mask="dense")
AMPERE = replace(H100, arch="sm_80")
DEVICES = {"sm_80": AMPERE, "sm_90a": H100}
DTYPES = ("float16", "bfloat16", "float32")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
SORTED_RUNS = sorted(RUNS)
ODD_SHAPES = {
    "one": {"batch": 1, "seq_len": 1, "heads": 1, "head_dim": 1, "ffn_dim": 1},
    "odd": {"batch": 3, "seq_len": 7, "heads": 3, "head_dim": 7, "ffn_dim": 45},
    "pairs": {"batch": 1, "seq_len": 65, "heads": 5, "head_dim": 10, "ffn_dim": 98},
    "quads": {"batch": 2, "seq_len": 33, "heads": 4, "head_dim": 20, "ffn_dim": 132},
    "ragged": {"batch": 2, "seq_len": 77, "heads": 3, "head_dim": 40, "ffn_dim": 328},
    "bert": {"batch": 2, "seq_len": 128},
}


def choice_of(run, *values):
    return Choice(run, "gemm", tuple(zip(PARAMETERS, values, strict=True)))


def default(run, workload=BERT):
    return template_choices("gemm", workload, run)[0]


@pytest.mark.parametrize("run", SORTED_RUNS, ids=str)
@pytest.mark.parametrize(("batch", "seq_len"), [(1, 128), (8, 128), (16, 256)])
def test_offers_a_real_but_measurable_decision(run, batch, seq_len):
    for dtype in DTYPES:
        choices = template_choices("gemm", Workload(batch=batch, seq_len=seq_len, dtype=dtype), run)
        assert 25 <= len(choices) <= 40 <= MAX_CHOICES
        assert len(set(choices)) == len(choices)


@pytest.mark.parametrize("run", SORTED_RUNS, ids=str)
def test_reads_and_writes_what_the_run_does(run):
    program = TEMPLATE.program(BERT, default(run))
    assert set(program.arguments[:-1]) == {*run_activations(run), *run_weights(run)}
    assert program.arguments[-1:] == run_results(run)
    tensors = layer_tensors(BERT)
    work = TEMPLATE.work(BERT, default(run))
    assert work.bytes_read == sum(tensors[name].size_bytes for name in program.arguments[:-1])
    assert work.bytes_written == tensors[program.arguments[-1]].size_bytes


def test_problem_of_the_longest_runs():
    merged = problem_of(BERT, Run(6, 8))
    assert (merged.rows, merged.columns, merged.inner) == (4096, 768, 768)
    assert merged.merges_heads
    assert merged.inputs == ("context", "w_out", "b_out", "x")
    activated = problem_of(BERT, Run(11, 13))
    assert (activated.rows, activated.columns, activated.inner) == (4096, 768, 3072)
    assert activated.inputs == ("ffn1_raw", "b_ffn1", "w_ffn2", "b_ffn2", "attn_norm")
    assert activated.epilogue == ("bias", "residual")


def test_work_and_geometry_count_whole_tiles():
    workload = Workload(batch=1, seq_len=65, heads=1, head_dim=33, ffn_dim=70, mask="dense")
    choice = choice_of(Run(10, 10), 64, 64, 32, 2, 2, 1, 3, 1)
    geometry = TEMPLATE.geometry(workload, choice)
    assert (geometry.tile_rows, geometry.tile_columns, geometry.blocks, geometry.threads) == (64, 64, 4, 128)
    assert TEMPLATE.work(workload, choice).flops == 2 * 128 * 128 * 64


def test_programs_are_pure():
    for run in SORTED_RUNS:
        assert TEMPLATE.program(BERT, default(run)) == TEMPLATE.program(BERT, default(run))


def test_every_run_of_bert():
    assert all(TEMPLATE.why_not(BERT, run, H100) is None for run in RUNS)


def test_devices_before_asynchronous_copies_are_refused():
    assert "sm_80" in str(TEMPLATE.why_not(BERT, Run(0, 0), replace(H100, arch="sm_75")))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((64, 64, 32, 8, 1, 1, 3, 1), "warps_m"),
        ((64, 64, 32, 1, 8, 1, 3, 1), "warps_n"),
        ((64, 64, 32, 1, 1, 4, 3, 1), "warps_k"),
        ((64, 64, 96, 2, 2, 1, 3, 1), "power of two"),
        ((64, 64, 32, 2, 2, 1, 1, 1), "two stages"),
        ((64, 64, 32, 2, 2, 1, 3, 16), "cluster"),
        ((128, 256, 64, 4, 8, 1, 2, 1), "threads"),
        ((128, 256, 32, 2, 2, 1, 2, 1), "sums"),
        ((128, 256, 64, 2, 4, 1, 5, 1), "shared memory"),
    ],
)
def test_hard_rules(values, reason):
    choice = choice_of(Run(0, 0), *values)
    assert reason in str(TEMPLATE.impossible(BERT, Run(0, 0), dict(choice.parameters), H100))


def test_clusters_need_a_device_that_has_them():
    values = dict(zip(PARAMETERS, (64, 64, 64, 2, 2, 1, 4, 4), strict=True))
    assert TEMPLATE.impossible(BERT, Run(0, 0), values, H100) is None
    assert "clusters" in str(TEMPLATE.impossible(BERT, Run(0, 0), values, AMPERE))
    assert TEMPLATE.geometry(BERT, choice_of(Run(0, 0), *values.values())).blocks == 4 * 64 * 36


def test_shared_memory_holds_the_ring_or_the_epilogue():
    ring = dict(zip(PARAMETERS, (128, 128, 32, 2, 2, 1, 4, 1), strict=True))
    assert shared_bytes(ring, 2) == 4 * 256 * 32 * 2
    strip = dict(zip(PARAMETERS, (32, 32, 64, 1, 1, 4, 2, 1), strict=True))
    assert shared_bytes(strip | {"tile_k": 16}, 2) == 4 * 16 * 40 * 4
    assert shared_bytes(strip | {"tile_k": 16, "split_k": 2}, 2) == 4 * 32 * 40 * 4


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("run", SORTED_RUNS, ids=str)
def test_compiles(run, arch):
    """Another choice for each run, arch and format, so that every tile is compiled for some run."""
    number = SORTED_RUNS.index(run) + len(RUNS) * list(DEVICES).index(arch)
    for dtype in ("float16", ("bfloat16", "float32")[number % 2]):
        activation = ACTIVATIONS[number % len(ACTIVATIONS)]
        workload = Workload(batch=1, seq_len=128, dtype=dtype, activation=activation)
        choices = template_choices("gemm", workload, run, DEVICES[arch])
        assert compile_kernel(TEMPLATE.program(workload, choices[(5 * number + 3) % len(choices)]), arch)


@pytest.mark.parametrize("shape", ODD_SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiles_for_every_shape(shape, dtype):
    workload = Workload(**ODD_SHAPES[shape], dtype=dtype, mask="dense")
    run = (Run(6, 8), Run(11, 13))[list(ODD_SHAPES).index(shape) % 2]
    assert compile_kernel(TEMPLATE.program(workload, default(run, workload)), "sm_80")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ODD_SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_on_gpu(shape, dtype):
    """Every candidate is verified for each shape and format, in one run or another."""
    pairs = []
    for number, run in enumerate(SORTED_RUNS):
        activation = ACTIVATIONS[number % len(ACTIVATIONS)]
        workload = Workload(**ODD_SHAPES[shape], dtype=dtype, activation=activation, mask="dense")
        pairs += [(workload, choice) for choice in template_choices("gemm", workload, run)[number :: len(RUNS)]]
    assert_all_right(pairs)


@pytest.mark.gpu
@pytest.mark.parametrize("run", SORTED_RUNS, ids=str)
def test_candidates_of_bert_on_gpu(run):
    workload = Workload(batch=2, seq_len=100)
    assert_all_right([(workload, choice) for choice in template_choices("gemm", workload, run)])
