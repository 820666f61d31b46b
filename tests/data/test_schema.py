import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.data.schema import RL_SCHEMA, SFT_SCHEMA, check_rl, check_sft, write_parquet
from retool_mcore.errors import UserError

RL_ROW = {
    "data_source": "aime_2025",
    "prompt": [{"role": "user", "content": "½ + ½?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "1"},
    "extra_info": {"index": 0, "split": "train", "question": "½ + ½?"},
    "agent_name": "retool",
}
SFT_ROW = {
    "data_source": "retool_sft",
    "question": "½ + ½?",
    "prompt": [{"role": "user", "content": "½ + ½?"}],
    "segments": [
        {"kind": "code", "text": "1"},
        {"kind": "observation", "text": ""},
        {"kind": "text", "text": "\\boxed{1}"},
    ],
    "extra_info": {"index": 0, "split": "train"},
}


def write_rl(path, row, schema=None):
    pq.write_table(pa.Table.from_pylist([RL_ROW, row], schema=schema), path)
    return path


def test_what_is_written_passes_its_check_and_comes_back(tmp_path):
    write_parquet([RL_ROW] * 3, RL_SCHEMA, tmp_path / "new" / "rl.parquet")
    write_parquet([SFT_ROW] * 3, SFT_SCHEMA, tmp_path / "new" / "sft.parquet")
    check_rl(tmp_path / "new" / "rl.parquet")
    check_sft(str(tmp_path / "new" / "sft.parquet"))
    assert pq.read_table(tmp_path / "new" / "rl.parquet").to_pylist() == [RL_ROW] * 3
    assert pq.read_table(tmp_path / "new" / "sft.parquet").to_pylist() == [SFT_ROW] * 3


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "rl.parquet"
    write_parquet([RL_ROW], RL_SCHEMA, path)
    with pytest.raises(pa.ArrowException):
        write_parquet([RL_ROW, RL_ROW | {"prompt": 3}], RL_SCHEMA, path)
    assert pq.read_table(path).to_pylist() == [RL_ROW]
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(OSError):
        write_parquet([RL_ROW], RL_SCHEMA, tmp_path / "folder.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.parquet", "rl.parquet"]


def test_wider_types_and_further_fields_pass(tmp_path):
    table = pa.Table.from_pylist([RL_ROW | {"more": 1}])
    table = table.set_column(
        table.schema.get_field_index("ability"), "ability", table["ability"].cast(pa.large_string())
    )
    pq.write_table(table, tmp_path / "a.parquet")
    check_rl(tmp_path / "a.parquet")


def test_a_missing_file_a_folder_and_no_parquet_are_named(tmp_path):
    (tmp_path / "text.parquet").write_text("no parquet")
    for path, message in [
        (tmp_path / "none.parquet", "none.parquet does not exist: expected a parquet file as `retool prepare`"),
        (tmp_path, "is a folder"),
        (tmp_path / "text.parquet", "cannot read .*text.parquet as parquet"),
    ]:
        with pytest.raises(UserError, match=message):
            check_rl(path)


@pytest.mark.parametrize("column", RL_SCHEMA.names)
def test_a_missing_column_is_named_with_those_there(tmp_path, column):
    row = {key: value for key, value in RL_ROW.items() if key != column}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=f"has no column '{column}': it has {', '.join(row)}."):
        check_rl(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_source": 1}, "data_source is int64, expected string"),
        ({"prompt": "Q?"}, "prompt is string, expected list"),
        ({"prompt": ["Q?"]}, r"prompt\[\] is string, expected struct"),
        ({"prompt": [{"role": "user", "content": 1}]}, r"prompt\[\].content is int64, expected string"),
        ({"prompt": [{"role": "user"}]}, r"prompt\[\] has no field 'content', only role"),
        ({"reward_model": {"style": "rule", "ground_truth": 1}}, "reward_model.ground_truth is int64, expected string"),
        ({"extra_info": {"split": "train", "question": "Q"}}, "extra_info has no field 'index'"),
        ({"extra_info": RL_ROW["extra_info"] | {"index": "0"}}, "extra_info.index is string, expected int64"),
    ],
)
def test_a_wrong_type_is_named_down_to_the_field(tmp_path, changes, message):
    pq.write_table(pa.Table.from_pylist([RL_ROW | changes]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=f"column of the wrong type: {message}"):
        check_rl(tmp_path / "a.parquet")


def test_an_empty_data_set_is_refused(tmp_path):
    write_parquet([], RL_SCHEMA, tmp_path / "a.parquet")
    write_parquet([], SFT_SCHEMA, tmp_path / "b.parquet")
    for check, name in [(check_rl, "a.parquet"), (check_sft, "b.parquet")]:
        with pytest.raises(UserError, match=f"{name} is an empty data set"):
            check(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_source": None}, "row 1: data_source is null"),
        ({"prompt": None}, "row 1: prompt is null"),
        ({"prompt": []}, "row 1: prompt is an empty list"),
        ({"prompt": [None]}, r"row 1: prompt\[\] is null"),
        ({"prompt": [{"role": "user", "content": None}]}, r"row 1: prompt\[\].content is null"),
        ({"reward_model": {"style": "rule", "ground_truth": None}}, "row 1: reward_model.ground_truth is null"),
        ({"agent_name": None}, "row 1: agent_name is null"),
    ],
)
def test_a_null_in_the_first_row_group_is_named_with_its_row(tmp_path, changes, message):
    path = write_rl(tmp_path / "a.parquet", RL_ROW | changes, RL_SCHEMA)
    with pytest.raises(UserError, match=message):
        check_rl(path)


@pytest.mark.parametrize(
    "kinds", [["code"], ["code", "text"], ["code", "code", "observation"], ["observation"], ["text", "observation"],
              ["code", "observation", "observation"]]
)  # fmt: skip
def test_sft_code_must_be_followed_by_its_observation(tmp_path, kinds):
    row = SFT_ROW | {"segments": [{"kind": kind, "text": "1"} for kind in kinds]}
    write_parquet([SFT_ROW, row], SFT_SCHEMA, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="row 1: a code segment must be followed by its observation"):
        check_sft(tmp_path / "a.parquet")


def test_an_unknown_segment_kind_is_named(tmp_path):
    write_parquet([SFT_ROW | {"segments": [{"kind": "tool", "text": "1"}]}], SFT_SCHEMA, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="row 0: unknown segment kind 'tool'"):
        check_sft(tmp_path / "a.parquet")


def test_the_check_reads_the_first_row_group_only(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet([RL_ROW] * 1024 + [RL_ROW | {"ability": None}], RL_SCHEMA, path)
    check_rl(path)
