import pytest

from atoffer_rl.envs.decisions import Decision, Phase, decision_tree
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.workload import Workload
from tests.large_scores import LARGE_SCORES

SPACES = {
    "half": LegalSpace(Workload(batch=8, seq_len=128)),
    "single": LegalSpace(Workload(batch=3, seq_len=33, dtype="float32")),
    "large scores": LegalSpace(LARGE_SCORES),
    "standalone": LegalSpace(Workload(batch=8, seq_len=128), standalone=True),
}


@pytest.fixture(params=SPACES)
def tree(request):
    return decision_tree(SPACES[request.param])


def test_every_legal_choice_is_reached_once(tree):
    legal = tree.space.all_choices
    assert set(tree.choices) == set(legal)
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
    space = tree.space
    assert tree.choices[number] == template_choices(choice.template, space.workload, choice.run, space.device)[0]
