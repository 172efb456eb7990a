import numpy as np

from atoffer_rl.envs.observation import (
    GLOBAL_FIELDS,
    GLOBAL_SIZE,
    OBSERVATION_HIGH,
    OBSERVATION_LOW,
    OBSERVATION_SIZE,
    OPTION_COUNT,
    OPTION_FIELDS,
    OPTION_SIZE,
    code,
    split,
)


def test_names_are_unique():
    assert len(set(GLOBAL_FIELDS)) == GLOBAL_SIZE
    assert len(set(OPTION_FIELDS)) == OPTION_SIZE


def test_bounds_are_finite_and_hold_zero():
    assert np.isfinite([OBSERVATION_LOW, OBSERVATION_HIGH]).all()
    assert (OBSERVATION_LOW <= 0).all()
    assert (OBSERVATION_HIGH >= 0).all()


def test_split_gives_views_of_one_observation_and_of_batches():
    observation = np.arange(2 * OBSERVATION_SIZE, dtype=np.float32).reshape(2, OBSERVATION_SIZE)
    shared, options = split(observation)
    assert shared.shape == (2, GLOBAL_SIZE)
    assert options.shape == (2, OPTION_COUNT, OPTION_SIZE)
    assert options[1, 1, 0] == observation[1, GLOBAL_SIZE + OPTION_SIZE]
    split(observation[0])[1][0, 0] = -1
    assert observation[0, GLOBAL_SIZE] == -1


def test_codes_tell_names_apart_and_stay_the_same():
    names = ("gemm", "chain", "rowwise", "gather", "cublaslt")
    assert len({tuple(code(name)) for name in names}) == len(names)
    assert (np.abs([code(name) for name in names]) <= 1).all()
    np.testing.assert_array_equal(code("gemm"), code("gemm"))
