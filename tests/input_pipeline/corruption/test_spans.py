"""T5's span corruption and prefix language modelling: what the encoder reads and the decoder writes."""

import dataclasses
import zlib

import numpy as np
import pytest
from filling import filled

from configs import common
from input_pipeline.corruption import build, span_noise
from input_pipeline.errors import DataError
from input_pipeline.packing.raw import Raw

END, START = 1, 0


def objective(vocabulary, **changes):
    vocabulary = dataclasses.replace(vocabulary, special={"pad": START, "end": END})
    vocabulary.end_id = END
    section = common.spans()
    section.update(changes)
    return build(section.to_dict(), vocabulary)


def released(ids, taken, sentinels):
    """Raffel et al.'s procedure, token by token: (input, target) of a text whose tokens `taken` go."""

    def shortened(taken):
        out, spans = [], 0
        for place, token in enumerate(ids):
            if not taken[place]:
                out.append(token)
            elif not place or not taken[place - 1]:
                out.append(sentinels[spans])
                spans += 1
        return [*out, END]

    return shortened(taken), shortened([not was for was in taken])


def test_a_row_by_hand(vocabulary, monkeypatch):
    """The example of the paper's figure 2. Masks that are drawn end with a span, so that none has its last sentinel."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    ids = {word: 10 + place for place, word in enumerate(words)}
    taken = np.array([[word in ("for", "inviting", "last") for word in words]])
    monkeypatch.setattr(span_noise, "spans", lambda *arguments: taken)
    text = np.array([list(ids.values())], np.int32)
    ones = np.ones_like(text)
    raw = Raw(text, text, ones, ones, ones.astype(bool))
    batch = filled(objective(vocabulary, density=0.3, mean_span=1.0), raw, np.arange(1), 11)
    x, y, z = 999, 998, 997
    assert batch["inputs"][0].tolist() == [10, 11, x, 14, 15, 16, 17, y, 19, END, 0]
    targets = [x, ids["for"], ids["inviting"], y, ids["last"], z, END]
    assert batch["targets"][0].tolist() == targets
    assert batch["tokens"][0].tolist() == [START, *targets[:-1]]


@pytest.mark.parametrize("length", [512, 64])
def test_rows_of_real_text_are_the_released_procedures(vocabulary, raw_rows, length):
    task = objective(vocabulary)
    texts = task.raw_length(length)
    raw, keys = raw_rows(50, texts), np.arange(50) * 977
    batch = filled(task, raw, keys, length)
    taken = span_noise.spans(keys, np.full(50, texts), 0.15, 3.0, texts)
    for row in range(50):
        inputs, targets = released(raw.ids[row].tolist(), taken[row].tolist(), vocabulary.sentinels)
        assert batch["inputs"][row].tolist() == inputs and len(inputs) == length
        assert batch["targets"][row].tolist() == targets and len(targets) == batch["targets"].shape[1]
        assert batch["tokens"][row].tolist() == [START, *targets[:-1]]
    for side, width in (("input_", length), ("", len(targets))):
        assert (batch[f"{side}segments"] == 1).all()
        assert (batch[f"{side}positions"] == np.arange(width)).all()
    assert (batch["weights"] == 1).all()
    if length == 512:
        assert texts == 568 and batch["targets"].shape == (50, 114)


def test_the_rows_of_a_key_stay_what_they_are(vocabulary):
    """To the bit, whole rows and cut ones: runs go on with the batches that they began with."""
    task = objective(vocabulary)
    length, rows = task.raw_length(64), np.arange(40)
    ids = (np.arange(40 * length) * 7919 % 900).astype(np.int32).reshape(40, length)
    ones = np.ones_like(ids)
    raw = Raw(ids, np.roll(ids, -1, 1), ones, np.arange(length, dtype=np.int32) * ones, ones.astype(bool))
    raw = raw.where(np.arange(length) < (rows * 37 % (length + 30))[:, None])
    batch = filled(task, raw, rows * 977, 64)
    assert zlib.crc32(b"".join(values.tobytes() for _, values in sorted(batch.items()))) == 400536953


def test_short_rows_and_padding(vocabulary, raw_rows):
    task = objective(vocabulary)
    raw = raw_rows(4, 70).where(np.arange(70) < np.array([0, 1, 25, 70])[:, None])
    batch = filled(task, raw, np.arange(4), 64)
    assert (batch["input_segments"].sum(1)).tolist() == [0, 2, 25 - 4 + 1 + 1, 64]  # 3.75 of 25, in a span
    assert (batch["weights"].sum(1)).tolist() == [0, 1 + 1, 4 + 1 + 1, 14]
    assert not batch["inputs"][0].any() and not batch["tokens"][0].any()
    assert batch["inputs"][1].tolist() == [raw.ids[1, 0], END] + [0] * 62


def test_only_what_a_row_scores_has_weight(vocabulary, raw_rows):
    task = objective(vocabulary)
    raw = raw_rows(2, 70)
    raw.scored[1, :40] = False
    batch = filled(task, raw, np.arange(2), 64)
    taken = span_noise.spans(np.arange(2), np.full(2, 70), 0.15, 3.0, 70)[1]
    text = ~np.isin(batch["targets"][1], [END, *vocabulary.sentinels])
    assert batch["weights"][0].sum() == 14
    assert (batch["weights"][1][text] == raw.scored[1][taken]).all()


def test_prefixes(vocabulary, raw_rows):
    task = objective(vocabulary, noise="prefix")
    assert task.raw_length(64) == 63
    raw, keys = raw_rows(200, 63), np.arange(200)
    batch = filled(task, raw, keys, 64)
    cuts = batch["input_segments"].sum(1) - 1
    assert cuts.min() < 8 and cuts.max() > 55
    for row, cut in enumerate(cuts.tolist()):
        assert batch["inputs"][row].tolist() == [*raw.ids[row, :cut], END] + [0] * (63 - cut)
        assert batch["targets"][row].tolist() == [*raw.ids[row, cut:], END] + [0] * cut
        assert batch["weights"][row].sum() == 64 - cut


def test_rows_do_not_depend_on_one_another(vocabulary, raw_rows):
    for kind in ("spans", "prefix"):
        task = objective(vocabulary, noise=kind)
        length = task.raw_length(64)
        raw, keys, some = raw_rows(20, length), np.arange(20) * 31, np.array([3, 17, 8])
        batch = filled(task, raw, keys, 64)
        part = filled(task, type(raw)(*(field[some] for field in raw)), keys[some], 64)
        for name, rows in part.items():
            np.testing.assert_array_equal(rows, batch[name][some])


def test_what_cannot_be(vocabulary):
    with pytest.raises(DataError, match=r"objective\.noise is 'span'; choose one of: spans, prefix"):
        objective(vocabulary, noise="span")
    with pytest.raises(DataError, match=r"a length of 2048 takes 114 spans out of a row, .* has 100 sentinels"):
        objective(vocabulary).raw_length(2048)
