"""ELECTRA's masks: the counts, the choice with replacement and the fates of the released procedure."""

import numpy as np
from filling import build_objective, fill_batch

from input_pipeline.corruption.replaced import count_slots
from input_pipeline.packing.concat import Raw


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


def test_count_slots_literal():
    assert [count_slots(128, 0.15), count_slots(512, 0.15), count_slots(512, 0.25)] == [19, 79, 130]


def test_slots_used_literal(vocabulary, raw_rows):
    task = build_objective("replaced", vocabulary)
    lengths = np.array([0, 1, 3, 10, 30, 100, 128])
    raw = raw_rows(7, 128).where(np.arange(128) < lengths[:, None])
    batch = fill_batch(task, raw, np.arange(7), 128, "packed")
    assert batch["slots"].shape == (7, 19)
    assert batch["weights"].sum(1).tolist() == [0, 1, 1, 2, 4, 15, 19]  # halves to even
    assert not batch["chosen"][0].any() and not batch["token_weights"][0].any()
    np.testing.assert_array_equal(batch["token_weights"].sum(1), lengths)


def test_masks_statistics_of_the_release(vocabulary):
    """How often each place is drawn, is masked, and how many distinct ones a row has: against the loops above."""
    length, number, special = 24, 4000, {0, 2, 3, 4}
    ids = np.array([2, *range(20, 28), 3, *range(40, 50), 4, 3, 0, 0], np.int32)  # [CLS] .. [SEP] .. [MASK] [SEP]
    real = 22
    rows = np.tile(np.append(ids, 0), (number, 1))
    raw = Raw.one_segment(rows, rows[:, :-1] > 0)
    batch = fill_batch(build_objective("replaced", vocabulary, share=0.3), raw, np.arange(number) * 7, length, "packed")
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


def test_slots_equal_chosen(vocabulary, raw_rows):
    raw = raw_rows(50, 64)
    batch = fill_batch(build_objective("replaced", vocabulary), raw, np.arange(50), 64, "packed")
    np.testing.assert_array_equal(batch["originals"], raw.ids)
    np.testing.assert_array_equal(batch["targets"], np.take_along_axis(raw.ids, batch["slots"], 1))
    chosen = np.zeros_like(batch["chosen"])
    for row, (slots, weights) in enumerate(zip(batch["slots"], batch["weights"], strict=True)):
        chosen[row, slots[weights > 0]] = True
    np.testing.assert_array_equal(batch["chosen"], chosen)
    assert len(np.unique(batch["draw"])) == 50 and (batch["draw"] >= 0).all()


def test_token_weights_by_scored(vocabulary, raw_rows):
    for scored, name in (("all", "segments"), ("masked", "chosen")):
        batch = fill_batch(build_objective("replaced", vocabulary, scored=scored), raw_rows(9, 32), layout="packed")
        np.testing.assert_array_equal(batch["token_weights"] > 0, batch[name] > 0)
