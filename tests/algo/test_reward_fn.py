"""The function that verl calls: grader, reward, punishment and filters of a recipe on one packed trajectory."""

from recipe_samples import call, turn

from retool_mcore.config import compose
from retool_mcore.rollout.packed import pack
from retool_mcore.rollout.trajectory import Span, Trajectory
from retool_mcore.train.reward_fn import compute_score


def outcome(name, answer, overrides=(), finish="answer", statuses=("error",), length=40):
    recipe = compose("rl", [f"recipe={name}", *overrides]).recipe
    trajectory = Trajectory(
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
    extra = {"trajectory": pack(trajectory.to_record()), "policy_text": answer, "response_length": length}
    return compute_score("math", "decoded", "42", extra, recipe=recipe, max_response_tokens=160)


def test_each_recipe_scores_by_its_own_reward():
    right = "so \\boxed{42}"
    assert outcome("retool", right) == {
        "score": 1.0,
        "acc": 1.0,
        "pred": "42",
        "overlong": 0.0,
        "drop": "",
        "verifier_failed": 0.0,
    }
    assert outcome("zerotir", "\\boxed{41}")["score"] == 0.0
    assert outcome("torl", right, ["recipe.reward.args.executability=-0.5"])["score"] == 0.5
    assert outcome("artist", right, statuses=("success", "error"))["score"] == 2 + 0.25 + 0.25 + 0.5


def test_the_overlong_punishment_is_added_and_told():
    long = outcome("dapo", "\\boxed{42}", ["recipe.overlong_buffer=32"], length=144)
    assert (long["score"], long["overlong"], long["acc"]) == (0.5, -0.5, 1.0)


def test_filters_name_their_reason():
    assert outcome("zerotir", "\\boxed{41}", finish="length")["drop"] == "overlong_wrong"
    assert outcome("retool", "\\boxed{41}", finish="length")["drop"] == ""
