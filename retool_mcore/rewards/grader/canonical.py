"""Exact canonical forms: quotients of polynomials over the rationals extended by real roots of rationals, i, pi and e.

A polynomial is a dict from a monomial to its coefficient (Fraction, never 0); a monomial is a sorted tuple of
(atom, exponent). Atoms are primes (their exponents lie in (0, 1); products of such roots are linearly independent over
the rationals, Besicovitch 1940), symbols, and opaque terms such as sin(x), which are only known to equal themselves.
"""

from fractions import Fraction
from math import comb, prod

MAX_TERMS = 200
MAX_BITS = 40_000
MAX_RADICAND = 10**8
ONE = ()

Poly = dict


class TooHard(ValueError):
    """Outside what this module decides, or too large."""


def _const(value: Fraction) -> Poly:
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooHard("number too long")
    return {ONE: value} if value else {}


def _atom(atom, exponent: Fraction = Fraction(1)) -> Poly:
    return {((atom, exponent),): Fraction(1)}


def _join(a: tuple, b: tuple) -> tuple[tuple, Fraction]:
    """Product of two monomials, and the rational that falls out of it."""
    powers = dict(a)
    for atom, exponent in b:
        powers[atom] = powers.get(atom, 0) + exponent
    factor = Fraction(1)
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
    return tuple(sorted(powers.items(), key=repr)), factor


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
            value = total.get(mono, 0) + x * y * factor
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
        bottom = {ONE: Fraction(1)} if bottom is None else bottom
        if not bottom:
            raise TooHard("division by zero")
        if len(bottom) == 1 and ONE not in bottom:  # a single term moves into the numerator
            ((mono, coefficient),) = bottom.items()
            inverse, factor = _join(ONE, tuple((atom, -exponent) for atom, exponent in mono))
            top, bottom = _mul(top, {inverse: factor / coefficient}), {ONE: Fraction(1)}
        else:
            lead = bottom[min(bottom, key=repr)]
            if lead != 1:
                top = {mono: value / lead for mono, value in top.items()}
                bottom = {mono: value / lead for mono, value in bottom.items()}
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
            return self.top[ONE] / self.bottom[ONE]
        return None

    def key(self) -> tuple:
        return tuple(sorted(self.top.items(), key=repr)), tuple(sorted(self.bottom.items(), key=repr))

    @property
    def atoms(self) -> set:
        return {atom for poly in (self.top, self.bottom) for mono in poly for atom, _ in mono}

    @property
    def decisive(self) -> bool:
        """Whether a different form means a different value: no opaque term but unknown functions, which obey no law."""
        return not any(isinstance(atom, tuple) and not str(atom[0]).startswith("call ") for atom in self.atoms)


def _root_of_rational(value: Fraction, exponent: Fraction) -> Form:
    if value == 0:
        return Form({})
    result = Form({ONE: Fraction(1)})
    if value < 0:
        if exponent.denominator == 2:
            result = Form({(("i", Fraction(1)),): Fraction(1 if exponent.numerator % 4 == 1 else -1)})
        elif exponent.denominator % 2 == 1:  # the real root
            result = Form({ONE: Fraction(-1 if exponent.numerator % 2 else 1)})
        else:
            raise TooHard("root of a negative number")
        value = -value
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
                mono, factor = _join(ONE, ((divisor, exponent * count * sign),))
                result = result.times(Form({mono: factor}))
            divisor += 1 if divisor == 2 else 2
    return result


def _integer_power(base: Form, exponent: int) -> Form:
    if abs(exponent) > 1 and (len(base.top) > 1 or len(base.bottom) > 1) and abs(exponent) > 24:
        raise TooHard("exponent too large")
    for poly in (base.top, base.bottom):
        bits = max((v.numerator.bit_length() + v.denominator.bit_length() for v in poly.values()), default=0)
        if bits > 2 and bits * abs(exponent) > MAX_BITS:
            raise TooHard("power too large")
    if exponent < 0:
        base, exponent = Form(base.bottom, base.top), -exponent
    result = Form({ONE: Fraction(1)})
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
        if abs(value.numerator) > 64 or value.denominator > 64:
            raise TooHard("exponent too large")
        if rational is not None:
            return _root_of_rational(rational, value)
        if len(base.top) == 1 and set(base.bottom) == {ONE}:
            ((mono, coefficient),) = base.top.items()
            # Only for a bare symbol or constant: the root of x^2 is not x, and not every root of a product splits.
            if len(mono) == 1 and mono[0][1] == 1 and mono[0][0] != "i" and coefficient > 0:
                root = _root_of_rational(coefficient / base.bottom[ONE], value)
                return root.times(Form(_atom(mono[0][0], value)))
        return Form(_atom(("root", base.key(), value)))
    if rational == 1:
        return base
    # A symbolic exponent: its constant part comes out, 2^{n+1} = 2 * 2^n.
    constant = exponent.top.get(ONE, Fraction(0)) if set(exponent.bottom) == {ONE} else Fraction(0)
    rest = exponent.plus(Form(_const(constant)), -1)
    whole = constant.denominator == 1
    if not whole:
        rest = exponent
    result = Form(_atom(("pow", base.key(), rest.key())))
    return result.times(_integer_power(base, int(constant))) if whole and abs(constant) <= 64 else result


def _function(name: str, args: list[Form]) -> Form:
    values = [arg.rational() for arg in args]
    if "factorial" in name and values[0] is not None and values[0].denominator == 1 and 0 <= values[0] <= 3000:
        return Form(_const(Fraction(prod(range(int(values[0]), 0, -1 if name == "factorial" else -2)))))
    if name == "binom" and None not in values and all(v.denominator == 1 and 0 <= v <= 3000 for v in values):
        return Form(_const(Fraction(comb(int(values[0]), int(values[1])))))
    if name == "binom" and values[1] is not None and values[1].denominator == 1 and 0 <= values[1] <= 6:
        result = Form(_const(Fraction(1)))
        for n in range(int(values[1])):
            result = result.times(args[0].plus(Form(_const(Fraction(n))), -1)).over(Form(_const(Fraction(n + 1))))
        return result
    if name == "abs" and values[0] is not None:
        return Form(_const(abs(values[0])))
    if name in ("floor", "ceil") and values[0] is not None:
        return Form(_const(Fraction(values[0].__floor__() if name == "floor" else values[0].__ceil__())))
    if name in ("ln", "log", "lg") and values[0] == 1:
        return Form({})
    if name == "exp":
        return _power(Form(_atom("e")), args[0])
    return Form(_atom((name, *(arg.key() for arg in args))))


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
    ratios = {left[mono] / right[mono] for mono in left}
    return ratios.pop() if len(ratios) == 1 else None
