"""A student's losses against all logits at once; its update split in every way; what it begins with; what cannot be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from updates import GRADIENT, assert_same_run, first_state, two_updates

from configs import common
from input_pipeline.batch_spec import empty
from pretrain.checkpoints.teacher import init_from_teacher
from pretrain.errors import UserError
from pretrain.losses.distill import teacher_sets
from pretrain.losses.objective import BoundModel
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import init_state, unboxed

ROWS, LENGTH, VOCABULARY = 8, 12, 24
SIZES = {"vocab_size": VOCABULARY, "context": LENGTH, "layers": 2, "width": 16, "heads": 4, "ff": 24}
RUNNING = {"dtype": "float32", "attention_path": "xla", "init_std": 0.3}


def small(kind="masked", **changes):
    config = common.base()
    if kind == "masked":
        config.model, config.objective = common.encoder(), common.masked()
        config.model.update(types=0, pair_head=False, **SIZES, **RUNNING)
        config.objective.update(next_sentence=False, max_predictions=3)
        config.distill.model.update(types=2, pair_head=True, layers=4)
        config.data.update(layout="packed", length=LENGTH)
    else:
        config.model.update(**SIZES, **RUNNING)
        config.distill.model.update(layers=4)
        config.data.length = LENGTH
    config.distill.teacher = "runs/teacher"
    config.train.update(steps=10, batch_size=ROWS)
    config.mesh.data = 1
    for key, value in (GRADIENT | changes).items():
        section, name = key.split("__")
        config[section][name] = value
    return config


def drawn_batch(spec, seed=0):
    draw = np.random.default_rng(seed)
    batch = empty(spec.features(ROWS, LENGTH)) | {"row": np.arange(ROWS, dtype=np.int32)}
    batch["segments"][:] = np.arange(LENGTH) < draw.integers(3, LENGTH + 1, (ROWS, 1))
    batch["positions"][:] = np.arange(LENGTH)
    for name in ("tokens", "targets"):
        batch[name][:] = draw.integers(0, VOCABULARY, batch[name].shape)
    if "slots" in batch:
        batch["slots"][:] = draw.integers(0, 3, batch["slots"].shape)
        batch["weights"][:] = np.arange(3) < draw.integers(0, 4, ROWS)[:, None]
    else:
        batch["weights"][:] = batch["segments"] * (np.arange(LENGTH) >= 2)  # a window before has scored these
    return batch


@functools.cache
def taught(kind):
    """The teacher's parameters."""
    teacher = TrainSpec.build_abstract(small(kind)).objective.teacher
    params = jax.jit(lambda: teacher.init(jax.random.key(7), **teacher.example())["params"])()
    return jax.tree.map(np.asarray, nn.unbox(params))


@functools.cache
def made(kind):
    spec = TrainSpec.build_abstract(small(kind))
    return spec, initial(spec), drawn_batch(spec)


def initial(spec):
    return jax.tree.map(np.asarray, jax.jit(lambda: init_state(spec, 0, ROWS).params)())


@pytest.mark.parametrize("kind", ["masked", pytest.param("causal", marks=pytest.mark.slow)])
def test_distillation_equals_all_logits_at_once(kind):
    spec, params, batch = made(kind)
    objective, frozen = spec.objective, taught(kind)
    counts = objective.denominators(batch)
    real = batch["segments"] > 0 if kind == "masked" else batch["weights"] > 0
    assert float(counts["kl"]) == float(counts["cosine"]) == real.sum()
    assert kind == "causal" or float(counts["mlm"]) == batch["weights"].sum() != counts["kl"]

    def of_score(params):
        sums, _ = objective.score(BoundModel(spec.model, params, spec.inputs, frozen), batch, {}, None)
        terms = {name: value / counts[name] for name, value in sums.items()}
        return sum(weight * terms[name] for name, weight in objective.terms.items()), terms

    def by_hand(params):
        inputs = {name: batch[name] for name in spec.inputs}
        run = functools.partial(spec.model.apply, {"params": params})
        of_teacher = functools.partial(objective.teacher.apply, {"params": frozen})
        hidden, wanted = run(**inputs).hidden, of_teacher(**inputs).hidden
        logits = run(hidden, method="logits")
        found, soft = (jax.nn.log_softmax(one / 2) for one in (logits, of_teacher(wanted, method="logits")))
        kl = jnp.sum(jnp.where(real[..., None], jnp.exp(soft) * (soft - found), 0)) / real.sum()
        cosine = jnp.sum(hidden * wanted, -1) / jnp.linalg.norm(hidden, axis=-1) / jnp.linalg.norm(wanted, axis=-1)
        log_probs = jax.nn.log_softmax(logits)
        if kind == "masked":
            log_probs = log_probs[np.arange(ROWS)[:, None], batch["slots"]]
        nll = -jnp.take_along_axis(log_probs, batch["targets"][..., None], -1)[..., 0]
        hard = jnp.sum(batch["weights"] * nll) / batch["weights"].sum()
        away = jnp.sum(jnp.where(real, 1 - cosine, 0)) / real.sum()
        return 2 * hard + 5 * 4 * kl + away, {"kl": kl, "cosine": away}

    (value, terms), gradient = jax.jit(jax.value_and_grad(of_score, has_aux=True))(params)
    (expected, own), wanted = jax.jit(jax.value_and_grad(by_hand, has_aux=True))(params)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert {name: float(terms[name]) for name in own} == pytest.approx({n: float(x) for n, x in own.items()}, rel=1e-5)
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)


