"""The functions of the generated repositories: reference source, and a generator of arguments for each."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """`arguments(rng)` draws a tuple of literals; `source` defines the function `name`."""

    name: str
    source: str
    arguments: Callable[[random.Random], tuple]


def _numbers(rng: random.Random, least: int = 0, most: int = 6) -> list[int]:
    return [rng.randint(-20, 20) for _ in range(rng.randint(least, most))]


def _word(rng: random.Random, least: int = 0, most: int = 8) -> str:
    return "".join(rng.choice("aabbceinost") for _ in range(rng.randint(least, most)))


def _interval(rng: random.Random) -> tuple[int, int]:
    start = rng.randint(0, 10)
    return start, start + rng.randint(1, 6)


_SOURCES = {
    "clamp": '''
def clamp(value, low, high):
    """value, but at least low and at most high."""
    return max(low, min(value, high))
''',
    "running_total": '''
def running_total(values):
    """The sum of the first, the first two, the first three... values."""
    totals = []
    total = 0
    for value in values:
        total = total + value
        totals.append(total)
    return totals
''',
    "chunks": '''
def chunks(items, size):
    """items in lists of size; the last one may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]
''',
    "rotate": '''
def rotate(items, steps):
    """items with the first steps of them moved to the end."""
    if not items:
        return []
    steps = steps % len(items)
    return items[steps:] + items[:steps]
''',
    "is_leap": '''
def is_leap(year):
    """Whether year is a leap year of the Gregorian calendar."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
''',
    "moving_sums": '''
def moving_sums(values, width):
    """The sum of every run of width neighbouring values."""
    return [sum(values[i : i + width]) for i in range(len(values) - width + 1)]
''',
    "merge_sorted": '''
def merge_sorted(left, right):
    """Two sorted lists as one sorted list."""
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i = i + 1
        else:
            merged.append(right[j])
            j = j + 1
    return merged + left[i:] + right[j:]
''',
    "find_sorted": '''
def find_sorted(items, target):
    """The index of target in a sorted list without repetitions, -1 when it is not there."""
    low, high = 0, len(items) - 1
    for _ in range(len(items) + 1):
        if low > high:
            break
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1
''',
    "roman": '''
def roman(number):
    """number, from 1 to 99, in Roman numerals."""
    signs = [(90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, sign in signs:
        text = text + sign * (number // value)
        number = number % value
    return text
''',
    "caesar": '''
def caesar(text, shift):
    """text with every small letter moved on by shift letters of the alphabet."""
    return "".join(chr((ord(c) - 97 + shift) % 26 + 97) if c.islower() else c for c in text)
''',
    "run_lengths": '''
def run_lengths(text):
    """[character, count] of every run of equal characters."""
    runs = []
    for character in text:
        if runs and runs[-1][0] == character:
            runs[-1][1] = runs[-1][1] + 1
        else:
            runs.append([character, 1])
    return runs
''',
    "digital_root": '''
def digital_root(number):
    """The sum of the digits, again and again, until one digit is left."""
    while number > 9:
        number = sum(int(digit) for digit in str(number))
    return number
''',
    "overlap": '''
def overlap(first, second):
    """How long two intervals (start, end) overlap; 0 when they do not."""
    return max(0, min(first[1], second[1]) - max(first[0], second[0]))
''',
    "most_common": '''
def most_common(words, count):
    """The count most frequent words, the alphabet's order among equals."""
    tally = {}
    for word in words:
        tally[word] = tally.get(word, 0) + 1
    return sorted(tally, key=lambda word: (0 - tally[word], word))[:count]
''',
    "least_common_multiple": '''
def least_common_multiple(a, b):
    """The least positive number that both a and b divide."""
    x, y = a, b
    while y > 0:
        x, y = y, x % y
    return a * b // x
''',
    "parse_ranges": '''
def parse_ranges(text):
    """The numbers of "1-3,7": [1, 2, 3, 7]."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
''',
    "balanced": '''
def balanced(text):
    """Whether every bracket ( of text is closed by a later )."""
    depth = 0
    for character in text:
        if character == "(":
            depth = depth + 1
        if character == ")":
            depth = depth - 1
        if depth < 0:
            return False
    return depth == 0
''',
    "second_largest": '''
def second_largest(values):
    """The second largest of the different values, None when there are fewer than two."""
    different = sorted(set(values))
    if len(different) < 2:
        return None
    return different[len(different) - 2]
''',
}

_ARGUMENTS: dict[str, Callable[[random.Random], tuple]] = {
    "clamp": lambda rng: (rng.randint(-9, 19), 0, 10),
    "running_total": lambda rng: (_numbers(rng, 1),),
    "chunks": lambda rng: (_numbers(rng, 1, 7), rng.randint(1, 4)),
    "rotate": lambda rng: (_numbers(rng, 0, 6), rng.randint(0, 8)),
    "is_leap": lambda rng: (rng.choice([1900, 2000, 2100, 2024, 2023, 1600, 2200, rng.randint(1800, 2200)]),),
    "moving_sums": lambda rng: (_numbers(rng, 3, 7), rng.randint(1, 3)),
    "merge_sorted": lambda rng: (sorted(_numbers(rng)), sorted(_numbers(rng))),
    "find_sorted": lambda rng: (sorted(set(_numbers(rng, 1, 8))), rng.randint(-20, 20)),
    "roman": lambda rng: (rng.randint(1, 99),),
    "caesar": lambda rng: (_word(rng, 1) + rng.choice(["", " X", "!"]), rng.randint(1, 30)),
    "run_lengths": lambda rng: (_word(rng, 1),),
    "digital_root": lambda rng: (rng.choice([9, 10, 99, rng.randint(0, 99999)]),),
    "overlap": lambda rng: (_interval(rng), _interval(rng)),
    "most_common": lambda rng: ([_word(rng, 1, 2) for _ in range(rng.randint(2, 8))], rng.randint(1, 3)),
    "least_common_multiple": lambda rng: (rng.randint(1, 30), rng.randint(1, 30)),
    "parse_ranges": lambda rng: (",".join(rng.choice(["3", "1-4", "7-7", "10-12", "8"]) for _ in range(3)),),
    "balanced": lambda rng: ("".join(rng.choice("(()) a") for _ in range(rng.randint(1, 6))),),
    "second_largest": lambda rng: (_numbers(rng, 0, 5),),
}


FUNCTIONS = {name: Function(name, source.lstrip("\n"), _ARGUMENTS[name]) for name, source in _SOURCES.items()}
