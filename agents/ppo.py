"""PPO: a policy that searches, then settles on the best of what it measured.

While the budget lasts, schemes are built one after another and the reward is how much the best known one
improves. When it is spent, only measured choices are offered and a scheme costs what it lacks to the best
known one; the policy goes on learning there, at no charge, also by imitating the best known path, until its own
deterministic rollout is as good as the recommendation.

Reference: Schulman et al., Proximal policy optimization, 2017; Huang and Ontanon, A closer look at invalid
action masking, 2020; Oh et al., Self-imitation learning, 2018.
"""

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from atoffer_rl.agents.checkpoint import SHIPPED_POLICY, Checkpoint, load_checkpoint, save_checkpoint
from atoffer_rl.agents.hyperparameters import PPOConfig, ppo_config
from atoffer_rl.agents.imitation import ImitatingPPO
from atoffer_rl.agents.log import RunLog
from atoffer_rl.agents.option_policy import learner_keywords
from atoffer_rl.agents.rehearsal import Rehearsal
from atoffer_rl.agents.run_state import checkpoint_of, restore_model, restore_position
from atoffer_rl.agents.sb3_log import sb3_logger
from atoffer_rl.agents.session import Result, Session, measured_us
from atoffer_rl.agents.threads import single_thread
from atoffer_rl.envs.fusion_scheme import FAILURE_RETURN, FusionSchemeEnv
from atoffer_rl.envs.search_episode import Search, SearchEpisode
from atoffer_rl.kernels.ledger import Ledger

CHECKPOINT_FILE = "checkpoint.zip"
NO_LIMIT = 10**6


def resume_command(log: RunLog) -> str:
    """How the run of `log` goes on; empty while it has no checkpoint."""
    if log.folder is None or not (path := log.folder / CHECKPOINT_FILE).is_file():
        return ""
    return f"{log.command} --resume {shlex.quote(str(path))}"


def search(session: Session) -> Result:
    """Search with the shipped policy and hyperparameters.

    Raises:
        PolicyError: If the policy is damaged, or was trained for another space.
    """
    return PPOSearch(ppo_config(), load_checkpoint(SHIPPED_POLICY))(session)


@dataclass(frozen=True)
class PPOSearch:
    """A searcher.

    Attributes:
        config: Hyperparameters.
        start: Where to start from: a policy, or a checkpoint to resume; None starts from random weights. The
            ledger of a resumed run must have been restored.
    """

    config: PPOConfig
    start: Checkpoint | None = None

    def __post_init__(self) -> None:
        if self.start is not None:  # its layers are what they are
            object.__setattr__(self, "config", replace(self.config, hidden=self.start.hidden))

    def __call__(self, session: Session) -> Result:
        """Search until the budget is spent and the policy has settled, or its timesteps are over."""
        with single_thread():
            return self._search(session)

    def _search(self, session: Session) -> Result:
        rehearsal = Rehearsal(session.ledger)
        model = self.model(session, rehearsal)
        progress = _Progress(model, session, rehearsal, self.config)
        if self.start is not None and self.start.resumable:
            settled = int(self.start.run.get("settled", 0))
            if not settled or session.ledger.exhausted:  # else a larger budget has it search again
                restore_position(model, self.start)
                progress.settled = settled
        try:
            steps = max(0, self.config.timesteps - model.num_timesteps)
            model.learn(steps, progress, reset_num_timesteps=False)
            finished = True
        except KeyboardInterrupt:
            finished = False
        progress.save()
        result = session.result("ppo", rehearsal.rollout(model.policy), finished)
        session.log.hyperparameters(asdict(self.config) | {"seed": session.seed}, _metrics(result))
        return result

    def model(self, session: Session, rehearsal: Rehearsal) -> ImitatingPPO:
        """The algorithm, its policy where `start` says."""
        model = ImitatingPPO(
            env=DummyVecEnv([_environment(session.ledger)] * self.config.n_envs),
            vf_coef=self.config.vf_coef,
            max_grad_norm=self.config.max_grad_norm,
            **learner_keywords(self.config, session.seed),
        )
        model.set_logger(sb3_logger(session.log))
        model.lesson = lambda: rehearsal.lesson() if session.ledger.exhausted else None
        model.imitation_coef = self.config.imitation_coef
        if self.start is not None:
            restore_model(model, self.start)
        return model


def _environment(ledger: Ledger) -> Callable[[], Monitor]:
    units = NO_LIMIT if ledger.units is None else ledger.units
    search = Search(lambda _: ledger)
    return lambda: Monitor(SearchEpisode(FusionSchemeEnv(ledger=ledger), [search], (units, units)))


def _metrics(result: Result) -> dict[str, float]:
    metrics = {"metric/latency_us": result.latency_us, "metric/units": float(result.units)}
    if result.regret is not None and result.rollout_regret is not None:
        metrics |= {"metric/regret": result.regret, "metric/rollout_regret": result.rollout_regret}
    return metrics


class _Progress(BaseCallback):
    """Logs, keeps checkpoints, and stops training when the budget is spent and the policy has settled."""

    def __init__(self, model: ImitatingPPO, session: Session, rehearsal: Rehearsal, config: PPOConfig) -> None:
        super().__init__()
        self.ppo, self.session, self.rehearsal, self.config = model, session, rehearsal, config
        self.settled = 0

    def _on_step(self) -> bool:
        self.session.check_interrupt()
        self.session.note()
        for info in self.locals["infos"]:
            if "recommended_us" in info:
                latency_us = info.get("latency_us")
                unfused_us = self.session.ledger.unfused_us
                reached = FAILURE_RETURN if latency_us is None else -latency_us / unfused_us
                self.session.log.scalar("policy/episode_return", reached, self.num_timesteps)
        return self.settled < self.config.settle_rollouts

    def _on_rollout_start(self) -> None:
        self.save()
        if self.session.ledger.exhausted:
            rollout_us = measured_us(self.session.ledger, self.rehearsal.rollout(self.ppo.policy))
            best_us = self.session.ledger.graph.best_us
            self.session.log.scalar("policy/rollout_us", rollout_us, self.num_timesteps)
            self.settled = self.settled + 1 if rollout_us <= best_us * (1 + 1e-9) else 0

    def save(self) -> None:
        """Write a checkpoint into the log folder; whatever fails later, the run can go on from there."""
        log = self.session.log
        if log.folder is not None:
            path = log.folder / CHECKPOINT_FILE
            save_checkpoint(checkpoint_of(self.ppo, self.session, self.config, self.settled), path, log.remedy)
            log.remedy = f"what was measured is kept, mend that and go on with {resume_command(log)}"
