"""A bar that cannot be written costs nothing else."""

import pytest

from atoffer_rl.cli.progress_bar import ProgressBar


def test_a_full_disk_under_the_bar_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("no space left on device")

    bar = ProgressBar(visible=True)
    for name in ("start", "update", "stop"):
        monkeypatch.setattr(bar._progress, name, refuse)
    with bar:
        bar.show("segments", 1, 2)
