"""The audit of a batch's columns against what the rollout recorded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.metrics.audit import TURN_CURVES, Columns, Fault, audit, not_finite, span_mask

TURNS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=5)


def batch_of(trajectories, seed=0) -> tuple[Columns, list[dict]]:
    """A sound batch: a trajectory is a list of (policy tokens, observation tokens), the last observation left out."""
    rng = np.random.default_rng(seed)
    records, masks = [], []
    for turns in trajectories:
        spans, mask = [], []
        for number, (sampled, observed) in enumerate(turns):
            kinds = [("policy", sampled)] + [("observation", observed)] * (number < len(turns) - 1)
            for kind, length in kinds:
                spans.append({"kind": kind, "start": len(mask), "end": len(mask) + length})
                mask += [int(kind == "policy")] * length
        ids = rng.integers(0, 1000, len(mask)).astype(np.int32)
        logprobs = -rng.random(len(mask)).astype(np.float32) * mask
        records.append({"response_ids": ids, "logprobs": logprobs.astype(np.float32), "spans": spans})
        masks.append(np.array(mask))
    mask = np.concatenate(masks)
    logprobs = np.concatenate([record["logprobs"] for record in records])
    columns = Columns(
        offsets=np.concatenate([[0], np.cumsum([len(own) for own in masks])]),
        response_ids=np.concatenate([record["response_ids"] for record in records]).astype(np.int64),
        response_mask=mask,
        loss_mask=mask.copy(),
        advantages=np.where(mask, 0.5, 0.0).astype(np.float32),
        is_weights=mask.astype(np.float32),
        rollout_log_probs=logprobs.copy(),
        old_log_probs=logprobs + np.float32(0.25) * mask,
    )
    return columns, records


def changed(columns: Columns, name: str, change) -> Columns:
    values = dict(vars(columns))
    values[name] = values[name].copy()
    change(values[name])
    return Columns(**values)


TWO = [[(3, 2), (2, 1), (4, 9)], [(2, 3), (1, 9)]]  # 12 tokens, then 6; observations at 3, 4, 7 and at 14, 15, 16


def test_a_sound_batch():
    columns, records = batch_of(TWO)
    metrics, fault = audit(columns, records)
    assert fault is None
    assert metrics["audit/interpreter_tokens"] == 6 and metrics["audit/policy_tokens"] == 12
    wrong = ("weighted_interpreter_tokens", "masked_policy_tokens", "weightless_policy_tokens", "misaligned_tokens")
    wrong += ("misaligned_log_probs", "broken_log_probs", "interpreter_tokens_with_advantage")
    assert all(metrics[f"audit/{name}"] == 0 for name in wrong)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trajectories=st.lists(TURNS, min_size=1, max_size=4), shift=st.sampled_from([-2, -1, 1, 2]))
def test_a_shifted_mask_is_found_at_its_first_token(trajectories, shift):
    columns, records = batch_of(trajectories)
    original, offsets = columns.response_mask, columns.offsets
    rows = [np.roll(original[a:b], shift) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]
    wrong = changed(columns, "response_mask", lambda mask: np.copyto(mask, np.concatenate(rows)))
    bad = [i for i in range(len(original)) if wrong.response_mask[i] and not original[i]]
    metrics, fault = audit(wrong, records)
    assert metrics["audit/weighted_interpreter_tokens"] == len(bad)
    if bad:
        row = max(number for number, start in enumerate(offsets[:-1]) if start <= bad[0])
        assert fault == Fault("an interpreter token has weight in the loss", row, bad[0] - offsets[row])
    else:
        assert fault is None


def test_the_token_count_of_the_loss_is_a_weight_too():
    columns, records = batch_of(TWO)
    _, fault = audit(changed(columns, "loss_mask", lambda mask: mask.__setitem__(15, 1)), records)
    assert (fault.row, fault.token) == (1, 3)


def test_what_the_loss_leaves_out_is_counted():
    columns, records = batch_of(TWO)
    dropped = changed(columns, "response_mask", lambda mask: mask.__setitem__(slice(12, 18), 0))
    dropped = changed(dropped, "is_weights", lambda weights: weights.__setitem__(slice(0, 2), 0))
    metrics, fault = audit(changed(dropped, "advantages", lambda a: a.__setitem__(3, 7.0)), records)
    assert fault is None
    assert metrics["audit/masked_policy_tokens"] == 3
    assert metrics["audit/weightless_policy_tokens"] == 2
    assert metrics["audit/interpreter_tokens_with_advantage"] == 1


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("response_ids", "a token is not the sampled one"),
        ("rollout_log_probs", "a log-probability is not the one that the rollout engine gave"),
    ],
)
def test_what_is_not_the_rollouts_is_a_fault(column, what):
    columns, records = batch_of(TWO)
    wrong = changed(columns, column, lambda values: np.copyto(values[12:], np.roll(values[12:], 1)))
    assert audit(wrong, records)[1] == Fault(what, 1, 0)
    swapped, _ = audit(columns, records[::-1])
    assert not swapped  # rows of other lengths


def test_spans_must_partition_the_row():
    columns, records = batch_of(TWO)
    for change, row, token in (
        (lambda spans: spans.pop(), 1, 5),
        (lambda spans: spans.pop(1), 1, 2),
        (lambda spans: spans[0].update(start=1), 1, 0),
        (lambda spans: spans.clear(), 1, 0),
    ):
        _, broken = batch_of(TWO)
        change(broken[1]["spans"])
        metrics, fault = audit(columns, broken)
        assert not metrics and (fault.row, fault.token) == (row, token)


def test_turns_are_counted_per_trajectory():
    columns, records = batch_of(TWO)
    policy, turn = span_mask(columns, records)
    assert policy.tolist() == [bool(bit) for bit in columns.response_mask]
    assert turn.tolist() == [0] * 5 + [1] * 3 + [2] * 4 + [0] * 5 + [1]


def test_mismatch_by_turn():
    columns, records = batch_of(TWO)
    worse = changed(columns, "old_log_probs", lambda values: values.__setitem__(11, values[11] + 0.75))
    metrics, _ = audit(worse, records)
    assert metrics["mismatch/mean"] == pytest.approx((11 * 0.25 + 1.0) / 12)
    assert metrics["mismatch/max"] == metrics["mismatch/turn_02/max"] == pytest.approx(1.0)
    assert metrics["mismatch/turn_00/max"] == pytest.approx(0.25)
    assert metrics["mismatch/turn_02/mean"] == pytest.approx((3 * 0.25 + 1.0) / 4)
    assert metrics["mismatch/kl"] == pytest.approx((11 * (np.exp(0.25) - 1.25) + np.e - 2) / 12)


def test_many_turns_share_the_last_curve_and_a_nan_is_no_mean():
    columns, records = batch_of([[(1, 1)] * (TURN_CURVES + 3)])
    metrics, fault = audit(changed(columns, "old_log_probs", lambda v: v.__setitem__(0, np.nan)), records)
    curves = [name for name in metrics if name.endswith("/mean") and "turn" in name]
    assert fault is None and len(curves) == TURN_CURVES - 1 and "mismatch/turn_00/mean" not in metrics
    assert metrics["audit/broken_log_probs"] == 1
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("column", "look_at"),
    [
        ("rollout_log_probs", "the rollout engine computed them"),
        ("old_log_probs", "the trainer computed them"),
        ("is_weights", "the correction computed them"),
        ("advantages", "they follow from rewards"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named_and_is_no_fault_of_the_mask(column, look_at, value):
    """A whole trajectory of it, its observations included, as a NaN of a group's reward makes it."""
    columns, records = batch_of(TWO)
    wrong = changed(columns, column, lambda values: values.__setitem__(slice(12, 18), value))
    if column == "rollout_log_probs":
        records[1]["logprobs"] = wrong.rollout_log_probs[12:]
    metrics, fault = audit(wrong, records)
    assert fault is None and metrics["audit/interpreter_tokens_with_advantage"] == 0
    assert metrics["audit/not_finite_tokens"] == 3
    found = not_finite(wrong, records, span_mask(wrong, records)[0])
    assert (found.column, found.rows, found.row, found.token) == (column, 1, 1, 0) and look_at in found.look_at
    assert not_finite(columns, records, span_mask(columns, records)[0]) is None


