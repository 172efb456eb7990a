"""What `train` and `search` share: opening a session under a budget, watching it, and saying what it found."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoffer_rl.agents.hyperparameters import MAX_SEED
from atoffer_rl.cli.interrupts import noted_interrupts
from atoffer_rl.cli.output import print_json, print_line, print_table
from atoffer_rl.cli.progress_bar import ProgressBar
from atoffer_rl.cli.start import INTERRUPTED
from atoffer_rl.errors import LaunchError, LogError, NotRecorded
from atoffer_rl.records import describe
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.agents.log import RunLog
    from atoffer_rl.agents.session import Point, Result, Searcher, Session
    from atoffer_rl.kernels.ledger import Ledger
    from atoffer_rl.kernels.measurers.protocol import Measurer
    from atoffer_rl.trial import Trial

BUDGET_SHARE = 10
"""The default budget is the legal choices over this."""
MAX_BUDGET = 10**9

MeasurerOption = Annotated[str, typer.Option(help="Who measures: cuda (live), replay (recorded) or auto.")]
BudgetOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_BUDGET,
        help="New choices to measure. [default: a tenth of the legal ones; no limit with --seconds]",
    ),
]
StandaloneOption = Annotated[
    bool, typer.Option("--standalone", help="Only generated kernels, so that an export needs CuPy alone.")
]
SecondsOption = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds of compiling, verifying and timing to spend. [default: no limit]"),
]
SeedOption = Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything random.")]
LogFolderOption = Annotated[Path, typer.Option(help="The run gets a folder of its own in here.")]
StoreOption = Annotated[
    Path | None,
    typer.Option(help="SQLite file that keeps live trials between runs. [default: trials.db in the cache folder]"),
]
ExportOption = Annotated[Path | None, typer.Option(help="Export the scheme found to this folder. [default: no export]")]
ProgressOption = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar. [default: on a terminal]")
]


@contextmanager
def opened_measurer(name: str, workload: Workload, store: Path | None, quiet: bool) -> Iterator["Measurer"]:
    """The measurer called `name`; says which it is, and closes it."""
    from atoffer_rl.kernels.measurers.open import open_measurer

    measurer, line = open_measurer(name, workload, store)
    if not quiet:
        print_line(line)
    try:
        yield measurer
    finally:
        measurer.close()


def new_session(
    workload: Workload,
    measurer: "Measurer",
    budget: tuple[int | None, float | None],
    standalone: bool,
    seed: int,
    log: "RunLog",
) -> "Session":
    """A session under a budget of units and seconds; where neither is given, a tenth of the legal choices."""
    from atoffer_rl.agents.oracle import known_oracle_us
    from atoffer_rl.agents.session import Session
    from atoffer_rl.kernels.ledger import Ledger

    ledger = Ledger(workload, measurer, *budget, standalone)
    if budget == (None, None):
        ledger.units = len(ledger.space.all_choices) // BUDGET_SHARE
    return Session(ledger, log, seed, known_oracle_us(workload, measurer, standalone))


def run_folder(parent: Path, name: str) -> Path:
    """A new folder in `parent`, called `name` and numbered: two runs that start at once get two.

    Raises:
        LogError: If it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            with suppress(FileExistsError):
                (folder := parent / f"{name}-{number}").mkdir()
                break
    except OSError as error:
        raise LogError(f"cannot write {parent} ({error.strerror}): use another --log-folder") from error
    return folder


def run_name(searcher: str, workload: Workload, seed: int) -> str:
    """Says what a run is about."""
    mask = workload.mask.split(":")[0] + (f"-{workload.length_spec.name}" if workload.padded else "")
    mask += "-packed" * workload.packed
    return f"{searcher}-b{workload.batch}-s{workload.seq_len}-{mask}-{workload.dtype}-seed{seed}"


@contextmanager
def watched(session: "Session", show: bool | None, quiet: bool) -> Iterator[None]:
    """A progress bar of `session` on stderr: where asked for, else on a terminal unless all is quiet."""
    visible = (not quiet and sys.stderr.isatty()) if show is None else show
    with ProgressBar(visible) as bar:
        bar.show("measuring", 0, session.ledger.units)

        def advance(point: "Point") -> None:
            bar.show("measuring", point.units, session.ledger.units, f"best {point.best_us:.1f} us a layer")

        session.on_progress = advance
        yield
        session.on_progress = None


