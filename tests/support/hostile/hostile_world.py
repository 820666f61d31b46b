"""What hostile programs aim at on this host: a secret, listeners, a victim; and what would show that they hit it."""

import os
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
# How long a process that was not harmed may take to answer on a busy machine.
ANSWER_S = 10.0
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run", "/var/lock")


class World:
    """Listeners and files of one user, made for one sandbox. `targets` are the names that a program's text may use."""

    def __init__(self):
        self.token = "hostile" + secrets.token_hex(6)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.token}-world-"))
        self.secret = self.folder / "secret"
        self.secret.write_text("the secret")
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.folder / "socket"))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + self.token)
        for listener in (self.unix, self.abstract):
            listener.listen()
        self.victim = self._start_victim()

    def targets(self, server: int) -> dict[str, str]:
        return {
            "token": self.token,
            "secret": str(self.secret),
            "folder": str(self.folder),
            "port": str(self.tcp.getsockname()[1]),
            "udp": str(self.udp.getsockname()[1]),
            "unix": str(self.folder / "socket"),
            "abstract": self.token,
            "victim": str(self.victim.pid),
            "server": str(server),
            "checkout": str(CHECKOUT),
        }

    def damage(self) -> list[str]:
        """What was hit since the last look, put right again."""
        found = []
        ready, _, _ = select.select([self.tcp, self.udp, self.unix, self.abstract], [], [], 0)
        for listener in ready:
            found.append(f"a listener was reached ({listener.family.name})")
            if listener is self.udp:
                listener.recv(65536)
            else:
                listener.accept()[0].close()
        harm = self._harm_of_victim()
        if harm:
            found.append(harm)
            self._end_victim()
            self.victim = self._start_victim()
        if not self.secret.exists() or self.secret.read_text() != "the secret":
            found.append("a file of the host was changed")
            self.secret.unlink(missing_ok=True)
            self.secret.write_text("the secret")
        for extra in {path.name for path in self.folder.iterdir()} - {"secret", "socket"}:
            found.append(f"a file was left in a folder of the host ({extra})")
            shutil.rmtree(self.folder / extra, ignore_errors=True)
            (self.folder / extra).unlink(missing_ok=True)
        return found

    def remains(self) -> list[str]:
        """Files, sockets and shared memory on the host that carry the token, removed where that is possible."""
        found = []
        for folder in SHARED_FOLDERS:
            for name in os.listdir(folder) if os.access(folder, os.R_OK) else []:
                if self.token in name and (path := Path(folder, name)) != self.folder:
                    found.append(str(path))
                    shutil.rmtree(path, ignore_errors=True)
                    path.unlink(missing_ok=True)
        lines = Path("/proc/net/unix").read_text().splitlines()
        found += [line.split()[-1] for line in lines if f"{self.token}-left" in line]
        for kind in ("shm", "msg", "sem"):
            table = Path(f"/proc/sysvipc/{kind}")
            for line in table.read_text().splitlines()[1:] if table.exists() else []:
                if line.split()[0] == str(sysv_key(self.token)):
                    found.append(f"SysV {kind}")
                    subprocess.run(["ipcrm", f"-{ {'shm': 'm', 'msg': 'q', 'sem': 's'}[kind] }", line.split()[1]])
        return found

    def close(self) -> None:
        self._end_victim()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_victim(self) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        return subprocess.Popen(["cat"], env={"SECRET": "the secret"}, **pipes)

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.communicate()

    def _harm_of_victim(self) -> str:
        """It is asked for an answer: a signal on its way to it would otherwise be blamed on a later program."""
        try:
            self.victim.stdin.write(b"?")
            answered = bool(select.select([self.victim.stdout], [], [], ANSWER_S)[0])
            if answered and self.victim.stdout.read(1):
                return ""
        except BrokenPipeError:
            answered = True
        if not answered:
            return "a process of the host does not answer"
        return f"a process of the host ended ({self.victim.wait()})"


def sysv_key(token: str) -> int:
    """The System V key that programs make out of the token."""
    return int(token.removeprefix("hostile")[:7], 16)
