"""`atoffer explain`: what a scheme does, and where its time goes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from atoffer_rl.atoffer_code import AtofferProgram
from atoffer_rl.cli.measured import KnownTrials, measured_of
from atoffer_rl.cli.options import JsonOption, StoreOption, workload_options
from atoffer_rl.cli.output import print_json, print_line, print_table
from atoffer_rl.cli.scheme_source import failure, read_scheme
from atoffer_rl.device import DEFAULT_DEVICE, DeviceSpec
from atoffer_rl.errors import NotRecorded, SchemeError
from atoffer_rl.liveness import plan_buffers
from atoffer_rl.operators import run_operators
from atoffer_rl.records import describe, list_workloads, recorded_workloads
from atoffer_rl.roofline import floor_us
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.table_summary import best_with, latencies
from atoffer_rl.trial import Trial
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class Row:
    """One segment of the scheme.

    Attributes:
        run: First and last operator.
        operators: Their names.
        template: Who executes it.
        parameters: With what.
        blocks: Blocks launched, 0 where a library decides.
        bytes: Device memory read and written.
        flops: Floating-point operations.
        floor_us: Roofline time.
        status: What became of its trial, such as `ok` or `wrong_result`; None where there is none.
        latency_us: Measured latency; None where there is none, or it failed.
        why: How it stands among what was measured for the same run, or why it failed; None where it was not measured.
    """

    run: tuple[int, int]
    operators: list[str]
    template: str
    parameters: dict[str, int]
    blocks: int
    bytes: int
    flops: int
    floor_us: float
    status: str | None
    latency_us: float | None
    why: str | None


@workload_options
def command(
    *,
    workload: Workload,
    scheme: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON file with a scheme, a search's result or a manifest.")
    ] = None,
    code: Annotated[
        int | None, typer.Option("--code", metavar="CODE", help="Explain what this AToffer code becomes.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a scheme does, segment by segment.

    Without --scheme or --code, the best of what was measured: by the recorded table, or else by the trials that a
    search, `bench mha` or `record` left in the store. The floor is what device memory and tensor cores need: a
    segment whose inputs are in the cache may be below it.

    Example: atoffer explain --batch 16 --seq-len 256 --code 41115
    """
    measured = measured_of(workload, store)
    device = measured.device if measured is not None else DEFAULT_DEVICE
    chosen, origin = _chosen(workload, scheme, code, measured, device)
    rows = _rows(workload, chosen, measured, device)
    if json:
        _print_json(workload, chosen, origin, device, rows)
    else:
        _print_text(workload, origin, measured, device, rows)
        peak_bytes = plan_buffers(workload, chosen.runs).peak_bytes
        print_line(f"activations: {peak_bytes / 1e6:.2f} MB at the peak, input and output included")


def _chosen(
    workload: Workload, path: Path | None, code: int | None, measured: KnownTrials | None, device: DeviceSpec
) -> tuple[Scheme, str]:
    from atoffer_rl.kernels.legal_space import LegalSpace

    if path is not None and code is not None:
        raise SchemeError("--scheme and --code are two schemes: give one of them")
    space = LegalSpace(workload, device)
    if path is not None:
        return read_scheme(path, space), f"the scheme in {path}"
    if code is not None:
        from atoffer_rl.kernels.lowering import lower

        chosen, origin = lower(AtofferProgram.from_code(code), workload, device), f"AToffer code {code}"
    elif measured is not None:
        known_us = {choice: us for choice, us in latencies(measured.trials).items() if choice in space}
        chosen, origin = best_with(known_us, space.unfused), f"the best scheme of {measured.name}"
        if any(choice not in known_us for choice in chosen.choices):
            origin += ", unfused where nothing was measured"
    else:
        recorded = list_workloads(recorded_workloads())
        raise NotRecorded(f"{describe(workload)} was not measured: give --scheme or --code; recorded: {recorded}")
    space.check(chosen)
    return chosen, origin


def _rows(workload: Workload, scheme: Scheme, measured: KnownTrials | None, device: DeviceSpec) -> list[Row]:
    trials = measured.trials if measured is not None else {}
    known_us = latencies(trials)
    return [_row(workload, choice, device, trials.get(choice), known_us) for choice in scheme.choices]


def _row(
    workload: Workload, choice: Choice, device: DeviceSpec, trial: Trial | None, measured: Mapping[Choice, float]
) -> Row:
    from atoffer_rl.kernels.registry import template_named

    template = template_named(choice.template)
    work = template.work(workload, choice)
    moved = work.bytes_read + work.bytes_written
    return Row(
        run=(choice.run.first, choice.run.last),
        operators=[operator.name for operator in run_operators(choice.run)],
        template=choice.template,
        parameters=dict(choice.parameters),
        blocks=template.geometry(workload, choice).blocks,
        bytes=moved,
        flops=work.flops,
        floor_us=floor_us(moved, work.flops, workload.element, device),
        status=trial.status.value if trial is not None else None,
        latency_us=measured.get(choice),
        why=_why(trial, choice, {other: us for other, us in measured.items() if other.run == choice.run}),
    )


