"""Parser of compiled HLO text: computations, how often each runs, and the size of their arrays.

XLA prints one instruction per line, `%name = type opcode(operands), attribute=value, ...`; a kernel's notes may span
several lines. Called computations are named in `calls`, `to_apply`, `body` and similar attributes. Sizes are per
device, since the program is already partitioned.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator

ITEMSIZE = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}  # bytes; other names contain their bits
ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?")
HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{\s*$")
NAMED = re.compile(r"^\s*(?:ROOT )?%?([^\s=]+) = ")
CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([^\s,)}]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
ON_CHIP = re.compile(r"S\([1-9]\d*\)")  # a memory space other than the device's main memory


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of a type: bytes on one device, and whether it is in main memory."""

    bytes: int
    main: bool = True


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]  # names
    arguments: str  # text in the parentheses: the value of a constant or parameter
    attributes: str
    root: bool

    @property
    def arrays(self) -> list[Array]:
        """The result, tuples flattened."""
        return arrays(self.type)

    @property
    def bytes(self) -> int:
        return sum(array.bytes for array in self.arrays)

    def attribute(self, name: str) -> str:
        """The value of an attribute, braces included; "" if absent."""
        found = re.search(rf"(?:^|, ){name}=", self.attributes)
        return _value(self.attributes, found.end()) if found else ""


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name, and the entry."""

    computations: dict[str, list[Instruction]]
    entry: str

    def runs(self) -> tuple[Counter, bool]:
        """(executions of each computation, loops included; whether all trip counts are known)."""
        times, known = Counter(), True
        # Depth-first from the entry: a computation called from a loop of n iterations runs n times per call.
        waiting = [(self.entry, 1)]
        while waiting:
            name, count = waiting.pop()
            times[name] += count
            for one in self.computations[name]:
                turns = 1
                if one.opcode == "while":
                    turns = self.trips(one)
                    known, turns = known and turns is not None, turns or 1
                waiting += [(called, count * turns) for called in called_by(one) if called in self.computations]
        return times, known

    def trips(self, loop: Instruction) -> int | None:
        """Trip count of a loop: the compiler's note, or the bound in its condition; None if neither tells."""
        if noted := TRIPS.search(loop.attributes):
            return int(noted[1])
        # jax.lax.scan compares its counter, which starts at 0, with the only integer constant of the condition.
        condition = self.computations.get(loop.attribute("condition").lstrip("%"), ())
        bounds = [int(one.arguments) for one in condition if one.opcode == "constant" and one.arguments.isdigit()]
        return bounds[0] if len(bounds) == 1 else None


def read(text: str) -> Program:
    """Parse the text of `jax.stages.Compiled.as_text`."""
    # A computation starts with a header line that ends in "{" and ends with a line "}".
    lines, entry, current = {}, "", None
    for line in text.splitlines():
        if current is None:
            if header := HEADER.match(line):
                current = lines[header[2]] = []
                entry = header[2] if header[1] else entry
        elif line.rstrip() == "}":
            current = None
        elif NAMED.match(line):
            current.append(line)
        elif current:  # continuation: a kernel's notes may span lines
            current[-1] += line
    computations = {name: [_instruction(line, NAMED.match(line)) for line in of] for name, of in lines.items()}
    assert all(any(one.root for one in of) for of in computations.values()), "a computation without its ROOT"
    return Program(computations, entry)


def called_by(one: Instruction) -> Iterator[str]:
    """Names of the computations that an instruction runs; the end of an asynchronous one runs none."""
    if one.opcode.endswith(("-done", "-update")):
        return
    yield from CALLED.findall(one.attributes)
    if branches := BRANCHES.search(one.attributes):
        yield from (name.strip().lstrip("%") for name in branches[1].split(","))


def arrays(type: str) -> list[Array]:
    """The arrays of a type such as (bf16[8,128]{1,0:T(8,128)S(1)}, f32[])."""
    found = []
    for dtype, dims, layout in ARRAY.findall(type):
        # A dynamic dimension prints its bound as "<=8"; sizes of packed types such as s4 round up to whole bytes.
        count = math.prod(int(size.lstrip("<=")) for size in dims.split(",") if size)
        found.append(Array(math.ceil(count * itemsize(dtype)), not ON_CHIP.search(layout)))
    return found


def members(type: str) -> list[str]:
    """Types of a tuple's members; any other type itself."""
    if not type.startswith("("):
        return [type]
    parts, depth, start = [], 0, 1
    for place, letter in enumerate(type):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or (place == len(type) - 1):
            parts.append(type[start:place].strip())
            start = place + 1
    return [part for part in parts if part]


def itemsize(dtype: str) -> float:
    """Bytes per element of XLA's type, such as bf16, s4 or f8e4m3fn."""
    bits = re.match(r"[a-z]+?(\d+)", dtype)
    return ITEMSIZE[dtype] if dtype in ITEMSIZE else int(bits[1]) / 8 if bits else 0


def _instruction(line: str, named: re.Match) -> Instruction:
    start = named.end()
    # The type of a tuple is in parentheses and contains spaces; any other type ends at the first space.
    end = _closing(line, start) + 1 if line[start] == "(" else line.index(" ", start)
    opening = line.index("(", end)
    closing = _closing(line, opening)
    inside = line[opening + 1 : closing]
    return Instruction(
        name=named[1],
        opcode=line[end:opening].strip(),
        type=re.sub(r"/\*.*?\*/", "", line[start:end]),
        operands=tuple(re.findall(r"%([^\s,()]+)", inside)),
        arguments=inside,
        attributes=line[closing + 1 :].lstrip(", "),
        root=line.lstrip().startswith("ROOT "),
    )


def _closing(text: str, opening: int) -> int:
    """Position of the parenthesis that closes the one at `opening`."""
    depth = 0
    for found in re.finditer(r"[()]", text[opening:]):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return opening + found.start()
    return len(text) - 1


def _value(text: str, start: int) -> str:
    """The text from `start` to the next comma outside braces and brackets."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "{[(") - (text[place] in ")]}")
        if depth == 0 and text[place] == ",":
            return text[start:place]
    return text[start:]
