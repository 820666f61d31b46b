"""Token ids as the pieces of text that they stand for, and those pieces cut where a program's highlighting changes."""

from collections.abc import Callable, Sequence

from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES

# A UTF-8 character is at most four bytes, and a byte-level token at least one.
_LONGEST_CHARACTER = 4
_LEXER = PythonLexer(stripnl=False, ensurenl=False)


def token_pieces(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[str]:
    """The text of each token of `ids` by `decode`, which keeps special tokens; joined they are the decoded text.

    Where several tokens share one character, the first has it and the others are "". Bytes that are no character
    become U+FFFD.
    """
    ids = [int(i) for i in ids]
    pieces: list[str] = []
    while len(pieces) < len(ids):
        start = len(pieces)
        text, count = decode(ids[start : start + 1]), 1
        if "\ufffd" in text:
            for longer in range(2, _LONGEST_CHARACTER + 1):
                whole = decode(ids[start : start + longer])
                if "\ufffd" not in whole:
                    text, count = whole, min(longer, len(ids) - start)
                    break
        pieces += [text] + [""] * (count - 1)
    return pieces


def highlight(pieces: Sequence[str], code: str) -> list[list[tuple[str, str]]] | None:
    """Each piece as (CSS class of Pygments, text) parts, where `code` stands in the joined pieces; None if it does not.

    Outside of the program the class is "".
    """
    text = "".join(pieces)
    start = text.find(code)
    if not code or start < 0:
        return None
    classes = [""] * len(text)
    for offset, kind, value in _LEXER.get_tokens_unprocessed(code):
        classes[start + offset : start + offset + len(value)] = [STANDARD_TYPES.get(kind, "")] * len(value)
    parts: list[list[tuple[str, str]]] = []
    position = 0
    for piece in pieces:
        row: list[tuple[str, str]] = []
        for character, css in zip(piece, classes[position : position + len(piece)], strict=True):
            if row and row[-1][0] == css:
                row[-1] = (css, row[-1][1] + character)
            else:
                row.append((css, character))
        parts.append(row)
        position += len(piece)
    return parts
