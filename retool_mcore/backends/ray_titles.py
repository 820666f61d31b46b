"""Titles of Ray's workers that are forked from a template (runner/template.py).

Adapted place (ray 2.60.0, 2.56.1): ray._raylet.setproctitle, which finds no place for a title once another library has
moved the environment. Without it `ps`, and whoever looks for a part by its name, would see no actor.
"""


def install() -> None:
    import ray  # in the child: it reads its process's place from the environment when it is loaded
    import setproctitle

    ray._raylet.setproctitle = setproctitle.setproctitle
