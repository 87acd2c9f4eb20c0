"""Attention patterns: which keys a query may look at, as pure index sets (Child et al. 2019, section 4).

A pattern knows positions only; causality, documents and validity belong to `models.attention.masks.Mask`.
In a config a pattern is a word, parsed by `parse_pattern` and nowhere else:

    dense                every key
    local_W              the last W keys, the query's own included
    column_L             keys at a distance that is a multiple of L
    block_L              keys of the query's own block of L
    summary_L_C          the last C keys of every block of L
    strided_L            local_L and column_L, merged
    fixed_L_C            block_L and summary_L_C, merged
    ..._by_head          (summary, fixed) each head summarises by other C keys of the block, counted from its end
    A+B                  the heads are split evenly: the first half uses A, the second B (any number of parts)

A tuple of words, one per layer in turn, interleaves patterns over the depth: `("dense", "local_256")` is GPT-3,
`("local_128", "column_128")` the interleaved strided pattern.
"""

from dataclasses import dataclass, replace

from models.errors import ModelError


@dataclass(frozen=True)
class Dense:
    """Every key."""

    stride = 1  # positions come in blocks of so many

    def sees(self, query, key):
        """Whether position `query` may look at position `key` (arrays that broadcast): bool, broadcasting likewise."""
        return True

    def count(self, query, before):
        """How many keys of 0 .. before - 1 each position `query` may look at: both arrays of NumPy."""
        return before

    def __str__(self):
        return "dense"


@dataclass(frozen=True)
class Local:
    """Keys nearer than `window`: {j : |i - j| < window}, the kernels' form of strided A_1."""

    window: int
    stride = 1

    def sees(self, query, key):
        return (query - key < self.window) & (key - query < self.window)

    def first(self, query):
        """The first key; all from there to the last are seen."""
        return (query - self.window + 1).clip(0)

    def last(self, query):
        return query + self.window - 1

    def count(self, query, before):
        return ((self.last(query) + 1).clip(max=before) - self.first(query)).clip(0)

    def __str__(self):
        return f"local_{self.window}"


@dataclass(frozen=True)
class Column:
    """Strided A_2: {j : (i - j) mod stride = 0}."""

    stride: int

    def sees(self, query, key):
        return (query - key) % self.stride == 0

    def count(self, query, before):
        return query // self.stride - (query - before) // self.stride

    def __str__(self):
        return f"column_{self.stride}"


@dataclass(frozen=True)
class Block:
    """Fixed A_1: {j : floor(j / stride) = floor(i / stride)}."""

    stride: int

    def sees(self, query, key):
        return query // self.stride == key // self.stride

    def first(self, query):
        """The first key; all from there to the last are seen."""
        return query // self.stride * self.stride

    def last(self, query):
        return self.first(query) + self.stride - 1

    def count(self, query, before):
        return ((self.last(query) + 1).clip(max=before) - self.first(query)).clip(0)

    def __str__(self):
        return f"block_{self.stride}"


