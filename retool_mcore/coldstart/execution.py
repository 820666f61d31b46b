"""The execution stage: every program is run, and the output that the model wrote gives way to the real one."""

from retool_mcore.coldstart.compare import agree, stale
from retool_mcore.coldstart.config import Execution
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Sandbox, Status
from retool_mcore.sandbox.create import without_cache

# A service that restarts is back by then; a sandbox that still does not answer stops the run, not the row.
_ATTEMPTS = 3
_ENDED_BADLY = {
    Status.TIMEOUT: "program hangs",
    Status.MEMORY: "program needs too much memory",
    Status.OUTPUT: "program prints too much",
    Status.KILLED: "program was killed",
}


class Executor:
    """Runs a trace's programs in order, in one session, and replaces the outputs in `segments`.

    A claimed output that disagrees beyond formatting drops the trace, or (`on_mismatch: repair`) is repaired: the real
    output takes its place, and the trace stays unless the text after it uses a number that only the claim had. Raises
    Drop for a program that does not end well and for one that prints nothing, UserError when the sandbox is down.
    """

    def __init__(self, config: Execution, sandbox: Sandbox):
        self.config, self.sandbox = config, sandbox

    async def __call__(self, row: Row) -> Row:
        session = f"coldstart-{row.key}" if self.config.session else None
        segments = [dict(segment) for segment in row.segments]
        row.repaired = row.failed_programs = 0
        try:
            for number, segment in enumerate(segments):
                if segment["kind"] == "code":
                    result = await self._run(segment["text"], session)
                    self._replace(row, segments, number + 1, result)
        finally:
            end = getattr(without_cache(self.sandbox), "end_session", None)
            if session and end:
                await end(session)
        row.segments = segments
        return row

    async def _run(self, code: str, session: str | None) -> Result:
        for _ in range(_ATTEMPTS):
            result = await self.sandbox.run(code, session=session)
            if result.status is not Status.SANDBOX:
                return result
        raise UserError(
            f"the sandbox is down ({result.observation().strip()[:200]}): start it or correct execution.sandbox, and "
            "start again; finished rows are kept."
        )

    def _replace(self, row: Row, segments: list[dict], place: int, result: Result) -> None:
        if result.status in _ENDED_BADLY:
            raise Drop(_ENDED_BADLY[result.status], result.observation()[-200:])
        claimed, real = segments[place]["text"], result.observation()
        failed = result.status is Status.ERROR
        if failed:
            row.failed_programs += 1
            if self.config.on_error == "drop":
                raise Drop("program fails", real.rstrip().rpartition("\n")[2])
        if not real.strip():
            raise Drop("program prints nothing", f"claimed {claimed[:80]!r}")
        if len(real) > self.config.max_output_chars:
            raise Drop("program prints too much", f"{len(real)} characters")
        if len(claimed) > 2 * self.config.max_output_chars:
            raise Drop("claimed output is too long", f"{len(claimed)} characters")
        segments[place]["text"] = real.strip("\n").rstrip()
        if agree(claimed, real):
            return
        difference = f"claimed {claimed[:80]!r}, real {real[:80]!r}"
        if self.config.on_mismatch == "drop":
            raise Drop("claimed output is wrong", difference)
        before = [row.problem, *(segment["text"] for segment in segments[:place])]
        after = "\n".join(segment["text"] for segment in segments[place + 1 :] if segment["kind"] == "text")
        if values := stale(claimed, real, before, after):
            raise Drop("text relies on a wrong claimed output", f"{', '.join(values[:3])}; {difference}")
        row.repaired += 1
