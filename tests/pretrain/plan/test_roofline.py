"""A step's least time: three divisions, and what moves in a program whose text is known."""

from types import SimpleNamespace

import numpy as np
import pytest

from pretrain.plan import hlo, roofline
from pretrain.plan.collectives import Collective
from pretrain.plan.topology import HARDWARE, Hardware

CHIP = Hardware("tpu", "x", "8x8", memory=1e9, flops=100.0, bandwidth=10.0, link=1.0, ring=4)
FLOPS = {"full": 4000.0, "causal": 3000.0}


def links(shape, sizes, hardware=CHIP):
    """A mesh (data, fsdp) of these sizes over chips that lie in rows of a pod of this shape."""
    places = [SimpleNamespace(coords=(x, y, 0)) for x in range(shape[0]) for y in range(shape[1])]
    devices = np.empty(len(places), object)
    devices[:] = places
    mesh = SimpleNamespace(axis_names=("data", "fsdp"), devices=devices.reshape(sizes))
    return roofline.Links(hardware, shape, mesh)


def gather(kind="all-gather", axes=("fsdp",), devices=4, size=80, times=2):
    return Collective(kind, axes, devices, size, times, "", "")


@pytest.mark.parametrize(
    ("moved", "collectives", "seconds", "bound"),
    [
        (50.0, [], {"compute": 4.0, "memory": 5.0, "interconnect": 0.0}, "memory"),
        (10.0, [], {"compute": 4.0, "memory": 1.0, "interconnect": 0.0}, "compute"),
        (10.0, [gather()], {"compute": 4.0, "memory": 1.0, "interconnect": 2 * 60 / 2}, "interconnect"),
        (10.0, [gather("all-reduce", ("data",), 2)], {"interconnect": 2 * 80 / 1}, "interconnect"),
    ],
)
def test_the_slowest_of_three_bounds(moved, collectives, seconds, bound):
    found = roofline.estimate(CHIP, 8, FLOPS, 200.0, moved, collectives, links((2, 4), (2, 4)))
    assert {name: found["seconds"][name] for name in seconds} == seconds
    step = max(found["seconds"].values())
    assert found["bound"] == bound and found["step_seconds"] == step
    assert found["mfu"] == 4000 / (step * 8 * 100) and found["apart_seconds"] == sum(found["seconds"].values())


def test_there_is_no_time_without_rates():
    assert roofline.estimate(HARDWARE["cpu"], 8, FLOPS, 0.0, 10.0, [], None) is None


@pytest.mark.parametrize(
    ("shape", "sizes", "axes", "bandwidth"),
    [
        ((4, 4), (4, 4), ("fsdp",), 2.0),  # along one closed ring, both ways
        ((4, 4), (1, 16), ("fsdp",), 4.0),  # along two
        ((2, 2), (2, 2), ("fsdp",), 1.0),  # along a line
        ((4, 2), (1, 8), ("fsdp",), 3.0),  # along a ring and a line
        ((4, 4), (4, 4), ("data", "fsdp"), 4.0),
    ],
)
def test_the_links_of_an_axis(shape, sizes, axes, bandwidth):
    assert links(shape, sizes).bandwidth(axes) == bandwidth


MOVES = """\
HloModule jit_step

%cut (p0: f32[24,100], p1: s32[], p2: f32[100]) -> f32[100] {
  %p0 = f32[24,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[100]{0} parameter(2)
  %slice = f32[1,100]{1,0} dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,100}
  %flat = f32[100]{0} bitcast(%slice)
  ROOT %sum = f32[100]{0} add(%flat, %p2)
}

%put (q0: f32[24,100], q1: f32[100], q2: s32[]) -> f32[24,100] {
  %q0 = f32[24,100]{1,0} parameter(0)
  %q1 = f32[100]{0} parameter(1)
  %q2 = s32[] parameter(2)
  %row = f32[1,100]{1,0} bitcast(%q1)
  ROOT %update = f32[24,100]{1,0} dynamic-update-slice(%q0, %row, %q2, %q2)
}

%body (s: (s32[], f32[24,100], f32[100])) -> (s32[], f32[24,100], f32[100]) {
  %s = (s32[], f32[24,100]{1,0}, f32[100]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %all = f32[24,100]{1,0} get-tuple-element(%s), index=1
  %x = f32[100]{0} get-tuple-element(%s), index=2
  %y = f32[100]{0} fusion(%all, %i, %x), kind=kLoop, calls=%cut
  %z = f32[24,100]{1,0} fusion(%all, %y, %i), kind=kLoop, calls=%put
  %near = f32[100]{0:S(1)} copy(%y)
  ROOT %t = (s32[], f32[24,100]{1,0}, f32[100]{0}) tuple(%i, %z, %y)
}

%cond (s1: (s32[], f32[24,100], f32[100])) -> pred[] {
  %s1 = (s32[], f32[24,100]{1,0}, f32[100]{0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (a: f32[24,100], b: f32[100]) -> f32[100] {
  %a = f32[24,100]{1,0} parameter(0)
  %b = f32[100]{0} parameter(1)
  %c = s32[] constant(0)
  %w = (s32[], f32[24,100]{1,0}, f32[100]{0}) tuple(%c, %a, %b)
  %l = (s32[], f32[24,100]{1,0}, f32[100]{0}) while(%w), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"24"}}
  %r = f32[100]{0} get-tuple-element(%l), index=2
  ROOT %o = f32[100]{0} multiply(%r, %b)
}
"""


