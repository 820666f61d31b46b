"""An evaluation's samples while the sandbox fails: sampled again, kept as wrong, or refused."""

import asyncio
from types import SimpleNamespace

import pytest

from retool_mcore.errors import UserError
from retool_mcore.recipes.sandbox_errors import error_of, with_sandbox
from retool_mcore.sandbox.base import Result, Status


class Probed:
    def __init__(self, works):
        status, stdout, stderr = (Status.SUCCESS, "2\n", "") if works else (Status.SANDBOX, "", "gone")
        self.result = Result(status, stdout, stderr, None, 0.1)
        self.runs = 0

    async def run(self, code, **options):
        self.runs += 1
        return self.result


def evaluated(finishes, sandbox):
    left = list(finishes)

    async def episode():
        return SimpleNamespace(finish=left.pop(0))

    return asyncio.run(with_sandbox(episode, sandbox)).finish, left


def test_a_sample_that_the_sandbox_spoilt_is_sampled_once_more():
    asked = Probed(works=False)
    assert evaluated(["answer", "answer"], asked) == ("answer", ["answer"])
    assert evaluated(["sandbox_error", "answer"], asked) == ("answer", []) and asked.runs == 0


def test_what_fails_a_sandbox_that_works_is_the_samples_own():
    assert evaluated(["sandbox_error"] * 3, Probed(works=True)) == ("sandbox_error", ["sandbox_error"])


def test_a_sandbox_that_is_down_ends_the_evaluation_in_one_sentence():
    with pytest.raises(UserError, match=r"The sandbox is down: .*gone.* start the same evaluation again"):
        evaluated(["sandbox_error"] * 3, Probed(works=False))


def test_the_last_words_are_of_the_call_that_failed():
    calls = [{"status": "sandbox_error", "stderr": "no\nservice\n"}, {"status": "error", "stderr": "ZeroDivisionError"}]
    assert error_of(calls) == "no service" and error_of([]) == ""
