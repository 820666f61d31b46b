"""What the checks of an allocation say beside a refusal: an all-reduce over its nodes, and what only costs speed."""

import os

import pytest
from omegaconf import OmegaConf

from retool_mcore.cluster import network, node_check, node_report
from retool_mcore.cluster.node_verdicts import notes, refusal, verdicts
from retool_mcore.config import compose
from retool_mcore.errors import UserError

CUDA = {"parallel": {"device": "cuda", "nodes": 2, "gpus_per_node": 8, "ray": {"object_store_bytes": None}}}


def report(node: str, **found) -> dict:
    return {"node": node, "errors": {}} | found


@pytest.fixture
def config(tmp_path):
    return compose("doctor", [f"runs_dir={tmp_path / 'runs'}"])


def test_what_costs_speed_is_told_with_its_nodes_and_not_refused():
    unbound, bound = {"nodes": 2, "library": False}, {"nodes": 2, "library": True}
    reports = [report("n1", numa=unbound, peers=["GPU0-GPU1"]), report("n2", numa=unbound), report("n3", numa=bound)]
    found = verdicts(reports, CUDA)
    assert refusal(found) == ""
    first, second = sorted(notes(found))
    assert first.startswith("CPU binding on n1, n2: 2 NUMA nodes, no libnuma.so: install libnuma-dev")
    assert second.startswith("peer access on n1: missing: GPU0-GPU1: ")


def test_a_look_that_ended_with_a_sentence_stands_well_in_the_refusal():
    found = verdicts([report("n1", errors={"sandbox": "The sandbox is down."})], CUDA)
    assert refusal(found) == "node n1, sandbox: The sandbox is down: mend sandbox.* or exclude the node."


def test_one_memory_node_needs_no_binding():
    found = verdicts([report("n1", numa={"nodes": 1, "library": False}, peers=[])], CUDA)
    assert notes(found) == [] and [v.detail for v in found if v.check == "CPU binding"] == [
        "1 NUMA nodes, no libnuma.so"
    ]


def test_memory_nodes_without_cpus_do_not_count(tmp_path):
    for number, cpus in enumerate(("0-47", "48-95", "")):  # the last one is a GPU's memory, as on Grace Hopper
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    assert node_report.numa(tmp_path)["nodes"] == 2


def test_notes_are_printed_after_the_checks_that_are_fine(config, tmp_path, monkeypatch, capsys):
    found = [report(node, numa={"nodes": 2, "library": False}) for node in ("n1", "n2")]
    monkeypatch.setattr(node_check, "gather", lambda *_: found)
    node_check.check_nodes(["n1", "n2"], OmegaConf.merge(config, CUDA), tmp_path / "config.yaml")
    fine, note = capsys.readouterr().out.replace("\n", " ").split("nodes: ")[1:]
    assert "all fine" in fine and note.startswith("CPU binding on n1, n2: ")


def test_the_doctor_lets_all_nodes_of_an_allocation_add_up(config, tmp_path, monkeypatch):
    for name, line in (("srun", f'echo "$@" >> {tmp_path}/said; exit 1'), ("scontrol", "printf 'localhost\\nn2\\n'")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "any")
    monkeypatch.setattr(node_check, "check_nodes", lambda *_, **__: None)
    with pytest.raises(UserError, match="the all-reduce over the nodes failed"):
        node_check.check_allocation(config)
    said = (tmp_path / "said").read_text().split()
    assert {"--nodes=2", "--ntasks=2", "--overlap", "--nnodes=2", "retool_mcore.cluster.nccl_check"} < set(said)
    assert f"--rdzv_endpoint=127.0.0.1:{network.free_base_port(7, 1)}" in said
