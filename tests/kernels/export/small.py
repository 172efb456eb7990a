"""A small workload, and a scheme for it that holds all that an export can."""

from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.run import Run
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload

SMALL = Workload(batch=2, seq_len=24, heads=2, head_dim=32, ffn_dim=64, layers=2)


def fused(workload: Workload) -> Scheme:
    """A scheme with a generated kernel of every kind and a library call."""
    wanted = [(0, 1, "cublaslt"), (2, 6, "gather"), (7, 8, "gemm"), (9, 9, "chain"), (10, 11, "gemm")]
    wanted += [(12, 13, "cublaslt"), (14, 14, "chain")]
    return Scheme(tuple(template_choices(name, workload, Run(a, b))[0] for a, b, name in wanted))