@dataclass(frozen=True)
class Summary:
    """Fixed A_2: the `width` keys that end `skip` places before the end of every block of `stride`.

    With `by_head`, head h skips (h mod stride/width) * width places.
    """

    stride: int
    width: int
    skip: int = 0
    by_head: bool = False

    def sees(self, query, key):
        end = self.stride - self.skip
        place = key % self.stride
        return (place >= end - self.width) & (place < end)

    def count(self, query, before):
        begin = self.stride - self.skip - self.width
        return before // self.stride * self.width + (before % self.stride - begin).clip(0, self.width)

    def for_head(self, head: int) -> "Summary":
        """The pattern of one head: the same without `by_head`."""
        skip = head % (self.stride // self.width) * self.width if self.by_head else self.skip
        return replace(self, skip=skip, by_head=False)

    def __str__(self):
        return f"summary_{self.stride}_{self.width}" + "_by_head" * self.by_head + f"-{self.skip}" * bool(self.skip)


@dataclass(frozen=True)
class Union:
    """Two patterns merged: one softmax over the keys of either."""

    near: Local | Block
    far: Column | Summary

    @property
    def stride(self):
        return self.far.stride

    def sees(self, query, key):
        return self.near.sees(query, key) | self.far.sees(query, key)

    def count(self, query, before):
        first, after = (x.clip(max=before) for x in (self.near.first(query), self.near.last(query) + 1))
        far = self.far.count(query, first) + self.far.count(query, before) - self.far.count(query, after)
        return self.near.count(query, before) + far

    def __str__(self):
        return f"{self.near}|{self.far}"


@dataclass(frozen=True)
class Split:
    """The heads in equal runs, one pattern each."""

    parts: tuple

    def __str__(self):
        return "+".join(map(str, self.parts))


Pattern = Dense | Local | Column | Block | Summary | Union | Split


def per_head(pattern: Pattern, heads: int) -> tuple[Pattern, ...]:
    """The pattern of each of `heads` heads, none of them a Split or `by_head`; ModelError if they do not divide."""
    if isinstance(pattern, Split):
        if heads % len(pattern.parts):
            raise ModelError(
                f"attention pattern '{pattern}' splits the heads into {len(pattern.parts)} equal parts, but there are "
                f"{heads} heads; use a multiple of {len(pattern.parts)}"
            )
        run = heads // len(pattern.parts)
        return tuple(one for part in pattern.parts for one in per_head(part, run))
    if isinstance(pattern, Summary):
        return tuple(pattern.for_head(head) for head in range(heads))
    if isinstance(pattern, Union) and isinstance(pattern.far, Summary):
        return tuple(replace(pattern, far=pattern.far.for_head(head)) for head in range(heads))
    return (pattern,) * heads


def _fixed(stride, width, by_head):
    return Union(Block(stride), Summary(stride, width, by_head=by_head))


_WORDS = {  # name: (how it is written, how many numbers follow, whether _by_head may, how it is built)
    "dense": ("dense", 0, False, Dense),
    "local": ("local_W", 1, False, Local),
    "column": ("column_L", 1, False, Column),
    "block": ("block_L", 1, False, Block),
    "strided": ("strided_L", 1, False, lambda stride: Union(Local(stride), Column(stride))),
    "summary": ("summary_L_C", 2, True, lambda stride, width, by_head: Summary(stride, width, by_head=by_head)),
    "fixed": ("fixed_L_C", 2, True, _fixed),
}


def parse_pattern(text: str) -> Pattern:
    """The pattern that a config names by `text`. Raises ModelError for a word or a number that cannot be."""
    if "+" in text:
        return Split(tuple(parse_pattern(part.strip()) for part in text.split("+")))
    by_head = text.endswith("_by_head")
    name, *numbers = text.removesuffix("_by_head").split("_")
    if name not in _WORDS:
        known = ", ".join(written + "[_by_head]" * headed for written, _, headed, _ in _WORDS.values())
        raise ModelError(f"attention pattern '{text}' is unknown; choose from: {known}, joined by + to split the heads")
    written, count, headed, build = _WORDS[name]
    if len(numbers) != count or not all(n.isdigit() and int(n) > 0 for n in numbers) or (by_head and not headed):
        raise ModelError(f"attention pattern '{text}' must be written {written} with positive whole numbers")
    sizes = [int(n) for n in numbers]
    if max(sizes, default=0) >= 2**31:  # positions are 32-bit
        raise ModelError(f"attention pattern '{text}' must have numbers below {2**31:,}")
    if not headed:
        return build(*sizes)
    stride, width = sizes
    if width > stride:
        raise ModelError(
            f"attention pattern '{text}' has {width} summary columns in blocks of {stride}; use at most {stride}"
        )
    if by_head and stride % width:
        raise ModelError(f"attention pattern '{text}' needs {width} to divide {stride} so that heads can take turns")
    return build(stride, width, by_head)
