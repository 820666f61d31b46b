"""A batch on its way to the engines' workers, and what comes back.

The driver sends what only it knows, in the narrowest type: ids int32, masks int8, log-probabilities and weights
float32. What follows from that (whole sequences, positions, int64 ids, a second mask) is made in each worker, so an
update costs 18 bytes a response token, a pass for log-probabilities 5, and 4 a prompt token.
"""

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.audited_loss import SPAN_KIND
from retool_mcore.metrics.audit import INTERPRETER

# Columns of a batch (train/batch.py) by the name that verl's engines know them under.
COLUMNS = {
    "response_mask": "response_mask",
    "old_log_probs": "old_log_probs",
    "advantages": "advantages",
    "is_weights": "rollout_is_weights",
    "ref_log_prob": "ref_log_prob",
    "values": "values",
    "returns": "returns",
    "span_kind": SPAN_KIND,
}

EXPERTS = "routed_experts"  # verl's name for Batch.experts


def sent(batch, columns: list[str], **settings) -> TensorDict:
    """One row a sample: `prompts` and `responses` int32, the `columns` that the batch has, all nested; `settings`, of
    the whole batch. `session_id` is the sample's place in the batch, by which a worker's audit names it. Where the
    batch has a layout, rows of one token with mask 0 fill its mini-batches."""
    places = range(len(batch)) if batch.layout is None else batch.layout.places
    token = np.zeros(1, np.int32)
    rows = {
        "prompts": _nested([token if row < 0 else batch.samples[row].prompt_ids for row in places]),
        "responses": _nested([token if row < 0 else batch.samples[row].response_ids for row in places]),
        "session_id": torch.tensor(list(places)),
    }
    lengths = batch.lengths.tolist()
    for name in columns:
        if name in batch:
            values = batch[name].split(lengths)
            filler = torch.full((1,), INTERPRETER if name == "span_kind" else 0, dtype=batch[name].dtype)
            filled = [filler if row < 0 else values[row] for row in places]
            rows[COLUMNS[name]] = torch.nested.as_nested_tensor(filled, layout=torch.jagged)
    if batch.experts is not None:
        rows[EXPERTS] = torch.nested.as_nested_tensor(batch.experts, layout=torch.jagged)
    return tensordict_utils.get_tensordict(rows, settings)


def whole(data: TensorDict) -> TensorDict:
    """Return the fields that verl's engines read, from a worker's part of what was `sent`."""
    prompts, responses = ([row.long() for row in data[name].unbind()] for name in ("prompts", "responses"))
    ids = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    made = {"prompts": prompts, "responses": responses, "input_ids": ids}
    made["position_ids"] = [torch.arange(len(row)) for row in ids]
    made["response_mask"] = [row.long() for row in data["response_mask"].unbind()]
    made["loss_mask"] = made["response_mask"]  # what the loss divides by: the same tokens
    data = data.clone(recurse=False)  # what a dispatch has cut may be locked
    for name, rows in made.items():
        data[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    return data


def of_responses(output: TensorDict, name: str, batch) -> torch.Tensor:
    """(response tokens,) float32: what an engine gave for every token of the whole sequences, of the responses alone.

    At each position stands what the token before it predicts, so a response begins one earlier. Rows that only filled
    the batch are left out.
    """
    column, lengths = tensordict_utils.get(output, name), batch.lengths
    if batch.layout is not None:
        kept = [row for row, place in zip(column.unbind(), batch.layout.places, strict=True) if place >= 0]
        column = torch.nested.as_nested_tensor(kept, layout=torch.jagged)
    ends = column.offsets()[1:].numpy() - 1
    starts = np.repeat(ends - lengths - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return column.values()[torch.from_numpy(starts + np.arange(lengths.sum()))].float()


def _nested(arrays: list[np.ndarray]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.from_numpy(array) for array in arrays], layout=torch.jagged)
