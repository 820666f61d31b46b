"""Whether a right answer only hands the question's own formula back.

"Compute", "simplify", "expand", "sort": what stands in the question has the truth's value, in another form. Such an
answer shows no work. Numbers, lists and expressions can be copies; words and the letters of options cannot.
"""

import re

from retool_mcore.rewards.grader.choices import choice
from retool_mcore.rewards.grader.nodes import Node, Unreadable, build
from retool_mcore.rewards.grader.text import MAX_CHARS, normal_form, phrase
from retool_mcore.rewards.grader.units import split
from retool_mcore.rewards.grader.values import parsed

_TOKEN = re.compile(r"\\[A-Za-z]+|[A-Za-z]+|[0-9]+(?:\.[0-9]+)?|\S")
# Set around a formula, or between its parts, without a meaning.
_IDLE = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|[,;:! ()\[\]]|big[lr]?|Big[lr]?)(?![A-Za-z])|[$~`]"
)
_SPELLINGS = (
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\times", "*"),
    ("\\cdot", "*"),
    ("**", "^"),
    ("\\div", "/"),
)
_FORMULA = re.compile(r"\$\$?([^$]{1,300})\$|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]", re.DOTALL)
_MOST_QUESTION = 20_000  # characters
_MOST_FORMULAS = 40


def _tokens(text: str) -> list[str]:
    text = _IDLE.sub(" ", text)
    for old, new in _SPELLINGS:
        text = text.replace(old, new)
    for character, plain in (("×", "*"), ("·", "*"), ("÷", "/"), ("−", "-")):
        text = text.replace(character, plain)
    return [token for token in _TOKEN.findall(text) if token not in "{}"]


def _stands_in(answer: str, question: str) -> bool:
    """Whether the answer's tokens stand in the question, one after the other, without a name and outer brackets."""
    wanted = _tokens(answer.strip().rstrip(".").strip())
    if "=" in wanted:
        wanted = wanted[len(wanted) - wanted[::-1].index("=") :]
    there = _tokens(question)
    while True:
        size = len(wanted)
        if wanted and any(there[n : n + size] == wanted for n in range(len(there) - size + 1)):
            return True
        if not wanted or (wanted[0], wanted[-1]) != ("(", ")"):
            return False
        wanted = wanted[1:-1]


def _formulas(question: str) -> list[object]:
    """The forms of the formulas between the question's mathematical delimiters."""
    formulas = []
    for match in list(_FORMULA.finditer(question))[:_MOST_FORMULAS]:
        try:
            formulas.append(_form(build(normal_form(next(filter(None, match.groups()))))))
        except (Unreadable, RecursionError):
            continue
    return formulas


def _form(node: Node) -> object:
    """Return the form of an answer: its parts in order, sums and products without their order."""
    if node.kind == "relation" and set(node.operators) == {"="}:
        return _form(node.items[-1])
    if node.kind == "scalar":
        expression = parsed(split(node.text).number)
        return _shape(expression.tree) if expression else (phrase(node.text) or node.text)
    return tuple(_form(item) for item in node.items)


def _shape(tree: tuple) -> tuple:
    if tree[0] == "num":
        return ("num", tree[1])
    parts = [_shape(part) if isinstance(part, tuple) else part for part in tree[1:]]
    if tree[0] not in ("add", "mul"):
        return (tree[0], *parts)
    flat: list = []
    for part in parts:
        flat += part[1:] if part[0] == tree[0] else [part]
    return (tree[0], *sorted(flat, key=repr))


def copied(answer: str, truth: str, question: str) -> bool:
    """Whether a right `answer` stands in `question` and has another form than `truth`."""
    if max(len(answer), len(truth)) > MAX_CHARS:
        return False
    ours, true = normal_form(answer), normal_form(truth)
    if ours == true or phrase(ours) is not None or choice(ours, true, lambda a, t: None) is not None:
        return False
    try:
        form = _form(build(ours))
        if form == _form(build(true)):
            return False
    except (Unreadable, RecursionError):
        return False
    question = question[:_MOST_QUESTION]
    return _stands_in(answer, question) or form in _formulas(question)
