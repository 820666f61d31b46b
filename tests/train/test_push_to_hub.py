"""`retool export push=org/name` against a hub of this test's own: what is uploaded, the card, and each refusal."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.runner.launch import preflight
from retool_mcore.train.push import check_push, push, write_card

TOKEN = "hf_of_this_test"


class Hub(BaseHTTPRequestHandler):
    """The hub's calls of an upload (huggingface_hub 1.x): who, create, preupload, LFS batch, the file, commit."""

    seen: dict[str, bytes] = {}
    asked: list[str] = []
    full = False

    def do_GET(self):  # noqa: N802
        self.answer({"name": "me", "type": "user", "orgs": [{"name": "lab"}]})

    def do_PUT(self):  # noqa: N802
        self.seen[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({})

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"{self.path} {self.headers['Authorization']}")
        url = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            self.asked.append(body.decode())
            self.answer({"url": f"{url}/lab/mine"})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = ("lfs" if file["path"].endswith(".safetensors") else "regular" for file in files)
            told = zip(files, modes, strict=True)
            self.answer({"files": [{"path": f["path"], "uploadMode": m, "shouldIgnore": False} for f, m in told]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            upload = {"upload": {"href": f"{url}/blob", "header": {}}}
            self.answer({"transfer": "basic", "objects": [one | {"actions": upload} for one in objects]})
        elif self.path.endswith("/commit/main") and not self.full:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.seen[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "lfsFile":
                    self.seen[line["value"]["path"]] = self.seen["/blob"]
            self.answer({"commitUrl": f"{url}/lab/mine/commit/1", "commitOid": "1", "commitMessage": "x"})
        else:
            self.answer({"error": "the quota is used up"}, 403 if self.full else 200)

    def answer(self, what, status=200):
        text = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(Hub, "seen", {})
    monkeypatch.setattr(Hub, "asked", [])
    yield Hub
    server.shutdown()
    server.server_close()


@pytest.fixture
def exported(tmp_path):
    """A run's folder whose export is done, as far as a card reads it."""
    run = tmp_path / "runs/mine"
    for folder in ("export/policy", "rl", "eval/rl", "eval/sft"):
        (run / folder).mkdir(parents=True)
    OmegaConf.save(compose("rl", ["name=mine", "recipe=dapo"]), run / "rl/config.yaml")
    accuracy = {"accuracy": {"arithmetic": {"mean@2": 0.25}}, "step": 7}
    (run / "eval/rl/metrics.json").write_text(json.dumps(accuracy))
    (run / "eval/sft/metrics.json").write_text(json.dumps(accuracy | {"accuracy": {"arithmetic": {"mean@2": 0.125}}}))
    report = {"policy": "rl", "step": 7, "log_prob_difference": 1e-6, "limit": 1e-3}
    (run / "export/policy/export.json").write_text(json.dumps(report))
    (run / "export/policy/model.safetensors").write_bytes(b"weights" * 999)
    return run / "export/policy", compose("export", ["name=mine", f"runs_dir={tmp_path}/runs", "push=lab/mine"])


def test_the_folder_and_its_card_arrive(hub, exported):
    folder, config = exported
    check_push(config.push)
    write_card(folder, config)
    assert push(folder, config.push, config.push_private).endswith("/lab/mine")
    assert {"README.md", "export.json", "model.safetensors"} <= set(hub.seen)
    assert hub.seen["model.safetensors"] == b"weights" * 999
    card = hub.seen["README.md"].decode()
    assert (
        "| recipe | dapo |" in card and "| arithmetic, mean@2 | 0.250 |" in card and "Step 7 of the stage `rl`" in card
    )
    assert "0.125" not in card and str(folder.parents[2]) not in card
    assert '"visibility":"private"' in hub.asked[1].replace(" ", "")
    assert all(TOKEN in asked for asked in hub.asked if asked.startswith("/api"))
    assert not [path for path in Path(config.runs_dir).rglob("*") if path.is_file() and TOKEN in path.read_text()]


def test_a_hub_that_refuses_leaves_the_export(hub, exported, monkeypatch):
    folder, config = exported
    monkeypatch.setattr(Hub, "full", True)
    with pytest.raises(UserError, match=r"exported to .* and was not pushed to lab/mine \(.*403.*\): run it again"):
        push(folder, config.push, True)
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("repository", "change", "words"),
    [
        ("mine", None, "push=mine: expected org/name"),
        (7, None, "push=7: expected org/name"),
        ("other/mine", None, "push=other/mine: the token of me may write to me, lab alone"),
        ("lab/mine", "token", "needs a token of the hub: run `hf auth login`, or set HF_TOKEN"),
        ("lab/mine", "offline", "the hub did not take the token \\(.*HF_HUB_OFFLINE"),
        ("lab/mine", "away", "the hub did not take the token"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_anything_starts(hub, monkeypatch, repository, change, words):
    if change == "token":
        monkeypatch.setattr("huggingface_hub.utils.get_token", lambda: None)
    if change == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    if change == "away":
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=words):
        check_push(repository)


def test_preflight_asks_and_an_export_without_push_asks_nobody(monkeypatch):
    monkeypatch.setattr("retool_mcore.preflight.run.check", lambda *_: None)
    with pytest.raises(UserError, match="push=mine: expected org/name"):
        preflight("export", compose("export", ["push=mine"]))
    preflight("export", compose("export"))
