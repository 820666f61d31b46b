"""TransferQueue's five calls over a dict, for what recipes and observer read and write; the real one needs Ray."""

from collections import defaultdict
from types import SimpleNamespace

from verl.utils.tensordict_utils import list_of_dict_to_tensordict


class MemoryQueue:
    def __init__(self, rows=None, tags=None):
        """rows: {key: {field: a trajectory's value}}, as verl's agent loop puts them; tags: by key."""
        self.rows = defaultdict(dict, rows or {})
        self.tags = dict(tags or {})

    def kv_batch_get(self, keys, partition_id, select_fields):
        rows = [self.rows[key] for key in keys]
        return list_of_dict_to_tensordict([{name: row[name] for name in select_fields if name in row} for row in rows])

    def kv_batch_put(self, keys, partition_id, fields):
        for name, column in fields.items():
            for key, value in zip(keys, column.unbind(), strict=True):
                self.rows[key][name] = value
        return SimpleNamespace(keys=keys, tags=[self.tags.get(key) for key in keys], partition_id=partition_id)

    def kv_list(self):
        return {"train": dict(self.tags)}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.tags.pop(key, None)
            self.rows.pop(key, None)
