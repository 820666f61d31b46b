"""verl's vLLM servers, whose HTTP side stays on loopback: engines are asked through Ray, nobody needs it.

Imports vLLM, so verl gets the class by a loader (engines.py).
"""

import ray
from verl.workers.rollout.vllm_rollout import vllm_async_server as verls


class vLLMHttpServer(verls.vLLMHttpServer):  # noqa: N801  by this name logs and process lists show verl's
    """The server of one engine on one node."""

    async def run_server(self, args):
        """Start the engine and its HTTP server, which verl binds to the address of the node."""
        address, self._server_address = self._server_address, "127.0.0.1"
        try:
            await super().run_server(args)
        finally:
            self._server_address = address


class Replica(verls.vLLMReplica):
    """One engine, on one node or several."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(vLLMHttpServer)
