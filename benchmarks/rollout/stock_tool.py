"""The interpreter of verl's own tool agent loop in steps.py's stock runs on a trace: one Python process a program."""

import asyncio
import sys

from verl.tools.function_tool import function_tool

TIMEOUT_S = 30.0  # as sandbox.timeout_s


@function_tool("code_interpreter")
async def code_interpreter(code: str) -> str:
    """Runs a Python program and returns what it prints.

    Args:
        code: The Python program.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", code, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return "Error: the program took too long."
    return printed.decode(errors="replace").strip()
