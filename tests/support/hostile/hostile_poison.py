"""Programs that want to be remembered: what they change must not be there for the next run.

After every case, these and all others, the runner runs one fixed program and compares its whole output.
"""

from tests.support.hostile.hostile_case import ERROR, KILLED, OUTPUT, SUCCESS, TIMEOUT, Case

ANY = SUCCESS | ERROR | KILLED
PATCHES = {
    "numpy_function": "import numpy\nnumpy.sum = lambda *a, **k: 666\nnumpy.array = None",
    "numpy_data": "import numpy\nnumpy.pi = 3\nnumpy.set_printoptions(precision=1)\nnumpy.seterr(all='raise')",
    "numpy_array_in_place": "import ctypes, numpy\nctypes.memset(id(numpy.float64), 0, 64)",
    "sympy_function": "import sympy\nsympy.factorial = lambda n: 666\nsympy.simplify = None",
    "sympy_cache": "import sympy\nfrom sympy.core.cache import clear_cache\nclear_cache()\nsympy.Integer(7).__class__.__add__ = lambda a, b: 666",
    "math_module": "import math\nmath.sqrt = lambda x: 666\nmath.pi = 3",
    "builtins": "import builtins\nbuiltins.print = lambda *a, **k: None\nbuiltins.len = lambda x: 666",
    "sys_modules": "import sys\nsys.modules['json'] = sys.modules['math'] = sys\nsys.modules['hostile'] = sys",
    "sys_path": "import sys\nsys.path[:] = ['/nowhere']\nsys.path_hooks.clear()\nsys.meta_path.clear()",
    "meta_path": "import sys\nclass F:\n    def find_spec(self, n, p=None, t=None): raise SystemExit(1)\nsys.meta_path.insert(0, F())",
    "small_int": "import ctypes, sys\nctypes.memmove(id(7) + 24, id(8) + 24, 4)",
    "interned_string": "import ctypes\nctypes.memset(id('print') + 48, ord('x'), 5)",
    "none_type": "import ctypes\nctypes.c_ssize_t.from_address(id(None)).value = 1",
    "true_is_false": "import ctypes\nctypes.memmove(id(True) + 16, id(False) + 16, 12)",
    "int_type": "import gc\nd = gc.get_referents(int.__dict__)[0]\nd['bit_length'] = lambda s: 666",
    "str_type": "import gc\nd = gc.get_referents(str.__dict__)[0]\nd['upper'] = lambda s: 'poison'\nimport ctypes\nctypes.pythonapi.PyType_Modified(ctypes.py_object(str))",
    "random_state": "import random, numpy\nrandom.seed(1)\nnumpy.random.seed(1)\nrandom.Random.random = lambda s: 0.5",
    "decimal_context": "import decimal\ndecimal.getcontext().prec = 1\ndecimal.DefaultContext.prec = 1",
    "locale": "import locale\nlocale.setlocale(locale.LC_ALL, 'C')",
    "environment": "import os\nos.environ.clear()\nos.environ['LD_PRELOAD'] = '/tmp/x.so'\nos.environ['PYTHONPATH'] = '/tmp'",
    "directory": "import os\nos.chdir('/')\nos.umask(0)",
    "recursion_limit": "import sys\nsys.setrecursionlimit(100)\nsys.setswitchinterval(10)",
    "int_digits": "import sys\nsys.set_int_max_str_digits(640)",
    "signal_handlers": "import signal\nfor n in (2, 10, 12, 15, 17): signal.signal(n, signal.SIG_IGN)",
    "signal_mask": "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "limits": "import resource\nfor k in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_STACK, resource.RLIMIT_CPU):\n    resource.setrlimit(k, (3, 3))",
    "niceness": "import os\nos.nice(19)\nos.sched_setaffinity(0, {0})",
    "gc_callbacks": "import gc\ngc.callbacks.append(lambda *a: 1 / 0)\ngc.set_threshold(1)\ngc.collect()",
    "gc_disabled": "import gc\ngc.unfreeze()\ngc.disable()\ngc.set_debug(gc.DEBUG_LEAK)",
    "finalizer": "class A:\n    def __del__(self): print('late')\nimport sys\nsys.kept = [A()]",
    "finalizer_that_loops": "class A:\n    def __del__(self):\n        while True: pass\na = A()",
    "atexit_prints": "import atexit\natexit.register(print, 'at exit')",
    "atexit_leaves": "import atexit, os\natexit.register(os._exit, 0)",
    "threading_atexit": "import threading\nthreading._register_atexit(print, 'late')",
    "thread_in_the_background": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late')), daemon=True).start()",
    "fork_hooks": "import os\nos.register_at_fork(before=lambda: 1 / 0, after_in_child=lambda: os._exit(3), after_in_parent=lambda: os._exit(3))\nos.fork()",
    "audit_hook": "import sys\nsys.addaudithook(lambda *a: None)",
    "profile_all_threads": "import threading\nthreading.settrace(lambda *a: None)\nthreading.setprofile(lambda *a: None)",
    "warnings_as_errors": "import warnings\nwarnings.simplefilter('error')",
    "excepthook": "import sys, threading\nsys.excepthook = sys.unraisablehook = threading.excepthook = None",
    "display_hook": "import sys\nsys.displayhook = None",
    "codecs": "import codecs\ncodecs.register(lambda n: None)\ncodecs.register_error('strict', lambda e: ('', e.end))",
    "encodings": "import encodings\nencodings.aliases.aliases.clear()\nencodings._cache.clear()",
    "streams": "import sys, io\nsys.stdout = sys.__stdout__ = io.StringIO()\nprint('lost')",
    "copyreg": "import copyreg\ncopyreg.dispatch_table[int] = lambda x: 1 / 0",
    "abc_registry": "import numbers\nnumbers.Number.register(str)",
    "re_cache": "import re\nre._compile = lambda *a: 1 / 0\nre.purge()",
    "ast_and_compile": "import ast, builtins\nast.parse = lambda *a, **k: 1 / 0\nbuiltins.compile = lambda *a, **k: 1 / 0",
    "traceback_module": "import traceback\ntraceback.TracebackException = None",
    "linecache": "import linecache\nlinecache.cache['<code>'] = (1, None, ['poison\\n'], '<code>')",
    "sandbox_modules": "import sys\nfor n, m in list(sys.modules.items()):\n    if n.startswith('retool_mcore'):\n        vars(m).clear()",
    "everything_deleted": "import sys\nfor m in list(sys.modules.values()):\n    try: vars(m).clear()\n    except Exception: pass",
}
FILES = {
    "module_in_folder": "open('numpy.py', 'w').write('raise SystemExit(9)')\nopen('json.py', 'w').write('raise SystemExit(9)')",
    "module_in_tmp": "import os\nfor n in ('numpy', 'json', 'sitecustomize', 'usercustomize'):\n    try: open(f'/tmp/{n}.py.{token}', 'w').write('x')\n    except OSError: pass\n    else: os.unlink(f'/tmp/{n}.py.{token}')",
    "site_packages": "import sysconfig\nfor k in ('purelib', 'platlib', 'stdlib'):\n    try:\n        open(sysconfig.get_paths()[k] + '/{token}.pth', 'w').close()\n        print('ESCAPED', k)\n        __import__('os').unlink(sysconfig.get_paths()[k] + '/{token}.pth')\n    except OSError as e: print(e.errno)",
    "byte_code": "import numpy, os\np = os.path.dirname(numpy.__file__) + '/__pycache__'\ntry:\n    open(p + '/{token}.pyc', 'wb').close()\n    print('ESCAPED')\n    os.unlink(p + '/{token}.pyc')\nexcept OSError as e: print(e.errno)",
    "byte_code_changed": "import json\ntry:\n    open(json.__cached__, 'rb+').close()\n    print('ESCAPED')\nexcept OSError as e: print(e.errno)",
    "library_changed": "import numpy\ntry:\n    open(numpy.__file__, 'r+').close()\n    print('ESCAPED')\nexcept OSError as e: print(e.errno)",
    "extension_changed_by_mapping": "import mmap, math, os, ctypes\nf = [l.split()[-1] for l in open('/proc/self/maps') if 'libpython' in l or 'libm' in l]\ntry:\n"
    "    fd = os.open(f[0], os.O_RDWR)\n    print('ESCAPED')\nexcept (OSError, IndexError) as e: print(type(e).__name__)",
    "user_site": "import os, site\np = site.getusersitepackages()\ntry:\n    os.makedirs(p)\n    open(p + '/usercustomize.py', 'w').write('x')\nexcept OSError: pass",
    "matplotlib_settings": "import os\nfor d in ('.', os.path.expanduser('~/.config/matplotlib')):\n    try:\n        os.makedirs(d, exist_ok=True)\n        open(d + '/matplotlibrc', 'w').write('figure.dpi: 7')\n    except OSError: pass",
    "home_files": "import os\nfor n in ('.bashrc', '.profile', '.pythonrc'):\n    try: open(os.path.expanduser('~/' + n), 'w').write('x')\n    except OSError: pass",
}
# Below namespaces the libraries are the server's own files: an ordinary user's own environment is writable to him.
OWN_LIBRARIES = {"process": "a program of the user may write whatever the user may write"}
PAGES = """
import ctypes, mmap
lines = open("/proc/self/maps").read().splitlines()
libc = ctypes.CDLL(None)
for line in lines:
    span, rights, *_ = line.split()
    if rights.startswith("r-") and line.endswith(".so") or "libc" in line:
        first, last = (int(p, 16) for p in span.split("-"))
        if libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 7) == 0 and "r--" in rights:
            ctypes.memset(first, 0, min(4096, last - first))
"""
MADVISE = """
import ctypes
libc = ctypes.CDLL(None)
for line in open("/proc/self/maps").read().splitlines():
    first, last = (int(p, 16) for p in line.split()[0].split("-"))
    if "[heap]" in line or "rw-p" in line and "python" in line:
        for advice in (4, 8, 9, 10, 12, 15, 21):
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)
"""
CASES = [
    *[
        Case(
            f"poison_{name}",
            source,
            ANY | OUTPUT | (TIMEOUT if name in ("finalizer_that_loops", "everything_deleted") else frozenset()),
            slow=name in ("finalizer_that_loops", "everything_deleted"),
            timeout_s=0.5 if name == "finalizer_that_loops" else 5.0,
        )
        for name, source in PATCHES.items()
    ],
    *[Case(f"poison_{name}", source, ANY, open_at=OWN_LIBRARIES) for name, source in FILES.items()],
    Case("poison_shared_pages", PAGES, ANY | TIMEOUT, timeout_s=3, slow=True),
    Case("poison_heap_dropped", MADVISE, ANY | TIMEOUT, timeout_s=3, slow=True),
    Case(
        "poison_by_parent_memory",
        "import os\nfor pid in (1, os.getppid(), {server}):\n    try:\n        open(f'/proc/{pid}/mem', 'rb+').close()\n        print('ESCAPED', pid)\n    except OSError as e: print(e.errno)",
        ANY,
        open_at={"process": "processes of one user may write each other's memory"},
    ),
    Case(
        "poison_shared_mappings",
        "import os\nfor line in open('/proc/self/maps'):\n    if line.split()[1].endswith('s') and 'w' in line.split()[1]: print('ESCAPED', line)",
        SUCCESS | ERROR,
    ),
]
