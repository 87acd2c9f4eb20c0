"""Small models on four chips: every kind of model, every attention path and every layout of the mesh, as programs.

    python -m benchmarks.tpu_compile --only 'pod splash, fsdp=2 tensor=2, step' --topologies v5e:2x2

Widths are the least that the kernels take; the vocabulary is a prime, so that no layout divides it.
"""

from functools import partial

from configs import common
from pretrain.decoding import reading
from pretrain.step.engine import make_engine
from pretrain.step.learner import make_learner

CHIPS, ROWS, LENGTH = 4, 8, 256
LAYOUTS = ({"data": 4}, {"fsdp": 4}, {"sequence": 4}, {"tensor": 4}, {"fsdp": 2, "tensor": 2})
MODELS = ("splash", "sparse", "xla", "chunked", "relative")  # by the attention path that is meant to serve
DECODED = ("splash", "relative")  # decoding takes the same path whatever training takes
TASKS = ("step", "evaluation", "decoding")


def config_of(model: str, layout: dict[str, int]):
    """Two scanned layers that take this path, on this layout."""
    config = common.base()
    if model == "relative":
        config.model = common.recurrent()
        config.model.memory, config.data.layout = LENGTH // 2, "stream"
    elif model == "sparse":
        config.model.attention = ("strided_16",)
    else:
        config.model.attention_path = model
    config.model.update(vocab_size=257, context=LENGTH, layers=2, width=256, heads=4, ff=512, remat="full")
    config.data.length = LENGTH
    config.train.batch_size = config.evaluate.batch_size = ROWS
    config.mesh.update({"data": 1} | layout)
    return config


def lowered(model: str, layout: dict[str, int], task: str, devices):
    """The program of one task, lowered for `devices`; of decoding, that of one more token. FLOPs are not compared."""
    config = config_of(model, layout)
    engine = make_engine(make_learner(config), config, devices[:CHIPS])
    match task:
        case "step":
            return engine.lower_step(ROWS, LENGTH), None
        case "evaluation":
            return engine.lower_evaluation(ROWS, LENGTH), None
        case "decoding":
            params = engine.shapes(0, ROWS).params
            with engine.scope():
                return reading.lower(engine.learner.model, params, ROWS, LENGTH)["token"], None


def name_of(model: str, layout: dict[str, int], task: str) -> str:
    return f"pod {model}, {' '.join(f'{axis}={size}' for axis, size in layout.items())}, {task}"


PROGRAMS = {
    name_of(model, layout, task): partial(lowered, model, layout, task)
    for model in MODELS
    for layout in LAYOUTS
    for task in TASKS
    if task != "decoding" or model in DECODED
}
