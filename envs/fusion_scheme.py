"""The environment in which an agent builds fusion schemes and is paid their measured latency."""

from collections.abc import Iterable, Mapping
from math import isinf, log2
from operator import index as operator_index
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from atoffer_rl.envs.decisions import Decision, Phase
from atoffer_rl.envs.features import CONTEXT, GLOBAL_COLUMN, OPTION_COLUMN
from atoffer_rl.envs.ledger_view import KNOWLEDGE, LedgerView
from atoffer_rl.envs.observation import (
    GLOBAL_SIZE,
    OBSERVATION_HIGH,
    OBSERVATION_LOW,
    OBSERVATION_SIZE,
    OPTION_COUNT,
    OPTION_SIZE,
    Vector,
)
from atoffer_rl.errors import WorkloadError
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.operators import OPERATOR_COUNT
from atoffer_rl.quote import quote
from atoffer_rl.scheme import Choice, Scheme
from atoffer_rl.workload import Workload

FAILURE_RETURN = -5.0
LEAST_RETURN = -4.0
PARTIAL = slice(GLOBAL_COLUMN["cut_1"], GLOBAL_COLUMN["best_known"])


class FusionSchemeEnv(gymnasium.Env[Vector, np.int64]):
    """A layer is cut into segments and each segment is given an implementation; the reward is measured latency.

    ## Description

    A transformer encoder layer is 15 operators. A scheme cuts them into runs, and implements each run with a
    template and values for the template's parameters. An episode builds one scheme from the first operator to the
    last. Whenever a segment is complete its latency is taken from the ledger: measured on the device (live, or
    recorded) and charged to the budget the first time, remembered from then on. The budget outlives episodes.

    The execution option `plain` is the only one, and nothing with a single option is asked: an episode begins with
    the first segment.

    ## Action Space

    `Discrete(64)`: action k takes the k-th option of the present decision. Decisions alternate between

    - *segment*: where the segment that begins here ends, and which template implements it;
    - *parameter*: the value of one parameter of the template, in the template's order. A parameter with one
      value left, given those before it, is not asked.

    `action_masks()` says which actions are legal: those that some choice follows which was measured and is right, or
    may still be measured. When a segment begins a unit of budget is reserved if one is free, and given back if
    the segment turns out to end in a known choice; so an offer stays affordable, also where several environments
    share a ledger. Without a reserved unit only measured choices are offered. A choice that failed is not offered
    again. The unfused scheme is always measured, so the layer can be completed from wherever a segment ends, and a
    mask is never all False. (Where another environment measured the last open completion of an open segment
    meanwhile and it failed, the mask allows every option of that decision; the segment fails.)

    `action_meanings()` names the present options; `info["action"]` names the one taken.

    ## Observation Space

    `Box` of float32, (`OBSERVATION_SIZE`,): the global fields, then 64 rows of option fields (zeros past the options of
    the present decision, and everywhere when the episode is over). Ranges are bounds: values beyond them are clipped.
    log2 and ln are logarithms; latencies are in us before a ratio is taken; "unfused" is the layer's latency under the
    `unfused` scheme on the same device.

    Global fields:

    | field | range | meaning |
    | --- | --- | --- |
    | `batch`, `seq_len`, `heads`, `head_dim`, `ffn_dim`, `rows` | 0 to 2 | workload: log2 / 16 |
    | `float32`, `float16`, `bfloat16`, `gelu`, `gelu_tanh`, `relu` | 0 to 1 | workload: flag |
    | `mask_density` | 0 to 1 | kept (query, key) pairs over all pairs |
    | `mask_density_16` | 0 to 1 | share of square blocks that keep a pair |
    | `mask_density_32` | 0 to 1 | share of square blocks that keep a pair |
    | `mask_density_64` | 0 to 1 | share of square blocks that keep a pair |
    | `mask_density_128` | 0 to 1 | share of square blocks that keep a pair |
    | `mask_columns_16` | 0 to 1 | distinct columns of a row tile over seq_len, mean |
    | `mask_columns_32` | 0 to 1 | distinct columns of a row tile over seq_len, mean |
    | `mask_columns_64` | 0 to 1 | distinct columns of a row tile over seq_len, mean |
    | `mask_columns_128` | 0 to 1 | distinct columns of a row tile over seq_len, mean |
    | `multiprocessors` | 0 to 2 | device: log2 (count, GB/s, TFLOP/s) / 16 |
    | `bandwidth` | 0 to 2 | device: log2 (count, GB/s, TFLOP/s) / 16 |
    | `tensor_rate` | 0 to 2 | device: log2 (count, GB/s, TFLOP/s) / 16 |
    | `float32_rate` | 0 to 2 | device: log2 (count, GB/s, TFLOP/s) / 16 |
    | `shared_bytes`, `l2_bytes` | 0 to 2 | device: log2 (bytes) / 32 |
    | `position` | 0 to 1 | first operator of the present segment / 15 |
    | `operator_0` to `operator_14` | 0 to 1 | flag: the present segment begins here |
    | `phase_segment`, `phase_parameter` | 0 to 1 | flag: what the present decision is about |
    | `parameter_depth` | 0 to 1 | parameters of the present segment decided so far / 16 |
    | `parameter_code_0` to `parameter_code_3` | -1 to 1 | code of the present parameter's name, else 0 |
    | `options` | 0 to 1 | options of the present decision / 64 |
    | `open_length` | 0 to 1 | operators of the open segment / 15, 0 before it is chosen |
    | `open_template_0` to `open_template_3` | -1 to 1 | code of the open segment's template |
    | `cut_1` to `cut_14` | 0 to 1 | flag: a closed segment ends before this operator |
    | `segments` | 0 to 1 | segments closed so far / 15 |
    | `return_so_far` | -5 to 0 | sum of the episode's rewards |
    | `excess_so_far` | 0 to 4 | latency so far minus the best known to here, over unfused |
    | `known_rest` | 0 to 4 | best known latency from here to the end, over unfused |
    | `units_left` | 0 to 1 | budget: log2(1 + units left) / 16; 1 without a limit |
    | `units_fraction` | 0 to 1 | budget: units left over units given; 1 without a limit |
    | `seconds_fraction` | 0 to 1 | budget: measuring seconds left over those given; 1 without a limit |
    | `may_measure` | 0 to 1 | flag: this segment may still end in a new measurement |
    | `best_known` | -8 to 8 | ln (best known latency / unfused) |
    | `unfused_over_floor` | -8 to 8 | ln (unfused latency / its roofline) |
    | `measured` | 0 to 1 | choices measured over all choices |
    | `measured_log2` | 0 to 2 | log2(1 + choices measured) / 16 |
    | `failed` | 0 to 1 | failed choices over those measured |

    Fields of each option ("completions" are the choices that may follow it):

    | field | range | meaning |
    | --- | --- | --- |
    | `present` | 0 to 1 | flag: this row is an option of the present decision |
    | `legal` | 0 to 1 | flag: the mask allows it |
    | `length` | 0 to 1 | operators of the option's run / 15 |
    | `end` | 0 to 1 | operators done when the run is over / 15 |
    | `dense_operators` | 0 to 1 | operators of a kind in the run / 5 |
    | `reduction_operators` | 0 to 1 | operators of a kind in the run / 5 |
    | `elementwise_operators` | 0 to 1 | operators of a kind in the run / 5 |
    | `reads_mask` | 0 to 1 | flag: the run contains the mask |
    | `template_code_0` to `template_code_3` | -1 to 1 | code of the template's name |
    | `value_log2` | -2 to 2 | parameter value, sign * log2(1 + abs(value)) / 16 |
    | `value_rank` | 0 to 1 | rank of the value among the options, 0 to 1 |
    | `default` | 0 to 1 | flag: leads to the template's default choice |
    | `bytes_log2` | 0 to 2 | roofline: log2 (bytes moved) / 32, least of its completions |
    | `flops_log2` | 0 to 2 | roofline: log2 (1 + flops) / 40, least of its completions |
    | `floor` | -8 to 8 | ln (roofline / unfused), least of its completions; a launch is part of a roofline |
    | `balance` | -8 to 8 | ln (arithmetic time / memory time) |
    | `tile_rows`, `tile_columns`, `threads` | 0 to 2 | geometry: log2 / 16, mean of its completions |
    | `blocks` | 0 to 2 | geometry: log2 (blocks) / 16, mean of its completions |
    | `waves` | -1 to 2 | geometry: log2 (blocks per multiprocessor) / 16, mean of its completions |
    | `wave_fill` | 0 to 1 | geometry: blocks over those of whole waves, mean of its completions |
    | `completions` | 0 to 2 | log2 (1 + choices that follow) / 8 |
    | `measured` | 0 to 1 | share of its completions measured |
    | `measured_log2` | 0 to 2 | log2 (1 + completions measured) / 8 |
    | `failed` | 0 to 1 | failed completions over those measured |
    | `open` | 0 to 1 | flag: a completion is not measured yet; predictions are over those, 0 if there is none |
    | `known` | 0 to 1 | flag: a completion was measured and is right |
    | `known_over_unfused` | -8 to 8 | ln (best measured completion / unfused), 0 if none |
    | `known_over_floor` | -8 to 8 | ln (best measured completion / its roofline), 0 if none |
    | `estimated` | 0 to 1 | flag: gain is an estimate, as none is known |
    | `known_gain` | -4 to 0 | best known scheme minus the best through this option, over unfused; -1 if none |
    | `known_gap` | 0 to 4 | known_gain of the decision's best option minus its own; 1 if none is known |
    | `predicted_over_floor` | -8 to 8 | cost model: ln (least predicted latency / roofline) |
    | `predicted_spread` | 0 to 8 | cost model: largest standard deviation of ln (latency) |
    | `predicted_gain` | -4 to 1 | as known_gain, at the least predicted latency |
    | `hopeful_gain` | -4 to 1 | as known_gain, at the least latency one standard deviation below its prediction |
    | `gain` | -4 to 1 | known_gain where known, else predicted_gain |
    | `improvement` | 0 to 1 | ln (1 + 1000 * expected improvement of the best known scheme / unfused) / 7 |
    | `improvement_share` | 0 to 1 | that expected improvement over the decision's largest |
    | `onward` | 0 to 1 | as improvement, the largest of any segment that may follow the option's run |
    | `prospect_share` | 0 to 1 | larger of the option's own and onward improvement, over the decision's largest |

    ## Rewards

    When a segment is closed: minus its latency over the unfused latency; 0 at other steps. Discount 1 and no
    normalisation: the return is minus the scheme's normalised latency, but not less than -4. A choice that fails,
    or an action outside the mask, ends the episode so that its return is -5.

    ## Starting State

    The first operator, nothing decided. With several workloads one is drawn;
    `reset(options={"workload": ...})` sets it, `reset(options={"ledger": ...})` sets it together with what measures
    it and what is known.

    ## Episode End

    Terminated when operator 14 is done, when a choice fails, and at an illegal action; never truncated. The last
    `info` holds `scheme` and `latency_us` (the sum over its segments) of a complete scheme, and `recommended_us`, the
    latency of the best known one. Every `info` of a closed segment holds `choice` and `segment_us`, and `status` if
    it failed; that of an illegal action holds `illegal`.

    ## Arguments

    ```python
    gymnasium.make("atoffer/FusionScheme-v0", workload=Workload(), measurer=measurer, units=128)
    gymnasium.make("atoffer/FusionScheme-v0", ledgers=[ledger_of_one_workload, ledger_of_another])
    ```

    Args:
        workload: What schemes are built for, at first; a `Workload` or its JSON object.
        measurer: Who measures workloads that come without a ledger.
        ledger: Measures one workload under its own budget.
        ledgers: More of them, one a workload; episodes draw from all.
        units: Budget in units of each ledger that the environment opens; None means no limit.
        seconds: Budget in measuring seconds of each ledger that the environment opens; None or infinity means no limit.
        standalone: Whether each ledger that the environment opens offers only generated kernels.

    Raises:
        WorkloadError: If there is neither a ledger nor a workload with a measurer, or one of them is something else.
        AtofferError: If a budget is no number from 0 on.

    ## Version History

    - v0: the first.
    """

    def __init__(
        self,
        workload: Workload | Mapping[str, Any] | None = None,
        measurer: Measurer | None = None,
        ledger: Ledger | None = None,
        ledgers: Iterable[Ledger] = (),
        units: int | None = None,
        seconds: float | None = None,
        standalone: bool = False,
    ) -> None:
        self._measurer, self._units, self._seconds, self._standalone = measurer, units, seconds, standalone
        if isinstance(ledgers, Ledger) or not isinstance(ledgers, Iterable):
            raise WorkloadError(f"ledgers must be a list of ledgers, not {quote(ledgers)}")
        given = [_checked_ledger(item) for item in ([ledger] if ledger is not None else []) + list(ledgers)]
        self._ledgers = {item.workload: item for item in given}
        self._views: dict[Workload, LedgerView] = {}
        if workload is not None:
            self._open(_checked_workload(workload))
        if not self._ledgers:
            raise WorkloadError("an environment needs a workload and a measurer, or a ledger")
        self.observation_space = spaces.Box(OBSERVATION_LOW, OBSERVATION_HIGH, dtype=np.float32)
        self.action_space = spaces.Discrete(OPTION_COUNT)
        self._reserved = False
        self._use(next(iter(self._ledgers.values())))
        self._clear()
        self._done = True
        self._face(self._view.tree.segments[0])

    @property
    def ledger(self) -> Ledger:
        """What the present episode measures with."""
        return self._view.ledger

    @property
    def operator(self) -> int:
        """Where the segment begins that is decided."""
        return self._decision.first

    @property
    def workload(self) -> Workload:
        """What the present episode builds a scheme for."""
        return self._view.ledger.workload

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal, (64,); as the last observation says, and never all False."""
        return self._mask.copy()

    def unmeasured_masks(self) -> NDArray[np.bool_]:
        """Which legal actions may end in a choice that was not measured, (64,)."""
        masks = self._mask.copy()
        masks[: len(self._decision.options)] &= self._view.unmeasured(self._decision) & self._reserved
        return masks

    def leading_masks(self) -> NDArray[np.bool_]:
        """Which legal actions leave room for a choice that was not measured, in this segment or a later one, (64,)."""
        masks = self._mask.copy()
        masks[: len(self._decision.options)] &= self._view.leading(self._decision)
        return masks

    def action_meanings(self) -> list[str]:
        """The options of the present decision in words, in the order of their actions."""
        return [option.name for option in self._decision.options]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Begin a scheme.

        Args:
            seed: Seed of the draw of workloads.
            options: `workload`, a `Workload` or its JSON object, sets the workload; `ledger` sets it together
                with what measures it. Without either one of the environment's workloads is drawn.

        Raises:
            WorkloadError: If the options are wrong, or the workload is none of the environment's, and there is no
                measurer to open it.
        """
        if options is not None and not isinstance(options, Mapping):
            raise WorkloadError(f"reset takes options as a mapping, such as {{'workload': ...}}, not {quote(options)}")
        super().reset(seed=seed)
        ledger = self._pick(options or {})  # first: whatever it refuses leaves the episode as it was
        self._release()
        self._use(ledger)
        self._clear()
        self._open_segment(0)
        return self._observe(), {"workload": self.workload}

    def step(self, action: np.int64 | int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Take option `action` of the present decision.

        Raises:
            ResetNeeded: If no episode is under way.
            InvalidAction: If `action` is no whole number.
        """
        if self._done:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset() before step()")
        try:
            index = operator_index(action)
        except TypeError as error:
            raise gymnasium.error.InvalidAction(f"an action is a whole number, not {quote(action)}") from error
        if not 0 <= index < OPTION_COUNT or not self._mask[index]:
            return self._fail({"action": f"illegal option {quote(index)}", "illegal": True})
        decision = self._decision
        option, target = decision.options[index], decision.targets[index]
        info: dict[str, Any] = {"action": option.name}
        if self._reserved and decision.phase is Phase.SEGMENT and not self._view.unmeasured(decision)[index]:
            self._release()
        if isinstance(target, Decision):
            self._face(target)
            return self._observe(), 0.0, False, False, info
        return self._close_segment(target, info)

    def close(self) -> None:
        """End the present episode and give back what it reserved."""
        self._release()
        self._done = True

    def _open(self, workload: Workload) -> Ledger:
        if workload not in self._ledgers:
            if self._measurer is None:
                raise WorkloadError(f"this environment has no measurer to open {workload.key} with: give it one")
            if isinstance(self._measurer, str):
                raise WorkloadError(f"measurer must be what open_measurer gives, not the name {quote(self._measurer)}")
            self._ledgers[workload] = Ledger(workload, self._measurer, self._units, self._seconds, self._standalone)
        return self._ledgers[workload]

    def _pick(self, options: Mapping[str, Any]) -> Ledger:
        if unknown := [name for name in options if name not in ("workload", "ledger")]:
            raise WorkloadError(f"reset takes the options workload and ledger, not {quote(unknown[0])}")
        if "ledger" in options:
            ledger = _checked_ledger(options["ledger"])
            self._ledgers = {ledger.workload: ledger}
            return ledger
        if "workload" in options:
            return self._open(_checked_workload(options["workload"]))
        ledgers = list(self._ledgers.values())
        return ledgers[int(self.np_random.integers(len(ledgers)))] if len(ledgers) > 1 else ledgers[0]

    def _use(self, ledger: Ledger) -> None:
        view = self._views.get(ledger.workload)
        if view is None or view.ledger is not ledger:
            view = self._views[ledger.workload] = LedgerView(ledger)
        self._view = view

    def _clear(self) -> None:
        self._choices: list[Choice] = []
        self._cuts = [0.0] * (OPERATOR_COUNT - 1)
        self._latency_us, self._return, self._done = 0.0, 0.0, False

    def _open_segment(self, first: int) -> None:
        """Reserve a unit, so that what the segment's decisions offer stays affordable whoever else measures."""
        self._reserved = self.ledger.reserve()
        self._face(self._view.tree.segments[first])

    def _face(self, decision: Decision) -> None:
        self._view.sync()
        self._decision = decision
        self._mask = np.zeros(OPTION_COUNT, bool)
        self._mask[: len(decision.options)] = self._view.legal(decision, self._reserved)

    def _release(self) -> None:
        if self._reserved:
            self._reserved = False
            self.ledger.release()

    def _measure(self, number: int) -> float | None:
        """Latency of choice `number` in us; None if it fails. A unit is spent if it is new."""
        self._view.sync()
        if self._view.measured[number]:
            self._release()
            self.ledger.cache_hits += 1
        else:
            self._reserved = False
            self.ledger.measure_reserved(self._view.tree.choices[number])
            self._view.sync()
        latency_us = float(self._view.latency_us[number])
        return None if isinf(latency_us) else latency_us

    def _close_segment(self, number: int, info: dict[str, Any]) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        choice = self._view.tree.choices[number]
        latency_us = self._measure(number)
        info["choice"], info["segment_us"] = choice, latency_us
        if latency_us is None:
            info["status"] = self.ledger.trials[choice].status.value
            return self._fail(info)
        before = self._return
        self._choices.append(choice)
        self._latency_us += latency_us
        self._return = max(LEAST_RETURN, -self._latency_us / self.ledger.unfused_us)
        end = choice.run.last + 1
        if end < OPERATOR_COUNT:
            self._cuts[end - 1] = 1.0
            self._open_segment(end)
            return self._observe(), self._return - before, False, False, info
        self._done = True
        info["scheme"], info["latency_us"] = Scheme(tuple(self._choices)), self._latency_us
        info["recommended_us"] = self.ledger.graph.best_us
        return self._observe(), self._return - before, True, False, info

    def _fail(self, info: dict[str, Any]) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self._release()
        self._view.sync()
        before, self._return, self._done = self._return, FAILURE_RETURN, True
        info["recommended_us"] = self.ledger.graph.best_us
        return self._observe(), FAILURE_RETURN - before, True, False, info

    def _observe(self) -> Vector:
        view, decision = self._view, self._decision
        observation = np.zeros(OBSERVATION_SIZE, np.float32)
        observation[: CONTEXT.start] = view.static.shared[: CONTEXT.start]
        observation[PARTIAL] = self._partial_fields()
        observation[KNOWLEDGE] = view.knowledge
        if not self._done:
            observation[CONTEXT] = view.static.contexts[decision.row]
            count = len(decision.options)
            rows = observation[GLOBAL_SIZE : GLOBAL_SIZE + count * OPTION_SIZE].reshape(count, OPTION_SIZE)
            rows[:] = view.options(decision)
            rows[:, OPTION_COLUMN["legal"]] = self._mask[:count]
        return observation

    def _partial_fields(self) -> list[float]:
        ledger, graph, position = self.ledger, self.ledger.graph, self._position
        excess = (self._latency_us - graph.prefix_us[position]) / ledger.unfused_us
        rest = graph.suffix_us[position] / ledger.unfused_us
        state = [len(self._choices) / OPERATOR_COUNT, self._return, min(excess, 4.0), min(rest, 4.0)]
        return self._cuts + state + _budget_fields(ledger) + [float(self._reserved)]

    @property
    def _position(self) -> int:
        return self._choices[-1].run.last + 1 if self._choices else 0


def _checked_ledger(value: Any) -> Ledger:
    if not isinstance(value, Ledger):
        raise WorkloadError(f"a ledger is needed, not {quote(value)}")
    return value


def _checked_workload(value: Any) -> Workload:
    return value if isinstance(value, Workload) else Workload.from_json(value)


def _budget_fields(ledger: Ledger) -> list[float]:
    units, seconds, left = ledger.units, ledger.seconds, max(0.0, ledger.units_left)
    return [
        1.0 if units is None else min(1.0, log2(1 + left) / 16),
        1.0 if units is None else left / max(units, 1),
        1.0 if seconds is None else max(0.0, ledger.seconds_left) / max(seconds, 1e-9),
    ]