def test_bytes_that_move():
    """Of stacked layers each turn of the loop reads one, and writes one."""
    read_a_layer = 400 + 4 + 400 + 400  # the slice, its place, the other operand, the sum
    write_a_layer = 400 + 4 + 400  # what is put, its place, where it is put
    to_the_chip = 400  # what is read; what lies near costs nothing
    assert roofline.moved(hlo.read(MOVES)) == 24 * (read_a_layer + write_a_layer + to_the_chip) + 3 * 400


NESTED = """\
HloModule jit_step

%turned (t0: f32[24,100]) -> f32[24,100] {
  %t0 = f32[24,100]{1,0} parameter(0)
  ROOT %t = f32[24,100]{0,1} copy(%t0)
}

%chosen (c0: f32[24,100], c1: s32[]) -> f32[100] {
  %c0 = f32[24,100]{1,0} parameter(0)
  %c1 = s32[] parameter(1)
  %slice = f32[1,100]{1,0} dynamic-slice(%c0, %c1, %c1), dynamic_slice_sizes={1,100}
  ROOT %flat = f32[100]{0} bitcast(%slice)
}

%outer (p0: f32[24,100], p1: f32[24,100], p2: s32[], p3: f32[24,100]) -> f32[100] {
  %p0 = f32[24,100]{1,0} parameter(0)
  %p1 = f32[24,100]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %p3 = f32[24,100]{1,0} parameter(3)
  %copied = f32[24,100]{0,1} fusion(%p0), kind=kLoop, calls=%turned
  %one = f32[1,100]{0,1} dynamic-slice(%copied, %p2, %p2), dynamic_slice_sizes={1,100}
  %x = f32[100]{0} bitcast(%one)
  %y = f32[100]{0} fusion(%p1, %p2), kind=kLoop, calls=%chosen
  %z = f32[100]{0} reduce(%p3, %p2), dimensions={0}
  %xy = f32[100]{0} add(%x, %y)
  ROOT %xyz = f32[100]{0} add(%xy, %z)
}

ENTRY %main (a: f32[24,100], b: f32[24,100], c: s32[], d: f32[24,100]) -> f32[100] {
  %a = f32[24,100]{1,0} parameter(0)
  %b = f32[24,100]{1,0} parameter(1)
  %c = s32[] parameter(2)
  %d = f32[24,100]{1,0} parameter(3)
  ROOT %o = f32[100]{0} fusion(%a, %b, %c, %d), kind=kLoop, calls=%outer
}
"""


def test_slices_are_seen_through_copies_and_in_fusions_within_a_fusion():
    """As of attention's rows in a loop: a slice of a copy, a slice in an inner fusion; one array is read whole."""
    assert roofline.moved(hlo.read(NESTED)) == 400 + 400 + 4 + 9600 + 400


def test_what_remat_computes_again():
    forward = {"attention projections": 1.0, "attention scores and values": 2.0, "logits": 4.0, "teacher": 8.0}
    again = {policy: roofline.recomputed(forward, policy, 10) for policy in ("none", "full", "dots", "dots_no_batch")}
    assert again == {"none": 0, "full": 30, "dots": 0, "dots_no_batch": 20}


ASYNCHRONOUS = """\
HloModule jit_step

ENTRY %main (a: f32[4,100], b: f32[100]) -> f32[100] {
  %a = f32[4,100]{1,0} parameter(0)
  %b = f32[100]{0} parameter(1)
  %s = ((f32[4,100]{1,0}), f32[1,100]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[1:2], [0:100]}
  %near = f32[1,100]{1,0:S(1)} slice-done(%s)
  %in = (f32[100]{0:S(1)}, f32[100]{0}, u32[]{:S(2)}) copy-start(%b)
  %here = f32[100]{0:S(1)} copy-done(%in)
  %out = (f32[100]{0}, f32[100]{0:S(1)}, u32[]{:S(2)}) copy-start(%here)
  %there = f32[100]{0} copy-done(%out)
  %g = (f32[100]{0}, f32[400]{0}) all-gather-start(%b), dimensions={0}
  %all = f32[400]{0} all-gather-done(%g)
  %r = (f32[100]{0}, f32[400]{0}) all-reduce-start(%b, %all), to_apply=%sum
  ROOT %d = (f32[100]{0}, f32[400]{0}) all-reduce-done(%r)
}
"""


def test_what_is_begun_is_counted_as_what_is_done_at_once():
    """Types of what begins name what is read too; a slice to the chip reads the slice."""
    to_the_chip_and_back = 400 + 400 + 400
    gathered, reduced = 400 + 1600, 2 * (400 + 1600)
    assert roofline.moved(hlo.read(ASYNCHRONOUS)) == to_the_chip_and_back + gathered + reduced
