"""Runs that share variables: one living program a session, its runs one after another."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from retool_mcore.sandbox.local.caller import Caller
from retool_mcore.sandbox.local.loop import Loop, Timer
from retool_mcore.sandbox.local.place import Slot


@dataclass(eq=False)
class _Session:
    place: Slot | None = None
    current: Caller | None = None
    queue: deque[Caller] = field(default_factory=deque)
    timer: Timer | None = None


@dataclass(eq=False)
class Sessions:
    """`request_place(caller)` gets a new place for the first run of a session, `begin(caller, place)` starts a run."""

    loop: Loop
    idle_s: float
    request_place: Callable[[Caller], None]
    begin: Callable[[Caller, Slot], None]
    of_id: dict[str, _Session] = field(default_factory=dict)

    def submit(self, caller: Caller) -> None:
        session = self.of_id.setdefault(caller.run.session, _Session())
        session.queue.append(caller)
        self._next(session)

    def _next(self, session: _Session) -> None:
        if session.current is not None or not session.queue:
            return
        session.current = caller = session.queue.popleft()
        if session.timer is not None:
            session.timer.cancel()
        if session.place is None:
            caller.run.new_session = True
            self.request_place(caller)
        else:
            self.begin(caller, session.place)

    def answered(self, caller: Caller) -> None:
        """The caller's run is over; if its place lives on, `idle` follows, otherwise `lost`."""
        session = self.of_id.get(caller.run.session)
        if session is not None and session.current is caller:
            session.current = None
            session.place = caller.run.place
            if session.place is None or session.place.ended:
                self._drop_place(session, caller.run.session)

    def idle(self, place: Slot) -> None:
        for session in self.of_id.values():
            if session.place is place:
                session.timer = self.loop.after(self.idle_s, place.kill)
                self._next(session)
                return
        # Ended meanwhile.
        place.kill()

    def lost(self, place: Slot) -> None:
        for name, session in list(self.of_id.items()):
            if session.place is place:
                self._drop_place(session, name)
                return

    def _drop_place(self, session: _Session, name: str) -> None:
        session.place = None
        if session.timer is not None:
            session.timer.cancel()
        if session.queue:
            self._next(session)
        elif session.current is None:
            self.of_id.pop(name, None)

    def withdraw(self, caller: Caller) -> None:
        """A caller that has no place yet has hung up."""
        session = self.of_id.get(caller.run.session)
        if session is None:
            return
        if session.current is caller:
            session.current = None
            self._drop_place(session, caller.run.session)
        elif caller in session.queue:
            session.queue.remove(caller)

    def end(self, name: str) -> Slot | None:
        """Forget the session; its place, if it has one, must be killed."""
        session = self.of_id.pop(name, None)
        if session is None:
            return None
        for caller in session.queue:
            caller.close()
        return session.place or (session.current.run.place if session.current else None)
