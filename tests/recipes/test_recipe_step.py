"""Group rewards, left-out samples and observation weights, as they arrive in the batch that verl trains on."""

import math
from types import SimpleNamespace

import pytest
import torch
from memory_queue import MemoryQueue
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.recipes import step
from retool_mcore.recipes.fewest_calls import FewestCalls

MASKS = {"a_0_0": [1, 0, 1], "a_1_0": [1, 1], "b_0_0": [1, 0, 0, 1], "b_1_0": [1]}


@pytest.fixture
def queue(monkeypatch):
    queue = MemoryQueue()
    monkeypatch.setattr(step.transfer_queue, "kv_batch_get", queue.kv_batch_get)
    monkeypatch.setattr(step.transfer_queue, "kv_batch_put", queue.kv_batch_put)
    return queue


def fill(queue, accs=(1, 1, 1, 0), calls=(3, 1, 2, 0), drops=("", "", "", ""), overlong=0.0):
    """Two prompts of two trajectories each, and a row of verl's padding that copies the first."""
    for (key, mask), acc, count, drop in zip(MASKS.items(), accs, calls, drops, strict=True):
        outcome = {"acc": float(acc), "overlong": overlong, "drop": drop}
        queue.rows[key] = {
            "extra_fields": {"reward_extra_info": outcome, "num_calls": count},
            "data_source": "arithmetic",
            "index": 7 if key.startswith("a") else 8,
            "response_mask": torch.tensor(mask),
            "loss_mask": torch.tensor(mask),
            "rm_scores": torch.zeros(len(mask)),
            "advantages": torch.tensor(mask) * 0.5,
        }
    queue.rows["pad_0_0"] = {**queue.rows["a_0_0"], "response_mask": torch.tensor([0]), "advantages": torch.zeros(1)}
    tags = [{"is_padding": key.startswith("pad")} for key in queue.rows]
    return SimpleNamespace(keys=list(queue.rows), tags=tags, partition_id="train")


def recipe_step(tmp_path, name, **changes):
    recipe = compose("rl", [f"recipe={name}", "rollout.max_turns=4"]).recipe
    return step.RecipeStep(OmegaConf.merge(recipe, changes), tmp_path)


def test_otc_rewards_come_from_the_group_and_remember_earlier_epochs(queue, tmp_path):
    batch = fill(queue, overlong=-0.25)
    otc = recipe_step(tmp_path, "otc")
    metrics = otc.before_advantages(batch, step=1)
    half_root = math.sqrt(0.5)
    scores = {key: queue.rows[key]["rm_scores"].tolist() for key in MASKS}
    assert scores["a_0_0"] == pytest.approx([0, 0, half_root - 0.25])  # m=3, n=1
    assert scores["a_1_0"] == pytest.approx([0, 1 - 0.25])
    assert scores["b_0_0"] == pytest.approx([0, 0, 0, 1 - 0.25])  # the only right answer is the fewest
    assert scores["b_1_0"] == [-0.25]
    assert queue.rows["pad_0_0"]["rm_scores"].tolist() == [0, 0, 0]
    assert metrics["reward/tool_productivity"] == 3 / 6

    # The next epoch: prompt 7 was answered with one call before, so m=3 is still punished although it is the least now.
    otc.before_advantages(fill(queue, accs=(1, 0, 1, 1), calls=(3, 1, 0, 2)), step=2)
    assert queue.rows["a_0_0"]["rm_scores"][-1] == pytest.approx(half_root)
    assert queue.rows["b_1_0"]["rm_scores"][-1] == pytest.approx(math.cos(2 * math.pi / 8))  # n=0, m=2, c=4

    # A run that is resumed at step 2 sees what step 2 saw.
    resumed = recipe_step(tmp_path, "otc")
    resumed.before_advantages(fill(queue, accs=(0, 0, 1, 0), calls=(3, 1, 2, 0)), step=2)
    assert queue.rows["b_0_0"]["rm_scores"][-1] == 1.0


def test_left_out_samples_leave_both_masks_and_are_counted(queue, tmp_path):
    batch = fill(queue, drops=("", "repetition", "overlong_wrong", ""))
    metrics = recipe_step(tmp_path, "zerotir").before_advantages(batch, step=1)
    for key, mask in MASKS.items():
        kept = mask if key in ("a_0_0", "b_1_0") else [0] * len(mask)
        assert queue.rows[key]["response_mask"].tolist() == queue.rows[key]["loss_mask"].tolist() == kept
    counts = {name.rsplit("/", 1)[1]: value for name, value in metrics.items() if name.startswith("filters/samples/")}
    assert counts == {"overlong_wrong": 1, "repetition": 1, "faked_output": 0, "kept": 2}


def test_observations_of_kept_samples_carry_alpha(queue, tmp_path):
    batch = fill(queue, drops=("", "", "void_turn", ""))
    world = recipe_step(tmp_path, "simpletir", observation_weight=0.1)
    world.before_advantages(batch, step=1)
    world.after_advantages(batch)
    written = {key: queue.rows[key]["advantages"].tolist() for key in (*MASKS, "pad_0_0")}
    assert written["a_0_0"] == pytest.approx([0.5, 0.1, 0.5])
    assert written["a_1_0"] == [0.5, 0.5] and written["b_0_0"] == [0.5, 0, 0, 0.5] and written["pad_0_0"] == [0]


def test_whitened_advantages_are_nothing_outside_the_mask(queue, tmp_path):
    # GAE's are not zero there, and our loss would read them as weights of observations.
    batch = fill(queue, drops=("", "", "repetition", ""))
    for row in queue.rows.values():
        row["advantages"] = torch.full_like(row["response_mask"], 0.5, dtype=torch.float32)
    ppo = recipe_step(tmp_path, "zerotir", advantage="gae")
    ppo.before_advantages(batch, step=1)
    ppo.after_advantages(batch)
    written = {key: queue.rows[key]["advantages"].tolist() for key in (*MASKS, "pad_0_0")}
    assert written == {"a_0_0": [0.5, 0, 0.5], "a_1_0": [0.5, 0.5], "b_0_0": [0] * 4, "b_1_0": [0.5], "pad_0_0": [0]}


def test_nothing_is_touched_without_need(queue, tmp_path):
    batch = fill(queue)
    before = {key: dict(row) for key, row in queue.rows.items()}
    plain = recipe_step(tmp_path, "retool")
    assert plain.before_advantages(batch, step=1)["filters/samples/kept"] == 4
    plain.after_advantages(batch)
    assert all(queue.rows[key][name] is value for key, row in before.items() for name, value in row.items())


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


def test_counts_of_a_step_are_summed_over_its_parts_and_means_are_left_to_verl():
    parts = [
        {
            "filters/groups/all_equal": 3,
            "filters/samples/kept": 8,
            "audit/policy_tokens": 5,
            "sandbox/error_share": 0.5,
        },
        {
            "filters/groups/all_equal": 1,
            "filters/samples/kept": 6,
            "audit/policy_tokens": 7,
            "sandbox/error_share": 1,
        },
    ]
    found = step.whole_step([part | {"actor/entropy": 1.0} for part in parts])
    assert found == {
        "filters/groups/all_equal": 4,
        "filters/samples/kept": 14,
        "audit/policy_tokens": 12,
        "sandbox/error_share": 1,
    }
