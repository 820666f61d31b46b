"""Runs one stage: checks first, then the stage in a session of its own, with log, progress and a record of attempts.

Files of a stage under RUN/<stage>/ (an evaluation's under RUN/eval/<label>/):
    config.yaml                 the resolved configuration; config_attempt_NNN.yaml is the one that attempt NNN ran with
    log.txt                     everything the stage printed, all attempts
    metrics/attempt_NNN.jsonl   one line a step, written by verl
    attempts.jsonl              one line an attempt: when, how long, exit code
    COMPLETE                    sha256 of the configuration that was carried to its end
"""

import fcntl
import json
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore import processes
from retool_mcore.config import config_hash
from retool_mcore.errors import UserError
from retool_mcore.progress import Progress, attempt_files
from retool_mcore.stage_log import last_error

POLICIES = ("init", "sft", "rl")  # policies of a run that eval and export know by name
TORCHRUN = ("sft", "export")  # stages that run one process a GPU
NODE_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


class StageFailed(Exception):
    """The stage ended with an error that is not the user's input. The message names the cause and the log."""


class Stopped(Exception):
    """The user or the system stopped the stage with a signal; nothing of it is left running."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def stage_dir(stage: str, config: DictConfig) -> Path:
    """Folder of a stage's files; an evaluation's ends in its label, else in the policy's word or its folder's name."""
    if stage != "eval":
        return Path(config.run_dir) / stage
    policy = str(config.policy)
    return Path(config.run_dir) / "eval" / str(config.label or (policy if policy in POLICIES else Path(policy).name))


def stage_command(stage: str, config: DictConfig, path: Path, env: Mapping[str, str] = os.environ) -> list[str]:
    """The command that runs `stage` with the configuration file at `path`; empty for prepare, which needs no process.

    On several nodes the same command runs on each; what differs comes from NODE_RANK, MASTER_ADDR and MASTER_PORT
    (shown as $NAME when they are not set).
    """
    if stage == "prepare":
        return []
    module = ["-m", f"retool_mcore.train.{stage}", str(path)]
    if stage not in TORCHRUN:
        return [sys.executable, *module]
    nodes = config.parallel.nodes
    if nodes == 1:
        meeting = ["--standalone"]
    else:
        rank, address, port = (env.get(name, f"${name}") for name in NODE_VARIABLES)
        meeting = [f"--nnodes={nodes}", f"--node_rank={rank}", "--rdzv_backend=c10d"]
        meeting.append(f"--rdzv_endpoint={address}:{port}")
    per_node = f"--nproc_per_node={config.parallel.gpus_per_node}"
    return [sys.executable, "-m", "torch.distributed.run", *meeting, per_node, *module]


def launch(stage: str, config: DictConfig) -> None:
    """Runs `stage` to its end, or returns at once when this very configuration was carried to its end before.

    Raises:
        UserError: bad input, found before anything starts or by the stage itself.
        StageFailed: the stage failed.
        Stopped: SIGINT or SIGTERM arrived.
    """
    from retool_mcore.preflight.run import check  # reads data and models: not for --help and --dry-run

    complete = stage_dir(stage, config) / "COMPLETE"
    if complete.is_file() and complete.read_text().strip() == config_hash(config):
        print(f"{stage}: complete already with this configuration; remove {complete} to run it again.")
        return
    check(stage, config)
    if (
        stage in TORCHRUN
        and config.parallel.nodes > 1
        and (unset := [n for n in NODE_VARIABLES if n not in os.environ])
    ):
        raise UserError(f"{stage} on {config.parallel.nodes} nodes needs {', '.join(unset)} in the environment.")
    run_attempt(stage, config)


def run_attempt(stage: str, config: DictConfig) -> None:
    """One attempt at a stage whose configuration was found good. Raises as `launch` does."""
    folder = stage_dir(stage, config)
    complete = folder / "COMPLETE"
    folder.mkdir(parents=True, exist_ok=True)
    stage_id = uuid.uuid4().hex
    with _alone(stage, folder, stage_id):
        complete.unlink(missing_ok=True)
        attempt = max(attempt_files(folder), default=0) + 1
        (folder / "metrics").mkdir(exist_ok=True)
        (folder / "metrics" / f"attempt_{attempt:03d}.jsonl").touch()
        path = _write_config(folder, config, attempt)
        print(f"{stage}: attempt {attempt} in {folder}")
        print(f"{stage}: to watch it: tensorboard --logdir {shlex.quote(str(config.run_dir))}", flush=True)
        with _recorded(folder, attempt):
            if stage == "prepare":
                from retool_mcore.train import prepare

                prepare.run(config)
            else:
                run_process(stage, config, folder, path, attempt, stage_id)
        _write(complete, config_hash(config) + "\n")
    print(f"{stage}: complete")


def run_process(stage: str, config: DictConfig, folder: Path, path: Path, attempt: int, stage_id: str) -> None:
    """Runs the stage's command under `watch`, with the environment of its device."""
    from retool_mcore.platform.env import stage_env

    metrics = folder / "metrics" / f"attempt_{attempt:03d}.jsonl"
    env = stage_env(config) | {"VERL_FILE_LOGGER_PATH": str(metrics.absolute())}
    env.setdefault("TENSORBOARD_DIR", str((folder / "tensorboard").absolute()))
    total = OmegaConf.select(config, "verl.trainer.total_training_steps")
    command = stage_command(stage, config, path)
    watch(stage, command, env, folder / "log.txt", Progress(stage, metrics, total), attempt, stage_id)


