"""The execution stage: every program is run, and the output that the model wrote gives way to the real one.

`agree` says whether a claimed output is the real one but for its formatting, `stale` which claimed values the text
relies on.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from retool_mcore.coldstart.config import Execution
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Sandbox, Status

# A service that restarts is back by then; a sandbox that still does not answer stops the run, not the row.
_ATTEMPTS = 3
_ENDED_BADLY = {
    Status.TIMEOUT: "program hangs",
    Status.MEMORY: "program needs too much memory",
    Status.OUTPUT: "program prints too much",
    Status.KILLED: "program was killed",
}


@dataclass
class Executor:
    """Runs a trace's programs in order, in one session, and replaces the outputs in `segments`.

    A claimed output that disagrees beyond formatting drops the trace, or (`on_mismatch: repair`) is repaired: the real
    output takes its place, and the trace stays unless the text after it uses a number that only the claim had. Raises
    Drop for a program that does not end well and for one that prints nothing, UserError when the sandbox is down.
    """

    config: Execution
    sandbox: Sandbox

    async def __call__(self, row: Row) -> Row:
        session = f"coldstart-{row.key}" if self.config.session else None
        segments = [dict(segment) for segment in row.segments]
        row.repaired = row.failed_programs = 0
        try:
            for number, segment in enumerate(segments):
                if segment["kind"] == "code":
                    result = await self._run(segment["text"], session)
                    self._replace(row, segments, number + 1, result)
        finally:
            end = getattr(self.sandbox, "end_session", None)
            if session and end:
                await end(session)
        row.segments = segments
        return row

    async def _run(self, code: str, session: str | None) -> Result:
        for _ in range(_ATTEMPTS):
            result = await self.sandbox.run(code, session=session)
            if result.status is not Status.SANDBOX:
                return result
        raise UserError(
            f"the sandbox is down ({result.observation().strip()[:200]}): start it or correct execution.sandbox, and "
            "start again; finished rows are kept."
        )

    def _replace(self, row: Row, segments: list[dict], place: int, result: Result) -> None:
        if result.status in _ENDED_BADLY:
            raise Drop(_ENDED_BADLY[result.status], result.observation()[-200:])
        claimed, real = segments[place]["text"], result.observation()
        failed = result.status is Status.ERROR
        if failed:
            row.failed_programs += 1
            if self.config.on_error == "drop":
                raise Drop("program fails", real.rstrip().rpartition("\n")[2])
        if not real.strip():
            raise Drop("program prints nothing", f"claimed {claimed[:80]!r}")
        if len(real) > self.config.max_output_chars:
            raise Drop("program prints too much", f"{len(real)} characters")
        if len(claimed) > 2 * self.config.max_output_chars:
            raise Drop("claimed output is too long", f"{len(claimed)} characters")
        segments[place]["text"] = real.strip("\n").rstrip()
        if agree(claimed, real):
            return
        difference = f"claimed {claimed[:80]!r}, real {real[:80]!r}"
        if self.config.on_mismatch == "drop":
            raise Drop("claimed output is wrong", difference)
        before = [row.problem, *(segment["text"] for segment in segments[:place])]
        after = "\n".join(segment["text"] for segment in segments[place + 1 :] if segment["kind"] == "text")
        if values := stale(claimed, real, before, after):
            raise Drop("text relies on a wrong claimed output", f"{', '.join(values[:3])}; {difference}")
        row.repaired += 1


_TOKEN = re.compile(
    r"(?P<number>[+-]?(?:\d[\d_]*+\.?\d*+|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[^\W\d]+)|(?P<sign>[^\w\s'\"])"
)
# Without braces or colons inside: neither a dictionary nor a set of sets.
_SET = re.compile(r"\{([^{}:]*)\}")
_FLAG = re.compile(r"\b(?:True|False|None)\b")
# A minus after a letter, digit or bracket is a difference.
_SIGNED = re.compile(r"(?<![\w.)\]}])-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
# Compared as what they are; a longer number is compared as text, digit by digit.
_MAX_DIGITS = 300


def agree(claimed: str, real: str) -> bool:
    """Whether both say the same: white space, quotes, separators of thousands, the order of a set's elements and digits
    of rounding aside.

    A claimed decimal may be the real one rounded to its own number of decimals; whole numbers must be equal.
    """
    return any(_alike(form(claimed), form(real)) for form in (str, _plain))


def _plain(text: str) -> str:
    """Without separators of thousands, and with the elements of a set in alphabetical order."""
    bare = _THOUSANDS.sub("", text.replace('"', "'"))
    return _SET.sub(lambda found: "{" + ", ".join(sorted(re.split(r",\s*", found[1]))) + "}", bare)


def _alike(claimed: str, real: str) -> bool:
    a, b = list(_TOKEN.finditer(claimed)), list(_TOKEN.finditer(real))
    return len(a) == len(b) and all(
        x[0] == y[0] or (x.lastgroup == y.lastgroup == "number" and same_number(x[0], y[0]))
        for x, y in zip(a, b, strict=True)
    )


def same_number(claimed: str, real: str) -> bool:
    """Whether the number `claimed` is `real`, perhaps rounded to fewer decimals."""
    if max(len(claimed), len(real)) > _MAX_DIGITS:
        return claimed == real
    whole = all(text.lstrip("+-").replace("_", "").isdigit() for text in (claimed, real))
    if whole:
        return int(claimed) == int(real)
    a, b = float(claimed), float(real)
    decimals = len(claimed.partition(".")[2]) if "e" not in claimed.lower() else 0
    # A whole number is never the rounding of another: 3 for 2.7 is an error, not a format.
    slack = 0.5 * 10.0**-decimals * (1 + 1e-9) if decimals else 0.0
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or abs(a - b) <= slack


def numbers(text: str) -> set[str]:
    """The numbers in a text without signs, and also without separators of thousands (`12,345` or `12{,}345`)."""
    matches = [*_TOKEN.finditer(text), *_TOKEN.finditer(_THOUSANDS.sub("", text))]
    return {match[0].lstrip("+-").rstrip(".") for match in matches if match.lastgroup == "number"}


def stale(claimed: str, real: str, before: Sequence[str], after: str) -> list[str]:
    """Numbers (perhaps rounded, or of the other sign) and the words True, False and None in the text after a claimed
    output that it had, and nothing else has: not the real output, nor what stands before it."""
    known = numbers(real).union(*map(numbers, before))
    invented = {number for number in numbers(claimed) if not _among(number, known)}
    flags = set(_FLAG.findall(claimed)).difference(_FLAG.findall(real)).intersection(_FLAG.findall(after))
    return sorted(flags | _flipped(claimed, real, before, after)) + sorted(
        n for n in numbers(after) if _among(n, invented) and not _among(n, known)
    )


def _flipped(claimed: str, real: str, before: Sequence[str], after: str) -> set[str]:
    claims, true, used = (set(_SIGNED.findall(text)) for text in (claimed, real, after))
    known = true.union(*map(_SIGNED.findall, before))
    wrong = {number for number in claims - known if _negative(number) in true}
    return {number for number in wrong & used if _negative(number) not in used}


def _negative(number: str) -> str:
    return number[1:] if number.startswith("-") else f"-{number}"


def _among(number: str, others: set[str]) -> bool:
    if number in others:
        return True
    # Only a decimal can be the rounding of another number.
    return "." in number and any(same_number(number, other) for other in others if "." in other)
