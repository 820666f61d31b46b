"""Which policy an attempt is at, and what it finds of an earlier attempt at the same."""

import pickle

import numpy as np
import pytest
from omegaconf import OmegaConf

from retool_mcore.backends.verl.settings import verl_config
from retool_mcore.config import compose
from retool_mcore.state.policy_identity import IDENTITY, PolicyIdentity

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """The configuration of `retool rl`, composed once."""
    runs = tmp_path_factory.mktemp("runs")
    (runs / "t" / "rl").mkdir(parents=True)
    return pickle.dumps(verl_config(compose("rl", ["name=t", f"runs_dir={runs}"]), runs / "t" / "rl"))


@pytest.fixture
def configured(composed, tmp_path):
    """That of a run in tmp_path with other values; those under `episode` are its episodes'."""
    (tmp_path / "model.safetensors").write_text("weights")

    def configure(values=()):
        config = pickle.loads(composed)
        episode = OmegaConf.load(config.retool.episode)
        paths = {"actor_rollout_ref.model.path": str(tmp_path), "retool.stage_dir": str(tmp_path)}
        paths["trainer.default_local_dir"] = str(tmp_path / "checkpoints")
        paths["retool.episode"] = str(tmp_path / "episode")
        for name, value in (paths | dict(values)).items():
            OmegaConf.update(episode if name.startswith("episode.") else config, name.removeprefix("episode."), value)
        OmegaConf.save(episode, tmp_path / "episode")
        return config

    return configure


def record(index=1, sample=0, place=0, **changes):
    return {
        "index": index,
        "sample": sample,
        "place": place,
        "score": 0.5,
        "prompt_ids": np.array([1, 2], np.int32),
        "response_ids": np.array([3, 4], np.int32),
        "response_mask": np.array([True, False]),
        "logprobs": np.array([-0.5, -0.5], np.float32),
    } | changes


def after(config, *batches):
    identity = PolicyIdentity(config, 0)
    for batch in batches:
        identity.advance(batch)
    return identity.policy


def test_the_same_trajectories_make_the_same_policy(configured):
    first, second = [record(), record(sample=1, place=1)], [record(index=2)]
    expected = after(configured(), first, second)
    assert after(configured(), first, second) == expected
    noise = record(logprobs=np.zeros(2, np.float32), old_log_probs=np.ones(2, np.float32), uid="another")
    assert after(configured(), [noise, first[1]], second) == expected
    seen = {expected, after(configured()), after(configured(), second, first), after(configured(), first)}
    other = np.array([3, 5], np.int32)
    for change in ({"score": 0.25}, {"response_ids": other}, {"prompt_ids": other}, {"index": 7}, {"sample": 5}):
        seen.add(after(configured(), [first[0], first[1] | change], second))
    seen.add(after(configured(), [first[0], first[1] | {"response_mask": np.ones(2, bool)}], second))
    assert len(seen) == 10


def test_the_order_counts_where_it_makes_the_mini_batches(configured):
    batch = [record(), record(sample=1, place=1)]
    swapped = [record(place=1), record(sample=1, place=0)]
    one, several = configured({f"{ACTOR}.ppo_mini_batch_size": 16}), configured()
    assert after(one, batch) == after(one, swapped)
    assert after(several, batch) != after(several, swapped)
    assert after(several, batch) == after(several, batch[::-1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("episode.seed", 2),
        ("episode.limits.max_turns", 77),
        ("episode.sandbox.kind", "fusion"),
        (f"{ACTOR}.optim.lr", 0.7),
        (f"{ACTOR}.clip_ratio_high", 0.7),
        (f"{ACTOR}.policy_loss.loss_mode", "retool"),
        (f"{ROLLOUT}.n", 77),
        (f"{ROLLOUT}.temperature", 0.7),
        (f"{ROLLOUT}.response_length", 77),
        ("algorithm.gamma", 0.7),
        ("retool.recipe.filters.refill_limit", 77),
        ("data.train_batch_size", 77),
    ],
)
def test_other_settings_are_another_policy(configured, name, value):
    assert after(configured()) != after(configured({name: value}))


def test_another_layout_is_the_same_policy(configured):
    layout = {
        "episode.sandbox.workers": 77,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 77,
        f"{ACTOR}.megatron.tensor_model_parallel_size": 1,
        f"{ACTOR}.checkpoint.async_save": True,
        f"{ROLLOUT}.agent.num_workers": 77,
        f"{ROLLOUT}.gpu_memory_utilization": 0.1,
        "trainer.save_freq": 77,
        "trainer.n_gpus_per_node": 77,
    }
    assert after(configured()) == after(configured(layout))


def test_another_initial_model_at_the_same_place_is_another_policy(configured, tmp_path):
    before = after(configured())
    (tmp_path / "model.safetensors").write_text("Weights")
    assert after(configured()) != before


def test_a_resumed_attempt_goes_on_with_the_checkpoints_chain(configured, tmp_path):
    config = configured()
    first = PolicyIdentity(config, 0)
    first.advance([record()])
    folder = tmp_path / "checkpoints/global_step_1"
    folder.mkdir(parents=True)
    (folder / IDENTITY).write_text(first.link)
    first.advance([record(index=2)])

    resumed = PolicyIdentity(configured({f"{ROLLOUT}.agent.num_workers": 3}), 1)
    assert resumed.policy == after(config, [record()])
    resumed.advance([record(index=2)])
    assert resumed.policy == first.policy

    (folder / IDENTITY).unlink()  # a checkpoint from before there were any
    for _ in range(2):
        assert PolicyIdentity(config, 1).policy != after(config, [record()])


def test_what_a_step_was_trained_on_may_be_unknown(configured):
    config = configured()
    assert after(config, []) != after(config, [])
