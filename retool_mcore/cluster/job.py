"""A stage in a Slurm job: runs once, on the first node of the allocation, in the place of the batch script's shell.

In this order: the configuration for this allocation, checks of all nodes, Ray or torchrun over them, the stage by the
launcher that a laptop uses, and afterwards what the outcome asks for: an end, or back to the queue.

Near the end of the job's time the trainer stops after a step when another does not fit (state/schedule.py), at the
latest at Slurm's SIGUSR1; a step that has not ended LAST_CALL_S before the end is given up. SIGTERM at the limit leads
to the queue as well, by the guard (cluster/guard.py), since the end of all processes takes longer than Slurm waits.

Exit codes: 0 done or back in the queue, 1 failed, 2 wrong input, 75 stopped for the time limit (at a step or within)
but not requeueable, 143 cancelled.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from retool_mcore import python_path, temporary
from retool_mcore.backends.env import RAY_CLUSTERS, stage_env
from retool_mcore.cluster import crash_marker, nccl_check, network, slurm
from retool_mcore.cluster.allocation import Allocation, configure, read_allocation
from retool_mcore.cluster.guard import guarded
from retool_mcore.cluster.job_end import after_failure, back_to_queue, finish
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.node import FOREIGN, node_command, ray_service_ports
from retool_mcore.cluster.node_check import NodesBroken, check_nodes, faulty_nodes
from retool_mcore.cluster.ray_cluster import ClusterFailed, RayCluster, ports_needed, ray_cluster
from retool_mcore.cluster.retry import TOO_SHORT, judge, recorded_bytes
from retool_mcore.cluster.site import Site, load_site, step_command
from retool_mcore.cluster.submit import record
from retool_mcore.errors import UserError
from retool_mcore.files import allow_open_files, private_files
from retool_mcore.runner import launch, template
from retool_mcore.runner.inputs import check_start
from retool_mcore.runner.launch import (
    TORCHRUN,
    AlreadyRunning,
    Paused,
    StageFailed,
    Stopped,
    has_work,
    run_attempt,
    stage_dir,
)
from retool_mcore.state import background, chain, stop

say = partial(print, flush=True)
STAGES = ("sft", "rl", "eval", "export")
RAY_DEADLINE_S, RAY_DEADLINE_S_A_NODE = 180.0, 4.0  # 10 minutes for 100 nodes
SWEEP_TIMEOUT_S = 60.0
BEGAN = time.time()
PREEMPTED = (
    "{stage}: the job was preempted, or put back by hand, which counts as no failure; work since the last checkpoint "
    "is done again"
)
DUMP_NODES_TIMEOUT_S = 120.0
# A step shares everything with the others of the job, and its one task a node may use all of the node.
STEP = ("--overlap", "--mem=0", "--export=ALL", "--unbuffered", "--ntasks-per-node=1")


def run(stage: str, overrides: Sequence[str]) -> int:
    """The job, from its first line to its exit code. Raises UserError before the stage starts."""
    allocation = read_allocation()
    os.environ.update(temporary.job_folder(allocation.slurm_id, allocation.restart))
    site = load_site()
    config = configure(stage, overrides, allocation)
    folder = stage_dir(stage, config)
    folder.mkdir(parents=True, exist_ok=True)
    if not has_work(stage, config):
        return 0
    signals = Signals(stage, folder, allocation.mark)
    signals.watch_parent()
    signals.watch_end(allocation.slurm_id, Path(config.run_dir) / "slurm" / f"{allocation.job_id}-end")
    record(stage, config, allocation.slurm_id, allocation.log)
    say(f"{stage}: job {allocation.job_id}, start {allocation.restart + 1}, on {', '.join(allocation.nodes)}")
    chain.begin(folder, allocation.mark, allocation.nodes)
    if silent := crash_marker.unreported_crash(folder, allocation.slurm_id):
        mark, sentence = silent
        say(f"retool: {sentence}")
        chain.end(folder, mark, chain.FAULT, sentence)
        decision = judge(folder, sentence, site.max_attempts)
        if not decision.requeue:
            crash_marker.end(folder, mark)
            return finish(signals, chain.FAULT, f"{stage}: {decision.why}", 1)
        say(f"{stage}: {decision.why}")
    if other := crash_marker.begin(folder, allocation.mark, allocation.nodes[0]):
        error = f"{stage} of this run is at work in job {other}"
        if not allocation.restart:
            error = f"{error}: wait for it, or give this run another name=."
            chain.end(folder, allocation.mark, chain.OTHER_JOB, error)
            raise UserError(error)
        return back_to_queue(allocation, signals, chain.OTHER_JOB, error, 1, after=other)
    with guarded(
        partial(step, site),
        job=allocation.slurm_id,
        recorded=recorded_bytes(folder),
        pid=os.getpid(),
        stage=stage,
        folder=folder,
        mark=allocation.mark,
        max_attempts=site.max_attempts,
        node=allocation.nodes[0],
        log=os.path.realpath("/proc/self/fd/1"),
    ):
        return run_attempt_on_nodes(stage, config, allocation, site, signals, folder)


def run_attempt_on_nodes(
    stage: str, config: DictConfig, allocation: Allocation, site: Site, signals: Signals, folder: Path
) -> int:
    """Run one attempt and act on its outcome; returns the exit code. Raises UserError as `run` does."""
    recorded, job = recorded_bytes(folder), allocation.slurm_id
    back = partial(back_to_queue, allocation, signals)
    preempted = partial(slurm.preempted, job, allocation.restart, allocation.nodes)
    try:
        try:
            run_on_nodes(stage, config, allocation, site, signals)
        finally:
            signals.ignore()
            signals.judges |= crash_marker.end(folder, allocation.mark)
            sweep(allocation, site)
            temporary.remove_job_folder()  # a job that was cancelled starts no step that sweeps
    except Paused as paused:
        if paused.why == stop.REQUEST:
            why = f"{paused}: it was asked to (retool stop, or STOP in its folder)."
            return finish(signals, chain.REQUEST, why, stop.EXIT_CODE)
        text = f"{stage}: stopped after step {paused.step} for the time limit"
        return back(chain.TIME_LIMIT, text, stop.EXIT_CODE)
    except launch.WentBack as error:
        return back(chain.ALARM, str(error), stop.EXIT_CODE)
    except launch.AlarmStop as error:
        say(f"retool: {error}")
        return finish(signals, chain.ALARM, f"{stage}: not started again: another start would meet the alarm again.", 1)
    except Stopped as stopped:
        if stopped.signum == signal.SIGUSR1 or (stopped.signum == signal.SIGTERM and slurm.timed_out(job)):
            if not signals.judges:  # the guard has, and put the job back if it was to
                return finish(signals, chain.TIME_LIMIT, f"{stage}: stopped for the time limit", stop.EXIT_CODE)
            if recorded_bytes(folder) == recorded:
                return after_failure(stage, allocation, site, signals, folder, TOO_SHORT)
            return back(chain.TIME_LIMIT, f"{stage}: stopped for the time limit", stop.EXIT_CODE)
        if stopped.signum == signal.SIGHUP:
            return back(chain.FAULT, f"{stage}: Slurm's process above this job (slurmstepd) was killed", 1)
        if stopped.signum == signal.SIGTERM and preempted():
            return back(chain.PREEMPTION, PREEMPTED.format(stage=stage), stop.EXIT_CODE)
        text = f"{stage}: {stopped}; another start goes on from the last complete checkpoint."
        return finish(signals, chain.CANCELLED, text, 128 + stopped.signum)
    except AlreadyRunning as error:  # at a requeue: of a lost node whose lock the file server still keeps
        if not allocation.restart:
            chain.end(folder, allocation.mark, chain.OTHER_JOB, str(error))
            raise
        return after_failure(stage, allocation, site, signals, folder, str(error))
    except (NodesBroken, StageFailed, ClusterFailed) as error:
        if preempted():  # Slurm signals the steps first: the stage loses a part, and nothing is at fault
            return back(chain.PREEMPTION, PREEMPTED.format(stage=stage), stop.EXIT_CODE)
        bad = error.nodes if isinstance(error, NodesBroken) else faulty(allocation, config, site)
        return after_failure(stage, allocation, site, signals, folder, str(error), bad)
    except UserError as error:
        chain.end(folder, allocation.mark, chain.WRONG_INPUT, str(error))
        raise
    chain.end(folder, allocation.mark, chain.COMPLETE)
    shutil.rmtree(ray_log(folder.parent, allocation).with_suffix(""), ignore_errors=True)
    return 0


def faulty(allocation: Allocation, config: DictConfig, site: Site) -> list[str]:
    """The nodes with a GPU or a link that may have ended the stage: its own error seldom names them."""
    if config is None or config.parallel.device != "cuda":
        return []
    path = configuration_file(config, allocation)
    return faulty_nodes(allocation.nodes, config, path, partial(step, site)) if path.exists() else []


def run_on_nodes(stage: str, config: DictConfig, allocation: Allocation, site: Site, signals: Signals) -> None:
    from retool_mcore.preflight.run import check  # reads data and models

    for name in FOREIGN:  # the processes of a job of one node have this environment, not that of node.py
        os.environ.pop(name, None)
    os.environ[RAY_CLUSTERS] = "1"  # on the node's address, where other jobs' parts find it
    path = configuration_file(config, allocation)
    path.parent.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, path)
    srun = partial(step, site)
    places = network.places(allocation.nodes) if stage == "rl" else []
    port = choose_port(allocation, places)
    ports = ray_service_ports(port, places) if places else [port]
    with ExitStack() as stack:
        stack.enter_context(template.begun(stage_env(config)))  # it imports while the nodes are checked
        runs_programs, proven = stage in ("rl", "eval"), recorded_bytes(stage_dir(stage, config)) > 0
        check_nodes(allocation.nodes, config, path, srun, ports=ports, sandbox=runs_programs, proven=proven)
        check(stage, config)
        check_start(stage, config)
        _, address = network.shared_address(allocation.nodes[1:])
        linked = config.parallel.device == "cuda" and len(allocation.nodes) > 1
        # A link that hangs or is slow is named before a training stands still; weights go to rollout nodes, too.
        all_nodes = {"parallel": {**config.parallel, "nodes": len(allocation.nodes)}}
        if linked:
            unfit = nccl_check.unfit_nodes(all_nodes, srun, allocation.nodes, address=address, port=port)
            if unfit is not None:
                raise NodesBroken(nccl_check.FAILED, unfit)
        command = None
        if stage == "rl":
            cluster = stack.enter_context(start_ray(config, allocation, srun, address, port, places))
            os.environ.update(cluster.stage_env())
            stack.enter_context(interrupt_at_fault(cluster))
            say(f"rl: Ray is up on {len(allocation.nodes)} nodes at {cluster.address}")
        elif stage in TORCHRUN and len(allocation.nodes) > 1:
            os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
            command = partial(torchrun_command, stage, allocation, srun, address)
        stack.callback(signals.ignore)
        signals.running = True
        dump = partial(dump_nodes, allocation, srun)
        run_attempt(stage, config, command, allocation.mark, stop_asked=lambda: signals.asked, dump_others=dump)


def configuration_file(config: DictConfig, allocation: Allocation) -> Path:
    """Where the nodes of the job read the stage's configuration."""
    return Path(config.run_dir) / "slurm" / f"{allocation.job_id}.yaml"


