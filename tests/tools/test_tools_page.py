"""The tool of docs/tools.md, run as it is written there."""

import asyncio
import re
from pathlib import Path

import yaml

from retool_mcore.tools.base import Episode
from retool_mcore.tools.toolbox import create_toolbox

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def test_the_pages_tool_is_twenty_lines_and_runs(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.splitlines()) <= 20
    (tmp_path / "weekday_tool.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    box = create_toolbox({"use": [{"path": "weekday_tool.Weekday"}], "timeout_s": 60})
    replies = [asyncio.run(box.call("weekday", {"date": day}, Episode())) for day in ("2024-02-29", "never")]
    assert (replies[0].text, replies[0].status) == ("Thursday", "success")
    assert replies[1].status == "error" and replies[1].text.startswith("Error: ValueError")


def test_the_pages_toolbox_answers(tmp_path, monkeypatch):
    (section,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "corpus.jsonl").write_text('{"title": "Rivers", "text": "The Loire flows to Nantes."}\n')
    monkeypatch.chdir(tmp_path)
    box = create_toolbox(yaml.safe_load(section), sandbox=None)
    assert list(box.tools) == ["code_interpreter", "search", "mean", "median"]
    asked = (("search", {"query": "loire"}), ("mean", {"data": [1, 2]}))
    found = [asyncio.run(box.call(name, arguments, Episode())) for name, arguments in asked]
    assert [reply.text for reply in found] == ["[1] Rivers\nThe Loire flows to Nantes.", "1.5"]


def test_the_page_names_every_tool_that_is_delivered():
    paths = re.findall(r"`(retool_mcore\.tools\.\w+\.\w+)`", PAGE.read_text())
    assert len(paths) == 5
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(__import__(module, fromlist=[name]), name)
