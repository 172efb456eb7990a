"""What users run today: eager and compiled PyTorch with naive attention, SDPA and FlexAttention; other libraries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from atoffer_rl.bench.flex_rows import rows_start_kept, tiles_start_kept
from atoffer_rl.bench.mask_mods import mask_mod
from atoffer_rl.dtype import DType
from atoffer_rl.errors import AtofferError
from atoffer_rl.kernels.formulas import mask_tensor
from atoffer_rl.workload import Workload

Weights: TypeAlias = Mapping[str, Tensor]
Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
Merged: TypeAlias = Callable[[Tensor], Tensor]
DEFAULT_MODE = "default"
COMPILE_MODES = {"": DEFAULT_MODE, " max-autotune": "max-autotune-no-cudagraphs"}
"""torch.compile's modes by what they add to a peer's name. Tuned is not always faster, so users have both; its own
CUDA graphs stay off, because ours wrap it."""

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cuDNN": "CUDNN_ATTENTION",
    "math": "MATH",
}
FLEX_BLOCKS = (128, 64)
SHORTEST_WITHOUT_DECODING = 128
Tile: TypeAlias = tuple[int, int, int, int]
# What max-autotune of torch 2.11 tries: (BLOCK_M, BLOCK_N, num_stages, num_warps).
FLEX_TILES: tuple[Tile, ...] = (
    (128, 64, 3, 4),
    (128, 128, 3, 4),
    (128, 128, 2, 8),
    (128, 128, 1, 8),
    (64, 128, 3, 4),
    (64, 64, 3, 4),
)
# And its default on an H100, where that is none of them, by (whether float32, head_dim).
FLEX_DEFAULT_TILES: dict[tuple[bool, int], Tile] = {
    (True, 64): (128, 32, 3, 4),
    (True, 128): (32, 64, 3, 4),
    (False, 128): (128, 64, 3, 8),
}
# What it tries for the kernel that it has for short sequences: (BLOCK_N, num_stages, num_warps).
DECODE_TILES = ((64, 3, 2), (32, 3, 2), (128, 3, 2), (64, 1, 2))
LEAST_FLEX_COLUMNS = 32
"""Of its tiles, where its own choice is unknown."""
Options: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A competitor.

    Attributes:
        name: As reports name it.
        make: Builds its attention, from q, k, v, each (batch, heads, seq_len, head_dim), to the same shape.
        mode: The mode of torch.compile that the whole function is compiled in; None leaves it eager.
        option: One of several ways to run it, of which the fastest counts.
    """

    name: str
    make: Callable[[], Attention]
    mode: str | None = None
    option: str = ""


def attention_peers(workload: Workload, device: torch.device) -> list[Peer]:
    """Every peer of `bench mha`."""
    naive, sdpa = partial(_naive, workload, device), partial(_best_sdpa, workload, device)
    peers = [
        *_flex_peers(workload, device),
        *_sdpa_peers(workload, device),
        Peer("compile SDPA", sdpa, DEFAULT_MODE),
        Peer("xFormers", partial(_xformers, workload, device)),
        Peer("FlashInfer", partial(_flashinfer, workload, device)),
    ]
    # Those that need most memory come last: what they run out of, the others have had.
    return [*peers, Peer("compile naive", naive, DEFAULT_MODE), Peer("eager naive", naive)]


def encoder_peers(workload: Workload, device: torch.device) -> list[Peer]:
    """Every peer of `bench encoder`."""
    eager = {"naive": partial(_naive, workload, device), "SDPA": partial(_best_sdpa, workload, device)}
    peers = [Peer(f"eager {name}", make) for name, make in eager.items()]
    for suffix, mode in COMPILE_MODES.items():
        named = eager | {"Flex": partial(_flex, workload, device, FLEX_BLOCKS[0], {})}
        peers += [Peer(f"compile {name}{suffix}", make, mode) for name, make in named.items()]
    return peers


