"""verl's agent loop workers, which begin no more than the engines' caches hold (rollout/live.py), keep what they finish
and take over what an attempt before this one had finished.

The trainer says where (backends/verl/take_over.py): rows of a batch that have a column `unfinished` name the folder of
their step. Rows without it, of a validation or of a pipeline whose rollouts run ahead of the training, are run as by
verl; there verl's own checkpoint of TransferQueue holds what is unfinished.
"""

import asyncio
import functools
import hashlib
import json
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import ray
import transfer_queue
from hydra.utils import get_class
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop as verls
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils import tensordict_utils
from verl.utils.rollout_trace import rollout_trace_attr

from retool_mcore.backends.patches import PATCHES, check
from retool_mcore.backends.verl.first_errors import FirstRollouts
from retool_mcore.recipes.columns import unwrap
from retool_mcore.rollout.failures import FAILURE, ScoringError, cause_of
from retool_mcore.rollout.live import Live
from retool_mcore.rollout.seeds import DRAW, ORDER, Draws
from retool_mcore.rollout.unfinished import Unfinished
from retool_mcore.rollout.wire import from_wire, to_wire
from retool_mcore.sandbox.base import Status

COLUMN = "unfinished"
SAMPLING = "sampling"  # of a row that is sampled otherwise than verl's configuration says: temperature and top_p
# The tokens and their log-probabilities are in extra_fields["trajectory"].
_KEPT = {"response_mask", "num_turns", "metrics", "reward_score", "extra_fields"}
_ROW = ("data_source", "raw_prompt", "reward_model", "extra_info")
# Where the trajectory that the running task finishes is to be kept; every trajectory is run by a task of its own.
_PLACE: ContextVar[tuple[Unfinished, str] | None] = ContextVar("place", default=None)

_Worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
# _run_agent_loop below is verl's, but for how the loop is made.
check("cpu", [patch for patch in PATCHES if patch.place.endswith(":AgentLoopWorker._run_agent_loop")])
assert {"_run_agent_loop", "_agent_loop_postprocess"} <= vars(_Worker).keys() | vars(_Worker.__mro__[1]).keys(), (
    "verl's workers run a trajectory by other methods than those that are overridden here"
)


