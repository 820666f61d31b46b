"""Odd endings and odd texts: exits, signals, reprs, exceptions, streams, sources."""

import signal

from tests.support.hostile.hostile_case import ERROR, KILLED, MEMORY, OUTPUT, SUCCESS, TIMEOUT, Case, timed_out

EXITS = {
    "none": ("None", SUCCESS),
    "zero": ("0", SUCCESS),
    "one": ("1", ERROR),
    "minus_one": ("-1", ERROR),
    "large": ("2**70", ERROR),
    "text": ("'no way'", ERROR),
    "object": ("object()", ERROR),
    "true": ("True", ERROR),
    "false": ("False", SUCCESS),
    "float": ("0.0", SUCCESS | ERROR),
    "surrogate": ("'\\ud800'", ERROR),
    "long_text": ("'x' * 10**6", ERROR),
    "hostile_equality": ("type('E', (), {'__eq__': lambda s, o: 1 / 0, '__hash__': None})()", ERROR),
    "hostile_str": ("type('E', (), {'__str__': lambda s: 1 / 0})()", ERROR),
}
DEADLY = [n for n in signal.Signals if n.name not in ("SIGCHLD", "SIGURG", "SIGWINCH", "SIGCONT", "SIGPIPE", "SIGXFSZ",
          "SIGINT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGXCPU",
          "SIGRTMAX")]  # fmt: skip
