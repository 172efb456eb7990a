"""What the process that owns the GPU is asked, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from atoffer_rl.device import DeviceSpec
from atoffer_rl.kernels.timing import MIN_REPLAYS
from atoffer_rl.trial import ForwardRequest, Machine, SegmentRequest, Status


@dataclass(frozen=True)
class SegmentTask:
    """Verify and time one choice.

    Attributes:
        request: What.
        cubin: Its machine code; None for a library call.
        neighbour: Machine code of the kernel that its launches follow.
        replays: Replays to time.
    """

    request: SegmentRequest
    cubin: bytes | None
    neighbour: bytes
    replays: int = MIN_REPLAYS


@dataclass(frozen=True)
class ForwardTask:
    """Verify and time a whole forward.

    Attributes:
        request: What.
        cubins: Machine code of each segment; None for a library call.
        replays: Replays to time.
    """

    request: ForwardRequest
    cubins: tuple[bytes | None, ...]
    replays: int = MIN_REPLAYS


@dataclass(frozen=True)
class AnchorTask:
    """Time the anchor kernels.

    Attributes:
        cubins: Their machine code, by name.
    """

    cubins: Mapping[str, bytes]


Task: TypeAlias = SegmentTask | ForwardTask | AnchorTask


@dataclass(frozen=True)
class Measured:
    """What came of a task.

    Attributes:
        status: What a trial's says; of anchors always `ok`.
        reason: One line on a failure.
        samples_us: Every timed replay.
        anchors_us: Latency of each anchor, for an anchor task.
        max_error: Largest error seen while verifying.
        error_budget: What it was allowed to be.
        verify_seconds: Time verification took.
        measure_seconds: Time timing took.
        detail: Clock, temperature, the neighbour's latency, a library's algorithm, the lengths that were timed; of a
            failure, whether it is transient.
        broken: Whether the process must be replaced: its CUDA context is of no more use.
    """

    status: Status
    reason: str = ""
    samples_us: tuple[float, ...] = ()
    anchors_us: Mapping[str, float] = field(default_factory=dict)
    max_error: float | None = None
    error_budget: float | None = None
    verify_seconds: float = 0.0
    measure_seconds: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)
    broken: bool = False


@dataclass(frozen=True)
class Greeting:
    """What the process says of itself when it has started."""

    machine: Machine
    device: DeviceSpec
