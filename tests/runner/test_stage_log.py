import pytest

from retool_mcore.runner.stage_log import last_error

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n    raise ValueError("a: b")\n'
TORCHRUN = (
    "E1121 19:05:00 1 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0\n"
    + TRACEBACK
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    "============================================================\n"
    "Root Cause (first observed failure):\n  error_file: <N/A>\n"
)
GLOO = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer\n"


def report(rank: int, host: str, exit_code: int) -> str:
    """torchrun's, of the rank that ended first on a node."""
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause (first observed failure):\n"
        f"  time      : 2026-01-01_00:00:00\n  host      : {host}\n  rank      : {rank} (local_rank: 0)\n"
        f"  exitcode  : {exit_code} (pid: 7)\n  error_file: <N/A>\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TRACEBACK + "ValueError: a: b\n", "ValueError: a: b"),
        (TRACEBACK + "ValueError: first\nnoise\n" + TRACEBACK + "KeyError: 'second'\nbye\n", "KeyError: 'second'"),
        (f"[rank1]: {TRACEBACK}[rank1]: ValueError: heads\n" + TORCHRUN, "ValueError: heads"),
        ("(TaskRunner pid=12, ip=10.0.0.1) RuntimeError: disk full\n", "RuntimeError: disk full"),
        (
            "\x1b[36m(WorkerDict pid=7)\x1b[0m AssertionError\n"
            "ray.exceptions.RayTaskError(AssertionError): ray::run()\n",
            "AssertionError",
        ),
        (
            "(EngineCore_DP0 pid=5) ERROR 11-21 19:05:00 [core.py:708] ValueError: KV cache\n"
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n",
            "ValueError: KV cache",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory.\n[rank0]: torch.distributed.DistBackendError: NCCL\n",
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        ("ray.exceptions.ActorDiedError: The actor died.\nbye\n", "ray.exceptions.ActorDiedError: The actor died."),
        ("step 1\nstep 2\nEpoch 1/6:  53%|█████▎    | 10/19 [00:12<00:10,  1.21s/it]\nstep:2 - loss:1.5\n", "step 2"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x1:\n", "Fatal Python error: Segmentation fault"),
        (
            GLOO + report(0, "n1", 1) + report(1, "n2", -9),
            "rank 1 on n2 was killed by SIGKILL, often for lack of memory",
        ),
        ("ValueError: why\n" + report(0, "n1", -11), "rank 0 on n1 was killed by SIGSEGV"),
        ("ValueError: why\n" + report(0, "n1", -15), "ValueError: why"),
        (
            "retool-node: torchrun on n2 was killed by SIGKILL\n" + GLOO + report(0, "n1", 1),
            "torchrun on n2 was killed by SIGKILL",
        ),
        (GLOO + "srun: error: n2: task 1: Killed\n" + report(0, "n1", 1), "the supervisor on n2 ended (killed)"),
        (
            "(AgentLoopWorkerTQ pid=7, ip=10.0.0.2) hello\n(raylet) A worker died or was killed while executing a task "
            "by an unexpected system error. Worker IP address: 10.0.0.2 Worker port: 9 Worker PID: 7 Worker exit type: "
            "SYSTEM_ERROR Worker exit detail: end of file.\nray.exceptions.ActorDiedError: The actor died.\n",
            "Ray's AgentLoopWorkerTQ on 10.0.0.2 (pid 7) was killed or crashed",
        ),
        (
            "(vLLMHttpServer pid=7) ERROR 11-22 18:46:06 [async_llm.py:744] vllm.v1.engine.exceptions.EngineDeadError: "
            "EngineCore encountered an issue.\nretool_mcore.errors.UserError: 42 groups failed\n",
            "vLLM's engine on the first node (of vLLMHttpServer, pid 7) was killed or crashed",
        ),
        (
            "(RolloutWorker pid=7, ip=10.0.0.2) hello\n(raylet) A worker died or was killed while executing a task "
            "by an unexpected system error. Worker IP address: 10.0.0.2 Worker port: 9 Worker PID: 7 Worker exit type: "
            "SYSTEM_ERROR Worker exit detail: end of file.\nRuntimeError: 4 rollout workers died, the last one so: x\n",
            "RuntimeError: 4 rollout workers died, the last one so: x",
        ),
        ("ValueError: why\nsrun: error: n1: task 0: Killed\n", "ValueError: why"),
        ("one\ntwo\n\n", "two"),
        ("", ""),
    ],
)
def test_the_line_that_says_why(tmp_path, text, expected):
    (tmp_path / "log.txt").write_text(text)
    assert last_error(tmp_path / "log.txt") == (expected, False)


@pytest.mark.parametrize(
    "line",
    [
        "retool: no file x",
        "retool_mcore.errors.UserError: no file x",
        "[rank0]: retool_mcore.errors.UserError: no file x",
    ],
)
def test_a_users_mistake_is_told_apart(tmp_path, line):
    (tmp_path / "log.txt").write_text(f"{line}\n{TORCHRUN}")
    assert last_error(tmp_path / "log.txt") == ("no file x", True)


def test_bytes_before_the_start_and_broken_text_do_not_matter(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"ValueError: old\n")
    start = log.stat().st_size
    log.write_bytes(log.read_bytes() + b"\xff\xfe new\n")
    assert last_error(log, start)[0].endswith("new")


def test_a_users_mistake_is_no_death_where_what_died_was_replaced(tmp_path):
    (tmp_path / "log.txt").write_text(
        "(JudgeActor pid=7, ip=10.0.0.2) hello\n(raylet) A worker died or was killed while executing a task "
        "by an unexpected system error. Worker IP address: 10.0.0.2 Worker port: 9 Worker PID: 7 Worker exit type: "
        "SYSTEM_ERROR x\nretool_mcore.errors.UserError: step 3: 42 groups were dropped\n"
    )
    assert last_error(tmp_path / "log.txt") == ("step 3: 42 groups were dropped", True)
