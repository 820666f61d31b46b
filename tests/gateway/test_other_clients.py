"""litellm and langchain-openai against a front, unchanged. Each runs as a program of its own, by the interpreter that
RETOOL_CLIENTS_PYTHON names, and is skipped where that has no such package."""

import os
import subprocess
import sys

import pytest
from played_policy import played_policy, served
from test_openai_client import PROGRAM, called
from transformers import AutoTokenizer

from retool_mcore.data.tiny_model import make_tiny_model

ABSENT = 77
START = """
import json, os, sys
from importlib.util import find_spec
if find_spec(PACKAGE) is None:
    sys.exit(77)
url = sys.argv[1]
ASKED = [{"role": "user", "content": "6*7?"}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
"""
LITELLM = """
import litellm
def ask(**keys):
    keys = {"messages": ASKED, **keys}
    return litellm.completion(model="openai/policy", api_base=url, api_key="none", num_retries=0, **keys)
"""
LANGCHAIN = """
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
model = ChatOpenAI(model="policy", base_url=url, api_key="none", max_retries=0)
"""
ANSWERS = {
    "litellm": LITELLM + """
assert ask().choices[0].message.content == "Let me see.\\n\\nIt is 42."
chunks = list(ask(stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me see.\\n\\nIt is 42."
try:
    ask(messages=[{"role": "user", "content": "x" * 4000}])
    raise SystemExit("no error")
except litellm.ContextWindowExceededError:
    pass
""",
    "langchain_openai": LANGCHAIN + """
assert model.invoke("6*7?").content == "Let me see.\\n\\nIt is 42."
assert "".join(chunk.content for chunk in model.stream("6*7?")) == "Let me see.\\n\\nIt is 42."
""",
}  # fmt: skip
CALLS = {
    "litellm": LITELLM + """
message = ask(tools=[TOOL]).choices[0].message
assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
output = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "warm"}
assert ask(messages=[*ASKED, message.model_dump(), output], tools=[TOOL]).choices[0].message.content == "Warm."
""",
    "langchain_openai": LANGCHAIN + """
bound = model.bind_tools([TOOL])
answer = bound.invoke([HumanMessage("6*7?")])
assert answer.tool_calls[0]["name"] == "weather" and answer.tool_calls[0]["args"] == {"city": "Rome"}
output = ToolMessage("warm", tool_call_id=answer.tool_calls[0]["id"])
assert bound.invoke([HumanMessage("6*7?"), answer, output]).content == "Warm."
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model"), seed=1))


def run(package, program, url):
    text = START.replace("PACKAGE", repr(package)) + program
    env = {**os.environ, "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    python = os.environ.get("RETOOL_CLIENTS_PYTHON", sys.executable)
    done = subprocess.run([python, "-c", text, f"{url}/v1"], capture_output=True, text=True, timeout=300, env=env)
    if done.returncode == ABSENT:
        pytest.skip(f"{package} is not installed")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(320)
@pytest.mark.parametrize("package", ANSWERS)
def test_it_reads_the_answers_of_a_policy_with_tools_of_its_own(tokenizer, package):
    policy = played_policy(tokenizer, lambda prompt: "It is 42." if "</interpreter>" in prompt else PROGRAM)
    with served(policy) as (url, _):
        run(package, ANSWERS[package], url)


@pytest.mark.timeout(320)
@pytest.mark.parametrize("package", CALLS)
def test_it_runs_the_tools_itself(tokenizer, package):
    def write(prompt):
        return "Warm." if "warm" in prompt else called("Rome")

    policy = played_policy(tokenizer, write, "hermes", tools="client")
    with served(policy) as (url, _):
        run(package, CALLS[package], url)
    assert policy.engine.requests[1][0][: len(policy.engine.requests[0][0])] == policy.engine.requests[0][0]
