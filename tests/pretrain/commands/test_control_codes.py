"""CTRL's recipe, small: a prompt without a control code is told of, and still gone on with."""

from runs import SMALL, train_here

from pretrain.cli import main

OWN = {"data.length": 16, "model.context": 32, "train.batch_size": 8, "train.steps": 2, "evaluate.every": 2}
OWN |= {"objective.coded": "true", "schedule.warmup": 1, "checkpoint.every": 2}


def test_a_prompt_without_a_code_is_told_of(tmp_path, capsys):
    named = []
    for code in ("Books", "Links"):
        (tmp_path / f"{code}.txt").write_text("\n\n".join(f"text {n} of {code}" for n in range(300)))
        named.append(f"text:{tmp_path}/{code}.txt?document=blank_line&code={code}")
    workdir, options = tmp_path / "run", {"recipe": "configs/ctrl.py:mini_stdlib", "small": SMALL | OWN}
    assert train_here(workdir, tmp_path, data__train=" + ".join(named), **options) == 0
    prompts = ["--prompt=Links some", "--prompt=some text", "--prompt=Books"]
    capsys.readouterr()
    assert main(["generate", f"--workdir={workdir}", "--max_tokens=3", "--temperature=0", *prompts]) == 0
    shown, said = capsys.readouterr()
    assert all(text in shown for text in ("Links some", "some text", "Books"))
    assert said.count("warning: prompt") == 1 and "'some text'" in said
