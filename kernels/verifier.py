"""Is a choice right? Its kernel launched on inputs of every kind, and all that it stores compared with the truth.

Import this module only where something is verified: it loads torch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atoffer_rl.kernels.inputs import Inputs, draw_inputs
from atoffer_rl.kernels.launch import Launchable, load_choice
from atoffer_rl.kernels.packing import reads_offsets, unpacked_tensors, unpacked_workload, without_padding
from atoffer_rl.kernels.reference import Precision, batch_chunks, run_reference
from atoffer_rl.kernels.verify import (
    EAGER_ERROR,
    ENOUGH_ELEMENTS,
    FIELDS,
    MOST_DRAWS,
    SEED_STRIDE,
    Comparison,
    FencedTensors,
    Verdict,
    differences,
)
from atoffer_rl.mask_structure import mixing_within
from atoffer_rl.operators import MASK_OPERATOR, MERGE_OPERATOR, run_operators, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import LENGTHS, layer_tensors, reads_lengths, run_inputs
from atoffer_rl.workload import Workload

LAST_PADDED = MERGE_OPERATOR
"""Results of later operators mean nothing in rows beyond a sequence's length; up to here there must be zeros."""
KEPT_SHARE, MOST_HOST_BYTES = 0.04, 2**30
"""Of a GPU's memory, or of the host's: inputs and references of a run that take more are not kept."""
EXACT_BYTES = 8
"""Of an element of a reference."""


class Verifier:
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
        self._keeps = kept_bytes(workload, run) <= most_kept_bytes(self._device)
        self._kept: dict[Inputs, Case] = {}

    def case(self, kind: Inputs) -> "Case":
        """The case with inputs of that kind."""
        if kind in self._kept:
            return self._kept[kind]
        case = Case(self._workload, self._run, kind, self._seed, self._device, self._keeps)
        if self._keeps:
            self._kept[kind] = case
        return case

    def judge(self, launchable: Launchable) -> Verdict:
        """Launch on inputs of every kind and judge all that the run must store.

        Raises:
            LaunchError: If it cannot be launched.
        """
        checks = torch.stack([self.case(kind).ask(launchable) for kind in Inputs])
        verdict = self._verdict(checks.tolist())
        if not verdict.passed:
            self._kept.clear()  # who writes beyond a fence may have written there
        return verdict

    def _verdict(self, checks: Sequence[Sequence[float]]) -> Verdict:
        """On the fields of every case."""
        results, epsilon = run_results(self._run), self._workload.element.epsilon
        worst = Verdict(True, "", 0.0, 0.0)
        for kind, row in zip(Inputs, checks, strict=True):
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
    """What a verifier of `run` would keep: inputs as stored, unpacked besides if they are packed; results, twice."""
    stored = layer_tensors(workload)
    inputs = sum(stored[name].size_bytes for name in (*run_inputs(workload, run), *run_weights(run)))
    copies = 2 if reads_offsets(workload, run) else 1
    results = sum(stored[name].size_bytes + EXACT_BYTES * stored[name].size for name in run_results(run))
    return len(Inputs) * (copies * inputs + results)


def most_kept_bytes(device: torch.device) -> int:
    """What a verifier may keep on `device`."""
    if device.type != "cuda":
        return MOST_HOST_BYTES
    return int(KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory)


@dataclass(frozen=True)
class Reference:
    """What a run makes of some sequences of the batch.

    Attributes:
        entries: Which.
        exact: Its results in float64.
        eager: What eager low precision makes of them.
    """

    entries: slice
    exact: Mapping[str, Tensor]
    eager: Mapping[str, Tensor]


def idle_factor(workload: Workload, run: Run) -> int:
    """How many times as many rows of attention there are as rows that have an error to be measured; 1 elsewhere."""
    if run.last < MASK_OPERATOR or run.first > MERGE_OPERATOR:
        return 1
    mixing = workload.length_spec.mean(mixing_within(workload.mask_spec, workload.seq_len))
    return round(workload.seq_len / mixing) if mixing else 1


def draws_of(workload: Workload, run: Run) -> int:
    """On how many draws of the inputs of `run` eager's error is measured."""
    stored = layer_tensors(workload)
    elements = min(stored[name].size for name in run_results(run)) // idle_factor(workload, run)
    return min(MOST_DRAWS, -(-ENOUGH_ELEMENTS // max(1, elements)))


class Case:
    """Inputs of one kind, and what a run must make of them.

    Args:
        workload: Shapes, mask, activation and LayerNorm epsilon.
        run: The operators.
        kind: Of the inputs.
        seed: Inputs are a function of it.
        device: Where they lie.
        keeps: Whether to keep the references, not only the inputs.
    """

    def __init__(
        self, workload: Workload, run: Run, kind: Inputs, seed: int, device: torch.device, keeps: bool
    ) -> None:
        self._workload, self._run, self._device = workload, run, device
        self._drawn = draw_inputs(workload, run, kind, seed, device)
        self._apart = unpacked_workload(workload)
        self._inputs = unpacked_tensors(workload, run, self._drawn)
        self._references = list(self._computed(self._inputs)) if keeps else None
        self._eager_errors = [
            self._eager_error(kind, seed + draw * SEED_STRIDE) for draw in range(1, draws_of(workload, run))
        ]

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
        judged = self._judged(self._inputs, results, self._references or self._computed(self._inputs))
        for eager_error in self._eager_errors:
            judged[:, EAGER_ERROR] = torch.maximum(judged[:, EAGER_ERROR], eager_error)
        return torch.cat([judged.view(-1), torch.stack(outcome)])

    def _computed(self, inputs: Mapping[str, Tensor]) -> Iterator[Reference]:
        """References for a few sequences at a time, to bound memory."""
        for entries in batch_chunks(self._apart):
            exact = run_reference(self._apart, self._run, inputs, Precision.EXACT, entries)
            yield Reference(entries, exact, run_reference(self._apart, self._run, inputs, Precision.EAGER, entries))

    def _eager_error(self, kind: Inputs, seed: int) -> Tensor:
        """Of each result, what eager low precision is off by on other inputs of the kind."""
        inputs = draw_inputs(self._apart, self._run, kind, seed, self._device)
        eager = run_reference(self._apart, self._run, inputs, Precision.EAGER)
        return self._judged(inputs, eager, self._computed(inputs))[:, EAGER_ERROR]

    def _judged(
        self, inputs: Mapping[str, Tensor], results: Mapping[str, Tensor], references: Iterable[Reference]
    ) -> Tensor:
        """`differences` of each result, (results, FIELDS)."""
        apart, padded = self._apart, reads_lengths(self._apart, self._run)
        loose = {op.result for op in run_operators(self._run) if padded and op.index > LAST_PADDED}
        chunks = []
        for reference in references:
            entries, exact, eager = reference.entries, reference.exact, reference.eager
            judged = {name: [results[name][entries], exact[name], eager[name]] for name in exact}
            for name in loose.intersection(judged):
                lengths = inputs[LENGTHS][entries]
                judged[name] = [without_padding(apart, rows, lengths) for rows in judged[name]]
            chunks.append(torch.stack([differences(*compared) for compared in judged.values()]))
        return torch.stack(chunks).amax(dim=0)


def verify_choice(workload: Workload, choice: Choice) -> Verdict:
    """Compile `choice` for the current GPU, load it and verify it.

    Raises:
        CompileError: If the compiler refuses it.
        LaunchError: If it cannot be loaded or launched.
    """
    return Verifier(workload, choice.run).judge(load_choice(workload, choice))
