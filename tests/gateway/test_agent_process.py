"""The process of an agent: what it sees, its limits, how it ends, and that nothing of it stays."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from retool_mcore.gateway.agent import (
    TAIL_BYTES,
    AgentLimits,
    Result,
    ResultError,
    environment,
    read_result,
    run_agent,
    write_row,
)

ROW = {
    "data_source": "made",
    "index": 7,
    "raw_prompt": [{"role": "user", "content": "2+2?"}],
    "reward_model": {"ground_truth": "SECRET"},
    "extra_info": {"question": "2+2?", "answer": "SECRET", "index": 7},
}
LIMITS = AgentLimits(episode_s=20, grace_s=0.5, memory_mb=300, folder_mb=5, processes=8)


def run(folder, program, limits=LIMITS, key="the key", extra=None, command=None):
    env = environment(folder, base_url="http://127.0.0.1:1/e/x/v1", key=key, seed=3, extra=extra or {})
    return asyncio.run(run_agent(command or [sys.executable, "-c", program], folder, env, limits))


def test_it_sees_what_it_is_given_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "the user's own")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    write_row(tmp_path / "row.json", ROW)
    program = (
        "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), open(os.environ['RETOOL_ROW']).read()]))"
    )
    end = run(tmp_path, program, extra={"MINE": "1"})
    assert (end.how, end.code) == ("exit", 0)
    env, folder, row = json.loads(end.tail)
    assert folder == env["HOME"] == env["TMPDIR"] == str(tmp_path) and env["MINE"] == "1"
    assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == "http://127.0.0.1:1/e/x/v1"
    assert env["OPENAI_API_KEY"] == "the key" and env["RETOOL_SEED"] == "3" and env["NO_PROXY"] == "127.0.0.1"
    assert "HF_TOKEN" not in env and "HTTPS_PROXY" not in env
    assert json.loads(row)["question"] == "2+2?" and "SECRET" not in row


@pytest.mark.parametrize(
    "program, how, code",
    [("", "exit", 0), ("raise SystemExit(3)", "exit", 3), ("1/0", "exit", 1), ("import os; os.abort()", "exit", -6)],
)
def test_how_it_ends(tmp_path, program, how, code):
    end = run(tmp_path, program)
    assert (end.how, end.code) == (how, code)


def test_what_cannot_start_and_its_last_line(tmp_path):
    end = run(tmp_path, "", command=["/no/such/program"])
    assert end.how == "no_start" and "No such file" in str(end)
    assert "ZeroDivisionError" in str(run(tmp_path, "1/0"))
    end = run(tmp_path, "print('x' * 10_000_000); print('end')")
    assert len(end.tail) <= TAIL_BYTES and end.tail.endswith("end\n") and end.code == 0


def test_the_time_is_up(tmp_path):
    limits = AgentLimits(episode_s=1.5, grace_s=0.5)
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    clock = time.monotonic()
    assert run(tmp_path, stubborn, limits).how == "timeout"
    assert time.monotonic() - clock < 20


@pytest.mark.parametrize(
    "program, what",
    [
        ("x = bytearray(500_000_000)\nimport time\ntime.sleep(30)", "memory_mb=300"),
        ("import os, time\nfor _ in range(12): os.fork() or time.sleep(30)\ntime.sleep(30)", "processes=8"),
        ("open('big', 'wb').write(b'x' * 20_000_000)\nimport time\ntime.sleep(30)", "folder_mb=5"),
    ],
)
def test_limits_of_the_machine(tmp_path, program, what):
    end = run(tmp_path, program)
    assert end.how == "limit" and what in str(end)


def state_of(pid):
    """The letter of a process's state, "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_daemon_does_not_stay(tmp_path):
    program = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "open('pid', 'w').write(str(child.pid))\n"
    )
    assert run(tmp_path, program).code == 0
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if state_of(pid) in ("", "Z", "X"):
            return
        time.sleep(0.1)
    raise AssertionError("the daemon lives")


def test_the_result(tmp_path):
    path = tmp_path / "result.json"
    assert read_result(path) == Result()
    path.write_text('{"reward": 0.5, "answer": "4", "rewards": {}}')
    assert read_result(path) == Result(0.5, "4")
    for text in (
        "",
        "[]",
        '{"reward": NaN}',
        '{"reward": "1"}',
        '{"reward": [1]}',
        '{"reward": true}',
        '{"answer": 4}',
    ):
        path.write_text(text)
        with pytest.raises(ResultError):
            read_result(path)
    path.write_text("[" * 100_000)
    with pytest.raises(ResultError):
        read_result(path)
    path.write_bytes(b" " * 2_000_000)
    with pytest.raises(ResultError, match="bytes"):
        read_result(path)
    path.unlink()
    (tmp_path / "elsewhere").write_text('{"reward": 1}')
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultError):
        read_result(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ResultError, match="plain file"):
        read_result(path)
