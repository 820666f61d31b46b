"""Causes in what the policy writes: answers cut by a limit, repetition, the answer's format, the tokens of numbers."""

from collections import Counter
from pathlib import Path

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import Prepared, Row, mean, span, two
from retool_mcore.metrics.behaviour import policy_spans
from retool_mcore.metrics.repetition import NGRAM, repeated_share

READ_FROM_TEXT = ("boxed", "answer_tag", "final_line")  # answer rules that leave a prediction
LIMITS = {
    "length": ("rollout.max_response_tokens", "raise it, or shorten what a tool may print"),
    "overflow": ("rollout.max_observation_tokens", "lower it: observations fill the response"),
    "turn_length": ("rollout.max_turn_tokens", "raise it"),
    "max_turns": ("recipe.max_turns", "raise it, or set recipe.after_last_call=text"),
}


def cut(p: Prepared) -> Finding | None:
    """Most answers end at one limit, and those are wrong."""
    rows = p.late_rows
    limits = Counter(row.finish for row in rows if row.finish in LIMITS).most_common(1)
    if not limits:
        return None
    limit, count = limits[0]
    ended = [row for row in rows if row.finish == limit]
    if len(ended) < 0.25 * len(rows) or mean([row.acc for row in ended]) > 0.3:
        return None
    key, how = LIMITS[limit]
    before = mean([row.finish == limit for row in p.early_rows])
    what = (
        f"{count} of {len(rows)} trajectories of {span([row.step for row in rows])} end at the limit {key}="
        f"{p.key(key, '?')} (finish {limit}; {before:.0%} at the start) and {mean([row.acc for row in ended]):.0%} of "
        "them are right"
    )
    looks = two(rows, lambda row: row.finish == limit)
    return Finding("answers cut", 0.84 + 0.1 * count / len(rows), what, key, how, looks, _AFTER_CUT)


_AFTER_CUT = ("format never learnt", "format lost", "groups all wrong", "repetition", "calls fail", "no calls")


def repetition(p: Prepared) -> Finding | None:
    """The policy repeats itself."""
    shares = [(record, repeated_share(record["response_ids"], policy_spans(record), NGRAM)) for record in p.late]
    known = [(record, share) for record, share in shares if share is not None]
    if len(known) < 8 or (late := mean([share for _, share in known])) < 0.4:
        return None
    early = [repeated_share(record["response_ids"], policy_spans(record), NGRAM) or 0.0 for record in p.early]
    what = (
        f"{late:.0%} of the policy's {NGRAM}-grams in {_steps(p.late)} are repetitions, {mean(early):.0%} at the start"
    )
    looks = two([record for record, share in known if share > 0.4], lambda record: True)
    how = "leave such samples out: [repetition]"
    return Finding("repetition", 0.87, what, "recipe.filters.samples", how, looks, ("groups all wrong",))


def wrong_rule(p: Prepared) -> Finding | None:
    """The policy gives boxed answers, and the answer rule reads another place."""
    rule = p.key("recipe.answer", "boxed")
    if rule not in READ_FROM_TEXT or rule == "boxed" or len(p.late) < 8:
        return None
    boxed = [record for record in p.late if any(turn["boxed"] for turn in record["turn_notes"])]
    unread = [record for record in boxed if not record.get("pred") or not record["acc"]]
    if len(boxed) < 0.5 * len(p.late) or len(unread) < 0.8 * len(boxed):
        return None
    what = (
        f"{len(boxed)} of {len(p.late)} answers of {_steps(p.late)} are boxed, and recipe.answer={rule} finds no right "
        f"answer in {len(unread)} of them"
    )
    explains = ("format never learnt", "format lost", "groups all wrong")
    return Finding("answer rule", 0.93, what, "recipe.answer", "boxed", two(unread, lambda record: True), explains)


def format_(p: Prepared) -> Finding | None:
    """Find that most responses that the policy ended have no answer: from the start, or only recently."""
    if p.key("recipe.answer", "boxed") not in READ_FROM_TEXT:
        return None
    ended = [row for row in p.late_rows if row.finish == "answer"]
    before = [row for row in p.early_rows if row.finish == "answer"]
    if len(ended) < 8:
        return None
    late, early = _without_answer(ended), _without_answer(before)
    if late < 0.3 or (late < 0.8 and late < 2 * early) or (late >= 0.8 and p.accuracy > 0.3):
        return None
    never = bool(before) and early >= 0.5
    looks = two(ended, lambda row: not row.pred)
    what = (
        f"{late:.0%} of the answers of {span([row.step for row in ended])} hold none that "
        f"recipe.answer={p.key('recipe.answer', 'boxed')} finds, {early:.0%} at the start"
    )
    if never:
        how = "begin with a policy that knows the format: retool sft on traces in it"
        return Finding("format never learnt", 0.86, what, "init_from", how, looks, ("groups all wrong",))
    how = "lower it, or go back to the checkpoint before the format was lost"
    return Finding("format lost", 0.85, what, "train.lr", how, looks, ("groups all wrong",))


def split_numbers(p: Prepared) -> Finding | None:
    """The tokenizer joins digits, and the policy that must copy numbers stays wrong."""
    tokenizer = _tokenizer(p)
    rows = p.late_rows
    numbers = [row for row in rows if row.truth.lstrip("-").isdigit() and len(row.truth) >= 3]
    if tokenizer is None or len(numbers) < 0.5 * max(1, len(rows)) or len(numbers) < 8 or p.accuracy > 0.5:
        return None
    pieces = [tokenizer.encode(row.truth, add_special_tokens=False).tokens for row in numbers]
    joined = [own for own in pieces if any(sum(sign.isdigit() for sign in piece) > 1 for piece in own)]
    if len(joined) < 0.5 * len(pieces):
        return None
    example = max(joined, key=len)
    what = (
        f"the tokenizer joins digits, as in {'|'.join(example)}, in {len(joined)} of {len(pieces)} true answers of "
        f"{span([row.step for row in rows])}, and {p.accuracy:.0%} are right"
    )
    how = "a model whose tokenizer has one token a digit copies numbers more easily"
    return Finding("numbers split", 0.7, what, "model", how, two(numbers, lambda row: not row.acc))


def _tokenizer(p: Prepared):
    """The policy's tokenizer; None where it is not there."""
    from tokenizers import Tokenizer

    folders = [Path(str(p.key("init_from", ""))), p.run / "rl" / "policy", p.run / "sft" / "policy", p.run / "model"]
    for folder in folders:
        if (path := folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(path))
    return None


def _without_answer(rows: list[Row]) -> float:
    return mean([not row.pred for row in rows])


def _steps(records: list[dict]) -> str:
    return span([record["step"] for record in records])
