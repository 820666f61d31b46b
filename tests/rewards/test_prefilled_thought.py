"""Tool-N1 and ToolRL on every model group: the thought that the chat template opens belongs to the answer."""

import json

import pytest
from families import FAMILIES, OURS, write_family
from recipe_samples import sample
from transformers import AutoTokenizer

from retool_mcore.config import compose
from retool_mcore.data.formats import get_format
from retool_mcore.data.function_schema import function_schema
from retool_mcore.data.prompts import render
from retool_mcore.rewards.registry import find_reward

MODELS = {
    "r1-distill-qwen-32b": "r1-distill",
    "qwen3-8b": "qwen3",
    "qwen3-32b": "qwen3",
    "qwen3-30b-a3b": "qwen3-moe",
    "llama3.1-8b": "llama3.1",
    "mistral": "mistral",  # a template of ours that no group names
}
TOOLS = [function_schema("f", "F.", {"type": "object", "properties": {"x": {"type": "number"}}})]
CALLS = [{"name": "f", "arguments": {"x": 5}}]
WRITTEN = {"tool_n1": json.dumps(CALLS), "toolrl": "\n".join(map(json.dumps, CALLS))}
BEST = {"tool_n1": 1.0, "toolrl": 4.0}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: AutoTokenizer.from_pretrained(write_family(folder / name, name, weights=False)) for name in FAMILIES}


@pytest.mark.parametrize("thinking", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
@pytest.mark.parametrize("recipe", WRITTEN)
@pytest.mark.parametrize("model", MODELS)
def test_a_perfect_answer_has_the_best_reward_on_every_template(tokenizers, model, recipe, thinking):
    tokenizer = tokenizers[MODELS[model]]
    if model in ("mistral",):
        tokenizer.chat_template = (OURS / "mistral.jinja").read_text()
    else:
        names = [f"recipe={recipe}", "data=xlam", f"data.prompt={recipe}", f"model={model}"]
        tokenizer.chat_template = compose("rl", names).rollout.chat_template
    fmt = get_format("hermes", tokenizer, thinking)
    prompt = fmt.prompt_ids(render(recipe, "f of 5?"), TOOLS)
    prefill = fmt.prefill(prompt)
    assert fmt.decode(prompt).endswith(prefill)
    block = f"<tool_call>\n{WRITTEN[recipe]}\n</tool_call>"
    answers = [f"<think>\nFive words of a thought.\n</think>\n{block}"]  # it thinks itself
    if prefill.endswith("</think>\n\n"):
        answers.append(block)  # the template closed an empty thought
    elif prefill:
        answers = [f"Five words of a thought.\n</think>\n{block}"]
    reward = find_reward(compose("rl", [f"recipe={recipe}", "data=functions"]).recipe.reward.name)
    for answer in answers:
        known = {"text": answer, "ground_truth": json.dumps(CALLS), "prefill": prefill}
        assert reward(sample(**known)) == BEST[recipe]
        assert reward(sample(**known | {"ground_truth": json.dumps([])})) < BEST[recipe], "it is not constant"
    if recipe == "toolrl":
        assert reward(sample(**known | {"text": answers[0]}), with_length=True) == 4 + 5 / 512
    if not prefill:
        assert reward(sample(**known | {"text": block})) < BEST[recipe], "a thought of the policy's own is asked for"


def test_the_prefill_is_of_the_prompt_and_not_of_the_template(tokenizers):
    """DeepSeek's template opens a thought behind a question and none behind a tool's reply."""
    tokenizer = tokenizers["r1-distill"]
    tokenizer.chat_template = (OURS / "r1-distill.jinja").read_text()
    fmt = get_format("hermes", tokenizer)
    question = [{"role": "user", "content": "Which tag, <think>?"}]
    replied = [*question, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "<think>\n"}]
    assert [fmt.prefill(fmt.prompt_ids(messages)) for messages in (question, replied)] == ["<think>\n", ""]
