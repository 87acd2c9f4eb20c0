"""Checkpoints of parameters alone: computed while they are written, read one by one."""

import jax
import jax.numpy as jnp
import numpy as np

from pretrain.checkpoints import params_only, restore
from pretrain.workdir import Workdir


def test_large_arrays_are_computed_layer_by_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(params_only, "CHUNK", 1 << 12)
    rng, computed = np.random.default_rng(0), []

    def lazy(name, dtype, *shape):
        array = rng.standard_normal(shape).astype(dtype)

        def make(number=...):
            computed.append((name, number))
            return array[number]

        return array, params_only.LazyArray(shape, array.dtype, make, make if len(shape) > 2 else None)

    arrays = {
        "layers/large": lazy("large", np.float32, 5, 40, 31),
        "layers/half": lazy("half", jnp.bfloat16, 3, 64, 32),
        "layers/small": lazy("small", np.float32, 5, 3, 2),
        "table": lazy("table", np.float32, 97, 41),
    }
    here = Workdir(tmp_path)
    params_only.write(here, {path: array for path, (_, array) in arrays.items()}, "fingerprint", 7)
    layers = [("large", number) for number in range(5)] + [("half", number) for number in range(3)]
    assert sorted(computed, key=str) == sorted([*layers, ("small", ...), ("table", ...)], key=str)
    folder = here.checkpoint(7).absolute()
    assert restore.is_weights_only(folder) and not params_only.has_initial_weights(here)
    shapes = {path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, (array, _) in arrays.items()}
    read = params_only.reader(folder, shapes)
    for path, (array, _) in arrays.items():
        assert read(path).dtype == array.dtype
        np.testing.assert_array_equal(read(path), array)
