r"""Where a text has boxed answers, `\boxed{...}` or `\fbox{...}`: read by the rollout and by the rewards."""

import re

# An escaped character is one token, so that neither `\{` nor the brace after `\\` is miscounted.
_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*+\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""(start, end, content) of every `\boxed{...}` or `\fbox{...}` whose braces balance, in the order they open.

    Of nested boxes only the innermost. A box that is never closed (a response cut at its limit) does not count; an
    empty box counts and gives "". One pass, linear in the text's length.
    """
    open_braces: list[tuple[int, int] | None] = []  # where a box and its content start; None for a plain brace
    spans: list[tuple[int, int, str]] = []
    for token in _TOKEN.finditer(text):
        if token["box"]:
            open_braces.append((token.start(), token.end()))
        elif token["open"]:
            open_braces.append(None)
        elif token["close"] and open_braces:
            box = open_braces.pop()
            # A box around another one closes after it and opened before it.
            if box is not None and not (spans and spans[-1][0] > box[0]):
                spans.append((box[0], token.end(), text[box[1] : token.start()].strip()))
    return spans


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` that balances, stripped; None when there is none.

    "Last" is the box that opens last: of `\boxed{x = \boxed{5}}` it is `5`. Whether others contradict it is
    `rewards/answer.py::extract`'s question.
    """
    spans = boxes(text)
    return spans[-1][2] if spans else None
