"""Multiple choice: a letter, alone, before its option's text, or several letters."""

import re
from collections.abc import Callable

from retool_mcore.rewards.grader.text import CLAIM_WORDS, CLOSE_TEXT, FORMS, OPEN_TEXT

_MARK = "(?:[Oo]ption|[Cc]hoice|[Aa]nswer):?"
_CHOICE = re.compile(
    rf"(?P<mark>(?:{OPEN_TEXT}?{_MARK}{CLOSE_TEXT}? ?)?[({OPEN_TEXT}]*)"
    rf"(?P<letter>[A-Za-z])(?P<end>[)\]{CLOSE_TEXT}]*[.:]?[)\]{CLOSE_TEXT}]*)"
)
_LETTERS = re.compile(rf"[({OPEN_TEXT}]*[A-J](?:(?:[,;() {OPEN_TEXT}{CLOSE_TEXT}]|and)*[A-J])+[){CLOSE_TEXT}]*")
# A letter that is only in bold may be a factor or a term: then no operator follows.
_TERM = rf"(?!{OPEN_TEXT}[A-H]{CLOSE_TEXT} ?(?:[+*/^_=]|\\(?:pm|mp|cdot|times)(?![a-z])))"
_LETTERED = rf"{_TERM}(?:{OPEN_TEXT}\(?([A-H])\)?[.:]?{CLOSE_TEXT}[.:)]?|\(([A-H])\)%s|([A-H])[.):] ?)\s*(?P<rest>.+)"
_CHOICE_AND = re.compile(_LETTERED % "(?: |(?=[A-Z][a-z]|[a-z]{4}|[0-9]))", re.DOTALL)
_CHOICE_BEFORE = re.compile(_LETTERED % "", re.DOTALL)  # where the other side is a letter: else `(A)x` is a product
# `\text{(B) Newton}` and `\textbf{(B)}\ 7` are `(B)` and what it says.
_INSIDE = re.compile(
    rf"{OPEN_TEXT}(?:{_MARK} )?(\([A-H]\)|[A-H][.:)]) ?([^{OPEN_TEXT}{CLOSE_TEXT}]+){CLOSE_TEXT}(.*)", re.DOTALL
)
_NAMED = re.compile(rf"{_MARK} (?=\(?[A-H][.:)])")
# Behind a letter: choices that deny in words, and what is no content but says something about the letter.
_STOCK = re.compile("(?:none|all|any|neither|both) of |cannot be |not enough |no [a-z]+$")
_PAIR = re.compile(r"(?:both|neither) \(?[a-h]\)? (?:and|nor|or) \(?[a-h]\)?\.?")
_REMARK = re.compile(r"[A-H]$|[^+\-\w\\(\[{.$€£¥₹]|-[a-z]{2,}|\.\.|.*\?", re.DOTALL)
_OTHER_LETTER = re.compile(
    rf"(?:(?<![A-Za-z])(?:or|and|nor|not|but|is|no|maybe|perhaps|instead|rather)|[,;/|&]) ?[({OPEN_TEXT}]*"
    rf"[A-H](?:[).:,;{CLOSE_TEXT}]|$| (?:is|was|or|and|may|might|could|can|seems)(?![a-z]))"
    r"|\([A-H]\)|(?<![A-Za-z])[A-H][.)]"
)
_MORE_LETTERS = re.compile(rf"(?:[,;/&({OPEN_TEXT} ]|and|or|nor)+[A-H][).:{CLOSE_TEXT} ]*")
_REMARKS = frozenset(
    [
        "answer",
        "answers",
        "option",
        "options",
        "choice",
        "choices",
        "final",
        "solution",
        "result",
        "letter",
        "pick",
        "picks",
        "guess",
        "one",
        "ones",
        "mine",
        "correct",
        "incorrect",
        "true",
        "false",
        "sure",
        "unsure",
        "certain",
        "uncertain",
        "something",
        "whatever",
        "anything",
        "confident",
        "but",
    ]
)
_DRAWN = frozenset(["", "vec", "hat", "angle", "triangle", "overrightarrow"])


def _spread(text: str) -> str:
    """A normal form with the letter outside of the words that hold it and its text."""
    if match := _INSIDE.fullmatch(text):
        return f"{match[1]} {OPEN_TEXT}{match[2]}{CLOSE_TEXT}{match[3]}"
    return _NAMED.sub("", text, count=1) if _NAMED.match(text) else text


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ")).strip().casefold()


def _is_content(text: str) -> bool:
    """Whether what stands behind a choice's letter can be its text, and no word about the choice or another letter."""
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ").strip(" {}()").lower()
    if _PAIR.fullmatch(plain):
        return True
    if _OTHER_LETTER.search(text):
        return False
    if _STOCK.match(plain):
        return True
    words = re.findall(r"(?<![\\a-z])[a-z]{2,}", plain)
    bare = text.strip(OPEN_TEXT + CLOSE_TEXT + " {}()")
    command = re.match(r"\\(\\|[A-Za-z]*)", bare)
    if (command and command[1] not in FORMS | _DRAWN) or _REMARK.match(bare):
        return False
    # A statement has words of its own next to `is`, `not` and `to`; a remark (`not sure`) has none.
    own = re.search("[0-9]", plain) or any(word not in CLAIM_WORDS and len(word) > 2 for word in words)
    return CLAIM_WORDS.isdisjoint(words) or bool(own and _REMARKS.isdisjoint(words))


def choice(a: str, t: str, same: Callable[[str, str], bool | None]) -> bool | None:
    """Whether the letters of answer `a` and truth `t` are the same; None where one of them is no choice.

    same: compares a text without its letter with the other side, where that is no letter.
    """
    if _LETTERS.fullmatch(a) and _LETTERS.fullmatch(t) and not (a.isalpha() and t.isalpha()):
        return sorted(re.findall("[A-J]", a)) == sorted(re.findall("[A-J]", t))
    a, t = _spread(a), _spread(t)
    left, right = _CHOICE.fullmatch(a), _CHOICE.fullmatch(t)
    if left and right:
        marked = left["mark"] or right["mark"] or left["end"] or right["end"]
        equal = left["letter"].casefold() == right["letter"].casefold()
        return equal and (bool(marked) or left["letter"] == right["letter"])
    long_right = (_CHOICE_BEFORE if left else _CHOICE_AND).fullmatch(t)
    long_left = (_CHOICE_BEFORE if right or long_right else _CHOICE_AND).fullmatch(a)
    ours, true = (next(filter(None, m.groups())) if m else "" for m in (long_left, long_right))
    if long_left and long_right:
        rests = long_left["rest"], long_right["rest"]
        if ours != true or _plain(rests[0]) == _plain(rests[1]):
            return ours == true
        # Another wording of the option's text; but not another number.
        return _is_content(rests[0]) and (bool(re.search("[A-Za-z]{4}", rests[1])) or same(*rests) is not False)
    if long_left and right:
        return _is_content(long_left["rest"]) and ours == right["letter"].upper()
    if long_right and left:  # the truth's text may say what it likes, if it is one
        return true == left["letter"].upper() and not _MORE_LETTERS.fullmatch(long_right["rest"])
    if long_left:
        return same(long_left["rest"], t)
    return same(a, long_right["rest"]) if long_right else None
