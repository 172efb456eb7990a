"""From an AToffer code to a scheme that the templates can execute. One-way: many codes may lower to one scheme."""

from functools import lru_cache
from typing import NamedTuple

from atoffer_rl.atoffer_code import AtofferProgram
from atoffer_rl.device import DEFAULT_DEVICE, DeviceSpec
from atoffer_rl.errors import NoTemplate
from atoffer_rl.kernels.legal_space import PLAINEST
from atoffer_rl.kernels.registry import template_choices, template_named
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload

HANDWRITTEN = ("gather", *PLAINEST)


class _Way(NamedTuple):
    """A way from some operator to the end of the layer; the least is the best.

    Attributes:
        joined: Cuts of the program that it leaves out.
        segments: Segments it has.
        lasts: The last operator of each, negative: the longest come first.
        runs: The segments.
    """

    joined: int = 0
    segments: int = 0
    lasts: tuple[int, ...] = ()
    runs: tuple[Run, ...] = ()


def lower(program: AtofferProgram, workload: Workload, device: DeviceSpec = DEFAULT_DEVICE) -> Scheme:
    """The scheme that `program` becomes for `workload`.

    A run that no single generated template implements is split into the fewest that some template does, the
    longest first. Runs that cannot be split so (they would store what is too large to index) are joined with
    their neighbours, leaving out as few of the program's cuts as possible. Each takes its template's default choice.
    The hand-written kernel's place is taken by gather where it implements the workload, else by rowwise.

    Raises:
        NoTemplate: If generated templates do not cover the layer of `workload`.
    """
    defaults = _defaults(HANDWRITTEN if program.handwritten else PLAINEST, workload, device)
    cuts = {run.first for run in program.runs}
    ways = {OPERATOR_COUNT: _Way()}
    for run in sorted(defaults, reverse=True):
        if (rest := ways.get(run.last + 1)) is None:
            continue
        joined = rest.joined + len(cuts.intersection(range(run.first + 1, run.last + 1)))
        way = _Way(joined, rest.segments + 1, (-run.last, *rest.lasts), (run, *rest.runs))
        ways[run.first] = min(way, ways.get(run.first, way))
    if 0 not in ways:
        raise NoTemplate("no generated templates cover a layer of this workload: see atoffer schemes --standalone")
    return Scheme(tuple(defaults[run] for run in ways[0].runs))


@lru_cache(maxsize=256)
def _defaults(names: tuple[str, ...], workload: Workload, device: DeviceSpec) -> dict[Run, Choice]:
    """The default choice of each run that some template of `names` implements, the first of them first."""
    found: dict[Run, Choice] = {}
    for name in names:
        for run in template_named(name).runs:
            if run not in found and (choices := template_choices(name, workload, run, device)):
                found[run] = choices[0]
    return found
