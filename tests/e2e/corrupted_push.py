"""vLLM's worker extension of a run one of whose weight pushes goes wrong: one element of a tensor, on the last rank."""

import os

from retool_mcore.backends.verl.weight_sync_vllm import VerifyingExtension


class CorruptedExtension(VerifyingExtension):
    pushes = 0

    def update_weights_from_ipc(self, *args, **kwargs):
        super().update_weights_from_ipc(*args, **kwargs)
        path, row, column = os.environ["CORRUPTED_ELEMENT"].split(",")
        self.pushes += 1
        if self.pushes == int(os.environ["CORRUPTED_PUSH"]) and self.rank == self.parallel_config.world_size - 1:
            parameter = dict(self.model_runner.get_model().named_parameters())[path]
            parameter.data[int(row), int(column)] += 1e-6
