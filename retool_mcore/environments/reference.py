"""The functions of the generated repositories, right as they stand here: bugs.py puts the bugs into their source.

The source is part of the data set, so a change here changes what `data=repo_bugs` prepares.
"""


def clamp(value, low, high):
    """value, but at least low and at most high."""
    return max(low, min(value, high))


def running_total(values):
    """The sum of the first, the first two, the first three... values."""
    totals = []
    total = 0
    for value in values:
        total = total + value
        totals.append(total)
    return totals


def chunks(items, size):
    """items in lists of size; the last one may be shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def rotate(items, steps):
    """items with the first steps of them moved to the end."""
    if not items:
        return []
    steps = steps % len(items)
    return items[steps:] + items[:steps]


def is_leap(year):
    """Whether year is a leap year of the Gregorian calendar."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def moving_sums(values, width):
    """The sum of every run of width neighbouring values."""
    return [sum(values[i : i + width]) for i in range(len(values) - width + 1)]


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


def roman(number):
    """number, from 1 to 99, in Roman numerals."""
    signs = [(90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, sign in signs:
        text = text + sign * (number // value)
        number = number % value
    return text


def caesar(text, shift):
    """text with every small letter moved on by shift letters of the alphabet."""
    return "".join(chr((ord(c) - 97 + shift) % 26 + 97) if c.islower() else c for c in text)


def run_lengths(text):
    """[character, count] of every run of equal characters."""
    runs = []
    for character in text:
        if runs and runs[-1][0] == character:
            runs[-1][1] = runs[-1][1] + 1
        else:
            runs.append([character, 1])
    return runs


def digital_root(number):
    """The sum of the digits, again and again, until one digit is left."""
    while number > 9:
        number = sum(int(digit) for digit in str(number))
    return number


def overlap(first, second):
    """How long two intervals (start, end) overlap; 0 when they do not."""
    return max(0, min(first[1], second[1]) - max(first[0], second[0]))


def most_common(words, count):
    """The count most frequent words, the alphabet's order among equals."""
    tally = {}
    for word in words:
        tally[word] = tally.get(word, 0) + 1
    return sorted(tally, key=lambda word: (0 - tally[word], word))[:count]


def least_common_multiple(a, b):
    """The least positive number that both a and b divide."""
    x, y = a, b
    while y > 0:
        x, y = y, x % y
    return a * b // x


def parse_ranges(text):
    """The numbers of "1-3,7": [1, 2, 3, 7]."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


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


def second_largest(values):
    """The second largest of the different values, None when there are fewer than two."""
    different = sorted(set(values))
    if len(different) < 2:
        return None
    return different[len(different) - 2]
