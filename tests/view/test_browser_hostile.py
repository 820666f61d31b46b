"""What a policy wrote runs on no page, nor in an exported one."""

import json

from made_run import add_metrics, call, make_run, record
from shown_run import MARKS, look, shown

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.metrics.records import write_step
from tests.support.browser.browser import browser

pytestmark = MARKS


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
    write_step(run / "rl" / "trajectories", 2, [hostile(2)])
    add_metrics(run, steps=3)
    alarm = {"step": 2, "alarm": HOSTILE, "value": 1.0, "bound": 1.0, "answer": HOSTILE}
    (run / "rl" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    pages = ["#/list", "#/errors", "#/changes?since=1", "#/t/1/0", "#/c/1/0/1/1", "#/"]

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
            await tab.go("#/t/1/0")
            assert "⟨U+202E⟩desrever⟨U+2066⟩" in await tab.js("document.querySelector('main').innerText")
            refused = (
                "new Promise(done => { addEventListener('securitypolicyviolation', it => done(it.violatedDirective));"
                " const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
                " document.body.append(script); })"
            )
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