REPRS = {
    "raises": ("return 1 / 0", ERROR),
    "exits": ("raise SystemExit(0)", SUCCESS | ERROR),
    "leaves": ("import os; os._exit(0)", SUCCESS),
    "is_no_text": ("return 7", ERROR),
    "is_a_surrogate": ("return '\\udcff'", SUCCESS),
    "is_a_gigabyte": ("return 'x' * 10**9", MEMORY),
    "is_long": ("return 'é' * 10**6", OUTPUT),
    "recurses": ("return repr(self)", ERROR),
    "prints": ("print('from repr'); return 'r'", SUCCESS),
    "has_zero_bytes": ("return '\\0' * 10", SUCCESS),
    "raises_base": ("raise BaseException('x')", ERROR),
    "raises_memory": ("raise MemoryError", MEMORY | ERROR),
    "text_subclass": (
        "return type('S', (str,), {'encode': lambda *a: 1 / 0, '__len__': lambda s: -1})('sub')",
        SUCCESS | ERROR,
    ),
}
EXCEPTIONS = {
    "str_raises": "class E(Exception):\n    def __str__(self): return 1 / 0\nraise E",
    "str_exits": "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E",
    "str_is_long": "raise Exception('x' * 10**7)",
    "str_is_surrogate": "raise Exception('\\ud800')",
    "name_is_odd": "raise type('a\\nb', (Exception,), {})('x')",
    "cause_loop": "a, b = Exception('a'), Exception('b')\na.__cause__, b.__cause__ = b, a\nraise a",
    "context_is_itself": "a = Exception('a')\na.__context__ = a\nraise a",
    "long_chain": "e = None\nfor i in range(5000):\n    n = Exception(i)\n    n.__cause__ = e\n    e = n\nraise e",
    "group_of_groups": "e = ValueError(1)\nfor _ in range(300):\n    e = ExceptionGroup('g', [e])\nraise e",
    "large_group": "raise ExceptionGroup('g', [ValueError(i) for i in range(20000)])",
    "traceback_removed": "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__ = None\n    raise e from None",
    "notes_are_odd": "e = ValueError('x')\ne.__notes__ = 7\nraise e",
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "generator_exit": "raise GeneratorExit",
    "base_exception": "raise BaseException('b')",
    "excepthook": "import sys\nsys.excepthook = lambda *_: print('hooked')\n1 / 0",
    "excepthook_loops": "import sys\nsys.excepthook = lambda *_: exec('while True: pass')\n1 / 0",
    "formatter_replaced": "import traceback\ntraceback.TracebackException.from_exception = lambda *a, **k: 1 / 0\n1 / 0",
    "formatter_loops": "import traceback\ntraceback.TracebackException.format = lambda *a, **k: iter(int, 1)\n1 / 0",
    "linecache_poisoned": "import linecache\nlinecache.cache.clear()\nlinecache.getlines = lambda *a: 1 / 0\n1 / 0",
    "deep_recursion": "def f(): f()\nf()",
    "recursion_in_repr": "x = []\nfor _ in range(10**5): x = [x]\nrepr(x)",
    "int_too_long": "print(10 ** 5000)",
    "assert_on_tuple": "assert not (1, 'x')",
    "frame_filename": "exec(compile('1/0', 'x' * 10**6, 'exec'))",
}
STACKS = {
    "recursion_limit_raised": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "recursion_in_c": "import sys\nsys.setrecursionlimit(10**9)\nx = None\nfor _ in range(10**7): x = (x,)\ndel x\nclass A:\n"
    "    def __getattr__(self, n): return getattr(self, n + 'x')\nA().a",
    "null_pointer": "import ctypes\nctypes.string_at(0)",
    "bad_pointer": "import ctypes\nctypes.memset(0x1234, 0, 10**6)",
    "overwritten_object": "import ctypes\nctypes.memset(id(None), 0xff, 16)\nNone.x",
    "abort": "import os\nos.abort()",
    "faulthandler": "import faulthandler\nfaulthandler._sigsegv()",
    "illegal_bytecode": "import types\nf = (lambda: 0)\nf.__code__ = f.__code__.replace(co_code=bytes([0xff, 0xff] * 50))\nf()",
}
ENDED = KILLED | ERROR | MEMORY | TIMEOUT
STREAMS = {
    "stdout_closed": "import sys\nsys.stdout.close()",
    "stderr_closed": "import sys\nsys.stderr.close()",
    "all_closed": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr): s.close()",
    "stdout_none": "import sys\nsys.stdout = None",
    "stdout_is_a_number": "import sys\nsys.stdout = 7",
    "flush_raises": "import sys\nclass S:\n    def write(self, t): pass\n    def flush(self): raise ValueError\nsys.stdout = S()",
    "descriptor_1_closed": "import os\nos.close(1)",
    "descriptors_0_to_2_closed": "import os\nos.closerange(0, 3)",
    "stdin_read": "import sys\nassert sys.stdin.read() == ''",
    "modules_cleared": "import sys\nsys.modules.clear()",
    "builtins_cleared": "import builtins\nfor n in ('open', 'repr', 'len', 'isinstance'): delattr(builtins, n)",
}
TEXTS = {
    "empty": ("", SUCCESS),
    "blank": ("  \n\n\t\n", SUCCESS | ERROR),
    "zero_byte": ("print(1)\0print(2)", ERROR),
    "zero_byte_in_string": ("x = 'a\0b'", ERROR),
    "lone_surrogate": ("print('\ud800')", SUCCESS | ERROR),
    "surrogate_outside_of_string": ("\udfff = 1", ERROR),
    "byte_order_mark": ("\ufeffprint(1)", SUCCESS),
    "two_byte_order_marks": ("\ufeff\ufeffprint(1)", ERROR),
    "coding_cookie": ("# -*- coding: latin-1 -*-\nprint('é')", SUCCESS),
    "coding_cookie_unknown": ("# coding: no-such-codec\nprint(1)", SUCCESS | ERROR),
    "coding_cookie_utf7": ("# coding: utf-7\nprint('+AOk-')", SUCCESS | ERROR),
    "form_feed": ("\fx = 1\n\fprint(x)", SUCCESS),
    "carriage_returns": ("x = 1\rprint(x)\r\nx", SUCCESS),
    "line_separators": ("x = '\u2028\x85'\nlen(x)", SUCCESS),
    "megabyte_of_lines": ("x = 1\n" * 170_000 + "x", SUCCESS | ERROR | MEMORY),
    "megabyte_of_comment": ("#" * 1_000_000 + "\nprint(1)", SUCCESS),
    "megabyte_of_string": ("len('" + "x" * 1_000_000 + "')", SUCCESS),
    "megabyte_on_one_line": ("x = [" + "1," * 500_000 + "]", SUCCESS | ERROR | MEMORY),
    "open_brackets": ("(" * 5000, ERROR),
    "nested_brackets": ("(" * 5000 + ")" * 5000, ERROR),
    "nested_lists": ("x = " + "[" * 199 + "]" * 199, SUCCESS | ERROR),
    "nested_ifs": ("".join(" " * i + "if 1:\n" for i in range(120)) + " " * 120 + "pass", ERROR),
    "nested_lambdas": ("lambda: " * 3000 + "1", ERROR | SUCCESS | KILLED),
    "nested_unary": ("-" * 100_000 + "1", ERROR | KILLED | SUCCESS),
    "long_sum": ("+".join(["1"] * 100_000), ERROR | KILLED | SUCCESS),
    "long_attribute_chain": ("x" + ".a" * 100_000, ERROR | KILLED),
    "long_elif_chain": ("if 0: pass\n" + "elif 0: pass\n" * 20_000, ERROR | KILLED | SUCCESS),
    "many_constants": ("{" + ",".join(f"{i}:'{i}'" for i in range(50_000)) + "}['7' and 7]", SUCCESS | ERROR),
    "f_string_nested": ("f'{" * 200 + "1" + "}'" * 200, ERROR),
    "huge_literal": ("x = " + "9" * 100_000, ERROR),
    "huge_constant_folding": ("x = (1 << 100_000_000) if 0 else 1\n'x' * 10 ** 8 and 1", SUCCESS | MEMORY),
    "fence_in_fence": ("```python\nprint('``' + '`')\n```", SUCCESS),
    "only_a_fence": ("```python\n```", SUCCESS | ERROR),
    "future_import": ("from __future__ import braces", ERROR),
    "return_outside": ("return 1", ERROR),
    "await_outside": ("await x", ERROR),
    "display_name_deleted": ("for n in list(globals()): del globals()[n]\n7", SUCCESS | ERROR),
    "display_name_replaced": ("for n in list(globals()): globals()[n] = print\n7", SUCCESS),
    "tabs_and_spaces": ("if 1:\n\tx = 1\n        y = 2", ERROR),
    "indent_bomb": (" " * 1_000_000 + "x", ERROR),
    "backslash_at_end": ("x = 1 \\", ERROR),
    "control_characters": ("".join(map(chr, range(1, 32))), ERROR),
}
SLOW_TEXTS = {"megabyte_of_lines", "many_constants", "megabyte_on_one_line", "huge_constant_folding"}


