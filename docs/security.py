"""Puts the tables into docs/security.md: `python -m docs.security`.

Between `<!-- table NAME -->` and `<!-- end -->`: `preflight` says what preflight says (its listeners.yaml), the others
what benchmarks/results has of that name: `listeners`, `untrusted`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks import provenance
from benchmarks.cluster.listeners import table as listeners_table
from retool_mcore.preflight.listeners import LISTENERS

PAGE = Path(__file__).with_suffix(".md")


def rows(*lines: Iterable) -> str:
    head, *rest = ([str(cell) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rest))


def preflight() -> str:
    def said(place: dict) -> str:
        return f"{place['where']}; {place['who'] or '**no protection**'}"

    lines = [(f"{entry['what']}: {entry['of']}", said(entry["one"]), said(entry["several"])) for entry in LISTENERS]
    return rows(("what", "a run on one node", "a job of several nodes, or of one under Slurm"), *lines)


def listeners(result: dict) -> str:
    return listeners_table(result["rows"])


def untrusted(result: dict) -> str:
    head = ("reader", "slowest text", "s at a quarter", "s", "ratio", "held longest by", "ms")
    return rows(head, *((name, *row.values()) for name, row in result["rows"].items()))


def render(page: str) -> str:
    """`page` with its tables as they are now. Raises ValueError when it has not one place for each."""
    made = {"preflight": preflight()}
    for make in (listeners, untrusted):
        name = make.__name__
        made[name] = make(json.loads((provenance.RESULTS / f"{name}.json").read_text()))
    for name, table in made.items():
        place = re.compile(rf"<!-- table {name} -->\n.*?<!-- end -->", re.DOTALL)
        page, count = place.subn(
            lambda _, name=name, table=table: f"<!-- table {name} -->\n{table}\n<!-- end -->", page
        )
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the table {name}, not one")
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
