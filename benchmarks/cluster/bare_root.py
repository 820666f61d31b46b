"""Runs a stage of docker/Dockerfile without docker: in a bare Debian root file system, then a command in it.

    python -m benchmarks.cluster.bare_root --wheelhouse /tmp/wheels -- launch/quickstart.sh    # as root; debootstrap

The stage's instructions are executed as they stand in the file, in namespaces of their own. With --wheelhouse (see
launch/wheelhouse.sh) only apt-get sees a network: set-up and command have none. Without it, --bind and --env hand on
how this machine's pip is configured. What it shows: the instructions name everything a bare system lacks. What it
does not: docker's own layers and seccomp filter.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import provenance

DOCKERFILE = provenance.ROOT / "docker" / "Dockerfile"
WHEELS = "/wheels"
BUILT = ".built"  # in a root whose instructions have all been executed
MOUNTS = (("proc", "proc", "/proc"), ("tmpfs", "tmpfs", "/dev/shm"), ("sysfs", "sysfs", "/sys"))


def instructions(text: str, stage: str) -> Iterator[tuple[str, str]]:
    """(word, rest) of the instructions of a stage, the ARGs before the first stage among them.

    Raises ValueError where the file has no such stage.
    """
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    current, found = None, False
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            current = rest.split(" AS ")[1]
            found |= current == stage
        if current in (None, stage):
            yield word, rest.strip()
    if not found:
        raise ValueError(f"{DOCKERFILE} has no stage {stage}")


@dataclass
class Root:
    folder: Path
    wheelhouse: Path | None
    binds: Sequence[str]
    env: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"

    def build(self, stage: str, text: str) -> None:
        """The stage's instructions in their order; of a folder that has been built only those that make no files."""
        built = (self.folder / BUILT).exists()
        for word, rest in instructions(text, stage):
            if built and word in ("FROM", "RUN", "COPY"):
                continue
            began = time.monotonic()
            getattr(self, f"_{word.lower()}")(rest)
            print(f"{time.monotonic() - began:7.1f} s  {word} {rest[:100]}", flush=True)
        (self.folder / BUILT).touch()

    def _arg(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.arguments[name] = value.strip('"')

    def _from(self, rest: str) -> None:
        image = re.sub(r"\$\{(\w+)\}", lambda match: self.arguments[match[1]], rest.split()[0])
        if not (found := re.fullmatch(r"debian:(\w+)-slim", image)):
            raise ValueError(f"no bare root for the base {image}: expected debian:RELEASE-slim")
        subprocess.run(["debootstrap", "--variant=minbase", found[1], str(self.folder)], check=True, stdout=2)
        for name in ("sources.list", "apt.conf.d"):  # how this machine reaches Debian's packages
            source, target = Path("/etc/apt", name), self.folder / "etc/apt" / name
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy(source, target)
        shutil.copy("/etc/resolv.conf", self.folder / "etc")
        (self.folder / "etc" / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")  # as docker's
        for device in ("null", "zero", "full", "random", "urandom", "tty"):
            (self.folder / "dev" / device).touch()
        (self.folder / "dev" / "shm").mkdir(exist_ok=True)
        if not (link := self.folder / "dev" / "fd").is_symlink():
            link.symlink_to("/proc/self/fd")

    def _shell(self, rest: str) -> None:
        self.shell = json.loads(rest)

    def _run(self, rest: str) -> None:
        words = re.sub(r"--mount=\S+\s*", "", rest)
        self.run([*self.shell, words], network=self.wheelhouse is None or "apt-get" in words)

    def _copy(self, rest: str) -> None:
        target = self.folder / rest.split()[-1].lstrip("/")
        target.mkdir(parents=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=provenance.ROOT, capture_output=True, check=True).stdout
        archive = subprocess.run(
            ["tar", "-c", "--null", "-T", "-"], input=listed, cwd=provenance.ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", str(target), "--no-same-owner"], input=archive.stdout, check=True)
        if "--chown=" in rest:
            self.run(["chown", "-R", re.search(r"--chown=(\w+)", rest)[1], rest.split()[-1]])

    def _workdir(self, rest: str) -> None:
        self.workdir = rest

    def _env(self, rest: str) -> None:
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            self.env[name] = re.sub(r"\$(\w+)", lambda match: self.env.get(match[1], ""), value)

    def _user(self, rest: str) -> None:
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.run([*json.loads(rest), "--version"])

    def _cmd(self, rest: str) -> None:
        pass

    def run(self, command: Sequence[str], network: bool = True) -> None:
        """Run a command in the root as the image's user. Raises CalledProcessError."""
        root = shlex.quote(str(self.folder))
        (self.folder / ".old").mkdir(exist_ok=True)
        lines = [f"mount --bind {root} {root}"]  # a mount of its own, as pivot_root wants it
        lines += [f"mount -t {kind} {what} {root}{place}" for kind, what, place in MOUNTS]
        lines += [
            f"mount --bind /dev/{one.name} {root}/dev/{one.name}"
            for one in (self.folder / "dev").iterdir()
            if one.is_file()
        ]
        lines += ["ip link set lo up"] if not network else []
        binds = [(bind, bind) for bind in self.binds] + ([(self.wheelhouse, WHEELS)] if self.wheelhouse else [])
        for source, target in binds:
            place = self.folder / str(target).lstrip("/")
            if Path(source).is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
            lines.append(f"mount --bind -o ro {shlex.quote(str(source))} {shlex.quote(str(place))}")
        # By pivot_root: in a chroot the kernel allows no user namespaces, which the sandbox asks for.
        inner = f"cd {shlex.quote(self.workdir)} && exec {shlex.join(command)}"
        as_user = ["setpriv", "--reuid", self.user, "--regid", self.user, "--clear-groups", "/bin/bash", "-c", inner]
        lines += [f"cd {root}", "pivot_root . .old", "umount -l /.old", f"exec {shlex.join(as_user)}"]
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *(() if network else ("--net",))]
        subprocess.run([*apart, "bash", "-ec", "\n".join(lines)], env=self.environment(), check=True)

    def environment(self) -> Mapping[str, str]:
        home = "/root" if self.user == "0" else "/home/retool"
        wheels = {"RETOOL_WHEELHOUSE": WHEELS} if self.wheelhouse else {}
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LANG": "C.UTF-8"} | wheels | self.env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="cpu")
    parser.add_argument("--folder", type=Path, help="of the root, kept and used again (default: a temporary one)")
    parser.add_argument(
        "--wheelhouse", type=Path, help="of launch/wheelhouse.sh: set-up and command run without a network"
    )
    parser.add_argument("--bind", action="append", default=[], help="a path of this machine that the root sees, too")
    parser.add_argument(
        "--env", action="append", default=[], help="a variable of this environment that the root has, too"
    )
    parser.add_argument("command", nargs="*", help="what runs in the root at the end")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bare_root: only root may make a root file system.")
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="retool-root-"))
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} | {
        name: os.environ[name] for name in asked.env
    }
    root = Root(folder, asked.wheelhouse and asked.wheelhouse.absolute(), asked.bind, env)
    try:
        root.build(asked.stage, DOCKERFILE.read_text())
        if asked.command:
            root.run(asked.command, network=asked.wheelhouse is None)
    finally:
        if asked.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
