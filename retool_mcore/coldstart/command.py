"""What `retool coldstart` does with its arguments."""

import json
import os
import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from retool_mcore.coldstart.config import load
from retool_mcore.coldstart.pipeline import Counted, run_blocking
from retool_mcore.coldstart.serve import serve_command


def run(path: Path, overrides: list[str]) -> None:
    """Run or resume the configuration in `path`, print the account and how to train on the result."""
    config = load(path, overrides)
    counts = run_blocking(config)
    Console().print(_table(counts))
    text = Path(config.output).resolve() / "text"
    validation = text / "validation.parquet"
    if not validation.exists():
        print("Too few problems for a validation file (raise validation_share): the command validates on train.")
        validation = text / "train.parquet"
    for purpose, used in json.loads((Path(config.output) / "statistics.json").read_text())["calls"].items():
        print(
            f"{purpose}: {used['calls']} calls, {used['retries']} retries, {used['tokens_in']} tokens in and "
            f"{used['tokens_out']} out, cost {used['cost']:.2f}; {used['cached']} replies from the cache in this start"
        )
    print(f"report: {Path(config.output) / 'report.html'}")
    print(
        f"train:  retool sft data=math data.sft_train_files={text / 'train.parquet'} "
        f"data.sft_validation_files={validation}"
    )


def serve(path: Path, purpose: str, checkpoint: str | None, arguments: list[str], show: bool) -> None:
    """Print the server's command, or become it."""
    command = serve_command(load(path), purpose, checkpoint, arguments)
    print(shlex.join(command), flush=True)
    if not show:
        os.execvp(command[0], command)


def _table(counts: list[Counted]) -> Table:
    table = Table("stage", "in", "out", "dropped", "new rows/s")
    for count in counts:
        drops = "\n".join(f"{number} x {reason}" for reason, number in count.drops.items())
        speed = f"{count.new_rows / count.seconds:.0f}" if count.new_rows else "-"
        table.add_row(count.stage, str(count.rows_in), str(count.rows_out), drops, speed)
    return table
