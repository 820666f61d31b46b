"""`retool reward try`: a reward on texts of one's own, without an engine."""

import json
import re

import own_rewards
import pytest

from retool_mcore.cli.main import main
from retool_mcore.config import compose
from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.rewards.sample import sample_of_text


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "train.parquet"
    known = [Problem("sums", f"{n} + {n}?", str(2 * n), n, extra={"level": n}) for n in range(4)]
    write_problems([*known, Problem("sums", "Any plan?", "", 4)], path, template="tiny", split="train")
    return path


@pytest.fixture
def tried(rows, tmp_path, capsys):
    def run(content, *words, name="text.txt", place=rows):
        (tmp_path / name).write_text(content)
        code = main(["reward", "try", str(place), "--text", str(tmp_path / name), *words])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def test_a_text_is_judged_as_the_answer_to_its_row(tried):
    code, out, _ = tried("So \\boxed{4}", "--row", "2")
    assert code == 0 and re.search(r"row 2: 2 \+ 2\?  \(answer 4\)\nreward    1  \(retool\)\nverdict   right", out)
    assert "accuracy  1  (by the verdict)" in out
    assert "verdict   wrong: the answer read is '5'" in tried("\\boxed{5}", "--row", "2")[1]
    assert "wrong: no answer was found (recipe.answer=boxed)" in tried("5", "--row", "2")[1]
    assert "verdict   right" in tried("4", "--row", "2", "recipe.answer=final_line")[1]


def test_a_reward_of_ones_own_sees_the_row_and_says_what_is_right(tried):
    own = ("recipe.reward.name=own_rewards.second", "recipe.right_from=0.5")
    _, out, _ = tried("x", "--row", "1", *own)
    assert "reward    0.5  (own_rewards.second)" in out and "accuracy  1  (by a reward of 0.5 or more)" in out
    plan = ("recipe.reward.name=own_rewards.plan", "recipe.reward.args.worth=0.75", "recipe.right_from=1")
    _, out, _ = tried("x", "--row", "4", *plan)
    assert "reward    0.75  (own_rewards.plan: worth=0.75)" in out and "verdict   none: there is no answer" in out
    assert "accuracy  0  (by a reward of 1 or more)" in out


def test_each_line_of_a_file_with_its_row_and_the_mean(tried):
    lines = ["\\boxed{0}", {"text": "\\boxed{6}", "row": 3}, {"text": "no"}]
    _, out, _ = tried("\n".join(map(json.dumps, lines)), name="texts.jsonl")
    assert [int(found) for found in re.findall(r"^row (\d+)", out, re.MULTILINE)] == [0, 3, 0]
    assert out.endswith("3 texts: mean reward 0.333333, 2 right\n")


def test_what_raises_and_what_a_filter_leaves_out_are_told(tried):
    _, out, _ = tried("x", "recipe.reward.name=own_rewards.raises")
    assert "reward    0" in out and "the reward raised ZeroDivisionError" in out and "own_rewards.py" in out
    assert "filter    void_turn: such a trajectory is left out" in tried("no box", "recipe=simpletir")[1]
    assert "filter" not in tried("no box", "recipe=zerotir")[1]


def test_a_runs_recipe_and_problems_are_taken(tried, rows, tmp_path):
    for stage, words in (("prepare", []), ("rl", ["recipe=torl", "recipe.reward.args.executability=-0.5"])):
        config = compose(stage, words)
        config.data.train_files = str(rows)
        (tmp_path / "run" / stage).mkdir(parents=True)
        from omegaconf import OmegaConf

        (tmp_path / "run" / stage / "config.yaml").write_text(OmegaConf.to_yaml(config))
        if stage == "prepare":
            assert "(retool)" in tried("\\boxed{0}", place=tmp_path / "run")[1]
    assert "(torl: executability=-0.5)" in tried("\\boxed{0}", place=tmp_path / "run")[1]
    other = tried("\\boxed{0}", "recipe.reward.args.executability=0.25", place=tmp_path / "run")[1]
    assert "(torl: executability=0.25)" in other
    assert "(zerotir)" in tried("\\boxed{0}", "recipe=zerotir", place=tmp_path / "run")[1]


@pytest.mark.parametrize(
    ("words", "name", "content", "match"),
    [
        (["--row", "9"], "t.txt", "x", "row 9: the rows are numbered from 0 to 4"),
        ([], "t.jsonl", "{", r"t\.jsonl:1 is not JSON"),
        ([], "t.jsonl", "[1]", r"t\.jsonl:1: expected a text, or an object"),
        ([], "t.jsonl", "\n", "holds no text"),
        (["recipe.reward.name=nowhere.at"], "t.txt", "x", "reward nowhere.at cannot be loaded"),
        (
            ["recipe.reward.name=own_rewards.plan", "recipe.reward.args.x=1"],
            "t.txt",
            "x",
            "do not fit own_rewards.plan",
        ),
    ],
)
def test_bad_input_is_one_sentence(tried, words, name, content, match):
    code, _, err = tried(content, *words, name=name)
    assert code == 2 and re.search(match, err) and err.count("\n") == 1


def test_a_folder_that_is_no_run_is_refused(tried, tmp_path):
    code, _, err = tried("x", place=tmp_path)
    assert code == 2 and "is no run with data" in err


def test_three_lines_of_python():
    assert own_rewards.second(sample_of_text("So 2.", question="1 + 1?", index=1, source="sums")) == 0.5
    assert sample_of_text("a <code>print(1)</code> b").policy_text.split() == ["a", "b"]
