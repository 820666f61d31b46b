"""The invariant of the project: ids, mask, log-probabilities and positions of random episodes, token by token.

The reconstruction below never parses a turn: it knows from the script which tokens hold which call, and it reads what
the engine was asked and what it answered.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from random_episodes import EOS, FORMATS, OTHER_EOS, PROMPT, TOKENIZER, encode, episodes
from scripted import ScriptedEngine, ScriptedSandbox, roll_out

from retool_mcore.rollout.episode import Limits


def expected_observation(name, texts, closed):
    texts = [text.replace("<|im_end|>", "< |im_end|>").rstrip() for text in texts]
    if name == "text":
        return encode("".join(f"\n<interpreter>\n{text}\n</interpreter>\n" for text in texts))
    replies = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in texts)
    ids = encode(f"\n<|im_start|>user{replies}<|im_end|>\n<|im_start|>assistant\n")
    return ids if closed else [EOS, *ids]


def reconstruct(name, script, printed, limits, errors):
    """Ids, mask, log-probabilities, calls and finish as they must be, from the script's own bookkeeping."""
    ids, mask, logprobs, calls, programs_run = [], [], [], [], 0
    errors, told = iter(errors), False
    for number, turn in enumerate(script):
        room = limits.max_response_tokens - len(ids)
        cap = min(room, limits.max_turn_tokens)
        start, sampled = len(ids), turn.ids[:cap]
        ids += sampled
        mask += [1] * len(sampled)
        logprobs += [-1.0 - number - position / 1000 for position in range(len(sampled))]
        whole = [call for call in turn.calls if call[1] <= len(sampled)]
        if not whole and sampled[-1] in (EOS, OTHER_EOS):
            return ids, mask, logprobs, calls, "answer"
        if len(sampled) == room:
            return ids, mask, logprobs, calls, "length"
        if not whole:
            return ids, mask, logprobs, calls, "turn_length"
        over = len(calls) + len(whole) > limits.max_turns
        if told or (over and limits.after_last_call == "end"):
            return ids, mask, logprobs, calls, "max_turns"
        told = over
        texts = ["No calls are left: go on in text"] * len(whole) if over else []
        for first, _, program in [] if over else whole:
            calls.append((program, number, start + first))
            if program is None:
                texts.append(next(errors))
            else:
                texts.append(printed[programs_run] if programs_run < len(printed) else "")
                texts[-1] = texts[-1].rstrip("\n") if texts[-1].strip() else ""
                programs_run += 1
        observation = expected_observation(name, texts, closed=sampled[-1] == EOS)
        if len(ids) + len(observation) >= limits.max_response_tokens:
            return ids, mask, logprobs, calls, "overflow"
        ids += observation
        mask += [0] * len(observation)
        logprobs += [0.0] * len(observation)
    raise AssertionError("the script's last turn is an answer")


@settings(deadline=None, max_examples=150, derandomize=True)
@given(episodes())
def test_every_token_is_where_the_log_says(episode):
    name, script, printed, limits = episode
    engine, sandbox = ScriptedEngine([turn.ids for turn in script], EOS), ScriptedSandbox(printed)
    trajectory = roll_out(PROMPT, engine, sandbox, FORMATS[name], limits)
    errors = [call.stderr for call in trajectory.calls if call.malformed]
    ids, mask, logprobs, calls, finish = reconstruct(name, script, printed, limits, errors)

    assert trajectory.finish == finish
    assert trajectory.response_ids == ids
    assert trajectory.response_mask == mask
    assert trajectory.logprobs == logprobs
    assert [(call.code, call.turn, call.start) for call in trajectory.calls] == calls
    assert sandbox.programs == [program for program, _, _ in calls if program is not None]
    assert all(error.startswith("Error: ") for error in errors)
    assert len(ids) <= limits.max_response_tokens and mask[-1] == 1

    # Positions: each turn was sampled right behind the tokens that training will see before it.
    sampled = [span for span in trajectory.spans if span.kind == "policy"]
    assert trajectory.turns == len(sampled) == len(engine.requests)
    for span, (asked, _), (replied, reported) in zip(sampled, engine.requests, engine.replies, strict=True):
        assert asked == PROMPT + trajectory.response_ids[: span.start]
        assert trajectory.response_ids[span.start : span.end] == replied
        assert trajectory.logprobs[span.start : span.end] == reported

    # Spans partition the response and say the same as the mask.
    assert [span.start for span in trajectory.spans] == [0, *[span.end for span in trajectory.spans[:-1]]]
    assert [int(span.kind == "policy") for span in trajectory.spans for _ in range(span.start, span.end)] == mask


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=30), st.integers(1, 40))
def test_without_a_tool_every_token_is_sampled(ids, budget):
    engine, sandbox = ScriptedEngine([[*ids, EOS]], EOS), ScriptedSandbox()
    limits = Limits(max_turns=0, max_turn_tokens=25, max_response_tokens=budget, max_observation_tokens=32)
    trajectory = roll_out(PROMPT, engine, sandbox, FORMATS["none"], limits)
    assert trajectory.response_ids == [*ids, EOS][: min(25, budget)]
    assert trajectory.response_mask == [1] * len(trajectory.response_ids)
    assert (sandbox.programs, trajectory.calls, len(engine.requests)) == ([], [], 1)
