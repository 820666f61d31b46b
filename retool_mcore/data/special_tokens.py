"""Special tokens in a text that is no template's: a question, a trace or a program's output may name them."""

import re
from collections.abc import Iterable

# A policy writes them, and data sets teach them, also where a tokenizer counts them among its special tokens.
_TAGS = ("think", "code", "tool_call", "answer", "interpreter", "tool_response")
POLICY_TAGS = {f"<{end}{name}>" for name in _TAGS for end in ("", "/")}
NAMED = "name special tokens of the tokenizer, such as <|im_end|>: they are read as text, with a space inside"


class SpecialTokens:
    """Tokens that a text may name but must not become; a token of one character is left alone."""

    def __init__(self, tokens: Iterable[str]):
        longest_first = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def broken_up(self, text: str) -> str:
        """Return `text` with a space behind the first character of each token."""
        while (changed := self._pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)) != text:
            text = changed
        return text

    def removed(self, text: str) -> str:
        """Return `text` without the tokens."""
        return self._pattern.sub("", text)
