"""`retool explain`: why a run does not learn."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from retool_mcore.files import write_atomically


def explain(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run, as in runs/quickstart.")],
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write the findings there.")] = None,
) -> None:
    """Say why a run does not learn: at most ten sentences, the most important first, each with its evidence, two
    trajectories to look at and one key to change. For SFT and RL that run, were stopped, failed or are finished."""
    from retool_mcore.explain import report

    if json_file is not None:
        findings = report.explain(run)[1]
        write_atomically(json_file, json.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    print("\n".join(report.lines(run)))
