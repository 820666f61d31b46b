"""The HTML report (templates/report.html) and the data card (templates/card.md): funnel, lengths, code, rows."""

import random
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from retool_mcore.coldstart.config import Config
from retool_mcore.coldstart.report_rows import pair
from retool_mcore.coldstart.rows import Row

SAMPLES = 20


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
