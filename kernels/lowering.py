"""From an AToffer code to a scheme that the templates can execute. One-way: many codes may lower to one scheme."""

from functools import lru_cache

from atoffer_rl.atoffer_code import AtofferProgram
from atoffer_rl.device import H100, DeviceSpec
from atoffer_rl.errors import NoTemplate
from atoffer_rl.kernels.registry import template_choices, template_named
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload

GENERATED = ("rowwise", "gemm", "chain")
HANDWRITTEN = ("tile", *GENERATED)


def lower(program: AtofferProgram, workload: Workload, device: DeviceSpec = H100) -> Scheme:
    """The scheme that `program` becomes for `workload`.

    A run that no single generated template implements is split into the fewest that some template does, the
    longest first. Each takes its template's default choice. The hand-written kernel's place is taken by
    tile attention where the workload allows it (16-bit formats), else by rowwise.

    Raises:
        NoTemplate: If an operator has no generated template for `workload`.
    """
    names = HANDWRITTEN if program.handwritten else GENERATED
    choices: list[Choice] = []
    for run in program.runs:
        parts = _split(run, names, workload, device)
        if not parts:
            raise NoTemplate(f"no generated templates cover {run} of this workload: see atoffer schemes --help")
        choices += parts
    return Scheme(tuple(choices))


@lru_cache(maxsize=4096)
def _split(run: Run, names: tuple[str, ...], workload: Workload, device: DeviceSpec) -> tuple[Choice, ...]:
    """The default choices that cover `run`: as few as possible, the longest first; none if nothing covers it."""
    best: tuple[Choice, ...] = ()
    for last in range(run.last, run.first - 1, -1):
        head = _default(Run(run.first, last), names, workload, device)
        rest = _split(Run(last + 1, run.last), names, workload, device) if last < run.last else ()
        if head is None or (last < run.last and not rest):
            continue
        if not best or 1 + len(rest) < len(best):
            best = (head, *rest)
    return best


def _default(run: Run, names: tuple[str, ...], workload: Workload, device: DeviceSpec) -> Choice | None:
    for name in names:
        if run in template_named(name).runs and (choices := template_choices(name, workload, run, device)):
            return choices[0]
    return None
