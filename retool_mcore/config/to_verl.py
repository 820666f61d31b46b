"""Our configuration in verl's keys: one function a stage, with only what differs from verl's defaults.

The only place where a key of ours becomes one of verl's. `retool rl --full` prints the result over verl's defaults.
"""

from collections.abc import Callable
from typing import Any

from retool_mcore.config.models import Export, Rl, Sft
from retool_mcore.config.models.run import Lora

# Sections of verl's configuration that are a section of ours: their keys are set there.
FOLLOWING = {
    "*megatron": "parallel.megatron",
    "engine": "parallel.megatron",
    "*model.lora": "model.lora",
    "data.apply_chat_template_kwargs": "model.apply_chat_template_kwargs",
}


def sft(c: Sft) -> dict[str, Any]:
    return {
        "data": {
            "train_files": c.data.sft_train_files,
            "val_files": c.data.sft_validation_files,
            "train_batch_size": c.train.batch,
            "micro_batch_size_per_gpu": 8,  # only read when dynamic batching is off
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": c.parallel.micro_batch_tokens,  # verl's 8192 is shorter than one ReTool example
            "max_length": c.train.max_length,
            "truncation": "error",  # an example that does not fit is named, never cut in silence
            "num_workers": c.parallel.loader_workers,
            "custom_cls": {  # renders segments with the rollout's own format code and masks interpreter tokens
                "path": "pkg://retool_mcore.data.sft_dataset",
                "name": "ReToolSFTDataset",
            },
            "format": c.rollout.format,  # ours, read by ReToolSFTDataset
            "predict_observations": c.predict_observations,  # ours, read by ReToolSFTDataset
            "apply_chat_template_kwargs": c.model.apply_chat_template_kwargs,
        },
        "model": {
            "path": c.init_from,
            "lora": lora(c.model.lora),
            "custom_chat_template": c.rollout.chat_template,
            "use_remove_padding": True,
        },
        "engine": c.parallel.megatron.model_dump(),
        "optim": {
            "lr": c.train.lr,  # verl's default is 1e-3
            "min_lr": c.train.min_lr,
            "lr_decay_style": c.train.schedule,
            "lr_warmup_steps": c.train.warmup_steps,
            "weight_decay": c.train.weight_decay,
            "use_checkpoint_opt_param_scheduler": True,  # a resumed run goes on in its schedule, whatever train.lr is
            "clip_grad": 1.0,
        },
        "trainer": {
            "default_local_dir": f"{c.run_dir}/sft/checkpoints",
            "project_name": "retool",
            "experiment_name": c.name,
            "total_epochs": c.train.epochs,
            "total_training_steps": c.train.steps,
            "logger": [*c.train.loggers, "file"],  # `retool summary` and `status` read the file
            "seed": c.seed,
            "save_freq": c.train.save_every,
            "test_freq": c.train.eval_every,
            "max_ckpt_to_keep": None,  # state/checkpoints.py rotates: verl would remove the best
            "resume_mode": "auto",
            "device": c.parallel.device,
            "nnodes": c.parallel.nodes,
            "n_gpus_per_node": c.parallel.gpus_per_node,
        },
    }


def export(c: Export) -> dict[str, Any]:
    return {"engine": c.parallel.megatron.model_dump()}


