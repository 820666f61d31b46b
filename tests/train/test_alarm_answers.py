"""Each alarm injected once into the loop, with a stand-in for the engines: what its answer does to the run."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from played_loop import Engines, attempt, settings

from retool_mcore.config import compose
from retool_mcore.state import alarms, checkpoints
from retool_mcore.state.alarms import Ended

STEPS, BATCH, ROWS = 8, 4, 200
COMMON = settings(batch=BATCH, mini_batch=BATCH, steps=STEPS, save_every=2)


class Injected(Engines):
    """Engines whose updates have the figures that `figures(prompts, step)` gives; `trained`: prompts by step."""

    def __init__(self, figures):
        super().__init__()
        self.figures, self.trained = figures, {}

    def pause(self):
        self.step = self.version + 1

    def update(self, batch):
        prompts = sorted({int(row["number"]) for row in batch.rows})
        self.trained[self.step] = prompts
        return {"actor/grad_norm": 0.5, "actor/entropy": 0.5} | self.figures(prompts, self.step)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs one attempt; returns (how it ended, trained prompts by step)."""
    defaults = compose("rl", []).alarms

    def make(figures, leave_out=True, folder=tmp_path, engines=Injected, rows=ROWS, settings=COMMON, **changes):
        (folder / "metrics").mkdir(parents=True, exist_ok=True)
        file = folder / f"metrics/attempt_{len(list((folder / 'metrics').iterdir())) + 1:03d}.jsonl"
        file.touch()

        def log(data, step):
            with file.open("a") as lines:
                lines.write(json.dumps({"step": step, "data": data}, default=float) + "\n")

        if not leave_out:
            monkeypatch.setattr(alarms, "left_out", lambda *_: 0)
        played = engines(figures)
        try:
            attempt(
                folder, monkeypatch, settings, played, rows=rows, log=SimpleNamespace(log=log, logger={}),
                identity=lambda step: SimpleNamespace(link="link", policy="policy", advance=len),
                alarms=OmegaConf.merge(defaults, changes),
            )  # fmt: skip
        except Ended as ended:
            alarms.honour(folder, ended)
            return ended.answer, played.trained
        return None, played.trained

    make.folder = tmp_path
    make.steps = lambda: [json.loads(line)["step"] for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    return make


@pytest.fixture
def poisoned(run):
    """The figures of a run in which one prompt of the sixth step has a gradient of NaN."""
    bad = run(lambda *_: {}, folder=run.folder / "before")[1][6][1]
    return lambda prompts, step: {"actor/broken_updates": float(bad in prompts)}


def last(folder: Path) -> int:
    return checkpoints.step_of(checkpoints.latest(folder / "checkpoints"))


def test_a_resume_does_not_meet_the_same_nan_for_ever(run, poisoned):
    ended, trained = run(poisoned, nan={"answer": "back"})
    assert (ended, max(trained), last(run.folder)) == ("back", 6, 4)
    first = trained[6]
    ended, trained = run(poisoned, leave_out=False, nan={"answer": "back"})
    assert ended == "back" and trained[6] == first  # what leaving no prompt out would do: the same again


def test_going_back_leaves_out_the_prompts_since_the_checkpoint(run, poisoned):
    _, trained = run(poisoned, nan={"answer": "back"})
    assert alarms.backs(run.folder)[0] | {"said": ""} == {"step": 6, "from": 4, "skip": 2 * BATCH, "said": ""}
    bad = {prompt for step in (5, 6) for prompt in trained[step]}
    ended, trained = run(poisoned, nan={"answer": "back"})
    assert ended is None and list(trained) == [5, 6, 7, 8]
    assert not bad & {prompt for prompts in trained.values() for prompt in prompts}
    assert alarms.request_seed(run.folder, 1) != 1
    # From a checkpoint behind the place nothing is left out any more.
    assert last(run.folder) == 8 and alarms.left_out(run.folder, 8) == 0


def test_it_goes_back_a_bounded_number_of_times_and_then_stops_with_a_sentence(run, capsys):
    for number in range(3):
        assert run(lambda *_: {"actor/broken_updates": 1.0}, nan={"answer": "back"})[0] == "back", number
    ended, trained = run(lambda *_: {"actor/broken_updates": 1.0}, nan={"answer": "back"})
    assert ended == "stop" and list(trained) == [1]
    assert "the run went back 3 times already (alarms.backs), so it stops" in str(alarms.ended(run.folder))
    assert "so it stops" in capsys.readouterr().out and checkpoints.latest(run.folder / "checkpoints") is None


def test_skipping_goes_on_for_some_steps_and_then_goes_back(run):
    ended, _ = run(lambda prompts, step: {"actor/broken_updates": float(step > 2), "actor/skipped_updates": 1.0})
    assert ended == "back" and run.steps() == [3, 4, 5]
    assert last(run.folder) == 2  # step 4, in the row, is nothing to go back to
    # and leaves nothing behind, not even the link of the policy's chain
    assert [path.name for path in (run.folder / "checkpoints").glob("global_step_*")] == ["global_step_2"]
    assert (run.folder / "checkpoints/global_step_2/policy_identity").read_text() == "link"


def test_a_row_that_ends_is_nothing(run):
    ended, trained = run(lambda prompts, step: {"actor/broken_updates": float(step in (3, 4, 6, 7))})
    assert ended is None and len(trained) == STEPS and last(run.folder) == 8


def test_stop_leaves_the_last_good_checkpoint_the_last(run):
    figures = {"mismatch/kl": 0.5}
    ended, trained = run(
        lambda prompts, step: figures if step == 4 else {}, mismatch={"answer": "stop", "then": "stop"}
    )
    assert (ended, max(trained), last(run.folder)) == ("stop", 4, 2)
    assert not alarms.backs(run.folder)


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("gradient_norm", lambda step: {"actor/norm_ratio_max": 50.0 * (step == 5)}),
        ("entropy", lambda step: {"actor/entropy": 0.5 if step < 5 else 0.01}),
        ("mismatch", lambda step: {"mismatch/kl": 0.1 * (step >= 5)}),
    ],
)
def test_an_alarm_that_is_reported_changes_nothing_else(run, name, figure):
    ended, trained = run(lambda prompts, step: figure(step))
    assert ended is None and len(trained) == STEPS and last(run.folder) == 8
    assert min(run.steps()) == 5 and {json.loads(x)["alarm"] for x in (run.folder / "alarms.jsonl").open()} == {name}


class Jumping(Injected):
    """The training reward jumps at step 4 while the held-back accuracy does not."""

    def sample(self, group, number):
        made = super().sample(group, number)
        if not group.uid.startswith("val"):
            made.outcome["score"] = 0.1 * (1 + 5 * (group.step >= 4)) + 0.001 * (group.step % 2)
        return made


@pytest.mark.parametrize(("answer", "steps"), [("tell", STEPS), ("stop", 5)])
def test_the_reward_alarm_is_of_a_reward_that_rises_alone_and_stops_after_its_step(run, answer, steps):
    """Two steps after the jump the halves of its window differ."""
    validated = replace(COMMON, validate_every=1, validation_n=2)
    ended, trained = run(
        lambda *_: {}, engines=Jumping, rows=8, settings=validated, reward={"answer": answer, "then": answer}
    )
    assert ended == (None if answer == "tell" else "stop") and max(trained) == steps
    assert min(run.steps()) == 5 and {json.loads(x)["alarm"] for x in (run.folder / "alarms.jsonl").open()} == {
        "reward"
    }