class KeepingWorker(_Worker):  # type: ignore[valid-type, misc]
    """verl's worker with `Unfinished` around every trajectory of training; it stops the run for what always fails."""

    scored = False  # whether a trajectory of this worker has been

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.opened: dict[str, asyncio.Future] = {}  # the newest folder
        self.loops: dict[str, functools.partial] = {}  # by the name of an agent loop
        retool, rollout, workers = self.config.retool, self.rollout_config, self.rollout_config.agent.num_workers
        trajectories = self.config.data.train_batch_size * rollout.n
        self.live = Live(
            retool.cache_tokens and retool.cache_tokens // workers,
            longest=rollout.prompt_length + rollout.response_length,
            window=trajectories // workers,
            most=retool.live and retool.live // workers,
        )

    @functools.cached_property
    def first(self) -> FirstRollouts:
        return FirstRollouts()

    async def _run_agent_loop(self, sampling_params, trajectory, *, agent_name, trace=True, **kwargs):
        try:
            return await self._take_or_run(sampling_params, trajectory, agent_name=agent_name, trace=trace, **kwargs)
        except Exception as error:
            # verl tells that a group failed, and not why. The tag is read by backends/verl/replay_buffer.py.
            tag = {"status": "running", FAILURE: tuple(cause_of(error))}
            partition = "val" if trajectory["validate"] else "train"
            await transfer_queue.async_kv_put(key=kwargs["uid"], partition_id=partition, tag=tag)
            raise

    async def _take_or_run(self, sampling_params, trajectory, *, agent_name, trace, **kwargs):
        folder = kwargs.pop(COLUMN, None)
        sampling_params = {**sampling_params, **(kwargs.pop(SAMPLING, None) or {})}
        if folder is not None and not trajectory["validate"]:
            if folder not in self.opened:
                self.opened = {folder: asyncio.ensure_future(asyncio.to_thread(Unfinished, Path(folder)))}
            unfinished, key = await self.opened[folder], row_key(kwargs)
            record = await asyncio.to_thread(unfinished.take, key)
            if record is not None:
                return await self._agent_loop_postprocess(restore(record), trajectory["validate"], **kwargs)
            _PLACE.set((unfinished, key))
        attributes = {name: trajectory[name] for name in ("step", "sample_index", "rollout_n", "validate")}
        partition = "val" if trajectory["validate"] else "train"
        async with self.live.trajectory(), self.first.reported(kwargs["uid"], kwargs["session_id"], partition):
            with rollout_trace_attr(**attributes, name="agent_loop", trace=trace):
                output = await self._loop(agent_name).run(sampling_params, **kwargs)
                return await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)

    def _loop(self, agent_name: str) -> verls.AgentLoopBase:
        """The agent loop of one trajectory. verl has Hydra make each, in 10 to 20 ms of a core."""
        if agent_name not in self.loops:
            entry: Any = OmegaConf.to_container(OmegaConf.create(verls._agent_loop_registry[agent_name]), resolve=True)
            self.loops[agent_name] = functools.partial(
                get_class(entry.pop("_target_")),
                trainer_config=DictConfigWrap(self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
                tools=ToolListWrap(self.tools),
                **entry,
            )
        return self.loops[agent_name]()

    async def _compute_score(self, outputs, kwargs):
        """As verl's. Raises ScoringError while nothing has been scored: the group then fails like one whose rollout
        raises, and is not trained on with the reward of an error."""
        await super()._compute_score(outputs, kwargs)
        error = outputs[-1].extra_fields.get("reward_extra_info", {}).get("error", "")
        if error and not self.scored:
            raise ScoringError(error)
        self.scored = True

    async def _agent_loop_postprocess(self, output, validate, **kwargs):
        self.live.ended(len(output.prompt_ids) + len(output.response_ids))
        await super()._agent_loop_postprocess(output, validate, **kwargs)
        # Router replay's experts are larger than all the rest: such a trajectory is generated again, as is one that the
        # sandbox itself spoilt, and scored again, one whose scoring raised.
        lost = output.routed_experts is not None or output.extra_fields.get("finish") == Status.SANDBOX
        lost |= bool(output.extra_fields.get("reward_extra_info", {}).get("error"))
        if (place := _PLACE.get()) is not None and not lost:
            unfinished, key = place
            await asyncio.to_thread(unfinished.append, key, output.model_dump(include=_KEPT))


class KeepingManager(AgentLoopManagerTQ):
    """verl's manager with KeepingWorkers."""

    worker_class = KeepingWorker

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(self.worker_class)
        self.draws = Draws()

    def generate_sequences(self, prompts):
        """Number the prompts in the order in which they come from the data loader, then hand them to the workers."""
        number_draws(prompts, Draws() if "validate" in prompts else self.draws)
        super().generate_sequences(prompts)


def number_draws(prompts, draws: Draws) -> None:
    """Write the columns ORDER and DRAW of a batch of prompts (verl's TensorDict, all of one step)."""
    step = int(tensordict_utils.get(prompts, "global_steps"))
    problems = zip(unwrap(prompts["data_source"]), unwrap(prompts["index"]), strict=True)
    numbers = [draws.number(step, str(source), int(index)) for source, index in problems]
    for name, values in zip((ORDER, DRAW), zip(*numbers, strict=True), strict=True):
        tensordict_utils.assign_non_tensor_stack(prompts, name, list(values))


def row_key(row: Mapping) -> str:
    """What names a trajectory of a step in every attempt: the problem, with all that it consists of, the sample, and
    how often the step drew the problem before."""
    content = json.dumps([row.get(name) for name in _ROW], sort_keys=True, default=_plain)
    name = f"{int(row['index'])}/{int(row['session_id'])}/{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    draw = int(row.get(DRAW, 0))
    return f"{name}/draw{draw}" if draw else name


def restore(record: Mapping) -> AgentLoopOutput:
    """The output of which `_KEPT` was kept; the reward with it, so that nothing is judged again."""
    extra = dict(record["extra_fields"])
    trajectory = from_wire(extra["trajectory"])
    # Its stages (environments/stages.py) passed in another attempt: they say nothing of this one's queues.
    extra.pop("stages", None)
    extra["trajectory"] = to_wire(trajectory | {"taken_over": True})
    return AgentLoopOutput(
        prompt_ids=trajectory["prompt_ids"].tolist(),
        response_ids=trajectory["response_ids"].tolist(),
        response_logprobs=trajectory["logprobs"].tolist() or None,
        **dict(record) | {"extra_fields": extra},
    )


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else str(value)
