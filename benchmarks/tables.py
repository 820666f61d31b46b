"""Markdown tables, and pages that hold them between `<!-- table NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Iterable, Mapping


def markdown(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; cells are written as `str` gives them."""
    head = list(head)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *rows))


def put(page: str, tables: Mapping[str, str], name: str) -> str:
    """Return the text `page` with each of `tables` in its place.

    Raises:
        ValueError: the page, which `name` is of, has not one place for a table.
    """
    for title, table in tables.items():
        block = f"<!-- table {title} -->\n{table}\n<!-- end -->"
        place = re.compile(rf"<!-- table {title} -->\n.*?<!-- end -->", re.DOTALL)
        page, count = place.subn(lambda _, block=block: block, page)
        if count != 1:
            raise ValueError(f"{name} has {count} places for the table {title}, not one")
    return page
