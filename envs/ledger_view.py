"""What a search knows so far, kept in arrays over choices and options so that an observation is cheap."""

from itertools import islice
from math import inf, log, log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.envs.cost_model import LAUNCH_US, CostModel, design
from atoffer_rl.envs.decisions import Decision, Index
from atoffer_rl.envs.features import (
    GLOBAL_COLUMN,
    OPTION_COLUMN,
    OPTION_HIGH,
    OPTION_LOW,
    Float,
    layer_floor_us,
    static_features,
)
from atoffer_rl.envs.observation import OBSERVATION_HIGH, OBSERVATION_LOW, Vector
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.trial import Trial

Flags: TypeAlias = NDArray[np.bool_]

LOGISTIC_SLOPE = 1.702
"""The slope at which the logistic distribution is nearest to the normal one."""
OWN_FIELDS = slice(OPTION_COLUMN["measured"], OPTION_COLUMN["known_gain"])
"""Fields that only measurements of an option's own completions change."""
RELATED_FIELDS = slice(OPTION_COLUMN["known_gain"], len(OPTION_COLUMN))
"""Fields that every measurement may change."""
RELATED_LOW, RELATED_HIGH = OPTION_LOW[RELATED_FIELDS, None], OPTION_HIGH[RELATED_FIELDS, None]
KNOWLEDGE = slice(GLOBAL_COLUMN["best_known"], len(GLOBAL_COLUMN))
KNOWLEDGE_LOW, KNOWLEDGE_HIGH = OBSERVATION_LOW[KNOWLEDGE], OBSERVATION_HIGH[KNOWLEDGE]
FAR = 20.0
"""Added to the ln (us) of choices that are not open, so that they are no minimum."""
UNKNOWN_GAIN, UNKNOWN_GAP = -1.0, 1.0
TINY = 1e-30


