"""What the environment of a stage says of the loggers, and whose processes are forked, and where they listen."""

import os
import subprocess
import sys

import pytest

from retool_mcore.backends.cpu import CPU_THREADS
from retool_mcore.backends.env import JOB_SECRET, ONE_NODE, forks, ray_runtime_env, stage_env, worker_env


def test_wandb_is_disabled_unless_it_is_a_logger(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = {"parallel": {"device": "cpu"}, "train": {"loggers": ["console"]}}
    assert stage_env(config)["WANDB_MODE"] == "disabled"
    assert "WANDB_MODE" not in stage_env(config | {"train": {"loggers": ["console", "wandb"]}})
    assert stage_env({"parallel": {"device": "cpu"}})["WANDB_MODE"] == "disabled"  # eval and export have none
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert stage_env(config)["WANDB_MODE"] == "offline"
    assert worker_env({"WANDB_MODE": "offline", "WANDB_DIR": "/x", "WANDB_API_KEY": "k"}) == {
        "WANDB_MODE": "offline",
        "WANDB_DIR": "/x",
    }


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cpu", {}, True),
        ("cpu", {"RETOOL_TEMPLATE": "off"}, False),
        ("cpu", {"OMP_NUM_THREADS": "2"}, False),
        ("cpu", {"RAY_ADDRESS": "somebody's:6379"}, False),
        ("cpu", {"RAY_ADDRESS": "the job's:6379", "RETOOL_TEMPLATE": "/tmp/template/socket"}, True),
        ("cuda", {}, False),
        ("cuda", {"RETOOL_TEMPLATE": "on"}, True),
    ],
)
def test_whose_processes_are_forked(monkeypatch, device, given, expected):
    for name in ("RETOOL_TEMPLATE", "RAY_ADDRESS", "VERL_PLATFORM", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    env = stage_env({"parallel": {"device": device}}) | given
    assert forks(env) is expected
    named = env | {"RETOOL_TEMPLATE": "/tmp/template/socket"}
    assert ("forked_python.py" in str(ray_runtime_env(named))) is (given.get("OMP_NUM_THREADS") is None)


@pytest.mark.parametrize(
    ("device", "eager", "expected"), [("cpu", True, "1"), ("cpu", False, None), ("cuda", True, None)]
)
def test_nothing_is_compiled_on_a_cpu_unless_the_engine_is_asked_to(monkeypatch, device, eager, expected):
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    found = stage_env({"parallel": {"device": device, "rollout": {"enforce_eager": eager}}})
    assert found.get("TORCH_COMPILE_DISABLE") == expected


def test_what_a_run_on_one_node_starts_listens_on_loopback(monkeypatch):
    for name in ONE_NODE:
        monkeypatch.delenv(name, raising=False)
    env = stage_env({"parallel": {"device": "cpu", "nodes": 1}})
    code = "import ray; print(ray.util.get_node_ip_address())"  # where Ray's parts listen, and who asks Ray
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["127.0.0.1"]
    assert ONE_NODE.keys().isdisjoint(stage_env({"parallel": {"device": "cpu", "nodes": 2}}))


def test_the_ray_of_every_stage_has_a_secret_of_its_own(monkeypatch):
    for name in (JOB_SECRET, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    config = {"parallel": {"device": "cpu", "nodes": 1}}
    one, other = stage_env(config), stage_env(config)
    assert one["RAY_AUTH_MODE"] == "token" and len(one[JOB_SECRET]) == 64
    assert one[JOB_SECRET] != other[JOB_SECRET]
    assert JOB_SECRET not in worker_env(one), "Ray writes its runtime environment into logs"
    monkeypatch.setenv("RAY_ADDRESS", "somebody's:6379")
    assert JOB_SECRET not in stage_env(config), "a Ray that somebody else has started has its own"


@pytest.mark.parametrize(
    ("parallel", "cores", "expected"),
    [
        ({"threads": 1, "gpus_per_node": 2}, 8, "1"),
        ({"threads": None, "gpus_per_node": 1}, 8, "8"),
        ({"threads": None, "gpus_per_node": 2}, 8, "4"),
        ({"threads": None, "gpus_per_node": 4}, 2, "1"),
        ({"threads": 3, "gpus_per_node": 1}, 8, "3"),
        ({}, 8, "1"),
    ],
)
def test_a_cpu_process_gets_its_layouts_threads_and_can_still_be_forked(monkeypatch, parallel, cores, expected):
    for name in ("OMP_NUM_THREADS", "RETOOL_TEMPLATE", "RAY_ADDRESS", "OMP_WAIT_POLICY", CPU_THREADS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("retool_mcore.resources.processors", lambda: cores)
    env = stage_env({"parallel": {"device": "cpu"} | parallel})
    assert (env[CPU_THREADS], env["OMP_WAIT_POLICY"]) == (expected, "passive")
    assert worker_env(env)[CPU_THREADS] == expected
    assert forks(env)
    assert CPU_THREADS not in stage_env({"parallel": {"device": "cuda"}})
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert CPU_THREADS not in stage_env({"parallel": {"device": "cpu"} | parallel}), "the user's number stays"


@pytest.mark.parametrize(("given", "expected"), [({CPU_THREADS: "2"}, 2), ({"OMP_NUM_THREADS": "1"}, 1)])
def test_a_trainer_takes_its_threads(given, expected):
    code = "from retool_mcore.backends.cpu import torch_cpu as t; t.install(); print(t.torch.get_num_threads())"
    env = {name: value for name, value in os.environ.items() if name not in (CPU_THREADS, "OMP_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=env | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(expected)]
