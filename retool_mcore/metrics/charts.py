"""The charts that a run is looked at by, in the viewer's overview and on TensorBoard's dashboard."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

TEXT = Path(__file__).with_name("charts.json").read_text()  # the viewer's page draws by it


def tags(chart: dict) -> list[str]:
    """The scalars of one chart."""
    return [*chart.get("curves", {}).values(), *(tag for area in chart.get("areas", {}).values() for tag in area)]


def write_dashboard(stage: str, loggers: Sequence[str]) -> None:
    """The stage's charts for TensorBoard's page "custom scalars", into $TENSORBOARD_DIR, if it is among the loggers.

    Before the stage opens its own file: TensorBoard goes on to a newer file and reads no older one again.
    """
    from torch.utils.tensorboard import SummaryWriter

    if "tensorboard" in loggers:
        charts = {
            chart["title"]: ["Multiline", [f"^{re.escape(tag)}$" for tag in tags(chart)]]
            for chart in json.loads(TEXT)[stage]
        }
        with SummaryWriter(os.environ["TENSORBOARD_DIR"], filename_suffix=".charts") as board:
            board.add_custom_scalars({stage: charts})
