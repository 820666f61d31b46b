"""Checks every node of the allocation before a stage starts: one look a node, all in parallel, judged on the first.

`python -m retool_mcore.cluster.node_check '{"config": FILE}'` looks at one node and prints its report as one JSON line;
`check_nodes` runs that on all nodes by one srun step and refuses the job when a node is unfit.
"""

import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from retool_mcore.cluster import nccl_check, network, slurm
from retool_mcore.cluster.node_report import report, token_file
from retool_mcore.cluster.node_verdicts import Verdict, notes, refusal, table, verdicts
from retool_mcore.errors import UserError
from retool_mcore.runner import processes

DEADLINE_S, DEADLINE_S_A_NODE = 120.0, 2.0
# Checks whose failure on every node another start may not meet: a process that was killed may still hold memory, say.
PASSING = {"answer", "ports", "memory", "shared memory", "GPU memory in use", "GPU faults"}
# Checks that say why a stage may have failed: what else differs right after a failure is of the processes that end.
HARDWARE = {"answer", "gpus", "GPUs", "gpu_faults", "GPU faults", "infiniband"}
REPORT = '{"node": '  # how a node's report begins
LABELLED = re.compile(r"\s*(\d+): (.*)")  # srun --label: number of the task, then its line


class NodesBroken(UserError):
    """`nodes` are unfit and others are not, or were fit when the stage began: nothing that the user gave is wrong, and
    another start may go well, best on others."""

    def __init__(self, message: str, nodes: Sequence[str]) -> None:
        super().__init__(message)
        self.nodes = nodes


def plain_srun(options: Sequence[str], command: Sequence[str]) -> list[str]:
    """A step of one task a node, which does not wait for what other steps of the job hold."""
    return [slurm.program("srun"), "--ntasks-per-node=1", "--overlap", "--mem=0", *options, *command]


def check_nodes(
    nodes: Sequence[str],
    config: DictConfig,
    config_path: Path,
    srun: Callable[[Sequence[str], Sequence[str]], list[str]] = plain_srun,
    *,
    ports: Sequence[int] = (),
    sandbox: bool = True,
    proven: bool = False,
    console: Console | None = None,
) -> None:
    """Looks at all `nodes` at once and prints what differs or fails; seconds when all is well.

    Args:
        nodes: Slurm's names, the first node first.
        config_path: the resolved configuration, on a path that all nodes see.
        srun: makes the command line of a job step from its options and its command (in a container, say).
        ports: TCP ports that must be free on every node.
        sandbox: false for a stage that runs no program.
        proven: the stage has ended steps with this configuration, which therefore is not at fault.

    Raises:
        UserError: names the first node that is unfit, what is wrong and what to do.
        NodesBroken: the same, where other nodes pass the check, or all nodes' failures may pass, or `proven`.
    """
    console = console or Console()
    results = _look(nodes, config, config_path, srun, ports, sandbox)
    if message := refusal(results):
        console.print(table(results, nodes))
        bad = [verdict for verdict in results if not verdict.ok]
        unfit = list({verdict.node: verdict for verdict in bad})
        everywhere = {check for check in {v.check for v in bad} if sum(v.check == check for v in bad) == len(nodes)}
        nodes_fault = proven or everywhere <= PASSING
        raise NodesBroken(message, unfit) if nodes_fault else UserError(message)
    checks = len({verdict.check for verdict in results})
    console.print(f"nodes: {', '.join(nodes)}: {checks} checks, all fine.")
    for note in notes(results):
        console.print(f"nodes: {note}", markup=False)


def faulty_nodes(
    nodes: Sequence[str],
    config: DictConfig,
    config_path: Path,
    srun: Callable[[Sequence[str], Sequence[str]], list[str]] = plain_srun,
) -> list[str]:
    """The nodes whose hardware is unfit, as after a stage that failed on them. Arguments as of `check_nodes`."""
    try:
        results = _look(nodes, config, config_path, srun, (), sandbox=False)
    except UserError:
        return []
    return list({v.node: v for v in results if not v.ok and v.check in HARDWARE})


