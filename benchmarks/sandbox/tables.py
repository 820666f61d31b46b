"""Markdown tables out of benchmarks/results/sandbox*.json, and into docs/measured/sandbox.md between its markers."""

import json
from pathlib import Path

from benchmarks import provenance
from benchmarks.tables import markdown, put

SYSTEMS = ("retool", "plain fork", "subprocess", "bubblewrap", "SandboxFusion")


def print_tables(document: Path, write: bool) -> None:
    """Print every table that has a result; `write`: replace `<!-- table NAME -->...<!-- end -->` in `document`."""
    tables = {}
    makers = {"sandbox": comparison, "sandbox_neighbours": neighbours, "sandbox_hostile": hostile, "sandbox_soak": soak}
    makers |= {"sandbox_load": load, "sandbox_preload": preload}
    for name, make in makers.items():
        path = provenance.RESULTS / f"{name}.json"
        if path.exists():
            tables[name] = make(json.loads(path.read_text()))
    for name, table in tables.items():
        print(f"## {name}\n\n{table}\n")
    if write:
        document.write_text(put(document.read_text(), tables, document.name))


def _measured(made: dict) -> str:
    machine = made["machine"]
    return (
        f"Measured {made['date']} with `{made['command']}` on {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}, load {machine['load']} before."
    )


def comparison(result: dict) -> str:
    """runs/s, p50 and p99 of each system, with ours as a multiple of theirs."""
    cells = {(cell["program"], cell["clients"], cell["system"]): cell for cell in result["cells"]}
    present = [name for name in SYSTEMS if any(cell["system"] == name for cell in result["cells"])]
    others = [name for name in present if name != "retool"]
    rows = []
    for program, clients in dict.fromkeys((cell["program"], cell["clients"]) for cell in result["cells"]):
        ours = cells[program, clients, "retool"]
        row = [f"`{program}`", clients, ours["runs_per_s"], ours["p50_ms"], ours["p99_ms"]]
        for name in others:
            cell = cells[program, clients, name]
            if "left_out" in cell:
                row.append("left out")
            else:
                ratio = ours["runs_per_s"] / cell["runs_per_s"]
                failed = f", {cell['errors']} failed" if cell["errors"] else ""
                row.append(f"{ratio:.1f}x ({cell['runs_per_s']}/s, {cell['p50_ms']} ms{failed})")
        rows.append(row)
    head = [
        "program",
        "clients",
        "runs/s",
        "p50 ms",
        "p99 ms",
        *[f"ours / {name} (its runs/s, p50)" for name in others],
    ]
    memory = result["memory"]
    parts = [
        f"{_measured(result['made'])} Level `{result['level']}`.",
        markdown(head, rows),
        *[f"Left out: {name}: {reason}." for name, reason in result["left_out"].items()],
        f"Idle, shared pages divided among their sharers (PSS): server {memory['server_mb']} MB, "
        f"{memory['waiting_processes']} waiting processes of {memory['waiting_mb_each']} MB on average "
        f"(largest {memory['waiting_mb_largest']} MB); an interpreter that imported numpy, scipy and sympy by itself "
        f"{memory['own_interpreter_mb']} MB.",
    ]
    return "\n\n".join(parts)


def neighbours(result: dict) -> str:
    """p99 of print(1) alone and beside hogs."""
    rows = [
        [row["clients"], f"{row['hogs']} x {row['kind']}", *(row[when]["p99_ms"] for when in ("alone", "beside"))]
        + [row["p99_ratio"]]
        for row in result["neighbours"]
    ]
    groups = "on" if result["autogroup"] else "off"
    head = ["clients", "hogs beside them", "p99 ms alone", "p99 ms beside", "ratio"]
    return f"{_measured(result['made'])} The kernel's automatic groups are {groups}.\n\n{markdown(head, rows)}"


def load(result: dict) -> str:
    """Times of print(1) alone and beside sixteen hostile callers, whole and without its wait for a slot."""
    rows = []
    for row in result["rows"]:
        alone, beside = row["alone"], row["beside"]
        rows.append([row["kind"], alone["own_p50_ms"], alone["own_p99_ms"], beside["runs"], beside["own_p50_ms"]])
        rows[-1] += [beside["own_p99_ms"], row["own_p50_ratio"], row["own_p99_ratio"], beside["whole_p50_ms"]]
    head = ["hostile", "alone: p50 ms", "p99", "beside: runs", "p50 ms", "p99", "ratio p50", "ratio p99"]
    text = f"256 sleeps of one second at once: {result['sleeps_256_s']} s."
    return f"{_measured(result['made'])}\n\n{markdown([*head, 'with its wait: p50 ms'], rows)}\n\n{text}"


def preload(result: dict) -> str:
    """Start, memory and times of programs by set of preloaded packages."""
    programs = ("print(1)", "numpy", "sympy")
    keys = ("preload", "first_run_s", "warm_interpreter_pss_mb", "all_processes_pss_mb")
    rows = [[*[row[key] for key in keys], *[row[program]["p50_ms"] for program in programs]] for row in result["rows"]]
    head = ["preloaded", "first run s", "warm interpreter MB", "all processes MB", *[f"`{p}` p50 ms" for p in programs]]
    return f"{_measured(result['made'])}\n\n{markdown(head, rows)}"


def hostile(result: dict) -> str:
    """Counts by user and level, then every program that a level does not contain, with the reason."""
    keys = (
        "user",
        "level",
        "cases",
        "runs",
        "skipped",
        "contained",
        "known",
        "escaped",
        "wrong_status",
        "left",
        "poisoned",
    )
    head = [*keys[:6], "not covered", "successes", "wrong status", "left-overs", "next run changed"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in result["rows"]:
        for name in row["not_covered"]:
            names = reasons.setdefault((row["level"], result["reasons"][name][row["level"]]), [])
            if name not in names:
                names.append(name)
    listed = [[level, reason, ", ".join(f"`{name}`" for name in names)] for (level, reason), names in reasons.items()]
    parts = [_measured(result["made"]), markdown(head, [[row[key] for key in keys] for row in result["rows"]])]
    if listed:
        parts += ["Programs that a level does not contain:", markdown(["level", "why", "programs"], listed)]
    return "\n\n".join(parts)


def soak(result: dict) -> str:
    """Counts before and after."""
    before, after = result["before"], result["after"]
    rows = [[name.replace("_", " "), before[name], after[name]] for name in before]
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(result["statuses"].items()))
    wrong = ", ".join(f"{count} {what}" for what, count in result["wrong_status"].items()) or "none"
    return "\n\n".join(
        [
            f"{_measured(result['made'])} Level `{result['level']}`, {result['runs']} runs, "
            f"{result['runs_per_s']} runs/s: {statuses}. Unexpected statuses: {wrong}.",
            markdown(["", "after the first tenth", "after all"], rows),
        ]
    )
