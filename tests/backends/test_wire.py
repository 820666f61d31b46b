"""A batch on its way to the engines' workers and back: types, alignment, what a worker makes of its part."""

import pickle

import numpy as np
import pytest
import torch
from verl.protocol import BatchData
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.wire import of_responses, sent, whole
from retool_mcore.rollout.samples import Sample
from retool_mcore.train.batch import Batch

UPDATE = ["response_mask", "old_log_probs", "advantages", "is_weights", "span_kind"]


def batch(lengths=(5, 2, 3, 4), prompt=3):
    samples = []
    for number, tokens in enumerate(lengths):
        ids = 100 * number + np.arange(tokens)
        outcome = {"score": 1.0, "drop": ""}
        mask = np.arange(tokens) % 2
        samples.append(
            Sample("g", number, 7 + np.arange(prompt), ids, mask, -ids / 8, {}, "answer", 1, (0, 0), outcome=outcome)
        )
    made = Batch.of([(sample, {}) for sample in samples])
    for name in UPDATE[1:]:
        made[name] = torch.arange(sum(lengths)).float()
    made["span_kind"] = made["response_mask"].clone()
    return made


def test_a_worker_reads_its_rows_as_verls_engines_do():
    made = batch()
    first, second = BatchData(sent(made, UPDATE, temperature=1.0)).chunk(chunks=2)
    data = whole(second)
    assert [row.tolist() for row in data["input_ids"].unbind()] == [
        [7, 8, 9, 200, 201, 202],
        [7, 8, 9, 300, 301, 302, 303],
    ]
    assert [row.tolist() for row in data["position_ids"].unbind()] == [list(range(6)), list(range(7))]
    assert data["input_ids"].dtype == data["response_mask"].dtype == torch.int64
    assert torch.equal(data["loss_mask"].values(), data["response_mask"].values())
    assert data["rollout_is_weights"].values().tolist() == [7, 8, 9, 10, 11, 12, 13]
    assert data["session_id"].tolist() == [2, 3], "the audit of the loss names a sample by its place in the batch"
    assert tensordict_utils.get(data, "temperature") == 1.0 and whole(first)["session_id"].tolist() == [0, 1]


def test_what_comes_back_belongs_to_the_token_it_predicts():
    """At each position of a sequence stands what is said of the token behind it."""
    made = batch((2, 3), prompt=2)
    output = torch.nested.as_nested_tensor([torch.arange(4.0), torch.arange(10, 15.0)], layout=torch.jagged)
    column = of_responses(tensordict_utils.get_tensordict({"log_probs": output}), "log_probs", made)
    assert column.tolist() == [1, 2, 11, 12, 13]


def test_a_worker_gets_the_experts_of_its_own_rows():
    made = batch()
    made.experts = [torch.full((3 + tokens, 2, 4), row).short() for row, tokens in enumerate(made.lengths.tolist())]
    _, second = BatchData(sent(made, UPDATE)).chunk(chunks=2)
    found = whole(second)["routed_experts"].unbind()
    assert [tuple(one.shape) for one in found] == [(6, 2, 4), (7, 2, 4)]
    assert [one.unique().tolist() for one in found] == [[2], [3]]


def test_a_column_that_a_batch_lacks_is_not_sent():
    made = batch()
    del made.columns["is_weights"]
    assert "rollout_is_weights" not in sent(made, UPDATE)


@pytest.mark.parametrize(("columns", "bytes_a_token"), [(["response_mask"], 5), (UPDATE, 18)])
def test_the_wire_is_as_narrow_as_it_is_said_to_be(columns, bytes_a_token):
    made = batch(lengths=(20_000,) * 4, prompt=10)
    size = len(pickle.dumps(sent(made, columns)))
    assert size / 80_000 < bytes_a_token + 0.2
