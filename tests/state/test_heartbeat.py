"""Beats of a stage's processes, the line that is made of them, and what the watchdog takes for progress."""

import json
import sys

import pytest
from omegaconf import OmegaConf

from retool_mcore.backends.env import worker_env
from retool_mcore.runner import launch as launching
from retool_mcore.runner import watchdog
from retool_mcore.runner.launch import StageFailed, run_attempt
from retool_mcore.runner.phase_line import phase_line
from retool_mcore.runner.watchdog import SILENCES, Watchdog
from retool_mcore.state import heartbeat

# Both say nothing for longer than the watchdog's limit; only in the first does work end meanwhile.
WORKS = """
import time
from retool_mcore.state import heartbeat
heartbeat.EVERY_S = 0.0
for done in range(9):
    heartbeat.beat("trainer", "update", done, 9)
    time.sleep(0.5)
"""
ALIVE = """
import os, threading, time
from retool_mcore.state import heartbeat
heartbeat.beat("trainer", "update", 3, 20)
path = os.path.join(os.environ[heartbeat.VARIABLE], "trainer.json")
while True:
    os.utime(path)
    heartbeat.again("trainer", 3, 20)
    time.sleep(0.2)
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The stage's folder; beats of this process go there at once, and its clock stands at 1000."""
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setattr(heartbeat.time, "time", lambda: 1000.0)
    monkeypatch.setenv(heartbeat.VARIABLE, str(heartbeat.prepare(tmp_path)))
    return tmp_path


@pytest.fixture
def dog(told, monkeypatch):
    """A watchdog of 100 s a phase, and its clock: `after(seconds)` looks every 10 s."""
    now = [0.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])

    class Dog(Watchdog):
        def after(self, seconds: float) -> bool:
            found = False
            for _ in range(int(seconds / 10)):
                now[0] += 10.0
                found = self.hangs() or found
            return found

    return lambda: Dog([told / "log.txt"], 100.0, told)


