"""The batch of an update: samples in the order in which it reads them, and flat columns of one value a token."""

from dataclasses import dataclass, field

import numpy as np
import torch

from retool_mcore.metrics.audit import Columns
from retool_mcore.metrics.step import sequence_balance
from retool_mcore.recipes.mini_batches import Cut, Layout, laid_out, partitions
from retool_mcore.rollout.samples import Group, Sample

_TOLD = ("score", "acc", "pred")  # of an outcome, which a record has under names of its own
_RECORDED = ("response_mask", "old_log_probs", "advantages", "is_weights")


@dataclass
class Batch:
    """`rows`: the data set's row of each sample. `rewards`: (samples,) float32.

    columns: (tokens,) tensors, the responses of all samples one behind the other. `response_mask` int8: what the loss
    counts, in its denominator too. `rollout_log_probs` float32; as the step goes `old_log_probs`, `entropy`,
    `trainer_log_probs`, `ref_log_prob`, `values`, `advantages`, `returns`, `is_weights` float32 and `span_kind` int8.

    experts: for router replay, of each sample (prompt and response tokens, layers, chosen experts) int16: which experts
    read each token, in the rollout engine (R3) or in the pass for old_log_probs (R2). None without replay.

    An episode of an agent may be several rows, one behind the other, which share its reward; layout: how its
    mini-batches are then filled. None where each episode is one row.
    """

    samples: list[Sample]
    rows: list[dict]
    rewards: torch.Tensor
    columns: dict[str, torch.Tensor] = field(default_factory=dict)
    experts: list[torch.Tensor] | None = None
    layout: Layout | None = None

    @classmethod
    def of(cls, pairs: list[tuple[Sample, dict]]) -> "Batch":
        """The batch of (sample, its row of the data set), in this order."""
        samples, rows = [sample for sample, _ in pairs], [row for _, row in pairs]
        batch = cls(samples, rows, torch.tensor([sample.reward for sample in samples], dtype=torch.float32))
        mask = torch.from_numpy(np.concatenate([sample.response_mask for sample in samples]))
        batch.columns = {"response_mask": mask}
        if all(len(sample.log_probs) for sample in samples):
            log_probs = np.concatenate([sample.log_probs for sample in samples])
            batch.columns["rollout_log_probs"] = torch.from_numpy(log_probs)
        chosen = [sample.experts for sample in samples if sample.experts is not None]
        if len(chosen) == len(samples):
            batch.experts = [torch.from_numpy(one) for one in chosen]
        return batch

    @classmethod
    def join(cls, parts: list["Batch"]) -> "Batch":
        """Join several batches into one, with the columns that all have."""
        names = set.intersection(*(set(part.columns) for part in parts))
        return cls(
            [sample for part in parts for sample in part.samples],
            [row for part in parts for row in part.rows],
            torch.cat([part.rewards for part in parts]),
            {name: torch.cat([part.columns[name] for part in parts]) for name in names},
        )

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def groups(self) -> list[str]:
        """The group of each sample."""
        return [sample.group for sample in self.samples]

    @property
    def firsts(self) -> list[int]:
        """The first row of each episode."""
        return [row for row, first in enumerate(self.first_of_row) if row == first]

    @property
    def first_of_row(self) -> list[int]:
        """Of each row the first row of its episode."""
        rows: list[int] = []
        for row, sample in enumerate(self.samples):
            rows.append(rows[-1] if sample.notes.get("segment", 0) > 0 else row)
        return rows

    @property
    def lengths(self) -> np.ndarray:
        """(samples,) int64, tokens of each response."""
        return np.array([len(sample.response_ids) for sample in self.samples], np.int64)

    @property
    def prompt_lengths(self) -> np.ndarray:
        """(samples,) int64."""
        return np.array([len(sample.prompt_ids) for sample in self.samples], np.int64)

    @property
    def drops(self) -> list[str]:
        """Which filter leaves each sample out of the loss, "" for none."""
        return [str(sample.outcome["drop"]) for sample in self.samples]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> torch.Tensor:
        """The column, (tokens,)."""
        return self.columns[name]

    def __setitem__(self, name: str, column: torch.Tensor) -> None:
        self.columns[name] = column

    def padded(self, name: str) -> torch.Tensor:
        """The column as (samples, longest response), 0 behind each response."""
        rows = self.columns[name].split(self.lengths.tolist())
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def flat(self, padded: torch.Tensor) -> torch.Tensor:
        """(samples, longest response) as a column."""
        inside = torch.arange(padded.shape[1]) < torch.from_numpy(self.lengths)[:, None]
        return padded[inside]

    def of_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """(samples,) as a column: each sample's value on all of its tokens."""
        return values.repeat_interleave(torch.from_numpy(self.lengths))

    def for_audit(self) -> Columns:
        """The columns as the audit reads them (metrics/audit.py)."""
        names = ("response_mask", "advantages", "rollout_log_probs", "old_log_probs", "is_weights", "trainer_log_probs")
        return Columns(
            offsets=np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64),
            response_ids=np.concatenate([sample.response_ids for sample in self.samples]),
            **{name: self.columns[name].numpy() for name in names if name in self.columns},
        )

    def records(self, step: int, columns: Columns) -> list[dict]:
        """Return the records that are kept of each trajectory (metrics/records.py), in the batch's order."""
        return [self._record(place, step, columns) for place in range(len(self))]

    def _record(self, place: int, step: int, columns: Columns) -> dict:
        sample, row, outcome = self.samples[place], self.rows[place], self.samples[place].outcome
        known = columns.row(place)
        return (
            sample.notes
            | {"prompt_ids": sample.prompt_ids, "response_ids": sample.response_ids, "logprobs": sample.log_probs}
            | {name: _plain(value) for name, value in outcome.items() if name not in _TOLD}
            | {"uid": sample.group, "sample": sample.number}
            | {"index": int(row["index"]), "data_source": str(row["data_source"])}
            | ({"stages": sample.stages} if sample.stages is not None else {})
            | {"resent": list(sample.resent), "acc": float(outcome["acc"]), "pred": str(outcome["pred"])}
            | {"ground_truth": str(row["reward_model"]["ground_truth"])}
            | {"step": step, "place": place, "score": float(self.rewards[place])}
            | {name: known[name] for name in _RECORDED if name in known}
        )


