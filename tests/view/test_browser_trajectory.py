"""One trajectory in a browser, and two of a group side by side."""

from made_run import make_run, record
from shown_run import MARKS, look, shown

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step

pytestmark = MARKS


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
    return made | {"response_ids": ids}


def test_two_of_a_group_side_by_side_show_what_differs(tmp_path):
    run = make_run(tmp_path / "run", steps=0)
    write_step(run / "rl" / "trajectories", 1, [record(1, 0), changed(1, 1)])

    async def body():
        async with shown(run, page="/t/1/0") as tab:
            await tab.key("g")
            await tab.shown("/c/1/0/1/1")
            marked = "[...pane.querySelectorAll('.t.differs')].map(token => token.innerText).join('')"
            assert await tab.js(f"[...document.querySelectorAll('.pane')].map(pane => {marked})") == ["76", "85"]
            differing = "document.querySelectorAll('.pane:first-child .facts .differs')"
            facts = f"[...{differing}].map(fact => fact.innerText.split('\\n')[0])"
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
