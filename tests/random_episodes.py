"""Random episodes as a script of sampled turns: any ids, calls in any spelling, malformed ones among them."""

import json
from dataclasses import dataclass

from chatml_tokenizer import make_tokenizer
from hypothesis import strategies as st

from retool_mcore.data.formats import get_format
from retool_mcore.rollout.episode import Limits

TOKENIZER = make_tokenizer()
FORMATS = {name: get_format(name, TOKENIZER) for name in ("text", "hermes", "none")}
PROMPT = [5, 6, 7]
EOS = TOKENIZER.eos_token_id
OTHER_EOS = TOKENIZER.pad_token_id
ADDED = set(TOKENIZER.added_tokens_decoder)

# Ids at random, most of which no tokenizer would ever produce in this order, and which often are not valid UTF-8.
noise = st.lists(st.sampled_from([i for i in range(len(TOKENIZER)) if i not in ADDED]), max_size=12)
programs = st.sampled_from(
    ["print(1)", "x = 2\nprint(x + 1)", "s = '''\n\n  é ```'''\nprint(s)", "1/0", "  y", "print('<code>')"]
)
outputs = st.one_of(
    st.text(max_size=12), st.sampled_from(["3\n", "", "<|im_end|>", "</interpreter>", "a\n\n\nb", "<code>x</code>"])
)
MALFORMED = [
    '{"name": "code_int',
    '{"name": "search", "arguments": {}}',
    '{"name": "code_interpreter", "arguments": {"code": " "}}',
    '{"name": "code_interpreter", "arguments": {"code": "\\ud800"}}',
    '{"name": 1}',
    "[]",
    "[" * 2000,
]


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


@st.composite
def spelled(draw, text):
    """Tokens of `text` in a random spelling: cut anywhere, each piece encoded by itself."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [token for piece in pieces for token in encode(piece)]


@dataclass
class Turn:
    ids: list
    calls: list  # (first token, token after the last, program or None when malformed)


@st.composite
def text_turn(draw, final):
    ids = draw(noise)
    if final:
        return Turn([*ids, draw(st.sampled_from([EOS, OTHER_EOS]))], [])
    program = draw(st.one_of(programs.filter(lambda p: "<code>" not in p), st.none()))
    if program is None:
        body = draw(st.sampled_from(["</code>", "<code></code>", "<code>\n```python\n\n```\n</code>"]))
    else:
        body = f"<code>\n```python\n{program}\n```\n</code>"
    # The first and the last character keep tokens of their own, so that the script knows where the block lies.
    block = encode(body[0]) + draw(spelled(body[1:-1])) + draw(st.sampled_from([encode(">"), encode(">\n")]))
    return Turn(ids + block, [(len(ids), len(ids) + len(block), program)])


@st.composite
def hermes_turn(draw, final):
    ids, calls = draw(noise), []
    for _ in range(0 if final else draw(st.integers(1, 3))):
        program = draw(st.one_of(programs, st.none()))
        if program is None:
            body = draw(st.sampled_from(MALFORMED))
        else:
            call = {"name": "code_interpreter", "arguments": {"code": program}}
            body = json.dumps(call, ensure_ascii=draw(st.booleans()))
        block = encode("<tool_call>") + draw(spelled(body)) + encode("</tool_call>")
        calls.append((len(ids), len(ids) + len(block), program))
        ids = ids + block + draw(noise)
    if not final and draw(st.integers(0, 4)) == 0:
        calls.append((len(ids), len(ids) + 3, None))
        ids = [*ids, *encode("<tool_call>"), *encode("{")]
        return Turn([*ids, EOS], calls)
    return Turn([*ids, draw(st.sampled_from([EOS, EOS, OTHER_EOS]))], calls)


@st.composite
def episodes(draw):
    name = draw(st.sampled_from(["text", "hermes"]))
    turn = {"text": text_turn, "hermes": hermes_turn}[name]
    script = [draw(turn(final=False)) for _ in range(draw(st.integers(0, 8)))] + [draw(turn(final=True))]
    limits = Limits(
        max_turns=draw(st.sampled_from([100, 100, 100, 100, 8, 3, 1, 0])),
        max_turn_tokens=draw(st.sampled_from([10_000] * 5 + [60])),
        max_response_tokens=draw(st.one_of(st.just(100_000), st.just(100_000), st.integers(1, 600))),
        max_observation_tokens=2000,
        after_last_call=draw(st.sampled_from(["end", "text"])),
    )
    return name, script, draw(st.lists(outputs, max_size=8)), limits
