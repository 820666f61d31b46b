r"""What a text says beside a value: words, negations, bounds, hedges, comments.

The grammars in front read an answer whole or not at all. math-verify does not: it takes the value that it finds and
drops the rest. So it is asked only about two texts that say the same beside their values (`same_claims`).
"""

import re
from collections import Counter

from retool_mcore.rewards.grader.numerals import listed
from retool_mcore.rewards.grader.text import CLOSE_TEXT, FUNCTION_NAMES, GREEK_NAMES, OPEN_TEXT

# Words that make a statement out of a number: never a part of a unit or of what is counted.
CLAIM_WORDS = frozenset(
    listed("""
    or and not no nor never neither none only than then that this these those it its as at by to from with without into
    over under up down off out but except unless until since because so thus hence therefore however though although
    while when where which who whom whose what why how any some every both either if for is are was were be been being
    isn aren wasn won doesn didn don cannot can could may might would should shall will do does did has have had having
    more less most least fewer greater smaller larger bigger higher lower above below beyond between among about
    approximately approx around roughly nearly almost maybe perhaps possibly probably likely certainly surely presumably
    guess guesses think believe say says said see know unknown sure unsure wrong right correct incorrect true false yes
    etc others other another else instead rather again also too very just even still yet already plus minus times
    divided squared cubed halved doubled tripled equals equal modulo mod means gives makes seems looks appears remains
    contradicts fails works exceeds misses differs goes ends starts holds lies becomes implies requires falls violates
    halves thirds fourths fifths sixths sevenths eighths ninths tenths hundredths thousandths pi sqrt infinity inf oo
    """)
)
_WORD = re.compile(
    rf"{OPEN_TEXT}[^{CLOSE_TEXT}]*{CLOSE_TEXT}|\\[A-Za-z]+|\\.|[A-Za-z]{{2,}}|\^\{{?[+*']|[^\s0-9A-Za-z]"
)
# What forms values; everything else counts as a claim.
_FORMS = (
    frozenset(
        listed(
            "frac sqrt cdot times pm mp pi infty mathbb begin end pmatrix bmatrix vmatrix matrix int "
            "iint sum prod binom emptyset partial circ ell det in lfloor rfloor lceil rceil imath hbar gcd lcm overline"
        )
    )
    | FUNCTION_NAMES
    | set(GREEK_NAMES)
)
_SIGNS = frozenset("+-*/^_()[]{}|,.;&")
_ORDER = frozenset(["<", ">", "le", "ge", "ne", ":"])
_SET = re.compile(r"\\(?:cup|mathbb|setminus|infty)|[\[(].*,.*[\])]", re.DOTALL)
_BUILDER = re.compile(r"\\\{ ?[a-z] ?(?:\\in[^|]*)?\|")
_SHORT = frozenset(listed("or is no if at to so as by vs up"))


def claims(text: str) -> Counter:
    """Of a normal form: the words, and the commands and signs that form no value, with how often they stand there."""
    found: Counter = Counter()
    for match in _WORD.finditer(text):
        token = match[0]
        if token[0] == OPEN_TEXT:
            found.update(re.findall(r"[a-z]+|[^a-z\s]", token[1:-1].lower()))
        elif token[0] == "\\":
            if token[1:] not in _FORMS and token not in (r"\{", r"\}", r"\\"):
                found[token[1:]] += 1
        elif token[0].isalpha():
            # Two letters may be a product, or `dx`.
            if token not in _FORMS and (len(token) > 2 or token.lower() in CLAIM_WORDS | _SHORT):
                found[token.lower()] += 1
        elif token not in _SIGNS:
            found[token] += 1
    if text.startswith("!") or re.search(r"[0-9] +[0-9]|\.\.|/\*", text):
        found["unreadable"] += 1
    if text.count("|") % 2 > bool(_BUILDER.match(text)) or (r"\\" in text and r"\begin" not in text):
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