def _why(trial: Trial | None, choice: Choice, measured: Mapping[Choice, float]) -> str | None:
    """Why it failed, or how it stands among the choices measured for the same run."""
    if trial is None:
        return None
    return _standing(choice, measured) if trial.ok else f"{choice.run} failed, {failure(trial)}"


def _standing(choice: Choice, measured: Mapping[Choice, float]) -> str:
    """Rank among the choices measured for the same run, and the best others of its template and of another one."""
    latency_us = measured[choice]
    rank = sum(us < latency_us for us in measured.values()) + 1
    place = "fastest" if rank == 1 else _ordinal(rank)
    parts = [f"{place} of {len(measured)} measured for [{choice.run.first},{choice.run.last}]"]
    others = [(us, other) for other, us in measured.items() if other != choice]
    for same, name in ((True, f"the best other {choice.template}"), (False, "the best of another template")):
        rivals = [(us, other) for us, other in others if (other.template == choice.template) is same]
        if rivals:
            us, rival = min(rivals, key=lambda pair: pair[0])
            named = rival.values if same else f"{rival.template} {rival.values}"
            parts.append(f"{name} takes {us / latency_us:.2f} of its time: {named}")
    return "; ".join(parts)


def _ordinal(number: int) -> str:
    teen = number // 10 % 10 == 1
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _total_us(rows: list[Row]) -> float | None:
    known_us = [row.latency_us for row in rows if row.latency_us is not None]
    return sum(known_us) if len(known_us) == len(rows) else None


def _print_json(workload: Workload, scheme: Scheme, origin: str, device: DeviceSpec, rows: list[Row]) -> None:
    summary: dict[str, Any] = {
        "workload": workload.to_json(),
        "origin": origin,
        "device": device.name,
        "scheme": scheme.to_json(),
        "layer_floor_us": sum(row.floor_us for row in rows),
        "layer_latency_us": _total_us(rows),
        "peak_activation_bytes": plan_buffers(workload, scheme.runs).peak_bytes,
        "segments": [asdict(row) for row in rows],
    }
    print_json(summary)


def _print_text(
    workload: Workload, origin: str, measured: KnownTrials | None, device: DeviceSpec, rows: list[Row]
) -> None:
    print_line(f"{origin}, for {describe(workload)}, on {device.name}")
    if measured is not None:
        print_line(f"latencies: {measured.name}")
    total_us = _total_us(rows)
    print_table(
        ["run", "template", "parameters", "blocks", "MB", "GFLOP", "floor us", "us", "share", "operators"],
        [_cells(row, total_us) for row in rows],
    )
    if below := [_run(row) for row in rows if row.latency_us is not None and row.latency_us < row.floor_us]:
        print_line(
            f"below the floor: {' '.join(below)}; the floor has all bytes come from device memory, theirs may be cached"
        )
    for row in rows:
        if row.why is not None:
            print_line(f"{row.template}: {row.why}")
    floor = sum(row.floor_us for row in rows)
    if total_us is None:
        print_line(f"one layer: floor {floor:.2f} us; {_why_no_total(rows)}")
    else:
        print_line(
            f"one layer: {total_us:.2f} us, {total_us / floor:.2f} times the floor of {floor:.2f} us; "
            f"{workload.layers} layers: {workload.layers * total_us:.1f} us"
        )


def _why_no_total(rows: list[Row]) -> str:
    failed = [_run(row) for row in rows if row.status is not None and row.latency_us is None]
    return f"no latency, for {' '.join(failed)} failed" if failed else "not every segment was measured"


def _run(row: Row) -> str:
    return f"[{row.run[0]},{row.run[1]}]"


def _cells(row: Row, total_us: float | None) -> tuple[object, ...]:
    share = f"{row.latency_us / total_us:.1%}" if row.latency_us is not None and total_us else "-"
    return (
        _run(row),
        row.template,
        " ".join(f"{name}={value}" for name, value in row.parameters.items()),
        row.blocks or "-",
        f"{row.bytes / 1e6:.2f}",
        f"{row.flops / 1e9:.3f}",
        f"{row.floor_us:.2f}",
        row.status or "-" if row.latency_us is None else f"{row.latency_us:.2f}",
        share,
        " ".join(row.operators),
    )
