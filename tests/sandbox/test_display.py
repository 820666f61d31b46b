import pytest

from retool_mcore.sandbox.display import displayed, strip_fences
from retool_mcore.sandbox.fusion import with_marked_value

CASES = [
    ("1 + 1", ["2"]),
    ("x = 3", []),
    ("x = 3\nx", ["3"]),
    ("x = 3; x", ["3"]),
    ("x = 3\nx;", []),
    ("x = 3\nx;  # quiet", []),
    ("print(5)", []),
    ("None", []),
    ("for i in range(2):\n    i", []),
    ("if True:\n    7", []),
    ("def f():\n    return 1", []),
    ("'text'", ["'text'"]),
    ("(1 +\n 2)", ["3"]),
    ("[1,\n 2,  # two\n]", ["[1, 2]"]),
    ("x = 1\nx == 1  # a comment", ["True"]),
    ("é = 'é'; é", ["'é'"]),
    ("(\n  4\n)\n\n# end\n", ["4"]),
    ("x = [1]\nx.append(2)", []),
    ("(y := 5)", ["5"]),
    ('"""a\nb"""', ["'a\\nb'"]),
    ("1, 2", ["(1, 2)"]),
    ("lambda: 0 if 1 else 2\n0", ["0"]),
    ("from __future__ import annotations\n1", ["1"]),
    ("", []),
]


@pytest.mark.parametrize(("code", "expected"), CASES)
def test_only_a_final_bare_expression_is_displayed(code, expected):
    shown = []
    exec(
        compile(displayed(code, "show"), "<code>", "exec", dont_inherit=True),
        {"show": lambda value: value is not None and shown.append(repr(value))},
    )
    assert shown == expected


@pytest.mark.parametrize(("code", "expected"), CASES)
def test_the_text_sent_to_a_service_displays_the_same(code, expected, capsys):
    exec(compile(with_marked_value(code, "MARK:"), "<sent>", "exec", dont_inherit=True), {})
    shown = [part.removesuffix("\n") for part in capsys.readouterr().out.split("MARK:")[1:]]
    assert shown == expected


def test_syntax_errors_name_their_line():
    with pytest.raises(SyntaxError) as raised:
        displayed("x = 1\ny = = 2\n", "show")
    assert raised.value.lineno == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("\n```py\nx = 1\nprint(x)\n```\n", "x = 1\nprint(x)"),
        ("```\nx\n```", "x"),
        ("```python\r\nx\r\n```", "x"),
        ("x = '```'", "x = '```'"),
        ("x = 1", "x = 1"),
    ],
)
def test_fences_are_stripped(text, code):
    assert strip_fences(text) == code