def said_why(result) -> str | None:
    """An error that the policy cannot read is none."""
    return None if result.stderr.strip() else "stderr is empty"


CASES = [
    *[Case(f"exit_{name}", f"raise SystemExit({code})", statuses) for name, (code, statuses) in EXITS.items()],
    *[
        Case(f"os_exit_{code}", f"import os\nprint('x', flush=True)\nos._exit({code})", ERROR if code else SUCCESS)
        for code in (0, 1, 77, 255)
    ],
    *[
        Case(
            f"kill_itself_by_{n.name}",
            f"import os, signal, time\nsignal.signal({int(n)}, signal.SIG_DFL) if {int(n)} != 9 else 0\n"
            f"os.kill(os.getpid(), {int(n)})\ntime.sleep(9)",
            KILLED,
        )
        for n in DEADLY
    ],
    *[
        Case(f"repr_{name}", f"class A:\n    def __repr__(self): {body}\nA()", statuses, slow=name == "is_a_gigabyte")
        for name, (body, statuses) in REPRS.items()
    ],
    timed_out("repr_loops", "class A:\n    def __repr__(self):\n        while True: pass\nA()"),
    *[
        Case(
            f"exception_{name}",
            source,
            ERROR | MEMORY if name == "str_is_long" else ERROR,
            check=said_why,
            slow=name == "large_group",
        )
        for name, source in EXCEPTIONS.items()
        if not name.endswith("_loops")
    ],
    Case("exception_excepthook_loops", EXCEPTIONS["excepthook_loops"], ERROR | TIMEOUT, timeout_s=0.5, slow=True),
    Case(
        "exception_formatter_loops", EXCEPTIONS["formatter_loops"], ERROR | TIMEOUT | MEMORY, timeout_s=0.5, slow=True
    ),
    *[Case(f"stack_{name}", source, ENDED, slow=True) for name, source in STACKS.items()],
    *[Case(f"stream_{name}", source, SUCCESS | ERROR) for name, source in STREAMS.items()],
    *[Case(f"text_{name}", text, statuses, slow=name in SLOW_TEXTS) for name, (text, statuses) in TEXTS.items()],
]
