"""What `draftline synth` does and says."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from server.synth.errors import SynthError, UnknownMix, UnknownPreset, WrongMix
from server.synth.mixes import as_published, find_mix, mix_types, tensor_bytes
from server.synth.presets import find_preset
from server.synth.target import check_target


def run(out: str, preset_name: str, mix_name: str, seed: int) -> int:
    """Write the file and say so; 2 for names that don't exist or don't fit together, 1 for a file that can't be."""
    try:
        preset, mix = find_preset(preset_name), find_mix(mix_name)
        nbytes = tensor_bytes(as_published(mix, preset), mix_types(mix, preset))
        check_target(Path(out), nbytes)
        label = f"{preset.name}, mix {mix.name}, seed {seed}"
        print(f"writing {_size(nbytes)} of random weights ({label})", file=sys.stderr, flush=True)
        signal.signal(signal.SIGTERM, _leave)

        from server.synth.write import write_synthetic_model

        written = write_synthetic_model(Path(out), preset, mix, seed)
    except SynthError as error:
        print(f"draftline: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnknownPreset | UnknownMix | WrongMix) else 1
    rate = written.nbytes / written.seconds / 1e6
    print(f"{out}: {written.tensors} tensors, {_size(written.nbytes)} in {written.seconds:.1f} s ({rate:.0f} MB/s)")
    print("Its weights are random: it measures speed and exactness, and says nothing about any model's answers.")
    return 0


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """An exception, so that the unfinished file is removed."""
    sys.exit(128 + number)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
