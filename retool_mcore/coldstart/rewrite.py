"""The rewriting stage: hand calculation in the reasoning becomes a program and its output (arXiv 2504.11536, 2.1)."""

from pathlib import Path

from retool_mcore.coldstart.client import Client
from retool_mcore.coldstart.config import Rewrite
from retool_mcore.coldstart.rows import Drop, Row

# The paper's instruction in our own words.
INSTRUCTION = (Path(__file__).parent / "templates" / "rewrite.txt").read_text().rstrip("\n")
_NO_REASONING = "There is no solution yet: write one that follows the rules."


class Rewriter:
    """Fills in `rewrite`. Raises Drop for a reply that is empty or was cut at max_tokens."""

    def __init__(self, config: Rewrite, client: Client):
        self.instruction = config.instruction or INSTRUCTION
        self.client = client

    async def __call__(self, row: Row) -> Row:
        solution = f"Solution:\n{row.reasoning}" if row.reasoning else _NO_REASONING
        content = f"{self.instruction}\n\nProblem:\n{row.problem}\n\n{solution}"
        reply = await self.client.ask([{"role": "user", "content": content}])
        if reply.finish == "length":
            raise Drop("rewrite was cut", f"at rewrite.model.max_tokens={self.client.model.max_tokens}")
        if not reply.text.strip():
            raise Drop("rewrite is empty")
        # A reasoning model's own thoughts are no part of the rewrite.
        row.rewrite = reply.text.rpartition("</think>")[2].strip()
        return row
