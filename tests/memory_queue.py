"""TransferQueue's five calls over a dict, for what the recipes read and write there; the real one needs Ray."""

from collections import defaultdict

import torch


class MemoryQueue:
    def __init__(self):
        self.rows = defaultdict(dict)  # by key
        self.tags = {}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {field: self._column([self.rows[key][field] for key in keys]) for field in select_fields}

    @staticmethod
    def _column(values):
        if isinstance(values[0], torch.Tensor):
            return torch.nested.as_nested_tensor(values, layout=torch.jagged)
        return values

    def kv_batch_put(self, keys, partition_id, fields):
        for name, column in fields.items():
            for key, value in zip(keys, column.unbind(), strict=True):
                self.rows[key][name] = value

    def kv_list(self):
        return {"train": dict(self.tags)}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.tags.pop(key, None)
            self.rows.pop(key, None)
