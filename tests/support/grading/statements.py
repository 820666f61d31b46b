r"""Templates that say something else than the value they hold, and templates that say the same; `@` is the value.

`#` is another value. A template serves where its kind of value makes sense: ATOMIC ones change or keep a number, but
not a sum (`@^2` of `x+1`). `metamorphic.py` puts every true pair into them; `cheats` gives them as attempts on truths.
"""

NEGATED = [
    *[r"not @", r"\neg @", r"\lnot @", r"\text{not } @", r"\ne @", r"x \neq @", r"x \not= @", r"\not= @", r"isn't @"],
    *[r"never @", r"@ is wrong", r"@ (wrong)", r"@ false", r"@ \text{ is false}", r"@ is not the answer", r"!@"],
    *[r"anything but @", r"all except @", r"none of @", r"x \notin \{@\}", r"\text{@ is wrong}", r"\not{@}"],
    *[r"\cancel{@}", r"\sout{@}", r"\phantom{@}", r"the answer is not @", r"@ \text{ does not work}", r"@ fails"],
]
BOUNDED = [
    *[r"> @", r"< @", r"\ge @", r"\leq @", r"≥ @", r"x > @", r"x \ge @", r"x \le @", r"at least @", r"at most @"],
    *[r"\text{at least } @", r"more than @", r"less than @", r"up to @", r"no more than @", r"@ or more", r"@ or less"],
    *[r"@ and above", r"\text{greater than } @", r"[@, \infty)", r"(@, \infty)", r"@...", r"@ \ldots", r"@^+"],
    *[r"@ \uparrow", r"between @ and #", r"from @ to #", r"@ \to #", r"\lim @"],
]
HEDGED = [
    *[r"@?", r"@??", r"@ !?", r"(@?)", r"about @", r"approximately @", r"\text{about } @", r"roughly @", r"around @"],
    *[r"probably @", r"maybe @", r"@ maybe", r"@ (maybe)", r"perhaps @", r"@ perhaps", r"I think @", r"@ I guess"],
    *[r"@ approx", r"\sim @", r"@-ish", r"@ \pm 1", r"@ or so", r"close to @", r"nearly @", r"\text{@?}"],
    *[r"@ \text{ or something}", r"@ with probability 1/2", r"guess: @", r"@ \text{ guess}"],
]
LISTED = [
    *[r"@ or #", r"# or @", r"either @ or #", r"@, or #", r"@; #", r"@, #", r"\{@, #\}", r"@ and #", r"@ | #"],
    *[r"@ \mid #", r"@ \lor #", r"@ \vee #", r"@ \text{ or } #", r"@ \quad #", r"@ \\ #", r"@ \rightarrow #", r"@ → #"],
    *[
        r"@ vs #",
        r"@ (or #)",
        r"# (or @)",
        r"# (not @)",
        r"# not @",
        r"# instead of @",
        r"@ (not #)",
        r"x = @ or x = #",
    ],
    *[
        r"x = @, y = #",
        r"x \in \{@, #\}",
        r"\boxed{@} or #",
        r"@ \boxed{#}",
        r"Answer: @ or #",
        r"\text{@ or #}",
        r"@, \ldots",
    ],
    *[r"\mathbf{@} \text{or} \mathbf{#}", r"@ etc.", r"\min(@, #)", r"\max(@, #)", r"\{\{@\}\}", r"@ / or #", r"@, @"],
]
COMMENTED = [
    *[
        r"@ since it is so",
        r"@ because 2+3=5",
        r"@ \# comment",
        r"@ \% or #",
        r"@ // or #",
        r"@ /* # */",
        r"@ <!-- # -->",
    ],
    *[r"@ \text{ (wrong)}", r"@ \text{ if } x>0", r"@ for x>0", r"@ mod 3", r"@ \pmod 3", r"@ (mod 3)", r"@ \bmod 3"],
    *[r"he said \"@\"", r"\"@\" is wrong", r"``@'' or ``#''", r"# = @", r"@ = #", r"@ = @ = #", r"@ < #", r"@ \ne #"],
    *[r"@ \approx #", r"@ \setminus #", r"@ \cup #", r"@ \cap #", r"f(@)", r"@ squared", r"twice @", r"half of @"],
]
# Only of a number or a symbol, which they change.
ATOMIC_CHANGED = [r"@!!", r"\hat{@}", r"@'", r"@^*", r"@ dozen", r"@ thousand", r"@ thirds", r"-@", r"0.@", r"1/@"]

