"""The panel above the curves in a browser: explain's sentences, a plan's verdict, arms."""

from aiohttp.test_utils import TestServer
from made_run import add_metrics, make_run
from shown_run import MARKS, hash_of, look, shown

from retool_mcore.errors import UserError
from retool_mcore.view import server
from retool_mcore.view.server import Study, application
from tests.support.browser import example_run
from tests.support.browser.browser import browser

pytestmark = MARKS
PANEL = "document.querySelector('.panel').innerText"
READY = "!!document.querySelector('.panel:not([hidden])')"
FINDING = {
    "cause": "reward constant", "severity": 1.0, "what": "all 8 have the reward <b>1</b>", "key": "recipe.reward.name",
    "how": "another", "looks": [(2, 3), (1, 0)], "explains": (), "stage": "rl",
}  # fmt: skip
CLAIM = {
    "claim": "helps", "criterion": "a - b interval above 5", "pairs": [40.0, 35.0], "mean": 37.5, "met": True,
    "over_seeds": [5.7, 69.3], "over_problems": None, "problems": None,
}  # fmt: skip
COSTS = {"arm": "a", "runs": 2, "accuracy": 0.85, "minutes": 3.0, "gpu_minutes": None, "tokens": 1234}


def test_the_overview_opens_on_what_explain_says_and_leads_to_the_trajectories(tmp_path, monkeypatch):
    run = add_metrics(make_run(tmp_path / "run", steps=3), steps=3)
    report = {"stages": ["rl: steps 1 to 3"], "findings": [FINDING, FINDING | {"looks": []}], "error": ""}
    monkeypatch.setattr(server, "explained", lambda run: report)

    async def body():
        async with shown(run) as tab:
            await tab.until(READY)
            first, second, read = filter(None, (await tab.js(PANEL)).split("\n"))
            assert first == (
                "rl, reward constant: all 8 have the reward <b>1</b>; see step 2, trajectory 3 and step 1, "
                "trajectory 0: change recipe.reward.name (another)."
            )
            assert "see" not in second and read == "rl: steps 1 to 3"
            assert await tab.js("document.querySelector('main').firstElementChild.className") == "panel"
            await tab.js("document.querySelector('.panel a').click()")
            await tab.shown("/t/2/3")
            assert await hash_of(tab) == "#/t/2/3"

    look(body)


def test_several_runs_have_their_first_sentence_each(tmp_path, monkeypatch):
    names = ("real", "new", "worse", "good", "better")
    runs = {name: add_metrics(make_run(tmp_path / name), steps=2) for name in names if name != "real"}
    runs["real"] = example_run.make_run(tmp_path / "real")
    whole, empty = server.explained, {"stages": [], "findings": [], "error": ""}
    others = {
        "new": empty | {"error": "too new"},
        "worse": empty | {"findings": [FINDING, FINDING | {"cause": "mismatch"}]},
    }
    monkeypatch.setattr(
        server, "explained", lambda run: whole(run) if run.name == "real" else others.get(run.name, empty)
    )

    async def body():
        async with shown(*(runs[name] for name in names)) as tab:
            await tab.until(READY)
            panel = await tab.js(PANEL)
            assert "real: sft, overfitted: the validation loss" in panel and "new: too new" in panel
            assert "worse: rl, reward constant" in panel and "mismatch" not in panel
            assert "good, better: nothing stands out." in panel
            await tab.js("document.querySelector('.panel details').open = true; 1")
            assert "rl, mismatch" in await tab.js(PANEL)
            assert "run=2" in await tab.js("document.querySelector('.panel a').href")

    look(body)


def test_arms_have_a_band_each_and_the_verdict_stands_above(tmp_path):
    runs = [add_metrics(make_run(tmp_path / name), steps=4) for name in ("a-s1", "a-s2", "b-s1", "b-s2")]
    told = {"plan": "study.yaml", "claims": [CLAIM, CLAIM | {"met": False, "mean": -1.0}], "costs": [COSTS]}

    verdict = ["helps", "not met", "+37.5", "+40.0, +35.0", "+5.7 to +69.3", "1,234"]

    async def body():
        for compare, expected in ((lambda: told, verdict), (refuse, ["has not ended"])):
            study = Study(["a", "a", "b", "b"], compare)
            async with TestServer(application(runs, study=study)) as app, browser() as tab:
                await tab.open(f"{app.make_url('/')}#/")
                await tab.until(READY)
                panel = await tab.js(PANEL)
                assert all(text in panel for text in expected)
                assert "a-s1 (arm a)" in await tab.js("document.querySelector('.legend').innerText")
                bands = "document.querySelector('figure').querySelectorAll('path[opacity=\"0.2\"]').length"
                assert await tab.js(bands) == 2
                assert tab.said == []

    def refuse():
        raise UserError("a run has not ended")

    look(body)
