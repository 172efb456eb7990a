"""Is a choice right? Its results against a float64 reference, under a measured budget for error.

Import this module only where something is verified: it loads torch.
"""

from collections.abc import Iterable, Iterator, Mapping
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
from atoffer_rl.operators import run_operators, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import LENGTHS, layer_tensors, reads_lengths, run_inputs
from atoffer_rl.tensors import Tensor as Description
from atoffer_rl.workload import Workload

BUDGET_FACTOR = 2.0
FENCE_BYTES = 2**20
POISON = 0xFF  # Four, or two, of these bytes are NaN in every format.
ENOUGH_ELEMENTS, MOST_DRAWS = 2**16, 8
"""Eager's largest error over a few elements is a matter of luck: small results take it over more draws."""
SEED_STRIDE = 1_000_003
MOST_KEPT_BYTES = 3 * 2**30
"""Inputs and references of a run that take more are not kept from one launchable to the next."""
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


class Examiner:
    """What a run must make of inputs of every kind, asked of one launchable after another.

    Inputs and references stay on the device from one to the next, unless they are large: then they are computed anew.

    Args:
        workload: Shapes, mask, activation and LayerNorm epsilon.
        run: The operators that launchables implement.
        seed: Inputs are a function of it.
        device: Where pointers lie; None is the current GPU.
    """

    def __init__(self, workload: Workload, run: Run, seed: int = 0, device: torch.device | None = None) -> None:
        self._workload, self._run, self._seed = workload, run, seed
        self._device = device or torch.device("cuda", torch.cuda.current_device())
        self._keeps = kept_bytes(workload, run) <= MOST_KEPT_BYTES
        self._kept: dict[Inputs, Question] = {}

    def question(self, kind: Inputs) -> "Question":
        """The question with inputs of that kind."""
        if kind in self._kept:
            return self._kept[kind]
        question = Question(self._workload, self._run, kind, self._seed, self._device, self._keeps)
        if self._keeps:
            self._kept[kind] = question
        return question

    def judge(self, launchable: Launchable) -> Verdict:
        """Launch on inputs of every kind and judge all that the run must store.

        Raises:
            LaunchError: If it cannot be launched.
        """
        checks = [self.question(kind).ask(launchable) for kind in Inputs]
        results, epsilon = run_results(self._run), self._workload.element.epsilon
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


def kept_bytes(workload: Workload, run: Run) -> int:
    """What an examiner of `run` would keep: inputs as stored, results in float64 and as stored."""
    stored = layer_tensors(workload)
    inputs = sum(stored[name].size_bytes for name in (*run_inputs(workload, run), *run_weights(run)))
    results = sum(stored[name].size_bytes + 8 * stored[name].size for name in run_results(run))
    return len(Inputs) * (inputs + results)


@dataclass(frozen=True)
class Answer:
    """What a run makes of some sequences of the batch.

    Attributes:
        entries: Which.
        exact: Its results in float64.
        eager: What eager low precision makes of them.
    """

    entries: slice
    exact: Mapping[str, Tensor]
    eager: Mapping[str, Tensor]


class Question:
    """Inputs of one kind, and what a run must make of them.

    Args:
        workload: Shapes, mask, activation and LayerNorm epsilon.
        run: The operators.
        kind: Of the inputs.
        seed: Inputs are a function of it.
        device: Where they lie.
        keeps: Whether to keep the answers, not only the inputs.
    """

    def __init__(
        self, workload: Workload, run: Run, kind: Inputs, seed: int, device: torch.device, keeps: bool
    ) -> None:
        self._workload, self._run, self._device = workload, run, device
        self._drawn = draw_inputs(workload, run, kind, seed, device)
        self._apart = unpacked_workload(workload)
        self._inputs = unpacked_tensors(workload, run, self._drawn)
        self._answers = list(self._computed(self._inputs)) if keeps else None
        self._eager_errors = [self._eager_error(kind, seed + draw * SEED_STRIDE) for draw in range(1, self._draws)]

    @property
    def _draws(self) -> int:
        """On how many draws of the inputs eager's error is measured."""
        stored = layer_tensors(self._workload)
        elements = min(stored[name].size for name in run_results(self._run))
        return min(MOST_DRAWS, -(-ENOUGH_ELEMENTS // elements))

    def ask(self, launchable: Launchable) -> Tensor:
        """`differences` of each result in turn, then whether fences or inputs were written; waits for no GPU."""
        stored = layer_tensors(self._workload)
        names = (*self._drawn, *run_results(self._run))
        fenced = FencedTensors({name: stored[name] for name in names}, self._device)
        for name, values in self._drawn.items():
            fenced.tensors[name].copy_(values)
        launchable.launch(
            fenced.pointers, torch.cuda.current_stream().cuda_stream if self._device.type == "cuda" else 0
        )
        overwritten = [(fenced.tensors[name] != values).any() for name, values in self._drawn.items()]
        outcome = [fenced.trespassed().double(), torch.stack(overwritten).any().double()]
        results = unpacked_tensors(self._workload, self._run, {**fenced.tensors, **self._drawn})
        judged = self._judged(self._inputs, results, self._answers or self._computed(self._inputs))
        for eager_error in self._eager_errors:
            judged[:, EAGER_ERROR] = torch.maximum(judged[:, EAGER_ERROR], eager_error)
        return torch.cat([judged.view(-1), torch.stack(outcome)])

    def _computed(self, inputs: Mapping[str, Tensor]) -> Iterator[Answer]:
        """Answers for a few sequences at a time, to bound memory."""
        for entries in batch_chunks(self._apart):
            exact = run_reference(self._apart, self._run, inputs, Precision.EXACT, entries)
            yield Answer(entries, exact, run_reference(self._apart, self._run, inputs, Precision.EAGER, entries))

    def _eager_error(self, kind: Inputs, seed: int) -> Tensor:
        """Of each result, what eager low precision is off by on other inputs of the kind."""
        inputs = draw_inputs(self._apart, self._run, kind, seed, self._device)
        eager = run_reference(self._apart, self._run, inputs, Precision.EAGER)
        return self._judged(inputs, eager, self._computed(inputs))[:, EAGER_ERROR]

    def _judged(self, inputs: Mapping[str, Tensor], results: Mapping[str, Tensor], answers: Iterable[Answer]) -> Tensor:
        """`differences` of each result, (results, FIELDS)."""
        apart, padded = self._apart, reads_lengths(self._apart, self._run)
        loose = {op.result for op in run_operators(self._run) if padded and op.index > LAST_PADDED}
        chunks = []
        for answer in answers:
            entries, exact, eager = answer.entries, answer.exact, answer.eager
            judged = {name: [results[name][entries], exact[name], eager[name]] for name in exact}
            for name in loose.intersection(judged):
                lengths = inputs[LENGTHS][entries]
                judged[name] = [without_padding(apart, rows, lengths) for rows in judged[name]]
            chunks.append(torch.stack([differences(*compared) for compared in judged.values()]))
        return torch.stack(chunks).amax(dim=0)


def verify_choice(workload: Workload, choice: Choice, seed: int = 0) -> Verdict:
    """Compile `choice` for the current GPU, load it and verify it.

    Raises:
        CompileError: If the compiler refuses it.
        LaunchError: If it cannot be loaded or launched.
    """
    return Examiner(workload, choice.run, seed).judge(load_choice(workload, choice))
