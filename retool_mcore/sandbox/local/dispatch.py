"""The server's work: callers wait for places, places run programs, limits stop them, results go back."""

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.isolation.confine import Confinement
from retool_mcore.sandbox.local.caller import Caller
from retool_mcore.sandbox.local.inits import NamespacePool
from retool_mcore.sandbox.local.loop import Loop, Timer
from retool_mcore.sandbox.local.place import Slot
from retool_mcore.sandbox.local.run import Run
from retool_mcore.sandbox.local.sessions import Sessions
from retool_mcore.sandbox.local.watch import SOON_S, WATCH_S, Watch, look_soon
from retool_mcore.sandbox.local.wire import encode_reply, frame

PARENT_CHECK_S = 1.0
CLOSE_S = 5.0
RETRY_S = 0.1
# Runs that begin at once: more would only wait for each other. A run older than YOUNG_S is held to be a long one.
MAX_BUSY = 16
YOUNG_S = 0.02


@dataclass(eq=False)
class Dispatcher:
    control: socket.socket
    parent: int
    confinement: Confinement
    zygote_pid: int
    zygote: socket.socket
    options: dict

    def __post_init__(self):
        self.loop = Loop()
        in_namespaces = self.confinement.level == "namespaces"
        self.watch = Watch(self.zygote_pid, in_namespaces)
        self.inits = NamespacePool(self.loop, self.confinement.folders, self._refill) if in_namespaces else None
        self.places: set[Slot] = set()
        self.spares: deque[Slot] = deque()
        self.starting = 0
        self.forking: deque[Slot] = deque()
        self.of_program: dict[int, Slot] = {}
        self.waiting: deque[Caller] = deque()
        self.running: dict[Slot, Caller] = {}
        self.sessions = Sessions(self.loop, self.options["session_idle_s"], self._request_place, self._begin)
        self.refill_timer: Timer | None = None
        self.trim_timer: Timer | None = None
        self.closing = False

    def serve(self) -> None:
        self.loop.watch(self.control.fileno(), lambda _: self._accept())
        self.loop.watch(self.zygote.fileno(), lambda _: self._hear_zygote())
        self._every(PARENT_CHECK_S, self._check_parent)
        self._every(WATCH_S, self._check_limits)
        self._refill()
        self.loop.run()

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        def again():
            action()
            self.loop.after(seconds, again)

        self.loop.after(seconds, again)

    # callers

    def _accept(self) -> None:
        message, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        if not message:
            self.loop.forget(self.control.fileno())
            self._close()
            return
        for fd in fds:
            Caller(self.loop, socket.socket(fileno=fd), self._on_request, self._on_hang_up)

    def _on_request(self, caller: Caller, header: dict, raw: bytes) -> None:
        if "end_session" in header:
            place = self.sessions.end(header["end_session"])
            if place is not None:
                place.kill()
            caller.reply(frame({"ended": place is not None}))
            return
        caller.run = Run(header, raw, self.options["max_output_bytes"])
        if self.closing:
            caller.close()
        elif caller.run.session is not None:
            self.sessions.submit(caller)
        else:
            self._request_place(caller)

    def _on_hang_up(self, caller: Caller) -> None:
        if caller in self.waiting:
            self.waiting.remove(caller)
        if caller.run is None:
            return
        place = caller.run.place
        if place is not None and self.running.get(place) is caller:
            caller.run.stop(Status.KILLED, "the caller hung up")
            place.kill()
        elif place is None and caller.run.session is not None:
            self.sessions.withdraw(caller)

    # places

    def _request_place(self, caller: Caller) -> None:
        self.waiting.append(caller)
        self._match()

    def _match(self) -> None:
        while self.waiting and self.spares:
            self._begin(self.waiting.popleft(), self.spares.popleft())
        self._refill()

    def _refill(self) -> None:
        """Make as many places as callers wait for, and spares; half of these may be on their way back from a run."""
        if self.closing:
            return
        spares, young = self.options["spares"], self._young()
        coming = young + (len(self.inits.returning) if self.inits else 0)
        wanted = len(self.waiting) + spares - len(self.spares) - (min(coming, spares // 2) if self.inits else 0)
        if self.waiting:
            wanted = min(wanted, MAX_BUSY - coming)
        while self.starting < wanted:
            place = Slot(self.loop, self.inits, self.options["base_dir"], self.zygote, self._place_ended)
            self.places.add(place)
            self.starting += 1
            try:
                place.prepare(self._fork)
            except OSError as error:
                place.fail(str(error))
                return
        if self.inits and self.inits.ready and self.trim_timer is None:
            self.trim_timer = self.loop.after(self.options["keep_s"], self._trim)
        if young and self.refill_timer is None:
            self.refill_timer = self.loop.after(YOUNG_S, self._refill_again)

    def _trim(self) -> None:
        self.trim_timer = None
        self.inits.trim()

    def _refill_again(self) -> None:
        self.refill_timer = None
        self._refill()

    def _young(self) -> int:
        """How many runs have begun so lately that they may soon be over."""
        since = time.monotonic() - YOUNG_S
        return sum(caller.run.started >= since and caller.run.session is None for caller in self.running.values())

    def _fork(self, place: Slot) -> None:
        try:
            place.fork()
            self.forking.append(place)
        except OSError as error:
            place.fail(str(error))

    def _hear_zygote(self) -> None:
        message = self.zygote.recv(4096)
        if not message:
            # Without it nothing more can run here; the trainer's side starts another server.
            os._exit(1)
        news = json.loads(message)
        if "started" in news:
            self._started(self.forking.popleft(), news["started"])
        elif (place := self.of_program.pop(news["ended"], None)) is not None:
            place.program_ended(news["status"])

    def _started(self, place: Slot, pid: int) -> None:
        if pid <= 0:
            place.fail("the machine has no process left")
            return
        place.program = pid
        self.of_program[pid] = place
        if place.ended or place.killed:
            place.kill()
            return
        place.starting = False
        self.starting -= 1
        self.spares.append(place)
        self._match()

    def _place_ended(self, place: Slot) -> None:
        self.places.discard(place)
        caller = self.running.pop(place, None)
        if caller is not None:
            self._finish(caller)
        elif place in self.spares:
            self.spares.remove(place)
        elif place.starting:
            place.starting = False
            self.starting -= 1
            if self.waiting:
                reason = place.failure or "a place to run in could not be made"
                self._answer(self.waiting.popleft(), Result.broken(f"the sandbox failed: {reason}"))
        self.sessions.lost(place)
        failed = bool(place.failure)
        place.close()
        if failed:
            self.loop.after(RETRY_S, self._refill)
        else:
            self._refill()
        if self.closing and not self.places:
            self.loop.running = False

    # runs

    def _begin(self, caller: Caller, place: Slot) -> None:
        run = caller.run
        run.begin(place)
        self.running[place] = caller
        for fd in place.outputs:
            self.loop.watch(fd, lambda _, fd=fd: self._on_output(place, fd))  # type: ignore[misc]
        self.loop.watch(place.control.fileno(), lambda _: self._on_word(place))
        reason = f"the program ran longer than {run.timeout_s:g} s and was stopped"
        run.timer = self.loop.after(run.timeout_s, lambda: self._stop(run, Status.TIMEOUT, reason))
        self.loop.after(SOON_S, lambda: look_soon(run))
        try:
            place.hand_over(run.raw, run.stdin.encode("utf-8", "replace"))
        except OSError:
            place.kill()

    def _stop(self, run: Run, status: Status, reason: str) -> None:
        run.stop(status, reason)
        if run.stopped is not None:
            run.place.kill()

    def _on_output(self, place: Slot, fd: int) -> None:
        run = self.running[place].run
        if not run.read_from(fd):
            self.loop.forget(fd)
        if run.stopped is not None and not place.killed:
            place.kill()

    def _on_word(self, place: Slot) -> None:
        caller = self.running[place]
        if caller.run.hear() is False:
            self.loop.forget(place.control.fileno())
        if caller.run.exit_code is None or place.killed:
            return
        # A session's program has ended, and its process waits for the next.
        del self.running[place]
        for fd in (*place.outputs, place.control.fileno()):
            self.loop.forget(fd)
        self._finish(caller)
        self.sessions.idle(place)

    def _finish(self, caller: Caller) -> None:
        caller.run.timer.cancel()
        self._answer(caller, caller.run.finish())

    def _answer(self, caller: Caller, result: Result) -> None:
        if caller.run.session is not None:
            self.sessions.answered(caller)
        caller.reply(encode_reply(result, caller.run.new_session))

    def _check_limits(self) -> None:
        for run in self.watch.look([caller.run for caller in self.running.values()]):
            run.place.kill()

    # the end

    def _check_parent(self) -> None:
        # A forked copy of the trainer may hold the control socket open beyond the trainer's end.
        if os.getppid() != self.parent:
            self._close()

    def _close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self.loop.after(CLOSE_S, lambda: os._exit(1))
        for caller in self.running.values():
            caller.run.stop(Status.KILLED, "the sandbox was closed")
        for caller in self.waiting:
            caller.close()
        self.waiting.clear()
        if self.inits:
            self.inits.close()
        for place in list(self.places):
            place.kill()
        if not self.places:
            self.loop.running = False
