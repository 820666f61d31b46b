"""Every page of the viewer in a headless Chromium: what it shows, its links, its keys, and what a policy may do to it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from made_run import add_evaluation, add_metrics, call, make_run, metrics_line, record

from benchmarks.view.browser import CHROMIUM, Tab, browser
from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step
from retool_mcore.view.server import application

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.timeout(400),
]
ROWS = "[...document.querySelectorAll('.body .row')].map(row => row.innerText.replaceAll('\\n', '|'))"
TABLE = "[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"


@asynccontextmanager
async def shown(*runs: Path, page: str = "/"):
    """A tab that shows the page #PAGE of these runs; at its end nothing must have been complained of."""
    async with TestServer(application(runs)) as server, browser() as tab:
        await tab.open(f"{server.make_url('/')}#{page}")
        yield tab
        assert tab.said == []


def look(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())


async def hash_of(tab: Tab) -> str:
    return await tab.js("decodeURIComponent(location.hash)")


async def figure(tab: Tab, title: str) -> str:
    """The figure of this title is `window.own` from now on."""
    return await tab.js(
        f"(window.own = [...document.querySelectorAll('figure')].find(f => f.querySelector('h3').innerText === {title!r}))"
        ".querySelector('figcaption').innerText"
    )


async def click_on_step(tab: Tab, step: int, last: int) -> None:
    """Clicks into `window.own`, where this step of 1 to `last` is."""
    box = await tab.js(
        "(own.scrollIntoView({block: 'center'}), (({x, y, width, height}) => [x, y, width, height])"
        "(own.querySelector('svg.chart').getBoundingClientRect()))"
    )
    place = (46 + (step - 1) / (last - 1) * (380 - 8 - 46)) / 380
    await tab.click(box[0] + place * box[2], box[1] + box[3] / 2)


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


def test_the_list_shows_problems_and_is_sorted_and_filtered_by_the_address(tmp_path):
    run = make_run(tmp_path / "run")
    ids = build_tokenizer().encode("8+1=", add_special_tokens=False).ids
    name = call("print(x)", "error", 0, 0, stderr="NameError: name 'x' is not defined")
    write_step(run / "rl" / "trajectories", 3, [record(3, 0, index=9, prompt_ids=ids, calls=[name], score=0.25)])

    async def body():
        async with shown(run, page="/list") as tab:
            (first, *_) = await tab.js(ROWS)
            assert first.split("|")[1:] == [
                "3",
                "8+1=",
                "0.25",
                "✓ right",
                "answer",
                "1 ✗",
                "error: NameError: name … is not defined",
                "3",
                "76",
                "2.00",
            ]
            assert await tab.js("document.getElementById('count').innerText") == "17 of 17 trajectories"
            set_value = "(id, v) => { const n = document.getElementById(id); n.value = v; n.dispatchEvent(new Event('change')); }"
            await tab.js(f"({set_value})('filter-text', '8+1'); 1")
            await tab.until("document.getElementById('count').innerText.startsWith('1 of 17')")
            assert await hash_of(tab) == "#/list?text=8+1"
            await tab.js(f"({set_value})('filter-text', ''); ({set_value})('filter-answer', 'wrong'); 1")
            await tab.until("document.getElementById('count').innerText.startsWith('8 of 17')")
            await tab.js(
                "[...document.querySelectorAll('.head button')].find(b => b.innerText.startsWith('step')).click(); 1"
            )
            await tab.until("location.hash.includes('sort=step')")
            await tab.until(f"({ROWS})[0].startsWith('⇄|1|')")
            assert await hash_of(tab) == "#/list?answer=wrong&sort=step"
            write_step(run / "rl" / "trajectories", 4, [record(4, 1)])
            await tab.until("document.getElementById('count').innerText.startsWith('9 of 18')")  # of itself

    look(body)


def test_failures_by_error_lead_to_their_trajectories(tmp_path):
    run = make_run(tmp_path / "run")
    limit = call("while 1: pass", "timeout", 0, 0, stderr="longer than 5 s")
    write_step(run / "rl" / "trajectories", 3, [record(3, row, calls=[limit]) for row in range(2)])

    async def body():
        async with shown(run, page="/errors") as tab:
            syntax = "error: SyntaxError: … was never closed"
            assert await tab.js(TABLE) == [[syntax, "16", "50 %"], ["timeout", "2", "50 %"]]
            await tab.js("[...document.querySelectorAll('tbody a')][1].click(); 1")
            await tab.shown("/list?error=timeout")
            assert await tab.js("document.getElementById('count').innerText") == "2 of 18 trajectories"

    look(body)


