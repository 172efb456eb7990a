"""Walks through an environment that tests share."""

from typing import NamedTuple

import numpy as np


class Episode(NamedTuple):
    observations: list
    masks: list
    rewards: list
    infos: list


def walk(env, pick, **reset):
    """One episode in which `pick(legal actions)` decides."""
    observation, _ = env.reset(**reset)
    observations, masks, rewards, infos, over = [observation], [], [], [], False
    while not over:
        masks.append(env.get_wrapper_attr("action_masks")())
        observation, reward, over, _, info = env.step(pick(np.flatnonzero(masks[-1])))
        observations.append(observation)
        rewards.append(reward)
        infos.append(info)
    return Episode(observations, masks, rewards, infos)


def random_pick(seed=0):
    return np.random.default_rng(seed).choice
