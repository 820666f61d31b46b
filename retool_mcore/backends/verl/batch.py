"""A batch in TransferQueue as the rest of the package knows it: records of trajectories, and flat columns."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import transfer_queue

from retool_mcore.backends.verl.bypass import TRAINERS
from retool_mcore.metrics.audit import Columns
from retool_mcore.recipes.columns import put, real_keys, unwrap
from retool_mcore.rollout.wire import from_wire

_SAME = ("response_mask", "loss_mask", "advantages", "rollout_log_probs", "old_log_probs")
_COLUMNS = {name: name for name in _SAME} | {"response_ids": "responses", "is_weights": "rollout_is_weights"}
_COLUMNS["trainer_log_probs"] = TRAINERS
_NOTED = ["extra_fields", "reward_model", "data_source", "index"]
_OUTCOME = ("score", "acc", "pred")
_WRITTEN = ("response_mask", "old_log_probs", "advantages", "is_weights")


@dataclass(frozen=True)
class StepBatch:
    """One batch without verl's padding: `keys`, `records` (metrics/records.py) and `columns`, row by row."""

    keys: list[str]
    records: list[dict]
    columns: Columns


def read_notes(batch) -> dict[str, dict]:
    """What is settled when a trajectory of `batch` (KVBatchMeta) ends, by key: its own notes, the reward's outcome."""
    keys = real_keys(batch)
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=_NOTED)
    return {key: _notes(key, *row) for key, *row in zip(keys, *(unwrap(data[field]) for field in _NOTED), strict=True)}


def _notes(key: str, extra: dict, reward_model: dict, source: str, index: int) -> dict:
    uid, sample = key.split("_")[:2]
    outcome = extra["reward_extra_info"]
    return (
        from_wire(extra["trajectory"])
        | {name: _plain(value) for name, value in outcome.items() if name not in _OUTCOME}
        | {"uid": uid, "sample": int(sample), "index": int(index), "data_source": str(source)}
        | ({"stages": json.loads(extra["stages"])} if "stages" in extra else {})
        | ({"resent": list(extra["resent"])} if "resent" in extra else {})
        | {"acc": float(outcome["acc"]), "pred": str(outcome["pred"])}
        | {"ground_truth": str(reward_model["ground_truth"])}
    )


def read_batch(batch, step: int, notes: Mapping[str, dict]) -> StepBatch:
    """What the update of `batch` (KVBatchMeta) is going to read, after the advantages are computed.

    Records hold the trajectory's `notes` (read_notes), its score, and the trainer's columns.
    """
    keys = real_keys(batch)
    places = {key: place for place, key in enumerate(batch.keys)}
    select = ["rm_scores", *_COLUMNS.values()]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=select)
    present = set(data.keys())
    found = {name: _flat(data[field]) for name, field in _COLUMNS.items() if field in present}
    lengths = _lengths(data["responses"])
    columns = Columns(offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), **found)
    records = []
    for row, (key, scores) in enumerate(zip(keys, data["rm_scores"].unbind(), strict=True)):
        own = columns.row(row)
        records.append(
            notes[key]
            # Which mini-batch a trajectory falls into: a replay of the step needs it. The score is not the outcome's: a
            # recipe may have given the group another reward.
            | {"step": step, "place": places[key], "score": float(scores.sum())}
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
    """All rows, one behind the other, of a column that is nested or, where all rows are equally long, is not."""
    return (column.values() if column.is_nested else column.flatten()).numpy()


def _lengths(column: torch.Tensor) -> np.ndarray:
    return column.offsets().diff().numpy() if column.is_nested else np.full(*column.shape)


def _plain(value):
    """A reward's own figure as JSON can hold it."""
    return value.item() if hasattr(value, "item") else value
