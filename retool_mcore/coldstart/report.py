"""The last step: the split, the parquet files in both formats, the statistics, and by templates/ the data card and some
rows to read, each with its reasoning and its trace."""

import ast
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jinja2 import Environment, PackageLoader

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.rows import Row, Store
from retool_mcore.coldstart.select import TEMPLATES
from retool_mcore.data.held_back import split_by_problem
from retool_mcore.data.prepare import write_traces
from retool_mcore.data.records import Trace, normalise_question
from retool_mcore.errors import UserError
from retool_mcore.files import replacing, write_atomically

SAMPLES = 20  # rows to read


def render(template: str, **values: Any) -> str:
    """The text of a file of templates/."""
    environment = Environment(loader=PackageLoader("retool_mcore.coldstart"), keep_trailing_newline=True)
    environment.filters["share"] = "{:.1%}".format
    # Half a surrogate pair has no UTF-8 and would end the run.
    return environment.get_template(template).render(values).encode("utf-8", "replace").decode()


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
    if not rows:
        raise UserError(f"no row is left ({_why_none(stores, counts)}): see {folder / 'dropped.jsonl'}.")
    shown = random.Random(config.seed).sample(rows, min(SAMPLES, len(rows)))
    shown.sort(key=lambda row: row.index)
    write_atomically(folder / "samples.md", render("samples.md", rows=shown))
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
