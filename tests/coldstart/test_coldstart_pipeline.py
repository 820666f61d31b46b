"""The whole pipeline against a server that replies with rewrites of known quality."""

import asyncio
import json
from collections import Counter

import pytest
from coldstart_runs import config

from retool_mcore.coldstart import pipeline
from retool_mcore.coldstart.pipeline import run
from retool_mcore.data.schema import check_sft
from retool_mcore.data.sft_dataset import ReToolSFTDataset
from tests.support.coldstart.model_double import recorded_replies, serving
from tests.support.coldstart.recorded_rewrites import KINDS, recorded, write_source

ROWS = recorded(45)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder, counts, calls of each request) of one run over ROWS."""
    folder = tmp_path_factory.mktemp("coldstart")
    source = write_source(ROWS, folder / "source.jsonl")
    with serving(recorded_replies(ROWS)) as double:
        counts = asyncio.run(run(config(folder / "out", source, double.url, validation_share=0.2)))
        again = asyncio.run(run(config(folder / "out", source, double.url, validation_share=0.2)))
        assert [c.rows_out for c in again] == [c.rows_out for c in counts]
        return folder / "out", {count.stage: count for count in counts}, Counter(double.calls)


def test_every_kind_is_dropped_where_it_must_be(finished):
    folder, _, _ = finished
    dropped = {record["row"]: record["stage"] for record in map(json.loads, (folder / "dropped.jsonl").open())}
    found = {(row.kind, dropped.get(number)) for number, row in enumerate(ROWS)}
    assert found == set(KINDS.items())


def test_all_rows_are_accounted_for(finished):
    folder, counts, _ = finished
    assert counts["read"].rows_in == len(ROWS)
    for count in counts.values():
        assert count.rows_in == count.rows_out + sum(count.drops.values())
    assert len((folder / "dropped.jsonl").read_text().splitlines()) == len(ROWS) - counts["selection"].rows_out


def test_no_call_is_made_twice(finished):
    _, counts, calls = finished
    assert set(calls.values()) == {1}
    assert sum(calls.values()) == counts["judge verification"].rows_in + counts["rewrite"].rows_in


def test_outputs_are_the_sandboxs_own(finished):
    folder, _, _ = finished
    import pyarrow.parquet as pq

    tables = [pq.read_table(folder / "text" / f"{split}.parquet").to_pylist() for split in ("train", "validation")]
    by_question = {row["question"]: row["segments"] for rows in tables for row in rows}
    row = next(row for row in ROWS if row.kind == "good, output unused")
    outputs = [segment["text"] for segment in by_question[row.problem] if segment["kind"] == "observation"]
    assert outputs == [f"{row.answer}\n{2**61 - 1}"]


@pytest.mark.parametrize("name", ["text", "hermes"])
def test_sft_loads_the_files(finished, name):
    from transformers import AutoTokenizer

    folder, counts, _ = finished
    files = [folder / name / f"{split}.parquet" for split in ("train", "validation")]
    for file in files:
        check_sft(file)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tiny")
    data = ReToolSFTDataset([str(file) for file in files], tokenizer, {"format": name, "max_length": 16384})
    assert len(data) == counts["selection"].rows_out
    example = data[0]
    trained = tokenizer.decode(example["input_ids"][example["loss_mask"].bool()])
    assert "print(" in trained and "<interpreter>\n" not in trained.rpartition("user question")[2]


def test_samples_and_card_show_rows_and_counts(finished):
    folder, counts, _ = finished
    samples = (folder / "samples.md").read_text()
    shown = min(20, counts["selection"].rows_out)
    assert [samples.count(title) for title in ("# Row ", "## Reasoning\n", "## Trace\n")] == [shown] * 3
    assert samples.count("~~~~~~python\n") == samples.count("~~~~~~output\n") > 0
    card = (folder / "README.md").read_text()
    assert "program outside of &lt;code&gt;" in card or "tool call outside of &lt;code&gt;" in card
    assert f"| execution | {counts['execution'].rows_in} | {counts['execution'].rows_out} |" in card
    calls = json.loads((folder / "statistics.json").read_text())["calls"]
    assert calls["rewrite"]["tokens_out"] == 5 * counts["rewrite"].rows_in


def test_a_changed_setting_redoes_only_what_follows_from_it(finished, monkeypatch, tmp_path):
    folder, counts, _ = finished
    ran = []
    original = pipeline._run_stage

    async def noted(stage, store, before, processes):
        if not store.ended:
            ran.append(stage.name)
        return await original(stage, store, before, processes)

    monkeypatch.setattr(pipeline, "_run_stage", noted)
    with serving(recorded_replies(ROWS)) as double:
        changed = config(folder, folder.parent / "source.jsonl", double.url, execution__on_mismatch="drop")
        after = {count.stage: count for count in asyncio.run(run(changed))}
        assert not double.calls
    assert ran == ["execution", "answer verification", "selection"]
    assert after["execution"].rows_out == counts["execution"].rows_out - 3
