"""A policy can neither void its own group nor hang the judge: whatever raises while scoring is a counted zero."""

import asyncio
import json

import pytest
from recipe_samples import call, turn

from retool_mcore.config import compose
from retool_mcore.data.formats import HermesFormat
from retool_mcore.data.function_schema import argument_error, check_schema, function_schema
from retool_mcore.data.untrusted import MAX_CHARACTERS, MAX_DEPTH, read_json
from retool_mcore.environments.files import RepositoryError, write
from retool_mcore.environments.repository import Check, RepositoryEnvironment, RepositoryTask
from retool_mcore.errors import UserError
from retool_mcore.metrics.sandbox import grader_metrics
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rewards.grader.structure import decide
from retool_mcore.rewards.verdict import verdict
from retool_mcore.rollout.trajectory import Span, Trajectory
from retool_mcore.rollout.wire import to_wire
from retool_mcore.sandbox.base import Result, Status


def score(recipe, text, truth="4321", **extra):
    record = Trajectory([1], [1, 2], [1, 1], [], [Span("policy", 0, 2)], [call("success")], 1, "answer", 0.0, 0.0)
    record.turn_notes = [turn(programs=1, boxed=True)]
    extra |= {"trajectory": to_wire(record.to_record()), "policy_text": text, "response_length": 2, "training_step": 1}
    return compute_score("x", text, truth, extra, recipe=compose("rl", [f"recipe={recipe}"]).recipe,
                         max_response_tokens=100)  # fmt: skip


@pytest.mark.parametrize(("recipe", "wrong"), [("retool", -1.0), ("artist", 0.0)])
def test_what_raises_while_scoring_is_worth_what_nothing_is_and_counted(monkeypatch, recipe, wrong):
    def break_(answer, truth):
        raise RecursionError("made by the answer")

    monkeypatch.setattr("retool_mcore.rewards.math.decide_once", break_)
    found = score(recipe, "so \\boxed{4321}")
    assert (found["score"], found["acc"], found["drop"], found["graded_by"]) == (wrong, 0.0, "", "crashed")
    assert grader_metrics([found])["crashed"] == 1.0


def test_a_reward_that_raises_on_what_the_policy_called_is_no_reward(monkeypatch):
    def reward(sample, **args):
        return 3.0 / len(sample.calls[0].missing) if sample.calls else 2.0

    monkeypatch.setattr("retool_mcore.rewards.scoring.find_reward", lambda name: reward)
    found = score("artist", "so \\boxed{4321}")
    assert (found["score"], found["acc"], found["graded_by"]) == (0.0, 0.0, "crashed"), "never above 0"


def test_a_run_that_is_set_up_wrongly_still_stops():
    with pytest.raises(UserError, match="ground_truth"):
        score("retool", "\\boxed{4321}", truth="")


def test_tests_that_raised_are_counted_and_wrong():
    found = verdict(policy_text="", text="", ground_truth="", policy="tests", tested=float("nan"))
    assert (found["score"], found["acc"], found["graded_by"]) == (0.0, 0.0, "crashed")


def test_a_forged_report_of_the_checks_that_is_nested_deeply_is_a_zero():
    """The exploit: the program finds the check's mark and prints it before 5,000 brackets."""

    class Forger:
        async def run(self, code, **options):
            mark = code.rpartition("print('")[2].partition("'")[0]
            return Result(Status.SUCCESS, f"{mark}{'[' * 5000}\n", "", None, 0.0)

    async def main():
        environment = RepositoryEnvironment(Forger(), 5)
        files = {"a.py": "", "tests/test_a.py": ""}
        task = RepositoryTask("", files, (Check("", "1", "1"), Check("", "2", "2")))
        await environment.reset({"repository": task.to_json()})
        environment.files["a.py"] = "changed"
        return await environment.score()

    assert asyncio.run(main()) == 0.0


