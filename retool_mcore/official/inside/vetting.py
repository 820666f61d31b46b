"""Keeps what an answer says from being run: a grader may evaluate plain expressions of it and nothing else.

Graders pass an answer to `eval`, `sympy.parse_expr` and the like. The interpreter announces every code object before it
runs it to its audit hooks (PEP 578), which no Python code can take off again. The hook here reads the code object and
refuses all but literals, arithmetic and calls of names that are on a list: no attribute, no import, no function, no
assignment, no other name. What is refused raises in the grader, as a syntax error of the answer would.
"""

import dis
import sys
from collections.abc import Iterable
from types import CodeType

_NAMED = """
    CACHE NOP RESUME EXTENDED_ARG PUSH_NULL POP_TOP COPY SWAP RETURN_VALUE RETURN_CONST
    LOAD_CONST LOAD_NAME KW_NAMES PRECALL CALL CALL_INTRINSIC_1
    BUILD_LIST BUILD_TUPLE BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP LIST_EXTEND SET_UPDATE DICT_UPDATE
    LIST_APPEND LIST_TO_TUPLE SET_ADD MAP_ADD CALL_KW TO_BOOL
    BINARY_OP UNARY_NEGATIVE UNARY_POSITIVE UNARY_INVERT UNARY_NOT COMPARE_OP
"""
_OPERATIONS = frozenset(_NAMED.split())
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, type(...))


class Refused(ValueError):
    """Raised in the grader for an answer that is more than a plain expression."""


def refusal(code: CodeType, names: Iterable[str]) -> str:
    """Return why `code` may not run, "" if it may. names: the names that it may read and call."""
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _OPERATIONS:
            return f"the answer holds more than a plain expression ({instruction.opname})"
    if unknown := sorted(set(code.co_names) - set(names)):
        return f"the answer names {unknown[0]!r}"
    if not all(isinstance(constant, _CONSTANTS) for constant in code.co_consts):
        return "the answer holds code"
    return ""


def _content(code: CodeType) -> tuple:
    """Return the content of the code, independent of the future features that its text was compiled with."""
    return code.co_code, code.co_names, code.co_consts


def install(names: Iterable[str], library: Iterable[str] = ()) -> None:
    """Refuse, in this process and for good, to run code that no file holds, but for plain expressions of `names`.

    library: programs, as texts, that the grader's libraries run themselves.
    """
    allowed = frozenset(names)
    known = {_content(compile(text, "<string>", "exec")) for text in library}

    def hook(event: str, arguments: tuple) -> None:
        if event == "exec":
            code = arguments[0]
            # A module that a library imports late comes from a file; a text that is evaluated cannot claim to.
            in_file = isinstance(code, CodeType) and code.co_filename.startswith(("/", "<frozen "))
            if not in_file and _content(code) not in known and (reason := refusal(code, allowed)):
                raise Refused(reason)

    sys.addaudithook(hook)
