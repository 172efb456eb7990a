"""`atoffer schemes`: which runs are legal and why, how many schemes there are, what an AToffer code becomes."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoffer_rl.atoffer_code import AtofferProgram
from atoffer_rl.cli.options import JsonOption, StandaloneOption, workload_options
from atoffer_rl.cli.output import print_json, print_line, print_table
from atoffer_rl.cli.scheme_source import device_of, recorded_table
from atoffer_rl.errors import SchemeError
from atoffer_rl.operators import OPERATOR_COUNT, run_operators
from atoffer_rl.run import Run
from atoffer_rl.scheme import Scheme, count_partitions, count_schemes
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.kernels.legal_space import LegalSpace


@workload_options
def command(
    *,
    workload: Workload,
    count: Annotated[bool, typer.Option("--count", help="Print only how many runs, partitions and schemes.")] = False,
    why: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="FIRST LAST", help="Say why operators FIRST to LAST are legal or not."),
    ] = None,
    code: Annotated[
        int | None, typer.Option("--code", metavar="CODE", help="Show what this AToffer code (0 to 65535) becomes.")
    ] = None,
    standalone: StandaloneOption = False,
    json: JsonOption = False,
) -> None:
    """List a workload's legal runs, and count its schemes.

    Example: atoffer schemes --why 10 12 --dtype bfloat16
    """
    asked = {"--count": count, "--why": why is not None, "--code": code is not None}
    given = [name for name, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise SchemeError(f"{' and '.join(given)} ask for different things: give one of them")
    if code is not None and standalone:
        raise SchemeError("--code shows AToffer's own program, to which --standalone does not apply: leave one out")
    from atoffer_rl.kernels.legal_space import LegalSpace

    space = LegalSpace(workload, device_of(recorded_table(workload)), standalone)
    if why is not None:
        _print_why(space, why, json)
    elif code is not None:
        _print_code(space, code, json)
    else:
        _print_space(space, count, json)


def _print_why(space: "LegalSpace", ends: tuple[int, int], json: bool) -> None:
    first, last = ends
    if not 0 <= first <= last < OPERATOR_COUNT:
        raise SchemeError(
            f"a run goes from an operator to itself or a later one: give two from 0 to {OPERATOR_COUNT - 1}"
        )
    run = Run(first, last)
    sentence = space.why(run)
    if json:
        legal = bool(space.choices(run))
        print_json({"run": list(run), "operators": _names(run), "legal": legal, "why": sentence})
    else:
        print_line(f"{', '.join(_names(run))}: {sentence}")


def _print_code(space: "LegalSpace", code: int, json: bool) -> None:
    from atoffer_rl.kernels.lowering import lower

    program = AtofferProgram.from_code(code)
    scheme = lower(program, space.workload, space.device)
    if json:
        print_json(
            {
                "code": code,
                "smallest_code": program.code,
                "handwritten": program.handwritten,
                "runs": [list(run) for run in program.runs],
                "scheme": scheme.to_json(),
            }
        )
        return
    kernel = ", [2,6] as the hand-written kernel" if program.handwritten else ""
    print_line(f"code {code} asks for {' '.join(map(str, program.runs))}{kernel}")
    if program.code != code:
        print_line(f"the same program as code {program.code}")
    print_line("here it becomes")
    _print_choices(scheme)


def _print_choices(scheme: Scheme) -> None:
    print_table(
        ["run", "operators", "template", "parameters"],
        [
            (
                choice.run,
                " ".join(_names(choice.run)),
                choice.template,
                choice.values,
            )
            for choice in scheme.choices
        ],
    )


def _print_space(space: "LegalSpace", count_only: bool, json: bool) -> None:
    facts = _facts(space)
    if json:
        print_json({name: value for name, value in facts.items() if name != "runs" or not count_only})
        return
    if not count_only:
        print_table(
            ["run", "operators", "choices", "templates"],
            [
                (
                    Run(*row["run"]),
                    " ".join(row["operators"]),
                    sum(row["templates"].values()),
                    ", ".join(f"{name} {number}" for name, number in row["templates"].items()),
                )
                for row in facts["runs"]
            ],
        )
        print_line()
    print_line(f"{facts['legal_runs']} legal runs with {facts['choices']} choices on {facts['device']}")
    print_line(f"{facts['partitions']:,} partitions")
    print_line(f"{facts['schemes']:,} schemes")


def _facts(space: "LegalSpace") -> dict[str, Any]:
    choices = {run: space.choices(run) for run in sorted(space.runs)}
    counts = {run: len(offered) for run, offered in choices.items()}
    return {
        "workload": space.workload.to_json(),
        "device": space.device.name,
        "legal_runs": len(choices),
        "choices": sum(counts.values()),
        "partitions": count_partitions(frozenset(choices)),
        "schemes": count_schemes(counts),
        "runs": [
            {
                "run": list(run),
                "operators": _names(run),
                "templates": dict(Counter(choice.template for choice in offered)),
            }
            for run, offered in choices.items()
        ],
    }


def _names(run: Run) -> list[str]:
    return [operator.name for operator in run_operators(run)]