def test_nested_arguments_are_malformed_and_no_error_of_ours():
    hermes = object.__new__(HermesFormat)
    hermes.eos_text = ""
    for depth in (MAX_DEPTH + 1, 500, 900, 981, 990, 5000):
        nested = "[" * depth + "]" * depth
        text = '<tool_call>{"name": "code_interpreter", "arguments": {"code": ' + nested + "}}</tool_call>"
        [found] = hermes.parse(text)
        assert "nested deeper than 64 levels" in found.error


def test_bounded_json():
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert read_json(json.dumps("[" * 1000)) == "[" * 1000
    for text in ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), '{"a":' * 65 + "1" + "}" * 65, "[" * 10**6):
        with pytest.raises(ValueError, match="nested deeper|longer than 200,000 characters"):
            read_json(text)
    assert read_json('[{"a": 1}, {"a": {"a": 1}}]')
    for text in ('{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]'):
        with pytest.raises(ValueError, match="key twice"):
            read_json(text)
    assert read_json(f'"{"x" * (MAX_CHARACTERS - 2)}"')
    with pytest.raises(ValueError, match="longer than 200,000"):
        read_json(f'"{"x" * MAX_CHARACTERS}"')


@pytest.mark.timeout(20)
def test_a_pattern_that_backtracks_is_stopped():
    """`^(a|aa)+$` takes twice as long for every other character: 60 of them would take years."""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a|aa)+$"}}}
    assert argument_error(schema, {"x": "a" * 60 + "!"}) == "they cannot be checked (TimeoutError)"
    assert argument_error(schema, {"x": "a" * 60}) is None
    assert "does not match" in argument_error(schema, {"x": "b"})
    named = {"type": "object", "patternProperties": {"^(a|aa)+$": {"type": "integer"}}, "additionalProperties": False}
    assert "cannot be checked" in argument_error(named, {"a" * 60 + "!": 1})
    assert argument_error(named, {"aa": 1}) is None
    assert argument_error(named, {"aa": "1"}) == "aa: '1' is not of type 'integer'"
    assert "'b' was unexpected" in argument_error(named, {"b": 1})
    assert "cannot be checked" in argument_error({"type": "object", "properties": {"x": {"pattern": "("}}}, {"x": "1"})
    with pytest.raises(UserError, match="unevaluatedProperties"):
        check_schema(function_schema("f", "", named | {"unevaluatedProperties": False}))


@pytest.mark.timeout(20)
def test_a_schema_that_refers_to_itself_twice_is_stopped():
    """Each level of the argument doubles the work: 60 levels would never end."""
    node = {"anyOf": [{"type": "integer"}, *[{"type": "array", "items": {"$ref": "#/$defs/node"}}] * 2]}
    schema = {"type": "object", "properties": {"t": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    assert argument_error(schema, {"t": [[1], 2]}) is None
    assert argument_error(schema, {"t": json.loads("[" * 60 + '"x"' + "]" * 60)}) == (
        "they cannot be checked (TimeoutError)"
    )
    assert "non-unique" in argument_error({"type": "object", "properties": {"l": {"uniqueItems": True}}}, {"l": [1, 1]})


@pytest.mark.timeout(60)
def test_words_behind_a_number_do_not_hang_the_grader():
    """Every further letter doubled the time of the front's pattern for units: `\\boxed{5 aaa...!}` hung the reward."""
    decide("5 " + "a" * 60 + "!", "5")


def test_a_policy_writes_no_file_that_a_sandbox_cannot_take():
    """The run could not be prepared, which counted as the sandbox's failure: the whole group was made again."""
    repository = {}
    for path in ("a" * 300, "é" * 150, "/".join(["folder"] * 40), "/".join("a" * 17)):
        with pytest.raises(RepositoryError, match="a path may have 200 bytes"):
            write(repository, path, "")
    for number in range(10):
        write(repository, f"{number}.py", "x" * 200_000)
    with pytest.raises(RepositoryError, match="a repository may have 2000000 characters"):
        write(repository, "last.py", "x")
