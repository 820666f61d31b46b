"""Causes in the reward: it is constant, raises, disagrees with the verdict, is gamed, or gives groups no signal."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import Prepared, Row, mean, span, two

SAME = 1e-9
_NO_SIGNAL = ("groups all wrong", "groups all right", "learning rate too low")


def raises(p: Prepared) -> Finding | None:
    """Scoring raises, and what it raises for counts as wrong."""
    broken = [record for record in p.late if record.get("error")]
    if len(broken) < 0.1 * max(1, len(p.late)) or not broken:
        return None
    error, count = Counter(record["error"] for record in broken).most_common(1)[0]
    what = f"scoring raised for {len(broken)} of {len(p.late)} trajectories of the last steps, {count} times {error}"
    explains = ("reward constant", "reward disagrees", *_NO_SIGNAL)
    looks = two(broken, lambda record: True)
    return Finding("reward raises", 0.96, what, "recipe.reward.name", "correct the function", looks, explains)


def constant(p: Prepared) -> Finding | None:
    """The reward is the same for right and wrong answers."""
    rows = p.late_rows
    scores, accs = {round(row.score, 9) for row in rows}, {row.acc for row in rows}
    if len(rows) < 8 or len(scores) > 1 or len(accs) < 2:
        return None
    what = (
        f"all {len(rows)} trajectories of {span([row.step for row in rows])} got the reward {rows[0].score:.3g}, and "
        f"{mean([row.acc for row in rows]):.0%} of them are right"
    )
    looks = (*two(rows, lambda row: row.acc > 0)[:1], *two(rows, lambda row: row.acc == 0)[:1])
    how = "one that tells right from wrong; `retool rescore` shows what another would pay"
    return Finding("reward constant", 0.94, what, "recipe.reward.name", how, looks, _NO_SIGNAL)


def disagrees(p: Prepared) -> Finding | None:
    """The reward varies and says nothing about, or the reverse of, whether an answer is right."""
    rows = p.late_rows
    scores, accs = np.array([row.score for row in rows]), np.array([row.acc for row in rows])
    if len(rows) < 24 or scores.std() < SAME or accs.std() < SAME:
        return None
    correlation = float(np.corrcoef(scores, accs)[0, 1])
    if correlation > 0.1:
        return None
    what = (
        f"reward and verdict have a correlation of {correlation:+.2f} over {len(rows)} trajectories of "
        f"{span([row.step for row in rows])}: right ones got {scores[accs > 0.5].mean():.2f}, wrong ones "
        f"{scores[accs <= 0.5].mean():.2f}"
    )
    best, worst = max(rows, key=lambda row: row.score - 2 * row.acc), min(rows, key=lambda row: row.score - 2 * row.acc)
    how = "one that pays more for right answers; `retool rescore` compares them"
    looks = (best.place, worst.place)
    return Finding("reward disagrees", 0.91, what, "recipe.reward.name", how, looks, ("reward hacking",))


def hacking(p: Prepared) -> Finding | None:
    """The reward rises, and the accuracy on held-back problems, or without those the training accuracy, does not."""
    score = list(p.curve("critic/score/mean").values())
    if len(score) < 6 or not (gained := _rise(score)):
        return None
    held_back = list(p.curve("val/accuracy").values())
    training = list(p.curve("reward/accuracy").values())
    if len(held_back) >= 3:
        which, values = "the accuracy on held-back problems", held_back
        errors = list(p.curve("val/accuracy_se").values())
        change, bound = held_back[-1] - held_back[0], max(0.02, mean(errors[-1:]))
    elif len(training) >= 6:
        which, values, bound = "the training accuracy", training, 0.02
        change = mean(training[-max(1, len(training) // 4) :]) - mean(training[: max(1, len(training) // 4)])
    else:
        return None
    if change > bound or values[-1] > 0.95:
        return None
    early, late = gained
    what = f"the reward rose from {early:.2f} to {late:.2f} in {p.span}, and {which} by {100 * change:+.1f} points"
    how = "one that pays for right answers alone; or more problems, if only those trained on become right"
    ordered = sorted(p.late_rows, key=lambda row: row.score - 2 * row.acc)
    looks = two(ordered, lambda row: row.acc < 0.5)
    explains = ("degenerate programs", "entropy collapse", "learning rate too low")
    return Finding("reward hacking", 0.86, what, "recipe.reward.name", how, looks, explains)


def copied(p: Prepared) -> Finding | None:
    """The policy writes its question down again in place of an answer, and did not at the start."""
    late, early = [_copies(record) for record in p.late], [_copies(record) for record in p.early]
    if len(late) < 8 or mean(late) < 0.5 or mean(late) < 2 * mean(early):
        return None
    what = f"{mean(late):.0%} of the responses of the last steps repeat their question, {mean(early):.0%} at the start"
    looks = two([record for record, copy in zip(p.late, late, strict=True) if copy], lambda record: True)
    how = "one that does not pay for length or for words of the question"
    return Finding("question copied", 0.87, what, "recipe.reward.name", how, looks, ("reward hacking",))


def no_signal(p: Prepared) -> Finding | None:
    """The samples of nearly every group get one reward, so that group-relative advantages are 0."""
    groups = _groups(p.late_rows)
    dropped = p.late_mean("filters/groups/all_equal") or 0.0
    batch = float(p.key("train.batch") or p.key("recipe.batch") or len(groups) or 1)
    if dropped > 4 * batch:
        what = f"{dropped:.0f} groups a step are dropped, all of their verdicts being equal, for a batch of {batch:.0f}"
        how = "problems that the policy solves sometimes, neither always nor never"
        return Finding("groups without signal", 0.7, what, "data.train_files", how)
    if len(groups) < 2:
        return None
    equal = [own for own in groups if max(row.score for row in own) - min(row.score for row in own) <= SAME]
    wrong = [own for own in equal if not any(row.acc for row in own)]
    right = [own for own in equal if all(row.acc for row in own)]
    rows = [row for own in groups for row in own]
    any_right = mean([any(row.acc for row in own) for own in groups])
    n = len(groups[0])
    evidence = (
        f"of {len(groups)} groups of {span([row.step for row in rows])} {len(wrong)} are all wrong and {len(right)} "
        f"all right with one reward: accuracy {mean([row.acc for row in rows]):.1%}, pass@{n} {any_right:.1%}"
    )
    if len(wrong) >= 0.8 * len(groups):
        how = "a stronger start (retool sft first), or easier problems in data.train_files"
        return Finding("groups all wrong", 0.82, evidence, "init_from", how, two(rows, lambda row: not row.acc), _FLAT)
    if any_right < 0.05 and len(groups) >= 4:
        what = f"{evidence}; rewards differ by penalties and partial credit alone"
        how = "a stronger start (retool sft first), or easier problems in data.train_files"
        return Finding("groups all wrong", 0.76, what, "init_from", how, two(rows, lambda row: not row.acc))
    started = mean([row.acc for row in p.early_rows])
    if len(right) >= 0.8 * len(groups) and started >= 0.9:
        how = "harder problems: the policy solved these from the start"
        looks = two(rows, lambda row: row.acc > 0)
        return Finding("groups all right", 0.7, evidence, "data.train_files", how, looks, _FLAT)
    return None


_FLAT = ("entropy collapse", "learning rate too low")


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each group of more than one sample."""
    groups: Mapping[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.step, row.uid].append(row)
    return [own for own in groups.values() if len(own) > 1]


