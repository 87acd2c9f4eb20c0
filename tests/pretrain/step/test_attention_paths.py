"""The path that is named is the one of training's rows: parameters and generated text do not depend on it.

The paths of GPUs and TPUs are chosen for the platform of the mesh in scope, so a CPU can trace what they would compile.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from configs import common
from models import ModelError
from pretrain.step.checks import check_attention
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import init_state, train_step

ROWS, LENGTH = 2, 128
SMALL = {"vocab_size": 23, "context": LENGTH, "layers": 2, "width": 64, "heads": 1, "ff": 24}
ABSENT = {
    "cudnn": AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu"),
    "splash": AbstractDevice("TPU v5", 1, "tpu"),
}


KERNELS = {"cudnn": "dot_product_attention_fwd", "splash": "splash_mha"}  # what they are called in a program


def recipe_of(path, kind="decoder", evaluated=(), **model):
    config = common.base()
    config.model = common.MODELS[kind]()
    config.model.update(**SMALL, attention_path=path, **model)
    config.data.length = LENGTH
    config.evaluate.model.update(dict(evaluated))
    return TrainSpec.build_abstract(config), config


@pytest.fixture
def absent(monkeypatch):
    """`with absent("cudnn"):` the mesh in scope is of the hardware that this path is made for."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)  # asked of the library, which is not here
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    return lambda path: use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=ABSENT[path]))


def batch():
    names = ("tokens", "targets", "positions", "segments")
    rows = {"row": jnp.arange(ROWS), "weights": jnp.ones((ROWS, LENGTH))}
    return {name: jnp.zeros((ROWS, LENGTH), jnp.int32) for name in names} | rows


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("path", ABSENT)
def test_step_for_absent_platform(absent, path, named):
    recipe, config = recipe_of(path if named else "auto")
    rows = batch()  # arrays, which an absent device could not hold
    with absent(path):
        check_attention(recipe, config, training=True)
        state = jax.eval_shape(partial(init_state, recipe, 0, ROWS))
        program = str(jax.make_jaxpr(partial(train_step, recipe))(state, rows))
    assert KERNELS[path] in program


@pytest.mark.parametrize("positions", ["relative", "rotary"])
@pytest.mark.parametrize("path", ABSENT)
def test_kernels_serve_rotary_memory(absent, path, positions):
    """Distances are a bias, which keeps them from it; rotary positions are in queries and keys already."""
    recipe, config = recipe_of("auto", "recurrent", memory=LENGTH, positions=positions, dropout=0.0)
    rows = batch() | {"reset": jnp.zeros(ROWS, bool)}
    with absent(path):
        check_attention(recipe, config, training=True)
        state = jax.eval_shape(partial(init_state, recipe, 0, ROWS))
        program = str(jax.make_jaxpr(partial(train_step, recipe))(state, rows))
    assert (KERNELS[path] in program) == (positions == "rotary")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("splash", {}),  # for TPUs
        ("cudnn", {"kind": "recurrent"}),  # for GPUs
        ("sparse", {}),  # the pattern is dense
    ],
)
def test_backend_refuses_training(path, fields):
    with pytest.raises(ModelError):
        check_attention(*recipe_of(path, **fields), training=True)


def test_backend_refuses_evaluation(absent):
    recipe, config = recipe_of("splash", evaluated={"attention": ("strided_16",)})
    with absent("splash"), pytest.raises(ModelError):
        check_attention(recipe, config, training=True)