def _look(
    nodes: Sequence[str],
    config: DictConfig,
    config_path: Path,
    srun: Callable[[Sequence[str], Sequence[str]], list[str]],
    ports: Sequence[int],
    sandbox: bool,
) -> list[Verdict]:
    deadline_s = DEADLINE_S + DEADLINE_S_A_NODE * len(nodes)
    token = secrets.token_hex(8)
    path = token_file(config.run_dir, token)
    arguments = dict(config=str(config_path), token=token, ports=[*ports], sandbox=sandbox, deadline_s=deadline_s)
    command = [sys.executable, "-m", "retool_mcore.cluster.node_check", json.dumps(arguments)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(token)
    except OSError as error:
        raise UserError(f"run_dir {config.run_dir} cannot be written ({error}): choose another runs_dir.") from error
    try:
        reports = gather(nodes, command, srun, deadline_s)
    finally:
        path.unlink(missing_ok=True)
    return verdicts(reports, config)


def gather(
    nodes: Sequence[str],
    command: Sequence[str],
    srun: Callable[[Sequence[str], Sequence[str]], list[str]],
    deadline_s: float,
) -> list[dict[str, Any]]:
    """The reports of all nodes, in the order of `nodes`; {"node", "no_answer"} for one that gave none in time.

    The first node's clock is added to each: `launched` before srun started, `received` as the report arrived.
    """
    options = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    options += ["--kill-on-bad-exit=0", "--label", "--unbuffered"]
    step = srun(options, command)
    launched = time.time()
    deadline = time.monotonic() + deadline_s
    try:
        process = subprocess.Popen(
            step, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise UserError(f"{step[0]} cannot be started ({error}): run this inside a Slurm allocation.") from error
    lines: queue.Queue[tuple[str, float, str]] = queue.Queue()
    readers = [
        threading.Thread(target=_read, args=(name, stream, lines), daemon=True)
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    for reader in readers:
        reader.start()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        timed_out = process.poll() is None
        ended = time.time()
    finally:
        processes.end([process], 10.0)  # srun ends the tasks of its step, which also end themselves at the deadline
    for reader in readers:
        reader.join(5.0)
    if not timed_out:
        return _reports(nodes, list(lines.queue), launched, "")
    # What came later are complaints about our ending it.
    in_time = [line for line in lines.queue if line[1] <= ended]
    return _reports(nodes, in_time, launched, f"no answer within {deadline_s:.0f} s")


def _read(name: str, stream: IO[str], lines: "queue.Queue[tuple[str, float, str]]") -> None:
    for line in stream:
        lines.put((name, time.time(), line.rstrip("\n")))


def _reports(
    nodes: Sequence[str], lines: Sequence[tuple[str, float, str]], launched: float, late: str
) -> list[dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    last_words: dict[int, str] = {}  # of each task
    output: dict[int, str] = {}  # on standard output, by each task: srun breaks a long line, and labels every piece
    errors: list[str] = []  # of srun itself
    for stream, received, line in lines:
        match = LABELLED.fullmatch(line)
        text = match[2] if match else line
        if stream == "stdout":
            task = int(match[1]) if match else -1
            output[task] = output.get(task, "") + text
            if answer := _answer_in(output[task]):
                answers[answer["node"]] = answer | {"launched": launched, "received": received}
                continue
        if match and text.strip():
            last_words[int(match[1])] = text.strip()
        elif "error:" in text:
            errors.append(text.strip())
    for task, node in enumerate(nodes):
        if node not in answers:
            # Slurm numbers the tasks in the order of the nodes.
            own = next((error for error in errors if re.search(rf"\b{re.escape(node)}\b", error)), "")
            reason = last_words.get(task) or own or late or (errors or ["it ended without a report"])[0]
            answers[node] = {"node": node, "no_answer": reason}
    return [answers[node] for node in nodes]


def _answer_in(text: str) -> dict[str, Any] | None:
    """The report at the end of a task's output so far, once it is whole."""
    start = text.find(REPORT)
    with suppress(json.JSONDecodeError):
        return json.loads(text[start:]) if start >= 0 else None
    return None


def check_allocation(config: DictConfig, console: Console | None = None) -> None:
    """`check_nodes` for `retool doctor` inside an allocation, and an all-reduce over its nodes. Raises as it does."""
    nodes, job = slurm.hostnames(os.environ["SLURM_JOB_NODELIST"]), os.environ["SLURM_JOB_ID"]
    path = Path(config.run_dir) / "slurm" / f"doctor-{job}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, path)
    check_nodes(nodes, config, path, console=console)
    address = _meeting_place(nodes)
    all_nodes = {"parallel": {**config.parallel, "nodes": len(nodes)}}
    port = network.free_base_port(int(job), 1)
    if nccl_check.unfit_nodes(all_nodes, plain_srun, nodes, address=address, port=port) is not None:
        raise UserError(nccl_check.FAILED)


def _meeting_place(nodes: Sequence[str]) -> str:
    """The first node's address, or its name where only the cluster's nodes know it."""
    if nodes[0] == network.host():
        return network.shared_address(nodes[1:])[1]
    try:
        return network.resolve(nodes[0])  # on a login node (salloc)
    except UserError:
        return nodes[0]


def main(config: str, deadline_s: float = DEADLINE_S, **given: Any) -> None:
    """`config`: the file of a stage's resolved configuration; `given`: see node_report.report."""
    started = time.time()
    # A step whose srun was killed must not stay on the node.
    signal.setitimer(signal.ITIMER_REAL, deadline_s)
    try:
        loaded = OmegaConf.load(config)
    except OSError as error:
        answer = {
            "node": network.host(),
            "no_answer": f"the configuration cannot be read ({error}): is run_dir shared?",
        }
    else:
        answer = report(loaded, **given)
    print(json.dumps(answer | {"clock_started": started, "clock_ended": time.time()}), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
