"""Search for the best mesh, accumulation and remat policy on a topology."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator

from models.layers.backward import REMAT
from pretrain.errors import USER_ERRORS, UserError
from pretrain.metrics.progress import amount, still
from pretrain.parallel.mesh import AXES
from pretrain.plan import memory, step
from pretrain.plan.estimates import Choice, Estimate, Estimates
from pretrain.plan.topology import Topology
from pretrain.step.checks import batch_sizes

MAX_COMPILES = 10  # most programs to compile
MAX_SECONDS = 600  # CPU seconds; four times as many until one fits
MAX_MISSES = 4  # compilations without a promising candidate
USABLE_MEMORY = 0.9  # share of a device's memory that an estimate may use
SURE_FACTOR = 3  # this many times the estimated activations are surely enough
# Extra share of the activations allowed for an untried remat policy. Compiled programs took 0.8 to 2 times the
# estimate, 5 of 6 at most 1.7 (BERT base, GPT-2 medium, GPT-3 XL, T5-11B).
UNTRIED_MARGIN = 0.7
MAX_PARTS = 64  # most parts of a batch


def search(config, topology: Topology, report: Callable[[str], None] = lambda message: None) -> dict:
    """{"tried": counts of all, possible and compiled choices; "ended"; "seconds"; "ranked"; "best"; "plan"}.

    `ranked` has a row per compiled program: those that fit by time, then the others. `plan` is that of the best,
    `ended` the reason that the search stopped. Errors: UserError if nothing fits, naming the nearest choice.
    """
    devices = topology.devices()
    began, spent = time.perf_counter(), _processor_seconds()
    choices = list(candidates(config, topology.count))
    step.check_config(choices[0].apply(config) if choices else config)
    estimates = Estimates(config, topology, devices)
    rejections = Rejections(report)
    scored = _scored(estimates, choices, rejections)
    capacity = topology.hardware.memory or math.inf
    # Estimates of activations are at most about 4 times too high, so a quarter of them is a safe lower bound.
    possible = [(found, choice) for found, choice in scored if found.held + found.activations / 4 <= capacity]
    report(f"{len(choices):,} choices, {len(possible):,} may fit {topology.name}; compiling at most {MAX_COMPILES}")
    waiting = sorted(possible, key=lambda item: (item[0].seconds, item[0].activations))
    corrections, ranked, fitting, longest, ended = MemoryCorrections(), [], 0, 0.0, ""
    while waiting and not ended:
        place = _pick_next(waiting, corrections, capacity, fitting, len(ranked))
        if place is None:
            ended = "no other candidate would fit"
            break
        found, choice = waiting.pop(place)
        report(f"{len(ranked) + 1}: compiling {describe(choice)}")
        before = _processor_seconds()
        try:
            with still(report, f"compiling {len(ranked) + 1} of at most {min(MAX_COMPILES, len(possible))}"):
                facts = step.plan(choice.apply(config), topology, devices)
        except USER_ERRORS as error:
            rejections.add(choice, error)
            continue
        ranked.append((choice, facts))
        fits = facts["memory"]["fits"] is not False
        corrections.add(found, choice.remat, facts["memory"]["needed"], fits)
        report(f"{len(ranked)}: {result(facts)}")
        if fits:
            fitting += 1
            if facts is min((one for _, one in ranked), key=_rank):
                report(f"the best so far: {' '.join(choice.overrides())}")
            # Drop choices that can only be slower: same mesh with more parts or more recomputation.
            waiting = [item for item in waiting if not _is_slower(item[1], choice)]
        now = _processor_seconds()
        longest = max(longest, now - before)
        ended = _stop_reason(len(ranked), fitting, now - spent, longest)
    ended = f"{len(ranked)} of {len(possible):,} tried; {ended or 'no other can be faster'}"
    ranked.sort(key=lambda item: _rank(item[1]))
    if not fitting:
        causes = [*rejections.causes.values()] if possible or not scored else []
        raise UserError(_no_fit_message(config, topology, scored, ranked, causes, ended))
    best, facts = ranked[0]
    return {
        "tried": {"choices": len(choices), "possible": len(possible), "compiled": len(ranked)},
        "ended": ended,
        "seconds": time.perf_counter() - began,
        "ranked": [_row(choice, facts) for choice, facts in ranked],
        "best": best.overrides(),
        "plan": facts,
    }


class Rejections:
    """Choices rejected before compilation; the first of each cause is reported."""

    def __init__(self, report: Callable[[str], None]):
        self.report, self.causes = report, {}

    def add(self, choice: Choice, error: Exception) -> None:
        cause = re.sub(r"\d+", "#", str(error))  # sizes differ between meshes
        if cause not in self.causes:
            self.causes[cause] = f"{describe(choice)}: {error}"
            self.report(f"left out choices such as {self.causes[cause]}")


class MemoryCorrections:
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
        return 0.0 if remat in self.scale else UNTRIED_MARGIN * found.activations

    def add(self, found: Estimate, remat: str, needed: float, fits: bool) -> None:
        taken = needed - found.held
        if fits:
            # Once a policy has fitted, its estimate is trusted up to an additive error.
            scale = self.scale.setdefault(remat, 1.0)
            self.more = max(0.0, taken - found.activations * scale)
        else:
            self.scale[remat] = max(0.1, (taken - self.more) / max(found.activations, 1.0))


def _scored(estimates: Estimates, choices: list[Choice], rejections: Rejections) -> list[tuple[Estimate, Choice]]:
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
            rejections.add(choice, error)
    return scored


def _pick_next(waiting: list, corrections: MemoryCorrections, capacity: float, fitting: int, tried: int) -> int | None:
    """Index of the next choice to compile, fastest first; None to stop.

    The first one is almost sure to fit, which shows early whether the config fits at all. Until one fits, choices with
    room and well-known memory come first; if none has room, the smallest one, MAX_MISSES times at most. After one fits,
    choices with room come before those without.
    """
    if not tried:
        return min(range(len(waiting)), key=lambda place: (*_first_order(*waiting[place], capacity), place))
    needed = [corrections.needed(found, choice.remat) for found, choice in waiting]
    doubts = [corrections.doubt(found, choice.remat) for found, choice in waiting]
    enough = [place for place, bytes in enumerate(needed) if bytes + doubts[place] <= USABLE_MEMORY * capacity]
    if fitting:
        return next(iter(enough or (place for place, bytes in enumerate(needed) if bytes <= capacity)), None)
    if enough:
        return min(enough, key=lambda place: (*_memory_order(waiting[place][1]), place))
    return min(range(len(waiting)), key=needed.__getitem__) if tried < MAX_MISSES else None


def _first_order(found: Estimate, choice: Choice, capacity: float) -> tuple:
    """Sort key: surest to fit first. A choice that splits only rows and uses at most half the memory is sure to fit."""
    taken = found.held + SURE_FACTOR * found.activations
    if choice.sizes["sequence"] * choice.sizes["tensor"] == 1 and taken <= capacity / 2:
        return (0,)
    safe = taken <= USABLE_MEMORY * capacity
    return (1, not safe, *_memory_order(choice), 0.0 if safe else found.activations)


def _memory_order(choice: Choice) -> tuple:
    """Sort key: choices whose memory is best known first: all devices in fsdp, full remat."""
    return (choice.sizes["sequence"] * choice.sizes["tensor"], choice.sizes["data"], choice.remat != "full")


def _stop_reason(tried: int, fitting: int, seconds: float, longest: float) -> str:
    """The reason to stop compiling; "" to continue."""
    if seconds + longest > (MAX_SECONDS if fitting else 4 * MAX_SECONDS):
        return f"the time is up: {seconds:.0f} s of processors so far, and one more may take {longest:.0f}"
    return f"a search compiles at most {MAX_COMPILES}" if tried >= MAX_COMPILES else ""


def _processor_seconds() -> float:
    """CPU seconds of this process and its children."""
    return sum(os.times()[:4])


def _is_slower(one: Choice, fitting: Choice) -> bool:
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
        if any(stage.size % (data * fsdp) for stage in batch_sizes(config)):
            continue
        for parts in _divisors(train.batch_size, MAX_PARTS):
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


def _rank(facts: dict):
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
        "words": describe(choice),
        "result": result(facts),
        "overrides": choice.overrides(),
    }


def describe(choice: Choice) -> str:
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


def _no_fit_message(config, topology: Topology, scored, ranked, causes: list[str], ended: str) -> str:
    """Message if nothing fits."""
    start = f"--topology={topology.name}: {config.name} does not fit"
    if ranked:
        choice, facts = ranked[0]
        found = facts["memory"]
        most, _, remedy = memory.remedy(found["categories"], choice.apply(config), choice.sizes, found["capacity"])
        lacking = amount(-found["left"])
        return f"{start} ({ended}). Nearest: {describe(choice)}, {lacking}B too many, mostly {most}; {remedy}."
    if causes:
        return f"--search: no choice compiles, such as {causes[0]}"
    if not scored:
        return f"{start}: no mesh of {topology.count} devices divides batch and heads. Change config.train.batch_size."
    least, capacity = min(found.held for found, _ in scored), topology.hardware.memory
    return (
        f"{start}: parameters, optimizer state and gradients take {amount(least)}B of {amount(capacity)}B on each "
        f"device. Take {-(-least // capacity):.0f} times as many devices."
    )
