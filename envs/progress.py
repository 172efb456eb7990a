"""What a search knows so far, kept in arrays over choices and options so that an observation is cheap."""

from itertools import islice
from math import inf, log, log2

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.envs.cost_model import LAUNCH_US, CostModel, design
from atoffer_rl.envs.decisions import Decision
from atoffer_rl.envs.features import (
    GLOBAL_COLUMN,
    OPTION_COLUMN,
    OPTION_HIGH,
    OPTION_LOW,
    Float,
    layer_floor_us,
    static_features,
)
from atoffer_rl.envs.observation import OPTION_FIELDS, Vector
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.trial import Trial

LOGISTIC_SLOPE = 1.702
"""The slope at which the logistic distribution is nearest to the normal one."""
FIRST_MEASURED = OPTION_COLUMN["measured"]
MEASURED_FIELDS = OPTION_FIELDS[FIRST_MEASURED:]
FIELDS_LOW, FIELDS_HIGH = OPTION_LOW[FIRST_MEASURED:, None], OPTION_HIGH[FIRST_MEASURED:, None]
KNOWLEDGE = slice(GLOBAL_COLUMN["best_known"], len(GLOBAL_COLUMN))
FAR = 20.0
"""Added to the ln (us) of choices that are not open, so that they are no minimum."""
UNKNOWN_GAIN, UNKNOWN_GAP = -1.0, 1.0


