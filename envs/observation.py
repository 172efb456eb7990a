"""What the agent sees: the names, ranges and meanings of the observation's fields, and their layout.

An observation is one float32 vector: the global fields, then `OPTION_COUNT` rows of option fields, row by
row; rows past the options of the present decision are zeros. Logarithms named log2 are divided by a constant
so that common values lie between 0 and 1; ratios of latencies are natural logarithms.
"""

import hashlib
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.mask_structure import BLOCK_SIZES
from atoffer_rl.operators import OPERATOR_COUNT

Vector: TypeAlias = NDArray[np.float32]

OPTION_COUNT = 64
CODE_SIZE = 4
LOG_RATIO = 8.0


class Field(NamedTuple):
    """One number of the observation.

    Attributes:
        name: Its name.
        low: Smallest value.
        high: Largest value; values beyond the range are clipped.
        meaning: What it is, with its unit.
    """

    name: str
    low: float
    high: float
    meaning: str


def _fields(names: str, low: float, high: float, meaning: str) -> tuple[Field, ...]:
    return tuple(Field(name, low, high, meaning) for name in names.split())


def _numbered(stem: str, numbers: tuple[int, ...] | range, low: float, high: float, meaning: str) -> tuple[Field, ...]:
    return _fields(" ".join(f"{stem}_{number}" for number in numbers), low, high, meaning)


GLOBAL_TABLE: tuple[Field, ...] = (
    *_fields("batch seq_len heads head_dim ffn_dim rows", 0, 2, "workload: log2 / 16"),
    *_fields("float32 float16 bfloat16 gelu gelu_tanh relu", 0, 1, "workload: flag"),
    Field("mask_density", 0, 1, "kept (query, key) pairs over all pairs"),
    *_numbered("mask_density", BLOCK_SIZES, 0, 1, "share of square blocks that keep a pair"),
    *_numbered("mask_columns", BLOCK_SIZES, 0, 1, "distinct columns of a row tile over seq_len, mean"),
    *_fields("multiprocessors bandwidth tensor_rate float32_rate", 0, 2, "device: log2 (count, GB/s, TFLOP/s) / 16"),
    *_fields("shared_bytes l2_bytes", 0, 2, "device: log2 (bytes) / 32"),
    Field("position", 0, 1, "first operator of the present segment / 15"),
    *_numbered("operator", range(OPERATOR_COUNT), 0, 1, "flag: the present segment begins here"),
    *_fields("phase_segment phase_parameter", 0, 1, "flag: what the present decision is about"),
    Field("parameter_depth", 0, 1, "parameters of the present segment decided so far / 16"),
    *_numbered("parameter_code", range(CODE_SIZE), -1, 1, "code of the present parameter's name, else 0"),
    Field("options", 0, 1, "options of the present decision / 64"),
    Field("open_length", 0, 1, "operators of the open segment / 15, 0 before it is chosen"),
    *_numbered("open_template", range(CODE_SIZE), -1, 1, "code of the open segment's template"),
    *_numbered("cut", range(1, OPERATOR_COUNT), 0, 1, "flag: a closed segment ends before this operator"),
    Field("segments", 0, 1, "segments closed so far / 15"),
    Field("return_so_far", -5, 0, "sum of the episode's rewards"),
    Field("excess_so_far", 0, 4, "latency so far minus the best known to here, over unfused"),
    Field("known_rest", 0, 4, "best known latency from here to the end, over unfused"),
    Field("units_left", 0, 1, "budget: log2(1 + units left) / 16; 1 without a limit"),
    Field("units_fraction", 0, 1, "budget: units left over units given; 1 without a limit"),
    Field("seconds_fraction", 0, 1, "budget: measuring seconds left over those given; 1 without a limit"),
    Field("may_measure", 0, 1, "flag: this segment may still end in a new measurement"),
    Field("best_known", -LOG_RATIO, LOG_RATIO, "ln (best known latency / unfused)"),
    Field("unfused_over_floor", -LOG_RATIO, LOG_RATIO, "ln (unfused latency / its roofline)"),
    Field("measured", 0, 1, "choices measured over all choices"),
    Field("measured_log2", 0, 2, "log2(1 + choices measured) / 16"),
    Field("failed", 0, 1, "failed choices over those measured"),
)

