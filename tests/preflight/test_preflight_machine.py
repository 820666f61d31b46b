"""Devices, memory and disk, against small files and a stand-in for nvidia-smi."""

import os

import pytest
from refused import refusal

from retool_mcore import resources
from retool_mcore.preflight import machine


def test_devices_must_suffice():
    machine.check_devices("cuda", gpus_per_node=8, gpus_found=8)
    machine.check_devices("cpu", gpus_per_node=2, gpus_found=0)
    message = refusal(machine.check_devices, "cuda", gpus_per_node=8, gpus_found=2)
    assert "parallel.gpus_per_node=8" in message and "2 GPUs" in message


def test_memory_available_must_suffice():
    assert "2.0 GiB" in refusal(machine.check_memory, 2 * machine.GIB)
    machine.check_memory(6 * machine.GIB)
    assert resources.available_memory_bytes() > 0


def test_run_dir_needs_room_and_may_not_exist_yet(tmp_path):
    machine.check_disk(tmp_path / "runs" / "new", needed_bytes=1)
    message = refusal(machine.check_disk, tmp_path / "runs" / "new", needed_bytes=10**18)
    assert "GiB free" in message and "runs_dir" in message
    assert not (tmp_path / "runs").exists()
    (tmp_path / "file").write_text("x")
    assert "is a file" in refusal(machine.check_disk, tmp_path / "file" / "run", needed_bytes=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_run_dir_must_be_writable(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "no permission" in refusal(machine.check_disk, tmp_path / "locked" / "run", needed_bytes=1)


def test_rollout_engines_of_their_own_need_devices_beside_the_trainers():
    layout = {"nodes": 2, "gpus_per_node": 6}
    ahead = {"name": "async", "hybrid": False, "rollout_nodes": 2, "rollout_gpus": 2}

    def check(pipeline, devices):
        machine.check_rollout_devices(pipeline, layout, devices=devices, source="nvidia-smi lists")

    check(ahead, 16)
    check(ahead, None)
    check(ahead | {"hybrid": True}, 12)
    message = refusal(check, ahead, 15)
    assert all(words in message for words in ("pipeline=async needs 4", "trainer's 12", "nvidia-smi lists 15"))


def test_the_time_to_write_a_large_checkpoint_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(machine, "TRIAL_BYTES", 2**24)
    machine.tell_write_time(tmp_path / "runs/new", 14 * 600_000)
    assert capsys.readouterr().out == ""  # the tiny model's
    machine.tell_write_time(tmp_path / "runs/new", 14 * 32_763_876_352)
    assert "A checkpoint of 459 GB takes one writer" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
