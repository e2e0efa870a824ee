"""Prompts on a GPU: the kernels of the recurrent layers, and torch's attention, against the same in float32."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_model import write_tiny_model

from server.cache.borders import ON_GPU
from server.cache.prefix import PrefixCache, prefill_step
from server.gguf.on_device import FileOnDevice
from server.gguf.quantise import quantise
from server.gguf.reader import ModelFile
from server.gguf.types import TensorType
from server.kernel.device import DeviceModel
from server.kernel.model import KernelModel
from server.kernel.pack import PACKERS, pack, unpack
from server.kernel.prompt_matrices import TileMatrices
from server.model import delta_net_gpu
from server.model.delta_net import DeltaNet
from server.model.hybrid import HybridModel
from server.model.weights import gate_width

KERNEL = 4


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The error, as a part of the whole."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def layer(size: int, key_heads: int, value_heads: int) -> tuple[Any, Any]:
    """A config and weights of a layer whose projections do nothing."""
    channels = (2 * key_heads + value_heads) * size
    config = SimpleNamespace(
        state_size=size, conv_kernel=KERNEL, conv_channels=channels, value_width=value_heads * size,
        key_width=key_heads * size, key_heads=key_heads, value_heads=value_heads, eps=1e-6,
    )  # fmt: skip
    gates: int = gate_width(config)  # type: ignore[arg-type]
    decay, bias = torch.zeros(2, gates, device="cuda").unbind(0)
    decay[:value_heads] = -torch.rand(value_heads, device="cuda")
    bias[:value_heads] = torch.randn(value_heads, device="cuda")
    weights = SimpleNamespace(
        inputs=lambda x: x,
        output=lambda x: x,
        conv=torch.randn(KERNEL, channels, device="cuda") / 2,
        decay=decay,
        time_bias=bias,
        norm=torch.rand(size, device="cuda") + 0.5,
    )
    return config, weights


@pytest.mark.parametrize(("size", "key_heads", "value_heads"), [(128, 2, 6), (64, 3, 3), (32, 2, 4)])
@pytest.mark.parametrize("rows", [1, 3, 63, 64, 65, 200, 2100])
def test_the_recurrence_is_the_reference_s(rows: int, size: int, key_heads: int, value_heads: int) -> None:
    torch.manual_seed(rows)
    config, weights = layer(size, key_heads, value_heads)
    width = config.conv_channels + config.value_width + 2 * gate_width(config)
    mixed = torch.randn(rows, width, device="cuda").bfloat16()
    window = torch.randn(KERNEL - 1, config.conv_channels, device="cuda")
    memory = torch.randn(value_heads, size, size, device="cuda") / 5
    again = memory.clone()
    net = DeltaNet(config, torch.device("cuda"), torch.float32)
    wanted, next_window = net.prefill(mixed.float(), 0, weights, window, memory)
    found, found_window = net.prefill(mixed, 0, weights, window, again)
    assert far(found, wanted) < 5e-3  # half of a bfloat16's last bit is 2e-3
    assert far(again, memory) < 2e-3
    assert torch.equal(found_window, next_window)


def test_keys_that_repeat_don_t_blow_up() -> None:
    """All rows of a chunk alike, and nothing forgotten: the system is as far from the identity as it can be."""
    config, weights = layer(128, 1, 1)
    weights.decay.zero_()
    row = torch.randn(1, config.conv_channels + config.value_width + 2 * gate_width(config), device="cuda")
    row[:, config.conv_channels + config.value_width :] = 20.0
    mixed = row.repeat(640, 1).bfloat16()
    window, memory = mixed[:3, : config.conv_channels].float(), torch.zeros(1, 128, 128, device="cuda")
    again = memory.clone()
    wanted = delta_net_reference(config, mixed, weights, window, memory)
    assert far(delta_net_gpu.prefill(config, mixed, weights, window, again), wanted) < 5e-3
    assert far(again, memory) < 2e-3


def delta_net_reference(
    config: Any, mixed: torch.Tensor, weights: Any, window: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    return DeltaNet(config, torch.device("cuda"), torch.float32).prefill(mixed.float(), 0, weights, window, memory)[0]


@pytest.mark.parametrize("cuts", [(700,), (1, 63, 64, 572), (130, 7, 1, 562)])
def test_a_prompt_is_near_to_float32_however_it_is_cut(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", state_size=32, head_dim=64, rope_dims=32, context_length=1024)
    file = ModelFile.open(path)
    exact, model = (HybridModel.load(file, "cuda", dtype) for dtype in (torch.float32, torch.bfloat16))
    ids = [(n * 37 + n // 9) % model.config.vocab for n in range(sum(cuts))]
    wanted = exact.prefill(ids, exact.new_state())
    state, parts = model.new_state(), []
    for count in cuts:
        parts.append(model.prefill(ids[state.length : state.length + count], state))
    assert far(torch.cat(parts), wanted) < 0.03
    assert (state.length, state.mtp_length) == (len(ids), len(ids) if model.config.mtp else 0)


def test_what_goes_to_the_hosts_memory_comes_back_to_the_bit(tmp_path: Path) -> None:
    model = HybridModel.load(ModelFile.open(write_tiny_model(tmp_path / "tiny.gguf", seed=3)), "cuda", torch.bfloat16)
    empty = model.new_state().nbytes
    cache = PrefixCache(model.new_state, 12 * empty, ON_GPU, far_budget=1 << 30)

    def hidden(ids: list[int], cache: PrefixCache) -> tuple[torch.Tensor, int]:
        sequence, reused = cache.take(ids)
        while prefill_step(model, sequence, ids, ()):
            pass
        found = sequence.state.last_hidden.clone()
        cache.give_back(sequence)
        return found, reused

    texts = [[(n * (text + 3) + text) % 50 for n in range(700)] for text in range(8)]
    for ids in texts:
        hidden(ids, cache)
    sent = [node for node in cache.tree.nodes() if node.far_nbytes]
    assert len(sent) > 3
    assert all(node.checkpoint and node.checkpoint.memory.is_pinned() for node in sent)
    assert cache.nbytes <= 12 * empty
    for ids in texts:
        longer = [*ids, 7, 8, 9]
        found, reused = hidden(longer, cache)
        assert reused == len(ids)
        kept = PrefixCache(model.new_state, 1 << 30, ON_GPU)
        hidden(ids, kept)
        assert torch.equal(found, hidden(longer, kept)[0])


@pytest.mark.parametrize("type", [t for t in PACKERS], ids=lambda t: t.name)
@pytest.mark.parametrize(("rows", "columns", "group_rows"), [(128, 512, 64), (208, 768, 32), (48, 256, 16)])
def test_tiles_are_unpacked_as_they_were_packed(type: TensorType, rows: int, columns: int, group_rows: int) -> None:
    torch.manual_seed(rows)
    raw = quantise(torch.randn(rows, columns), type)
    tiles = pack(raw.to("cuda"), type, group_rows)
    wanted = unpack(tiles, type, rows, columns)
    from server.kernel.unpack_gpu import unpack_into

    out = torch.full((rows, columns), 7.0, device="cuda")
    unpack_into(out, tiles, type, (rows, 0, rows))
    assert torch.equal(out, wanted)
    halves = torch.full((rows // 2, columns), 7.0, device="cuda", dtype=torch.bfloat16)
    unpack_into(halves, tiles, type, (16, 8, 8))
    assert torch.equal(halves, wanted.view(-1, 16, columns)[:, 8:].reshape(-1, columns).bfloat16())


def test_a_prompt_with_matrices_made_of_tiles_is_one_with_matrices_of_its_own(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", state_size=32, head_dim=64, rope_dims=32, context_length=1024)
    file = ModelFile.open(path)
    kernel = KernelModel.from_file(file, 40)
    matrices = TileMatrices(kernel, DeviceModel.from_file(file, kernel, "cuda"), torch.bfloat16)
    whole, made = (
        HybridModel.load(FileOnDevice(file, torch.device("cuda")), "cuda", torch.bfloat16, 40, matrices=m)
        for m in (None, matrices)
    )
    ids = [(n * 37 + n // 9) % whole.config.vocab for n in range(300)]
    hidden = [model.prefill(ids, model.new_state()) for model in (whole, made)]
    assert torch.equal(*hidden)
    assert far(whole.logits(hidden[0][-1:]), made.logits(hidden[1][-1:])) < 0.01
