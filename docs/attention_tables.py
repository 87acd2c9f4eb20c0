"""Writes the generated parts of docs/attention.md and docs/attention_recipes.md: `make docs`.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path as File

import jax
import jax.numpy as jnp
import numpy as np

from models.attention import PATHS, chosen_path
from models.attention.backend import Path
from models.attention.biases import ByBucket, ByDistance, ByMatch, Stored, Sum
from models.attention.biases.shift import relative_shift
from models.attention.masks import Mask
from models.attention.patterns import Column, Dense, Local, parse_pattern
from models.errors import ModelError
from pretrain import config as configs
from pretrain.losses.applied import Applied
from pretrain.step import recurrent_state
from pretrain.step.train_spec import make_learner
from pretrain.step.train_step import unboxed

ROOT = File(__file__).resolve().parent.parent
PAGES = tuple(ROOT / "docs" / name for name in ("attention.md", "attention_recipes.md"))
PLATFORMS = (("cpu", "float32"), ("gpu", "bfloat16"), ("gpu", "float32"), ("tpu", "bfloat16"))
ARRAY = jax.ShapeDtypeStruct((), np.dtype(bool))  # what a feature of a mask holds plays no part in the choice
FEATURES = {
    "documents": {"query_segments": ARRAY},
    "padded keys": {"key_valid": ARRAY},
    "prefix": {"prefix": ARRAY},
    "cache": {"offset": ARRAY},
    "permutation": {"causal": False, "query_ranks": ARRAY, "key_ranks": ARRAY},
    "both ways": {"causal": False},
}


@dataclass(frozen=True)
class Call:
    """One row of the table: what is asked of attention. `mask` names features of FEATURES on top of causality."""

    pattern: str
    queries: int
    keys: int = 0  # as many as queries, if 0
    mask: tuple[str, ...] = ()
    memory: int = 0
    kv_heads: int = 8
    head_size: int = 64
    options: dict = field(default_factory=dict)  # `bias`, `dropout_rate`
    note: str = ""

    def refusals(self, platform: str, dtype: str) -> dict[str, str | None]:
        """The reason for which each path refuses, None where it serves; and "auto", the path that it picks."""
        mask = Mask(causal=True, pattern=parse_pattern(self.pattern), memory=self.memory)
        for name in self.mask:
            mask = mask.replace(**FEATURES[name])
        keys = self.keys or self.queries + self.memory
        query = jax.ShapeDtypeStruct((1, self.queries, 8, self.head_size), jnp.dtype(dtype))
        key = jax.ShapeDtypeStruct((1, keys, self.kv_heads, self.head_size), jnp.dtype(dtype))
        reasons = {"auto": chosen_path(query, key, key, mask, platform=platform, **self.options)}
        for path in PATHS:
            try:
                chosen_path(query, key, key, mask, platform=platform, path=path, **self.options)
                reasons[path] = None
            except ModelError as error:
                reasons[path] = re.search("because (.*); use auto", str(error))[1]
        return reasons

    def describe(self) -> str:
        """What the mask and the call have besides causality."""
        parts = [*self.mask, *([f"memory {self.memory}"] if self.memory else [])]
        parts += [_named(value) if name == "bias" else "dropout" for name, value in self.options.items()]
        parts += [f"{self.kv_heads} key/value heads"] if self.kv_heads != 8 else []
        parts += [f"head size {self.head_size}"] if self.head_size != 64 else []
        return ", ".join(parts) or "nothing"


BIAS = {"bias": Stored(ARRAY)}
BUCKETS = {"bias": ByBucket(ARRAY, True, 128)}
DISTANCE = {"bias": ByDistance(ARRAY, ARRAY, 0)}
NAMES = {Stored: "bias, stored", ByBucket: "bias by bucket", ByDistance: "bias by distance", ByMatch: "bias by match"}
WORDS = {"segments": "documents or padding", "key_segments": "those of another row", "memory": "memory"}
WORDS |= {"key_valid": "padded keys", "prefix": "prefix", "ranks": "permutation", "places": "places"}
DROPOUT = {"dropout_rate": 0.1}
CALLS = (
    Call("dense", 1024),
    Call("dense", 8192),
    Call("dense", 1000),
    Call("dense", 1024, mask=("both ways",)),
    Call("dense", 1024, mask=("documents",)),
    Call("dense", 1024, mask=("prefix",)),
    Call("dense", 1024, mask=("permutation",)),
    Call("dense", 512, 1024, mask=("both ways", "padded keys")),
    Call("dense", 1, 4096, mask=("cache",)),
    Call("dense", 1024, options=DROPOUT),
    Call("dense", 512, 1024, mask=("both ways", "documents")),
    Call("dense", 1024, options=BIAS),
    Call("dense", 1024, mask=("both ways", "documents"), options=BUCKETS),
    Call("dense", 8192, mask=("both ways", "documents"), options=BUCKETS),
    Call("dense", 1024, kv_heads=2),
    Call("dense", 1024, head_size=80),
    Call("dense", 512, memory=512),
    Call("dense", 512, memory=512, mask=("padded keys",)),
    Call("dense", 512, memory=512, options=DISTANCE),
    Call("dense", 128, memory=3840, mask=("padded keys",), options=DISTANCE),
    Call("local_512", 512, memory=512),
    Call("local_256", 4096),
    Call("local_256", 4096, mask=("documents",)),
    Call("local_256", 1024, mask=("both ways",)),
    Call("strided_128", 12_288),
    Call("strided_128", 12_288, mask=("documents",)),
    Call("strided_128", 12_288, mask=("padded keys",)),
    Call("strided_128", 12_288, options=DROPOUT),
    Call("strided_128", 12_288, kv_heads=2),
    Call("strided_128", 1, 12_288, mask=("cache",)),
    Call("strided_128", 16_384, mask=("both ways",)),
    Call("strided_128", 16_384, mask=("both ways", "documents")),
    Call("strided_128", 4096, options=BUCKETS),
    Call("fixed_128_32", 12_288),
    Call("fixed_128_32_by_head", 12_288),
    Call("column_128", 12_288),
    Call("summary_128_8", 12_288, mask=("documents",)),
    Call("dense+local_256", 4096),
)


def paths() -> str:
    """Which path runs where."""
    rows = [
        "| pattern | besides causal | queries, keys | " + " | ".join(f"{p}, {d}" for p, d in PLATFORMS) + " |",
        "|---|---|---|" + "---|" * len(PLATFORMS),
    ]
    for call in CALLS:
        cells = []
        for platform in PLATFORMS:
            reasons = call.refusals(*platform)
            picked = reasons.pop("auto")
            others = [name for name, why in reasons.items() if why is None and name not in (*picked, "reference")]
            picked = dict.fromkeys(picked)  # heads of several patterns may well take the same path
            cells.append(" + ".join(f"**{name}**" for name in picked) + "".join(f", {name}" for name in others))
        size = f"{call.queries}, {call.keys or call.queries + call.memory}"
        rows.append(f"| `{call.pattern}` | {call.describe()} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


KERNELS = {"gpu": ("cudnn", "triton"), "tpu": ("splash",)}
SHOWN = 3  # sizes that a row names
CPUS = "float32"  # the type of variants that are meant for them


def recipes() -> str:
    """Every call of attention that training and evaluation of all recipes make, and who serves it: a row for each that
    is asked alike in variants of a recipe, but for those that are meant for CPUs."""
    rows = ["| recipe | what is asked | queries, keys, heads | gpu | tpu |", "|---|---|---|---|---|"]
    for name, path in configs.recipes().items():
        module = configs.recipe_module(str(path))
        found: dict[tuple, dict[str, dict]] = {}  # {(asked, gpu, tpu): {variant: sizes}}
        kept = {variant: module.get_config(variant) for variant in module.VARIANTS}
        kept = {variant: config for variant, config in kept.items() if config.model.dtype != CPUS}
        for variant, config in kept.items():
            learner = make_learner(config)
            for train in (True, False):
                for sizes, *call in _calls(learner, config.data.length, train):
                    found.setdefault(tuple(call), {}).setdefault(variant, {})[sizes] = None
        for (asked, *served), of_variants in found.items():
            some = "" if len(of_variants) == len(kept) else f" {', '.join(of_variants)}"
            sizes = list(dict.fromkeys(size for those in of_variants.values() for size in those))
            told = "; ".join(sizes[:SHOWN]) + ("; ..." if len(sizes) > SHOWN else "")
            rows.append(f"| `{name}`{some} | {asked} | {told} | {' | '.join(served)} |")
    return "\n".join(rows)


def _calls(learner, length: int, train: bool) -> list[tuple[str, ...]]:
    """The calls of one forward pass, as cells of the table."""
    calls = []

    def record(query, key, value, mask, bias, dropout, scale):
        arguments = {"bias": bias, "dropout_rate": 0.1 if dropout else 0.0}
        served = [_served(query, key, value, mask, arguments, platform) for platform in KERNELS]
        sizes = f"{query.shape[1]}, {key.shape[1]}, {query.shape[2]} of {query.shape[3]}"
        calls.append((sizes, _asked(mask, bias, dropout), *served))
        return jnp.zeros((*query.shape[:3], value.shape[3]), query.dtype)

    model = learner.model.clone(attention_path=Path("recorded", record, lambda request: None))
    batch, carried = learner.batch_shapes(1, length), recurrent_state.shapes(model, 1)

    def forward(params, batch, carried, frozen):
        applied = Applied(model, params, learner.inputs, frozen)
        return learner.objective.score(applied, batch, carried, jax.random.key(0) if train else None)

    frozen = unboxed(learner.frozen) if learner.frozen else None
    jax.eval_shape(forward, learner.shapes, batch, carried, frozen)
    return calls


def _asked(mask, bias, dropout) -> str:
    """What a mask and a call have, in the words of the page."""
    words = [f"`{mask.pattern}`" if isinstance(mask.pattern, Dense | Local | Column) else "`fixed`"]
    words += ["causal" if mask.causal else "both ways"]
    words += [WORDS[feature] for feature in sorted(mask.features()) if feature in WORDS]
    words += [_named(bias)] if bias is not None else []
    return ", ".join(words + ["dropout"] * (dropout is not None))


def _named(bias) -> str:
    """A bias in the words of the page; of a sum those of its parts."""
    return " + ".join(map(_named, bias.parts)) if isinstance(bias, Sum) else NAMES[type(bias)]


def _served(query, key, value, mask, arguments, platform) -> str:
    """The path that serves on a platform, and why no kernel does where none can."""
    picked = set(chosen_path(query, key, value, mask, platform=platform, **arguments))
    reasons: dict[str, list[str]] = {}  # those who give each
    for kernel in KERNELS[platform]:
        try:
            chosen_path(query, key, value, mask, platform=platform, path=kernel, **arguments)
        except ModelError as error:
            reasons.setdefault(re.search("because (.*); use auto", str(error))[1], []).append(kernel)
    why = "".join(f"; {' and '.join(kernels)}: {reason}" for reason, kernels in reasons.items())
    return f"**{', '.join(picked)}**" + (why if picked & {"xla", "chunked"} else "")


def refusals() -> str:
    """What each path says when it refuses one of these calls."""
    rows = ["| path | refuses because |", "|---|---|"]
    for path in PATHS:
        reasons = {call.refusals(*platform)[path]: None for call in CALLS for platform in PLATFORMS}
        rows.append(f"| `{path}` | {'; '.join(filter(None, reasons)) or 'never'} |")
    return "\n".join(rows)


def grid(word: str, length: int = 16) -> str:
    """Who sees whom, drawn: a row for each query, `o` for keys of the first pattern, `x` for those of the second."""
    pattern = parse_pattern(word)
    near, far = getattr(pattern, "near", pattern), getattr(pattern, "far", None)
    lines = [f"query  keys 0 to {length - 1}"]
    for i in range(length):
        marks = ["o" if near.sees(i, j) else "x" if far and far.sees(i, j) else "." for j in range(i + 1)]
        keys = [j for j, mark in enumerate(marks) if mark != "."]
        lines.append(f"{i:>5}  " + " ".join(marks).ljust(2 * length + 1) + ", ".join(map(str, keys)))
    return "```\n" + "\n".join(lines) + "\n```"


def shift() -> str:
    """The relative shift of three queries and five keys, two of them memory."""
    before = np.arange(15).reshape(3, 5)
    after = np.asarray(relative_shift(jnp.asarray(before), 5))
    hidden = ~np.asarray(Mask(causal=True, memory=2).dense(3, 5)[0, 0])
    left = [" ".join(f"{x:>2}" for x in row) for row in before]
    right = [" ".join(f"{x:>2}" for x in row) for row in np.where(hidden, ".", after)]
    lines = ["distance  4  3  2  1  0             key  0  1  2  3  4"]
    for query, (one, other) in enumerate(zip(left, right, strict=True)):
        lines.append(f"query {query}  {one:>16}    ->   query {query} {other}")
    return "```\n" + "\n".join(lines) + "\n```"


PARTS = {
    "paths": paths,
    "recipes": recipes,
    "refusals": refusals,
    "shift": shift,
    **{word: lambda word=word: grid(word) for word in ("local_4", "strided_4", "fixed_4_1")},
}


def page(text: str) -> str:
    """`text` with every generated part made anew. Raises KeyError for a part that nothing generates."""
    block = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def main() -> None:
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
