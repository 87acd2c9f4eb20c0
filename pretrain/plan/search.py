"""The best way to run a config on a topology: layouts, parts of a batch and remat policies, compiled and ranked."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator

from models.transformer.layer_stack import REMAT
from pretrain.errors import USER_ERRORS, UserError
from pretrain.metrics.progress import amount
from pretrain.parallel.mesh import AXES
from pretrain.plan import memory, step
from pretrain.plan.estimates import Choice, Estimate, Estimates
from pretrain.plan.topology import Topology

TRIES = 10  # programs that are compiled at most
SECONDS = 600  # of processors, that no other is begun to exceed; four times as many while none has fitted
MISSES = 4  # that are compiled although none promises to fit
ROOM = 0.9  # of a device's memory, that is hoped to be enough
DOUBT = 3  # times the activations that are estimated: so many are sure to be enough
# Of the activations, that a policy which was not compiled yet is allowed beside them. Where they are most of what is
# needed, programs took 0.8 to 2 times the estimate, 5 of 6 at most 1.7 (BERT base, GPT-2 medium, GPT-3 XL, T5-11B).
UNSEEN = 0.7
MOST_PARTS = 64  # of a batch


def search(config, topology: Topology, report: Callable[[str], None] = lambda message: None) -> dict:
    """{"tried": how many choices there are, are left by estimates, were compiled; "ended"; "ranked"; "best"; "plan"}.

    `ranked` has a row for each program that was compiled: those that fit by their least time, then those that do not.
    `plan` is that of the best, `ended` says why no more were compiled. Errors: UserError where nothing fits, which says
    what came nearest, and whether the rest is unknown.
    """
    devices = topology.devices()
    began, spent = time.perf_counter(), _processor_seconds()
    choices = list(candidates(config, topology.count))
    step.check_config(choices[0].apply(config) if choices else config)
    estimates = Estimates(config, topology, devices)
    refused = Refused(report)
    scored = _scored(estimates, choices, refused)
    refused.tell()
    capacity = topology.hardware.memory or math.inf
    possible = [(found, choice) for found, choice in scored if found.held + found.activations / 4 <= capacity]
    report(f"{len(choices):,} ways, of which {len(possible):,} may fit {topology.name}; at most {TRIES} are compiled")
    waiting = sorted(possible, key=lambda item: (item[0].seconds, item[0].activations))
    learnt, ranked, fitting, longest, ended = Learnt(), [], 0, 0.0, ""
    while waiting and not ended:
        place = _next(waiting, learnt, capacity, fitting, len(ranked))
        if place is None:
            ended = "by what was learnt of memory, no other would fit"
            break
        found, choice = waiting.pop(place)
        report(f"{len(ranked) + 1}: compiling {words(choice)}")
        before = _processor_seconds()
        try:
            facts = step.plan(choice.apply(config), topology, devices)
        except USER_ERRORS as error:
            refused.add(choice, error)
            refused.tell()
            continue
        ranked.append((choice, facts))
        fits = facts["memory"]["fits"] is not False
        learnt.add(found, choice.remat, facts["memory"]["needed"], fits)
        report(f"{len(ranked)}: {result(facts)}")
        if fits:
            fitting += 1
            if facts is min((one for _, one in ranked), key=_order):
                report(f"the best so far: {' '.join(choice.overrides())}")
            waiting = [item for item in waiting if not _slower(item[1], choice)]
        now = _processor_seconds()
        longest = max(longest, now - before)
        ended = _ended(len(ranked), fitting, now - spent, longest)
    ended = f"{len(ranked)} of {len(possible):,} tried; {ended or 'no other can be better'}"
    ranked.sort(key=lambda item: _order(item[1]))
    if not fitting:
        unseen = refused.causes and not ranked and (possible or not scored)
        raise UserError(refused.all() if unseen else _nothing(config, topology, scored, ranked, ended))
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
    """Choices that are refused before they are compiled, told of once for each cause."""

    def __init__(self, report: Callable[[str], None]):
        self.report, self.causes, self.told = report, {}, set()

    def add(self, choice: Choice, error: Exception) -> None:
        cause = re.sub(r"\d+", "#", str(error))  # sizes differ from mesh to mesh
        self.causes.setdefault(cause, []).append((choice, str(error)))

    def tell(self) -> None:
        for cause, several in self.causes.items():
            if cause not in self.told:
                choice, error = several[0]
                self.report(f"left out, {len(several):,} such as {words(choice)}: {error}")
                self.told.add(cause)

    def all(self) -> str:
        """The sentence where none is left to be compiled."""
        choice, error = next(iter(self.causes.values()))[0]
        return f"no way can be compiled; of {words(choice)} is said: {error}"


class Learnt:
    """What programs that were compiled say of the estimates of memory.

    Of one that fits, what it takes above its estimate is added to that of all; by one that does not, activations are
    scaled, those of policies that were not compiled yet by the worst.
    """

    def __init__(self):
        self.more, self.scale = 0.0, {}

    def needed(self, found: Estimate, remat: str) -> float:
        scale = self.scale.get(remat, max(self.scale.values(), default=1.0))
        return found.held + self.more + found.activations * scale

    def doubt(self, found: Estimate, remat: str) -> float:
        """Bytes that it may take beyond those, for all that is known."""
        return 0.0 if remat in self.scale else UNSEEN * found.activations

    def add(self, found: Estimate, remat: str, needed: float, fits: bool) -> None:
        taken = needed - found.held
        if fits:
            scale = self.scale.setdefault(remat, 1.0)
            self.more = max(0.0, taken - found.activations * scale)
        else:
            self.scale[remat] = max(0.1, (taken - self.more) / max(found.activations, 1.0))


def _scored(estimates: Estimates, choices: list[Choice], refused: Refused) -> list[tuple[Estimate, Choice]]:
    """The choices that can be run at all, with their estimates."""
    scored, wrong = [], {}
    for choice in choices:
        try:
            if choice.mesh not in wrong:
                wrong[choice.mesh] = None
                estimates.check(choice)
            if wrong[choice.mesh]:
                raise wrong[choice.mesh]
            scored.append((estimates.of(choice), choice))
        except USER_ERRORS as error:
            wrong[choice.mesh] = error
            refused.add(choice, error)
    return scored


def _next(waiting: list, learnt: Learnt, capacity: float, fitting: int, tried: int) -> int | None:
    """The place of what is compiled next among those that wait, the fastest first; None where nothing is worth it.

    The first one is sure to fit, as far as estimates can be: so whether the config fits at all is known soon. While
    none has fitted, the next leaves room and is of a kind whose memory is the surest; where none leaves room, it is the
    one that takes the least, a few times. Once one has fitted, those that leave room come before those that do not.
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
    """Orders choices: the surest to fit first. Any is sure that splits rows alone and leaves much room."""
    taken = found.held + DOUBT * found.activations
    if choice.sizes["sequence"] * choice.sizes["tensor"] == 1 and taken <= capacity / 2:
        return (0,)
    safe = taken <= ROOM * capacity
    return (1, not safe, *_plainness(choice), 0.0 if safe else found.activations)


