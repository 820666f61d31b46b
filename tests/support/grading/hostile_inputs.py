"""Answers that are made to hang, crash or flood a grader."""

import random


def hostile(seed: int, count: int) -> list[str]:
    """Return `count` hostile answers, the same ones for the same seed; none of them means 5."""
    r = random.Random(seed)

    def some() -> str:
        n, big = r.randint(2, 9), r.choice([10**3, 10**4, 10**6])
        return r.choice(
            [
                lambda: "^{".join([str(n)] * r.randint(4, 12)) + "}" * 11,
                lambda: f"{n}" + f"^{{{n}" * r.randint(3, 8) + "}" * r.randint(0, 9),
                lambda: f"({n}^{{99999}}!)!!",
                lambda: f"{n}" + "!" * r.randint(3, 9),
                lambda: r"\sqrt{" * r.randint(20, 400) + f"{n}" + "}" * r.randint(0, 400),
                lambda: r"\frac{" * r.randint(5, 300) + "1" + "}{2}" * r.randint(0, 300),
                lambda: r.choice("([{") * big,
                lambda: r"\left(" * r.randint(2, 2000) + "6",
                lambda: str(n) * big,
                lambda: " " * big + "6" + " " * big,
                lambda: r"\boxed{" * min(big, 10**4),
                lambda: "$" * big,
                lambda: r"\int_0^{" * r.randint(1, 6) + "x^x dx" + "}" * 6,
                lambda: rf"\sum_{{k=1}}^{{{10**9}}} \frac{{1}}{{k^k+\sin k}}",
                lambda: rf"\prod_{{k=1}}^{{{10**7}}} (1+\frac{{1}}{{k!}})",
                lambda: f"(x+y+z+{n})^{{{r.randint(50, 5000)}}}",
                lambda: "+".join(f"(x+{k})^{{{k}}}" for k in range(60)),
                lambda: r"\sin(" * r.randint(10, 90) + "x" + ")" * 90,
                lambda: ",".join(map(str, range(r.choice([50, 500, 1500])))),
                lambda: r"\begin{pmatrix}" + r"1&2\\" * r.choice([10, 500]) + r"\end{pmatrix}^{1000}",
                lambda: "".join(
                    chr(r.choice([0x200B, 0x202E, 0x0665, 0x1D7D8, 0xFF15, 0x0335, 0x661])) for _ in "6" * n
                ),
                lambda: "6\u0301" * min(big, 10**5),
                lambda: "\ud800" * n + "\x00\x01\x02\x03",
                lambda: f"0.{'3' * min(big, 10**5)}",
                lambda: f"1e{'9' * n}",
                lambda: f"{n}/0",
                lambda: r"\text{" * r.randint(1, 300) + "or" + "}" * r.randint(0, 300),
                lambda: "x=" * r.randint(3, 1000) + "6",
                lambda: r"\cup".join(f"({k},{k + 1}]" for k in range(r.choice([5, 100]))),
                lambda: "|" * r.randint(3, 2000) + "x",
                lambda: r"\log_{" * r.randint(2, 60) + "2" + "}3" * r.randint(0, 60),
                lambda: "-" * r.randint(100, 4001) + "6",
                lambda: "".join(
                    r.choice(r"\{}()[]^_$&,;=<>|!%xyz0123456789 ") for _ in range(r.choice([20, 200, 3000]))
                ),
            ]
        )()

    return [some() for _ in range(count)]
