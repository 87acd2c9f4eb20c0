"""The page about runs: its curves, read back from the page, are the metrics in the work folders."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser

import pytest

from pretrain import config as configs
from pretrain.cli import main
from pretrain.report.history import read_run
from pretrain.workdir import LOSS, Workdir
from tests.conftest import ROOT

OLD = ROOT / "tests" / "goldens" / "old_run"


class Page(HTMLParser):
    """Cells of tables and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self.addresses = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.tags and self.tags[-1] in ("td", "th") and data.strip():
            self.rows[-1].append(data)


def test_page_holds_what_the_folders_hold(tmp_path):
    pytest.importorskip("plotly")
    for name in ("a", "<b>"):
        shutil.copytree(OLD / "gpt", tmp_path / name)
    other = Workdir(tmp_path / "<b>")
    config = json.loads(other.config.read_text())
    config["schedule"]["peak"] = 0.125
    other.config.write_text(json.dumps(config))
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "a"), str(other.path), f"--out={out}"]) == 0
    text = out.read_text()
    page = Page(text)
    assert not page.addresses  # no other file, no network
    assert ["schedule.peak", str(configs.saved(tmp_path / "a").schedule.peak), "0.125"] in page.rows
    loss = read_run(tmp_path / "a", "").checkpoints()[-1]["loss"]
    assert any(row[:3] == ["a", "4", f"validation loss {loss:.4f}"] for row in page.rows)
    start = re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*', text).end()
    curves, _ = json.JSONDecoder().raw_decode(text, start)
    rows = [json.loads(line) for line in (other.metrics / "train.jsonl").read_text().splitlines()]
    (loss,) = [c for c in curves if c["name"] == "&lt;b&gt;" and c["yaxis"] == "y"]
    assert (loss["x"], loss["y"]) == ([row["step"] for row in rows], [row["loss"] for row in rows])
    assert {len(curve["x"]) for curve in curves if curve["yaxis"] in ("y3", "y4")} == {len(rows)}


def test_page_shows_named_evaluations_and_what_selects(tmp_path):
    pytest.importorskip("plotly")
    shutil.copytree(OLD / "gpt", tmp_path / "a")
    run = Workdir(tmp_path / "a")
    config = json.loads(run.config.read_text())
    config["evaluations"] = {"books": {"data": "text:books.txt", "every": 2, "batches": 0}}
    config["checkpoint"]["best"] = "books/loss"
    run.config.write_text(json.dumps(config))
    (run.metrics / "books.csv").write_text("step,loss\n2,5.5\n4,5.25\n")
    for step, loss, measure in ((2, 4.5, "of validation"), (4, 5.25, "of books")):
        content = {"loss": loss, "measure": measure}
        (run.checkpoint(step) / LOSS).write_text(json.dumps(content))
    out = tmp_path / "report.html"
    assert main(["report", str(run.path), f"--out={out}"]) == 0
    text = out.read_text()
    shown = {row[1]: row[2] for row in Page(text).rows if row[0] == "a" and len(row) > 2}
    assert shown["4"] == "books loss 5.2500" and "loss" not in shown["2"]  # of another measure
    start = re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*', text).end()
    curves, _ = json.JSONDecoder().raw_decode(text, start)
    assert any(curve["x"] == [2, 4] and curve["y"] == [5.5, 5.25] for curve in curves)


def test_differences_from_the_recipe(tmp_path):
    from pretrain.report.page import differences

    config = configs.load("configs/gpt2.py:medium", [("train.steps", "7")])
    configs.save(config, tmp_path)
    assert differences(read_run(tmp_path, "")) == (
        "configs/gpt2.py:medium",
        {"train.steps": (configs.load("configs/gpt2.py:medium").train.steps, 7)},
    )


def test_report_without_plotly(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.subplots", raising=False)
    assert main(["report", str(OLD / "gpt"), f"--out={tmp_path / 'x.html'}"]) == 2
    assert "[report]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
