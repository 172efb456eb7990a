"""Which templates there are, and what each offers for a run."""

import pkgutil
from functools import cache, lru_cache
from importlib import import_module

from atoffer_rl.device import DEFAULT_DEVICE, DeviceSpec
from atoffer_rl.errors import SchemeError
from atoffer_rl.kernels import templates as templates_package
from atoffer_rl.kernels.space import MAX_CHOICES, load_space
from atoffer_rl.kernels.template import Template
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
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
def template_choices(
    name: str, workload: Workload, run: Run, device: DeviceSpec = DEFAULT_DEVICE
) -> tuple[Choice, ...]:
    """What template `name` offers for `run`, default first; empty where it cannot implement it.

    Raises:
        SchemeError: If there is no such template, or it offers more than `MAX_CHOICES`.
    """
    template = template_named(name)
    if run not in template.runs or template.why_not(workload, run, device) is not None:
        return ()
    possible = [
        Choice(run, name, values)
        for values in load_space(name).candidates(workload, run)
        if template.impossible(workload, run, dict(values), device) is None
    ]
    if len(possible) > MAX_CHOICES:
        raise SchemeError(
            f"template {name} offers {len(possible)} choices for {run}; its space file must keep {MAX_CHOICES}"
        )
    return tuple(possible)
