"""Ray across two nodes: the commands, the supervisor of a node, and (e2e) a real head with a real worker."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from retool_mcore.cluster import network
from retool_mcore.cluster.node import (
    MOST_LOG,
    NODE_PORTS,
    keep_logs,
    node_env,
    node_mark,
    ray_command,
    ray_folder,
    ray_ports,
    ray_service_ports,
    spill_folder,
)
from retool_mcore.cluster.ray_cluster import (
    ClusterFailed,
    RayCluster,
    await_nodes,
    ports_needed,
    ray_cluster,
)
from retool_mcore.runner import processes

PATIENCE_S = 60.0


def test_nodes_on_one_machine_share_no_port():
    taken = set()
    for index in range(4):
        ports = ray_ports(20_000, index, place=index)
        workers = set(range(ports.pop("min-worker-port"), ports.pop("max-worker-port") + 1))
        mine = workers | set(ports.values())
        assert len(mine) == len(workers) + len(ports) and len(workers) >= 500
        assert not mine & taken
        assert mine <= set(range(20_000, 20_000 + ports_needed(range(4))))
        taken |= mine


def test_a_thousand_nodes_need_the_ports_of_one():
    """1,024 machines need the ports of one; a test cluster's nodes on one machine each their own."""
    assert ports_needed([0] * 1024) == NODE_PORTS
    assert ray_ports(12_000, 1, 0) == ray_ports(12_000, 33, 0)
    assert len(ray_service_ports(12_000, [0] * 1024)) == 9  # the head's three among them
    assert ports_needed([0, 1]) == 2 * NODE_PORTS


def test_nodes_are_told_apart_by_their_addresses(monkeypatch):
    addresses = {"a": "10.9.0.1", "b": "10.9.0.2", "c": "10.9.0.2", "local": "127.0.0.1", "again": "127.0.1.1"}
    monkeypatch.setattr(network.socket, "gethostbyname", addresses.__getitem__)
    assert network.places(["here", "a", "b", "c", "local", "again"]) == [0, 0, 0, 1, 1, 2]
    assert network.places(["here"]) == [0]


def test_the_commands_of_head_and_worker():
    head = ray_command(0, "10.0.0.1", 20_000, Path("/tmp/ray-1"), Path("/disk/x"), gpus=2)
    assert {"--head", "--port=20000", "--num-gpus=2", "--include-dashboard=false", "--block"} <= set(head)
    worker = ray_command(
        1, "10.0.0.2", 20_000, Path("/tmp/ray-1"), Path("/disk/x"), gpus=2, cpus=4, head="10.0.0.1:20000"
    )
    assert {"--address=10.0.0.1:20000", "--num-cpus=4", "--node-ip-address=10.0.0.2"} <= set(worker)
    assert not any(word.startswith(("--head", "--port=", "--include-dashboard", "--ray-client")) for word in worker)


def test_the_sockets_of_ray_have_short_paths():
    folder = ray_folder("1234567890-99", 999)
    assert len(f"{folder}/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1") < 108


def test_a_node_drops_the_variables_of_other_makers_gpus():
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1", "NCCL_SOCKET_IFNAME": "mine"}
    found = node_env(0, "eth7", env)
    assert "ROCR_VISIBLE_DEVICES" not in found and found["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["NCCL_SOCKET_IFNAME"] == "mine" and found["GLOO_SOCKET_IFNAME"] == "eth7"


SUPERVISED = """\
import os, subprocess, sys
from retool_mcore.cluster.node import supervise
sys.exit(supervise(["bash", "-c", sys.argv[2]], os.environ, sys.argv[1], grace_s=1.0))
"""


def supervise(mark: str, script: str, **more) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SUPERVISED, mark, script], **more)


def test_a_supervisor_passes_on_the_exit_code_and_leaves_nothing():
    mark = uuid.uuid4().hex
    assert supervise(mark, "setsid sleep 600 & exit 75").wait(PATIENCE_S) == 75
    assert processes.find(mark) == set()


