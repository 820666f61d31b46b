"""The last filters: length in tokens, number of programs, difficulty, and that both formats render with the mask."""

import sys
import unicodedata
from dataclasses import dataclass
from typing import Any

from retool_mcore.coldstart.config import Select
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.data.formats import Format, get_format
from retool_mcore.data.prompts import render
from retool_mcore.data.segments import render_segments
from retool_mcore.data.traces import without_answer_tags
from retool_mcore.errors import UserError

# Prompt template and format belong together.
TEMPLATES = {"text": "retool", "hermes": "hermes"}


@dataclass
class Selector:
    """Called with a row; fills in `tokens`. Raises Drop for a row outside of the bounds of `config` or whose mask does
    not separate its own text from the interpreter's. `tokenizer`: folder or hub name."""

    config: Select
    tokenizer: str
    _formats: Any = None

    def __reduce__(self):
        # Each process loads its own tokenizer.
        return Selector, (self.config, self.tokenizer)

    def prepare(self) -> None:
        if self._formats is not None:
            return
        from transformers import AutoTokenizer

        try:
            # The limit is select.max_tokens; the tokenizer would only warn.
            loaded = AutoTokenizer.from_pretrained(self.tokenizer, model_max_length=sys.maxsize)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"cannot load the tokenizer {self.tokenizer!r} of select.tokenizer: give its folder, or its name on "
                f"the hub ({reason.rstrip('.')})."
            ) from error
        self._formats = [get_format(name, loaded) for name in TEMPLATES]

    def __call__(self, row: Row) -> Row:
        self.prepare()
        config = self.config
        programs = sum(segment["kind"] == "code" for segment in row.segments)
        _within("programs", programs, config.min_programs, config.max_programs)
        _within("difficulty", row.difficulty, config.min_difficulty, config.max_difficulty)
        _within("judge's share", row.judge_share, None, config.max_judge_share)
        tokens = [rendered_tokens(fmt, row) for fmt in self._formats]
        _within("tokens", max(tokens), None, config.max_tokens)
        row.tokens = tokens[0]
        return row


def rendered_tokens(fmt: Format, row: Row) -> int:
    """Tokens of prompt and response in `fmt`. Raises Drop when the row cannot be rendered or its mask is wrong.

    The mask is right when what it leaves out reads as the observations, one by one, and what it trains on as the
    policy's turns: checked on the decoded text, which shares nothing with how the mask was made.
    """
    segments = row.trace_segments() if fmt.name == "text" else without_answer_tags(row.trace_segments())
    plain = [{"kind": segment.kind, "text": segment.text} for segment in segments]
    try:
        ids, mask, _ = render_segments(fmt, fmt.tokenizer, plain)
    except UserError as error:
        raise Drop("cannot be rendered", f"{fmt.name}: {error}") from None
    trained = _nfc(fmt.decode([token for token, keep in zip(ids, mask, strict=True) if keep]))
    hidden = _nfc(fmt.decode([token for token, keep in zip(ids, mask, strict=True) if not keep]))
    position = 0
    for segment in plain:
        if segment["kind"] == "observation":
            position = hidden.find(_nfc(fmt.plain(segment["text"])), position)
            if position < 0:
                raise Drop("mask is wrong", f"{fmt.name}: an output is trained on")
        elif segment["kind"] == "text" and _nfc(fmt.neutral(segment["text"]).strip()) not in trained:
            raise Drop("mask is wrong", f"{fmt.name}: text of the policy is not trained on")
    return len(fmt.prompt_ids(render(TEMPLATES[fmt.name], row.problem))) + len(ids)


def _nfc(text: str) -> str:
    # Some tokenizers compose characters.
    return unicodedata.normalize("NFC", text)


def _within(name: str, value: float | None, least: float | None, most: float | None) -> None:
    if value is None and (least is not None or most is not None):
        if name == "judge's share":
            return
        raise Drop(f"no {name}", "the source has none for this row")
    if value is not None and least is not None and value < least:
        raise Drop(f"too few {name}" if name != "difficulty" else "too easy", f"{value}, at least {least}")
    if value is not None and most is not None and value > most:
        words = {"difficulty": "too hard", "judge's share": "too easy for the judge"}
        raise Drop(words.get(name, f"too many {name}"), f"{value}, at most {most}")
