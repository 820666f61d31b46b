"""benchmarks/learning/without.py: what each arm leaves out is left out, and nothing else."""

import asyncio

from lone_episodes import TOKENIZER, build
from verl.workers.rollout.replica import TokenOutput

from benchmarks.learning import without
from retool_mcore.backends.verl.episodes import Episodes
from retool_mcore.rollout.wire import from_wire

ROW = {"index": 0, "session_id": 0, "global_steps": 1, "raw_prompt": [{"role": "user", "content": "1?"}]}


class Server:
    """A policy that runs `program` and then answers."""

    def __init__(self, program):
        self.turns = [f"<code>{program}</code>", r"\boxed{1}"]

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        ids = TOKENIZER.encode(self.turns.pop(0), add_special_tokens=False)
        ids += [] if self.turns else [TOKENIZER.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields={})


def rolled_out(program, kind=Episodes, **settings):
    return asyncio.run(build(Server(program), settings, kind=kind).run({}, **ROW))


def test_without_the_mask_the_same_tokens_pass_for_the_policys():
    masked = rolled_out("print(1)")
    whole = rolled_out("print(1)", kind=without.UnmaskedEpisodes)
    assert whole.response_ids == masked.response_ids and 0 in masked.response_mask
    assert whole.response_mask == [1] * len(whole.response_ids)
    record = from_wire(whole.facts["trajectory"])
    spans = [{"kind": "policy", "start": 0, "end": len(whole.response_ids)}]
    assert record["spans"] == whole.notes["spans"] == spans
    assert whole.log_probs == masked.log_probs and len(whole.notes["calls"]) == 1


def test_a_silent_interpreter_says_what_a_program_prints_and_not_why_it_failed():
    silent = {"use": [{"path": "benchmarks.learning.without.Silent", "args": {}}], "timeout_s": 30}
    texts = {
        (program, bool(box)): TOKENIZER.decode(rolled_out(program, toolbox=box).response_ids)
        for program in ("print(1)", "print(x)")
        for box in (None, silent)
    }
    assert texts["print(1)", True] == texts["print(1)", False]
    assert "not defined" in texts["print(x)", False] and "not defined" not in texts["print(x)", True]


def test_the_shortest_trajectories_come_first():
    assert without.by_length([30, 10, 20], seed=1, step=1) == [1, 2, 0]
