"""Is a choice right? Its results against a float64 reference, under a measured budget for error.

Import this module only where something is verified: it loads torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atoffer_rl.kernels.launch import Launchable, load_choice
from atoffer_rl.kernels.reference import (
    TORCH_DTYPES,
    Inputs,
    Precision,
    batch_chunks,
    draw_inputs,
    run_reference,
    unpacked_tensors,
    unpacked_workload,
    without_padding,
)
from atoffer_rl.operators import run_operators, run_results
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import LENGTHS, layer_tensors, reads_lengths
from atoffer_rl.tensors import Tensor as Description
from atoffer_rl.workload import Workload

BUDGET_FACTOR = 2.0
FENCE_BYTES = 2**20
POISON = 0xFF  # Four, or two, of these bytes are NaN in every format.
ENOUGH_ELEMENTS, MOST_DRAWS = 2**16, 8
"""Eager's largest error over a few elements is a matter of luck: small results take it over more draws."""
SEED_STRIDE = 1_000_003
COMPARED_AT_ONCE = 2**26
LAST_PADDED = 6
"""Results of later operators mean nothing in rows beyond a sequence's length; up to here there must be zeros."""
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


def compare(out: Tensor, reference: Tensor, eager: Tensor, epsilon: float) -> Verdict:
    """Judge one tensor.

    Args:
        out: What was computed.
        reference: The truth in float64.
        eager: What eager low precision computes.
        epsilon: Distance from 1 to the next number of the workload's format.
    """
    comparison = Comparison(*differences(out, reference, eager).tolist())
    fault = comparison.fault(epsilon)
    return Verdict(not fault, fault, comparison.max_error, comparison.budget(epsilon))


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


def verify_launchable(
    workload: Workload, run: Run, launchable: Launchable, seed: int = 0, device: torch.device | None = None
) -> Verdict:
    """Launch on fresh inputs of every kind and judge all that `run` must store.

    Args:
        workload: Shapes, mask, activation and LayerNorm epsilon.
        run: The operators that it implements.
        launchable: What to verify.
        seed: Inputs are a function of it.
        device: Where its pointers lie; None is the current GPU.

    Raises:
        LaunchError: If it cannot be launched.
    """
    place = device or torch.device("cuda", torch.cuda.current_device())
    checks = [_launch_and_compare(workload, run, launchable, kind, seed, place) for kind in Inputs]
    results, epsilon = run_results(run), workload.element.epsilon
    worst = Verdict(True, "", 0.0, 0.0)
    for kind, row in zip(Inputs, torch.stack(checks).tolist(), strict=True):
        *fields, trespassed, overwritten = row
        if trespassed or overwritten:
            where = "outside its results" if trespassed else "over its inputs"
            return Verdict(False, f"{kind.value}: wrote {where}", float("inf"), 0.0)
        for first, name in enumerate(results):
            comparison = Comparison(*fields[FIELDS * first : FIELDS * (first + 1)])
            budget, fault = comparison.budget(epsilon), comparison.fault(epsilon)
            if fault:
                return Verdict(False, f"{kind.value}: {name} {fault}", comparison.max_error, budget)
            if comparison.max_error * worst.error_budget >= worst.max_error * budget:
                worst = Verdict(True, "", comparison.max_error, budget)
    return worst


def _launch_and_compare(
    workload: Workload, run: Run, launchable: Launchable, kind: Inputs, seed: int, device: torch.device
) -> Tensor:
    """`differences` of each result in turn, then whether fences or inputs were written; nothing waits for the GPU."""
    stored = layer_tensors(workload)
    drawn = draw_inputs(workload, run, kind, seed, device)
    fenced = FencedTensors({name: stored[name] for name in (*drawn, *run_results(run))}, device)
    for name, values in drawn.items():
        fenced.tensors[name].copy_(values)
    launchable.launch(fenced.pointers, torch.cuda.current_stream().cuda_stream if device.type == "cuda" else 0)
    overwritten = torch.stack([(fenced.tensors[name] != values).any() for name, values in drawn.items()]).any()
    outcome = [fenced.trespassed().double(), overwritten.double()]
    apart, tensors = unpacked_workload(workload), unpacked_tensors(workload, run, {**fenced.tensors, **drawn})
    judged = _judge_chunks(apart, run, tensors, tensors).view(-1, FIELDS)
    for draw in range(1, _draws(workload, run)):
        others = draw_inputs(apart, run, kind, seed + draw * SEED_STRIDE, device)
        eager = run_reference(apart, run, others, Precision.EAGER)
        elsewhere = _judge_chunks(apart, run, others, eager).view(-1, FIELDS)
        judged[:, EAGER_ERROR] = torch.maximum(judged[:, EAGER_ERROR], elsewhere[:, EAGER_ERROR])
    return torch.cat([judged.view(-1), torch.stack(outcome)])


def _draws(workload: Workload, run: Run) -> int:
    """On how many draws of the inputs eager's error is measured."""
    stored = layer_tensors(workload)
    elements = min(stored[name].size for name in run_results(run))
    return min(MOST_DRAWS, -(-ENOUGH_ELEMENTS // elements))


def _judge_chunks(workload: Workload, run: Run, drawn: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> Tensor:
    """`differences` of each of the run's results in turn, a few sequences at a time to bound memory."""
    padded = reads_lengths(workload, run)
    loose = {op.result for op in run_operators(run) if padded and op.index > LAST_PADDED}
    chunks = []
    for entries in batch_chunks(workload):
        exact = run_reference(workload, run, drawn, Precision.EXACT, entries)
        eager = run_reference(workload, run, drawn, Precision.EAGER, entries)
        judged = {name: [stored[name][entries], exact[name], eager[name]] for name in exact}
        for name in loose.intersection(judged):
            judged[name] = [without_padding(workload, rows, drawn[LENGTHS][entries]) for rows in judged[name]]
        chunks.append(torch.cat([differences(*compared) for compared in judged.values()]))
    return torch.stack(chunks).amax(dim=0)


def verify_choice(workload: Workload, choice: Choice, seed: int = 0) -> Verdict:
    """Compile `choice` for the current GPU, load it and verify it.

    Raises:
        CompileError: If the compiler refuses it.
        LaunchError: If it cannot be loaded or launched.
    """
    return verify_launchable(workload, choice.run, load_choice(workload, choice), seed)
