"""The process in which math-verify compares: one JSON line in, one JSON line out, until its input ends.

Separate because sympy may hang or crash in C code, where only a kill from outside helps, and because math-verify's own
time-out needs SIGALRM in a main thread, which neither a Ray actor nor a thread pool has. Started by `equivalence.py`.
"""

import json
import logging
import os
import resource
import signal
import sys


def compare(answer: str, truth: str) -> bool:
    """math-verify's verdict; False for what it cannot parse. `truth` goes in first: the comparison is not symmetric."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    targets = (LatexExtractionConfig(), ExprExtractionConfig())
    gold, guess = (
        parse(f"\\boxed{{{text}}}", extraction_config=targets, parsing_timeout=None) for text in (truth, answer)
    )
    return bool(verify(gold, guess, timeout_seconds=None))


def main(limit_s: float, memory_mb: int) -> None:
    """Answer each request `{"answer", "truth"}` on stdin with `{"equal"}`; `{"ready"}` comes first, after the warm-up.

    A comparison that outlives `limit_s` ends the process: a stopgap for a parent that died and can no longer kill.
    """
    # Whatever a library prints must not end up between the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The parent's handling of the signal is inherited; the default action kills even in C code.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])

    def reply(message: dict) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    # The LaTeX grammar is built at first use; that is start-up and not the first comparison's time.
    compare(r"\frac{1}{2}", "0.5")
    reply({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            equal = compare(request["answer"], request["truth"])
        except Exception:  # sympy raises anything, RecursionError and MemoryError included, on what it cannot handle
            equal = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply({"equal": equal})
