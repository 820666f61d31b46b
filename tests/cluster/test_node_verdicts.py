"""The verdicts over the nodes' reports."""

import copy
import io

import pytest
from made_reports import good, gpu
from rich.console import Console

from retool_mcore.cluster import node_verdicts
from retool_mcore.cluster.node_verdicts import refusal, table, verdicts

CUDA = {"parallel": {"device": "cuda", "nodes": 2, "gpus_per_node": 8, "ray": {"object_store_bytes": None}}}


def bad(reports, config=CUDA):
    return [verdict for verdict in verdicts(reports, config) if not verdict.ok]


def test_two_good_nodes_pass_every_check():
    found = verdicts([good("n1"), good("n2")], CUDA)
    assert refusal(found) == "" and {verdict.node for verdict in found} == {"n1", "n2"}
    names = {verdict.check for verdict in found}
    expected = ["python", "code", "model", "driver", "infiniband", "memory", "ports", "clock", "GPUs", "sandbox"]
    assert names > {*expected, "package torch", "GPU model", "run_dir shared", "open files", "locked memory"}


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"python": "3.12.1"}, "python", "3.12.1, but 3.12.3 on n1"),
        ({"packages": {"torch": "2.10.0", "ray": "2.56.1"}}, "package torch", "2.10.0, but 2.11.0 on n1"),
        ({"packages": {"torch": "2.11.0", "ray": "absent"}}, "package ray", "absent, but 2.56.1 on n1"),
        ({"code": "xyz"}, "code", "xyz, but abc on n1"),
        ({"model": "absent"}, "model", "absent, but def on n1"),
        ({"gpus": [gpu(driver="590.0")] * 8}, "driver", "590.0, but 580.1 on n1"),
        ({"gpus": [gpu()] * 7 + [gpu(name="A100")]}, "GPU model", "A100, H100, but H100 on n1"),
        ({"gpus": [gpu()] * 7}, "GPUs", "7, 8 needed"),
        ({"gpus": [gpu()] * 6 + [gpu(used_mb=40000), gpu()]}, "GPU memory in use", "GPU 6: 40000 of 81920 MiB"),
        ({"infiniband": 7}, "infiniband", "7, but 8 on n1"),
        ({"gpu_faults": ["GPU 3: 2 uncorrected ECC errors"]}, "GPU faults", "GPU 3: 2 uncorrected ECC errors"),
        ({"run_dir_free": 0}, "disk of run_dir", "0.0 GiB free, 1.0 needed"),
        ({"scratch_free": 2**30}, "disk of /tmp", "1.0 GiB free, 10.0 needed"),
        ({"shm_free": 64 * 2**20}, "shared memory", "0.1 GiB free, 1.0 needed"),
        ({"memory_available": 2**30}, "memory", "1.0 GiB free, 70.0 needed"),
        ({"limits": {"RLIMIT_MEMLOCK": -1, "RLIMIT_NOFILE": 1024}}, "open files", "1024, 4096 needed"),
        ({"limits": {"RLIMIT_MEMLOCK": 65536, "RLIMIT_NOFILE": -1}}, "locked memory", "65536, 1073741824 needed"),
        ({"ports_busy": [6379, 8265]}, "ports", "6379, 8265 in use"),
        ({"token_seen": False}, "run_dir shared", "not there"),
        ({"errors": {"sandbox": "no bwrap"}}, "sandbox", "no bwrap"),
        ({"errors": {"run_dir": "[Errno 30] Read-only"}}, "run_dir", "[Errno 30] Read-only"),
        ({"clock_started": 991.0, "clock_ended": 993.0}, "clock", "9 s behind the first node"),
        ({"clock_started": 1020.0, "clock_ended": 1022.0}, "clock", "19 s ahead of the first node"),
        ({"clock_ended": 10**6, "received": 1003.0}, "clock", "ahead of"),
        ({"interface": ["lo", "127.0.0.1"]}, "interface", "lo, 127.0.0.1: no other node reaches it"),
        ({"errors": {"interface": "n2 has none of that name"}}, "interface", "n2 has none of that name"),
    ],
)
def test_one_fault_is_one_verdict_on_its_node(change, check, words):
    (found,) = bad([good("n1"), good("n2", **change)])
    assert (found.node, found.check) == ("n2", check)
    assert words in found.detail and found.advice


def test_a_slow_node_is_not_taken_for_one_with_a_wrong_clock():
    # 100 s to start and 100 s more to work: its clock is right.
    assert not bad([good("n1"), good("n2", clock_started=1100.0, clock_ended=1200.0, received=1201.0)])


def test_the_odd_node_out_is_the_minority_even_when_it_is_the_first():
    (found,) = bad([good("n1", code="old"), good("n2"), good("n3")])
    assert found.node == "n1" and found.detail == "old, but abc on n2"


