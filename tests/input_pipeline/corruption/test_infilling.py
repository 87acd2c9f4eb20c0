"""BART's noise: literal tables, statistics, and the published algorithm as plain loops; mBART's language codes."""

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from filling import assert_uniform, build_objective, fill_batch
from read_batches import take

from input_pipeline.corruption import infilling
from input_pipeline.corruption.infilling import Noised
from input_pipeline.corruption.rng import sort_keys
from input_pipeline.errors import DataError
from input_pipeline.packing.concat import Raw

MASK, WIDTH = -1, 60


def keys(count):
    return np.arange(count, dtype=np.int64)


def texts(lengths, width=WIDTH):
    """Rows whose ids count on, so that what is left says where it was; a word begins every third token or so."""
    there = np.arange(width) < np.array(lengths)[:, None]
    ids = (1 + np.arange(there.size).reshape(there.shape) * there).astype(np.int32) * there
    return ids, there, np.random.default_rng(0).random(there.shape) < 0.4


def test_number_sentences_literal():
    stops = np.array([[0, 1, 1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]], bool)
    there = np.arange(8) < np.array([[7], [4]])
    found = infilling.number_sentences(stops, there)
    assert found[0, :7].tolist() == [0, 0, 1, 1, 1, 1, 2] and found[1, :4].tolist() == [0, 1, 1, 1]


def test_permute_sentences_is_uniform():
    sentences = np.tile([0, 0, 1, 2, 2, 2], (6000, 1))
    orders = infilling.permute_sentences(keys(6000), sentences, np.ones_like(sentences, bool), 1.0)
    found = Counter(map(tuple, orders.tolist()))
    blocks = itertools.permutations([(0, 1), (2,), (3, 4, 5)])
    assert found.keys() == {tuple(itertools.chain(*order)) for order in blocks}
    assert_uniform(found, 6)


def test_permute_sentences_share():
    """One of four stays where it is; and padding behind the text."""
    sentence = np.tile(np.arange(6), (500, 1))
    there = np.tile(np.arange(6) < 4, (500, 1))
    orders = infilling.permute_sentences(keys(500), sentence, there, 0.5)
    assert (np.sort(orders[:, :4], axis=1) == np.arange(4)).all() and (orders[:, 4:] == [4, 5]).all()
    moved = (orders[:, :4] != np.arange(4)).sum(1)
    assert set(moved.tolist()) == {0, 2} and 180 < (moved == 2).sum() < 320


def test_poisson_probabilities():
    drawn = infilling.poisson((np.arange(200_000) + 0.5) / 200_000, 3.0, 30)
    chances = [math.exp(-3) * 3**k / math.factorial(k) for k in range(8)]
    np.testing.assert_allclose(np.bincount(drawn)[:8] / 200_000, chances, atol=1e-5)


@pytest.mark.parametrize("mean", [0.1, 3.0])
def test_draw_span_lengths_sum_to_budget(mean):
    budget = np.array([0, 1, 7, 30])
    found = infilling.draw_span_lengths(keys(4), budget, mean)
    assert (np.where(found < 0, 0, found).sum(1) == budget).all() and (found[0] == -1).all()
    for row in found:
        last = row[row >= 0]
        assert not len(last) or last[-1] > 0  # drawing ends where the budget is reached


def oracle(ids, begins, spans, starts):
    """The text with one mask a span: word by word, as the release goes through it, without what is put in."""
    words = np.cumsum(begins) - 1
    value, left = list(ids), [True] * len(ids)
    for start in starts:
        value[int(np.argmax(words == start))] = MASK
    for start, size in zip(starts, spans, strict=True):
        at, remaining = int(np.argmax(words == start)) + 1, size - 1
        while at < len(ids):
            remaining -= begins[at]
            if remaining < 0:
                break
            left[at] = False
            at += 1
    return [one for one, there in zip(value, left, strict=True) if there]


def test_infill_matches_loops():
    """Spans that touch or overlap too, and to the end of the text; empty ones insert masks as long as there is room."""
    ids, there, begins = texts(np.random.default_rng(1).integers(1, WIDTH + 1, 400))
    begins[:, 0] = True
    words = (begins & there).sum(1)
    spans = infilling.draw_span_lengths(keys(400), np.ceil(0.5 * words).astype(np.int64), 3.0)
    order = np.argsort(sort_keys(keys(400), infilling.STARTS, np.arange(words.max()) < words[:, None]), axis=1)
    found = infilling.infill(keys(400), ids, there, begins, 0.5, 3.0)
    for row, size in enumerate(there.sum(1)):
        sizes, empty = spans[row][spans[row] > 0], (spans[row] == 0).sum()
        expected = oracle(ids[row, :size], begins[row, :size], sizes, order[row, : len(sizes)])
        mine = np.where(found.hidden[row], MASK, found.ids[row])[found.inside[row]].tolist()
        assert mine == expected or empty
        assert [token for token in mine if token != MASK] == [token for token in expected if token != MASK]
        assert len(mine) == min(len(expected) + empty, WIDTH)
    assert 30 < (spans == 0).any(1).sum() < 100


def test_mask_and_delete_literal():
    ids, there, _ = texts([10, 5, 1])
    masked, deleted = (spoil(keys(3), ids, there, 0.25) for spoil in (infilling.mask_tokens, infilling.delete_tokens))
    assert masked.hidden.sum(1).tolist() == [3, 2, 1] and (masked.inside == there).all()
    assert deleted.inside.sum(1).tolist() == [7, 3, 0] and not deleted.hidden.any()
    for row in range(3):
        assert deleted.ids[row][deleted.inside[row]].tolist() == ids[row][there[row] & ~masked.hidden[row]].tolist()


