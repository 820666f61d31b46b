"""The time that a megabyte costs every reader of what a policy wrote, and how long nobody else may run.

    python -m benchmarks.rewards.untrusted [--size 1000000] [--only READER]

Readers and texts are those of tests/support/untrusted.py. For each reader the worst text is printed: seconds at a
quarter of the size and at the whole (a ratio of 4 is linear), and the longest time for which another thread could not
run (the interpreter's lock). tests/security runs the same cases.
"""

import argparse

from benchmarks import provenance
from tests.support.untrusted import READERS, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1_000_000, help="characters")
    parser.add_argument("--only", help="one reader; writes no result")
    asked = parser.parse_args()
    head, rows = provenance.made(("regex", "jsonschema")), {}
    print(f"| reader | slowest text | s at {asked.size // 4} | s at {asked.size} | ratio | of | longest hold, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, read in READERS.items():
        if asked.only in (None, name):
            rows[name] = measured(read, asked.size)
            print(f"| {name} | {' | '.join(map(str, rows[name].values()))} |", flush=True)
    if asked.only is None:
        provenance.write("untrusted", head, {"size": asked.size, "rows": rows})


if __name__ == "__main__":
    main()