def test_of_two_versions_on_two_nodes_the_first_node_has_the_right_one():
    assert bad([good("n1", code="x"), good("n2", code="y")])[0].node == "n2"


def test_of_two_nodes_the_one_with_fewer_infiniband_ports_is_at_fault():
    (found,) = bad([good("n1", infiniband=7), good("n2")])
    assert found.node == "n1" and found.detail == "7, but 8 on n2"


def test_a_node_without_answer_fails_alone():
    found = bad([good("n1"), {"node": "n2", "no_answer": "no answer within 120 s"}, good("n3")])
    assert [(verdict.node, verdict.check) for verdict in found] == [("n2", "answer")]
    assert "scontrol show node n2" in found[0].advice


def test_a_cpu_job_asks_for_no_gpu_and_a_job_without_infiniband_for_no_locked_memory():
    cpu = copy.deepcopy(CUDA)
    cpu["parallel"]["device"] = "cpu"
    report = {
        name: value for name, value in good().items() if name not in ("gpus", "gpu_faults", "peers", "infiniband")
    }
    report["limits"] = {"RLIMIT_MEMLOCK": 65536, "RLIMIT_NOFILE": -1}
    assert not bad([report], cpu)
    assert not bad([good(infiniband=0, limits=report["limits"])])


def test_ray_store_of_the_configuration_decides_the_shared_memory():
    config = copy.deepcopy(CUDA)
    config["parallel"]["ray"]["object_store_bytes"] = 2 * 10**11
    assert [verdict.check for verdict in bad([good()], config)] == ["shared memory"]


def test_missing_peer_access_is_told_and_not_refused():
    found = verdicts([good(peers=["GPU0-GPU1"])], CUDA)
    assert refusal(found) == ""
    assert [verdict.detail for verdict in found if verdict.check == "peer access"] == ["missing: GPU0-GPU1"]


def test_the_refusal_names_node_fault_and_remedy_and_the_table_the_rest():
    reports = [good("n1"), good("n2", code="[/x]", ports_busy=[6379])]
    found = verdicts(reports, CUDA)
    message = refusal(found)
    assert message.startswith("node n2, code: [/x], but abc on n1: run the same checkout") and "(1 more" in message
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(table(found, ["n1", "n2"]))
    text = console.export_text()
    assert "6379 in use" in text and "[/x]" in text and "ss -ltnp" in text and "that failed: 2" in text
    assert "package torch" not in text


def test_the_table_of_many_nodes_has_the_failing_ones():
    nodes = [f"n{i}" for i in range(16)]
    found = verdicts([good(node, **({"code": "old"} if node == "n7" else {})) for node in nodes], CUDA)
    assert [column.header for column in table(found, nodes).columns] == ["check", "n7", "what to do"]


@pytest.mark.parametrize(
    ("driver", "cuda", "ok"),
    [
        ("580.65.06", 0, True),
        ("590.1", 13010, True),
        ("575.1", 12090, False),
        ("535.1", 13000, True),
        ("535.1", 0, False),
    ],
)
def test_a_driver_serves_cuda_13_itself_or_by_the_compatibility_package(driver, cuda, ok):
    (row,) = node_verdicts._driver([gpu(driver=driver), gpu(driver="590.1")], cuda)
    assert row[:2] == ("driver for CUDA 13", ok) and row[2].startswith(driver)
    assert ok or ("580 or CUDA 13 needed" in row[2] and "cuda-compat-13-0" in row[3])
    assert not list(node_verdicts._driver([gpu(driver="[N/A]")], cuda)), "a driver that tells no number is not judged"


def test_interfaces_that_are_named_have_an_address_of_their_own_on_every_node():
    nodes = [good(f"n{number}", interface=["ib0", f"10.0.0.{number}"]) for number in (1, 2, 3)]
    found = verdicts(nodes, CUDA)
    assert refusal(found) == ""
    assert [v.detail for v in found if v.check == "interface"] == ["ib0, 10.0.0.1", "ib0, 10.0.0.2", "ib0, 10.0.0.3"]
    bridge = [report | {"interface": ["docker0", "172.17.0.1"]} for report in nodes[:2]] + nodes[2:]
    wrong = bad(bridge)
    assert [(v.node, v.check) for v in wrong] == [("n1", "interface"), ("n2", "interface")]
    assert "172.17.0.1, the address of another node as well" in wrong[0].detail
    assert "RETOOL_INTERFACE" in wrong[0].advice


def test_loopback_is_an_interface_for_one_node():
    one = {"parallel": CUDA["parallel"] | {"nodes": 1}}
    assert bad([good("n1", interface=["lo", "127.0.0.1"])], one) == []
