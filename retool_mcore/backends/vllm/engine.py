"""vLLM alone, without Ray and a trainer: the engine of an evaluation, and the policy of its episodes."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from retool_mcore.gateway.answer import Engine, Piece, Read
from retool_mcore.rollout.episode import Generation
from retool_mcore.rollout.sampling import turn_params
from retool_mcore.rollout.seeds import request_seed


def build_engine(config) -> AsyncLLM:
    parallel = config.parallel
    on_gpu = parallel.device == "cuda"
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=config.policy_path,
            dtype=config.model.dtype,
            seed=config.seed,
            max_model_len=config.rollout.max_prompt_tokens + config.rollout.max_response_tokens,
            max_num_seqs=parallel.max_num_seqs,
            max_num_batched_tokens=parallel.rollout.max_num_batched_tokens,
            enable_chunked_prefill=parallel.rollout.enable_chunked_prefill,
            enforce_eager=parallel.rollout.enforce_eager,
            tensor_parallel_size=parallel.rollout_tp,
            # Replicas on one node; vLLM balances the requests between them.
            data_parallel_size=parallel.gpus_per_node // parallel.rollout_tp if on_gpu else 1,
            # Nothing is trained here: unlike RL's, this engine has the device to itself.
            gpu_memory_utilization=0.85 if on_gpu else parallel.gpu_memory_utilization,
            distributed_executor_backend="mp" if on_gpu else None,
            disable_log_stats=True,
        )
    )


def sampler(engine: AsyncLLM, config, fmt, index: int, sample: int, step: int = 0):
    """The `generate` of one episode: each turn is one request with a seed of its own. step: of training, 0: none."""
    turn = 0

    async def generate(ids: list[int], max_tokens: int) -> Generation:
        nonlocal turn
        seed = request_seed(config.seed, step, index, sample, turn)
        turn += 1
        return await _generate(engine, config, fmt, ids, max_tokens, seed, f"{index}-{sample}-{turn}")

    return generate


def streamed(engine: AsyncLLM, config, fmt):
    """The `generate` of a conversation (train/chat.py): `show` gets the ids of the turn as it grows."""
    turns = itertools.count()

    async def generate(ids: list[int], max_tokens: int, show: Callable[[list[int]], None]) -> Generation:
        turn = next(turns)
        seed = request_seed(config.seed, 0, 0, 0, turn)
        return await _generate(engine, config, fmt, ids, max_tokens, seed, f"chat-{turn}", show)

    return generate


async def _generate(
    engine: AsyncLLM,
    config,
    fmt,
    ids: list[int],
    max_tokens: int,
    seed: int,
    request: str,
    show: Callable[[list[int]], None] = lambda ids: None,
) -> Generation:
    # No top_k and no penalties, as in RL; logprobs=0: of the sampled token alone.
    sampling = {"temperature": config.temperature, "top_p": config.top_p, "logprobs": 0, "detokenize": bool(fmt.stop)}
    params = SamplingParams(**turn_params(sampling, fmt, max_tokens=max_tokens, seed=seed))
    async for output in engine.generate(TokensPrompt(prompt_token_ids=ids), params, request_id=request):
        last = output
        show(list(output.outputs[0].token_ids))
    out = last.outputs[0]
    ids = list(out.token_ids)
    return Generation(ids, [entry[token].logprob for entry, token in zip(out.logprobs, ids, strict=True)])


def sampled(engine: AsyncLLM) -> Engine:
    """Return the engine of a front (gateway/answer.py)."""
    numbers = itertools.count()

    async def sample(ids: list[int], params: dict[str, Any], grown: Callable[[Piece], bool]) -> Read:
        wanted = SamplingParams(**params, output_kind=RequestOutputKind.DELTA)
        prompt, cached = TokensPrompt(prompt_token_ids=ids), 0
        read: list[dict | None] = []  # the prompt's log-probabilities, which may come in parts
        # Closed, the engine's generator takes the request out of the engine.
        async with aclosing(engine.generate(prompt, wanted, request_id=f"front-{next(numbers)}")) as outputs:
            async for output in outputs:
                cached = output.num_cached_tokens or cached
                read += output.prompt_logprobs or ()
                if grown(_piece(output.outputs[0].token_ids, output.outputs[0].logprobs)):
                    break
        return Read(cached, _piece(ids[1:], read[1:]) if read else None)

    return sample


def _piece(ids: Sequence[int], entries: Sequence[dict] | None) -> Piece:
    if not ids or entries is None:
        return Piece(list(ids), [])
    logprobs, likeliest = [], []
    for token, entry in zip(ids, entries, strict=True):
        logprobs.append(entry[token].logprob)
        ranked = sorted(entry.items(), key=lambda item: item[1].rank)
        likeliest.append([(other, value.logprob) for other, value in ranked])
    return Piece(list(ids), logprobs, likeliest)
