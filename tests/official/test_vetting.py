"""What a grader may evaluate of an answer: plain expressions, decided on the code object before it runs."""

import subprocess
import sys

import pytest

from retool_mcore.official.inside.vetting import refusal

NAMES = {"x", "Integer", "sin"}
PLAIN = """
1 | -1.5e3 | 'text' | [1, 2, [3]] | [[0, 1], [1, 0]] | (1, 'a') | {1, 2} | {'a': [1]} | {'a': 1, 'b': 2} | None | ...
2 + 3 * 4 // 5 % 6 - 7 ** 2 | not 1 < 2 | ~5 | sin (x )**Integer (2 ) | [*[1], 2] | [1, 2] + ['_'] * 3
"""
MORE = """
open('p', 'w') | __import__('os').system('true') | ().__class__ | x.real | [i for i in range(3)] | lambda: 1 | print(1)
exit() | (x := 5) | f'{x}' | y | globals() | [1, 2][0] | 1 if x else 2 | x and 1 | __builtins__ | {i: 1 for i in x}
(i for i in x) | eval('1') | sin.__globals__ | '{0.__class__}'.format(x) | await x | [*map(y, x)]
"""


def listed(texts):
    return [text.strip() for line in texts.strip().splitlines() for text in line.split(" | ")]


@pytest.mark.parametrize("text", listed(PLAIN))
def test_plain_expressions_may_run(text):
    assert refusal(compile(text, "<string>", "eval"), NAMES) == ""


@pytest.mark.parametrize("text", listed(MORE))
def test_anything_more_may_not(text):
    try:
        code = compile(text, "<string>", "eval")
    except SyntaxError:
        return  # refused earlier
    assert refusal(code, NAMES)


@pytest.mark.parametrize(
    "text", ["import os", "x = 1", "def f(): pass", "from sympy import *", "class A: pass", "del x"]
)
def test_statements_may_not(text):
    assert refusal(compile(text, "<string>", "exec"), NAMES)


_HOSTILE = """
import sys
from retool_mcore.official.inside.vetting import Refused, install
install({"x"}, ["import math"])
assert eval("[1, 2] + [3]") == [1, 2, 3]
exec("import math")
for run in (eval, exec, lambda text: eval(compile(text, "<anything>", "eval")), lambda text: exec(text, {}, {})):
    for text in ("open('/dev/null')", "sys.audit", "x.real", "(lambda: 1)()"):
        try:
            run(text)
        except Refused:
            continue
        sys.exit(f"{text} ran")
import this
sys.addaudithook(lambda *_: None)
try:
    eval("print('hello')")
except Refused:
    print("refused")
"""


def test_the_hook_is_asked_whichever_way_code_runs_and_cannot_be_undone():
    """A process of its own: a hook stays. Modules that are imported late are files and still load."""
    done = subprocess.run([sys.executable, "-c", _HOSTILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("refused\n")
