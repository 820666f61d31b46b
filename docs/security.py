"""Puts the tables into docs/security.md: `python -m docs.security`.

Between `<!-- table NAME -->` and `<!-- end -->`: `preflight` shows what retool_mcore/preflight/listeners.py lists, the
others what benchmarks/results has of that name: `listeners`, `untrusted`.
"""

import json
from pathlib import Path

from benchmarks import provenance
from benchmarks.cluster.listeners import table as listeners_table
from benchmarks.tables import markdown, put
from retool_mcore.preflight.listeners import LISTENERS, Place

PAGE = Path(__file__).with_suffix(".md")


def preflight() -> str:
    def cell(place: Place) -> str:
        return f"{place.where}; {place.who or '**no protection**'}"

    lines = [(f"{one.what}: {one.parts}", cell(one.one), cell(one.several)) for one in LISTENERS]
    return markdown(("what", "a run on one node", "a job of several nodes, or of one under Slurm"), lines)


def listeners(result: dict) -> str:
    return listeners_table(result["rows"])


def untrusted(result: dict) -> str:
    head = ("reader", "slowest text", "s at a quarter", "s", "ratio", "held longest by", "ms")
    return markdown(head, ((name, *row.values()) for name, row in result["rows"].items()))


def render(page: str) -> str:
    """`page` with its tables as they are now. Raises ValueError when it has not one place for each."""
    made = {"preflight": preflight()}
    for make in (listeners, untrusted):
        name = make.__name__
        made[name] = make(json.loads((provenance.RESULTS / f"{name}.json").read_text()))
    return put(page, made, PAGE.name)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
