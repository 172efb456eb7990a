"""Library products: their calls carried out by a column-major interpreter on the CPU, and by the library on a GPU."""

import pytest
import torch
from torch.nn.functional import gelu

from atoffer_rl.device import H100
from atoffer_rl.kernels.inputs import Inputs, draw_inputs
from atoffer_rl.kernels.matmul_library import ITEMSIZES, ColumnMajor, batch_addresses
from atoffer_rl.kernels.reference import Precision, run_reference
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.kernels.templates.cublaslt import BATCHED_RUNS, TEMPLATE
from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.kernels.verify import compare
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import assert_right

DTYPES = ("float16", "bfloat16", "float32")
RUNS = sorted(TEMPLATE.runs)
CASES = [
    pytest.param(run, dtype, activation, id=f"{run}-{dtype}-{activation}")
    for run in RUNS
    for dtype in DTYPES
    for activation in ("relu", "gelu_tanh")
    if (run, dtype, activation) != (Run(10, 11), "float32", "gelu_tanh")
]


def small(dtype="float16", activation="relu"):
    return Workload(batch=2, seq_len=24, heads=3, head_dim=32, ffn_dim=80, layers=1, dtype=dtype, activation=activation)


def seen(operand, flat, place):
    """The stored matrix `place` elements into `flat`, read column by column."""
    return torch.as_strided(flat, (operand.columns, operand.rows), (1, operand.leading), place)


def interpret(program, tensors):
    """Carry out a call as the column-major library would, on flat memory; sums are float64."""
    product = ColumnMajor.of(program)
    result = tensors[program.result.tensor].view(-1)

    def places_of(operand, dtype):
        return (batch_addresses(operand, dtype, program.batch, 0) // ITEMSIZES[dtype]).tolist()

    lefts, rights = places_of(product.left, program.dtype), places_of(product.right, program.dtype)
    for left, right, out in zip(lefts, rights, places_of(program.result, program.result_dtype), strict=True):
        a = seen(product.left, tensors[product.left.tensor].view(-1), left).double()
        b = seen(product.right, tensors[product.right.tensor].view(-1), right).double()
        total = program.scale * (a.T if product.left.transposed else a) @ (b.T if product.right.transposed else b)
        assert total.shape == (product.rows, product.columns)
        if program.addend is not None:
            total = total + seen(program.addend, tensors[program.addend.tensor].view(-1), 0)
        if program.bias is not None:
            total = total + tensors[program.bias][:, None]
        if program.epilogue == "relu_bias":
            total = total.relu()
        elif program.epilogue == "gelu_bias":
            total = gelu(total, approximate="tanh")
        seen(program.result, result, out).copy_(total)


@pytest.mark.parametrize(("run", "dtype", "activation"), CASES)
def test_calls_compute_their_runs(run, dtype, activation):
    workload = small(dtype, activation)
    choice = template_choices("cublaslt", workload, run)[0]
    program = TEMPLATE.program(workload, choice)
    inputs = draw_inputs(workload, run, Inputs.RANDOM, 0, "cpu")
    described = layer_tensors(workload)[program.result.tensor]
    out = torch.full(described.shape, torch.nan, dtype=TORCH_DTYPES[described.dtype])
    interpret(program, inputs | {described.name: out})
    exact = run_reference(workload, run, inputs)
    eager = run_reference(workload, run, inputs, Precision.EAGER)
    assert list(exact) == [described.name]
    verdict = compare(out, exact[described.name], eager[described.name], workload.element.epsilon)
    assert verdict.passed, verdict.reason


def test_gelu_in_float32_is_refused_in_a_sentence():
    workload = small("float32", "gelu_tanh")
    assert template_choices("cublaslt", workload, Run(10, 11)) == ()
    assert "error budget" in str(TEMPLATE.why_not(workload, Run(10, 11), H100))


def test_exact_gelu_is_refused_in_a_sentence():
    assert template_choices("cublaslt", small(activation="gelu"), Run(10, 11)) == ()
    assert "tanh" in TEMPLATE.why_not(small(activation="gelu"), Run(10, 11), H100)
    assert TEMPLATE.why_not(small(activation="gelu"), Run(10, 10), H100) is None


def test_dense_runs_offer_eight_algorithms_and_batches_one():
    for run in RUNS:
        choices = template_choices("cublaslt", small(), run)
        assert len(choices) == (1 if run in BATCHED_RUNS else 8)
        assert [choice["algorithm"] for choice in choices] == list(range(len(choices)))


def test_work_counts_each_byte_once():
    workload = small()
    work = TEMPLATE.work(workload, template_choices("cublaslt", workload, Run(12, 13))[0])
    rows, width, ffn = workload.rows, workload.width, workload.ffn_dim
    assert work.bytes_read == 2 * (rows * ffn + width * ffn + width + rows * width)
    assert work.bytes_written == 2 * rows * width
    assert work.flops == 2 * rows * width * ffn
    scores = TEMPLATE.work(workload, template_choices("cublaslt", workload, Run(2, 2))[0])
    assert scores.bytes_read == 2 * 2 * rows * width
    assert scores.bytes_written == 4 * workload.score_count


@pytest.mark.gpu
@pytest.mark.parametrize(("run", "dtype", "activation"), CASES)
def test_library_verifies(run, dtype, activation):
    for workload in (small(dtype, activation), Workload(batch=2, seq_len=128, dtype=dtype, activation=activation)):
        assert_right(workload, template_choices("cublaslt", workload, run)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("run", [Run(0, 1), Run(7, 8), Run(12, 12), Run(12, 13)], ids=str)
def test_every_proposal_verifies_or_is_refused(run):
    from atoffer_rl.errors import LaunchError

    workload = Workload(batch=4, seq_len=128)
    passed = 0
    for choice in template_choices("cublaslt", workload, run):
        try:
            assert_right(workload, choice)
        except LaunchError:
            continue
        passed += 1
    assert passed


@pytest.mark.gpu
def test_an_algorithm_is_loaded_again_by_its_descriptor():
    from atoffer_rl.errors import LaunchError
    from atoffer_rl.kernels.matmul_library import load_matmul
    from atoffer_rl.kernels.verifier import Verifier

    workload, run = Workload(batch=4, seq_len=128), Run(12, 13)
    first, second, *_ = (TEMPLATE.program(workload, item) for item in template_choices("cublaslt", workload, run))
    chosen = load_matmul(second)
    assert len(bytes.fromhex(chosen.descriptor["algorithm"])) == 64
    again = load_matmul(first, chosen.descriptor)
    assert again.descriptor == chosen.descriptor
    assert Verifier(workload, run).judge(again).passed
    stale = load_matmul(second, chosen.descriptor | {"library": "another"})
    assert stale.descriptor == load_matmul(first).descriptor
    with pytest.raises(LaunchError, match="proposes"):
        load_matmul(TEMPLATE.program(workload, Choice(run, "cublaslt", (("algorithm", 1000),))))
