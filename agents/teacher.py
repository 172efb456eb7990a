"""The rule that pre-training imitates before it reinforces: go where the expected improvement is largest.

Reference: Jones, Schonlau and Welch, Efficient global optimization of expensive black-box functions, 1998,
section 4 (expected improvement).
"""

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.envs.features import GLOBAL_COLUMN, OPTION_COLUMN
from atoffer_rl.envs.observation import Vector, split

WORTHWHILE = 0.9
"""A segment is measured if it promises this share of the most that any segment still to come promises."""
LOG_SCALE, LOG_FACTOR = 7.0, 1000.0
UNKNOWN = -99.0


def teacher_action(observation: Vector, mask: NDArray[np.bool_]) -> int:
    """What to do: measure the most promising choice; else take the best known way to where it is.

    Args:
        observation: (fields,) of a fusion scheme environment.
        mask: (options,) its legal options.
    """
    shared, rows = split(observation)
    known = np.where(rows[:, OPTION_COLUMN["known"]] > 0, rows[:, OPTION_COLUMN["known_gain"]], UNKNOWN)
    if shared[GLOBAL_COLUMN["may_measure"]] == 0:
        return _best(known, mask)
    own, onward = (
        np.expm1(LOG_SCALE * rows[:, OPTION_COLUMN[name]]) / LOG_FACTOR for name in ("improvement", "onward")
    )
    most = np.where(mask, np.maximum(own, onward), 0.0).max()
    if most > 0 and np.where(mask, own, 0.0).max() >= WORTHWHILE * most:
        return _best(own, mask)
    return _best(known, mask & (np.maximum(own, onward) >= WORTHWHILE * most))


def _best(values: NDArray[np.floating], mask: NDArray[np.bool_]) -> int:
    return int(np.where(mask, values, -np.inf).argmax())