def _naive(workload: Workload, device: torch.device) -> Attention:
    dropped, scale = ~mask_tensor(workload.mask_spec, workload.seq_len, device), 1 / sqrt(workload.head_dim)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2)) * scale
        return torch.softmax(scores.masked_fill(dropped, float("-inf")), dim=-1) @ v

    return attention


def _sdpa_peers(workload: Workload, device: torch.device) -> list[Peer]:
    masked = workload.mask != "dense"
    peers = [Peer(f"SDPA {name}", partial(_backend_sdpa, workload, device, name, False)) for name in BACKENDS]
    if workload.mask == "causal":
        named = ("flash", "cuDNN")
        peers += [
            Peer(f"SDPA {name} is_causal", partial(_backend_sdpa, workload, device, name, True)) for name in named
        ]
    refused = Peer("SDPA flash", _refuse_mask)
    return [refused if masked and peer.name == refused.name else peer for peer in peers]


def _refuse_mask() -> Attention:
    raise AtofferError("torch's FlashAttention takes no mask")


def _mask_arguments(workload: Workload, device: torch.device, is_causal: bool) -> dict[str, Any]:
    """How SDPA is told the mask: added to the scores, as every backend would turn a boolean one into each time."""
    if workload.mask == "dense":
        return {}
    if is_causal:
        return {"is_causal": True}
    added = torch.zeros((), device=device).masked_fill(
        ~mask_tensor(workload.mask_spec, workload.seq_len, device), float("-inf")
    )
    return {"attn_mask": added.to(getattr(torch, workload.dtype))}


def _best_sdpa(workload: Workload, device: torch.device) -> Attention:
    """SDPA with torch's own choice of a backend."""
    arguments = _mask_arguments(workload, device, workload.mask == "causal")

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **arguments)

    return attention


def _backend_sdpa(workload: Workload, device: torch.device, backend: str, is_causal: bool) -> Attention:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    arguments = _mask_arguments(workload, device, is_causal)
    chosen = getattr(SDPBackend, BACKENDS[backend])

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(chosen):
            return functional.scaled_dot_product_attention(q, k, v, **arguments)

    return attention


def flex_options(workload: Workload, block: int) -> list[Options]:
    """Kernel options that FlexAttention is tried with under a BlockMask of `block`; the first are its defaults."""
    default = FLEX_DEFAULT_TILES.get((workload.element is DType.FLOAT32, workload.head_dim))
    tiles = [tile for tile in (*FLEX_TILES, default) if tile and block % tile[0] == 0 and block % tile[1] == 0]
    options: list[Options] = [
        {"BLOCK_M": m, "BLOCK_N": n, "num_stages": stages, "num_warps": warps, "FORCE_USE_FLEX_ATTENTION": True}
        for m, n, stages, warps in tiles
    ]
    if workload.seq_len < SHORTEST_WITHOUT_DECODING:
        options = [
            {"BLOCK_N": n, "num_stages": stages, "num_warps": warps}
            for n, stages, warps in DECODE_TILES
            if block % n == 0
        ] + options
    return options


def _flex_peers(workload: Workload, device: torch.device) -> list[Peer]:
    return [
        Peer(f"Flex {block}", partial(_flex, workload, device, block, options), DEFAULT_MODE, option_text(options))
        for block in FLEX_BLOCKS
        for options in flex_options(workload, block)
    ]


def option_text(options: Options) -> str:
    """Kernel options as reports name them."""
    return " ".join(f"{name}={value}" for name, value in options.items())


def _flex(workload: Workload, device: torch.device, block: int, options: Options) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    seq_len, mask = workload.seq_len, workload.mask_spec
    batches = mask.batches(seq_len)
    kept = mask_mod(mask, seq_len, device)
    blocks = create_block_mask(
        kept, batches if batches > 1 else None, None, seq_len, seq_len, device=str(device), BLOCK_SIZE=block
    )
    chosen: Any = options | {"ROWS_GUARANTEED_SAFE": _needs_no_guard(workload, block, options)}

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = flex_attention(q, k, v, block_mask=blocks, kernel_options=chosen)
        assert isinstance(result, Tensor)
        return result

    return attention


