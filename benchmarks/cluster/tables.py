"""The tables of docs/measured/cluster.md out of benchmarks/results: faults and rehearsal.

python -m benchmarks.cluster.tables             print it
python -m benchmarks.cluster.tables --write     put it into the page, between `<!-- table NAME -->` and `<!-- end -->`
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence

from benchmarks import provenance
from benchmarks.tables import markdown, put

PAGE = provenance.ROOT / "docs" / "measured" / "cluster.md"
HEAD = (
    "fault",
    "stage",
    "detected (s)",
    "resumed (s)",
    "lost / doubled",
    "orphans",
    "cause, as the user finds it",
    "commit",
)


def faults(result: dict) -> str:
    """A row for each fault that was tried, by stage and name, and what they add up to."""
    rows = sorted(result["rows"], key=lambda row: (row["stage"] != "sft", row["pipeline"] != "sync", row["fault"]))
    lines = []
    for row in rows:
        steps = f"{row['steps_lost']} / {row['steps_doubled']}"
        cause = f"`{row['cause'].replace('`', chr(39))}`" if row["cause"] else "-"
        times = [_seconds(row["detected_s"]), _seconds(row["resumed_s"])]
        stage = row["stage"] if row["pipeline"] == "sync" else f"{row['stage']}, {row['pipeline']}"
        version = row["commit"] or f"before {row['recorded']}"
        told = (steps, str(row["orphans"]), cause.replace("|", "\\|"), f"{version}, {row['date']}")
        lines.append((row["fault"], stage, *times, *told))
    kills = sum("kill -9" in row["hit"] for row in rows)
    stages = Counter(row["stage"] for row in rows)
    ahead = sum(row["pipeline"] != "sync" for row in rows)
    sums = {name: sum(row[name] for row in rows) for name in ("steps_lost", "steps_doubled", "orphans")}
    loads = [row["load"] for row in rows if row.get("load")]
    shown = [f"{len(rows)} faults ({stages['sft']} of SFT, {stages['rl']} of RL, {ahead} of these with rollouts "]
    shown.append(f"that run ahead), {kills} of them `kill -9`: ")
    shown.append(f"{sums['steps_lost']} lost, {sums['steps_doubled']} doubled, {sums['orphans']} orphans. ")
    shown.append(f"{result['made']['machine']['cores']} cores")
    shown.append(f", a load of {min(loads):.0f} to {max(loads):.0f} at the moments of the faults." if loads else ".")
    return f"{''.join(shown)}\n\n{markdown(HEAD, lines)}"


def rehearsal(result: dict) -> str:
    """What the rehearsal came to, and a row for each fault in the order in which they came."""
    rows, end, clock = result["rows"], result["end"] or {}, result["clock"]
    limits = sum(row["what"] == "time limit" for row in rows)
    text = (
        f"{len(rows)} of {result['planned']} planned faults in {result['minutes']:.0f} minutes: {limits} time limits "
    )
    text += f"and {len(rows) - limits} `kill -9`. "
    if end:
        told = "each once in the metrics"
        if end["steps_missing"] or end["steps_twice"]:
            told = f"missing in the metrics {end['steps_missing']}, twice {end['steps_twice']}"
        text += f"Steps 1 to {end['steps']}: {told}; the largest difference to the undisturbed run's figures is "
        text += f"{end['largest_difference']:.1e}. {end['trajectories_finished']} trajectories were finished, "
        text += f"{len(end['generated_twice'])} of them twice, {end['taken_over']} of them were trained on by a later "
        text += f"start; {len(end['trained_on_others'])} are not, token for token, what their step trained on. "
    text += f"{sum(row['orphans'] for row in rows) + end.get('orphans_at_the_end', 0)} processes were left. "
    text += f"A step took {clock['step_s']:.0f} s, the signal's lead {clock['lead_s']:.1f} s and the watchdog's limit "
    cores = result["made"]["machine"]["cores"]
    text += f"{clock['watchdog_s']:.0f} s on that clock (1:{clock['scale']:.0f}). {cores} cores"
    loads = [row["load"] for row in rows]
    text += f", a load of {min(loads):.0f} to {max(loads):.0f} at the moments of the faults." if loads else "."
    head = ("step", "phase", "fault", "detected (s)", "generates again (s)", "kept of the step", "cause, as told")
    lines = []
    for row in rows:
        cause = f"`{row['cause'].replace('`', chr(39))}`".replace("|", "\\|") if row["cause"] else "-"
        fault = row["what"] + (" (given up, submitted again)" if row["submitted_again"] else "")
        times = [_seconds(row["detected_s"]), _seconds(row["resumed_s"])]
        lines.append((str(row["step"]), row["phase"], fault, *times, str(row["kept"]), cause))
    return f"{text}\n\n{markdown(head, lines)}"


def render(page: str) -> str:
    """Return `page` with its tables as the results have them. Raises ValueError when it has no place for one."""
    makers = {"faults": faults, "rehearsal": rehearsal}
    results = {name: json.loads((provenance.RESULTS / f"{name}.json").read_text()) for name in makers}
    return put(page, {name: make(results[name]) for name, make in makers.items()}, PAGE.name)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/measured/cluster.md")
    options = parser.parse_args(arguments)
    page = render(PAGE.read_text())
    if options.write:
        PAGE.write_text(page)
    else:
        print("\n\n".join(re.findall(r"<!-- table \w+ -->\n(.*?)\n<!-- end -->", page, re.DOTALL)))


if __name__ == "__main__":
    main()
