"""The places of our presets, and paths as the configuration has them."""

import os
from pathlib import Path

# At the top of a checkout; an installed wheel has them inside the package (setup.py).
CONFIG_DIR = Path(__file__).parents[2] / "configs"
if not (CONFIG_DIR / "recipe").is_dir():
    CONFIG_DIR = Path(__file__).parents[1] / "configs"


def absolute(path: str) -> str:
    """`path` from the root on: Ray's workers do not share the command's working folder."""
    return os.path.abspath(os.path.expanduser(str(path)))
