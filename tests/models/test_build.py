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
    ("decoder", {"positions": "factorised"}, "position_axes"),
    ("decoder", {"positions": "factorised", "position_axes": (32, 16)}, "position_axes"),
    ("decoder", {"position_axes": (32, 32)}, "position_axes"),
    ("decoder", {"activation": "swish"}, "activation"),
    ("decoder", {"norm": "batch"}, "norm"),
    ("decoder", {"placement": "middle"}, "placement"),
    ("decoder", {"positions": "alibi"}, "positions"),
    ("decoder", {"remat": "some"}, "remat"),
    ("decoder", {"attention_path": "fast"}, "attention_path"),
    ("decoder", {"dtype": "float16"}, "dtype"),
    ("decoder", {"param_dtype": "float8"}, "param_dtype"),
    ("decoder", {"attention": ()}, "attention"),
    ("decoder", {"attention": "dense"}, "attention"),
    ("decoder", {"attention": (3,)}, "attention"),
    ("decoder", {"attention": ("dense",) * 5}, "attention"),
    ("decoder", {"attention": ("dens",)}, "attention"),
    ("decoder", {"attention": ("fixed_16_32",)}, "attention"),
    ("decoder", {"attention": ("dense+dense+dense+dense+local_2",)}, "attention"),
    ("decoder", {"attention": ("strided_100",)}, "context"),
    ("decoder", {"head": 3}, "head"),
    ("decoder", {"memory": 8}, "memory"),
    ("recurrent", {"positions": "learned"}, "positions"),
    ("recurrent", {"positions": "rotary", "head_size": 63}, "head_size"),
    ("recurrent", {"positions": "rotary", "clamp": 400}, "clamp"),
    ("recurrent", {"width": 771, "heads": 3}, "width"),
    ("recurrent", {"cutoffs": (8, 4)}, "cutoffs"),
    ("recurrent", {"cutoffs": (8, 20), "divisor": 32}, "divisor"),
    ("two_stream", {"positions": "rotary"}, "positions"),
    ("two_stream", {"reuse": 513}, "reuse"),
    ("two_stream", {"width": 771, "heads": 3}, "width"),
    ("encoder", {"heads": 5}, "heads"),
    ("encoder", {"groups": 5}, "groups"),
    ("encoder", {"groups": 4, "attention": ("dense", "local_128")}, "groups"),
    ("encoder", {"embed": 128, "head_transform": False}, "embed"),
    ("encoder", {"initialiser": "zeros"}, "initialiser"),
    ("replaced_tokens", {"head": "all"}, "head"),
    ("replaced_tokens", {"generator_size": 0.3}, "generator_size"),
    ("encoder_decoder", {"buckets": 30}, "buckets"),
    ("encoder_decoder", {"max_distance": 16}, "max_distance"),
    ("encoder_decoder", {"positions": "sinusoid", "width": 771}, "width"),
    ("encoder_decoder", {"positions": "sinusoid", "position_offset": 2}, "position_offset"),
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
    assert {field.name for field in dataclasses.fields(model)} - {"parent", "name"} == set(section(kind)) - {"kind"}
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


def test_build_refuses_missing_kind_and_field():
    with pytest.raises(models.ModelError, match=r"^config\.model\.kind"):
        models.build({"kind": "coder"})
    fields = section("decoder")
    del fields["remat"]
    with pytest.raises(models.ModelError, match=r"^config\.model\.remat"):
        models.build(fields)
