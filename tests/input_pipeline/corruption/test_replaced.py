"""ELECTRA's masks: the counts, the choice with replacement and the fates of the released procedure."""

import numpy as np
import pytest
from filling import filled

from configs import common
from input_pipeline.corruption import build
from input_pipeline.corruption.replaced import most
from input_pipeline.errors import DataError
from input_pipeline.packing.raw import Raw


def objective(vocabulary, **changes):
    section = common.replaced()
    section.update(changes)
    return build(section.to_dict(), vocabulary)


def released(draw, ids, special, length, share, keep):
    """Clark et al.'s procedure on one row, in loops: (input of the generator, which places were drawn)."""
    slots = int((share + 0.005) * length)
    real = len(ids)
    number = max(1, min(slots, round(share * real)))
    candidates = [place for place in range(real) if ids[place] not in special]
    masked, drawn = list(ids), set()
    for _ in range(number):
        place = candidates[draw.integers(len(candidates))]
        drawn.add(place)
        if draw.random() >= keep:
            masked[place] = 4
    return masked, drawn


def test_counts():
    assert [most(128, 0.15), most(512, 0.15), most(512, 0.25)] == [19, 79, 130]


def test_the_numbers_of_slots_are_the_published_ones(vocabulary, raw_rows):
    task = objective(vocabulary)
    lengths = np.array([0, 1, 3, 10, 30, 100, 128])
    raw = raw_rows(7, 128).where(np.arange(128) < lengths[:, None])
    batch = filled(task, raw, np.arange(7), 128, "packed")
    assert batch["slots"].shape == (7, 19)
    assert batch["weights"].sum(1).tolist() == [0, 1, 1, 2, 4, 15, 19]  # halves to even
    assert not batch["chosen"][0].any() and not batch["token_weights"][0].any()
    np.testing.assert_array_equal(batch["token_weights"].sum(1), lengths)


def test_masks_are_drawn_as_released(vocabulary):
    """How often each place is drawn, is masked, and how many distinct ones a row has: against the loops above."""
    length, number, special = 24, 4000, {0, 2, 3, 4}
    ids = np.array([2, *range(20, 28), 3, *range(40, 50), 4, 3, 0, 0], np.int32)  # [CLS] .. [SEP] .. [MASK] [SEP]
    real = 22
    there = np.arange(length) < real
    ones = np.ones((number, length), np.int32)
    places = (np.arange(length) * there).astype(np.int32)
    raw = Raw(ids * ones, ids * ones, there * ones, places * ones, (there * ones).astype(bool))
    batch = filled(objective(vocabulary, share=0.3), raw, np.arange(number) * 7, length, "packed")
    read, chosen = batch["tokens"], batch["chosen"]
    draw = np.random.default_rng(0)
    rows = [released(draw, ids[:real].tolist(), special, length, 0.3, 0.15) for _ in range(number)]
    expected = np.zeros((2, length))
    for masked, drawn in rows:
        expected[0, list(drawn)] += 1
        expected[1, [place for place in range(real) if masked[place] != ids[place]]] += 1
    found = np.stack([chosen.sum(0), (read != batch["originals"]).sum(0)])
    assert (found[expected == 0] == 0).all()  # [CLS], [SEP], [MASK] and padding never
    assert np.abs(found - expected).max() < 5 * np.sqrt(2 * expected.max())
    distinct = chosen.sum(1).mean(), np.mean([len(drawn) for _, drawn in rows])
    assert abs(distinct[0] - distinct[1]) < 0.05 and distinct[0] < 6.7  # of 7 slots: some coincide
    assert (read[read != batch["originals"]] == 4).all() and not (chosen < (read != batch["originals"])).any()


def test_slots_say_what_was_drawn(vocabulary, raw_rows):
    raw = raw_rows(50, 64)
    batch = filled(objective(vocabulary), raw, np.arange(50), 64, "packed")
    np.testing.assert_array_equal(batch["originals"], raw.ids)
    np.testing.assert_array_equal(batch["targets"], np.take_along_axis(raw.ids, batch["slots"], 1))
    chosen = np.zeros_like(batch["chosen"])
    for row, (slots, weights) in enumerate(zip(batch["slots"], batch["weights"], strict=True)):
        chosen[row, slots[weights > 0]] = True
    np.testing.assert_array_equal(batch["chosen"], chosen)
    assert len(np.unique(batch["draw"])) == 50 and (batch["draw"] >= 0).all()


def test_what_the_discriminator_is_scored_on(vocabulary, raw_rows):
    raw = raw_rows(9, 32)
    for scored, of in (("all", lambda batch: batch["segments"] > 0), ("masked", lambda batch: batch["chosen"])):
        batch = filled(objective(vocabulary, scored=scored), raw, np.arange(9), 32, "packed")
        np.testing.assert_array_equal(batch["token_weights"] > 0, of(batch))


def test_rows_do_not_depend_on_one_another(vocabulary, raw_rows):
    raw, keys, task = raw_rows(20, 64), np.arange(20) * 31, objective(vocabulary)
    batch, some = filled(task, raw, keys, 64, "packed"), np.array([3, 17, 8])
    for name, rows in filled(task, type(raw)(*(field[some] for field in raw)), keys[some], 64, "packed").items():
        np.testing.assert_array_equal(rows, batch[name][some])


def test_what_cannot_be(vocabulary):
    with pytest.raises(DataError, match=r"objective\.scored is 'some'; choose one of: all, masked"):
        objective(vocabulary, scored="some")
    with pytest.raises(DataError, match="does not go on with a text"):
        objective(vocabulary).prompts(["a"])
