"""Normal form of an answer's text: what never changes its meaning is gone, what has several spellings has one."""

import re
import unicodedata
from functools import lru_cache

from retool_mcore.rewards.grader import TABLES
from retool_mcore.rewards.grader.numerals import numeral

# Three times the longest answer of the known data sets; beyond it only identical text counts.
MAX_CHARS = 1024

# Around the words of a `\text{...}`; no input holds these characters, since control characters are dropped.
OPEN_TEXT, CLOSE_TEXT = "\x02", "\x03"

GREEK_NAMES = TABLES["greek"].split()
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_GREEK = dict(zip(TABLES["greek_letters"], (rf"\{name} " for name in GREEK_NAMES), strict=True))
_CHARACTERS = str.maketrans(_GREEK | {old: new for new, written in TABLES["characters"].items() for old in written})
_RENAMED = {name: new for new, names in TABLES["commands"].items() for name in names.split()}
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?(?![A-Za-z])")
_STYLED = rf"\\(?:{'|'.join(TABLES['styles'].split())})\*?\s*"
_WORDS = re.compile(rf"({_STYLED})\{{([^{{}}]*)\}}")
_STYLE = re.compile(rf"{_STYLED}(?=\{{)|\\(?:text)?color\s*\{{[A-Za-z0-9!]*\}}|\\(?:left|right)\s*\.")
_MULTIPLE = re.compile(rf"(?<=[0-9])\s*({OPEN_TEXT}?)\s*({'|'.join(TABLES['multiples'])})\b\s*", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\s*\{\s*,\s*\}\s*|,\s*\\!\s*|\\,(?=[0-9]{3}(?![0-9])))(?=[0-9]{3})")
_BASE = re.compile(rf"_\{{? ?{OPEN_TEXT}([a-z]+){CLOSE_TEXT} ?\}}?")
_BASE_WORD = re.compile(
    rf"(?<=[0-9A-F)]) ?[{OPEN_TEXT}(]* ?(?:in )?{OPEN_TEXT}?\(? ?base[- ]"
    rf"(two|three|four|five|six|seven|eight|nine|ten)[){CLOSE_TEXT}]*$"
)
_UNIT_POWER = re.compile(r"\s*([A-Za-z]+(?:/[A-Za-z]+)?)\s*\^\s*(?:\{\s*(-?[0-9])\s*\}|(-?[0-9]))\s*")
_RAISED = re.compile(rf"({_STYLED}\{{[^{{}}]*?)\^\{{([0-9])\}}(?=[^{{}}]*\}})")
_AREA = re.compile(r"(?<=[0-9)}]) ?(mm|cm|dm|km|m|ft|in|yd|mi)(?=[²³](?![\w^]))")
_BASE_NAMED = re.compile(rf"_\{{ ?{OPEN_TEXT} ?base ?{CLOSE_TEXT} ?")
_DATE = re.compile(rf"{OPEN_TEXT}?([12][0-9]{{3}})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01]){CLOSE_TEXT}?")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_UNITS = frozenset(name for units in TABLES["units"].values() for names in units for name in names.split())
_SPELLINGS = [
    (needle, re.compile(old), new)
    for needle, old, new in (
        [part.replace("«", OPEN_TEXT).replace("»", CLOSE_TEXT) for part in spelling] for spelling in TABLES["spellings"]
    )
]
_SPACING = re.compile(r"(?:(?<!\\)\\[,;:!>\s]|~|\s)+")
# A space between two word characters carries meaning (`3 1/2` is not `31/2`), every other one does not.
# After a comma too: `32, 349` is two numbers, `32,349` one.
_IDLE_SPACE = re.compile(r"(?<![0-9A-Za-z\x03%,]) |(?<=,) (?![0-9])| (?![0-9A-Za-z\x02\\])|(?<=[^0-9A-Za-z,]) (?=\\)")
# In front of a number, outside TeX, the tilde is no space.
_BOX_BEHIND = re.compile(r"(?<=[0-9)])\s*(?=\\f?box(?:ed)?\s*\{)")  # a second value, no factor
# Not a power: what stands around it is no operand.
_BOLD = re.compile(r"(?<![\w)\]}])\*\*(?=\S)([^*]+)\*\*(?![\w(\[{\\])")
_ABOUT = re.compile(r"^\s*\$?\s*~(?=\s*\S)")
_UNEQUAL = re.compile(r"(?<![0-9)])!=")
_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]")
_DOLLAR = re.compile(r"(?<!\\)\$")
_SAYS = (
    r"(?:(?:therefore|thus|hence|so),?\s+)?(?:(?:the|my|our)\s+)?(?:(?:final|correct)\s+)?"
    rf"(?:{'|'.join(TABLES['labels'].split())})\s*(?:is|are|:|=)\s*:?\s*"
)
_LEAD = re.compile(
    r"^(?:\\(?:therefore|implies|Rightarrow)(?![A-Za-z])\s*|"
    rf"\\text(?:bf|rm)?\{{\s*{_SAYS}\}}|{_SAYS}|(?P<open>\\text(?:bf|rm)?\{{)\s*{_SAYS})",
    re.IGNORECASE,
)
FUNCTION_NAMES = frozenset(TABLES["functions"].split())
# Words that say something about a value (`not 5`), and names that expressions are made of.
CLAIM_WORDS = frozenset(TABLES["claims"].split())
FORMS = FUNCTION_NAMES.union(TABLES["forms"].split(), GREEK_NAMES)


