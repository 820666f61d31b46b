"""`retool compare`: arms by seeds against a criterion, runs without one, or a run on a reference curve."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

_SEEDED = re.compile(r"(?P<arm>.+?)[-_.]?(?:seed|s)[-_]?(?P<seed>\d+)")


def compare(
    words: Annotated[
        list[str],
        Argument(metavar="PLAN|RUN...", help="A plan's YAML file; or folders of runs; or a run and reference:NAME."),
    ],
    label: Annotated[
        str, Option("--eval", metavar="LABEL", help="Without a plan: compare the evaluations RUN/eval/LABEL.")
    ] = "rl",
    plot: Annotated[
        str | None, Option(metavar="NAME", help="Draw NAME.png and NAME.svg; with a plan its own name is the default.")
    ] = None,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write the figures there.")] = None,
    reference: Annotated[
        Path | None,
        Option(
            "--write-reference", metavar="FILE", help="Write the curves of these seeds as a reference, a .json file."
        ),
    ] = None,
    about: Annotated[
        str, Option(metavar="TEXT", help="With --write-reference: what the runs are, as a sentence.")
    ] = "",
) -> None:
    """Compare arms over seeds and problems by the criteria of a plan that is older than its runs: paired intervals,
    the verdict, minutes and tokens, one figure. Without a plan the same without a verdict; or place a run on a
    reference curve."""
    from retool_mcore.analysis.reference import PREFIX

    named = [word.removeprefix(PREFIX) for word in words if word.startswith(PREFIX)]
    folders = [Path(word) for word in words if not word.startswith(PREFIX)]
    if reference is not None and (named or folders[0].suffix in (".yaml", ".yml")):
        raise UserError("--write-reference takes folders of runs, one for each seed.")
    if about and reference is None:
        raise UserError("--about belongs to --write-reference.")
    if named:
        if len(named) > 1 or len(folders) != 1:
            raise UserError("expected one run and one reference, as in retool compare runs/mine reference:quickstart.")
        figures, lines = _placed(folders[0], named[0], label)
    elif len(folders) == 1 and folders[0].suffix in (".yaml", ".yml"):
        figures, lines = _planned(folders[0], plot or str(folders[0].with_suffix("")))
    else:
        figures, lines = _explored(folders, label, plot, reference, about)
    print("\n".join(lines))
    if json_file is not None:
        write_atomically(json_file, json.dumps(figures, indent=1) + "\n")


def _planned(path: Path, plot: str) -> tuple[dict, list[str]]:
    from retool_mcore.analysis.compare import costs, judge, read_arms
    from retool_mcore.analysis.plan import MEASURES, read_plan

    plan = read_plan(path)
    runs, missing = read_arms(plan, path)
    rows = judge(plan, runs)
    lines = [f"{path}: {MEASURES[plan.measure]}; seeds {', '.join(map(str, plan.seeds))}"]
    lines += [line for row in rows for line in _claim(row, verdict=True)]
    if unread := [name for name in plan.claims if name not in {row["claim"] for row in rows}]:
        lines.append(f"no figures yet: {', '.join(unread)}")
    if missing:
        lines.append(f"missing runs: {', '.join(missing)}")
    lines += [*_costs(costs(runs)), *_draw(plan, runs, plot)]
    return {"plan": plan.model_dump(), "claims": rows, "costs": costs(runs)}, lines


def _explored(
    folders: Sequence[Path], label: str, plot: str | None, reference: Path | None, about: str
) -> tuple[dict, list[str]]:
    """Runs without a plan: arms by the folders' names, pairs of the first arm with each other one, and no verdict."""
    from retool_mcore.analysis.arms import read_run
    from retool_mcore.analysis.compare import costs, judge
    from retool_mcore.analysis.plan import Claim, Plan
    from retool_mcore.analysis.reference import PREFIX, write_reference

    runs: dict[str, dict] = {}
    for folder in folders:
        match = _SEEDED.fullmatch(folder.resolve().name)
        arm, seed = (match["arm"], int(match["seed"])) if match else (folder.resolve().name, 0)
        if seed in runs.setdefault(arm, {}):
            raise UserError(f"{folder} and {runs[arm][seed].path} are both arm {arm}, seed {seed}: rename one.")
        runs[arm][seed] = read_run(folder, label)
    if reference is not None:
        curves = {run.path: list(run.curve.values()) for own in runs.values() for run in own.values()}
        write_reference(reference, about or f"{len(curves)} seeds of {next(iter(runs))}", curves)
    first, *others = runs
    measure = "evaluation" if all(run.evaluation for own in runs.values() for run in own.values()) else "training"
    rows: list[dict] = []
    lines: list[str] = []
    for other in others:
        shared = sorted(runs[first].keys() & runs[other].keys())
        if not shared:
            lines.append(f"{first} and {other} have no seed in common: no pairs.")
            continue
        claim = Claim(better=first, worse=other, rule="above", points=0)
        plan = Plan(arms={first: "", other: ""}, seeds=shared, measure=measure, label=label, claims={"pairs": claim})
        rows += judge(plan, {arm: {seed: runs[arm][seed] for seed in shared} for arm in (first, other)})
    for row in rows:
        row["criterion"] = row["criterion"].partition(" interval")[0]
        lines += _claim(row, verdict=False)
    note = f"{measure}; no criterion was fixed before these runs: figures without a verdict"
    plan = Plan(arms=dict.fromkeys(runs, ""), seeds=[0], measure=measure, label=label, claims={})
    lines = [note, *lines, *_costs(costs(runs)), *(_draw(plan, runs, plot) if plot else ())]
    if reference is not None:
        lines.append(f"{reference}: compare a run with it by retool compare RUN {PREFIX}{reference}")
    return {"claims": [{k: v for k, v in row.items() if k != "met"} for row in rows], "costs": costs(runs)}, lines


