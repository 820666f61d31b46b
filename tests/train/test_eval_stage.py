"""The stage's process with a scripted engine: what it samples, what it grades again, and how it tells where it is."""

import asyncio
import json
import statistics

import own_rewards
import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.environments.text import TextEnvironment
from retool_mcore.errors import UserError
from retool_mcore.rollout.episode import Generation
from retool_mcore.runner.phase_line import phase_line
from retool_mcore.state import heartbeat
from retool_mcore.train import eval as stage

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")


class Engine:
    """Ends well; `asked` counts what is sampled from it."""

    asked = 0

    def shutdown(self):
        pass


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Returns a function that runs the stage in tmp_path/eval; every sample is an answer in a box and on a line."""
    config = compose("eval", ["k=2", "rollout.format=none"])
    make_tiny_model(tmp_path / "model", 1)
    config.policy_path = str(tmp_path / "model")
    config.data.validation_files = str(tmp_path / "test.parquet")
    problems = [Problem("sums", f"{n} + {n}?", str(2 * n), n) for n in range(3)]
    write_problems(problems, tmp_path / "test.parquet", template="tiny", split="test")
    folder = tmp_path / "eval"
    folder.mkdir()
    monkeypatch.setenv(heartbeat.VARIABLE, str(heartbeat.prepare(folder)))
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    engines = []

    def build(config):
        engines.append(Engine())
        return engines[-1]

    def sampler(engine, config, fmt, index, sample):
        async def generate(ids, max_tokens):
            engine.asked += 1
            return Generation([*fmt.encode(f"\\boxed{{{2 * index}}}\nThe answer: 7"), fmt.eos_id], None)

        return generate

    monkeypatch.setattr(stage, "build_engine", build)
    monkeypatch.setattr(stage, "sampler", sampler)

    def run(**changes):
        for key, value in changes.items():
            OmegaConf.update(config, key, value)
        engines.clear()
        return asyncio.run(stage.run_all(config, folder)), [engine.asked for engine in engines]

    return run


def test_samples_are_taken_up_and_graded_by_the_rule_that_is_asked_for(evaluated, tmp_path):
    records, asked = evaluated()
    assert asked == [6] and [record["acc"] for record in records] == [1.0] * 6
    assert {record["graded_as"] for record in records} == {"boxed, exact"}
    assert phase_line(tmp_path / "eval").startswith("evaluation 100 % (6 trajectories finished, 0 live, ")

    path = tmp_path / "eval" / stage.TRAJECTORIES
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:9])  # a kill
    again, asked = evaluated()
    assert asked == [2]
    assert [(record["index"], record["sample"]) for record in again] == [(i, s) for i in range(3) for s in range(2)]

    regraded, asked = evaluated(answer="answer_tag")
    assert asked == [], "no engine starts for what is there"
    assert [record["acc"] for record in regraded] == [0.0] * 6
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(record["graded_as"], record["acc"]) for record in kept} == {("answer_tag, exact", 0.0)}
    assert [record["acc"] for record in evaluated(answer="boxed")[0]] == [1.0] * 6
    assert evaluated(k=3)[1] == [3]


def test_a_reward_of_the_users_own_grades_and_says_what_is_right(evaluated, capsys):
    """All answers are right; the reward pays for the second problem alone, by what it sees of the row."""
    records, asked = evaluated(**{"recipe.reward.name": "own_rewards.second"})
    assert asked == [6] and [record["score"] for record in records] == [0.25, 0.25, 0.5, 0.5, 0.25, 0.25]
    assert [record["acc"] for record in records] == [1.0] * 6
    again, asked = evaluated(**{"recipe.right_from": 0.5})
    assert asked == [] and [record["acc"] for record in again] == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    (rule,) = {record["graded_as"] for record in again}
    assert rule.startswith("boxed, exact, reward own_rewards.second()@") and rule.endswith(", right from 0.5")
    assert evaluated(**{"recipe.right_from": 0.25})[0][0]["acc"] == 1.0
    figures = stage.summarise(again, 2)
    assert figures["reward"] == {"sums": pytest.approx(1 / 3)} and figures["accuracy"]["sums"]["mean@2"] == 1 / 3


def test_standard_errors_are_over_the_problems_and_lm_evals_form_has_them():
    accs = {0: (1, 1), 1: (0, 1), 2: (0, 0), 3: (1, 1)}
    records = [
        {"data_source": source, "index": index, "sample": n, "acc": acc, "pred": str(acc)}
        for source, indices in (("four", (0, 1, 2, 3)), ("one", (1,)))
        for index in indices
        for n, acc in enumerate(accs[index])
    ]
    metrics = stage.accuracies(records, 2) | {"policy": "runs/mine/rl/policy"}
    error = statistics.stdev([1, 0.5, 0, 1]) / 2
    assert metrics["standard_error"]["four"]["mean@2"] == pytest.approx(error)
    assert metrics["standard_error"]["one"]["mean@2"] is None and metrics["problems"] == {"four": 4, "one": 1}
    written = stage.harness_results(metrics, {"temperature": 1.0, "top_p": 0.7})
    four = written["results"]["four"]
    assert four["acc,none"] == 0.625 and four["acc_stderr,none"] == pytest.approx(error)
    assert written["results"]["one"]["acc_stderr,none"] == "N/A" and written["n-samples"]["four"]["effective"] == 4
    assert json.loads(json.dumps(written)) == written


def test_an_edited_reward_grades_again(evaluated, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_reward.py").write_text("def f(sample):\n    return 0.5\n")
    before = evaluated(**{"recipe.reward.name": "edited_reward.f"})[0][0]["graded_as"]
    (tmp_path / "edited_reward.py").write_text("def f(sample):\n    return 0.75\n")
    after, asked = evaluated()
    assert asked == [] and after[0]["graded_as"] != before


def test_a_reward_that_always_fails_ends_the_evaluation_and_keeps_the_samples(evaluated):
    with pytest.raises(UserError, match=r"own_rewards\.raises fails for every sample so far: ZeroDivisionError"):
        evaluated(**{"recipe.reward.name": "own_rewards.raises"})
    records, asked = evaluated(**{"recipe.reward.name": "own_rewards.second"})
    assert asked == [] and len(records) == 6 and not any(record["error"] for record in records)


def test_a_reward_that_fails_for_some_is_told_and_scored_again_at_the_next_start(evaluated, monkeypatch):
    records, _ = evaluated(**{"recipe.reward.name": "own_rewards.breakable"})
    monkeypatch.setattr(own_rewards, "BROKEN", {1})
    records, asked = evaluated(k=3)
    assert asked == [3] and sum(bool(record["error"]) for record in records) == 1
    assert stage.summarise(records, 3)["scoring_errors"] == 1
    monkeypatch.setattr(own_rewards, "BROKEN", set())
    records, asked = evaluated()
    assert asked == [] and not any(record["error"] for record in records) and len(records) == 9


ONCE = """
class Once:
    "Ends with the first text; seed 1 is worth a whole point."

    def reset(self, seed=None):
        self.seed = seed
        return "Say something.", {}

    def step(self, action):
        return f"Heard {action}", 1.0 if self.seed == 1 else 0.25, True, False, {}
"""


def test_an_environments_episodes_are_played_and_graded(evaluated, tmp_path, monkeypatch):
    (tmp_path / "once_env.py").write_text(ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    TextEnvironment("once_env.Once", "once").write_rows(tmp_path / "once.parquet", seeds=range(3), split="test")
    use = [
        {"path": "retool_mcore.environments.text.TextEnvironment", "args": {"make": "once_env.Once", "name": "once"}}
    ]
    changes = {"data.validation_files": str(tmp_path / "once.parquet"), "toolbox.use": use, "answer": "environment"}
    records, asked = evaluated(**changes, **{"recipe.reward": {"name": "environment", "args": {}}})
    assert asked == [6] and {record["finish"] for record in records} == {"tool"}
    assert [(record["score"], record["acc"]) for record in records[::2]] == [(0.25, 0.0), (1.0, 1.0), (0.25, 0.0)]
    assert {record["calls"][0]["stdout"].partition(" ")[0] for record in records} == {"Heard"}
    again, asked = evaluated(**{"recipe.right_from": 0.25})
    assert asked == [] and [record["acc"] for record in again] == [1.0] * 6
    assert stage.summarise(again, 2)["reward"] == {"once": pytest.approx(0.5)}
