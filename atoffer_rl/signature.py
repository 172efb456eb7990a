"""What of a workload a segment's latency depends on, so that workloads share measurements."""

from atoffer_rl.operators import ACTIVATION_OPERATOR, reads_mask
from atoffer_rl.run import Run
from atoffer_rl.tensors import reads_lengths
from atoffer_rl.workload import Workload

ATTENTION_OPERATORS = Run(1, 6)


def signature(workload: Workload, run: Run) -> str:
    """The part of `workload` that decides how long `run` takes, as a canonical string.

    Operator 0 and the runs from 7 on see rows only; a run that touches operators 1 to 6 sees batch, sequence
    and heads besides, and the mask, and lengths that are not full and whether they are packed, where it contains the
    mask operator.
    """
    w = workload
    parts = [f"rows={w.rows}", f"width={w.width}", f"ffn={w.ffn_dim}", f"dtype={w.dtype}"]
    if run.first <= ATTENTION_OPERATORS.last and run.last >= ATTENTION_OPERATORS.first:
        parts += [f"batch={w.batch}", f"heads={w.heads}"]
    if reads_mask(run):
        parts.append(f"mask={w.mask_spec.identity}")
    if reads_lengths(w, run):
        parts.append(f"lengths={w.lengths}" + (",packed" if w.packed else ""))
    if ACTIVATION_OPERATOR in run:
        parts.append(f"activation={w.activation}")
    return ";".join(parts)
