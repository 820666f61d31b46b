import json
import threading

import numpy as np
import pytest
from pyarrow import parquet

from retool_mcore.errors import UserError
from retool_mcore.metrics import records as store
from retool_mcore.metrics.records import read_columns, read_step, step_files, write_step
from retool_mcore.metrics.writer import TrajectoryWriter

CALL = {
    "code": "print(1)\u2028",
    "malformed": False,
    "status": "success",
    "stdout": "1\n",
    "stderr": "",
    "value": None,
    "duration_s": 0.25,
    "turn": 0,
    "start": 1,
    "truncated": False,
    "tool": "code_interpreter",
    "arguments": None,
}
NOTE = {"programs": 1, "boxed": False, "fakes": [2], "generate_s": 0.5, "tool_s": 0.25}


def record(step=1, sample=0, tokens=4, **changes) -> dict:
    return {
        "step": step,
        "uid": "u\U0001f600",
        "sample": sample,
        "data_source": "aime",
        "score": -1.0,
        "acc": 0.0,
        "turns": 1,
        "finish": "answer",
        "started": 1.7e9 + 0.25,
        "prompt_ids": np.arange(2, dtype=np.int32),
        "response_ids": np.arange(tokens, dtype=np.int32) + 150_000,
        "response_mask": np.arange(tokens) % 2 == 0,
        "logprobs": np.float32(-0.1) * np.arange(tokens, dtype=np.float32),
        "spans": [{"kind": "policy", "start": 0, "end": tokens}],
        "versions": [{"version": 11, "start": 0, "end": 2}, {"version": 12, "start": 2, "end": tokens}],
        "calls": [CALL],
        "turn_notes": [NOTE],
    } | changes


def assert_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert found[name] == value


def test_round_trip(tmp_path):
    records = [record(), record(sample=1, tokens=0, calls=[], turn_notes=[]), record(sample=2, tokens=9)]
    records[1]["overlong"] = {"punishment": -0.5}  # what the schema does not know
    records[2]["logprobs"][3] = np.nan
    path = write_step(tmp_path / "trajectories", 12, records)
    assert path == tmp_path / "trajectories" / "step_000012.parquet"
    for found, expected in zip(read_step(path), records, strict=True):
        assert_equal(found, expected)
    assert read_step(write_step(tmp_path, 1, [])) == []


def test_single_rows_and_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_GROUP_TOKENS", 1)  # row groups of the smallest size
    records = [record(sample=n, tokens=50) for n in range(40)]
    path = write_step(tmp_path, 1, records)
    first, second = read_step(path, rows=[33, 2])
    assert_equal(first, records[33])
    assert_equal(second, records[2])
    (only,) = read_step(path, rows=[17], columns=["sample", "response_ids"])
    assert only["sample"] == 17 and only.keys() == {"sample", "response_ids"}
    with pytest.raises(UserError, match="holds 40 trajectories, there is no row 40"):
        read_step(path, rows=[0, 40])


def test_a_file_from_before_the_versions_is_read(tmp_path):
    path = write_step(tmp_path, 1, [record()])
    parquet.write_table(parquet.read_table(path).drop_columns(["versions"]), path)
    (found,) = read_step(path)
    assert "versions" not in found and found["response_ids"].tolist() == record()["response_ids"].tolist()


def test_columns_are_read_without_the_others(tmp_path):
    malformed = CALL | {"status": "malformed", "code": None}
    path = write_step(tmp_path, 2, [record(step=2, calls=[CALL, malformed], tokens=7), record(step=2, calls=[])])
    table = read_columns(path, ["score", "num_calls", "tokens", "statuses", "calls.list.element.status"])
    assert set(table.column_names) == {"score", "calls", "tokens", "num_calls", "statuses"}
    first, second = table.to_pylist()
    assert (first["score"], first["num_calls"], first["tokens"]) == (-1.0, 2, 7)
    assert first["statuses"] == ["success", "malformed"] and second["statuses"] == second["calls"] == []
    assert first["calls"] == [{"status": "success"}, {"status": "malformed"}]


