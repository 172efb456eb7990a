import pytest

from atoffer_rl.envs.decisions import Decision, Phase, decision_tree
from atoffer_rl.kernels.registry import legal_choices, legal_runs, template_choices
from atoffer_rl.workload import Workload

TREES = [decision_tree(Workload(batch=8, seq_len=128)), decision_tree(Workload(batch=3, seq_len=33, dtype="float32"))]


@pytest.fixture(params=TREES, ids=["half", "single"])
def tree(request):
    return request.param


def test_every_legal_choice_is_reached_once(tree):
    legal = {
        choice
        for run in legal_runs(tree.workload, tree.device)
        for choice in legal_choices(tree.workload, run, tree.device)
    }
    assert set(tree.choices) == legal
    assert len(tree.choices) == len(legal)


def test_options_split_the_choices_that_follow_their_decision(tree):
    for decision in tree.decisions:
        numbers = [number for option in decision.options for number in option.choices]
        assert numbers == list(range(decision.span.start, decision.span.stop))
        for option, target in zip(decision.options, decision.targets, strict=True):
            if isinstance(target, Decision):
                assert range(target.span.start, target.span.stop) == option.choices
            else:
                assert option.choices == range(target, target + 1)


def test_every_choice_agrees_with_the_options_that_lead_to_it(tree):
    for number, choice in enumerate(tree.choices):
        assert tree.numbers[choice] == number
        for row in tree.ancestors[number]:
            option = tree.options[row]
            decision = next(item for item in tree.decisions if item.rows.start <= row < item.rows.stop)
            assert (option.run, option.template) == (choice.run, choice.template)
            assert decision.phase is Phase.SEGMENT or choice[decision.parameter] == option.value


def test_parameters_with_one_value_left_are_not_asked(tree):
    assert all(len(decision.options) > 1 for decision in tree.decisions if decision.phase is Phase.PARAMETER)


def test_the_default_is_the_templates_first_choice(tree):
    choice = tree.choices[-1]
    number = tree.default_number(choice.run, choice.template)
    assert tree.choices[number] == template_choices(choice.template, tree.workload, choice.run, tree.device)[0]
