"""Programs that fail as a policy's do, with what the interpreter really answers: half of a self-correction.

ReTool's cold-start data holds them, and a policy that has never read an error does not know what to do after one.
"""

import asyncio
from collections.abc import Sequence

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.local import LocalSandbox

# What is wrong -> the program, with an integer expression for {}. Each is put right by print({}).
KINDS = {
    "SyntaxError: '(' was never closed": "print({}",
    "NameError: name 'pritn' is not defined": "pritn({})",
    "NameError: name 'math' is not defined": "print(math.floor({}))",
    "TypeError: 'int' object is not iterable": "print(sum({}))",
}


def observations(programs: Sequence[str]) -> list[str]:
    """What the policy would read of each program, all run in a sandbox on this machine.

    It is the local sandbox whatever the run's is: data is prepared where no service stands yet. Raises UserError for a
    program that does not end in an error of its own.
    """

    async def run() -> list[str]:
        sandbox = LocalSandbox(preload=())  # none of the programs gets as far as an import
        try:
            results = await asyncio.gather(*map(sandbox.run, programs))
        finally:
            await sandbox.close()
        for program, result in zip(programs, results, strict=True):
            if result.status is not Status.ERROR:
                raise UserError(
                    f"The program {program!r} was to fail, but ended with {result.status} "
                    f"({result.observation().strip()[:200]}): see `retool doctor` for the sandbox of this machine."
                )
        return [result.observation() for result in results]

    return asyncio.run(run()) if programs else []
