"""The section `parallel`: devices, how the model is spread over them, and the engines' memory."""

from typing import Any, Literal

from pydantic import ConfigDict, model_validator

from retool_mcore.config.defaults import MISSING, computed, follows, preset
from retool_mcore.config.kinds import CacheType, Count, Natural, Positive, Rate
from retool_mcore.config.models.section import Section
from retool_mcore.errors import UserError


def expert_tensor_ranks(ep: int) -> int | None:
    return 1 if ep > 1 else None


def logical_gpus(device: str, gpus_per_node: int, nodes: Any, gpus: Any) -> int | None:
    """Without a GPU Ray is given one logical GPU a process, and one a rollout engine of its own."""
    if device != "cpu":
        return None
    return gpus_per_node + (0 if MISSING in (nodes, gpus) else nodes * gpus)


class Ray(Section):
    """What Ray may use. null: what Ray finds."""

    num_cpus: Any = None
    """Logical cores."""
    num_gpus: Any = computed(
        logical_gpus, "parallel.device", "parallel.gpus_per_node", "pipeline.rollout_nodes", "pipeline.rollout_gpus"
    )
    """Logical GPUs; on a CPU one a process, and one a rollout engine of its own."""
    object_store_bytes: Any = None
    """Bytes of shared memory for objects."""


class McoreModel(Section):
    """Switches of ours, read by backends/megatron/engine.py. A layout may have others."""

    model_config = ConfigDict(extra="allow")
    init: str = follows("model.init")
    """As model.init."""
    packing: bool = True
    """Full micro-batches, planned in milliseconds (verl: seconds for 512 trajectories), moved without waiting for the
    GPU."""


class Megatron(Section):
    """verl's section `engine` of the trainer: its keys, and those of megatron-core below override_*."""

    model_config = ConfigDict(extra="allow")
    tensor_model_parallel_size: Any = follows("parallel.tp")
    """As parallel.tp."""
    pipeline_model_parallel_size: Any = follows("parallel.pp")
    """As parallel.pp."""
    expert_model_parallel_size: Any = follows("parallel.ep")
    """As parallel.ep."""
    expert_tensor_parallel_size: Any = computed(expert_tensor_ranks, "parallel.ep")
    """Tensor-parallel ranks of an expert: 1 where experts are spread. null: as tp."""
    sequence_parallel: Any = follows("parallel.sequence_parallel")
    """As parallel.sequence_parallel."""
    vanilla_mbridge: Any = False
    """false: megatron-bridge loads and exports the weights. true: mbridge does."""
    dist_ckpt_optim_fully_reshardable: Any = True
    """A checkpoint goes on in another tp and pp, and ep if both are above 1. false: only over other data-parallel
    ranks."""
    dtype: Any = follows("model.dtype")
    """As model.dtype."""
    seed: Any = follows("seed")
    """As seed."""
    override_mcore_model_config: McoreModel


class Engine(Section):
    """vLLM's engine."""

    enforce_eager: bool = False
    """true: no CUDA graphs. Long responses save more by them than their capture costs."""
    free_cache_engine: bool = True
    """The KV cache is given back while the trainer works."""
    enable_sleep_mode: bool = True
    """vLLM gives its memory back while the trainer works."""
    enable_chunked_prefill: bool = True
    """Prompts are read in chunks between the decoding steps."""
    max_num_batched_tokens: Count
    """Most tokens of one pass of the engine."""
    kv_cache_dtype: CacheType | None = None
    """fp8: half the cache's bytes; its effect on the mismatch is not measured. null: the model's type."""
    weight_bucket_mb: Count = 2048
    """MiB of one bucket of a weight push; it holds the largest tensor."""


class Parallel(Section):
    """Where every layout of configs/parallel/ starts; a layout's file holds only what differs."""

    device: Literal["cpu", "cuda"]
    """cuda or cpu."""
    dtype: Literal["float32", "bfloat16", "float16"] = preset()
    """Type of a model that leaves it open: verl's Megatron engine takes no float32 on GPUs."""
    gpu: Literal["H100-80", "H200-141", "A100-80"] | None = None
    """The GPU by which the planner judges where none is. null: H100-80."""
    nodes: Count = 1
    """Nodes of the trainer."""
    gpus_per_node: Count = 1
    """GPUs of a node; on a CPU: processes."""
    threads: Count | None = preset()
    """CPU only: threads of each trainer and engine. null: the machine's cores, shared out among the processes."""
    tp: Count = 1
    """Tensor-parallel ranks: each holds a share of every matrix."""
    pp: Count = 1
    """Pipeline stages: each holds a share of the layers."""
    ep: Any = 1
    """Expert-parallel ranks of one pipeline stage: each holds a share of every layer's experts, those whole."""
    sequence_parallel: bool = False
    """Activations between the blocks are sharded over the tensor-parallel ranks too."""
    min_bus_bandwidth_gbs: Positive | None = None
    """GB/s of the all-reduce over all nodes, checked before a start. null: reported, not checked."""
    rollout_tp: Count = 1
    """GPUs of one vLLM engine."""
    watchdog_minutes: Positive | None = preset()
    """watchdog_minutes of this layout."""
    nccl_timeout_minutes: Positive | None = 14.0
    """A collective that takes longer ends the run, with each rank's last operations in RUN/STAGE/stacks; take more for
    storage on which ranks wait longer for each other's part of a checkpoint. null: 10 of RL's group of all ranks, 600
    of SFT's, 30 of Megatron's. Below half of watchdog_minutes it is the first to speak."""
    micro_batch_tokens: Count
    """Token slots of a micro-batch, of the update and of log-probabilities."""
    loader_workers: Natural = 2
    """Processes that load the cold start's data."""
    agent_workers: Count | None = None
    """Processes that run episodes. null, here and below: derived from the trajectories of a step and the cores of a
    node (planner/derived.py)."""
    reward_workers: Count | None = None
    """Processes that compute rewards."""
    max_num_seqs: Count = 256
    """Trajectories that an engine works at."""
    gpu_memory_utilization: Rate
    """Share of the GPU that vLLM takes while it is awake."""
    ray: Ray
    megatron: Megatron
    rollout: Engine

    @model_validator(mode="after")
    def _engine_takes_a_token_each(self) -> "Parallel":
        """What vLLM's scheduler requires (vllm/config/scheduler.py), and what Ray waits for."""
        tokens = self.rollout.max_num_batched_tokens
        if self.max_num_seqs > tokens:
            raise UserError(
                f"parallel.max_num_seqs={self.max_num_seqs} exceeds parallel.rollout.max_num_batched_tokens={tokens}, "
                "and an engine takes at least one token of each trajectory at once: lower it, or raise the other."
            )
        return self
