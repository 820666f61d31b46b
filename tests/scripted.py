"""The environment of an episode, scripted: an engine that returns chosen ids, a sandbox that returns chosen outputs."""

import asyncio

from retool_mcore.rollout.episode import Generation, run_episode
from retool_mcore.sandbox.base import Result, Status


class ScriptedEngine:
    """Returns the turns of `script` in order, each cut to the limit given, then single end tokens; notes requests."""

    def __init__(self, script, eos_id, with_logprobs=True):
        self.script = [list(ids) for ids in script]
        self.eos_id = eos_id
        self.with_logprobs = with_logprobs
        self.requests = []
        self.replies = []

    async def generate(self, ids, max_tokens):
        turn = len(self.requests)
        self.requests.append((list(ids), max_tokens))
        reply = (self.script[turn] if turn < len(self.script) else [self.eos_id])[:max_tokens]
        logprobs = [-1.0 - turn - position / 1000 for position in range(len(reply))]
        self.replies.append((reply, logprobs))
        return Generation(list(reply), logprobs if self.with_logprobs else None)


class ScriptedSandbox:
    """Prints the texts of `outputs` in order, then nothing; notes every program."""

    def __init__(self, outputs=(), status=Status.SUCCESS):
        self.outputs = list(outputs)
        self.status = status
        self.programs = []

    async def run(self, code, *, timeout_s=None, stdin=""):
        output = self.outputs[len(self.programs)] if len(self.programs) < len(self.outputs) else ""
        self.programs.append(code)
        return Result(self.status, output, "", None, 0.25)

    async def close(self):
        return None


def roll_out(prompt_ids, engine, sandbox, fmt, limits):
    episode = run_episode(
        prompt_ids,
        generate=engine.generate,
        sandbox=sandbox,
        fmt=fmt,
        tokenizer=fmt.tokenizer,
        limits=limits,
        timeout_s=1.0,
    )
    return asyncio.run(episode)
