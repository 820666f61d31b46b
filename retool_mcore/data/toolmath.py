r"""Integer problems that text can solve too, in four families: what a trace shows is a scratchpad or a program.

`data=arithmetic` has a text branch that cannot win, so that it shows whether RL finds the tool and not what the tool is
worth. Here every problem has a worked scratchpad, whose steps a small model learns, and a program:

- `chain`: definitions in a shuffled order, two of them unused. Pasted as a program most of them end in a
  NameError; put in order they are right. Its level is the number of steps and of digits. `chainx` multiplies by
  numbers of so many digits, in one step of the scratchpad, where `chain` multiplies by one digit.
- `search`: the smallest number with two remainders: a list of candidates, or a loop.
- `product`: a*b+c: partial products, or the problem itself as a program.
- `largest`: of five numbers: read off; a call is needless.

A problem belongs to a split by a hash of its structure (the definitions' operators and order, the moduli, the factor,
the numbers), so that no structure of the evaluation occurs in a training set or a pretraining corpus of any seed.
"""

import hashlib
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from retool_mcore.data.arithmetic import number, observations
from retool_mcore.data.records import Problem, Segment, Trace, draw_distinct
from retool_mcore.errors import UserError

SPLITS = {"train": range(70), "held_back": range(70, 85), "test": range(85, 100)}  # of a hundred buckets
_NAMES = "abcdefghjkmnpqrstuvwxyz"
_LARGEST_VALUE = {"chain": 99_999, "chainx": 9_999_999}  # of a variable: a scratchpad's steps stay short
_DRAWS = 200


@dataclass(frozen=True)
class Item:
    """One problem with both of its solutions. `pasted` is the question as a program, which fails for most chains."""

    family: str
    question: str
    answer: str
    scratchpad: str
    program: str
    pasted: str
    structure: str


def draw(family: str, rng: random.Random) -> Item:
    """One problem of a family: chain_A_B_D and chainx_A_B_D have A to B steps over numbers of D digits, as in
    chain_2_4_2; search, product and largest. Raises UserError for another name."""
    kind, *levels = family.split("_")
    if kind in _LARGEST_VALUE and len(levels) == 3 and all(level.isdecimal() for level in levels):
        low, high, digits = map(int, levels)
        if 1 <= low <= high <= 12 and 1 <= digits <= 4:
            return _chain(family, rng, rng.randint(low, high), digits)
    if kind in _DRAWERS and not levels:
        return _DRAWERS[kind](rng)
    raise UserError(
        f"data.toolmath.mix names the family {family!r}: expected {', '.join(_DRAWERS)}, or chain_A_B_D or "
        "chainx_A_B_D (A to B steps, at most 12, over numbers of D digits, at most 4), as in chain_2_4_2."
    )


def items(n: int, seed: int | str, split: str, mix: Mapping[str, float]) -> list[Item]:
    """`n` problems of a split with distinct questions, in the shares of `mix` (family -> weight).

    Raises UserError for an unknown family, and when the families hold no `n` distinct problems.
    """
    rng, buckets = random.Random(f"toolmath-{split}-{seed}"), SPLITS[split]
    families, weights = list(mix), list(mix.values())

    def one(index: int) -> Item | None:
        item = draw(rng.choices(families, weights)[0], rng)
        return item if bucket(item.structure) in buckets else None

    refusal = f"The families {families} hold no {n} distinct problems for {split}: ask for fewer."
    return draw_distinct(n, _DRAWS, one, lambda item: item.question, refusal)


def bucket(structure: str) -> int:
    """Return a number from 0 to 99, the same on every machine."""
    return int.from_bytes(hashlib.sha256(structure.encode()).digest()[:8], "big") % 100


def problem(item: Item, index: int) -> Problem:
    """Return the problem that RL and evaluation read; the data source is the family: metrics tell the families
    apart."""
    return Problem(item.family, item.question, item.answer, index)


def traces(made: list[Item], seed: int, code_share: float, failed_share: float) -> list[Trace]:
    """A demonstration of each problem: with probability code_share its program, else its scratchpad.

    failed_share: of those with a program, the share that pastes the problem first and reads what the interpreter
    really says; only chains whose pasted program fails have such a first turn.
    """
    rng = random.Random(f"toolmath-traces-{seed}")
    coded = [rng.random() < code_share for _ in made]
    fails = [
        code and item.pasted != "" and not pasted_solves(item) and rng.random() < failed_share
        for item, code in zip(made, coded, strict=True)
    ]
    outputs = iter(observations([item.pasted for item, failed in zip(made, fails, strict=True) if failed]))
    shown = []
    for index, (item, code, failed) in enumerate(zip(made, coded, fails, strict=True)):
        boxed = rf"\boxed{{{item.answer}}}"
        segments = [Segment("code", item.pasted), Segment("observation", next(outputs))] if failed else []
        if code:
            segments += [Segment("code", item.program), Segment("observation", item.answer), Segment("text", boxed)]
        else:
            segments += [Segment("text", item.scratchpad + boxed)]
        shown.append(Trace(item.family, item.question, tuple(segments), index))
    return shown


