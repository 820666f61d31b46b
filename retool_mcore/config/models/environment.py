"""The section `environment`: what runs an episode of `retool rl`."""

from typing import Literal

from retool_mcore.config.defaults import computed, preset
from retool_mcore.config.kinds import Count, Mebibytes, Positive, Text, Texts
from retool_mcore.config.models.section import Section


def episode_seconds(watchdog_minutes: float | None) -> float:
    return 1800.0 if watchdog_minutes is None else min(1800.0, 40.0 * watchdog_minutes)


class Environment(Section):
    """What runs an episode: our own loop, or an agent program of yours (docs/agents.md)."""

    name: Text
    """loop: our own, with the tools of toolbox.use. endpoint: the command of environment.agent."""
    agent: Texts = preset([])
    """endpoint: the command that runs one episode, as in [python,my_agent.py]. A relative path is taken from the
    folder in which `retool rl` was started."""
    env: dict[str, str] = preset({})
    """endpoint: further variables of its environment, which is built and not inherited: {NAME: value}."""
    reward: Literal["recipe", "agent"] = preset("recipe")
    """endpoint: recipe: recipe.reward grades the answer. agent: the agent writes its reward to RETOOL_RESULT; it must
    be a program that runs no code of the policy with its own rights."""
    on_error: Literal["wrong", "fail"] = preset("wrong")
    """endpoint: an agent that ends with an error. wrong: graded as an episode without an answer, since bad output of
    the policy crashes agents. fail: run again twice; then the group is replaced."""
    turns: Count = preset(64)
    """endpoint: replies of the policy in one episode, in all conversations of the agent; one more request is answered
    with 410."""
    segments: Count = preset(16)
    """endpoint: conversations in one episode that do not continue an earlier one. 1: an agent may not fork or rewrite
    its conversation."""
    tokens: Count | None = preset(None)
    """endpoint: tokens that the policy samples in one episode. null: the limits of the rollout alone."""
    episode_s: Positive = preset(computed(episode_seconds, "watchdog_minutes"))
    """endpoint: seconds of one episode; what the policy has written by then is graded. null: 1800, at most two thirds
    of watchdog_minutes."""
    grace_s: Positive = preset(5.0)
    """endpoint: seconds from SIGTERM to SIGKILL."""
    memory_mb: Mebibytes = preset(4096)
    """endpoint: resident memory of all processes of one agent together."""
    folder_mb: Count = preset(1024)
    """endpoint: size of an agent's folder."""
    processes: Count = preset(64)
    """endpoint: processes of one agent at once."""
