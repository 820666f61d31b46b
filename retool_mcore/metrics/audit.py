"""The mask audit: whether the loss of a batch receives the policy's tokens, all of them, and nothing else.

Two sources are compared that share no code after the sampling: the batch's columns, which went from the episode through
filters, corrections and advantages, and the records, whose spans the episode noted turn by turn. All of it is
arithmetic on flat arrays: no loop over tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# Turns with a curve of their own; later ones share the last.
TURN_CURVES = 16
# What each response token is, (tokens,) int8, written from the spans for the audit of the loss itself.
INTERPRETER, POLICY, PREDICTED = 0, 1, 2  # PREDICTED: an observation that the recipe wants in the loss


@dataclass(frozen=True)
class Columns:
    """Columns that the update reads, rows of all trajectories one after the other; `tokens` values each unless None.

    offsets (rows + 1,) int64: row i is [offsets[i], offsets[i + 1]). response_ids int; response_mask and loss_mask,
    bool or int (loss_mask is verl's count of tokens in the loss); advantages, is_weights, rollout_log_probs,
    old_log_probs float32. trainer_log_probs float32: the trainer's own, where the loss takes the rollout engine's as
    old_log_probs (correction=bypass).
    """

    offsets: np.ndarray
    response_ids: np.ndarray
    response_mask: np.ndarray
    advantages: np.ndarray
    old_log_probs: np.ndarray
    loss_mask: np.ndarray | None = None
    is_weights: np.ndarray | None = None
    rollout_log_probs: np.ndarray | None = None
    trainer_log_probs: np.ndarray | None = None

    def row(self, row: int) -> dict[str, np.ndarray]:
        """The columns of one trajectory."""
        cut = slice(self.offsets[row], self.offsets[row + 1])
        return {name: value[cut] for name, value in vars(self).items() if name != "offsets" and value is not None}


@dataclass(frozen=True)
class Fault:
    """The first thing that is wrong with a batch: `what`, in words; its row; the first bad token of the response."""

    what: str
    row: int
    token: int


@dataclass(frozen=True)
class NotFinite:
    """Values of one column that are NaN or infinite at policy tokens in the loss: how many rows hold some, the first
    row, its first such token of the response, and what to look at."""

    column: str
    rows: int
    row: int
    token: int
    look_at: str


class MaskAuditError(Exception):
    """The loss would receive, or has received, something else than the policy's tokens; training must not go on."""

    def __init__(self, what: str, key: str, token: int, where: str = "before the update") -> None:
        super().__init__(what, key, token, where)  # all of them, so that the error survives its way out of a worker
        self.what, self.key, self.token, self.where = what, key, token, where

    def __str__(self) -> str:
        bad = f"{self.what}, trajectory {self.key}, response token {self.token}"
        return f"The mask audit stops the run {self.where}: {bad}."


def span_mask(columns: Columns, records: Sequence[Mapping]) -> tuple[np.ndarray, np.ndarray] | Fault:
    """(whether the policy sampled it, its policy turn) of every token by the records' spans: (tokens,) bool and int32.

    An observation has the number of the turn before it. The fault, when spans do not partition their row.
    """
    spans = [(row, s["kind"] == "policy", s["start"], s["end"]) for row, r in enumerate(records) for s in r["spans"]]
    rows, policy, starts, ends = np.array(spans, np.int64).reshape(-1, 4).T
    lengths = np.diff(columns.offsets)
    first_of_row = np.searchsorted(rows, np.arange(len(records)))
    expected = np.roll(ends, 1)
    expected[first_of_row[np.bincount(rows, minlength=len(records)) > 0]] = 0
    for span in np.flatnonzero((starts != expected) | (ends < starts))[:1]:
        return Fault("its spans do not follow one another", int(rows[span]), int(min(starts[span], expected[span])))
    covered = np.bincount(rows, weights=ends - starts, minlength=len(records)).astype(np.int64)
    recorded = np.array([len(record["response_ids"]) for record in records])
    for row in np.flatnonzero((covered != lengths) | (recorded != lengths))[:1]:
        what = f"it has {recorded[row]} tokens, its spans cover {covered[row]}, the batch holds {lengths[row]} of it"
        return Fault(what, int(row), int(min(covered[row], recorded[row], lengths[row])))
    turn = np.cumsum(policy) - 1
    turn -= np.concatenate([[0], np.cumsum(policy)])[first_of_row][rows]
    return np.repeat(policy.astype(bool), ends - starts), np.repeat(turn.astype(np.int32), ends - starts)


def audit(
    columns: Columns, records: Sequence[Mapping], spans: tuple[np.ndarray, np.ndarray] | Fault | None = None
) -> tuple[dict[str, float], Fault | None]:
    """(metrics, the first fault) of a batch; records (rollout.packed.unpack) stand in the order of the rows.

    spans: `span_mask` of the two, where the caller has it already.

    A fault is anything that makes training wrong: an interpreter token with a mask that is not 0 in the loss,
    or token ids or log-probabilities of the batch that are not those that the rollout recorded. A value that is not
    finite is no fault of the mask: `not_finite` names it. Metrics:

        audit/interpreter_tokens, audit/policy_tokens     by the spans
        audit/weighted_interpreter_tokens   of them, those that the loss counts: response_mask or loss_mask is not 0
        audit/masked_policy_tokens          policy tokens with mask 0: dropped by a filter or the rollout correction
        audit/weightless_policy_tokens      policy tokens with mask 1 whose advantage x importance weight is 0
        audit/interpreter_tokens_with_advantage   which the mask has to keep out of the loss; 0 with group-relative ones
        audit/not_finite_tokens             policy tokens in the loss with a NaN or infinite advantage, weight or
                                            log-probability
        audit/misaligned_tokens, audit/misaligned_log_probs   values that are not the record's
        audit/broken_log_probs              policy tokens with a NaN or infinite log-probability on either side
        mismatch/mean, mismatch/max         |log p of the trainer - log p of the rollout engine| over policy tokens
        mismatch/kl                         mean of exp(d) - 1 - d, d that difference: Schulman's k3 (2020)
        mismatch/turn_NN/mean, /max         by policy turn, so that an error that grows along a trajectory shows
    """
    spans = span_mask(columns, records) if spans is None else spans
    if isinstance(spans, Fault):
        return {}, spans
    policy, turn = spans
    weighted = columns.response_mask != 0
    counted = weighted if columns.loss_mask is None else weighted | (columns.loss_mask != 0)
    weight = columns.advantages if columns.is_weights is None else columns.advantages * columns.is_weights
    leaked = ~policy & counted
    recorded = np.concatenate([record["response_ids"] for record in records])
    other_token = columns.response_ids != recorded
    metrics = {
        "interpreter_tokens": np.count_nonzero(~policy),
        "policy_tokens": np.count_nonzero(policy),
        "weighted_interpreter_tokens": np.count_nonzero(leaked),
        "masked_policy_tokens": np.count_nonzero(policy & ~weighted),
        "weightless_policy_tokens": np.count_nonzero(policy & weighted & (weight == 0)),
        "interpreter_tokens_with_advantage": np.count_nonzero(
            ~policy & (columns.advantages != 0) & np.isfinite(columns.advantages)
        ),
        "not_finite_tokens": np.count_nonzero(np.any([bad for _, bad in _not_finite(columns, policy)], axis=0)),
        "misaligned_tokens": np.count_nonzero(other_token),
    }
    faults = [(leaked, "an interpreter token has weight in the loss"), (other_token, "a token is not the sampled one")]
    mismatch = {}
    if columns.rollout_log_probs is not None and all(len(record["logprobs"]) for record in records if record["spans"]):
        recorded = np.concatenate([record["logprobs"] for record in records])
        here = columns.rollout_log_probs
        other = (here != recorded) & ~(np.isnan(here) & np.isnan(recorded))
        metrics["misaligned_log_probs"] = np.count_nonzero(other)
        faults.append((other, "a log-probability is not the one that the rollout engine gave"))
        own = columns.old_log_probs if columns.trainer_log_probs is None else columns.trainer_log_probs
        with np.errstate(invalid="ignore"):  # infinity less infinity is counted as broken below
            difference = own[policy] - here[policy]
        whole = np.isfinite(difference)
        metrics["broken_log_probs"] = len(whole) - np.count_nonzero(whole)
        mismatch = _mismatch(difference[whole], turn[policy][whole])
    metrics = {f"audit/{name}": float(value) for name, value in metrics.items()} | mismatch
    for bad, what in faults:
        if bad.any():
            position = int(np.argmax(bad))
            row = int(np.searchsorted(columns.offsets, position, side="right")) - 1
            return metrics, Fault(what, row, position - int(columns.offsets[row]))
    return metrics, None


LOOK_AT = {
    "rollout_log_probs": "the rollout engine computed them: look at its dtype, quantisation and sampling settings",
    "old_log_probs": "the trainer computed them: look at its weights, that is at the steps before this one",
    "is_weights": "the correction computed them from the log-probabilities of both sides: look at those (mismatch/)",
    "advantages": "they follow from rewards, the critic's values and the KL penalty: look at those",
}


def not_finite(columns: Columns, records: Sequence[Mapping], policy: np.ndarray) -> NotFinite | None:
    """The first column, in the order in which they follow from one another, with a value that is not finite at a policy
    token in the loss. policy (tokens,) bool: `span_mask`'s."""
    for name, bad in _not_finite(columns, policy):
        if not bad.any():
            continue
        position = int(np.argmax(bad))
        rows = np.unique(np.searchsorted(columns.offsets, np.flatnonzero(bad), side="right") - 1)
        look_at = LOOK_AT[name]
        wrong = [record["score"] for record in records if not math.isfinite(record.get("score", 0.0))]
        if name == "advantages" and wrong:
            look_at = f"{len(wrong)} rewards of the batch are not finite, the first is {wrong[0]}: look at the reward"
        return NotFinite(name, len(rows), int(rows[0]), position - int(columns.offsets[rows[0]]), look_at)
    return None


def _not_finite(columns: Columns, policy: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """(column, which tokens of the policy in the loss it breaks) of every column that the loss reads."""
    read = policy & (columns.response_mask != 0)
    arrays = ((name, getattr(columns, name)) for name in LOOK_AT)
    return [(name, read & ~np.isfinite(values)) for name, values in arrays if values is not None]


def _mismatch(difference: np.ndarray, turn: np.ndarray) -> dict[str, float]:
    if not len(difference):
        return {}
    size = np.abs(difference)
    with np.errstate(over="ignore"):  # a broken engine's difference of thousands: infinity is the right answer
        kl = float(np.mean(np.expm1(difference) - difference))
    metrics = {"mismatch/mean": float(size.mean()), "mismatch/max": float(size.max()), "mismatch/kl": kl}
    turn = np.minimum(turn, TURN_CURVES - 1)
    counts, sums = np.bincount(turn), np.bincount(turn, weights=size)
    highest = np.zeros(len(counts), size.dtype)
    np.maximum.at(highest, turn, size)
    for number in np.flatnonzero(counts):
        metrics[f"mismatch/turn_{number:02d}/mean"] = float(sums[number] / counts[number])
        metrics[f"mismatch/turn_{number:02d}/max"] = float(highest[number])
    return metrics


def span_kinds(policy: np.ndarray, predicted: bool) -> np.ndarray:
    """(tokens,) int8 of `span_mask`'s first array: POLICY, else INTERPRETER, or PREDICTED if those are `predicted`."""
    return np.where(policy, POLICY, PREDICTED if predicted else INTERPRETER).astype(np.int8)