def _needs_no_guard(workload: Workload, block: int, options: Options) -> bool:
    keep = workload.mask_spec.keep(workload.seq_len)
    if workload.seq_len < SHORTEST_WITHOUT_DECODING and not options.get("FORCE_USE_FLEX_ATTENTION"):
        return tiles_start_kept(keep, options.get("BLOCK_N", LEAST_FLEX_COLUMNS))
    return rows_start_kept(keep, block, options.get("BLOCK_N", LEAST_FLEX_COLUMNS))


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise AtofferError(f"{package} is not installed")


def _xformers(workload: Workload, device: torch.device) -> Attention:
    _require("xformers")
    from xformers import ops  # type: ignore[import-not-found,unused-ignore]

    shape = (workload.batch, workload.heads, workload.seq_len, workload.seq_len)
    bias: Any = _mask_arguments(workload, device, False).get("attn_mask")
    if workload.mask == "causal":
        bias = ops.LowerTriangularMask()
    elif bias is not None:
        bias = bias.expand(shape)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        result: Tensor = ops.memory_efficient_attention(*rows, attn_bias=bias)
        return result.transpose(1, 2)

    return attention


def _flashinfer(workload: Workload, device: torch.device) -> Attention:
    _require("flashinfer")
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper  # type: ignore[import-not-found,unused-ignore]

    w, causal = workload, workload.mask == "causal"
    starts = torch.arange(0, w.rows + 1, w.seq_len, dtype=torch.int32, device=device)
    kept = None
    if not causal and w.mask != "dense":
        kept = mask_tensor(w.mask_spec, w.seq_len, device)[:, 0].expand(w.batch, w.seq_len, w.seq_len).reshape(-1)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(torch.empty(2**27, dtype=torch.uint8, device=device))
    dtype = getattr(torch, w.dtype)
    wrapper.plan(starts, starts, w.heads, w.heads, w.head_dim, custom_mask=kept, causal=causal, q_data_type=dtype)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = [tensor.transpose(1, 2).reshape(w.rows, w.heads, w.head_dim) for tensor in (q, k, v)]
        result: Tensor = wrapper.run(*rows)
        return result.view(w.batch, w.seq_len, w.heads, w.head_dim).transpose(1, 2)

    return attention


def _activation(workload: Workload) -> Callable[[Tensor], Tensor]:
    if workload.activation == "relu":
        return functional.relu
    approximate = "tanh" if workload.activation == "gelu_tanh" else "none"
    return lambda values: functional.gelu(values, approximate=approximate)


def attention_function(workload: Workload, attention: Attention) -> Merged:
    """From biased q, k and v side by side (batch, seq_len, 3 * width) to merged heads (batch, seq_len, width)."""
    w = workload

    def merged(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(w.batch, w.seq_len, 3, w.heads, w.head_dim).permute(2, 0, 3, 1, 4)
        return attention(q, k, v).transpose(1, 2).reshape(w.batch, w.seq_len, w.width)

    return merged


def layer_function(workload: Workload, attention: Attention) -> Callable[[Tensor, Weights], Tensor]:
    """One encoder layer from x to y."""
    w, act, merged = workload, _activation(workload), attention_function(workload, attention)

    def layer(x: Tensor, p: Weights) -> Tensor:
        context = merged(functional.linear(x, p["w_qkv"], p["b_qkv"]))
        attended = functional.linear(context, p["w_out"], p["b_out"]) + x
        norm = functional.layer_norm(attended, (w.width,), p["gamma_1"], p["beta_1"], w.epsilon)
        hidden = act(functional.linear(norm, p["w_ffn1"], p["b_ffn1"]))
        summed = functional.linear(hidden, p["w_ffn2"], p["b_ffn2"]) + norm
        return functional.layer_norm(summed, (w.width,), p["gamma_2"], p["beta_2"], w.epsilon)

    return layer


def prepared(function: Callable[..., Tensor], peer: Peer) -> Callable[..., Tensor]:
    """`function` as `peer` runs it: as it is, or compiled for its shapes."""
    if peer.mode is None:
        return function
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False, fullgraph=True, mode=peer.mode)
