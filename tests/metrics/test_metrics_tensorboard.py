import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retool_mcore.metrics.tensorboard import write_histograms, write_scalars, write_texts


def test_curves_come_back(tmp_path):
    for step in (0, 5, 10):
        write_scalars(tmp_path / "run", step, {"val/aime/mean@4": step / 16, "val/turns": 3})
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    curves = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert curves == {
        "val/aime/mean@4": [(0, 0.0), (5, 0.3125), (10, 0.625)],
        "val/turns": [(0, 3.0), (5, 3.0), (10, 3.0)],
    }


def test_histograms_and_texts(tmp_path):
    write_histograms(tmp_path, 3, {"length": [1, 2, 3, 10]}, bins=3)
    write_texts(tmp_path, 3, {"sample": "**42** \u2713"})
    events = EventAccumulator(str(tmp_path)).Reload()
    histogram = events.Histograms("length")[0].histogram_value
    assert (histogram.num, histogram.min, histogram.max, histogram.sum) == (4, 1, 10, 16)
    assert histogram.bucket_limit == [4, 7, 10]
    assert histogram.bucket == [3, 0, 1]
    assert events.Tensors("sample")[0].tensor_proto.string_val[0].decode() == "**42** \u2713"
    assert events.SummaryMetadata("sample").plugin_data.plugin_name == "text"


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_a_histogram_of_nothing_is_refused(tmp_path, values):
    with pytest.raises(ValueError, match="histogram length"):
        write_histograms(tmp_path, 1, {"length": values})


def test_importing_it_does_not_import_torch():
    # In a process of its own, since other tests may have imported torch into this one.
    code = "import sys, retool_mcore.metrics.tensorboard; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)
