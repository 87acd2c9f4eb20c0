"""Collectives are read off the text of compiled programs: kinds, groups, loops, asynchronous pairs, bytes."""

import pytest

from pretrain.plan import hlo
from pretrain.plan.collectives import collectives, groups, summed

MESH = {"data": 2, "fsdp": 4, "sequence": 1, "tensor": 2}

LOOP = """\
HloModule jit_step, is_scheduled=true, num_partitions=16

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%body (state: (s32[], bf16[8,64])) -> (s32[], bf16[8,64]) {
  %state = (s32[], bf16[8,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %w = bf16[8,64]{1,0} get-tuple-element(%state), index=1
  %start = (bf16[8,64]{1,0}, bf16[32,64]{1,0}) all-gather-start(%w), channel_id=1, \
replica_groups=[4,4]<=[2,4,2]T(0,2,1), dimensions={0}, use_global_device_ids=true, \
metadata={op_name="jit(step)/while/body/(gather)" source_line=3}
  %done = bf16[32,64]{1,0:T(8,128)(2,1)S(1)} all-gather-done(%start)
  %part = bf16[8,64]{1,0} reduce-scatter(%done), channel_id=2, replica_groups={{0,2,4,6},{1,3,5,7},\
{8,10,12,14},{9,11,13,15}}, dimensions={0}, to_apply=%add
  ROOT %next = (s32[], bf16[8,64]{1,0}) tuple(%i, %part)
}

%condition (state: (s32[], bf16[8,64])) -> pred[] {
  %state.1 = (s32[], bf16[8,64]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %bound = s32[] constant(24)
  ROOT %less = pred[] compare(%i.1, %bound), direction=LT
}

%scattered (p: f32[64,8]) -> f32[16,8] {
  %p = f32[64,8]{1,0} parameter(0)
  %inner = f32[64,8]{1,0} all-reduce(%p), channel_id=7, replica_groups=[4,4]<=[2,4,2]T(0,2,1), to_apply=%add
  %place = s32[] partition-id()
  %zero = s32[] constant(0)
  ROOT %cut = f32[16,8]{1,0} dynamic-slice(%inner, %place, %zero), dynamic_slice_sizes={16,8}
}

%waiting (q: f32[4]) -> f32[8] {
  %q = f32[4]{0} parameter(0)
  ROOT %gathered = f32[8]{0} all-gather(%q), channel_id=9, replica_groups=[8,2]<=[16], dimensions={0}
}

ENTRY %main (a: bf16[8,64], b: f32[64,8], c: f32[4]) -> (bf16[8,64], f32[16,8]) {
  %a = bf16[8,64]{1,0} parameter(0)
  %b = f32[64,8]{1,0} parameter(1)
  %c = f32[4]{0} parameter(2)
  %zero.1 = s32[] constant(0)
  %begin = (s32[], bf16[8,64]{1,0}) tuple(%zero.1, %a)
  %loop = (s32[], bf16[8,64]{1,0}) while(%begin), condition=%condition, body=%body
  %all = (f32[], /*index=1*/f32[64,8]{1,0}) all-reduce(%zero.1, %b), channel_id=3, replica_groups={}, to_apply=%add
  %fused = f32[16,8]{1,0} fusion(%b), kind=kCustom, calls=%scattered
  %traded = f32[64,8]{1,0} all-to-all(%b), channel_id=4, replica_groups=[8,2]<=[16], dimensions={0}
  %sent = f32[64,8]{1,0} collective-permute(%b), channel_id=5, source_target_pairs={{0,2},{2,4},{4,6},{6,0}}
  %begun = ((f32[4]{0}), f32[8]{0}, u32[]) async-start(%c), calls=%waiting
  %ended = f32[8]{0} async-done(%begun), calls=%waiting
  %out = bf16[8,64]{1,0} get-tuple-element(%loop), index=1
  ROOT %result = (bf16[8,64]{1,0}, f32[16,8]{1,0}) tuple(%out, %fused)
}
"""


def test_every_kind_once():
    found = {(one.kind, one.axes, one.devices, one.bytes, one.times) for one in collectives(hlo.read(LOOP), MESH)}
    assert found == {
        ("all-gather", ("fsdp",), 4, 32 * 64 * 2, 24),
        ("reduce-scatter", ("fsdp",), 4, 32 * 64 * 2, 24),
        ("reduce-scatter", ("fsdp",), 4, 64 * 8 * 4, 1),  # the fusion
        ("all-reduce", ("data", "fsdp", "tensor"), 16, 64 * 8 * 4 + 4, 1),
        ("all-to-all", ("tensor",), 2, 64 * 8 * 4, 1),
        ("collective-permute", ("fsdp",), 2, 64 * 8 * 4, 1),
        ("all-gather", ("tensor",), 2, 8 * 4, 1),
    }


