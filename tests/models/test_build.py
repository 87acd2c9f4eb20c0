"""`models.build`: impossible sections name the key, possible ones become models."""

import dataclasses

import pytest

import models
from configs import common
from models.build import KINDS

MISTAKES = [
    ("decoder", {"heads": 5}, "heads"),
    ("decoder", {"kv_heads": 5}, "kv_heads"),
    ("decoder", {"positions": "rotary", "head_size": 63}, "head_size"),
    ("decoder", {"positions": "rotary", "query_size": 15}, "query_size"),
    ("decoder", {"positions": "sinusoid", "width": 771, "heads": 3}, "width"),
    ("decoder", {"positions": "factorised", "position_axes": (32, 16)}, "position_axes"),
    ("decoder", {"rope_scaling": (2.0,)}, "rope_scaling"),
    ("decoder", {"positions": "rotary", "rope_scaling": (8.0, 4.0, 1.0, 512.0)}, "rope_scaling"),
    ("decoder", {"activation": "swish"}, "activation"),
    ("decoder", {"dtype": "float16"}, "dtype"),
    ("decoder", {"attention": ()}, "attention"),
    ("decoder", {"attention": ("dense",) * 5}, "attention"),
    ("decoder", {"attention": ("dens",)}, "attention"),
    ("decoder", {"attention": ("dense+dense+dense+dense+local_2",)}, "attention"),
    ("decoder", {"attention": ("strided_100",)}, "context"),
    ("recurrent", {"positions": "rotary", "head_size": 63}, "head_size"),
    ("recurrent", {"width": 771, "heads": 3}, "width"),
    ("recurrent", {"cutoffs": (8, 4)}, "cutoffs"),
    ("recurrent", {"cutoffs": (8, 20), "divisor": 32}, "divisor"),
    ("two_stream", {"reuse": 513}, "reuse"),
    ("two_stream", {"width": 771, "heads": 3}, "width"),
    ("encoder", {"groups": 4, "attention": ("dense", "local_128")}, "groups"),
    ("replaced_tokens", {"head": "all"}, "head"),
    ("replaced_tokens", {"generator_size": 0.3}, "generator_size"),
    ("encoder_decoder", {"max_distance": 16}, "max_distance"),
]


def section(kind, **changes):
    return {**getattr(common, kind)().to_dict(), **changes}


@pytest.mark.parametrize(("kind", "changes", "key"), MISTAKES, ids=str)
def test_build_refuses_impossible_fields(kind, changes, key):
    with pytest.raises(models.ModelError, match=rf"^config\.model\.{key}\b"):
        models.build(section(kind, **changes))


@pytest.mark.parametrize("kind", KINDS)
def test_build_makes_every_kind_from_its_section(kind):
    """Fields are the keys of the section, and models are hashable, as static arguments of `jit` must be."""
    model = models.build(section(kind))
    own = {"parent", "name", "task"} | ({"summary", "mix"} if kind == "recurrent" else set())  # which serves no task
    assert {field.name for field in dataclasses.fields(model)} - own == set(section(kind)) - {"kind"}
    assert hash(model) is not None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("recurrent", {"positions": "rotary", "width": 15, "head_size": 8}),  # only head_size must be even
        ("decoder", {"positions": "rotary", "head_size": 15, "query_size": 16}),  # values are not rotated
        ("decoder", {"attention": ["dense", "local_256"]}),  # JSON has lists
    ],
    ids=str,
)
def test_build_accepts(kind, changes):
    assert models.build(section(kind, **changes))


def test_build_refuses_unknown_kinds():
    with pytest.raises(models.ModelError):
        models.build(section("decoder") | {"kind": "coder"})
