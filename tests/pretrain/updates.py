"""Small configs and batches for tests of updates, and what makes two runs the same: a decoder's, and each family's."""

import jax
import numpy as np

from configs import common
from input_pipeline.batch_spec import empty
from pretrain import losses
from pretrain.step.train_spec import TrainSpec

BATCH, LENGTH, VOCABULARY = 8, 16, 64
# Plain gradient descent at rate 1: what parameters change by is the gradient itself, every leaf of it.
GRADIENT = {"optimizer__name": "sgd", "optimizer__b1": 0.0, "optimizer__clip": 0.0, "optimizer__weight_decay": 0.0}
GRADIENT |= {"schedule__kind": "constant", "schedule__warmup": 0, "schedule__peak": 1.0}
# What BART and the original Transformer have in common.
POST = {"norm": "layer", "placement": "post", "final_norm": False, "attention_bias": True, "ff_bias": True}
POST |= {"scale_scores": True, "scale_head": False, "head_size": 8, "initialiser": "glorot", "dropout": 0.2}
MODELS = {
    "masked": ("encoder", {"dropout": 0.2, "dropout_attention": 0.2}),
    "spans": ("encoder_decoder", {"dropout": 0.2, "head_size": 6, "buckets": 8, "max_distance": 12}),
    "permutation": ("two_stream", {"dropout": 0.2, "dropout_attention": 0.2, "memory": 6, "reuse": 8}),
    "denoising": ("encoder_decoder", POST | {"positions": "learned", "position_offset": 2, "embedding_norm": True}),
    "translation": ("encoder_decoder", POST | {"positions": "sinusoid", "scale_embedding": True}),
    "replaced": ("replaced_tokens", {"dropout": 0.2, "embed": 24, "generator_size": 1.0}),
    "classification": ("encoder_decoder", POST | {"positions": "learned"}),
    "regression": ("two_stream", {"dropout": 0.2, "memory": 6, "reuse": 8}),
    "choice": ("encoder", {"dropout": 0.2}),
    "tagging": ("decoder", {}),
    "extraction": ("encoder", {"dropout": 0.2}),
    "text": ("encoder_decoder", POST | {"positions": "learned"}),
    "causal": ("decoder", {}),
    "siamese": ("encoder", {"dropout": 0.2}),
}
OBJECTIVES = {
    "masked": {"max_predictions": 5},
    "spans": {"density": 0.3, "mean_span": 2.0},
    "denoising": {"share": 0.4},
    "translation": {},
    "permutation": {"reuse": 8, "perm_size": 4, "predictions": 5},
    "replaced": {"share": 0.3, "weight": 2.0},  # of 50 plain gradient descent would make parameters of order 10
    "classification": {"labels": ("one", "two", "three")},
    "regression": {},
    "choice": {"number": 2},
    "tagging": {"labels": ("O", "B", "I")},
    "extraction": {"head": ("dropout",), "stride": 4, "question": 2},
    "text": {},
    "causal": {"inputs": "prompt", "targets": "answer", "loss_on": "targets"},
    "siamese": {"loss": "softmax", "labels": ("one", "two", "three")},
}
LAYOUTS = {
    "masked": {"layout": "pairs", "sentences": "lines"},
    "spans": {},
    "denoising": {},
    "translation": {"layout": "texts"},
}
EXAMPLES = ("classification", "regression", "choice", "tagging", "extraction", "siamese")
LAYOUTS |= {task: {"layout": "examples"} for task in EXAMPLES}
LAYOUTS |= {task: {"layout": "packed_examples"} for task in ("text", "causal")}
LAYOUTS |= {"replaced": {"layout": "packed"}, "permutation": {"layout": "stream"}}


