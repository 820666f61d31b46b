"""What a first use of the preloaded libraries does once and for all, done before anything is forked.

Libraries import parts of themselves late and fill caches; without this every program that uses them would do so again,
and pay for it. And what makes a process cheap to fork (`settle`).
"""

import contextlib
import gc
import io
import sys
import traceback

from retool_mcore.sandbox.isolation.syscalls import collapse_into_huge_pages

# Not here: scipy's parts, numpy.random, and sympy.lambdify, which imports the former. Every shared library makes each
# fork dearer, of programs without it too.
FIRST_USES = {
    "numpy": """
import numpy as np
a = np.arange(6.0).reshape(2, 3)
str(a), repr(a), a @ a.T, a.sum(), a.mean(0), np.linalg.det(a[:, :2]), np.linalg.solve(a[:, :2], a[0, :2])
np.linalg.eigvals(a[:, :2]), np.roots([1, -3, 2]), np.polyfit([0, 1, 2], [0, 1, 4], 1)
np.sort(a), np.unique(a), np.gcd(4, 6), np.prod([1, 2]), a[a > 1]
""",
    "sympy": """
import sympy as sp
x, y = sp.symbols("x y")
n = sp.symbols("n", integer=True, positive=True)
str(sp.factor(x**2 - 1)), str(sp.expand((x + y) ** 3)), sp.simplify((x**2 - 1) / (x - 1)), sp.sympify("2*x + 1/3")
sp.solve(x**2 - 2, x), sp.solve([x + y - 3, x - y - 1], [x, y]), sp.diff(x**2, x), sp.integrate(x * sp.exp(x), x)
sp.limit(sp.sin(x) / x, x, 0), sp.series(sp.cos(x), x, 0, 4), sp.summation(n, (n, 1, 10)), sp.Rational(1, 3) + 1
sp.Matrix([[1, 2], [3, 4]]).det(), sp.Matrix([[1, 2], [3, 4]]).inv(), sp.Matrix([[2, 1], [1, 2]]).eigenvals()
sp.sqrt(8), sp.N(sp.pi, 20), sp.nsimplify(0.5), sp.factorint(360), sp.isprime(97), sp.divisors(28), sp.gcd(12, 18)
sp.binomial(5, 2), sp.latex(x**2 / 2), sp.Eq(x, 1), sp.trigsimp(sp.sin(x) ** 2 + sp.cos(x) ** 2), (x**2).subs(x, 3)
sp.Poly(x**2 - 1, x).all_roots(), sp.apart(1 / (x**2 - 1))
sp.solveset(x**2 - 1, x, sp.S.Reals), sp.floor(sp.Rational(7, 2)), sp.radsimp(1 / (1 + sp.sqrt(2)))
""",
}


def warm_up(names: list[str]) -> str:
    """Use those of the modules `names` that have a first use; what went wrong, or "".

    Nothing is printed, and the sources of random numbers are not this function's concern: each run seeds them.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for name in names:
            try:
                exec(compile(FIRST_USES.get(name, ""), "<warm>", "exec"), {})
            except Exception as error:
                return f"the module {name!r} does not work ({type(error).__name__}: {error})"
        try:
            raise KeyError("a first traceback")
        except KeyError:
            "".join(traceback.TracebackException(*sys.exc_info()).format())
    return ""


HUGE_PAGE = 2**21


def settle() -> None:
    """Call when everything that forks shall share is in memory.

    The collector leaves what exists alone, so that forks share its pages for longer. Large anonymous areas move into
    huge pages where the kernel can do so (Linux 6.1): a fork copies, and its end frees, one entry for 512 pages, which
    measured as half of the time that a fork takes.
    """
    gc.collect()
    gc.freeze()
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for span, rights, _, _, _, *name in areas:
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(bound, 16) for bound in span.split("-"))
            for address in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                collapse_into_huge_pages(address, HUGE_PAGE)
