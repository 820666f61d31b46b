"""benchmarks/train/update.py on the CPU: one loss and gradient norm whatever the layout and packing; random weights."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    out = folder / "train.json"
    command = [sys.executable, "-m", "benchmarks.train.update", "--quick", "--out", out, "--logs", folder / "logs"]
    subprocess.run(command, check=True, timeout=900, cwd=ROOT)
    return json.loads(out.read_text())


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_layouts_agree_in_loss_and_gradient_norm(found, kind):
    rows = {}
    for row in found["checks"]:
        if row["kind"] == kind:
            packing = row["settings"]["engine"]["override_mcore_model_config"].get("packing", False)
            rows[*(row["layout"][size] for size in ("tp", "pp", "dp")), packing] = row
    layouts = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]
    assert set(rows) == {(*layout, packing) for layout in layouts for packing in (False, True)}
    one = rows[1, 1, 1, False]
    for *layout, _ in rows:
        stock, packed = rows[*layout, False], rows[*layout, True]
        assert stock["loss"] == pytest.approx(one["loss"], rel=1e-5), layout
        assert stock["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4), layout
        assert packed["loss"] == pytest.approx(stock["loss"], rel=1e-6), layout
        assert packed["grad_norm"] == pytest.approx(stock["grad_norm"], rel=1e-6), layout


def test_random_weights_need_no_file(found):
    (row,) = found["rows"]
    assert row["init"] == "random" and "error" not in row
    assert all(map(math.isfinite, row["loss"] + row["grad_norm"]))
