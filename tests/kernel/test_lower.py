"""What the host hands to the kernel: its structs are those of the device code, and plans become their fields."""

import ctypes

import pytest
import torch
from emulated import Emulated, compiler
from small_models import SIZES, MakeSmall, prompt_of

from server.kernel.arithmetic import Arithmetic
from server.kernel.buffers import MAX_ROWS
from server.kernel.device import PLACES, DeviceBuffers, DeviceModel
from server.kernel.instructions import WeightPhase
from server.kernel.lower import PORTION_BYTES, Control, lower
from server.kernel.plan import build_plan
from server.kernel.portions import packed_portions
from server.kernel.sequence import hand_back, roll_back, settle, take_over
from server.kernel.structs import ROWS, STRUCTS, TYPES, InstructionStruct, Kind

SMS = 7
IDLE = 'extern "C" __global__ void cycle(Launch l) {}'


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_structs_and_enumerations_are_those_of_the_device_code() -> None:
    numbers = [f"sizeof({name})" for name in STRUCTS]
    numbers += [f"offsetof({name}, {field})" for name, struct in STRUCTS.items() for field, *_ in struct._fields_]
    numbers += [kind.name for kind in Kind] + [type.name for type in TYPES] + [f"ROWS_{name.upper()}" for name in ROWS]
    text = f'extern "C" u64 number(u32 i) {{ const u64 all[] = {{{", ".join(numbers)}}}; return all[i]; }}'
    number = Emulated([("idle", IDLE), ("numbers", text)]).function("number")
    number.restype = ctypes.c_uint64
    ours = [ctypes.sizeof(struct) for struct in STRUCTS.values()]
    ours += [getattr(struct, field).offset for struct in STRUCTS.values() for field, *_ in struct._fields_]
    ours += [*Kind, *TYPES.values(), *ROWS.values()]
    assert [number(i) for i in range(len(numbers))] == ours


def instructions(tables: torch.Tensor, count: int) -> list[InstructionStruct]:
    return list((InstructionStruct * count).from_buffer_copy(bytes(tables.tolist())))


@pytest.mark.parametrize("size", SIZES)
def test_every_instruction_gets_its_addresses_and_its_share(make_small: MakeSmall, size: str) -> None:
    small = make_small(size, Arithmetic())
    weights = DeviceModel.from_file(small.file, small.model, "cpu")
    at = DeviceBuffers(small.model, SMS, 64, logits=True)
    for rows, drafts in ((1, 0), (5, 4)):
        plan = build_plan(small.model, SMS, rows, drafts, logits=True)
        tables = lower(plan, weights, at)
        found = instructions(tables.instructions, tables.count)
        assert [Kind(i.kind).name.replace("_", "") for i in found] == [
            type(i).__name__.upper() for i in plan.instructions
        ]
        for index, (struct, instruction) in enumerate(zip(found, plan.instructions, strict=True)):
            assert struct.ranges == tables.ranges[index].data_ptr()
            if isinstance(instruction, WeightPhase):
                words, shares = packed_portions(instruction.strips, instruction.ranges)
                first = (struct.portions - tables.portions.data_ptr()) // PORTION_BYTES
                assert torch.equal(tables.portions[first : first + len(words)].long() & 0xFFFFFFFF, words)
            else:
                shares = instruction.ranges
            assert tables.ranges[index].tolist() == [[share.start, share.stop] for share in shares]
            assert struct.rows_limit == instruction.rows.limit
        head = next(i for i in found if i.kind == Kind.HEAD and i.logits)
        assert head.hidden == at["hidden"].data_ptr()
        assert head.input_low == at["x.low"].data_ptr()
        assert head.strip[0].rows == small.model.config.vocab
        if drafts:
            later = [i for i in found if i.kind == Kind.MTP_INPUT and i.step]
            assert [i.draft_best for i in later] == [at[f"mtp.best.{step}"].data_ptr() for step in range(drafts - 1)]
            assert later[1].draft_best - later[0].draft_best == 4 * later[0].draft_best_stride


