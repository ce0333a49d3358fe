"""What a compiled program of XLA costs on a GPU or TPU, read off its text.

The compilers for both devices run on a machine that has neither. What comes out is a list of
kernels, and their cost is estimated:

- TPU: the compiler writes its own estimate, in cycles, beside every fusion; kernels without one
  (sorts above all, and gathers) are counted apart.
- GPU: a kernel takes the longest of its launch, its bytes at the memory's bandwidth and its
  operations at the processor's rate. A loop whose number of steps the device decides, and a branch
  on a value of the device, cost a read-back.

The body of a loop is multiplied by its number of steps. Nothing here knows about occupancy, caches
or overlap, so a ratio of two programs means more than either number.
"""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# An A100: bytes and simple operations per microsecond, of which fused code reaches some 60 %.
BANDWIDTH = 1.6e6
OPERATION_RATE = 0.6 * 108 * 64 * 1.41e3
# Multiplications with addition in tensor cores (TF32) in the time of one simple operation.
TENSOR_CORES = 8
LAUNCH = 2.5
READ_BACK = 12.0
# Simple operations that one of these takes on a GPU: special functions run at a quarter of the
# rate, and what is not one of them is a sequence of simple operations around one.
WEIGHTS = {
    "exponential": 6,
    "exponential-minus-one": 16,
    "log": 8,
    "log-plus-one": 16,
    "logistic": 14,
    "tanh": 12,
    "erf": 16,
    "divide": 8,
    "sqrt": 6,
    "rsqrt": 5,
    "power": 24,
    "sine": 12,
    "cosine": 12,
    "remainder": 16,
}
FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "broadcast",
    "reshape",
    "transpose",
    "copy",
    "slice",
    "pad",
    "concatenate",
    "reverse",
    "opt-barrier",
    "after-all",
    "partition-id",
    "replica-id",
}
NO_KERNEL = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "opt-barrier",
    "after-all",
    "partition-id",
    "replica-id",
    # Memory is fetched ahead, beside other kernels.
    "copy-start",
    "copy-done",
    "slice-start",
    "slice-done",
    "async-done",
    "async-update",
}
# Custom calls of the TPU that only name memory.
NAMES_MEMORY = ("AllocateBuffer", "ConcatBitcast", "GatherScatterIndicesBitpacked")
# XLA for GPU sorts by a bitonic network: what fits into this tile is one kernel.
SORT_TILE = 2048
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
BYTES |= {"s64": 8, "u64": 8, "f64": 8, "c64": 8, "token": 0}


@dataclass
class Instruction:
    """One line of a program."""

    name: str
    opcode: str
    type: str
    operands: list[str]
    attributes: str
    root: bool

    def called(self, attribute: str) -> str | None:
        """The computation that an attribute names."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found.group(1) if found else None


@dataclass
class Computation:
    """The instructions of one computation, in the order in which they run."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The result."""
        return next(x for x in self.instructions.values() if x.root)


@dataclass
class Cost:
    """An estimate: of time, in cycles (TPU) or microseconds (GPU), and of what it is made of."""

    time: float = 0.0
    steps: float = 0.0  # kernels launched one after another
    sorts: float = 0.0  # on a TPU they have no estimate
    unknown: float = 0.0  # further kernels without an estimate
    loops: int = 0  # loops whose number of steps is not known

    def add(self, other: "Cost", times: float = 1.0) -> None:
        """Adds the cost of a part that runs so many times."""
        self.time += times * other.time
        self.steps += times * other.steps
        self.sorts += times * other.sorts
        self.unknown += times * other.unknown
        self.loops += other.loops


