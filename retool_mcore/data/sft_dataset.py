"""Cold-start examples as verl's SFT trainer wants them (`data.custom_cls`), rendered by the rollout's own formats."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet
import torch
from torch.utils.data import Dataset

from retool_mcore.data.formats import get_format
from retool_mcore.data.function_schema import row_tools
from retool_mcore.data.schema import check_sft
from retool_mcore.data.segments import render_segments
from retool_mcore.data.special_tokens import NAMED
from retool_mcore.errors import UserError

_COLUMNS = ["prompt", "segments", "extra_info"]


class ReToolSFTDataset(Dataset):
    """Questions with worked solutions that call the interpreter, one example a row of our SFT parquet.

    `config` is verl's `data` section with these keys of ours:

    - `format`: "text", "hermes" or "none" (see `data/formats.py`), required;
    - `predict_observations`: False by default; True trains on interpreter text as well;
    - `max_length`: tokens of prompt and response together;
    - `truncation`: "error" (default) refuses a longer example and names its row, "drop" leaves it out and counts it.

    An item is {"input_ids", "position_ids", "loss_mask"}, each (tokens,) int64 without padding (pad_mode no_padding).
    `loss_mask` is aligned with `input_ids`: 1 on every token that is a target, which is each policy token with the end
    of its turns; 0 on the prompt and on observations. verl's `sft_loss` shifts the mask itself (`torch.roll` by -1
    over the packed batch) to meet the log-probabilities, so it must not be shifted here; the roll carries a row's
    first value into the row before, which is harmless because a row begins with its prompt.

    All rows are rendered at construction, so that a bad one stops the run before an engine starts. Raises UserError for
    a missing file or column, an empty data set, a row that cannot be rendered, or an unfit config.
    """

    def __init__(self, parquet_files, tokenizer, config, processor=None, max_samples: int = -1):
        truncation = config.get("truncation", "error")
        if truncation not in ("error", "drop"):
            expected = "expected error or drop, since a cut example teaches no end"
            raise UserError(f"data.truncation is {truncation!r}: {expected}.")
        fmt = get_format(config["format"], tokenizer, config.get("apply_chat_template_kwargs"))
        files = [parquet_files] if isinstance(parquet_files, str | Path) else list(parquet_files)
        max_length = config["max_length"]
        observations_too = config.get("predict_observations", False)
        self.examples: list[tuple[torch.Tensor, torch.Tensor]] = []
        dropped = named = 0
        for name, row_number, row in _rows(files, max_samples):
            try:
                tools = row_tools(row.get("extra_info"))
                prompt = fmt.prompt_ids(row["prompt"], tools)
                response, mask, _ = render_segments(fmt, tokenizer, row["segments"], tools)
            except UserError as error:
                raise UserError(f"Row {row_number} of {name} cannot be rendered: {error}") from error
            ids = prompt + response
            if len(ids) > max_length and truncation == "error":
                raise UserError(
                    f"Row {row_number} of {name} has {len(ids)} tokens, more than data.max_length={max_length}: "
                    "raise it, or set data.truncation=drop to leave such rows out."
                )
            if len(ids) > max_length:
                dropped += 1
                continue
            texts = [message["content"] for message in row["prompt"]] + [part["text"] for part in row["segments"]]
            named += fmt.neutral(texts) != texts
            loss_mask = [0] * len(prompt) + ([1] * len(response) if observations_too else mask)
            self.examples.append((torch.tensor(ids, dtype=torch.int32), torch.tensor(loss_mask, dtype=torch.int8)))
        if not self.examples:
            raise UserError(
                f"No SFT example in {', '.join(map(str, files))}: {dropped} rows were longer than "
                f"data.max_length={max_length}."
            )
        first_rank = not (torch.distributed.is_initialized() and torch.distributed.get_rank())
        if dropped and first_rank:
            print(f"dropped {dropped} of {dropped + len(self.examples)} SFT examples longer than {max_length} tokens")
        if named and first_rank:
            print(f"{named} of {len(self.examples)} SFT examples {NAMED}")

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, loss_mask = self.examples[index]
        return {"input_ids": ids.long(), "position_ids": torch.arange(len(ids)), "loss_mask": loss_mask.long()}


class FilledUp(Dataset):
    """All rows of `dataset` in whole batches of `batch`, for a loader that drops the last incomplete one.

    The rows beyond the data set's own are its shortest one without targets (loss_mask all 0): they count in no sum.
    """

    def __init__(self, dataset: Dataset, batch: int):
        self.dataset, self.rows = dataset, len(dataset)  # type: ignore[arg-type]  # torch's Dataset has no len
        self.length = -(-self.rows // batch) * batch
        lengths = [len(dataset[row]["input_ids"]) for row in range(self.rows)]
        self.shortest = lengths.index(min(lengths))
        targets = [int(dataset[row]["loss_mask"].sum()) for row in range(self.rows)]
        self.targets = [sum(targets[start : start + batch]) for start in range(0, self.rows, batch)]  # of each batch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index < self.rows:
            return self.dataset[index]
        row = self.dataset[self.shortest]
        return row | {"loss_mask": torch.zeros_like(row["loss_mask"])}

    def weight(self, number: int) -> float:
        """The factor of batch `number`'s loss, a mean over its targets, with which the plain mean over all batches is
        the mean over all targets."""
        return self.targets[number] * len(self.targets) / sum(self.targets)


def _rows(files: Sequence[str | Path], max_samples: int):
    """Yield (file, row number in it, row) over `files` in order, at most `max_samples` rows (-1: all)."""
    count = 0
    for name in files:
        check_sft(name)
        for row_number, row in enumerate(pyarrow.parquet.read_table(name, columns=_COLUMNS).to_pylist()):
            if count == max_samples:
                return
            count += 1
            yield name, row_number, row
