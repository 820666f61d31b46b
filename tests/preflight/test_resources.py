"""Memory and processors within the limits of made-up control groups: of both versions, nested and in containers."""

import math
import os

import pytest

from retool_mcore import resources
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine
from retool_mcore.resources import GIB, available_memory_bytes, memory_limits, processors, tightest

TWO = "30 20 0:25 {start} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = "42 32 0:38 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw"
ONE = "3{n} 32 0:2{n} {start} /sys/fs/cgroup/{name} rw,nosuid shared:9 - cgroup cgroup rw,{name}"
NONE = "9223372036854771712"


@pytest.fixture(autouse=True)
def roomy(monkeypatch):
    monkeypatch.setattr(resources, "_machine_available", lambda: 64 * GIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def tree(tmp_path, mounts, groups, files):
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "mountinfo").write_text("22 1 0:20 / / rw - ext4 /dev/sda rw\n" + "\n".join(mounts) + "\n")
    (proc / "cgroup").write_text("\n".join(groups) + "\n")
    for name, value in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return tmp_path


def two(tmp_path, files, group="/slurm/job_1/step_0", start="/"):
    return tree(tmp_path, [TWO.format(start=start)], [f"0::{group}"], files)


def one(tmp_path, files, group="/slurm/job_1", start="/"):
    names = ("memory", "cpu,cpuacct", "cpuset")
    mounts = [ONE.format(n=n, name=name, start=start) for n, name in enumerate(names)]
    return tree(
        tmp_path, mounts, [*(f"{9 - n}:{name}:{group}" for n, name in enumerate(names)), "1:name=systemd:/"], files
    )


def test_without_groups_the_machine_counts(tmp_path):
    for root in (tmp_path / "nothing", two(tmp_path / "two", {}), one(tmp_path / "one", {})):
        assert (available_memory_bytes(root), processors(root), tightest(root)) == (64 * GIB, 16, None)


def test_a_limit_of_version_2_less_what_is_used(tmp_path):
    root = two(tmp_path, {
        "slurm/job_1/step_0/memory.max": 3 * GIB,
        "slurm/job_1/step_0/memory.current": 2 * GIB,
        "slurm/job_1/step_0/memory.stat": f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file 1024\nslab_reclaimable 0",
    })  # fmt: skip
    assert available_memory_bytes(root) == 1.5 * GIB + 1024
    assert tightest(root).limit == 3 * GIB and tightest(root).file.name == "memory.max"


def test_the_least_of_all_groups_above_counts(tmp_path):
    root = two(tmp_path, {
        "slurm/job_1/step_0/memory.max": "max", "slurm/job_1/step_0/memory.current": GIB,
        "slurm/job_1/memory.max": 8 * GIB, "slurm/job_1/memory.current": GIB,
        "slurm/memory.max": 9 * GIB, "slurm/memory.current": 5 * GIB,
        "memory.max": 10 * GIB, "memory.current": GIB,
    })  # fmt: skip
    assert available_memory_bytes(root) == 4 * GIB
    assert {limit.limit for limit in memory_limits(root)} == {8 * GIB, 9 * GIB, 10 * GIB}


def test_a_group_that_is_slowed_down_has_no_more_either(tmp_path):
    root = two(tmp_path, {"memory.high": 2 * GIB, "memory.max": 3 * GIB, "memory.current": 0}, group="/")
    assert available_memory_bytes(root) == 2 * GIB


def test_a_group_over_its_limit_has_nothing(tmp_path):
    root = two(tmp_path, {"memory.max": GIB, "memory.current": 2 * GIB}, group="/")
    assert available_memory_bytes(root) == 0


