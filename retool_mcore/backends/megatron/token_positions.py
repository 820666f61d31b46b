"""Where the values of response tokens stand in what verl's engines return."""

import torch


def token_positions(data) -> torch.Tensor:
    """Where verl's packed model outputs, (tokens of all sequences,), hold the response tokens' values, as int64.

    The log-probability of a token stands at the position of the token before it.
    """
    prompts, responses = (data[name].offsets().diff() for name in ("prompts", "responses"))
    ends = (prompts + responses).cumsum(0)
    before = responses.cumsum(0) - responses
    size = data["responses"].values().shape[0]  # known on the host: nothing waits for the GPU
    return torch.arange(size, device=ends.device) + torch.repeat_interleave(
        ends - responses - 1 - before, responses, output_size=size
    )
