"""`atoffer train`, `search` and `eval` on recorded latencies."""

import errno
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from atoffer_rl.agents import ppo, random_search
from atoffer_rl.agents.checkpoint import load_checkpoint
from atoffer_rl.agents.hyperparameters import CONFIG_FOLDER
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.rehearsal import Rehearsal
from atoffer_rl.agents.session import Session
from atoffer_rl.cli.search_report import program
from atoffer_rl.errors import StoreError
from atoffer_rl.kernels import machine
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers import open as opening
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.scheme import Scheme
from atoffer_rl.table_summary import best_recorded
from atoffer_rl.trial import ForwardRequest, Status, Trial
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table

WORKLOAD = Workload(batch=1, seq_len=128)
SHAPE = ("--batch", 1, "--seq-len", 128, "--measurer", "replay")
CONFIG = """
atoffer/FusionScheme-v0: {n_envs: 1, n_steps: 32, batch_size: 32, n_epochs: 2, learning_rate: 0.003, gae_lambda: 0.95,
  clip_range: 0.2, ent_coef: 0.0, vf_coef: 0.5, max_grad_norm: 0.5, imitation_coef: 1.0, hidden: 16, timesteps: 96,
  settle_rollouts: 1}
"""


@pytest.fixture(scope="module")
def table():
    return synthetic_table(WORKLOAD)


@pytest.fixture(autouse=True)
def _recorded(table, monkeypatch):
    monkeypatch.setattr(opening, "table_for", lambda _: table)


@pytest.fixture
def train(atoffer, tmp_path):
    (tmp_path / "ppo.yml").write_text(CONFIG)

    def call(*words):
        own = ("--config", tmp_path / "ppo.yml", "--log-folder", tmp_path / "logs")
        return atoffer("train", *SHAPE, "--policy", "random", *own, *words)

    return call


def only(folder):
    (found,) = folder.iterdir()
    return found


def test_train_prints_the_scheme_and_keeps_logs(train, atoffer, tmp_path):
    outcome = train("--budget", 12, "--progress")
    assert outcome.status == 0
    assert outcome.out.startswith("measurer replay")
    assert "by the policy's own rollout" in outcome.out
    assert "above the best there is" in outcome.out
    run = only(tmp_path / "logs")
    result = json.loads((run / "result.json").read_text())
    assert result["units"] == 12
    assert atoffer("explain", "--scheme", run / "result.json", "--batch", 1, "--seq-len", 128).status == 0
    evaluated = atoffer("eval", *SHAPE, "--policy", run / "checkpoint.zip", "--json")
    answer = json.loads(evaluated.out)
    assert answer["units"] == 12
    assert answer["rollout"] == result["rollout"]
    refused = atoffer("eval", *SHAPE, "--policy", run / "checkpoint.zip", "--seed", 3)
    assert "has a seed of its own: leave out --seed" in refused.err


def test_eval_prints_what_the_policy_builds(atoffer, monkeypatch):
    monkeypatch.undo()  # the table that ships, of which the policy's proposal is not the best scheme known
    words = ("eval", "--batch", 16, "--seq-len", 256, "--measurer", "replay")
    answer, printed = json.loads(atoffer(*words, "--json").out), atoffer(*words).out
    assert answer["rollout"] != answer["scheme"]
    built, best = printed.split("the best path through what is known")
    for scheme, part in ((answer["rollout"], built), (answer["scheme"], best)):
        for segment in scheme["segments"]:
            assert f"[{segment['run'][0]},{segment['run'][1]}]" in part
    assert f"{answer['units']} choices measured only to score it (the 15 of the unfused scheme are free)" in built
    assert "built from what is known: 4 choices measured (" in atoffer(*words, "--budget", 4).out


def test_a_proposal_that_fails_has_no_latency(atoffer, monkeypatch):
    monkeypatch.setattr(Rehearsal, "proposal", lambda *_: None)
    printed = atoffer("eval", *SHAPE).out
    assert "has no latency: one of its choices failed\n0 choices measured" in printed
    assert "the best path through what is known" in printed


