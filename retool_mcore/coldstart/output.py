"""The last step: the split, the parquet files in both formats, the statistics, the data card and the report."""

import json
from dataclasses import asdict
from pathlib import Path

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.report import render, report, statistics
from retool_mcore.coldstart.rows import Row, Store
from retool_mcore.coldstart.select import TEMPLATES
from retool_mcore.data.held_back import split_by_problem
from retool_mcore.data.prepare import write_traces
from retool_mcore.data.records import Trace, normalise_question
from retool_mcore.errors import UserError
from retool_mcore.files import replacing, write_atomically


def write(config: Config, stores: list[Store], counts: list, calls: dict, tokenizer: str) -> None:
    """Write everything under config.output; each file appears whole or not at all.

    Raises UserError, with the account of the stages, when no row is left.
    """
    folder = Path(config.output)
    rows = sorted(stores[-1].kept_rows(), key=lambda row: row.index)
    stats = statistics(rows)
    account = [{key: value for key, value in asdict(count).items() if key != "path"} for count in counts]
    summary = {"stages": account, "calls": calls, "rows": stats}
    write_atomically(folder / "statistics.json", json.dumps(summary, indent=1) + "\n")
    with replacing(folder / "dropped.jsonl") as part, part.open("w", encoding="utf-8") as file:
        for store, count in zip(stores, counts, strict=True):
            for record in store.dropped():
                line = {"stage": count.stage, "row": record["index"], "reason": record["drop"]}
                file.write(json.dumps(line | {"detail": record["detail"]}) + "\n")
    write_atomically(folder / "report.html", report(config, counts, calls, stats, rows))
    if not rows:
        raise UserError(
            f"no row is left ({_why_none(stores, counts)}): see {folder / 'report.html'} and dropped.jsonl beside it."
        )
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
