"""The seccomp program, interpreted here: what it answers to which call, for both machines."""

import errno
import struct

import pytest

from retool_mcore.sandbox.isolation import seccomp

ALLOW, KILL = seccomp.ALLOW, seccomp.KILL_PROCESS


def refused(number):
    return seccomp.ERRNO | number


def answer(program, machine, call, *arguments, architecture=None):
    data = struct.pack("=IIQ", call, architecture or seccomp.ARCHITECTURES[machine], 0)
    data += struct.pack("=6Q", *(a & (2**64 - 1) for a in (*arguments, 0, 0, 0, 0, 0, 0)[:6]))
    place, word = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, 8 * place)
        place += 1
        if code == 0x20:
            (word,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return value
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[code]
            place += yes if holds else no


@pytest.fixture(params=["x86_64", "aarch64"])
def ask(request):
    machine = request.param

    def do(numbers, *arguments, own_pid_namespace=True, protected=()):
        number = numbers[list(seccomp.ARCHITECTURES).index(machine)]
        program = seccomp.filter_program(machine, own_pid_namespace, protected)
        return answer(program, machine, number, *arguments)

    do.machine = machine
    return do


def test_every_listed_call_is_refused(ask):
    column = list(seccomp.ARCHITECTURES).index(ask.machine)
    for numbers in seccomp.DENIED.values():
        if numbers[column] is not None:
            assert ask(numbers) == refused(errno.EPERM)
    assert ask(seccomp.UNKNOWN["clone3"]) == refused(errno.ENOSYS)


def test_ordinary_calls_pass(ask):
    for numbers in ((0, 63), (1, 64), (9, 222), (59, 221), (202, 98), (60, 93)):  # read write mmap execve futex exit
        assert ask(numbers) == ALLOW


def test_calls_newer_than_the_list_are_unknown(ask):
    assert ask((470, 470)) == refused(errno.ENOSYS)


def test_other_abis_end_the_process():
    program = seccomp.filter_program("x86_64", True)
    assert answer(program, "x86_64", 0, architecture=0x40000003) == KILL
    assert answer(program, "x86_64", 0x40000000 | 59) == KILL


def test_forks_pass_and_namespaces_do_not(ask):
    assert ask(seccomp.CLONE, 17) == ALLOW
    assert ask(seccomp.CLONE, 0x3D0F00) == ALLOW  # a thread, as the C library makes it
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert ask(seccomp.CLONE, 17 | flag) == refused(errno.EPERM)


def test_sockets_by_family(ask):
    assert ask(seccomp.SOCKET, 1) == ALLOW and ask(seccomp.SOCKETPAIR, 1) == ALLOW
    for family in (2, 10, 16, 17, 38, 40):  # INET, INET6, NETLINK, PACKET, ALG, VSOCK
        assert ask(seccomp.SOCKET, family) == refused(errno.EAFNOSUPPORT)
        assert ask(seccomp.SOCKETPAIR, family) == refused(errno.EAFNOSUPPORT)


def test_without_a_pid_namespace_no_socket_and_no_way_out_of_the_group(ask):
    assert ask(seccomp.SOCKET, 1, own_pid_namespace=False) == refused(errno.EACCES)
    for numbers in seccomp.LEAVES_GROUP.values():
        assert ask(numbers, own_pid_namespace=False) == refused(0)
        assert ask(numbers) == ALLOW


def test_without_a_pid_namespace_no_signal_comes_from_a_ready_descriptor(ask):
    for numbers, requests in (
        (seccomp.FCNTL, seccomp.SIGNAL_OWNER_FCNTL),
        (seccomp.IOCTL, seccomp.SIGNAL_OWNER_IOCTL),
    ):
        for request in requests:
            assert ask(numbers, 3, request, own_pid_namespace=False) == refused(errno.EPERM)
            assert ask(numbers, 3, request) == ALLOW
    assert ask(seccomp.FCNTL, 3, 4, own_pid_namespace=False) == ALLOW  # F_SETFL


def test_protected_processes_cannot_be_signalled(ask):
    kill = seccomp.KILLS["kill"]
    for target in (-1, 77, -77):
        assert ask(kill, target, 9, own_pid_namespace=False, protected=(77,)) == refused(errno.EPERM)
    assert ask(kill, 78, 9, own_pid_namespace=False, protected=(77,)) == ALLOW
    limits = seccomp.REACHES_OTHERS["prlimit64"][:2]
    assert ask(limits, 0, own_pid_namespace=False) == ALLOW
    assert ask(limits, 78, own_pid_namespace=False) == refused(errno.EPERM)
