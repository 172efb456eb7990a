"""The share of GPU memory that a process may take: kept to, and missed where others have taken of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from atoffer_rl.errors import MemoryTaken
from atoffer_rl.kernels.memory import lacks_memory


@dataclass(frozen=True)
class MemoryShare:
    """What torch's tensors of one process may take.

    Attributes:
        size_bytes: So much.
        is_promised: Whether others run beside it, who keep to shares of theirs; alone it takes what there is.
    """

    size_bytes: int
    is_promised: bool

    def keep_to(self) -> None:
        """Let torch take no more, so that it takes nothing that others were promised."""
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.size_bytes / total))

    def taken(self, error: BaseException) -> MemoryTaken | None:
        """What to raise in place of `error` where it is others' doing that memory ran out; None where it is not.

        Torch refuses what is beyond the share; the driver, and whoever asks it, only what the GPU does not have.
        """
        if isinstance(error, MemoryTaken):
            return error
        causes = list(_causes(error))
        if not self.is_promised or not any(map(lacks_memory, causes)):
            return None
        if any(isinstance(cause, torch.OutOfMemoryError) for cause in causes) and self._is_there():
            return None
        return MemoryTaken("others took GPU memory that it was promised")

    def _is_there(self) -> bool:
        free_bytes, _ = torch.cuda.mem_get_info()
        return free_bytes + torch.cuda.memory_reserved() >= self.size_bytes


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
