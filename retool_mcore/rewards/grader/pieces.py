"""Points at which two expressions with branches must agree: both sides of every kink, magnitudes, integers.

A floor, an absolute value, an even root and a logarithm of an absolute value are other functions on either side of
some place. Values at a few points say nothing about the other pieces: the points come from the expressions.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random

CONSTANTS = frozenset({"pi", "e", "i", "infty"})
# Letters that stand for integers by custom, where the expression does not show it.
INTEGER_LETTERS = frozenset("jklmnpqJKLMNPQ")
_ROUNDS = frozenset({"floor", "ceil"})
_COUNTS = frozenset({"factorial", "double factorial", "binom", "gcd", "lcm"})
_LOGS = frozenset({"ln", "log", "lg"})

_MAGNITUDES = (0.03, 0.4, 1.3, 2.6, 4.7, 7.9, 13.1, 29.3, 61.7, 131.3, 479.9, 1_733.3, 10_461.7, 152_003.3, 2_400_017.9)
_GRID = (*(-m for m in reversed(_MAGNITUDES)), -0.0007, *_MAGNITUDES, 3.1e8, 4.3e10)
_WHOLE = (*range(-6, 27), 35, 48, 60, 64, 81, 97, 100, 101, 144, 720, 997, 1000, 1001, 1024, 5040, 10_007, 1_000_003)
_SMALL = tuple(range(13))
_BASES = ((1.37, 0.71, 2.13, 3.19), (5.83, -1.91, 11.9, -0.77), (-17.3, 23.7, -8.9, 41.3))
_MOST_KINKS = 12  # of one branch along one letter
MOST_POINTS = 160

Point = dict[str, float]


class Branches:
    """Parts of two trees that are another function from place to place.

    kinks: (tree, whether it is rounded) of each argument of a floor, absolute value, root or logarithm. counted:
    letters of factorials and binomials, which are integers. rounded: letters inside of a floor or ceiling.
    """

    def __init__(self, *trees: tuple):
        self.kinks: list[tuple[tuple, bool]] = []
        self.counted: set[str] = set()
        self.rounded: set[str] = set()
        self.names: set[str] = set()
        for tree in trees:
            self._walk(tree)

    def _walk(self, tree: tuple) -> None:
        head = tree[0]
        parts = [part for part in tree[1:] if isinstance(part, tuple)]
        if head == "fn":
            self.names.add(tree[1])
            if tree[1] in _COUNTS:
                for part in parts:
                    self.counted |= letters(part)
            elif tree[1] in _ROUNDS or tree[1] == "abs" or tree[1] in _LOGS:
                self._kink(parts[0], tree[1] in _ROUNDS)
        elif head == "pow" and _fractional(tree[2]):
            self.names.add("root")
            self._kink(tree[1], False)
        for part in parts:
            self._walk(part)

    def _kink(self, tree: tuple, rounds: bool) -> None:
        inside = letters(tree)
        if not inside:
            return
        if rounds:
            self.rounded |= inside
        if (tree, rounds) not in self.kinks:
            self.kinks.append((tree, rounds))


def _fractional(tree: tuple) -> bool:
    if tree[0] == "num":
        return tree[1].denominator != 1
    return tree[0] == "div" or (tree[0] == "neg" and _fractional(tree[1]))


def letters(tree: tuple) -> set[str]:
    """The symbols of a tree that are not constants."""
    if tree[0] == "sym":
        return {tree[1]} - CONSTANTS
    names: set[str] = set()
    for part in tree[1:]:
        if isinstance(part, tuple):
            names |= letters(part)
    return names


def is_monomial(tree: tuple) -> bool:
    """Whether a tree is a product of letters, numbers and their powers, so that only a letter's sign turns it."""
    if tree[0] in ("num", "sym"):
        return True
    if tree[0] in ("mul", "div"):
        return is_monomial(tree[1]) and is_monomial(tree[2])
    return tree[0] == "pow" and is_monomial(tree[1]) and tree[2][0] == "num"


def real_points(names: list[str], kinks: list[tuple[tuple, bool]], real: Callable) -> Iterator[Point]:
    """Points of real letters: of all magnitudes, at integers, and next to the kinks along each letter.

    real: (tree, point) -> its real value, None where it has none.
    """
    rows = [dict(zip(names, _spread(base, len(names)), strict=True)) for base in _BASES]
    yield from rows
    for n, size in enumerate(_MAGNITUDES):
        for sign in (1, -1):
            values = _spread((size, sign * size * 0.71, size * 1.37, -sign * size), len(names))
            yield dict(zip(names, (sign * v if n % 2 else v for v in values), strict=True))
    if len(names) == 1:
        for size in _MAGNITUDES:
            yield {names[0]: size * 1.01}
            yield {names[0]: -size * 1.01}
        for whole in (-7, -2, -1, 0, 1, 2, 3, 8, 10, 100, 1000):
            yield {names[0]: whole}
    for name in names:
        for row in rows[: 1 if len(names) == 1 else 3]:
            for at in _along(name, row, kinks, real):
                yield row | {name: at}


