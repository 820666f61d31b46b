"""The view of one trajectory that a recipe's reward and filters get: the grader's verdict, the policy's turns, its
calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retool_mcore.data.blocks import prose
from retool_mcore.data.boxed import last_boxed
from retool_mcore.data.kept import read_kept
from retool_mcore.rollout.trajectory import Call, Turn
from retool_mcore.rollout.wire import from_wire


@dataclass(frozen=True)
class Sample:
    """One finished trajectory.

    `acc` is the grader's verdict, 1.0 or 0.0, `pred` the answer that it read, "" without one; `ground_truth` the data
    set's text. `text` is the decoded response, special tokens left out, observations included: what the policy alone
    wrote only where it made no call. `ids` are the response's tokens, (tokens,) int32; `policy_spans` (start, end) of
    the policy's turns in them, `turns` what was noted of each. `calls` are those that the interpreter ran or answered
    with an error; `finish` is one of `Trajectory.finish`. `step` is the training step, from 1, that asked for it.
    `policy_text` is what the policy wrote outside of its calls, a blank line between two turns. `prefill` is the
    thought that the chat template opens (or closes again) in front of `text`, as `<think>` and a line's end; "" where
    it leaves thinking to the policy.

    Of its row: `question`, without the prompt's template; `extra`, the columns of `data.file.keep` by name, None where
    the row has no such column; `index`, its number in the data, and `source`, the data source it belongs to.
    """

    acc: float
    ground_truth: str
    text: str
    ids: Sequence[int]
    policy_spans: Sequence[tuple[int, int]]
    turns: Sequence[Turn]
    calls: Sequence[Call]
    finish: str
    step: int
    policy_text: str = ""
    prefill: str = ""
    question: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0
    source: str = ""
    pred: str = ""

    @property
    def correct(self) -> bool:
        return self.acc > 0.5


def of_row(data_source: str, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Sample` that its row of the data set has."""
    return {
        "question": str(extra_info.get("question", "")),
        "extra": read_kept(extra_info),
        "index": int(extra_info.get("index", 0)),
        "source": str(data_source),
    }


def sample_of_text(text: str, **known: Any) -> Sample:
    """Return the sample of a response that is only text, to try a reward without a run: one turn, no tokens, no calls
    that were run. `known`: its other fields, as ground_truth="4" and extra={"level": 3}."""
    policy_text = prose(text)
    turn = Turn(programs=0, boxed=last_boxed(policy_text) is not None, fakes=[], generate_s=0.0)
    rest: dict[str, Any] = {"acc": 0.0, "ground_truth": "", "finish": "answer", "step": 1, "policy_text": policy_text}
    return Sample(text=text, ids=[], policy_spans=[(0, 0)], turns=[turn], calls=[], **(rest | known))


def read_sample(packed: str, **known: Any) -> Sample:
    """The sample whose trajectory the episode packed into `packed` (rollout/wire.py); `known`: its other fields."""
    return sample_of(from_wire(packed), **known)


def sample_of(record: Mapping[str, Any], **known: Any) -> Sample:
    """Return the sample of a trajectory's record (`Trajectory.to_record`); `known`: its other fields."""
    return Sample(
        **known,
        ids=record["response_ids"],
        policy_spans=[(span["start"], span["end"]) for span in record["spans"] if span["kind"] == "policy"],
        turns=[Turn(**turn) for turn in record["turn_notes"]],
        calls=[Call(**call) for call in record["calls"]],
        finish=record["finish"],
    )
