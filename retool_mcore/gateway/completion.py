"""One choice of a completion request: text after text, without a chat template, tools or a turn's end."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from retool_mcore.gateway.answer import Piece, Policy, drawn
from retool_mcore.gateway.replies import completion_choice
from retool_mcore.gateway.visible import Growing
from retool_mcore.gateway.wire import CompletionRequest


class Completion:
    """One choice as it is made. send: gets its text as it comes."""

    def __init__(
        self, policy: Policy, request: CompletionRequest, prompt_ids: list[int], *, index: int, seed: int,
        send: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.policy, self.request, self.prompt_ids = policy, request, prompt_ids
        self.index, self.seed, self.send = index, seed, send
        self.cached = self.sampled = 0

    async def run(self) -> dict:
        """Make the choice and return it as replies.py has it."""
        policy, request, fmt = self.policy, self.request, self.policy.fmt
        most = min(request.max_tokens or 0, policy.context - len(self.prompt_ids))
        growing = Growing(fmt, fmt.eos_ids, request.stop)
        pieces: list[Piece] = []
        sent = 0

        def grown(piece: Piece) -> bool:
            nonlocal sent
            if most == 0:  # an engine samples one token at least
                return True
            pieces.append(piece)
            growing.grow(piece.ids)
            text = growing.certain(growing.text)
            if len(text) > sent:
                self.send(text[sent:])
                sent = len(text)
            return growing.stopped

        params: dict[str, Any] = drawn(policy, request.sampling, request.top_logprobs)
        params |= {"max_tokens": max(1, most), "seed": self.seed, "detokenize": False, "stop_token_ids": [fmt.eos_id]}
        if request.echo and request.logprobs:
            params["prompt_logprobs"] = request.top_logprobs
        head = fmt.decode(self.prompt_ids) if request.echo else ""
        if head:
            self.send(head)
        read = await policy.engine(self.prompt_ids, params, grown)
        ids = [token for piece in pieces for token in piece.ids]
        whole = fmt.decode([token for token in ids if token not in fmt.eos_ids])
        text = growing.ended(whole)
        if len(text) > sent:
            self.send(text[sent:])
        self.cached, self.sampled = read.cached, len(ids)
        ended = growing.stopped or (bool(ids) and ids[-1] in fmt.eos_ids)
        logprobs = None
        if request.logprobs:
            logprobs = self._logprobs([*([read.piece] if read.piece else []), *pieces], bool(read.piece))
        return completion_choice(self.index, head + text, "stop" if ended else "length", logprobs)

    def _logprobs(self, pieces: Sequence[Piece], echo: bool) -> dict:
        """Log-probabilities in the form of this route; the prompt's first token has none."""
        decode = self.policy.fmt.decode
        tokens = [decode([token]) for piece in pieces for token in piece.ids]
        values: list[float | None] = [value for piece in pieces for value in piece.logprobs]
        likeliest: list[dict[str, float] | None] = [
            # Tokens of one spelling, such as parts of a character: the likeliest counts.
            {decode([token]): value for token, value in reversed(entry)}
            for piece in pieces
            for entry in piece.likeliest
        ]
        if echo:
            tokens, values, likeliest = [decode(self.prompt_ids[:1]), *tokens], [None, *values], [None, *likeliest]
        offsets = [0, *accumulate(map(len, tokens))][: len(tokens)]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": likeliest, "text_offset": offsets}
