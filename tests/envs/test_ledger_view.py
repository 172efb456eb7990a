"""The arrays that observations are made from agree with what they stand for, computed plainly."""

from math import inf, log

import numpy as np
import pytest

from atoffer_rl.envs.cost_model import NOISE_SPREAD, PRIOR_MEAN, CostModel, design
from atoffer_rl.envs.features import OPTION_COLUMN, static_features
from atoffer_rl.envs.ledger_view import LedgerView
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.shortest_path import CutGraph
from tests.core.test_shortest_path import through_us
from tests.envs.conftest import WORKLOAD


@pytest.fixture
def progress(open_ledger):
    """A search that has measured a random seventh of everything."""
    ledger = open_ledger()
    view = LedgerView(ledger)
    numbers = np.random.default_rng(0).choice(len(view.tree.choices), len(view.tree.choices) // 7, replace=False)
    ledger.measure_all(view.tree.choices[number] for number in numbers)
    view.sync()
    return view


def column(view, decision, name):
    return view.options(decision)[:, OPTION_COLUMN[name]]


def test_it_follows_whatever_the_ledger_measures(progress):
    ledger = progress.ledger
    for number, choice in enumerate(progress.tree.choices):
        trial = ledger.trials.get(choice)
        assert progress.measured[number] == (trial is not None)
        assert progress.latency_us[number] == (trial.latency_us if trial and trial.ok else inf)


def test_options_count_and_rank_their_completions(progress):
    ledger, choices = progress.ledger, progress.tree.choices
    for decision in progress.tree.decisions:
        for place, option in enumerate(decision.options):
            trials = [ledger.trials[choices[n]] for n in option.choices if choices[n] in ledger.trials]
            right = [trial.latency_us for trial in trials if trial.ok]
            assert column(progress, decision, "measured")[place] == pytest.approx(len(trials) / len(option.choices))
            assert column(progress, decision, "known")[place] == bool(right)
            assert column(progress, decision, "open")[place] == (len(trials) < len(option.choices))
            expected = log(min(right) / ledger.unfused_us) if right else 0.0
            assert column(progress, decision, "known_over_unfused")[place] == pytest.approx(expected, abs=1e-5)


def test_known_gain_is_what_taking_the_option_costs_the_best_known_scheme(progress):
    graph, unfused_us = progress.ledger.graph, progress.ledger.unfused_us
    best_of = {}
    for choice, trial in progress.ledger.trials.items():
        best_of[choice.run] = min(best_of.get(choice.run, inf), trial.latency_us or inf)
    plain = CutGraph({run: us for run, us in best_of.items() if us < inf})
    for decision in progress.tree.segments.values():
        gains = column(progress, decision, "known_gain")
        for place, option in enumerate(decision.options):
            latency_us = progress.latency_us[option.choices.start : option.choices.stop].min()
            if latency_us < inf:
                expected = (graph.best_us - through_us(plain, option.run, latency_us)) / unfused_us
                assert gains[place] == pytest.approx(max(expected, -4.0), abs=1e-5)
        known = column(progress, decision, "known") > 0
        gaps = column(progress, decision, "known_gap")[known]
        np.testing.assert_allclose(gaps, gains[known].max() - gains[known], atol=1e-6)


def test_following_the_smallest_gap_builds_the_best_known_scheme(progress):
    position, runs = 0, []
    while position < 15:
        decision = progress.tree.segments[position]
        gaps = np.where(column(progress, decision, "known") > 0, column(progress, decision, "known_gap"), inf)
        runs.append(decision.options[int(gaps.argmin())].run)
        position = runs[-1].last + 1
    assert tuple(runs) == progress.ledger.graph.best_partition()


def test_estimates_are_over_the_completions_that_are_not_measured(progress):
    model, unfused_us = progress._model, progress.ledger.unfused_us
    graph = progress.ledger.graph
    for decision in progress.tree.decisions:
        gains = column(progress, decision, "predicted_gain")
        for place, option in enumerate(decision.options):
            unmeasured = [number for number in option.choices if not progress.measured[number]]
            if not unmeasured:
                assert gains[place] == column(progress, decision, "improvement")[place] == 0
                continue
            least_us = float(np.exp(model.log_us[unmeasured].min()))
            expected = (graph.best_us - through_us(graph, option.run, least_us)) / unfused_us
            assert gains[place] == pytest.approx(max(expected, -4.0), abs=1e-5)


def test_improvements_onward_are_the_largest_of_what_may_follow(progress):
    largest = [column(progress, decision, "improvement").max() for decision in progress.tree.segments.values()] + [0.0]
    for decision in progress.tree.segments.values():
        own, onward = (column(progress, decision, name) for name in ("improvement", "onward"))
        expected = [max(largest[option.run.last + 1 :]) for option in decision.options]
        np.testing.assert_allclose(onward, expected, atol=1e-6)
        prospects = np.expm1(7 * np.maximum(own, onward))
        shares = column(progress, decision, "prospect_share")
        if prospects.max() > 1e-6:
            np.testing.assert_allclose(shares, prospects / prospects.max(), atol=1e-4)


def test_the_cost_model_is_the_exact_posterior():
    """Against Gaussian process regression with the covariance that the effects imply."""
    made = design(LegalSpace(WORKLOAD))
    choices = len(made.base_us)
    effects = np.zeros((choices, len(made.variances)))
    for row in made.effects:
        effects[np.arange(choices), row] += made.variances[row] > 0
    covariance = effects * made.variances @ effects.T
    source = np.random.default_rng(0)
    seen = source.choice(choices, 30, replace=False)
    latency_us = made.base_us[seen] * np.exp(source.normal(1.0, 1.0, 30))
    model = CostModel(made)
    for number, value in zip(seen, latency_us, strict=True):
        model.observe(number, value)
    weights = np.linalg.solve(covariance[np.ix_(seen, seen)] + NOISE_SPREAD**2 * np.eye(30), covariance[seen])
    prior = np.log(made.base_us) + PRIOR_MEAN
    expected = prior + weights.T @ (np.log(latency_us) - prior[seen])
    np.testing.assert_allclose(model.log_us, expected, rtol=1e-8)
    variance = np.diag(covariance) - (weights * covariance[seen]).sum(axis=0) + NOISE_SPREAD**2
    np.testing.assert_allclose(model.variance, variance, rtol=1e-6)


def test_rooflines_are_those_of_the_templates_own_work():
    static = static_features(LegalSpace(WORKLOAD))
    assert (static.facts.floor_us > 0).all()
    for decision in static.tree.segments.values():
        for floor_us, option in zip(static.floor_us[decision.rows], decision.options, strict=True):
            assert floor_us == static.facts.floor_us[option.choices.start : option.choices.stop].min()
