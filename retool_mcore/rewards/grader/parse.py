"""A scalar expression as a tree: LaTeX or plain notation, as answers are written.

Node shapes (tuples): ("num", Fraction, decimals or None), ("sym", name), ("add", a, b), ("neg", a), ("mul", a, b),
("div", a, b), ("pow", a, b), ("fn", name, *args), ("call", name, *args) for a function of unknown meaning.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction

from retool_mcore.rewards.grader.numerals import REPEATING, repeating
from retool_mcore.rewards.grader.text import CLOSE_TEXT, FUNCTION_NAMES, GREEK_NAMES, OPEN_TEXT

MAX_DEPTH = 40
# Sums and products lean to the left: as many atoms, as deep a tree, and every walk over it is recursive.
MAX_ATOMS = 200

_NUMBER = re.compile(r"(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3}(?![0-9A-Za-z]))?")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")
_NAME = re.compile(r"[A-Za-z]+")
_SUBSCRIPT = re.compile(r"_(?:\{([0-9A-Za-z,+\-]{1,20})\}|([0-9A-Za-z]))")
_BRACKET = re.compile(r" *\{? *\(")
_CODE = re.compile(r"(?<![A-Za-z\\])(?![ij]$)[A-Za-z]{1,20}$")
_RAISED = re.compile("[0-9]+\\^")
_PREFIX = re.compile("0[A-Za-z][0-9A-Za-z]")
_MARKS = re.compile(r"(?: *!)+")
_CALL = re.compile(r"([fghO]'*)(?:\^(?:\{(-?[0-9])\}|([0-9])))?(?=\()")
_GREEK = frozenset(GREEK_NAMES) - {"pi"} | {"ell", "hbar", "infty", "emptyset"}
_PLAIN_NAMES = {"pi": ("sym", "pi"), "inf": ("sym", "infty"), "infinity": ("sym", "infty"), "oo": ("sym", "infty")}
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}


class ParseError(ValueError):
    """Not an expression of this grammar."""


@dataclass
class Parsed:
    """tree: the expression. doubtful: it can be read in another way too, so a difference proves nothing."""

    tree: tuple
    doubtful: bool = False
    symbols: frozenset = field(default_factory=frozenset)


class _Parser:
    def __init__(self, text: str):
        self.text, self.at, self.depth = text, 0, 0
        self.doubtful = False
        self.in_function = self.atoms = 0
        self.symbols: set[str] = set()

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def peek(self) -> str:
        """The next character, or a whole command with its backslash; "" at the end."""
        self.skip()
        if self.at >= len(self.text):
            return ""
        if self.text[self.at] == "\\":
            match = _COMMAND.match(self.text, self.at)
            return match[0] if match else "\\"
        return self.text[self.at]

    def take(self, token: str) -> bool:
        if self.peek() == token:
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise ParseError(f"expected {token!r}")

    def sum(self, stop: str = "") -> tuple:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("too deep")
        left = ("neg", self.product(stop)) if self.signs() else self.product(stop)
        while (sign := self.peek()) and sign in "+-":
            right = ("neg", self.product(stop)) if self.signs() else self.product(stop)
            left = ("add", left, right)
        self.depth -= 1
        return left

    def product(self, stop: str) -> tuple:
        left = self.power(stop)
        slashed = False
        while token := self.peek():
            if token in ("*", r"\cdot", r"\times"):
                self.at += len(token)
                left = ("mul", left, self.signed(stop))
            elif token in ("/", ":"):
                self.at += 1
                left = ("div", left, self.signed(stop))
                slashed = True
            elif self.starts_factor(token, stop):
                if token[0] in "0123456789." and self.text[: self.at].rstrip(" ")[-1:] in "0123456789.":
                    raise ParseError("two numbers in a row")
                if token[0].isdigit() and _CODE.search(self.text[: self.at]) and not _RAISED.match(self.text, self.at):
                    raise ParseError("a code")  # `3a2` is no product, `n2^n` is one
                no_mixed = left[1:2] == (0,) and self.text[self.at - 1] == " "  # `0 \frac{5}{8}` may be two values
                factor = self.power(stop)
                self.doubtful |= slashed
                left = (None if no_mixed else _mixed(left, factor)) or ("mul", left, factor)
            else:
                return left
        return left

    def signs(self) -> bool:
        """Whether the signs that stand here make a minus."""
        negative = False
        while (sign := self.peek()) and sign in "+-":
            self.at += 1
            negative ^= sign == "-"
        return negative

    def signed(self, stop: str) -> tuple:
        return ("neg", self.power(stop)) if self.signs() else self.power(stop)

    def starts_factor(self, token: str, stop: str) -> bool:
        if token == "|":
            return stop != "|"
        return token[0].isascii() and (token[0].isalnum() or token[0] in ".({[" + OPEN_TEXT or self.known(token))

    def known(self, token: str) -> bool:
        name = token[1:]
        return token[0] == "\\" and (
            name in _GREEK
            or name in FUNCTION_NAMES
            or name in ("frac", "sqrt", "pi", "binom", "lfloor", "lceil", "overline", "sum", "prod", "imath", "mathbb")
        )

    def power(self, stop: str) -> tuple:
        base = self.atom(stop)
        while True:
            if self.peek() == "!":
                base = self.factorial(base)
            elif self.in_function and self.text.startswith(r"^\circ", self.at):
                self.at += len(r"^\circ")
                base = ("mul", base, ("div", ("sym", "pi"), ("num", Fraction(180), None)))
            elif self.peek() == "^" and not self.text.startswith((r"^\circ", r"^{\prime", r"^\prime"), self.at):
                self.at += 1
                base = ("pow", base, self.exponent())
            else:
                return base

    def factorial(self, base: tuple) -> tuple:
        """n!, or n!! = n (n-2) (n-4)...; what follows a factorial in brackets, (n!)!, is another call of this."""
        marks = _MARKS.match(self.text, self.at)[0]
        self.at += len(marks)
        if marks.count("!") > 2:
            raise ParseError("multifactorial")
        return ("fn", "factorial" if marks.count("!") == 1 else "double factorial", base)

    def exponent(self) -> tuple:
        if self.peek() == "{":
            return self.group()
        if self.take("-"):
            return ("neg", self.atom(""))
        self.take("+")
        return self.atom("")

    def group(self, opens: str = "{") -> tuple:
        self.expect(opens)
        inner = self.sum()
        self.expect(_CLOSING[opens])
        return inner

    def argument(self) -> tuple:
        """A TeX argument: a group, or one character."""
        token = self.peek()
        if token == "{":
            return self.group()
        if token and token in "0123456789":
            self.at += 1
            return ("num", Fraction(int(token)), None)
        return self.atom("")

    def atom(self, stop: str) -> tuple:
        token = self.peek()
        if not token:
            raise ParseError("ends early")
        self.atoms += 1
        if self.atoms > MAX_ATOMS:
            raise ParseError("too long")
        if match := REPEATING.match(self.text, self.at):
            self.at = match.end()
            if (value := repeating(match)) is None:
                raise ParseError("dots")
            return ("num", value, None)
        if match := _NUMBER.match(self.text, self.at):
            return self.number(match)
        if token in _CLOSING:
            return self.group(token)
        if token == "|" and stop != "|":
            self.at += 1
            inner = self.sum("|")
            self.expect("|")
            return ("fn", "abs", inner)
        if token[0] == "\\":
            return self.command(token)
        if token == OPEN_TEXT:
            end = self.text.find(CLOSE_TEXT, self.at)
            word = self.text[self.at + 1 : end]
            if len(word) != 1 or not word.isalpha():
                raise ParseError("words")
            self.at = end + 1
            return self.symbol(word)
        if match := _NAME.match(self.text, self.at):
            return self.name(match[0])
        raise ParseError(f"unexpected {token!r}")

    def number(self, match: re.Match) -> tuple:
        base = _PREFIX.match(self.text, self.at)
        self.at = match.end()
        if base or self.text[self.at : self.at + 1] == "_":  # a number in another base
            raise ParseError("base")
        mantissa = re.split("[eE]", match[0])[0]
        if "." in mantissa:
            if self.text[self.at : self.at + 1] == ".":
                raise ParseError("two decimal points")
            return ("num", Fraction(match[0].replace(".e", ".0e").removesuffix(".")), len(mantissa.split(".")[1]))
        return ("num", Fraction(match[0]), None)

    def symbol(self, name: str) -> tuple:
        if match := _SUBSCRIPT.match(self.text, self.at):
            self.at = match.end()
            name += "_" + (match[1] or match[2])
        while self.text.startswith("'", self.at):
            self.at += 1
            name += "'"
        self.symbols.add(name)
        return ("sym", name)

    def name(self, letters: str) -> tuple:
        lower = letters.lower()
        if letters in FUNCTION_NAMES or letters in ("sqrt", "abs"):
            self.at += len(letters)
            if letters in ("sqrt", "abs"):
                inner = self.group("(")
                return ("pow", inner, ("num", Fraction(1, 2), None)) if letters == "sqrt" else ("fn", "abs", inner)
            return self.function(letters, latex=False)
        if lower in _PLAIN_NAMES:
            self.at += len(letters)
            return _PLAIN_NAMES[lower]
        if len(letters) >= 4:
            raise ParseError("a word")
        if len(letters) == 1 and (match := _CALL.match(self.text, self.at)):
            self.at = match.end()
            return self.call(match[1] + (f"^{match[2] or match[3]}" if match[2] or match[3] else ""))
        if letters in ("gcd", "lcm") or (letters == "C" and self.text.startswith("(", self.at + 1)):
            return self.integers(letters, len(letters))
        self.doubtful |= len(letters) > 1 and not letters.islower()
        self.at += 1
        letter = letters[0]
        self.doubtful |= letter.isupper() and self.text.startswith("(", self.at)
        return self.symbol(letter)

    def integers(self, name: str, length: int) -> tuple:
        """`gcd(a, b)`, `C(n, k)`; with one argument C is a name before a bracket."""
        self.at += length
        start, tree = self.at, self.call(name)
        if name != "C" or len(tree) == 4:
            return ("fn", "binom" if name == "C" else name, *tree[2:])
        self.at, self.doubtful = start, True
        return self.symbol(name)

    def call(self, name: str) -> tuple:
        self.expect("(")
        args = [self.sum()]
        while self.take(","):
            args.append(self.sum())
        self.expect(")")
        return ("call", name, *args)

    def command(self, token: str) -> tuple:
        name = token[1:]
        self.at += len(token)
        if name == "frac":
            return ("div", self.argument(), self.argument())
        if name == "binom":
            return ("fn", "binom", self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name in ("sum", "prod"):
            return self.series(name)
        if name in ("lfloor", "lceil"):
            inner = self.sum()
            self.expect("\\r" + name[1:])
            return ("fn", name[1:], inner)
        if name in ("pi", "imath"):
            return ("sym", "pi" if name == "pi" else "i")
        if name == "overline":
            self.doubtful = True
            return ("fn", "overline", self.argument())
        if name == "mathbb":
            match = re.compile(r"\{?([A-Z])\}?").match(self.text, self.at)
            if not match:
                raise ParseError("mathbb")
            self.at = match.end()
            return ("sym", "mathbb_" + match[1])
        if name in ("gcd", "lcm"):
            return self.integers(name, 0)
        if name in FUNCTION_NAMES:
            return self.function(name)
        if name in _GREEK:
            return self.symbol(name)
        raise ParseError(f"unknown command {token}")

    def series(self, name: str) -> tuple:
        self.expect("_")
        self.expect("{")
        variable = self.atom("")
        self.expect("=")
        lower = self.sum()
        self.expect("}")
        self.expect("^")
        upper = self.exponent()
        return ("fn", name, variable, lower, upper, self.product(""))

    def root(self) -> tuple:
        index = ("num", Fraction(2), None)
        if self.peek() == "[":
            index = self.group("[")
        if self.peek() == "{":
            inner = self.group()
        else:
            match = _NUMBER.match(self.text, self.at + (self.text[self.at : self.at + 1] == " "))
            # `\sqrt10` prints as the root of 1 and a zero, and nobody means that.
            self.doubtful |= bool(match) and len(match[0]) > 1
            inner = self.atom("")
        return ("pow", inner, ("div", ("num", Fraction(1), None), index))

    def function(self, name: str, latex: bool = True) -> tuple:
        base = power = None
        while self.peek() in ("_", "^") and not self.text.startswith(r"^\circ", self.at):
            if self.take("_"):
                # TeX takes one digit; in plain text log_10 is what it looks like.
                base = self.argument() if latex or self.peek() == "{" else self.atom("")
            else:
                self.expect("^")
                negative = self.take("-")
                power = ("neg", self.argument()) if negative else self.argument()
        if power == ("neg", ("num", Fraction(1), None)) and name in _INVERSE:
            name, power = _INVERSE[name], None
        self.in_function += 1
        if self.peek() in ("(", "{", "|"):
            bracket = _BRACKET.match(self.text, self.at)
            inner = self.atom("")
            if self.peek() == "^" and not self.text.startswith(r"^\circ", self.at):
                self.expect("^")
                if bracket:  # `cos(x)^2` is a power of the cosine, as sympy prints it
                    power = self.exponent() if power is None else ("mul", power, self.exponent())
                else:
                    self.doubtful = True
                    inner = ("pow", inner, self.exponent())
        else:
            inner = ("neg", self.power("|")) if self.take("-") else self.power("|")
            while (token := self.peek()) and self.starts_factor(token, "|") and not self.at_function():
                self.doubtful |= token == "("
                inner = ("mul", inner, self.power("|"))
        self.in_function -= 1
        node = ("fn", name, inner) if base is None else ("fn", name, inner, base)
        return node if power is None else ("pow", node, power)

    def at_function(self) -> bool:
        match = _NAME.match(self.text, self.at + self.text.startswith("\\", self.at))
        return bool(match) and match[0] in FUNCTION_NAMES


def _mixed(left: tuple, right: tuple) -> tuple | None:
    """`3\\frac{1}{2}` is three and a half, not a product."""
    if left[0] != "num" or left[2] is not None or right[0] != "div" or left[1].denominator != 1:
        return None
    top, bottom = right[1], right[2]
    if top[0] == bottom[0] == "num" and top[2] is None and bottom[2] is None and 0 < top[1] < bottom[1]:
        return ("add", left, right)
    return None


_MIXED_PLAIN = re.compile(r"^([+-]?)([0-9]{1,9})(?: |-)([0-9]{1,9})/([0-9]{1,9})$")


def parse(text: str) -> Parsed:
    """The tree of a scalar in normal form (`text.normal_form`). Raises ParseError for anything else."""
    if (match := _MIXED_PLAIN.match(text)) and int(match[4]) > int(match[3]) > 0 and "-" not in text[1:]:
        value = Fraction(int(match[2])) + Fraction(int(match[3]), int(match[4]))
        return Parsed(("num", -value if match[1] == "-" else value, None))
    parser = _Parser(text)
    try:
        tree = parser.sum()
    except (IndexError, ZeroDivisionError, OverflowError) as error:
        raise ParseError(str(error)) from error
    if parser.peek():
        raise ParseError("more text after the expression")
    return Parsed(tree, parser.doubtful, frozenset(parser.symbols))
