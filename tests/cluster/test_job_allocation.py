"""What a job makes of its allocation: nodes and GPUs, rollout engines' own, deadlines and ports by their number."""

import socket
from dataclasses import replace

import pytest

from retool_mcore.cluster import job, node_check
from retool_mcore.cluster.job import Allocation, configure, read_allocation
from retool_mcore.cluster.node import NODE_PORTS
from retool_mcore.errors import UserError

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

ONE = Allocation(7, 0, ("n1",), 8)
TWO = Allocation(7, 1, ("n1", "n2"), 8)


def test_outside_slurm_it_says_how_to_submit():
    with pytest.raises(UserError, match="retool submit"):
        read_allocation({})


def test_the_allocation_begins_with_this_node(program):
    program("scontrol", "echo n1; echo n2; echo n3")
    env = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n2", "SLURM_RESTART_COUNT": "3"}
    log = {"SLURM_SUBMIT_DIR": "/home/me", "SLURM_JOB_NAME": "retool-rl"}
    found = read_allocation(env | log)
    assert found == Allocation(12, 3, ("n2", "n1", "n3"), None, "/home/me/slurm-12-retool-rl.out")
    program("nvidia-smi", "for i in 1 2; do echo H100, 580.1, 81559, 0; done")
    assert read_allocation(env).gpus_per_node == 2  # where Slurm counts none
    assert read_allocation(env | {"SLURM_GPUS_ON_NODE": "4"}).gpus_per_node == 4


def test_a_scontrol_that_fails_is_quoted(program):
    program("scontrol", "echo no controller >&2; exit 1")
    with pytest.raises(UserError, match="no controller"):
        read_allocation({"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1"})


def test_the_configuration_takes_the_nodes_and_gpus_of_the_job():
    layout = configure("rl", ["parallel=1gpu"], TWO).parallel
    assert (layout.nodes, layout.gpus_per_node) == (2, 8)


def test_processes_on_cpu_nodes_are_not_counted_by_their_gpus():
    layout = configure("rl", ["parallel=cpu-tp2"], ONE).parallel
    assert (layout.nodes, layout.gpus_per_node) == (1, 2)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [("parallel.nodes=4", "parallel.nodes=4, but the job has 2"), ("parallel.gpus_per_node=4", "but the job has 8")],
)
def test_a_layout_that_the_job_cannot_hold_is_refused(override, sentence):
    with pytest.raises(UserError, match=sentence):
        configure("rl", ["parallel=1gpu", override], TWO)


def test_rollout_engines_have_nodes_of_their_own():
    three = Allocation(7, 0, ("n1", "n2", "n3"), 8)
    layout = configure("rl", ["parallel=1gpu", "pipeline=async"], three).parallel
    assert (layout.nodes, layout.gpus_per_node) == (2, 8)
    layout = configure("rl", ["parallel=1gpu", "pipeline=async", "pipeline.rollout_nodes=2"], three).parallel
    assert layout.nodes == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("pipeline.rollout_nodes=2", "has 2 node.s. for rollouts besides the trainer's, but the job has 2 in all"),
        ("parallel.nodes=2", "parallel.nodes=2, but the job has 1: "),
        (
            "pipeline.rollout_gpus=16",
            "pipeline.rollout_gpus=16 on each of 1 node.s., but a job's nodes have .*=8: lower",
        ),
    ],
)
def test_a_job_without_room_for_rollout_engines_is_refused(words, sentence):
    with pytest.raises(UserError, match=sentence):
        configure("rl", ["parallel=1gpu", "pipeline=async", words], TWO)


def test_a_jobs_rollout_engines_are_not_looked_for_on_loopback(monkeypatch):
    """The trainer may have one node, and the engines are on another all the same."""
    config = configure("rl", ["parallel=1gpu", "pipeline=async"], TWO)
    for name in ("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(job.RAY_CLUSTERS, "1")
    assert config.parallel.nodes == 1 and "VLLM_HOST_IP" not in job.stage_env(config)
    config.pipeline.hybrid = True
    assert job.stage_env(config)["VLLM_HOST_IP"] == "127.0.0.1"


@pytest.mark.parametrize(("nodes", "ray_s", "look_s"), [(2, 188, 124), (32, 308, 184), (128, 692, 376)])
def test_deadlines_grow_with_the_nodes(nodes, ray_s, look_s, monkeypatch, tmp_path):
    names = [f"n{number}" for number in range(nodes)]
    config = configure("rl", ["parallel=1gpu", f"runs_dir={tmp_path}"], Allocation(7, 0, tuple(names), 8))
    monkeypatch.delenv("RETOOL_RAY_DEADLINE_S", raising=False)
    monkeypatch.setattr(job, "ray_cluster", lambda given, resources, **more: (given, more["deadline_s"]))
    found = job.start_ray(config, Allocation(7, 0, tuple(names), 8), None, "10.0.0.1", 12_000, [0] * nodes)
    assert found == (tuple(names), ray_s)
    asked = []
    monkeypatch.setattr(node_check, "gather", lambda *given: asked.append(given[3]) or [])
    monkeypatch.setattr(node_check, "refusal", lambda found: "nobody answers")
    with pytest.raises(UserError, match="nobody answers"):
        node_check.check_nodes(names, config, tmp_path / "c.yaml")
    assert asked == [look_s]


def test_a_listener_in_the_way_moves_the_ports_of_32_nodes():
    """They are one machine's block; where one of them is taken on the first node, the next place is tried."""
    allocation = Allocation(7, 0, tuple(f"n{number}" for number in range(32)), 8)
    base = job.choose_port(allocation, [0] * 32)
    with socket.socket() as server:
        server.bind(("", base + 50))
        server.listen()
        moved = job.choose_port(allocation, [0] * 32)
    assert moved >= base + NODE_PORTS and moved + NODE_PORTS < 32_768
    assert job.choose_port(replace(allocation, restart=1), [0] * 32) != base  # another start looks elsewhere


def test_gpus_are_asked_for_on_a_job_without_any():
    with pytest.raises(UserError, match="--gpus-per-node"):
        configure("sft", ["parallel=1gpu"], Allocation(7, 0, ("n1",), None))


def test_evaluation_is_refused_on_two_nodes():
    with pytest.raises(UserError, match="--nodes=1"):
        configure("eval", ["parallel=cpu-tp2"], TWO)
