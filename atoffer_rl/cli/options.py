"""Options that commands share."""

import inspect
from collections.abc import Callable, Container, Iterable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from atoffer_rl.dtype import FLOATS
from atoffer_rl.errors import AtofferError
from atoffer_rl.workload import ACTIVATIONS, Workload

Result = TypeVar("Result")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _option(name: str, text: str, kind: Any = int) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    annotation = Annotated[kind, typer.Option(flag, help=text)]
    default = Workload.__dataclass_fields__[name].default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


WORKLOAD_OPTIONS = (
    _option("batch", "Sequences in a batch."),
    _option("seq_len", "Tokens in a sequence."),
    _option("heads", "Attention heads."),
    _option("head_dim", "Channels of a head; the model width is heads * head-dim."),
    _option("ffn_dim", "Channels between the two feed-forward products."),
    _option("layers", "Encoder layers in a forward pass."),
    _option("dtype", f"Storage format: {', '.join(dtype.value for dtype in FLOATS)}.", str),
    _option("mask", "Mask with its parameters, such as strided:stride=16; atoffer masks lists them.", str),
    _option("activation", f"Activation: {', '.join(ACTIVATIONS)}.", str),
    _option("epsilon", "Added to the variance in LayerNorm.", float),
    _option("lengths", "Sequence lengths: full, uniform:shortest=1,longest=128, or list:a/b/c.", str),
    _option("packed", "Sequences lie one right after the other, without rows between; needs --lengths.", bool),
)
WORKLOAD_NAMES = tuple(option.name for option in WORKLOAD_OPTIONS)
SEQUENCE_NAMES = ("lengths", "packed")
"""Of sequences that are not all full."""


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
        options = ", ".join("--" + name.replace("_", "-") for name in given)
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
