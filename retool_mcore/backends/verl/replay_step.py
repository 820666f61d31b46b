"""One recorded step through the trainer again, without a rollout engine: the recorded trajectories take its place.

verl's V1 trainer as `retool rl` runs it, from the checkpoint before the step; only where a step would generate, its
records (metrics/records.py) are put into TransferQueue as the agent loops had put them: tokens, mask, the engine's
log-probabilities, rewards. Everything after that is computed anew: log-probabilities, advantages, filters of samples,
the audit, the update. Groups that the rollout dropped are not in the records. One step, nothing saved.
"""

import time
from dataclasses import fields
from pathlib import Path

import torch
import transfer_queue
from omegaconf import open_dict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from retool_mcore.backends.verl.settings import verl_config
from retool_mcore.backends.verl.task_runner import Runner
from retool_mcore.backends.verl.trainer import RetoolTrainer
from retool_mcore.metrics.records import read_step
from retool_mcore.rollout.trajectory import Trajectory
from retool_mcore.rollout.wire import to_wire
from retool_mcore.state import alarms

_TRAJECTORY = {field.name for field in fields(Trajectory)}
_OUTCOME = ("score", "acc", "pred", "overlong", "drop")


class ReplayTrainer(RetoolTrainer):
    """RetoolTrainer for one step; `config.retool.replay` holds `records`, the file of the step, and `step`."""

    _enable_hybrid_replicas = False  # verl: no rollout engine beside the trainer, its workers are actors only

    def _setup(self):
        super()._setup()
        self.total_training_steps = self.config.retool.replay.step

    def on_init_end(self):
        pass

    def on_sample_end(self):
        pass

    def on_step_end(self):
        pass

    def finish_saves(self, blocking):
        pass

    def prepare_step(self):
        records = read_step(self.config.retool.replay.records)
        self.places = {_key(record): record["place"] for record in records if "place" in record}
        put_records(records, self.global_steps)
        return {}

    def _build_replay_buffer(self):
        buffer = super()._build_replay_buffer()
        buffer.filter_groups_metric = None  # what is recorded has passed the filters; a refill needs an engine
        return buffer

    def _balance_batch(self, batch, *args, **kwargs):
        batch = super()._balance_batch(batch, *args, **kwargs)
        if order := recorded_order(batch.keys, self.places):
            batch.reorder(order)
        return batch


class ReplayRunner(Runner):
    trainer_class = ReplayTrainer

    def init_agent_loop_manager(self):
        self.agent_loop_manager = None


def recorded_order(keys: list[str], places: dict[str, int]) -> list[int]:
    """The order in which `keys` stand where `places` says, others (verl's padding) in the gaps; [] if they cannot.

    They cannot when a record has no place, or when the batch is padded to another size, by another layout.
    """
    known = {places[key]: number for number, key in enumerate(keys) if key in places}
    if not places or len(known) != len(places) or max(known) >= len(keys):
        return []
    others = (number for number, key in enumerate(keys) if key not in places)
    return [known[place] if place in known else next(others) for place in range(len(keys))]


def put_records(records: list[dict], step: int) -> None:
    """Write a step's records to TransferQueue's partition "train" as verl's agent loop workers do, groups finished."""
    rows, tags = [], []
    for record in records:
        row = agent_output(record).as_dict()
        prompt, response = row["prompts"], row["responses"]
        row |= {
            "uid": record["uid"],
            "session_id": record["sample"],
            "index": record["index"],
            "global_steps": step,
            "data_source": record["data_source"],
            "reward_model": {"ground_truth": record["ground_truth"], "style": "rule"},
            "loss_mask": row["response_mask"],
            "input_ids": torch.cat([prompt, response]),
            "position_ids": torch.arange(len(prompt) + len(response)),
            "multi_modal_inputs": {},
        }
        rows.append(row)
        lengths = {"prompt_len": len(prompt), "response_len": len(response), "seq_len": len(prompt) + len(response)}
        versions = {"global_steps": step, "min_global_steps": step - 1, "max_global_steps": step - 1}
        tags.append({"status": "success", **lengths, **versions})
    keys = [_key(record) for record in records]
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    groups = sorted({record["uid"] for record in records})
    finished = {"is_prompt": True, "status": "finished", "global_steps": step}
    transfer_queue.kv_batch_put(keys=groups, partition_id="train", tags=[finished] * len(groups))


def agent_output(record: dict) -> AgentLoopOutput:
    """What the agent loop had returned for a trajectory. The mask is the spans', before any filter of samples."""
    mask = [int(span["kind"] == "policy") for span in record["spans"] for _ in range(span["start"], span["end"])]
    trajectory = {name: value for name, value in record.items() if name in _TRAJECTORY}
    trajectory |= {"started": time.time(), "taken_over": False}
    return AgentLoopOutput(
        prompt_ids=record["prompt_ids"].tolist(),
        response_ids=record["response_ids"].tolist(),
        response_mask=mask,
        response_logprobs=record["logprobs"].tolist() or None,
        reward_score=record["score"],
        num_turns=1 + len(record["spans"]),
        metrics=AgentLoopMetrics(generate_sequences=record["generate_s"], tool_calls=record["tool_s"]),
        extra_fields={
            "trajectory": to_wire(trajectory),
            "finish": record["finish"],
            "num_calls": len(record["calls"]),
            "response_length": len(mask),
            "reward_extra_info": {name: record[name] for name in _OUTCOME if name in record},
        },
    )


def replay_config(config, folder: Path):
    """verl's configuration for one step from the checkpoint `config.replay.checkpoint` (null: `init_from`)."""
    verl = verl_config(config, folder)
    with open_dict(verl):
        verl.retool.alarms = alarms.IGNORED  # what the step did is to be seen, not answered
        verl.retool.curriculum = {}  # what was drawn is in the records
        verl.retool.replay = {"records": config.replay.records, "step": config.replay.step}
        verl.data.train_batch_size = config.replay.groups
        verl.actor_rollout_ref.rollout.nnodes = 1  # asserted of a server manager that then starts no server
        verl.trainer.save_freq = verl.trainer.test_freq = -1
        verl.trainer.default_local_dir = str(folder / "checkpoints")
        verl.trainer.resume_mode = "resume_path" if config.replay.checkpoint else "disable"
        verl.trainer.resume_from_path = config.replay.checkpoint
    return verl


def _key(record: dict) -> str:
    return f"{record['uid']}_{record['sample']}_0"
