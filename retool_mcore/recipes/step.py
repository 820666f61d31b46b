"""What a recipe does to a batch in the trainer, where whole groups are visible: before and after the advantages."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transfer_queue

from retool_mcore.recipes.columns import put, real_keys, unwrap
from retool_mcore.recipes.fewest_calls import FewestCalls
from retool_mcore.rewards.otc import fewest_calls, tool_productivity
from retool_mcore.rewards.registry import find_reward

COUNTS = ("filters/", "audit/")  # metrics that count
RUNNING = ("sandbox/error_share",)


@dataclass(frozen=True)
class Row:
    """One trajectory of the batch: its key in TransferQueue, prompt (source and index), and what its reward said."""

    key: str
    prompt: str
    acc: float
    calls: int
    overlong: float
    drop: str

    @property
    def group(self) -> str:
        return self.key.split("_")[0]


@dataclass
class RecipeStep:
    """`recipe` is the recipe's section of the configuration, `stage_dir` the folder of the RL stage."""

    recipe: Mapping
    stage_dir: Path
    _fewest: FewestCalls | None = None

    def before_advantages(self, batch, step: int) -> dict[str, float]:
        """Give rewards that need the group, take the dropped samples out of the masks; returns the counts as metrics.

        A dropped sample still has its reward in the group's baseline. Its response_mask and loss_mask become 0, so that
        neither numerator nor denominator of a token mean counts it.
        """
        rows = read_rows(batch)
        if self.recipe["group_reward"]["name"]:
            self._reward_groups(batch, rows, step)
        dropped = [row.key for row in rows if row.drop]
        zero_masks(batch, dropped)
        reasons = Counter(row.drop for row in rows)
        metrics = {f"filters/samples/{name}": reasons[name] for name in self.recipe["filters"]["samples"]}
        metrics["filters/samples/kept"] = reasons[""]
        productivity = tool_productivity([row.acc for row in rows], [row.calls for row in rows])
        return metrics | ({} if productivity is None else {"reward/tool_productivity": productivity})

    def after_advantages(self, batch) -> None:
        """Where our loss reads what lies outside the mask (backends/verl/losses.py): write alpha there on
        observations, else 0.

        GAE whitens the advantages of all tokens, those outside the mask and of left-out samples included.
        """
        alpha, whitened = self.recipe["observation_weight"], self.recipe["advantage"] == "gae"
        if self.recipe["policy_loss"] != "retool" or not (alpha > 0 or whitened):
            return
        kept = {row.key for row in read_rows(batch) if not row.drop}
        keys = list(batch.keys) if whitened else sorted(kept)
        if not keys:
            return
        fields = ["advantages", "response_mask"]
        data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        columns = zip(keys, data["advantages"].unbind(), data["response_mask"].unbind(), strict=True)
        weights = [torch.where(mask == 0, alpha if key in kept else 0.0, values) for key, values, mask in columns]
        put(batch, keys, advantages=weights)

    def _reward_groups(self, batch, rows: list[Row], step: int) -> None:
        if self._fewest is None:
            self._fewest = FewestCalls(self.stage_dir / "fewest_calls.jsonl", first_step=step)
        group_reward = self.recipe["group_reward"]
        reward = find_reward(group_reward["name"])
        groups: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            groups[row.group].append(row)
        values: dict[str, float] = {}
        minima: dict[str, int | None] = {}
        for group in groups.values():
            prompt = group[0].prompt
            accs, calls = [row.acc for row in group], [row.calls for row in group]
            fewest = self._fewest.get(prompt)
            rewards = reward(accs, calls, fewest=fewest, **group_reward["args"])
            values |= {row.key: value + row.overlong for row, value in zip(group, rewards, strict=True)}
            minima[prompt] = fewest_calls(accs, calls, minima.get(prompt, fewest))
        self._fewest.update(step, minima)
        keys = list(values)
        data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["rm_scores"])
        scores = [torch.zeros_like(old) for old in data["rm_scores"].unbind()]
        for score, key in zip(scores, keys, strict=True):
            score[-1] = values[key]  # where verl puts the score of an outcome
        put(batch, keys, rm_scores=scores)


def whole_step(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a whole step that are no means over its `parts` (the metrics of each): what was filtered and what
    the mask audit counted is summed up, and of RUNNING, which runs on from part to part, the last value stays."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update({name: value for name, value in part.items() if name.startswith(COUNTS)})
    return dict(counts) | {name: part[name] for part in parts for name in RUNNING if name in part}


def read_rows(batch) -> list[Row]:
    """The batch's trajectories, verl's padding left out."""
    keys = real_keys(batch)
    fields = ["extra_fields", "data_source", "index"]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    columns = [unwrap(data[field]) for field in fields]
    return [
        Row(
            key=key,
            prompt=f"{source}/{int(index)}",
            acc=float(extra["reward_extra_info"]["acc"]),
            calls=int(extra["num_calls"]),
            overlong=float(extra["reward_extra_info"]["overlong"]),
            drop=str(extra["reward_extra_info"]["drop"]),
        )
        for key, extra, source, index in zip(keys, *columns, strict=True)
    ]


def zero_masks(batch, keys: list[str]) -> None:
    """Set response_mask and loss_mask of the samples `keys` to 0 in TransferQueue."""
    if not keys:
        return
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    zeros = [torch.zeros_like(mask) for mask in data["response_mask"].unbind()]
    put(batch, keys, response_mask=zeros, loss_mask=zeros)