def test_overlapping_windows_count_once():
    """What is scored of a row in two windows is together what is scored of it in one."""
    spec, params, batch = made("causal")
    both = params, taught("causal")
    scored, later = batch["weights"], batch["weights"] * (np.arange(LENGTH) >= 5)

    @jax.jit
    def taught_by(params, frozen, weights):
        model = BoundModel(spec.model, params, spec.inputs, frozen)
        sums, _ = spec.objective.score(model, batch | {"weights": weights}, {}, None)
        counts = spec.objective.denominators(batch | {"weights": weights})
        return jnp.array([of[name] for of in (sums, counts) for name in ("kl", "cosine")])

    parts = taught_by(*both, scored - later) + taught_by(*both, later)
    np.testing.assert_allclose(taught_by(*both, scored), parts, rtol=1e-5)
    assert parts[2] == parts[3] == scored.sum()


# Of weights that leave plain gradient descent at rate 1 where float32 is exact.
LIGHT = {"distill__soft": 0.1, "distill__hard": 0.5, "distill__cosine": 0.3, "schedule__peak": 0.1}


@functools.cache
def run(devices, **changes):
    return two_updates(small(**LIGHT, **changes), devices, first_state(small()), drawn_batch, taught("masked"))


MESHES = {
    "mixed": ({"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}, 8),
    "accumulated fsdp": ({"mesh__fsdp": 4, "train__accumulate": 2}, 4),
    "accumulated pmap": ({"train__backend": "pmap", "train__accumulate": 2}, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_distillation_on_mesh(name):
    changes, devices = MESHES[name]
    assert_same_run(run(devices, **changes), run(1))


def begins(spec, start, frozen, config):
    of = teacher_sets(config.distill.layers, spec.model, spec.objective.teacher)
    return init_from_teacher(start, spec.parameters, frozen, of, config)


def test_student_starts_from_teacher_layers():
    config = small(distill__layers=(1, 3))
    spec = TrainSpec.build_abstract(config)
    start, frozen = jax.tree.map(jnp.asarray, made("masked")[1]), taught("masked")
    params, said = begins(spec, start, frozen, config)
    assert "100.0% of the values" in said and "layers 1, 3" in said
    for name in ("tokens", "positions", "head_bias"):
        np.testing.assert_array_equal(params[name], frozen[name])
    kernel = params["layers"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(kernel, frozen["layers"]["attention"]["query"]["kernel"][[1, 3]])


SHARED = [  # layers and groups of the teacher; of the student; layers given; sets of the teacher that it begins as
    ((6, 2), (3, 0), (0, 2, 4), [0, 0, 1]),
    ((8, 2), (4, 2), (0, 2, 4, 6), [0, 1]),
]


@pytest.mark.parametrize(("there", "here", "layers", "sets"), SHARED, ids=str)
def test_student_starts_from_shared_layers(there, here, layers, sets):
    """Numbers of layers were once taken for places of sets, of which the last one stood for all behind it."""
    sharing = [dict(zip(("layers", "groups"), counts, strict=True)) for counts in (there, here)]
    config = small(distill__layers=layers, **{f"model__{key}": value for key, value in sharing[1].items()})
    config.distill.model.update(sharing[0])
    spec = TrainSpec.build_abstract(config)
    rng = np.random.default_rng(0)
    start, frozen = (
        jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)
        for shapes in (spec.param_shapes, unboxed(spec.frozen_parameters))
    )
    params, said = begins(spec, start, frozen, config)
    assert "100.0% of the values" in said and "differs" not in said
    for one, other in zip(jax.tree.leaves(params["layers"]), jax.tree.leaves(frozen["layers"]), strict=True):
        np.testing.assert_array_equal(one, other[np.array(sets)])


def test_shared_layers_start_from_one_set():
    config = small(model__groups=1, distill__layers=(1, 3))
    config.distill.model.groups = 0
    spec = TrainSpec.build_abstract(config)
    with pytest.raises(UserError):
        teacher_sets((1, 3), spec.model, spec.objective.teacher)
