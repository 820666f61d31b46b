"""Exact canonical forms: quotients of polynomials over the rationals extended by real roots of rationals, i, pi and e.

A polynomial is a dict from a monomial to its coefficient (never 0); a monomial is a frozenset of
(atom, exponent). Atoms are primes (their exponents are in (0, 1); products of such roots are linearly independent over
the rationals, Besicovitch 1940), symbols, powers ("power", base, monomial) whose exponent's coefficient is the
atom's exponent, logarithms of primes, and opaque terms such as arcsin(x), which are only known to equal themselves.
Trigonometric and hyperbolic functions are sums of powers of e, so that their identities are identities of polynomials.
"""

from fractions import Fraction
from functools import lru_cache
from math import comb, gcd, lcm, prod

MAX_TERMS = 200
MAX_BITS = 40_000
MAX_RADICAND = 10**8
ONE: frozenset = frozenset()

# The power of e whose exponent is a multiple of i pi.
TURN = ("power", "e", frozenset([("i", 1), ("pi", 1)]))

Poly = dict


class TooHard(ValueError):
    """Outside what this module decides, or too large."""


def _const(value: Fraction) -> Poly:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooHard("number too long")
    return {ONE: value.numerator if value.denominator == 1 else value} if value else {}


def _over(a: Fraction | int, b: Fraction | int) -> Fraction | int:
    return a if b == 1 else Fraction(a, b)


def _atom(atom, exponent: Fraction | int = 1) -> Poly:
    return {frozenset([(atom, exponent)]): 1}


def _join(a: frozenset, b: frozenset) -> tuple[frozenset, Fraction | int]:
    """Product of two monomials, and the rational that falls out of it."""
    powers = dict(a)
    for atom, exponent in b:
        powers[atom] = powers.get(atom, 0) + exponent
    factor: Fraction | int = 1
    for atom, exponent in list(powers.items()):
        if isinstance(atom, int):  # a prime under a root
            whole = exponent.numerator // exponent.denominator
            if abs(whole) > 4096:
                raise TooHard("exponent too large")
            factor *= Fraction(atom) ** whole
            powers[atom] = exponent - whole
        elif atom == "i" and exponent.denominator == 1:
            quarter = int(exponent) % 4
            factor *= -1 if quarter >= 2 else 1
            powers[atom] = Fraction(quarter % 2)
        if not powers[atom]:
            del powers[atom]
        elif atom == TURN:  # half a turn is -1
            whole = exponent.numerator // exponent.denominator
            factor *= -1 if whole % 2 else 1
            powers[atom] = exponent - whole
    return frozenset(powers.items()), factor


def _add(a: Poly, b: Poly, sign: int = 1) -> Poly:
    total = dict(a)
    for mono, coefficient in b.items():
        value = total.get(mono, 0) + sign * coefficient
        if value:
            total[mono] = value
        else:
            total.pop(mono, None)
    if len(total) > MAX_TERMS:
        raise TooHard("too many terms")
    return total


def _mul(a: Poly, b: Poly) -> Poly:
    if len(a) * len(b) > 4 * MAX_TERMS:
        raise TooHard("too many terms")
    total: Poly = {}
    for left, x in a.items():
        for right, y in b.items():
            mono, factor = (left or right, 1) if not left or not right else _join(left, right)
            value = total.get(mono, 0) + (x * y if factor == 1 else x * y * factor)
            if value:
                if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
                    raise TooHard("number too long")
                total[mono] = value
            else:
                total.pop(mono, None)
    return total


