"""The episodes of a rollout worker, on verl's client of its vLLM servers; and the scoring of what they wrote."""

import functools
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.utils import hf_tokenizer
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import get_dataset_class
from verl.utils.import_utils import load_class_from_fqn

from retool_mcore.backends.verl.reward_fn import compute_score
from retool_mcore.rollout.samples import ARRAYS, Sample
from retool_mcore.rollout.wire import from_wire

_TRAJECTORY_ARRAYS = (*ARRAYS, "logprobs")


class Episodes:
    """Runs single episodes by the agent loop that `config` (verl's) names; for one process."""

    def __init__(self, config):
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        if model.get("custom_chat_template", None) is not None:
            model.tokenizer.chat_template = model.custom_chat_template
        (entry,) = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
        arguments: Any = OmegaConf.to_container(entry, resolve=True)
        kind = getattr(model.hf_config, "model_type", None)
        arguments.pop("name")
        self.tokenizer = model.tokenizer
        self.loop = functools.partial(
            load_class_from_fqn(arguments.pop("_target_"), "agent loop"),
            trainer_config=DictConfigWrap(config),
            tokenizer=model.tokenizer,
            processor=model.processor,
            hf_model_type=kind if isinstance(kind, str) else None,
            dataset_cls=get_dataset_class(config.data),
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([]),
            **arguments,
        )

    def trace(self, uid: str, number: int, row: dict, step: int) -> AbstractAsyncContextManager:
        """What surrounds an episode and its score; nothing here (backends/verl/tracing.py)."""
        return nullcontext()

    async def run(
        self, client, uid: str, number: int, row: dict, step: int, sampling: dict
    ) -> tuple[Sample, dict[str, Any]]:
        """(the trajectory without its reward, what the reward function sees besides). `step` seeds the requests."""
        loop = self.loop(server_manager=client)
        output = await loop.run(sampling, global_steps=step, session_id=number, uid=uid, **row)
        extra = output.extra_fields
        notes = from_wire(extra["trajectory"])
        sample = Sample(
            group=uid,
            number=number,
            prompt_ids=output.prompt_ids,
            response_ids=output.response_ids,
            response_mask=output.response_mask,
            log_probs=output.response_logprobs or (),
            notes={name: value for name, value in notes.items() if name not in _TRAJECTORY_ARRAYS},
            finish=extra["finish"],
            turns=output.num_turns,
            versions=(extra["min_global_steps"], extra["max_global_steps"]),
            resent=tuple(extra["resent"]),
            stages=json.loads(extra["stages"]) if "stages" in extra else None,
        )
        if output.routed_experts is not None:
            found = np.asarray(output.routed_experts, np.int16)[: sample.length]
            sample.experts = np.zeros((sample.length, *found.shape[1:]), np.int16)
            sample.experts[: len(found)] = found  # the engine has read all but the last turn's last token
        return sample, extra | {"num_turns": output.num_turns, "rollout_reward_scores": {}}

    async def scored(self, judge, row: dict, sample: Sample, facts: dict) -> dict:
        """The outcome of the trajectory, by the actor `judge`."""
        return await judge.score.remote(row, sample.response_ids, facts)


class Scorer:
    """Scores trajectories by the recipe's reward; for one process."""

    def __init__(self, config):
        self.tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
        self.compute = functools.partial(compute_score, **config.reward.custom_reward_function.reward_kwargs)

    def score(self, row: Mapping, response_ids: list[int], facts: Mapping) -> dict:
        """The outcome (backends/verl/reward_fn.py) of a response to the data set's `row`."""
        text = self.tokenizer.decode(response_ids, skip_special_tokens=True)
        known = {**row["extra_info"], **facts}
        return self.compute(str(row["data_source"]), text, row["reward_model"]["ground_truth"], known)
