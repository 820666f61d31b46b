"""The leaderboard's own checker in the sandbox."""

import json

import pytest
from official_rows import answering, leaderboard_rows, needs

from retool_mcore.rewards.official import bfcl

needs("bfcl_eval")
CATEGORIES = ["simple_python", "multiple", "parallel", "parallel_multiple", "live_simple"]


def first_accepted(truth):
    """A right answer: the first accepted value of each argument that is demanded."""
    calls = []
    for call in truth:
        ((name, arguments),) = call.items()
        given = {key: value(values[0]) for key, values in arguments.items() if values[0] != "" and "" not in values}
        calls.append({"name": name, "arguments": given})
    return calls


def value(accepted):
    """Inside an accepted object each entry is a list of accepted values, too."""
    if isinstance(accepted, dict):
        return {key: value(values[0]) for key, values in accepted.items() if values and values[0] != ""}
    return accepted


def written(calls):
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def as_python(calls):
    inside = (f"{c['name']}({', '.join(f'{k}={v!r}' for k, v in c['arguments'].items())})" for c in calls)
    return f"[{', '.join(inside)}]"


@pytest.mark.parametrize("category", CATEGORIES)
def test_right_calls_are_paid_and_wrong_ones_are_not(category):
    for row, truth in leaderboard_rows(category, 5):
        calls = first_accepted(truth)
        assert bfcl(answering(written(calls), row)) == 1.0, row["bfcl_id"]
        assert bfcl(answering(written([]), row)) == 0.0
        assert bfcl(answering(written([*calls, calls[0]]), row)) == 0.0
        assert bfcl(answering(written([{"name": "other", "arguments": {}}]), row)) == 0.0
        assert bfcl(answering("I would call " + calls[0]["name"], row)) == 0.0


def test_calls_as_the_prompts_of_the_leaderboard_ask_for_them():
    for row, truth in leaderboard_rows("parallel", 3):
        assert bfcl(answering(as_python(first_accepted(truth)), row)) == 1.0, row["bfcl_id"]


def test_no_call_is_right_where_none_is():
    ((row, _),) = leaderboard_rows("irrelevance", 1)
    assert bfcl(answering("None of the functions can do this.", row)) == 1.0
    assert bfcl(answering(written([{"name": "f", "arguments": {}}]), row)) == 0.0
    assert bfcl(answering("[f(x=1)]", row)) == 0.0
    assert bfcl(answering("<tool_call>not JSON</tool_call>", row)) == 0.0


def test_nothing_that_a_call_says_is_run(tmp_path):
    target = tmp_path / "written"
    tmp_path.chmod(0o777)
    row, truth = leaderboard_rows("simple_python", 1)[0]
    name = next(iter(truth[0]))
    arguments = [
        f"1 + open({str(target)!r}, 'w').write('x')",
        f"1 + __import__('os').system('touch {target}')",
        "1 + __import__('os')._exit(0)",
        "1 + exit()",
        "1 + __import__('os').write(4, b'[\"nonce\", 1.0]')",
        "1 + [setattr(m, 'ast_checker', lambda *a: {'valid': True}) for m in __import__('sys').modules.values()][0]",
        "accepted[0] + 1",
        "[0] * 10**11",
        "9**9**9**9 + 1",
        "lambda: 1",
    ]
    for argument in arguments:
        assert bfcl(answering(f"[{name}(base={argument})]", row), timeout_s=3.0) == 0.0, argument
    assert not target.exists()
    assert bfcl(answering(written(first_accepted(truth)), row)) == 1.0


def test_sums_as_arguments_are_evaluated():
    """The leaderboard does it, and they are plain expressions."""
    row, truth = leaderboard_rows("simple_python", 1)[0]
    (call,) = first_accepted(truth)
    text = ", ".join(f"{key}={v - 1}+1" if type(v) is int else f"{key}={v!r}" for key, v in call["arguments"].items())
    assert bfcl(answering(f"[{call['name']}({text})]", row)) == 1.0
