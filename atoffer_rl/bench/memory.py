"""The share of GPU memory that a process was promised: kept to, and missed where others have taken of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.child import first_line

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class MemoryShare:
    """What torch's tensors of one process may take, where others run beside it.

    Attributes:
        size_bytes: So much.
    """

    size_bytes: int

    def keep_to(self) -> None:
        """Let torch take no more, so that it takes nothing that others were promised."""
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.size_bytes / total))

    @contextmanager
    def missed(self) -> Iterator[None]:
        """Say so where what is done inside runs out of memory that it was promised.

        Raises:
            LaunchError: In place of whatever said that memory ran out.
        """
        try:
            yield
        except Exception as error:
            if OUT_OF_MEMORY in first_line(error).lower():
                self.check()
            raise

    def check(self) -> None:
        """Make sure that the GPU still has all of it.

        Raises:
            LaunchError: If it has not.
        """
        free_bytes, _ = torch.cuda.mem_get_info()
        if free_bytes + torch.cuda.memory_reserved() < self.size_bytes:
            raise LaunchError("other processes took GPU memory that it was promised: run again, with fewer --jobs")
