"""The generated function calls: the old task as it was, the new one's splits, rows, rewards and traces."""

import hashlib
import json
import random

import pyarrow.parquet as parquet
import pytest
from recipe_samples import sample
from refused import refusal

from retool_mcore.config import compose
from retool_mcore.data import function_tasks
from retool_mcore.rewards.tool_calls import judge, tool_n1
from retool_mcore.rewards.toolrl import toolrl
from retool_mcore.train import prepare

MIX = {"calls_1": 1, "calls_2": 1, "calls_3": 1}


def digest(made) -> str:
    return hashlib.sha256(repr(made).encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def made():
    return {split: function_tasks.call_rows(120, 3, split, MIX, 0.7) for split in function_tasks.SPLITS}


def names(rows) -> set[str]:
    return {tool["name"] for row in rows for tool in json.loads(row["tools"])}


@pytest.mark.parametrize(
    ("seed", "rows", "as_list", "as_lines"),
    [
        (1, "1bbeb0d8312ddcbe", "116317cf99bf217f", "b1b795de510b5b1e"),
        (7, "59a4fb41acaae720", "140f5fbcae56bba8", "d8078b12fdf41fa7"),
    ],
)
def test_the_task_of_five_functions_is_what_the_recipes_figures_were_made_of(seed, rows, as_list, as_lines):
    made = function_tasks.rows(300, seed)
    assert digest(json.dumps(made)) == rows
    for style, expected in (("list", as_list), ("lines", as_lines)):
        assert digest(function_tasks.traces(made, seed, style, 0.3)) == expected


def test_no_function_is_in_two_splits_whatever_the_seed(made):
    everything = [function.name for function in function_tasks.call_functions()]
    assert len(everything) == len(set(everything)) == 400
    assert sorted(len(split) for split in function_tasks.SPLITS.values()) == [50, 50, 300]
    listed = {
        split: names(rows) | names(function_tasks.call_rows(120, 4, split, MIX, 0.0)) for split, rows in made.items()
    }
    assert all(
        listed[a].isdisjoint(listed[b]) for a, b in (("train", "held_back"), ("train", "test"), ("held_back", "test"))
    )
    assert listed["train"] <= set(everything) and len(listed["held_back"]) > 40
    # Their words are known from training, so that what is new is the function and not its spelling.
    words = {word for name in everything[:300] for word in name.split("_")}
    assert {word for name in everything[300:] for word in name.split("_")} <= words


def test_rows_follow_from_seed_and_split(made):
    again = function_tasks.call_rows(120, 3, "train", MIX, 0.7)
    assert again == made["train"] != function_tasks.call_rows(120, 4, "train", MIX, 0.7)


def test_signatures_give_the_same_names_other_parameters():
    functions, others = (function_tasks.call_functions(signatures) for signatures in ("", "other"))
    assert [function.name for function in functions] == [function.name for function in others]
    same = sum(list(a.parameters) == list(b.parameters) for a, b in zip(functions, others, strict=True))
    assert same < 40  # of 400: by chance
    parameters = {function.name: set(function.parameters) for function in others}
    for row in function_tasks.call_rows(50, 3, "train", MIX, 0.7, signatures="other"):
        assert all(set(tool["parameters"]) == parameters[tool["name"]] for tool in json.loads(row["tools"]))


def test_a_row_lists_three_functions_too_many_mostly_alike(made):
    alike = 0
    for row in made["train"]:
        called, listed = {call["name"] for call in json.loads(row["answers"])}, names([row])
        words = {word for name in called for word in name.split("_")}
        others = listed - called
        assert called < listed and len(others) == function_tasks.DISTRACTORS
        alike += sum(not words.isdisjoint(name.split("_")) for name in others)
    assert 0.6 < alike / (3 * len(made["train"])) < 0.85
    assert {len(json.loads(row["answers"])) for row in made["train"]} == {1, 2, 3}


def test_what_is_left_out_is_optional_and_every_value_can_be_read_off_the_query(made):
    left_out = 0
    for row in made["train"]:
        described = {tool["name"]: tool["parameters"] for tool in json.loads(row["tools"])}
        for call in json.loads(row["answers"]):
            function = next(f for f in function_tasks.call_functions() if f.name == call["name"])
            for name, parameter in function.parameters.items():
                if name not in call["arguments"]:
                    left_out += 1
                    assert described[call["name"]][name]["type"].endswith(", optional")
                    continue
                said = {said for said, value in parameter.values if value == call["arguments"][name]}
                asked = {phrase.format(word) for phrase in parameter.phrases for word in said}
                assert any(phrase in row["query"] for phrase in asked), (row["query"], call)
    assert left_out > 10


def answered(calls, truth):
    text = f"<think>so</think><tool_call>{chr(10).join(map(json.dumps, calls))}</tool_call>"
    assert judge(text, truth)["acc"] == (calls == json.loads(truth))
    return sample(text=text, ground_truth=truth)


def spoilt(calls):
    """(calls of a policy, what ToolRL's fine reward takes off for them), the truth's first call changed."""
    first, rest = calls[0], calls[1:]
    size = len(first["arguments"])
    best = 1 + sum(1 + len(call["arguments"]) for call in calls)
    yield [{**first, "name": "nothing"}, *rest], (1 - (len(rest) / (len(rest) + 2)) + 1 + size) * 6 / best
    key = next(iter(first["arguments"]))
    yield [{**first, "arguments": first["arguments"] | {key: "wrong"}}, *rest], 6 / best
    yield rest, (1 - len(rest) / len(calls) + 1 + size) * 6 / best


def test_the_rewards_take_the_truth_and_price_its_perturbations_as_the_papers_say(made):
    for index, row in enumerate(made["held_back"]):
        problem = function_tasks.call_problem(row, index)
        truth = json.loads(row["answers"])
        assert problem.data_source == f"calls_{len(truth)}"

        right = answered(truth, problem.answer)
        assert tool_n1(right, lines=True) == 1 and tool_n1(right) == 0
        assert toolrl(right) == toolrl(right, granularity="coarse") == 4
        for calls, lost in spoilt(truth):
            if len({call["name"] for call in truth}) == len(truth) and calls:
                wrong = answered(calls, problem.answer)
                assert tool_n1(wrong, lines=True) == 0
                assert toolrl(wrong, granularity="coarse") == -2
                assert toolrl(wrong) == pytest.approx(4 - lost)


def test_a_trace_calls_rightly_unless_it_is_asked_to_err(made):
    rows = made["train"]
    for share, style in ((1.0, "lines"), (0.0, "lines"), (1.0, "list")):
        for row, trace in zip(rows, function_tasks.traces(rows, 5, style, share, "calls"), strict=True):
            told = judge(trace.segments[0].text, row["answers"])
            assert told["acc"] == share
            assert [c["name"] for c in json.loads(told["pred"])] == [c["name"] for c in json.loads(row["answers"])]
    assert function_tasks.traces(rows, 5, "lines", 0.5, "calls") == function_tasks.traces(
        rows, 5, "lines", 0.5, "calls"
    )


def test_prepare_writes_the_sets_and_says_what_could_be_copied(tmp_path, capsys):
    sizes = [f"data.calls.{key}={n}" for key, n in (("sft", 40), ("train", 60), ("test", 20), ("held_back", 10))]
    config = compose("prepare", ["data=calls", "name=c", f"runs_dir={tmp_path}", "model=qwen2.5-7b", *sizes])
    prepare.run(config)
    said = capsys.readouterr().out
    assert "calls: 10 held_back, 20 test, 60 train problems, 38 + 2 traces in" in said
    assert "% ask for names and values as they are called with" in said
    table = parquet.read_table(config.data.train_files).to_pylist()
    assert len(table) == 60 and {row["ability"] for row in table} == {"function_calling"}
    assert parquet.read_table(config.data.sft_train_files).num_rows == 38


def test_more_rows_than_there_are_queries_are_refused():
    rng = random.Random(1)
    assert "the calls task has no 9 distinct queries" in refusal(
        function_tasks._distinct, 9, lambda: {"query": rng.choice("ab")}, "calls"
    )
