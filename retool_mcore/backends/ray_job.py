"""A job of Ray's whose workers search for modules where all processes of a run do (python_path.py).

Ray has workers search the driver's working folder first, before installed packages, and offers no way to leave it out.
"""

from ray.job_config import JobConfig


class InstalledFirst(JobConfig):
    """A job that adds no folder to its workers' search path."""

    def _get_proto_job_config(self):
        self._py_driver_sys_path = []
        return super()._get_proto_job_config()
