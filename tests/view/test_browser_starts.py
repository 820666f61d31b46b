"""The chain of a long stage's starts, in a browser."""

from made_chain import began, make_chain, record
from made_run import make_run
from shown_run import MARKS, TABLE, look, shown

pytestmark = MARKS


def test_the_starts_of_a_stage_are_listed_the_newest_first(tmp_path):
    run = make_run(tmp_path / "run")
    make_chain(run / "rl")

    async def body():
        async with shown(run, page="/starts") as tab:
            assert (await tab.js("document.querySelector('h2').innerText")).startswith(
                "RL 4 starts · lost to faults: 4.0 h · keeps off n2 · next save in 0 min · complete about "
            )
            rows = await tab.js(TABLE)
            assert [[row[place] for place in (0, 1, 2, 5, 6, 7)] for row in rows] == [
                ["4", "7, start 4", "n1, n3", "5–7", "no end yet", ""],
                ["3", "7, start 3", "n1, n2", "–", "fault", "node n2, GPUs: 7, 8 needed"],
                ["2", "7, start 2", "n1, n2", "5–6", "fault", "rl failed: NCCL error"],
                ["1", "7, start 1", "n1, n2", "1–4", "time limit", "rl: stopped after step 4 for the time limit"],
            ]
            assert rows[1][4] == "6 min" and rows[3][4] == "4.5 h"
            await tab.js("document.querySelector('#pages a').click(); 1")
            await tab.until("document.body.dataset.ready === '#/'")
            await tab.key("t")
            await tab.until("location.hash === '#/starts'")

    look(body)


def test_a_hostile_error_stays_text(tmp_path):
    run = make_run(tmp_path / "run")
    text = "<img src=x onerror=alert(1)> \u202ereversed"
    record(run / "rl", [began("7-0", 0, 1) | {"why": "fault", "text": text}], steps=[(1, 1)])

    async def body():
        async with shown(run, page="/starts") as tab:
            assert (await tab.js(TABLE))[0][7] == "<img src=x onerror=alert(1)> ⟨U+202E⟩reversed"
            assert await tab.js("document.querySelectorAll('main img').length") == 0

    look(body)
