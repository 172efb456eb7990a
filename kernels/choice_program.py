"""From a choice to its program."""

from collections.abc import Callable
from typing import TypeAlias

from atoffer_rl.kernels.program import Program
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

ProgramOf: TypeAlias = Callable[[Workload, Choice], Program]


def template_program(workload: Workload, choice: Choice) -> Program:
    """The program that the choice's own template makes of it."""
    return template_named(choice.template).program(workload, choice)