WRAPPED = [
    *[r"$@$", r"$$@$$", r"\(@\)", r"\[@\]", r" @ ", r"@.", r"\displaystyle @", r"{@}", r"\boxed{@}", r"\mathbf{@}"],
    *[r"\boldsymbol{@}", r"\bm{@}", r"\,@", r"@\,", r"@\;", r"\quad @", r"**@**", r"The answer is @", r"Answer: @"],
    *[r"Therefore, the final answer is $@$.", r"{\color{red} @}", r"\color{blue}{@}", r"\textcolor{red}{@}"],
    *[r"\large @", r"\underline{@}", r"\textstyle @", r"= @", r"{\bf @}", r"'@'", r"`@`", r"\ensuremath{@}", r"@ \ "],
    *[r"\left. @ \right.", r"\therefore @", "@\n", "@\u200b", "\ufeff@", r"\text{$@$}"],
]
CHANGED = {"negated": NEGATED, "bounded": BOUNDED, "hedged": HEDGED, "listed": LISTED, "commented": COMMENTED}

# (value, another value)
VALUES = [("5", "6"), (r"\frac{3}{4}", r"\frac{1}{4}"), (r"2\sqrt{3}", r"3\sqrt{2}"), ("-7", "7"), ("12", "21")]


def filled(template: str, value: str, other: str) -> str:
    return template.replace("@", value).replace("#", other)


def cheats() -> list[tuple[str, str]]:
    """(answer, truth) of every attempt: each template of CHANGED on each of VALUES, and what else was tried."""
    attempts = [
        (filled(template, value, other), value)
        for templates in CHANGED.values()
        for template in templates
        for value, other in VALUES
    ]
    return attempts + MORE


MORE = [
    *[(r"\{\emptyset\}", r"\emptyset"), (r"\emptyset", r"\{\emptyset\}"), (r"\{\{\}\}", r"\emptyset"), ("{{5}}", "6")],
    *[(r"\sin x", r"\sin^2 x"), (r"\sin^2 y", r"\sin^2 x"), (r"\sin x^2", r"\sin^2 x"), (r"\log^2(y)", r"\log^2(x)")],
    *[(r"\log(x)", r"\log^2(x)"), (r"\ln x^2", r"\ln^2 x"), ("f^{-1}(4)", "f^{-1}(3)"), ("f(3)", "f^{-1}(3)")],
    *[("3f^{-1}", "f^{-1}(3)"), ("f'(x)", "f(x)"), ("6!!", "720!"), ("3!!", "720"), ("(3!)!", "3!!"), ("6!!!", "18!")],
    *[("5 (A)", "B"), ("A or B", "A"), ("(A) or (B)", "(A)"), ("A, B, C, D", "C"), ("not A", "A"), ("A?", "A")],
    *[
        ("all of the above", "A"),
        ("even or odd", "even"),
        ("non-even", "even"),
        ("not even", "even"),
        ("even?", "even"),
    ],
    *[
        ("yes and no", "yes"),
        ("yes?", "yes"),
        ("no", "yes"),
        ("maybe yes", "yes"),
        ("no solution", "0"),
        ("0", "no solution"),
    ],
    *[("1.41421356", r"\sqrt{2}"), ("0.333333", r"\frac{1}{3}"), ("3.14159265", r"\pi"), ("0.9999999", "1")],
    *[(r"3 \pmod 7", r"3 \pmod 8"), (r"4 \pmod 7", r"3 \pmod 7"), ("3", r"3 \pmod 7"), (r"3 \pmod 7", "3")],
    *[("twenty", "21"), ("one hundred and five", "150"), ("two thirds", "3/2"), ("one or two", "1"), ("fifty", "15")],
    *[
        ("2+3j", "2-3i"),
        ("j", "5"),
        ("2j", "2k"),
        (r"0.\overline{3}", "0.3"),
        ("0.(36)", "0.36"),
        (r"0.\dot{1}2\dot{3}", "0.123"),
    ],
    *[("(1,2) or (2,1)", "(1,2)"), ("(2,1)=(1,2)", "(1,2)"), ("[1,2)", "[1,2]"), (r"x \ne 1", "x=1"), ("x>1", "x=1")],
    *[
        ("5 km", "5 m"),
        ("5 lies", "5"),
        ("5 exceeded", "5"),
        ("5 dozen", "5"),
        ("5_8", "13"),
        ("12_8", "12"),
        ("50", "0.5"),
    ],
    *[("8!!", "40320!"), (r"A=x(502-2x),\{x \mid 0\le x\le 9\}", r"A=x(500-2x),\{x \mid 0\le x\le 9\}")],
    *[
        ("5 6", "5"),
        ("56", "5"),
        ("5.5.5", "5"),
        ("5,5", "5"),
        ("(5,5)", "5"),
        ("5=5=6", "5"),
        (r"\infty", "5"),
        ("x", "5"),
    ],
]
