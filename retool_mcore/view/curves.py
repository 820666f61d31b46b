"""The curves of a run's overview, read from its metrics files as they grow; and what happened at which step."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path

from retool_mcore.files import read_json_lines
from retool_mcore.metrics.charts import TEXT
from retool_mcore.state import alarms, chain
from retool_mcore.state.progress import Steps, total_steps

STAGES = ("sft", "rl")
# What two seeds of one configuration differ in, in RUN/STAGE/config.yaml.
_OWN = re.compile(r"^( *\w*seed|name| *experiment_name): .*\n", re.MULTILINE)


class Curves:
    """Curves of the run in a folder."""

    def __init__(self, run: Path) -> None:
        self.run = run
        names = re.findall(r'"(\w+/[\w/]+)"', TEXT)
        self.stages = {stage: Steps(run / stage, names) for stage in STAGES}

    def read(self) -> dict:
        """All as they are now: {"stages": {"sft" or "rl": `_stage`}, "evaluations": {label: metrics.json},
        "configuration": equal for runs that differ in seed and name alone}."""
        results = {path.parent.name: json.loads(path.read_text()) for path in self.run.glob("eval/*/metrics.json")}
        return {
            "stages": {stage: curves for stage, steps in self.stages.items() if (curves := _stage(steps))},
            "evaluations": dict(sorted(results.items())),
            "configuration": configuration(self.run),
        }


def starts(run: Path) -> dict[str, dict]:
    """{stage: state/chain.py's Chain as a dictionary} of the stages that were started."""
    chains = {stage: chain.read(run / stage, total_steps(run / stage)) for stage in STAGES}
    return {stage: asdict(one) for stage, one in chains.items() if one.starts}


def _stage(source: Steps) -> dict | None:
    """Metrics are {name: [value of every step or None]}, attempts [[number, first step], ...]; None before a step."""
    steps, folder = source.read(), source.folder
    if not steps:
        return None
    return {
        "steps": list(steps),
        "metrics": {name: [_short(data.get(name)) for data in steps.values()] for name in source.names},
        "attempts": [[attempt, min(own)] for attempt, own in source.attempts.items() if own],
        "alarms": read_json_lines(folder / "alarms.jsonl"),
        "backs": alarms.backs(folder),
        "complete": (folder / "COMPLETE").exists(),
        "heartbeat": next(iter(read_json_lines(folder / "heartbeat" / "trainer.json")), None),
    }


def _short(value: float | None) -> float | None:
    """Six digits; None also of what JSON has no word for."""
    return float(f"{value:.6g}") if value is not None and abs(value) < float("inf") else None


def configuration(run: Path) -> str | None:
    """A hash of the RL or SFT configuration without seeds, names and the run's folder; None where there is none."""
    path = next((path for stage in ("rl", "sft") if (path := run / stage / "config.yaml").is_file()), None)
    if path is None:
        return None
    text = path.read_text()
    place = re.search(r"^run_dir: (.+)$", text, re.MULTILINE)
    return hashlib.sha256(_OWN.sub("", text.replace(place[1], "RUN") if place else text).encode()).hexdigest()
