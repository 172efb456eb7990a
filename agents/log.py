"""What a search leaves in its folder: TensorBoard events, one JSON line a trial, the result."""

import fcntl
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from atoffer_rl.agents.uninterrupted import uninterrupted
from atoffer_rl.errors import LogError
from atoffer_rl.json_text import parse_json
from atoffer_rl.whole_file import is_stream, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard.writer import SummaryWriter

TRIALS_FILE = "trials.jsonl"
RESULT_FILE = "result.json"
ANOTHER_FOLDER = "use another --log-folder"


class RunLog:
    """Writes a search's TensorBoard events, trials and result.

    Args:
        folder: Where to; it is made if need be. None keeps nothing.
        remedy: What to do where it cannot be written.
        command: What begins such a run on the command line, with the options that it does not keep itself.

    Attributes:
        remedy: As above; whoever writes a checkpoint knows a better one from then on.

    Raises:
        LogError: Here and from every method, if the folder cannot be written.
    """

    def __init__(
        self, folder: Path | None = None, remedy: str = ANOTHER_FOLDER, command: str = "atoffer train"
    ) -> None:
        self.folder, self.remedy, self.command = folder, remedy, command
        self._writer: SummaryWriter | None = None
        if folder is None:
            return
        with self._writing():
            str(folder).encode()  # as TensorBoard does
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = _opened_trials(folder / TRIALS_FILE, remedy)
            from torch.utils.tensorboard.writer import SummaryWriter as Writer

            self._writer = Writer(str(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to a TensorBoard curve."""
        if self._writer is not None:
            with self._writing():
                self._writer.add_scalar(tag, value, step)

    def text(self, tag: str, text: str, step: int) -> None:
        """Add a text, Markdown, to TensorBoard."""
        if self._writer is not None:
            with self._writing():
                self._writer.add_text(tag, text, step)

    def figure(self, tag: str, figure: "Figure", step: int) -> None:
        """Add a matplotlib figure to TensorBoard."""
        if self._writer is not None:
            with self._writing():
                self._writer.add_figure(tag, figure, step)

    def hyperparameters(self, values: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Show `values` beside `metrics` in TensorBoard's HPARAMS tab."""
        if self._writer is None:
            return
        from torch.utils.tensorboard.summary import hparams

        plain = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in values.items()}
        # `add_hparams` writes a run of its own; the file writer keeps them in this one.
        files: Any = self._writer.file_writer
        with self._writing():
            for summary in hparams(plain, dict(metrics)):
                files.add_summary(summary)
            for tag, value in metrics.items():
                self._writer.add_scalar(tag, value)

    def trial(self, record: Mapping[str, Any]) -> None:
        """Append one measured trial."""
        if self.folder is not None:
            with self._writing():
                self._lines.write(_line(record))
                self._lines.flush()

    def keep_trials(self, choices: Container[str], paid: Iterable[Mapping[str, Any]] = ()) -> None:
        """Drop the trials of choices that are none of `choices`, and what is written twice; write what is missing.

        A run that was killed wrote trials after its checkpoint; what it knows no more, it will measure and write again.

        Args:
            choices: All that the run knows.
            paid: The trials that it paid for, in order; they come first.
        """
        if self.folder is None:
            return
        with self._writing():
            self._lines.seek(0)
            lines = self._lines.readlines()
            written: dict[str, bytes] = {}
            for line in lines:
                written.setdefault(_choice_in(line), line)
            kept = [written.pop(record["choice"], _line(record)) for record in paid]
            kept += [line for choice, line in written.items() if choice in choices]
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(lines, kept, strict=False)))
            self._lines.truncate(sum(map(len, kept[:same])))
            self._lines.writelines(kept[same:])
            self._lines.flush()

    def result(self, record: Mapping[str, Any]) -> None:
        """Write the result."""
        if self.folder is not None:
            with self._writing(), replacing(self.folder / RESULT_FILE) as file:
                file.write((json.dumps(record, indent=1) + "\n").encode())

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            with self._writing():
                self._writer.close()
                self._lines.close()
            self._writer = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with uninterrupted():
                yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise LogError(f"cannot write the log folder {self.folder} ({reason}): {self.remedy}") from error
        except UnicodeEncodeError as error:
            raise LogError(f"cannot write the log folder {str(self.folder)!a} (no UTF-8): {self.remedy}") from error


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _object_in(line: bytes) -> dict[str, Any] | None:
    """What a line of trials says; None if it is damaged or half written."""
    try:
        value = parse_json(line.decode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _choice_in(line: bytes) -> str:
    """The choice that a line of trials is about; empty if it is no such line."""
    choice = (_object_in(line) or {}).get("choice")
    return choice if isinstance(choice, str) else ""


def _opened_trials(path: Path, remedy: str) -> BinaryIO:
    """`path` for appending, held for this process alone; a line that a killed process left half written is dropped.

    Raises:
        LogError: If another process holds it, or it is no file that can be appended to.
    """
    if is_stream(path):
        raise LogError(f"{path} is a folder, pipe or device: remove it, or {remedy}")
    lines = path.open("a+b")
    try:
        fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lines.close()
        raise LogError(f"another run is writing {path.parent}: wait for it, or {remedy}") from error
    _end_last_line(lines)
    return lines


def _end_last_line(lines: BinaryIO) -> None:
    """Give a last line that lacks its end one, or drop it where it lacks more."""
    lines.seek(0)
    content = lines.read()
    start = content.rfind(b"\n") + 1
    if _object_in(content[start:]) is not None:
        lines.write(b"\n")
    else:
        lines.truncate(start)
