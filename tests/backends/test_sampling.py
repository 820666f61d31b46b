"""Training, validation, evaluation and replay end a turn alike, also of base models, whose eos_token ends no turn."""

import asyncio
from types import SimpleNamespace

import pytest
from chatml_tokenizer import make_tokenizer
from lone_episodes import build
from omegaconf import OmegaConf
from verl.workers.rollout.replica import TokenOutput

from retool_mcore.backends.vllm.engine import sampler
from retool_mcore.data.formats import get_format

WHERE_A_TURN_ENDS = ("stop", "include_stop_str_in_output", "stop_token_ids", "skip_special_tokens")


class Engine:
    """vLLM's, with one token for every request; keeps the parameters."""

    def __init__(self):
        self.params = []

    async def generate(self, prompt, params, request_id):
        self.params.append(params)
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5], logprobs=[{5: SimpleNamespace(logprob=-0.5)}])])


@pytest.mark.parametrize("name", ["text", "hermes", "none"])
def test_an_evaluation_ends_a_turn_where_training_does(name):
    tokenizer = make_tokenizer()
    template_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.eos_token = "<|endoftext|>"  # as in Qwen2.5's base models
    fmt = get_format(name, tokenizer)
    assert tokenizer.eos_token_id != template_end == fmt.eos_id

    engine, config = Engine(), OmegaConf.create({"seed": 1, "temperature": 0.6, "top_p": 0.7})
    asyncio.run(sampler(engine, config, fmt, index=3, sample=0)([1, 2], 9))
    (evaluated,) = engine.params
    assert template_end in evaluated.stop_token_ids and evaluated.skip_special_tokens is False
    assert (evaluated.temperature, evaluated.top_p, evaluated.max_tokens) == (0.6, 0.7, 9)
    assert evaluated.logprobs == 0 and (evaluated.detokenize or not evaluated.stop)

    requests = []

    class Server:
        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            requests.append(dict(sampling_params))
            return TokenOutput(token_ids=[template_end], log_probs=[-0.5], stop_reason="completed", extra_fields={})

    loop = build(Server(), {"format": name}, {"prompt_length": 400, "response_length": 300})
    place = {"index": 3, "session_id": 0, "global_steps": 1}
    messages = [{"role": "user", "content": "6 * 7?"}]
    asyncio.run(loop.run({"temperature": 1.0, "logprobs": True}, raw_prompt=messages, **place))
    (trained,) = requests
    assert {key: getattr(evaluated, key) for key in WHERE_A_TURN_ENDS} == {
        key: trained[key] for key in WHERE_A_TURN_ENDS
    }
