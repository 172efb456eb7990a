"""What `train`, `search` and `eval` share: opening a session under a budget, watching it, and finishing it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from atoffer_rl.cli.interrupts import noted_interrupts
from atoffer_rl.cli.output import print_json, print_line
from atoffer_rl.cli.progress_bar import ProgressBar, shows_progress
from atoffer_rl.cli.search_report import Report, print_export_command, report_search, verify_command
from atoffer_rl.cli.start import INTERRUPTED
from atoffer_rl.errors import LaunchError, LogError, NotRecorded
from atoffer_rl.scheme import Scheme
from atoffer_rl.trial import ForwardRequest, Trial
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.agents.log import RunLog
    from atoffer_rl.agents.session import Point, Result, Searcher, Session
    from atoffer_rl.kernels.ledger import Ledger
    from atoffer_rl.kernels.measurers.protocol import Measurer

BUDGET_SHARE = 10
"""The default budget is the legal choices over this."""


@contextmanager
def opened_measurer(name: str, workload: Workload, store: Path | None, quiet: bool) -> Iterator["Measurer"]:
    """The measurer called `name`; says which it is, and closes it."""
    from atoffer_rl.kernels.machine import gpu_count
    from atoffer_rl.kernels.measurers.open import open_measurer

    measurer, line = open_measurer(name, workload, store)
    if name == "auto" and measurer.name == "replay":
        reason = "live measurement is not possible here" if gpu_count() else "no GPU here"
        recorded = f"replaying latencies recorded on {measurer.device.name}"
        line = f"{reason}: {recorded} (`atoffer doctor` says what live measurement needs)"
        line += f"; {store} is not used" if store is not None else ""
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
    """A progress bar of `session` on stderr."""
    with ProgressBar(shows_progress(show, quiet)) as bar:
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


def finish(
    result: "Result", session: "Session", export: Path | None, json: bool, report: Report = report_search
) -> int:
    """Measure the whole forward, export what was found if asked to, and print it; the command's exit status.

    Raises:
        LaunchError: If the forward fails: then nothing is exported.
    """
    if not result.finished:
        _print(result, session, None, json, report)
        return INTERRUPTED
    forward: Trial | None = None
    try:
        forward = _forward(session.ledger, result.scheme)
        if export is not None:
            _export(session.ledger, result.scheme, forward, export)
    finally:  # none is lost by another's failure
        _print(result, session, forward.latency_us if forward is not None else None, json, report)
    if json:
        return 0
    if export is None:
        print_export_command(session)
    else:
        print_line(f"exported to {export}; check it where it is used: {verify_command(export)}")
    return 0


def _print(result: "Result", session: "Session", forward_us: float | None, json: bool, report: Report) -> None:
    if json:
        print_json(result.to_json() | {"workload": session.workload.to_json(), "forward_us": forward_us})
    else:
        report(result, session, forward_us)


def _forward(ledger: "Ledger", scheme: Scheme) -> Trial | None:
    """The whole forward, measured outside the budget; None where it was not recorded."""
    try:
        (forward,) = ledger.measurer.measure([ForwardRequest(ledger.workload, scheme)])
    except NotRecorded:
        return None
    if not forward.ok:
        outcome = f"{forward.status.value.replace('_', ' ')}: {forward.reason}"
        raise LaunchError(f"the scheme's segments are right, its whole forward is not ({outcome}); nothing is exported")
    return forward


def _export(ledger: "Ledger", scheme: Scheme, forward: Trial | None, folder: Path) -> None:
    from atoffer_rl.kernels.export.writer import Export, write_export

    device = ledger.measurer.device
    write_export(Export(ledger.workload, scheme, device, (device.arch,), ledger.trials, forward), folder)


def check_export_folder(folder: Path | None) -> None:
    """Accept a folder that an export can be written to, before a long search.

    Raises:
        ExportError: If it holds something else, or cannot be written.
    """
    from atoffer_rl.kernels.export.writer import check_folder

    if folder is not None:
        check_folder(folder)
