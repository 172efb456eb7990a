"""Masks as FlexAttention takes them: arithmetic on indices wherever there is a formula, else a lookup."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from atoffer_rl.masks import Mask

Kept: TypeAlias = Callable[[Any, Any], Tensor]
MaskMod: TypeAlias = Callable[[Any, Any, Any, Any], Tensor]


def mask_mod(mask: Mask, seq_len: int, device: torch.device) -> MaskMod:
    """The function of (batch, head, query, key) indices that says what `mask` keeps.

    Args:
        mask: Which mask.
        seq_len: Tokens in a sequence.
        device: Where its tables lie, if it needs any.
    """
    if mask.name == "file":
        return _lookup(mask, seq_len, device)
    values = dict(mask.parameters)
    formulas: dict[str, Callable[[], Kept]] = {
        "dense": lambda: _dense,
        "causal": lambda: _causal,
        "strided": lambda: _strided(values["stride"]),
        "fixed": lambda: _fixed(values["block"]),
        "sliding": lambda: _sliding(values["window"]),
        "longformer": lambda: _longformer(values["window"], values["global"]),
        "bigbird": lambda: _bigbird(mask, seq_len, device),
        "document": lambda: _document(mask.lengths, device),
    }
    kept = formulas[mask.name]()
    return lambda b, h, i, j: kept(i, j)


def _dense(i: Tensor, j: Tensor) -> Tensor:
    return (i >= 0) & (j >= 0)


def _causal(i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def _strided(stride: int) -> Kept:
    return lambda i, j: (j <= i) & (((i - j) % stride == 0) | (i - j < stride))


def _fixed(block: int) -> Kept:
    return lambda i, j: (j <= i) & ((j % block == block - 1) | (j // block == i // block))


def _sliding(window: int) -> Kept:
    return lambda i, j: (i - j <= window // 2) & (j - i <= window // 2)


def _longformer(window: int, global_: int) -> Kept:
    near = _sliding(window)
    return lambda i, j: near(i, j) | (i < global_) | (j < global_)


def _document(lengths: tuple[int, ...], device: torch.device) -> Kept:
    counts = torch.tensor(lengths, device=device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32, device=device), counts)
    return lambda i, j: owner[i] == owner[j]


def _bigbird(mask: Mask, seq_len: int, device: torch.device) -> Kept:
    """Longformer's formula, and a small table of the blocks that were drawn."""
    values = dict(mask.parameters)
    block, formula = values["block"], _longformer(values["window"], values["global"])
    index = torch.arange(seq_len)
    beyond = torch.tensor(mask.keep(seq_len)[0]) & ~formula(index[:, None], index[None, :])
    count = -(-seq_len // block)
    padded = torch.zeros(count * block, count * block, dtype=torch.bool)
    padded[:seq_len, :seq_len] = beyond
    drawn = padded.view(count, block, count, block).any(dim=3).any(dim=1).to(device)
    return lambda i, j: formula(i, j) | drawn[i // block, j // block]


def _lookup(mask: Mask, seq_len: int, device: torch.device) -> MaskMod:
    keep = torch.tensor(mask.keep(seq_len), device=device)
    if len(keep) == 1:
        return lambda b, h, i, j: keep[0, i, j]
    return lambda b, h, i, j: keep[b, i, j]
