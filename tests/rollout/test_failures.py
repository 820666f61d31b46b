"""Why a rollout failed, whatever raised it and wherever."""

import json

from retool_mcore.rollout.failures import Cause, cause_of, most_common


def caught(function):
    try:
        function()
    except Exception as error:
        return cause_of(error)


def test_the_users_function_is_named_where_a_library_raised():
    def reward():
        return json.loads("{")

    cause = caught(reward)
    assert cause.error == "JSONDecodeError" and cause.where.startswith("test_failures.py, line ")
    assert cause.where.endswith("in reward")


def test_an_error_from_another_process_is_named_by_what_raised_it_there():
    class RayTaskError(Exception):
        cause = ZeroDivisionError("division by\n zero")
        traceback_str = (
            'ray::Worker.compute_score() (pid=7)\n  File "/usr/lib/python3/x.py", line 9, in run\n'
            '  File "/home/me/own_rewards.py", line 12, in broken\nZeroDivisionError'
        )

    def wait():
        raise RayTaskError("all of it")

    assert str(caught(wait)) == "ZeroDivisionError: division by zero (own_rewards.py, line 12, in broken)"


def test_causes_are_the_same_whatever_their_messages():
    first, second, third = Cause("KeyError", "'a'", "x"), Cause("KeyError", "'b'", "x"), Cause("KeyError", "'a'", "y")
    assert most_common([third, first, second]) == [(first, 2), (third, 1)]
    assert str(Cause("StopIteration", "", "")) == "StopIteration"
    assert len(caught(lambda: (_ for _ in ()).throw(ValueError("x" * 5000))).message) == 400
