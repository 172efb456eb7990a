"""Which templates there are, and what is legal for a workload on a device."""

import pkgutil
from functools import cache, lru_cache
from importlib import import_module

from atoffer_rl.device import H100, DeviceSpec
from atoffer_rl.errors import NoTemplate, SchemeError
from atoffer_rl.kernels import templates as templates_package
from atoffer_rl.kernels.space import MAX_CHOICES, load_space
from atoffer_rl.kernels.template import Template
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload

ALL_RUNS = tuple(Run(first, last) for first in range(OPERATOR_COUNT) for last in range(first, OPERATOR_COUNT))


@cache
def all_templates() -> tuple[Template, ...]:
    """Every template, by name: each module of `kernels.templates` that defines `TEMPLATE` adds one."""
    modules = [
        import_module(f"{templates_package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(templates_package.__path__)
    ]
    found: list[Template] = [module.TEMPLATE for module in modules if hasattr(module, "TEMPLATE")]
    return tuple(sorted(found, key=lambda template: template.name))


def template_named(name: str) -> Template:
    """The template called `name`.

    Raises:
        SchemeError: If there is none.
    """
    for template in all_templates():
        if template.name == name:
            return template
    raise SchemeError(f"unknown template {name!r}: use one of {', '.join(t.name for t in all_templates())}")


@lru_cache(maxsize=4096)
def template_choices(name: str, workload: Workload, run: Run, device: DeviceSpec = H100) -> tuple[Choice, ...]:
    """What template `name` offers for `run`, default first; empty where it cannot implement it."""
    template = template_named(name)
    if run not in template.runs or template.why_not(workload, run, device) is not None:
        return ()
    possible = [
        Choice(run, name, values)
        for values in load_space(name).candidates(run)
        if template.impossible(workload, run, dict(values), device) is None
    ]
    if len(possible) > MAX_CHOICES:
        raise SchemeError(
            f"template {name} offers {len(possible)} choices for {run}; its space file must keep {MAX_CHOICES}"
        )
    return tuple(possible)


@lru_cache(maxsize=1024)
def legal_choices(workload: Workload, run: Run, device: DeviceSpec = H100) -> tuple[Choice, ...]:
    """Every choice for `run`, by template name, each template's default first."""
    return tuple(
        choice for template in all_templates() for choice in template_choices(template.name, workload, run, device)
    )


@lru_cache(maxsize=64)
def legal_runs(workload: Workload, device: DeviceSpec = H100) -> frozenset[Run]:
    """Runs that some template can implement.

    Raises:
        NoTemplate: If they do not cover the layer.
    """
    runs = frozenset(run for run in ALL_RUNS if legal_choices(workload, run, device))
    reached = {0}
    for end in range(OPERATOR_COUNT):
        if any(run.last == end and run.first in reached for run in runs):
            reached.add(end + 1)
    if OPERATOR_COUNT not in reached:
        stuck = max(reached)
        raise NoTemplate(f"no template covers operator {stuck} here: see atoffer schemes --why {stuck} {stuck}")
    return runs


def why(workload: Workload, run: Run, device: DeviceSpec = H100) -> str:
    """In a sentence, why `run` is or is not legal."""
    choices = legal_choices(workload, run, device)
    if choices:
        names = sorted({choice.template for choice in choices})
        verb = "offers" if len(names) == 1 else "offer"
        return f"{run} is legal: {', '.join(names)} {verb} {len(choices)} choices."
    reasons = [
        f"{template.name}: {template.why_not(workload, run, device) or 'every choice breaks a hard rule'}"
        for template in all_templates()
        if run in template.runs
    ]
    return f"{run} is not legal: {'; '.join(reasons) or 'no template implements these operators together'}."


def check_scheme(workload: Workload, scheme: Scheme, device: DeviceSpec = H100) -> None:
    """Accept a scheme whose choices are all legal for `workload`.

    Raises:
        SchemeError: Naming the first choice that is not.
    """
    for choice in scheme.choices:
        if choice not in legal_choices(workload, choice.run, device):
            ends = f"{choice.run.first} {choice.run.last}"
            raise SchemeError(f"{choice} is not legal for this workload: see atoffer schemes --why {ends}")


def unfused(workload: Workload, device: DeviceSpec = H100) -> Scheme:
    """One segment an operator, each with the default choice of a generated template.

    Raises:
        NoTemplate: If an operator has none.
    """
    choices = []
    for operator in range(OPERATOR_COUNT):
        offered = legal_choices(workload, Run(operator, operator), device)
        generated = [choice for choice in offered if choice.template != "cublaslt"]
        if not generated:
            raise NoTemplate(f"no generated template: {why(workload, Run(operator, operator), device)}")
        choices.append(generated[0])
    return Scheme(tuple(choices))