OPTION_TABLE: tuple[Field, ...] = (
    Field("present", 0, 1, "flag: this row is an option of the present decision"),
    Field("legal", 0, 1, "flag: the mask allows it"),
    Field("length", 0, 1, "operators of the option's run / 15"),
    Field("end", 0, 1, "operators done when the run is over / 15"),
    *_fields("dense_operators reduction_operators elementwise_operators", 0, 1, "operators of a kind in the run / 5"),
    Field("reads_mask", 0, 1, "flag: the run contains the mask"),
    *_numbered("template_code", range(CODE_SIZE), -1, 1, "code of the template's name"),
    Field("value_log2", -2, 2, "parameter value, sign * log2(1 + abs(value)) / 16"),
    Field("value_rank", 0, 1, "rank of the value among the options, 0 to 1"),
    Field("default", 0, 1, "flag: leads to the template's default choice"),
    Field("bytes_log2", 0, 2, "roofline: log2 (bytes moved) / 32, least of its completions"),
    Field("flops_log2", 0, 2, "roofline: log2 (1 + flops) / 40, least of its completions"),
    Field(
        "floor",
        -LOG_RATIO,
        LOG_RATIO,
        "ln (roofline / unfused), least of its completions; a launch is part of a roofline",
    ),
    Field("balance", -LOG_RATIO, LOG_RATIO, "ln (arithmetic time / memory time)"),
    *_fields("tile_rows tile_columns threads", 0, 2, "geometry: log2 / 16, mean of its completions"),
    Field("blocks", 0, 2, "geometry: log2 (blocks) / 16, mean of its completions"),
    Field("waves", -1, 2, "geometry: log2 (blocks per multiprocessor) / 16, mean of its completions"),
    Field("wave_fill", 0, 1, "geometry: blocks over those of whole waves, mean of its completions"),
    Field("completions", 0, 2, "log2 (1 + choices that follow) / 8"),
    Field("measured", 0, 1, "share of its completions measured"),
    Field("measured_log2", 0, 2, "log2 (1 + completions measured) / 8"),
    Field("failed", 0, 1, "failed completions over those measured"),
    Field("open", 0, 1, "flag: a completion is not measured yet; predictions are over those, 0 if there is none"),
    Field("known", 0, 1, "flag: a completion was measured and is right"),
    Field("known_over_unfused", -LOG_RATIO, LOG_RATIO, "ln (best measured completion / unfused), 0 if none"),
    Field("known_over_floor", -LOG_RATIO, LOG_RATIO, "ln (best measured completion / its roofline), 0 if none"),
    Field("estimated", 0, 1, "flag: gain is an estimate, as none is known"),
    Field("known_gain", -4, 0, "best known scheme minus the best through this option, over unfused; -1 if none"),
    Field("known_gap", 0, 4, "known_gain of the decision's best option minus its own; 1 if none is known"),
    Field("predicted_over_floor", -LOG_RATIO, LOG_RATIO, "cost model: ln (least predicted latency / roofline)"),
    Field("predicted_spread", 0, LOG_RATIO, "cost model: largest standard deviation of ln (latency)"),
    Field("predicted_gain", -4, 1, "as known_gain, at the least predicted latency"),
    Field("hopeful_gain", -4, 1, "as known_gain, at the least latency one standard deviation below its prediction"),
    Field("gain", -4, 1, "known_gain where known, else predicted_gain"),
    Field("improvement", 0, 1, "ln (1 + 1000 * expected improvement of the best known scheme / unfused) / 7"),
    Field("improvement_share", 0, 1, "that expected improvement over the decision's largest"),
    Field("onward", 0, 1, "as improvement, the largest of any segment that may follow the option's run"),
    Field("prospect_share", 0, 1, "larger of the option's own and onward improvement, over the decision's largest"),
)

GLOBAL_FIELDS: tuple[str, ...] = tuple(field.name for field in GLOBAL_TABLE)
OPTION_FIELDS: tuple[str, ...] = tuple(field.name for field in OPTION_TABLE)
GLOBAL_SIZE = len(GLOBAL_FIELDS)
OPTION_SIZE = len(OPTION_FIELDS)
OBSERVATION_SIZE = GLOBAL_SIZE + OPTION_COUNT * OPTION_SIZE


def _bounds(bound: str) -> Vector:
    rows = [getattr(field, bound) for field in OPTION_TABLE]
    return np.array([getattr(field, bound) for field in GLOBAL_TABLE] + rows * OPTION_COUNT, np.float32)


OBSERVATION_LOW = np.minimum(_bounds("low"), 0.0)
OBSERVATION_HIGH = _bounds("high")


def split(observation: Vector) -> tuple[Vector, Vector]:
    """The global fields and the (`OPTION_COUNT`, option fields) table of `observation`, as views.

    Args:
        observation: One observation, or a batch of them along leading axes.
    """
    options = observation[..., GLOBAL_SIZE:]
    return observation[..., :GLOBAL_SIZE], options.reshape(*options.shape[:-1], OPTION_COUNT, OPTION_SIZE)


def named(observation: Vector) -> tuple[dict[str, float], list[dict[str, float]]]:
    """One observation by name: the global fields, and those of each option present."""
    shared, options = split(observation)
    present = [row for row in options if row[0]]
    return (
        dict(zip(GLOBAL_FIELDS, shared.tolist(), strict=True)),
        [dict(zip(OPTION_FIELDS, row.tolist(), strict=True)) for row in present],
    )


def code(name: str) -> Vector:
    """A fixed point of [-1, 1]^`CODE_SIZE` for `name`: names that a policy never saw have one too."""
    digest = hashlib.sha256(name.encode()).digest()[:CODE_SIZE]
    return (np.frombuffer(digest, np.uint8).astype(np.float32) / 127.5) - 1.0
