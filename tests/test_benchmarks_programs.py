"""Costs read off programs that are written by hand: every figure in them can be counted."""

import pytest

from benchmarks.programs import BANDWIDTH, LAUNCH, OPERATION_RATE, READ_BACK, WEIGHTS, Cost, Program

# A loop of a TPU. Its fusions take CYCLES, END is a constant or not, LOOP what the compiler adds.
LOOP = """
%fused (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %double = f32[8,128]{1,0:T(8,128)} add(%p, %p)
}

%condition (state: (s32[], f32[8,128])) -> pred[] {
  %state = (s32[], f32[8,128]{1,0:T(8,128)}) parameter(0)
  %step = s32[]{:T(128)} get-tuple-element(%state), index=0
  %end = s32[]{:T(128)} END
  ROOT %less = pred[]{:T(512)} compare(%step, %end), direction=LT
}

%body (state.1: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %state.1 = (s32[], f32[8,128]{1,0:T(8,128)}) parameter(0)
  %step.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%step.1, %one)
  %array = f32[8,128]{1,0:T(8,128)} get-tuple-element(%state.1), index=1
  %work = f32[8,128]{1,0:T(8,128)} fusion(%array), kind=kLoop, calls=%fused, backend_config={CYCLES}
  ROOT %result = (s32[], f32[8,128]{1,0:T(8,128)}) tuple(%next, %work)
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %first = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused, backend_config={CYCLES}
  %start = (s32[], f32[8,128]{1,0:T(8,128)}) tuple(%zero, %first)
  %loop = (s32[], f32[8,128]{1,0:T(8,128)}) while(%start), condition=%condition, body=%bodyLOOP
  ROOT %last = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""
CYCLES = '"window_config":{"kernel_window_bounds":[],"estimated_cycles":"700"}'
KNOWN = ', backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"1"}}'

BRANCHES = """
%short (p.1: f32[64]) -> f32[64] {
  %p.1 = f32[64]{0} parameter(0)
  ROOT %once = f32[64]{0} negate(%p.1)
}

%long (p.2: f32[64]) -> f32[64] {
  %p.2 = f32[64]{0} parameter(0)
  %twice = f32[64]{0} negate(%p.2)
  ROOT %thrice = f32[64]{0} negate(%twice)
}

