"""Group rewards, left-out samples and observation weights, as they arrive in the batch that an update reads."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.metrics.step import Total
from retool_mcore.recipes.fewest_calls import FewestCalls
from retool_mcore.rollout.samples import Sample
from retool_mcore.train import rl
from retool_mcore.train.batch import Batch

MASKS = {"a0": [1, 0, 1], "a1": [1, 1], "b0": [1, 0, 0, 1], "b1": [1]}


def fill(accs=(1, 1, 1, 0), calls=(3, 1, 2, 0), drops=("", "", "", ""), overlong=0.0) -> Batch:
    """Two prompts of two trajectories each, with advantages of 0.5 on their masks."""
    pairs = []
    for (name, mask), acc, count, drop in zip(MASKS.items(), accs, calls, drops, strict=True):
        outcome = {"score": 0.0, "acc": float(acc), "overlong": overlong, "drop": drop}
        row = {"data_source": "arithmetic", "index": 7 if name[0] == "a" else 8}
        ids, notes = np.arange(len(mask)), {"calls": [{}] * count}
        sample = Sample(name[0], int(name[1]), [1], ids, mask, [], notes, "answer", 1, (0, 0), outcome=outcome)
        pairs.append((sample, row))
    batch = Batch.of(pairs)
    batch["advantages"] = batch["response_mask"] * 0.5
    return batch


def recipe_of(name, **changes):
    recipe = compose("rl", [f"recipe={name}", "rollout.max_turns=4"]).recipe
    return OmegaConf.to_container(OmegaConf.merge(recipe, changes))


def rows(batch, name):
    return dict(zip(MASKS, (part.tolist() for part in batch[name].split(batch.lengths.tolist())), strict=True))


def test_otc_rewards_come_from_the_group_and_remember_earlier_epochs(tmp_path):
    group_reward, file = recipe_of("otc")["group_reward"], tmp_path / "fewest_calls.jsonl"
    memory = FewestCalls(file, first_step=1)
    batch = fill(overlong=-0.25)
    rl.reward_groups(batch, group_reward, memory, step=1)
    half_root = math.sqrt(0.5)
    # m=3, n=1; the fewest; the only right answer is the fewest; wrong.
    assert batch.rewards.tolist() == pytest.approx([half_root - 0.25, 1 - 0.25, 1 - 0.25, -0.25])
    metrics = rl.leave_out_samples(batch, {"samples": []})
    assert metrics["reward/tool_productivity"] == 3 / 6

    # The next epoch: prompt 7 was answered with one call before, so m=3 is still punished although it is the least now.
    batch = fill(accs=(1, 0, 1, 1), calls=(3, 1, 0, 2))
    rl.reward_groups(batch, group_reward, memory, step=2)
    assert batch.rewards[0] == pytest.approx(half_root)
    assert batch.rewards[3] == pytest.approx(math.cos(2 * math.pi / 8))  # n=0, m=2, c=4

    # A run that is resumed at step 2 sees what step 2 saw.
    batch = fill(accs=(0, 0, 1, 0), calls=(3, 1, 2, 0))
    rl.reward_groups(batch, group_reward, FewestCalls(file, first_step=2), step=2)
    assert batch.rewards[2] == 1.0


def test_left_out_samples_leave_the_mask_and_are_counted():
    batch = fill(drops=("", "repetition", "overlong_wrong", ""))
    metrics = rl.leave_out_samples(batch, recipe_of("zerotir")["filters"])
    kept = {name: mask if name in ("a0", "b1") else [0] * len(mask) for name, mask in MASKS.items()}
    assert rows(batch, "response_mask") == kept
    counts = {name.rsplit("/", 1)[1]: value for name, value in metrics.items() if name.startswith("filters/samples/")}
    assert counts == {"overlong_wrong": 1, "repetition": 1, "faked_output": 0, "kept": 2}


def test_observations_of_kept_samples_carry_alpha():
    batch, recipe = fill(drops=("", "", "void_turn", "")), recipe_of("simpletir", observation_weight=0.1)
    rl.leave_out_samples(batch, recipe["filters"])
    batch["advantages"] = batch["response_mask"] * 0.5
    rl.weigh_observations(batch, recipe)
    written = rows(batch, "advantages")
    assert written["a0"] == pytest.approx([0.5, 0.1, 0.5])
    assert written["a1"] == [0.5, 0.5] and written["b0"] == [0, 0, 0, 0]


def test_whitened_advantages_are_nothing_outside_the_mask():
    """GAE's are not zero there, and our loss would read them as weights of observations."""
    batch, recipe = fill(drops=("", "", "repetition", "")), recipe_of("zerotir", advantage="gae")
    rl.leave_out_samples(batch, recipe["filters"])
    batch["advantages"] = torch.full((10,), 0.5)
    rl.weigh_observations(batch, recipe)
    assert rows(batch, "advantages") == {"a0": [0.5, 0, 0.5], "a1": [0.5, 0.5], "b0": [0] * 4, "b1": [0.5]}


def test_a_plain_recipe_leaves_mask_and_advantages_as_they_are():
    batch, recipe = fill(), recipe_of("retool")
    before = rows(batch, "advantages")
    assert rl.leave_out_samples(batch, recipe["filters"])["filters/samples/kept"] == 4
    rl.weigh_observations(batch, recipe)
    assert rows(batch, "response_mask") == MASKS and rows(batch, "advantages") == before


def test_the_memory_survives_a_kill_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "fewest.jsonl"
    memory = FewestCalls(path, first_step=1)
    memory.update(1, {"a": 3, "b": None})
    memory.update(2, {"a": 3, "b": 2})
    memory.update(3, {"a": 1})
    with path.open("a") as file:
        file.write('{"step": 3, "prom')
    again = FewestCalls(path, first_step=3)
    assert (again.get("a"), again.get("b"), again.get("c")) == (3, 2, None)
    again.update(3, {"c": 0})
    assert FewestCalls(path, first_step=9).get("c") == 0


def test_counts_of_a_step_are_summed_over_its_parts_and_the_others_are_means():
    total = Total()
    parts = [("filters/groups/all_equal", 3, 1), ("filters/samples/kept", 8, 6), ("audit/policy_tokens", 5, 7)]
    parts += [("sandbox/error_share", 0.5, 1), ("actor/entropy", 1.0, 2.0)]
    for part in (0, 1):
        total.add({name: values[part] for name, *values in parts}, 4)
    assert total.result() == {
        "filters/groups/all_equal": 4,
        "filters/samples/kept": 14,
        "audit/policy_tokens": 12,
        "sandbox/error_share": 1,
        "actor/entropy": 1.5,
    }


def test_a_weight_of_the_correction_reaches_what_it_was_computed_of():
    """In a batch of responses of different lengths, none of which is padded on its way."""
    batch = fill()
    drift = torch.tensor([0.0, 0.0, 0.1, 0.2, 0.3, -0.1, 0.0, 0.0, 0.4, 0.5])
    batch["rollout_log_probs"] = -torch.ones(10)
    batch["old_log_probs"] = batch["rollout_log_probs"] + drift
    correction = SimpleNamespace(rollout_is="token", rollout_is_threshold=2.0, rollout_rs=None)
    rl.correct_mismatch(batch, vars(correction) | {"rollout_rs_threshold": None})
    policy = batch["response_mask"] == 1
    assert torch.allclose(batch["is_weights"][policy], drift[policy].exp())
