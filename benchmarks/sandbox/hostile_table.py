"""The hostile table: every hostile program at every level that this machine offers, as root and as an ordinary user.

python -m benchmarks.sandbox.hostile_table                              as the user who calls, 3 repetitions
python -m benchmarks.sandbox.hostile_table --as-user nobody             also as that user (needs root)
python -m benchmarks.sandbox.hostile_table --levels process --only net  some of it

Every user must be able to read this checkout and the interpreter, root's programs too, which run under a user id of
their own; --user-python names another interpreter where the usual one lies in a closed folder. Ends with 1 if a program
succeeded, had a wrong status or left something behind.
"""

import argparse
import asyncio
import collections
import json
import os
import pwd
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from benchmarks import provenance
from benchmarks.sandbox.measure import PACKAGES
from retool_mcore.errors import UserError
from tests.support.hostile import hostile_catalogue, hostile_runner

CASES, FAMILIES, LEVELS = hostile_catalogue.CASES, hostile_catalogue.FAMILIES, hostile_runner.LEVELS

ALONE = "RETOOL_ALONE"
KINDS = ("escaped", "wrong_status", "left", "poisoned")


async def at_level(level: str, names: list[str], repetitions: int) -> dict | None:
    """One row of the table; None when the machine does not offer `level`."""
    opened = hostile_runner.Range(level)
    try:
        await opened.start()
        if level != "namespaces" and (await opened.box.run("__import__('os').getuid()")).value == "0":
            raise SystemExit(
                f"{sys.executable} lies in a folder that only root can read, so that the programs would run as root "
                "with root's files before them: name another interpreter with --user-python."
            )
    except UserError as error:
        print(f"left out: {error}", file=sys.stderr, flush=True)
        await opened.close()
        return None
    counts = collections.Counter()
    failures, known = [], set()
    for _ in range(repetitions):
        for name in names:
            verdict = await opened.attempt(CASES[name])
            counts["skipped" if verdict.skipped else "runs"] += 1
            for kind in KINDS:
                counts[kind] += bool(getattr(verdict, kind))
            counts["contained"] += not (verdict.skipped or verdict.escaped or verdict.known)
            if verdict.known:
                known.add(name)
                counts["known"] += 1
            for failure in verdict.failures():
                failures.append(f"{name}: {failure}")
                print(level, failures[-1], file=sys.stderr, flush=True)
    await opened.close()
    user = "root" if os.getuid() == 0 else "ordinary user"
    return {"user": user, "level": level, "cases": len(names)} | {
        kind: counts[kind] for kind in ("runs", "skipped", "contained", "known", *KINDS)
    } | {"not_covered": sorted(known), "failures": failures}  # fmt: skip


# Process ids of the host's that the programs are told must not be those of their own small namespace.
FIRST_PID = "echo 50000 > /proc/sys/kernel/ns_last_pid && exec "


def rows_of(user: str | None, level: str, arguments: argparse.Namespace) -> list[dict]:
    """The row of `level`, made by this program again in a pid namespace of its own: below level "namespaces" a program
    may kill whatever of its user it sees. `user` None: the one who calls."""
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    alone += ["sh", "-c", FIRST_PID + '"$@"', "-"] if os.getuid() == 0 else ["--user", "--map-current-user"]
    environment = os.environ | {ALONE: "1"}
    if user is not None:
        entry = pwd.getpwnam(user)
        ids = ["--reuid", str(entry.pw_uid), "--regid", str(entry.pw_gid)]
        alone += ["setpriv", *ids, "--clear-groups", "--inh-caps=-all"]
        environment["HOME"] = "/nonexistent"
    environment["PYTHONPATH"] = str(provenance.ROOT)
    again = [
        "-m",
        "benchmarks.sandbox.hostile_table",
        "--rows",
        "--repetitions",
        str(arguments.repetitions),
        "--levels",
        level,
    ]
    again += ["--only", arguments.only] if arguments.only else []
    done = subprocess.run([*alone, arguments.user_python, *again], stdout=subprocess.PIPE, cwd="/", env=environment)
    if done.returncode != 0:
        who = user or "this user"
        raise SystemExit(f"{who} could not run {arguments.user_python}: exit code {done.returncode}; see --user-python")
    rows = json.loads(done.stdout.decode().splitlines()[-1])
    for row in rows:
        print({key: value for key, value in row.items() if key not in ("failures", "not_covered")}, flush=True)
    return rows


def refuse_unless_alone() -> None:
    if os.environ.get(ALONE) is None or len([name for name in os.listdir("/proc") if name.isdigit()]) > 20:
        raise SystemExit(
            "this process is not alone in a pid namespace; refusing to run programs that kill all they see"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as-user", metavar="NAME")
    parser.add_argument("--user-python", default=sys.executable)
    parser.add_argument("--levels", nargs="+", default=LEVELS[::-1], choices=LEVELS)
    parser.add_argument("--only", default="", help="a family, or how a case's name begins")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", action="store_true", help="print the rows as JSON and write no file")
    arguments = parser.parse_args()
    if arguments.rows:
        refuse_unless_alone()
        names = [case.name for case in FAMILIES.get(arguments.only, [])]
        names = names or [name for name in CASES if name.startswith(arguments.only)]
        found = [asyncio.run(at_level(level, names, arguments.repetitions)) for level in arguments.levels]
        print(json.dumps([row for row in found if row is not None]))
        return
    head = provenance.made(PACKAGES)
    users = [None] + ([arguments.as_user] if arguments.as_user else [])
    with ThreadPoolExecutor(len(users)) as pool:  # one user's levels would meet in what the kernel counts for a user
        rows = sum(
            pool.map(lambda user: sum((rows_of(user, level, arguments) for level in arguments.levels), []), users), []
        )
    head["command"] = head["command"].replace(arguments.user_python, "PYTHON")
    families = {family: len(cases) for family, cases in FAMILIES.items()}
    reasons = {
        name: dict(CASES[name].open_at) for name in sorted({name for row in rows for name in row["not_covered"]})
    }
    if not arguments.only:
        print(provenance.write("sandbox_hostile", head, {"families": families, "rows": rows, "reasons": reasons}))
    raise SystemExit(any(row["failures"] for row in rows))


if __name__ == "__main__":
    main()