ENTRY %main (which: s32[], x: f32[64]) -> f32[64] {
  %which = s32[] parameter(0)
  %x = f32[64]{0} parameter(1)
  ROOT %one = f32[64]{0} conditional(%which, %x, %x), branch_computations={%short, %long}
}
"""

SORT = """
%less (a: f32[], b: f32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (x: f32[LISTS,SIZE]) -> f32[LISTS,SIZE] {
  %x = f32[LISTS,SIZE]{1,0} parameter(0)
  ROOT %sorted = f32[LISTS,SIZE]{1,0} sort(%x), dimensions={1}, to_apply=%less
}
"""

ELEMENTWISE = """
%fused (p.0: f32[4096,1024], p.1: f32[4096]) -> bf16[4096,1024] {
  %p.0 = f32[4096,1024]{1,0} parameter(0)
  %p.1 = f32[4096]{0} parameter(1)
  %wide = f32[4096,1024]{1,0} broadcast(%p.1), dimensions={0}
  %difference = f32[4096,1024]{1,0} subtract(%p.0, %wide)
WORK
  ROOT %half = bf16[4096,1024]{1,0} convert(%difference)
}

ENTRY %main (x: f32[4096,1024], y: f32[4096]) -> bf16[4096,1024] {
  %x = f32[4096,1024]{1,0} parameter(0)
  %y = f32[4096]{0} parameter(1)
  ROOT %fusion = bf16[4096,1024]{1,0} fusion(%x, %y), kind=kLoop, calls=%fused
}
"""
ELEMENTS = 4096 * 1024


def loop(end: str, known: str) -> Program:
    text = LOOP.replace("END", end).replace("CYCLES", CYCLES).replace("LOOP", known)
    return Program(text)


def sort(lists: int, size: int) -> Cost:
    text = SORT.replace("LISTS", str(lists)).replace("SIZE", str(size))
    return Program(text).cost("gpu")


# --- TPU


def test_loop_runs_as_often_as_the_constant_in_its_condition_says() -> None:
    cost = loop("constant(3)", known="").cost("tpu")
    assert cost.time == 700 + 3 * 700
    assert cost.steps == 1 + 3  # the addition of the scalar core is no step
    assert cost.loops == 0


def test_loop_runs_as_often_as_the_compiler_says() -> None:
    cost = loop("get-tuple-element(%state), index=0", KNOWN).cost("tpu")
    assert cost.time == 700 + 5 * 700


def test_loop_of_unknown_length_counts_once_and_is_reported() -> None:
    cost = loop("get-tuple-element(%state), index=0", known="").cost("tpu")
    assert (cost.time, cost.loops) == (700 + 700, 1)


def test_sort_has_no_estimate() -> None:
    text = SORT.replace("LISTS", "32").replace("SIZE", "200")
    assert Program(text).cost("tpu") == Cost(time=0.0, steps=1, sorts=1)


def test_transfers_and_names_of_memory_are_no_steps() -> None:
    text = """
ENTRY %main (x: f32[64,128]) -> f32[64,128] {
  %x = f32[64,128]{1,0} parameter(0)
  %copy-start = (f32[64,128]{1,0:S(1)}, f32[64,128]{1,0}, u32[]{:S(2)}) copy-start(%x)
  %copy-done = f32[64,128]{1,0:S(1)} copy-done(%copy-start)
  %buffer = f32[64,128]{1,0} custom-call(), custom_call_target="AllocateBuffer"
  ROOT %call = f32[64,128]{1,0} custom-call(%copy-done, %buffer), custom_call_target="Other"
}
"""
    assert Program(text).cost("tpu") == Cost(steps=1, unknown=1)


# --- GPU


def test_branch_costs_a_read_back_and_its_dearest_side() -> None:
    cost = Program(BRANCHES).cost("gpu")
    assert cost.time == READ_BACK + 2 * LAUNCH
    assert cost.steps == 1 + 2


def test_short_lists_are_sorted_by_one_kernel() -> None:
    stages = 8  # 2^8 = 256 holds 200
    comparisons = 4096 * 256 / 2 * (stages * (stages + 1) / 2)
    cost = sort(lists=4096, size=200)
    assert (cost.steps, cost.sorts) == (1, 1)
    assert cost.time == pytest.approx(6 * comparisons / OPERATION_RATE)


def test_small_sort_takes_a_launch() -> None:
    assert sort(lists=1, size=200).time == LAUNCH


def test_long_list_is_sorted_by_many_kernels() -> None:
    # A tile holds 2^11 = 2,048. Sorting 2^14 takes the stages 12, 13 and 14 beyond it, with a
    # kernel for each of 1, 2 and 3 distances beyond the tile, and one for those within.
    kernels = 1 + (1 + 1) + (2 + 1) + (3 + 1)
    cost = sort(lists=1, size=10_000)
    assert (cost.steps, cost.sorts) == (kernels, 1)
    assert cost.time == kernels * LAUNCH  # 80 kB are moved within a launch


def test_elementwise_fusion_takes_its_bytes() -> None:
    cost = Program(ELEMENTWISE.replace("WORK\n", "")).cost("gpu")
    read, written = 4 * (ELEMENTS + 4096), 2 * ELEMENTS
    assert cost.time == pytest.approx((read + written) / BANDWIDTH)
    assert cost.steps == 1


def test_elementwise_fusion_takes_its_operations_where_they_are_more() -> None:
    work = "".join(
        f"  %exponential.{i} = f32[4096,1024]{{1,0}} exponential(%difference)\n" for i in range(9)
    )
    cost = Program(ELEMENTWISE.replace("WORK\n", work)).cost("gpu")
    operations = 1 + 9 * WEIGHTS["exponential"] + 1  # the difference, the work, the conversion
    assert cost.time == pytest.approx(operations * ELEMENTS / OPERATION_RATE)


def test_reduction_counts_what_it_reads() -> None:
    text = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4096,1024]) -> f32[4096] {
  %x = f32[4096,1024]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %reduce = f32[4096]{0} reduce(%x, %zero), dimensions={1}, to_apply=%sum
}
"""
    read, written = 4 * (ELEMENTS + 1), 4 * 4096
    assert Program(text).cost("gpu").time == pytest.approx((read + written) / BANDWIDTH)


HIGHEST = ", operand_precision={highest,highest}"


@pytest.mark.parametrize(("precision", "speed"), [("", 8), (HIGHEST, 1)])
def test_product_runs_in_tensor_cores_unless_it_must_be_exact(precision: str, speed: int) -> None:
    dot = f"dot(%x, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{precision}"
    text = f"""
ENTRY %main (x: f32[4096,512], y: f32[512,1024]) -> f32[4096,1024] {{
  %x = f32[4096,512]{{1,0}} parameter(0)
  %y = f32[512,1024]{{1,0}} parameter(1)
  ROOT %dot = f32[4096,1024]{{1,0}} {dot}
}}
"""
    multiplications = ELEMENTS * 512
    expected = multiplications / speed / OPERATION_RATE
    assert Program(text).cost("gpu").time == pytest.approx(expected)
