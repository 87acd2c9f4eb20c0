"""Every mistake in a model's fields is one sentence that names field, value, rule and remedy."""

import pytest

import models
from configs.common import decoder, recurrent, two_stream


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "model.heads is 5, which does not divide model.width=768; use a divisor of 768 or set"),
        ({"kv_heads": 5}, "model.kv_heads is 5, which does not divide model.heads=12"),
        ({"positions": "rotary", "head_size": 63}, "head_size is 63; make it even"),
        ({"positions": "rotary", "query_size": 15}, "model.query_size is 15; make it even"),
        ({"positions": "sinusoid", "width": 771, "heads": 3}, "width is 771; make it even"),
        ({"positions": "sinusoid_concatenated", "width": 771, "heads": 3}, "'sinusoid_concatenated' .*width is 771"),
        (
            {"activation": "swish"},
            "model.activation is 'swish', which is unknown; choose from: gelu_tanh, .*gated_silu",
        ),
        ({"norm": "batch"}, "model.norm is 'batch', which is unknown; choose from: layer, rms"),
        ({"placement": "middle"}, "model.placement is 'middle', which is unknown; choose from: pre, post, replace"),
        ({"positions": "alibi"}, "model.positions is 'alibi', which is unknown; choose from: learned, sinusoid"),
        ({"remat": "some"}, "model.remat is 'some', which is unknown; choose from: none, full, dots, dots_no_batch"),
        ({"attention_path": "fast"}, "model.attention_path is 'fast', which is unknown; choose from: auto, "),
        ({"dtype": "int8"}, "model.dtype is 'int8', which is unknown; choose from: float32, bfloat16"),
        ({"dtype": "float16"}, "model.dtype is 'float16', which is unknown; choose from: float32, bfloat16"),
        ({"param_dtype": "float8"}, "model.param_dtype is 'float8'"),
        ({"attention": ()}, r"model.attention is \(\); give a tuple of at least one pattern"),
        ({"attention": "dense"}, "model.attention is 'dense'; give a tuple"),
        ({"attention": ("dense",) * 13}, "names 13 patterns to repeat over model.layers=12, which 13 does not divide"),
        ({"attention": ("dense",) * 5}, "name one for each layer or a number that divides 12"),
        ({"attention": (3,)}, "model.attention holds 3; name patterns by words"),
        ({"attention": ("dens",)}, "attention pattern 'dens' is unknown"),
        ({"attention": ("dense+dense+dense+dense+local_2",)}, "splits the heads into 5 equal parts"),
        (
            {"head": 3},
            "a model of kind 'decoder' has no field 'head'; the nearest is 'heads'; choose from: vocab_size, ",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_impossible_fields(change, message):
    with pytest.raises(models.ModelError, match=message):
        models.build({**decoder().to_dict(), **change})


@pytest.mark.parametrize(
    ("section", "field", "words"),
    [
        (decoder, "memory", "count from the start of a row, .*; memory needs relative positions, which the kind 'recu"),
        (two_stream, "positions", "positions are relative, .*; leave it out, or .* use the kind 'recurrent'"),
    ],
)
def test_what_a_kind_cannot_have_says_why(section, field, words):
    fields = section().to_dict()
    with pytest.raises(models.ModelError, match=f"of kind '{fields['kind']}' has no field '{field}': .*{words}"):
        models.build({**fields, field: "rotary"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *[
            (
                {"positions": absolute},
                f"model.positions is '{absolute}', by which places count anew in every row, so that a state remembered "
                "of the row before and a token of this one would have the same place .*; choose from: relative, rotary,"
                " or the kind 'decoder'",
            )
            for absolute in ("learned", "sinusoid", "sinusoid_concatenated", "factorised")
        ],
        ({"positions": "none"}, "model.positions is 'none', which is unknown; choose from: relative, rotary$"),
        ({"positions": "rotary", "head_size": 63}, "turns pairs of features, but model.head_size is 63; make it even"),
        ({"positions": "rotary", "width": 516, "heads": 12}, "model.head_size is 43; make it even"),
        ({"positions": "rotary", "clamp": 400}, "model.clamp is 400, but .* has no distances to clamp; set it to 0"),
    ],
    ids=str,
)
def test_positions_that_a_memory_cannot_have(change, message):
    with pytest.raises(models.ModelError, match=message):
        models.build({**recurrent().to_dict(), **change})


def test_rotary_positions_of_a_memory_ask_nothing_of_the_width():
    assert models.build({**recurrent().to_dict(), "positions": "rotary", "width": 15, "head_size": 8}).width == 15


def test_rotary_positions_turn_queries_whatever_the_size_of_values():
    fields = {**decoder().to_dict(), "positions": "rotary", "head_size": 15, "query_size": 16}
    assert models.build(fields).query_size == 16


def test_unknown_kind():
    with pytest.raises(models.ModelError, match=r"model\.kind is 'coder', which is unknown; choose from: decoder"):
        models.build({"kind": "coder"})
    with pytest.raises(models.ModelError, match=r"model\.kind is 'None', which is unknown"):
        models.build({})


def test_missing_field():
    fields = decoder().to_dict()
    del fields["heads"], fields["remat"]
    with pytest.raises(models.ModelError, match="a model of kind 'decoder' needs a value for: heads, remat"):
        models.build(fields)


def test_a_list_of_patterns_is_as_good_as_a_tuple():
    """A configuration read back from JSON has lists."""
    fields = {**decoder().to_dict(), "attention": ["dense", "local_256"]}
    model = models.build(fields)
    assert model.attention == ("dense", "local_256") and hash(model) is not None