def _plain(character: str) -> str:
    if character.isascii():
        return character if character.isprintable() or character in "\n\t\r" else ""
    if unicodedata.category(character) in ("Cf", "Cc", "Mn"):  # zero-width and combining marks
        return ""
    if character.isspace():
        return " "
    if "⁰" <= character <= "ⁿ" or character in "¹²³":
        return f"^{{{character.translate(_SUPERSCRIPTS)}}}"
    if "₀" <= character <= "₉":
        return f"_{{{character.translate(_SUBSCRIPTS)}}}"
    plain = unicodedata.normalize("NFKC", character)
    if "⁄" in plain:
        over, under = plain.split("⁄")
        return rf"\frac{{{over}}}{{{under}}}" if over and under else plain
    # Only forms that look the same: a fullwidth digit, but not a digit of another script.
    return plain if plain.isascii() else character


def _words(match: re.Match) -> str:
    words = match[2].strip()
    name = _RENAMED.get(words, f"\\{words}")
    if name[1:] in FUNCTION_NAMES and not (words == "sec" and match.string[: match.start()].rstrip(" ").endswith("/")):
        return f"{name} "
    power = _UNIT_POWER.fullmatch(words)  # `\mathrm{m^2}` behind a number
    before = match.string[: match.start()].rstrip("~ {")[-1:]
    if power and _UNITS.issuperset(power[1].split("/")) and before not in ("", "+", "-", "="):
        return f"{OPEN_TEXT}{power[1]}{CLOSE_TEXT}^{power[2] or power[3]}"
    # Mathematics: without letters, with signs of its own (its words then stand in the open), i and e, a variable.
    single = len(words) == 1 and (words in "ije" or r"\math" in match[1] and "mathrm" not in match[1])
    if "box" in match[1] and "m" not in match[1] or "ensure" in match[1] or "underline" in match[1]:
        return f"{{{words}}}"
    if single or not re.search("[A-Za-z]", words) or re.search(r"[0-9\\$=<>^_+*|]|[a-z]\(|^-", words):
        return f" {words} "
    return f"{OPEN_TEXT}{words}{CLOSE_TEXT}"


