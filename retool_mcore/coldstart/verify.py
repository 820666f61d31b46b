"""The rewriting stage, in which hand calculation in the reasoning becomes a program and its output (arXiv 2504.11536,
2.1), and the three verifications of an answer: by rule, by an independent judge, and of the finished trace.
"""

import json
from pathlib import Path

from retool_mcore.coldstart.client import Client
from retool_mcore.coldstart.config import Judge, Rewrite
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.data.boxed import last_boxed
from retool_mcore.rewards.answer import extract
from retool_mcore.rewards.equivalence import equivalent

_ANSWER = {"answer": {"type": "string"}}
SCHEMA = {"type": "object", "properties": _ANSWER, "required": ["answer"], "additionalProperties": False}
# The paper's instruction in our own words; the judge sees the problem alone: one that reads the reasoning tends to
# agree with it.
REWRITE_INSTRUCTION, JUDGE_INSTRUCTION = (
    (Path(__file__).parent / "templates" / f"{name}.txt").read_text().rstrip("\n") for name in ("rewrite", "judge")
)


def check_rule(row: Row) -> Row:
    """Raises Drop unless the reasoning's own final answer is equivalent to the truth."""
    if not row.reasoning:
        return row
    answer = extract(row.reasoning)
    if answer is None:
        answer = extract(row.reasoning, "final_line")
    if not answer:
        raise Drop("reasoning has no final answer")
    if not equivalent(answer, row.answer):
        raise Drop("reasoning is wrong", f"{answer[:100]!r}, the truth is {row.answer[:100]!r}")
    return row


async def check_by_judge(config: Judge, client: Client, row: Row) -> Row:
    """Asks an independent model `samples` times for its answer, and notes the share that is equivalent to the truth.

    Raises Drop below `min_share`: either the truth is doubtful or the problem is.
    """
    messages = [{"role": "user", "content": f"{JUDGE_INSTRUCTION}\n\nProblem:\n{row.problem}"}]
    right, answers, malformed = 0, [], ""
    for sample in range(config.samples):
        reply = await client.ask(messages, sample=sample, schema=SCHEMA)
        answer = judged_answer(reply.text)
        if answer is None:
            malformed = reply.text
            continue
        answers.append(answer)
        right += equivalent(answer, row.answer)
    if not answers:
        raise Drop("judge's reply is malformed", repr(malformed[:200]))
    row.judge_share = right / config.samples
    if row.judge_share < config.min_share:
        detail = f"{right} of {config.samples} right, as {answers[0][:100]!r}; the truth is {row.answer[:100]!r}"
        raise Drop("judge disagrees", detail)
    return row


def judged_answer(text: str) -> str | None:
    """The answer in a judge's reply: its JSON object (also fenced, or after other text), else its last box."""
    start, end = text.rfind("{", 0, text.rfind('"answer"') + 1), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1])["answer"] if start >= 0 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        answer = None
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    return answer if isinstance(answer, str) and answer.strip() else last_boxed(text) or None


def check_answer(row: Row) -> Row:
    """Raises Drop unless the trace's own prose, without programs and outputs, ends in the right answer."""
    answer = extract(row.prose())
    if not answer:
        raise Drop("several final answers, or none", row.prose()[-200:])
    if not equivalent(answer, row.answer):
        raise Drop("final answer is wrong", f"{answer[:100]!r}, the truth is {row.answer[:100]!r}")
    return row


_NO_REASONING = "There is no solution yet: write one that follows the rules."


async def rewrite(config: Rewrite, client: Client, row: Row) -> Row:
    """Fills in `rewrite`. Raises Drop for a reply that is empty or was cut at max_tokens."""
    solution = f"Solution:\n{row.reasoning}" if row.reasoning else _NO_REASONING
    content = f"{config.instruction or REWRITE_INSTRUCTION}\n\nProblem:\n{row.problem}\n\n{solution}"
    reply = await client.ask([{"role": "user", "content": content}])
    if reply.finish == "length":
        raise Drop("rewrite was cut", f"at rewrite.model.max_tokens={client.model.max_tokens}")
    if not reply.text.strip():
        raise Drop("rewrite is empty")
    # A reasoning model's own thoughts are no part of the rewrite.
    row.rewrite = reply.text.rpartition("</think>")[2].strip()
    return row