def test_without_a_gpu_it_says_what_is_replayed(atoffer, tmp_path, monkeypatch, table):
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    words = ("search", "--batch", 1, "--seq-len", 128, "--log-folder", tmp_path, "--budget", 0)
    line = f"no GPU here: replaying latencies recorded on {table.device.name} (`atoffer doctor` says what live"
    assert atoffer(*words).out.startswith(line)
    assert "x.db is not used" in atoffer(*words, "--store", tmp_path / "x.db").out.splitlines()[0]


def test_the_next_steps_can_be_typed(atoffer, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    logs = tmp_path / "my logs"
    printed = atoffer("search", *SHAPE, "--layers", 2, "--log-folder", logs, "--budget", 3).out
    *_, look, export = printed.splitlines()
    board = Path(sys.executable).with_name("tensorboard")
    assert shlex.split(look.partition(": ")[2])[1:] == ["--logdir", str(logs)]
    assert not board.exists() or Path(shlex.split(look.partition(": ")[2])[0]).absolute() == board
    _, command, folder, *words = shlex.split(export.partition(": ")[2])
    assert (command, folder) == ("export", "DIR")
    assert words[2:] == ["--batch", "1", "--seq-len", "128", "--layers", "2", "--mask", "strided"]
    assert atoffer("explain", *words).status == 0


def test_a_program_on_the_path_is_called_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "tensorboard").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("tensorboard") == "tensorboard"
    assert program("no-such-program") == "no-such-program"


def test_train_resumes(train, atoffer, tmp_path):
    train("--budget", 30, "--timesteps", 32)
    run = only(tmp_path / "logs")
    first = json.loads((run / "result.json").read_text())
    outcome = atoffer("train", "--resume", run / "checkpoint.zip", "--timesteps", 96, "--json")
    result = json.loads(outcome.out)
    assert only(tmp_path / "logs") == run
    assert result["workload"]["batch"] == 1
    assert result["units"] > first["units"]
    assert result["latency_us"] <= first["latency_us"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--mask", "causal"), "--mask"),
        (("--seed", 0), "--seed"),
        (("--standalone", "--policy", "random"), "--policy, --standalone"),
        (("--epsilon", 1e-5, "--log-folder", "logs"), "--epsilon, --log-folder"),
    ],
)
def test_what_a_resumed_run_keeps_cannot_be_given(train, atoffer, tmp_path, words, named):
    train("--budget", 12, "--timesteps", 32)
    outcome = atoffer("train", "--resume", only(tmp_path / "logs") / "checkpoint.zip", *words)
    assert outcome.status == 1
    assert outcome.err.endswith(
        f"--resume goes on with the checkpoint's own workload, policy and folder: leave out {named}\n"
    )


def test_a_resumed_run_says_that_its_steps_are_over(train, atoffer, tmp_path):
    train("--budget", 12, "--timesteps", 32)
    outcome = atoffer("train", "--resume", only(tmp_path / "logs") / "checkpoint.zip")
    assert outcome.status == 0
    assert "the run has taken all its steps and learns no more: --timesteps gives it more\n" in outcome.out


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_forward_that_is_wrong_is_told_and_not_exported(train, tmp_path, monkeypatch, words):
    class Wrong(ReplayMeasurer):
        def measure(self, requests):
            if isinstance(requests[0], ForwardRequest):
                (asked,) = requests
                outcome = Status.WRONG_RESULT, "4.0 of 0.1 allowed"
                return [Trial(asked.subject, None, asked.scheme, asked.execution, *outcome)]
            return super().measure(requests)

    monkeypatch.setattr(opening, "ReplayMeasurer", Wrong)
    outcome = train("--budget", 4, "--timesteps", 16, "--export", tmp_path / "export", *words)
    assert outcome.status == 1
    assert "its whole forward is not (wrong result: 4.0 of 0.1 allowed); nothing is exported\n" in outcome.err
    assert "latency_us" in outcome.out or "us a layer" in outcome.out
    assert not (tmp_path / "export").exists()


