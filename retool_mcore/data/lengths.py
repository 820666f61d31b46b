"""The lengths of prompts in tokens, and the files of a run without those that its limit has no room for."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from retool_mcore.data.formats import rendered
from retool_mcore.data.function_schema import row_tools
from retool_mcore.data.schema import check_rl, write_parquet
from retool_mcore.errors import UserError


def prompt_lengths(
    path: str | Path, tokenizer: Any, tools: list[dict] | None = None, template_kwargs: Mapping | None = None
) -> list[int]:
    """Return the tokens of each prompt of an RL parquet, chat template and generation prompt included.

    tools: the function schemas the rollout passes to the chat template (hermes format); they are part of the prompt,
    and a row's own are taken in their place. template_kwargs: further arguments of the chat template.
    Raises UserError when the file is not an RL parquet or the tokenizer has no chat template, and when the template
    refuses a prompt.
    """
    check_rl(path)
    if not tokenizer.chat_template:
        raise UserError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: use the instruct model's.")
    lengths: list[int] = []
    arguments = {**(template_kwargs or {}), "add_generation_prompt": True}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["prompt", "extra_info"]):
            prompts = batch["prompt"].to_pylist()
            own = [row_tools(extra) if tools else None for extra in batch["extra_info"].to_pylist()]
            texts = [
                rendered(tokenizer, prompt, (tools if its is None else its) or None, **arguments)
                for prompt, its in zip(prompts, own, strict=True)
            ]
            lengths += map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])
    return lengths


def without_long(
    paths: Iterable[Path], fmt: Any, tools: list[dict] | None, max_prompt_tokens: int, folder: Path
) -> list[Path]:
    """Return the files without the prompts that have more than `max_prompt_tokens` tokens, in the same order.

    A file that has none stays as it is; of another a copy is written into `folder`. fmt: the rollout's format.
    """
    kept = []
    for number, path in enumerate(paths):
        lengths = prompt_lengths(path, fmt.tokenizer, tools or fmt.tools, fmt.template_kwargs)
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
