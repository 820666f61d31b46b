"""Turns that a push of new weights interrupts, with verl's client and vLLM's own sampler, without an engine."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lone_episodes import TOKENIZER, build
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from retool_mcore.backends.verl import turn
from retool_mcore.rollout.seeds import request_seed

EOS = TOKENIZER.eos_token_id
PART, VOCABULARY = 8, 512
LOGITS = torch.randn(2 * PART, VOCABULARY, generator=torch.Generator().manual_seed(7))  # of every place in a turn
MESSAGES = [{"role": "user", "content": "6 * 7?"}]


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(turn, "PAUSE_S", 0.0)


class Client(LLMServerClient):
    """verl's, which asks one server: `answer(prompt_ids, sampling_params)` is that server's."""

    def __init__(self, answer):
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm")))
        super().__init__(config)
        self.answer, self.requests = answer, []

    async def _acquire_server(self, request_id, **_):
        return "one", SimpleNamespace(generate=SimpleNamespace(remote=self._serve))

    def _release_server(self, server_id, request_id=None):
        pass

    async def _serve(self, request_id, prompt_ids, sampling_params, **_):
        self.requests.append((list(prompt_ids), dict(sampling_params)))
        return self.answer(prompt_ids, sampling_params)


def metadata(generator):
    none = torch.zeros(1)
    return SamplingMetadata(
        temperature=torch.ones(1), all_greedy=False, all_random=True, top_p=None, top_k=None,
        generators={0: generator}, max_num_logprobs=None, no_penalties=True, prompt_token_ids=None,
        frequency_penalties=none, presence_penalties=none, repetition_penalties=none, output_token_ids=[[]],
        allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors(),
    )  # fmt: skip


def sampled_in_two_parts(trajectories):
    """(trajectories, 2, PART) tokens: each turn is interrupted after PART tokens, by a server that samples as vLLM."""
    sampler, prompt = Sampler(), []

    def answer(ids, params):
        prompt[:] = prompt or [len(ids)]
        start = len(ids) - prompt[0]
        generator = torch.Generator().manual_seed(params["seed"])  # as vLLM does for every request
        meta = metadata(generator)
        tokens = [int(sampler(LOGITS[k : k + 1].clone(), meta).sampled_token_ids) for k in range(start, start + PART)]
        reason = "aborted" if start == 0 else "completed"
        return TokenOutput(token_ids=tokens, log_probs=[-1.0] * PART, stop_reason=reason, extra_fields={})

    client = Client(answer)
    limits = {
        "max_turns": 4,
        "max_turn_tokens": 2 * PART,
        "max_response_tokens": 2 * PART,
        "max_observation_tokens": 64,
    }

    async def one(index):
        loop = build(client, {"format": "none", "limits": limits}, mode="colocate_async")
        place = {"index": index, "session_id": 0, "global_steps": 1}
        return (await loop.run({"temperature": 1.0}, raw_prompt=MESSAGES, **place)).response_ids

    async def main():
        return await asyncio.gather(*map(one, range(trajectories)))

    return np.array(asyncio.run(main())).reshape(trajectories, 2, PART)


def test_the_noise_of_the_first_part_is_not_replayed():
    found = sampled_in_two_parts(150)
    pairs = 150 * PART
    probabilities = LOGITS.softmax(-1).reshape(2, PART, VOCABULARY)
    expected = float((probabilities[0] * probabilities[1]).sum(-1).mean())
    alike = (found[:, 0] == found[:, 1]).mean()
    assert alike == pytest.approx(expected, abs=4 * np.sqrt(expected / pairs)), (alike, expected)


def run(*parts, stop_reasons=(), **entry):
    """One trajectory of a client whose attempts answer with `parts` in turn; (client, output, record)."""
    answers = iter(enumerate(parts))

    def answer(ids, params):
        number, tokens = next(answers)
        limit = params.pop("max_tokens")
        reason = stop_reasons[number] if number < len(stop_reasons) else "completed"
        return TokenOutput(
            token_ids=tokens[:limit],
            log_probs=[-float(number)] * len(tokens[:limit]) if tokens else None,
            routed_experts=np.full((len(ids) + len(tokens) - 1, 1, 1), number) if tokens else None,
            stop_reason=reason,
            extra_fields={"global_steps": 4 + number, "num_cached_tokens": 100 * number if tokens else None},
        )

    client = Client(answer)
    lone = build(client, entry, mode="colocate_async")
    output = asyncio.run(lone.run({}, raw_prompt=MESSAGES, index=3, session_id=2, global_steps=5))
    return client, output, output.notes


def test_the_parts_of_a_turn_are_one_turn():
    texts = ["6 * 7", " is ", "\\boxed{42}"]
    parts = [encode(texts[0]), [], encode(texts[1]), [*encode(texts[2]), EOS]]
    client, output, record = run(*parts, stop_reasons=["aborted", "aborted", "aborted"], format="none")
    first, empty, second, third = map(len, parts)
    prompt = output.prompt_ids
    assert output.response_ids == sum(parts, [])
    assert output.log_probs == [0.0] * first + [-2.0] * second + [-3.0] * third
    assert [ids for ids, _ in client.requests] == [
        prompt, prompt + parts[0], prompt + parts[0], prompt + parts[0] + parts[2],
    ]  # fmt: skip
    assert [params["max_tokens"] for _, params in client.requests] == [
        100, 100 - first, 100 - first, 100 - first - second,
    ]  # fmt: skip
    seeds = [params["seed"] for _, params in client.requests]
    place = (1, 5, 3, 2, 0)
    # An attempt that gave no token has used no noise up.
    assert seeds == [request_seed(*place, done) for done in (0, first, first, first + second)]
    assert len(set(seeds)) == 3 and seeds[0] == request_seed(*place)
    experts = [0] * (len(prompt) + first - 1) + [2] * second + [3] * third
    assert output.sample.experts.flatten().tolist() == [*experts, 0], "the last token has not been read"
    assert output.sample.versions == (4, 7)
    assert (record["turns"], record["finish"]) == (1, "answer")
    assert [tuple(own.values()) for own in record["versions"]] == [
        (4, 0, first), (6, first, first + second), (7, first + second, first + second + third),
    ]  # fmt: skip


def test_a_turn_interrupted_at_its_limit_is_over():
    limits = {"max_turns": 4, "max_turn_tokens": 6, "max_observation_tokens": 64}
    client, output, record = run([7] * 4, [7] * 9, stop_reasons=["abort", "abort"], format="none", limits=limits)
    assert len(output.response_ids) == 6 and record["finish"] == "turn_length" and len(client.requests) == 2


def test_a_stop_string_that_the_push_cut_in_two_still_ends_the_turn():
    """The engine looks for it in what one request sampled, so the second part runs on behind it."""
    ids = encode("<code>\n```python\nprint(1)\n```\n</code>")
    for cut in range(len(ids) - 3, len(ids)):
        assert "</code>" not in TOKENIZER.decode(ids[:cut])
        beyond = [*ids[cut:], *encode("\n<interpreter>\n2\n</interpreter>"), EOS]
        limits = {"max_turns": 0, "max_turn_tokens": 100, "max_observation_tokens": 64}
        _, output, record = run(ids[:cut], beyond, stop_reasons=["aborted"], limits=limits)
        assert output.response_ids == ids and len(output.log_probs) == len(ids), cut
        assert record["finish"] == "max_turns"


def test_where_nothing_may_interrupt_a_turn_an_aborted_one_fails():
    client = Client(lambda *_: TokenOutput(token_ids=[7], log_probs=[-1.0], stop_reason="aborted", extra_fields={}))
    with pytest.raises(RuntimeError, match="The engine aborted turn 0 of a trajectory"):
        asyncio.run(build(client).run({}, raw_prompt=MESSAGES, index=0, session_id=0, global_steps=1))
    assert len(client.requests) == 1
