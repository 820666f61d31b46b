"""Runs one stage: checks first, then the stage in a session of its own, with log, progress and a record of attempts.

Files of a stage under RUN/<stage>/ (an evaluation's under RUN/eval/<label>/):
    config.yaml                 the resolved configuration; config_attempt_NNN.yaml is the one that attempt NNN ran with
    log.txt                     everything the stage printed, all attempts
    metrics/attempt_NNN.jsonl   one line a step, written by verl
    attempts.jsonl              one line an attempt: when, how long, exit code
    starts.jsonl                of jobs: each start's nodes, when it began and ended, and why (state/chain.py)
    COMPLETE                    digest of what the stage was carried to its end with (inputs.py)
    STOP, STOPPED               created by whoever wants it to stop at a step, and the step when it did (stop.py)
    heartbeat/WRITER.json       what the stage's processes do, of the newest attempt (heartbeat.py)
    silences.json               the longest silence of each phase, all attempts (watchdog.py)
    stacks/attempt_NNN/         Python stacks of an attempt that hung (watchdog.py)
    ranks/nodeN/                what each of its ranks printed, of stages that torchrun starts
    stacks/nccl_rank_N          PyTorch's flight recorder of rank N, when an operation of NCCL timed out
"""

import fcntl
import json
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore import temporary
from retool_mcore.backends.env import FLIGHT_RECORDER, stage_env
from retool_mcore.config import run_settings
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.runner import began_with, processes, template
from retool_mcore.runner.inputs import check_start, completion, is_complete, settle_policy, stage_dir
from retool_mcore.runner.phase_line import phase_line
from retool_mcore.runner.stage_log import killed_by, last_error, names_error
from retool_mcore.runner.watchdog import DeadWorker, Watchdog, dump_stacks
from retool_mcore.state import alarms, checkpoints, heartbeat, stop
from retool_mcore.state.progress import Progress, attempt_files

TORCHRUN = ("sft", "export")  # stages that run one process a GPU
# Of the optimizer's schedule, which a checkpoint holds (use_checkpoint_opt_param_scheduler).
SCHEDULE = ("train.lr", "train.min_lr", "train.schedule", "train.warmup_steps", "train.weight_decay")
FORMAT = "parallel.megatron.dist_ckpt_optim_fully_reshardable"  # of the checkpoints, as verl names it
# Where one of these differs, a checkpoint's optimizer cannot be read: experts on several ranks have one of their own.
FORMATS = {FORMAT: bool, "parallel.ep": lambda ep: (ep or 1) > 1}
NODE_VARIABLES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
LOOK_S = 3.0  # between two looks for new processes, and of the watchdog


class AlreadyRunning(UserError):
    """Another process holds the stage's lock."""


class StageFailed(Exception):
    """The stage ended with an error that is not the user's input. The message names the cause and the log."""


class AlarmStop(StageFailed):
    """An alarm stopped the stage, as configured: another start would only meet it again."""


class WentBack(Exception):
    """An alarm sends the stage back to its last checkpoint; the next attempt leaves out the prompts that led there."""