class LedgerView:
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
        self.static = static_features(ledger.space)
        self.tree = tree = self.static.tree
        self.latency_us: Float = np.full(len(tree.choices), inf)
        self.measured: Flags = np.zeros(len(tree.choices), bool)
        self.version = 0
        self._failures = 0
        self._model = CostModel(design(ledger.space))
        self._total = np.array([len(option.choices) for option in tree.options])
        self._seen, self._right = np.zeros_like(self._total), np.zeros_like(self._total)
        self._known, self._open = self._right > 0, self._total > 0
        self._best_us: Float = np.full(len(tree.options), inf)
        self._fresh = np.full(len(tree.options), -1)
        self._make_table()
        self.sync()

    def _make_table(self) -> None:
        unfused_us = self.ledger.unfused_us
        floor_us, column = self.static.floor_us + LAUNCH_US, OPTION_COLUMN["floor"]
        self._log_floor, self._log_unfused = np.log(floor_us), log(unfused_us)
        self._unfused_over_floor = log(unfused_us / layer_floor_us(self.static))
        self._table = self.static.options.copy()
        self._table[:, column] = np.clip(self._log_floor - self._log_unfused, OPTION_LOW[column], OPTION_HIGH[column])
        self._table[:, [OPTION_COLUMN["open"], OPTION_COLUMN["estimated"]]] = 1.0

    def sync(self) -> None:
        """Take in what the ledger measured since the last call."""
        trials = self.ledger.trials
        if len(trials) == self.version:
            return
        for trial in islice(trials.values(), self.version, None):
            self._take_in(trial)
        self.version = len(trials)
        self._predict()
        knowledge = [
            log(self.ledger.graph.best_us / self.ledger.unfused_us),
            self._unfused_over_floor,
            self.version / len(self.tree.choices),
            log2(1 + self.version) / 16,
            self._failures / self.version,
        ]
        self.knowledge = np.clip(np.array(knowledge, np.float32), KNOWLEDGE_LOW, KNOWLEDGE_HIGH)

    def _take_in(self, trial: Trial) -> None:
        assert trial.choice is not None
        number = self.tree.numbers[trial.choice]
        rows = self.tree.ancestors[number]
        self.measured[number] = True
        self._seen[rows] += 1
        if trial.latency_us is None:
            self._failures += 1
        else:
            self.latency_us[number] = trial.latency_us
            self._right[rows] += 1
            self._best_us[rows] = np.minimum(self._best_us[rows], trial.latency_us)
            self._model.observe(number, trial.latency_us)
        self._describe(rows)

    def _describe(self, rows: Index) -> None:
        """Fill in the fields of options, by row, that only their own completions decide."""
        seen, right, total = self._seen[rows], self._right[rows], self._total[rows]
        known = self._known[rows] = right > 0
        is_open = self._open[rows] = seen < total
        log_best = np.log(np.where(known, self._best_us[rows], 1.0))
        fields = [
            seen / total,
            np.log2(1 + seen) / 8,
            (seen - right) / seen,
            is_open,
            known,
            known * (log_best - self._log_unfused),
            known * (log_best - self._log_floor[rows]),
            ~known,
        ]
        self._table[rows, OWN_FIELDS] = np.clip(
            np.stack(fields, axis=1), OPTION_LOW[OWN_FIELDS], OPTION_HIGH[OWN_FIELDS]
        )

    def _predict(self) -> None:
        """What the cost model says of every choice: latency, spread, and expected improvement over unfused.

        With slack the latency at which a choice would draw level with the best known scheme, ln (slack /
        latency) is taken as logistic, and an improvement as slack times that logarithm where it is positive.
        """
        prefix_us, suffix_us = np.array(self.ledger.graph.prefix_us), np.array(self.ledger.graph.suffix_us)
        log_us, spread = self._model.log_us, np.sqrt(np.maximum(self._model.variance, 1e-6))
        around_us = self.ledger.graph.best_us - prefix_us[:, None] - suffix_us
        self._slack_us: Float = around_us[self.static.firsts, self.static.ends]
        slack_us = np.maximum(around_us[self.static.choice_firsts, self.static.choice_ends], 1e-9)
        self._open_spread: Float = spread * ~self.measured
        self._open_log_us: Float = log_us + FAR * self.measured
        self._open_hopeful: Float = self._open_log_us - spread
        depth = (np.log(slack_us) - log_us) * (LOGISTIC_SLOPE / spread)
        chance = np.log1p(np.exp(np.minimum(depth, 30.0))) * self._open_spread
        self._improvement: Float = chance * slack_us / (LOGISTIC_SLOPE * self.ledger.unfused_us)
        largest = np.append(np.maximum.reduceat(self._improvement, self.static.segment_starts), 0.0)
        # By cut position, of any segment that begins there or later.
        self._onward: Float = np.maximum.accumulate(largest[::-1])[::-1]

    def unmeasured(self, decision: Decision) -> Flags:
        """Which options of `decision` some choice follows that was not measured."""
        flags: Flags = self._open[decision.rows]
        return flags

    def leading(self, decision: Decision) -> Flags:
        """Which options of `decision` a choice that was not measured follows, in their own segment or a later one."""
        last = self.static.choice_firsts.max(where=~self.measured, initial=-1)
        flags: Flags = self._open[decision.rows] | (self.static.ends[decision.rows] <= last)
        return flags

    def legal(self, decision: Decision, may_measure: bool) -> Flags:
        """Which options of `decision` some completion follows that is right, or may still be measured."""
        known = self._known[decision.rows]
        legal: Flags = known | self._open[decision.rows] if may_measure else known
        # Only where another episode measured the last open completion, and it failed, is there none left.
        return legal if legal.any() else ~legal

    def options(self, decision: Decision) -> Vector:
        """The option fields of `decision`, (options, option fields), all but `legal`."""
        if self._fresh[decision.row] != self.version:
            self._relate(decision)
            self._fresh[decision.row] = self.version
        return self._table[decision.rows]

    def _relate(self, decision: Decision) -> None:
        """Fill in the fields of a decision's options that depend on the best known scheme and the cost model."""
        rows, span, starts = decision.rows, decision.span, decision.starts
        unfused_us, slack_us, known = self.ledger.unfused_us, self._slack_us[rows], self._known[rows]
        gain = np.where(known, (slack_us - self._best_us[rows]) / unfused_us, UNKNOWN_GAIN)
        least = np.minimum.reduceat(self._open_log_us[span], starts)
        hopeful = np.minimum.reduceat(self._open_hopeful[span], starts)
        improvement = np.maximum.reduceat(self._improvement[span], starts)
        onward = self._onward[self.static.ends[rows]]
        prospects = np.maximum(improvement, onward)
        fields = np.empty((len(RELATED_LOW), len(starts)))
        fields[0] = gain
        fields[1] = np.where(known, gain.max(where=known, initial=-4.0) - gain, UNKNOWN_GAP)
        fields[2] = least - self._log_floor[rows]
        fields[3] = np.maximum.reduceat(self._open_spread[span], starts)
        fields[4:6] = (slack_us - np.exp((least, hopeful))) / unfused_us
        fields[2:6] *= self._open[rows]
        fields[6] = np.where(known, gain, fields[4])
        fields[7] = np.log1p(1000 * improvement) / 7
        fields[8] = improvement / max(improvement.max(), TINY)
        fields[9] = np.log1p(1000 * onward) / 7
        fields[10] = prospects / max(prospects.max(), TINY)
        np.minimum(np.maximum(fields, RELATED_LOW, out=fields), RELATED_HIGH, out=fields)
        self._table[rows, RELATED_FIELDS] = fields.T
