"""Programs of small models on four chips: every kind of model, attention backend and mesh layout.

    python -m benchmarks.tpu_compile --only 'pod splash, fsdp=2 tensor=2, step' --topologies v5e:2x2

Widths are the smallest that the kernels take; the vocabulary is a prime, which no mesh axis divides.
"""

from functools import partial

import jax

from configs import common
from pretrain.decoding import forward
from pretrain.step.train_spec import TrainSpec

CHIPS, ROWS, LENGTH = 4, 8, 256
LAYOUTS = ({"data": 4}, {"fsdp": 4}, {"sequence": 4}, {"tensor": 4}, {"fsdp": 2, "tensor": 2})
MODELS = {  # by attention backend or pattern: fields of the model
    "splash": {"attention_path": "splash"},
    "interleaved": {"attention_path": "splash", "attention": ("dense", "local_128"), "layers": 4},  # a loop of two
    "sparse": {"attention": ("strided_16",)},
    "fixed": {"attention": ("fixed_16_4",)},
    "xla": {"attention_path": "xla"},
    "chunked": {"attention_path": "chunked"},
    "relative": {"memory": LENGTH // 2},
    "adaptive": {"memory": LENGTH // 2, "cutoffs": (64, 128), "divisor": 4},
}
RECURRENT = ("relative", "adaptive")
SENTENCES, PAIRS = {"sentences": "lines", "layout": "sentences"}, {"sentences": "lines", "layout": "pairs"}
NO_DROPOUT = {"dropout": 0.0, "dropout_attention": 0.0}  # kernels train without dropout alone
# Shared by BART and the original Transformer.
POST = {"norm": "layer", "placement": "post", "final_norm": False, "ff_bias": True, "scale_scores": True}
POST |= {"scale_head": False, "dropout_attention": 0.0}
FAMILIES = {  # with backend `auto`: kind and fields of the model, of the objective, of the data
    "albert": (
        *("encoder", NO_DROPOUT | {"embed": 128, "project_always": True, "groups": 1}),
        *("masked", {"whole_words": True, "swapped_pairs": True}, PAIRS),
    ),
    "roberta": (
        *("encoder", {"position_offset": 2, "types": 1, "pair_head": False}),
        *("masked", {"next_sentence": False, "rounding": "random", "candidates": "any"}, SENTENCES),
    ),
    "xlm": (
        "encoder",
        {"types": 0, "languages": 3, "pair_head": False, "head_transform": False, "zero_padding": True},
        *("masked", {"next_sentence": False, "languages": True}, {"languages": ("en", "fr", "de")}),
    ),
    "student": (
        *("encoder", {"types": 0, "pair_head": False}),
        *("masked", {"next_sentence": False}, {"layout": "packed"}),
    ),
    "electra": (
        "replaced_tokens",
        NO_DROPOUT | {"embed": 128, "generator_size": 1.0},
        "replaced",
        {},
        {"layout": "packed"},
    ),
    "xlnet": (
        *("two_stream", {"memory": LENGTH // 2, "reuse": LENGTH // 2}),
        *("permutation", {"reuse": LENGTH // 2, "perm_size": LENGTH // 2, "predictions": 43}, {"layout": "stream"}),
    ),
    "t5": ("encoder_decoder", NO_DROPOUT, "spans", {"density": 0.2}, {}),  # 80 targets, which 4 divides
    "bart": (
        "encoder_decoder",
        POST | {"positions": "learned", "position_offset": 2, "embedding_norm": True, "attention_bias": True},
        *("denoising", {}, {}),
    ),
    "transformer": (
        *("encoder_decoder", POST | {"positions": "sinusoid", "scale_embedding": True}),
        *("translation", {}, {"layout": "texts"}),
    ),
}
DECODED = ("splash", "interleaved", "sparse", "fixed", *RECURRENT)  # all dense backends decode alike
WRITING = ("t5", "bart", "transformer")  # encoder-decoders
TASKS = ("step", "evaluation", "prompt", "decoding")


def config_of(model: str, layout: dict[str, int]):
    """Config of a model with two scanned layers on a mesh layout."""
    config = common.base()
    if model in FAMILIES:
        kind, fields, objective, task, data = FAMILIES[model]
        config.model, config.objective = common.MODELS[kind](), common.OBJECTIVES[objective]()
        fields = fields | {"remat": "none"}  # compiles faster
        config.objective.update(task)
        config.data.update(data)
        if kind == "encoder_decoder":
            config.model.head_size = 64
        if model == "student":
            config.distill.update(teacher="runs/teacher", layers=(0, 2))
            config.distill.model.update(layers=4, types=2, pair_head=True)
    elif model in RECURRENT:
        config.model, config.data.layout, fields = common.recurrent(), "stream", MODELS[model]
    else:
        fields = MODELS[model]
    config.model.update(vocab_size=257, context=LENGTH, layers=2, width=256, heads=4, ff=512, remat="full")
    config.model.update(fields)
    config.data.length = LENGTH
    config.train.batch_size = config.evaluate.batch_size = ROWS
    config.mesh.update({"data": 1} | layout)
    return config


def lowered(model: str, layout: dict[str, int], task: str, devices):
    """(program of a task, lowered for `devices`; None, as FLOPs are not compared)."""
    config = config_of(model, layout)
    spec = TrainSpec.build(config, devices[:CHIPS])
    match task:
        case "step":
            return spec.lower_train_step(ROWS, LENGTH), None
        case "evaluation":
            return spec.lower_eval_step(ROWS, LENGTH), None
        case "prompt" | "decoding":
            params = spec.checkpoint_shapes(ROWS).params
            features = spec.features(ROWS, LENGTH) if model in WRITING else {}
            source = {name: one for name, one in features.items() if name in ("inputs", "input_segments")}
            source = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in source.items()}
            with spec.scope():
                programs = forward.lower(spec.model, params, ROWS, LENGTH, source)
            return programs["prompt" if task == "prompt" else "token"], None


def name_of(model: str, layout: dict[str, int], task: str) -> str:
    return f"pod {model}, {' '.join(f'{axis}={size}' for axis, size in layout.items())}, {task}"


PROGRAMS = {
    name_of(model, layout, task): partial(lowered, model, layout, task)
    for model in (*MODELS, *FAMILIES)
    for task in TASKS
    for layout in LAYOUTS
    if task in ("step", "evaluation") or model in DECODED + WRITING
}
