"""`atoffer export`: a scheme becomes a folder of generated kernels that runs without this package."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoffer_rl.cli.options import JsonOption, StandaloneOption, workload_options
from atoffer_rl.cli.output import print_json, print_line
from atoffer_rl.cli.scheme_source import device_of, failure, read_scheme, recorded_table
from atoffer_rl.cli.search_report import verify_command
from atoffer_rl.errors import ExportError, NotRecorded
from atoffer_rl.records import RecordedTable
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.table_summary import best_recorded
from atoffer_rl.trial import Trial
from atoffer_rl.workload import Workload

if TYPE_CHECKING:
    from atoffer_rl.kernels.legal_space import LegalSpace


@workload_options
def command(
    *,
    workload: Workload,
    folder: Annotated[Path, typer.Argument(help="Where the export goes; an earlier export there is replaced.")],
    scheme: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON file with a scheme or a search's result; the best recorded scheme by default."
        ),
    ] = None,
    standalone: StandaloneOption = False,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="ARCH", help="Compiler target, such as sm_90a; may be given more than once."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a scheme as a folder of kernels; needs no GPU.

    The folder holds sources, cubins, a manifest and a runtime, and runs without this package.

    Example: atoffer export out/scheme --batch 16 --seq-len 256 --mask strided --arch sm_90a
    """
    from atoffer_rl.kernels.export.writer import Export, write_export
    from atoffer_rl.kernels.legal_space import LegalSpace

    table = recorded_table(workload)
    device = device_of(table)
    space = LegalSpace(workload, device, standalone)
    chosen = read_scheme(scheme, space) if scheme is not None else _best_recorded(space, table)
    trials = table.segments(workload) if table is not None else {}
    _check_recorded(chosen, trials)
    forward = table.forwards(workload).get(chosen) if table is not None else None
    archs = tuple(dict.fromkeys(arch or [device.arch]))
    write_export(Export(workload, chosen, device, archs, trials, forward), folder)
    if json:
        print_json({"folder": str(folder), "scheme": chosen.to_json(), "archs": list(archs)})
    else:
        print_line(f"{folder}: {len(chosen.choices)} segments for {', '.join(archs)}")
        print_line(f"check it where it is used: {verify_command(folder)}")


def _check_recorded(scheme: Scheme, trials: Mapping[Choice, Trial]) -> None:
    """Refuse a scheme with a choice that is recorded to fail."""
    for choice in scheme.choices:
        trial = trials.get(choice)
        if trial is not None and not trial.ok and not trial.transient:
            raise ExportError(f"{choice} failed when it was recorded, {failure(trial)}: export another scheme")


def _best_recorded(space: "LegalSpace", table: RecordedTable | None) -> Scheme:
    if table is None:
        raise NotRecorded("this workload is not recorded: give --scheme, such as a search's result.json")
    return best_recorded(table, space.workload, space)[0]
