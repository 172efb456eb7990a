import random
from dataclasses import replace

import pytest

from atoffer_rl.errors import NoTemplate, SchemeError
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.registry import ALL_RUNS, all_templates, template_named
from atoffer_rl.kernels.space import load_space
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload
from tests.large_scores import LARGE_SCORES

WORKLOADS = [
    Workload(batch=2, seq_len=64),
    Workload(batch=1, seq_len=37, dtype="float32"),
    Workload(batch=1, seq_len=128, dtype="bfloat16", activation="relu"),
]


@pytest.fixture(params=WORKLOADS, ids=lambda workload: workload.dtype)
def workload(request):
    return request.param


def test_a_template_is_generated_if_its_programs_are_kernels(workload):
    space = LegalSpace(workload)
    for run in space.runs:
        firsts = {choice.template: choice for choice in reversed(space.choices(run))}
        for name, choice in firsts.items():
            template = template_named(name)
            assert template.generated == isinstance(template.program(workload, choice), KernelProgram)


def test_a_standalone_space_is_what_is_generated_of_the_whole_one(workload):
    whole, standalone = LegalSpace(workload), LegalSpace(workload, standalone=True)
    generated = {template.name for template in all_templates() if template.generated}
    assert standalone.all_choices == tuple(c for c in whole.all_choices if c.template in generated)
    assert len(standalone.all_choices) < len(whole.all_choices)
    assert standalone.unfused == whole.unfused


def test_all_choices_are_those_of_the_runs(workload):
    space = LegalSpace(workload)
    assert set(space.all_choices) == {choice for run in ALL_RUNS for choice in space.choices(run)}
    assert all(choice in space for choice in space.all_choices)
    assert Choice(Run(0, 0), "gemm", (("no", 1),)) not in space


def test_a_library_call_is_told_from_an_illegal_choice():
    whole, standalone = LegalSpace(WORKLOADS[0]), LegalSpace(WORKLOADS[0], standalone=True)
    called = next(choice for choice in whole.choices(Run(0, 0)) if choice not in standalone)
    scheme = Scheme((called, *whole.unfused.choices[1:]))
    whole.check(scheme)
    with pytest.raises(SchemeError, match="calls a library"):
        standalone.check(scheme)
    unknown = Scheme((Choice(Run(0, 0), "gemm", (("no", 1),)), *whole.unfused.choices[1:]))
    with pytest.raises(SchemeError, match="not legal"):
        standalone.check(unknown)


def test_drawn_schemes_are_legal_and_differ():
    space = LegalSpace(Workload(batch=2, seq_len=24, heads=2, head_dim=32, ffn_dim=64))
    source = random.Random(0)
    drawn = [space.draw(source) for _ in range(500)]
    for scheme in drawn:
        space.check(scheme)
    assert len(set(drawn)) == 500
    assert {run for scheme in drawn for run in scheme.runs} == space.runs


def test_the_unfused_scheme_is_one_segment_an_operator(workload):
    assert LegalSpace(workload).unfused.runs == tuple(Run(operator, operator) for operator in range(15))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_scores_that_are_too_large_are_never_stored(dtype):
    space = LegalSpace(replace(LARGE_SCORES, dtype=dtype))
    assert {run for run in space.runs if run.first <= 5 and run.last >= 2} == {
        Run(first, last) for first, last in ((1, 5), (1, 6), (2, 5), (2, 6))
    }
    assert "scores would have 2,147,483,648 elements" in space.why(Run(2, 2))
    singles = [Run(operator, operator) for operator in range(15) if operator not in range(2, 6)]
    assert space.unfused.runs == tuple(sorted([*singles, Run(2, 5)]))
    space.check(space.unfused)


def test_a_layer_that_only_a_library_covers_has_no_unfused_scheme():
    space = LegalSpace(Workload(batch=1, seq_len=64, heads=1, head_dim=2048))
    assert Run(2, 2) in space.runs
    with pytest.raises(NoTemplate, match=r"no generated template covers operator 2 .* --standalone --why 2 2"):
        _ = space.unfused


def altered(scheme, run, **changes):
    """`scheme` with other parameters for `run`; None removes one."""
    choices = []
    for choice in scheme.choices:
        values = dict(choice.parameters) | changes if choice.run == run else dict(choice.parameters)
        items = tuple((name, value) for name, value in values.items() if value is not None)
        choices.append(replace(choice, parameters=items))
    return Scheme(tuple(choices))


def test_a_choice_that_is_not_offered_is_told_why():
    space = LegalSpace(Workload())
    run = Run(0, 0)
    for changes, says in (
        ({"tile_m": None}, r"gemm takes .*tile_m.*; missing: tile_m$"),
        ({"tile_m": None, "rows": 3}, "unknown: rows; missing: tile_m$"),
        ({"tile_m": 10**30}, r"does not offer these values; the nearest that it does: \[0,0\]:gemm\(.*tile_m"),
    ):
        with pytest.raises(SchemeError, match=says):
            space.check(altered(space.unfused, run, **changes))
    nearest = space.unfused.choices[0]
    with pytest.raises(SchemeError) as failure:
        space.check(altered(space.unfused, run, tile_m=nearest["tile_m"] + 1))
    assert str(failure.value).endswith(str(nearest))


def test_a_template_that_does_not_exist_or_serve_here_is_named():
    space = LegalSpace(Workload())
    for name, says in (("tile", "unknown template 'tile': use one of block, chain"), ("block", "--why 0 0")):
        first = replace(space.unfused.choices[0], template=name)
        with pytest.raises(SchemeError, match=says):
            space.check(Scheme((first, *space.unfused.choices[1:])))


def test_a_value_that_breaks_a_hard_rule_is_told_which():
    space = LegalSpace(Workload(dtype="float32", head_dim=128))
    candidates = load_space("gather").candidates(space.workload, Run(1, 6))
    broken = next(
        Choice(Run(1, 6), "gather", values) for values in candidates if Choice(Run(1, 6), "gather", values) not in space
    )
    rest = [choice for choice in space.unfused.choices if choice.run.first not in range(1, 7)]
    with pytest.raises(SchemeError, match=r"shared memory|registers|bytes|warps"):
        space.check(Scheme((rest[0], broken, *rest[1:])))
