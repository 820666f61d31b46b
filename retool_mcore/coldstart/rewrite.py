"""The rewriting stage: hand calculation in the reasoning becomes a program and its output (arXiv 2504.11536, 2.1)."""

from retool_mcore.coldstart.client import Client
from retool_mcore.coldstart.config import Rewrite
from retool_mcore.coldstart.rows import Drop, Row

# The paper's instruction in our own words.
INSTRUCTION = r"""You are given a mathematics problem and a solution that reasons in text only. Rewrite the solution so
that a Python interpreter does the work wherever running a program is worth more than working by hand: long arithmetic,
solving equations, enumerating or counting cases, simulating, checking a result. Keep the line of thought, its order and
its insights; leave short and obvious steps as text.

How to write a program and its output:
<code>
```python
the program
```
</code>
<interpreter>
exactly what the program prints
</interpreter>

Rules:
1. A program is complete and correct Python with its imports, uses the standard library, numpy, scipy or sympy, reads no
input, ends within seconds, and prints what the text after it needs.
2. Right behind </code> stands <interpreter> with the output that the program really has. Never invent an output.
3. The text after an output goes on from that output.
4. Use <code> and <interpreter> for nothing else, and put no program outside of <code>.
5. The last part of the rewrite is the final answer, in this form and only once:
<answer>
\boxed{the final answer}
</answer>

Write the rewritten solution and nothing else."""
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
