"""Making a process cheap to fork."""

import gc

from retool_mcore.sandbox.isolation.syscalls import collapse_into_huge_pages

HUGE_PAGE = 2**21


def settle() -> None:
    """Call when everything that forks shall share is in memory.

    The collector leaves what exists alone, so that forks share its pages for longer. Large anonymous areas move into
    huge pages where the kernel can do so (Linux 6.1): a fork copies, and its end frees, one entry for 512 pages, which
    measured as half of the time that a fork takes.
    """
    gc.collect()
    gc.freeze()
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for span, rights, _, _, _, *name in areas:
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(bound, 16) for bound in span.split("-"))
            for address in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                collapse_into_huge_pages(address, HUGE_PAGE)
