"""The charts that a run is looked at by: in the viewer's overview, on TensorBoard's dashboard and W&B's page."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

TEXT = Path(__file__).with_name("charts.json").read_text()  # the viewer's page draws by it


def tags(chart: dict) -> list[str]:
    """The scalars of one chart."""
    return [*chart.get("curves", {}).values(), *(tag for area in chart.get("areas", {}).values() for tag in area)]


class Overview:
    """W&B's module, whose `log` puts the charts' scalars a second time under "1 overview", the page's first section."""

    def __init__(self, wandb, stage: str) -> None:
        charts = json.loads(TEXT)[stage]
        self._wandb = wandb
        self._titles = {
            tag: f"1 overview/{chart['title']}{label and f', {label}'}"
            for chart in charts
            for label, tag in (chart.get("curves") or {"whole step": chart["scale"]}).items()
        }

    def log(self, data: Mapping, step: int) -> None:
        self._wandb.log({**data, **{own: data[tag] for tag, own in self._titles.items() if tag in data}}, step=step)

    def __getattr__(self, name: str):
        return getattr(self._wandb, name)


def write_dashboard(stage: str, loggers: Sequence[str]) -> None:
    """The stage's charts for TensorBoard's page "custom scalars", into $TENSORBOARD_DIR, if it is among the loggers.

    Before the stage opens its own file: TensorBoard goes on to a newer file and reads no older one again.
    """
    from torch.utils.tensorboard import SummaryWriter

    if "tensorboard" in loggers:
        own = json.loads(TEXT)[stage]
        charts = {chart["title"]: ["Multiline", [f"^{re.escape(tag)}$" for tag in tags(chart)]] for chart in own}
        with SummaryWriter(os.environ["TENSORBOARD_DIR"], filename_suffix=".charts") as board:
            board.add_custom_scalars({stage: charts})
