"""What templates of attention on tensor cores share: their runs, what they refuse, what their sources begin with."""

from math import e, log2, sqrt

import numpy as np

from atoffer_rl.dtype import DType
from atoffer_rl.kernels.templates.elements import ELEMENT_TYPES
from atoffer_rl.operators import MERGE_OPERATOR, QKV_BIAS_OPERATOR
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload

RUNS = frozenset({Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)})
"""From `qkv` or `qkv_raw` to `context` or `merged`."""


def not_plain(workload: Workload, head_dims: tuple[int, ...]) -> str | None:
    """Why a kernel for full sequences of 16-bit elements, in heads of `head_dims`, cannot compute `workload`."""
    if workload.element is DType.FLOAT32:
        return "tensor cores have no exact product of float32: use float16 or bfloat16"
    if workload.head_dim not in head_dims:
        *others, last = map(str, head_dims)
        return f"head_dim must be {', '.join(others)} or {last}, not {workload.head_dim}"
    if workload.padded:
        return f"lengths of sequences are not read: they must be full, not {workload.lengths}"
    return None


def shape_arguments(workload: Workload, run: Run) -> dict[str, object]:
    """What the `Shape` of every source says of `run` of `workload`, whatever the choice."""
    return {
        "element": ELEMENT_TYPES[workload.element],
        "batch": workload.batch,
        "seq_len": workload.seq_len,
        "heads": workload.heads,
        "head_dim": workload.head_dim,
        "mask_batches": workload.mask_spec.batches(workload.seq_len),
        "add_bias": QKV_BIAS_OPERATOR in run,
        "merged": MERGE_OPERATOR in run,
        "scale_log2": repr(float(np.float32(log2(e) / sqrt(workload.head_dim)))),
    }
