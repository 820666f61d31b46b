"""Convert the run's configuration to that of verl's RL trainer: its own section, and the one that our parts read."""

from pathlib import Path

from omegaconf import OmegaConf, open_dict

from retool_mcore.backends.env import ray_runtime_env
from retool_mcore.config import keep_environment
from retool_mcore.config.files import absolute
from retool_mcore.data.validation_sets import EVALUATION, validation_sets
from retool_mcore.planner import derived
from retool_mcore.rollout.episode import LIMITS
from retool_mcore.state import alarms, checkpoints

EPISODE = "episode.yaml"  # in the stage's folder


def write_episode(config, path: Path) -> None:
    """Write what every rollout worker reads of the configuration (backends/verl/episodes.py)."""
    environment = config.data.get("environment")
    settings = {
        "environment": environment,
        "endpoint": endpoint(config),
        "stages": config.data.stages if environment else None,
        "format": config.rollout.format,
        "limits": {name: config.rollout[name] for name in LIMITS},
        "sandbox": config.sandbox,
        "timeout_s": config.sandbox.timeout_s,
        # Read in the worker, so that no file holds what stands in the environment.
        "toolbox": keep_environment(OmegaConf.to_container(config.toolbox)),
        "seed": alarms.request_seed(path.parent, config.seed),
    }
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(settings), resolve=True))


def endpoint(config) -> dict | None:
    """The section of an agent that runs the episodes; None: our own loop does. Rollout workers start it in folders of
    its own, so its files are named from the root on."""
    if config.get("environment", {}).get("name") != "endpoint":
        return None
    section = OmegaConf.to_container(config.environment)
    words = [absolute(word) if Path(word).expanduser().is_file() else word for word in section["agent"]]
    return keep_environment(section | {"agent": words, "right_from": config.recipe.right_from})


def evaluation_set(config) -> dict | None:
    """How the trainer validates on the evaluation set as well; None: it does not."""
    named = (
        {validation_set.name: validation_set for validation_set in validation_sets(config)}
        if "held_back_files" in config.data
        else {}
    )
    if (validation_set := named.get(EVALUATION)) is None:
        return None
    sampling = {"temperature": validation_set.temperature, "top_p": validation_set.top_p}
    return {"files": list(map(str, validation_set.files)), "samples": validation_set.samples, "sampling": sampling}


def _traces(config) -> dict | None:
    """The settings of train/traces.py; None: episodes are not traced."""
    if config.get("trace", {}).get("backend") != "otlp":  # an older run's may be mlflow
        return None
    rollout = config.verl.actor_rollout_ref.rollout
    return {
        "experiment": config.name,
        "model": config.model.name,
        "reward": config.recipe.reward.name,
        "temperature": float(rollout.temperature),
        "top_p": float(rollout.top_p),
        "prompts": config.trace.prompts,
        "text": config.trace.text,
    }


def verl_config(config, stage_dir: Path):
    """The config that verl's trainer gets: its own section and where our pieces find their settings."""
    derived.fill(config)
    write_episode(config, stage_dir / EPISODE)
    with open_dict(config):
        verl = config.verl
        verl.ray_kwargs.ray_init.runtime_env = ray_runtime_env()
        verl.retool = {
            "recipe": config.recipe,
            "episode": str(stage_dir / EPISODE),
            "reward": {"recipe": config.recipe, "max_response_tokens": config.rollout.max_response_tokens},
            "agents": endpoint(config) is not None,
            "curriculum": config.data.get("curriculum", {}),
            "sandbox_errors": config.rollout.sandbox_errors,
            "stage_dir": str(stage_dir),
            "trajectories": str(stage_dir / "trajectories"),
            "keep_trajectory_bytes": config.train.keep_trajectory_bytes,
            "texts": {"every": config.train.text_every, "count": config.train.text_samples},
            "live": config.rollout.get("live"),
            "rotation": checkpoints.rotation(config.train),
            "evaluation": evaluation_set(config),
            "stop_after_worse": config.train.get("stop_after_worse"),
            "verify_push_every": config.train.get("verify_push_every", 0),
            "alarms": config.get("alarms", alarms.IGNORED),
            "save_minutes": config.train.save_minutes,
            "log_probs_every": config.get("correction", {}).get("log_probs_every", 1),
            "traces": _traces(config),
        }
        for role in (verl.actor_rollout_ref.actor, verl.critic):
            role.megatron.override_mcore_model_config.update(alarms.engine_switches(verl.retool.alarms))
            role.megatron.override_ddp_config = {
                **(role.megatron.override_ddp_config or {}),
                "check_for_nan_in_grad": False,  # Megatron's own check would kill a rank before any answer
            }
    return verl
