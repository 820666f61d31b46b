"""What is held back is disjoint from everything else, the same for a seed, and told."""

import json

import pyarrow.parquet as pq
import pytest

from retool_mcore.config import compose
from retool_mcore.data.arithmetic import task
from retool_mcore.data.held_back import hold_back, shared_problem
from retool_mcore.data.prepare import write_problems, write_traces
from retool_mcore.data.records import Problem, Segment, Trace, normalise_question
from retool_mcore.data.schema import check_rl
from retool_mcore.errors import UserError
from retool_mcore.preflight.data import count_rows
from retool_mcore.train import prepare


def questions(*paths) -> list[str]:
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return [normalise_question(row["extra_info"]["question"]) for row in rows]


def write(path, names, source="s"):
    problems = [Problem(source, f"What is {name}?", "1", index) for index, name in enumerate(names)]
    write_problems(problems, path, template="tiny", split="train")
    return path


@pytest.fixture
def files(tmp_path):
    """Two training files that share problems 30 to 39, a test set with 0 to 4, and a cold start with 5 to 9."""
    a = write(tmp_path / "a.parquet", range(40))
    b = write(tmp_path / "b.parquet", range(30, 60), "t")
    test = write(tmp_path / "test.parquet", [f" {n}" for n in range(5)])
    sft = tmp_path / "sft.parquet"
    segments = (Segment("text", "\\boxed{1}"),)
    traces = [Trace("s", f"WHAT is {n}?", segments, n) for n in range(5, 10)]
    write_traces(traces, sft, template="tiny", split="train")
    return [a, b], [test, sft]


def test_it_leaves_the_training_files_and_is_in_no_other(files, tmp_path):
    train, others = files
    before = {path: questions(path) for path in train}
    held_file = tmp_path / "held_back.parquet"
    told = hold_back(train, others, held_file, count=30, seed=1)
    assert told == f"held back: 30 of 60 training problems (50 are in no other file), seed 1: {held_file}"
    held = set(questions(held_file))
    assert len(held) == 30 and not held & set(questions(*train))
    assert not held & {f"what is {n}?" for n in range(10)}
    for path in train:
        check_rl(path)
        assert questions(path) == [question for question in before[path] if question not in held]  # order and all else
    assert set(questions(held_file, *train)) == {question for path in train for question in before[path]}
    assert {row["extra_info"]["split"] for row in pq.read_table(held_file).to_pylist()} == {"held_back"}
    assert shared_problem(train, [held_file]) is None and shared_problem(others, [held_file]) is None
    assert shared_problem([held_file], [held_file]) in held


def test_it_follows_from_the_seed_and_the_problems_alone(tmp_path):
    def held(names, seed):
        out = tmp_path / "h.parquet"
        hold_back([write(tmp_path / "a.parquet", names)], [], out, count=8, seed=seed)
        return set(questions(out))

    assert held(range(50), 1) == held(reversed(range(50)), 1) != held(range(50), 2)
    assert len(held(range(50), 1) & held(range(51), 1)) >= 7  # one problem more moves one at most


@pytest.mark.parametrize("count", [51, 60])
def test_too_many_are_refused_and_nothing_is_written(files, tmp_path, count):
    train, others = files
    before = [path.read_bytes() for path in train]
    with pytest.raises(UserError, match=f"data.held_back={count} of 60 problems, 50 in no other file"):
        hold_back(train, others, tmp_path / "held_back.parquet", count=count, seed=1)
    assert [path.read_bytes() for path in train] == before and not (tmp_path / "held_back.parquet").exists()


def test_retool_prepare_holds_back_of_the_papers_data(tmp_path, capsys):
    def rows(names, **columns):
        return "".join(json.dumps({key: make(n) for key, make in columns.items()}) + "\n" for n in names)

    dapo, aime = tmp_path / "dapo.jsonl", tmp_path / "aime.jsonl"
    problem = {"prompt": lambda n: [{"role": "user", "content": f"Find {n}."}]}
    dapo.write_text(rows(range(40), **problem, reward_model=lambda n: {"ground_truth": "1"}))
    aime.write_text(rows(range(10), problem=lambda n: f"Find {n}.", answer=lambda n: "1"))
    overrides = [
        *("data=math", "name=t", f"runs_dir={tmp_path}", "model=qwen2.5-7b", "data.held_back=25"),
        *("data.sources.retool_sft=null", "data.sources.aime_2024_maxwell=null"),
        *(f"data.sources.dapo_math_17k.location={dapo}", f"data.sources.aime_2025.location={aime}"),
    ]
    prepare.run(compose("prepare", overrides))
    data = compose("rl", overrides).data
    held, train, test = (questions(path) for path in (data.held_back_files, data.train_files, data.validation_files[1]))
    assert (len(held), len(train), len(test)) == (25, 15, 10)
    assert not set(held) & (set(train) | set(test))
    assert "held back: 25 of 40 training problems (30 are in no other file), seed 1" in capsys.readouterr().out


def test_the_made_tasks_draw_it_on_top_and_keep_their_other_sets(tmp_path):
    """README's figures are of these sets."""
    without, some = (task(sft=60, train=50, validation=20, seed=3, held_back=n) for n in (0, 15))
    assert (some.sft, some.train, some.validation) == (without.sft, without.train, without.validation)
    sets = [{normalise_question(r.question) for r in part} for part in (some.sft, some.train, some.validation)]
    held = {normalise_question(problem.question) for problem in some.held_back}
    assert len(held) == 15 and not any(held & part for part in sets)
    sizes = ["data.functions.sft=60", "data.functions.train=30", "data.functions.validation=8"]
    config = compose("prepare", ["data=functions", "name=f", f"runs_dir={tmp_path}", "model=qwen2.5-7b", *sizes])
    prepare.run(config)
    held_file = config.data.held_back_files
    assert count_rows([held_file]) == config.data.functions.held_back
    assert shared_problem([config.data.train_files, config.data.validation_files], [held_file]) is None
