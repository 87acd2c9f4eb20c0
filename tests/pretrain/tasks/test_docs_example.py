"""The recipe of docs/tasks.md, run as the page says."""

import json
import re
from pathlib import Path

from pretrain import cli
from pretrain.workdir import Workdir

ROOT = Path(__file__).resolve().parents[3]
TOPICS = {"weather": ("It rained.", "The sun shone."), "sport": ("They won.", "The match ended.")}


def test_recipe_of_the_page(whole, tmp_path, monkeypatch, capsys):
    """From a run of the quickstart's recipe, a decoder."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tasks.md").read_text()
    (recipe,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (command,) = re.findall(r"pretrain (train --config=topics.py .*)", page)
    (tmp_path / "topics.py").write_text(recipe)
    for name, number in (("train", 40), ("dev", 8)):
        rows = [
            {"title": str(n), "body": bodies[n % 2], "topic": topic}
            for n in range(number)
            for topic, bodies in TOPICS.items()
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(command.replace("runs/bert", str(whole)).split()) == 0
    assert Workdir("runs/topics").steps() == [30]
    assert cli.main(["evaluate", "--workdir=runs/topics", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == 16
