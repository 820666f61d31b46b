"""The dashboard that TensorBoard opens on."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from retool_mcore.metrics.charts import TEXT, write_dashboard


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_a_dashboard_has_every_chart_and_its_scalars_by_their_whole_names(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    write_dashboard(stage, ["tensorboard"])
    (file,) = tmp_path.iterdir()
    events = EventAccumulator(str(file))
    events.Reload()
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    (category,) = layout.category
    assert category.title == stage
    charts = json.loads(TEXT)[stage]
    assert [chart.title for chart in category.chart] == [chart["title"] for chart in charts]
    entropy = {chart.title: list(chart.multiline.tag) for chart in category.chart}.get("entropy")
    assert stage == "sft" or entropy == ["^actor/entropy$"]


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    write_dashboard("rl", ["console", "wandb"])
    assert not list(tmp_path.iterdir())
