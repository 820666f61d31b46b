"""A step's figures are those of verl's functions, under the same names and to the last bit."""

import math

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import metric_utils
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.v1.utils import MetricsAggregator
from verl.utils.debug.metrics import calculate_debug_metrics

from retool_mcore.metrics import step as ours


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value or (math.isnan(value) and math.isnan(found[name])), (name, found[name], value)


def columns(seed=0, rows=6, longest=8):
    made = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (rows,), generator=made)
    lengths[0] = longest
    inside = torch.arange(longest) < lengths[:, None]
    mask = ((torch.rand(rows, longest, generator=made) < 0.7) & inside).to(torch.int8)
    values = [torch.randn(rows, longest, generator=made) * inside for _ in range(4)]
    return lengths, mask, values


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("scale", [None, 160.0])
def test_aggregation(mode, scale):
    _, mask, (values, *_) = columns()
    mask[2] = 0
    theirs = agg_loss(loss_mat=values, loss_mask=mask, loss_agg_mode=mode, loss_scale_factor=scale)
    assert ours.aggregated(values, mask, mode, scale) == theirs


@pytest.mark.parametrize("some", [True, False])
def test_probability_differences(some):
    _, mask, (old, rollout, *_) = columns()
    tensors = {"old_log_probs": -old.abs(), "rollout_log_probs": -rollout.abs(), "response_mask": mask * some}
    expected = calculate_debug_metrics(DataProto(batch=TensorDict(tensors | {"responses": mask}, batch_size=len(mask))))
    same(ours.probability_differences(-old.abs(), -rollout.abs(), mask * some), expected)


@pytest.mark.parametrize("critic", [True, False])
@pytest.mark.parametrize("some", [True, False])
def test_data_timing_and_throughput(critic, some):
    lengths, mask, (advantages, returns, values, _) = columns()
    mask = mask * some
    rewards, prompts, turns = torch.randn(len(mask)), np.array([3, 5, 5, 4, 1, 2]), np.array([1, 3, 1, 5, 3, 1])
    tokens = torch.zeros(mask.shape)
    tokens[torch.arange(len(mask)), lengths - 1] = rewards
    tensors = {
        "token_level_scores": tokens, "token_level_rewards": tokens, "advantages": advantages, "returns": returns,
        "values": values, "response_mask": mask, "responses": mask, "prompts": torch.zeros(len(mask), prompts.max()),
        "prompt_length": torch.tensor(prompts).float(), "response_length": lengths.float(),
    }  # fmt: skip
    data = DataProto(batch=TensorDict(tensors, batch_size=len(mask)))
    data.non_tensor_batch["__num_turns__"] = turns.astype(np.int32)
    data.meta_info["global_token_num"] = (torch.tensor(prompts) + lengths).tolist()
    expected = metric_utils.compute_data_metrics(batch=data, use_critic=critic)
    expected |= {f"training/num_turns/{name}": getattr(turns, name)() for name in ("mean", "max", "min")}
    found = ours.data_metrics(
        rewards, advantages, returns, mask, prompts, lengths.numpy(), turns, values if critic else None
    )  # fmt: skip
    same(found, expected)
    timing = {"gen": 3.0, "adv": 0.5, "update_actor": 2.0, "step": 7.0, "testing": 1.0}
    expected = metric_utils.compute_timing_metrics(batch=data, timing_raw=timing)
    expected |= metric_utils.compute_throughout_metrics(batch=data, timing_raw=timing, n_gpus=3)
    same(ours.timing_metrics(timing, int(prompts.sum()), int(lengths.sum()), 3), expected)


def test_staleness_counts_the_updates_since_a_trajectorys_first_and_last_token():
    found = ours.staleness_metrics(5, first=np.array([2, 4]), last=np.array([3, 4]))
    assert found["training/off_policy/trajectory_spans/max"] == 2
    assert found["training/off_policy/trajectory_staleness/mean"] == 0.5
    assert found["training/off_policy/trajectory_staleness_worst/max"] == 2


def test_a_steps_total_of_several_updates():
    parts = [
        (
            {
                "actor/lr": 0.1,
                "x/max": 1,
                "x/min": 1,
                "timing_s/gen": 1.0,
                "loss": 1.0,
                "global_seqlen/minmax_diff": 9,
                "global_seqlen/max": 9,
                "global_seqlen/min": 1,
            },
            1,
        ),
        ({"actor/lr": 0.2, "x/max": 3, "x/min": 0, "timing_s/gen": 2.0, "loss": 4.0, "perf/total_tokens": 7}, 2),
    ]
    theirs, total = MetricsAggregator(), ours.Total()
    for metrics, samples in parts:
        theirs.add_step_metrics(metrics, sample_count=samples)
        total.add(metrics, samples)
    same(total.result(), theirs.get_aggregated_metrics())
    assert total.result()["loss"] == 3.0
