"""What is known of a job before it is queued: Slurm's notation of times, limits, numbers of jobs, warnings."""

import math

import pytest

from retool_mcore.cluster import forecast, slurm
from retool_mcore.cluster.forecast import Limit, counted, jobs, limit, seconds, warning
from retool_mcore.cluster.site import Site
from retool_mcore.planner.run import Course

HOUR, DAY = 3600.0, 86400.0
RL = Course(step=4439.0, save=64.0, between=4439.0, validation=537.0, hours=190.6)
DEFAULT = Site("default", venv=".venv")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30", 1800.0),
        ("5:30", 330.0),
        ("01:00:00", HOUR),
        ("1-00:00:00", DAY),
        ("2-12", 2.5 * DAY),
        ("1-06:30", 1.25 * DAY + 1800),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
        ("NONE", None),
        ("", None),
        ("1:2:3:4", None),
    ],
)
def test_slurms_notation_of_times(text, found):
    assert seconds(text) == found


def partitions(monkeypatch, **facts):
    monkeypatch.setattr(slurm, "_lines", lambda command, **_: [" ".join(f"{k}={v}" for k, v in facts.items())])


def test_the_limit_is_the_sites_then_the_environments_then_the_partitions(monkeypatch):
    partitions(monkeypatch, PartitionName="all", Default="YES", DefaultTime="00:30:00", MaxTime="2-00:00:00")
    assert limit(Site("mine", venv="v", time="1-00:00:00", flags=["--time=5"]), {}) == Limit(
        DAY, "1-00:00:00 (time in the site mine)", asked=True
    )
    assert limit(Site("mine", venv="v", flags=["--time=5"]), {}).seconds == 300
    assert limit(DEFAULT, {"SBATCH_TIMELIMIT": "60"}) == Limit(HOUR, "60 (SBATCH_TIMELIMIT)", asked=True)
    assert limit(DEFAULT, {}) == Limit(1800.0, "00:30:00 (DefaultTime of the partition all)")
    assert limit(Site("mine", venv="v", partition="other"), {}).seconds is None
    partitions(monkeypatch, PartitionName="gpu", Default="NO", DefaultTime="NONE", MaxTime="UNLIMITED")
    assert limit(Site("mine", venv="v", partition="cpu,gpu"), {}).seconds == math.inf
    assert limit(Site("mine", venv="v", flags=["--partition=gpu"]), {}).words.startswith("UNLIMITED (MaxTime of")
    monkeypatch.setattr(slurm, "_lines", lambda *_, **__: [])
    assert limit(DEFAULT, {}) == Limit(None, "the DefaultTime of the partition (`scontrol show partition`)")


def test_the_number_of_jobs_leaves_room_for_starts_and_ends():
    assert jobs(RL, 150, DAY) == 9
    assert jobs(RL, 150, math.inf) == 1 and jobs(RL, 150, 30 * DAY) == 1
    assert jobs(RL, 150, 2 * HOUR) == 150 and jobs(RL, 150, HOUR) == 0
    assert counted(RL, 150, Limit(None, "")) == ": 9 jobs of a day each, requeues included"
    assert counted(RL, 150, Limit(30 * DAY, "")) == ": 1 job with this limit, requeues included"
    assert counted(RL, 150, Limit(HOUR, "")) == ""


def test_a_limit_in_which_no_step_ends_is_warned_of(monkeypatch):
    monkeypatch.setattr(forecast, "course", lambda _: (RL, 150))
    message = warning("rl", None, DEFAULT, Limit(1800.0, "30 (SBATCH_TIMELIMIT)", asked=True))
    assert message.startswith(
        "rl: the time limit is 30 (SBATCH_TIMELIMIT), and a start (10 minutes), a step (74) and a"
    )
    assert "take 87 minutes: set time in configs/site/default.yaml, as in 1-00:00:00." in message
    assert warning("rl", None, DEFAULT, Limit(DAY, "1-00:00:00", asked=True)) == ""


def test_a_limit_that_nobody_asked_for_is_told(monkeypatch):
    monkeypatch.setattr(forecast, "course", lambda _: None)
    for known in (Limit(1800.0, "00:30:00 (DefaultTime of the partition all)"), Limit(None, "the DefaultTime")):
        assert f"time is null, so the limit is {known.words}" in warning("eval", None, DEFAULT, known)
    assert warning("eval", None, DEFAULT, Limit(math.inf, "UNLIMITED")) == ""
