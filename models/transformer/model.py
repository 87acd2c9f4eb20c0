"""Base classes of models. `models/__init__.py` lists what every model offers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from models.attention.masks import Mask
from models.errors import ModelError
from models.layers.dropout import dropout
from models.layers.init import constant, normal
from models.layers.logits import vocab_logits
from models.layers.norm import Norm
from models.transformer.adapters import Adapter, LoRA
from models.transformer.block import Block, Context
from models.transformer.cache import Memory
from models.transformer.layer_stack import Stack, stack_param
from models.transformer.mlp import FeedForward
from models.transformer.relative_attention import RelativeSelfAttention
from models.transformer.task_head import Head, JointSpans, ScalarMix, Task


@struct.dataclass
class Output:
    """Hidden states [B, T, D], and the updated memories or caches, by name of the branch that carries them.

    layers: if asked for, embeddings and the states after each layer, [L + 1, B, T, D]; the last are those after the
        last norm. source_layers: the same of an encoder-decoder's encoder.
    """

    hidden: jax.Array
    carried: Mapping[str, Any]
    layers: jax.Array | None = None
    source_layers: jax.Array | None = None


class Model(nn.Module):
    """A model with one softmax over its vocabulary, the same ids at input and output, and no memory."""

    inputs: ClassVar[tuple[str, ...]]
    causal: ClassVar[bool]
    single_softmax: ClassVar[bool] = True
    # Patterns of parameters above all layers: those of the heads, and norms of the last states.
    head_params: ClassVar[tuple[str, ...]] = ("head", "head_bias", "task_head", "scalar_mix")
    final_norms: ClassVar[tuple[str, ...]] = ("final_norm",)
    has_discriminator: ClassVar[bool] = False
    has_branches: ClassVar[bool] = False
    summary_place: ClassVar[str] = "last"  # the token that stands for its row in tasks: first, or last
    class_bias: ClassVar[bool] = True  # whether classes of rows have a bias

    vocab_size: int
    context: int
    layers: int
    width: int
    heads: int
    ff: int
    activation: str
    norm_epsilon: float
    attention_path: str
    dtype: str
    param_dtype: str
    scan: bool
    remat: str
    lora: int
    lora_alpha: float
    lora_targets: tuple[str, ...]
    adapter: int
    summary: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    mix: str = dataclasses.field(default="none", kw_only=True)
    task: Task | None = dataclasses.field(default=None, kw_only=True)

    def make_layers(self) -> None:
        """Create the stack and its parameters; called in `setup` of models with one stack."""
        # Parameters do not depend on how attention is computed, so the reference backend initializes them: it never
        # refuses, whatever `attention_path` names.
        self.stack = self.build_stack("reference" if self.is_initializing() else self.attention_path)
        self.stacked = stack_param(self, "layers", self._init_stack)
        self.make_mix()

    def build_stack(self, backend: str) -> Stack:
        """All layers, with attention computed by `backend`; blocks follow the attention patterns in turn."""
        blocks = tuple(self._block(pattern, backend) for pattern in self.attention)
        return Stack(blocks, self.layers, self.scan, self.remat)

    def output(self, hidden: jax.Array, carried: Mapping, states: jax.Array | None = None, source=None) -> Output:
        """The Output of a call. states: those that the stack kept; in a task with `mix`, `hidden` becomes their mix."""
        if states is None:
            return Output(hidden, carried)
        # After the last norm and dropout, as Transformers returns the last of `hidden_states`.
        layers = jnp.concatenate([states[:-1], hidden[None]])
        return Output(self.scalar_mix(layers) if self.mixes else hidden, carried, layers, source)

    def make_mix(self) -> None:
        """Create the mix of layers, if a task reads one; called in `setup`."""
        if self.mixes:
            self.scalar_mix = ScalarMix(self.norm_epsilon if self.mix == "normed" else None, self.param_dtype)

    @property
    def mixes(self) -> bool:
        """Whether the head of a task reads a mix of all layers."""
        return self.mix != "none" and self.task is not None

    @staticmethod
    def mix_weights(params: Mapping) -> list[float]:
        """The weight of each layer in the mix, embeddings first; they sum to 1."""
        return jax.nn.softmax(params["scalar_mix"]["weights"]).tolist()

    def vocab_bias(self) -> jax.Array:
        """Create the bias [V] of the logits."""
        return self.param("head_bias", constant(0.0, "vocab"), (self.vocab_size,), self.param_dtype)

    def dropout_key(self, train: bool, *rates: float) -> jax.Array | None:
        """The call's key of dropout; None if it is off."""
        # No key where no rate is above 0: callers then need not pass rngs.
        return self.make_rng("dropout") if train and any(rates) else None

    def logits(self, hidden: jax.Array) -> jax.Array:
        """hidden [..., D] -> logits [..., V] float32."""
        return vocab_logits(*self.head_inputs(hidden))

    @nn.compact
    def task_logits(self, hidden: jax.Array, places=None, row=None, train: bool = False, spans: Mapping | None = None):
        """hidden [B, T, D] -> logits of `task`, float32: [B, T, outputs], or of rows [B, outputs].

        places [B]: the token that stands for its row. Of pairs `hidden` are their features [B, 3 D]. row, train: as for
        the call. spans: the other arguments of `JointSpans`, whose results a joint task has.
        """
        if self.task.joint:
            return JointSpans(self.norm_epsilon, self.dtype, self.param_dtype, name="task_head")(hidden, **spans)
        of_rows = self.task.unit == "row"
        x = jnp.take_along_axis(hidden, places[:, None, None], axis=1)[:, 0] if of_rows else hidden
        head = Head(
            self.summary if of_rows else self.task.steps,
            self.task.outputs,
            bias=self.class_bias or not of_rows,
            rate=self.head_dropout,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="task_head",
        )
        row = jnp.arange(len(x)) if row is None else row
        key = self.make_rng("dropout") if train and self.head_dropout else None
        return head(x, row, key, self.pooling_layer)

    def init_heads(self, hidden: jax.Array) -> None:
        """Create the parameters of heads, which Flax does where they are first called; for the call of a model."""
        if self.is_initializing() and self.task and self.task.outputs:
            inputs = jnp.tile(hidden[:, 0], 3) if self.task.unit == "pair" else hidden
            places, every = jnp.zeros(len(hidden), jnp.int32), jnp.ones(hidden.shape[:2], bool)
            spans = {"real": every, "begins": every, "nowhere": places, "starts": places[:, None]}
            self.task_logits(inputs, places, spans=spans)

    @property
    def has_token_head(self) -> bool:
        """Whether it predicts tokens: in tasks only if they ask for it."""
        return self.task is None or self.task.predicts_tokens

    @property
    def head_dropout(self) -> float:
        """Rate of dropout in the head of a task."""
        return self.dropout

    @property
    def pooling_layer(self) -> Callable | None:
        """The layer between a row's token and its classes that pretraining has trained, if any."""
        return None

    def example(self) -> dict[str, jax.Array]:
        """The smallest inputs: one row of one token."""
        return dict.fromkeys(self.inputs, jnp.ones((1, 1), jnp.int32))

    def init_memory(self, lanes: int) -> dict:
        """Memory at the start of lanes' streams: none."""
        return {}

    def init_cache(self, rows: int, length: int) -> dict:
        """An empty cache to generate with. Raises ModelError: a token's state depends on later ones."""
        raise ModelError("this model sees later tokens and cannot generate text. Train a decoder.")

    def check_length(self, length: int, limit: int = 0) -> None:
        """Raise ModelError if rows of `length` tokens are longer than `limit`, by default the context."""
        if length > (limit or self.context):
            name = "cache length" if limit else "config.model.context"
            raise ModelError(f"{name}={limit or self.context}: too short for rows of {length} tokens. Raise it.")

    @property
    def input_vocab_size(self) -> int:
        """Number of ids that can be read."""
        return self.vocab_size

    @property
    def has_nsp_head(self) -> bool:
        """Whether it has a head for next-sentence prediction."""
        return False

    @property
    def input_limits(self) -> dict[str, int]:
        """For each input that indexes a table, the number of rows."""
        rows = dict.fromkeys(("tokens", "inputs"), self.input_vocab_size)
        rows |= dict.fromkeys(("positions", "input_positions"), self.context)
        return {name: rows[name] for name in self.inputs if name in rows}

    @property
    def _shared(self) -> dict:
        """Fields that all branches of a block have."""
        fields = {"width": self.width, "dtype": self.dtype, "param_dtype": self.param_dtype}
        return fields | {"lora": LoRA(self.lora, self.lora_alpha, self.lora_targets)}

    @property
    def _adapter(self) -> Callable[..., Adapter] | None:
        """Makes the adapters of the blocks, if there are any."""
        return (
            functools.partial(Adapter, self.adapter, self.width, self.dtype, self.param_dtype) if self.adapter else None
        )

    @property
    def frozen_params(self) -> tuple[str, ...]:
        """Patterns of parameters that an adapted model does not train by default: all of the base's."""
        if not (self.lora or self.adapter):
            return ()
        # Adapters learn next to the norms (Houlsby et al. 2019, section 2.1).
        return ("*", "!*/lora_?", "!task_head", "!scalar_mix", *["!*_adapter/*", "!*norm"] * bool(self.adapter))

    def _feed_forward(self, **options) -> Callable[..., FeedForward]:
        return functools.partial(FeedForward, ff=self.ff, activation=self.activation, **self._shared, **options)

    def _init_stack(self, key):
        """Parameters of the stack. Their shapes depend on no length, so one token serves."""
        x = jnp.zeros((1, 1, self.width), self.dtype)
        return self.build_stack("reference").init(key, x, self._init_context())

    def _init_context(self) -> Context:
        return Context(Mask(causal=True), positions=jnp.zeros((1, 1), jnp.int32))


