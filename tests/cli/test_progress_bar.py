"""When there is a bar, and that one that cannot be written costs nothing else."""

import sys

import pytest

from atoffer_rl.cli.progress_bar import ProgressBar, shows_progress


def test_a_full_disk_under_the_bar_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("no space left on device")

    bar = ProgressBar(visible=True)
    for name in ("start", "update", "stop"):
        monkeypatch.setattr(bar._progress, name, refuse)
    with bar:
        bar.show("segments", 1, 2)


@pytest.mark.parametrize(
    ("asked", "quiet", "terminal", "shown"),
    [
        (None, False, True, True),
        (None, False, False, False),
        (None, True, True, False),
        (True, True, False, True),
        (False, False, True, False),
    ],
)
def test_when_there_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, quiet: bool, terminal: bool, shown: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert shows_progress(asked, quiet) is shown
