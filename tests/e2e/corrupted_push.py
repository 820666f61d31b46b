"""vLLM's worker extension of a run whose weight push goes wrong: one element of one tensor, on the last rank."""

import os

from retool_mcore.train.push_receiver import VerifyingExtension


class CorruptedExtension(VerifyingExtension):
    def update_weights_from_ipc(self, *args, **kwargs):
        super().update_weights_from_ipc(*args, **kwargs)
        path, row, column = os.environ["CORRUPTED_ELEMENT"].split(",")
        if self.rank == self.parallel_config.world_size - 1:
            parameter = dict(self.model_runner.get_model().named_parameters())[path]
            parameter.data[int(row), int(column)] += 1e-6
