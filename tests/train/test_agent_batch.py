"""Several trajectories of one episode in a batch: layout, advantages once an episode, what is sent and comes back."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.protocol import BatchData
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.wire import of_responses, sent, whole
from retool_mcore.metrics.audit import INTERPRETER
from retool_mcore.metrics.gateway import gateway_metrics, main_records
from retool_mcore.recipes import advantages
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rollout.samples import Group, Sample
from retool_mcore.train.batch import shuffled
from retool_mcore.train.rl import estimate_advantages, leave_out_samples


def trajectory(group, number, segment, segments, tokens=3):
    notes = {"spans": [{"kind": "policy", "start": 0, "end": tokens}], "calls": [], "finish": "answer"}
    notes |= {"segment": segment, "segments": segments}
    ids = 100 * number + 10 * segment + np.arange(tokens)
    return Sample(group, number, [1, 2], ids, np.ones(tokens), -ids / 8, notes, "answer", 1, (0, 0))


def episode(group, number, segments, reward):
    made = [trajectory(group, number, segment, segments) for segment in range(segments)]
    made[0].segments = made[1:]
    made[0].outcome = {"score": reward, "acc": reward, "pred": "", "drop": "", "overlong": 0.0}
    return made[0]


def groups(counts, n=4):
    """counts: segments of each episode."""
    row = {"data_source": "made", "index": 0, "reward_model": {"ground_truth": "4"}}
    made = []
    for first in range(0, len(counts), n):
        uid = f"{first:03d}"
        samples = [episode(uid, number, counts[first + number], number / 8) for number in range(n)]
        made.append(Group(uid, row | {"index": first}, 1, samples))
    return made


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=16, max_size=16), st.sampled_from([1, 2]), st.sampled_from([4, 8, 16]))
def test_every_mini_batch_has_its_episodes_whole_and_all_ranks_the_same_number_of_rows(counts, ranks, size):
    cut = Cut(16, size, ranks)
    batch, _ = shuffled(groups(counts), cut, seed=1, step=1)
    names = [(sample.group, sample.number) for sample in batch.samples]
    assert len(batch) == sum(counts) and len(set(names)) == 16
    assert [names[row] for row in batch.firsts] == list(dict.fromkeys(names)), "an episode's rows follow each other"
    if max(counts) == 1:
        assert batch.layout is None
        return
    layout = batch.layout
    assert [place for place in layout.places if place >= 0] == list(range(len(batch)))
    assert len(layout.places) == layout.size * 16 // size and layout.size % ranks == 0
    share = len(layout.places) // ranks
    for number in range(16 // size):
        own = set()
        for rank in range(ranks):  # as a rank cuts its part of the batch
            part = layout.places[rank * share : (rank + 1) * share]
            own |= {row for row in part[number * layout.size // ranks :][: layout.size // ranks] if row >= 0}
        assert {layout.mini_batches[row] for row in own} == {number}
        assert len({names[row] for row in own}) == size, "as many episodes as train.mini_batch asks for"


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_an_episode_counts_once_in_its_group(name):
    recipe = {"advantage": name, "normalise_by_std": True}
    alone, _ = shuffled(groups([1] * 8), Cut(8, 8, 1), seed=1, step=1)
    forked, _ = shuffled(groups([1, 4, 2, 1, 3, 1, 1, 2]), Cut(8, 8, 1), seed=1, step=1)
    found = []
    for batch in (alone, forked):
        estimate_advantages(batch, recipe)
        rows = batch.padded("advantages")
        found.append({(s.group, s.number): rows[row] for row, s in enumerate(batch.samples)})
        for row, sample in enumerate(batch.samples):
            assert torch.equal(rows[row], rows[batch.first_of_row[row]]), f"segments of {sample.number} differ"
    if name != "reinforce_plus_plus_baseline":  # which whitens over all tokens
        for key, values in found[0].items():
            assert torch.equal(values, found[1][key])


def test_without_segments_advantages_are_bit_equal_to_those_without_episodes():
    rewards, groups_ = torch.rand(12), [number // 4 for number in range(12)]
    mask = torch.ones(12, 3)
    for by_std in (True, False):
        plain = advantages.grpo(rewards, mask, groups_, by_std=by_std)
        assert torch.equal(plain, advantages.grpo(rewards, mask, groups_, by_std=by_std, firsts=list(range(12))))


def test_rows_that_fill_a_mini_batch_are_masked_and_do_not_come_back():
    batch, _ = shuffled(groups([1, 3, 1, 1]), Cut(4, 2, 1), seed=1, step=1)
    batch["span_kind"] = batch["response_mask"].clone()
    batch["old_log_probs"] = torch.arange(18.0)
    data = sent(batch, ["response_mask", "old_log_probs", "span_kind"], temperature=1.0)
    assert len(data) == batch.layout.size * 2 == 8 and list(data["session_id"]).count(-1) == 2
    (part,) = BatchData(data).chunk(chunks=1)
    read = whole(part)
    for row, place in enumerate(data["session_id"].tolist()):
        ids = read["input_ids"].unbind()[row].tolist()
        if place < 0:
            assert ids == [0, 0] and read["response_mask"].unbind()[row].tolist() == [0]
            assert data["span_kind"].unbind()[row].tolist() == [INTERPRETER]
        else:
            assert ids == [1, 2, *batch.samples[place].response_ids.tolist()]
    # What an engine says of each token is the token before: its own id, here.
    output = torch.nested.as_nested_tensor([row.float() for row in read["input_ids"].unbind()], layout=torch.jagged)
    column = of_responses(tensordict_utils.get_tensordict({"log_probs": output}), "log_probs", batch)
    expected = np.concatenate([[2, *sample.response_ids[:-1]] for sample in batch.samples])
    assert column.tolist() == expected.tolist()


def test_what_a_filter_drops_is_dropped_in_all_segments():
    (group,) = groups([2, 1, 1, 1])
    group.samples[0].outcome["drop"] = "repetition"
    batch, _ = shuffled([group], Cut(4, 4, 1), seed=1, step=1)
    leave_out_samples(batch, {"samples": ["repetition"]})
    for row, sample in enumerate(batch.samples):
        assert batch.padded("response_mask")[row].any() == (sample.number != 0)


def test_a_kept_episode_has_its_segments():
    one = episode("a", 3, 3, 0.5)
    again = Sample.of_kept("a", 3, json.loads(json.dumps(one.kept(), default=lambda value: value.tolist())))
    assert len(again.trajectories) == 3 and [made.notes["segment"] for made in again.trajectories] == [0, 1, 2]
    for before, after in zip(one.trajectories, again.trajectories, strict=True):
        assert before.response_ids.tolist() == after.response_ids.tolist() and after.outcome == one.outcome
        assert after.notes["taken_over"]


def test_figures_count_episodes():
    gateway = {"requests": 4, "retries": 1, "lost": 0, "attempts": 1, "opened": {"edited": 2}, "refused": {}}
    records = [
        {"segment": 0, "segments": 3, "gateway": gateway},
        {"segment": 1, "segments": 3},
        {"segment": 2, "segments": 3},
        {"segment": 0, "segments": 1, "gateway": gateway | {"opened": {}, "refused": {"episode_over": 1}}},
    ]
    metrics = gateway_metrics(records)
    assert metrics["segments"] == 2 and metrics["opened/edited"] == 1 and metrics["refused/episode_over"] == 0.5
    assert metrics["requests"] == 4 and metrics["retries"] == 1 and metrics["attempts"] == 1
    assert len(main_records(records)) == 2 and main_records([{}]) == [{}] and gateway_metrics([{}]) == {}
