"""Activation functions, by the names that configs give them."""

import functools
from collections.abc import Callable, Mapping

import jax

ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),  # GPT, BERT's own release, ALBERT, XLNet
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),  # RoBERTa, ELECTRA, BART, ports of BERT
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),  # Sparse Transformer
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
GATED = "gated_"  # before an activation's name: act(x W_gate) * (x W_in), as in T5 v1.1
FEED_FORWARD = (*ACTIVATIONS, *(GATED + name for name in ACTIVATIONS))  # what feed-forward branches can have