def _enclosed(text: str) -> bool:
    """Whether the brace that opens the text closes at its end."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end() == len(text)
    return False


def _strip_wrappers(text: str) -> str:
    while True:
        before = text
        text = text.strip().strip("*_`").strip()
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ('"', '"'), ("'", "'")):
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : -len(right)]
                if left not in inner and not (right == "$" and inner.endswith("\\")):
                    text = inner
        if text.endswith((".", ";", ",")) and not text.endswith("..."):
            text = text[:-1]
        if text[:1] == "{" and text[-1:] == "}" and text.count("{") < 40 and _enclosed(text):
            text = text[1:-1]
        if text == before:
            return text


@lru_cache(maxsize=4096)
def normal_form(text: str) -> str:
    """`text` in one spelling: dollar signs, quotes, sizing, spacing and boxes gone, Unicode as LaTeX, words marked.

    A text of more than MAX_CHARS characters comes back as it is.
    """
    if len(text) > MAX_CHARS:
        return text
    if not text.isascii():
        text = _AREA.sub(r"\\text{\1} ", text)
        text = "".join(_plain(c) for c in text.translate(_CHARACTERS)).replace("}^{", "").replace("}_{", "")
    else:
        text = "".join(c for c in text if c.isprintable() or c in "\n\t\r")
    text = _BOX_BEHIND.sub(", ", text)
    text = _BOLD.sub(r" \1 ", _ABOUT.sub(r"\\approx ", text))
    text = _strip_wrappers(_SPACING.sub(" ", _THOUSANDS.sub("", text)))
    text = text.removeprefix("\\displaystyle").lstrip()
    text = _strip_wrappers(_LEAD.sub(lambda m: m["open"] or "", text))
    if len(_DOLLAR.findall(text)) % 2 == 0:  # an odd one is money
        text = _DOLLAR.sub(" ", text)
    text = _DELIMITER.sub(" ", text)
    text = _STYLE.sub("", _WORDS.sub(_words, _RAISED.sub(r"\1^\2", text)))
    text = _MULTIPLE.sub(lambda m: rf"\cdot {TABLES['multiples'][m[2].lower()]}{m[1]}", text)
    text = text.replace(OPEN_TEXT + CLOSE_TEXT, "")
    text = _COMMAND.sub(lambda m: _RENAMED.get(m[1], m[0]), text)
    text = _BASE_NAMED.sub("_{", text)
    text = _BASE_WORD.sub(rf"_{OPEN_TEXT}\1{CLOSE_TEXT}", text)
    text = _BASE.sub(lambda m: f"_{{{numeral(m[1], OPEN_TEXT, CLOSE_TEXT)}}}", text)
    text = _strip_wrappers(text).removeprefix("=").strip()
    for needle, pattern, spelling in _SPELLINGS:
        if needle in text:
            text = pattern.sub(spelling, text)
    if date := _DATE.fullmatch(text):  # as the days of the table
        text = f"{OPEN_TEXT}{int(date[3])} {_MONTHS[int(date[2]) - 1]} {date[1]}{CLOSE_TEXT}"
    text = text.replace(r"\$", "$ ").replace(r"\%", "%").replace(r"\|", "|")
    text = (
        _UNEQUAL.sub(r"\\ne ", text).replace("**", "^").replace("$", "$ ").replace("<=", r"\le ").replace(">=", r"\ge ")
    )
    text = text.replace("==", "=").replace("^{\\circ}", r"^\circ").replace("^ \\circ", r"^\circ")
    text = _IDLE_SPACE.sub("", _SPACING.sub(" ", text))
    return numeral(_strip_wrappers(text).removeprefix("=").strip(), OPEN_TEXT, CLOSE_TEXT)


@lru_cache(maxsize=4096)
def phrase(text: str) -> str | None:
    """The words, lower-case and single-spaced, of a normal form that is nothing but words; None for any other."""
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ").strip(" ")
    if plain[:1] == "-" or plain.endswith(".."):
        return None
    words = re.sub(r"[\s,.;()-]+", " ", re.sub("(?<=[A-Za-z])'(?=[A-Za-z])", "", plain)).strip()
    if not re.fullmatch(r"[A-Za-z]{2,}(?: [A-Za-z]+)*|[A-Za-z] [A-Za-z]{2,}(?: [A-Za-z]+)*", words):
        return None
    return words.lower()