def test_a_launch_goes_on_counting_where_the_last_one_ended(make_small: MakeSmall) -> None:
    small = make_small("27b", Arithmetic())
    at = DeviceBuffers(small.model, SMS, 64)
    tables = lower(build_plan(small.model, SMS, 1, 0), DeviceModel.from_file(small.file, small.model, "cpu"), at)
    control = Control(SMS, "cpu", epoch=2**32 - 5)
    assert control.barrier.item() == -5 * SMS
    assert control.handed[0].item() == -5
    first, second = control.launch(tables, at), control.launch(tables, at, first=3, count=2)
    assert (first.epoch, first.count, second.epoch) == (2**32 - 5, tables.count, 2**32 - 5 + tables.count)
    assert second.instructions - first.instructions == 3 * ctypes.sizeof(InstructionStruct)
    assert second.count == 2


def test_buffers_for_another_number_of_sms_are_refused(make_small: MakeSmall) -> None:
    small = make_small("27b", Arithmetic())
    at = DeviceBuffers(small.model, SMS + 1, 64)
    with pytest.raises(ValueError, match="buffers for 8 SMs, but a plan for 7"):
        lower(build_plan(small.model, SMS, 1, 0), DeviceModel.from_file(small.file, small.model, "cpu"), at)


def test_eight_bit_buffers_stand_for_what_was_rounded(make_small: MakeSmall) -> None:
    """Written here as the kernel writes them."""
    small = make_small("27b", Arithmetic())
    at, rows = DeviceBuffers(small.model, SMS, 64), 3
    columns = small.model.config.ffn
    x = torch.randn(rows, columns)
    blocks = x.view(rows, -1, 32).transpose(0, 1)
    scales = blocks.abs().amax(-1) / 127
    codes = torch.round(blocks / scales[..., None]).to(torch.int8)
    layout = at.layout("ffn.in")
    assert layout.nbytes == MAX_ROWS * columns // 32 * 40
    at.codes("ffn.in", rows)[..., PLACES] = codes
    at.row_slots = 16
    words = at["ffn.in"].view(torch.int32)
    words[layout.scales // 4 : layout.sums // 4].view(-1, 16)[:, :rows] = scales.view(torch.int32)
    sums = scales * codes.sum(-1)
    high = sums.to(torch.bfloat16)
    both = torch.stack((high, (sums - high.float()).to(torch.bfloat16)), -1).view(torch.int32)
    words[layout.sums // 4 :].view(-1, 16)[:, :rows] = both.squeeze(-1)
    assert torch.equal(at.rounded("ffn.in", rows, columns), Arithmetic(int8=True).rounded(x))
    assert torch.allclose(at.sums("ffn.in", rows), sums.t(), rtol=2**-15)


def test_a_sequence_is_taken_over_and_handed_back(make_small: MakeSmall) -> None:
    """Into the kernel's buffers and out of them, as into the interpreter's."""
    small = make_small("27b", Arithmetic())
    prompt = prompt_of(20)
    state = small.reference.new_state()
    small.reference.prefill(prompt, state)
    before = state.memory.clone()
    at = DeviceBuffers(small.model, SMS, 64)
    take_over(at, small.model.config, state, 7)
    assert at["counts"].tolist() == [20, 0, 1, 0]
    settle(at, [3, 4, 5], 5)
    roll_back(at, 2)
    assert at["counts"].tolist() == [22, 2, 2, 0]
    assert at["accepted"][:3].tolist() == [3, 4, 5]
    settle(at, [9], 1)
    roll_back(at, 1)
    at["counts"][0], at["counts"][1] = 20, 0
    at["counts"][2] = 1
    state.memory.zero_()
    hand_back(at, small.model.config, state, prompt)
    assert torch.equal(state.memory, before)
