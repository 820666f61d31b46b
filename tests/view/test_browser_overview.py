"""The overview in a browser: curves, marks, several runs."""

from made_run import add_evaluation, add_metrics, make_run, metrics_line
from shown_run import MARKS, ROWS, TABLE, click_on_step, figure, look, shown

from tests.support.browser import example_run

pytestmark = MARKS


def test_the_overview_has_the_curves_marks_and_evaluations_and_follows_the_run(tmp_path):
    run = add_evaluation(add_metrics(make_run(tmp_path / "run"), steps=10), "rl", step=10)

    async def body():
        async with shown(run) as tab:
            titles = await tab.js("[...document.querySelectorAll('h3')].map(h => h.innerText)")
            assert titles[:2] == ["reward", "accuracy"] and titles[11] == "time by phase" and len(titles) == 14
            assert await tab.js("document.querySelectorAll('h2')[0].innerText") == "RL step 10 has ended"
            assert await figure(tab, "accuracy") == "share of right answers; on held-back problems ± its standard error"
            signs = "[...own.querySelectorAll('path.alarm, line.restart, path.back')].map(s => s.textContent)"
            assert await tab.js(signs) == [
                "alarm gradient_norm: 11.5, bound 10; back",
                "attempt 2 goes on at step 3",
                "went back to the checkpoint of step 1",
            ]
            await tab.js("own.querySelector('svg.chart').focus(); 1")
            for key in ["ArrowRight"] * 5:
                await tab.key(key)
            said = await tab.js("own.querySelector('figcaption').innerText")
            assert said == "step 5: training 0.3333, held back 0.2833 ± 0.04"
            await figure(tab, "time by phase")
            assert await tab.js("own.querySelectorAll('path.area').length") == 8
            assert (await tab.js(TABLE))[0] == ["rl", "arithmetic", "10", "3", "66.7 %", "100.0 %", "–", "–"]
            with (run / "rl" / "metrics" / "attempt_002.jsonl").open("a") as file:
                file.write(metrics_line(11, critic__score__mean=0.9))
            await tab.until("document.querySelectorAll('h2')[0].innerText === 'RL step 11 has ended'")

    look(body)


def test_a_click_on_a_curve_opens_its_step_and_so_does_enter(tmp_path):
    run = add_metrics(make_run(tmp_path / "run", steps=3), steps=3)

    async def body():
        async with shown(run) as tab:
            await figure(tab, "reward")
            await click_on_step(tab, 2, 3)
            await tab.shown("/list?step=2")
            assert len(await tab.js(ROWS)) == 8
            await tab.key("o")
            await tab.shown("/")
            await figure(tab, "entropy")
            await tab.js("own.querySelector('svg.chart').focus(); 1")
            await tab.key("ArrowLeft")
            await tab.key("Enter")
            await tab.shown("/list?step=3")

    look(body)


def test_runs_lie_over_each_other_and_seeds_of_one_configuration_in_a_band(tmp_path):
    runs = [
        add_metrics(make_run(tmp_path / name, 1), 8, lift=lift, seed=n)
        for n, (name, lift) in enumerate((("a1", 0.0), ("a2", 0.1), ("other", 0.05)))
    ]
    with (runs[2] / "rl" / "config.yaml").open("a") as file:
        file.write("recipe: other\n")

    async def body():
        async with shown(*runs) as tab:
            await figure(tab, "reward")
            strokes = await tab.js("[...own.querySelectorAll('path.curve')].map(p => p.getAttribute('stroke'))")
            assert len(strokes) == 4 and len(set(strokes)) == 2  # two seeds and their mean, the other run
            assert await tab.js("own.querySelectorAll('path[fill-opacity], path[opacity=\"0.2\"]').length") == 1
            assert "a1 (a seed of 2)" in await tab.js("document.querySelector('.legend').innerText")
            await click_on_step(tab, 8, 8)
            await tab.until("location.hash.startsWith('#/list')")
            await tab.go("#/list?run=2")
            assert "other" in await tab.js("document.getElementById('name').innerText")

    look(body)


def test_why_the_reward_fell_is_found_in_four_clicks(tmp_path):
    """The clicks of docs/viewing.md."""
    run = example_run.make_run(tmp_path / "run")

    async def body():
        async with shown(run) as tab:
            await figure(tab, "pass rate")
            await click_on_step(tab, example_run.BAD_STEP, example_run.STEPS)
            await tab.shown("/list?step=17")
            await tab.js("[...document.querySelectorAll('#pages a')].find(a => a.innerText === 'failures').click(); 1")
            await tab.shown("/errors?step=17")
            (first, *_) = await tab.js(TABLE)
            assert first[0] == "timeout" and int(first[1]) > 16
            await tab.js("document.querySelector('tbody a').click(); 1")
            await tab.shown("/list?step=17&error=timeout")
            await tab.js("document.querySelector('.body .row').click(); 1")
            await tab.until("location.hash.startsWith('#/t/17/')")
            await tab.until("document.querySelectorAll('.calls').length > 0")
            assert "while True" in await tab.js("document.querySelector('.calls').innerText")

    look(body)
