import numpy as np

from retool_mcore.backends.verl import replay_step
from retool_mcore.backends.verl.replay_step import agent_output, put_records, recorded_order
from retool_mcore.rollout.wire import from_wire

RECORD = {
    "uid": "u", "sample": 1, "index": 7, "data_source": "aime", "ground_truth": "3", "place": 0,
    "score": 0.75, "acc": 1.0, "pred": "3", "overlong": -0.25, "drop": "",
    "turns": 2, "finish": "answer", "generate_s": 2.0, "tool_s": 1.0, "started": 5.0,
    "prompt_ids": np.array([1, 2], np.int32), "response_ids": np.array([3, 4, 5, 6], np.int32),
    "logprobs": np.array([-0.5, -0.25, 0, -1], np.float32),
    "response_mask": np.zeros(4, bool),  # a filter had taken the sample out of the loss
    "spans": [{"kind": "policy", "start": 0, "end": 2}, {"kind": "observation", "start": 2, "end": 3},
              {"kind": "policy", "start": 3, "end": 4}],
    "calls": [{"code": "1", "status": "success"}], "turn_notes": [],
}  # fmt: skip


def test_a_record_becomes_what_the_agent_loop_had_returned():
    row = agent_output(RECORD).as_dict()
    assert row["prompts"].tolist() == [1, 2] and row["responses"].tolist() == [3, 4, 5, 6]
    assert row["response_mask"].tolist() == [1, 1, 0, 1]  # by the spans
    assert row["rollout_log_probs"].tolist() == [-0.5, -0.25, 0.0, -1.0]
    assert row["rm_scores"].tolist() == [0, 0, 0, 0.75] and row["num_turns"] == 4
    extra = row["extra_fields"]
    assert extra["reward_extra_info"]["overlong"] == -0.25 and extra["num_calls"] == 1
    assert from_wire(extra["trajectory"])["spans"] == RECORD["spans"]


def test_groups_are_finished_and_rows_have_what_the_trainer_reads(monkeypatch):
    puts = []
    monkeypatch.setattr(replay_step.transfer_queue, "kv_batch_put", lambda **put: puts.append(put))
    put_records([RECORD, RECORD | {"sample": 0}], 4)
    rows, groups = puts
    assert rows["keys"] == ["u_1_0", "u_0_0"] and groups["keys"] == ["u"]
    assert groups["tags"] == [{"is_prompt": True, "status": "finished", "global_steps": 4}]
    assert rows["tags"][0]["seq_len"] == 6 and rows["tags"][0]["min_global_steps"] == 3
    assert rows["fields"]["input_ids"][0].tolist() == [1, 2, 3, 4, 5, 6]
    assert rows["fields"]["position_ids"][1].tolist() == [*range(6)]
    assert rows["fields"]["loss_mask"][0].tolist() == [1, 1, 0, 1]


def test_the_order_of_the_batch_is_the_recorded_one_with_padding_in_the_gaps():
    assert recorded_order(["a", "pad", "b", "c"], {"a": 3, "b": 0, "c": 2}) == [2, 1, 3, 0]
    assert recorded_order(["a", "b"], {"a": 1, "b": 5}) == []  # padded otherwise
    assert recorded_order(["a", "b"], {}) == []
