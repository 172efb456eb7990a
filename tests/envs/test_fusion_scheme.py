import pickle
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_for_sb3

from atoffer_rl.envs.fusion_scheme import FAILURE_RETURN, LEAST_RETURN, FusionSchemeEnv
from atoffer_rl.envs.observation import GLOBAL_TABLE, OPTION_TABLE, named, split
from atoffer_rl.errors import AtofferError, WorkloadError
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.measurers.replay import ReplayMeasurer
from atoffer_rl.kernels.registry import all_templates
from atoffer_rl.workload import Workload
from tests.envs.conftest import OTHER, WORKLOAD
from tests.envs.walks import random_pick, walk
from tests.large_scores import LARGE_SCORES
from tests.synthetic import synthetic_table

ENVIRONMENT = "atoffer/FusionScheme-v0"


@pytest.fixture
def env(measurer):
    return gymnasium.make(ENVIRONMENT, workload=WORKLOAD, measurer=measurer, units=64)


def test_gymnasiums_checker_accepts_it(env):
    assert env.spec.nondeterministic
    check_env(env.unwrapped, skip_render_check=True)


def test_stable_baselines3s_checker_accepts_it(env):
    check_env_for_sb3(env)


def test_its_registered_name_makes_the_class(env):
    assert isinstance(env.unwrapped, FusionSchemeEnv)


def test_a_standalone_ledger_is_offered_generated_kernels_alone(measurer):
    ledger = Ledger(WORKLOAD, measurer, 40, standalone=True)
    env = FusionSchemeEnv(ledger=ledger)
    generated = {template.name for template in all_templates() if template.generated}

    def pick(legal):
        options = [env._decision.options[action] for action in legal]
        assert {option.template for option in options} <= generated
        return random.choice(legal)

    random = np.random.default_rng(0)
    for _ in range(20):
        walk(env, pick)
    assert ledger.spent
    assert {choice.template for choice in ledger.trials} <= generated


def test_a_standalone_environment_opens_standalone_ledgers(measurer):
    env = gymnasium.make(ENVIRONMENT, workload=WORKLOAD, measurer=measurer, units=8, standalone=True).unwrapped
    assert env.ledger.space.standalone
    env.reset(options={"workload": OTHER})
    assert env.workload == OTHER
    assert env.ledger.space.standalone


def test_a_random_legal_walk_builds_a_legal_scheme(env):
    built = 0
    for seed in range(20):
        episode = walk(env, random_pick(seed))
        assert all(env.observation_space.contains(item) for item in episode.observations)
        if "scheme" in episode.infos[-1]:
            built += 1
            LegalSpace(WORKLOAD).check(episode.infos[-1]["scheme"])
    assert built > 5


@pytest.mark.parametrize(
    "workload",
    [
        Workload(batch=1, seq_len=1, heads=1, head_dim=8, ffn_dim=8),
        Workload(batch=2, seq_len=64, lengths="uniform:shortest=0,longest=0"),
        Workload(batch=2, seq_len=64, lengths="uniform:shortest=0", packed=True),
        LARGE_SCORES,
    ],
    ids=["tiny", "without tokens", "packed", "large scores"],
)
def test_observations_of_extreme_workloads_stay_in_range(workload):
    env = gymnasium.make(ENVIRONMENT, workload=workload, measurer=ReplayMeasurer(synthetic_table(workload)))
    for seed in range(3):
        episode = walk(env, random_pick(seed), seed=seed)
        assert all(env.observation_space.contains(item) for item in episode.observations)


def test_the_return_is_minus_the_normalised_latency(open_ledger):
    ledger = open_ledger()
    env = gymnasium.make(ENVIRONMENT, ledger=ledger)
    for seed in range(20):
        episode = walk(env, random_pick(seed))
        last = episode.infos[-1]
        if "scheme" not in last:
            assert sum(episode.rewards) == pytest.approx(FAILURE_RETURN, abs=1e-9)
            assert last["status"] == "wrong_result"
            continue
        latency_us = sum(ledger.trials[choice].latency_us for choice in last["scheme"].choices)
        assert last["latency_us"] == pytest.approx(latency_us, rel=1e-12)
        expected = max(LEAST_RETURN, -latency_us / ledger.unfused_us)
        assert sum(episode.rewards) == pytest.approx(expected, rel=1e-12)
        assert last["recommended_us"] == ledger.best()[1]