def test_a_supervisor_that_is_ended_leaves_nothing():
    mark = uuid.uuid4().hex
    process = supervise(mark, "trap '' TERM; setsid sleep 600 & echo up; wait; sleep 600", stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    process.stdout.close()
    assert processes.find(mark) == set()


def test_a_killed_command_has_the_exit_code_of_a_shell():
    assert supervise(uuid.uuid4().hex, "kill -9 $$").wait(PATIENCE_S) == 128 + signal.SIGKILL


def local_step(options: list[str], command: list[str]) -> list[str]:
    """In the place of srun: the task of the second node, on this machine."""
    assert "--nodes=1" in options and "--nodelist=localhost" in options
    return ["env", "SLURM_PROCID=0", "SLURMD_NODENAME=localhost", *command]


def cluster(tmp_path, mark: str, step, base: int):
    return ray_cluster(
        ["here", "localhost"],
        {"gpus": 2, "cpus": 2, "object_store_bytes": 100_000_000},
        head_address=network.main_address(),
        base_port=base,
        places=network.places(["here", "localhost"]),
        deadline_s=300,
        srun=step,
        env=os.environ | {"SLURMD_NODENAME": "here"},
        mark=mark,
        log=tmp_path / "ray.log",
    )


def assert_gone(mark: str) -> None:
    for index in (0, 1):
        assert processes.find(node_mark(mark, index)) == set() and not ray_folder(mark, index).exists()
        assert not spill_folder(mark, index).exists()


class Told:
    """A probe that has told of the head only."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process

    def nodes(self) -> list[dict]:
        time.sleep(0.01)
        return [{"name": "n1", "gpus": 8}]


def test_a_node_that_stays_away_is_named(tmp_path):
    living = subprocess.Popen(["sleep", "600"])
    try:
        up = RayCluster("a:1", tmp_path / "ray.log", ["n1", "n2"], {}, {"head": living})
        with pytest.raises(ClusterFailed, match="after 1 s: 1 of 2 nodes with 8 GPUs are in, missing: n2;"):
            await_nodes(up, Told(living), 2, 16, time.monotonic() + 1, 1)
    finally:
        living.kill()
        living.wait()


def test_a_busy_port_of_a_node_is_named(tmp_path):
    mark = uuid.uuid4().hex[:8]
    base = network.free_base_port(int(mark, 16), ports_needed([0, 1]))
    with socket.socket() as server:
        server.bind(("", base + 3))
        server.listen()
        with (
            pytest.raises(ClusterFailed, match=f"head ended .*port {base + 3}, which Ray needs on here, is in use"),
            cluster(tmp_path, mark, local_step, base),
        ):
            pass
    assert_gone(mark)


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_two_nodes_come_up_and_go(tmp_path):
    mark = uuid.uuid4().hex[:8]
    base = network.free_base_port(int(mark, 16), ports_needed([0, 1]))
    with cluster(tmp_path, mark, local_step, base) as up:
        assert up.fault() is None
        program = (
            "import ray; ray.init(log_to_driver=False)\n"
            "assert ray.cluster_resources()['GPU'] == 4, ray.cluster_resources()\n"
            "f = ray.remote(num_gpus=2)(lambda: ray.get_runtime_context().get_node_id())\n"
            "print(len(set(ray.get([f.remote(), f.remote()]))))"
        )
        joined = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | up.stage_env(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert joined.stdout.strip() == "2", joined.stderr
        commands = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes.find(node_mark(mark, 1))]
        assert any(f"--fallback_directory={spill_folder(mark, 1)}" in command for command in commands), commands
        assert {ray_folder(mark, index).stat().st_mode & 0o777 for index in (0, 1)} == {0o700}
    assert_gone(mark)


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_killed_raylet_is_noticed(tmp_path):
    mark = uuid.uuid4().hex[:8]
    base = network.free_base_port(int(mark, 16), ports_needed([0, 1]))
    with cluster(tmp_path, mark, local_step, base) as up:
        for process in processes.find(node_mark(mark, 1)):
            if b"raylet/raylet" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0]:
                os.kill(process.pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while up.fault() is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "step on the other nodes ended" in up.fault()
    assert_gone(mark)
    for name in ("here/gcs_server.out", "here/raylet.out", "localhost/raylet.out"):
        assert (tmp_path / "ray" / name).stat().st_size, "what Ray wrote is there when its folder is gone"


def test_of_a_long_log_the_end_is_kept_and_of_other_files_none(tmp_path):
    logs = tmp_path / "ray/r/session_2026/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_bytes(b"first" + b"." * MOST_LOG + b"last")
    (logs / "empty.err").touch()
    (logs.parent / "plasma").write_text("no log")
    keep_logs(tmp_path / "ray", tmp_path / "kept/n1")
    assert [path.name for path in (tmp_path / "kept/n1").iterdir()] == ["raylet.out"]
    kept = (tmp_path / "kept/n1/raylet.out").read_bytes()
    assert len(kept) == MOST_LOG and kept.endswith(b"last")


KILLED = "ERR -- \x1b[31m\x1b[1mgcs_server\x1b[22m\x1b[2m [exit code=-9]\x1b[22m\n  raylet [exit code=-15]\n"


def test_what_killed_an_earlier_start_of_the_job_is_not_named(tmp_path):
    """All starts of a job write into one log."""
    log = tmp_path / "ray.log"
    log.write_text("retool: old\n  raylet [exit code=-9]\n")
    begin = log.stat().st_size
    with subprocess.Popen(["false"]) as head:
        head.wait()
        cluster = RayCluster("a:1", log, ["n1"], {}, {"head": head}, begin)
        assert cluster.fault() == f"Ray's head ended (exit code 1); its log: {log}"
        with log.open("a") as file:
            file.write(KILLED)
        assert "its gcs_server was killed by SIGKILL" in cluster.fault()


def test_the_process_of_ray_that_was_killed_is_named(tmp_path):
    log = tmp_path / "ray.log"
    log.write_text(KILLED)
    with subprocess.Popen(["false"]) as head:
        head.wait()
        fault = RayCluster("a:1", log, ["n1"], {}, {"head": head}).fault()
    assert fault.startswith("Ray's head ended (exit code 1): its gcs_server was killed by SIGKILL")
