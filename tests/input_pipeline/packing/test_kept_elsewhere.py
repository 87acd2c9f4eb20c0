"""Where the folder of a run cannot be written, what only evaluation needs is kept elsewhere."""

import numpy as np
import pytest

from input_pipeline.errors import DataError

PAIRS = "".join(f'{{"inputs": "to be read {n}", "targets": "to be written {n}"}}\n' for n in range(40))
LAYOUTS = {
    "packed": {"layout": "packed"},
    "pairs": {"layout": "pairs", "sentences": "lines", "objective": {"kind": "masked"}},
    "texts": {"objective": {"kind": "spans"}, "tokenizer": {"sentinels": 20}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plans_of_evaluation_are_kept_where_there_is_room(prepare, write, words, tmp_path, layout):
    source = f"jsonl:{write('pairs.jsonl', PAIRS)}?fields=inputs,targets" if layout == "texts" else words(30)
    options = LAYOUTS[layout] | {"length": 48, "holdout": 0.3}

    def scored(**elsewhere):
        corpus = prepare(source, **options, **elsewhere)
        return list(corpus.evaluation("validation", length=40, stride=40, batch_size=4).batches())

    prepare(source, **options)
    before = {path.name for path in (tmp_path / "run/data").iterdir()}
    expected = scored()
    (plan,) = (path for path in (tmp_path / "run/data").iterdir() if path.name not in before)
    for file in plan.iterdir():
        file.unlink()
    plan.rmdir()
    plan.write_text("in the way")
    with pytest.raises(DataError, match=f"cannot write {plan}: .*; make room or point data.store to another folder"):
        scored()
    again = scored(scratch=tmp_path / "scratch")
    assert len(again) == len(expected) > 0
    for here, there in zip(again, expected, strict=True):
        for name, values in there.items():
            np.testing.assert_array_equal(here[name], values)
    assert (tmp_path / "scratch" / plan.name).is_dir() and plan.is_file()