class RecurrentModel(Model):
    """Post-norm blocks of relative attention and feed-forward, whose lanes carry a memory: Transformer-XL and XLNet."""

    head_size: int
    memory: int
    clamp: int
    dropout: float
    dropout_attention: float
    init_std: float

    def init_memory(self, lanes: int) -> dict[str, Memory]:
        """Empty memory for lanes of the batch, boxed with the names of its axes. In tasks rows stand alone: none."""
        if self.task:
            return {}
        return {"attention": Memory.empty(self.layers, lanes, self.memory, self.width, self.dtype)}

    def build_stack(self, backend: str) -> Stack:
        """All layers, with attention computed by `backend`."""
        return Stack((self._block(backend),), self.layers, self.scan, self.remat)

    def dropouts(self, train: bool) -> tuple[jax.Array | None, Callable]:
        """The key of the layers' dropout, and `drop(x, site, row)` for numbered sites outside of them."""
        key = self.dropout_key(train, self.dropout, self.dropout_attention)

        def drop(x, site, row=None):
            # Layers fold in 0 .. L - 1, sites the numbers after that.
            return dropout(x, self.dropout, None if key is None else jax.random.fold_in(key, self.layers + site), row)

        return key, drop

    @property
    def _head_size(self) -> int:
        return self.head_size or self.width // self.heads

    def _attention(self, backend: str, **options) -> Callable:
        sizes = {"heads": self.heads, "head_size": self._head_size, "std": self.init_std}
        options |= {"dropout": self.dropout_attention, "backend": backend}
        return functools.partial(RelativeSelfAttention, **sizes, **self._shared, **options)

    def _norm(self, **options) -> Callable:
        return functools.partial(Norm, "layer", self.norm_epsilon, self.dtype, self.param_dtype, **options)

    def _block(self, backend: str) -> Block:
        stds = {"std": self.init_std, "out_std": self.init_std}
        feed_forward = self._feed_forward(bias=True, initializer=normal, dropout=self.dropout, **stds)
        branches = {"attention": self._attention(backend), "feed_forward": feed_forward}
        return Block(branches, self._norm(), "post", self.dropout, self._adapter, parent=None)
