"""No problem of an evaluation set may be trained on: whole matches and shared runs of words are out."""

from dataclasses import dataclass, field

from retool_mcore.coldstart.config import EvaluationFile
from retool_mcore.coldstart.dedup import words
from retool_mcore.coldstart.normalise import bare_problem
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.coldstart.source import at, text
from retool_mcore.data.sources import raw_rows
from retool_mcore.errors import UserError


@dataclass
class Decontaminate:
    """Called with a row; raises Drop when its problem is one of `files`, or shares `ngram` words in a row with one."""

    files: list[EvaluationFile]
    ngram: int
    _whole: dict[str, str] = field(default_factory=dict)
    _runs: dict[tuple, str] = field(default_factory=dict)
    _ready: bool = False

    def prepare(self) -> None:
        """Read the evaluation files, once. Raises UserError for one that cannot be read: to go on would be silent."""
        if self._ready:
            return
        for file in self.files:
            for number, raw in enumerate(raw_rows(file.path)):
                where = f"{file.path}, row {number}"
                try:
                    found = words(bare_problem(text(at(raw, file.problem), "problem")))
                except Drop as drop:
                    raise UserError(
                        f"{where} of decontaminate.files has no problem ({drop}): set `problem` there to its column."
                    ) from None
                self._whole[" ".join(found)] = where
                self._runs.update((run, where) for run in self._runs_of(found))
        self._ready = True

    def __call__(self, row: Row) -> Row:
        self.prepare()
        found = words(row.problem)
        if where := self._whole.get(" ".join(found)):
            raise Drop("in an evaluation set", where)
        for run in self._runs_of(found):
            if run in self._runs:
                raise Drop("shares words with an evaluation set", f"{self.ngram} in a row, {self._runs[run]}")
        return row

    def _runs_of(self, found: list[str]) -> set[tuple]:
        # The words themselves: their hashes are others in the next process.
        return {tuple(found[i : i + self.ngram]) for i in range(len(found) - self.ngram + 1)}