def choose_port(allocation: Allocation, places: Sequence[int]) -> int:
    """The first of the ports that the stage's processes meet on, free on this node; another one at every start.

    places: of Ray's nodes (network.places); empty for a stage without Ray.
    """
    requested = os.environ.get("RETOOL_RAY_PORT") if places else None
    if requested is None:
        count = ports_needed(places) if places else 1
        return network.free_base_port(allocation.job_id + allocation.restart, count)
    if network.busy_ports([int(requested)]):
        raise UserError(f"port {requested} (RETOOL_RAY_PORT) is in use on {network.host()}: give another, or none.")
    return int(requested)


def step(site: Site, options: Sequence[str], command: Sequence[str]) -> list[str]:
    """The command line of a job step, in the site's container."""
    unbound = ["--cpu-bind=none"] if slurm.binds_cpus() else []
    return step_command(site, [*STEP, *unbound, *options], command)


def torchrun_command(stage: str, allocation: Allocation, srun: Callable, address: str, path: Path) -> list[str]:
    nodes = allocation.nodes
    # All tasks end within a moment, well or not; one that does not is waiting for a node that is gone.
    options = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--kill-on-bad-exit=0", "--wait=30"]
    return srun(options, node_command("stage", mark=allocation.mark, stage=stage, config=str(path), others=[address]))


