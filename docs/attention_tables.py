"""Write the generated parts of docs/attention.md: `make docs`.

A part is between `<!-- generated: NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""

import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path as File

import jax
import jax.numpy as jnp
import numpy as np

from models.attention import BACKENDS, select_backends
from models.attention.backend import Backend
from models.attention.biases import ByBucket, ByMatch, Stored, Sum, shift_rows
from models.attention.masks import Mask
from models.attention.patterns import Union, parse_pattern
from models.attention.relative import ByDistance
from models.errors import ModelError
from pretrain import config as configs
from pretrain.losses.objective import BoundModel
from pretrain.step import recurrent_state
from pretrain.step.train_spec import TrainSpec
from pretrain.step.train_step import unboxed

PAGE = File(__file__).resolve().parent / "attention.md"
PLATFORMS = (("cpu", "float32"), ("gpu", "bfloat16"), ("gpu", "float32"), ("tpu", "bfloat16"))
ARRAY = jax.ShapeDtypeStruct((), np.dtype(bool))  # the choice depends on which fields a mask has, not on their values
MASK_FIELDS = {
    "documents": {"query_segments": ARRAY},
    "padded keys": {"key_valid": ARRAY},
    "prefix": {"prefix": ARRAY},
    "cache": {"offset": ARRAY},
    "permutation": {"causal": False, "query_ranks": ARRAY, "key_ranks": ARRAY},
    "bidirectional": {"causal": False},
}
BIASES = {Stored: "bias, stored", ByBucket: "bias by bucket", ByDistance: "bias by distance", ByMatch: "bias by match"}
MASK_WORDS = {"segments": "documents or padding", "key_segments": "cross-attention", "memory": "memory"}
MASK_WORDS |= {"key_valid": "padded keys", "prefix": "prefix", "ranks": "permutation", "query_columns": "positions"}


@dataclass(frozen=True)
class Call:
    """One row of the table of backends; `mask` names MASK_FIELDS added to a causal mask."""

    pattern: str
    queries: int
    keys: int = 0  # 0 means as many as queries
    mask: tuple[str, ...] = ()
    memory: int = 0
    kv_heads: int = 8
    head_size: int = 64
    options: dict = field(default_factory=dict)  # `bias`, `dropout_rate`

    def choose(self, platform: str, dtype: str) -> str:
        """Return the table cell: what `auto` picks in bold, then the other backends that serve."""
        mask = Mask(causal=True, pattern=parse_pattern(self.pattern), memory=self.memory)
        for name in self.mask:
            mask = mask.replace(**MASK_FIELDS[name])
        keys = self.keys or self.queries + self.memory
        query = jax.ShapeDtypeStruct((1, self.queries, 8, self.head_size), jnp.dtype(dtype))
        key = jax.ShapeDtypeStruct((1, keys, self.kv_heads, self.head_size), jnp.dtype(dtype))
        arguments = dict(platform=platform, **self.options)
        picked = dict.fromkeys(select_backends(query, key, key, mask, **arguments))
        others = []
        for path in BACKENDS:
            try:
                select_backends(query, key, key, mask, backend=path, **arguments)
            except ModelError:
                continue
            if path not in (*picked, "reference"):
                others.append(path)
        return ", ".join([" + ".join(f"**{name}**" for name in picked), *others])

    def describe(self) -> str:
        """Return what the call has besides causality."""
        parts = [*self.mask, *([f"memory {self.memory}"] if self.memory else [])]
        parts += [describe_bias(value) if name == "bias" else "dropout" for name, value in self.options.items()]
        parts += [f"{self.kv_heads} key/value heads"] if self.kv_heads != 8 else []
        parts += [f"head size {self.head_size}"] if self.head_size != 64 else []
        return ", ".join(parts) or "nothing"


BUCKETS = {"bias": ByBucket(ARRAY, True, 128)}
DISTANCE = {"bias": ByDistance(ARRAY, ARRAY, 0)}
CALLS = (
    Call("dense", 1024),
    Call("dense", 8192),
    Call("dense", 1024, mask=("bidirectional", "documents")),
    Call("dense", 1024, mask=("prefix",)),
    Call("dense", 1024, mask=("permutation",)),
    Call("dense", 512, 1024, mask=("bidirectional", "padded keys")),
    Call("dense", 1, 4096, mask=("cache",)),
    Call("dense", 1024, options={"dropout_rate": 0.1}),
    Call("dense", 1024, options={"bias": Stored(ARRAY)}),
    Call("dense", 1024, mask=("bidirectional", "documents"), options=BUCKETS),
    Call("dense", 1024, kv_heads=2),
    Call("dense", 512, memory=512),
    Call("dense", 512, memory=512, options=DISTANCE),
    Call("local_512", 512, memory=512),
    Call("local_256", 4096, mask=("documents",)),
    Call("strided_128", 12_288, mask=("documents",)),
    Call("strided_128", 1, 12_288, mask=("cache",)),
    Call("strided_128", 4096, options=BUCKETS),
    Call("fixed_128_32", 12_288),
    Call("dense+local_256", 4096),
)


def describe_bias(bias) -> str:
    """Return the page's words for a bias; for a sum those of its parts."""
    return " + ".join(map(describe_bias, bias.parts)) if isinstance(bias, Sum) else BIASES[type(bias)]


