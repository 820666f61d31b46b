"""A program's process never runs what is below on its stack: the zygote and the server, which clears up at its end."""

import os

from retool_mcore.sandbox.local import child


def test_a_replaced_exit_leads_nowhere_but_out(monkeypatch):
    calls = []

    def stubborn(code):
        calls.append(code)
        if len(calls) == 1:
            return
        if len(calls) == 2:
            raise RuntimeError("not yet")
        os._exit(code + len(calls))

    monkeypatch.setattr(child, "EXIT", stubborn)
    pid = os.fork()
    if not pid:
        try:
            child._leave(40)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 43


def test_the_name_that_programs_can_replace_is_not_asked(monkeypatch):
    pid = os.fork()
    if not pid:
        leave = os._exit
        os._exit = lambda code: leave(1)
        child._leave(42)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