def test_an_evaluations_lines_are_read_alike(tmp_path):
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in record().items()}
    path = tmp_path / "trajectories.jsonl"
    path.write_text(json.dumps(plain) + "\n")
    assert_equal(read_step(path)[0], record())
    path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(UserError, match="line 2"):
        read_step(path)


def test_a_failed_write_leaves_the_old_file_and_no_new_one(tmp_path):
    path = write_step(tmp_path, 1, [record()])
    for step in (1, 2):
        with pytest.raises((TypeError, ValueError)):
            write_step(tmp_path, step, [record(), record(turns="many")])
    assert_equal(read_step(path)[0], record())
    assert list(tmp_path.iterdir()) == [path]


def test_a_step_run_again_replaces_its_file(tmp_path):
    write_step(tmp_path, 1, [record(), record(sample=1)])
    path = write_step(tmp_path, 1, [record(sample=3)])
    assert [found["sample"] for found in read_step(path)] == [3]
    assert list(tmp_path.iterdir()) == [path]


def test_steps_are_ordered_as_numbers_and_other_files_left_alone(tmp_path):
    for step in (1_000_000, 2, 999_999):
        write_step(tmp_path, step, [])
    (tmp_path / "step_000002 (copy).parquet").write_text("")
    assert list(step_files(tmp_path)) == [2, 999_999, 1_000_000]
    assert step_files(tmp_path / "missing") == {}


def test_the_oldest_files_leave_first(tmp_path):
    size = write_step(tmp_path, 1, [record()]).stat().st_size
    for step in (2, 3, 4):
        write_step(tmp_path, step, [record()], keep_bytes=3 * size)
    assert list(step_files(tmp_path)) == [2, 3, 4]
    write_step(tmp_path, 5, [record()], keep_bytes=3 * size - 1)
    assert list(step_files(tmp_path)) == [4, 5]
    write_step(tmp_path, 3, [record()], keep_bytes=0)
    assert list(step_files(tmp_path)) == [3]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00" * 100])
def test_a_broken_file_is_named(tmp_path, content):
    path = tmp_path / "step_000001.parquet"
    path.write_bytes(content)
    for read in (lambda: read_step(path), lambda: read_columns(path, ["step"])):
        with pytest.raises(UserError, match="step_000001.parquet is not a whole trajectory file"):
            read()
    with pytest.raises(UserError, match="no trajectory file .*step_000009"):
        read_step(tmp_path / "step_000009.parquet")


def test_the_writer_flushes_at_the_end(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    for step in range(1, 6):
        writer.write(step, [record(step=step)])
    writer.close()
    assert list(step_files(tmp_path)) == [1, 2, 3, 4, 5]
    writer.close()  # a second one, as after a crash in the last step, does nothing


def test_the_writer_is_bounded_and_off_the_critical_path(tmp_path, monkeypatch):
    may_write, written = threading.Event(), []

    def slow(folder, step, records, keep_bytes):
        assert may_write.wait(20)
        written.append(step)

    monkeypatch.setattr("retool_mcore.metrics.writer.write_step", slow)
    writer = TrajectoryWriter(tmp_path, waiting=1)
    writer.write(1, [])
    writer.write(2, [])  # returns although nothing is written
    third = threading.Thread(target=writer.write, args=(3, []))
    third.start()
    third.join(0.3)
    assert third.is_alive() and not written  # one in the making, one waiting: the third has to wait
    may_write.set()
    third.join(20)
    writer.close()
    assert written == [1, 2, 3]


def test_an_error_of_the_writer_reaches_the_trainer(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    writer = TrajectoryWriter(tmp_path / "taken")
    writer.write(1, [record()])
    with pytest.raises(RuntimeError, match="could not be written"):
        writer.close()
    with pytest.raises(RuntimeError, match="could not be written"):
        writer.write(2, [record()])
