"""A process that loads in one call beats as long as it reads, and no longer."""

import mmap
import time

import pytest

from retool_mcore.state import heartbeat, reading

BYTES = 8 * 2**20


@pytest.fixture
def stage_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "EVERY_S", 0.05)
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setenv("RANK", "3")
    (tmp_path / "heartbeat").mkdir()
    monkeypatch.setenv(heartbeat.VARIABLE, str(tmp_path / "heartbeat"))
    (tmp_path / "big").write_bytes(b"0" * BYTES)
    return tmp_path


def beats(stage_dir):
    return heartbeat.read(stage_dir).get("load-3", {}).get("beats", 0)


def test_reading_is_a_sign_of_life(stage_dir):
    with reading.beating():
        for _ in range(20):
            (stage_dir / "big").read_bytes()
            time.sleep(0.02)
        assert beats(stage_dir) >= 3
    assert heartbeat.read(stage_dir)["load-3"]["phase"] == heartbeat.LOAD
    assert heartbeat.read(stage_dir)["load-3"]["done"] >= 20 * BYTES


def test_waiting_is_none_and_looking_into_proc_neither(stage_dir):
    with reading.beating():
        for _ in range(20):
            (stage_dir / "small").write_text("x")
            (stage_dir / "small").read_text()
            time.sleep(0.02)
        assert beats(stage_dir) == 0
    assert beats(stage_dir) == 1, "its end"


def test_the_error_of_a_load_passes_and_the_thread_ends(stage_dir):
    with pytest.raises(ValueError, match="half a file"), reading.beating():
        raise ValueError("half a file")
    done = beats(stage_dir)
    (stage_dir / "big").read_bytes()
    time.sleep(0.2)
    assert beats(stage_dir) == done


def test_a_kernel_without_the_count_leaves_the_faults(stage_dir, monkeypatch):
    monkeypatch.setattr(reading, "Path", lambda _: stage_dir / "none")
    with (stage_dir / "big").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[BYTES // 2] and reading.bytes_read() >= 0
