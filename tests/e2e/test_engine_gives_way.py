"""What our plugin makes of vLLM's processes: the engine gives way and the server before it does not; own ports."""

import pytest
from forked_programs import lines_printed, started

from retool_mcore.backends.cpu.vllm_cpu import NICER
from retool_mcore.ports import first_ephemeral

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROGRAM = """
import multiprocessing, os
from vllm.utils.network_utils import get_open_port
from retool_mcore.backends.cpu import vllm_cpu

def register():
    before = os.nice(0)
    vllm_cpu.register()
    print("lowered by", os.nice(0) - before, flush=True)
    print(get_open_port(), flush=True)

engine = multiprocessing.get_context("fork").Process(target=register)
engine.start()
engine.join()
register()
"""


def test_an_engine_gives_way_and_the_server_before_it_does_not(shared_template):
    printed = lines_printed({"both": started(PROGRAM)})["both"]
    assert printed[-4::2] == [f"lowered by {NICER}", "lowered by 0"]
    # Below the ports of outgoing connections, of which one took the engine's before its ranks met there.
    engine, server = map(int, printed[-3::2])
    assert engine != server and max(engine, server) < first_ephemeral()