def small_config(**changes):
    config = common.base()
    config.model.update(
        vocab_size=64, context=LENGTH, layers=2, width=32, heads=4, ff=64, dtype="float32", attention_path="xla"
    )
    config.train.update(steps=10, batch_size=BATCH)
    config.optimizer.update(clip=1.0, weight_decay=0.1)
    config.schedule.update(warmup=2, peak=1e-2)
    config.mesh.data = 1
    for key, value in changes.items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def ragged_batch(seed: int = 0):
    """Rows of very different length, so that a mean of means is not the mean."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, BATCH)
    lengths[0] = 1
    real = np.arange(LENGTH)[None] < lengths[:, None]
    tokens = rng.integers(0, 64, (BATCH, LENGTH)).astype(np.int32)
    return {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, 1),
        "weights": real.astype(np.float32),
        "segments": real.astype(np.int32),
        "row": np.arange(BATCH, dtype=np.int32),
        "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1)),
    }


def small(kind, **changes):
    """A family's own model with its objective, of one layer; plain gradient descent at rate 1."""
    config = common.base()
    model, fields = MODELS[kind]
    config.model, config.objective = common.MODELS[model](), common.OBJECTIVES[kind]()
    config.model.update(vocab_size=VOCABULARY, context=LENGTH, layers=1, width=32, heads=4, ff=64, dtype="float32")
    config.model.update(attention_path="xla", **fields)
    config.objective.update(OBJECTIVES[kind])
    config.data.update(length=LENGTH, **LAYOUTS[kind])
    config.train.update(steps=10, batch_size=BATCH)
    config.mesh.data = 1
    for key, value in (GRADIENT | changes).items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def ragged(spec, seed):
    """A batch whose rows differ in length, in what they score, and in whether they are pairs at all."""
    draw = np.random.default_rng(seed)
    batch = empty(spec.features(BATCH, LENGTH)) | {"row": np.arange(BATCH, dtype=np.int32)}
    two = "types" not in batch  # texts in a row, each with its own inputs
    for name, array in batch.items():
        if name.endswith("segments"):
            length, place = draw.integers(2, array.shape[-1] + 1, array[..., :1].shape), np.arange(array.shape[-1])
            array[:] = (place < length) * (1 + two * (place >= length // 2))
        elif name in ("types", "next", "context", "nowhere"):
            array[:] = draw.integers(0, 2, array.shape)
        elif name == "slots":
            array[:] = draw.integers(0, LENGTH, array.shape)
        elif name in ("backward", "reset"):
            array[:] = draw.integers(0, 2, array.shape)
        elif name.endswith("positions"):
            array[:] = np.arange(array.shape[-1])
        elif name == "labels":
            array[:] = draw.integers(0, 2, array.shape)
        elif name.endswith("weights") and array.ndim == 2:
            array[:] = np.arange(array.shape[1]) < draw.integers(0, array.shape[1] + 1, BATCH)[:, None]
        elif name == "chosen":
            np.put_along_axis(array, batch["slots"], True, axis=1)
        elif name == "next_weights" or (name == "weights" and array.ndim == 1):
            array[:] = np.arange(BATCH) % 3 > 0
        elif name != "row":
            array[:] = draw.integers(0, VOCABULARY, array.shape)
    return batch


def assert_same_run(result, reference, atol=3e-6):
    history, params = result
    np.testing.assert_allclose(history, reference[0], rtol=2e-5)  # float32, sums in another order
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(reference[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=atol)


def two_updates(config, devices, start, batch=ragged, teacher=None):
    """(every term and the gradients' norm of two updates, final parameters), from the train state `start` in NumPy.

    `batch(spec, n)` is that of update n; `teacher` are the parameters of one.
    """
    spec = TrainSpec.build(config, jax.devices()[:devices])
    if teacher:
        spec.set_frozen(jax.tree.map(lambda a, s: jax.device_put(a, s.sharding), teacher, spec.frozen_shapes()))
    placed = jax.tree.map(lambda a, shape: jax.device_put(a, shape.sharding), start, spec.checkpoint_shapes(BATCH))
    state, history = spec.from_checkpoint(placed), []
    for n in range(2):
        state, metrics = spec.train_step(state, spec.put(batch(spec, n), BATCH))
        sums, counts = ({name: float(v) for name, v in metrics[which].items()} for which in ("sums", "counts"))
        terms = losses.compute_terms(spec.objective, sums, counts)
        history.append([*(terms[name] for name in sorted(terms)), float(metrics["grad_norm"]), float(metrics["read"])])
    return np.array(history), jax.tree.map(np.asarray, spec.to_checkpoint(state).params)


def first_state(config):
    """The train state that update 0 begins with, in NumPy."""
    return jax.tree.map(np.asarray, TrainSpec.build(config, jax.devices()[:1]).init(0, BATCH))
