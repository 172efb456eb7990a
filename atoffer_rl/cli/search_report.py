"""What `train`, `search` and `eval` print at their end."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from atoffer_rl.agents.log import RESULT_FILE
from atoffer_rl.cli.options import options_of
from atoffer_rl.cli.output import print_line, print_table
from atoffer_rl.records import describe
from atoffer_rl.scheme import Scheme

if TYPE_CHECKING:
    from atoffer_rl.agents.session import Result, Session
    from atoffer_rl.kernels.ledger import Ledger

Report = Callable[["Result", "Session", float | None], None]
"""Prints a result, with the recommendation's whole forward in us where it was measured."""


def report_search(result: "Result", session: "Session", forward_us: float | None) -> None:
    """The recommendation, then the policy's own rollout if there is a policy."""
    print_line(f"best scheme for {describe(session.workload)}")
    print_scheme(result.scheme, session.ledger)
    print_recommended(result, session, forward_us)
    if result.rollout_us is not None:
        print_line(f"{result.rollout_us:.1f} us a layer by the policy's own rollout{_regret(result.rollout_regret)}")
    if result.rollout is not None and result.rollout != result.scheme:
        print_scheme(result.rollout, session.ledger)
    print_line(f"{_measured(result, session)}; the search took {result.wall_seconds:.1f} s")
    if session.log.folder is not None:
        logs = shlex.quote(str(session.log.folder.parent))
        print_line(f"logs and result in {session.log.folder}: {program('tensorboard')} --logdir {logs}")


def report_proposal(result: "Result", session: "Session", forward_us: float | None) -> None:
    """The scheme that a policy proposed without measuring, then the best path if that is another one."""
    _report_built(result, session, forward_us, _measured(result, session, "measured only to score it"))


def report_rollout(result: "Result", session: "Session", forward_us: float | None) -> None:
    """The scheme that a policy built of what was measured, then the best path if that is another one."""
    _report_built(result, session, forward_us, f"built from what is known: {_measured(result, session)}")


def _report_built(result: "Result", session: "Session", forward_us: float | None, measured: str) -> None:
    print_line(f"the policy's own scheme for {describe(session.workload)}")
    if result.rollout is None or result.rollout_us is None:
        print_line(f"has no latency: {'one of its choices failed' if result.finished else 'it was not built yet'}")
    else:
        print_scheme(result.rollout, session.ledger)
        print_line(_latency(result.rollout_us, result.unfused_us, result.rollout_regret))
    print_line(measured)
    if result.rollout != result.scheme:
        print_line("the best path through what is known, the unfused scheme included")
        print_scheme(result.scheme, session.ledger)
        print_recommended(result, session, forward_us)


def print_recommended(result: "Result", session: "Session", forward_us: float | None) -> None:
    """How fast the recommendation is."""
    print_line(_latency(result.latency_us, result.unfused_us, result.regret))
    if forward_us is not None:
        print_line(f"{forward_us:.1f} us the whole forward of {session.workload.layers} layers, measured")


def print_scheme(scheme: Scheme, ledger: "Ledger") -> None:
    """A segment a line."""
    print_table(
        ["run", "template", "parameters", "us"],
        [
            (choice.run, choice.template, choice.values, f"{ledger.trials[choice].latency_us:.2f}")
            for choice in scheme.choices
        ],
    )


def print_export_command(session: "Session") -> None:
    """How what was found becomes kernels; nothing where no result was kept."""
    if session.log.folder is not None:
        scheme = shlex.quote(str(session.log.folder / RESULT_FILE))
        words = f"export DIR --scheme {scheme} {options_of(session.workload)}"
        print_line(f"export it (needs no GPU): {program('atoffer')} {words}")


def verify_command(folder: Path) -> str:
    """How an export is checked where it is used."""
    return f"python {shlex.quote(str(folder / 'runtime.py'))} verify"


def program(name: str) -> str:
    """What to type for a program installed beside this Python: its name, or its path where the shell finds none."""
    path = Path(sys.executable).with_name(name)
    if shutil.which(name) is not None or not path.is_file():
        return name
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def _latency(latency_us: float, unfused_us: float, regret: float | None) -> str:
    return f"{latency_us:.1f} us a layer, {unfused_us / latency_us:.2f} times as fast as unfused{_regret(regret)}"


def _measured(result: "Result", session: "Session", how: str = "measured") -> str:
    complete = ", all there are" * session.ledger.complete
    free = len(session.ledger.space.unfused.choices)
    recorded = " when recorded" if session.ledger.measurer.name == "replay" else ""
    return (
        f"{result.units} choices {how}{complete} (the {free} of the unfused scheme are free), "
        f"{result.seconds:.1f} s of measuring{recorded}{_forfeited(session)}"
    )


def _forfeited(session: "Session") -> str:
    """What is left of a budget whose policy has stopped measuring."""
    units = session.ledger.units
    if units is None or session.units is None or units >= session.units or session.ledger.complete:
        return ""
    left = session.units - units
    return f", {left} units forfeited: the policy built schemes of known choices alone, another --seed may not"


def _regret(regret: float | None) -> str:
    return "" if regret is None else f", {regret:.1%} above the best there is"
