"""Options that commands share."""

import inspect
import shlex
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from atoffer_rl.agents.hyperparameters import MAX_SEED
from atoffer_rl.dtype import FLOATS
from atoffer_rl.errors import AtofferError
from atoffer_rl.quote import quote
from atoffer_rl.workload import ACTIVATIONS, Workload

Result = TypeVar("Result")

MAX_BUDGET = 10**9


def at_most(largest: int) -> Callable[[int | None], int | None]:
    """Refuses what is larger, without a bound in the help that nobody comes near."""

    def check(value: int | None) -> int | None:
        if value is not None and value > largest:
            raise typer.BadParameter(f"{quote(value)} is larger than {largest}")
        return value

    return check


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
MeasurerOption = Annotated[
    str, typer.Option(metavar="NAME", help="Who measures: cuda (live), replay (recorded) or auto.")
]
BudgetOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        callback=at_most(MAX_BUDGET),
        help="New choices to measure. [default: a tenth of the legal ones; no limit with --seconds]",
    ),
]
StandaloneOption = Annotated[
    bool, typer.Option("--standalone", help="Only generated kernels, whose export needs CuPy alone.")
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        metavar="SECONDS",
        min=0,
        help="Seconds of compiling, verifying and timing to spend. [default: no limit]",
    ),
]
SeedOption = Annotated[
    int, typer.Option(metavar="N", min=0, callback=at_most(MAX_SEED), help="Seed of everything random.")
]
LogFolderOption = Annotated[Path, typer.Option(metavar="FOLDER", help="The run gets a folder of its own in here.")]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="SQLite file that keeps live trials between runs. [default: trials.db in the cache folder]",
    ),
]
ExportOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Export the scheme found to this folder. [default: no export]"),
]
ProgressOption = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [default: on a terminal]")
]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _option(name: str, text: str, kind: Any = int, metavar: str | None = "N") -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(_flag(name), metavar=metavar, help=text)]
    default = Workload.__dataclass_fields__[name].default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


WORKLOAD_OPTIONS = (
    _option("batch", "Sequences in a batch."),
    _option("seq_len", "Tokens in a sequence."),
    _option("heads", "Attention heads."),
    _option("head_dim", "Channels of a head; the model width is heads * head-dim."),
    _option("ffn_dim", "Channels between the two feed-forward products."),
    _option("layers", "Encoder layers in a forward pass."),
    _option("dtype", f"Storage format: {', '.join(dtype.value for dtype in FLOATS)}.", str, "NAME"),
    _option("mask", "Mask with its parameters, such as strided:stride=16; atoffer masks lists them.", str, "MASK"),
    _option("activation", f"Activation: {', '.join(ACTIVATIONS)}.", str, "NAME"),
    _option("epsilon", "Added to the variance in LayerNorm.", float, "X"),
    _option("lengths", "Sequence lengths: full, uniform:shortest=1,longest=128, or list:a/b/c.", str, "LENGTHS"),
    _option("packed", "Sequences lie one right after the other, without rows between; needs --lengths.", bool, None),
)
WORKLOAD_NAMES = tuple(option.name for option in WORKLOAD_OPTIONS)
SEQUENCE_NAMES = ("lengths", "packed")
"""Of sequences that are not all full."""
ALWAYS_SAID = ("batch", "seq_len", "mask")
"""What tells workloads from each other, defaults or not."""


def options_of(workload: Workload) -> str:
    """What to type for `workload`: batch, sequence length and mask, and what is not the default."""
    words = []
    for option in WORKLOAD_OPTIONS:
        value = _short_mask(workload) if option.name == "mask" else getattr(workload, option.name)
        if option.name in ALWAYS_SAID or value != option.default:
            words += [_flag(option.name)] if value is True else [_flag(option.name), shlex.quote(str(value))]
    return " ".join(words)


def _short_mask(workload: Workload) -> str:
    """The mask without its parameters where they are the defaults."""
    name = workload.mask.partition(":")[0]
    try:
        return name if replace(workload, mask=name) == workload else workload.mask
    except AtofferError:  # a mask that has no defaults
        return workload.mask


def refuse_options(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Accept a command line that gives none of the parameters `names`; their defaults are no one's wish.

    Args:
        context: Of the command.
        names: Parameters of the command.
        why: Why they cannot be given here.

    Raises:
        AtofferError: If one is given.
    """
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        options = ", ".join(map(_flag, given))
        raise AtofferError(f"{why}: leave out {options}")


def workload_options(command: Callable[..., Result], without: Container[str] = ()) -> Callable[..., Result]:
    """Give `command`, which takes a keyword `workload: Workload`, one option for each field of a workload.

    Args:
        command: The command.
        without: Fields that keep their defaults, and have no option.

    Raises:
        WorkloadError: When the command is called with options that make no workload.
    """
    options = [option for option in WORKLOAD_OPTIONS if option.name not in without]

    @wraps(command)
    def with_options(**values: Any) -> Result:
        fields = {option.name: values.pop(option.name) for option in options}
        return command(workload=Workload(**fields), **values)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if name != "workload"
    ]
    parameters = [*own, *options]
    signature = inspect.Signature(parameters)
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
