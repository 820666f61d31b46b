"""The list and the failures in a browser: filters, order, keys, files."""

import json

import pytest
from made_run import add_evaluation, add_metrics, call, make_run, record
from shown_run import COUNT, MARKS, ROWS, TABLE, click_on_step, figure, hash_of, look, shown

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step

pytestmark = MARKS
# The next answer of the server comes late, behind the one after it.
LATE_ONCE = """(() => {
    const own = window.fetch;
    window.fetch = async (...asked) => {
        window.fetch = own;
        const answer = await own(...asked);
        await new Promise((go) => setTimeout(go, 500));
        return answer;
    };
})()"""


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
                "92",
                "2.00",
            ]
            assert await tab.js(COUNT) == "17 of 17 trajectories"
            await tab.js(
                "window.put = (id, value) => { const node = document.getElementById(id); node.value = value;"
                " node.dispatchEvent(new Event('change')); }; 1"
            )
            await tab.js("put('filter-text', '8+1'); 1")
            await tab.until(COUNT + ".startsWith('1 of 17')")
            assert await hash_of(tab) == "#/list?text=8+1"
            await tab.js(LATE_ONCE)
            await tab.js("put('filter-text', ''); put('filter-answer', 'wrong'); 1")
            await tab.until(COUNT + ".startsWith('8 of 17')")
            await tab.js(
                "[...document.querySelectorAll('.head button')].find(b => b.innerText.startsWith('step')).click(); 1"
            )
            await tab.until("location.hash.includes('sort=step')")
            await tab.until(f"({ROWS})[0].startsWith('⇄|1|')")
            assert await hash_of(tab) == "#/list?answer=wrong&sort=step"
            write_step(run / "rl" / "trajectories", 4, [record(4, 1)])
            await tab.until(COUNT + ".startsWith('9 of 18')")  # of itself

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
            assert await tab.js(COUNT) == "2 of 18 trajectories"

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


def test_an_address_that_leads_nowhere_says_so(tmp_path):
    async def body():
        async with shown(make_run(tmp_path / "run"), page="/t/9/9") as tab:
            assert "no trajectories of step 9: it has 1, 2" in await tab.js("document.querySelector('main').innerText")
            await tab.go("#/list?run=7")
            assert "there is no run 7" in await tab.js("document.querySelector('main').innerText")
            tab.said.clear()  # Chromium tells of the 404

    look(body)


@pytest.mark.parametrize("page", ["/", "/list", "/errors", "/changes?since=1", "/t/1/0", "/c/1/0/1/1"])
def test_a_narrow_window_shows_all_without_scrolling_sideways(tmp_path, page):
    run = add_evaluation(add_metrics(make_run(tmp_path / "run"), steps=10), "rl", step=10)

    async def body():
        async with shown(run, page=page) as tab:
            await tab.size(420, 800, dark=True)
            wide = await tab.js("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0

    look(body)
