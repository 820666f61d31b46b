"""verl's RL worker that can tell how busy its GPU was (metrics/timeline.py)."""

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from retool_mcore.metrics.timeline import BusySampler, device_reader


class GpuWatchingWorker(ActorRolloutRefWorker):
    """ActorRolloutRefWorker that samples its GPU's utilisation from its start on."""

    sampler: BusySampler | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        read = device_reader()
        self.sampler = read and BusySampler(read)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_gpu_samples(self) -> list[tuple[float, float]]:
        """BusySampler.take of this rank; [] without CUDA."""
        return self.sampler.take() if self.sampler else []
