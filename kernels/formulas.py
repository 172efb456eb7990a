"""What every operator means, as a formula in plain torch.

Import this module only where a reference is computed: it loads torch.
"""

from collections.abc import Callable
from functools import lru_cache
from math import sqrt
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import gelu

from atoffer_rl.kernels.packing import valid_rows
from atoffer_rl.masks import Mask
from atoffer_rl.workload import Workload

EVERY_ENTRY = slice(None)

Formula: TypeAlias = Callable[..., Tensor]
"""An operator's result, from the workload, the sequences of the batch to compute, what it reads and its weights."""


@lru_cache(maxsize=4)
def mask_tensor(mask: Mask, seq_len: int, device: torch.device) -> Tensor:
    """The mask as a boolean tensor (1 or batch, 1, seq_len, seq_len) on `device`."""
    return torch.tensor(mask.keep(seq_len), device=device)[:, None]


def apply_mask(workload: Workload, entries: slice, scores: Tensor, lengths: Tensor | None = None) -> Tensor:
    """`scores` with -inf where the mask keeps nothing, and in rows and columns beyond `lengths` (entries,)."""
    keep = mask_tensor(workload.mask_spec, workload.seq_len, scores.device)
    keep = keep[entries] if len(keep) > 1 else keep
    if lengths is not None:
        valid = valid_rows(workload, lengths)[:, None]
        keep = keep & valid[..., None] & valid[..., None, :]
    return scores.masked_fill(~keep, float("-inf"))


def softmax_rows(scores: Tensor) -> Tensor:
    """Softmax over the last axis; a row of all -inf gives zeros."""
    peak = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - torch.where(peak.isinf(), 0.0, peak))
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in the format that everything but products is computed in: float64 stays, all else is float32."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _heads(workload: Workload, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q, k and v, each (batch, heads, seq_len, head_dim)."""
    w = workload
    query, key, value = qkv.view(-1, w.seq_len, 3, w.heads, w.head_dim).permute(2, 0, 3, 1, 4)
    return query, key, value


def _product(workload: Workload, entries: slice, rows: Tensor, weight: Tensor) -> Tensor:
    return rows @ weight.T


def _bias(workload: Workload, entries: slice, rows: Tensor, bias: Tensor) -> Tensor:
    return _wide(rows) + _wide(bias)


def _bias_residual(workload: Workload, entries: slice, rows: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
    return _wide(rows) + _wide(bias) + _wide(residual)


def _scores(workload: Workload, entries: slice, qkv: Tensor) -> Tensor:
    query, key, _ = _heads(workload, qkv)
    return _wide(query) @ _wide(key).transpose(-1, -2) / sqrt(workload.head_dim)


def _softmax(workload: Workload, entries: slice, scores: Tensor) -> Tensor:
    return softmax_rows(scores)


def _context(workload: Workload, entries: slice, probs: Tensor, qkv: Tensor) -> Tensor:
    return probs @ _heads(workload, qkv)[2]


def _merge(workload: Workload, entries: slice, context: Tensor) -> Tensor:
    return context.transpose(1, 2).reshape(-1, workload.seq_len, workload.width)


def _layernorm(workload: Workload, entries: slice, rows: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    wide = _wide(rows)
    return torch.nn.functional.layer_norm(wide, wide.shape[-1:], _wide(gamma), _wide(beta), workload.epsilon)


def _bias_activation(workload: Workload, entries: slice, rows: Tensor, bias: Tensor) -> Tensor:
    total = _wide(rows) + _wide(bias)
    if workload.activation == "relu":
        return torch.relu(total)
    return gelu(total, approximate="tanh" if workload.activation == "gelu_tanh" else "none")


FORMULAS: dict[str, Formula] = {
    "qkv_gemm": _product,
    "qkv_bias": _bias,
    "qk_gemm": _scores,
    "mask": apply_mask,
    "softmax": _softmax,
    "pv_gemm": _context,
    "merge_heads": _merge,
    "out_gemm": _product,
    "out_bias_residual": _bias_residual,
    "layernorm_1": _layernorm,
    "ffn1_gemm": _product,
    "ffn1_bias_act": _bias_activation,
    "ffn2_gemm": _product,
    "ffn2_bias_residual": _bias_residual,
    "layernorm_2": _layernorm,
}