def _plainness(choice: Choice) -> tuple:
    """Orders choices: those first whose memory is the surest, all devices in fsdp and every layer computed again."""
    return (choice.sizes["sequence"] * choice.sizes["tensor"], choice.sizes["data"], choice.remat != "full")


def _ended(tried: int, fitting: int, seconds: float, longest: float) -> str:
    """Why no other is compiled, which might take as long as the longest did; "" where one is."""
    if seconds + longest > (SECONDS if fitting else 4 * SECONDS):
        return f"the time is up: {seconds:.0f} s of processors so far, and one more may take {longest:.0f}"
    return "that is as many as a search compiles" if tried >= TRIES else ""


def _processor_seconds() -> float:
    """Seconds that processors worked for this process and its children."""
    return sum(os.times()[:4])


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
    """Those that fit first, by their least time, where there is less to warn of, by the time if nothing overlaps.

    Where no times are known, by what is computed again and by bytes alone.
    """
    found, needed = facts["roofline"], facts["memory"]["needed"]
    if facts["memory"]["fits"] is False:
        return (True, needed)
    if not found:
        return (False, facts["flops"]["recomputed"], needed)
    return (False, found["step_seconds"], len(facts["warnings"]), found["apart_seconds"], needed)


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
        "words": words(choice),
        "result": result(facts),
        "overrides": choice.overrides(),
    }


def words(choice: Choice) -> str:
    """A choice in a few words."""
    sizes = " ".join(f"{axis}={size}" for axis, size in choice.sizes.items() if size > 1) or "one device"
    return f"{sizes}, {choice.accumulate} part{'s' * (choice.accumulate > 1)}, remat {choice.remat}"


def result(facts: dict) -> str:
    """What a plan says, in a few words."""
    needed = f"{amount(facts['memory']['needed'])}B a device"
    if facts["memory"]["fits"] is False:
        return f"does not fit, {needed}"
    found = facts["roofline"]
    if not found:
        return needed
    return f"fits, {needed}, {found['step_seconds']:.3g} s a step, bound by {found['bound']}, MFU {found['mfu']:.0%}"


def _nothing(config, topology: Topology, scored, ranked, ended: str) -> str:
    """The sentence where nothing fits."""
    capacity = topology.hardware.memory
    start = f"no way was found to fit {config.name} into {topology.name}"
    if ranked:
        choice, facts = ranked[0]
        rows = facts["memory"]["categories"]
        most, _, remedy = memory.remedy(rows, choice.apply(config), choice.sizes, facts["memory"]["capacity"])
        lacking = amount(-facts["memory"]["left"])
        return (
            f"{start}: {ended}, so whether the others fit is unknown; nearest came {words(choice)}, with {lacking}B "
            f"too many, the most of them {most}; {remedy}"
        )
    if not scored:
        return (
            f"{start}: no mesh of {topology.count} devices divides its batch and heads; change config.train.batch_size"
        )
    least = min(scored, key=lambda item: item[0].held)
    times = -(-least[0].held // capacity)
    return (
        f"{start}: parameters, optimiser state and gradients alone take {amount(least[0].held)}B of "
        f"{amount(capacity)}B on each device with {words(least[1])}; take about {times:.0f} times as many devices"
    )
