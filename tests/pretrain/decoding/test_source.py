"""Text that follows from another: decoding with caches of both texts is decoding without any."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import models
from configs.common import encoder_decoder
from pretrain.decoding.sampling import generate

V = 31
OPTIONS = {"max_tokens": 9, "end_id": 1, "vocabulary": V}
WAYS = {
    "greedy": {"temperature": 0.0, "beams": 1},
    "sampled": {"temperature": 1.0, "beams": 1},
    "beams": {"temperature": 0.0, "beams": 3},
}
PROMPTS = [np.array([0]), np.array([0, 5, 9, 2, 30, 4, 17]), np.array([0, 3])]


POST = {"norm": "layer", "placement": "post", "final_norm": False, "scale_scores": True, "scale_head": False}
KINDS = {
    "t5": {},
    "bart": POST | {"positions": "learned", "position_offset": 2, "embedding_norm": True, "decoder_layers": 1},
    "transformer": POST | {"positions": "sinusoid", "scale_embedding": True},
}
CASES = [("t5", "greedy"), ("t5", "sampled"), ("t5", "beams"), ("bart", "beams"), ("transformer", "greedy")]


@functools.cache
def model_of(kind):
    """An encoder-decoder with decided opinions, and its parameters; distances beyond 12 share a bucket."""
    fields = encoder_decoder()
    fields.update(vocab_size=V, context=32, layers=2, width=16, heads=4, head_size=6, ff=24, dtype="float32")
    fields.update(buckets=8, max_distance=12)
    fields.update(KINDS[kind])
    model = models.build(fields.to_dict())
    shapes = nn.unbox(jax.eval_shape(lambda key: model.init(key, **model.example()), jax.random.key(0)))["params"]
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda leaf: jnp.asarray(0.4 * rng.standard_normal(leaf.shape), leaf.dtype), shapes)


def read(*lengths):
    there = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
    inputs = np.random.default_rng(1).integers(2, V, there.shape)
    return {"inputs": inputs, "input_segments": there.astype(np.int32)}


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_caches_change_nothing(kind, way):
    """Inputs and prompts of different lengths: each row's queries stand where its own text has got to."""
    source = read(11, 4, 8)
    inputs = source["inputs"]
    cached, plain, other = (
        generate(*model_of(kind), PROMPTS, **WAYS[way], **OPTIONS, **changes)
        for changes in (
            {"source": source},
            {"source": source, "cached": False},
            {"source": {**source, "inputs": (inputs + 1) % V}},
        )
    )
    for (ids, nats), (expected, total) in zip(cached, plain, strict=True):
        np.testing.assert_array_equal(ids, expected)
        assert nats == pytest.approx(total, abs=1e-4)
    assert any(abs(a - b) > 1e-2 for (_, a), (_, b) in zip(cached, other, strict=True))  # what it reads matters


@pytest.mark.parametrize("way", ["greedy", "beams"])
def test_as_much_longer_as_may_be(way):
    """Each row has a limit of its own, of a search too; below it nothing changes."""
    options = OPTIONS | {"end_id": None, "source": read(3, 1, 5)}
    bounded = generate(*model_of("t5"), PROMPTS, **WAYS[way], **options | {"beyond": 2, "max_tokens": None})
    assert [len(ids) for ids, _ in bounded] == [5, 3, 7]
    if way != "beams":
        free = generate(*model_of("t5"), PROMPTS, **WAYS[way], **options)
        for (ids, _), (whole, _) in zip(bounded, free, strict=True):
            np.testing.assert_array_equal(ids, whole[: len(ids)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_beams_of_a_batch_are_those_of_each_row_alone(kind):
    """As many as each may be longer, and in whatever order the others end."""
    source = read(11, 4, 8)
    for stopping in ("never", "best", "full"):
        options = OPTIONS | WAYS["beams"] | {"stopping": stopping, "beyond": 3, "max_tokens": 14}
        together = generate(*model_of(kind), PROMPTS, **options, source=source)
        for row, (ids, nats) in enumerate(together):
            mine = {name: array[row : row + 1] for name, array in source.items()}
            [(alone, total)] = generate(*model_of(kind), PROMPTS[row : row + 1], **options, source=mine)
            np.testing.assert_array_equal(ids, alone)
            assert nats == pytest.approx(total, abs=1e-4)
