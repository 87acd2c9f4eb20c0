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
        begin = self.stride - self.skip - self.width
        return before // self.stride * self.width + (before % self.stride - begin).clip(0, self.width)

    def for_head(self, head: int) -> "Summary":
        """The pattern of one head, without `by_head`."""
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
    """The pattern of each head, none of them a Split or `by_head`; ModelError if heads cannot be split evenly."""
    if isinstance(pattern, Split):
        if heads % len(pattern.parts):
            raise ModelError(
                f"config.model.attention='{pattern}': cannot split {heads} heads in {len(pattern.parts)} equal parts. "
                f"Use a multiple of {len(pattern.parts)}."
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


_WORDS = {  # name: (syntax, how many numbers follow, whether _by_head is allowed, constructor)
    "dense": ("dense", 0, False, Dense),
    "local": ("local_W", 1, False, Local),
    "column": ("column_L", 1, False, Column),
    "block": ("block_L", 1, False, Block),
    "strided": ("strided_L", 1, False, lambda stride: Union(Local(stride), Column(stride))),
    "summary": ("summary_L_C", 2, True, lambda stride, width, by_head: Summary(stride, width, by_head=by_head)),
    "fixed": ("fixed_L_C", 2, True, _fixed),
}


def parse_pattern(text: str) -> Pattern:
    """The pattern that a config names by `text`. Raises ModelError for unknown words and impossible numbers."""
    if "+" in text:
        return Split(tuple(parse_pattern(part.strip()) for part in text.split("+")))
    by_head = text.endswith("_by_head")
    name, *numbers = text.removesuffix("_by_head").split("_")
    if name not in _WORDS:
        known = ", ".join(written + "[_by_head]" * headed for written, _, headed, _ in _WORDS.values())
        raise ModelError(f"config.model.attention='{text}': unknown. Use one of: {known}; join with + to split heads.")
    written, count, headed, build = _WORDS[name]
    if len(numbers) != count or not all(n.isdigit() and int(n) > 0 for n in numbers) or (by_head and not headed):
        raise ModelError(f"config.model.attention='{text}': not a pattern. Write {written} with positive integers.")
    sizes = [int(n) for n in numbers]
    if max(sizes, default=0) >= 2**31:  # positions are 32-bit
        raise ModelError(f"config.model.attention='{text}': number too large. Use numbers below {2**31:,}.")
    if not headed:
        return build(*sizes)
    stride, width = sizes
    if width > stride:
        raise ModelError(f"config.model.attention='{text}': more columns than a block. Use at most {stride}.")
    if by_head and stride % width:
        raise ModelError(f"config.model.attention='{text}': {width} does not divide {stride}. Use a divisor.")
    return build(stride, width, by_head)