def start_ray(
    config: DictConfig, allocation: Allocation, srun: Callable, address: str, port: int, places: Sequence[int]
):
    parallel, ray = config.parallel, config.parallel.ray
    return ray_cluster(
        allocation.nodes,
        {"gpus": parallel.gpus_per_node, "cpus": ray.num_cpus, "object_store_bytes": ray.object_store_bytes},
        head_address=address,
        base_port=port,
        places=places,
        deadline_s=float(
            os.environ.get("RETOOL_RAY_DEADLINE_S") or RAY_DEADLINE_S + RAY_DEADLINE_S_A_NODE * len(allocation.nodes)
        ),
        srun=srun,
        env=stage_env(config),
        mark=allocation.mark,
        log=ray_log(Path(config.run_dir), allocation),
    )


def ray_log(run_dir: Path, allocation: Allocation) -> Path:
    return run_dir / "slurm" / f"{allocation.job_id}-ray.log"


@contextmanager
def interrupt_at_fault(cluster: RayCluster) -> Iterator[None]:
    """Ends the stage with SIGINT when a part of its cluster breaks: left alone it may wait for the dead part for long.

    Raises:
        ClusterFailed: in the place of what the stage raised, since its own error only follows from this one.
    """

    def look() -> bool:
        if fault := cluster.fault():
            say(f"rl: {fault}; the stage is ended, which takes up to half a minute")
            os.kill(os.getpid(), signal.SIGINT)
        return bool(fault)

    with background.looking(1.0, look):
        try:
            yield
        except (StageFailed, Stopped) as error:
            if isinstance(error, Stopped) and error.signum != signal.SIGINT:
                raise
            time.sleep(3.0)  # Ray looks at its own processes once a second
            if fault := cluster.fault() or cluster.ending():
                raise ClusterFailed(fault) from error
            raise


