"""The all-reduce check: its plan and verdicts as functions, and real gloo ranks that pass, are slow, or hang."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from retool_mcore.cluster import nccl_check


def layout(**changes):
    return {"parallel": {"device": "cuda", "nodes": 2, "gpus_per_node": 8, "min_bus_bandwidth_gbs": None} | changes}


def test_the_command_of_a_node():
    command = nccl_check.nccl_command(layout(), address="10.0.0.1", port=29500)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert {"--nnodes=2", "--nproc_per_node=8", "--rdzv_endpoint=10.0.0.1:29500"} < set(command)
    assert json.loads(command[-1]) == {"device": "cuda", "deadline_s": nccl_check.DEADLINE_S, "floor_gbs": None}
    floor = nccl_check.nccl_command(layout(min_bus_bandwidth_gbs=40), address="n1", port=1)
    assert json.loads(floor[-1])["floor_gbs"] == 40


def test_bus_bandwidth_is_that_of_nccl_tests(monkeypatch):
    # 8 ranks, 4 MiB in 10 ms: 0.42 GB/s of the algorithm, times 2 * 7 / 8.
    monkeypatch.setattr(dist, "get_rank", lambda group: 35)
    monkeypatch.setattr(dist, "all_reduce", lambda message, group: None)
    monkeypatch.setattr(nccl_check.time, "perf_counter", iter([0.0, 0.01 * nccl_check.REPEATS]).__next__)
    found = nccl_check.measure(None, 8, "cpu")  # 1 + ... + 8 = 36, which the message holds already
    assert found == pytest.approx(2 * 7 / 8 * 4 * 2**20 / 0.01 / 1e9)
    with pytest.raises(ValueError, match="1048576 of 1048576 sums are wrong"):
        nccl_check.measure(None, 9, "cpu")


def test_every_node_every_neighbour_and_all():
    assert nccl_check.phases(["a", "b", "c", "d"], 2) == [
        ("inside a", [0, 1]),
        ("inside b", [2, 3]),
        ("inside c", [4, 5]),
        ("inside d", [6, 7]),
        ("between a and b", [0, 2]),
        ("between c and d", [4, 6]),
        ("between b and c", [2, 4]),
        ("all nodes together", list(range(8))),
    ]
    assert [words for words, _ in nccl_check.phases(["a"], 8)] == ["inside a", "all nodes together"]
    assert [words for words, _ in nccl_check.phases(["a", "b"], 1)] == ["between a and b", "all nodes together"]
    assert nccl_check.phases(["a"], 1) == []


@pytest.mark.parametrize("nodes", range(1, 9))
@pytest.mark.parametrize("per_node", [1, 2])
def test_the_order_of_phases_cannot_deadlock(nodes, per_node):
    plan = nccl_check.phases([f"n{i}" for i in range(nodes)], per_node)
    todo = [[words for words, ranks in plan if rank in ranks] for rank in range(nodes * per_node)]
    done = 0
    while any(todo):
        ready = [(words, ranks) for words, ranks in plan if all(todo[r][:1] == [words] for r in ranks)]
        assert ready
        for _, ranks in ready:
            for rank in ranks:
                todo[rank].pop(0)
            done += 1
    assert done == len(plan)


def test_the_floor_names_the_slowest_of_each_kind():
    measured = {
        "inside a": 400.0,
        "inside b": 90.0,
        "between a and b": 45.0,
        "between b and c": 3.0,
        "all nodes together": 5.0,
    }
    message = nccl_check.verdict(measured, 40.0)
    assert "5.00 GB/s, below parallel.min_bus_bandwidth_gbs=40" in message
    assert "slowest between b and c, 3.00 GB/s" in message and "slowest inside b, 90.00 GB/s" in message
    assert message.endswith("or give a lower one with parallel.min_bus_bandwidth_gbs=GBS (null: report only).")
    assert nccl_check.verdict(measured, 5.0) == "" and nccl_check.verdict(measured, None) == ""
    assert nccl_check.verdict({}, 5.0) == ""  # one device: nothing to measure


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# A rank whose device accepts work and never finishes it; its process lives on.
STUCK = """
import json, sys, time
from retool_mcore.cluster import nccl_check
nccl_check.measure = lambda *_: time.sleep(600)
sys.exit(nccl_check.run(**json.loads(sys.argv[1])))
"""


def start_rank(rank, port, deadline_s=100, floor_gbs=None, stuck=False):
    """One of two ranks, each a node of its own."""
    variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": port, "SLURMD_NODENAME": f"n{rank + 1}", "OMP_NUM_THREADS": 1}
    env = os.environ | {name: str(value) for name, value in variables.items()}
    program = ["-c", STUCK] if stuck else ["-m", "retool_mcore.cluster.nccl_check"]
    given = {"device": "cpu", "deadline_s": deadline_s, "floor_gbs": floor_gbs}
    return subprocess.Popen(
        [sys.executable, *program, json.dumps(given)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes):
    try:
        return [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.e2e
def test_two_processes_of_one_node_add_up():
    config = layout(device="cpu", nodes=1, gpus_per_node=2)
    command = nccl_check.nccl_command(config, address="127.0.0.1", port=free_port())
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, env=os.environ | {"SLURMD_NODENAME": "n1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inside n1: " in done.stdout and "all nodes together: " in done.stdout and "GB/s" in done.stdout


@pytest.mark.e2e
def test_a_slow_link_between_two_nodes_is_refused_by_name():
    port = free_port()
    processes = [start_rank(rank, port, floor_gbs=1e6) for rank in (0, 1)]
    output, _ = finish(processes)
    assert "slowest between n1 and n2" in output, output
    assert processes[0].returncode == 1


@pytest.mark.e2e
def test_a_rank_that_hangs_is_named_at_the_deadline():
    port = free_port()
    first = start_rank(0, port, 25)
    other = start_rank(1, port, 25, stuck=True)
    output = "".join(finish([first, other]))
    assert first.returncode == other.returncode == 1
    assert re.search("no end after 25 s: rank (0 on n1|1 on n2) is stuck: between n1 and n2", output), output
    assert "Traceback" not in output, output


@pytest.mark.e2e
def test_a_rank_that_nobody_meets_says_so():
    port = free_port()
    alone = start_rank(0, port, 15)
    output = finish([alone])[0]
    assert alone.returncode == 1
    assert f"rank 0 on n1 did not meet the others at 127.0.0.1:{port}" in output, output


@pytest.mark.parametrize(
    ("lines", "code", "unfit"),
    [
        (["nccl_check: inside n1: 400 GB/s"], 0, None),
        (["nccl_check: no end after 120 s: rank 9 on n2 is stuck: inside n2"], 1, ["n2"]),
        (["nccl_check: between n1 and n2: 3 of 9 sums are wrong on rank 8 (n2): exclude the node"], 1, ["n1", "n2"]),
        (["nccl_check: inside n11: 9 of 9 sums are wrong on rank 80 (n11): exclude the node"], 1, []),
        (["srun: error: Unable to create step"], 1, []),
    ],
)
def test_the_nodes_of_the_first_complaint_are_handed_on(capfd, lines, code, unfit):
    printed = "; ".join(f"echo {shlex.quote(line)}" for line in lines)
    srun = lambda options, command: ["sh", "-c", f"{printed}; exit {code}"]  # noqa: E731
    found = nccl_check.unfit_nodes(layout(nodes=2), srun, ["n1", "n2"], address="10.0.0.1", port=1)
    assert found == unfit and capfd.readouterr().out.splitlines() == lines


def test_a_step_that_slurm_does_not_start_is_ended_in_the_end(monkeypatch):
    monkeypatch.setattr(nccl_check, "JOIN_TIMEOUT_S", 0.2)
    monkeypatch.setattr(nccl_check, "KILL_S", 0.2)
    deaf = "trap '' TERM; while :; do sleep 0.05; done"  # as an srun that waits for a step to be created
    start = time.monotonic()
    found = nccl_check.unfit_nodes(
        layout(nodes=2), lambda *_: ["bash", "-c", deaf], ["n1", "n2"], address="10.0.0.1", port=1, deadline_s=0.2
    )
    assert found == [] and time.monotonic() - start < 60