def _placed(run: Path, name: str, label: str) -> tuple[dict, list[str]]:
    from retool_mcore.analysis.arms import read_run
    from retool_mcore.analysis.reference import check_settings, find_reference, place

    reference = find_reference(name)
    trained = read_run(run, label)
    other = check_settings(run, reference)
    own = place(list(trained.curve.values()), reference)
    low, high = (100 * end for end in own["band"])
    lines = [
        f"{run} on {reference['name']}: {reference['about']}".rstrip(": "),
        f"{own['inside']} of {own['steps']} steps lie in the band in which 95 of 100 further seeds would",
        f"the last steps: {100 * own['value']:.1f} %, band {low:.1f} to {high:.1f} %: {own['verdict']} it",
        *([f"other settings than the reference's: {'; '.join(other)}"] if other else []),
    ]
    return own | {"reference": reference["name"]}, lines


def _claim(row: Mapping, verdict: bool) -> Iterator[str]:
    pairs, met = ", ".join(f"{pair:+.1f}" for pair in row["pairs"]), ""
    if verdict:
        met = {True: " met.", False: " not met.", None: " no verdict: a run is missing."}[row["met"]]
    unit = "points" if row["of"] == "accuracy" else "calls of 100 trajectories"
    values = f"{row['better']:.1f} against {row['worse']:.1f}"
    yield f"{row['claim']}: {row['criterion']}.{met} Mean {row['mean']:+.1f} {unit} ({values}); pairs {pairs}"
    if row["sources"]:
        yield f"  on {', '.join(row['sources'])}"
    for what, name in ((f"{len(row['pairs'])} seeds", "over_seeds"), (f"{row['problems']} problems", "over_problems")):
        if row[name]:
            yield f"  95 % interval over {what}: {row[name][0]:+.1f} to {row[name][1]:+.1f}"
    if len(row["pairs"]) == 1:
        yield "  one pair only: another seed may say the opposite"


def _costs(rows: Sequence[Mapping]) -> Iterator[str]:
    yield f"{'arm':20}{'runs':>6}{'accuracy, last step':>21}{'minutes':>9}{'GPU minutes':>13}{'tokens':>12}"
    for row in rows:
        gpu = "-" if row["gpu_minutes"] is None else f"{row['gpu_minutes']:.1f}"
        yield (
            f"{row['arm']:20}{row['runs']:>6}{100 * row['accuracy']:>19.1f} %{row['minutes']:>9.1f}{gpu:>13}"
            f"{row['tokens']:>12,}"
        )


def _draw(plan, runs: Mapping, name: str) -> Iterator[str]:
    from retool_mcore.analysis.figure import bands

    arms = {}
    for arm, own in runs.items():
        known = plan.measure == "evaluation" and all(run.evaluation for run in own.values())
        last = [sum(run.evaluation.values()) / len(run.evaluation) for run in own.values()] if known else []
        arms[arm] = ([list(run.curve.values()) for run in own.values()], last)
    paths = [Path(f"{name}.png"), Path(f"{name}.svg")]
    bands(arms, paths)
    yield f"figure: {', '.join(map(str, paths))}"