def pasted_solves(item: Item) -> bool:
    """True if the question needs no thought: written down as it stands, it prints the answer."""
    return item.pasted != "" and not (item.family.startswith("chain") and _fails(item.pasted))


def _fails(program: str) -> bool:
    """True if a line of a chain's program reads a name that no earlier line has defined."""
    defined: set[str] = set()
    for line in program.splitlines()[:-1]:
        name, expression = line.split("=")
        if any(character.isalpha() and character not in defined for character in expression):
            return True
        defined.add(name)
    return False


def _chain(family: str, rng: random.Random, steps: int, digits: int) -> Item:
    kind = family.split("_")[0]
    while True:
        names = rng.sample(_NAMES, steps + 3)
        value = number(rng, digits)
        lines, work, shapes = [f"{names[0]}={value}"], [f"{names[0]}={value}"], []
        for before, name in zip(names, names[1 : steps + 1], strict=False):
            operator = rng.choice("++--*")
            operand = rng.randint(2, 9) if operator == "*" and kind == "chain" else number(rng, digits)
            result = {"+": value + operand, "-": value - operand, "*": value * operand}[operator]
            lines.append(f"{name}={before}{operator}{operand}")
            work.append(f"{name}={value}{operator}{operand}={result}")
            shapes.append(operator)
            value = result
            if abs(value) > _LARGEST_VALUE[kind]:
                break
        else:
            break
    asked = names[steps]
    others = [
        f"{names[steps + 1]}={number(rng, digits)}",
        f"{names[steps + 2]}={rng.choice(names[:steps])}{rng.choice('+-')}{number(rng, digits)}",
    ]
    statements = list(enumerate(lines + others))
    rng.shuffle(statements)
    order, definitions = zip(*statements, strict=True)
    return Item(
        family=family,
        question=f"{', '.join(definitions)}. {asked}?",
        answer=str(value),
        scratchpad="".join(f"{line}\n" for line in work),
        program="\n".join([*lines, f"print({asked})"]),
        pasted="\n".join([*definitions, f"print({asked})"]),
        structure=f"chain {''.join(shapes)} {order}",
    )


def _search(rng: random.Random) -> Item:
    small = large = 0
    while math.gcd(small, large) != 1:
        small, large = sorted(rng.sample((3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25), 2))
    first, second = rng.randrange(small), rng.randrange(large)
    least = second or large
    n = next(n for n in itertools.count(least, large) if n % small == first)
    candidates = [f"{tried}%{small}={tried % small}" for tried in range(least, n + 1, large)]
    return Item(
        family="search",
        question=f"Least n>0: n%{small}={first}, n%{large}={second}.",
        answer=str(n),
        scratchpad="".join(f"{line}\n" for line in candidates),
        program=f"n=1\nwhile n%{small}!={first} or n%{large}!={second}: n+=1\nprint(n)",
        pasted="",
        structure=f"search {small} {large} {first}",
    )


def _product(rng: random.Random) -> Item:
    a, b, c = (number(rng, rng.randint(1, 5)) for _ in range(3))
    total, work = 0, []
    for place, digit in enumerate(reversed(str(b))):
        part = a * int(digit) * 10**place
        work.append(f"{a}*{int(digit) * 10**place}={part}" + (f" {total}+{part}={total + part}" if place else ""))
        total += part
    work.append(f"{total}+{c}={total + c}")
    program = f"print({a}*{b}+{c})"
    scratchpad = "".join(f"{line}\n" for line in work)
    return Item("product", f"{a}*{b}+{c}?", str(total + c), scratchpad, program, program, f"product {a}")


def _largest(rng: random.Random) -> Item:
    numbers = rng.sample(range(10, 1000), 5)
    listed, answer = ", ".join(map(str, numbers)), str(max(numbers))
    program = f"print(max({listed.replace(' ', '')}))"
    return Item("largest", f"Largest of {listed}?", answer, "", program, program, f"largest {sorted(numbers)[-2:]}")


_DRAWERS = {"search": _search, "product": _product, "largest": _largest}
