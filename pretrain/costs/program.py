"""What a traced program multiplies, by the scopes in which its products stand."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from jax.extend.core import Jaxpr, JaxprEqn, Literal

Charge = Callable[[JaxprEqn], int]  # from an equation to its multiply-adds


def _dot_general(equation: JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)


def _convolution(equation: JaxprEqn) -> int:
    kernel = equation.invars[1].aval
    features = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
    return equation.outvars[0].aval.size * kernel.size // features


PRODUCTS: Mapping[str, Charge] = {"dot_general": _dot_general, "conv_general_dilated": _convolution}


def multiply_adds(program: Jaxpr, charges: Mapping[str, Charge] = PRODUCTS) -> Counter[tuple[tuple[str, ...], str]]:
    """Multiply-adds of a program and of all that it calls: {(scopes, outermost first; primitive): how many}.

    `charges` has the primitives that cost something. A loop costs its body, times its length; of branches the dearest
    counts. The same product of the same numbers, written twice, is made once, as compilers see to. Raises ValueError
    for products that are made nobody knows how often.
    """
    total = Counter()
    for equation in _distinct(program):
        scopes, name = tuple(filter(None, str(equation.source_info.name_stack).split("/"))), equation.primitive.name
        if name in charges:
            total[scopes, name] += charges[name](equation)
            continue
        called = [multiply_adds(one, charges) for one in _called(equation)]
        if name in UNKNOWN and any(called):
            raise ValueError(f"there are products within '{name}', and no telling how often they are made")
        if name == "cond":
            called = [max(called, key=Counter.total)]
        times = equation.params["length"] if name == "scan" else 1
        for counter in called:
            for (inner, product), count in counter.items():
                total[scopes + inner, product] += times * count
    return total


UNKNOWN = ("while", "pallas_call")


def _called(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs that an equation runs: bodies of loops, of branches, of functions with a gradient of their own."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            program = getattr(one, "jaxpr", one)
            if isinstance(program, Jaxpr):
                yield program


def _distinct(program: Jaxpr) -> Iterator[JaxprEqn]:
    """The equations of a program without those that do what an earlier one did; such as run programs count each."""
    same, seen = {}, {}

    def known(value):
        return (str(value), value.aval) if isinstance(value, Literal) else same.get(value, value)

    for equation in program.eqns:
        if any(_called(equation)):
            yield equation
            continue
        key = equation.primitive, *map(known, equation.invars), *map(str, equation.params.items())
        if key in seen:
            same.update(zip(equation.outvars, seen[key], strict=True))
        else:
            seen[key] = equation.outvars
            yield equation
