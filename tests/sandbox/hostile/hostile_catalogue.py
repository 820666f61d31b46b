"""All hostile programs, by family."""

import hostile_files
import hostile_kernel
import hostile_network
import hostile_poison
import hostile_processes
import hostile_protocol
import hostile_python
import hostile_resources
import hostile_time

FAMILIES = {
    "resources": hostile_resources.CASES,
    "time": hostile_time.CASES,
    "processes": hostile_processes.CASES,
    "files": hostile_files.CASES,
    "network": hostile_network.CASES,
    "kernel": hostile_kernel.CASES,
    "protocol": hostile_protocol.CASES,
    "poison": hostile_poison.CASES,
    "python": hostile_python.CASES,
}
CASES = {case.name: case for cases in FAMILIES.values() for case in cases}
assert len(CASES) == sum(map(len, FAMILIES.values())), "two cases have one name"
