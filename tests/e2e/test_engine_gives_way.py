"""Without CUDA vLLM's engine gives way to what runs beside it; the server in front of it does not."""

import pytest
from forked_programs import lines_printed, started

from retool_mcore.backends.cpu.vllm_cpu import NICER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROGRAM = """
import multiprocessing, os
from retool_mcore.backends.cpu import vllm_cpu

def register():
    before = os.nice(0)
    vllm_cpu.register()
    print("lowered by", os.nice(0) - before, flush=True)

engine = multiprocessing.get_context("fork").Process(target=register)
engine.start()
engine.join()
register()
"""


def test_an_engine_gives_way_and_the_server_before_it_does_not(shared_template):
    printed = lines_printed({"both": started(PROGRAM)})["both"]
    assert printed[-2:] == [f"lowered by {NICER}", "lowered by 0"]
