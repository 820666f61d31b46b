"""What is ours of the critic: a mini-batch without a token."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.config import CriticConfig
from verl.workers.utils.losses import value_loss

from retool_mcore.backends.verl.critic import NonEmptyLoss


def nested(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.mark.parametrize("mask", [[1, 0], [0, 0]])
def test_a_mini_batch_without_any_token_has_loss_zero_and_gradient_zero(mask):
    data = TensorDict(
        {
            "prompts": nested([5]),
            "responses": nested([6, 7]),
            "input_ids": nested([5, 6, 7]),
            "values": nested([0.0, 0.0]),
            "returns": nested([1.0, 1.0]),
            "response_mask": nested(mask),
        },
        batch_size=1,
    )
    assign_non_tensor(data, dp_size=1, batch_num_tokens=sum(mask), global_batch_size=1)
    values = torch.zeros(3, requires_grad=True)
    config = CriticConfig(strategy="megatron", use_dynamic_bsz=True)
    loss = NonEmptyLoss(partial(value_loss, config=config))
    found, _ = loss(
        model_output={"values": torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3]))}, data=data
    )
    found.backward()
    # The value of a token stands at the position before it; 0.5 * (0 - 1)^2, once.
    assert found.item() == (0.5 if any(mask) else 0.0)
    assert values.grad.tolist() == ([-1.0, 0.0, 0.0] if any(mask) else [0.0, 0.0, 0.0])
