"""Where the Python processes that we start look for modules: what PYTHONPATH names, then installed packages.

`python -m` and `python -c` also search the working folder, before all others: a user's `datasets.py`, or a folder `ray`
of results, would take the place of the library.
"""

import os
from collections.abc import Mapping


def variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that keep the working folder out, unless PYTHONPATH names it; its folders become absolute.

    An empty part of PYTHONPATH, which `PYTHONPATH=$PYTHONPATH:/more` leaves, means the working folder to Python. Nobody
    asked for it by that, so it is taken away.
    """
    values = {"PYTHONSAFEPATH": "1"}
    if "PYTHONPATH" in env:
        named = [os.path.abspath(part) for part in env["PYTHONPATH"].split(os.pathsep) if part]
        values["PYTHONPATH"] = os.pathsep.join(named)
    return values
