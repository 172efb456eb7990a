"""The seam every template implements: which runs, which parameters, which program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from atoffer_rl.device import DeviceSpec
from atoffer_rl.kernels.program import Program
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload


@dataclass(frozen=True)
class Work:
    """What executing a choice costs at least.

    Attributes:
        bytes_read: Device memory read, each byte once.
        bytes_written: Device memory written, each byte once.
        flops: Floating-point operations the kernel performs.
    """

    bytes_read: int
    bytes_written: int
    flops: int


@dataclass(frozen=True)
class Geometry:
    """How a choice covers its result.

    Attributes:
        tile_rows: Result rows a block computes.
        tile_columns: Result columns (or gathered columns at a time) a block computes.
        blocks: Blocks launched.
        threads: Threads in a block.
    """

    tile_rows: int
    tile_columns: int
    blocks: int
    threads: int


class Template(Protocol):
    """A way to implement runs. Stateless; a module of `kernels.templates` defines the one instance as `TEMPLATE`.

    Attributes:
        name: What choices call it.
        runs: What it may implement.
        generated: Whether its programs are rendered kernels; False where they are library calls.
    """

    name: str
    runs: frozenset[Run]
    generated: bool

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why this template cannot implement `run` of `workload` at all; None if it can."""
        ...

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule (shared memory, registers, divisibility) `values` break; None if none."""
        ...

    def program(self, workload: Workload, choice: Choice) -> Program:
        """The program of `choice`; pure: same inputs, same bytes."""
        ...

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes and flops of `choice`."""
        ...

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Tiles and blocks of `choice`, for observations and `explain`."""
        ...