def test_the_hidden_layers_are_the_policys(atoffer, tmp_path):
    config = tmp_path / "wide.yml"
    config.write_text((CONFIG_FOLDER / "ppo.yml").read_text().replace("hidden: 64", "hidden: 32"))
    outcome = atoffer("train", *SHAPE, "--config", config)
    assert outcome.status == 1
    assert "has hidden layers of 32, the policy of 64: set hidden to 64, or start a new run" in outcome.err
    words = ("--config", config, "--policy", "random", "--log-folder", tmp_path / "logs")
    assert atoffer("train", *SHAPE, *words, "--budget", 4, "--timesteps", 16).status == 0


def test_a_resumed_runs_budget_can_be_given(train, atoffer, tmp_path):
    train("--budget", 12, "--timesteps", 32)
    words = ("--resume", only(tmp_path / "logs") / "checkpoint.zip", "--timesteps", 96, "--json")
    assert json.loads(atoffer("train", *words, "--budget", 20).out)["units"] == 20


def test_a_settled_run_searches_on_under_a_larger_budget(train, atoffer, tmp_path):
    train("--budget", 12, "--timesteps", 4000)
    words = ("--resume", only(tmp_path / "logs") / "checkpoint.zip", "--timesteps", 8000)
    assert load_checkpoint(words[1]).run["settled"] == 1
    assert "the run has measured 12 choices and measures no more" in atoffer("train", *words, "--budget", 10).out
    assert json.loads(atoffer("train", *words, "--budget", 20, "--json").out)["units"] == 20


def test_a_checkpoint_whose_folder_cannot_be_written(train, atoffer, tmp_path):
    train("--budget", 12, "--timesteps", 32)
    run = only(tmp_path / "logs")
    (run / "trials.jsonl").unlink()
    (run / "trials.jsonl").mkdir()
    outcome = atoffer("train", "--resume", run / "checkpoint.zip")
    assert outcome.status == 1
    assert outcome.err.endswith("copy the folder elsewhere, and resume there\n")


@pytest.fixture
def full_disk(monkeypatch):
    """No trial can be logged."""

    def full(log, record):
        with log._writing():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunLog, "trial", full)


def test_a_run_goes_on_in_its_own_folder(train, atoffer, tmp_path):
    train("--budget", 12)
    copy = tmp_path / "mine.zip"
    copy.write_bytes((only(tmp_path / "logs") / "checkpoint.zip").read_bytes())
    assert "a run goes on in its own folder: name its checkpoint.zip" in atoffer("train", "--resume", copy).err


def test_what_a_policy_leaves_of_its_budget_is_told(train, monkeypatch):
    def forfeits(session):
        session.ledger.units = session.ledger.units_spent

    monkeypatch.setattr(Session, "note", forfeits)
    assert "units forfeited: the policy built schemes of known choices alone" in train("--budget", 12).out


def test_an_interrupted_evaluation_says_what_is_known(train, atoffer, tmp_path, monkeypatch):
    train("--budget", 12)
    monkeypatch.setattr(Session, "check_interrupt", interrupt)
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    outcome = atoffer("eval", *SHAPE, "--policy", checkpoint, "--budget", 9)
    assert outcome.status == 130
    assert "it was not built yet" in outcome.out
    assert "the best path through what is known" in outcome.out


def interrupt(session):
    raise KeyboardInterrupt


def test_an_interrupted_training_says_how_to_go_on(train, tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "check_interrupt", interrupt)
    outcome = train("--budget", 12)
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    assert outcome.status == 130
    assert checkpoint.is_file()
    assert f"go on with {program('atoffer')} train --resume {checkpoint}" in outcome.out


