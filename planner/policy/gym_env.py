"""One episode after the other as a Gymnasium environment, for libraries that want one.

Needs the extra `train`. The batched environment (`env`) is the fast one; this runs one episode of
it. `action_masks` is what MaskablePPO of sb3-contrib asks for. Such libraries and Gymnasium's own
checker also try illegal actions: one ends the episode (truncated), and its reward is as if every
op and message had come alone, one after the other.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from hydraplan.errors import InputError
from hydraplan.model import FloatArray
from hydraplan.planner.policy import env
from hydraplan.planner.policy.episode import NUM_ACTIONS
from hydraplan.planner.policy.features import NUM_FEATURES
from hydraplan.planner.policy.world import Instance

MOST = 1e6
"""Bound of the features, which Gymnasium wants finite: they are shares, counts and times in mean
ops, so only devices a million times slower than others come near. Zero, but for rounding, is the
other."""


class PipelineEnv(gymnasium.Env[FloatArray, np.int64]):
    """Each episode orders what `draw` makes of the random generator; its return is -makespan."""

    def __init__(self, draw: Callable[[np.random.Generator], Instance]) -> None:
        self._draw = draw
        self._env: env.Env | None = None
        self._is_over = False
        self.action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        self.observation_space = gymnasium.spaces.Box(-1.0, MOST, (NUM_FEATURES,), np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Draw the next batch, up to its first choice.

        Raises:
            InputError: No stage of the batch ever has a choice.
        """
        super().reset(seed=seed)
        self._env, self._is_over = env.env_of([self._draw(self.np_random)]), False
        if self._env.ended[0]:
            raise InputError(
                "a batch that leaves no stage a choice makes no episode",
                "draw batches of at least 2 microbatches",
            )
        return self._env.features[0].copy(), {}

    def step(self, action: np.int64) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Features, reward in seconds, whether all has run, whether the action was illegal.

        Raises:
            InputError: No episode is going on, or the action is outside the space.
        """
        if self._env is None or self._is_over:
            raise InputError("no episode is going on", "reset the environment first")
        if not self.action_space.contains(action):
            raise InputError(
                f"action {action!r:.40} is none", f"give a whole number from 0 to {NUM_ACTIONS - 1}"
            )
        world, features = self._env.world, self._env.features[0]
        if not self._env.masks[0, int(action)]:
            self._is_over = True
            hops = 2 * (int(world.stages[0]) - 1)
            alone_s = world.op_s.sum() + hops * world.travel_s.sum() + world.sync_s.max()
            return features.copy(), -float(alone_s), False, True, {}
        env.step(self._env, np.array([action], np.int64))
        self._is_over = ended = bool(self._env.ended[0])
        reward = -float(env.makespan_s(self._env)[0]) if ended else 0.0
        return features.copy(), reward, ended, False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Legal actions, (NUM_ACTIONS,).

        Raises:
            InputError: There was no reset.
        """
        if self._env is None:
            raise InputError("no episode is going on", "reset the environment first")
        legal: NDArray[np.bool_] = self._env.masks[0].copy()
        return legal
