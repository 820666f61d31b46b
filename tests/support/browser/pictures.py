"""Takes the pictures of docs/viewing.md: `python -m tests.support.browser.pictures`. Needs Chromium."""

import asyncio
import os
import tempfile
from pathlib import Path

import yaml
from aiohttp.test_utils import TestServer

from retool_mcore.cli.study import study_of
from retool_mcore.view.server import application
from tests.support.browser.browser import browser
from tests.support.browser.example_run import make_run

DOCS = Path(__file__).parents[3] / "docs"
# File, height in pixels, address.
PICTURES = (
    ("view-overview", 1010, "#/"),
    ("view-list", 560, "#/list?step=17&sort=score"),
    ("view-failures", 330, "#/errors?step=17"),
    ("view-trajectory", 900, "#/t/3/{failed}"),
    ("view-compare", 860, "#/c/3/{failed}/3/{other}"),
    ("view-changes", 420, "#/changes?since=15"),
    ("view-time", 600, "#/time/17"),
)
SEVERAL = ("view-seeds", 860, "#/")
ARMS = ("view-arms", 760, "#/")
PLAN = {
    "arms": {"fast": "fast-s{seed}", "slow": "slow-s{seed}"},
    "seeds": [1, 2, 3],
    "measure": "training",
    "claims": {"faster": {"better": "fast", "worse": "slow", "rule": "above", "points": 5}},
}
FULL = "!!document.querySelector('.panel:not([hidden])')"


async def take(folder: Path, scratch: Path) -> None:
    run = make_run(scratch / "seed1")
    async with TestServer(application([run])) as server, browser(1240) as tab:
        await tab.open(f"{server.make_url('/')}#/list?step=3&error=error:+NameError:+name+…+is+not+defined&sort=-calls")
        await tab.until("!!document.querySelector('.body .row')")
        failed = await tab.js("Number(document.querySelector('.body .row').hash.match(/t\\/3\\/(\\d+)/)[1])")
        for name, height, address in PICTURES:
            other = failed + 1 if failed % 4 < 3 else failed - 1  # of the same group
            await tab.size(1240, height)
            await tab.go(address.format(failed=failed, other=other))
            if address == "#/":
                await tab.until(FULL)
            await tab.picture(folder / f"{name}.png")
    runs = [run, make_run(scratch / "seed2", 2), make_run(scratch / "seed3", 3), make_run(scratch / "slower", 1, 0.4)]
    async with TestServer(application(runs)) as server, browser(1240, SEVERAL[1]) as tab:
        await tab.open(f"{server.make_url('/')}{SEVERAL[2]}")
        await tab.until(FULL)
        await tab.picture(folder / f"{SEVERAL[0]}.png")
    plan = scratch / "study.yaml"
    plan.write_text(yaml.safe_dump(PLAN | {"runs": str(scratch)}))
    os.utime(plan, (1, 1))  # older than the runs
    for arm, rate in (("fast", 1.0), ("slow", 0.4)):
        for seed in PLAN["seeds"]:
            make_run(scratch / f"{arm}-s{seed}", seed, rate)
    os.chdir(scratch)
    folders, study = study_of([Path("study.yaml")])
    async with TestServer(application(folders, study=study)) as server, browser(1240, ARMS[1]) as tab:
        await tab.open(f"{server.make_url('/')}{ARMS[2]}")
        await tab.until(FULL)
        await tab.picture(folder / f"{ARMS[0]}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch_folder:
        asyncio.run(take(DOCS, Path(scratch_folder)))