class Form:
    """top / bottom, two polynomials, bottom not zero."""

    __slots__ = ("bottom", "top")

    def __init__(self, top: Poly, bottom: Poly | None = None):
        bottom = {ONE: 1} if bottom is None else bottom
        if not bottom:
            raise TooHard("division by zero")
        if len(bottom) == 1 and ONE not in bottom:  # a single term moves into the numerator
            ((mono, coefficient),) = bottom.items()
            inverse, factor = _join(ONE, frozenset((atom, -exponent) for atom, exponent in mono))
            top, bottom = _mul(top, {inverse: _over(factor, coefficient)}), {ONE: 1}
        else:
            lead = bottom[min(bottom, key=hash)]
            if lead != 1:
                top = {mono: _over(value, lead) for mono, value in top.items()}
                bottom = {mono: _over(value, lead) for mono, value in bottom.items()}
        self.top, self.bottom = top, bottom

    def __eq__(self, other) -> bool:
        if self.bottom == other.bottom:
            return self.top == other.top
        return _mul(self.top, other.bottom) == _mul(other.top, self.bottom)

    def plus(self, other: "Form", sign: int = 1) -> "Form":
        if self.bottom == other.bottom:
            return Form(_add(self.top, other.top, sign), self.bottom)
        left, right = _mul(self.top, other.bottom), _mul(other.top, self.bottom)
        return Form(_add(left, right, sign), _mul(self.bottom, other.bottom))

    def times(self, other: "Form") -> "Form":
        return Form(_mul(self.top, other.top), _mul(self.bottom, other.bottom))

    def over(self, other: "Form") -> "Form":
        return Form(_mul(self.top, other.bottom), _mul(self.bottom, other.top))

    def rational(self) -> Fraction | None:
        """The value when it is a plain rational number."""
        if not self.top:
            return Fraction(0)
        if set(self.top) == {ONE} and set(self.bottom) == {ONE}:
            return Fraction(self.top[ONE], self.bottom[ONE])
        return None

    def key(self) -> tuple:
        return frozenset(self.top.items()), frozenset(self.bottom.items())

    def content(self) -> tuple[Fraction, "Form"]:
        """The greatest positive rational that divides the numerator's coefficients, and what it leaves."""
        if not self.top:
            return Fraction(1), self
        values = self.top.values()
        content = Fraction(gcd(*(v.numerator for v in values)), lcm(*(v.denominator for v in values)))
        return content, Form({mono: _over(value, content) for mono, value in self.top.items()}, self.bottom)

    @property
    def atoms(self) -> set:
        return {atom for poly in (self.top, self.bottom) for mono in poly for atom, _ in mono}

    @property
    def decisive(self) -> bool:
        """Whether a different form means a different value: no opaque term but unknown functions, which obey no law."""
        return not any(isinstance(atom, tuple) and not str(atom[0]).startswith("call ") for atom in self.atoms)

    def cleared(self) -> "Form":
        """Without symbols under a fraction bar: what an equation with zero may be multiplied by."""
        least: dict = {}
        for mono in self.top:
            for atom, exponent in mono:
                least[atom] = min(exponent, least.get(atom, 0))
        return self.times(Form({frozenset((atom, -e) for atom, e in least.items() if e < 0): 1}))

    @property
    def is_power(self) -> bool:
        """Whether it is one monomial whose atoms all stand for positive numbers."""
        return set(self.bottom) == {ONE} and len(self.top) == 1 and all(map(_is_positive, self.atoms))


def _is_positive(atom) -> bool:
    if isinstance(atom, tuple) and atom[0] == "power":
        return _is_positive(atom[1]) and all(name != "i" for name, _ in atom[2])
    return isinstance(atom, int) or atom in ("e", "pi")


@lru_cache(maxsize=1024)
def _factors(value: Fraction) -> tuple[tuple[int, int], ...]:
    """(prime, exponent) of a positive rational."""
    factors = []
    for number, sign in ((value.numerator, 1), (value.denominator, -1)):
        if number > MAX_RADICAND:
            raise TooHard("radicand too large")
        divisor = 2
        while number > 1:
            if divisor * divisor > number:
                divisor = number
            count = 0
            while number % divisor == 0:
                number //= divisor
                count += 1
            if count:
                factors.append((divisor, count * sign))
            divisor += 1 if divisor == 2 else 2
    return tuple(factors)


def _root_of_rational(value: Fraction, exponent: Fraction) -> Form:
    if value == 0:
        return Form({})
    result = Form({ONE: 1})
    if value < 0:
        if exponent.denominator == 2:
            result = Form({frozenset([("i", 1)]): 1 if exponent.numerator % 4 == 1 else -1})
        elif exponent.denominator % 2 == 1:  # the real root
            result = Form({ONE: Fraction(-1 if exponent.numerator % 2 else 1)})
        else:
            raise TooHard("root of a negative number")
        value = -value
    mono, factor = _join(ONE, frozenset((prime, exponent * count) for prime, count in _factors(value)))
    return result.times(Form({mono: factor}))


