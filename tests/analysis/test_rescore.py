"""`retool rescore`: stored trajectories under another reward, answer rule or filter, without an engine."""

import json

import made_run
import pytest
import yaml

from retool_mcore.analysis.rescore import rescore
from retool_mcore.cli import main
from retool_mcore.data.tiny_model import write_tokenizer
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import write_step

RECIPE = {
    "reward": {"name": "retool", "args": {}},
    "group_reward": {"name": None, "args": {}},
    "answer": "boxed",
    "decimals": "exact",
    "overlong_buffer": 0,
    "advantage": "grpo",
    "normalise_by_std": False,
    "filters": {"all_equal": False, "accuracy": None, "samples": [], "repetition": {"n": 16, "limit": 0.2}},
}
ROLLOUT = {"format": "text", "chat_template": None, "max_response_tokens": 320}


def half(sample) -> float:
    """A user's reward: half a point for an answer that is right."""
    return 0.5 * sample.acc


def broken(sample) -> float:
    raise KeyError("no such column")


@pytest.fixture
def run(tmp_path):
    """Two steps of two groups of four: the stored verdicts say that every second answer is right, and all are."""
    made_run.make_run(tmp_path)
    write_tokenizer(tmp_path / "model")
    config = {"recipe": RECIPE, "rollout": ROLLOUT, "model": {"apply_chat_template_kwargs": {}}, "init_from": ""}
    (tmp_path / "rl" / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_the_graders_verdict_of_today_is_compared_with_the_stored_one(run):
    found = rescore(run)
    assert len(found.cases) == 16 and all(case.new_acc == 1.0 and case.new_pred == "42" for case in found.cases)
    differ = [case for case in found.cases if case.differs]
    assert [(case.score, case.new_score) for case in differ] == [(-1.0, 1.0)] * 8
    assert found.without_signal() == (0, 4)
    # One example of each problem comes first; every one is named as the viewer names it.
    assert {case.problem for case in found.examples()[:2]} == {"arithmetic #0", "arithmetic #1"}
    assert (found.examples()[0].step, found.examples()[0].row) == (1, 1)


def test_a_reward_by_dotted_path_pays_what_it_says(run):
    found = rescore(run, reward=f"{__name__}.half")
    assert {case.new_score for case in found.cases} == {0.5}
    old, new = found.advantages()
    assert abs(old).mean() == 1.0 and abs(new).mean() == 0.0


def test_arguments_answer_rules_and_filters_are_keys_of_the_recipe(run):
    words = ["recipe.filters.all_equal=true", "recipe.reward.args={max_calls: 6}"]
    found = rescore(run, reward="otc_ppo", answer="final_line", overrides=words, steps=[2])
    assert {case.step for case in found.cases} == {2} and {case.new_acc for case in found.cases} == {1.0}
    assert all(0.5 < case.new_score < 1 for case in found.cases)
    assert found.dropped() == ({}, {"all_equal": 2})


def test_a_group_reward_sees_the_whole_group(run):
    words = ["recipe.group_reward.name=otc_grpo", "recipe.group_reward.args={max_calls: 6}"]
    assert {case.new_score for case in rescore(run, overrides=words).cases} == {1.0}


def test_a_run_with_a_critic_has_no_advantages_to_compare(run):
    assert rescore(run, overrides=["recipe.advantage=gae"]).advantages() is None


def test_an_evaluation_is_scored_again(run):
    folder = run / "eval" / "rl"
    folder.mkdir(parents=True)
    record = made_run.record(1, 1)
    plain = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in record.items()}
    (folder / "trajectories.jsonl").write_text(json.dumps(plain) + "\n")
    config = {"answer": "boxed", "decimals": "exact", "rollout": ROLLOUT, "model": {}, "policy_path": ""}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    found = rescore(run, evaluation="rl", reward="zerotir")
    assert [(case.acc, case.new_acc, case.new_score) for case in found.cases] == [(0.0, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"reward": "no_such"}, "no reward is called"),
        ({"answer": "tests"}, "needs the verdict of an environment"),
        ({"answer": "last"}, "recipe.answer is 'last'"),
        ({"overrides": ["recipe.answr=boxed"]}, "expected recipe.KEY=VALUE"),
        ({"overrides": ["answer=boxed"]}, "expected recipe.KEY=VALUE"),
        ({"overrides": ["recipe.filters.al_equal=true"]}, "expected recipe.KEY=VALUE"),
        ({"overrides": ["recipe.decimals={"]}, "is no YAML"),
        ({"steps": [7]}, "it has 1 to 2"),
        ({"evaluation": "sft"}, "the run has trajectories of rl"),
        ({"reward": f"{__name__}.broken"}, "8 times of 8 with the same error: KeyError: 'no such column'"),
    ],
)
def test_what_does_not_fit_is_refused(run, words, said):
    with pytest.raises(UserError, match=".*".join(said.split("*"))) as refused:
        rescore(run, **words)
    assert said in str(refused.value)


def test_the_command_reports_and_changes_nothing_in_the_run(run, capsys, tmp_path_factory):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    out = tmp_path_factory.mktemp("out") / "scored.json"
    assert main.main(["rescore", str(run), "--reward", "zerotir", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "rl: 16 trajectories in 4 groups, steps 1 to 2" in text and 'reward.name "retool" -> "zerotir"' in text
    assert "wrong to right 8" in text and text.count("#/t/") == 8
    assert len(json.loads(out.read_text())["cases"]) == 16
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert main.main(["rescore", str(run), "--steps", "5-2"]) == 2 and "--steps 5-2" in capsys.readouterr().err


def test_a_run_without_ground_truth_says_so(run):
    write_step(run / "rl" / "trajectories", 3, [made_run.record(3, 0, ground_truth="")])
    with pytest.raises(UserError, match="ground_truth"):
        rescore(run, steps=[3])
