"""Trajectories as Markdown for TensorBoard's text tab: prompt, thoughts, code and output under headings."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

GOOD = ("success", "output")  # statuses of a program that ran
HEADINGS = {"thought": "Thought", "code": "Code", "observation": "Output", "error": "Output, an error"}
TABLE = ["data_source", "index", "sample", "score", "acc", "ground_truth", "finish", "turns", "prompt", "response"]
KEPT_CHARS = 4000  # of a trajectory; the text tab loads all of them at once
_FENCE = "~~~~~~"  # programs and problems hold shorter ones themselves


def roles(record: Mapping) -> list[tuple[str, int, int]]:
    """(role, start, end) over the response's tokens, in order and without a gap.

    Roles: thought, code (from the first call's block to the end of its turn), observation, error (of a failed call).
    """
    spans: list[tuple[str, int, int]] = []
    turn = -1
    for span in record["spans"]:
        start, end = span["start"], span["end"]
        if span["kind"] == "policy":
            turn += 1
            calls = [call for call in record["calls"] if call["turn"] == turn]
            code = min((call["start"] for call in calls), default=end)
            spans += [("thought", start, code), ("code", code, end)]
        else:
            failed = any(call["status"] not in GOOD for call in record["calls"] if call["turn"] == turn)
            spans.append(("error" if failed else "observation", start, end))
    return [part for part in spans if part[1] < part[2]]


def chosen(records: Sequence[Mapping], count: int) -> list[Mapping]:
    """`count` of the records over the whole range of rewards, the lowest and the highest among them."""
    order = np.argsort([record["score"] for record in records], kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))
    return [records[order[place]] for place in places]


def speller(tokenizer) -> Callable[[list[int]], str]:
    """Tokens as their text, with every special token and space."""
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def table(records: Sequence[Mapping], decode: Callable[[list[int]], str]) -> list[list]:
    """Rows of a table of trajectories whose columns are TABLE, whole texts."""
    texts = [[decode([int(token) for token in r[f"{part}_ids"]]) for part in ("prompt", "response")] for r in records]
    return [[r.get(name) for name in TABLE[:-2]] + own for r, own in zip(records, texts, strict=True)]


def markdown(record: Mapping, decode: Callable[[list[int]], str], kept_chars: int = KEPT_CHARS) -> str:
    """One trajectory (metrics/records.py), whose tokens `decode` spells; a longer text keeps head and tail."""
    facts = [
        f"**{record['data_source']} #{record['index']}**, sample {record['sample']}",
        f"reward {record['score']:.3g}",
        "right" if record["acc"] > 0 else f"wrong: {record.get('pred')} for {record.get('ground_truth')}",
        f"{record['turns']} turns",
        f"finish: {record['finish']}",
    ]
    parts = [("Prompt", decode([int(token) for token in record["prompt_ids"]]))]
    for role, start, end in roles(record):
        parts.append((HEADINGS[role], decode([int(token) for token in record["response_ids"][start:end]])))
    share = max(200, kept_chars // len(parts))
    blocks = [f"#### {name}\n\n{_FENCE}\n{_cut(text.strip(), share)}\n{_FENCE}" for name, text in parts]
    return "\n\n".join([", ".join(facts), *blocks])


def _cut(text: str, kept: int) -> str:
    text = text.replace(_FENCE, "~" * (len(_FENCE) - 1))
    if len(text) <= kept:
        return text
    return f"{text[: kept // 2]}\n[... {len(text) - kept} characters ...]\n{text[-(kept // 2) :]}"
