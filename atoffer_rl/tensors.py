"""Shapes and number formats of the layer's tensors, as they lie in memory (row-major)."""

from dataclasses import dataclass
from math import prod

from atoffer_rl.dtype import DType
from atoffer_rl.operators import reads_mask, run_activations, run_results
from atoffer_rl.run import Run
from atoffer_rl.workload import MAX_INDEX, Workload

ALIGNMENT_BYTES = 256
LENGTHS = "lengths"
OFFSETS = "offsets"
BY_SEQUENCE = ("scores", "masked_scores", "probs", "context")
"""Activations that lie sequence by sequence, not in rows of tokens."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of the layer.

    Attributes:
        name: Its name in `operators.OPERATORS`, or that of an array of sequence lengths.
        shape: Row-major shape.
        dtype: Storage format.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes it holds."""
        return self.size * self.dtype.itemsize


def layer_tensors(workload: Workload) -> dict[str, Tensor]:
    """Every activation and weight of one layer by name.

    Weights of products are (out_features, in_features), as torch's Linear keeps them; `w_qkv` stacks the
    query, key and value projections in that order. `qkv` holds q, k and v side by side in each row:
    (batch, seq_len, 3, heads, head_dim). A padded workload has `lengths` besides, (batch,); a packed one `offsets` too,
    the row at which each sequence begins: there (batch, seq_len) is room for rows of tokens, no index of them.
    """
    w = workload
    batch, seq, heads, head, width, ffn = w.batch, w.seq_len, w.heads, w.head_dim, w.width, w.ffn_dim
    low, full = w.element, DType.FLOAT32
    rows, scores = (batch, seq, width), (batch, heads, seq, seq)
    shapes: dict[str, tuple[tuple[int, ...], DType]] = {
        "x": (rows, low),
        "qkv_raw": ((batch, seq, 3 * width), low),
        "qkv": ((batch, seq, 3 * width), low),
        "scores": (scores, full),
        "masked_scores": (scores, full),
        "probs": (scores, low),
        "context": ((batch, heads, seq, head), low),
        "ffn1_raw": ((batch, seq, ffn), low),
        "ffn1_act": ((batch, seq, ffn), low),
        "w_qkv": ((3 * width, width), low),
        "b_qkv": ((3 * width,), low),
        "w_out": ((width, width), low),
        "w_ffn1": ((ffn, width), low),
        "b_ffn1": ((ffn,), low),
        "w_ffn2": ((width, ffn), low),
    }
    shapes |= dict.fromkeys(("merged", "out_raw", "attn_sum", "attn_norm", "ffn2_raw", "ffn_sum", "y"), (rows, low))
    shapes |= dict.fromkeys(("b_out", "gamma_1", "beta_1", "b_ffn2", "gamma_2", "beta_2"), ((width,), low))
    if w.padded:
        shapes[LENGTHS] = ((batch,), DType.INT32)
    if w.packed:
        shapes[OFFSETS] = ((batch,), DType.INT32)
    return {name: Tensor(name, shape, dtype) for name, (shape, dtype) in shapes.items()}


def reads_lengths(workload: Workload, run: Run) -> bool:
    """Whether `run` drops what lies beyond the sequences' lengths: it contains the mask operator, and they vary."""
    return workload.padded and reads_mask(run)


def run_inputs(workload: Workload, run: Run) -> tuple[str, ...]:
    """What `run` reads besides weights: its activations, and the lengths and offsets where it needs them."""
    return run_activations(run) + (sequence_inputs(workload) if reads_lengths(workload, run) else ())


def sequence_inputs(workload: Workload) -> tuple[str, ...]:
    """What says which rows are a sequence's: nothing if all are full, `lengths`, and `offsets` if they are packed."""
    return (LENGTHS,) * workload.padded + (OFFSETS,) * workload.packed


def no_place(workload: Workload, run: Run) -> str | None:
    """Why an activation that `run` reads or stores can have no place in memory; None if all can.

    One of the score matrices, alone of all tensors, may have more elements than 31 bits index. Packed sequences lie in
    rows of tokens: what lies sequence by sequence has no packed form.
    """
    tensors = layer_tensors(workload)
    for name in run_activations(run) + run_results(run):
        if workload.packed and name in BY_SEQUENCE:
            return f"packed sequences lie in rows of tokens, and {name} by sequence: only [1,6] and [2,6] need none"
        if tensors[name].size > MAX_INDEX:
            return f"{name} would have {tensors[name].size:,} elements, and 31 bits index {MAX_INDEX + 1:,} at most"
    return None
