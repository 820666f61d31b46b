"""A run of an earlier release, whose files hold the names that our modules had, is gone on with and replayed."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from test_architecture import resolves

from retool_mcore.backends.verl.settings import verl_config
from retool_mcore.backends.verl.take_over import PolicyIdentity
from retool_mcore.config import compose, config_hash
from retool_mcore.config.moved import MOVED, to_new, to_old

OLD = json.loads(Path(__file__).with_name("recorded_names.json").read_text())


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return compose("rl", ["name=t", f"runs_dir={tmp_path_factory.mktemp('runs')}"])


def test_names_of_a_recorded_run_lead_somewhere_and_back():
    for old in OLD["names"]:
        assert resolves(to_new(old)) and to_old(to_new(old)) == old
    assert {to_old(new) for new in MOVED.values()} == MOVED.keys()


def test_what_an_earlier_release_completed_is_complete(config):
    text = OmegaConf.to_yaml(config, sort_keys=True)
    assert to_old(text) != text and "retool_mcore.algo.losses" in to_old(text)
    assert config_hash(config) == config_hash(OmegaConf.create(to_old(text)))


def test_trajectories_of_an_interrupted_step_of_an_earlier_release_are_taken_over(config, tmp_path):
    verl = verl_config(config, tmp_path)
    loop = Path(verl.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    policy = PolicyIdentity(verl, 0).settings
    assert to_old(loop.read_text()) != loop.read_text()
    loop.write_text(to_old(loop.read_text()))
    assert PolicyIdentity(OmegaConf.create(to_old(OmegaConf.to_yaml(verl))), 0).settings == policy