def _integer_power(base: Form, exponent: int) -> Form:
    if abs(exponent) > 1 and (len(base.top) > 1 or len(base.bottom) > 1) and abs(exponent) > 24:
        raise TooHard("exponent too large")
    for poly in (base.top, base.bottom):
        bits = max((v.numerator.bit_length() + v.denominator.bit_length() for v in poly.values()), default=0)
        if bits > 2 and bits * abs(exponent) > MAX_BITS:
            raise TooHard("power too large")
    if exponent < 0:
        base, exponent = Form(base.bottom, base.top), -exponent
    result = Form({ONE: 1})
    while exponent:
        if exponent & 1:
            result = result.times(base)
        exponent >>= 1
        if exponent:
            base = base.times(base)
    return result


def _power(base: Form, exponent: Form) -> Form:
    value = exponent.rational()
    if value is not None and value.denominator == 1:
        if abs(value) > MAX_BITS:
            raise TooHard("exponent too large")
        return _integer_power(base, int(value))
    rational = base.rational()
    if value is not None:
        single = len(base.top) == 1 and set(base.bottom) == {ONE} and set(base.top.values()) == {1}
        if (abs(value.numerator) > 64 and not single) or abs(value.numerator) > MAX_BITS or value.denominator > 64:
            raise TooHard("exponent too large")
        if rational is not None:
            return _root_of_rational(rational, value)
        content, rest = base.content()
        if len(base.top) == 1 and set(base.bottom) == {ONE}:
            ((mono, sign),) = rest.top.items()
            # Only of what is positive, or bare: the root of x^2 is not x, and not every root of a product splits.
            if sign == 1 and (
                base.is_power or (len(mono) == 1 and ("i", 1) not in mono and {e for _, e in mono} == {1})
            ):
                mono, factor = _join(ONE, frozenset((atom, e * value) for atom, e in mono))
                return _root_of_rational(content, value).times(Form({mono: factor}))
        return _root_of_rational(content, value).times(Form(_atom(("root", rest.key(), value))))
    if rational == 1:
        return base
    if set(exponent.bottom) != {ONE}:
        return Form(_atom(("pow", base.key(), exponent.key())))
    result = Form({ONE: 1})
    for mono, coefficient in exponent.top.items():
        if mono == ONE:
            result = result.times(_power(base, Form(_const(coefficient))))
            continue
        for atom, count in _bases(base, rational):
            over, factor = mono, coefficient * count
            if isinstance(atom, tuple) and atom[0] == "power":  # (e^x)^n
                over, sign = _join(atom[2], mono)
                atom, factor = atom[1], factor * sign
            if ("power", atom, over) == TURN and 12 % factor.denominator == 0:
                result = result.times(_turned(int(12 * factor) % 24))
            else:
                power, factor = _join(ONE, frozenset([(("power", atom, over), factor)]))
                result = result.times(Form({power: factor}))
    return result


def _bases(base: Form, rational: Fraction | None) -> list[tuple]:
    """(atom, exponent) of the factors of a base whose powers are the products of theirs."""
    if rational:
        sign = [(("base", Form(_const(Fraction(-1))).key()), 1)] if rational < 0 else []
        return [*sign, *_factors(abs(rational))]
    if len(base.top) == 1 and set(base.bottom) == {ONE} and "i" not in base.atoms:
        ((mono, coefficient),) = base.top.items()
        return [*mono, *_bases(base, coefficient)] if coefficient != 1 else [*mono]
    return [(("base", base.key()), 1)]


@lru_cache(maxsize=32)
def _turned(steps: int) -> Form:
    """e to the power of i pi / 12 times `steps`, in roots."""
    if not steps:
        return Form({ONE: 1})
    six, two = (_root_of_rational(Fraction(n), Fraction(1, 2)) for n in (6, 2))
    fifteen_degrees = six.plus(two).plus(six.plus(two, -1).times(Form(_atom("i"))))
    return fifteen_degrees.times(Form(_const(Fraction(1, 4)))).times(_turned(steps - 1))


def _logarithm(value: Form) -> Form:
    """The natural one: of numbers and their powers a sum over the primes."""
    content, rest = value.content()
    total = Form({frozenset([(("ln", prime), 1)]): Fraction(n) for prime, n in _factors(content)})
    if not rest.is_power or rest.top.get(next(iter(rest.top))) != 1:
        return total if rest.rational() == 1 else total.plus(Form(_atom(("ln", rest.key()))))
    for atom, exponent in next(iter(rest.top)):
        term = Form({ONE: 1}) if atom == "e" else Form(_atom(("ln", atom)))
        if isinstance(atom, tuple):
            base = Form(_atom(atom[1])) if isinstance(atom[1], str) else Form(_const(Fraction(atom[1])))
            term = Form({frozenset(atom[2]): 1}).times(_logarithm(base))
        total = total.plus(term.times(Form(_const(exponent))))
    return total


