"""Smoke training: budget, settling, seeds, resuming, interrupting, logs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atoffer_rl.agents.checkpoint import LARGEST_WEIGHT, SHIPPED_POLICY, load_checkpoint
from atoffer_rl.agents.hyperparameters import ppo_config
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.ppo import CHECKPOINT_FILE, PPOSearch
from atoffer_rl.agents.rehearsal import Rehearsal
from atoffer_rl.agents.run_state import check_run, checkpoint_of, resumed_session
from atoffer_rl.errors import PolicyError
from atoffer_rl.kernels.legal_space import LegalSpace
from tests.agents.conftest import SMOKE, WORKLOAD
from tests.agents.test_log import events_of

CHOICE = LegalSpace(WORKLOAD).all_choices[0].to_json()


def test_a_run_spends_its_budget_and_settles(session_of, tmp_path):
    session = session_of(units=20, folder=tmp_path)
    settling = ppo_config(SMOKE | {"timesteps": 4000, "learning_rate": 3e-3, "n_epochs": 4})
    result = PPOSearch(settling)(session)
    session.log.close()
    assert result.units == 20
    assert result.rollout_us == pytest.approx(result.latency_us)
    assert result.latency_us < result.unfused_us
    tags = set(events_of(tmp_path).Tags()["scalars"])
    assert {
        "policy/episode_return",
        "policy/entropy",
        "policy/rollout_us",
        "train/value_loss",
        "train/imitation_loss",
    } <= tags
    assert "search/regret" in tags


def test_a_run_stops_at_its_timesteps(session_of, smoke):
    session = session_of(units=10_000)
    result = PPOSearch(smoke)(session)
    assert result.finished
    assert 0 < result.units < 128


def test_several_environments_share_the_budget(session_of):
    result = PPOSearch(ppo_config(SMOKE | {"n_envs": 3}))(session_of(units=9))
    assert result.units == 9


def test_a_run_is_seeded(session_of, smoke):
    one, same, other = (PPOSearch(smoke)(session_of(seed=seed)) for seed in (1, 1, 2))
    assert one.history == same.history
    assert (one.scheme, one.rollout) == (same.scheme, same.rollout)
    assert one.history != other.history


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_run_in_two_parts_is_what_it_would_be_in_one(session_of, measurer, tmp_path, n_envs):
    config = SMOKE | {"n_envs": n_envs, "timesteps": 256}
    whole = PPOSearch(ppo_config(config))(session_of(units=90, seed=5))
    session = session_of(units=90, seed=5, folder=tmp_path)
    PPOSearch(ppo_config(config | {"timesteps": 64}))(session)
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    rest = PPOSearch(ppo_config(config), checkpoint)(resumed_session(checkpoint, measurer))
    assert 0 < session.ledger.units_spent < whole.units
    assert (rest.history, rest.scheme, rest.rollout) == (whole.history, whole.scheme, whole.rollout)


def test_a_run_goes_on_where_it_stopped(session_of, measurer, smoke, tmp_path):
    session = session_of(units=30, seed=5, folder=tmp_path)
    first = PPOSearch(ppo_config(SMOKE | {"timesteps": 32}))(session)
    session.log.close()
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    assert resumed_session(checkpoint, measurer, units=0).ledger.spent
    with RunLog(tmp_path) as log:
        resumed = resumed_session(checkpoint, measurer, log=log)
        assert (resumed.ledger.units, resumed.ledger.units_spent, resumed.seed) == (30, first.units, 5)
        assert resumed.ledger.best()[1] == pytest.approx(first.latency_us)
        search = PPOSearch(smoke, checkpoint)
        result = search(resumed)
    assert result.units > first.units
    assert list(resumed.charged[: first.units]) == list(session.charged)
    assert load_checkpoint(tmp_path / CHECKPOINT_FILE).run["timesteps"] == 128
    lines = (tmp_path / "trials.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) == result.units


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"\xff\n" + path.read_bytes()[:99])])
def test_a_resumed_run_has_all_its_trials(session_of, measurer, smoke, tmp_path, damage):
    session = session_of(units=30, folder=tmp_path)
    first = PPOSearch(ppo_config(SMOKE | {"timesteps": 32}))(session)
    session.log.close()
    before = (tmp_path / "trials.jsonl").read_text()
    damage(tmp_path / "trials.jsonl")
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    with RunLog(tmp_path) as log:
        resumed = resumed_session(checkpoint, measurer, log=log)
        assert resumed.history == list(first.history)
        assert (tmp_path / "trials.jsonl").read_text() == before
        result = PPOSearch(smoke, checkpoint)(resumed)
    assert [point.units for point in result.history] == list(range(result.units + 1))
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == result.units


def test_a_policy_alone_cannot_be_resumed(session_of, measurer, smoke, tmp_path):
    PPOSearch(smoke)(session_of(folder=tmp_path))
    policy = load_checkpoint(tmp_path / CHECKPOINT_FILE).policy_alone()
    with pytest.raises(PolicyError, match="use --policy instead of --resume"):
        resumed_session(policy, measurer)
    assert PPOSearch(ppo_config(SMOKE | {"hidden": 8}), policy)(session_of()).units == 20


def test_weights_that_do_not_fit_are_one_line(session_of, smoke, tmp_path):
    PPOSearch(smoke)(session_of(folder=tmp_path))
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    weights = dict(list(checkpoint.weights.items())[1:])
    with pytest.raises(PolicyError, match="do not fit"):
        PPOSearch(smoke, type(checkpoint)(weights, checkpoint.hidden, checkpoint.space))(session_of())


def test_an_interrupted_run_keeps_what_it_has(session_of, smoke, tmp_path, monkeypatch):
    session = session_of(units=20, folder=tmp_path)
    measured = type(session.ledger).measure_reserved

    def interrupt(ledger, choice):
        if ledger.units_spent == 7:
            raise KeyboardInterrupt
        return measured(ledger, choice)

    monkeypatch.setattr(type(session.ledger), "measure_reserved", interrupt)
    result = PPOSearch(smoke)(session)
    assert not result.finished
    assert result.units == 7
    assert len(load_checkpoint(tmp_path / CHECKPOINT_FILE).run["choices"]) == 7


def test_the_policy_that_ships_starts_a_search(session_of):
    assert not load_checkpoint(SHIPPED_POLICY).resumable
    result = PPOSearch(ppo_config(SMOKE), load_checkpoint(SHIPPED_POLICY))(session_of(units=8))
    assert result.units == 8


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("workload", (None, 3, {"batch": 0}, {"mask": "file:gone.npy"})),
        ("config", (None, 3, {"n_envs": 10**9}, {"colour": 1})),
        ("choices", (None, 3, [3], [{}], {}, "", [CHOICE, CHOICE])),
        ("seed", (None, -1, 1.5, 10**30)),
        ("timesteps", (None, -1, "x")),
        ("updates", (None, [1])),
        ("units", (-1, 1.5, {})),
        ("seconds", (-1.0, "x", float("nan"), True)),
        ("standalone", (None, "x")),
        ("measurer", (None, "ruler", [])),
    ],
)
def test_a_damaged_run_is_one_line(session_of, smoke, part, values):
    session = session_of()
    checkpoint = checkpoint_of(PPOSearch(smoke).model(session, Rehearsal(session.ledger)), session, smoke)
    check_run(checkpoint)
    lacking = {name: value for name, value in checkpoint.run.items() if name != part}
    for run in (lacking, *(lacking | {part: value} for value in values)):
        with pytest.raises(PolicyError, match="the checkpoint's run") as failure:
            check_run(replace(checkpoint, run=run))
        assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    "damage",
    [
        *({"searches": searches} for searches in (3, [3], [[]], [[["x"], 1, False]], [[[10**9], 1, False]])),
        *({"searches": [[actions, 9, False]]} for actions in ([63] * 3, [0] * 99)),
        *({"searches": [[[], left, False]]} for left in (None, float("inf"))),
        *({"starts": starts} for starts in (None, [])),
        *({"random": state} for state in (None, [], ["x", [1], 0, 0, 0.0], ["MT19937", [1], 0, 0, 0.0])),
    ],
)
def test_a_damaged_position_is_one_line(session_of, measurer, smoke, tmp_path, damage):
    PPOSearch(ppo_config(SMOKE | {"timesteps": 32}))(session_of(folder=tmp_path))
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    position = dict(checkpoint.run["position"]) | damage
    damaged = replace(checkpoint, run=dict(checkpoint.run) | {"position": position})
    with pytest.raises(PolicyError, match="damaged or incomplete"):
        PPOSearch(smoke, damaged)(resumed_session(damaged, measurer))


def test_another_network_s_optimizer_is_refused(session_of, smoke, tmp_path):
    PPOSearch(smoke)(session_of(folder=tmp_path))
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    checkpoint.optimizer["state"][0]["exp_avg"] = torch.zeros(3)
    with pytest.raises(PolicyError, match="do not fit"):
        PPOSearch(smoke, checkpoint)(session_of())


def test_a_new_budget_takes_the_place_of_the_runs(session_of, measurer, smoke, tmp_path):
    PPOSearch(ppo_config(SMOKE | {"timesteps": 32}))(session_of(folder=tmp_path))
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    timed = replace(checkpoint, run=dict(checkpoint.run) | {"seconds": 9.0})

    def limits(**budget):
        ledger = resumed_session(timed, measurer, **budget).ledger
        return ledger.units, ledger.seconds

    assert limits() == (20, 9.0)
    assert limits(units=60) == (60, None)
    assert limits(seconds=99.0) == (None, 99.0)


def test_what_is_forfeited_is_still_the_runs_budget(session_of, smoke, tmp_path):
    session = session_of(units=30, folder=tmp_path)
    model = PPOSearch(smoke).model(session, Rehearsal(session.ledger))
    session.ledger.units = 9
    assert checkpoint_of(model, session, smoke).run["units"] == 30


def test_layers_are_those_of_the_start(session_of, smoke, tmp_path):
    PPOSearch(smoke)(session_of(folder=tmp_path))
    start = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    assert PPOSearch(ppo_config(SMOKE | {"hidden": 64}), start).config.hidden == start.hidden == 16


def test_infinite_seconds_resume_as_no_limit(session_of, measurer, smoke, tmp_path):
    PPOSearch(ppo_config(SMOKE | {"timesteps": 32}))(session_of(folder=tmp_path))
    checkpoint = load_checkpoint(tmp_path / CHECKPOINT_FILE)
    endless = replace(checkpoint, run=dict(checkpoint.run) | {"seconds": float("inf")})
    check_run(endless)
    resumed = resumed_session(endless, measurer)
    assert resumed.ledger.seconds is None
    assert PPOSearch(smoke, endless)(resumed).units == 20


def test_no_weights_make_an_illegal_option_likely(session_of, smoke):
    session = session_of()
    rehearsal = Rehearsal(session.ledger)
    model = PPOSearch(smoke).model(session, rehearsal)
    for weight in model.policy.parameters():
        weight.data.fill_(LARGEST_WEIGHT)
    model.policy.mlp_extractor.score.weight.data.fill_(-LARGEST_WEIGHT)
    assert rehearsal.rollout(model.policy).choices
