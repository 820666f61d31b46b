import asyncio
import json
import re
import shutil
import subprocess

import pytest
from aiohttp.test_utils import TestClient, TestServer
from made_run import make_run, record

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import index_step, write_step
from retool_mcore.view.server import application, export
from retool_mcore.view.source import Source


def ask(run, *paths: str) -> list[tuple[int, object]]:
    async def answers():
        async with TestClient(TestServer(application(Source(run)))) as client:
            found = []
            for path in paths:
                reply = await client.get(path)
                is_json = reply.content_type == "application/json"
                found.append((reply.status, await (reply.json() if is_json else reply.text())))
            return found

    return asyncio.run(answers())


def test_index_has_one_value_a_trajectory_in_every_column(tmp_path):
    ((status, columns),) = ask(make_run(tmp_path / "run"), "/api/index")
    assert status == 200 and columns.pop("run") == "run"
    assert {len(values) for values in columns.values()} == {16}
    assert columns["row"] == [*range(8)] * 2 and columns["seconds"] == [2.0] * 16
    assert columns["index"][:5] == [0, 0, 0, 0, 1]


def test_a_trajectory_and_places_that_are_not_there(tmp_path):
    run = make_run(tmp_path / "run")
    answers = ask(run, "/api/trajectory/2/7", "/api/trajectory/3/0", "/api/trajectory/2/8", "/api/trajectory/x/1")
    assert [status for status, _ in answers] == [200, 404, 404, 404]
    assert answers[0][1]["calls"][0]["status"] == "error"
    assert "no trajectories of step 3: it has 1, 2" in answers[1][1]


def test_what_a_policy_wrote_cannot_end_the_script_of_the_exported_page(tmp_path):
    run = make_run(tmp_path / "run")
    write_step(run / "rl" / "trajectories", 3, [record(3, 0, pred="</script><script>alert(1)</script>")])
    html = export(Source(run), [(3, 0)])
    assert "</script><script>alert" not in html
    assert html.count("</script>") == 3


def test_a_run_without_trajectories_or_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match="no trajectories"):
        Source(tmp_path)
    run = make_run(tmp_path / "run")
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match="tokenizer.json"):
        Source(run)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_exported_page_draws_itself_in_a_browser(tmp_path):
    file = tmp_path / "two.html"
    file.write_text(export(Source(make_run(tmp_path / "run")), [(1, 0), (2, 5)]))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=250)
    assert done.stdout.count('<section class="pane">') == 2, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("call 2, turn 2") == 2
    assert 'class="t code trained"' in done.stdout and 'class="t error"' in done.stdout
    assert 'class="t error trained"' not in done.stdout
    assert "SyntaxError" in done.stdout


def test_an_evaluation_is_shown_like_a_step(tmp_path):
    run = make_run(tmp_path / "run")
    folder = run / "eval" / "rl"
    folder.mkdir(parents=True)
    lines = []
    for row in range(3):
        made = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in record(0, row).items()}
        lines.append(json.dumps({k: v for k, v in made.items() if k not in ("step", "uid", "old_log_probs")}))
    (folder / "trajectories.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "metrics.json").write_text('{"step": 30}')
    source = Source(run, "eval/rl")
    shown = source.index()
    assert shown["step"] == [30] * 3 and shown["row"] == [0, 1, 2] and shown["run"] == "run/eval/rl"
    assert len(set(shown["uid"])) == 1 and source.detail(30, 2)["calls"][0]["status"] == "error"
    with pytest.raises(UserError, match="no row 3"):
        source.detail(30, 3)
    with pytest.raises(UserError, match="the labels are rl"):
        Source(run, "eval/sft")


def test_the_list_is_read_once_and_what_is_new_when_a_step_is_written(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    read = []
    monkeypatch.setattr("retool_mcore.view.source.index_step", lambda path: read.append(path.name) or index_step(path))
    source = Source(run)
    assert source.index() == source.index() and read == ["step_000001.parquet", "step_000002.parquet"]
    state = source.refresh()
    assert source.refresh() == state
    write_step(run / "rl" / "trajectories", 2, [record(2, 0)])
    write_step(run / "rl" / "trajectories", 3, [record(3, 0)])
    (run / "rl" / "trajectories" / "step_000001.parquet").unlink()
    assert source.index()["step"] == [2, 3] and read[2:] == ["step_000002.parquet", "step_000003.parquet"]
    assert source.refresh() != state


def test_the_page_holds_the_list_and_a_new_one_after_a_step(tmp_path):
    run = make_run(tmp_path / "run")

    async def answers():
        async with TestClient(TestServer(application(Source(run)))) as client:
            pages = [await (await client.get("/")).text()]
            write_step(run / "rl" / "trajectories", 3, [record(3, 0, pred="</script>", uid="</script>")])
            pages.append(await (await client.get("/")).text())
            plain = await client.get("/api/index", headers={"Accept-Encoding": "identity"})
            return pages, "Content-Encoding" in plain.headers, json.loads(await plain.read())

    pages, encoded, columns = asyncio.run(answers())
    held = [re.search(r'id="index">(.*?)</script>', page, re.DOTALL)[1] for page in pages]
    first, second = (json.loads(text) for text in held)
    assert len(first["step"]) == 16 and len(second["step"]) == 17
    for name, values in columns.items():
        sent = second[name]
        assert values == ([sent["words"][code] for code in sent["codes"]] if isinstance(sent, dict) else sent), name
    assert not encoded and len(columns["step"]) == 17


def test_what_the_audit_wrote_is_shown_apart(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="mask audit"):
        Source(run, "audit")
    write_step(run / "rl" / "audit", 2, [record(2, 5)])
    assert Source(run, "audit").index()["step"] == [2]


def test_problems_are_found_by_their_text(tmp_path):
    run = make_run(tmp_path / "run")
    ids = build_tokenizer().encode("8+1=", add_special_tokens=False).ids
    write_step(run / "rl" / "trajectories", 3, [record(3, 0, index=9, prompt_ids=ids)])
    ((_, found), (_, none)) = ask(run, "/api/problems?text=8%2B1", "/api/problems?text=xyz")
    assert (found, none) == (["arithmetic #9"], [])
