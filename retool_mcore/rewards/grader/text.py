"""Normal form of an answer's text: what never changes its meaning is gone, what has several spellings has one."""

import re
import unicodedata

# Ten times the longest answer of the known data sets; beyond it only identical text counts.
MAX_CHARS = 4096

# Around the words of a `\text{...}`; no input holds these characters, since control characters are dropped.
OPEN_TEXT, CLOSE_TEXT = "\x02", "\x03"


def _list(names: str) -> list[str]:
    return names.split()


GREEK_NAMES = _list(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_GREEK = {
    letter: rf"\{name} "
    for letter, name in zip(
        "αβγδεζηθικλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ",
        GREEK_NAMES,
        strict=True,
    )
}
_CHARACTERS = str.maketrans(
    _GREEK
    | {
        **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63", "-"),
        **dict.fromkeys("\u2018\u2019\u02b9\u2032", "'"),
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("×✕⨯", r"\times "),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        **{"÷": "/", "∕": "/", "⁄": "/", "∶": ":", "√": r"\sqrt ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp "},
        **{"≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx "},
        **{"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}"},
        **{"°": r"^\circ ", "º": r"^\circ ", "∘": r"\circ ", "％": "%", "ϕ": r"\phi ", "ϵ": r"\epsilon "},
    }
)
_RENAMED = {
    **dict.fromkeys(["dfrac", "tfrac", "cfrac"], r"\frac"),
    **dict.fromkeys(["dbinom", "tbinom"], r"\binom"),
    **dict.fromkeys(["leq", "leqslant", "leqq"], r"\le"),
    **dict.fromkeys(["geq", "geqslant", "geqq"], r"\ge"),
    **{"neq": r"\ne", "lt": "<", "gt": ">", "ast": "*", "div": "/", "colon": ":", "slash": "/"},
    **dict.fromkeys(["lvert", "rvert", "vert", "mid"], "|"),
    **{"varnothing": r"\emptyset", "land": " and ", "lor": " or ", "wedge": " and ", "vee": " or "},
    **dict.fromkeys(["simeq", "thickapprox"], r"\approx"),
    **{"lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "langle": "(", "rangle": ")"},
    **{"varepsilon": r"\epsilon", "varphi": r"\phi", "vartheta": r"\theta", "iff": " and ", "degree": r"^\circ"},
    **{"percent": "%", "lparen": "(", "rparen": ")", "infin": r"\infty", "textdollar": r"\$", "euro": "€"},
    **dict.fromkeys(["quad", "qquad", "thinspace", "enspace", "newline", "par", "hfill", "limits", "nolimits"], " "),
    **dict.fromkeys(["displaystyle", "textstyle", "scriptstyle", "left", "right", "middle", "bf", "rm", "it"], ""),
    **dict.fromkeys(["big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr"], ""),
}
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?(?![A-Za-z])")
_WORDS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal"
    r"|bold|boldsymbol|emph|operatorname)\*?\s*\{([^{}]*)\}"
)
_MULTIPLE = re.compile(rf"(?<=[0-9])\s*({OPEN_TEXT}?)\s*(thousand|million|billion|trillion)\b\s*", re.IGNORECASE)
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_BOX = re.compile(r"\\(?:boxed|fbox|underline)\s*\{")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\s*\{\s*,\s*\}\s*|,\s*\\!\s*|\\,(?=[0-9]{3}(?![0-9])))(?=[0-9]{3})")
_SPACING = re.compile(r"(?:(?<!\\)\\[,;:!> ]|~|\s)+")
# A space between two word characters carries meaning (`3 1/2` is not `31/2`), every other one does not.
# After a comma too: `32, 349` is two numbers, `32,349` one.
_IDLE_SPACE = re.compile(r"(?<![0-9A-Za-z\x03%,]) |(?<=,) (?![0-9])| (?![0-9A-Za-z\x02\\])|(?<=[^0-9A-Za-z,]) (?=\\)")
_DOLLAR = re.compile(r"(?<!\\)\$")
_LEAD = re.compile(
    r"^(?:(?:therefore|thus|hence|so),?\s+)?(?:(?:the|my|our)\s+)?(?:(?:final|correct)\s+)?answer\s*(?:is|:|=)\s*:?\s*",
    re.IGNORECASE,
)
# Functions and constants that are often set in roman type are mathematics, not words.
FUNCTION_NAMES = frozenset(_list("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp"))


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
    words = match[1].strip()
    if words in FUNCTION_NAMES:
        return rf"\{words} "
    if words and not re.search("[A-Za-z]", words):
        return words
    return f"{OPEN_TEXT}{words}{CLOSE_TEXT}" if words else " "


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
        if text == before:
            return text


def normal_form(text: str) -> str:
    """`text` in one spelling: dollar signs, quotes, sizing, spacing and boxes gone, Unicode as LaTeX, words marked."""
    if not text.isascii():
        text = "".join(_plain(c) for c in text.translate(_CHARACTERS)).replace("}^{", "").replace("}_{", "")
    else:
        text = "".join(c for c in text if c.isprintable() or c in "\n\t\r")
    text = _LEAD.sub("", _strip_wrappers(text))
    if len(_DOLLAR.findall(text)) % 2 == 0:  # an odd one is money
        text = _DOLLAR.sub(" ", text)
    text = _THOUSANDS.sub("", text)
    text = _SPACING.sub(" ", text)
    text = _BOX.sub("{", _WORDS.sub(_words, text))
    text = _MULTIPLE.sub(lambda m: rf"\cdot 10^{{{_ZEROS[m[2].lower()]}}}{m[1]}", text)
    text = text.replace(OPEN_TEXT + CLOSE_TEXT, "")
    text = _COMMAND.sub(lambda m: _RENAMED.get(m[1], m[0]), text)
    text = text.replace(r"\$", "$ ").replace(r"\%", "%").replace(r"\|", "|")
    text = text.replace("**", "^").replace("$", "$ ").replace("<=", r"\le ").replace(">=", r"\ge ")
    text = text.replace("!=", r"\ne ").replace("==", "=").replace("^{\\circ}", r"^\circ").replace("^ \\circ", r"^\circ")
    text = _IDLE_SPACE.sub("", _SPACING.sub(" ", text))
    return _strip_wrappers(text).removeprefix(r"\approx").removeprefix("=").strip()


def phrase(text: str) -> str | None:
    """The words, lower-case and single-spaced, of a normal form that is nothing but words; None for any other."""
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ")
    words = re.sub(r"[\s,.;!?'\"()-]+", " ", plain).strip()
    if not re.fullmatch(r"[A-Za-z]{2,}(?: [A-Za-z]+)*|[A-Za-z] [A-Za-z]{2,}(?: [A-Za-z]+)*", words):
        return None
    return words.lower()
