"""What a judge makes of one packed trajectory: grader, reward, punishment and filters of a recipe."""

import functools
import json
from unittest.mock import ANY

from recipe_samples import call, turn

from retool_mcore.config import compose
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rollout.trajectory import Span, Trajectory
from retool_mcore.rollout.wire import to_wire


@functools.cache
def composed(*overrides):
    """The recipe; scoring leaves it as it is, as a run scores all its trajectories by one."""
    return compose("rl", overrides).recipe


def outcome(name, answer, overrides=(), finish="answer", statuses=("error",), length=40):
    recipe = composed(f"recipe={name}", *overrides)
    extra = {"trajectory": to_wire(trajectory_of(length, statuses, finish).to_record())}
    extra |= {"policy_text": answer, "response_length": length, "training_step": 1}
    return compute_score("math", "decoded", "42", extra, recipe=recipe, max_response_tokens=160)


def trajectory_of(length, statuses, finish):
    return Trajectory(
        prompt_ids=[1],
        response_ids=list(range(length)),
        response_mask=[1] * length,
        logprobs=[],
        spans=[Span("policy", 0, length)],
        calls=[call(status) for status in statuses],
        turns=1,
        finish=finish,
        generate_s=0.0,
        tool_s=0.0,
        turn_notes=[turn(programs=len(statuses), boxed=True)],
    )


def test_each_recipe_scores_by_its_own_reward():
    right = "so \\boxed{42}"
    assert outcome("retool", right) == {
        "score": 1.0,
        "acc": 1.0,
        "pred": "42",
        "overlong": 0.0,
        "drop": "",
        "graded_by": ANY,  # "memo" where another test has asked the same
        "error": "",
    }
    assert outcome("zerotir", "\\boxed{41}")["score"] == 0.0
    assert outcome("torl", right, ["recipe.reward.args.executability=-0.5"])["score"] == 0.5
    assert outcome("artist", right, statuses=("success", "error"))["score"] == 2 + 0.25 + 0.25 + 0.5


def test_an_answer_copied_from_the_question_counts_only_where_the_recipe_says_so():
    def scored(*overrides):
        extra = {
            "trajectory": to_wire(trajectory_of(40, (), "answer").to_record()),
            "question": "Compute $6 \\cdot 7$.",
        }
        extra |= {"policy_text": r"\boxed{6*7}", "response_length": 40, "training_step": 1}
        recipe = composed("recipe=retool", *overrides)
        return compute_score("math", "decoded", "42", extra, recipe=recipe, max_response_tokens=160)

    assert (scored()["acc"], scored()["graded_by"]) == (0.0, "copied")
    assert scored("recipe.copied_answers=right")["acc"] == 1.0


def test_function_calls_are_graded_by_the_calls():
    """Right calls are right however they are written; the reward is stricter about the paper's own format."""
    truth = [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    blocks = "".join(f"<tool_call>{json.dumps(c)}</tool_call>" for c in reversed(truth))
    as_list = f"<think>x</think><tool_call>{json.dumps(truth)}</tool_call>"
    as_lines = "<think>x</think><tool_call>" + "\n".join(map(json.dumps, truth)) + "</tool_call>"
    wrong = as_list.replace("1", "true")

    def judged(name, text, *overrides, step=1):
        recipe = composed(f"recipe={name}", "data=functions", *overrides)
        packed = to_wire(trajectory_of(40, ("success",), "tool").to_record())
        extra = {"trajectory": packed, "policy_text": "", "response_length": 40, "training_step": step}
        return compute_score("f", text, json.dumps(truth), extra, recipe=recipe, max_response_tokens=160)

    texts = (as_list, as_lines, blocks, wrong, "<tool_call>[{</tool_call>", "")
    assert [judged("tool_n1", text)["acc"] for text in texts] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert [judged("tool_n1", text)["score"] for text in texts] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [judged("toolrl", text)["score"] for text in (as_lines, as_list, "")] == [4.0, -2.0, -3.0]
    # Format 2 - s/150, correctness 2 + s/150 of the best: the paper's dynamic scale, at the step that asked.
    dynamic = "recipe.reward.args.schedule_steps=150"
    fractions = [judged("toolrl", "", dynamic, step=step)["score"] for step in (0, 75, 150, 400)]
    assert fractions == [-2.0, -2.5, -3.0, -3.0]
    assert judged("toolrl", as_lines, dynamic, step=75)["score"] == 1.5 + 2.5
    assert judged("toolrl", wrong)["pred"] == json.dumps(
        [truth[0] | {"arguments": {"a": True}}, truth[1]], sort_keys=True
    )


def test_the_overlong_punishment_is_added_and_told():
    long = outcome("dapo", "\\boxed{42}", ["recipe.overlong_buffer=32"], length=144)
    assert (long["score"], long["overlong"], long["acc"]) == (0.5, -0.5, 1.0)


def test_filters_name_their_reason():
    assert outcome("zerotir", "\\boxed{41}", finish="length")["drop"] == "overlong_wrong"
    assert outcome("retool", "\\boxed{41}", finish="length")["drop"] == ""