class Program:
    """An optimised program, as `compiled.as_text()` gives it."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        current: Computation | None = None
        for line in text.splitlines():
            header = re.match(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$", line)
            if header and " = " not in line:
                current = Computation(header.group(2))
                self.computations[current.name] = current
                if header.group(1):
                    self.entry = current.name
            elif line.startswith("}"):
                current = None
            elif current is not None and " = " in line:
                instruction = _parse(line)
                current.instructions[instruction.name] = instruction

    def cost(self, platform: str) -> Cost:
        """The estimate for `"tpu"` or `"gpu"`."""
        return self._cost(self.entry, platform)

    def _cost(self, name: str, platform: str) -> Cost:
        computation, total = self.computations[name], Cost()
        for instruction in computation.instructions.values():
            if instruction.opcode == "while":
                total.add(*self._loop(instruction, platform))
            elif instruction.opcode == "conditional":
                total.add(self._branch(instruction, platform))
            elif instruction.opcode == "call":
                total.add(self._cost(instruction.called("to_apply") or "", platform))
            elif instruction.opcode == "async-start":
                total.add(self._cost(instruction.called("calls") or "", platform))
            elif instruction.opcode not in NO_KERNEL:
                total.add(self.kernel(computation, instruction, platform))
        return total

    def _loop(self, instruction: Instruction, platform: str) -> tuple[Cost, float]:
        body = self._cost(instruction.called("body") or "", platform)
        steps = self.trip_count(instruction)
        if steps is None:
            body.loops += 1
            if platform == "gpu":
                body.time += READ_BACK
            return body, 1.0
        return body, steps

    def trip_count(self, loop: Instruction) -> int | None:
        """The steps of a loop: where the compiler says so, or the constant in its condition."""
        known = re.search(r'known_trip_count[^0-9]*"?n"?[^0-9]*(\d+)', loop.attributes)
        if known:
            return int(known.group(1))
        condition = self.computations[loop.called("condition") or ""]
        text = [condition, *(self.computations[x] for x in self._fused(condition))]
        constants = [
            int(x.operands[0])
            for part in text
            for x in part.instructions.values()
            if x.opcode == "constant" and re.fullmatch(r"[su]32\[\].*", x.type)
        ]
        return constants[0] if len(constants) == 1 else None

    def _fused(self, computation: Computation) -> Iterator[str]:
        for instruction in computation.instructions.values():
            if instruction.opcode == "fusion":
                yield instruction.called("calls") or ""

    def _branch(self, instruction: Instruction, platform: str) -> Cost:
        listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
        if listed:
            names = [x.strip().lstrip("%") for x in listed.group(1).split(",")]
        else:
            names = [
                instruction.called("true_computation") or "",
                instruction.called("false_computation") or "",
            ]
        total = Cost()
        total.add(max((self._cost(x, platform) for x in names), key=lambda x: x.time))
        total.time += READ_BACK if platform == "gpu" else 0.0
        total.steps += 1
        return total

    def kernel(self, computation: Computation, instruction: Instruction, platform: str) -> Cost:
        """The cost of one kernel."""
        if platform == "tpu":
            return self._tpu_kernel(instruction)
        for part in (instruction, *self._instructions_of(instruction)):
            if part.opcode == "sort":
                return self._gpu_sort(part)
        written = sum(_bytes(x) for x in _shapes(instruction.type))
        read = self._bytes_read(computation, instruction)
        operations = self._operations(computation, instruction)
        time = max(LAUNCH, (read + written) / BANDWIDTH, operations / OPERATION_RATE)
        return Cost(time=time, steps=1)

    def _tpu_kernel(self, instruction: Instruction) -> Cost:
        estimate = re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)
        if estimate:
            return Cost(time=float(estimate.group(1)), steps=1)
        if any(x.opcode == "sort" for x in (instruction, *self._instructions_of(instruction))):
            return Cost(steps=1, sorts=1)
        # The scalar core computes single numbers beside the others.
        scalar = all(math.prod(dims) <= 1 for _, dims in _shapes(instruction.type))
        if scalar or any(f'"{name}"' in instruction.attributes for name in NAMES_MEMORY):
            return Cost()
        return Cost(steps=1, unknown=1)

    def _instructions_of(self, instruction: Instruction) -> Iterator[Instruction]:
        called = instruction.called("calls") if instruction.opcode == "fusion" else None
        if called:
            yield from self.computations[called].instructions.values()

    def _gpu_sort(self, instruction: Instruction) -> Cost:
        shapes = _shapes(instruction.type)
        dimension = re.search(r"dimensions=\{(\d+)\}", instruction.attributes)
        length = shapes[0][1][int(dimension.group(1)) if dimension else -1]
        stages = math.ceil(math.log2(max(length, 2)))
        inside = int(math.log2(SORT_TILE))
        # Each stage beyond the tile takes a kernel for every distance beyond it, and one for all
        # distances within.
        kernels = 1 + sum(stage - inside + 1 for stage in range(inside + 1, stages + 1))
        bytes_moved = 2 * sum(_bytes(x) for x in shapes)
        lists = math.prod(shapes[0][1]) / length
        comparisons = lists * 2**stages / 2 * stages * (stages + 1) / 2
        operations = comparisons * (4 + 2 * len(shapes))
        time = max(kernels * max(LAUNCH, bytes_moved / BANDWIDTH), operations / OPERATION_RATE)
        return Cost(time=time, steps=kernels, sorts=1)

    def _bytes_read(self, computation: Computation, instruction: Instruction) -> float:
        """Each operand once; what is only sliced or gathered from, as often as it is taken."""
        called = instruction.called("calls") if instruction.opcode == "fusion" else None
        total = 0.0
        for number, operand in enumerate(instruction.operands):
            source = computation.instructions.get(operand)
            if source is None:
                continue
            size = float(sum(_bytes(x) for x in _shapes(source.type)))
            if called:
                size = min(size, self._bytes_taken(self.computations[called], number, size))
            total += size
        return total

    def _bytes_taken(self, fused: Computation, number: int, size: float) -> float:
        parameter = next(
            (
                x.name
                for x in fused.instructions.values()
                if x.opcode == "parameter" and x.operands == [str(number)]
            ),
            None,
        )
        users = [x for x in fused.instructions.values() if parameter in x.operands]
        if not users or any(x.opcode not in ("dynamic-slice", "slice", "gather") for x in users):
            return size
        return float(sum(_bytes(shape) for x in users for shape in _shapes(x.type)))

    def _operations(self, computation: Computation, instruction: Instruction) -> float:
        if instruction.opcode == "fusion":
            called = self.computations[instruction.called("calls") or ""]
            return sum(self._operations(called, x) for x in called.instructions.values())
        if instruction.opcode in FREE:
            return 0.0
        shapes = _shapes(instruction.type)
        elements = float(math.prod(shapes[0][1])) if shapes else 0.0
        if instruction.opcode in ("reduce", "reduce-window", "scatter"):
            source = computation.instructions.get(instruction.operands[0])
            applied = self.computations[instruction.called("to_apply") or ""]
            work = sum(x.opcode != "parameter" for x in applied.instructions.values())
            size = _shapes(source.type)[0][1] if source else shapes[0][1]
            if instruction.opcode == "reduce-window":
                windows = re.search(r"size=([\dx]+)", instruction.attributes)
                sizes = map(int, windows.group(1).split("x")) if windows else [1]
                return work * elements * math.prod(sizes)
            return float(work * max(math.prod(size), elements))
        if instruction.opcode == "dot":
            exact = "operand_precision={highest" in instruction.attributes
            additions = elements * self._contracted(computation, instruction)
            return additions if exact else additions / TENSOR_CORES
        return WEIGHTS.get(instruction.opcode, 1) * elements

    def _contracted(self, computation: Computation, instruction: Instruction) -> int:
        left = computation.instructions.get(instruction.operands[0])
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        if left is None or not found:
            return 1
        dims = _shapes(left.type)[0][1]
        return math.prod(dims[int(x)] for x in found.group(1).split(",") if x)


def _parse(line: str) -> Instruction:
    left, right = line.strip().split(" = ", 1)
    root = left.startswith("ROOT ")
    name = left.removeprefix("ROOT ").lstrip("%")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    kind, rest = right[:end], right[end:].strip()
    opcode, _, _ = rest.partition("(")
    start = len(opcode)
    end = _closing(rest, start)
    operands = [x.strip().split(" ")[-1].lstrip("%") for x in _split(rest[start + 1 : end])]
    return Instruction(name, opcode.strip(), kind, operands, rest[end + 1 :], root)


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({") - (text[i] in ")}")
        if depth == 0:
            return i
    return len(text) - 1


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [x for x in [*parts, text[start:]] if x.strip()]


@functools.lru_cache(maxsize=100_000)
def _shapes(kind: str) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (found.group(1), tuple(int(x) for x in found.group(2).split(",") if x))
        for found in re.finditer(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]", kind)
    ]


def _bytes(shape: tuple[str, tuple[int, ...]]) -> int:
    return BYTES.get(shape[0], 4) * math.prod(shape[1])
