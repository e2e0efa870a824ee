"""Why a synthetic model can't be made: one exception each, whose text says what to do instead."""

# ruff: noqa: N818 - the names say what is wrong, as in server/gguf/errors.py

from __future__ import annotations


class SynthError(Exception):
    """No synthetic model was written. `str()` is one line."""


class UnknownPreset(SynthError):
    """No preset has this name."""


class UnknownMix(SynthError):
    """No mix of tensor types has this name."""


class WrongMix(SynthError):
    """This mix describes the tensors of another preset."""


class UnusableTarget(SynthError):
    """The file can't be written there: it exists, its folder doesn't, or the disk refuses."""


class TooLittleSpace(SynthError):
    """The disk has too little room for the file."""
