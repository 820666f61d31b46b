"""The columns of a batch in TransferQueue: which rows are trajectories, what their values are, how they are written."""

from collections.abc import Iterable, Sequence

import torch
import transfer_queue
from tensordict import TensorDict

from retool_mcore.rollout.seeds import DRAW, ORDER, Drawn


def real_keys(batch) -> list[str]:
    """The keys of the batch's trajectories (KVBatchMeta), sorted, verl's padding left out."""
    rows = zip(batch.keys, batch.tags, strict=True)
    return sorted(key for key, tag in rows if not tag.get("is_padding", False))


def unwrap(column: Iterable) -> list:
    """The values of a column that holds no tensors, out of what TransferQueue wraps them in."""
    return [getattr(value, "data", value) for value in column]


def read_problems(keys: Sequence[str], partition_id: str) -> list[tuple[str, int, Drawn]]:
    """The data source and the index of each trajectory's problem, and where its step drew it.

    A trajectory that another version of this package left in the queue has no such place: it counts as the first.
    """
    if not keys:
        return []
    fields = ["data_source", "index", ORDER, DRAW]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=fields)
    first = [0] * len(keys)
    columns = [unwrap(data[name]) if name in data.keys() else first for name in fields]  # noqa: SIM118  a TensorDict
    return [
        (str(source), int(index), Drawn(int(order), int(draw)))
        for source, index, order, draw in zip(*columns, strict=True)
    ]


def put(batch, keys: Sequence[str], **columns: list[torch.Tensor]):
    """Write one tensor a sample and column for the rows `keys`; returns TransferQueue's meta of what was written."""
    fields = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in columns.items()}
    rows = TensorDict(fields, batch_size=len(keys))
    return transfer_queue.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=rows)
