"""Text of which a tokenizer makes nothing is refused before training, in any layout and for any task."""

import pytest

from input_pipeline.errors import DataError

WORDS = {"kind": "words", "vocab_size": 100}
PIECES = {"kind": "wordpiece", "vocab_size": 100}
SPACES, NOTHING = "   ", "\u200b\u200b"  # what words are cut at; what BERT's cleaning takes out of a text
LINES = "".join(f"A line of {n} words.\n\n" for n in range(200))
TASKS = {
    "words left out": ({"kind": "spans"}, {}, WORDS | {"sentinels": 50}, SPACES),
    "pieces left out": ({"kind": "spans"}, {}, PIECES | {"sentinels": 50}, SPACES),
    "masked": ({"kind": "masked", "next_sentence": False}, {}, PIECES, NOTHING),
    "pairs": ({"kind": "masked"}, {"layout": "pairs", "sentences": "lines"}, PIECES, NOTHING),
    "packed": ({"kind": "causal"}, {"layout": "packed"}, WORDS, SPACES),
    "stream": ({"kind": "causal"}, {"layout": "stream"}, PIECES, NOTHING),
}


@pytest.mark.parametrize("task", TASKS)
def test_text_without_tokens_is_refused(prepare, write, task):
    objective, data, tokenizer, nothing = TASKS[task]
    lines, empty = f"text:{write('lines.txt', LINES)}?document=blank_line", f"text:{write('empty.txt', nothing)}"
    options = {"tokenizer": tokenizer, "objective": objective, "length": 32} | data
    for named in ({"validation": empty}, {"test": empty}):
        ((split, _),) = named.items()
        message = rf"data\.{split} = '{empty}' has 1 document, of whose text the tokenizer makes no token; give other"
        with pytest.raises(DataError, match=message):
            prepare(lines, **options, **named)


def test_a_part_of_a_split_may_have_no_tokens(prepare, write):
    lines, empty = f"text:{write('lines.txt', LINES)}?document=blank_line", f"text:{write('empty.txt', SPACES)}"
    pairs = write("pairs.jsonl", '{"inputs": "one line", "targets": "two lines"}\n')
    corpus = prepare(
        lines,
        validation=f"{empty} + jsonl:{pairs}?fields=inputs,targets",
        objective={"kind": "spans"},
        tokenizer=WORDS | {"sentinels": 50},
        length=32,
    )
    scored = corpus.evaluation("validation", length=32, stride=32, batch_size=2)
    assert sum(batch["weights"].sum() for batch in scored.batches()) == 3


def test_one_symbol_alone_follows_nothing(prepare, write):
    source, one = f"text:{write('lines.txt', LINES)}", f"text:{write('one.txt', 'A')}"
    corpus = prepare(source, validation=one, tokenizer={"kind": "symbols"})
    with pytest.raises(DataError, match="split 'validation' has no token that the model could be scored on; give it"):
        corpus.evaluation("validation", length=8, stride=8, batch_size=2)
