"""What users run today: eager and compiled PyTorch, with naive attention, SDPA and FlexAttention."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TypeAlias

import torch
from torch.nn import functional

from atoffer_rl.workload import Workload

Weights: TypeAlias = Mapping[str, torch.Tensor]
Attention: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Merged: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
COMPILE_MODES = {"": "default", " max-autotune": "max-autotune-no-cudagraphs"}
"""torch.compile's modes by what they add to a peer's name. Tuned is not always faster, so users have both; its own
CUDA graphs stay off, because ours wrap it."""


@dataclass(frozen=True)
class Peer:
    """A competitor.

    Attributes:
        name: As reports name it.
        attention: From q, k, v, each (batch, heads, seq_len, head_dim), to the same shape.
        mode: The mode of torch.compile that the whole function is compiled in; None leaves it eager.
    """

    name: str
    attention: Attention
    mode: str | None = None


def peers_of(workload: Workload, device: torch.device) -> list[Peer]:
    """Every peer, holding the workload's mask on `device`."""
    keep = torch.from_numpy(workload.mask_spec.keep(workload.seq_len).copy()).to(device)[:, None]
    eager = {"naive": _naive(keep, workload.head_dim), "SDPA": _sdpa(keep)}
    peers = [Peer(f"eager {name}", attention) for name, attention in eager.items()]
    for suffix, mode in COMPILE_MODES.items():
        named = eager | {"Flex": _flex(keep, workload)}
        peers += [Peer(f"compile {name}{suffix}", attention, mode) for name, attention in named.items()]
    return peers


def _naive(keep: torch.Tensor, head_dim: int) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)) / sqrt(head_dim)
        return torch.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1) @ v

    return attention


def _sdpa(keep: torch.Tensor) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)

    return attention


def _flex(keep: torch.Tensor, workload: Workload) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    per_batch = keep.shape[0] > 1

    def kept(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return keep[b if per_batch else 0, 0, i, j]

    batch = keep.shape[0] if per_batch else None
    blocks = create_block_mask(kept, batch, None, workload.seq_len, workload.seq_len, device=str(keep.device))

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result = flex_attention(q, k, v, block_mask=blocks)
        assert isinstance(result, torch.Tensor)
        return result

    return attention


def _activation(workload: Workload) -> Callable[[torch.Tensor], torch.Tensor]:
    if workload.activation == "relu":
        return functional.relu
    approximate = "tanh" if workload.activation == "gelu_tanh" else "none"
    return lambda values: functional.gelu(values, approximate=approximate)


def attention_function(workload: Workload, attention: Attention) -> Merged:
    """From qkv_raw (batch, seq_len, 3 * width) and its bias to merged heads (batch, seq_len, width)."""
    w = workload

    def merged(qkv_raw: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        qkv = (qkv_raw + bias).view(w.batch, w.seq_len, 3, w.heads, w.head_dim).permute(2, 0, 3, 1, 4)
        context = attention(qkv[0], qkv[1], qkv[2])
        return context.transpose(1, 2).reshape(w.batch, w.seq_len, w.width)

    return merged


def layer_function(workload: Workload, attention: Attention) -> Callable[[torch.Tensor, Weights], torch.Tensor]:
    """One encoder layer from x to y."""
    w, act = workload, _activation(workload)

    def layer(x: torch.Tensor, p: Weights) -> torch.Tensor:
        qkv = functional.linear(x, p["w_qkv"], p["b_qkv"]).view(w.batch, w.seq_len, 3, w.heads, w.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        merged = attention(q, k, v).transpose(1, 2).reshape(w.batch, w.seq_len, w.width)
        attended = functional.linear(merged, p["w_out"], p["b_out"]) + x
        norm = functional.layer_norm(attended, (w.width,), p["gamma_1"], p["beta_1"], w.epsilon)
        hidden = act(functional.linear(norm, p["w_ffn1"], p["b_ffn1"]))
        summed = functional.linear(hidden, p["w_ffn2"], p["b_ffn2"]) + norm
        return functional.layer_norm(summed, (w.width,), p["gamma_2"], p["beta_2"], w.epsilon)

    return layer


def prepared(function: Callable[..., torch.Tensor], peer: Peer) -> Callable[..., torch.Tensor]:
    """`function` as `peer` runs it: as it is, or compiled for its shapes."""
    if peer.mode is None:
        return function
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False, fullgraph=True, mode=peer.mode)
