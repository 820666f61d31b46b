"""Values of expression trees at fixed generic points: a quick proof that two differ, a strong hint that they agree."""

import cmath
import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction

import mpmath

from retool_mcore.rewards.grader import pieces

# Generic: no relation between them that an answer could contain. The last two rows have negative values, where roots
# and absolute values tell x from |x|.
_POINTS = ((1.37, 0.71, 2.13), (0.83, 1.91, 1.19), (-1.21, 0.57, -0.89), (-0.67, -1.43, 1.61))
# A context of its own whose precision never changes: the shared one is not safe with threads.
_MP = mpmath.MPContext()
_MP.dps = 60


# Points with a value on both sides without which expressions with branches are not taken for equal.
_ENOUGH = 5


class NoValue(ValueError):
    """No finite value at this point, or a function without a known meaning."""


class Outside(NoValue):
    """No value in real numbers: the root or the logarithm of a negative number."""


def points(symbols: frozenset[str]) -> Iterator[tuple[bool, dict[str, float]]]:
    """(whether all values are positive, value of each symbol) for each point."""
    names = sorted(symbols - {"pi", "e", "i", "infty"})
    for row in _POINTS:
        # Growing with the index, so that two symbols never share a value.
        yield row[0] > 0, {name: row[n % 3] * (1 + n // 3 * 0.377) for n, name in enumerate(names)}
        if not names:
            return


def _real(value) -> float:
    if abs(value.imag) > 1e-12 * (1 + abs(value.real)):
        raise NoValue("complex")
    return value.real


def _power(base, exponent, lib, real: bool):
    if exponent.imag == 0 and exponent.real == int(exponent.real) and base != 0 and abs(exponent.real) <= 400:
        return base ** int(exponent.real)
    if base == 0:
        if exponent.imag == 0 and exponent.real > 0:
            return base
        raise NoValue("0 to a power")
    if abs(exponent.real) > 400:
        raise NoValue("too large")
    if base.imag == 0 and base.real < 0:
        for root in (3, 5, 7, 9, 11, 13, 15):  # the real root, as in school
            count = exponent * root
            if abs(count - round(count.real)) < 1e-12:
                return lib["exp"](lib["log"](-base) * exponent) * (-1 if round(count.real) % 2 else 1)
        if real:
            raise Outside("root of a negative number")
    return lib["exp"](lib["log"](base) * exponent)


def _functions(m) -> dict:
    same = {name: getattr(m, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "log")}
    same |= {"ln": m.log, "arcsin": m.asin, "arccos": m.acos, "arctan": m.atan, "lg": lambda v: m.log(v) / m.log(10)}
    same |= {"cis": lambda v: m.exp(1j * v), "arccot": lambda v: m.pi / 2 - same["arctan"](v)}
    return same | {"cot": lambda v: 1 / m.tan(v), "sec": lambda v: 1 / m.cos(v), "csc": lambda v: 1 / m.sin(v)}


_FLOAT = {"lib": _functions(cmath), "make": lambda n, d=1: complex(n / d), "pi": cmath.pi, "e": cmath.e}
_OPERATIONS: dict[str, Callable] = {"add": operator.add, "mul": operator.mul, "div": operator.truediv}
_LONG = {"lib": _functions(_MP), "make": lambda n, d=1: _MP.mpf(n) / d, "pi": _MP.pi, "e": _MP.e}


def _evaluate(tree: tuple, at: dict, kind: dict, real: bool = False):
    head = tree[0]
    lib, make = kind["lib"], kind["make"]
    if head == "num":
        return make(tree[1].numerator, tree[1].denominator)
    if head == "sym":
        name = tree[1]
        if name in ("pi", "e"):
            return make(1) * kind[name]
        if name == "i":
            return make(1) * 1j
        if name in at:
            return make(at[name])
        raise NoValue(name)
    if head == "call":
        raise NoValue("unknown function")
    args = [_evaluate(arg, at, kind, real) for arg in tree[2 if head == "fn" else 1 :]]
    if head == "neg":
        return -args[0]
    if head in _OPERATIONS:
        return _OPERATIONS[head](*args)
    if head == "pow":
        return _power(args[0], args[1], lib, real)
    if real and (
        (tree[1] in ("ln", "log", "lg") and any(arg.real < 0 for arg in args))
        or (tree[1] in ("arcsin", "arccos") and abs(args[0]) > 1)
    ):
        raise Outside(tree[1])
    return _apply(tree[1], args, lib, make)


def _apply(name: str, args: list, lib: dict, make):
    if name == "abs":
        return make(1) * abs(args[0])
    if name in ("floor", "ceil"):
        real = _real(args[0])
        if abs(real - round(real)) < 1e-9:
            return make(round(real))
        return make(math.floor(real) if name == "floor" else math.ceil(real))
    if name in ("factorial", "double factorial"):
        real = _real(args[0])
        if real != round(real) or not 0 <= real <= 150:
            raise NoValue("factorial")
        return make(math.prod(range(round(real), 0, -1 if name == "factorial" else -2)))
    if name in ("binom", "gcd", "lcm"):
        whole = [round(_real(arg)) for arg in args]
        if len(whole) != 2 or any(n != _real(arg) for n, arg in zip(whole, args, strict=True)):
            raise NoValue(name)
        if name == "binom" and not 0 <= whole[1] <= whole[0] <= 1000:
            raise NoValue(name)
        return make({"binom": math.comb, "gcd": math.gcd, "lcm": math.lcm}[name](*whole))
    if name in ("log", "ln", "lg") and len(args) == 2:
        return lib["log"](args[0]) / lib["log"](args[1])
    if name not in lib:
        raise NoValue(name)
    return lib[name](args[0])


def value(tree: tuple, at: dict[str, float], long: bool = False, real: bool = False):
    """Complex value of `tree` with the symbols at `at`; 60 digits when `long`. Raises NoValue.

    real: whether a step outside of the real numbers raises Outside.
    """
    try:
        result = _evaluate(tree, at, _FLOAT, real)
        if long and abs(result) < 1e300:  # what overflows a float may take forever in 60 digits
            result = _evaluate(tree, at, _LONG)
        if not (abs(result) < 1e300):
            raise NoValue("not finite")
    except NoValue:
        raise
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise NoValue(str(error)) from error
    return result


def _close(a, b, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def compare(a: tuple, b: tuple, symbols: frozenset[str]) -> bool | None:
    """Whether answer `a` and truth `b` are equal wherever the truth has a value; None: not sure.

    Expressions with branches are compared on each piece (`pieces.py`), others at a few generic points. An answer may
    have values where the truth has none, as `\\ln|x|` where the truth is `\\ln x`.
    """
    names = sorted(symbols - pieces.CONSTANTS)
    branches = pieces.Branches(a, b)
    if not names or "i" in symbols or not (branches.kinks or branches.counted):
        return _generic(a, b, symbols)
    counted = branches.counted & set(names)
    search = _Search()
    if counted:
        return _agree(a, b, pieces.integer_points(names, counted, branches.kinks, search, True))
    verdict = _agree(a, b, pieces.real_points(names, branches.kinks, search))
    if search.left < 0:
        return verdict and None  # equal so far, but not every piece was found
    if verdict is None and not branches.names & {"floor", "ceil", "abs"}:
        return _generic(a, b, symbols)  # the truth has no real value anywhere
    whole = branches.rounded
    if verdict is False and whole and whole <= pieces.INTEGER_LETTERS and not _rounds_integers(branches, names):
        return _agree(a, b, pieces.integer_points(names, whole, branches.kinks, search, False))
    return verdict


def differ_by_a_constant(a: tuple, b: tuple, symbols: frozenset[str]) -> bool | None:
    """Whether answer `a` less truth `b` is the same number wherever the truth has a value."""
    for _, at in points(symbols):
        try:
            gap = value(a, at, long=True) - value(b, at, long=True)
        except NoValue:
            continue
        if abs(gap.imag) < 1e-40:
            shift = ("num", Fraction(_MP.nstr(gap.real, 58)), None)
            return compare(a, ("add", b, shift), symbols)
    return None


def real_value(tree: tuple, at: dict[str, float]) -> float | None:
    """The value of a tree in real numbers alone, None where it has none."""
    try:
        result = value(tree, at, real=True)
    except NoValue:
        return None
    return result.real if abs(result.imag) <= 1e-12 * (1 + abs(result.real)) else None


class _Search:
    """`real_value` for the search of kinks, None after a number of steps that takes some 50 ms."""

    def __init__(self) -> None:
        self.left = 60_000
        self.sizes: dict[int, int] = {}

    def __call__(self, tree: tuple, at: dict[str, float]) -> float | None:
        if id(tree) not in self.sizes:
            self.sizes[id(tree)] = _size(tree)
        self.left -= self.sizes[id(tree)]
        return None if self.left < 0 else real_value(tree, at)


def _size(tree: tuple) -> int:
    return 1 + sum(_size(part) for part in tree if isinstance(part, tuple))


def _rounds_integers(branches: pieces.Branches, names: list[str]) -> bool:
    """Whether a floor or ceiling of whole letters would do nothing, so that they are meant as real numbers."""
    points = [{name: float(n * step + 3) for n, name in enumerate(names, 1)} for step in (1, 4, 7, 10, 29)]
    for tree, rounds in branches.kinks:
        values = [real_value(tree, at) for at in points] if rounds else [0.5]
        if all(v is None or abs(v - round(v)) < 1e-9 for v in values):
            return True
    return False


def _agree(a: tuple, b: tuple, points: Iterator[dict[str, float]]) -> bool | None:
    """Whether `a` has the value of `b` at all points where `b` has a real one; None: at too few of them."""
    monomials = all(pieces.is_monomial(tree) for tree, _ in pieces.Branches(a).kinks)
    agreed, seen = 0, set()
    for at in points:
        key = tuple(at.values())
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > pieces.MOST_POINTS:
            break
        right = real_value(b, at)
        if right is None:
            continue
        try:
            left = value(a, at, real=True)
        except Outside:
            # Letters are lengths and counts where nothing else is shown: `\\ln x+\\ln y` is `\\ln(xy)`.
            if (monomials and min(key) <= 0) or _equal_in_many_digits(a, b, at):
                continue
            return False
        except NoValue:
            continue
        # Floats agree by chance or by cancellation: some points are looked at closely.
        if (not _close(left, right, 1e-9) or agreed % 16 == 0) and not _equal_in_many_digits(a, b, at):
            return False
        agreed += 1
    return True if agreed >= _ENOUGH else None


def _equal_in_many_digits(a: tuple, b: tuple, at: dict[str, float]) -> bool:
    try:
        left, right = value(a, at, True), value(b, at, True)
    except NoValue:
        return False
    return _close(left, right, 1e-45) or max(abs(left), abs(right)) < 1e-45


def _generic(a: tuple, b: tuple, symbols: frozenset[str]) -> bool | None:
    """The verdict where there are no branches.

    True: equal to 50 digits at the first positive and the first other point where both have a value, and as floats at
    all. False: clearly different at a positive point. Else None.
    """
    proved: set[bool] = set()
    for positive, at in points(symbols):
        try:
            left, right = value(a, at), value(b, at)
        except NoValue:
            if positive:
                return None
            continue
        if not positive and "i" not in symbols and (left.imag or right.imag):
            continue  # outside of what real numbers allow
        near = _close(left, right, 1e-7)
        if near and positive in proved:
            continue
        try:
            left_long, right_long = value(a, at, True), value(b, at, True)
        except NoValue:
            return None
        if not _close(left_long, right_long, 1e-50):
            # A float alone proves nothing after cancellation; equal to many digits but not to all is for algebra.
            clear = not near and not _close(left_long, right_long, 1e-7)
            tiny = max(abs(left), abs(right)) < 1e-40
            return False if clear and positive and not tiny else None
        proved.add(positive)
    return True if proved else None
