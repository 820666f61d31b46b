"""SFT examples as verl's trainer takes them: what is trained on, what is not, and which files are refused."""

import pyarrow
import pyarrow.parquet
import pytest
import torch
from chatml_tokenizer import make_tokenizer

from retool_mcore.data.formats import get_format
from retool_mcore.data.segments import render_segments
from retool_mcore.data.sft_dataset import ReToolSFTDataset
from retool_mcore.errors import UserError

TOKENIZER = make_tokenizer()


def row(answer="42."):
    return {
        "data_source": "d",
        "question": "6 * 7?",
        "extra_info": {"index": 0, "split": "train"},
        "prompt": [{"role": "user", "content": "6 * 7?"}],
        "segments": [
            {"kind": "text", "text": "So:\n"},
            {"kind": "code", "text": "print(6 * 7)"},
            {"kind": "observation", "text": "OUTPUT"},
            {"kind": "text", "text": answer},
        ],
    }


def write(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def build(files, **config):
    return ReToolSFTDataset(files, TOKENIZER, {"format": "text", "max_length": 500, **config})


@pytest.mark.parametrize("name", ["text", "hermes"])
def test_only_the_policys_tokens_are_trained_on(tmp_path, name):
    dataset = build(write(tmp_path / "a.parquet", [row()]), format=name)
    item = dataset[0]
    assert {key: value.dtype for key, value in item.items()} == dict.fromkeys(
        ("input_ids", "position_ids", "loss_mask"), torch.int64
    )
    fmt = get_format(name, TOKENIZER)
    prompt = fmt.prompt_ids(row()["prompt"])
    response, mask, _ = render_segments(fmt, TOKENIZER, row()["segments"])
    assert item["input_ids"].tolist() == prompt + response
    assert item["loss_mask"].tolist() == [0] * len(prompt) + mask
    assert item["position_ids"].tolist() == list(range(len(prompt + response)))
    trained = TOKENIZER.decode(item["input_ids"][item["loss_mask"] == 1])
    assert "print(6 * 7)" in trained and trained.endswith("42.<|im_end|>")
    assert "OUTPUT" not in trained and "6 * 7?" not in trained


def test_observations_are_trained_on_only_when_asked(tmp_path):
    item = build(write(tmp_path / "a.parquet", [row()]), predict_observations=True)[0]
    trained = TOKENIZER.decode(item["input_ids"][item["loss_mask"] == 1])
    assert "OUTPUT" in trained and "6 * 7?" not in trained


def test_the_batch_meets_verls_shifted_mask(tmp_path):
    from verl.utils.dataset.dataset_utils import SFTTensorCollator

    dataset = build(write(tmp_path / "a.parquet", [row(), row("It is 42.")]))
    batch = SFTTensorCollator("no_padding")([dataset[0], dataset[1]])
    ids, mask = batch["input_ids"].values(), batch["loss_mask"].values()
    # sft_loss weighs the log-probability that position t gives to token t + 1 with the mask rolled by -1.
    targets = torch.roll(ids, -1)[torch.roll(mask, -1) == 1]
    assert targets.tolist() == [
        t for i in range(2) for t in dataset[i]["input_ids"][dataset[i]["loss_mask"] == 1].tolist()
    ]


def test_long_examples_are_named_or_dropped_aloud(tmp_path, capsys):
    path = write(tmp_path / "a.parquet", [row(), row("long " * 300), row()])
    with pytest.raises(UserError, match=r"Row 1 of .*a\.parquet has \d+ tokens, more than data.max_length=500"):
        build(path)
    assert len(build(path, truncation="drop")) == 2
    assert "dropped 1 of 3 SFT examples" in capsys.readouterr().out
    with pytest.raises(UserError, match="3 rows were longer"):
        build(path, truncation="drop", max_length=10)


def test_several_files_and_a_cap(tmp_path):
    files = [write(tmp_path / name, [row(), row()]) for name in ("a.parquet", "b.parquet")]
    assert [
        len(build(files, max_length=500)),
        len(ReToolSFTDataset(files, TOKENIZER, {"format": "none", "max_length": 99}, None, 3)),
    ] == [4, 3]


def test_bad_input_is_refused_in_one_sentence(tmp_path):
    good = write(tmp_path / "a.parquet", [row()])
    broken = row("I write </code>, and 42.")
    with pytest.raises(UserError, match="does not exist"):
        build(str(tmp_path / "no.parquet"))
    with pytest.raises(UserError, match="no column 'data_source'"):
        build(write(tmp_path / "b.parquet", [{"prompt": row()["prompt"]}]))
    with pytest.raises(UserError, match="Row 1 of .*cannot be rendered"):
        build(write(tmp_path / "c.parquet", [row(), broken]))
    with pytest.raises(UserError, match="truncation"):
        build(good, truncation="right")
    with pytest.raises(UserError, match="Unknown format None: expected one of text, hermes, none"):
        build(good, format=None)
