"""What of an observation never changes for a workload: its own fields, and those of each option and decision."""

from functools import lru_cache
from math import log2
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import FLOATS
from atoffer_rl.envs.decisions import Decision, DecisionTree, Index, Phase, decision_tree
from atoffer_rl.envs.observation import (
    CODE_SIZE,
    GLOBAL_FIELDS,
    GLOBAL_SIZE,
    OPTION_COUNT,
    OPTION_FIELDS,
    OPTION_SIZE,
    OPTION_TABLE,
    Vector,
    code,
)
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.registry import template_named
from atoffer_rl.mask_structure import mask_structure
from atoffer_rl.operators import OPERATOR_COUNT, Kind, reads_mask, run_operators
from atoffer_rl.roofline import arithmetic_us, memory_us
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import ACTIVATIONS, Workload

Float: TypeAlias = NDArray[np.float64]

GEOMETRY = ("tile_rows", "tile_columns", "threads", "blocks", "waves")
COUNTED_KINDS = (Kind.DENSE, Kind.REDUCTION, Kind.ELEMENTWISE)
OPTION_COLUMN = {name: column for column, name in enumerate(OPTION_FIELDS)}
GLOBAL_COLUMN = {name: column for column, name in enumerate(GLOBAL_FIELDS)}
CONTEXT = slice(GLOBAL_COLUMN["position"], GLOBAL_COLUMN["cut_1"])
OPTION_LOW = np.array([min(field.low, 0.0) for field in OPTION_TABLE], np.float32)
OPTION_HIGH = np.array([field.high for field in OPTION_TABLE], np.float32)


class ChoiceFacts(NamedTuple):
    """Rooflines and geometry of all choices of a tree, one row a choice.

    Attributes:
        bytes: Device memory moved.
        flops: Operations performed.
        memory_us: Time to move the bytes.
        arithmetic_us: Time for the operations.
        floor_us: The roofline, the longer of the two.
        geometry: The columns of `GEOMETRY`; waves are blocks a multiprocessor.
    """

    bytes: Float
    flops: Float
    memory_us: Float
    arithmetic_us: Float
    floor_us: Float
    geometry: Float


class StaticFeatures(NamedTuple):
    """The parts of observations over one legal space that nothing measured changes.

    Attributes:
        tree: The decisions they describe.
        facts: Rooflines and geometry of the choices.
        shared: (global fields,) with the workload, the mask and the device filled in.
        contexts: For each decision, by its row, the fields of `CONTEXT`.
        options: (options of all decisions, option fields) with all but what depends on latencies.
        floor_us: (options,) least roofline of each option's completions.
        firsts: (options,) cut position where the option's run begins.
        ends: (options,) cut position where it ends.
        choice_firsts: (choices,) the same of choices.
        choice_ends: (choices,) the same of choices.
        segment_starts: (operators,) number of the first choice that begins at each operator or later.
    """

    tree: DecisionTree
    facts: ChoiceFacts
    shared: Vector
    contexts: dict[int, Vector]
    options: Vector
    floor_us: Float
    firsts: Index
    ends: Index
    choice_firsts: Index
    choice_ends: Index
    segment_starts: Index


@lru_cache(maxsize=64)
def static_features(space: LegalSpace) -> StaticFeatures:
    """The static features of `space`, made once."""
    tree = decision_tree(space)
    facts = _choice_facts(tree)
    contexts = {decision.row: _context(decision) for decision in tree.decisions}
    options, floor_us = _options(tree, facts)
    firsts, ends = _cuts([option.run for option in tree.options])
    choice_firsts, choice_ends = _cuts([choice.run for choice in tree.choices])
    segment_starts = np.searchsorted(choice_firsts, np.arange(OPERATOR_COUNT))
    return StaticFeatures(
        tree,
        facts,
        _shared(space.workload, space.device),
        contexts,
        options,
        floor_us,
        firsts,
        ends,
        choice_firsts,
        choice_ends,
        segment_starts,
    )


def _cuts(runs: list[Run]) -> tuple[Index, Index]:
    """Where runs begin and end, as cut positions."""
    return np.array([run.first for run in runs], np.intp), np.array([run.last + 1 for run in runs], np.intp)


def _choice_facts(tree: DecisionTree) -> ChoiceFacts:
    workload, device = tree.space.workload, tree.space.device
    work = np.array([_work(workload, choice) for choice in tree.choices], np.float64).reshape(-1, 2)
    memory = memory_us(1.0, device) * work[:, 0]
    arithmetic = arithmetic_us(1.0, workload.element, device) * work[:, 1]
    shapes = [_shape(workload, choice) for choice in tree.choices]
    geometry = np.array([(*shape, shape[-1] / device.multiprocessors) for shape in shapes], np.float64)
    return ChoiceFacts(work[:, 0], work[:, 1], memory, arithmetic, np.maximum(memory, arithmetic), geometry)


def _work(workload: Workload, choice: Choice) -> tuple[int, int]:
    work = template_named(choice.template).work(workload, choice)
    return max(1, work.bytes_read + work.bytes_written), work.flops


def _shape(workload: Workload, choice: Choice) -> tuple[int, int, int, int]:
    shape = template_named(choice.template).geometry(workload, choice)
    return max(1, shape.tile_rows), max(1, shape.tile_columns), max(1, shape.threads), max(1, shape.blocks)


