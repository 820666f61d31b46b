r"""The embedded default task: integer expressions whose exact value is out of reach of mental arithmetic.

It exists so that the whole pipeline (cold start, RL, evaluation, export) runs in minutes without a download. A
cold-start trace either calls the interpreter on the expression and boxes what it reads, or boxes an estimate rounded to
one leading digit, which is almost never exact. A policy that imitates both is therefore right in at most about
`tool_share` of its samples: what RL has left to learn is WHEN to call.

In `failed_share` of the traces with a call the first program fails, and a second one puts it right. The failing
program is in the loss as every other token of the policy: SFT's mask is the rollout's, which knows only who wrote a
token, and a policy that never wrote such a program would never stand where it has learned to go on from. It costs RL
nothing, because the reward looks at the answer: what RL removes is a failure that is not put right. What a program
answers is what the interpreter really says (`observations`).
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from retool_mcore.data.records import Problem, Segment, Trace, draw_distinct
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.local import LocalSandbox

DATA_SOURCE = "arithmetic"
TOOL_SHARE = 0.45
FAILED_SHARE = 1 / 6
_DRAWS_PER_PROBLEM = 20
# Programs that fail, by the interpreter's error, with an integer expression for {}; print({}) corrects each.
KINDS = {
    "SyntaxError: '(' was never closed": "print({}",
    "NameError: name 'pritn' is not defined": "pritn({})",
    "NameError: name 'math' is not defined": "print(math.floor({}))",
    "TypeError: 'int' object is not iterable": "print(sum({}))",
}


@dataclass(frozen=True)
class Task:
    """The sets of one seed; no question is in two of them, nor twice in one."""

    sft: list[Trace]
    train: list[Problem]
    validation: list[Problem]
    held_back: list[Problem]


def problems(n: int, seed: int, terms: tuple[int, int] = (2, 4), digits: tuple[int, int] = (2, 4)) -> list[Problem]:
    """Draw `n` distinct problems.

    terms, digits: least and most numbers in an expression, and digits in a number, both inclusive.
    Raises UserError when the ranges do not hold `n` further questions.
    """
    rng = random.Random(f"{DATA_SOURCE}-{seed}")

    def draw(index: int) -> Problem:
        expression = _expression(rng, rng.randint(*terms), digits)
        # Its own digits and operators: what Python makes of them is the answer.
        return Problem(DATA_SOURCE, f"Compute {expression}.", str(eval(expression)), index)

    refusal = (
        f"The arithmetic task has no {n} distinct questions with {terms[0]}-{terms[1]} numbers of "
        f"{digits[0]}-{digits[1]} digits; ask for fewer problems or for longer expressions."
    )
    return draw_distinct(n, _DRAWS_PER_PROBLEM, draw, lambda problem: problem.question, refusal)


def task(
    sft: int = 12800,
    train: int = 4096,
    validation: int = 256,
    seed: int = 1,
    tool_share: float = TOOL_SHARE,
    failed_share: float = FAILED_SHARE,
    held_back: int = 0,
) -> Task:
    """Draw the sets from one stream of distinct questions, validation first; the shares are those of `solve`.

    The validation set of a seed is therefore the same whatever the sizes of the others, and what is held back, the
    last, changes none of them.
    """
    begin, end = validation + train, validation + train + sft
    drawn = problems(end + held_back, seed)
    parts = drawn[:validation], drawn[validation:begin], drawn[begin:end], drawn[end:]
    validation_set, train_set, sft_set, held_back_set = (
        [Problem(p.data_source, p.question, p.answer, index) for index, p in enumerate(part)] for part in parts
    )
    return Task(solve(sft_set, seed, tool_share, failed_share), train_set, validation_set, held_back_set)


def trace(problem: Problem, tool: bool, failed: tuple[str, str] | None = None) -> Trace:
    r"""One demonstration: program, observation, boxed result if `tool`; else a boxed estimate.

    failed: a program that is tried first, and what the interpreter answers.
    """
    runs = [*([failed] if failed else []), (f"print({_asked(problem)})", problem.answer)] if tool else []
    segments = [part for code, output in runs for part in (Segment("code", code), Segment("observation", output))]
    boxed = problem.answer if tool else estimate(int(problem.answer))
    segments.append(Segment("text", rf"\boxed{{{boxed}}}"))
    return Trace(problem.data_source, problem.question, tuple(segments), problem.index)


def estimate(value: int) -> int:
    """`value` rounded half up to its leading digit: 4821 -> 5000, -96 -> -100, 7 -> 7."""
    unit = 10 ** (len(str(abs(value))) - 1)
    magnitude = (abs(value) + unit // 2) // unit * unit
    return -magnitude if value < 0 else magnitude


def _expression(rng: random.Random, terms: int, digits: tuple[int, int]) -> str:
    """Numbers joined by one product and otherwise sums: the product makes the value hard, a second only long."""
    numbers = [str(number(rng, rng.randint(*digits))) for _ in range(terms)]
    product = rng.randrange(terms - 1)
    operators = ["*" if i == product else rng.choice("+-") for i in range(terms - 1)]
    return numbers[0] + "".join(map("".join, zip(operators, numbers[1:], strict=True)))


def number(rng: random.Random, digits: int) -> int:
    """Draw a number of `digits` decimal digits."""
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def _asked(problem: Problem) -> str:
    return problem.question.removeprefix("Compute ").removesuffix(".")


def solve(problems_: list[Problem], seed: int, tool_share: float, failed_share: float = 0.0) -> list[Trace]:
    """A demonstration of each problem; see `trace`.

    tool_share: probability that a trace calls the interpreter, in [0, 1]. 0 gives text only. failed_share: that the
    first program of such a trace fails; those programs are run (data/arithmetic.py).
    """
    rng = random.Random(f"{DATA_SOURCE}-tool-{seed}")
    tools = [rng.random() < tool_share for _ in problems_]
    rng = random.Random(f"{DATA_SOURCE}-failed-{seed}")
    programs = {
        problem.index: rng.choice(list(KINDS.values())).format(_asked(problem))
        for problem, tool in zip(problems_, tools, strict=True)
        if tool and rng.random() < failed_share
    }
    outputs = dict(zip(programs, observations(list(programs.values())), strict=True))
    failed = {index: (program, outputs[index]) for index, program in programs.items()}
    return [trace(problem, tool, failed.get(problem.index)) for problem, tool in zip(problems_, tools, strict=True)]


def observations(programs: Sequence[str]) -> list[str]:
    """Return what the policy would read of each program, all run in a sandbox on this machine.

    It is always the local sandbox, whatever the run uses: data is prepared where no service runs yet. Raises UserError
    for a program that does not end in an error of its own.
    """

    async def run() -> list[str]:
        sandbox = LocalSandbox(preload=())  # none of the programs gets as far as an import
        try:
            results = await asyncio.gather(*map(sandbox.run, programs))
        finally:
            await sandbox.close()
        for program, result in zip(programs, results, strict=True):
            if result.status is not Status.ERROR:
                raise UserError(
                    f"The program {program!r} was to fail, but ended with {result.status} "
                    f"({result.observation().strip()[:200]}): see `retool doctor` for the sandbox of this machine."
                )
        return [result.observation() for result in results]

    return asyncio.run(run()) if programs else []