def backend_table() -> str:
    """Tabulate which backend serves which call on which platform."""
    rows = [
        "| pattern | besides causal | queries, keys | " + " | ".join(f"{p}, {d}" for p, d in PLATFORMS) + " |",
        "|---|---|---|" + "---|" * len(PLATFORMS),
    ]
    for call in CALLS:
        size = f"{call.queries}, {call.keys or call.queries + call.memory}"
        cells = " | ".join(call.choose(*platform) for platform in PLATFORMS)
        rows.append(f"| `{call.pattern}` | {call.describe()} | {size} | {cells} |")
    return "\n".join(rows)


def recipe_table() -> str:
    """Tabulate the attention calls of all recipes: a row for each kind of call, with the recipes that make it."""
    users: dict[tuple, dict[str, dict]] = defaultdict(lambda: defaultdict(dict))  # {cells: {recipe: {variant: None}}}
    variants = {}
    for name, path in configs.model_recipes().items():
        module = configs.recipe_module(str(path))
        sizes = {variant: module.get_config(variant) for variant in module.VARIANTS}
        variants[name] = {key: config for key, config in sizes.items() if config.model.dtype != "float32"}  # not CPU's
        for variant, config in variants[name].items():
            spec = TrainSpec.build_abstract(config)
            calls = [attention_calls(spec, config.data.length, train) for train in (True, False)]
            for (call, *training), (_, *evaluation) in zip(*calls, strict=True):
                users[call, *training, *evaluation][name][variant] = None
    rows = ["| call | recipes | training: gpu, tpu | evaluation: gpu, tpu |", "|---|---|---|---|"]
    for (call, *backends), recipes in users.items():
        names = [
            f"`{name}`" + ("" if some.keys() == variants[name].keys() else f" ({', '.join(some)})")
            for name, some in recipes.items()
        ]
        rows.append("| {} | {} | {}, {} | {}, {} |".format(call, ", ".join(names), *backends))
    return "\n".join(rows)


def attention_calls(spec, length: int, train: bool) -> list[tuple[str, str, str]]:
    """Trace one forward pass and return its attention calls: (description, GPU backend, TPU backend)."""
    calls = []

    def record(query, key, value, mask, bias, dropout, scale):
        pattern = str(mask.pattern)
        if isinstance(mask.pattern, Union):  # written `local_L|column_L`, and `|` would end the cell
            pattern = "strided" if pattern.startswith("local") else "fixed"
        words = [f"`{pattern}`", "causal" if mask.causal else "bidirectional"]
        words += [MASK_WORDS[name] for name in sorted(mask.features()) if name in MASK_WORDS]
        words += [describe_bias(bias)] if bias is not None else []
        rate = 0.1 if dropout is not None else 0.0
        options = dict(bias=bias, dropout_rate=rate)
        picked = [select_backends(query, key, value, mask, platform=platform, **options) for platform in ("gpu", "tpu")]
        calls.append((", ".join(words), *(" + ".join(dict.fromkeys(paths)) for paths in picked)))
        return jnp.zeros((*query.shape[:3], value.shape[3]), query.dtype)

    model = spec.model.clone(attention_path=Backend("recorded", record, lambda request: None))
    batch, carried = spec.batch_shapes(1, length), recurrent_state.shapes(model, 1)

    def forward(params, batch, carried, frozen):
        applied = BoundModel(model, params, spec.inputs, frozen)
        return spec.objective.score(applied, batch, carried, jax.random.key(0) if train else None)

    frozen = unboxed(spec.frozen_parameters) if spec.frozen_parameters else None
    jax.eval_shape(forward, spec.param_shapes, batch, carried, frozen)
    return calls


def draw_pattern(word: str, length: int = 16) -> str:
    """Draw a pattern: a row for each query, `o` for keys of its first part, `x` for those of the second."""
    pattern = parse_pattern(word)
    near, far = getattr(pattern, "near", pattern), getattr(pattern, "far", None)
    lines = [f"query  keys 0 to {length - 1}"]
    for i in range(length):
        marks = ["o" if near.sees(i, j) else "x" if far and far.sees(i, j) else "." for j in range(i + 1)]
        keys = [j for j, mark in enumerate(marks) if mark != "."]
        lines.append(f"{i:>5}  " + " ".join(marks).ljust(2 * length + 1) + ", ".join(map(str, keys)))
    return "```\n" + "\n".join(lines) + "\n```"


def draw_shift() -> str:
    """Draw the relative shift of three queries and five keys, two of them memory."""
    before = np.arange(15).reshape(3, 5)
    after = np.asarray(shift_rows(jnp.pad(before, ((0, 0), (1, 0))), 5))
    hidden = ~np.asarray(Mask(causal=True, memory=2).dense(3, 5)[0, 0])
    left = [" ".join(f"{x:>2}" for x in row) for row in before]
    right = [" ".join(f"{x:>2}" for x in row) for row in np.where(hidden, ".", after)]
    lines = ["distance  4  3  2  1  0             key  0  1  2  3  4"]
    for query, (one, other) in enumerate(zip(left, right, strict=True)):
        lines.append(f"query {query}  {one:>16}    ->   query {query} {other}")
    return "```\n" + "\n".join(lines) + "\n```"


PARTS = {
    "paths": backend_table,
    "recipes": recipe_table,
    "shift": draw_shift,
    "strided_4": lambda: draw_pattern("strided_4"),
    "fixed_4_1": lambda: draw_pattern("fixed_4_1"),
}


def render(text: str) -> str:
    """Return `text` with every generated part written again. Raises KeyError for an unknown part."""
    block = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def main() -> None:
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
