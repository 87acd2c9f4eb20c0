"""Our parameters from Hugging Face's tensors, by the tables that `pretrain import` and `export` read."""

from flax.traverse_util import unflatten_dict

from pretrain.interop import families


def ours(model_type, section, tensors):
    """The tree of parameters, or of their gradients, of {their name: array}, for the model of a `model` section."""
    table = families.weight_map(families.FAMILIES[model_type], section)
    assert table.shapes() == {name: tuple(array.shape) for name, array in tensors.items()}
    arrays = table.arrays(lambda name: tensors[name])
    return unflatten_dict({path: array.make() for path, array in arrays.items()}, sep="/")
