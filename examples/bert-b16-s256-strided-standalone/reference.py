"""A plain float64 encoder in CuPy, random inputs for it, and how far a low-precision result may be off.

The budget is `2 * (max|eager - ref| + eps * max|ref|)`, where eager is the same computation with every
operator's result rounded to the storage format. bfloat16 arrays are held as 16-bit words.
"""

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from runtime import DeviceMemory  # type: ignore[import-not-found]

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
GUARD_ELEMENTS = 4096


def to_storage(values: Any, dtype: str) -> Any:
    """`values` rounded to `dtype`, as it is stored: bfloat16 becomes uint16 words, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    words = values.astype(cupy.float32).view(cupy.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(cupy.uint16)


def from_storage(stored: Any, dtype: str, as_type: str) -> Any:
    """Stored values as `as_type` numbers."""
    if dtype == "bfloat16":
        stored = (stored.astype(cupy.uint32) << 16).view(cupy.float32)
    return stored.astype(as_type)


class Reference:
    """Random inputs of an exported workload and the right answer to them.

    Args:
        manifest: The export's manifest.
        folder: The export's folder, where the mask lies.
        seed: Of the inputs.

    Attributes:
        x: Input.
        weights: Of every layer.
        sequences: `lengths` and `offsets` by name, random ones, of those that the encoder reads.
        timed_sequences: Those that latencies are taken on; likewise.
    """

    def __init__(self, manifest: dict[str, Any], folder: Path, seed: int) -> None:
        self.workload: dict[str, Any] = manifest["workload"]
        self.dtype: str = self.workload["dtype"]
        self.shapes: dict[str, tuple[int, ...]] = {k: tuple(v) for k, v in manifest["tensors"].items()}
        packed = np.load(folder / manifest["mask"], allow_pickle=False)
        self.keep = cupy.asarray(np.unpackbits(packed, axis=-1, count=self.workload["seq_len"]).astype(bool))
        self._draw = cupy.random.RandomState(seed)
        self._stored_x = self._random("x", 1.0)
        names = manifest["weights"]
        self._stored_weights = [{name: self._random_weight(name) for name in names} for _ in range(self.layers)]
        self._lengths = np.full(self.shapes["x"][0], self.workload["seq_len"])
        self._packed: bool = manifest["packed"]
        self.sequences: dict[str, DeviceMemory] = {}
        self.timed_sequences: dict[str, DeviceMemory] = {}
        if manifest["lengths"] is not None:
            self._lengths = self._drawn_lengths(manifest["lengths"], seed)
            self.sequences = self._sequences(self._lengths)
            self.timed_sequences = self._sequences(np.array(manifest["lengths"]["timed"]))
        self._valid = self._valid_rows()
        self.x = self._array("x", self._stored_x)
        self.weights = [
            {name: self._array(name, stored) for name, stored in layer.items()} for layer in self._stored_weights
        ]

    @staticmethod
    def _drawn_lengths(known: dict[str, list[int]], seed: int) -> Any:
        """Random lengths, with the longest and shortest, 0 and 1 among them as far as they may occur and fit."""
        shortest, longest = np.array(known["shortest"]), np.array(known["longest"])
        lengths = np.random.RandomState(seed).randint(shortest, longest + 1)
        extremes = [longest, shortest, np.zeros_like(longest), np.ones_like(longest)]
        for place, extreme in enumerate(extremes[seed % 2 :]):
            if place < len(lengths) and shortest[place] <= extreme[place] <= longest[place]:
                lengths[place] = extreme[place]
        return lengths

    def _sequences(self, lengths: Any) -> dict[str, DeviceMemory]:
        offsets = {"offsets": self._int_array(np.cumsum(lengths) - lengths)} if self._packed else {}
        return {"lengths": self._int_array(lengths)} | offsets

    def _valid_rows(self) -> Any:
        """Which rows are tokens of a sequence: (batch, seq_len, 1)."""
        batch, seq_len, _ = self.shapes["x"]
        if self._packed:
            return cupy.asarray(np.arange(batch * seq_len).reshape(batch, seq_len, 1) < self._lengths.sum())
        return cupy.asarray(np.arange(seq_len)[:, None] < self._lengths[:, None, None])

    def _first_row(self, index: int) -> int:
        """Where sequence `index` begins, in all rows."""
        return int(self._lengths[:index].sum()) if self._packed else index * int(self.workload["seq_len"])

    @staticmethod
    def _int_array(values: Any) -> DeviceMemory:
        stored = cupy.asarray(values.astype("int32"))
        return DeviceMemory(stored.data.ptr, stored.shape, "int32", stored)

    @property
    def layers(self) -> int:
        """Encoder layers."""
        return int(self.workload["layers"])

    def judge(self, forward: Callable[[Any, Any, Any, Any], Any]) -> tuple[float, float, bool]:
        """Run `forward(x, weights, out, sequences)` on poisoned memory and compare.

        Returns:
            Largest absolute error, its budget, and whether every element is finite and nothing was
            written beside the result. Rows that are no tokens of a sequence do not count.
        """
        truth, eager = (cupy.where(self._valid, self._encoder(kind), 0.0) for kind in ("float64", "float32"))
        guarded = self._poisoned()
        out = guarded[GUARD_ELEMENTS:-GUARD_ELEMENTS]
        forward(self.x, self.weights, self._array("y", out.reshape(self.shapes["y"])), self.sequences)
        cupy.cuda.get_current_stream().synchronize()
        found = cupy.where(self._valid, from_storage(out, self.dtype, "float64").reshape(self.shapes["y"]), 0.0)
        poison = self._poisoned()
        untouched = bool((self._bits(guarded[:GUARD_ELEMENTS]) == self._bits(poison[:GUARD_ELEMENTS])).all()) and bool(
            (self._bits(guarded[-GUARD_ELEMENTS:]) == self._bits(poison[-GUARD_ELEMENTS:])).all()
        )
        finite = bool(cupy.isfinite(found).all())
        largest = float(abs(truth).max())
        budget = 2.0 * (float(abs(eager - truth).max()) + EPSILON[self.dtype] * largest)
        error = float(cupy.nan_to_num(abs(found - truth), nan=float("inf")).max())
        return error, budget, finite and untouched

    def empty_output(self) -> DeviceMemory:
        """Memory for a result."""
        return self._array("y", cupy.empty(self.shapes["y"], self._storage_type))

    @property
    def _storage_type(self) -> str:
        return "uint16" if self.dtype == "bfloat16" else self.dtype

    def _bits(self, values: Any) -> Any:
        return values.view(cupy.uint32 if self.dtype == "float32" else cupy.uint16)

    def _poisoned(self) -> Any:
        count = int(np.prod(self.shapes["y"])) + 2 * GUARD_ELEMENTS
        return to_storage(cupy.full(count, cupy.nan, "float32"), self.dtype)

    def _array(self, name: str, stored: Any) -> DeviceMemory:
        return DeviceMemory(stored.data.ptr, self.shapes[name], self.dtype, stored)

    def _random(self, name: str, scale: float) -> Any:
        shape = self.shapes[name]
        return to_storage(self._draw.uniform(-scale, scale, size=shape, dtype="float32"), self.dtype)

    def _random_weight(self, name: str) -> Any:
        if name.startswith("gamma"):
            return to_storage(self._draw.uniform(0.5, 1.5, size=self.shapes[name], dtype="float32"), self.dtype)
        if name.startswith(("b_", "beta")):
            return self._random(name, 0.2)
        return self._random(name, sqrt(3.0 / self.shapes[name][1]))

    def _encoder(self, precision: str) -> Any:
        """The encoder's output as float64: exact (`float64`), or rounded after every operator (`float32`)."""
        x = from_storage(self._stored_x, self.dtype, precision)
        for stored in self._stored_weights:
            weights = {name: from_storage(values, self.dtype, precision) for name, values in stored.items()}
            x = self._layer(x, weights, precision)
        return x.astype("float64")

    def _layer(self, x: Any, w: dict[str, Any], precision: str) -> Any:
        def stored(values: Any) -> Any:
            if precision == "float64":
                return values
            return from_storage(to_storage(values, self.dtype), self.dtype, precision)

        qkv = stored(stored(x @ w["w_qkv"].T) + w["b_qkv"])
        merged = stored(self._attention(qkv, stored))
        attended = stored(stored(merged @ w["w_out"].T) + w["b_out"] + x)
        norm = stored(self._layernorm(attended, w["gamma_1"], w["beta_1"]))
        hidden = stored(self._activation(stored(norm @ w["w_ffn1"].T) + w["b_ffn1"]))
        summed = stored(stored(hidden @ w["w_ffn2"].T) + w["b_ffn2"] + norm)
        return stored(self._layernorm(summed, w["gamma_2"], w["beta_2"]))

    def _attention(self, qkv: Any, stored: Callable[[Any], Any]) -> Any:
        heads, head_dim = self.workload["heads"], self.workload["head_dim"]
        q, k, v = cupy.moveaxis(qkv.reshape(-1, 3, heads, head_dim), 0, 2)
        merged = cupy.zeros((q.shape[1], heads, head_dim), qkv.dtype)
        for index, length in enumerate(map(int, self._lengths)):
            if length == 0:
                continue
            rows = slice(self._first_row(index), self._first_row(index) + length)
            keep = self.keep[index % self.keep.shape[0], :length, :length]
            scores = cupy.where(keep, (q[:, rows] @ k[:, rows].swapaxes(-1, -2)) / sqrt(head_dim), -cupy.inf)
            top = scores.max(axis=-1, keepdims=True)
            raised = cupy.exp(scores - cupy.where(cupy.isfinite(top), top, 0.0))
            total = raised.sum(axis=-1, keepdims=True)
            probabilities = stored(raised / cupy.where(total > 0.0, total, 1.0))
            merged[rows] = (probabilities @ v[:, rows]).swapaxes(0, 1)
        return merged.reshape(*qkv.shape[:2], heads * head_dim)

    def _layernorm(self, values: Any, gamma: Any, beta: Any) -> Any:
        centred = values - values.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return centred / cupy.sqrt(variance + self.workload["epsilon"]) * gamma + beta

    def _activation(self, values: Any) -> Any:
        kind = self.workload["activation"]
        if kind == "relu":
            return cupy.maximum(values, 0.0)
        if kind == "gelu_tanh":
            return 0.5 * values * (1.0 + cupy.tanh(sqrt(2.0 / np.pi) * (values + 0.044715 * values**3)))
        from cupyx.scipy.special import erf

        return 0.5 * values * (1.0 + erf(values / sqrt(2.0)))
