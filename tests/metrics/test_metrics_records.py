import math

import pytest

from retool_mcore.errors import UserError
from retool_mcore.metrics.records import read_step, step_files, write_step


def test_round_trip(tmp_path):
    records = [
        {"response_ids": [1, 2], "text": "line\nbreak \u2028 \U0001f600", "logprobs": [-0.1, 0.0]},
        {"calls": [{"value": None}]},
    ]
    path = write_step(tmp_path / "trajectories", 12, records)
    assert path == tmp_path / "trajectories" / "step_000012.jsonl"
    assert read_step(path) == records
    assert len(path.read_text().splitlines()) == 2
    assert math.isnan(read_step(write_step(tmp_path, 1, [{"x": math.nan}]))[0]["x"])


def test_a_failed_write_leaves_the_old_file_and_no_new_one(tmp_path):
    path = write_step(tmp_path, 1, [{"a": 1}])
    for step in (1, 2):
        with pytest.raises(TypeError):
            write_step(tmp_path, step, [{"a": 2}, {"a": object()}])
    assert read_step(path) == [{"a": 1}]
    assert step_files(tmp_path) == {1: path}


def test_a_step_run_again_replaces_its_file(tmp_path):
    write_step(tmp_path, 1, [{"a": 1}, {"a": 2}])
    with (tmp_path / "step_000001.jsonl").open() as reader:
        path = write_step(tmp_path, 1, [{"a": 3}])
        assert len(reader.readlines()) == 2  # who reads meanwhile sees the old file whole
    assert read_step(path) == [{"a": 3}]
    assert list(tmp_path.iterdir()) == [path]


def test_steps_are_ordered_as_numbers_and_other_files_left_alone(tmp_path):
    for step in (1_000_000, 2, 999_999):
        write_step(tmp_path, step, [])
    (tmp_path / "step_000002 (copy).jsonl").write_text("")
    assert list(step_files(tmp_path)) == [2, 999_999, 1_000_000]
    assert step_files(tmp_path / "missing") == {}


def test_the_oldest_files_leave_first(tmp_path):
    size = write_step(tmp_path, 1, [{"a": 1}]).stat().st_size
    for step in (2, 3, 4):
        write_step(tmp_path, step, [{"a": 1}], keep_bytes=3 * size)
    assert list(step_files(tmp_path)) == [2, 3, 4]
    write_step(tmp_path, 5, [{"a": 1}], keep_bytes=3 * size - 1)
    assert list(step_files(tmp_path)) == [4, 5]
    write_step(tmp_path, 3, [{"a": 1}], keep_bytes=0)
    assert list(step_files(tmp_path)) == [3]


@pytest.mark.parametrize("line", [b'{"a": 1', b"", b"[1]", b"\xff"])
def test_no_line_is_skipped_silently(tmp_path, line):
    path = tmp_path / "step_000001.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(UserError, match="line 2"):
        read_step(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no trajectory file .*step_000009"):
        read_step(tmp_path / "step_000009.jsonl")
