"""What a scheme is tuned for: the shapes, number format, mask, activation and sequence lengths of an encoder."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import Any, Self

from atoffer_rl.dtype import FLOATS, DType
from atoffer_rl.errors import WorkloadError
from atoffer_rl.lengths import FULL, Lengths, parse_lengths
from atoffer_rl.mask_file import changed_mask
from atoffer_rl.masks import MAX_SEQ_LEN, Mask, parse_mask
from atoffer_rl.quote import quote

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
MAX_INDEX = 2**31 - 1
MAX_LAYERS = 10_000
OPTIONAL_FIELDS = ("lengths", "packed")
NO_MASK = Mask("")


@dataclass(frozen=True)
class Workload:
    """An encoder's shapes and options; hashable, canonical, round-trips through JSON.

    Attributes:
        batch: Sequences in a batch (B).
        seq_len: Tokens in a sequence (S).
        heads: Attention heads (H).
        head_dim: Channels of a head (W); the model width D is H * W.
        ffn_dim: Channels between the two feed-forward products (F).
        layers: Encoder layers in a forward pass.
        dtype: Storage format, one of `float16`, `bfloat16`, `float32`.
        mask: Canonical mask name with its parameters, such as `strided:stride=16`.
        activation: `gelu` (exact, erf), `gelu_tanh` or `relu`.
        epsilon: Added to the variance in LayerNorm.
        lengths: Canonical distribution of sequence lengths, such as `uniform:shortest=1,longest=128`; `full` where
            every sequence has `seq_len` tokens.
        packed: Whether a sequence's tokens begin where those of the one before end, not at a multiple of `seq_len`.
        mask_spec: What `mask` says, with the hash of a file's content, so that workloads of two contents differ; it is
            not given but found, and goes along with `replace`, which refuses a file that changed meanwhile.

    Raises:
        WorkloadError: If a number is not positive or is out of reach, a name is unknown, or full sequences are packed.
        MaskError: If the mask's name, parameters or file are wrong.
    """

    batch: int = 16
    seq_len: int = 256
    heads: int = 12
    head_dim: int = 64
    ffn_dim: int = 3072
    layers: int = 12
    dtype: str = "float16"
    mask: str = "strided"
    activation: str = "gelu"
    epsilon: float = 1e-12
    lengths: str = FULL
    packed: bool = False
    mask_spec: Mask = field(default=NO_MASK, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("batch", "seq_len", "heads", "head_dim", "ffn_dim", "layers"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise WorkloadError(f"{name} must be a positive whole number, not {quote(value)}")
        if self.dtype not in [dtype.value for dtype in FLOATS]:
            raise WorkloadError(f"dtype must be one of {', '.join(d.value for d in FLOATS)}, not {quote(self.dtype)}")
        if self.activation not in ACTIVATIONS:
            raise WorkloadError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {quote(self.activation)}")
        if not isinstance(self.epsilon, float | int) or not 0.0 <= self.epsilon < 1.0:
            raise WorkloadError(f"epsilon must be at least 0 and below 1, not {quote(self.epsilon)}")
        self._check_sizes()
        object.__setattr__(self, "epsilon", float(self.epsilon))
        self._find_mask()
        object.__setattr__(self, "lengths", str(self.length_spec))
        if not isinstance(self.packed, bool):
            raise WorkloadError(f"packed must be true or false, not {quote(self.packed)}")
        if self.packed and not self.padded:
            raise WorkloadError("full sequences cannot be packed: give lengths such as uniform, or leave out packed")

    def _find_mask(self) -> None:
        mask = parse_mask(self.mask, self.seq_len, self.batch)
        if self.mask_spec.path == mask.path and self.mask_spec.digest != mask.digest:
            raise changed_mask(mask.path)
        object.__setattr__(self, "mask", str(mask))
        object.__setattr__(self, "mask_spec", mask)

    def _check_sizes(self) -> None:
        """Refuse what no kernel could index, before anything of that size is made.

        A score matrix may be larger: it need not be stored (`tensors.no_place`).
        """
        if self.seq_len > MAX_SEQ_LEN:
            raise WorkloadError(f"seq_len must be at most {MAX_SEQ_LEN}, not {quote(self.seq_len)}")
        if self.layers > MAX_LAYERS:
            raise WorkloadError(f"layers must be at most {MAX_LAYERS}, not {quote(self.layers)}")
        widest = max(self.ffn_dim, 3 * self.width)
        if self.width * widest > MAX_INDEX:
            raise WorkloadError("a weight of this workload has over 2**31 elements: reduce heads, head_dim or ffn_dim")
        if self.rows * widest > MAX_INDEX:
            raise WorkloadError("an activation of this workload has over 2**31 elements: reduce batch or seq_len")

    @property
    def width(self) -> int:
        """Model width D = heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def rows(self) -> int:
        """Token rows M = batch * seq_len."""
        return self.batch * self.seq_len

    @property
    def score_count(self) -> int:
        """Elements of the score matrix, batch * heads * seq_len * seq_len."""
        return self.batch * self.heads * self.seq_len**2

    @property
    def element(self) -> DType:
        """The storage format as a `DType`."""
        return DType(self.dtype)

    @property
    def length_spec(self) -> Lengths:
        """The parsed distribution of sequence lengths."""
        return parse_lengths(self.lengths, self.batch, self.seq_len)

    @property
    def padded(self) -> bool:
        """Whether sequences may be shorter than `seq_len`, packed or not, so that kernels read their lengths."""
        return self.lengths != FULL

    @property
    def key(self) -> str:
        """A short, stable name of this workload."""
        text = json.dumps(self.to_json() | {"mask": self.mask_spec.identity}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The workload as plain JSON values; `lengths` only where they are not full, `packed` only where it is true."""
        unsaid = {name for name, said in (("lengths", self.padded), ("packed", self.packed)) if not said}
        return {name: getattr(self, name) for name in FIELD_NAMES if name not in unsaid}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The workload that `to_json` wrote; only `lengths` and `packed`, which it may leave out, may be absent.

        Raises:
            WorkloadError: If a field is unknown, missing or wrong.
        """
        if not isinstance(value, dict):
            raise WorkloadError("a workload is a JSON object: see atoffer schemes --help for its fields")
        known = f"its fields are {', '.join(FIELD_NAMES)}"
        if missing := [name for name in FIELD_NAMES if name not in value and name not in OPTIONAL_FIELDS]:
            raise WorkloadError(f"not a workload: {', '.join(missing)} missing; {known}")
        if unknown := [quote(name, str) for name in value if name not in FIELD_NAMES]:
            raise WorkloadError(f"not a workload: {', '.join(unknown)} unknown; {known}")
        return cls(**value)


FIELD_NAMES = tuple(item.name for item in fields(Workload) if item.name != "mask_spec")
"""What is given and said of a workload."""
