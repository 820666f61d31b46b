"""Finding the answer that a response commits to.

One policy lives here: the last box. Which text may hold the answer at all (no code, no interpreter output) is decided
before, by `rollout/trajectory.py::answer_text`.
"""

import re

# An escaped character is one token, so that neither `\{` nor the brace after `\\` is miscounted.
_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}` whose braces balance, stripped; None when there is none.

    "Last" is the box that opens last: of `\boxed{x = \boxed{5}}` it is `5`. A box that is never closed (a response cut
    at its limit) does not count; an empty box counts and gives "". One pass, linear in the text's length.
    """
    open_braces: list[int | None] = []  # where a box's content starts; None for a plain brace
    best: tuple[int, int] | None = None
    for token in _TOKEN.finditer(text):
        if token["box"]:
            open_braces.append(token.end())
        elif token["open"]:
            open_braces.append(None)
        elif token["close"] and open_braces:
            start = open_braces.pop()
            if start is not None and (best is None or start > best[0]):
                best = (start, token.start())
    return None if best is None else text[best[0] : best[1]].strip()
