"""The best way to run a config on a topology: layouts, parts of a batch and remat policies, compiled and ranked."""

import time
from collections.abc import Callable, Iterator

from models.stack.depth import REMAT
from pretrain.errors import USER_ERRORS, UserError
from pretrain.parallel.mesh import AXES
from pretrain.plan import memory, step
from pretrain.plan.estimates import Choice, Estimates
from pretrain.plan.topology import Topology
from pretrain.reporting.progress import amount

TRIES = 10  # programs that are compiled at most
SECONDS = 420  # after which no other is begun
MOST_PARTS = 64  # of a batch


def search(config, topology: Topology, report: Callable[[str], None] = lambda message: None) -> dict:
    """{"tried": how many choices there are, are left by estimates, were compiled; "ranked"; "best"; "plan"}.

    `ranked` has a row for each program that was compiled: those that fit by their least time, then those that do not.
    `plan` is that of the best. Errors: UserError where nothing fits, which says what came nearest.
    """
    devices = topology.devices()
    began = time.perf_counter()
    estimates = Estimates(config, topology, devices)
    choices = list(candidates(config, topology.count))
    capacity = topology.hardware.memory or float("inf")
    scored = []
    for choice in choices:
        try:
            found = estimates.of(choice)
        except USER_ERRORS:  # a size that does not divide
            continue
        scored.append((found, choice))
    possible = [(found, choice) for found, choice in scored if found.held + found.activations / 4 <= capacity]
    report(f"{len(choices):,} ways, of which {len(possible):,} may fit {topology.name}")
    waiting = sorted(possible, key=lambda item: (item[0].seconds, item[0].activations))
    ranked, plans, factor = [], {}, {}
    while waiting and len(ranked) < TRIES and time.perf_counter() - began < SECONDS:
        place = next(
            (
                place
                for place, (found, choice) in enumerate(waiting)
                if found.held + found.activations * factor.get(choice.remat, 1.0) <= capacity
            ),
            None,
        )
        if place is None:
            break
        found, choice = waiting.pop(place)
        try:
            facts = step.plan(choice.apply(config), topology, devices)
        except USER_ERRORS as error:
            report(f"left out, {_words(choice)}: {error}")
            continue
        ranked.append((choice, facts))
        plans[choice] = facts
        taken = facts["memory"]["needed"] - found.held
        factor[choice.remat] = max(0.1, taken / max(found.activations, 1.0))
        report(f"{len(ranked)}: {_words(choice)}: {_result(facts)}")
        if facts["memory"]["fits"] is not False:
            waiting = [item for item in waiting if not _slower(item[1], choice)]
    ranked.sort(key=lambda item: _order(item[1]))
    if not ranked or ranked[0][1]["memory"]["fits"] is False:
        raise UserError(_nothing(config, topology, scored, ranked))
    best, facts = ranked[0]
    return {
        "tried": {"choices": len(choices), "possible": len(possible), "compiled": len(ranked)},
        "seconds": time.perf_counter() - began,
        "ranked": [_row(choice, facts) for choice, facts in ranked],
        "best": best.overrides(),
        "plan": facts,
    }


def _slower(one: Choice, fitting: Choice) -> bool:
    """Whether a choice can be no faster than one that fits: more parts, or more computed again, on the same mesh."""
    same = one.mesh == fitting.mesh and one.accumulate >= fitting.accumulate
    return same and one.remat in (fitting.remat, "full")


def candidates(config, count: int) -> Iterator[Choice]:
    """Every mesh of so many devices whose axes divide what they split, with parts of the batch and remat policies."""
    model, train, length = config.model, config.train, config.data.length
    for mesh in meshes(count):
        data, fsdp, sequence, tensor = mesh
        if model.heads % (tensor * sequence) or length % sequence:
            continue
        for parts in _divisors(train.batch_size, MOST_PARTS):
            if train.batch_size // parts % (data * fsdp):
                continue
            for remat in REMAT:
                yield Choice(mesh, parts, remat)


def meshes(count: int) -> Iterator[tuple[int, ...]]:
    """All (data, fsdp, sequence, tensor) whose product is `count`."""

    def split(rest, axes):
        if axes == 1:
            yield (rest,)
            return
        for size in _divisors(rest, rest):
            for others in split(rest // size, axes - 1):
                yield (size, *others)

    yield from split(count, len(AXES))


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def _order(facts: dict):
    """Those that fit first, by their least time, then by what they take if nothing overlaps."""
    found = facts["roofline"]
    fits = facts["memory"]["fits"] is not False
    times = (found["step_seconds"], found["apart_seconds"]) if found else (facts["flops"]["recomputed"], 0.0)
    return (not fits, *(times if fits else (facts["memory"]["needed"], 0)), facts["memory"]["needed"])


def _row(choice: Choice, facts: dict) -> dict:
    found = facts["roofline"]
    return {
        "mesh": choice.sizes,
        "accumulate": choice.accumulate,
        "remat": choice.remat,
        "fits": facts["memory"]["fits"],
        "needed": facts["memory"]["needed"],
        "step_seconds": found and found["step_seconds"],
        "apart_seconds": found and found["apart_seconds"],
        "bound": found and found["bound"],
        "mfu": found and found["mfu"],
        "overrides": choice.overrides(),
    }


def _words(choice: Choice) -> str:
    sizes = " ".join(f"{axis}={size}" for axis, size in choice.sizes.items() if size > 1) or "one device"
    return f"{sizes}, {choice.accumulate} part{'s' * (choice.accumulate > 1)}, remat {choice.remat}"


def _result(facts: dict) -> str:
    needed = f"{amount(facts['memory']['needed'])}B a device"
    if facts["memory"]["fits"] is False:
        return f"does not fit, {needed}"
    found = facts["roofline"]
    return f"{needed}, {found['step_seconds']:.3g} s a step, bound by {found['bound']}" if found else needed


def _nothing(config, topology: Topology, scored, ranked) -> str:
    """The sentence where nothing fits."""
    capacity = topology.hardware.memory
    start = f"no way was found to fit {config.name} into {topology.name}"
    if ranked:
        choice, facts = ranked[0]
        rows = facts["memory"]["categories"]
        most, remedy = memory.remedy(rows, choice.apply(config), choice.sizes, facts["memory"]["capacity"])
        lacking = amount(-facts["memory"]["left"])
        return f"{start}: nearest came {_words(choice)}, with {lacking}B too many, the most of them {most}; {remedy}"
    if not scored:
        return (
            f"{start}: no mesh of {topology.count} devices divides its batch and heads; change config.train.batch_size"
        )
    least = min(scored, key=lambda item: item[0].held)
    times = -(-least[0].held // capacity)
    return (
        f"{start}: parameters, optimiser state and gradients alone take {amount(least[0].held)}B of "
        f"{amount(capacity)}B on each device with {_words(least[1])}; take about {times:.0f} times as many devices"
    )