def _spread(base: tuple, count: int) -> list[float]:
    # Growing with the index, so that two letters never share a value.
    return [base[n % len(base)] * (1 + n // len(base) * 0.377) for n in range(count)]


def _at(real: Callable, tree: tuple, row: Point, name: str, at: float) -> float | None:
    return real(tree, row | {name: at})


def _along(name: str, row: Point, kinks: list[tuple[tuple, bool]], real: Callable) -> Iterator[float]:
    places: set[float] = set()
    for tree, rounds in kinks:
        if name in letters(tree):
            places |= set(_places(partial(_at, real, tree, row, name), rounds))
    ordered = sorted(places)
    for n, place in enumerate(ordered):
        step = 1e-3 * max(1.0, abs(place))
        yield place - step
        yield place + step
        if n:
            yield (place + ordered[n - 1]) / 2
        if abs(place) < 1e12:
            yield float(math.floor(place + 1e-9))
            yield float(math.ceil(place - 1e-9))
    if ordered:
        width = 1 + abs(ordered[0]) + abs(ordered[-1])
        yield from (ordered[0] - 0.37 * width, ordered[0] - 5.1 * width, ordered[-1] + 0.41 * width)
        yield ordered[-1] + 4.3 * width


def _places(value: Callable[[float], float | None], rounds: bool) -> Iterable[float]:
    """Return the places where an argument of a branch crosses 0 or touches it, or any integer when it is rounded."""
    known = [(at, y) for at in _GRID if (y := value(at)) is not None]
    places: list[float] = []
    for (a, left), (b, right) in zip(known, known[1:], strict=False):
        if rounds and math.floor(left) != math.floor(right):
            level = math.floor(min(left, right)) + 1
        elif not rounds and (left < 0) is not (right < 0):
            level = 0
        else:
            continue
        places.append(_root(lambda at, level=level: value(at), a, left, b, right, level))
    if not rounds:
        for (a, left), (b, mid), (c, right) in zip(known, known[1:], known[2:], strict=False):
            if abs(mid) <= abs(left) and abs(mid) <= abs(right):
                places.append(_least(value, a, b, c))
    places.sort(key=abs)
    return places[:_MOST_KINKS]


def _root(value: Callable, a: float, left: float, b: float, right: float, level: float) -> float:
    """Return where `value` crosses `level` between a and b, by false position that halves a side which stays
    (Illinois)."""
    left, right = left - level, right - level
    for _ in range(40):
        middle = b - right * (b - a) / (right - left) if right != left else (a + b) / 2
        y = value(middle)
        if y is None or abs(b - a) <= 1e-12 * max(1.0, abs(a), abs(b)):
            return middle
        y -= level
        if not y:
            return middle
        if (y < 0) is (right < 0):
            b, right, left = middle, y, left / 2
        else:
            a, left, b, right = b, right, middle, y
    return b


def _least(value: Callable, a: float, b: float, c: float) -> float:
    """Return where the absolute value is least between a and c, by golden sections."""
    ratio = (math.sqrt(5) - 1) / 2

    def size(at: float) -> float:
        y = value(at)
        return math.inf if y is None else abs(y)

    left, right = c - ratio * (c - a), a + ratio * (c - a)
    low, high = size(left), size(right)
    for _ in range(45):
        if low <= high:
            c, right, high = right, left, low
            left = c - ratio * (c - a)
            low = size(left)
        else:
            a, left, low = left, right, high
            right = a + ratio * (c - a)
            high = size(right)
    middle = (a + c) / 2
    # A minimum is found to half of the digits; a whole number next to it is the place itself.
    return float(round(middle)) if abs(middle - round(middle)) < 1e-4 * max(1.0, abs(middle)) else middle


def integer_points(
    names: list[str], whole: set[str], kinks: list[tuple[tuple, bool]], real: Callable, counted: bool
) -> Iterator[Point]:
    """Points with integers for the letters in `whole`; small ones that are not negative where they are counted."""
    random = Random(5)
    if counted:
        for n in range(60):
            yield {
                name: (_SMALL[n % 13] if len(whole) == 1 else random.choice(_SMALL))
                if name in whole
                else random.choice((0.31, 0.77, 1.93, 4.7, -0.83))
                for name in names
            }
        return
    if len(names) == 1:
        yield from ({names[0]: at} for at in _WHOLE)
        row: Point = {names[0]: 1}
        for at in _along(names[0], row, kinks, real):
            if abs(at) < 1e12:
                yield from ({names[0]: float(math.floor(at) + n)} for n in (-1, 0, 1, 2))
        return
    for _ in range(120):
        yield {name: random.choice(_WHOLE) if name in whole else random.choice(_GRID[3:-3]) for name in names}