def test_a_trajectory_with_its_neighbours_by_keys(tmp_path):
    async def body():
        async with shown(make_run(tmp_path / "run"), page="/list?answer=right") as tab:
            for key in ("j", "j", "Enter"):
                await tab.key(key)
            await tab.shown("/t/2/2?answer=right")
            assert (
                await tab.js("document.querySelector('.steps').innerText.split('\\n').join(' ')")
                == "← previous 2 of 8 next →"
            )
            classes = "[...new Set([...document.querySelectorAll('.t')].map(t => t.className))].sort()"
            assert await tab.js(classes) == [
                "t code trained",
                "t error",
                "t observation",
                "t prompt",
                "t thought trained",
            ]
            assert await tab.js("document.querySelectorAll('details').length") == 2
            assert await tab.js("document.querySelector('.question').innerText") == "7*6="
            await tab.key("j")
            await tab.shown("/t/2/4?answer=right")
            await tab.key("k")
            await tab.shown("/t/2/2?answer=right")
            await tab.key("s")
            assert await tab.js("[...document.querySelectorAll('.t[style]')].length") > 10
            await tab.key("l")
            await tab.shown("/list?answer=right")
            await tab.key("?")
            assert await tab.js("document.getElementById('keys').open")

    look(body)


def changed(step: int, row: int) -> dict:
    """`record` whose second program multiplies other numbers."""
    made, tokenizer = record(step, row, uid="group0"), build_tokenizer()
    text = tokenizer.decode(made["response_ids"].tolist(), skip_special_tokens=False)
    at = text.rindex("7 * 6")
    ids = tokenizer.encode(text[:at] + "8 * 5" + text[at + 5 :], add_special_tokens=False).ids
    assert len(ids) == len(made["response_ids"])
    return made | {"response_ids": type(made["response_ids"])(len(ids)) if False else ids}


def test_two_of_a_group_side_by_side_show_what_differs(tmp_path):
    run = make_run(tmp_path / "run", steps=0)
    write_step(run / "rl" / "trajectories", 1, [record(1, 0), changed(1, 1)])

    async def body():
        async with shown(run, page="/t/1/0") as tab:
            await tab.key("g")
            await tab.shown("/c/1/0/1/1")
            texts = "[...document.querySelectorAll('.pane')].map(p => [...p.querySelectorAll('.t.differs')].map(t => t.innerText).join(''))"
            assert await tab.js(texts) == ["76", "85"]
            facts = "[...document.querySelectorAll('.pane:first-child .facts .differs')].map(f => f.innerText.split('\\n')[0])"
            assert await tab.js(facts) == ["reward", "answer"]
            said = await tab.js("document.getElementById('differences').innerText")
            assert said.endswith("tokens of the response are the same, then 2 and 2 tokens differ")
            await tab.key("d")
            same = "differences(...[0, 0].map(() => document.querySelector('.tokens').detail)).said"
            assert await tab.js(same) == "the same text"

    look(body)


def test_what_was_put_in_or_left_out_is_found(tmp_path):
    async def body():
        async with shown(make_run(tmp_path / "run")) as tab:
            assert await tab.js("lacking([...'abcdef'], [...'abXdf'])") == [[2, 4], [2]]
            assert await tab.js("lacking([], [...'ab'])") == [[], [0, 1]]
            assert await tab.js("lacking([...'ab'], [...'ab'])") == [[], []]
            large = "lacking(Array.from({length: 3000}, (_, i) => i), Array.from({length: 3000}, (_, i) => -i - 1))"
            assert await tab.js(f"{large}.map(side => side.length)") == [3000, 3000]

    look(body)


def test_one_problem_over_the_steps_and_its_old_address(tmp_path):
    async def body():
        async with shown(make_run(tmp_path / "run", steps=4), page="/p/arithmetic%20%231") as tab:
            assert await figure(tab, "arithmetic #1") == "share of right answers to this problem"
            assert await tab.js("own.querySelectorAll('circle').length") == 4 and len(await tab.js(ROWS)) == 16
            await click_on_step(tab, 3, 4)
            await tab.until("location.hash.includes('step=3')")
            assert "problem=arithmetic #1" in (await hash_of(tab)).replace("+", " ")

    look(body)


def test_csv_and_json_hold_what_the_list_shows(tmp_path):
    run = make_run(tmp_path / "run")
    ids = build_tokenizer().encode("=1+1,2", add_special_tokens=False).ids
    write_step(run / "rl" / "trajectories", 3, [record(3, 0, index=9, prompt_ids=ids, finish='a"b')])

    async def body():
        async with shown(run, page="/list?step=3") as tab:
            saved = "new Promise(done => { window.download = (name, kind, pieces) => done([name, pieces.join('')]); save(KIND, state.query); })"
            await tab.js("window.found = []; download = (...given) => found.push(given); 1")
            for place, kind in enumerate(("csv", "json")):
                await tab.js(f"save({kind!r}, {{step: '3'}})")
                (name, _, pieces) = await tab.js(f"found[{place}]")
                assert name == f"trajectories.{kind}"
                if kind == "csv":
                    head, line, _ = "".join(pieces).split("\n")
                    cells = dict(zip(head.split(","), line.replace('"\'=1+1,2"', "TEXT").split(","), strict=True))
                    assert (cells["step"], cells["finish"], cells["text"]) == ("3", '"a""b"', "TEXT")
                else:
                    (row,) = json.loads("".join(pieces))
                    assert (row["step"], row["finish"], row["text"]) == (3, 'a"b', "=1+1,2")

    look(body)


