"""Two kernels that never change, timed again and again to see whether the machine does: memory and arithmetic."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.records import AnchorSample

DRIFT = 0.03
FRESH_SECONDS = 5.0
STREAM_BYTES = 128 * 2**20
BLOCKS, THREADS = 1056, 256
_STREAM = f"""
// Copies {STREAM_BYTES} bytes, 16 at a time.
extern "C" __global__ void anchor_stream(const float4* __restrict__ source, float4* __restrict__ target) {{
    for (int i = blockIdx.x * {THREADS} + threadIdx.x; i < {STREAM_BYTES // 16}; i += {BLOCKS * THREADS}) {{
        target[i] = source[i];
    }}
}}
"""
_MATH = f"""
// Four chains of dependent multiply-adds a thread; what they give is stored by each thread once.
extern "C" __global__ void anchor_math(const float4* __restrict__ source, float4* __restrict__ target) {{
    const int i = blockIdx.x * {THREADS} + threadIdx.x;
    float4 v = source[i];
    for (int step = 0; step < 2048; ++step) {{
        v.x = fmaf(v.x, 0.999f, 0.001f);
        v.y = fmaf(v.y, 0.999f, 0.001f);
        v.z = fmaf(v.z, 0.999f, 0.001f);
        v.w = fmaf(v.w, 0.999f, 0.001f);
    }}
    target[i] = v;
}}
"""


def anchor_programs() -> dict[str, KernelProgram]:
    """The anchor kernels by name."""
    return {
        name: KernelProgram(f"anchor_{name}", source, (), (BLOCKS, 1, 1), (THREADS, 1, 1), 0, ("source", "target"))
        for name, source in (("stream", _STREAM), ("math", _MATH))
    }


def drift(reference_us: Mapping[str, float], latencies_us: Mapping[str, float]) -> float:
    """The largest relative difference of any anchor from the reference."""
    return max((abs(latencies_us[name] / value - 1.0) for name, value in reference_us.items()), default=0.0)


class AnchorWatch:
    """Timings of the anchors, and whether they still agree with the first.

    Attributes:
        samples: Every timing, oldest first.
        reference: What later ones are compared with; None until there is one.
        changes: How often the machine has changed for good, so that there was a new reference.
    """

    def __init__(self) -> None:
        self.samples: list[AnchorSample] = []
        self.reference: AnchorSample | None = None
        self.changes = 0
        self._last = 0.0

    @property
    def is_old(self) -> bool:
        """Whether the anchors have to be timed before anything else is."""
        return self.reference is None or time.monotonic() - self._last > FRESH_SECONDS

    def add(self, latencies_us: Mapping[str, float], health: Mapping[str, int]) -> bool:
        """Keep a timing; says whether it agrees with the reference, which the first timing becomes."""
        rounded = {name: round(value, 3) for name, value in latencies_us.items()}
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        sample = AnchorSample(taken, rounded, health.get("sm_clock_mhz", 0), health.get("temperature_c", 0))
        self.samples.append(sample)
        self._last = time.monotonic()
        if self.reference is None:
            self.reference = sample
        return drift(self.reference.latencies_us, rounded) <= DRIFT

    def adopt(self) -> None:
        """Take the last timing as the reference: the machine has changed for good."""
        self.reference = self.samples[-1]
        self.changes += 1