def attempt(tmp_path, monkeypatch, program: str) -> None:
    config = {"run_dir": str(tmp_path), "parallel": {"device": "cpu", "nodes": 1}, "watchdog_minutes": 0.06}
    monkeypatch.setattr(launching, "stage_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(launching, "LOOK_S", 0.5)
    run_attempt("probe", OmegaConf.create(config))


def test_a_silent_stage_whose_work_goes_on_is_left_alone(tmp_path, monkeypatch):
    attempt(tmp_path, monkeypatch, WORKS)
    assert heartbeat.read(tmp_path / "probe")["trainer"]["done"] == 8


def test_a_process_that_is_only_alive_stands_still(tmp_path, monkeypatch):
    with pytest.raises(StageFailed, match=r"probe failed: phase update stood still for 0\.0[6-9]\d* minutes"):
        attempt(tmp_path, monkeypatch, ALIVE)


def test_a_phase_that_never_ended_has_the_configured_limit(dog):
    one = dog()
    assert not one.after(90)
    heartbeat.beat("trainer", "update")
    assert not one.after(100) and one.phase == "update"  # the first look saw the beat
    assert one.after(10)


def test_the_limit_follows_from_the_longest_silence_of_the_phase(dog, told):
    one = dog()
    for done in range(3):
        heartbeat.beat("trainer", "update", done)
        assert not one.after(90)
    assert one.limit_s == 100.0
    heartbeat.beat("trainer", "push")
    assert not one.after(10)
    heartbeat.beat("trainer", "update", 0)
    assert not one.after(10) and one.limit_s == 3 * 90
    assert json.loads((told / SILENCES).read_text())["push"] <= 10
    heartbeat.beat("trainer", "push")
    assert not one.after(10) and one.limit_s == 50.0  # quick before: half of the configured limit is enough
    other = dog()  # of the next attempt
    heartbeat.beat("trainer", "update", 1)
    assert not other.after(260)
    assert other.after(20)
    assert "update" not in json.loads((told / SILENCES).read_text())
    assert dog().limit_s == 100.0


def test_a_turn_may_be_as_long_as_its_tokens_take(dog):
    one = dog()
    heartbeat.beat("trainer", "generation")
    heartbeat.beat("agent-n1-7", "generation", 1, patience_s=540.0)
    assert not one.after(1000)
    assert one.after(100)
    heartbeat.beat("trainer", "update")
    one.after(10)
    assert one.limit_s == 100.0


def test_a_checkpoint_that_grows_is_life(dog, told):
    one = dog()
    heartbeat.beat("trainer", "save")
    part = told / "checkpoints/global_step_3/actor/part"
    part.parent.mkdir(parents=True)
    for size in range(5):
        part.write_text("x" * size)
        assert not one.after(90)
    assert one.after(30)


def test_one_writer_that_stands_still_does_not_hide_behind_old_beats(dog):
    one = dog()
    heartbeat.beat("trainer", "generation")
    for turns in range(3):
        heartbeat.beat("agent-n1-7", "generation", turns)
        assert not one.after(90)
    assert one.after(20)  # nobody ends anything any more


def test_writes_are_rare_but_a_new_phase_is_told_at_once(told, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 2.0)
    for done in range(3):
        heartbeat.beat("rank0", "micro-batches", done, 9)
    assert heartbeat.read(told)["rank0"]["done"] == 0
    monkeypatch.setattr(heartbeat.time, "time", lambda: 1002.0)
    heartbeat.beat("rank0", "micro-batches", 3, 9)
    assert heartbeat.read(told)["rank0"] | {"beats": 4, "done": 3} == heartbeat.read(told)["rank0"]
    heartbeat.beat("rank0", "other")
    assert heartbeat.read(told)["rank0"]["phase"] == "other"
    heartbeat.prepare(told)
    assert heartbeat.read(told) == {}


def test_without_a_folder_nothing_is_written_and_a_folder_that_is_gone_breaks_nothing(told, monkeypatch):
    (told / "heartbeat").rmdir()
    heartbeat.beat("trainer", "update")
    monkeypatch.delenv(heartbeat.VARIABLE)
    heartbeat.beat("trainer", "push")
    assert not (told / "heartbeat").exists()


def test_workers_on_other_nodes_are_told_the_folder():
    assert worker_env({heartbeat.VARIABLE: "/shared/r/rl/heartbeat"}) == {heartbeat.VARIABLE: "/shared/r/rl/heartbeat"}


def test_the_line_of_a_generation(told):
    assert phase_line(told, 1000.0) == ""
    heartbeat.beat("trainer", "generation", 3, 12, next_save=4000.0)
    for name in ("agent-n1-7", "agent-n2-7"):
        heartbeat.beat(name, "generation", 40, finished=1_030, live=12, tokens_per_s=700.4)
    said = "(2,060 trajectories finished, 24 live, 1,401 tokens/s)"
    assert phase_line(told, 1100.0) == f"generation 25 % {said}, 5 min left, save in 48 min"


def test_the_line_of_an_evaluation_that_goes_on(told):
    heartbeat.beat("trainer", "evaluation", 50, 100, before=50)
    assert phase_line(told, 1100.0) == "evaluation 50 %", "nothing of this attempt says how fast it is"
    heartbeat._writers["trainer"].written = 0.0
    heartbeat.beat("trainer", "evaluation", 75, 100)
    heartbeat.beat("agent-n1-7", "generation", 40, finished=25, live=12, tokens_per_s=700.4)
    said = "(25 trajectories finished, 12 live, 700 tokens/s)"
    assert phase_line(told, 1100.0) == f"evaluation 75 % {said}, 100 s left"


def test_the_line_of_an_update_counts_its_optimizer_steps(told):
    heartbeat.beat("trainer", "update", parts=8)
    assert phase_line(told, 1100.0) == "update"
    heartbeat.beat("rank0", "micro-batches", 3, 6, updates=8 + 3)  # of an earlier step 8, half of the third
    assert phase_line(told, 1100.0) == "update 31 %, 220 s left".replace("220 s", "4 min")
    heartbeat.beat("trainer", "log-probabilities")
    assert phase_line(told, 1100.0).startswith("log-probabilities 50 %")


def test_the_line_of_a_save_compares_with_the_last_checkpoint(told):
    whole, part = (told / f"checkpoints/global_step_{step}" for step in (2, 4))
    for folder, size in ((whole, 100_000), (part, 25_000)):
        (folder / "model/huggingface").mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(size))
    (whole / "COMPLETE").touch()
    heartbeat.beat("trainer", "save")
    words = phase_line(told, 1010.0).split()
    assert words[0] == "save" and 20 <= int(words[1]) <= 45


def test_an_agent_that_failed_before_its_first_turn_has_no_speed_to_tell():
    from retool_mcore.runner.phase_line import _rollouts

    said = _rollouts({"agent-1": {"time": 5.0, "finished": 3, "live": 1}}, since=0.0)
    assert said == "3 trajectories finished, 1 live, 0 tokens/s"