class Stopped(Exception):
    """The user or the system stopped the stage with a signal; nothing of it is left running."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Paused(Exception):
    """The stage stopped at a step because it was asked to (stop.py); its last checkpoint holds that step.

    why: stop.TIME_LIMIT or stop.REQUEST.
    """

    def __init__(self, stage: str, step: int, why: str = stop.REQUEST) -> None:
        super().__init__(f"{stage}: stopped at step {step}, start it again to go on")
        self.step, self.why = step, why


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
        # Static: rank 0 is the job's first node, and workers meet at the address given, not at a host name that the
        # others may not resolve (c10d).
        meeting = [f"--nnodes={nodes}", f"--node_rank={rank}", f"--master_addr={address}", f"--master_port={port}"]
    logs = path.parent / "ranks" / f"node{env.get('NODE_RANK', 0)}"
    per_node = [f"--nproc_per_node={config.parallel.gpus_per_node}", "--tee=3", f"--log-dir={logs}"]
    return [sys.executable, "-m", "torch.distributed.run", *meeting, *per_node, *module]


def preflight(stage: str, config: DictConfig) -> None:
    """All that can be found wrong before anything starts. Raises UserError."""
    from retool_mcore.preflight.run import check  # reads data and models: not for --help
    from retool_mcore.train.prepare import check_prepared, evaluation_parts, parts_of
    from retool_mcore.train.push import check_push

    check(stage, config)
    check_start(stage, config)
    if "train" in config:
        began_with.check_adapters(config, stage_dir(stage, config))
    if stage == "prepare":
        parts_of(config)
    elif stage == "export" and config.push is not None:
        check_push(config.push)
    elif config.get("prepare"):
        evaluation_parts(config)
    elif stage == "eval":
        check_prepared(config)
    unset = [name for name in NODE_VARIABLES if name not in os.environ]
    if stage in TORCHRUN and config.parallel.nodes > 1 and unset:
        raise UserError(
            f"{stage} on {config.parallel.nodes} nodes: use `retool submit {stage}` with the same words, parallel= of "
            f"one node such as 1x8-80g, or start it on each node with {', '.join(unset)} in the environment."
        )


def kept_values(stage: str, config: DictConfig) -> str:
    """Return the values that a resumed stage keeps of its first attempt; "" for nothing. Raises UserError where its
    checkpoints have another format than this attempt would read, or `began_with.check` refuses them."""
    folder = stage_dir(stage, config)
    first = min(folder.glob("config_attempt_*.yaml"), default=folder / "config.yaml")
    if not first.is_file() or (last := checkpoints.latest(folder / "checkpoints")) is None:
        return ""
    old = OmegaConf.load(first)
    for key, kind in FORMATS.items():
        if kind(was := OmegaConf.select(old, key) or False) != kind(OmegaConf.select(config, key)):
            raise UserError(f"{stage}: {last} was saved with {key}={str(was).lower()}: add this, or another name=.")
    began_with.check(stage, config, folder)
    pairs = {key: (OmegaConf.select(old, key), OmegaConf.select(config, key)) for key in SCHEDULE}
    ignored = [f"{key}={new} has no effect, {before} goes on" for key, (before, new) in pairs.items() if before != new]
    return "; ".join([f"from step {checkpoints.step_of(last)}, with that checkpoint's schedule", *ignored])


def launch(stage: str, config: DictConfig) -> None:
    """Runs `stage` to its end, or returns at once when this very configuration was carried to its end before.

    Raises:
        UserError: bad input, found before anything starts or by the stage itself.
        StageFailed, Stopped: the stage failed; SIGINT or SIGTERM arrived.
        AlarmStop: an alarm whose answer is `stop` fired (state/alarms.py).
        Paused: somebody created STOP in the stage's folder.
    """
    if not has_work(stage, config):
        return
    with nullcontext() if stage == "prepare" else template.begun(stage_env(config)):
        preflight(stage, config)
        while True:  # alarms.backs bounds it
            try:
                return run_attempt(stage, config)
            except WentBack as back:
                print(back, flush=True)


def has_work(stage: str, config: DictConfig) -> bool:
    """Whether the stage has something to do, once it is settled what it works on: which folder the policy's link names,
    and with `prepare` which problems the files hold now. Raises UserError."""
    settle_policy(stage, config)
    from retool_mcore.train.prepare import check_prepared, read_evaluation  # reads data: not for --help

    if config.get("prepare"):
        preflight(stage, config)
        read_evaluation(config)
    elif stage == "eval":
        check_prepared(config)
    return not is_complete(stage, config)


def run_attempt(
    stage: str,
    config: DictConfig,
    command: Callable[[Path], list[str]] | None = None,
    stage_id: str | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
    dump_others: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Run one attempt at a stage whose configuration is valid. Raises as `launch` does, and WentBack.

    Args:
        command: gives the command for a configuration file; default: `stage_command`.
        stage_id: marks the stage's processes; default: one of its own.
        stop_asked: whether this very attempt was asked to stop before it began: earlier requests do not count.
        dump_others: of a stage that hangs, writes the stacks of its processes on other nodes into a folder.
    """
    folder = stage_dir(stage, config)
    complete = folder / "COMPLETE"
    folder.mkdir(parents=True, exist_ok=True)
    stage_id = stage_id or uuid.uuid4().hex
    with _alone(stage, folder, stage_id):
        kept = kept_values(stage, config)  # refuses before anything of the attempts before is touched
        mark = completion(stage, config)  # before the stage: what it is made from may change meanwhile
        complete.unlink(missing_ok=True)
        stop.clear(folder)
        if stop_asked():
            stop.request(folder)
        attempt = max(attempt_files(folder), default=0) + 1
        (folder / "metrics").mkdir(exist_ok=True)
        (folder / "metrics" / f"attempt_{attempt:03d}.jsonl").touch()
        path = _write_config(folder, config, attempt)
        began_with.pin(stage, config, folder)
        print(f"{stage}: attempt {attempt} in {folder}")
        print(f"{stage}: to watch it: tensorboard --logdir {shlex.quote(str(config.run_dir))}", flush=True)
        if kept:
            print(f"{stage}: goes on {kept}", flush=True)
        if stage == "eval" and (settings := run_settings(config)):
            print(f"{stage}: {settings}", flush=True)
        with _recorded(folder, attempt):
            if stage == "prepare":
                from retool_mcore.train import prepare

                prepare.run(config)
            else:
                if stage == "eval":
                    from retool_mcore.train import evaluation

                    for line in evaluation.begin(evaluation.asked_for(config), folder):
                        print(f"{stage}: {line}", flush=True)
                words = command(path) if command is not None else stage_command(stage, config, path)
                run_process(stage, config, folder, words, attempt, stage_id, dump_others)
        stop.clear(folder)  # one that came during the last step
        write_atomically(complete, mark + "\n")
    print(f"{stage}: complete")