class Progress:
    """A view of a ledger that follows its trials, whoever measures them.

    Args:
        ledger: What is followed.

    Attributes:
        tree: The decisions of the ledger's workload.
        latency_us: (choices,) measured latency; infinite where there is none.
        measured: (choices,) whether there is a trial.
        version: Trials seen so far.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.static = static_features(ledger.workload, ledger.measurer.device)
        self.tree = self.static.tree
        choices, options = len(self.tree.choices), len(self.tree.options)
        self.latency_us: Float = np.full(choices, inf)
        self.measured: NDArray[np.bool_] = np.zeros(choices, bool)
        self.version = 0
        self._failures = 0
        self._model = CostModel(design(ledger.workload, ledger.measurer.device))
        self._total = np.array([len(option.choices) for option in self.tree.options])
        self._ends = np.array([option.run.last + 1 for option in self.tree.options])
        self._seen, self._right = np.zeros(options, np.int64), np.zeros(options, np.int64)
        self._best_us: Float = np.full(options, inf)
        self._log_best: Float = np.zeros(options)
        self._table = self.static.options.copy()
        floor = self.static.floor_us + LAUNCH_US
        column = OPTION_COLUMN["floor"]
        self._table[:, column] = np.clip(np.log(floor / ledger.unfused_us), OPTION_LOW[column], OPTION_HIGH[column])
        self._log_floor, self._log_unfused = np.log(floor), log(ledger.unfused_us)
        self._unfused_over_floor = log(ledger.unfused_us / layer_floor_us(self.static))
        self._fresh = np.full(options, -1)
        self._first = np.array([choice.run.first for choice in self.tree.choices])
        self._end = np.array([choice.run.last + 1 for choice in self.tree.choices])
        self._segment_starts = np.array([decision.span.start for decision in self.tree.segments])
        self.sync()

    def sync(self) -> None:
        """Take in what the ledger measured since the last call."""
        trials = self.ledger.trials
        if len(trials) == self.version:
            return
        for trial in islice(trials.values(), self.version, None):
            self._take_in(trial)
        self.version = len(trials)
        self.suffix_us: Float = np.array(self.ledger.graph.suffix_us)
        self.prefix_us: Float = np.array(self.ledger.graph.prefix_us)
        spread = np.sqrt(np.maximum(self._model.variance, 1e-6))
        self._logistic_scale: Float = spread / LOGISTIC_SLOPE
        self._open_spread: Float = spread * ~self.measured
        self._open_log_us: Float = self._model.log_us + FAR * self.measured
        self._open_hopeful: Float = self._open_log_us - spread
        self._onward: Float = self._largest_onward()
        count = len(trials)
        self.knowledge = np.array(
            [
                log(self.ledger.graph.best_us / self.ledger.unfused_us),
                self._unfused_over_floor,
                count / len(self.tree.choices),
                log2(1 + count) / 16,
                self._failures / count,
            ],
            np.float32,
        )

    def _largest_onward(self) -> Float:
        """For each cut position, the largest expected improvement of any segment that begins there or later."""
        slack_us = np.maximum(self.ledger.graph.best_us - self.prefix_us[self._first] - self.suffix_us[self._end], 1e-9)
        depth = (np.log(slack_us) - self._model.log_us) / self._logistic_scale
        chance = np.log1p(np.exp(np.minimum(depth, 30.0))) * self._open_spread
        improvement = chance * slack_us / (LOGISTIC_SLOPE * self.ledger.unfused_us)
        largest = np.append(np.maximum.reduceat(improvement, self._segment_starts), 0.0)
        onward: Float = np.maximum.accumulate(largest[::-1])[::-1]
        return onward

    def _take_in(self, trial: Trial) -> None:
        assert trial.choice is not None
        number = self.tree.numbers[trial.choice]
        rows = self.tree.ancestors[number]
        self.measured[number] = True
        self._seen[rows] += 1
        if trial.latency_us is None:
            self._failures += 1
            return
        self.latency_us[number] = trial.latency_us
        self._right[rows] += 1
        self._best_us[rows] = np.minimum(self._best_us[rows], trial.latency_us)
        self._log_best[rows] = np.log(self._best_us[rows])
        self._model.observe(number, trial.latency_us)

    def all_measured(self, row: int) -> bool:
        """Whether every choice that follows the option in `row` was measured."""
        return bool(self._seen[row] == self._total[row])

    def legal(self, decision: Decision, may_measure: bool) -> NDArray[np.bool_]:
        """Which options of `decision` some completion follows that is right, or may still be measured."""
        rows = decision.rows
        legal: NDArray[np.bool_] = self._right[rows] > 0
        if may_measure:
            legal |= self._seen[rows] < self._total[rows]
        # Only where another episode measured the last open completion, and it failed, is there none left.
        return legal if legal.any() else ~legal

    def options(self, decision: Decision) -> Vector:
        """The option fields of `decision`, (options, option fields), all but `legal`."""
        if self._fresh[decision.row] != self.version:
            self._refresh(decision)
            self._fresh[decision.row] = self.version
        return self._table[decision.rows]

    def _refresh(self, decision: Decision) -> None:
        rows, unfused_us = decision.rows, self.ledger.unfused_us
        seen, right, total = self._seen[rows], self._right[rows], self._total[rows]
        known, is_open = right > 0, seen < total
        log_best = self._log_best[rows]
        slack_us = self.ledger.graph.best_us - self.prefix_us[decision.first] - self.suffix_us[self._ends[rows]]
        gain = np.where(known, (slack_us - self._best_us[rows]) / unfused_us, UNKNOWN_GAIN)
        fields = np.empty((len(MEASURED_FIELDS), len(total)))
        fields[0] = seen / total
        fields[1] = np.log2(1 + seen) / 8
        fields[2] = (seen - right) / np.maximum(seen, 1)
        fields[3] = known
        fields[4] = known * (log_best - self._log_unfused)
        fields[5] = known * (log_best - self._log_floor[rows])
        fields[6] = gain
        fields[7] = np.where(known, np.max(gain, where=known, initial=-4.0) - gain, UNKNOWN_GAP)
        fields[8] = is_open
        self._estimate(fields[9:16], decision, slack_us)
        fields[9:13] *= is_open
        fields[13] = np.where(known, gain, fields[11])
        fields[14] = ~known
        most = fields[15].max()
        fields[16] = fields[15] / most if most > 0 else 0.0
        prospects = np.maximum(fields[15], self._onward[self._ends[rows]])
        most = prospects.max()
        fields[18] = prospects / most if most > 0 else 0.0
        fields[17] = np.log1p(1000 * self._onward[self._ends[rows]]) / 7
        fields[15] = np.log1p(1000 * fields[15]) / 7
        np.minimum(np.maximum(fields, FIELDS_LOW, out=fields), FIELDS_HIGH, out=fields)
        self._table[rows, FIRST_MEASURED:] = fields.T

    def _estimate(self, fields: Float, decision: Decision, slack_us: Float) -> None:
        """Fill in what the cost model says of each option's open completions, from `predicted_over_floor` on.

        Row 6 gets the largest expected improvement of the best known scheme over the unfused latency. With
        slack the latency at which a choice would draw level, ln (slack / latency) is taken as logistic, and
        an improvement as slack times that logarithm where it is positive.
        """
        rows, span, starts = decision.rows, decision.span, decision.starts
        unfused_us = self.ledger.unfused_us
        least = np.minimum.reduceat(self._open_log_us[span], starts)
        hopeful = np.minimum.reduceat(self._open_hopeful[span], starts)
        fields[0] = least - self._log_floor[rows]
        fields[1] = np.maximum.reduceat(self._open_spread[span], starts)
        fields[2] = (slack_us - np.exp(least)) / unfused_us
        fields[3] = (slack_us - np.exp(hopeful)) / unfused_us
        slack_us = np.maximum(slack_us, 1e-9)
        depth = (np.log(slack_us).repeat(decision.sizes) - self._model.log_us[span]) / self._logistic_scale[span]
        chance = np.log1p(np.exp(np.minimum(depth, 30.0))) * self._open_spread[span]
        fields[6] = np.maximum.reduceat(chance, starts) * slack_us / (LOGISTIC_SLOPE * unfused_us)
