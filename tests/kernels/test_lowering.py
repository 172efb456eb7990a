"""Every AToffer program lowers to a legal scheme, split as the rule says."""

import random
from dataclasses import replace
from functools import cache

import pytest

from atoffer_rl.atoffer_code import AtofferProgram
from atoffer_rl.device import DEFAULT_DEVICE
from atoffer_rl.errors import NoTemplate, SchemeError
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.lowering import lower
from atoffer_rl.run import Run
from atoffer_rl.scheme import Scheme
from atoffer_rl.workload import Workload
from tests.atoffer_programs import all_programs
from tests.large_scores import LARGE_SCORES
from tests.partitions import partitions

SMALL = {"batch": 2, "seq_len": 64, "heads": 2, "ffn_dim": 256}
WORKLOADS = {dtype: Workload(dtype=dtype, mask="fixed", **SMALL) for dtype in ("float16", "bfloat16", "float32")}


def every_split(run, legal):
    """All ways to cut `run` into legal runs, by trying them."""
    if run.last < run.first:
        return [()]
    heads = [Run(run.first, last) for last in range(run.first, run.last + 1) if Run(run.first, last) in legal]
    return [(head, *rest) for head in heads for rest in every_split(Run(head.last + 1, run.last), legal)]


@pytest.mark.parametrize("dtype", WORKLOADS)
def test_every_program_lowers_to_a_legal_scheme(dtype):
    workload = WORKLOADS[dtype]
    choices = set()
    for program in all_programs():
        scheme = lower(program, workload)
        cuts = {run.first for run in program.runs}
        assert cuts <= {choice.run.first for choice in scheme.choices}
        choices.update(scheme.choices)
    assert {choice.template for choice in choices} == {"gemm", "chain", "rowwise", "gather"}
    for choice in choices:
        LegalSpace(workload).check(completed(workload, choice))


def completed(workload, choice):
    """A scheme that contains `choice`."""
    rest = [other for other in LegalSpace(workload).unfused.choices if other.run.first not in choice.run]
    return Scheme(tuple(sorted([*rest, choice], key=lambda other: other.run)))


def test_a_run_is_split_into_the_fewest_the_longest_first():
    workload = WORKLOADS["float16"]
    legal = LegalSpace(workload).runs

    @cache
    def expected(run):
        splits = every_split(run, legal)
        fewest = min(map(len, splits))
        return max((split for split in splits if len(split) == fewest), key=lambda split: [part.last for part in split])

    for first in range(15):
        for last in range(first, 15):
            runs = [Run(operator, operator) for operator in range(15) if not first <= operator <= last]
            program = AtofferProgram(tuple(sorted([*runs, Run(first, last)])))
            lowered = [run for run in lower(program, workload).runs if first <= run.first <= last]
            assert tuple(lowered) == expected(Run(first, last))


def test_the_flag_picks_the_attention_template():
    fused = AtofferProgram.from_code(41115)
    plain = AtofferProgram(fused.runs)

    def template(program, dtype):
        return next(c.template for c in lower(program, WORKLOADS[dtype]).choices if c.run == Run(2, 6))

    assert [template(fused, dtype) for dtype in WORKLOADS] == ["gather", "gather", "gather"]
    assert [template(plain, dtype) for dtype in WORKLOADS] == ["rowwise", "rowwise", "rowwise"]


def test_the_unfused_code_is_the_unfused_scheme():
    workload = WORKLOADS["float16"]
    assert lower(AtofferProgram.from_code(10922), workload).runs == LegalSpace(workload).unfused.runs


def test_a_library_is_never_asked():
    for code in (0, 10922, 41115, 65535):
        choices = lower(AtofferProgram.from_code(code), WORKLOADS["float32"]).choices
        assert "cublaslt" not in {choice.template for choice in choices}


def test_runs_that_would_store_too_much_are_joined_with_their_neighbours():
    space = LegalSpace(LARGE_SCORES, standalone=True)
    ways = list(partitions(space.runs))
    for program in random.Random(0).sample(list(all_programs()), 400):
        cuts = {run.first for run in program.runs}

        def badness(runs, cuts=cuts):
            return len(cuts - {run.first for run in runs}), len(runs), [-run.last for run in runs]

        scheme = lower(program, LARGE_SCORES)
        space.check(scheme)
        assert scheme.runs == min(ways, key=badness)


def test_the_unfused_code_is_the_unfused_scheme_where_scores_are_too_large():
    assert lower(AtofferProgram.from_code(10922), LARGE_SCORES) == LegalSpace(LARGE_SCORES).unfused


@pytest.mark.parametrize("code", [0, 10922, 2**14 - 1])
def test_codes_fuse_the_attention_of_packed_sequences(code):
    packed = Workload(lengths="uniform", packed=True)
    scheme = lower(AtofferProgram.from_code(code), packed)
    LegalSpace(packed).check(scheme)
    assert {Run(1, 6), Run(2, 6)} & {*scheme.runs}


def test_codes_lower_to_what_is_legal_on_the_device_that_is_asked_for():
    program, workload = AtofferProgram.from_code(41115), WORKLOADS["float16"]
    small = replace(
        DEFAULT_DEVICE, arch="sm_89", shared_bytes_per_block=101_376, shared_bytes_per_multiprocessor=102_400
    )
    LegalSpace(workload, small).check(lower(program, workload, small))
    with pytest.raises(SchemeError, match="gather"):
        LegalSpace(workload, small).check(lower(program, workload))


def test_what_generated_templates_do_not_cover_cannot_be_lowered():
    with pytest.raises(NoTemplate, match="atoffer schemes --standalone"):
        lower(AtofferProgram.from_code(0), Workload(batch=1, seq_len=64, heads=1, head_dim=2048))
