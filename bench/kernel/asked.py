"""The model that a benchmark on a GPU was asked for."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from server.gguf.reader import ModelFile
from server.models_known import asked_model, find_model
from server.synth.mixes import find_mix
from server.synth.presets import find_preset
from server.synth.write import write_synthetic_model


def open_model(options: Namespace, folder: Path) -> ModelFile:
    """`options.model`, or else a synthetic one of `options.preset` and `options.mix`, which is written into `folder`.

    Raises ModelNotFound, ModelFileError, SynthError, OSError.
    """
    if options.model:
        return ModelFile.open(find_model(asked_model(options.model)))
    preset, mix = find_preset(options.preset), find_mix(options.mix)
    written = write_synthetic_model(folder / f"{preset.name}-{mix.name}.gguf", preset, mix)
    print(f"synthetic {preset.name}, {mix.name}: {written.nbytes / 1e9:.2f} GB in {written.seconds:.1f} s", flush=True)
    return ModelFile.open(written.path)
