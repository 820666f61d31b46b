"""A handle on the running two-node Slurm that `slurm_here` starts: what tests ask of it and do to it."""

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

NODES = ("n1", "n2")


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `inits` are the first processes of the nodes, as seen from outside."""

    folder: str
    bridge: str
    munged: int
    holders: dict[str, int]  # the unshare processes; a node dies with its holder
    inits: dict[str, int]

    @property
    def conf(self) -> str:
        return f"{self.folder}/slurm.conf"

    def env(self) -> dict[str, str]:
        """This process's environment, with the cluster's configuration; nothing of a job that it may itself run in."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}
        return kept | {"SLURM_CONF": self.conf, "PATH": search_path()}

    def run(self, *command: str, timeout_s: float = 120, **more) -> str:
        """A command's output. Raises CalledProcessError, with the output in its notes, when it fails."""
        done = subprocess.run(
            command,
            env=self.env() | more.pop("env", {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            **more,
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, command, done.stdout)
            error.add_note(done.stdout)
            raise error
        return done.stdout

    def on(self, node: str, *command: str) -> str:
        """As `run`, inside the node's namespaces."""
        return self.run("nsenter", "--target", str(self.inits[node]), "--all", *command)

    def processes(self, node: str) -> dict[int, str]:
        """Command lines by process id (as seen from outside) of all that runs on the node, Slurm's own left out."""
        namespace = os.readlink(f"/proc/{self.inits[node]}/ns/pid")
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/pid") != namespace:
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
            # An empty command line is a zombie, which has ended.
            if (
                command
                and int(entry.name) != self.inits[node]
                and not re.match(r"(\S*slurmd |sleep infinity$)", command)
            ):
                found[int(entry.name)] = command
        return found

    def orphans(self) -> dict[int, str]:
        """What runs on any node, Slurm's own daemons left out: must be empty when no job runs."""
        return {pid: f"{node}: {command}" for node in self.inits for pid, command in self.processes(node).items()}

    def job(self, job_id: str) -> dict[str, str]:
        """What `scontrol show job` says, by its names: JobState, ExitCode, Restarts, Reason, ..."""
        text = self.run("scontrol", "--oneliner", "show", "job", str(job_id))
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait(self, job_id: str, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """Waits until the job is in one of `states` and returns `job`. Raises TimeoutError, which names its state."""
        deadline = time.monotonic() + timeout_s
        while (job := self.job(job_id))["JobState"] not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {job_id} is {job['JobState']} ({job['Reason']}), not {' or '.join(states)}")
            time.sleep(0.3)
        return job

    def kill_slurmd(self, node: str) -> None:
        """kill -9 of the node's slurmd; its jobs go on."""
        self.on(node, "kill", "-9", Path(self.folder, node, "slurmd.pid").read_text().strip())

    def start_slurmd(self, node: str) -> None:
        self.on(node, "slurmd", "-N", node)

    def stop_controller(self) -> None:
        """Ends slurmctld as for a restart: it writes its state, which slurm_here.start_controller reads. Jobs go on."""
        end(int(Path(self.folder, "slurmctld.pid").read_text()), signal.SIGTERM)

    def lose(self, node: str) -> None:
        """Ends the node as a power cut does: all its processes, its memory and its network. slurm_here.start_node
        brings it back."""
        end(self.holders[node])
        end(self.inits[node])
        self._ip("delete", f"{self.bridge}h{node[1:]}")

    def link(self, node: str, up: bool) -> None:
        """Takes the node's network cable out, or puts it in again."""
        self._ip("set", f"{self.bridge}h{node[1:]}", "up" if up else "down")

    def down(self) -> None:
        """Ends every process of the cluster and removes its network. Files stay, for whoever looks for a cause."""
        for holder in self.holders.values():
            end(holder)
        for init in self.inits.values():
            end(init)
        if (pid := Path(self.folder, "slurmctld.pid")).is_file():
            end(int(pid.read_text()))
        end(self.munged)
        # The kernel takes its time with a dead node's network: without this, the next cluster may find the names taken.
        for device in (*(f"{self.bridge}h{node[1:]}" for node in self.inits), self.bridge):
            self._ip("delete", device)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", "link", *words], capture_output=True, env={"PATH": search_path()})


def search_path() -> str:
    """PATH with the folders of daemons, which an ordinary one may lack."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def end(pid: int, signum: int = signal.SIGKILL) -> None:
    """Sends the signal, and returns when the process is gone. But for slurmctld's state, our daemons keep nothing that
    is needed after them."""
    deadline = time.monotonic() + 10
    try:
        os.kill(pid, signum)
        while time.monotonic() < deadline and Path(f"/proc/{pid}/cmdline").read_bytes():
            time.sleep(0.02)
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, FileNotFoundError, ChildProcessError):
        return
