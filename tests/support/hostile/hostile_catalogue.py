"""All hostile programs, by family."""

from tests.support.hostile import (
    hostile_fetch,
    hostile_files,
    hostile_kernel,
    hostile_network,
    hostile_poison,
    hostile_processes,
    hostile_protocol,
    hostile_python,
    hostile_resources,
    hostile_time,
)

FAMILIES = {
    "resources": hostile_resources.CASES,
    "time": hostile_time.CASES,
    "processes": hostile_processes.CASES,
    "files": [*hostile_files.CASES, *hostile_fetch.CASES],
    "network": hostile_network.CASES,
    "kernel": hostile_kernel.CASES,
    "protocol": hostile_protocol.CASES,
    "poison": hostile_poison.CASES,
    "python": hostile_python.CASES,
}
CASES = {case.name: case for cases in FAMILIES.values() for case in cases}
assert len(CASES) == sum(map(len, FAMILIES.values())), "two cases have one name"
