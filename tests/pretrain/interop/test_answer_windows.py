"""Windows of questions and texts, against those that Transformers' script for SQuAD makes of a tokenizer's output."""

import random

import numpy as np
import pytest
import test_exported_tokenizers as exported
import tokenizer_texts
import tokenizers
from test_exported_tokenizers import corpus  # noqa: F401, a fixture

from configs import common
from input_pipeline.batch_spec import empty
from input_pipeline.corruption.examples import Frame
from input_pipeline.corruption.extraction import Extraction
from input_pipeline.tokenizers import export

LENGTH, STRIDE = 48, 13


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["WordPiece", "BPE of words"])
def test_windows_equal_those_of_transformers(name, corpus, tmp_path):  # noqa: F811
    """Tokens, types and the places of answers; the rule of run_qa.py for answers outside of a window."""
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs the extra 'oracle'")
    _, settings, _ = exported.KINDS[name]
    own = exported.make_run(tmp_path / "run", settings, corpus)
    special = own.special
    first, last = ("classifier", "separator") if name == "WordPiece" else ("end", "end")
    ends = [last] * (1 if name == "WordPiece" else 2)
    single, pair = (first, "$A", last), (first, "$A", *ends, "$B", last)
    backend = export.tokenizer_json(tmp_path / "run")
    marks = {"$A": "$A:0", "$B": "$B:1"} | {part: backend.id_to_token(special[part]) for part in (first, last)}
    template = " ".join(marks[part] for part in pair)
    pieces = [(marks[part], special[part]) for part in (first, last)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair=template, special_tokens=list(dict.fromkeys(pieces))
    )
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    section = common.extraction().to_dict() | {"stride": STRIDE, "question": 12}
    task, draw, several = Extraction(section, own, Frame(single, pair, special, LENGTH)), random.Random(0), 0
    for text in tokenizer_texts.texts()[: 9 * 60 : 7]:
        words = [word for word in text.split() if word.isascii()]
        if len(words) < 5:
            continue
        question, answer = " ".join(words[:2]), draw.choice(words[2:])
        begin = text.index(answer)
        asked = own.encode(question)[:12]
        if len(asked) == 12:
            continue
        record = {"question": question, "context": text, "answers": [{"text": answer, "answer_start": begin}]}
        examples = task.read(record)
        batch = empty(task.features(len(examples), LENGTH))
        task.write(batch, np.arange(len(examples)), examples)
        room = LENGTH - (len(pair) - 2) - len(asked)
        options = {"truncation": "only_second", "max_length": LENGTH, "stride": room - STRIDE}
        options |= {"return_overflowing_tokens": True, "return_offsets_mapping": True, "split_special_tokens": True}
        found = theirs(question, text, **options)
        assert len(found["input_ids"]) == len(examples)
        several += len(examples) > 2
        for row, ids in enumerate(found["input_ids"]):
            used = int(batch["segments"][row].sum())
            assert batch["tokens"][row, :used].tolist() == ids
            ranges, sides = found["offset_mapping"][row], found.sequence_ids(row)
            inside = [i for i, side in enumerate(sides) if side == 1]
            assert np.flatnonzero(batch["context"][row]).tolist() == inside
            expected = (0, 0)
            if ranges[inside[0]][0] <= begin and ranges[inside[-1]][1] >= begin + len(answer):
                starts = [i for i in inside if ranges[i][0] <= begin < ranges[i][1]]
                stops = [i for i in inside if ranges[i][0] < begin + len(answer) <= ranges[i][1]]
                expected = (starts[0], stops[-1])
            assert tuple(batch["labels"][row]) == expected, (text, answer)
    assert several > 20