def dump_nodes(allocation: Allocation, srun: Callable, folder: Path) -> None:
    """Writes the Python stacks of each node's processes into FOLDER/NODE: those that srun or Ray started there."""
    command = node_command("stacks", mark=allocation.mark, folder=str(folder))
    _on_every_node(allocation, srun, command, DUMP_NODES_TIMEOUT_S)


def sweep(allocation: Allocation, site: Site) -> None:
    """Ends what a supervisor that was killed may have left on any node. A node that is gone cannot be swept."""
    _on_every_node(
        allocation, partial(step, site), node_command("sweep", mark=allocation.mark, since=BEGAN), SWEEP_TIMEOUT_S
    )


def _on_every_node(allocation: Allocation, srun: Callable, command: list[str], timeout_s: float) -> None:
    options = [f"--nodes={len(allocation.nodes)}", f"--ntasks={len(allocation.nodes)}", "--kill-on-bad-exit=0"]
    try:
        # srun's complaints would only say that a cancelled job starts no steps.
        subprocess.run(srun(options, command), timeout=timeout_s, stdin=subprocess.DEVNULL, capture_output=True)
    except subprocess.TimeoutExpired:
        say(f"not every node was done within {timeout_s:.0f} s with {command[-2]}")


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        private_files()
        allow_open_files()
        os.environ.update(python_path.variables())
        if not arguments or arguments[0] not in STAGES:
            raise UserError(f"name a stage first: {', '.join(STAGES)}.")
        return run(arguments[0], arguments[1:])
    except UserError as error:
        print(f"retool: {error}", file=sys.stderr, flush=True)
        return 2
    except Stopped as error:  # before there was anything to stop
        return 128 + error.signum


if __name__ == "__main__":
    sys.exit(main())
