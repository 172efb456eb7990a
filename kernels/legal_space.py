"""What is legal for a workload on a device: the choices that searches are over."""

import random
from dataclasses import dataclass, replace
from functools import lru_cache

from atoffer_rl.device import DEFAULT_DEVICE, DeviceSpec
from atoffer_rl.errors import NoTemplate, SchemeError
from atoffer_rl.kernels.registry import ALL_RUNS, all_templates, template_choices, template_named
from atoffer_rl.kernels.space import load_space
from atoffer_rl.kernels.template import Template
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme, finest_partition
from atoffer_rl.tensors import no_place
from atoffer_rl.workload import Workload

PLAINEST = ("rowwise", "gemm", "chain")
"""Templates that between them implement every operator of nearly every workload, the plainest first for each run."""


@dataclass(frozen=True)
class LegalSpace:
    """Every legal choice of a workload on a device.

    Attributes:
        workload: What schemes are built for.
        device: Where they will run.
        standalone: Whether only generated kernels are legal, so that an export needs no library.
    """

    workload: Workload
    device: DeviceSpec = DEFAULT_DEVICE
    standalone: bool = False

    def __contains__(self, choice: object) -> bool:
        return isinstance(choice, Choice) and choice in self.choices(choice.run)

    @property
    def templates(self) -> tuple[Template, ...]:
        """The templates that may be used, by name."""
        return tuple(template for template in all_templates() if template.generated or not self.standalone)

    @property
    def runs(self) -> frozenset[Run]:
        """Runs that some template can implement.

        Raises:
            NoTemplate: If they do not cover the layer.
        """
        return _runs(self)

    def choices(self, run: Run) -> tuple[Choice, ...]:
        """Every choice for `run`, by template name, each template's default first."""
        return _choices(self, run)

    @property
    def all_choices(self) -> tuple[Choice, ...]:
        """Every choice of every legal run, run by run.

        Raises:
            NoTemplate: If the legal runs do not cover the layer.
        """
        return tuple(choice for run in sorted(self.runs) for choice in self.choices(run))

    @property
    def unfused(self) -> Scheme:
        """The finest partition into runs of generated templates, each with the default choice of the plainest.

        That is one segment an operator, except where an operator alone has no template, as where a stored score
        matrix would be too large to index.

        Raises:
            NoTemplate: If generated templates do not cover the layer.
        """
        generated = replace(self, standalone=True)
        return Scheme(tuple(_plainest(generated.choices(run)) for run in finest_partition(generated.runs)))

    def draw(self, source: random.Random) -> Scheme:
        """A scheme from a uniform walk over legal runs that lead to the end, each with a uniform choice.

        Raises:
            NoTemplate: If the legal runs do not cover the layer.
        """
        ends = {OPERATOR_COUNT}
        for run in sorted(self.runs, key=lambda run: -run.last):
            if run.last + 1 in ends:
                ends.add(run.first)
        choices: list[Choice] = []
        position = 0
        while position < OPERATOR_COUNT:
            run = source.choice([run for run in sorted(self.runs) if run.first == position and run.last + 1 in ends])
            choices.append(source.choice(self.choices(run)))
            position = run.last + 1
        return Scheme(tuple(choices))

    def why(self, run: Run) -> str:
        """In a sentence, why `run` is or is not legal."""
        choices = self.choices(run)
        if choices:
            names = sorted({choice.template for choice in choices})
            verb = "offers" if len(names) == 1 else "offer"
            return f"{run} is legal: {', '.join(names)} {verb} {len(choices)} choices."
        reasons = [
            f"{template.name}: {template.why_not(self.workload, run, self.device) or 'every choice breaks a hard rule'}"
            for template in self.templates
            if run in template.runs
        ]
        return f"{run} is not legal: {'; '.join(reasons) or 'no template implements these operators together'}."

    def check(self, scheme: Scheme) -> None:
        """Accept a scheme whose choices are all legal.

        Raises:
            SchemeError: Naming the first choice that is not.
        """
        for choice in scheme.choices:
            if choice in self:
                continue
            if self.standalone and choice in replace(self, standalone=False):
                raise SchemeError(f"{choice} calls a library: leave out --standalone, or choose another scheme")
            raise SchemeError(f"{choice} is not legal for this workload: {self._why_not(choice)}")

    def _why_not(self, choice: Choice) -> str:
        """Why an illegal choice is none: its template, its run, its parameters or its values."""
        template = template_named(choice.template)
        offered = [other for other in self.choices(choice.run) if other.template == choice.template]
        if not offered:
            ends = f"{choice.run.first} {choice.run.last}"
            return f"{choice.template} does not implement {choice.run} here: see atoffer schemes --why {ends}"
        wanted = dict(choice.parameters)
        known = [name for name, _ in offered[0].parameters]
        wrong = {"unknown": [name for name in wanted if name not in known]}
        wrong["missing"] = [name for name in known if name not in wanted]
        if parts := [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]:
            return f"{choice.template} takes {', '.join(known)}; {'; '.join(parts)}"
        values = tuple((name, wanted[name]) for name in known)
        if values in load_space(choice.template).candidates(self.workload, choice.run):
            return str(template.impossible(self.workload, choice.run, wanted, self.device))
        nearest = min(offered, key=lambda other: sum(item not in other.parameters for item in values))
        return f"{choice.template} does not offer these values; the nearest that it does: {nearest}"


def _plainest(choices: tuple[Choice, ...]) -> Choice:
    """The first choice of the first template of `PLAINEST` that offers any."""
    names = [choice.template for choice in choices]
    return next((choices[names.index(name)] for name in PLAINEST if name in names), choices[0])


@lru_cache(maxsize=1024)
def _choices(space: LegalSpace, run: Run) -> tuple[Choice, ...]:
    return tuple(
        choice
        for template in space.templates
        for choice in template_choices(template.name, space.workload, run, space.device)
    )


@lru_cache(maxsize=64)
def _runs(space: LegalSpace) -> frozenset[Run]:
    runs = frozenset(run for run in ALL_RUNS if space.choices(run))
    reached = {0}
    for end in range(OPERATOR_COUNT):
        if any(run.last == end and run.first in reached for run in runs):
            reached.add(end + 1)
    if OPERATOR_COUNT not in reached:
        raise NoTemplate(_why_uncovered(space, max(reached)))
    return runs


def _why_uncovered(space: LegalSpace, operator: int) -> str:
    """Why no legal run leads on from `operator`: what speaks against the shortest whose tensors could be stored."""
    kind, option = ("generated template", " --standalone") if space.standalone else ("template", "")
    run = next(run for run in sorted(ALL_RUNS) if run.first == operator and no_place(space.workload, run) is None)
    see = f"atoffer schemes{option} --why {run.first} {run.last}"
    return f"no {kind} covers operator {operator} here ({see}): {space.why(run)}"
