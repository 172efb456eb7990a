"""Where a PPO run stands, as a checkpoint, and a run set going again from one."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from atoffer_rl.agents.checkpoint import Checkpoint
from atoffer_rl.agents.hyperparameters import MAX_SEED, PPOConfig, ppo_config
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.session import Session
from atoffer_rl.envs.search_episode import SearchPosition
from atoffer_rl.envs.space_hash import space_hash
from atoffer_rl.errors import AtofferError, PolicyError, SchemeError
from atoffer_rl.kernels.ledger import Ledger
from atoffer_rl.kernels.measurers.open import MEASURERS
from atoffer_rl.kernels.measurers.protocol import Measurer
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload

INCOMPLETE = "the checkpoint's run is damaged or incomplete: start a new one"


def checkpoint_of(model: MaskablePPO, session: Session, config: PPOConfig, settled: int = 0) -> Checkpoint:
    """Where the run stands.

    Args:
        model: Its algorithm.
        session: Its search.
        config: Its hyperparameters.
        settled: How often in a row the policy's rollout was as good as the recommendation.
    """
    ledger = session.ledger
    run = {
        "workload": ledger.workload.to_json(),
        "measurer": ledger.measurer.name,
        "units": session.units,
        "seconds": ledger.seconds,
        "standalone": ledger.space.standalone,
        "seed": session.seed,
        "config": asdict(config),
        "timesteps": model.num_timesteps,
        "updates": model._n_updates,
        "choices": [choice.to_json() for choice in session.charged],
        "settled": settled,
        "position": _position_of(model),
    }
    return Checkpoint(
        weights=model.policy.state_dict(),
        hidden=model.policy_kwargs["hidden"],
        space=space_hash(),
        run=run,
        optimizer=model.policy.optimizer.state_dict(),
        random_state=torch.get_rng_state(),
    )


def _position_of(model: MaskablePPO) -> dict[str, Any] | None:
    """Where environments and NumPy's random numbers stand, as plain JSON values; None before the first step."""
    if model.env is None or model._last_obs is None or model._last_episode_starts is None:
        return None
    kind, key, *place = np.random.get_state()  # noqa: NPY002  what SB3 shuffles with
    return {
        "searches": [[list(actions), *rest] for actions, *rest in model.env.get_attr("position")],
        "starts": [bool(start) for start in model._last_episode_starts],
        "random": [kind, np.asarray(key).tolist(), *place],
    }


def restore_position(model: MaskablePPO, checkpoint: Checkpoint) -> None:
    """Take the environments of `model`, and NumPy's random numbers, to where `checkpoint` stands.

    Raises:
        PolicyError: If they cannot be there.
    """
    position = checkpoint.run.get("position")
    if position is None or model.env is None:
        return  # it stopped before its first step
    try:
        if len(position["searches"]) != model.env.num_envs:
            return  # it goes on with other environments
        model.env.reset()
        found = [
            model.env.env_method("go_to", _search_position(search), indices=k)[0]
            for k, search in enumerate(position["searches"])
        ]
        model._last_obs = np.stack(found)
        model._last_episode_starts = np.array([position["starts"][k] for k in range(len(found))], bool)
        kind, key, *rest = position["random"]
        if not 0 <= rest[0] <= len(key):  # NumPy does not check it, and reads what lies there
            raise PolicyError(INCOMPLETE)
        np.random.set_state((kind, np.array(key, np.uint32), *rest))  # noqa: NPY002
    except (SchemeError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PolicyError(INCOMPLETE) from error


def _search_position(value: Any) -> SearchPosition:
    actions, schemes_left, settling = value
    return SearchPosition(tuple(map(int, actions)), int(schemes_left), bool(settling))


def restore_model(model: MaskablePPO, checkpoint: Checkpoint) -> None:
    """Give `model` the weights of `checkpoint`, and the rest of its state if it holds one.

    Raises:
        PolicyError: If they do not fit the model.
    """
    try:
        model.policy.load_state_dict(checkpoint.weights)
        if checkpoint.resumable:
            model.policy.optimizer.load_state_dict(dict(checkpoint.optimizer))
            _check_optimizer(model.policy.optimizer)
            model.num_timesteps, model._n_updates = int(checkpoint.run["timesteps"]), int(checkpoint.run["updates"])
        if checkpoint.random_state is not None:
            torch.set_rng_state(checkpoint.random_state)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise PolicyError("the policy's weights do not fit its description: use another, or train it again") from error


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if value.dim() and value.shape != parameter.shape:
                raise ValueError("the optimizer's state is of another network")


def check_run(checkpoint: Checkpoint) -> None:
    """Accept a resumable checkpoint whose run can go on.

    Raises:
        PolicyError: If a part of its run is missing, or is none that a run has.
    """
    run = checkpoint.run
    try:
        Workload.from_json(run["workload"])
        ppo_config(run["config"])
        whole = [run["timesteps"], run["updates"], run["seed"], *([run["units"]] if run["units"] is not None else [])]
        right = [type(number) is int and 0 <= number <= MAX_SEED for number in whole]
        right += [run["seconds"] is None or (type(run["seconds"]) in (int, float) and run["seconds"] >= 0.0)]
        right += [type(run["standalone"]) is bool, run["measurer"] in MEASURERS, type(run["choices"]) is list]
        right += [run.get("position") is None or (type(run["position"]) is dict and "searches" in run["position"])]
        right += [type(run["config"]) is dict, type(run.get("settled", 0)) is int and run.get("settled", 0) >= 0]
        choices = [Choice.from_json(item) for item in run["choices"]]
        right += [len(set(choices)) == len(choices)]
    except AtofferError as error:
        raise PolicyError(f"the checkpoint's run cannot go on: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PolicyError(INCOMPLETE) from error
    if not all(right):
        raise PolicyError(INCOMPLETE)


def resumed_session(
    checkpoint: Checkpoint,
    measurer: Measurer,
    *,
    log: RunLog | None = None,
    oracle_us: float | None = None,
    units: int | None = None,
    seconds: float | None = None,
) -> Session:
    """A session that goes on where `checkpoint` stands.

    Args:
        checkpoint: A checkpoint of a run.
        measurer: Who measures from now on.
        log: Where progress is written.
        oracle_us: Layer latency of the oracle's scheme where it is known.
        units: Budget in units of the whole search.
        seconds: Budget in measuring seconds of the whole search. Where neither is given, the run's own budget holds.

    Raises:
        PolicyError: If it is a policy alone, or of a legal space other than the present one.
    """
    if not checkpoint.resumable:
        raise PolicyError("this file is a policy, not a checkpoint of a run: use --policy instead of --resume")
    run = checkpoint.run
    try:
        workload, seed = Workload.from_json(run["workload"]), int(run["seed"])
        charged = [Choice.from_json(item) for item in run["choices"]]
        if units is None and seconds is None:
            units, seconds = run["units"], run["seconds"]
        standalone = bool(run["standalone"])
    except (KeyError, TypeError, ValueError, SchemeError) as error:
        raise PolicyError(INCOMPLETE) from error
    ledger = Ledger(workload, measurer, units, seconds, standalone)
    if any(choice not in ledger.space for choice in charged):
        raise PolicyError("the checkpoint's run measured choices that are not legal now: start a new run")
    ledger.restore(charged)
    session = Session(ledger, log or RunLog(), seed, oracle_us, restored=tuple(charged))
    session.log.keep_trials({str(choice) for choice in ledger.trials}, session.restored_records)
    return session
