"""Configurations of cold-start runs against a `Double`, and the accounts of finished ones."""

from pathlib import Path

from retool_mcore.coldstart.config import Columns, Config, Execution, Judge, Model, Rewrite, Source
from tests.support.coldstart.model_double import MODEL


def config(folder: Path, source: Path, url: str, **changes) -> Config:
    """A run of `source` (columns problem, reasoning, answer) with rewriter and judge at `url`, in one process."""
    model = Model(url=url, name=MODEL, retries=2, timeout_s=20)
    made = Config(
        output=str(folder),
        source=Source(path=str(source), columns=Columns(problem="problem", reasoning="reasoning", answer="answer")),
        judge=Judge(model=model),
        rewrite=Rewrite(model=model),
        execution=Execution(sandbox={"kind": "local", "workers": 2, "timeout_s": 5.0, "preload": []}),
        processes=1,
    )
    for path, value in changes.items():
        *parents, name = path.split("__")
        node = made
        for parent in parents:
            node = getattr(node, parent)
        setattr(node, name, value)
    return made
