"""verl's engines behind one interface: Megatron workers that train, vLLM servers that write, the push between them.

No trainer of verl's: its worker groups, servers and weight transports are called here, and nowhere else by the loop.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf, open_dict
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, ResourcePoolManager, create_colocated_worker_cls
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.tracking import Tracking
from verl.workers.engine_workers import TrainingWorkerConfig
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.utils.losses import value_loss

from retool_mcore.backends.verl.agent_episodes import AgentEpisodes
from retool_mcore.backends.verl.check import check_config
from retool_mcore.backends.verl.cluster import start_ray
from retool_mcore.backends.verl.episodes import Episodes, Scorer
from retool_mcore.backends.verl.weight_sync import PushError, refused
from retool_mcore.backends.verl.wire import EXPERTS, of_responses, sent
from retool_mcore.backends.verl.workers import PolicyWorker, ValueWorker, worker_group
from retool_mcore.metrics.audit import MaskAuditError
from retool_mcore.rollout.live import cache_tokens
from retool_mcore.rollout.rollouts import Rollouts
from retool_mcore.rollout.worker import JudgeActor, RolloutWorker

__all__ = ["Engines", "check_config", "loggers", "start_ray"]

_GROUPS = 10_000  # in flight on one worker, at most; Ray's own bound is 1,000
_RETRIES = 3  # of a judge that dies: it is made anew and asked again


def loggers(verl) -> Tracking:
    """Where metrics go: verl's loggers of `train.loggers` and the stage's metrics file."""
    plain = OmegaConf.to_container(verl, resolve=True)
    return Tracking(verl.trainer.project_name, verl.trainer.experiment_name, verl.trainer.logger, plain)


class Engines:
    """All that runs outside the driver's process.

    Args:
        verl: its configuration, with the section `retool`.
        total_updates: optimizer steps of the whole run, by which learning rates are scheduled.
        rollouts: False starts the trainer's workers alone, for passes and updates.

    rollouts: the groups in flight; dp: data-parallel ranks; n_gpus: of trainer and rollout engines; tokenizer: the
    policy's. Columns are a batch's (train/batch.py).
    """

    def __init__(self, verl, total_updates: int, *, rollouts: bool = True):
        self.config, self.settings = verl, verl.actor_rollout_ref
        with open_dict(verl):
            self.settings.actor.optim.total_training_steps = verl.critic.optim.total_training_steps = total_updates
        mode = verl.trainer.v1.trainer_mode
        self.apart, self.partial = mode == "separate_async" or not rollouts, mode == "colocate_async"
        self.tokenizer = omega_conf_to_dataclass(self.settings.model).tokenizer
        if not rollouts:
            self._start_workers()
            return
        self.episodes = AgentEpisodes if verl.retool.get("agents") else Episodes
        judge = ray.remote(JudgeActor).options(max_restarts=-1, max_task_retries=_RETRIES, scheduling_strategy="SPREAD")
        self.judges = [judge.remote(partial(Scorer, verl)) for _ in range(verl.reward.num_workers)]
        episode_workers = [self._rollout_worker() for _ in range(self.settings.rollout.agent.num_workers)]
        pool = self._start_workers()
        self._start_servers(pool)
        ray.get([self._connected(worker) for worker in episode_workers])
        self.rollouts = Rollouts(episode_workers, self._new_rollout_worker)
        self.verified: dict[str, float] = {}
        self.pushes_verified = 0

    # -- start --------------------------------------------------------------------------------------------------------
    def _start_workers(self):
        """The processes that train, one a GPU, with their models; returns verl's resource pool of them."""
        adapter = self.settings.model.get("lora", {}).get("rank", 0) > 0  # its base is the reference
        refers = need_reference_policy(self.config)
        apart_reference = refers and not adapter
        role = "actor" if self.apart else "actor_rollout_ref" if apart_reference else "actor_rollout"
        distillation = self.config.get("distillation")
        classes = {
            role: RayClassWithInitArgs(
                ray.remote(PolicyWorker), config=self.settings, distillation_config=distillation, role=role
            )
        }
        if self.apart and apart_reference:
            classes["ref"] = RayClassWithInitArgs(ray.remote(PolicyWorker), config=self.settings, role="ref")
        if need_critic(self.config):
            loss, config = self._critic_config()
            classes["critic"] = RayClassWithInitArgs(ray.remote(ValueWorker), config=config)
        trainer = self.config.trainer
        pools = ResourcePoolManager(
            resource_pool_spec={"global_pool": [trainer.n_gpus_per_node] * trainer.nnodes},
            mapping=dict.fromkeys(classes, "global_pool"),
        )
        pools.create_resource_pool()
        (pool,) = pools.resource_pool_dict.values()
        groups = worker_group(pool, create_colocated_worker_cls(classes), trainer.device).spawn(classes.keys())
        self.workers, self.critic = groups[role], groups.get("critic")
        if self.critic:
            self.critic.reset()
            self.critic.set_loss_fn(loss)
        self.workers.init_model()
        if "ref" in groups:
            groups["ref"].init_model()
        self.reference = groups.get("ref", self.workers) if refers else None
        self.base_is_reference = refers and adapter
        self.has_reference, self.has_critic = refers, self.critic is not None
        rollout = self.settings.rollout
        self.n_gpus = pools.get_n_gpus() + self.apart * rollout.n_gpus_per_node * rollout.nnodes
        self.dp = max(self._dispatch_info("actor")) + 1
        return pool

    def _critic_config(self):
        critic = omega_conf_to_dataclass(self.config.critic)
        critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
        critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
        config = TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
            profiler_config=None,
        )
        return partial(value_loss, config=critic), config

    def _dispatch_info(self, mesh: str) -> list[int]:
        """The data-parallel rank of each worker."""
        known = self.workers._dispatch_info
        if mesh not in known:
            known[mesh] = self.workers._query_dispatch_info(mesh)
        return known[mesh]

    def _start_servers(self, pool) -> None:
        """vLLM servers, on the workers' devices or on devices of their own; asleep where they share them."""
        RolloutReplicaRegistry.register("vllm", _replica)
        place = {} if self.apart else {"worker_group": self.workers, "rollout_resource_pool": pool}
        self.servers = LLMServerManager.create(config=self.config, **place)
        transport = omega_conf_to_dataclass(self.settings.rollout.checkpoint_engine)
        if not self.apart:
            transport.backend = "naive"
        replicas = self.servers.get_replicas()
        self.transport = CheckpointEngineManager(config=transport, actor_wg=self.workers, replicas=replicas)
        handles = self.servers.server_handles
        self.cache_tokens = sum(ray.get([server.__ray_call__.remote(cache_tokens) for server in handles]))
        print(f"KV caches: {self.cache_tokens:,} tokens in {len(handles)} engines", flush=True)
        self.client = self.servers.get_client(client_cls=LLMServerClient)
        if not self.apart:
            self.transport.sleep_replicas()

    def _rollout_worker(self):
        rollout, live = self.settings.rollout, self.config.retool.live
        workers = rollout.agent.num_workers
        options = {
            "longest": rollout.prompt_length + rollout.response_length,
            "window": self.config.data.train_batch_size * rollout.n // workers,
            "most": live and live // workers,
        }
        actor = ray.remote(RolloutWorker).options(max_concurrency=_GROUPS, scheduling_strategy="SPREAD")
        return actor.remote(partial(self.episodes, self.config), self.judges, options)

    def _connected(self, worker):
        share = self.cache_tokens // self.settings.rollout.agent.num_workers
        return worker.connect.remote(self.client, share or None)

    def _new_rollout_worker(self):
        worker = self._rollout_worker()
        ray.get(self._connected(worker))
        return worker

    # -- the weights --------------------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Make rollout engines that share devices with the trainer free their memory for it. Turns in progress go on
        after the next push."""
        if self.partial:
            self.transport.abort_replicas()
        if not self.apart:
            self.transport.sleep_replicas()

    def end_rollouts(self) -> None:
        """Abort all turns for good and refuse new ones: the run ends, once its last checkpoint is written."""
        self.transport.abort_replicas(reject_request=True)
        if not self.apart:
            self.transport.sleep_replicas()

    def push(self, step: int, verify: bool) -> dict[str, float]:
        """Give the policy to the rollout engines as version `step`; they go on with it. Returns metrics push/...

        verify: compare every tensor of the engines with the trainer's. Raises PushError where one differs.
        """
        if verify:
            self.workers.record_push()
        metrics = dict(self.transport.update_weights(step) or {})
        seconds = 0.0
        if verify:
            try:
                report, seconds = self._verify()
            except PushError as error:
                raise getattr(error, "cause", error) from error
            self.pushes_verified += 1
            self.verified = {"push/tensors": report["tensors"], "push/bytes": report["bytes"]}
            if self.pushes_verified == 1:
                size = f"{report['tensors']:,} tensors, {report['bytes']:,} bytes"
                print(f"Weight push: {size}, verified in {seconds:.2f} s", flush=True)
        if self.partial:
            self.transport.resume_generation_replicas()
        state = {"push/verify_seconds": seconds, "push/verified": self.pushes_verified}
        return metrics | self.verified | state

    def _verify(self) -> tuple[dict[str, float], float]:
        if not self.apart:
            report = ray.get(self.workers.verify_push())[0]
            return report, report["seconds"]
        clock = time.perf_counter()
        message, report = self.workers.recorded_push()[0]
        with refused():
            handles = self.servers.server_handles
            ray.get([server.collective_rpc.remote("verify_weights", kwargs=message) for server in handles])
        return report, time.perf_counter() - clock

    # -- passes over a batch ------------------------------------------------------------------------------------------
    def log_probs(self, batch, part: int = 0, parts: int = 1) -> None:
        """Write the columns old_log_probs and entropy, by the policy that the step began with.

        part: of the step's `parts` updates so many have been made; the weights before them are put back for the pass.
        """
        rows = self._rows(batch, ["response_mask"], calculate_entropy=True, compute_loss=False)
        if parts > 1:
            self.workers.save_model_to_cpu(part)
            if part:
                self.workers.restore_model_from_cpu(0)
        output = self.workers.compute_log_prob(rows)
        if part:
            self.workers.restore_model_from_cpu(part)
            self.workers.clear_cpu_model(part)
        batch["old_log_probs"] = of_responses(output, "log_probs", batch)
        batch["entropy"] = of_responses(output, "entropy", batch)
        if (recorded := tensordict_utils.get(output, EXPERTS)) is not None:
            batch.experts = list(recorded.unbind())

    def reference_log_probs(self, batch) -> None:
        """Write the column ref_log_prob, by the policy that the run began with."""
        bare: dict[str, Any] = {"no_lora_adapter": True} if self.base_is_reference else {}
        rows = self._rows(batch, ["response_mask"], calculate_entropy=False, compute_loss=False, **bare)
        output = self.workers.compute_log_prob(rows) if bare else self.reference.compute_ref_log_prob(rows)
        batch["ref_log_prob"] = of_responses(output, "log_probs", batch)

    def values(self, batch) -> None:
        """Write the column values, by the critic."""
        output = self.critic.infer_batch(self._rows(batch, ["response_mask"], compute_loss=False)).get()
        batch["values"] = of_responses(output, "values", batch)

    def update_critic(self, batch) -> dict[str, float]:
        """Train the critic on the columns returns and values, a pass over the mini-batches; metrics critic/..."""
        critic = self.config.critic
        rows = self._rows(
            batch, ["response_mask", "values", "returns"],
            **self._mini_batches(batch, critic.ppo_mini_batch_size, critic),
        )  # fmt: skip
        return _metrics(self.critic.train_mini_batch(rows).get(), "critic")

    def update(self, batch) -> dict[str, float]:
        """Train the policy, a pass over the batch's mini-batches as they stand; metrics actor/... Raises MaskAuditError
        where a token that is not the policy's receives a gradient."""
        actor = self.settings.actor
        rows = self._rows(
            batch,
            ["response_mask", "old_log_probs", "advantages", "is_weights", "ref_log_prob", "span_kind"],
            calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
            distillation_use_topk=False,
            distillation_only=False,
            **self._mini_batches(batch, actor.ppo_mini_batch_size, actor),
        )
        try:
            return _metrics(self.workers.update_actor(rows), "actor")
        except MaskAuditError as error:
            raise getattr(error, "cause", error) from error

    def _rows(self, batch, columns: list[str], **settings):
        return sent(batch, columns, temperature=self.settings.rollout.temperature, **settings)

    def _mini_batches(self, batch, prompts: int, role) -> dict[str, Any]:
        episodes = prompts * self.settings.rollout.n
        return {
            "global_batch_size": episodes,  # by which a mean over sequences divides
            "mini_batch_size": episodes if batch.layout is None else batch.layout.size,
            "epochs": role.ppo_epochs,
            "seed": role.data_loader_seed,
            "dataloader_kwargs": {"shuffle": role.shuffle},
        }

    def gpu_samples(self) -> list:
        """How busy the GPU of each worker was since the last call (metrics/timeline.py); () on a CPU."""
        return [] if self.config.trainer.device == "cpu" else self.workers.take_gpu_samples()

    # -- checkpoints --------------------------------------------------------------------------------------------------
    def save(self, checkpoint: Path, step: int) -> None:
        """Write the policy, and the critic where there is one, with their optimizers."""
        self.workers.save_checkpoint(str(checkpoint / "actor"), None, step, max_ckpt_to_keep=None)
        if self.critic:
            self.critic.save_checkpoint(str(checkpoint / "critic"), None, step, max_ckpt_to_keep=None)
        (checkpoint.parent / "latest_checkpointed_iteration.txt").write_text(str(step))

    def load(self, checkpoint: Path) -> None:
        """Go on with what `save` wrote."""
        self.workers.load_checkpoint(local_path=str(checkpoint / "actor"), del_local_after_load=False)
        if self.critic:
            self.critic.load_checkpoint(local_path=str(checkpoint / "critic"), del_local_after_load=False)

    def close(self) -> None:
        """End all processes of the run's Ray."""
        ray.shutdown()


def _replica() -> type:
    from retool_mcore.backends.verl.replica import Replica  # imports vLLM

    return Replica


def _metrics(output, role: str) -> dict[str, float]:
    metrics = rename_dict(tensordict_utils.get(output, "metrics"), f"{role}/")
    metrics[f"perf/mfu/{role}"] = metrics.pop(f"{role}/mfu")
    return reduce_metrics(metrics)
