"""Live measurement on the GPU: graphs that hold what was launched, plausible latencies, forwards near their sums."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.anchors import DRIFT, STREAM_BYTES, drift
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.cuda import CudaMeasurer
from atoffer_rl.store import Store
from atoffer_rl.tensors import reads_lengths
from atoffer_rl.trial import ForwardRequest, SegmentRequest
from atoffer_rl.workload import Workload

pytestmark = pytest.mark.gpu(alone=True)
WORKLOAD = Workload(batch=4, seq_len=128, heads=12, head_dim=64, ffn_dim=3072, layers=4)


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaMeasurer]:
    measurer = CudaMeasurer(Store(tmp_path_factory.mktemp("live") / "store.db"))
    yield measurer
    measurer.close()


def test_the_machine_is_known(measurer: CudaMeasurer) -> None:
    assert measurer.machine.uuid.startswith("GPU-")
    assert measurer.machine.driver
    assert measurer.device.arch.startswith("sm_")
    assert measurer.device.multiprocessors > 0


def test_anchors_agree_with_themselves_and_with_the_bandwidth(measurer: CudaMeasurer) -> None:
    first, second = measurer.time_anchors(), measurer.time_anchors()
    assert drift(first.latencies_us, second.latencies_us) < DRIFT
    assert first.sm_clock_mhz > 0
    assert first.temperature_c > 0
    gb_s = 2 * STREAM_BYTES / first.latencies_us["stream"] / 1e3
    assert 0.5 < gb_s / measurer.device.bandwidth_gb_s < 1.2


def test_one_choice_of_every_template_and_run(measurer: CudaMeasurer) -> None:
    space = LegalSpace(WORKLOAD, measurer.device)
    requests = [
        SegmentRequest(WORKLOAD, choice)
        for run in sorted(space.runs)
        for choice in {choice.template: choice for choice in reversed(space.choices(run))}.values()
    ]
    trials = measurer.measure(requests)
    failed = [f"{trial.choice}: {trial.status.value} {trial.reason}" for trial in trials if not trial.ok]
    assert not failed, failed
    for trial in trials:
        assert trial.latency_us is not None
        assert 0.5 < trial.latency_us < 5_000
        assert len(trial.samples_us) >= 20
        assert np.quantile(trial.samples_us, 0.75) / min(trial.samples_us) < 2, "one hiccup is not a measurement"
    assert measurer.measure(requests) == trials


def test_a_forward_is_about_the_sum_of_its_segments(measurer: CudaMeasurer) -> None:
    scheme = LegalSpace(WORKLOAD, measurer.device).unfused
    segments = measurer.measure([SegmentRequest(WORKLOAD, choice) for choice in scheme.choices])
    forward = measurer.measure([ForwardRequest(WORKLOAD, scheme)])[0]
    assert forward.ok, forward.reason
    assert forward.latency_us is not None
    total = WORKLOAD.layers * sum(trial.latency_us or 0.0 for trial in segments)
    assert 0.8 < total / forward.latency_us < 1.25


def copies(stream: Any, target: Any) -> None:
    import cupy

    cupy.cuda.runtime.memsetAsync(target.data.ptr, 0, target.nbytes, stream)


def test_a_launch_on_another_stream_is_an_error() -> None:
    import cupy

    from atoffer_rl.kernels.timing import CapturedGraph, time_launches

    target = cupy.zeros(1 << 20, cupy.uint8)
    stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(LaunchError, match="0 nodes"):
        CapturedGraph(stream, [partial(copies, other.ptr, target)])
    timing = time_launches(stream, [partial(copies, stream.ptr, target)])
    assert 0.1 < timing.latency_us < 100
    assert len(timing.samples_us) >= 20


@pytest.mark.parametrize("packed", [False, True])
def test_sequences_are_timed_on_lengths_that_the_trial_names(packed: bool, measurer: CudaMeasurer) -> None:
    padded = replace(WORKLOAD, lengths="uniform:shortest=0", packed=packed)
    scheme = LegalSpace(padded, measurer.device).unfused
    *segments, forward = measurer.measure(
        [*(SegmentRequest(padded, choice) for choice in scheme.choices), ForwardRequest(padded, scheme)]
    )
    timed = padded.length_spec.typical(padded.batch).tolist()
    assert forward.ok, forward.reason
    assert forward.detail["lengths"] == timed
    for trial in segments:
        assert trial.ok, trial.reason
        assert trial.run is not None
        assert trial.detail.get("lengths") == (timed if reads_lengths(padded, trial.run) else None)
