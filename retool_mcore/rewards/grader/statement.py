r"""What a text says beside a value: words, negations, bounds, hedges, comments.

The grammars in front read an answer whole or not at all. math-verify does not: it takes the value that it finds and
drops the rest. So it is asked only about two texts that say the same beside their values (`same_claims`).
"""

import re
from collections import Counter

from retool_mcore.rewards.grader.tables import TABLES
from retool_mcore.rewards.grader.text import CLOSE_TEXT, FUNCTION_NAMES, GREEK_NAMES, OPEN_TEXT

CLAIM_WORDS = frozenset(TABLES["claims"].split())
_WORD = re.compile(
    rf"{OPEN_TEXT}[^{CLOSE_TEXT}]*{CLOSE_TEXT}|\\[A-Za-z]+|\\.|[A-Za-z]{{2,}}|\^\{{?[+*']|[^\s0-9A-Za-z]"
)
FORMS = FUNCTION_NAMES.union(TABLES["forms"].split(), GREEK_NAMES)
_SIGNS = frozenset("+-*/^_()[]{}|,.;&")
_ORDER = frozenset(["<", ">", "le", "ge", "ne", ":"])
_SET = re.compile(r"\\(?:cup|mathbb|setminus|infty)|[\[(].*,.*[\])]", re.DOTALL)
_BUILDER = re.compile(r"\\\{ ?[a-z] ?(?:\\in[^|]*)?\|")
_SHORT = frozenset(TABLES["short"].split())


def claims(text: str) -> Counter:
    """Of a normal form: the words, and the commands and signs that form no value, with how often they stand there."""
    found: Counter = Counter()
    for match in _WORD.finditer(text):
        token = match[0]
        if token[0] == OPEN_TEXT:
            found.update(re.findall(r"[a-z]+|[^a-z\s]", token[1:-1].lower()))
        elif token[0] == "\\":
            if token[1:] not in FORMS and token not in (r"\{", r"\}", r"\\"):
                found[token[1:]] += 1
        elif token[0].isalpha():
            # Two letters may be a product, or `dx`.
            if token not in FORMS and (len(token) > 2 or token.lower() in CLAIM_WORDS | _SHORT):
                found[token.lower()] += 1
        elif token not in _SIGNS:
            found[token] += 1
    if text.startswith("!") or re.search(r"[0-9] +[0-9]|\.\.|/\*", text):
        found["unreadable"] += 1
    if text.count("|") % 2 > bool(_BUILDER.match(text)) or (re.search(r"\\\\|&", text) and r"\begin" not in text):
        found["separator"] += 1
    if indices := re.findall(r"[0-9})\]] ?_", text):
        found["index of a number"] = len(indices)
    return found


def same_claims(answer: str, truth: str) -> bool:
    """Whether two normal forms say the same beside their values; an inequality may stand for an interval."""
    left, right = claims(answer), claims(truth)
    if left != right:
        for ours, own, other in ((left, answer, truth), (right, truth, answer)):
            if _SET.search(other) and not re.search(r"[(\[].*,", own):
                for sign in _ORDER:
                    ours.pop(sign, None)
            if _SET.search(other) or re.search(r"[<>]|\\(?:le|ge|ne)(?![a-z])", other):
                for sign in ("cup", "cap", "setminus"):
                    ours.pop(sign, None)
    return left == right and "unreadable" not in left
