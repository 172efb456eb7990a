"""A training that dies leaves what it measured, and goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from atoffer_rl.agents.checkpoint import load_checkpoint
from tests.cli.test_train import CONFIG

# Where tests run in the background SIGINT is ignored, and children inherit that.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from atoffer_rl.cli.start import main
main()
"""
TRAIN = ("train", "--measurer", "replay", "--policy", "random", "--budget", "400")


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 130)]
)
def test_what_was_measured_stays_and_a_resumed_run_goes_on(atoffer, tmp_path, sent, status):
    (tmp_path / "ppo.yml").write_text(CONFIG.replace("timesteps: 96", "timesteps: 100000"))
    words = [*TRAIN, "--config", tmp_path / "ppo.yml", "--log-folder", tmp_path / "logs"]
    training = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    trials = _measured(tmp_path / "logs", training)
    os.kill(training.pid, sent)
    _, complaint = training.communicate(timeout=30)
    assert training.returncode == status
    assert complaint.count("\n") == (1 if status == 130 else 0)
    kept = trials.read_text()
    assert kept.count("\n") >= 5
    charged = load_checkpoint(trials.parent / "checkpoint.zip").run["choices"]
    with trials.open("a") as lines:
        lines.write('{"half": ')
    outcome = atoffer("train", "--resume", trials.parent / "checkpoint.zip", "--timesteps", 40)
    assert outcome.status == 0
    written = [json.loads(line) for line in trials.read_text().splitlines()]
    assert [line["units"] for line in written] == list(range(1, len(written) + 1))
    assert len({line["choice"] for line in written}) == len(written)
    assert trials.read_text().startswith("".join(kept.splitlines(keepends=True)[: len(charged)]))
    assert len(written) >= len(charged)


def _measured(logs, training):
    """The trials of the run in `logs`, once there are some and a checkpoint beside them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and training.poll() is None:
        for trials in logs.glob("*/trials.jsonl"):
            if trials.read_text().count("\n") >= 5 and (trials.parent / "checkpoint.zip").exists():
                return trials
        time.sleep(0.05)
    raise AssertionError(f"nothing was measured: {training.communicate()[1]}")
