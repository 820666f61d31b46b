"""The families of reasoning-gym in the study, with the programs that answer them.

Every family of TRAINED has a program of one to eight lines, in which copying from the question is the skill. HARDER
has the same families with larger numbers, UNSEEN other families, EASY problems that a model of this size can answer
without a program. Only problems of TRAINED and EASY are trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from examples.smollm2.data import count_bits, count_letter, expression, math_function

Program = Callable[[dict[str, Any]], str]  # from a problem's metadata


@dataclass(frozen=True)
class Family:
    """A data source: reasoning-gym's family, its parameters, and the program of a trace (None: no traces)."""

    family: str
    parameters: dict[str, Any] = field(default_factory=dict)
    program: Program | None = None


def _exact_division(facts: dict[str, Any]) -> str:
    return f"print(int({facts['expression']}))"  # these families draw divisions without a remainder


def _convert_base(facts: dict[str, Any]) -> str:
    return (
        f'n = int("{facts["source_repr"]}", {facts["source_base"]})\n'
        'digits = ""\n'
        "while n:\n"
        f'    digits = "0123456789abcdefghijklmnopqrstuvwxyz"[n % {facts["target_base"]}] + digits\n'
        f"    n //= {facts['target_base']}\n"
        "print(digits)"
    )


def _backward(facts: dict[str, Any]) -> str:
    return f'print("{facts["word"]}"[::-1])'


TRAINED = {
    "chain_sum": Family("chain_sum", {"min_terms": 4, "max_terms": 6, "min_digits": 3, "max_digits": 5}, expression),
    "products": Family("products", {"min_digits": 3, "max_digits": 5}, expression),
    "basic_arithmetic": Family(
        "basic_arithmetic", {"min_terms": 4, "max_terms": 6, "min_digits": 2, "max_digits": 4}, _exact_division
    ),
    "gcd": Family("gcd", {"max_value": 10000}, math_function("gcd")),
    "lcm": Family("lcm", {"max_value": 1000}, math_function("lcm")),
    "base_conversion": Family("base_conversion", {"max_value": 10000}, _convert_base),
    "count_bits": Family("count_bits", {}, count_bits),
    "letter_counting": Family("letter_counting", {"min_words": 5, "max_words": 15}, count_letter),
}
EASY = {
    "easy_sum": Family("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}, expression),
    "easy_spelling": Family("spell_backward", {"min_word_len": 3, "max_word_len": 4}, _backward),
}
HARDER = {
    "harder_sum": Family("chain_sum", {"min_terms": 7, "max_terms": 9, "min_digits": 6, "max_digits": 7}),
    "harder_products": Family("products", {"min_digits": 6, "max_digits": 7}),
    "harder_gcd": Family("gcd", {"min_numbers": 3, "max_numbers": 3, "max_value": 10000}),
    "harder_letters": Family("letter_counting", {"min_words": 16, "max_words": 25}),
}
UNSEEN = {
    "decimal_chain_sum": Family("decimal_chain_sum"),
    "prime_factorization": Family("prime_factorization", {"max_value": 5000}),
    "bitwise_arithmetic": Family("bitwise_arithmetic", {"difficulty": 2}),
    "number_sorting": Family("number_sorting"),
    "spell_backward": Family("spell_backward", {"min_word_len": 6}),
    "count_primes": Family("count_primes", {"max_n": 2000}),
}


def sections(*groups: dict[str, Family]) -> str:
    """Return the value of `data.reasoning_gym.families` for these data sources."""
    entries = []
    for name, own in (item for group in groups for item in group.items()):
        parameters = ", ".join(f"{key}: {value}" for key, value in own.parameters.items())
        entries.append(f"{{family: {own.family}, name: {name}, parameters: {{{parameters}}}}}")
    return f"[{', '.join(entries)}]"
