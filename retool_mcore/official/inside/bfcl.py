"""The Berkeley leaderboard's own checker inside the sandbox (bfcl-eval, single-turn categories).

Its decoder evaluates arguments that are sums or products (`eval(ast.unparse(...))`): `score` lets no code of the answer
run (vetting.py).
"""

import json
import pathlib
import sys
import types

from retool_mcore.official.inside.stand_ins import stand_in
from retool_mcore.official.inside.vetting import install

# What the package imports for the models it can call, for files and for other languages' grammars.
stand_in("tree_sitter", "tree_sitter_java", "tree_sitter_javascript", "tenacity", "filelock")
_CONFIGURATION = "bfcl_eval.constants.model_config"  # imports the libraries of all models
_MODEL = "retool"
sys.modules[_CONFIGURATION] = types.ModuleType(_CONFIGURATION)
# Names of functions are compared as they are: they are listed to the policy with their dots.
vars(sys.modules[_CONFIGURATION])["MODEL_CONFIG_MAPPING"] = {_MODEL: types.SimpleNamespace(underscore_to_dot=False)}

# The package makes folders for results when it is imported, and here none can be made.
_make_folder = pathlib.Path.mkdir
setattr(pathlib.Path, "mkdir", lambda *arguments, **keywords: None)  # noqa: B010 - mypy refuses the assignment
from bfcl_eval.constants.enums import Language, ReturnFormat  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.model_handler.utils import default_decode_ast_prompting  # noqa: E402
from bfcl_eval.utils import is_empty_output, is_function_calling_format_output  # noqa: E402

setattr(pathlib.Path, "mkdir", _make_folder)  # noqa: B010


def score(category: str, function: str, possible_answer: str, calls: list[dict] | None, text: str) -> float:
    """Return 1 iff the official checker accepts the calls, else 0. No later call can evaluate code.

    function, possible_answer: the row's, as JSON texts. calls: those that the answer wrote as JSON, each {name,
    arguments}; None: the answer is `text`, in which the official decoder looks for calls written as Python.
    """
    described, accepted = json.loads(function), json.loads(possible_answer)
    install(())
    try:
        if calls is None:
            decoded = default_decode_ast_prompting(text, ReturnFormat.PYTHON, False)
        else:
            decoded = [{call["name"]: call["arguments"]} for call in calls]
    except Exception:
        decoded = None
    called = decoded is not None and not is_empty_output(decoded)
    if category.endswith("irrelevance"):
        return float(not called)
    if category.endswith("relevance"):
        return float(called)
    if decoded is None or not is_function_calling_format_output(decoded):
        return 0.0
    language = next((one for one in (Language.JAVASCRIPT, Language.JAVA) if category.endswith(one.value)), None)
    try:
        verdict = ast_checker(described, decoded, accepted, language or Language.PYTHON, category, _MODEL)
    except Exception:
        return 0.0
    return float(verdict["valid"] is True)
