"""Stored trajectories under another reward, answer rule or filter: what would have been paid, and what it would teach.

No engine and no GPU: the text is decoded from the stored tokens and scored by the function that training calls.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import OmegaConf

from retool_mcore.data.policy_format import load_format
from retool_mcore.errors import FirstErrors, UserError, no_run
from retool_mcore.metrics.records import read_step, step_files
from retool_mcore.recipes import outcome as outcomes
from retool_mcore.recipes.group_filters import LIMITS, Outcome, drops_groups, group_reason
from retool_mcore.rewards.otc import fewest_calls
from retool_mcore.rewards.registry import find_check, find_reward
from retool_mcore.rewards.value import number
from retool_mcore.rewards.verdict import ANSWERS, DECIMALS, ENVIRONMENT, TESTS
from retool_mcore.rollout.trajectory import Trajectory, answer_text
from retool_mcore.rollout.wire import to_wire
from retool_mcore.view.source import find_tokenizer, read_evaluation

EXAMPLES = 10
SAME = 1e-6  # rewards that differ by less are equal
# An evaluation grades and pays nothing: its stored score is +1 or -1, which is ReTool's reward.
_NO_RECIPE: dict[str, Any] = {
    "reward": {"name": "retool", "args": {}},
    "group_reward": {"name": None, "args": {}},
    "overlong_buffer": 0,
    "advantage": "grpo",
    "normalise_by_std": True,
    "filters": {"all_equal": False, "accuracy": None, "samples": [], "repetition": {"n": 16, "limit": 0.2}},
}
_EPISODE = ("prompt_ids", "response_ids", "logprobs", "spans", "calls", "turn_notes", "finish")


@dataclass
class Case:
    """One trajectory: where `retool view` shows it (#/t/STEP/ROW), and what it got by the stored and the new rule."""

    step: int
    row: int
    group: str
    problem: str
    truth: str
    calls: int
    tokens: int  # of the policy
    score: float
    acc: float
    pred: str
    drop: str
    new_score: float
    new_acc: float
    new_pred: str
    new_drop: str
    overlong: float
    error: str

    @property
    def differs(self) -> bool:
        return abs(self.new_score - self.score) > SAME or self.new_acc != self.acc


@dataclass
class Rescored:
    """All trajectories of one part of a run, with the recipe of the run and the one they were scored by now."""

    part: str
    stored: Mapping
    recipe: Mapping
    cases: list[Case] = field(default_factory=list)

    def examples(self, count: int = EXAMPLES) -> list[Case]:
        """The cases in which the two differ most, first one of each problem."""
        chosen = sorted(
            (case for case in self.cases if case.differs),
            key=lambda case: (-abs(case.new_acc - case.acc), -abs(case.new_score - case.score), case.step, case.row),
        )
        firsts = {case.problem: case for case in reversed(chosen)}
        return sorted(chosen, key=lambda case: firsts[case.problem] is not case)[:count]

    def groups(self) -> dict[tuple[int, str], list[Case]]:
        """The cases of each group, by step and group."""
        grouped: dict[tuple[int, str], list[Case]] = {}
        for case in self.cases:
            grouped.setdefault((case.step, case.group), []).append(case)
        return grouped

    def dropped(self) -> tuple[dict[str, int], dict[str, int]]:
        """Groups that the recipe's filters drop, by reason: by the stored verdicts, and by the new ones.

        Groups that training dropped are not among the stored ones.
        """
        return _dropped(self, self.stored, new=False), _dropped(self, self.recipe, new=True)

    def without_signal(self) -> tuple[int, int]:
        """Groups whose rewards are all equal, stored and new: their group-relative advantages are 0."""
        counts = [0, 0]
        for cases in self.groups().values():
            for place, scores in enumerate(([c.score for c in cases], [c.new_score for c in cases])):
                counts[place] += max(scores) - min(scores) <= SAME
        return counts[0], counts[1]

    def advantages(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(samples,) float32 advantages of the stored rewards and of the new ones, each by its recipe's estimator.

        A sample that a filter leaves out of the loss has 0. None for GAE, which needs the critic's values.
        """
        if "gae" in (self.stored["advantage"], self.recipe["advantage"]):
            return None
        old = _advantages(self.stored, self.cases, [c.score for c in self.cases], [c.drop for c in self.cases])
        new = _advantages(self.recipe, self.cases, [c.new_score for c in self.cases], [c.new_drop for c in self.cases])
        return old, new


def rescore(
    run: Path,
    *,
    evaluation: str | None = None,
    reward: str | None = None,
    answer: str | None = None,
    overrides: Sequence[str] = (),
    steps: Sequence[int] | None = None,
) -> Rescored:
    """Score the stored trajectories of `run` again.

    evaluation: the label of an evaluation in place of RL's; reward, answer: recipe.reward.name and recipe.answer;
    overrides: further `recipe.KEY=VALUE`. steps: only these. Raises UserError for what is not there or does not fit.
    """
    part = f"eval/{evaluation}" if evaluation else "rl"
    config = read_config(run, part)
    stored = OmegaConf.to_container(config)["recipe"]
    change(config, reward, answer, overrides)
    plain = OmegaConf.to_container(config)
    rescored = Rescored(part, stored, plain["recipe"])
    refuse(rescored, plain)
    fmt = load_format(plain, find_tokenizer(run, "rl" if part == "rl" else part).parent)
    first = FirstErrors()
    quiet = logging.getLogger(outcomes.__name__)
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)  # what raises is counted and shown once, not logged for each trajectory
    try:
        for step, row, record in _records(run, part, steps):
            rescored.cases.append(_case(step, row, record, plain, stored, fmt, first))
    finally:
        quiet.setLevel(level)
    if rescored.recipe["group_reward"]["name"]:
        _reward_groups(rescored)
    return rescored


def read_config(run: Path, part: str) -> Any:
    """The configuration of a part of the run, with a recipe's section. Raises UserError without one."""
    path = run / part / "config.yaml"
    if not path.is_file():
        have = sorted(f"--eval {file.parent.name}" for file in run.glob("eval/*/trajectories.jsonl"))
        if not run.is_dir() or not (have or step_files(run / "rl/trajectories")):
            raise no_run(run)
        raise UserError(f"{run / part} is not there: the run has trajectories of {', '.join(have) or 'rl'}.")
    config = OmegaConf.load(path)
    if part != "rl":
        config.recipe = _NO_RECIPE | {"answer": config.answer, "decimals": config.decimals}
    return config


def change(config, reward: str | None, answer: str | None, overrides: Sequence[str]) -> None:
    """Write the new reward, answer rule and further keys into the recipe of `config`. Raises UserError."""
    recipe = config.recipe
    if reward is not None:
        recipe.reward = {"name": reward, "args": {}}  # the arguments of another reward are not its own
        recipe.group_reward = {"name": None, "args": {}}  # would replace it
    if answer is not None:
        recipe.answer = answer
    for word in overrides:
        key, equals, text = word.partition("=")
        name = key.removeprefix("recipe.")
        section = OmegaConf.select(recipe, name.rpartition(".")[0]) if "." in name else recipe
        known = OmegaConf.is_dict(section) and (name.rpartition(".")[2] in section or ".args" in name)
        if not equals or name == key or not known:
            raise UserError(f"{word}: expected recipe.KEY=VALUE with a key of the recipe, as recipe.answer=boxed.")
        try:
            OmegaConf.update(recipe, name, yaml.safe_load(text), force_add=True)
        except yaml.YAMLError:
            raise UserError(f"{word}: the value is no YAML, as 1, true or {{max_calls: 6}} are.") from None


def refuse(found: Rescored, config: Mapping) -> None:
    """Refuse a reward or an answer rule that these trajectories cannot be scored by. Raises UserError."""
    recipe, stored = found.recipe, found.stored
    for name, allowed in (("answer", ANSWERS), ("decimals", DECIMALS)):
        if recipe[name] not in allowed:
            raise UserError(f"recipe.{name} is {recipe[name]!r}: give one of {', '.join(allowed)}.")
    if recipe["answer"] in (TESTS, ENVIRONMENT) and recipe["answer"] != stored["answer"]:
        raise UserError(
            f"recipe.answer={recipe['answer']} needs the verdict of an environment, which these trajectories do not "
            f"have: they were graded by answer={stored['answer']}."
        )
    find_reward(recipe["reward"]["name"])
    if recipe["group_reward"]["name"]:
        find_reward(recipe["group_reward"]["name"])
    if found.part == "rl" and (check := find_check(recipe["reward"]["name"])):
        check(config, **recipe["reward"]["args"])


def _records(run: Path, part: str, steps: Sequence[int] | None) -> Iterator[tuple[int, int, dict]]:
    """(step, row, record) in order; one step's records are in memory at a time."""
    if part != "rl":
        for row, record in enumerate(read_evaluation(run / part)):
            yield record["step"], row, record
        return
    files = step_files(run / "rl" / "trajectories")
    wanted = [step for step in files if steps is None or step in steps]
    if not wanted:
        have = f"it has {min(files)} to {max(files)}" if files else "it has none"
        raise UserError(f"{run} has no trajectories of these steps: {have}.")
    for step in wanted:
        for row, record in enumerate(read_step(files[step])):
            yield step, row, record


def _case(step: int, row: int, record: dict, config: Mapping, stored: Mapping, fmt, first: FirstErrors) -> Case:
    trajectory, recipe = Trajectory.from_record(record), config["recipe"]
    extra = {
        "training_step": step,
        "trajectory": to_wire({name: record[name] for name in _EPISODE if name in record}),
        "policy_text": answer_text(trajectory, fmt.tokenizer),
        "prefill": fmt.prefill(record["prompt_ids"]),
        "response_length": len(record["response_ids"]),
    }
    if stored["answer"] == TESTS:
        extra["verdict"] = record["acc"]
    outcome = outcomes.compute_score(
        record["data_source"],
        fmt.tokenizer.decode(record["response_ids"], skip_special_tokens=True),
        record.get("ground_truth", ""),
        extra,
        recipe,
        config["rollout"]["max_response_tokens"],
    )
    if outcome["error"]:
        what = f"recipe.reward.name={recipe['reward']['name']}"
        first.failed(what, (outcome["error"],), outcome["error"], caller=f"{step}/{row}")
    else:
        first.worked()
    return Case(
        step=step,
        row=row,
        group=record["uid"],
        problem=f"{record['data_source']} #{record['index']}",
        truth=record.get("ground_truth", ""),
        calls=len(record["calls"]),
        tokens=sum(span["end"] - span["start"] for span in record["spans"] if span["kind"] == "policy"),
        score=record["score"],
        acc=record["acc"],
        pred=record.get("pred", ""),
        drop=record.get("drop", ""),
        new_score=outcome["score"],
        new_acc=outcome["acc"],
        new_pred=outcome["pred"],
        new_drop=outcome["drop"],
        overlong=outcome["overlong"],
        error=outcome["error"],
    )


def _reward_groups(found: Rescored) -> None:
    """Replace the new rewards by the recipe's group reward; the fewest calls of a problem run on from step to step."""
    settings = found.recipe["group_reward"]
    reward = find_reward(settings["name"])
    memory: dict[str, int | None] = {}
    for cases in found.groups().values():
        accs, calls, problem = [c.new_acc for c in cases], [c.calls for c in cases], cases[0].problem
        values = reward(accs, calls, fewest=memory.get(problem), **settings["args"])
        for case, value in zip(cases, values, strict=True):
            case.new_score = number(value, f"the group reward {settings['name']}") + case.overlong
        memory[problem] = fewest_calls(accs, calls, memory.get(problem))


def _dropped(found: Rescored, recipe: Mapping, new: bool) -> dict[str, int]:
    if not drops_groups(recipe["filters"]):
        return {}
    limits = {name: recipe["filters"][name] for name in LIMITS}
    counts: dict[str, int] = {}
    for cases in found.groups().values():
        outcomes = [Outcome(c.new_acc, c.new_drop) if new else Outcome(c.acc, c.drop) for c in cases]
        if reason := group_reason(outcomes, **limits):
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def _advantages(recipe: Mapping, cases: Sequence[Case], scores: list[float], drops: list[str]) -> np.ndarray:
    """(samples,) float32, step by step, as training estimates them."""
    import torch  # takes seconds, which only this figure needs

    from retool_mcore.recipes import advantages

    result = np.zeros(len(cases), np.float32)
    steps = np.array([case.step for case in cases])
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step)
        lengths = torch.tensor([max(cases[row].tokens, 1) for row in rows])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).float()
        mask *= torch.tensor([not drops[row] for row in rows])[:, None]
        rewards = torch.tensor([scores[row] for row in rows], dtype=torch.float32)
        groups = [cases[row].group for row in rows]
        if recipe["advantage"] == "grpo":
            values = advantages.grpo(rewards, mask, groups, by_std=recipe["normalise_by_std"])
        else:
            values = getattr(advantages, recipe["advantage"])(rewards, mask, groups)
        result[rows] = values[:, 0].numpy()
    return result
