"""A batch in TransferQueue as the rest of the package knows it: records of trajectories, and flat columns."""

import json
from dataclasses import dataclass

import numpy as np
import torch
import transfer_queue

from retool_mcore.algo.columns import plain, put, real_keys
from retool_mcore.metrics.audit import Columns
from retool_mcore.rollout.packed import unpack

_COLUMNS = {
    "response_ids": "responses",
    "response_mask": "response_mask",
    "loss_mask": "loss_mask",
    "advantages": "advantages",
    "is_weights": "rollout_is_weights",
    "rollout_log_probs": "rollout_log_probs",
    "old_log_probs": "old_log_probs",
}
_OUTCOME = ("score", "acc", "pred")
_WRITTEN = ("response_mask", "old_log_probs", "advantages", "is_weights")


@dataclass(frozen=True)
class StepBatch:
    """One batch without verl's padding: `keys`, `records` (metrics/records.py) and `columns`, row by row."""

    keys: list[str]
    records: list[dict]
    columns: Columns


def read_batch(batch, step: int) -> StepBatch:
    """What the update of `batch` (KVBatchMeta) is going to read, after the advantages are computed.

    Records hold what the agent loop noted, the reward, and the trainer's columns of the trajectory.
    """
    keys = real_keys(batch)
    places = {key: place for place, key in enumerate(batch.keys)}
    fields = ["extra_fields", "reward_model", "data_source", "index"]
    select = [*fields, "rm_scores", *_COLUMNS.values()]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=select)
    present = set(data.keys())
    found = {name: _flat(data[field]) for name, field in _COLUMNS.items() if field in present}
    lengths = [len(row) for row in data["responses"].unbind()]
    columns = Columns(offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), **found)
    # Not the outcome's: a recipe may have given the group another reward.
    scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
    texts = [plain(data[field]) for field in fields]
    records = []
    for row, (key, score, extra, reward_model, source, index) in enumerate(zip(keys, scores, *texts, strict=True)):
        uid, sample = key.split("_")[:2]
        outcome = extra["reward_extra_info"]
        own = columns.row(row)
        records.append(
            unpack(extra["trajectory"])
            | {name: _plain(value) for name, value in outcome.items() if name not in _OUTCOME}
            | {"step": step, "uid": uid, "sample": int(sample), "index": int(index), "data_source": str(source)}
            # Which mini-batch a trajectory falls into: a replay of the step needs it.
            | {"place": places[key]}
            | ({"stages": json.loads(extra["stages"])} if "stages" in extra else {})
            | {"score": score, "acc": float(outcome["acc"]), "pred": str(outcome["pred"])}
            | {"ground_truth": str(reward_model["ground_truth"])}
            | {name: own[name] for name in _WRITTEN if name in own}
        )
    return StepBatch(keys, records, columns)


def put_column(batch, name: str, rows: dict[str, np.ndarray], padding: int):
    """Write one array (tokens,) a trajectory to TransferQueue, padding rows filled; returns the batch's new meta."""
    values = [
        torch.from_numpy(rows[key]) if key in rows else torch.full((tag["response_len"],), padding, dtype=torch.int8)
        for key, tag in zip(batch.keys, batch.tags, strict=True)
    ]
    return put(batch, batch.keys, **{name: values})


def _flat(column: torch.Tensor) -> np.ndarray:
    """All rows of a nested (or padded by nobody) column, one behind the other."""
    return torch.cat(list(column.unbind())).numpy()


def _plain(value):
    """A reward's own figure as JSON can hold it."""
    return value.item() if hasattr(value, "item") else value
