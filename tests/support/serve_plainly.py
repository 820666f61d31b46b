"""`python serve_plainly.py CONFIG [HOST] [PORT] [FOLDER]`: serve a sandbox, its settings given as JSON.

What `retool sandbox serve` does, without Hydra: it is up in a third of the time.
"""

import asyncio
import json
import sys
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.sandbox.service.serve import serve


def main(arguments: list[str]) -> int:
    config, host, port, *folder = [*arguments, *["{}", "127.0.0.1", "0"][len(arguments) :]]
    try:
        register = Path(folder[0]) if folder else None
        asyncio.run(serve({"kind": "local"} | json.loads(config), host=host, port=int(port), register=register))
    except UserError as error:
        print(f"retool: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
