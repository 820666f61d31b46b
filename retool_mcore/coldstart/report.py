"""The last step: the split, the parquet files in both formats, the statistics, and by templates/ the data card and the
HTML report: funnel, lengths, code, and rows in which reasoning and trace stand side by side."""

import ast
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from difflib import SequenceMatcher
from html import escape
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.rows import Row, Store
from retool_mcore.coldstart.select import TEMPLATES
from retool_mcore.data.held_back import split_by_problem
from retool_mcore.data.prepare import write_traces
from retool_mcore.data.records import Trace, normalise_question
from retool_mcore.errors import UserError
from retool_mcore.files import replacing, write_atomically

SAMPLES = 20
_PIECE = re.compile(r"\s+|(?:\w+|[^\w\s]+)\s*")
# Fewer words in common are chance.
_LEAST_WORDS = 3
# Beyond it the comparison, quadratic at worst, takes longer than the reader.
_MAX_PIECES = 20_000


def render(template: str, **values: Any) -> str:
    """The text of a file of templates/; what an .html one is given is escaped."""
    loader = PackageLoader("retool_mcore.coldstart")
    environment = Environment(loader=loader, autoescape=select_autoescape(), keep_trailing_newline=True)
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
    too_long = len(a) + len(b) > _MAX_PIECES
    same_a, same_b = [too_long] * len(a), [too_long] * len(b)
    if not too_long:
        words_a, words_b = ([piece.strip() for piece in pieces] for pieces in (a, b))
        for block in SequenceMatcher(None, words_a, words_b).get_matching_blocks():
            if block.size >= _LEAST_WORDS:
                same_a[block.a : block.a + block.size] = [True] * block.size
                same_b[block.b : block.b + block.size] = [True] * block.size
    flags = iter(same_b)
    inserted = ["".join(_spans(group, list(islice(flags, len(group))), "ins")) for group in groups]
    return ["".join(_spans(a, same_a, "del")), *inserted]


def _spans(pieces: list[str], same: list[bool], tag: str) -> Iterator[str]:
    for known, run in groupby(zip(same, pieces, strict=True), itemgetter(0)):
        text = escape("".join(piece for _, piece in run))
        yield text if known or not text.strip() else f"<{tag}>{text}</{tag}>"


def write(config: Config, stores: list[Store], counts: list, calls: dict, tokenizer: str) -> None:
    """Write everything under config.output; each file appears whole or not at all.

    Raises UserError, with the account of the stages, when no row is left.
    """
    folder = Path(config.output)
    rows = sorted(stores[-1].kept_rows(), key=lambda row: row.index)
    stats = statistics(rows)
    summary = {"stages": [*map(asdict, counts)], "calls": calls, "rows": stats}
    write_atomically(folder / "statistics.json", json.dumps(summary, indent=1) + "\n")
    with replacing(folder / "dropped.jsonl") as part, part.open("w", encoding="utf-8") as file:
        for store, count in zip(stores, counts, strict=True):
            for record in store.dropped():
                line = {"stage": count.stage, "row": record["index"], "reason": record["drop"]}
                file.write(json.dumps(line | {"detail": record["detail"]}) + "\n")
    write_atomically(folder / "report.html", report(config, counts, calls, stats, rows))
    if not rows:
        files = f"{folder / 'report.html'} and dropped.jsonl next to it"
        raise UserError(f"no row is left ({_why_none(stores, counts)}): see {files}.")
    splits = _split(config, rows)
    for name, template in TEMPLATES.items():
        for split in ("train", "validation"):
            path = folder / name / f"{split}.parquet"
            if splits.get(split):
                write_traces(splits[split], path, template=template, split=split)
            else:
                # An earlier run's validation problems are now in train.
                path.unlink(missing_ok=True)
    card = {"config": config, "counts": counts, "calls": calls, "stats": stats, "splits": splits}
    write_atomically(folder / "README.md", render("card.md", **card, tokenizer=tokenizer))


def _why_none(stores: list[Store], counts: list) -> str:
    """The commonest reason of the stage that dropped most, with the detail of its first row."""
    worst = max(range(len(counts)), key=lambda number: sum(counts[number].drops.values()))
    if not counts[worst].drops:
        return "the source is empty"
    reason, number = next(iter(counts[worst].drops.items()))
    detail = next(record["detail"] for record in stores[worst].dropped() if record["drop"] == reason)
    about = f"{reason}: {detail}" if detail else reason
    return f"{counts[worst].stage} dropped {number} of {counts[worst].rows_in} rows as {about[:300]}"


def _split(config: Config, rows: list[Row]) -> dict[str, list[Trace]]:
    traces = [Trace(config.source.name, row.problem, row.trace_segments(), row.index) for row in rows]
    problems = len({normalise_question(trace.question) for trace in traces})
    if not 0 < round(config.validation_share * problems) < problems:
        return {"train": traces}
    train, validation = split_by_problem(traces, config.validation_share, config.seed)
    return {"train": train, "validation": validation}
