"""The process that supervises all runs of one sandbox, and how it starts.

    trainer ── server ── zygote ── programs (one for each run)
                    └─── inits   (one for each run at level "namespaces")

A process of its own, started with the trainer's Python but none of its memory, sockets or environment. It lives as
long as the trainer's process: it ends when the control socket closes or its parent changes, whichever is seen first.
"""

import json
import os
import socket
import sys

from retool_mcore.files import allow_open_files
from retool_mcore.sandbox.isolation import namespaces
from retool_mcore.sandbox.isolation.confine import Confinement
from retool_mcore.sandbox.isolation.levels import detect
from retool_mcore.sandbox.isolation.syscalls import become, set_dumpable
from retool_mcore.sandbox.local.dispatch import Dispatcher
from retool_mcore.sandbox.local.remove import remove_tree
from retool_mcore.sandbox.local.warm import settle
from retool_mcore.sandbox.local.zygote import start_zygote


def serve(control_fd: int, parent: int, options: dict) -> None:
    """Say hello {level, reason, error, zygote} on the control socket, then serve each connection passed over it.

    `options`: max_output_bytes, preload, modules, folders, hidden, max_isolation, spares, keep_s, session_idle_s,
    base_dir (an empty folder, removed at the end where the server can still see it).
    """
    # Root makes here what programs of another user id walk through, whatever mask keeps a run's files private.
    os.umask(0o022)
    control = socket.socket(fileno=control_fd)
    base_dir = options["base_dir"]
    try:
        allow_open_files()  # several a run
        folders = namespaces.python_folders(options["folders"])
        hidden = namespaces.hidden_packages(options["hidden"], options["folders"])
        sys.path += [path for path in options["folders"] if path not in sys.path]
        level, reason, uid = detect(base_dir, folders, options["max_isolation"], hidden)
        if level == "namespaces":
            namespaces.enter_server_namespaces(base_dir, folders, uid, hidden)
        else:
            become(uid)
        confinement = Confinement.of(level, folders, (os.getpid(), parent), hidden)
        zygote_pid, zygote = start_zygote(confinement, options)
        message = zygote.recv(4096)
        error = json.loads(message)["error"] if message else "the zygote ended while it imported the modules"
        control.send(json.dumps({"level": level, "reason": reason, "error": error, "zygote": zygote_pid}).encode())
        if error:
            return
        settle()
        if level != "namespaces":
            set_dumpable(False)
        Dispatcher(control, parent, confinement, zygote_pid, zygote, options).serve()
    finally:
        remove_tree(base_dir)
