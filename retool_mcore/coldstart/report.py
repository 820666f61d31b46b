"""The HTML report: one file without outside parts; counts, histograms, code statistics, rows before and after."""

import random
from collections.abc import Sequence
from html import escape
from pathlib import Path

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.rows import Row
from retool_mcore.files import write_atomically

SAMPLES = 20
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1300px;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{border-bottom:1px solid #ddd;padding:.3em .8em;text-align:left;
vertical-align:top}td.n,th.n{text-align:right}.bar{background:#4a7ab5;height:1em}.hist td{border:0;padding:0 .5em}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:1em}.pair>div{min-width:0;background:#fafafa;padding:.8em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.4em 0}.code{background:#e8f0e4}.observation{background:#fbeed5}
.was{color:#a33}summary{cursor:pointer}
"""
_TITLES = {
    "tokens": "Tokens of prompt and response, format text",
    "programs": "Programs a trace",
    "program_lines": "Lines a program",
    "reasoning_characters": "Characters of the reasoning before",
    "prose_characters": "Characters of text after",
}


def write_report(path: Path, config: Config, counts: Sequence, calls: dict, stats: dict, rows: Sequence[Row]) -> None:
    """Write the report; `counts` as `pipeline.run` returns them, `calls` as `CallCache.totals`, `stats` as
    `statistics`. The rows shown are drawn with config.seed."""
    shown = random.Random(config.seed).sample(list(rows), min(SAMPLES, len(rows)))
    parts = [
        f"<h1>Cold-start data: {escape(config.source.name)}</h1><p>{len(rows)} traces from "
        f"<code>{escape(config.source.path)}</code>.</p>",
        "<h2>Stages</h2>",
        _stages(counts),
        "<h2>Model calls</h2>",
        _calls(calls),
        "<h2>Lengths</h2>",
        *(_histogram(title, stats[name]) for name, title in _TITLES.items()),
        "<h2>Code</h2>",
        _code(stats),
        f"<h2>{len(shown)} rows, before and after</h2>",
        *map(_pair, sorted(shown, key=lambda row: row.index)),
    ]
    title = f"<title>Cold-start data: {escape(config.source.name)}</title>"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8">{title}<style>{_STYLE}</style>'
    page = head + "\n".join(parts) + "</html>\n"
    # Half a surrogate pair has no UTF-8 and would end the report.
    write_atomically(path, page.encode("utf-8", "replace").decode())


def _stages(counts: Sequence) -> str:
    rows = "".join(
        f"<tr><td>{escape(c.stage)}<td class=n>{c.rows_in}<td class=n>{c.rows_out}<td>"
        + ("<br>".join(f"{n} &times; {escape(reason)}" for reason, n in c.drops.items()) or "&ndash;")
        for c in counts
    )
    return f"<table><tr><th>stage<th class=n>in<th class=n>out<th>dropped{rows}</table>"


def _calls(calls: dict) -> str:
    rows = "".join(
        f"<tr><td>{escape(purpose)}<td class=n>{used['calls']}<td class=n>{used['tokens_in']}"
        f"<td class=n>{used['tokens_out']}<td class=n>{used['cost']:.2f}"
        for purpose, used in calls.items()
    )
    return f"<table><tr><th>purpose<th class=n>calls<th class=n>tokens in<th class=n>tokens out<th>cost{rows}</table>"


def _histogram(title: str, figures: dict) -> str:
    most = max((count for _, count in figures["histogram"]), default=1)
    rows = "".join(
        f'<tr><td class=n>{start}<td><div class=bar style="width:{max(1, 400 * count // most)}px"></div><td>{count}'
        for start, count in figures["histogram"]
    )
    line = f"least {figures['least']}, median {figures['median']}, mean {figures['mean']}, most {figures['most']}"
    return f"<h3>{title}</h3><p>{line}</p><table class=hist>{rows}</table>"


def _code(stats: dict) -> str:
    imports = "".join(f"<tr><td>{escape(name)}<td class=n>{count}" for name, count in stats["imports"].items())
    return (
        f"<p>{stats['repaired_share']:.1%} of traces have an output that was repaired; "
        f"{stats['failed_programs']} programs end in an error.</p>"
        f"<table><tr><th>module<th class=n>traces that import it{imports}</table>"
    )


def _pair(row: Row) -> str:
    claims = iter(row.claimed)
    after = []
    for segment in row.segments:
        kind, text = segment["kind"], segment["text"]
        after.append(f'<pre class="{kind}">{escape(text)}</pre>')
        if kind == "observation" and (claimed := next(claims, text)) != text:
            after.append(f'<pre class="was">the model had written: {escape(claimed)}</pre>')
    return (
        f"<details open><summary>row {row.index}, answer {escape(row.answer)}</summary><pre>{escape(row.problem)}</pre>"
        f"<div class=pair><div><pre>{escape(row.reasoning)}</pre></div><div>{''.join(after)}</div></div></details>"
    )
