"""Traces: how long a scripted policy's responses are and how long its programs take, for the weights and for plans.

`lengths` is ReTool-like: a median of about 2,000 tokens, and one response in a hundred that meets the limit of 16,256.
`slow-tools` has short responses whose programs wait: 0.2 s in the median, 10 s at the 99th percentile, 17 s at most.
A Markov chain forgets, so one class of prose would make lengths geometric, with a short tail: each turn draws its class
anew, `long` with its share and `short` otherwise.
"""

import json
import random
import statistics
from dataclasses import dataclass
from math import exp, log

TOOL = "code_interpreter"
PROMPT, OBSERVATION, OUTPUT = 55, 30, 18  # tokens: a prompt's, an observation's without its text, a number's text
SLEEPS = 128  # programs that wait, as many as there are quantiles


@dataclass(frozen=True)
class Trace:
    """short, long: mean tokens of a turn; share: of the turns that are long; calls: mean of a response without a limit;
    response: the limit of tokens; wait: seconds of a program, (median, 99th percentile)."""

    short: float
    long: float
    share: float
    calls: float
    response: int
    wait: tuple[float, float] = (0.0, 0.0)

    def waits(self) -> list[float]:
        """Seconds of each waiting program, equally likely: quantiles of a log-normal distribution; [] for none."""
        median, high = self.wait
        if not median:
            return []
        normal = statistics.NormalDist()
        sigma = log(high / median) / normal.inv_cdf(0.99)
        return [median * exp(sigma * normal.inv_cdf((place + 0.5) / SLEEPS)) for place in range(SLEEPS)]

    def programs(self) -> list[str]:
        return [f"import time\ntime.sleep({wait:.4f})\nprint({place})" for place, wait in enumerate(self.waits())]

    def chain(self) -> dict[str, dict[str, float]]:
        """P(class of the next token | class of this one), as of `scripted_policy.transitions`, in format hermes."""
        answer = 1 / (1 + self.calls)

        def prose(mean: float) -> dict[str, float]:
            return {"call": (1 - answer) / mean, "answer": answer / mean}

        start = {"short": 1 - self.share} | ({"long": self.share} if self.share else {})
        return {
            "start": start,
            "short": {"short": 1 - 1 / self.short} | prose(self.short),
            "long": {"long": 1 - 1 / self.long} | prose(self.long),
            "call": {"end": 1.0},
            "answer": {"end": 1.0},
        }

    def draw(self, draw: random.Random, most_calls: int = 8) -> tuple[list[tuple[float, float]], list[float]]:
        """A trajectory as the chain makes it: its turns as (tokens read in, tokens sampled), and its calls' seconds."""
        waits, turns, seconds, room = self.waits(), [], [], float(self.response)
        given = float(PROMPT)
        while True:
            mean = self.long if draw.random() < self.share else self.short
            sampled = min(room, 2.0 + draw.expovariate(1 / mean))
            turns.append((given, sampled))
            room -= sampled
            given = float(OBSERVATION + OUTPUT)
            if room <= given or draw.random() < 1 / (1 + self.calls) or len(seconds) == most_calls:
                return turns, seconds
            seconds.append(draw.choice(waits) if waits else 0.004)
            room -= given


TRACES = {
    "lengths": Trace(short=720.0, long=3000.0, share=0.13, calls=2.2, response=16256),
    "slow-tools": Trace(short=300.0, long=300.0, share=0.0, calls=3.5, response=3968, wait=(0.2, 10.0)),
}


def call_text(program: str) -> str:
    """A whole call of the interpreter in format hermes."""
    call = {"name": TOOL, "arguments": {"code": program}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def main() -> None:
    for name, trace in TRACES.items():
        draw = random.Random(1)
        drawn = [trace.draw(draw) for _ in range(20000)]
        for what, found in {
            "tokens of a response": [sum(map(sum, turns)) - turns[0][0] for turns, _ in drawn],
            "calls": [len(seconds) for _, seconds in drawn],
            "seconds of a call": [second for _, seconds in drawn for second in seconds],
            "seconds of a response's calls": [sum(seconds) for _, seconds in drawn],
        }.items():
            cut = statistics.quantiles(found, n=100)
            print(f"{name}: {what}: mean {sum(found) / len(found):.4g}, median {cut[49]:.4g}, p99 {cut[98]:.4g}")


if __name__ == "__main__":
    main()