def test_they_are_summed_by_kind_and_axes():
    rows = {(row["kind"], *row["axes"]): row for row in summed(collectives(hlo.read(LOOP), MESH))}
    scatter = rows["reduce-scatter", "fsdp"]
    assert (scatter["in_program"], scatter["in_step"]) == (2, 25)
    assert scatter["bytes"] == 24 * 32 * 64 * 2 + 64 * 8 * 4 and scatter["sent"] == 0.75 * scatter["bytes"]
    assert rows["all-reduce", "data", "fsdp", "tensor"]["sent"] == 2 * 15 / 16 * (64 * 8 * 4 + 4)
    assert rows["collective-permute", "fsdp"]["sent"] == 64 * 8 * 4
    assert rows["all-gather", "fsdp"]["in_step"] == 24


def test_a_copy_of_one_that_is_under_way_is_not_another():
    """TPUs compute in fusions that hold the collective which goes on meanwhile."""
    copies = LOOP.replace(
        "  %ended =", "  %copy = f32[64,8]{1,0} all-to-all(%b), channel_id=4, replica_groups=[8,2]<=[16]\n  %ended ="
    )
    found = [one for one in collectives(hlo.read(copies), MESH) if one.kind == "all-to-all"]
    assert copies != LOOP and len(found) == 1


def test_a_reduce_scatter_that_is_begun_and_ended():
    """As GPUs have it: a tuple of what goes in and of what comes out."""
    begun = LOOP.replace(
        "%part = bf16[8,64]{1,0} reduce-scatter(%done)",
        "%part = ((f32[8]{0}, bf16[32,64]{1,0}), (f32[2]{0}, bf16[8,64]{1,0})) reduce-scatter-start(%done)",
    )
    (found,) = (one for one in collectives(hlo.read(begun), MESH) if one.name == "part")
    assert (found.kind, found.bytes, found.times) == ("reduce-scatter", 32 * 64 * 2 + 8 * 4, 24)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("[1,8]<=[8]", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=2] {'axis_0'}", [[0, 2], [1, 3]]),
        ("mesh['axis_0'=2,'axis_1'=2] {'axis_1','axis_0'}", [[0, 2, 1, 3]]),
        ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['a'=8]{'a':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ],
)
def test_groups(text, found):
    assert groups(text).tolist() == found


def test_groups_of_an_unknown_format():
    unknown = LOOP.replace("replica_groups={}, ", "replica_groups=@mesh, ")
    assert ("unknown",) in {one.axes for one in collectives(hlo.read(unknown), MESH)}


@pytest.mark.parametrize(
    ("line", "turns"),
    [
        ('body=%body, backend_config={"known_trip_count":{"n":"7"}}', 7),
        ("body=%body", 24),
    ],
)
def test_how_often_a_loop_turns(line, turns):
    program = hlo.read(LOOP.replace("body=%body\n", f"{line}\n"))
    assert program.runs()[0]["body"] == turns and program.runs()[1]


def test_a_loop_of_which_nobody_knows_counts_once():
    times, known = hlo.read(LOOP.replace("constant(24)", "parameter(1)")).runs()
    assert times["body"] == 1 and not known


def test_types():
    type = "(bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, f32[]{:S(0)}, pred[3], s4[8], u32[<=2])"
    assert [array.bytes for array in hlo.arrays(type)] == [2048, 4, 3, 4, 8]
    assert [array.main for array in hlo.arrays(type)] == [False, True, True, True, True]
    assert hlo.members("(f32[2]{0}, (bf16[3], s32[]), u32[])") == ["f32[2]{0}", "(bf16[3], s32[])", "u32[]"]


KERNEL = """\
ENTRY %main (q: f32[4]) -> f32[8] {
  %q = f32[4]{0} parameter(0)
  %kernel = f32[4]{0} custom-call(%q), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512}"
}}, metadata={op_name="jit(step)/splash_mha_fwd/pallas_call"}
  ROOT %gathered = f32[8]{0} all-gather(%kernel), channel_id=9, replica_groups=[8,2]<=[16], dimensions={0}
}
"""


def test_an_instruction_of_several_lines():
    """What followed a TPU's attention kernel, which notes its blocks so, was once not read."""
    program = hlo.read(KERNEL)
    assert [one.name for one in program.computations["main"]] == ["q", "kernel", "gathered"]
    assert program.computations["main"][1].attribute("metadata").startswith('{op_name="jit(step)/splash_mha_fwd')
    assert [one.kind for one in collectives(program, MESH)] == ["all-gather"]
