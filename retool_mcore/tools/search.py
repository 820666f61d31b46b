"""Search over a local corpus: BM25 by the bm25s library."""

import asyncio
import json
from pathlib import Path

import bm25s

from retool_mcore.data.function_schema import function_schema
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool


class Search(Tool):
    """The `k` passages of `corpus` that fit a query best, by BM25; a passage without any word of it is not shown.

    corpus: a JSONL file, one object a line with `text` and optionally `title`. A passage is cut to `max_chars`
    characters. The index is built when the tool is made. Raises UserError when the file cannot be read.
    """

    def __init__(self, corpus: str, k: int = 3, max_chars: int = 1000, name: str = "search"):
        if k < 1 or max_chars < 1:
            raise UserError(f"the search tool's k={k} and max_chars={max_chars} must be 1 or more.")
        self.passages = read_corpus(Path(corpus).expanduser())
        self.k, self.max_chars = k, max_chars
        words = {"query": {"type": "string", "description": "Words to look for."}}
        parameters = {"type": "object", "properties": words, "required": ["query"], "additionalProperties": False}
        self.schema = function_schema(name, "Searches a collection of texts and returns the best passages.", parameters)
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(self.passages, show_progress=False), show_progress=False)

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        return Reply(await asyncio.to_thread(self.find, arguments["query"]))

    def find(self, query: str) -> str:
        """The passages as the policy reads them, numbered from 1."""
        # As words and not ids: ids are the query's own, and words that the corpus lacks must not stand for others.
        tokens = bm25s.tokenize([query], return_ids=False, show_progress=False)
        if not tokens[0]:
            return "No passage found."
        count = min(self.k, len(self.passages))
        numbers, scores = self._index.retrieve(tokens, k=count, show_progress=False)
        passages = [self.passages[i][: self.max_chars] for i in numbers[0][scores[0] > 0]]
        return "\n\n".join(f"[{n}] {text}" for n, text in enumerate(passages, 1)) or "No passage found."


def read_corpus(path: Path) -> list[str]:
    """Passages of a JSONL file, a title on the first line of its passage. Raises UserError naming the bad line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the search corpus {path}: {error}.") from error
    passages = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UserError(f"line {number} of the search corpus {path} must be a JSON object with a text.")
        passages.append(f"{row['title']}\n{row['text']}" if row.get("title") else row["text"])
    if not passages:
        raise UserError(f"the search corpus {path} holds no passage.")
    return passages
