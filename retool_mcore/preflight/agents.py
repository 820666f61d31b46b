"""Can an agent program run the episodes of this configuration? (environment=endpoint, docs/agents.md)"""

import shutil
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.errors import UserError

ENDPOINT = "endpoint"
PIPELINES = ("sync", "partial")
SCRIPTS = (".py", ".js", ".mjs", ".ts", ".sh", ".rb", ".jar")
# Variables that the endpoint sets.
_OURS = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "RETOOL_", "NO_PROXY", "no_proxy", "HOME", "TMPDIR")


def has_agent(config: DictConfig) -> bool:
    """Whether an agent program runs the episodes."""
    return config.get("environment", {}).get("name") == ENDPOINT


def check_agent(config: DictConfig) -> None:
    """Refuse what is not defined over an agent's conversations, by the configuration alone. Raises UserError."""
    if not has_agent(config):
        return
    agent, recipe, correction = config.environment, config.recipe, config.correction
    if not agent.agent:
        raise UserError(
            "environment=endpoint needs environment.agent, the command that runs an episode, as in "
            "environment.agent=[python,my_agent.py] (docs/agents.md)."
        )
    for name in agent.env:
        if name.startswith(_OURS):
            raise UserError(f"environment.env.{name}: the endpoint sets this variable; leave it out.")
    patience = config.get("watchdog_minutes")
    if patience is not None and agent.episode_s >= 60 * patience:
        raise UserError(
            f"environment.episode_s={agent.episode_s:g} is as long as watchdog_minutes={patience:g}, after which a run "
            "without a sign of life is ended: lower it, or raise watchdog_minutes."
        )
    one = "an agent's episode may be several trajectories, over which it is not defined"
    if config.pipeline.name not in PIPELINES:
        raise UserError(
            f"environment=endpoint needs pipeline=sync or pipeline=partial, not pipeline={config.pipeline.name}."
        )
    if recipe.advantage == "gae":
        raise UserError(f"recipe.advantage=gae does not go with environment=endpoint: {one}. Take grpo or rloo.")
    if recipe.policy_loss in ("gspo", "sequence_clip"):
        raise UserError(
            f"recipe.policy_loss={recipe.policy_loss} does not go with environment=endpoint: {one}. Take vanilla or "
            "retool."
        )
    several = {
        f"recipe.loss_aggregation={recipe.loss_aggregation}": recipe.loss_aggregation == "seq-mean-token-mean",
        f"correction.rollout_is={correction.rollout_is}": correction.rollout_is == "sequence",
        f"correction.rollout_rs={correction.rollout_rs}": correction.rollout_rs is not None,
        f"recipe.group_reward.name={recipe.group_reward.name}": recipe.group_reward.name is not None,
    }
    for key in (key for key, wrong in several.items() if wrong and agent.segments > 1):
        raise UserError(
            f"{key} does not go with environment.segments={agent.segments}: {one}. Change it, or set "
            "environment.segments=1, with which an agent may not fork or rewrite its conversation."
        )
    if config.data.get("environment") or config.data.name == "environment":
        raise UserError(
            f"data={config.data.name} brings an environment of its own, which environment=endpoint would not ask: the "
            "agent is the environment there. Take one of the two."
        )
    if config.trace.backend != "none":
        raise UserError(f"trace.backend={config.trace.backend} does not trace agents: set trace.backend=none.")
    if config.verl.actor_rollout_ref.rollout.get("enable_rollout_routing_replay"):
        raise UserError("The routes of experts (R3) are not recorded with environment=endpoint: turn the replay off.")


def check_program(config: DictConfig) -> None:
    """Refuse a command whose program or script is not here; say once how far an agent is trusted. Raises UserError."""
    if not has_agent(config):
        return
    agent = list(config.environment.agent)
    shown = "environment.agent=[" + ",".join(agent) + "]"
    if shutil.which(agent[0]) is None:
        raise UserError(f"{shown}: there is no program {agent[0]!r} here. Give its path, or put its folder into PATH.")
    for word in agent[1:]:
        if word.endswith(SCRIPTS) and not word.startswith("-") and not Path(word).expanduser().is_file():
            raise UserError(f"{shown}: there is no file {word} in {Path.cwd()}.")
    print(
        "Agents run as this user, one process an episode, with a built environment and limits, but without a sandbox: "
        "use programs that you trust (docs/agents.md).",
        flush=True,
    )