def test_returns_of_slow_schemes_are_clipped_and_stay_above_failures(open_ledger):
    ledger = open_ledger()
    ledger.unfused_us /= 50.0
    episode = walk(gymnasium.make(ENVIRONMENT, ledger=ledger), random_pick(1))
    assert sum(episode.rewards) == (LEAST_RETURN if "scheme" in episode.infos[-1] else FAILURE_RETURN)


def test_an_illegal_action_ends_the_episode_with_the_failure_return(env):
    env.reset()
    illegal = int(np.flatnonzero(~env.unwrapped.action_masks())[-1])
    _, reward, terminated, truncated, info = env.step(illegal)
    assert (reward, terminated, truncated) == (FAILURE_RETURN, True, False)
    assert info["illegal"]
    assert env.unwrapped.ledger.reserved == 0
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_actions_are_named_in_words(env):
    env.reset()
    meanings = env.unwrapped.action_meanings()
    assert meanings[0].startswith("[0,0] as ")
    assert env.step(0)[-1]["action"] == meanings[0]


def test_the_same_seed_draws_the_same_workloads(open_ledger):
    def drawn(seed):
        env = gymnasium.make(ENVIRONMENT, ledgers=[open_ledger(), open_ledger(workload=OTHER)])
        first = env.reset(seed=seed)[1]["workload"]
        return [first] + [env.reset()[1]["workload"] for _ in range(8)]

    assert drawn(1) == drawn(1)
    assert set(drawn(1)) == {WORKLOAD, OTHER}


def test_the_same_actions_lead_to_the_same_observations(open_ledger):
    first, second = (walk(gymnasium.make(ENVIRONMENT, ledger=open_ledger(units=9)), random_pick(5)) for _ in range(2))
    assert first.rewards == second.rewards
    np.testing.assert_array_equal(first.observations, second.observations)


def test_a_pickled_environment_goes_on_as_the_original(env):
    env.reset(seed=1)
    env.step(0)
    copy = pickle.loads(pickle.dumps(env))
    ours, theirs = walk(env, random_pick(2), seed=4), walk(copy, random_pick(2), seed=4)
    assert ours.rewards == theirs.rewards
    np.testing.assert_array_equal(ours.observations, theirs.observations)


def test_reset_sets_the_workload(env, measurer):
    _, info = env.reset(options={"workload": OTHER.to_json()})
    assert info["workload"] == env.unwrapped.workload == OTHER
    assert env.reset(options={"workload": WORKLOAD})[1]["workload"] == WORKLOAD


def test_reset_sets_the_ledger(env, open_ledger):
    ledger = open_ledger(units=3, workload=OTHER)
    env.reset(options={"ledger": ledger})
    assert env.unwrapped.ledger is ledger
    env.reset()
    assert env.unwrapped.ledger is ledger


def test_a_workload_without_a_measurer_is_refused(open_ledger):
    with pytest.raises(WorkloadError, match="measurer"):
        gymnasium.make(ENVIRONMENT)
    env = gymnasium.make(ENVIRONMENT, ledger=open_ledger())
    with pytest.raises(WorkloadError, match="measurer"):
        env.reset(options={"workload": OTHER})


def test_observations_say_where_the_episode_stands(env):
    observation, _ = env.reset()
    shared, options = named(observation)
    assert shared["operator_0"] == shared["phase_segment"] == shared["units_fraction"] == shared["may_measure"] == 1
    assert shared["batch"] == pytest.approx(3 / 16)
    assert len(options) == len(env.unwrapped.action_meanings())
    np.testing.assert_array_equal(split(observation)[1][:, 1], env.unwrapped.action_masks())
    while not named(observation)[0]["operator_1"]:
        observation, *_ = env.step(0)
    assert named(observation)[0]["cut_1"] == 1
    assert named(observation)[0]["return_so_far"] < 0


