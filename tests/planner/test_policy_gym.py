import numpy as np
import pytest

from hydraplan.errors import InputError
from hydraplan.planner.pipeline.memory import even_memory
from hydraplan.planner.policy.world import Instance
from tests.planner.lanes import lane_times

pytest.importorskip("gymnasium", reason="the extra `train` is not installed")


def drawn(rng: np.random.Generator) -> Instance:
    p, m = int(rng.integers(1, 5)), int(rng.integers(2, 9))
    return Instance(lane_times(rng.lognormal(0, 0.3, (3, p, m)), 0.1), even_memory(p, m))


def test_the_checker_of_gymnasium_passes():
    from gymnasium.utils.env_checker import check_env  # noqa: PLC0415

    from hydraplan.planner.policy.gym_env import PipelineEnv  # noqa: PLC0415

    check_env(PipelineEnv(drawn), skip_render_check=True)


def test_the_return_is_minus_the_makespan_and_an_illegal_action_costs_more():
    from hydraplan.planner.policy.gym_env import PipelineEnv  # noqa: PLC0415

    env = PipelineEnv(drawn)
    for seed in range(5):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, over, cut, _ = env.step(env.action_masks().argmax())
            assert not cut
            total += reward
        assert env.action_masks().sum() == 0
        env.reset(seed=seed)
        _, alone, over, cut, _ = env.step(env.action_masks().argmin())
        assert cut
        assert not over
        assert alone < total < 0


def test_a_batch_without_a_choice_is_refused():
    from hydraplan.planner.policy.gym_env import PipelineEnv  # noqa: PLC0415

    env = PipelineEnv(lambda _: Instance(lane_times(np.ones((3, 2, 1))), even_memory(2, 1)))
    with pytest.raises(InputError, match="no stage a choice"):
        env.reset(seed=0)


def test_what_is_no_step_of_an_episode_is_refused():
    from hydraplan.planner.policy.gym_env import PipelineEnv  # noqa: PLC0415

    env = PipelineEnv(drawn)
    for call in (env.action_masks, lambda: env.step(np.int64(0))):
        with pytest.raises(InputError, match="no episode is going on"):
            call()
    env.reset(seed=0)
    for action in (-1, 6, 1.0, None, [0], np.zeros(1, np.int64), "F"):
        with pytest.raises(InputError, match="is none"):
            env.step(action)
    assert env.step(env.action_masks().argmin())[3]  # an illegal one ends the episode
    with pytest.raises(InputError, match="no episode is going on"):
        env.step(env.action_masks().argmax())
    env.reset(seed=0)
    assert not env.step(env.action_masks().argmax())[3]
