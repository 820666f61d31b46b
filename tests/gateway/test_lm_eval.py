"""lm-eval against a front, by the commands of docs/serve.md, on a task whose rows are a file. Skipped where the
interpreter that RETOOL_CLIENTS_PYTHON names has no lm-eval."""

import json
import os
import subprocess
import sys

import pytest
from played_policy import played_policy, served
from test_openai_client import PROGRAM
from transformers import AutoTokenizer

from retool_mcore.data.tiny_model import make_tiny_model

PYTHON = os.environ.get("RETOOL_CLIENTS_PYTHON", sys.executable)
TASK = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
{rest}
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]"""
WORDS = """output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["NEVER"], max_gen_toks: 120}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]"""
MODELS = {"completions": ("local-completions", CHOICE), "chat/completions": ("local-chat-completions", WORDS)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=1)


def scored(url, route, model, folder):
    """The task's results, as lm-eval writes them."""
    kind, rest = MODELS[route]
    (folder / "rows.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "question": f"{a}*7?",
                    "answer": "It is 42.",
                    "choices": [f" {a * 7}", " nothing"],
                    "label": int(a == 7),
                }
            )
            + "\n"
            for a in (6, 6, 7)
        )
    )
    (folder / "sums.yaml").write_text(TASK.format(rows=folder / "rows.jsonl", rest=rest))
    arguments = f"model=policy,base_url={url}/v1/{route},num_concurrent=2"
    arguments += "" if route.startswith("chat") else f",tokenizer={model}"
    command = [PYTHON, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", "sums"]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out")]
    command += ["--apply_chat_template"] if route.startswith("chat") else []
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "OPENAI_API_KEY": "none",
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, **offline})
    assert done.returncode == 0, done.stderr[-3000:]
    (report,) = (folder / "out").rglob("results*.json")
    return json.loads(report.read_text())["results"]["sums"]


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("route", MODELS)
def test_a_task_is_scored(model, tmp_path, route):
    there = subprocess.run([PYTHON, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('lm_eval'))"])
    if there.returncode:
        pytest.skip("lm-eval is not installed")
    tokenizer = AutoTokenizer.from_pretrained(model)

    def write(prompt):
        return "It is 42." if "</interpreter>" in prompt or not prompt.startswith("<|im_start|>") else PROGRAM

    policy = played_policy(tokenizer, write)
    with served(policy) as (url, _):
        results = scored(url, route, model, tmp_path)
    if route == "completions":
        # The played engine gives each token the same probability: the shorter choice wins, which is right in two rows.
        assert results["acc,none"] == pytest.approx(2 / 3)
        assert len(policy.engine.requests) == 6, "a request a choice"
    else:
        assert results["exact_match,none"] == 0 and len(policy.engine.requests) == 6, "two turns a row"
