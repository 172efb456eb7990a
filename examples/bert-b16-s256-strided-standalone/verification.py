"""Checks an exported encoder against a float64 reference on this GPU, and times it beside the safe scheme."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference import Reference  # type: ignore[import-not-found]
from runtime import BEST, SAFE, VERIFIED, VERIFYING, Encoder, ExportError  # type: ignore[import-not-found]

REPLAYS = 30
SEEDS = (0, 1)


def verify(folder: Path) -> dict[str, Any]:
    """Check both schemes, time both, settle on one and remember it in `verified.json`.

    Returns:
        `scheme` (the one settled on), `usable`, `summary`, and each scheme's error, budget and samples.

    Raises:
        ExportError: If the folder cannot be loaded here, or the result cannot be written.
    """
    results = {name: _check(folder, name) for name in (BEST, SAFE)}
    best, safe = results[BEST], results[SAFE]
    good = best["right"] and (not safe["right"] or best["latency_us"] <= safe["latency_us"])
    scheme = BEST if good else SAFE
    record = {"scheme": scheme, "usable": results[scheme]["right"], "schemes": results}
    record["summary"] = _summary(scheme, results)
    _keep(folder / VERIFIED, json.dumps(record, indent=1) + "\n")
    return record


def _keep(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all: half of it would settle nothing."""
    partial = path.with_name(VERIFYING)
    try:
        partial.unlink(missing_ok=True)  # whatever it is
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ExportError(f"cannot write {path} ({error.strerror}): make room, or copy the export elsewhere") from error


def _summary(scheme: str, results: dict[str, Any]) -> str:
    lines = [
        f"{name}: {'right' if found['right'] else 'WRONG'}, error {found['max_error']:.3g}"
        f" of {found['error_budget']:.3g} allowed, {found['latency_us']:.1f} us a forward"
        for name, found in results.items()
    ]
    ratio = results[SAFE]["latency_us"] / results[BEST]["latency_us"]
    verdict = f"using {scheme}: the best scheme is {ratio:.2f} times as fast as the safe one here"
    if not results[scheme]["right"]:
        verdict = "NOT usable: both schemes are wrong on this GPU"
    return "\n".join([*lines, verdict])


def _check(folder: Path, scheme: str) -> dict[str, Any]:
    encoder = Encoder.load(folder, scheme)
    error = budget = 0.0
    right = True
    for seed in SEEDS:
        reference = Reference(encoder.manifest, folder, seed)
        found_error, found_budget, finite = reference.judge(
            lambda x, w, out, sequences: encoder.forward(x, w, out=out, **sequences)
        )
        right = right and finite and found_error <= found_budget
        if found_error / max(found_budget, 1e-30) >= error / max(budget, 1e-30):
            error, budget = found_error, found_budget
    samples = time_forward(encoder, reference)
    return {
        "right": right,
        "max_error": error,
        "error_budget": budget,
        "latency_us": statistics.median(samples),
        "samples_us": samples,
    }


def time_forward(encoder: Any, reference: Any, replays: int = REPLAYS) -> list[float]:
    """Latency of `replays` CUDA-graph replays of the whole forward, in microseconds."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    out = reference.empty_output()
    sequences = reference.timed_sequences
    encoder.forward(reference.x, reference.weights, out=out, stream=stream.ptr, **sequences)
    stream.synchronize()
    stream.begin_capture()
    encoder.forward(reference.x, reference.weights, out=out, stream=stream.ptr, **sequences)
    graph = stream.end_capture()
    return timed_replays(lambda: graph.launch(stream), stream, replays)


def timed_replays(launch: Callable[[], None], stream: Any, replays: int) -> list[float]:
    """Microseconds between events around each call of `launch`, after three warm-ups."""
    import cupy

    for _ in range(3):
        launch()
    samples = []
    for _ in range(replays):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        launch()
        end.record(stream)
        end.synchronize()
        samples.append(round(cupy.cuda.get_elapsed_time(start, end) * 1000.0, 3))
    return samples