def test_version_1(tmp_path):
    root = one(tmp_path, {
        "memory/slurm/job_1/memory.limit_in_bytes": NONE,
        "memory/slurm/job_1/memory.usage_in_bytes": GIB,
        "memory/slurm/memory.limit_in_bytes": 4 * GIB,
        "memory/slurm/memory.usage_in_bytes": 3 * GIB,
        "memory/slurm/memory.stat": f"cache 7\ninactive_file 9\ntotal_inactive_file {GIB}\ntotal_active_file {GIB}",
        "memory/memory.limit_in_bytes": NONE,
        "cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us": -1, "cpu,cpuacct/slurm/job_1/cpu.cfs_period_us": 100000,
        "cpu,cpuacct/slurm/cpu.cfs_quota_us": 300000, "cpu,cpuacct/slurm/cpu.cfs_period_us": 50000,
        "cpuset/slurm/job_1/cpuset.cpus": "0-3,8", "cpuset/slurm/cpuset.effective_cpus": "0-11",
    })  # fmt: skip
    assert available_memory_bytes(root) == 3 * GIB
    assert processors(root) == 5


def test_the_limit_above_a_container_of_version_1(tmp_path):
    root = one(tmp_path, {
        "memory/memory.limit_in_bytes": NONE, "memory/memory.usage_in_bytes": 0,
        "memory/memory.stat": f"hierarchical_memory_limit {2 * GIB}",
    }, group="/docker/abc", start="/docker/abc")  # fmt: skip
    assert available_memory_bytes(root) == 2 * GIB


@pytest.mark.parametrize(
    ("group", "start"),
    [
        ("/", "/"),
        ("/docker/abc", "/docker/abc"),
        ("/docker/abc/inner", "/docker/abc"),
        ("/../abc", "/"),
        ("/x", "/docker/abc"),
    ],
)
@pytest.mark.parametrize("version", [one, two])
def test_a_container_sees_its_own_group_as_the_top(tmp_path, version, group, start):
    memory = "memory/memory.limit_in_bytes" if version is one else "memory.max"
    assert available_memory_bytes(version(tmp_path, {memory: 3 * GIB}, group=group, start=start)) == 3 * GIB


def test_a_hybrid_system_has_its_limits_in_version_1(tmp_path):
    mounts = [ONE.format(n=1, name="memory", start="/"), HYBRID]
    files = {"memory/user/memory.limit_in_bytes": GIB, "unified/user/memory.max": 9 * GIB}
    assert available_memory_bytes(tree(tmp_path, mounts, ["4:memory:/user", "0::/user"], files)) == GIB


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("6400000 100000", 16),
     ("100000", 1), ("", 16), ("max", 16)],
)  # fmt: skip
def test_a_quota_of_processors(tmp_path, quota, expected):
    root = two(tmp_path, {"slurm/cpu.max": quota, "slurm/job_1/step_0/cpu.max": "max 100000"})
    assert processors(root) == expected


def test_the_processors_that_a_group_may_run_on(tmp_path):
    assert processors(two(tmp_path, {"slurm/job_1/step_0/cpuset.cpus.effective": "2-4,7"})) == 4


@pytest.mark.parametrize("content", ["max", "", "-1", NONE, "word"])
def test_what_is_no_number_is_no_limit(tmp_path, content):
    assert available_memory_bytes(two(tmp_path, {"memory.max": content}, group="/")) == 64 * GIB


def test_a_refusal_names_the_limit(tmp_path, monkeypatch):
    found = tightest(two(tmp_path, {"memory.max": 3 * GIB, "memory.current": GIB}, group="/"))
    monkeypatch.setattr(machine, "tightest", lambda: found)
    with pytest.raises(UserError, match=r"Only 2.0 GiB of memory are available \(.*memory.max allows 3.0 GiB\)"):
        machine.check_memory(found.available)
    monkeypatch.setattr(machine, "tightest", lambda: None)
    with pytest.raises(UserError, match="Only 2.0 GiB of memory are available and a run"):
        machine.check_memory(2 * GIB)


def test_this_machine_has_both():
    assert 0 < available_memory_bytes() <= 64 * GIB and 1 <= processors() <= 16
    assert not math.isnan(available_memory_bytes())
