"""Search for the best mesh, accumulation and remat policy on a topology."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator

from models.layers.backward import REMAT
from pretrain.errors import USER_ERRORS, UserError
from pretrain.metrics.progress import amount
from pretrain.parallel.mesh import AXES
from pretrain.plan import memory, step
from pretrain.plan.estimates import Choice, Estimate, Estimates
from pretrain.plan.topology import Topology

TRIES = 10  # most programs to compile
SECONDS = 600  # CPU seconds; four times as many until one fits
MISSES = 4  # compilations without a promising candidate
ROOM = 0.9  # share of memory that an estimate may use
DOUBT = 3  # times the estimated activations are surely enough
# Extra share of the activations allowed for an untried remat policy. Compiled programs took 0.8 to 2 times the
# estimate, 5 of 6 at most 1.7 (BERT base, GPT-2 medium, GPT-3 XL, T5-11B).
UNSEEN = 0.7
MOST_PARTS = 64  # most parts of a batch


def search(config, topology: Topology, report: Callable[[str], None] = lambda message: None) -> dict:
    """{"tried": counts of choices, of possible ones, of compiled ones; "ended"; "ranked"; "best"; "plan"}.

    `ranked` has a row per compiled program: those that fit by time, then the others. `plan` is that of the best,
    `ended` the reason that the search stopped. Errors: UserError if nothing fits, naming the nearest choice.
    """
    devices = topology.devices()
    began, spent = time.perf_counter(), _processor_seconds()
    choices = list(candidates(config, topology.count))
    step.check_config(choices[0].apply(config) if choices else config)
    estimates = Estimates(config, topology, devices)
    refused = Refused(report)
    scored = _scored(estimates, choices, refused)
    capacity = topology.hardware.memory or math.inf
    # Estimates of activations are at most about 4 times too high, so a quarter of them is a safe lower bound.
    possible = [(found, choice) for found, choice in scored if found.held + found.activations / 4 <= capacity]
    report(f"{len(choices):,} choices, {len(possible):,} may fit {topology.name}; compiling at most {TRIES}")
    waiting = sorted(possible, key=lambda item: (item[0].seconds, item[0].activations))
    learnt, ranked, fitting, longest, ended = Learnt(), [], 0, 0.0, ""
    while waiting and not ended:
        place = _next(waiting, learnt, capacity, fitting, len(ranked))
        if place is None:
            ended = "no other candidate would fit"
            break
        found, choice = waiting.pop(place)
        report(f"{len(ranked) + 1}: compiling {words(choice)}")
        before = _processor_seconds()
        try:
            facts = step.plan(choice.apply(config), topology, devices)
        except USER_ERRORS as error:
            refused.add(choice, error)
            continue
        ranked.append((choice, facts))
        fits = facts["memory"]["fits"] is not False
        learnt.add(found, choice.remat, facts["memory"]["needed"], fits)
        report(f"{len(ranked)}: {result(facts)}")
        if fits:
            fitting += 1
            if facts is min((one for _, one in ranked), key=_order):
                report(f"the best so far: {' '.join(choice.overrides())}")
            # Drop choices that can only be slower: same mesh with more parts or more recomputation.
            waiting = [item for item in waiting if not _slower(item[1], choice)]
        now = _processor_seconds()
        longest = max(longest, now - before)
        ended = _ended(len(ranked), fitting, now - spent, longest)
    ended = f"{len(ranked)} of {len(possible):,} tried; {ended or 'no other can be faster'}"
    ranked.sort(key=lambda item: _order(item[1]))
    if not fitting:
        causes = [*refused.causes.values()] if possible or not scored else []
        raise UserError(_nothing(config, topology, scored, ranked, causes, ended))
    best, facts = ranked[0]
    return {
        "tried": {"choices": len(choices), "possible": len(possible), "compiled": len(ranked)},
        "ended": ended,
        "seconds": time.perf_counter() - began,
        "ranked": [_row(choice, facts) for choice, facts in ranked],
        "best": best.overrides(),
        "plan": facts,
    }


class Refused:
    """Choices that are refused before compilation; the first of each cause is reported."""

    def __init__(self, report: Callable[[str], None]):
        self.report, self.causes = report, {}

    def add(self, choice: Choice, error: Exception) -> None:
        cause = re.sub(r"\d+", "#", str(error))  # sizes differ between meshes
        if cause not in self.causes:
            self.causes[cause] = f"{words(choice)}: {error}"
            self.report(f"left out choices such as {self.causes[cause]}")


class Learnt:
    """Corrections of the memory estimates from compiled programs.

    A program that fits adds its excess over the estimate to all estimates; one that does not scales the activations of
    its remat policy, and those of untried policies by the worst scale.
    """

    def __init__(self):
        self.more, self.scale = 0.0, {}

    def needed(self, found: Estimate, remat: str) -> float:
        scale = self.scale.get(remat, max(self.scale.values(), default=1.0))
        return found.held + self.more + found.activations * scale

    def doubt(self, found: Estimate, remat: str) -> float:
        """Bytes that an untried policy may take beyond its estimate."""
        return 0.0 if remat in self.scale else UNSEEN * found.activations

    def add(self, found: Estimate, remat: str, needed: float, fits: bool) -> None:
        taken = needed - found.held
        if fits:
            # Once a policy has fitted, its estimate is trusted up to an additive error.
            scale = self.scale.setdefault(remat, 1.0)
            self.more = max(0.0, taken - found.activations * scale)
        else:
            self.scale[remat] = max(0.1, (taken - self.more) / max(found.activations, 1.0))


def _scored(estimates: Estimates, choices: list[Choice], refused: Refused) -> list[tuple[Estimate, Choice]]:
    """Choices that can run, with their estimates."""
    scored, checked, wrong = [], set(), set()
    for choice in choices:
        if choice.mesh in wrong:
            continue
        try:
            if choice.mesh not in checked:
                estimates.check(choice)
                checked.add(choice.mesh)
            scored.append((estimates.of(choice), choice))
        except USER_ERRORS as error:
            wrong.add(choice.mesh)
            refused.add(choice, error)
    return scored


def _next(waiting: list, learnt: Learnt, capacity: float, fitting: int, tried: int) -> int | None:
    """Index of the next choice to compile, fastest first; None to stop.

    The first one is almost sure to fit, so that it is soon known whether the config fits at all. Until one fits,
    choices with room and well-known memory come first; if none has room, the smallest one, MISSES times at most. After
    one fits, choices with room come before those without.
    """
    if not tried:
        return min(range(len(waiting)), key=lambda place: (*_unsure(*waiting[place], capacity), place))
    needed = [learnt.needed(found, choice.remat) for found, choice in waiting]
    doubts = [learnt.doubt(found, choice.remat) for found, choice in waiting]
    enough = [place for place, bytes in enumerate(needed) if bytes + doubts[place] <= ROOM * capacity]
    if fitting:
        return next(iter(enough or (place for place, bytes in enumerate(needed) if bytes <= capacity)), None)
    if enough:
        return min(enough, key=lambda place: (*_plainness(waiting[place][1]), place))
    return min(range(len(waiting)), key=needed.__getitem__) if tried < MISSES else None


def _unsure(found: Estimate, choice: Choice, capacity: float) -> tuple:
    """Sort key: surest to fit first. A choice that only splits rows and leaves half the memory is sure."""
    taken = found.held + DOUBT * found.activations
    if choice.sizes["sequence"] * choice.sizes["tensor"] == 1 and taken <= capacity / 2:
        return (0,)
    safe = taken <= ROOM * capacity
    return (1, not safe, *_plainness(choice), 0.0 if safe else found.activations)


def _plainness(choice: Choice) -> tuple:
    """Sort key: choices whose memory is best known first: all devices in fsdp, full remat."""
    return (choice.sizes["sequence"] * choice.sizes["tensor"], choice.sizes["data"], choice.remat != "full")


def _ended(tried: int, fitting: int, seconds: float, longest: float) -> str:
    """The reason to stop compiling; "" to go on."""
    if seconds + longest > (SECONDS if fitting else 4 * SECONDS):
        return f"the time is up: {seconds:.0f} s of processors so far, and one more may take {longest:.0f}"
    return "that is as many as a search compiles" if tried >= TRIES else ""


def _processor_seconds() -> float:
    """CPU seconds of this process and its children."""
    return sum(os.times()[:4])


def _slower(one: Choice, fitting: Choice) -> bool:
    """Whether a choice cannot beat one that fits: same mesh, more parts or more recomputation."""
    same = one.mesh == fitting.mesh and one.accumulate >= fitting.accumulate
    return same and one.remat in (fitting.remat, "full")


def candidates(config, count: int) -> Iterator[Choice]:
    """Every mesh of `count` devices that divides what it splits, with accumulation and remat policies."""
    model, train, length = config.model, config.train, config.data.length
    for mesh in meshes(count):
        data, fsdp, sequence, tensor = mesh
        # Ulysses-style attention trades sequence for heads, so heads divide over tensor and sequence together.
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
    """Sort key: fitting first, by time, then fewer warnings, then time without overlap.

    Without known rates: by recomputed FLOPs and bytes.
    """
    found, needed = facts["roofline"], facts["memory"]["needed"]
    if facts["memory"]["fits"] is False:
        return (True, needed)
    if not found:
        return (False, facts["flops"]["recomputed"], needed)
    return (False, found["step_seconds"], len(facts["warnings"]), found["apart_seconds"], needed)


def _row(choice: Choice, facts: dict) -> dict:
    found, kept = facts["roofline"], ("step_seconds", "apart_seconds", "bound", "mfu")
    return {
        "mesh": choice.sizes,
        "accumulate": choice.accumulate,
        "remat": choice.remat,
        "fits": facts["memory"]["fits"],
        "needed": facts["memory"]["needed"],
        **{name: found and found[name] for name in kept},
        "words": words(choice),
        "result": result(facts),
        "overrides": choice.overrides(),
    }


def words(choice: Choice) -> str:
    """A choice in a few words."""
    sizes = " ".join(f"{axis}={size}" for axis, size in choice.sizes.items() if size > 1) or "one device"
    return f"{sizes}, {choice.accumulate} part{'s' * (choice.accumulate > 1)}, remat {choice.remat}"


def result(facts: dict) -> str:
    """A plan in a few words."""
    needed = f"{amount(facts['memory']['needed'])}B a device"
    if facts["memory"]["fits"] is False:
        return f"does not fit, {needed}"
    found = facts["roofline"]
    if not found:
        return needed
    return f"fits, {needed}, {found['step_seconds']:.3g} s a step, bound by {found['bound']}, MFU {found['mfu']:.0%}"


def _nothing(config, topology: Topology, scored, ranked, causes: list[str], ended: str) -> str:
    """Message if nothing fits."""
    start = f"--topology={topology.name}: {config.name} does not fit"
    if ranked:
        choice, facts = ranked[0]
        found = facts["memory"]
        most, _, remedy = memory.remedy(found["categories"], choice.apply(config), choice.sizes, found["capacity"])
        lacking = amount(-found["left"])
        return f"{start} ({ended}). Nearest: {words(choice)}, {lacking}B too many, mostly {most}; {remedy}."
    if causes:
        return f"--search: no choice compiles, such as {causes[0]}"
    if not scored:
        return f"{start}: no mesh of {topology.count} devices divides batch and heads. Change config.train.batch_size."
    least, capacity = min(found.held for found, _ in scored), topology.hardware.memory
    return (
        f"{start}: parameters, optimizer state and gradients take {amount(least)}B of {amount(capacity)}B on each "
        f"device. Take {-(-least // capacity):.0f} times as many devices."
    )
