"""stable-baselines3's own curves, written to a run's log."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger

from atoffer_rl.agents.log import RunLog


class _RunLogWriter(KVWriter):
    def __init__(self, log: RunLog) -> None:
        self._log = log

    def write(self, key_values: Mapping[str, Any], key_excluded: Mapping[str, tuple[str, ...]], step: int = 0) -> None:
        """Write what is a number and not kept out of TensorBoard."""
        for tag, value in key_values.items():
            if "tensorboard" not in (key_excluded.get(tag) or ()) and isinstance(value, int | float | np.number):
                self._log.scalar(tag, float(value), step)

    def close(self) -> None:
        """The log belongs to the session."""


def sb3_logger(log: RunLog) -> Logger:
    """A stable-baselines3 logger that writes to `log`."""
    return Logger(folder=None, output_formats=[_RunLogWriter(log)])
