"""The samples of a rollout: trajectories with their rewards, in groups of one prompt."""

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from retool_mcore.rollout.failures import GroupFailed
from retool_mcore.rollout.trajectory import Trajectory

ARRAYS = {"prompt_ids": np.int32, "response_ids": np.int32, "response_mask": np.int8, "log_probs": np.float32}

_NOTES = {f.name for f in fields(Trajectory)} - {"prompt_ids", "response_ids", "response_mask", "logprobs"}
# A record holds them next to the notes and the outcome.
_PLACE = {"uid", "sample", "index", "data_source", "ground_truth", "step", "place", "mini_batch", "stages", "resent"}
_COLUMNS = {"prompt_ids", "response_ids", "response_mask", "logprobs", "old_log_probs", "advantages", "is_weights"}


@dataclass
class Sample:
    """One trajectory and its reward.

    Args:
        group: the uid of its group; `number` counts the group's samples from 0.
        prompt_ids: (prompt tokens,) int32; response_ids: (response tokens,) int32, observations included.
        response_mask: (response tokens,) int8, 1 where the policy wrote the token.
        log_probs: (response tokens,) float32, by the rollout engine, 0 on observations; empty where it gives none.
        outcome: what the reward function returned: score, acc, pred, overlong, drop, graded_by.
        score_s: seconds that it waited for its reward.
        notes: the trajectory's record (rollout/trajectory.py) without these arrays.
        finish: why it ended, SANDBOX where the sandbox itself failed.
        versions: the first and the last version of the weights that wrote it.
        resent: tokens that later turns sent again, and those of them that the engine's cache had lost.
        stages: where the environment has stages, the spans of their passage.
        experts: (prompt and response tokens, layers, chosen experts) int16, where the rollout engine records them; 0 on
            tokens that it has not read.
        segments: where an agent forked or rewrote its conversation, the episode's further trajectories, which share
            this one's outcome (gateway/segments.py).
    """

    group: str
    number: int
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    response_mask: np.ndarray
    log_probs: np.ndarray
    notes: dict
    finish: str
    turns: int
    versions: tuple[int, int]
    resent: tuple[int, int] = (0, 0)
    stages: list | None = None
    outcome: dict = field(default_factory=dict)
    score_s: float = 0.0
    experts: np.ndarray | None = None
    segments: list["Sample"] = field(default_factory=list)

    def __post_init__(self):
        for name, dtype in ARRAYS.items():
            setattr(self, name, np.asarray(getattr(self, name), dtype))

    @property
    def reward(self) -> float:
        return float(self.outcome["score"])

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def trajectories(self) -> list["Sample"]:
        """The episode's trajectories, this one first, each with this one's outcome."""
        for segment in self.segments:
            segment.outcome = self.outcome
        return [self, *self.segments]

    def kept(self) -> dict[str, Any]:
        """Return the state that a restart needs (rollout/unfinished.py), for JSON: arrays are base64 of their bytes."""
        left = (*ARRAYS, "group", "number", "experts", "segments")
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left}
        plain["segments"] = [segment.kept() for segment in self.segments]
        return plain | {name: base64.b64encode(getattr(self, name).tobytes()).decode() for name in ARRAYS}

    @classmethod
    def of_kept(cls, group: str, number: int, kept: Mapping[str, Any]) -> "Sample":
        """Restore the sample from its `kept` state. Its stages ran in another attempt, not in this one."""
        arrays = {name: np.frombuffer(base64.b64decode(kept[name]), dtype) for name, dtype in ARRAYS.items()}
        notes = kept["notes"] | {"taken_over": True}
        pairs = {name: tuple(kept[name]) for name in ("versions", "resent")}
        segments = [cls.of_kept(group, number, one) for one in kept.get("segments", ())]
        changed = pairs | {"notes": notes, "stages": None, "segments": segments}
        return cls(group, number, **(dict(kept) | arrays | changed))

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Sample":
        """The sample that a step's record (metrics/records.py) is of, as it was before any filter: the mask is that of
        the spans."""
        mask = np.zeros(len(record["response_ids"]), np.int8)
        for span in record["spans"]:
            mask[span["start"] : span["end"]] = span["kind"] == "policy"
        notes = {name: record[name] for name in _NOTES if name in record}
        written = [part["version"] for part in record.get("versions") or ()]
        return cls(
            group=record["uid"],
            number=record["sample"],
            prompt_ids=record["prompt_ids"],
            response_ids=record["response_ids"],
            response_mask=mask,
            log_probs=record["logprobs"],
            notes=notes | {"started": time.time(), "taken_over": False},
            finish=record["finish"],
            turns=1 + len(record["spans"]),
            versions=(min(written, default=record["step"] - 1), max(written, default=record["step"] - 1)),
            resent=tuple(record.get("resent", (0, 0))),
            outcome={name: value for name, value in record.items() if name not in _NOTES | _PLACE | _COLUMNS},
        )


@dataclass
class Group:
    """All samples of one prompt.

    uid: unique in the run, in the order in which groups were asked for; row: of the data set; step: the one that asked
    for it, whose number seeds its requests. `error`: why there are no samples.
    """

    uid: str
    row: dict
    step: int
    samples: list[Sample] = field(default_factory=list)
    error: GroupFailed | None = None
