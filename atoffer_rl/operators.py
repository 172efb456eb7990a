"""The 15 operators of an encoder layer and the tensors they read and write.

Everything that depends on the layer's data flow (what a run reads, what it must store, what is live)
is derived from the one table here.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cache

from atoffer_rl.run import Run


class Kind(Enum):
    """What bounds an operator and how it can be fused."""

    DENSE = "dense"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    REORGANISE = "reorganise"


@dataclass(frozen=True)
class Operator:
    """One step of the layer.

    Attributes:
        index: Position in the layer, 0 to 14.
        name: Canonical name.
        kind: What bounds it.
        activations: Activation tensors it reads, in order.
        weights: Weight tensors it reads, in order.
        result: The activation tensor it produces.
    """

    index: int
    name: str
    kind: Kind
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    result: str


LAYER_INPUT = "x"
LAYER_OUTPUT = "y"

OPERATORS: tuple[Operator, ...] = (
    Operator(0, "qkv_gemm", Kind.DENSE, ("x",), ("w_qkv",), "qkv_raw"),
    Operator(1, "qkv_bias", Kind.ELEMENTWISE, ("qkv_raw",), ("b_qkv",), "qkv"),
    Operator(2, "qk_gemm", Kind.DENSE, ("qkv",), (), "scores"),
    Operator(3, "mask", Kind.ELEMENTWISE, ("scores",), (), "masked_scores"),
    Operator(4, "softmax", Kind.REDUCTION, ("masked_scores",), (), "probs"),
    Operator(5, "pv_gemm", Kind.DENSE, ("probs", "qkv"), (), "context"),
    Operator(6, "merge_heads", Kind.REORGANISE, ("context",), (), "merged"),
    Operator(7, "out_gemm", Kind.DENSE, ("merged",), ("w_out",), "out_raw"),
    Operator(8, "out_bias_residual", Kind.ELEMENTWISE, ("out_raw", "x"), ("b_out",), "attn_sum"),
    Operator(9, "layernorm_1", Kind.REDUCTION, ("attn_sum",), ("gamma_1", "beta_1"), "attn_norm"),
    Operator(10, "ffn1_gemm", Kind.DENSE, ("attn_norm",), ("w_ffn1",), "ffn1_raw"),
    Operator(11, "ffn1_bias_act", Kind.ELEMENTWISE, ("ffn1_raw",), ("b_ffn1",), "ffn1_act"),
    Operator(12, "ffn2_gemm", Kind.DENSE, ("ffn1_act",), ("w_ffn2",), "ffn2_raw"),
    Operator(13, "ffn2_bias_residual", Kind.ELEMENTWISE, ("ffn2_raw", "attn_norm"), ("b_ffn2",), "ffn_sum"),
    Operator(14, "layernorm_2", Kind.REDUCTION, ("ffn_sum",), ("gamma_2", "beta_2"), "y"),
)
OPERATOR_COUNT = len(OPERATORS)
WHOLE_LAYER = Run(0, OPERATOR_COUNT - 1)
_INDEX = {op.name: op.index for op in OPERATORS}
QKV_BIAS_OPERATOR = _INDEX["qkv_bias"]
QK_OPERATOR = _INDEX["qk_gemm"]
MASK_OPERATOR = _INDEX["mask"]
SOFTMAX_OPERATOR = _INDEX["softmax"]
PV_OPERATOR = _INDEX["pv_gemm"]
MERGE_OPERATOR = _INDEX["merge_heads"]
ACTIVATION_OPERATOR = _INDEX["ffn1_bias_act"]

WEIGHTS: tuple[str, ...] = tuple(name for op in OPERATORS for name in op.weights)


@cache
def run_operators(run: Run) -> tuple[Operator, ...]:
    """The operators of `run`, in order."""
    return OPERATORS[run.first : run.last + 1]


@cache
def run_activations(run: Run) -> tuple[str, ...]:
    """Activations that `run` reads and does not produce itself, in order of first use."""
    produced: set[str] = set()
    reads: list[str] = []
    for op in run_operators(run):
        reads += [name for name in op.activations if name not in produced and name not in reads]
        produced.add(op.result)
    return tuple(reads)


@cache
def run_weights(run: Run) -> tuple[str, ...]:
    """Weights that `run` reads, in order."""
    return tuple(name for op in run_operators(run) for name in op.weights)


@cache
def run_results(run: Run) -> tuple[str, ...]:
    """Activations that `run` must store: those a later operator reads, and the layer's output."""
    later = {name for op in OPERATORS[run.last + 1 :] for name in op.activations}
    return tuple(op.result for op in run_operators(run) if op.result in later or op.result == LAYER_OUTPUT)


@cache
def reads_mask(run: Run) -> bool:
    """Whether `run` contains the mask operator, and so reads the mask's plan."""
    return run.first <= MASK_OPERATOR <= run.last
