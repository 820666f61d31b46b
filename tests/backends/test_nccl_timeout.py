"""NCCL's time-out is the configuration's, of every process group, for SFT's and RL's engines."""

from datetime import timedelta

import pytest
import torch
from megatron.core import parallel_state
from verl.workers.engine.megatron import MegatronEngineWithLMHead

from retool_mcore.backends.env import NCCL_TIMEOUT_S, stage_env, worker_env
from retool_mcore.backends.megatron import engine


@pytest.mark.parametrize(("cuda", "seconds", "expected"), [(True, "840.0", 14), (True, None, 0), (False, "840.0", 0)])
def test_all_groups_get_it_once_they_are_made(cuda, seconds, expected, monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(MegatronEngineWithLMHead, "initialize", lambda self: done.append("made"))
    monkeypatch.setattr(parallel_state, "update_pg_timeout", done.append)
    monkeypatch.delenv(NCCL_TIMEOUT_S, raising=False)
    if seconds:
        monkeypatch.setenv(NCCL_TIMEOUT_S, seconds)
    policy = object.__new__(engine.Engine)
    policy.peft_cls = policy.optimizer = None
    policy.initialize()
    assert done == ["made"] + [timedelta(minutes=expected)] * (expected > 0)


def test_the_key_reaches_the_ranks_of_all_nodes(monkeypatch):
    monkeypatch.delenv(NCCL_TIMEOUT_S, raising=False)
    gpu = {"parallel": {"device": "cuda", "nodes": 2, "nccl_timeout_minutes": 45.0}}
    env = stage_env(gpu)
    assert env[NCCL_TIMEOUT_S] == "2700.0" == worker_env(env)[NCCL_TIMEOUT_S]
    assert NCCL_TIMEOUT_S not in stage_env({"parallel": {"device": "cuda", "nccl_timeout_minutes": None}})
    assert NCCL_TIMEOUT_S not in stage_env({"parallel": {"device": "cpu", "nccl_timeout_minutes": 45.0}})