def run_process(
    stage: str,
    config: DictConfig,
    folder: Path,
    command: list[str],
    attempt: int,
    stage_id: str,
    dump_others: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Runs the stage's command and returns when it ended well; whatever happens, nothing that it started lives on.
    Raises UserError, StageFailed, Stopped, Paused: see `launch`."""
    metrics = folder / "metrics" / f"attempt_{attempt:03d}.jsonl"
    log, stacks = folder / "log.txt", folder / "stacks" / f"attempt_{attempt:03d}"
    env: Mapping[str, str] = _environment(config, folder, metrics)
    total = OmegaConf.select(config, "verl.trainer.total_training_steps")
    limit_s = 60 * (OmegaConf.select(config, "watchdog_minutes") or float("inf"))
    watchdog = Watchdog([log, metrics], limit_s, folder)
    progress = Progress(stage, metrics, total, doing=lambda: phase_line(folder), counts_steps=stage != "eval")
    known: set[processes.Process] = set()
    fault = ""
    here = command[0] == sys.executable  # else the command starts others' on several nodes
    forked = template.forked(env, command) if here else nullcontext((temporary.inherited(env), command))
    with temporary.engine_sockets(here) as sockets, forked as (env, command), _signals() as received:
        with log.open("a") as file:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.write(f"=== attempt {attempt:03d}  {now}  {shlex.join(command)}\n")
        start = log.stat().st_size
        dead_worker = DeadWorker(log)
        process = processes.start(command, {**env, **sockets, processes.STAGE_ID: stage_id}, log)
        try:
            next_scan = 0.0
            while process.poll() is None and not received:
                if time.monotonic() >= next_scan:
                    known |= processes.find(stage_id, known)
                    next_scan = time.monotonic() + LOOK_S
                    fault = dead_worker.found()
                    if watchdog.hangs():
                        dump_stacks(known, stacks)
                        dump_others(stacks)
                        still = f"phase {watchdog.phase} stood still for {watchdog.quiet_s / 60:.3g} minutes"
                        fault = f"{still}; what its processes did: {stacks}"
                    if fault:
                        break
                progress.update()
                time.sleep(0.2)
        finally:
            progress.close()
            signum = received[0] if received else signal.SIGTERM
            processes.stop(stage_id, known, leader=process, signum=signum, hurry=lambda: len(received) > 1)
    if received:
        raise Stopped(received[0])
    if fault:
        raise StageFailed(f"{stage} failed: {fault}\nThe whole log: {log}")
    if process.returncode in (0, stop.EXIT_CODE) and (step := stop.stopped_after(folder)) is not None:
        raise Paused(stage, step, stop.stopped_for(folder))
    if process.returncode == alarms.EXIT_CODE and (ended := alarms.ended(folder)) is not None:
        if ended.answer == "back":
            raise WentBack(f"{stage}: {ended}; it goes on from the last checkpoint, on other prompts")
        raise AlarmStop(f"{stage} stopped: {ended}\nThe whole log: {log}")
    if process.returncode:
        raise _failure(stage, process.returncode, log, start, Path(command[0]).name)


def _environment(config: DictConfig, folder: Path, metrics: Path) -> dict[str, str]:
    """Return the environment of the stage's process: its device's variables, and where loggers and heartbeats write."""
    env = stage_env(config) | {"VERL_FILE_LOGGER_PATH": str(metrics.absolute())}
    env[heartbeat.VARIABLE] = str(heartbeat.prepare(folder))
    (folder / "stacks").mkdir(exist_ok=True)  # NCCL's last operations, rank by rank, when one of them times out
    # Offline runs of W&B: RUN/STAGE/wandb, for `wandb sync`.
    for name, path in {FLIGHT_RECORDER: "stacks/nccl_rank_", "TENSORBOARD_DIR": "tensorboard", "WANDB_DIR": ""}.items():
        env.setdefault(name, str((folder / path).absolute()))
    if "mlflow" in (OmegaConf.select(config, "train.loggers") or ()):
        env.setdefault("MLFLOW_TRACKING_URI", (folder / "mlflow").absolute().as_uri())
        env.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return env


def _failure(stage: str, code: int, log: Path, start: int, program: str) -> Exception:
    message, is_users = last_error(log, start)
    if is_users:
        return UserError(message)
    how = f"exit code {code}"
    if code < 0:
        how = f"{program}, its first process, was {killed_by(-code)}"
        if not names_error(message):  # killed from outside, it had no last words
            message = f"it printed last: {message}" if message and code != -signal.SIGKILL else ""
    elif not message:
        message = "it printed nothing"
    detail = f": {message}" if message else ""
    return StageFailed(f"{stage} failed ({how}){detail}\nThe whole log: {log}")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list while the body runs."""
    received: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = {signum: signal.signal(signum, lambda number, _: received.append(number)) for signum in both}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def _alone(stage: str, folder: Path, stage_id: str) -> Iterator[None]:
    """Holds the stage's lock; ends what a launcher that was killed outright may have left running. Raises UserError
    when the stage runs already."""
    with (folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{stage} runs already in {folder}: wait for it, or give this run another name=."
            raise AlreadyRunning(message) from None
        except OSError as error:  # a file system mounted without locks keeps nobody out
            print(f"{stage}: no lock in {folder} ({error.strerror}): do not start it twice at a time.", flush=True)
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
    started, begin = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    outcome = "failed"
    try:
        yield
        outcome = "complete"
    except WentBack:
        outcome = "went back"
        raise
    except (Stopped, Paused, KeyboardInterrupt):
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
    write_atomically(path, text)
    return path