def test_the_docstring_lists_every_field_with_its_range():
    listed = []
    for names, low, high in re.findall(r"^ *\| (`.*`) \| (\S+) to (\S+) \|", FusionSchemeEnv.__doc__, re.MULTILINE):
        found = re.findall(r"`(\w+)`", names)
        if "` to `" in names:
            stem, first = found[0].rsplit("_", 1)
            found = [f"{stem}_{number}" for number in range(int(first), int(found[1].rsplit("_", 1)[1]) + 1)]
        listed += [(name, float(low), float(high)) for name in found]
    assert listed == [field[:3] for field in GLOBAL_TABLE + OPTION_TABLE]


def test_the_docstring_has_gymnasiums_headings():
    headings = re.findall(r"^ *## (.*)$", FusionSchemeEnv.__doc__, re.MULTILINE)
    assert headings == [
        "Description",
        "Action Space",
        "Observation Space",
        "Rewards",
        "Starting State",
        "Episode End",
        "Arguments",
        "Version History",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "needs a workload and a measurer"),
        ({"workload": WORKLOAD}, "no measurer"),
        ({"workload": WORKLOAD, "measurer": "replay"}, "not the name 'replay'"),
        ({"workload": "bert"}, "a workload is a JSON object"),
        ({"workload": WORKLOAD.to_json() | {"batch": 0}}, "batch must be a positive whole number"),
        ({"workload": {"batch": 4}}, "seq_len, heads, .* missing"),
        ({"workload": WORKLOAD, "measurer": 5}, "measurer must be what open_measurer gives, not 5"),
        ({"ledgers": 5}, "ledgers must be a list of ledgers, not 5"),
        ({"ledgers": None}, "ledgers must be a list of ledgers, not None"),
        ({"ledger": 3}, "a ledger is needed"),
        ({"ledgers": [3]}, "a ledger is needed"),
        *(({"units": value}, "units must be a whole number") for value in (-1, 1.5, "many", float("nan"), 10**400)),
        *(({"seconds": value}, "seconds must be a number") for value in (-1, "long", float("nan"), 10**400)),
    ],
    ids=str,
)
def test_wrong_arguments(measurer, arguments, says):
    if arguments.keys() & {"units", "seconds"}:
        arguments = {"workload": WORKLOAD, "measurer": measurer} | arguments
    with pytest.raises(AtofferError, match=says):
        gymnasium.make(ENVIRONMENT, **arguments)


@pytest.mark.parametrize("options", [{"workloads": WORKLOAD}, {"ledger": 3}, {"workload": 3}], ids=str)
def test_wrong_options(env, options):
    with pytest.raises(WorkloadError):
        env.reset(options=options)
    env.reset(options={"workload": WORKLOAD.to_json()})


def test_an_action_that_is_too_large_to_show(env):
    env.reset()
    _, reward, done, _, info = env.unwrapped.step(10**5000)
    assert (done, info["illegal"], info["action"]) == (True, True, "illegal option <int too large to show>")
    assert reward < 0
    with pytest.raises(WorkloadError, match="not <int too large to show>"):
        env.unwrapped.reset(options={10**5000: 3})


@pytest.mark.parametrize("action", [1.5, "1", None, np.zeros(2, int)], ids=str)
def test_what_is_no_action(env, action):
    env.reset()
    with pytest.raises(gymnasium.error.InvalidAction):
        env.step(action)
    env.step(np.flatnonzero(env.unwrapped.action_masks())[0])


def test_a_step_without_an_episode(env):
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.unwrapped.step(0)
    env.reset()
    env.close()
    env.close()
    assert env.unwrapped.ledger.reserved == 0
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.unwrapped.step(0)


@pytest.mark.parametrize("seconds", [float("inf"), 1e308, 10**20, 5e-324, 0], ids=str)
def test_any_number_of_seconds_gives_observations_in_range(measurer, seconds):
    env = gymnasium.make(ENVIRONMENT, workload=WORKLOAD, measurer=measurer, units=8, seconds=seconds)
    for seed in range(4):
        episode = walk(env, random_pick(seed))
        assert all(env.observation_space.contains(item) for item in episode.observations)
    assert env.unwrapped.ledger.seconds == (None if seconds == float("inf") else seconds)


@pytest.mark.parametrize("options", [5, "workload", [("workload", WORKLOAD)]], ids=str)
def test_reset_takes_options_as_a_mapping(measurer, options):
    env = FusionSchemeEnv(WORKLOAD, measurer)
    with pytest.raises(WorkloadError, match="as a mapping"):
        env.reset(options=options)