def rl(c: Rl) -> dict[str, Any]:
    return {
        "algorithm": {
            "adv_estimator": c.recipe.advantage,
            "norm_adv_by_std_in_grpo": c.recipe.normalise_by_std,
            "gamma": c.recipe.gamma,
            "lam": c.recipe.lambda_,
            "use_kl_in_reward": False,
            "rollout_correction": {
                "rollout_is": c.correction.rollout_is,
                "rollout_is_threshold": c.correction.rollout_is_threshold,
                "rollout_rs": c.correction.rollout_rs,
                "rollout_rs_threshold": c.correction.rollout_rs_threshold,
            },
        },
        "data": {
            "train_files": c.data.train_files,
            "val_files": c.data.held_back_files,
            "train_batch_size": c.train.batch,
            "max_prompt_length": c.rollout.max_prompt_tokens,
            "max_response_length": c.rollout.max_response_tokens,
            "truncation": "error",
            "apply_chat_template_kwargs": c.model.apply_chat_template_kwargs,
            "seed": c.seed,
        },
        "actor_rollout_ref": {
            "hybrid_engine": c.pipeline.hybrid,
            "model": {
                "path": c.init_from,
                "lora": lora(c.model.lora),
                "custom_chat_template": c.rollout.chat_template,
                "external_lib": "retool_mcore.backends.verl.losses",  # registers our losses wherever they are trained
                "use_remove_padding": True,
            },
            "actor": {
                "ppo_mini_batch_size": c.train.mini_batch,
                "use_dynamic_bsz": True,  # packs trajectories up to a token budget: lengths differ by 10x
                "ppo_max_token_len_per_gpu": c.parallel.micro_batch_tokens,
                "clip_ratio": c.recipe.clip_low,
                "clip_ratio_low": c.recipe.clip_low,
                "clip_ratio_high": c.recipe.clip_high,
                "clip_ratio_c": c.recipe.dual_clip,
                "loss_agg_mode": c.recipe.loss_aggregation,
                "loss_scale_factor": c.recipe.loss_scale,
                "policy_loss": {"loss_mode": c.recipe.policy_loss},
                "use_kl_loss": c.recipe.kl_loss,
                "kl_loss_coef": c.recipe.kl_coefficient,
                "entropy_coeff": 0,
                "data_loader_seed": c.seed,  # ours, by which mini-batches are drawn (train/batch.py)
                "optim": {"lr": c.train.lr, **constant_rate(c)},
                "megatron": c.parallel.megatron.model_dump(),
            },
            "ref": {"megatron": c.parallel.megatron.model_dump()},
            "rollout": {
                "enforce_eager": c.parallel.rollout.enforce_eager,
                "free_cache_engine": c.parallel.rollout.free_cache_engine,
                "enable_sleep_mode": c.parallel.rollout.enable_sleep_mode,
                "enable_chunked_prefill": c.parallel.rollout.enable_chunked_prefill,
                "max_num_batched_tokens": c.parallel.rollout.max_num_batched_tokens,
                "max_num_seqs": c.parallel.max_num_seqs,
                "scheduling_policy": "priority",  # the groups of the oldest step first (backends/verl/episodes.py)
                "gpu_memory_utilization": c.parallel.gpu_memory_utilization,
                "nnodes": c.pipeline.rollout_nodes,
                "n_gpus_per_node": c.pipeline.rollout_gpus,
                "checkpoint_engine": {
                    "backend": c.pipeline.transport,
                    "custom_backend_module": c.pipeline.transport_module,
                    "update_weights_bucket_megabytes": c.parallel.rollout.weight_bucket_mb,
                },
                "engine_kwargs": {
                    "vllm": {
                        # verl's own, and the weights that it holds can be compared with a push
                        "worker_extension_cls": "retool_mcore.backends.verl.weight_sync_vllm.VerifyingExtension",
                        "kv_cache_dtype": c.parallel.rollout.kv_cache_dtype,
                    }
                },
                "name": "vllm",
                "dtype": c.model.dtype,
                "n": c.train.n,
                "seed": c.seed,
                "temperature": c.rollout.temperature,
                "top_p": c.rollout.top_p,
                "top_k": -1,
                "tensor_model_parallel_size": c.parallel.rollout_tp,
                "max_model_len": c.rollout.max_prompt_tokens + c.rollout.max_response_tokens,
                "calculate_log_probs": True,  # needed by the mismatch metrics and the correction
                "val_kwargs": {  # as it trains: that is the accuracy that training raises
                    "n": c.train.eval_samples,
                    "do_sample": True,
                    "temperature": c.rollout.temperature,
                    "top_p": c.rollout.top_p,
                },
                "agent": {"num_workers": c.parallel.agent_workers},
            },
        },
        "critic": {  # built only for recipe.advantage=gae, in the policy's processes
            "model": {
                "path": c.init_from,  # its value head starts at random
                "use_remove_padding": True,
            },
            "ppo_max_token_len_per_gpu": c.parallel.micro_batch_tokens,
            # of its updates too, whatever the key above is (trainer_base.py)
            "ppo_infer_max_token_len_per_gpu": c.parallel.micro_batch_tokens,
            "cliprange_value": c.recipe.critic.value_clip,
            "optim": {"lr": c.recipe.critic.lr, **constant_rate(c)},
            "megatron": c.parallel.megatron.model_dump(),
        },
        "reward": {"num_workers": c.parallel.reward_workers},
        "trainer": {
            "v1": {
                "trainer_mode": c.pipeline.mode,
                "colocate_async": {"num_warmup_batches": c.pipeline.staleness},
                "separate_async": {
                    "num_warmup_batches": c.pipeline.staleness,
                    "parameter_sync_step": c.pipeline.updates,
                },
            },
            "project_name": "retool",
            "experiment_name": c.name,
            "total_training_steps": c.train.steps,
            "logger": [*c.train.loggers, "file"],  # `retool summary` and `status` read the file
            "val_before_train": c.train.eval_before,
            "test_freq": c.train.eval_every,
            "save_freq": c.train.save_every,
            "critic_warmup": c.recipe.critic.warmup_steps,
            "device": c.parallel.device,
            "nnodes": c.parallel.nodes,
            "n_gpus_per_node": c.parallel.gpus_per_node,
        },
        "ray_kwargs": {
            "ray_init": {
                "num_cpus": c.parallel.ray.num_cpus,
                "num_gpus": c.parallel.ray.num_gpus,
                "object_store_memory": c.parallel.ray.object_store_bytes,
                "include_dashboard": False,
            }
        },
    }


def constant_rate(c: Rl) -> dict[str, Any]:
    """Return the settings that the policy's and the critic's optimizers have in common."""
    return {
        "lr_decay_style": "constant",
        "lr_warmup_steps": c.train.warmup_steps,
        "weight_decay": c.train.weight_decay,
        "use_checkpoint_opt_param_scheduler": True,  # a resumed run goes on in its schedule, whatever train.lr is
        "clip_grad": 1.0,
    }


def lora(adapters: Lora) -> dict[str, Any]:
    """verl's section of model.lora: base and adapters go to the engine, and into checkpoints, as one ("merge")."""
    if not adapters.rank:
        return {}
    return {"rank": adapters.rank, "alpha": adapters.alpha, "target_modules": adapters.targets, "merge": True}


TRANSLATIONS: dict[str, Callable[[Any], dict[str, Any]]] = {"sft": sft, "export": export, "rl": rl}
