"""Is a result right? A tensor against a float64 reference, under a measured budget for error.

Import this module only where something is verified: it loads torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.tensors import Tensor as Description

BUDGET_FACTOR = 2.0
FENCE_BYTES = 2**20
POISON = 0xFF  # Four, or two, of these bytes are NaN in every format.
ENOUGH_ELEMENTS, MOST_DRAWS = 2**16, 8
"""Eager's largest error over a few elements is a matter of luck: small results take it over more draws."""
SEED_STRIDE = 1_000_003
COMPARED_AT_ONCE = 2**26
FIELDS, EAGER_ERROR = 5, 1
"""How many numbers `differences` gives, and which of them is eager's error."""


@dataclass(frozen=True)
class Verdict:
    """Whether results are right.

    Attributes:
        passed: Right on every input and tensor.
        reason: What is wrong first, in one line; empty if nothing is.
        max_error: Largest error of the tensor nearest to (or furthest beyond) its budget.
        error_budget: That tensor's budget.
    """

    passed: bool
    reason: str
    max_error: float
    error_budget: float


@dataclass(frozen=True)
class Comparison:
    """How a tensor differs from its reference; infinities stand apart from finite values.

    Attributes:
        max_error: Largest error where the reference is finite.
        eager_error: The same of eager low precision.
        max_reference: Largest finite magnitude of the reference.
        nans: 1 if there is any NaN.
        misplaced: 1 if -inf does not stand exactly where the reference has it.
    """

    max_error: float
    eager_error: float
    max_reference: float
    nans: float
    misplaced: float

    def budget(self, epsilon: float) -> float:
        """The error allowed for a format whose epsilon is `epsilon`."""
        return BUDGET_FACTOR * (self.eager_error + epsilon * self.max_reference)

    def fault(self, epsilon: float) -> str:
        """What is wrong, in a phrase; empty if nothing is."""
        if self.nans:
            return "holds NaN, or was not written everywhere"
        if self.misplaced:
            return "does not hold -inf exactly where the reference does"
        if not self.max_error <= self.budget(epsilon):
            return f"is off by {self.max_error:.3g}, more than the budget of {self.budget(epsilon):.3g}"
        return ""

    def verdict(self, epsilon: float) -> Verdict:
        """What this comes to for a format whose epsilon is `epsilon`."""
        fault = self.fault(epsilon)
        return Verdict(not fault, fault, self.max_error, self.budget(epsilon))


def compare(out: Tensor, reference: Tensor, eager: Tensor, epsilon: float) -> Verdict:
    """Judge one tensor.

    Args:
        out: What was computed.
        reference: The truth in float64.
        eager: What eager low precision computes.
        epsilon: Distance from 1 to the next number of the workload's format.
    """
    return Comparison(*differences(out, reference, eager).tolist()).verdict(epsilon)


def differences(out: Tensor, reference: Tensor, eager: Tensor) -> Tensor:
    """The fields of `Comparison` as a float64 tensor (5,), left on the device; in pieces, to bound memory."""
    pieces = zip(*(tensor.flatten().split(COMPARED_AT_ONCE) for tensor in (out, reference, eager)), strict=True)
    return torch.stack([_piece_differences(*piece) for piece in pieces]).amax(dim=0)


def _piece_differences(out: Tensor, reference: Tensor, eager: Tensor) -> Tensor:
    finite = reference.isfinite()
    truth = torch.where(finite, reference, 0.0)
    error = torch.where(finite, out.double(), 0.0).sub_(truth).abs_().amax()
    eager_error = torch.where(finite, eager.double(), 0.0).sub_(truth).abs_().amax()
    misplaced = (out.isneginf() != reference.isneginf()).any()
    # A budget of infinity would accept anything: eager results that overflow earn no tolerance.
    earned = torch.where(eager_error.isfinite(), eager_error, 0.0)
    return torch.stack([error, earned, truth.abs().amax(), out.isnan().any().double(), misplaced.double()])


class FencedTensors:
    """Tensors in one allocation, each between fences; everything is NaN until it is filled.

    Args:
        described: What to lay out.
        device: Where.
    """

    def __init__(self, described: Mapping[str, Description], device: torch.device | str) -> None:
        self._bounds: list[tuple[int, int]] = []
        place = FENCE_BYTES
        for tensor in described.values():
            self._bounds.append((place, place + tensor.size_bytes))
            place += -(-tensor.size_bytes // FENCE_BYTES) * FENCE_BYTES + FENCE_BYTES
        self._arena = torch.full((place,), POISON, dtype=torch.uint8, device=device)
        self.tensors = {
            name: self._arena[first:last].view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)
            for (name, tensor), (first, last) in zip(described.items(), self._bounds, strict=True)
        }
        self.pointers = {name: tensor.data_ptr() for name, tensor in self.tensors.items()}

    def trespassed(self) -> Tensor:
        """Whether any byte of a fence changed, as a boolean left on the device."""
        ends = [0] + [last for _, last in self._bounds]
        starts = [first for first, _ in self._bounds] + [self._arena.numel()]
        changed = [
            (self._arena[end:start] != POISON).any() for end, start in zip(ends, starts, strict=True) if end < start
        ]
        return torch.stack(changed).any()
