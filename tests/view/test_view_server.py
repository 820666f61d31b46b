import asyncio
import json
import shutil

import pytest
from aiohttp.test_utils import TestClient, TestServer
from made_run import add_evaluation, add_metrics, make_run, metrics_line, record

from retool_mcore.data.tiny_model import build_tokenizer
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import write_step
from retool_mcore.view import server
from retool_mcore.view.columns import Columns
from retool_mcore.view.query import select
from retool_mcore.view.server import application
from retool_mcore.view.source import Source


def ask(runs, *paths: str, default: str = "rl") -> list[tuple[int, object]]:
    async def answers():
        app = application(runs if isinstance(runs, list) else [runs], default=default)
        async with TestClient(TestServer(app)) as client:
            found = []
            for path in paths:
                reply = await client.get(path)
                is_json = reply.content_type == "application/json"
                found.append((reply.status, await (reply.json() if is_json else reply.text())))
            return found

    return asyncio.run(answers())


def places(source: Source, **query: str) -> list[tuple[int, int]]:
    """(step, row) of what the list shows."""
    columns, chosen = source.data()[0], select(source.data(), query)
    return list(zip(columns["step"][chosen].tolist(), columns["row"][chosen].tolist(), strict=True))


def test_the_list_comes_in_pages_the_newest_step_first(tmp_path):
    run = make_run(tmp_path / "run")
    ((_, one), (_, two), (_, some)) = ask(
        run, "/api/list?count=3", "/api/list?first=7&count=2", "/api/list?step=1&sort=-row&count=1"
    )
    assert (one["total"], one["of"], one["unread"], one["sources"]) == (16, 16, 0, ["arithmetic"])
    assert [(row["step"], row["row"]) for row in one["rows"]] == [(2, 0), (2, 1), (2, 2)]
    assert [(row["step"], row["row"]) for row in two["rows"]] == [(2, 7), (1, 0)] and two["first"] == 7
    assert [(row["step"], row["row"]) for row in some["rows"]] == [(1, 7)] and some["total"] == 8
    assert some["statuses"] == ["answer", "error", "success"]
    assert some["errors"] == [{"error": "error: SyntaxError: … was never closed", "trajectories": 8, "right": 4}]


def test_the_neighbours_of_a_trajectory_are_those_of_the_list_that_led_to_it(tmp_path):
    run = make_run(tmp_path / "run")
    paths = [f"/api/list?answer=right&count=3&near={near}" for near in ("1/2", "2/0", "1/1")]
    ((_, middle), (_, first), (_, none)) = ask(run, *paths)
    assert [(row["step"], row["row"]) for row in middle["rows"]] == [(1, 0), (1, 2), (1, 4)] and middle["first"] == 4
    assert [(row["step"], row["row"]) for row in first["rows"]][:2] == [(2, 0), (2, 2)] and first["first"] == 0
    assert none["rows"] == []


def test_a_trajectory_and_places_that_are_not_there(tmp_path):
    run = make_run(tmp_path / "run")
    paths = ["trajectory/2/7", "trajectory/3/0", "trajectory/2/8", "trajectory/x/1", "list?sort=x", "list?step=x"]
    answers = ask(run, *(f"/api/{path}" for path in paths), "/api/list?run=1", "/api/list?part=eval/../../run")
    assert [status for status, _ in answers] == [200, 404, 404, 404, 404, 404, 404, 404]
    assert answers[0][1]["calls"][0]["status"] == "error" and answers[0][1]["entry"]["row"] == 7
    assert [entry["row"] for entry in answers[0][1]["group"]] == [4, 5, 6, 7]
    assert "no trajectories of step 3: it has 1, 2" in answers[1][1]
    assert "there is no run 1" in answers[6][1] and "it has rl" in answers[7][1]


def test_a_run_without_anything_to_show_or_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match="whose SFT or RL has begun"):
        Source(tmp_path)
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="no trajectories of eval/rl: it has rl"):
        Source(run, "eval/rl")
    shutil.rmtree(run / "model")
    with pytest.raises(UserError, match="tokenizer.json"):
        Source(run)


def test_a_run_that_only_begins_has_an_empty_list_until_a_step_ends(tmp_path):
    run = make_run(tmp_path / "run", steps=0)
    add_metrics(run, steps=0, sft_steps=3)
    source = Source(run)
    source.refresh()
    assert places(source) == []
    write_step(run / "rl" / "trajectories", 1, [record(1, 0)])
    source.refresh()
    assert places(source) == [(1, 0)]