def test_a_run_whose_steps_are_over_before_its_budget_says_how_to_go_on(train, atoffer, tmp_path):
    outcome = train("--budget", 60, "--timesteps", 32)
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    go_on = f"{program('atoffer')} train --resume {checkpoint} --timesteps 64"
    assert outcome.out.endswith(f"its 32 steps were over before its budget: go on with {go_on}\n")
    resumed = atoffer(*shlex.split(go_on)[1:])
    assert json.loads((checkpoint.parent / "result.json").read_text())["units"] > 0
    assert resumed.status == 0


def test_a_run_whose_budget_is_spent_says_nothing_of_it(train):
    assert "go on with" not in train("--budget", 3).out


def test_a_budget_for_all_choices_says_that_there_are_no_more(atoffer, tmp_path, table):
    words = ("search", *SHAPE, "--log-folder", tmp_path, "--budget", 5000)
    assert f"{len(table.trials) - 15} choices measured, all there are (" in atoffer(*words).out


def test_how_to_go_on_names_what_a_checkpoint_does_not_keep(train, tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "check_interrupt", interrupt)
    store, export = tmp_path / "my trials.db", tmp_path / "scheme"
    outcome = train("--budget", 12, "--store", store, "--export", export)
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    assert f"train --store '{store}' --export {export} --resume {checkpoint}" in outcome.out


@pytest.mark.usefixtures("full_disk")
def test_without_a_checkpoint_nothing_is_said_of_going_on(train, tmp_path, monkeypatch):
    def full(session):
        raise StoreError("no space left: free some")

    monkeypatch.setattr(ppo, "save_checkpoint", lambda *_: None)
    monkeypatch.setattr(Session, "note", full)
    assert train("--budget", 12).err == "atoffer: no space left: free some\n"


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_says_how_to_go_on(train, atoffer, tmp_path):
    searched = atoffer("search", *SHAPE, "--log-folder", tmp_path / "searches")
    assert "what was measured is kept, mend that and search again" in searched.err
    outcome = train("--budget", 12)
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    assert checkpoint.is_file()
    go_on = f"{program('atoffer')} train --resume {checkpoint}"
    assert f"what was measured is kept, mend that and go on with {go_on}" in outcome.err


def test_a_full_store_says_how_to_go_on(train, tmp_path, monkeypatch):
    def full(session):
        raise StoreError("no space left: free some")

    monkeypatch.setattr(Session, "note", full)
    outcome = train("--budget", 12)
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    go_on = f"{program('atoffer')} train --resume {checkpoint}"
    assert outcome.err == f"atoffer: no space left: free some; then go on with {go_on}\n"


def test_the_default_budget_is_a_tenth(atoffer, tmp_path, table):
    words = ("search", *SHAPE, "--log-folder", tmp_path, "--json")
    result = json.loads(atoffer(*words).out)
    assert result["units"] == len(table.trials) // 10
    assert json.loads(atoffer(*words).out)["scheme"] == result["scheme"]
    best = json.loads(atoffer(*words, "--searcher", "oracle").out)
    assert best["regret"] == pytest.approx(0.0)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("searcher", ["oracle", "random"])