def searched(searcher: "Searcher", name: str, session: "Session") -> "Result":
    """What `searcher` found, also where Ctrl-C ended it."""
    with noted_interrupts() as session.interrupted:
        try:
            return searcher(session)
        except KeyboardInterrupt:
            return session.result(name, finished=False)


def finish(result: "Result", session: "Session", export: Path | None, json: bool) -> int:
    """Measure the whole forward, export what was found if asked to, and print it; the command's exit status.

    Raises:
        LaunchError: If the forward fails: then nothing is exported.
    """
    if not result.finished:
        _print(result, session, None, json)
        return INTERRUPTED
    forward: Trial | None = None
    try:
        forward = _forward(session.ledger, result.scheme)
        if export is not None:
            _export(session.ledger, result.scheme, forward, export)
    finally:  # none is lost by another's failure
        _print(result, session, forward.latency_us if forward is not None else None, json)
    if export is not None and not json:
        print_line(f"exported to {export}; check it where it is used: python {export}/runtime.py verify")
    return 0


def _print(result: "Result", session: "Session", forward_us: float | None, json: bool) -> None:
    if json:
        print_json(result.to_json() | {"workload": session.workload.to_json(), "forward_us": forward_us})
    else:
        _print_result(result, session, forward_us)


def _forward(ledger: "Ledger", scheme: Scheme) -> "Trial | None":
    """The whole forward, measured outside the budget; None where it was not recorded."""
    from atoffer_rl.trial import ForwardRequest

    try:
        (forward,) = ledger.measurer.measure([ForwardRequest(ledger.workload, scheme)])
    except NotRecorded:
        return None
    if not forward.ok:
        outcome = f"{forward.status.value.replace('_', ' ')}: {forward.reason}"
        raise LaunchError(f"the scheme's segments are right, its whole forward is not ({outcome}); nothing is exported")
    return forward


def _export(ledger: "Ledger", scheme: Scheme, forward: "Trial | None", folder: Path) -> None:
    from atoffer_rl.kernels.export.writer import Export, write_export

    device = ledger.measurer.device
    write_export(Export(ledger.workload, scheme, device, (device.arch,), ledger.trials, forward), folder)


def _print_result(result: "Result", session: "Session", forward: float | None) -> None:
    ledger, workload = session.ledger, session.workload
    print_line(f"best scheme for {describe(workload)}")
    _print_scheme(result.scheme, ledger)
    speedup = result.unfused_us / result.latency_us
    print_line(f"{result.latency_us:.1f} us a layer, {speedup:.2f} times as fast as unfused{_regret(result.regret)}")
    if forward is not None:
        print_line(f"{forward:.1f} us the whole forward of {workload.layers} layers, measured")
    if result.rollout_us is not None:
        print_line(f"{result.rollout_us:.1f} us a layer by the policy's own rollout{_regret(result.rollout_regret)}")
    if result.rollout is not None and result.rollout != result.scheme:
        _print_scheme(result.rollout, ledger)
    print_line(
        f"{result.units} choices measured in {result.seconds:.1f} measuring seconds; "
        f"the search took {result.wall_seconds:.1f} s"
    )
    if session.log.folder is not None:
        print_line(f"logs and result in {session.log.folder}: tensorboard --logdir {session.log.folder.parent}")


def _print_scheme(scheme: Scheme, ledger: "Ledger") -> None:
    print_table(
        ["run", "template", "parameters", "us"],
        [
            (choice.run, choice.template, _values(choice.parameters), f"{ledger.trials[choice].latency_us:.2f}")
            for choice in scheme.choices
        ],
    )


def _regret(regret: float | None) -> str:
    return "" if regret is None else f", {regret:.1%} above the best there is"


def _values(parameters: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters)


def check_export_folder(folder: Path | None) -> None:
    """Accept a folder that an export can be written to, before a long search.

    Raises:
        ExportError: If it holds something else, or cannot be written.
    """
    from atoffer_rl.kernels.export.writer import check_folder

    if folder is not None:
        check_folder(folder)
