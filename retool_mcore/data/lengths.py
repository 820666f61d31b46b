"""The lengths of prompts in tokens, and the files of a run without those that its limit has no room for."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from retool_mcore.data.formats import Format
from retool_mcore.data.function_schema import row_tools
from retool_mcore.data.schema import check_rl, write_parquet


def prompt_lengths(path: str | Path, fmt: Format, tools: list[dict] | None = None) -> list[int]:
    """Return the tokens of each prompt of an RL parquet, as the rollout's format `fmt` writes it.

    tools: the function schemas that stand in the prompt where a row has none of its own; None for a format without.
    Raises UserError when the file is not an RL parquet, and when the chat template refuses a prompt.
    """
    check_rl(path)
    lengths: list[int] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["prompt", "extra_info"]):
            prompts = batch["prompt"].to_pylist()
            own = [row_tools(extra) if tools else None for extra in batch["extra_info"].to_pylist()]
            pairs = [(prompt, tools if its is None else its) for prompt, its in zip(prompts, own, strict=True)]
            texts = [fmt.prompt_text(prompt, listed) for prompt, listed in pairs]
            lengths += map(len, fmt.tokenizer(texts, add_special_tokens=False)["input_ids"])
    return lengths


def without_long(
    paths: Iterable[Path], fmt: Format, tools: list[dict] | None, max_prompt_tokens: int, folder: Path
) -> list[Path]:
    """Return the files without the prompts that have more than `max_prompt_tokens` tokens, in the same order.

    A file that has none stays as it is; of another a copy is written into `folder`. fmt: the rollout's format.
    """
    kept = []
    for number, path in enumerate(paths):
        lengths = prompt_lengths(path, fmt, tools or fmt.tools)
        fits = [length <= max_prompt_tokens for length in lengths]
        if not all(fits):
            rows = pq.read_table(path).to_pylist()
            print(f"{path}: {fits.count(False)} of {len(fits)} prompts are left out, longer than {max_prompt_tokens}")
            copy = folder / f"{number}-{path.name}"
            fitting = [row for row, kept_here in zip(rows, fits, strict=True) if kept_here]
            write_parquet(fitting, pq.read_schema(path), copy)
            path = copy
        kept.append(path)
    return kept