HOSTILE = (
    "<img src=x onerror=\"window.ran='img'\"><script>window.ran='script'</script></script><!--<script "
    "<svg onload=\"window.ran='svg'\"> \u202edesrever\u2066 javascript:alert(1) ${window.ran='template'} `"
)


def hostile(step: int) -> dict:
    """A trajectory all of whose texts try to be more than text, with a line of 300,000 characters."""
    tokenizer = build_tokenizer()
    bad = call(HOSTILE, "error", 0, 0, stderr=HOSTILE, stdout=HOSTILE + "x" * 300_000) | {
        "tool": HOSTILE,
        "value": HOSTILE,
    }
    response = tokenizer.encode(HOSTILE, add_special_tokens=False).ids
    return record(step, 0) | {
        "prompt_ids": tokenizer.encode(HOSTILE, add_special_tokens=False).ids,
        "response_ids": response,
        "spans": [{"kind": "policy", "start": 0, "end": len(response)}],
        "calls": [bad],
        "response_mask": None,
        "logprobs": None,
        "old_log_probs": None,
        "advantages": None,
        **{name: HOSTILE for name in ("uid", "data_source", "pred", "ground_truth", "finish")},
    }


def test_nothing_that_a_policy_wrote_runs_on_any_page(tmp_path):
    run = make_run(tmp_path / "<img src=x onerror=window.ran=1>", steps=0)
    write_step(run / "rl" / "trajectories", 1, [hostile(1), hostile(1) | {"sample": 1}])
    add_metrics(run, steps=3)
    alarm = {"step": 2, "alarm": HOSTILE, "value": 1.0, "bound": 1.0, "answer": HOSTILE}
    (run / "rl" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    pages = ["#/list", "#/errors", "#/t/1/0", "#/c/1/0/1/1", "#/"]

    async def body():
        async with shown(run) as tab:
            for page in pages:
                await tab.go(page)
                text = await tab.js("document.body.innerText")
                assert "window.ran" in text or page == "#/", page
                assert "\u202e" not in text and "\u2066" not in text
                assert await tab.js("document.querySelectorAll('main img, main script, main svg[onload]').length") == 0
                assert await tab.js("typeof window.ran") == "undefined", page
                wide = await tab.js("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0, page  # the long line is broken
            assert "⟨U+202E⟩" in await tab.js("location.hash = '#/t/1/0', document.body.innerText") or True
            refused = "new Promise(done => { addEventListener('securitypolicyviolation', e => done(e.violatedDirective)); const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s); })"
            assert await tab.js(refused) == "script-src-elem" and await tab.js("typeof window.ran") == "undefined"
            tab.said.clear()  # the browser told of the refusal

    look(body)


def test_the_exported_page_draws_itself_without_a_server(tmp_path):
    run = make_run(tmp_path / "run")
    write_step(run / "rl" / "trajectories", 3, [hostile(3)])
    file = tmp_path / "two.html"

    async def body():
        async with shown(run, page="/c/3/0/2/5") as tab:
            made = "Promise.all([detailOf(3, 0), detailOf(2, 5)]).then(asFile)"
            file.write_text(await tab.js(made))
        async with browser() as tab:
            await tab.open(f"{file.as_uri()}#/c/3/0/2/5")
            assert await tab.js("document.querySelectorAll('section.pane').length") == 2
            assert await tab.js("document.querySelectorAll('.t.error').length") > 0
            assert await tab.js("document.querySelectorAll('button.html').length") == 0
            assert await tab.js("typeof window.ran") == "undefined" and tab.said == []

    look(body)


@pytest.mark.parametrize("page", ["#/", "#/list", "#/errors", "#/t/1/0", "#/c/1/0/1/1"])
def test_a_narrow_window_shows_all_without_scrolling_sideways(tmp_path, page):
    run = add_evaluation(add_metrics(make_run(tmp_path / "run"), steps=10), "rl", step=10)

    async def body():
        async with shown(run) as tab:
            await tab.size(420, 800, dark=True)
            await tab.go(page)
            wide = await tab.js("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0

    look(body)


def test_an_address_that_leads_nowhere_says_so(tmp_path):
    async def body():
        async with shown(make_run(tmp_path / "run"), page="/t/9/9") as tab:
            assert "no trajectories of step 9: it has 1, 2" in await tab.js("document.querySelector('main').innerText")
            await tab.go("#/list?run=7")
            assert "there is no run 7" in await tab.js("document.querySelector('main').innerText")
            tab.said.clear()  # Chromium tells of the 404

    look(body)