def shuffled(groups: list[Group], cut: Cut, seed: int, step: int) -> tuple[Batch, dict[str, float]]:
    """The samples of `groups` in mini-batches that are drawn at random and balanced over the ranks; metrics of that.

    The draw depends on the seed, the step and the samples alone, so an attempt at the same step makes the same batch;
    a mini-batch says nothing about when its samples ended, or how long they are.
    """
    pairs = sorted(
        ((sample, group.row) for group in groups for sample in group.samples),
        key=lambda pair: (str(pair[1]["data_source"]), int(pair[1]["index"]), pair[0].group, pair[0].number),
    )
    lengths = [sum(one.length for one in sample.trajectories) for sample, _ in pairs]
    parts = partitions(drawn(lengths, seed, step), lengths, cut)
    ordered = [pairs[episode] for part in parts for episode in part]
    batch = Batch.of([(one, row) for sample, row in ordered for one in sample.trajectories])
    batch.layout = laid_out(parts, [len(sample.trajectories) for sample, _ in pairs], cut)
    return batch, sequence_balance(lengths, parts)


def drawn(lengths: list[int], seed: int, step: int) -> list[int]:
    """Return a random order of a step's samples, which have these lengths."""
    return np.random.default_rng((seed, step)).permutation(len(lengths)).tolist()


def _plain(value):
    """A reward's own figure as JSON can hold it."""
    return value.item() if hasattr(value, "item") else value
