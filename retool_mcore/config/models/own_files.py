"""The files of data=file: entries of data.file.train, eval and sft, and the parquet files that are made of them."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from retool_mcore.config.defaults import computed
from retool_mcore.config.kinds import Name, Texts
from retool_mcore.config.models.section import Section, validate
from retool_mcore.errors import UserError


class OwnFile(Section):
    """An entry of data.file.train, eval or sft. `name` is the data source's in metrics, unless the column `source`
    names each row's; a problem occurs `weight` times in an epoch; question, answer, messages, tools, source and keep
    stand in for the columns of data.file; subset and split are the hub's."""

    model_config = ConfigDict(extra="forbid")
    path: str
    name: Name
    weight: Annotated[float, Field(gt=0)] = 1.0
    question: str | None = None
    answer: str | None = None
    messages: str | None = None
    tools: str | None = None
    source: str | None = None
    keep: Texts | None = None
    subset: str | None = None
    split: str = "train"

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        value = {"path": value} if isinstance(value, str) else value
        if isinstance(value, Mapping) and isinstance(value.get("path"), str):
            return {"name": PurePath(value["path"]).stem} | dict(value)
        return value


def own_files(role: str, value: Any) -> list[OwnFile]:
    """The entries of data.file.ROLE: null, a location, a section, or a list of them. Raises UserError."""
    entries = [] if value is None else value if isinstance(value, list) else [value]
    key = f"data.file.{role}"
    files = [validate(OwnFile, entry, key) for entry in entries]
    names = [file.name for file in files]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{key} has two files of the name {twice[0]}: give names, as in [{{path: a.csv, name: a}}].")
    return files


def made_of(role: str, file: str) -> Any:
    """Default of a key of files: what `retool prepare data=file` makes of data.file.ROLE; without any of its own the
    evaluation has the problems that were taken from the training problems."""

    def parquets(value: Any, run_dir: str) -> list[str]:
        files = [f"{run_dir}/data/{role}/{entry.name}/{file}" for entry in own_files(role, value)]
        return files or [f"{run_dir}/data/{file}"] * (role == "eval")

    return computed(parquets, f"data.file.{role}", "run_dir")
