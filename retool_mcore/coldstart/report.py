"""The HTML report: one file without outside parts; the funnel of the stages, lengths, code, rows before and after."""

import random
from collections.abc import Sequence
from html import escape
from pathlib import Path

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.report_rows import pair
from retool_mcore.coldstart.rows import Row
from retool_mcore.files import write_atomically

SAMPLES = 20
_STYLE = """
:root{--ink:#1f2933;--soft:#68737d;--line:#e3e7eb;--blue:#3b6ea8;--pale:#cfdcea;--drop:#e9b8a6;--code:#eef4ea;
--out:#fdf3dc;--was:#fbe0da;--is:#d8efd3}
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1280px;padding:0 1.2em;
color:var(--ink)}h1{margin:0}h2{margin:2em 0 .6em;border-bottom:1px solid var(--line);padding-bottom:.2em}
h3{margin:0;font-size:14px}.soft,small{color:var(--soft)}.cards{display:flex;flex-wrap:wrap;gap:.8em;margin:1.2em 0}
.card{border:1px solid var(--line);border-radius:8px;padding:.6em 1em;min-width:8.5em}
.card b{display:block;font-size:22px;line-height:1.3}table{border-collapse:collapse;width:100%}
td,th{padding:.3em .7em;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);font-weight:400}
th{color:var(--soft);font-size:13px}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.track{display:flex;height:1.1em;margin-top:.2em;min-width:18em}
table.small{width:auto}.kept{background:var(--blue)}.lost{background:var(--drop)}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(22em,1fr));gap:1.6em}
.bars{display:flex;align-items:flex-end;gap:2px;height:90px;border-bottom:1px solid var(--soft);margin-top:.4em}
.bars i{flex:1;background:var(--blue);min-height:1px}.ends{display:flex;justify-content:space-between}
details{border:1px solid var(--line);border-radius:8px;margin:.8em 0}
summary{cursor:pointer;padding:.5em .9em;background:#f6f8fa;border-radius:8px}
.problem{padding:.3em .9em}.pair{display:grid;grid-template-columns:1fr 1fr;border-top:1px solid var(--line)}
.pair>div{min-width:0;padding:.5em .9em;max-height:34em;overflow:auto}.pair>div+div{border-left:1px solid var(--line)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;font:13px/1.5 ui-monospace,monospace}
.code,.observation{padding:.4em .7em;border-left:3px solid #7fa36b;background:var(--code)}
.observation{border-color:#d9a53a;background:var(--out)}del{background:var(--was);text-decoration:none}
del.claim{text-decoration:line-through}ins{background:var(--is);text-decoration:none}
"""
_TITLES = {
    "tokens": "Tokens of prompt and response, format text",
    "programs": "Programs a trace",
    "program_lines": "Lines a program",
    "reasoning_characters": "Characters of the reasoning before",
    "prose_characters": "Characters of text after",
}
_CALLS = {
    "calls": ("calls", ","),
    "retries": ("retries", ","),
    "cached": ("from the cache in this start", ","),
    "tokens_in": ("tokens in", ","),
    "tokens_out": ("tokens out", ","),
    "cost": ("cost", ",.2f"),
}


def write_report(path: Path, config: Config, counts: Sequence, calls: dict, stats: dict, rows: Sequence[Row]) -> None:
    """Write the report; `counts` as `pipeline.run` returns them, `calls` as `Services.calls`, `stats` as `statistics`.
    The rows shown are drawn with config.seed."""
    shown = random.Random(config.seed).sample(list(rows), min(SAMPLES, len(rows)))
    title = f"Cold-start data: {escape(config.source.name)}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>',
        f"<h1>{title}</h1><div class=soft>from <code>{escape(config.source.path)}</code>, rewritten by "
        f"{escape(config.rewrite.model.name)}</div>",
        _cards(counts, calls, stats),
        "<h2>Stages</h2>",
        _funnel(counts),
        "<h2>Model calls</h2>",
        _calls(calls),
        "<h2>Lengths</h2><div class=grid>",
        *(_histogram(title, stats[name]) for name, title in _TITLES.items()),
        "</div><h2>Code</h2>",
        _code(stats),
        f"<h2>{len(shown)} random rows, before and after</h2>",
        "<p class=soft>Left the reasoning in text, right the trace. <del>Only before</del>, <ins>only after</ins>; "
        "programs on green, the sandbox's output on yellow, and "
        "<del class=claim>what the model had written there</del> where it was not the same.</p>",
        *map(pair, sorted(shown, key=lambda row: row.index)),
        "</html>\n",
    ]
    # Half a surrogate pair has no UTF-8 and would end the report.
    write_atomically(path, "\n".join(parts).encode("utf-8", "replace").decode())


