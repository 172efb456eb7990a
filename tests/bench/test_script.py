"""How benchmark scripts end."""

import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from atoffer_rl.bench.script import positive, run_script
from atoffer_rl.errors import LogError
from atoffer_rl.kernels.machine import what_is_missing

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
WITHOUT_GPU = pytest.mark.skipif(not what_is_missing(), reason="a GPU is here")


@pytest.mark.parametrize("status", [None, 0, 1])
def test_a_script_ends_with_its_status(status):
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: status)
    assert ended.value.code == status


def test_a_users_mistake_is_what_it_ends_with():
    def failing():
        raise LogError("cannot write it")

    with pytest.raises(SystemExit) as ended:
        run_script(failing)
    assert ended.value.code == "error: cannot write it"


def test_a_fault_of_ours_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_script(lambda: 1 // 0)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many"])
def test_counts_are_positive(text):
    assert positive("12") == 12
    with pytest.raises(ArgumentTypeError, match="at least 1"):
        positive(text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("train_seeds.py", "--table", "nowhere"), "cannot read table nowhere"),
        (("train_seeds.py", "--json", "."), "cannot write ."),
        (("env_speed.py", "--table", "nowhere"), "cannot read table nowhere"),
        (("env_speed.py", "--json", "."), "cannot write ."),
        (("pretrain.py", "--output", "policy.zip", "--table", "nowhere"), "cannot read table nowhere"),
        (("pretrain.py", "--output", "."), "cannot write ."),
        pytest.param(("planted.py", "--store", "planted.db"), "GPU", marks=WITHOUT_GPU),
        pytest.param(("attention_trial.py", "trial.json"), "is no trial", marks=WITHOUT_GPU),
    ],
)
def test_a_users_mistake_is_one_line(tmp_path, words, complaint):
    command = [sys.executable, SCRIPTS / words[0], *words[1:]]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert complaint in ended.stderr