def test_an_evaluation_is_shown_like_a_step(tmp_path):
    run = add_evaluation(make_run(tmp_path / "run"), "rl", step=30)
    ((_, names), (_, found), (_, one), (status, said)) = ask(
        run,
        "/api/runs",
        "/api/list?part=eval/rl",
        "/api/trajectory/30/2?part=eval/rl",
        "/api/trajectory/30/3?part=eval/rl",
    )
    assert names[0]["parts"] == ["rl", "eval/rl"] and names[0]["name"] == "run"
    assert [(row["step"], row["row"]) for row in found["rows"]] == [(30, 0), (30, 1), (30, 2)]
    assert len({row["uid"] for row in found["rows"]}) == 1 and one["calls"][0]["status"] == "error"
    assert status == 404 and "no row 3" in said
    assert ask(run, "/api/list", default="eval/rl")[0][1]["of"] == 3


def test_a_step_file_is_read_once_and_again_when_it_is_written_again(tmp_path, monkeypatch):
    run, read = make_run(tmp_path / "run"), []
    of = Columns.of
    monkeypatch.setattr(Columns, "of", lambda self, table: read.append(len(table)) or of(self, table))
    source = Source(run)
    for _ in range(2):
        source.refresh()
    assert len(places(source)) == 16 and read == [8, 8]
    version = source.version
    write_step(run / "rl" / "trajectories", 2, [record(2, 0)])
    write_step(run / "rl" / "trajectories", 3, [record(3, 0), record(3, 1)])
    (run / "rl" / "trajectories" / "step_000001.parquet").unlink()
    source.refresh()
    assert places(source) == [(3, 0), (3, 1), (2, 0)] and sorted(read[2:]) == [1, 2] and source.version > version


def test_many_steps_are_read_little_by_little_and_the_newest_is_there_at_once(tmp_path):
    source = Source(make_run(tmp_path / "run", steps=5, rows=1))
    counts = []
    for _ in range(5):
        source.refresh(budget_s=0)
        counts.append((source.unread, len(places(source))))
    assert counts == [(4, 1), (3, 2), (2, 3), (1, 4), (0, 5)]
    source = Source(tmp_path / "run")
    source.refresh(budget_s=0)
    assert places(source) == [(5, 0)]
    source.refresh(budget_s=0, wanted="2")
    assert places(source) == [(5, 0), (2, 0)]
    assert source.shown(1, 0)["entry"]["step"] == 1 and places(source)[2:] == [(1, 0)] and source.unread == 3


def test_several_runs_are_told_apart_by_their_number(tmp_path):
    runs = [make_run(tmp_path / name, steps=steps) for name, steps in (("one", 1), ("two", 2))]
    ((_, names), (_, one), (_, two)) = ask(runs, "/api/runs", "/api/list", "/api/list?run=1")
    assert [run["name"] for run in names] == ["one", "two"] and (one["of"], two["of"]) == (8, 16)


def test_what_the_audit_wrote_is_shown_apart(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(UserError, match="no trajectories of audit: it has rl"):
        Source(run, "audit")
    write_step(run / "rl" / "audit", 2, [record(2, 5)])
    source = Source(run, "audit")
    source.refresh()
    assert places(source) == [(2, 0)]


def test_problems_are_found_by_their_text(tmp_path):
    run = make_run(tmp_path / "run")
    ids = build_tokenizer().encode("8+1=", add_special_tokens=False).ids
    write_step(run / "rl" / "trajectories", 3, [record(3, 0, index=9, prompt_ids=ids)])
    ((_, found), (_, none)) = ask(run, "/api/list?text=8%2B1", "/api/list?text=xyz")
    assert [row["problem"] for row in found["rows"]] == ["arithmetic #9"] and none["total"] == 0


def test_a_broken_evaluation_is_one_sentence(tmp_path):
    run = add_evaluation(make_run(tmp_path / "run"), "rl", step=30)
    (run / "eval" / "rl" / "trajectories.jsonl").write_text(json.dumps({"index": 1}) + "\n")
    with pytest.raises(UserError, match="does not hold trajectories of `retool eval`"):
        Source(run, "eval/rl")


def test_a_report_is_read_again_only_when_a_step_or_an_attempt_has_ended(tmp_path, monkeypatch):
    run, read = add_metrics(make_run(tmp_path / "run"), steps=2), []
    monkeypatch.setattr(server, "explained", lambda run: read.append(run) or {"findings": len(read)})

    async def answers():
        async with TestClient(TestServer(application([run]))) as client:
            first = await asyncio.gather(*(client.get("/api/explain") for _ in range(3)))
            with (run / "rl" / "metrics" / "attempt_002.jsonl").open("a") as file:
                file.write(metrics_line(3, critic__score__mean=0.5))
            return [await one.json() for one in [*first, await client.get("/api/explain")]]

    assert asyncio.run(answers()) == [{"findings": 1}] * 3 + [{"findings": 2}]


def test_runs_without_a_plan_have_no_arms_and_no_verdict(tmp_path):
    run = make_run(tmp_path / "run")
    (_, runs), (_, study) = ask(run, "/api/runs", "/api/study")
    assert runs[0]["arm"] is None and study == {}