def _waves(name: str, arg: Form) -> Form:
    """A trigonometric or hyperbolic function by powers of e."""
    i = Form(_atom("i")) if not name.endswith("h") else Form({ONE: 1})
    up = _power(Form(_atom("e")), arg.times(i))
    down = Form({ONE: 1}).over(up)
    sine, cosine = up.plus(down, -1).over(i), up.plus(down)  # twice each
    two = Form(_const(Fraction(2)))
    return {
        "sin": lambda: sine.over(two),
        "cos": lambda: cosine.over(two),
        "tan": lambda: sine.over(cosine),
        "cot": lambda: cosine.over(sine),
        "sec": lambda: two.over(cosine),
        "csc": lambda: two.over(sine),
    }[name.removesuffix("h")]()


def _function(name: str, args: list[Form]) -> Form:
    values = [arg.rational() for arg in args]
    if "factorial" in name and values[0] is not None and values[0].denominator == 1 and 0 <= values[0] <= 3000:
        return Form(_const(Fraction(prod(range(int(values[0]), 0, -1 if name == "factorial" else -2)))))
    if name == "binom" and None not in values and all(v.denominator == 1 and 0 <= v <= 10_000 for v in values):
        return Form(_const(Fraction(comb(int(values[0]), int(values[1])))))
    if name == "binom" and values[1] is not None and values[1].denominator == 1 and 0 <= values[1] <= 6:
        result = Form({ONE: 1})
        for n in range(int(values[1])):
            result = result.times(args[0].plus(Form(_const(Fraction(n))), -1)).over(Form(_const(Fraction(n + 1))))
        return result
    if name in ("gcd", "lcm") and all(v is not None and v.denominator == 1 for v in values):
        return Form(_const(Fraction((gcd if name == "gcd" else lcm)(*(int(v) for v in values)))))
    if name == "abs":
        content, rest = args[0].content()
        lead = next((rest.top[mono] for mono in [min(rest.top, key=hash, default=ONE)] if rest.top), 1)
        rest = Form({mono: _over(value, lead) for mono, value in rest.top.items()}, rest.bottom)
        scale = Form(_const(content * abs(lead)))
        return scale.times(rest if rest.is_power or not rest.top else Form(_atom(("abs", rest.key()))))
    if name in ("floor", "ceil") and values[0] is not None:
        return Form(_const(Fraction(values[0].__floor__() if name == "floor" else values[0].__ceil__())))
    if name in ("ln", "log", "lg") and args[0].top:
        base = args[1] if len(args) == 2 else Form(_const(Fraction(10)) if name == "lg" else _atom("e"))
        return _logarithm(args[0]).over(_logarithm(base))
    if name in ("exp", "cis"):
        return _power(Form(_atom("e")), args[0].times(Form(_atom("i"))) if name == "cis" else args[0])
    if name in _WAVES:
        return _waves(name, args[0])
    return Form(_atom((name, *(arg.key() for arg in args))))


_WAVES = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
_OPERATIONS = {"add": Form.plus, "mul": Form.times, "div": Form.over, "pow": _power}


def canonical(tree: tuple) -> Form:
    """The canonical form of a tree of `parse`. Raises TooHard."""
    kind = tree[0]
    if kind == "num":
        return Form(_const(tree[1]))
    if kind == "sym":
        return Form(_atom(tree[1]))
    args = [canonical(arg) for arg in tree[2 if kind in ("fn", "call") else 1 :]]
    if kind == "neg":
        return Form({mono: -value for mono, value in args[0].top.items()}, args[0].bottom)
    if kind in _OPERATIONS:
        return _OPERATIONS[kind](*args)
    return _function(tree[1] if kind == "fn" else f"call {tree[1]}", args)


def ratio(a: Form, b: Form) -> Fraction | None:
    """The rational r with a = r * b; None when there is none or a form is zero."""
    left, right = _mul(a.top, b.bottom), _mul(b.top, a.bottom)
    if not left or left.keys() != right.keys():
        return None
    ratios = {Fraction(left[mono], right[mono]) for mono in left}
    return ratios.pop() if len(ratios) == 1 else None
