"""Synthetic recorded tables with the structure of real ones, for tests that need latencies and no GPU."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from atoffer_rl.device import H100, DeviceSpec
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import ALL_RUNS, template_named
from atoffer_rl.kernels.space import load_space
from atoffer_rl.records import AnchorSample, RecordedTable, TableHeader
from atoffer_rl.scheme import PLAIN, Choice, Scheme
from atoffer_rl.signature import signature
from atoffer_rl.table_summary import latencies, scheme_sum_us
from atoffer_rl.trial import Machine, Status, Trial
from atoffer_rl.workload import Workload

MACHINE = Machine("synthetic", "GPU-0", "0", "13.0", "nvrtc 13.0", "none")
TAKEN = "2026-01-01T00:00:00+00:00"
LAUNCH_US = 1.5


def synthetic_table(
    workload: Workload, seed: int = 0, *, others: tuple[Workload, ...] = (), device: DeviceSpec = H100
) -> RecordedTable:
    """A complete table of `workload` (and `others`): rooflines times structured log-normal factors, some failing.

    A template's parameter values have preferences that all its runs share, and some that differ from run to
    run; each template's default never fails. The same seed, signature and choice always give the same trial.
    """
    workloads = (workload, *others)
    trials: dict[tuple[str, Choice], Trial] = {}
    for item in workloads:
        for run in ALL_RUNS:
            seen: set[str] = set()
            for choice in LegalSpace(item, device).choices(run):
                key = (signature(item, run), choice)
                if key not in trials:
                    trials[key] = _trial(item, choice, seed, device, may_fail=choice.template in seen)
                seen.add(choice.template)
    spaces = {name: load_space(name).version for name in sorted({choice.template for _, choice in trials})}
    anchors = (AnchorSample(TAKEN, {"stream": 10.0, "math": 10.0}, 1980, 40),)
    header = TableHeader(f"synthetic-{seed}", MACHINE, device, workloads, spaces, anchors)
    return RecordedTable(header, tuple(trials.values()))


def with_forwards(table: RecordedTable, workload: Workload, schemes: list[Scheme], seed: int = 0) -> RecordedTable:
    """`table` with forwards of `schemes`, each about its sum."""
    by_choice = latencies(table.segments(workload))
    forwards = tuple(_forward(workload, scheme, scheme_sum_us(scheme, by_choice), seed) for scheme in schemes)
    return RecordedTable(table.header, table.trials + forwards)


def _forward(workload: Workload, scheme: Scheme, layer_us: float, seed: int) -> Trial:
    latency_us = workload.layers * layer_us * float(np.exp(0.01 * _normal(seed, scheme.key)))
    return Trial(
        subject=f"workload={workload.key}",
        choice=None,
        scheme=scheme,
        execution=scheme.execution,
        status=Status.OK,
        latency_us=latency_us,
        samples_us=(latency_us,) * 20,
        machine=MACHINE,
        taken=TAKEN,
    )


def _normal(seed: int, *words: object) -> float:
    return float(np.random.default_rng(zlib.crc32(repr((seed, *words)).encode())).standard_normal())


def _factors(choice: Choice, subject: str, seed: int) -> Iterator[float]:
    """Logarithms of what makes a choice slower than its roofline."""
    yield 0.5 * abs(_normal(seed, choice.template))
    yield 0.3 * abs(_normal(seed, choice.template, choice.run, subject))
    for name, value in choice.parameters:
        yield 0.5 * abs(_normal(seed, choice.template, name, value))
        yield 0.15 * abs(_normal(seed, choice.template, name, value, choice.run, subject))


def _trial(workload: Workload, choice: Choice, seed: int, device: DeviceSpec, may_fail: bool) -> Trial:
    subject = signature(workload, choice.run)
    work = template_named(choice.template).work(workload, choice)
    bytes_us = (work.bytes_read + work.bytes_written) / device.bandwidth_gb_s / 1e3
    flops_us = work.flops / device.peak_tflops(workload.element) / 1e6
    latency_us = LAUNCH_US + max(bytes_us, flops_us) * float(np.exp(sum(_factors(choice, subject, seed))))
    failing = may_fail and abs(_normal(seed, "fails", choice, subject)) < 0.19  # P(|z| < 0.19) is 15%
    noise = np.random.default_rng(zlib.crc32(repr((seed, choice, subject)).encode())).normal(0, 0.003, 20)
    samples = () if failing else tuple(float(latency_us * np.exp(value)) for value in noise)
    return Trial(
        subject=subject,
        choice=choice,
        scheme=None,
        execution=PLAIN,
        status=Status.WRONG_RESULT if failing else Status.OK,
        reason="planted" if failing else "",
        latency_us=float(np.median(samples)) if samples else None,
        samples_us=samples,
        max_error=1e-3,
        error_budget=4e-3,
        compile_seconds=0.25 + 0.05 * abs(_normal(seed, "compile", choice)),
        verify_seconds=0.05,
        measure_seconds=0.03,
        table=f"synthetic-{seed}",
        source_hash=f"{zlib.crc32(str(choice).encode()):016x}",
        machine=MACHINE,
        taken=TAKEN,
    )


def with_trial(table: RecordedTable, choice: Choice, **changes: Any) -> RecordedTable:
    """`table` with `changes` made to the trials of `choice`."""
    trials = tuple(replace(trial, **changes) if trial.choice == choice else trial for trial in table.trials)
    return replace(table, trials=trials)


def with_failure(table: RecordedTable, choice: Choice, **detail: Any) -> RecordedTable:
    """`table` in which `choice` fails."""
    failed = {"status": Status.WRONG_RESULT, "reason": "3 times its budget", "latency_us": None, "samples_us": ()}
    return with_trial(table, choice, **failed, detail=detail)


def with_an_illegal_choice(table: RecordedTable) -> RecordedTable:
    """`table` with the fastest choice of all, which is not legal any more."""
    trial = next(trial for trial in table.trials if trial.choice is not None and trial.choice.parameters and trial.ok)
    assert trial.choice is not None
    parameters = tuple((name, 12345) for name, _ in trial.choice.parameters)
    illegal = replace(trial, choice=replace(trial.choice, parameters=parameters), latency_us=0.02, samples_us=(0.02,))
    return replace(table, trials=(*table.trials, illegal))
