"""Do the values of a run fit each other? Every owner's own checks, of the configuration alone.

No file, device or server is looked at, so that a dry run, a plan and a submission refuse what the run would. Ranges of
single values, and the relations within a section: config/models/.
"""

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.planner import parallel
from retool_mcore.preflight.agents import check_agent
from retool_mcore.preflight.data import check_cadence
from retool_mcore.recipes.check import check_recipe, check_rewards
from retool_mcore.recipes.correction import check_correction
from retool_mcore.recipes.pipeline import check_pipeline

# Values of verl's that are checked, and read elsewhere, by our own keys: set in verl's section alone, they would be
# another number than the checks know.
SHARED = {
    "data.train_batch_size": "train.batch",
    "trainer.total_training_steps": "train.steps",
    "trainer.test_freq": "train.eval_every",
    "trainer.nnodes": "parallel.nodes",
    "trainer.n_gpus_per_node": "parallel.gpus_per_node",
}
OF_RL = {
    "data.max_prompt_length": "rollout.max_prompt_tokens",
    "data.max_response_length": "rollout.max_response_tokens",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "train.mini_batch",
    "actor_rollout_ref.rollout.n": "train.n",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "parallel.rollout_tp",
    "trainer.val_before_train": "train.eval_before",
}


def check(stage: str, config: DictConfig) -> None:
    """Refuse a configuration (resolved) of `stage` whose values do not fit each other. Raises UserError."""
    if stage in CHECKS:
        CHECKS[stage](config)


def check_rl(config: DictConfig) -> None:
    train, layout = config.train, config.parallel
    check_followed(config, SHARED | OF_RL)
    check_cadence(train)
    check_recipe(config.recipe)
    check_rewards(OmegaConf.to_container(config))
    log_probs = config.verl.actor_rollout_ref.rollout.calculate_log_probs
    check_correction(config.correction, config.recipe, log_probs=log_probs)
    check_replayed_routes(config)
    check_agent(config)
    if train.get("eval_before") and config.pipeline.mode != "sync":
        raise UserError(
            f"train.eval_before=true needs pipeline=sync: pipeline={config.pipeline.name} does not validate inside the "
            "run; evaluate with `retool eval` and policy=sft."
        )
    sizes = {name: train[name] for name in ("batch", "mini_batch", "eval_every")}
    check_pipeline(config.pipeline, **sizes, rollout_tp=layout.rollout_tp)
    check_waiting(config)
    check_ray(config)
    parallel.check_rl_batch(batch=train.batch, mini_batch=train.mini_batch, n=train.n, dp=ranks(layout))
    check_rollout(config)
    check_micro_batch(config, longest=config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)


def check_sft(config: DictConfig) -> None:
    check_followed(config, SHARED | {"data.max_length": "train.max_length"})
    parallel.check_sft_batch(batch=config.train.batch, dp=ranks(config.parallel))
    check_micro_batch(config, longest=config.train.max_length)


def check_eval(config: DictConfig) -> None:
    check_waiting(config)
    check_rollout(config)


CHECKS = {"rl": check_rl, "sft": check_sft, "eval": check_eval}


def check_followed(config: DictConfig, keys: Mapping[str, str]) -> None:
    """verl's values are those of our keys (`keys`: verl's key to ours), which they follow until they are set alone."""
    if "replay" in config:  # a recorded run with single values changed
        return
    for key, ours in keys.items():
        value, wanted = OmegaConf.select(config.verl, key), OmegaConf.select(config, ours)
        if value != wanted:
            raise UserError(f"verl.{key}={value} follows {ours}={wanted}, by which it is checked: set {ours} instead.")


def ranks(layout: DictConfig) -> int:
    """Data-parallel ranks of the trainer. Raises UserError where its other ranks do not divide the devices."""
    cp = layout.megatron.get("context_parallel_size") or 1
    return parallel.data_parallel(layout.nodes, layout.gpus_per_node, tp=layout.tp, pp=layout.pp, cp=cp)


def check_micro_batch(config: DictConfig, *, longest: int) -> None:
    tokens, cp = config.parallel.micro_batch_tokens, config.parallel.megatron.get("context_parallel_size") or 1
    parallel.check_micro_batch(longest=longest, micro_batch_tokens=tokens, cp=cp)


def check_rollout(config: DictConfig) -> None:
    layout, rollout = config.parallel, config.rollout
    parallel.check_engine_batch(
        longest=rollout.max_prompt_tokens + rollout.max_response_tokens,
        max_num_batched_tokens=layout.rollout.max_num_batched_tokens,
        chunked_prefill=layout.rollout.enable_chunked_prefill,
    )


def check_waiting(config: DictConfig) -> None:
    """One program, or one call of a tool, must end before the watchdog takes its silence for a hang."""
    patience = config.get("watchdog_minutes")
    if patience is None or config.rollout.format == "none":
        return
    for key in ("sandbox.timeout_s", "toolbox.timeout_s"):
        seconds = OmegaConf.select(config, key)
        if seconds is not None and seconds >= 60 * patience:
            raise UserError(
                f"{key}={seconds:g} is as long as watchdog_minutes={patience:g}, after which a run without a sign of "
                "life is ended: lower it, or raise watchdog_minutes."
            )


def check_ray(config: DictConfig) -> None:
    """verl's trainer waits for a device a rank, which Ray gives from the devices it was started with."""
    layout = config.parallel
    num_gpus, needed = OmegaConf.select(layout, "ray.num_gpus"), layout.gpus_per_node
    if layout.nodes == 1 and num_gpus is not None and num_gpus < needed:
        raise UserError(
            f"parallel.ray.num_gpus={num_gpus:g} is less than parallel.gpus_per_node={needed}: the trainer's ranks "
            "would wait for devices for ever; raise it, or leave it out."
        )


def check_replayed_routes(config: DictConfig) -> None:
    """verl's router replay of experts (utils/config.py and workers/config/engine.py)."""
    key = "parallel.megatron.router_replay.mode"
    mode = OmegaConf.select(config, key) or "disabled"
    if mode not in ("disabled", "R2", "R3"):
        raise UserError(f"{key}={mode}: expected disabled, R2 or R3.")
    if mode == "R2" and config.correction.log_probs_every > 1:
        raise UserError(
            f"{key}=R2 records routes in the trainer's pass for log-probabilities, which correction="
            f"{config.correction.name} leaves out: set correction.log_probs_every=1, or take R3."
        )
    switch = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
    if mode == "R3" and not OmegaConf.select(config.verl, switch):
        raise UserError(f"{key}=R3 replays the routes of the rollout engine: set verl.{switch}=true, too.")
