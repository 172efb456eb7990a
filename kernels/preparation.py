"""From requests to machine code: render, look into the cache, compile what is missing, a few requests ahead."""

import hashlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoffer_rl.kernels.child import first_line
from atoffer_rl.kernels.choice_program import ProgramOf
from atoffer_rl.kernels.compile_pool import Compiled, CompilePool
from atoffer_rl.kernels.cubin_cache import CubinCache, program_hash
from atoffer_rl.kernels.program import KernelProgram, Program
from atoffer_rl.trial import Request, SegmentRequest

READY_AHEAD = 32


@dataclass(eq=False)
class Item:
    """A request on its way to the GPU.

    Attributes:
        index: Its place among the requests asked for together.
        request: What was asked.
        programs: Of each of its segments.
        source_hash: Of all its programs.
        replays: Replays to time.
        paths: Where the cache keeps each program's cubin; None for a library call.
        cubins: Those that are there, by path.
        compile_seconds: What the compiler took for it.
    """

    index: int
    request: Request
    programs: tuple[Program, ...]
    source_hash: str
    replays: int
    paths: tuple[Path | None, ...] = ()
    cubins: dict[Path, bytes] = field(default_factory=dict)
    compile_seconds: float = 0.0

    @property
    def ready(self) -> bool:
        """Whether all its machine code is there."""
        return all(path is None or path in self.cubins for path in self.paths)

    @property
    def machine_code(self) -> tuple[bytes | None, ...]:
        """The cubin of each segment."""
        return tuple(None if path is None else self.cubins[path] for path in self.paths)


class Preparation:
    """Items being compiled and items that are ready.

    Args:
        program_of: From a choice to its program.
        pool: Where kernels are compiled.
        cache: Where compiled kernels are kept.
        arch: For which target.
    """

    def __init__(self, program_of: ProgramOf, pool: CompilePool, cache: CubinCache, arch: str) -> None:
        self._program_of = program_of
        self._pool = pool
        self._cache = cache
        self._arch = arch
        self._waiting: dict[Path, list[Item]] = {}
        self.ready: deque[Item] = deque()
        self.failed: deque[tuple[Item, Compiled]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another item should be begun, so that neither compilers nor GPU wait."""
        return self._pool.pending < 2 * self._pool.size and len(self.ready) < READY_AHEAD

    @property
    def waitables(self) -> list[Any]:
        """What `multiprocessing.connection.wait` may wait for."""
        return self._pool.waitables

    @property
    def seconds_left(self) -> float:
        """Until the next time limit of a compiler."""
        return self._pool.seconds_left

    def render(self, index: int, request: Request, replays: int) -> Item:
        """The item of `request`.

        Raises:
            Exception: Whatever a template raises on a choice that it cannot render.
        """
        choices = (request.choice,) if isinstance(request, SegmentRequest) else request.scheme.choices
        programs = tuple(self._program_of(request.workload, choice) for choice in choices)
        hashes = [program_hash(program) for program in programs]
        together = hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]
        return Item(index, request, programs, together, replays)

    def begin(self, item: Item) -> None:
        """Find or compile the machine code of `item`; it turns up in `ready` or `failed`."""
        item.paths = tuple(
            self._cache.path(program, self._arch) if isinstance(program, KernelProgram) else None
            for program in item.programs
        )
        for program, path in zip(item.programs, item.paths, strict=True):
            if path is not None and path not in item.cubins:
                assert isinstance(program, KernelProgram)
                self._find(item, program, path)
        if item.ready:
            self.ready.append(item)

    def _find(self, item: Item, program: KernelProgram, path: Path) -> None:
        cubin = self._cache.get(program, self._arch)
        if cubin is not None:
            item.cubins[path] = cubin
        elif path in self._waiting:
            self._waiting[path].append(item)
        else:
            self._waiting[path] = [item]
            self._pool.submit((path, program), program, self._arch)

    def collect(self) -> None:
        """Move items whose compilation ended."""
        for compiled in self._pool.collect():
            path, program = compiled.token
            if compiled.cubin is not None:
                self._cache.put(program, self._arch, compiled.cubin)
            for item in self._waiting.pop(path):
                item.compile_seconds += compiled.seconds
                if compiled.cubin is None:
                    self.failed.append((item, compiled))
                    continue
                item.cubins[path] = compiled.cubin
                if item.ready:
                    self.ready.append(item)

    def abandon(self) -> None:
        """Drop everything."""
        self._pool.kill()
        self._waiting.clear()
        self.ready.clear()
        self.failed.clear()


def rendering_failure(error: Exception) -> str:
    """Why a choice has no program, in one line."""
    return f"cannot be rendered: {type(error).__name__}: {first_line(error)}"
