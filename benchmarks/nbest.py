"""Answers of a SQuAD-like set from the scores of its tokens: best spans on the device, against a loop in Python.

    python -m benchmarks.nbest [--quick] [--format=json]

2,000 questions (`--quick`: 200) on texts of 100 to 500 tokens, in windows of 384, with 20 answers of at most 30 tokens.
Ours is the path of `pretrain evaluate`: the compiled search in batches of 64 windows, the merge over windows, and each
question's answer cut from its record. The peer is the usual post-processing: for each window 20 starts times 20 ends,
the sort of a question's spans, their texts and probabilities. Both are given scores where
the model leaves them (on the device; in NumPy), and the characters of tokens. `spans` leaves out our cutting.
"""

import os
from types import SimpleNamespace

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from benchmarks import report
from configs import common
from input_pipeline.batch_spec import empty
from input_pipeline.corruption.examples import Frame
from input_pipeline.corruption.extraction import BEGINS, Extraction
from input_pipeline.examples.table import from_examples
from input_pipeline.tokenizers.base import Bytes

LENGTH, BATCH, TARGET = 384, 64, 10.0


def questions(number: int):
    """(objective, table of windows, batch of all windows, scores [2, windows, tokens]) of random texts."""
    draw, tokenizer = np.random.default_rng(0), Bytes()
    section = common.extraction().to_dict()
    task = Extraction(section, tokenizer, Frame((), (), tokenizer.special, LENGTH))
    examples, numbers, records = [], [], []
    for question in range(number):
        words = ["".join(map(chr, draw.integers(97, 123, size))) for size in draw.integers(2, 9, 90)]
        text = " ".join(words)[: draw.integers(100, 500)]
        begin = int(draw.integers(len(text) - 20))
        answers = {"text": [text[begin : begin + 12]], "answer_start": [begin]}
        records.append({"question": f"which one {question}?", "context": text, "answers": answers})
        found = task.read(records[-1])
        examples += found
        numbers += [question] * len(found)
    batch = empty(task.features(len(examples), LENGTH))
    task.write(batch, np.arange(len(examples)), examples)
    scores = draw.normal(size=(2, len(examples), LENGTH)).astype(np.float32)
    # A trained model scores the answer and its neighbours high.
    for side in range(2):
        distance = np.arange(LENGTH) - batch["labels"][:, side, None]
        scores[side] += 8 * np.exp(-np.square(distance / 6))
    offsets = {one["context"]: tokenizer.encode_with_offsets(one["context"]) for one in records}
    task.encode = offsets.__getitem__
    return task, from_examples(examples, numbers, records), batch, scores


def ours(task, table, batch, scores, cut):
    """A function that returns the answers to all questions, cut from their texts if `cut` is true."""
    import jax

    from pretrain.losses.nbest import best_spans
    from pretrain.tasks.predictions import ExtractedAnswers

    width, best = task.section["max_answer"], task.section["best"]

    @jax.jit
    def search(start, end, context):
        found = best_spans(start, end, context == BEGINS, context > 0, width, best)
        begin = (context > 0).argmax(1)[:, None]
        return found[0], found[1] - begin, found[2] - begin

    parts = -(-len(table) // BATCH)
    filled = ((0, parts * BATCH - len(table)), (0, 0))
    arrays = (np.pad(array, filled) for array in (*scores, batch["context"]))
    start, end, context = (list(jax.numpy.asarray(one).reshape(parts, BATCH, LENGTH)) for one in arrays)
    none = [np.zeros(BATCH, np.float32)] * parts
    context_of_batch = SimpleNamespace(objective=task, batch_size=BATCH)
    passes = SimpleNamespace(table=table, order=np.arange(len(table)), passes=SimpleNamespace(context=context_of_batch))

    def run():
        outputs = []
        for part in range(parts):
            found = search(start[part], end[part], context[part])
            outputs.append(dict(zip(("scores", "first", "last"), found, strict=True)) | {"no_answer": none[part]})
        answers = ExtractedAnswers(task.section, passes, outputs)
        if not cut:
            return answers
        return [next(answers.best(place))[0] for place in range(len(answers.examples))]

    return run


def loop(task, table, batch, scores):
    """The same in Python, a window and a pair of ends at a time."""
    width, best = task.section["max_answer"], task.section["best"]
    windows = [[] for _ in range(int(table.numbers[-1]) + 1)]
    for row, question in enumerate(table.numbers.tolist()):
        text = table.record(question)["context"]
        _, starts, ends = task.encode(text)
        begin, size = task.window(table[row], LENGTH)
        shift = int(table[row].parts[2][2]) - begin
        offsets = [None] * LENGTH
        for place in range(begin, begin + size):
            offsets[place] = (int(starts[place + shift]), int(ends[place + shift]))
        windows[question].append((text, offsets, (batch["context"][row] == BEGINS).tolist(), row))

    def run():
        answers = []
        for some in windows:
            spans = []
            for _, offsets, may_begin, row in some:
                start, end = scores[0][row], scores[1][row]
                firsts, lasts = (np.argsort(side)[: -best - 1 : -1].tolist() for side in (start, end))
                for first in firsts:
                    for last in lasts:
                        if offsets[first] is None or offsets[last] is None or not may_begin[first]:
                            continue
                        if last < first or last - first + 1 > width:
                            continue
                        span = {"offsets": (offsets[first][0], offsets[last][1]), "score": start[first] + end[last]}
                        spans.append(span | {"start": start[first], "end": end[last]})
            spans = sorted(spans, key=lambda one: one["score"], reverse=True)[:best]
            text = some[0][0]
            likely = np.exp(np.array([one["score"] for one in spans]) - spans[0]["score"])
            for one, probability in zip(spans, likely / likely.sum(), strict=True):
                one |= {"text": text[slice(*one.pop("offsets"))], "probability": probability}
            answers.append([{key: float(x) if key != "text" else x for key, x in one.items()} for one in spans])
        return [some[0]["text"] for some in answers]

    return run


def main():
    args = report.arguments(__doc__).parse_args()
    number = 200 if args.quick else 2000
    task, table, batch, scores = questions(number)
    made = task, table, batch, scores
    runs = {"spans": ours(*made, cut=False), "answers": ours(*made, cut=True), "loop": loop(*made)}
    mine, theirs = runs["answers"](), runs["loop"]()
    pairs = zip(mine, theirs, strict=True)
    same = np.mean([a == b for a, b in pairs])
    times = report.interleave(runs, 3 if args.quick else 15, warmup=1)
    name = f"{number:,} questions, {len(table):,} windows of {LENGTH}"
    rows = [
        report.compare(f"{name}, spans", times["spans"], times["loop"], "a loop in Python"),
        report.compare(f"{name}, answers", times["answers"], times["loop"], "a loop in Python", target=TARGET),
        report.Result("questions with the same best answer", 100 * float(same), "%"),
    ]
    report.show(rows, args, {"questions": number, "length": LENGTH, "batch": BATCH, **task.section})


if __name__ == "__main__":
    report.run(main)