def _shared(workload: Workload, device: DeviceSpec) -> Vector:
    structure = mask_structure(workload.mask_spec, workload.seq_len)
    w = workload
    shapes = [log2(x) / 16 for x in (w.batch, w.seq_len, w.heads, w.head_dim, w.ffn_dim, w.rows)]
    flags = [float(w.dtype == item.value) for item in FLOATS] + [float(w.activation == name) for name in ACTIVATIONS]
    mask = [structure.density, *structure.block_density, *structure.tile_columns]
    rates = (device.multiprocessors, device.bandwidth_gb_s, device.tensor_tflops, device.float32_tflops)
    machine = [log2(rate) / 16 for rate in rates]
    machine += [log2(size) / 32 for size in (device.shared_bytes_per_block, device.l2_bytes)]
    shared = np.zeros(GLOBAL_SIZE, np.float32)
    shared[: CONTEXT.start] = shapes + flags + mask + machine
    return shared


def _context(decision: Decision) -> Vector:
    operators = [float(operator == decision.first) for operator in range(OPERATOR_COUNT)]
    in_segment = decision.phase is Phase.PARAMETER
    parameter = code(decision.parameter) if in_segment else np.zeros(CODE_SIZE, np.float32)
    length, template = 0.0, np.zeros(CODE_SIZE, np.float32)
    if decision.open is not None:
        run, name = decision.open
        length, template = (run.last - run.first + 1) / OPERATOR_COUNT, code(name)
    fields = [decision.first / OPERATOR_COUNT, *operators, float(not in_segment), float(in_segment)]
    fields += [decision.depth / 16, *parameter, len(decision.options) / OPTION_COUNT, length, *template]
    return np.array(fields, np.float32)


def _options(tree: DecisionTree, facts: ChoiceFacts) -> tuple[Vector, Float]:
    table = np.zeros((len(tree.options), OPTION_SIZE), np.float32)
    floors = np.zeros(len(tree.options))
    for decision in tree.decisions:
        _describe(table[decision.rows], decision, tree)
        floors[decision.rows] = _ground(table[decision.rows], decision, facts)
    return np.clip(table, OPTION_LOW, OPTION_HIGH), floors


def _describe(rows: Vector, decision: Decision, tree: DecisionTree) -> None:
    """Fill in what an option is: its run, its template and its value."""
    for rank, (row, option) in enumerate(zip(rows, decision.options, strict=True)):
        run, operators = option.run, run_operators(option.run)
        kinds = [sum(op.kind is kind for op in operators) / 5 for kind in COUNTED_KINDS]
        row[: OPTION_COLUMN["template_code_0"]] = [
            1.0,
            0.0,
            len(operators) / OPERATOR_COUNT,
            (run.last + 1) / OPERATOR_COUNT,
            *kinds,
            float(reads_mask(run)),
        ]
        row[OPTION_COLUMN["template_code_0"] :][:CODE_SIZE] = code(option.template)
        if option.value is not None:
            sign = -1.0 if option.value < 0 else 1.0
            row[OPTION_COLUMN["value_log2"]] = sign * log2(1 + abs(option.value)) / 16
            row[OPTION_COLUMN["value_rank"]] = rank / max(1, len(decision.options) - 1)
        row[OPTION_COLUMN["default"]] = float(tree.default_number(run, option.template) in option.choices)
        row[OPTION_COLUMN["completions"]] = log2(1 + len(option.choices)) / 8


def _ground(rows: Vector, decision: Decision, facts: ChoiceFacts) -> Float:
    """Fill in rooflines and geometry; returns the roofline of each option."""
    starts, span = decision.starts, decision.span
    floors: Float = np.minimum.reduceat(facts.floor_us[span], starts)
    memory, arithmetic = (np.minimum.reduceat(us[span], starts) for us in (facts.memory_us, facts.arithmetic_us))
    rows[:, OPTION_COLUMN["bytes_log2"]] = np.log2(np.minimum.reduceat(facts.bytes[span], starts)) / 32
    rows[:, OPTION_COLUMN["flops_log2"]] = np.log2(1 + np.minimum.reduceat(facts.flops[span], starts)) / 40
    rows[:, OPTION_COLUMN["balance"]] = np.log((arithmetic + 1e-6) / memory)
    geometry = np.add.reduceat(facts.geometry[span], starts, axis=0) / decision.sizes[:, None]
    rows[:, [OPTION_COLUMN[name] for name in GEOMETRY]] = np.log2(geometry) / 16
    waves = facts.geometry[span, GEOMETRY.index("waves")]
    fill = np.add.reduceat(waves / np.ceil(waves), starts) / decision.sizes
    rows[:, OPTION_COLUMN["wave_fill"]] = fill
    return floors


def layer_floor_us(features: StaticFeatures) -> float:
    """The roofline of the unfused layer: the least of each run's first template, summed."""
    total = 0.0
    for run in features.tree.space.unfused.runs:
        decision = features.tree.segments[run.first]
        row = next(row for row, option in enumerate(decision.options) if option.run == run)
        total += float(features.floor_us[decision.rows][row])
    return total
