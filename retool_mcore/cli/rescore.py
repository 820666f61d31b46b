"""`retool rescore`: the report about stored trajectories under another rule, as text and as JSON."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Argument, Option

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

SHOWN = 60  # characters of an answer
ERRORS = 3  # kinds of them in the report


def rescore(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run, as in runs/quickstart.")],
    overrides: Annotated[
        list[str] | None,
        Argument(metavar="[recipe.KEY=VALUE]...", help="Further keys of the recipe, as recipe.filters.all_equal=true."),
    ] = None,
    reward: Annotated[
        str | None, Option(metavar="NAME", help="Another reward: a short name, or a dotted path as in training.")
    ] = None,
    answer: Annotated[
        str | None, Option(metavar="RULE", help="Another answer rule: boxed, answer_tag, final_line or calls.")
    ] = None,
    evaluation: Annotated[
        str | None, Option("--eval", metavar="LABEL", help="The trajectories of RUN/eval/LABEL in place of RL's.")
    ] = None,
    steps: Annotated[str | None, Option(metavar="N|A-B", help="Only these steps; default: all stored ones.")] = None,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write figures and cases there.")] = None,
) -> None:
    """Score a run's stored trajectories by another reward, answer rule or filter, without a GPU: what would have been
    paid, where the two disagree, and what advantages and filters would have become. Changes nothing in the run."""
    from retool_mcore.analysis.rescore import rescore as score

    rescored = score(
        run, evaluation=evaluation, reward=reward, answer=answer, overrides=overrides or (), steps=numbers(steps)
    )
    figures = summary(rescored)
    if json_file is not None:
        content = {"figures": figures, "recipe": rescored.recipe, "cases": [asdict(case) for case in rescored.cases]}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")
    print("\n".join(lines(rescored, figures)))


def numbers(words: str | None) -> range | None:
    """The steps of `N` or `A-B`. Raises UserError for other words."""
    if words is None:
        return None
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", words)
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UserError(f"--steps {words}: expected a step, as 12, or the first and the last one, as 10-20.")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def summary(found) -> dict:
    """The figures of an analysis.rescore.Rescored, ready for JSON; pairs are [stored, new]."""
    cases = found.cases
    scores = np.array([[case.score, case.new_score] for case in cases], np.float64)
    accs = np.array([[case.acc, case.new_acc] for case in cases], np.float64)
    change = scores[:, 1] - scores[:, 0]
    equal = found.without_signal()
    figures = {
        "trajectories": len(cases),
        "steps": sorted({case.step for case in cases}),
        "groups": len(found.groups()),
        "reward_mean": scores.mean(0).tolist(),
        "reward_std": scores.std(0).tolist(),
        "accuracy": accs.mean(0).tolist(),
        "answers_found": [sum(bool(case.pred) for case in cases), sum(bool(case.new_pred) for case in cases)],
        "paid_more": int((change > 1e-6).sum()),
        "paid_less": int((change < -1e-6).sum()),
        "right_to_wrong": int((accs[:, 0] > accs[:, 1]).sum()),
        "wrong_to_right": int((accs[:, 0] < accs[:, 1]).sum()),
        "groups_without_signal": list(equal),
        "groups_dropped": list(found.dropped()),
        "samples_left_out": [_counts(case.drop for case in cases), _counts(case.new_drop for case in cases)],
        "errors": _counts(case.error for case in cases),
        "advantages": None,
    }
    if (pair := found.advantages()) is not None:
        old, new = pair
        spread = old.std() > 0 and new.std() > 0
        figures["advantages"] = {
            "mean_size": [float(np.abs(old).mean()), float(np.abs(new).mean())],
            "correlation": float(np.corrcoef(old, new)[0, 1]) if spread else None,
            "other_sign": int((old * new < 0).sum()),
        }
    return figures


def lines(found, figures: Mapping) -> Iterator[str]:
    """The report, a line each."""
    steps, count, groups = figures["steps"], figures["trajectories"], figures["groups"]
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    yield f"{found.part}: {count} trajectories in {groups} groups, {where}"
    changes = list(_changes(found.stored, found.recipe))
    yield "recipe: " + ("; ".join(changes) if changes else "as stored, scored by this version")
    yield f"{'':28}{'stored':>10}{'now':>10}"
    for label, name in (("mean reward", "reward_mean"), ("its deviation", "reward_std")):
        yield f"{label:28}{figures[name][0]:>10.3f}{figures[name][1]:>10.3f}"
    yield f"{'accuracy':28}{figures['accuracy'][0]:>10.1%}{figures['accuracy'][1]:>10.1%}"
    yield _pair("answers found", figures["answers_found"])
    if count > groups:  # an evaluation with one sample a problem has no groups
        yield _pair("groups without signal", figures["groups_without_signal"])
    for label, name in (("groups dropped", "groups_dropped"), ("samples left out", "samples_left_out")):
        for reason in sorted({*figures[name][0], *figures[name][1]}):
            yield _pair(f"{label}: {reason}", [part.get(reason, 0) for part in figures[name]])
    if (own := figures["advantages"] if count > groups else {}) is None:
        yield "advantages: not compared, GAE needs the critic's values"
    elif own:
        yield f"{'mean size of advantages':28}{own['mean_size'][0]:>10.3f}{own['mean_size'][1]:>10.3f}"
        same = "undefined" if own["correlation"] is None else f"{own['correlation']:.3f}"
        yield f"advantages: correlation {same}, another sign in {own['other_sign']} of {count}"
    differ = sum(case.differs for case in found.cases)
    yield (
        f"disagree on {differ} of {count} ({differ / count:.1%}): paid more {figures['paid_more']}, "
        f"less {figures['paid_less']}; right to wrong {figures['right_to_wrong']}, "
        f"wrong to right {figures['wrong_to_right']}"
    )
    for error, number in list(figures["errors"].items())[:ERRORS]:
        yield f"scoring raised {number} times: {error}"
    for case in found.examples():
        now = "" if case.pred == case.new_pred else f" now {case.new_pred!r:.{SHOWN}}"
        yield (
            f"  #/t/{case.step}/{case.row}  {case.problem}: reward {case.score:.3g} -> {case.new_score:.3g}, "
            f"{_verdict(case.acc)} -> {_verdict(case.new_acc)}, "
            f"answer {case.pred!r:.{SHOWN}}{now}, truth {case.truth!r:.{SHOWN}}"
        )


def _counts(words: Iterable[str]) -> dict[str, int]:
    """How often each word but "" comes, the most frequent first."""
    return dict(Counter(word for word in words if word).most_common())


def _pair(label: str, pair) -> str:
    return f"{label:28}{pair[0]:>10}{pair[1]:>10}"


def _verdict(acc: float) -> str:
    return "right" if acc > 0.5 else "wrong"


def _changes(old: Mapping, new: Mapping, prefix: str = "") -> Iterator[str]:
    for key in sorted({*old, *new}):
        was, now = old.get(key), new.get(key)
        if isinstance(was, Mapping) and isinstance(now, Mapping) and key != "args":
            yield from _changes(was, now, f"{prefix}{key}.")
        elif was != now:
            yield f"{prefix}{key} {json.dumps(was)} -> {json.dumps(now)}"
