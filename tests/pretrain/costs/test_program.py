"""Products of traced programs, whatever they are wrapped in."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from pretrain.costs.flops import multiply_adds

A, B = jnp.zeros((3, 4)), jnp.zeros((4, 5))
ONE = 3 * 4 * 5


def counted(function, *arguments):
    return multiply_adds(jax.make_jaxpr(function)(*arguments).jaxpr)


@jax.custom_vjp
def with_own_gradient(a, b):
    return a @ b


with_own_gradient.defvjp(lambda a, b: (a @ b, None), lambda _, d: (A, B))


@jax.custom_jvp
def with_own_tangent(a, b):
    return a @ b


@with_own_tangent.defjvp
def _(primals, tangents):
    return primals[0] @ primals[1], tangents[0] @ primals[1]


def looped(a, b):
    return jax.lax.scan(lambda x, _: (x + 1, jax.lax.map(lambda row: row @ b, x)), a, None, length=7)


def split(a, b):
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(jnp.matmul, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())(a, b)


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (jnp.matmul, 1),
        (jax.jit(jnp.matmul), 1),
        (with_own_gradient, 1),
        (with_own_tangent, 1),
        (looped, 7),
        (split, 1),
        (lambda a, b: jax.lax.cond(a[0, 0] > 0, lambda: (a @ b) @ b.T @ b, lambda: a @ b), 3),
        (lambda a, b: (a @ b) + (a @ b), 1),  # written twice, made once
        (lambda a, b: (a @ b) + ((a + 1) @ b), 2),
    ],
)
def test_products_wherever_they_are(function, times):
    assert counted(function, A, B).total() == times * ONE


def test_convolutions():
    convolve = functools.partial(jax.lax.conv_general_dilated, window_strides=(1,), padding="SAME")
    signal, kernel = jnp.zeros((2, 6, 9)), jnp.zeros((8, 3, 5))  # 8 features of 6 in two groups, 5 places
    assert counted(functools.partial(convolve, feature_group_count=2), signal, kernel).total() == 2 * 8 * 9 * 3 * 5


def test_scopes_are_kept_from_the_outermost_inwards():
    def function(a, b):
        with jax.named_scope("outer"):
            return jax.lax.scan(lambda x, _: (x, jax.named_scope("inner")(jnp.matmul)(x, b)), a, None, length=2)

    assert counted(function, A, B) == {(("outer", "inner"), "dot_general"): 2 * ONE}


def test_a_loop_of_unknown_length_is_refused():
    with pytest.raises(AssertionError, match="how often"):
        counted(lambda a: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x @ x, a), jnp.zeros((3, 3)))
    assert not counted(lambda a: jax.lax.while_loop(lambda x: x.sum() > 0, lambda x: x + 1, a), A)