def watch(
    stage: str,
    command: list[str],
    env: Mapping[str, str],
    log: Path,
    progress: Progress,
    attempt: int,
    stage_id: str,
    grace_s: float = 20.0,
) -> None:
    """Runs `command` and returns when it ended well; whatever happens, nothing that it started lives on.

    Raises:
        UserError, StageFailed, Stopped: see `launch`.
    """
    with log.open("a") as file:
        file.write(f"=== attempt {attempt:03d}  {_now()}  {shlex.join(command)}\n")
    start = log.stat().st_size
    known: set[processes.Process] = set()
    with _signals() as received:
        process = processes.start(command, {**env, processes.STAGE_ID: stage_id}, log)
        try:
            next_scan = 0.0
            while process.poll() is None and not received:
                if time.monotonic() >= next_scan:
                    known |= processes.find(stage_id, known)
                    next_scan = time.monotonic() + 3.0
                progress.update()
                time.sleep(0.2)
        finally:
            progress.close()
            signum = received[0] if received else signal.SIGTERM
            processes.stop(
                stage_id, known, leader=process, signum=signum, grace_s=grace_s, hurry=lambda: len(received) > 1
            )
    if received:
        raise Stopped(received[0])
    if process.returncode:
        raise _failure(stage, process.returncode, log, start)


def _failure(stage: str, code: int, log: Path, start: int) -> Exception:
    message, is_users = last_error(log, start)
    if is_users:
        return UserError(message)
    how = f"exit code {code}"
    if code < 0:
        how = f"killed by {signal.Signals(-code).name}" + (
            ", often for lack of memory" if code == -signal.SIGKILL else ""
        )
    return StageFailed(f"{stage} failed ({how}): {message or 'it printed nothing'}\nThe whole log: {log}")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list while the body runs."""
    received: list[int] = []
    before = {
        signum: signal.signal(signum, lambda number, _: received.append(number))
        for signum in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _alone(stage: str, folder: Path, stage_id: str) -> Iterator[None]:
    """Holds the stage's lock; ends what a launcher that was killed outright may have left running.

    Raises:
        UserError: the stage runs already.
    """
    with (folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{stage} runs already in {folder}: wait for it, or give this run another name=.") from None
        lock.seek(0)
        if before := lock.read().strip():
            processes.stop(before)
        lock.truncate(0)
        lock.write(stage_id)
        lock.flush()
        yield


@contextmanager
def _recorded(folder: Path, attempt: int) -> Iterator[None]:
    """Appends the attempt to attempts.jsonl, however the body ends."""
    started, begin = _now(), time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "complete"
    except (Stopped, KeyboardInterrupt):
        outcome = "stopped"
        raise
    finally:
        record = {"attempt": attempt, "started": started, "seconds": round(time.monotonic() - begin, 1)}
        with (folder / "attempts.jsonl").open("a") as file:
            file.write(json.dumps(record | {"outcome": outcome}) + "\n")


def _write_config(folder: Path, config: DictConfig, attempt: int) -> Path:
    path = folder / "config.yaml"
    text = OmegaConf.to_yaml(config)
    if path.is_file() and path.read_text() != text:
        path.rename(folder / f"config_attempt_{attempt - 1:03d}.yaml")
    _write(path, text)
    return path


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text)
    os.replace(unfinished, path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