def test_a_standalone_search_is_over_generated_kernels(atoffer, tmp_path, table, searcher):
    space = LegalSpace(WORKLOAD, table.device, standalone=True)
    words = ("search", *SHAPE, "--log-folder", tmp_path, "--searcher", searcher, "--json")
    result = json.loads(atoffer(*words, "--standalone").out)
    space.check(Scheme.from_json(result["scheme"]))
    assert result["oracle_us"] == pytest.approx(best_recorded(table, WORKLOAD, space)[1])
    assert result["units"] in (len(space.all_choices) // 10, len(space.all_choices) - OPERATOR_COUNT)
    assert json.loads(atoffer(*words).out)["oracle_us"] < result["oracle_us"]


def test_a_standalone_run_stays_so(train, atoffer, tmp_path, table):
    train("--budget", 12, "--timesteps", 32, "--standalone")
    checkpoint = only(tmp_path / "logs") / "checkpoint.zip"
    result = json.loads(atoffer("train", "--resume", checkpoint, "--timesteps", 96, "--json").out)
    space = LegalSpace(WORKLOAD, table.device, standalone=True)
    space.check(Scheme.from_json(result["scheme"]))
    space.check(Scheme.from_json(result["rollout"]))
    words = ("eval", *SHAPE, "--policy", checkpoint, "--json")
    assert json.loads(atoffer(*words, "--standalone").out)["units"] == result["units"]
    assert json.loads(atoffer(*words).out)["oracle_us"] < result["oracle_us"]


def test_ctrl_c_keeps_and_prints_the_best_so_far(atoffer, tmp_path, monkeypatch):
    shuffled = random_search.shuffled_choices

    def interrupted(session):
        for count, choice in enumerate(shuffled(session)):
            if count == 20:
                raise KeyboardInterrupt
            yield choice

    monkeypatch.setattr(random_search, "shuffled_choices", interrupted)
    outcome = atoffer("search", *SHAPE, "--log-folder", tmp_path, "--budget", 40)
    assert outcome.status == 130
    assert "us a layer" in outcome.out
    assert not json.loads((only(tmp_path) / "result.json").read_text())["finished"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("train", "--policy", "nowhere.zip"), "there is no policy nowhere.zip"),
        (("train", "--resume", "nowhere.zip"), "there is no policy nowhere.zip"),
        (("eval", "--policy", "nowhere.zip"), "there is no policy nowhere.zip"),
        (("train", "--policy", "random", "--config", "nowhere.yml"), "there is no file of hyperparameters"),
        (("train", "--policy", "random", "--config", "."), "is a folder, pipe or device"),
        (("train", "--policy", "random", "--log-folder", "file"), "use another --log-folder"),
        (("train", "--policy", "random", "--export", "file"), "choose another folder"),
        (("train", "--policy", "file"), "damaged or not a checkpoint"),
        (("train", "--resume", "file"), "damaged or not a checkpoint"),
        (("train", "--policy", "."), ". is a folder, pipe or device: choose a regular file, a checkpoint.zip"),
        (("train", "--resume", "."), ". is a folder, pipe or device: choose a regular file, a checkpoint.zip"),
        (("train", "--policy", ""), "'' has no weights: give shipped"),
        (("eval", "--policy", ""), "'' has no weights: give shipped"),
        (("eval", "--policy", "random"), "'random' has no weights: give shipped"),
        (("train", "--policy", "x" * 300), "File name too long"),
        (("train", "--policy", "random", "--n-envs", 17), "--n-envs': Input should be less than or equal to 16"),
        (("search", "--searcher", "ants"), "unknown searcher"),
        (("search", "--log-folder", "file"), "use another --log-folder"),
        (("search", "--budget", "-1"), "--budget"),
        (("search", "--searcher", "oracle", "--budget", 9), "the oracle measures everything: leave out --budget"),
        (("search", "--searcher", "oracle", "--seconds", 9), "the oracle measures everything: leave out --seconds"),
        (("search", "--budget", str(10**30)), "--budget"),
        (("train", "--policy", "random", "--seed", str(2**32)), "--seed"),
        (("train", "--policy", "random", "--n-envs", str(10**9)), "--n-envs"),
        (("train", "--policy", "random", "--timesteps", str(10**30)), "--timesteps"),
        (("search", "--log-folder", "file/below"), "use another --log-folder"),
    ],
)
def test_mistakes_are_one_line(atoffer, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no zip")
    outcome = atoffer(*words, *SHAPE)
    assert outcome.status in (1, 2)
    assert complaint in outcome.err


@pytest.mark.parametrize("seconds", ["inf", "1e308"])
def test_as_many_seconds_as_there_are(train, tmp_path, seconds):
    assert train("--budget", 12, "--seconds", seconds, "--timesteps", 32).status == 0
    result = json.loads((only(tmp_path / "logs") / "result.json").read_text())
    assert 0 < result["units"] <= 12
