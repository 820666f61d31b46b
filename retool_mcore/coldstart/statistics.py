"""Figures of the finished rows: lengths, programs, what they import."""

import ast
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from retool_mcore.coldstart.rows import Row


def statistics(rows: Sequence[Row]) -> dict:
    """JSON-ready figures; of no rows, zeros. A trace that imports a module twice counts once for it."""
    programs = [[s["text"] for s in row.segments if s["kind"] == "code"] for row in rows]
    imports = Counter(name for codes in programs for name in {name for code in codes for name in imported(code)})
    flat = [code for codes in programs for code in codes]
    return {
        "rows": len(rows),
        "tokens": _figures([row.tokens for row in rows]),
        "programs": _figures([len(codes) for codes in programs]),
        "program_lines": _figures([code.count("\n") + 1 for code in flat]),
        "prose_characters": _figures([len(row.prose()) for row in rows]),
        "reasoning_characters": _figures([len(row.reasoning) for row in rows]),
        "imports": dict(imports.most_common(20)),
        "repaired_share": fmean(row.repaired > 0 for row in rows) if rows else 0.0,
        "failed_programs": sum(row.failed_programs for row in rows),
    }


def imported(code: str) -> set[str]:
    """Top-level names of the modules that a program imports; empty for one that does not parse."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _figures(values: Sequence[int]) -> dict:
    if not values:
        return {"total": 0, "least": 0, "median": 0, "mean": 0, "most": 0, "histogram": []}
    least, most = min(values), max(values)
    width = max(1, -(-(most - least + 1) // 20))
    bins = Counter((value - least) // width for value in values)
    histogram = [[least + b * width, bins[b]] for b in range((most - least) // width + 1)]
    mean = round(fmean(values), 2)
    middle = {"least": least, "median": median(values), "mean": mean, "most": most}
    return {"total": sum(values)} | middle | {"histogram": histogram}
