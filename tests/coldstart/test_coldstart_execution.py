"""What becomes of traces whose programs misbehave, in a real sandbox, and of rows at the last filters."""

import asyncio
import json
import pickle

import pytest

from retool_mcore.coldstart import select
from retool_mcore.coldstart.config import EvaluationFile, Execution, Select
from retool_mcore.coldstart.dedup import Decontaminate
from retool_mcore.coldstart.execution import Executor
from retool_mcore.coldstart.normalise import check_form
from retool_mcore.coldstart.pipeline import outcomes
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.coldstart.select import Selector
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.local import LocalSandbox
from tests.support.coldstart.recorded_rewrites import block

END = "So.\n<answer>\n\\boxed{4}\n</answer>"


def traced(*programs: tuple[str, str], after: str = "") -> Row:
    """A row whose rewrite holds (program, claimed output) pairs, as the format check leaves it."""
    text = "First.\n" + "Then.\n".join(block(*program) for program in programs) + after + END
    return check_form(Row("k", 0, "What is 2+2?", "", "4", rewrite=text))


@pytest.fixture(scope="module")
def execute():
    """execute(row, **settings): the row after the execution stage."""
    sandbox = LocalSandbox(timeout_s=1.0, preload=[], workers=1)
    with asyncio.Runner() as runner:
        yield lambda row, **settings: runner.run(Executor(Execution(**settings), sandbox)(row))
        runner.run(sandbox.close())


@pytest.mark.parametrize(
    "code, claim, settings, reason",
    [
        ("while True: pass", "4", {}, "program hangs"),
        ("print(1 / 0)", "4", {}, "program fails: ZeroDivisionError"),
        ("x = 4", "4", {}, "program prints nothing"),
        ("print('x' * 50)", "x", {"max_output_chars": 40}, "program prints too much"),
        ("print(4)", "5", {"on_mismatch": "drop"}, "claimed output is wrong"),
    ],
)
def test_programs_that_misbehave_drop_their_trace(execute, code, claim, settings, reason):
    with pytest.raises(Drop, match=reason):
        execute(traced((code, claim)), **settings)


def test_variables_live_on_in_a_session_alone(execute):
    programs = (("x = 3\nprint(x)", "3"), ("print(x + 1)", "4"))
    row = execute(traced(*programs), session=True)
    assert [s["text"] for s in row.segments if s["kind"] == "observation"] == ["3", "4"]
    with pytest.raises(Drop, match="NameError"):  # by default each is by itself, as in a rollout
        execute(traced(*programs))


def test_a_wrong_claim_is_repaired_unless_the_text_relies_on_it(execute):
    row = execute(traced(("print(4)", "5")))
    assert (row.segments[2]["text"], row.repaired, row.claimed) == ("4", 1, ["5"])
    with pytest.raises(Drop, match="text relies on a wrong claimed output: 5;"):
        execute(traced(("print(4)", "5"), after="With 5 at hand. "))
    kept = execute(traced(("print(1 / 0)", "oh"), ("print(4)", "4")), on_error="keep")
    assert "ZeroDivisionError" in kept.segments[2]["text"] and kept.failed_programs == 1


def test_a_sandbox_that_is_down_stops_the_run():
    class Down:
        async def run(self, code, *, session=None):
            return Result(Status.SANDBOX, "", "no answer\n", None, 0.0)

    with pytest.raises(UserError, match="sandbox is down"):
        asyncio.run(Executor(Execution(), Down())(traced(("print(4)", "4"))))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", 0))


@pytest.mark.parametrize(
    "bounds, reason",
    [
        ({"min_programs": 2}, "too few programs"),
        ({"max_programs": 0, "min_programs": 0}, "too many programs"),
        ({"max_tokens": 20}, "too many tokens"),
        ({"max_difficulty": 5.0}, "no difficulty"),
        ({"max_judge_share": 0.5}, "too easy for the judge"),
    ],
)
def test_bounds_drop_rows(tokenizer, bounds, reason):
    row = traced(("print(4)", "4"))
    row.judge_share = 1.0
    assert Selector(Select(), tokenizer)(row).tokens > 20
    with pytest.raises(Drop, match=reason):
        Selector(Select(**bounds), tokenizer)(row)


def test_a_shifted_mask_is_seen(tokenizer, monkeypatch):
    render = select.render_segments

    def shifted(fmt, loaded, segments):
        ids, mask, spans = render(fmt, loaded, segments)
        return ids, mask[-1:] + mask[:-1], spans

    monkeypatch.setattr(select, "render_segments", shifted)
    with pytest.raises(Drop, match="mask is wrong"):
        Selector(Select(), tokenizer)(traced(("print(4)", "4")))


def test_processes_give_what_one_process_gives(monkeypatch, tmp_path, tokenizer):
    monkeypatch.setattr("retool_mcore.coldstart.pipeline._WORTH_S", 0.0)
    texts = ["<code>" if number % 3 else "text \\boxed{4}<answer>\\boxed{4}</answer>" for number in range(40)]
    rows = [Row(f"k{n}", n, "2+2?", "", "4", rewrite=text) for n, text in enumerate(texts)]
    (tmp_path / "evaluation.jsonl").write_text(json.dumps({"problem": "Which two even numbers add up to three?"}))
    decontaminate = Decontaminate([EvaluationFile(path=str(tmp_path / "evaluation.jsonl"))], 5)
    decontaminate.prepare()
    for row in rows[::2]:
        row.problem = f"Case {row.index}: two even numbers add up to {row.index}."
    selector = Selector(Select(min_programs=2), tokenizer)
    selector.prepare()
    # What a process is given is a pickled copy. Processes themselves once: each takes seconds for its imports.
    for check, processes in ((decontaminate, 2), (check_form, 1), (selector, 1)):
        copy = pickle.loads(pickle.dumps(check))
        several, one = (
            [(o.index, o.reason) for o in outcomes(*how)] for how in ((copy, rows, processes), (check, rows, 1))
        )
        assert several == one and any(reason for _, reason in one)
