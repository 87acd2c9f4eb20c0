"""Weights alone: arrays that are made as they are written, whole or layer by layer, and read back one by one."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.checkpoints import params_only
from pretrain.workdir import Workdir


def test_layers_are_made_one_by_one_where_all_are_large(tmp_path, monkeypatch):
    monkeypatch.setattr(params_only, "CHUNK", 1 << 12)
    draw, made = np.random.default_rng(0), []

    def promised(name, dtype, *shape):
        array = draw.standard_normal(shape).astype(dtype)

        def make(number=...):
            made.append((name, number))
            return array[number]

        return array, params_only.Promised(shape, array.dtype, make, make if len(shape) > 2 else None)

    arrays = {
        "layers/large": promised("large", np.float32, 5, 40, 31),
        "layers/half": promised("half", jnp.bfloat16, 3, 64, 32),
        "layers/small": promised("small", np.float32, 5, 3, 2),
        "table": promised("table", np.float32, 97, 41),
    }
    here = Workdir(tmp_path)
    params_only.write(here, {path: promise for path, (_, promise) in arrays.items()}, "print", 7, copy_of="another")
    layers = [("large", number) for number in range(5)] + [("half", number) for number in range(3)]
    assert sorted(made, key=str) == sorted([*layers, ("small", ...), ("table", ...)], key=str)
    folder = here.checkpoint(7).absolute()
    assert params_only.is_alone(folder) and not params_only.begins(here)  # which checkpoint 0 alone does
    shapes = {path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, (array, _) in arrays.items()}
    read = params_only.reader(folder, shapes)
    for path, (array, _) in arrays.items():
        found = read(path)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