def test_a_reward_that_is_not_finite_is_named_as_the_cause():
    columns, records = batch_of(TWO)
    wrong = changed(columns, "advantages", lambda values: np.copyto(values, np.nan))
    records = [record | {"score": score} for record, score in zip(records, (0.5, np.nan), strict=True)]
    found = not_finite(wrong, records, span_mask(wrong, records)[0])
    assert found.rows == 2 and "1 rewards of the batch are not finite, the first is nan" in found.look_at


def test_a_nan_does_not_hide_a_fault_of_the_mask():
    columns, records = batch_of(TWO)
    wrong = changed(columns, "advantages", lambda values: np.copyto(values, np.nan))
    _, fault = audit(changed(wrong, "response_mask", lambda mask: mask.__setitem__(3, 1)), records)
    assert fault == Fault("an interpreter token has weight in the loss", 0, 3)


def test_the_mismatch_is_the_trainers_own_where_the_loss_takes_the_engines():
    columns, records = batch_of(TWO)
    bypassed = Columns(
        **vars(columns)
        | {"old_log_probs": columns.rollout_log_probs.copy(), "trainer_log_probs": columns.old_log_probs.copy()}
    )
    assert audit(bypassed, records) == audit(columns, records)


def test_without_the_engines_log_probabilities_the_rest_is_audited():
    columns, records = batch_of(TWO)
    columns = Columns(**vars(columns) | {"rollout_log_probs": None, "is_weights": None, "loss_mask": None})
    metrics, fault = audit(columns, [record | {"logprobs": np.empty(0, np.float32)} for record in records])
    assert fault is None and "mismatch/mean" not in metrics and metrics["audit/policy_tokens"] == 12
