"""Attention patterns: sets of positions that a query may attend to (Child et al. 2019, section 4).

A pattern knows positions only; causality, documents and validity belong to `models.attention.masks.Mask`.
In a config a pattern is a word, parsed by `parse_pattern` and nowhere else:

    dense                every key
    local_W              the last W keys, the query's own included
    column_L             keys at a distance that is a multiple of L
    block_L              keys of the query's own block of L
    summary_L_C          the last C keys of every block of L
    strided_L            union of local_L and column_L
    fixed_L_C            union of block_L and summary_L_C
    ..._by_head          (summary, fixed) heads take different C keys of the block in turn, counted from its end
    A+B                  the heads are split evenly: the first half uses A, the second B (any number of parts)

A tuple of words, one per layer in turn, interleaves patterns over the depth: `("dense", "local_256")` is GPT-3,
`("local_128", "column_128")` the interleaved strided pattern.
"""

from dataclasses import dataclass, replace

from models.errors import ModelError


@dataclass(frozen=True)
class Dense:
    """Every key."""

    stride = 1  # size of the blocks into which positions are grouped

    def sees(self, query, key):
        """Whether position `query` may attend to position `key`: bool; all three broadcast."""
        return True

    def count(self, query, before):
        """Number of keys in 0 .. before - 1 that each position `query` may attend to; NumPy arrays."""
        return before

    def __str__(self):
        return "dense"


@dataclass(frozen=True)
class Local:
    """Keys nearer than `window`: {j : |i - j| < window}; causal, it is the paper's strided A_1."""

    window: int
    stride = 1

    def sees(self, query, key):
        return (query - key < self.window) & (key - query < self.window)

    def first(self, query):
        """The first key of the run that ends at `last`."""
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
        # Multiples of the stride among the distances query - before + 1 .. query, by floor division.
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
        """The first key of the run that ends at `last`."""
        return query // self.stride * self.stride

    def last(self, query):
        return self.first(query) + self.stride - 1

    def count(self, query, before):
        return ((self.last(query) + 1).clip(max=before) - self.first(query)).clip(0)

    def __str__(self):
        return f"block_{self.stride}"


@dataclass(frozen=True)
class Summary:
    """Fixed A_2: the `width` keys that end `skip` positions before the end of every block of `stride`.

    With `by_head`, head h skips (h mod stride/width) * width positions.
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
        # `width` for every whole block, and the part of the last block's summary that lies before.
        begin = self.stride - self.skip - self.width
        return before // self.stride * self.width + (before % self.stride - begin).clip(0, self.width)

    def for_head(self, head: int) -> "Summary":
        """The pattern of one head, without `by_head`."""
        # Heads take turns: stride / width of them cover a block once.
        skip = head % (self.stride // self.width) * self.width if self.by_head else self.skip
        return replace(self, skip=skip, by_head=False)

    def __str__(self):
        return f"summary_{self.stride}_{self.width}" + "_by_head" * self.by_head + f"-{self.skip}" * bool(self.skip)


@dataclass(frozen=True)
class Union:
    """Two patterns in one softmax over the keys of either."""

    near: Local | Block
    far: Column | Summary

    @property
    def stride(self):
        return self.far.stride

    def sees(self, query, key):
        return self.near.sees(query, key) | self.far.sees(query, key)

    def count(self, query, before):
        # Inclusion and exclusion: far keys inside of the near run count once.
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
    """The pattern of each head, none of them a Split or `by_head`; the parts of a Split divide `heads`."""
    match pattern:
        case Split(parts):
            return tuple(one for part in parts for one in per_head(part, heads // len(parts)))
        case Summary():
            return tuple(pattern.for_head(head) for head in range(heads))
        case Union(near, Summary() as far):
            return tuple(Union(near, far.for_head(head)) for head in range(heads))
    return (pattern,) * heads


_WORDS = {  # name: (the numbers that follow, constructor)
    "dense": ("", Dense),
    "local": ("W", Local),
    "column": ("L", Column),
    "block": ("L", Block),
    "strided": ("L", lambda stride: Union(Local(stride), Column(stride))),
    "summary": ("LC", Summary),
    "fixed": ("LC", lambda stride, *rest: Union(Block(stride), Summary(stride, *rest))),
}


def parse_pattern(text: str) -> Pattern:
    """The pattern that a config names by `text`. Raises ModelError for unknown words and impossible numbers."""
    if "+" in text:
        return Split(tuple(parse_pattern(part.strip()) for part in text.split("+")))
    by_head = text.endswith("_by_head")
    name, *numbers = text.removesuffix("_by_head").split("_")
    if name not in _WORDS:
        raise ModelError(f"config.model.attention='{text}': unknown. Use one of: {', '.join(_WORDS)}.")
    letters, make = _WORDS[name]
    # Positions, and so distances, are 32-bit.
    sizes = [int(number) for number in numbers if number.isdigit() and 0 < int(number) < 2**31]
    fits = len(sizes) == len(numbers) == len(letters)
    if fits and letters == "LC":
        stride, width = sizes
        # By head, the heads of a turn cover the block once, so the width divides it.
        fits, sizes = width <= stride and not (by_head and stride % width), [stride, width, 0, by_head]
    elif by_head:
        fits = False
    if not fits:
        written = "_".join([name, *letters]) + "[_by_head], C dividing L" * (letters == "LC")
        raise ModelError(f"config.model.attention='{text}': not a pattern. Write {written}, with positive integers.")
    return make(*sizes)
