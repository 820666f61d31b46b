"""Pairs in words of the kinds in which right answers were once refused: multiple choice, "no roots"."""

from collections.abc import Iterator
from random import Random

Case = tuple[str, str, bool]

OPTIONS = [
    "Newton",
    "Mitochondria",
    "Not in the list",
    "It is heavier than water.",
    "None of the above",
    "All of the above",
    "The rate doubles.",
    "An increase in blood pressure",
    "To protect the cell from the outside",
    "1 and 2 only",
    "It has no effect on demand",
    "Neither I nor II",
    "Both A. thaliana and yeast",
    "The mean is greater than the median.",
    "Refer the patient to a specialist",
    "Only the second argument is valid",
    "Because it is at rest",
    "Paris, France",
    "Increase in pH, decrease in temperature",
    "3.5 m/s",
    "$12",
    "x^2 + 1",
    "Vitamin C deficiency",
    "Is not necessary",
    "Some students are not athletes",
    "If it rains, then the ground is wet.",
    "Do nothing",
    "5 years or more",
    "Yes, always",
    "Either a fine or a warning",
    "more than 40%",
    "Aspirin and a beta blocker",
    "The law of large numbers",
    "Hepatitis B",
    "cannot be determined",
    "Less than 2 mg",
    "He would be liable, because he was negligent.",
    "I, II and III",
]


def choices(r: Random) -> Iterator[Case]:
    """Multiple choice: letter and text together, text that contains words such as `is`, `not` and `to`."""
    letter, other = r.sample("ABCDE", 2)
    text, wrong = r.sample(OPTIONS, 2)
    forms = [
        r"\text{{({}) {}}}",
        r"\text{{{}. {}}}",
        "{}. {}",
        "({}) {}",
        r"\textbf{{({})}} {}",
        r"\textbf{{({})}}\ {}",
        r"\text{{{}: {}}}",
        "{}) {}",
        r"\textbf{{{}. {}}}",
        r"\text{{{}}}. {}",
        r"\text{{{}) {}}}",
        "**{}. {}**",
        r"\mathrm{{{}. {}}}",
        r"\text{{({})}} \text{{ {}}}",
        "Option {}: {}",
        r"\text{{Option {}: {}}}",
    ]
    for form in r.sample(forms, 5):
        yield form.format(letter, text), letter, True
        yield form.format(other, text), letter, False
    form = r.choice(forms)
    yield form.format(letter, text), f"({letter})", True
    yield form.format(letter, text), rf"\textbf{{({letter})}}", True
    for truth in (f"{letter}. {text}", f"({letter}) {text}", f"{letter}) {text}", rf"\text{{({letter}) {text}}}"):
        yield letter, truth, True
        yield f"({letter})", truth, True
        yield rf"\text{{{letter}}}", truth, True
        yield r.choice(forms).format(letter, text), truth, True
        yield other, truth, False
        yield f"({other})", truth, False
        yield r.choice(forms).format(other, wrong), truth, False
    for said in (
        f"{letter} or {other}",
        f"{letter} and {other}",
        f"not {letter}",
        f"{letter}. or {other}.",
        rf"\text{{{letter} or {other}}}",
        f"({letter}) or ({other})",
        f"{letter}. {text} or {other}. {wrong}",
        f"{letter}, {other}",
        f"({letter}) {text} ({other}) {wrong}",
        f"{letter}. no, {other}",
        rf"\text{{({letter}) {text} or ({other}) {wrong}}}",
    ):
        yield said, letter, False


def nothing(r: Random) -> Iterator[Case]:
    """Truths that say in words that there is nothing, and counts in words."""
    adjective = r.choice(
        ["integer", "real", "prime", "rational", "positive", "negative", "such", "even", "common", "real or complex"]
    )
    noun = r.choice(["roots", "solutions", "numbers", "values", "integers", "zeros", "intercepts", "factors", "points"])
    other = r.choice(["cubes", "squares", "primes", "triangles"])
    for truth in (f"No {adjective} {noun}", f"There are no {adjective} {noun}", rf"\text{{No {adjective} {noun}}}"):
        for answer in (
            r"\emptyset",
            "none",
            "None",
            r"\text{no solution}",
            f"no {adjective} {noun}",
            r"\varnothing",
            f"There are no {adjective} {noun}",
            rf"\text{{No {adjective} {noun}.}}",
            r"\{\}",
        ):
            yield answer, truth, True
        for answer in (
            "1",
            "2",
            f"2 {adjective} {noun}",
            r"\{0\}",
            f"one {adjective} {noun}",
            f"no {adjective} {other}",
            f"There are {adjective} {noun}",
            "x=0",
            r"\text{infinitely many}",
            "no idea",
        ):
            yield answer, truth, False
    yield "none", "No", False
    yield "no", "none", False
    yield r"\emptyset", "No", False
    n, word = r.choice([(1, "one"), (2, "two"), (3, "three"), (4, "four"), (5, "five")])
    yield f"{n}", f"Exactly {word}", True
    yield f"exactly {n}", f"{n}", True
    yield f"{n + 1}", f"Exactly {word}", False
    yield f"at least {n}", f"Exactly {word}", False
