"""An agent in forty lines, with Python's library alone: it lets the policy calculate, and ends with its answer.

retool rl environment=endpoint environment.agent=[python,examples/agents/calculator.py]
"""

import ast
import functools
import io
import json
import os
import urllib.request

MAX_REPLIES = 4
TOOL = {
    "name": "code_interpreter",
    "description": "Runs a Python program and returns what it prints.",
    "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
}
# The policy's text must not run as it is: this agent has its user's rights.
ARITHMETIC = (
    ast.Module, ast.Expr, ast.Call, ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
)  # fmt: skip


def calculate(code: str) -> str:
    """Return what a program of arithmetic and print() prints, or its error."""
    output = io.StringIO()
    try:
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if not isinstance(node, ARITHMETIC) or (isinstance(node, ast.Constant) and type(node.value) is not int):
                return f"Error: {type(node).__name__} is not allowed here, only arithmetic and print()."
        exec(compile(tree, "program", "exec"), {"__builtins__": {"print": functools.partial(print, file=output)}})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return output.getvalue()


def ask(messages: list[dict]) -> dict:
    """Return the policy's reply to a conversation."""
    body = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)) as response:
        return json.load(response)["choices"][0]["message"]


def main() -> None:
    with open(os.environ["RETOOL_ROW"]) as file:
        messages = json.load(file)["messages"]
    for _ in range(MAX_REPLIES):
        reply = ask(messages)
        messages.append(reply)
        for call in reply.get("tool_calls") or []:
            code = json.loads(call["function"]["arguments"])["code"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": calculate(code)})
        if not reply.get("tool_calls"):
            break


if __name__ == "__main__":
    main()
