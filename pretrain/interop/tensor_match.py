"""Matches tensors of files, of any class of a family, with its weight map.

The base class lacks the pretraining head, classes of one stack lack the other, fine-tuned classes have heads of tasks;
a model inside another has a longer prefix, as in `module.bert.encoder...`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pretrain.errors import UserError, join_some
from pretrain.interop.family import Family
from pretrain.interop.safetensors_io import Tensors
from pretrain.interop.weight_map import WeightMap

SHOWN = 6  # tensors of a kind that a message names


class Match(NamedTuple):
    names: dict[str, str]  # name in the weight map -> name in the files
    untrained: frozenset[str]  # our parameters without a tensor: heads, or a stack


class BaseNames:
    """Tensor names of the family's base class, without its prefix, and where they are in some files."""

    def __init__(self, family: Family, known: Iterable[str], files: Iterable[str]):
        self.prefix = family.prefix
        self.names = {name.removeprefix(family.prefix) for name in known if not family.is_head(name)}
        self.modules = {name.partition(".")[0] for name in self.names}
        votes = Counter(prefix for name in files for prefix, rest in _splits(name) if rest in self.names)
        # The same names under two prefixes are two models: the one with the class's own prefix is read.
        self.found = max(votes, key=lambda prefix: (votes[prefix], prefix == self.prefix), default=self.prefix)
        self.outer = self.found.removesuffix(self.prefix) if self.found.endswith(self.prefix) else ""

    def canonical(self, name: str) -> str:
        """The weight map's name of a tensor in the files."""
        inside = name.startswith(self.found) if self.found else self._has_module(name)
        return self.prefix + name[len(self.found) :] if inside else name.removeprefix(self.outer)

    def include(self, name: str) -> bool:
        """Whether a tensor with this canonical name is part of a base model, not of a head."""
        inside = name.startswith(self.prefix) if self.prefix else self._has_module(name)
        return inside or any(rest in self.names for _, rest in _splits(name))

    def _has_module(self, name: str) -> bool:
        return name.partition(".")[0] in self.modules


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """("", "a.b.c"), ("a.", "b.c"), ("a.b.", "c")."""
    starts = (0, *(i + 1 for i, letter in enumerate(name) if letter == "."))
    return ((name[:start], name[start:]) for start in starts)


def match_tensors(
    family: Family, section: Mapping, weights: WeightMap, tensors: Tensors, report: Callable[[str], None]
) -> Match:
    """The tensors of `weights` in files.

    Errors: UserError that lists tensors that are missing, unexpected, or of another shape or value.
    """
    shapes = weights.shapes()
    older = {family.newer_name(name): name for name in tensors.shapes}
    base = BaseNames(family, (*shapes, *family.tied), older)
    files = {base.canonical(name): file for name, file in older.items()}
    names = {name: files.pop(name) for name in shapes if name in files}
    unequal = []
    for copy, original in family.tied.items():
        if copy in files:
            name = files.pop(copy)
            # Files may hold a tied tensor under either of its names.
            if original not in names:
                names[original] = name
            elif not np.array_equal(tensors.read(name), tensors.read(names[original])):
                unequal.append(f"{name} differs from {names[original]}")
    for name, other in family.fallbacks.items():
        if name in shapes and name not in names and other in names:
            names[name] = names[other]
            report(f"no {name}: read {names[other]} for it, as the class does")
    unequal += [f"{name} is not 0" for name in files.values() if name in family.zeros and np.any(tensors.read(name))]
    unequal += [
        f"{file} is {list(tensors.shapes[file])}, not {list(shapes[name])}"
        for name, file in names.items()
        if tensors.shapes[file] != shapes[name]
    ]
    skipped = [file for name, file in files.items() if family.is_ignored(name)]
    unexpected = [file for name, file in files.items() if file not in skipped and base.include(name)]
    heads = sorted({*files.values()} - {*skipped, *unexpected})
    untrained = _untrained(family, weights, names)
    missing = [name for row in weights.rows if not untrained.issuperset(row.params) for name in row.names]
    problems = {
        "missing": [name for name in missing if name not in names],
        "unexpected": sorted(unexpected),
        "unequal": unequal,
    }
    if any(problems.values()):
        lists = "; ".join(f"{len(each)} {what}: {join_some(each, SHOWN)}" for what, each in problems.items() if each)
        architecture = family.architecture(section)
        raise UserError(f"{tensors.folder}: the weights are not {architecture}'s. Save with that class. {lists}")
    if skipped:
        report(f"skipped {len(skipped)} tensors without use in pretraining, such as {skipped[0]}")
    if heads:
        report(f"left out {len(heads)} tensors of task heads: {join_some(heads, SHOWN)}")
    return Match(names, untrained)


def _untrained(family: Family, weights: WeightMap, names: Mapping) -> frozenset[str]:
    """Parameters whose head or stack the files lack as a whole: a part of one is damage."""
    absent = {row.params: all(name not in names for name in row.names) for row in weights.rows}
    modules, stacks = {}, {stack: [] for stack in family.stacks}
    for row in weights.rows:
        if family.is_head(row.hf):
            for path in row.params:  # a kernel without its bias, or the reverse, is damage
                modules.setdefault(path.rpartition("/")[0] or path, []).append(row.params)
        for stack in family.stacks:
            if row.hf.startswith(stack):
                stacks[stack].append(row.params)
    lacking = [stack for stack, rows in stacks.items() if all(absent[row] for row in rows)]
    groups = [*modules.values(), *(stacks[stack] for stack in lacking if len(lacking) < len(stacks))]
    return frozenset(path for rows in groups if all(absent[row] for row in rows) for row in rows for path in row)