def _rise(values: Sequence[float]) -> tuple[float, float] | None:
    """Means of the first and the last quarter, where the latter is higher by more than three times the noise."""
    each = max(2, len(values) // 4)
    early, late = values[:each], values[-each:]
    noise = (statistics.variance(early) / each + statistics.variance(late) / each) ** 0.5
    rise = statistics.fmean(late) - statistics.fmean(early)
    return (statistics.fmean(early), statistics.fmean(late)) if rise > max(3 * noise, 0.05) else None


def _copies(record: dict) -> bool:
    """Whether four fifths of the prompt's tokens stand in one piece in what the policy wrote outside of calls."""
    prompt = np.asarray(record["prompt_ids"])
    length = int(0.8 * len(prompt))
    if length < 12:
        return False
    wanted = {tuple(prompt[start : start + length].tolist()) for start in range(len(prompt) - length + 1)}
    begins = {call["turn"]: call["start"] for call in reversed(record["calls"])}
    response, turn = np.asarray(record["response_ids"]), -1
    for part in record["spans"]:
        if part["kind"] != "policy":
            continue
        turn += 1
        text = response[part["start"] : begins.get(turn, part["end"])].tolist()
        if any(tuple(text[start : start + length]) in wanted for start in range(len(text) - length + 1)):
            return True
    return False
