"""Data files next to the modules that they belong to."""

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's takes a tenth of the time, at every start


def yaml_beside(module: str, name: str | None = None) -> Any:
    """Return the content of a YAML file in a module's folder (`module`: its `__file__`): the file of the module's own
    name, or `name`."""
    path = Path(module)
    return yaml.load((path.with_name(name) if name else path.with_suffix(".yaml")).read_text(), Loader=_LOADER)
