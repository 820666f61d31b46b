"""A look that is taken time after time in a thread, while something else works."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def looking(every_s: float, look: Callable[[], bool]) -> Iterator[None]:
    """Call `look` in a thread every `every_s` seconds while the body runs, until it returns True. The thread has ended
    when the body is left."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s) and not look():
            pass

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
