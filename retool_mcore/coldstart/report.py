"""The HTML report (templates/report.html) and the data card (templates/card.md): funnel, lengths, code, and rows in
which the reasoning and the trace stand side by side, what is in one alone marked."""

import ast
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from statistics import fmean, median
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.rows import Row

SAMPLES = 20
_PIECE = re.compile(r"\s+|(?:\w+|[^\w\s]+)\s*")
# Fewer words in common are chance.
_LEAST_WORDS = 3
# Beyond it the comparison, quadratic at worst, takes longer than the reader.
_MAX_PIECES = 20_000


def render(template: str, **values: Any) -> str:
    """The text of a file of templates/; what an .html one is given is escaped."""
    environment = Environment(
        loader=PackageLoader("retool_mcore.coldstart"), autoescape=select_autoescape(), keep_trailing_newline=True
    )
    formats = {"n": "{:,}", "figure": "{:,.10g}", "cost": "{:,.2f}", "share": "{:.1%}"}
    environment.filters |= {name: form.format for name, form in formats.items()} | {"pair": pair}
    # Half a surrogate pair has no UTF-8 and would end the report.
    return environment.get_template(template).render(values).encode("utf-8", "replace").decode()


def report(config: Config, counts: Sequence, calls: dict, stats: dict, rows: Sequence[Row]) -> str:
    """The report; `counts` as `pipeline.run` returns them, `calls` as `Services.calls`, `stats` as `statistics`. The
    rows shown are drawn with config.seed."""
    read = counts[0].rows_in
    tokens = sum(used["tokens_in"] + used["tokens_out"] for used in calls.values())
    cards = {
        "rows read": f"{read:,}",
        "traces": f"{stats['rows']:,}",
        "kept": f"{stats['rows'] / max(1, read):.1%}",
        "programs": f"{stats['programs']['total']:,}",
        "traces with a repaired output": f"{stats['repaired_share']:.1%}",
        "model calls": f"{sum(used['calls'] for used in calls.values()):,}",
        "tokens paid for": f"{tokens:,}",
        "cost": f"{sum(used['cost'] for used in calls.values()):,.2f}",
    }
    shown = random.Random(config.seed).sample(list(rows), min(SAMPLES, len(rows)))
    shown.sort(key=lambda row: row.index)
    return render("report.html", config=config, cards=cards, counts=counts, calls=calls, stats=stats, rows=shown)


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


def pair(row: Row) -> dict:
    """{before: HTML of the reasoning, trace: [(kind, HTML, the claimed output where it is another, else "")]}."""
    texts = [segment["text"] for segment in row.segments if segment["kind"] == "text"]
    before, *after = map(Markup, marked(row.reasoning, texts))
    prose, claims, trace = iter(after), iter(row.claimed), []
    for segment in row.segments:
        kind, text = segment["kind"], segment["text"]
        claimed = next(claims, text) if kind == "observation" else text
        other = claimed if claimed.strip() != text.strip() else ""
        trace.append((kind, next(prose) if kind == "text" else text, other))
    return {"before": before, "trace": trace}


def marked(before: str, after: list[str]) -> list[str]:
    """HTML of `before` and of each text of `after`, what the other side lacks in <del> and <ins>."""
    a = _PIECE.findall(before)
    groups = [_PIECE.findall(text) for text in after]
    b = [piece for group in groups for piece in group]
    same_a, same_b = [False] * len(a), [False] * len(b)
    if len(a) + len(b) <= _MAX_PIECES:
        words_a, words_b = ([piece.strip() for piece in pieces] for pieces in (a, b))
        for block in SequenceMatcher(None, words_a, words_b).get_matching_blocks():
            if block.size >= _LEAST_WORDS:
                same_a[block.a : block.a + block.size] = [True] * block.size
                same_b[block.b : block.b + block.size] = [True] * block.size
    else:
        same_a, same_b = [True] * len(a), [True] * len(b)
    found, start = ["".join(_spans(a, same_a, "del"))], 0
    for group in groups:
        end = start + len(group)
        found.append("".join(_spans(group, same_b[start:end], "ins")))
        start = end
    return found


def _spans(pieces: list[str], same: list[bool], tag: str) -> Iterator[str]:
    start = 0
    for end in range(1, len(pieces) + 1):
        if end == len(pieces) or same[end] != same[start]:
            text = escape("".join(pieces[start:end]))
            yield text if same[start] or not text.strip() else f"<{tag}>{text}</{tag}>"
            start = end
