"""Progress on stderr."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import TaskID


def shows_progress(asked: bool | None, quiet: bool) -> bool:
    """Whether a bar is shown: as asked for, else on a terminal unless all is quiet."""
    return not quiet and sys.stderr.isatty() if asked is None else asked


class ProgressBar:
    """A line for each phase of a job: how far it is, for how long it has run and how long it will still take.

    Args:
        visible: Whether anything is shown.
    """

    def __init__(self, visible: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        texts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*texts, *times, console=Console(stderr=True), disable=not visible)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # what cannot be shown must not cost what was measured
            self._progress.stop()

    def show(self, phase: str, done: int, total: int | None, text: str | None = None) -> None:
        """Show how far `phase` is, with `text` or else its name before the bar; `total` is None where unknown."""
        with suppress(OSError):
            if phase not in self._tasks:
                self._tasks[phase] = self._progress.add_task(phase, total=total)
            self._progress.update(self._tasks[phase], completed=done, total=total, description=text or phase)
