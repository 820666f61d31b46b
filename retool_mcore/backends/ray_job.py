"""A job of Ray's whose workers search for modules where all processes of a run do (python_path.py).

Ray has workers search the driver's working folder first, before installed packages, and offers no way to leave it out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import ray.job_config

from retool_mcore.backends.library_patch import LibraryPatch

_JOB = LibraryPatch(ray.job_config, "JobConfig")


class InstalledFirst(ray.job_config.JobConfig):
    """A job that adds no folder to its workers' search path."""

    def _get_proto_job_config(self):
        self._py_driver_sys_path = []
        return super()._get_proto_job_config()


@contextmanager
def installed_first() -> Iterator[None]:
    """Jobs that begin inside are of this kind."""
    with _JOB.applied(InstalledFirst):
        yield