def _cards(counts: Sequence, calls: dict, stats: dict) -> str:
    read = counts[0].rows_in
    tokens = sum(used["tokens_in"] + used["tokens_out"] for used in calls.values())
    found = {
        "rows read": f"{read:,}",
        "traces": f"{stats['rows']:,}",
        "kept": f"{stats['rows'] / max(1, read):.1%}",
        "programs": f"{stats['programs']['total']:,}",
        "traces with a repaired output": f"{stats['repaired_share']:.1%}",
        "model calls": f"{sum(used['calls'] for used in calls.values()):,}",
        "tokens paid for": f"{tokens:,}",
        "cost": f"{sum(used['cost'] for used in calls.values()):,.2f}",
    }
    cards = "".join(
        f"<div class=card><b>{value}</b><span class=soft>{name}</span></div>" for name, value in found.items()
    )
    return f"<div class=cards>{cards}</div>"


def _funnel(counts: Sequence) -> str:
    most = max(1, counts[0].rows_in)
    rows = "".join(
        f"<tr><td>{escape(c.stage)}<td class=n>{c.rows_in:,}<td class=n>{c.rows_out:,}<td><div class=track>"
        f'<div class=kept style="width:{100 * c.rows_out / most:.2f}%"></div>'
        f'<div class=lost style="width:{100 * (c.rows_in - c.rows_out) / most:.2f}%"></div></div><td>'
        + "<br>".join(f"{n:,} &times; {escape(reason)}" for reason, n in c.drops.items())
        for c in counts
    )
    return f"<table><tr><th>stage<th class=n>in<th class=n>out<th>kept and dropped<th>reasons{rows}</table>"


def _calls(calls: dict) -> str:
    rows = "".join(
        f"<tr><td>{escape(purpose)}" + "".join(f"<td class=n>{used[name]:{form}}" for name, (_, form) in _CALLS.items())
        for purpose, used in calls.items()
    )
    head = "".join(f"<th class=n>{title}" for title, _ in _CALLS.values())
    return f"<table class=small><tr><th>purpose{head}{rows}</table>"


def _histogram(title: str, figures: dict) -> str:
    most = max((count for _, count in figures["histogram"]), default=1)
    bars = "".join(
        f'<i style="height:{100 * count / most:.1f}%" title="from {start:,}: {count:,}"></i>'
        for start, count in figures["histogram"]
    )
    ends = f"<div class=ends><small>{figures['least']:,}</small><small>{figures['most']:,}</small></div>"
    middle = f"<small>median {figures['median']:,.10g}, mean {figures['mean']:,}; the highest bar is {most:,}</small>"
    return f"<div><h3>{title}</h3>{middle}<div class=bars>{bars}</div>{ends}</div>"


def _code(stats: dict) -> str:
    most = max(stats["imports"].values(), default=1)
    imports = "".join(
        f'<tr><td>{escape(name)}<td class=n>{count:,}<td><div class=track><div class=kept style="width:'
        f'{100 * count / most:.1f}%"></div></div>'
        for name, count in stats["imports"].items()
    )
    table = (
        f"<table class=small><tr><th>module<th class=n>traces that import it<th>{imports}</table>" if imports else ""
    )
    return (
        f"<p>{stats['programs']['total']:,} programs in {stats['rows']:,} traces; {stats['repaired_share']:.1%} of the "
        f"traces have an output that was repaired, {stats['failed_programs']:,} programs end in an error"
        f"{'.' if imports else ', and none imports a module.'}</p>{table}"
    )
