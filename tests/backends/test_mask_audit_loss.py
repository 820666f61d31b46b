"""The audit in the worker: the gradient of verl's own PPO loss with respect to the log-probabilities it was given."""

import pickle

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from retool_mcore.backends.megatron.token_positions import token_positions
from retool_mcore.backends.verl.audited_loss import SPAN_KIND, AuditedLoss
from retool_mcore.metrics.audit import INTERPRETER, POLICY, PREDICTED, MaskAuditError

PROMPTS = (3, 5)
MASKS = ([1, 1, 0, 0, 1], [1, 0, 1])
KINDS = torch.tensor([POLICY if bit else INTERPRETER for mask in MASKS for bit in mask], dtype=torch.int8)


def nested(rows) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def micro_batch(masks=MASKS, kinds=KINDS) -> TensorDict:
    lengths = [len(mask) for mask in MASKS]
    columns = {
        "prompts": [torch.zeros(length, dtype=torch.int64) for length in PROMPTS],
        "responses": [torch.zeros(length, dtype=torch.int64) for length in lengths],
        "response_mask": [torch.tensor(mask) for mask in masks],
        "old_log_probs": [torch.full((length,), -1.0) for length in lengths],
        "advantages": [torch.full((length,), 0.5) for length in lengths],  # not masked: the loss has to do it
        SPAN_KIND: list(kinds.split(lengths)),
    }
    data = TensorDict({name: nested(rows) for name, rows in columns.items()}, batch_size=2)
    data["uid"] = NonTensorStack("first", "second")
    data["session_id"] = torch.tensor([3, 4])
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=5, global_batch_size=2)
    return data


def audited(data, loss=None, entropy_coeff=0.0):
    # Nothing is clipped: a clipped token has no gradient either.
    wide = dict(clip_ratio=1e9, clip_ratio_low=1e9, clip_ratio_high=1e9, clip_ratio_c=1e9)
    sizes = dict(rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    config = ActorConfig(strategy="megatron", entropy_coeff=entropy_coeff, **sizes, **wide)
    total = sum(PROMPTS) + sum(map(len, MASKS))
    log_probs = torch.linspace(-2, -0.5, total).requires_grad_()
    offsets = torch.tensor([0, PROMPTS[0] + len(MASKS[0]), total])
    output = {name: torch.nested.nested_tensor_from_jagged(log_probs, offsets) for name in ("log_probs", "entropy")}
    loss = loss or (lambda model_output, data, dp_group: ppo_loss(config, model_output, data, dp_group))
    value, metrics = AuditedLoss(loss)(output, data)
    return value, metrics, log_probs


def test_a_sound_loss_is_left_as_it_is():
    value, metrics, log_probs = audited(micro_batch())
    assert metrics["audit/gradient_interpreter_tokens"].aggregate() == 0
    assert metrics["audit/interpreter_tokens"].aggregate() == 3
    assert metrics["audit/gradient_tokens"].aggregate() == 5
    value.backward()  # the graph is still there
    weighted = log_probs.grad.nonzero().flatten().tolist()
    assert weighted == [2, 3, 6, 12, 14]  # each response token's value stands one position before it
    assert token_positions(micro_batch())[KINDS == POLICY].tolist() == weighted


def test_a_shifted_mask_is_stopped_with_the_trajectory_named():
    with pytest.raises(
        MaskAuditError, match="an interpreter token receives a gradient, trajectory first_3, response tok"
    ):
        audited(micro_batch(masks=([1, 1, 1, 0, 1], MASKS[1])))
    with pytest.raises(MaskAuditError) as caught:
        audited(micro_batch(masks=(MASKS[0], [0, 1, 0])))
    assert (caught.value.key, caught.value.token, caught.value.where) == ("second_4", 1, "in the loss")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # the way out of a worker


def test_the_entropy_bonus_is_a_weight_too():
    def only_entropy(model_output, data, dp_group):
        return model_output["entropy"][4] * 1.0, {}  # response token 2 of the first: an observation

    with pytest.raises(MaskAuditError, match="first_3, response token 2"):
        audited(micro_batch(), only_entropy)
    audited(micro_batch(), entropy_coeff=0.1)


def test_a_loss_shifted_by_one_is_stopped():
    def shifted(model_output, data, dp_group):
        """Takes each token's own position instead of the one before it."""
        values = model_output["log_probs"]
        return (values[token_positions(data) + 1] * data["response_mask"].values()).sum(), {}

    with pytest.raises(MaskAuditError, match="first_3, response token 2"):
        audited(micro_batch(), shifted)


def test_a_prompt_token_must_have_no_gradient():
    with pytest.raises(MaskAuditError, match="a prompt token receives a gradient"):
        audited(micro_batch(), lambda model_output, data, dp_group: (model_output["log_probs"][0] * 1.0, {}))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_nan_times_a_mask_of_0_is_named_and_not_accused(capsys, value):
    data = micro_batch()
    data["advantages"] = nested([[0.5] * 5, [value] * 3])
    _, metrics, _ = audited(data)
    counts = {name: metric.aggregate() for name, metric in metrics.items() if name.startswith("audit/")}
    assert counts["audit/gradient_interpreter_tokens"] == 0 and counts["audit/gradient_tokens"] == 3
    assert counts["audit/not_finite_tokens"] in (2, 3)
    said = capsys.readouterr().out
    assert "no finite gradient at" in said and "first in trajectory second_4, response token 0: look at" in said


def test_a_leak_next_to_a_nan_is_still_stopped():
    data = micro_batch(masks=([1, 1, 1, 0, 1], MASKS[1]))
    data["advantages"] = nested([[0.5] * 5, [torch.nan] * 3])
    with pytest.raises(MaskAuditError, match="first_3, response token 2"):
        audited(data)


def test_predicted_observations_may_have_weight():
    predicted = torch.where(KINDS == POLICY, POLICY, PREDICTED).to(torch.int8)
    _, metrics, _ = audited(micro_batch(masks=([1] * 5, [1] * 3), kinds=predicted))
    assert metrics["audit/gradient_tokens"].aggregate() == 8


def test_a_batch_without_the_column_cannot_be_audited():
    data = micro_batch()
    del data[SPAN_KIND]
    with pytest.raises(RuntimeError, match="no column span_kind"):
        audited(data)
