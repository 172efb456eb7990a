"""What a policy does as it is, without learning: its proposal, its search under a budget, its rollout."""

import numpy as np
import torch
from gymnasium import spaces

from atoffer_rl.agents.checkpoint import Checkpoint
from atoffer_rl.agents.option_policy import OptionPolicy
from atoffer_rl.agents.rehearsal import Rehearsal
from atoffer_rl.agents.session import Result, Session
from atoffer_rl.envs.fusion_scheme import FusionSchemeEnv
from atoffer_rl.envs.observation import GLOBAL_SIZE
from atoffer_rl.envs.search_episode import Search, SearchEpisode
from atoffer_rl.errors import PolicyError


def policy_of(checkpoint: Checkpoint, env: FusionSchemeEnv) -> OptionPolicy:
    """The policy in `checkpoint`.

    Raises:
        PolicyError: If its weights do not fit its description.
    """
    assert isinstance(env.action_space, spaces.Discrete)
    policy = OptionPolicy(
        env.observation_space, env.action_space, lambda _: 0.0, global_fields=GLOBAL_SIZE, hidden=checkpoint.hidden
    )
    try:
        policy.load_state_dict(checkpoint.weights)
    except (RuntimeError, TypeError) as error:
        raise PolicyError("the policy's weights do not fit its description: use another, or train it again") from error
    return policy


def evaluate(checkpoint: Checkpoint, session: Session) -> Result:
    """Search with the policy as it is until the budget is spent, then let it build its scheme.

    The rollout is built from measured choices. Where nothing was measured but the unfused scheme, it is the
    policy's proposal instead: its choices are measured only to say how good it is; None if one fails.
    """
    torch.manual_seed(session.seed)
    env = FusionSchemeEnv(ledger=session.ledger)
    policy = policy_of(checkpoint, env)
    rehearsal = Rehearsal(session.ledger)
    if session.ledger.units == 0:
        session.ledger.units = None
        rollout = rehearsal.proposal(policy)
    else:
        _search(policy, env, session)
        rollout = rehearsal.rollout(policy)
    env.close()
    return session.result("eval", rollout)


def _search(policy: OptionPolicy, env: FusionSchemeEnv, session: Session) -> None:
    # A policy that finds nothing new any more has as many schemes as there are choices, however large the budget.
    units = min(session.ledger.units or 0, len(session.ledger.space.all_choices))
    search = SearchEpisode(env, [Search(lambda _: session.ledger)], (units, units), settle=False)
    observation, _ = search.reset(seed=session.seed)
    over = session.ledger.exhausted
    while not over:
        session.check_interrupt()
        action, _ = policy.predict(observation, action_masks=search.action_masks())
        observation, _, over, _, _ = search.step(np.int64(action))
        session.note()
