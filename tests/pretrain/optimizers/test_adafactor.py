"""Adafactor against its paper and against optax's own, of the matrices as they are on paper; on meshes too."""

import jax
import jax.numpy as jnp
import numpy as np
from named import run

from configs import common
from models.layers.init import path_name
from pretrain.step.train_spec import TrainSpec


def adafactor_on_paper(p, gradients, rate):
    """T5's Adafactor (Shazeer & Stern 2018, algorithm 4) of one matrix or vector, in float64."""
    row = column = full = 0.0
    for t, g in enumerate(gradients, start=1):
        decay, square = 1 - t**-0.8, g**2 + 1e-30
        if p.ndim == 2 and min(p.shape) >= 128:
            row = decay * row + (1 - decay) * square.mean(1)
            column = decay * column + (1 - decay) * square.mean(0)
            v = np.outer(row, column) / row.mean()
        else:
            v = full = decay * full + (1 - decay) * square
        u = g / np.sqrt(v)
        u /= max(1.0, np.sqrt((u**2).mean()))
        p = p - rate * max(1e-3, np.sqrt((p**2).mean())) * u
    return p


ATTENTION = {  # a layer's parameters, and how T5 has them; 3 heads of 50 on a width of 140
    "query/kernel": ((140, 3, 50), (140, 150)),
    "query/bias": ((3, 50), (150,)),
    "output/kernel": ((3, 50, 140), (150, 140)),
    "output/bias": ((140,), (140,)),
    "small/kernel": ((140, 2, 50), (140, 100)),  # 100 outputs are too few to factor
}


def test_adafactor_flattens_attention():
    rng = np.random.default_rng(2)

    def draw(scale):
        return {"layers": {name: rng.normal(size=(2, *shape)) * scale for name, (shape, _) in ATTENTION.items()}}

    def low(tree):
        return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)

    params, gradients = draw(0.05), [draw(1.0) for _ in range(3)]
    got = run(low(params), [low(g) for g in gradients], name="adafactor")["layers"]
    for name, (_, shape) in ATTENTION.items():
        for layer in range(2):
            flat = [tree["layers"][name][layer].reshape(shape) for tree in (params, *gradients)]
            expected = adafactor_on_paper(flat[0], flat[1:], 0.1)
            np.testing.assert_allclose(got[name][layer].reshape(shape), expected, atol=2e-6, err_msg=name)


def t5_small(**mesh):
    """A decoder of T5-small's shapes."""
    config = common.base()
    config.model.update(vocab_size=32_128, layers=6, width=512, heads=8, ff=2048, norm="rms", positions="none")
    config.model.update(attention_bias=False, ff_bias=False)
    config.optimizer.name = "adafactor"
    config.mesh.update(data=1, **mesh)
    config.train.batch_size = 8
    return config


def test_adafactor_state_sharding():
    config = t5_small(fsdp=2, tensor=4)
    spec = TrainSpec.build(config)
    named = {
        path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(spec.checkpoint_shapes(8).opt_state)
    }
    whole = [name for name, leaf in named.items() if leaf.size > 512 * 6 and leaf.sharding.is_fully_replicated]
    assert not whole
    (columns,) = (leaf for name, leaf in named.items() if name.endswith("v_col/layers/feed_forward/in/kernel"))
    assert columns.sharding.shard_shape(columns.shape) == (6, 512)
