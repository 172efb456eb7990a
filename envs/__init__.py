"""The gymnasium environment in which agents build fusion schemes."""

from gymnasium import register

register(
    id="atoffer/FusionScheme-v0",
    entry_point="atoffer_rl.envs.fusion_scheme:FusionSchemeEnv",
    nondeterministic=True,
    # Checking every step takes longer than the step.
    disable_env_checker=True,
)
