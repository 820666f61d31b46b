"""A step's time line in a browser, drawn from the trace that the trainer wrote."""

from made_run import add_metrics, make_run, record
from shown_run import COUNT, MARKS, click_on_step, figure, look, shown

from retool_mcore.metrics.timeline import chrome_trace, write_trace

pytestmark = MARKS
BARS = "[...document.querySelectorAll('svg.time rect title')].map(title => title.textContent)"


def test_phases_trajectories_tools_and_gpus_of_a_step(tmp_path):
    run = add_metrics(make_run(tmp_path / "run"), steps=10)
    for step in (9, 10):
        gpu = [(1000.0 + n / 2, n % 2) for n in range(8)]
        timing = {"step": 5.0, "gen": 3.0, "update_actor": 1.5}
        trace = chrome_trace(step, 1000.0, timing, [record(step, row, started=1000.0 + row) for row in range(2)], [gpu])
        write_trace(run / "rl" / "trace", step, trace, keep=20)

    async def body():
        async with shown(run) as tab:
            await figure(tab, "time by phase")
            await click_on_step(tab, 10, 10)
            await tab.shown("/time/10")
            bars = await tab.js(BARS)
            assert bars[:2] == ["gen: 3.00 s, from 0.00 s", "update_actor: 1.50 s, from 3.00 s"]
            assert "tool, turn 1 (group0_1, answer, wrong): 0.25 s, from 1.50 s" in bars
            assert await tab.js("document.querySelectorAll('svg.time polyline').length") == 3  # two counts, one GPU
            assert await tab.js(COUNT) == "2 trajectories"
            await tab.js("[...document.querySelectorAll('.tools a')][0].click(); 1")
            await tab.shown("/time/9")
            await tab.go("#/time/3")
            assert "there is no time line of step 3" in await tab.js("document.querySelector('main').innerText")
            tab.said.clear()  # Chromium tells of the 404

    look(body)