def test_rotate_statistics():
    ids = np.tile(texts([10])[0], (2000, 1))
    text = Noised(ids, ids > 0, np.zeros_like(ids, bool))
    turned = infilling.rotate(keys(2000), text, 1.0).ids
    assert (np.bincount(turned[:, 0])[1:11] > 140).all() and not turned[:, 10:].any()
    assert ((turned[:, :10] - turned[:, :1]) % 10 == np.arange(10)).all()
    assert 0.2 < (infilling.rotate(keys(2000), text, 0.3).ids[:, 0] != 1).mean() < 0.34


def test_write_masks_random_share():
    ids = np.full((400, 50), 7, np.int32)
    text = Noised(ids, np.ones_like(ids, bool), np.tile(np.arange(50) % 2 == 0, (400, 1)))
    found = infilling.write_masks(keys(400), text, 3, 1000, 0.1)
    assert (found[:, 1::2] == 7).all()
    assert 0.08 < (found[:, ::2] != 3).mean() < 0.12


def filled(vocabulary, rows, **changes):
    ids = np.zeros((len(rows), 1 + max(map(len, rows))), np.int32)
    for out, text in zip(ids, rows, strict=True):
        out[: len(text)] = vocabulary.encode(text)
    objective = build_objective("denoising", vocabulary, **{"noise": "deletion"} | changes)
    return fill_batch(objective, Raw.one_segment(ids, ids[:, :-1] > 0), length=ids.shape[1] + 1)


def test_fill_without_noise(vocabulary):
    """Both sides are the text between the classifier and the end, and the decoder begins there."""
    batch = filled(vocabulary, ["abcd", "xy"], share=0.0, permutation=0.0)
    assert batch["inputs"].tolist() == [[2, *b"abcd", 5], [2, *b"xy", 5, 0, 0]]
    assert batch["targets"].tolist() == batch["inputs"].tolist()
    assert batch["tokens"].tolist() == [[5, 2, *b"abcd"], [5, 2, *b"xy", 0, 0]]
    assert batch["segments"].tolist() == batch["input_segments"].tolist() == [[1] * 6, [1] * 4 + [0] * 2]
    assert batch["positions"].tolist() == [[*range(6)], [*range(4), 0, 0]]
    assert batch["weights"].tolist() == [[1] * 6, [1] * 4 + [0] * 2]


def test_fill_deleted_text_keeps_frame(vocabulary):
    batch = filled(vocabulary, ["a", "ab", ""], share=0.4, permutation=0.0)
    assert batch["inputs"][0].tolist() == [2, 5, 0, 0] and batch["targets"][0].tolist() == [2, 97, 5, 0]
    assert batch["input_segments"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0] * 4]
    assert batch["weights"].tolist() == [[1, 1, 1, 0], [1] * 4, [0] * 4]


def test_stop_ids_ignore_spaces(vocabulary):
    pieces = {600: " .", 601: "..", 602: " x."}
    row = ["a\u0258", "b\u0259c.", "d\u025a"]  # of 600, 601 and 602 only the first is a full stop
    batch = filled(dataclasses.replace(vocabulary, pieces=pieces), ["".join(row)] * 60, share=0.0)
    read = {"".join(map(chr, inputs[1:-1])) for inputs in batch["inputs"].tolist()}
    assert read == set(map("".join, itertools.permutations(row)))


def test_fill_language_codes(prepare, write):
    """mBART's rows: what is read ends with its language's code, what is written begins with it."""
    codes = ("en_XX", "de_DE")
    files = [write("en.txt", "a cat. " * 60), write("de.txt", "die Katze. " * 60)]
    train = " + ".join(f"text:{path}?language={code}" for path, code in zip(files, codes, strict=True))
    objective = {"kind": "denoising", "languages": codes, "share": 0.0, "permutation": 0.0}
    corpus = prepare(train, objective=objective, length=16, languages=codes)
    end, english, german = map(corpus.tokenizer.special.get, ("end", *codes))
    (batch,) = take(corpus, 1)
    names = ("inputs", "tokens", "targets", "weights")
    for inputs, tokens, targets, weights in zip(*(batch[name] for name in names), strict=True):
        code = english if b"cat" in bytes(inputs[:14].astype(np.uint8)) else german
        assert inputs[14:].tolist() == [end, code]
        assert tokens[0] == code and (tokens[1:15] == inputs[:14]).all()
        assert (targets[:15] == inputs[:15]).all() and weights.tolist() == [1] * 15 + [0]
    assert {english, german} == set(batch["tokens"][:, 0].tolist())
    scored = corpus.evaluation("train", length=16, stride=0, batch_size=8)
    read = np.concatenate([batch["inputs"] for batch in scored.batches()])
    assert {english, german} <= set(read.ravel().tolist())
    assert ((read == end).sum(1) <= 1).all()  # none within a text
    found = corpus._objective.prompts(["de_DE die", "en_XX a"])
    assert found.source["inputs"].tolist() == [[*b"die", end, german], [*b"a", end, english, 0, 0]]
    assert [ids.tolist() for ids in found.begun] == [[german], [english]]
    with pytest.raises(DataError):
        corpus._objective.prompts(["die Katze"])
