"""A chat template that raises, by its own words or by Python's, is refused in one sentence before every stage."""

import shutil

import pytest
from families import write_family
from transformers import AutoTokenizer

from retool_mcore import resources
from retool_mcore.config import compose
from retool_mcore.data.formats import get_format
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine, run
from retool_mcore.train import prepare

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOOL = "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}%s{% endif %}"


def template(raising: str) -> str:
    return (
        "{% if tools %}TOOLS {{ tools }}{% endif %}{% for m in messages %}" + raising + TURN + "{% endfor %}" + OPENED
    )


RAISES = {
    "{{ raise_exception('a reply that nobody asked for') }}": "TemplateError: a reply that nobody asked for",
    "{{ m.tool_calls[0].function.name }}": "UndefinedError: 'dict object' has no attribute 'tool_calls'",
    "{{ 1 // 0 }}": "ZeroDivisionError: integer division or modulo by zero",
    "{{ 'a' + 1 }}": "TypeError: can only concatenate str",
    "{{ m.content.index('nowhere') }}": "ValueError: substring not found",
    "{{ range(10 ** 9) }}": "OverflowError: Range too big",
    "{{ m.content.__class__.mro() }}": "SecurityError: access to attribute '__class__'",
    "{% include 'other.jinja' %}": "TypeError: no loader for this environment specified",
}
EVERY = {
    "{{ raise_exception('Only user and assistant roles!\\nSee the docs.') if m.role == 'user' }}": (
        "TemplateError: Only user and assistant roles! See the docs."
    ),
    "{% if %}": "TemplateSyntaxError: Expected an expression",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_family(tmp_path_factory.mktemp("family") / "qwen3", "qwen3", weights=False)


@pytest.fixture
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def refusal(function, *given) -> str:
    with pytest.raises(UserError) as caught:
        function(*given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("raising", "words"), RAISES.items())
def test_a_template_that_refuses_a_tools_reply(tokenizer, raising, words):
    tokenizer.chat_template = template(TOOL.replace("%s", raising))
    message = refusal(get_format, "hermes", tokenizer)
    assert message.startswith("The chat template refused a conversation of user, assistant, tool with tools (" + words)
    assert "rollout.format=text" in message
    assert get_format("text", tokenizer).prompt_ids([{"role": "user", "content": "1 + 1?"}])


@pytest.mark.parametrize("name", ["text", "hermes", "none"])
@pytest.mark.parametrize(("raising", "words"), EVERY.items())
def test_a_template_that_refuses_every_conversation(tokenizer, raising, words, name):
    tokenizer.chat_template = template(raising)
    assert words in refusal(get_format, name, tokenizer)


def test_a_tokenizer_that_cannot_be_loaded_is_named(folder, tmp_path):
    from retool_mcore.data.policy_format import load_format

    broken = shutil.copytree(folder, tmp_path / "model")
    (broken / "tokenizer.json").write_text("{}")
    config = compose("rl", [f"runs_dir={tmp_path}"])
    assert f"The tokenizer in {broken} cannot be loaded" in refusal(load_format, config, broken)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    sizes = ["data.arithmetic.sft=96", "data.arithmetic.train=40", "data.arithmetic.validation=40"]
    prepare.run(compose("prepare", [f"runs_dir={runs}", "name=good", *sizes]))
    return runs / "good"


@pytest.mark.parametrize("stage", ["sft", "rl", "eval"])
@pytest.mark.parametrize(
    ("raising", "words"),
    [
        ("{{ raise_exception('no system prompt') if m.role == 'system' }}", None),
        ("{{ raise_exception('long user turn') if m.content | length > 10 }}", "TemplateError: long user turn"),
        (TOOL.replace("%s", "{{ raise_exception('nobody called it') }}"), "TemplateError: nobody called it"),
    ],
)
def test_every_stage_refuses_it_before_an_engine_starts(prepared, monkeypatch, stage, raising, words):
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 64 * machine.GIB)
    (prepared / "model" / "chat_template.jinja").write_text(template(raising))
    named = {"sft": "init_from", "rl": "init_from", "eval": "policy"}[stage]
    given = [f"runs_dir={prepared.parent}", "name=good", f"{named}={prepared / 'model'}"]
    hermes = ["rollout.format=hermes", "data.prompt=hermes"] if "nobody" in raising else []
    check = {"sft": run.check_sft_stage, "rl": run.check_rl_stage, "eval": run.check_eval_stage}[stage]
    config = compose(stage, [*given, *hermes])
    monkeypatch.setattr(run.data, "check_prepared_template", lambda *_: None)
    if words is None:
        check(config)
    else:
        assert words in refusal(check, config)
