"""What SandboxFusion's and verl's own tests ask of a service, in our words and of ours.

The originals are on no package index; tests/support/peers.py runs them from checkouts and lists what differs on
purpose.
"""

import base64

import pytest
import requests
from services import end_process, start_process, url_of

from tests.support import peers


@pytest.fixture(scope="module")
def url():
    process = start_process(workers=16)
    yield url_of(process)
    end_process(process)


def ask(url, code, **fields):
    reply = requests.post(f"{url}/run_code", json={"code": code, "language": "python", "run_timeout": 30} | fields)
    assert reply.status_code == 200
    return reply.json()


def test_output_and_input(url):
    reply = ask(url, "print(sum(map(int, input().split())))", stdin="20 22")
    assert (reply["status"], reply["run_result"]["status"]) == ("Success", "Finished")
    assert reply["run_result"]["stdout"] == "42\n" and reply["run_result"]["return_code"] == 0


def test_the_clock_is_told_from_an_error(url):
    late = ask(url, "import time\ntime.sleep(60)", run_timeout=0.3)
    assert (late["status"], late["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    for code, said in (("assert not 1", "AssertionError"), ("let a = 1", "SyntaxError: invalid syntax")):
        wrong = ask(url, code)
        assert (wrong["status"], wrong["run_result"]["status"]) == ("Failed", "Finished")
        assert said in wrong["run_result"]["stderr"] and wrong["run_result"]["return_code"] == 1


def test_files_go_in_and_come_back_but_not_from_outside(url):
    text = base64.b64encode(b"deep").decode()
    code = "text = open('a/b/c').read()\nopen('made', 'w').write(text.upper())"
    reply = ask(url, code, files={"a/b/c": text}, fetch_files=["made"])
    assert reply["status"] == "Success" and base64.b64decode(reply["files"]["made"]) == b"DEEP"
    outside = ask(url, "1", fetch_files=["/etc/hosts"])
    assert outside["status"] == "SandboxError" and "below the program's folder" in outside["message"]


def test_a_program_stopped_for_its_output_says_so_in_sandboxfusions_words(url):
    reply = ask(url, "while True: print('x' * 1000)")
    assert (reply["status"], reply["run_result"]["status"]) == ("Failed", "Finished")
    assert "wrote more than" in reply["run_result"]["stderr"] and reply["run_result"]["return_code"] == -9
    left = ask(url, "import os\nprint('out', flush=True)\nos._exit(0)")
    assert (left["status"], left["run_result"]["stdout"], left["run_result"]["return_code"]) == ("Success", "out\n", 0)


def test_another_language_is_named(url):
    reply = ask(url, "int main() {}", language="cpp")
    assert reply["status"] == "SandboxError" and "cpp" in reply["message"]


def test_verls_own_client_judges_by_it(url):
    from verl.utils.reward_score.sandbox_fusion.utils import check_correctness

    # The client waits ten seconds longer than that for a reply.
    cases = {"inputs": [*map(str, range(12)), "sleep"], "outputs": [*[str(2 * n) for n in range(11)], "wrong", "x"]}
    program = "import time\ntext = input()\ntime.sleep(60 if text == 'sleep' else 0)\nprint(2 * int(text))"
    verdicts, told = check_correctness(f"{url}/run_code", cases, program, timeout=5)
    assert verdicts == [True] * 11 + [False, -3]
    assert [one["status"] for one in told] == ["success"] * 11 + ["wrong_answer", "timeout"]
    (verdict,), (told,) = check_correctness(f"{url}/run_code", {"inputs": ["1"], "outputs": ["1"]}, "1 / 0", timeout=5)
    assert verdict == -2 and told["status"] == "runtime_error" and "ZeroDivisionError" in told["stderr"]


def test_the_stand_ins_let_a_failing_original_fail(tmp_path):
    """Of the script that runs the originals: what a suite says reaches its counts."""
    inside, (one, other) = peers.SUITES["sandboxfusion"]
    (tmp_path / inside).mkdir(parents=True)
    (tmp_path / inside / one).write_text("def test_one():\n    pass\n\n\ndef test_two():\n    assert 0\n")
    (tmp_path / inside / other).write_text("async def test_three():\n    assert 0\n")
    found = peers.run("sandboxfusion", tmp_path, "http://127.0.0.1:9")
    assert found == {"test_one": "passed", "test_two": "failed", "test_three": "failed"}
