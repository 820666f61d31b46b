"""Values of expression trees at fixed generic points: a quick proof that two differ, a strong hint that they agree."""

import cmath
import math
import operator
from collections.abc import Callable, Iterator

import mpmath

# Generic: no relation between them that an answer could contain. The last two rows have negative values, where roots
# and absolute values tell x from |x|.
_POINTS = ((1.37, 0.71, 2.13), (0.83, 1.91, 1.19), (-1.21, 0.57, -0.89), (-0.67, -1.43, 1.61))
# A context of its own whose precision never changes: the shared one is not safe with threads.
_MP = mpmath.MPContext()
_MP.dps = 60


class NoValue(ValueError):
    """No finite value at this point, or a function without a known meaning."""


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


def _power(base, exponent, lib):
    if exponent.imag == 0 and exponent.real == int(exponent.real) and base != 0 and abs(exponent.real) <= 400:
        return base ** int(exponent.real)
    if base == 0:
        if exponent.imag == 0 and exponent.real > 0:
            return base
        raise NoValue("0 to a power")
    if abs(exponent.real) > 400:
        raise NoValue("too large")
    if base.imag == 0 and base.real < 0:
        for root in (3, 5, 7):  # the real root, as in school
            count = exponent * root
            if abs(count - round(count.real)) < 1e-12:
                return lib["exp"](lib["log"](-base) * exponent) * (-1 if round(count.real) % 2 else 1)
    return lib["exp"](lib["log"](base) * exponent)


def _functions(m) -> dict:
    same = {name: getattr(m, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "log")}
    same |= {"ln": m.log, "arcsin": m.asin, "arccos": m.acos, "arctan": m.atan, "lg": lambda v: m.log(v) / m.log(10)}
    same |= {"cis": lambda v: m.exp(1j * v), "arccot": lambda v: m.pi / 2 - same["arctan"](v)}
    return same | {"cot": lambda v: 1 / m.tan(v), "sec": lambda v: 1 / m.cos(v), "csc": lambda v: 1 / m.sin(v)}


_FLOAT = {"lib": _functions(cmath), "make": lambda n, d=1: complex(n / d), "pi": cmath.pi, "e": cmath.e}
_OPERATIONS: dict[str, Callable] = {"add": operator.add, "mul": operator.mul, "div": operator.truediv}
_LONG = {"lib": _functions(_MP), "make": lambda n, d=1: _MP.mpf(n) / d, "pi": _MP.pi, "e": _MP.e}


def _evaluate(tree: tuple, at: dict, kind: dict):
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
    args = [_evaluate(arg, at, kind) for arg in tree[2 if head == "fn" else 1 :]]
    if head == "neg":
        return -args[0]
    if head in _OPERATIONS:
        return _OPERATIONS[head](*args)
    if head == "pow":
        return _power(args[0], args[1], lib)
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
    if name in ("log", "ln", "lg") and len(args) == 2:
        return lib["log"](args[0]) / lib["log"](args[1])
    if name not in lib:
        raise NoValue(name)
    return lib[name](args[0])


def value(tree: tuple, at: dict[str, float], long: bool = False):
    """Complex value of `tree` with the symbols at `at`; 60 digits when `long`. Raises NoValue."""
    try:
        result = _evaluate(tree, at, _FLOAT)
        if long and abs(result) < 1e300:  # what overflows a float may take forever in 60 digits
            result = _evaluate(tree, at, _LONG)
        if not (abs(result) < 1e300):
            raise NoValue("not finite")
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise NoValue(str(error)) from error
    return result


def _close(a, b, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def compare(a: tuple, b: tuple, symbols: frozenset[str]) -> bool | None:
    """True: equal to 50 digits at the first positive and the first other point where both have a value, and as floats
    at all. False: clearly different at a positive point. Else None."""
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
