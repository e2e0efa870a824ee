"""What can be wrong with a model file: one exception each, that says where and what to do next."""

# ruff: noqa: N818 - the names say what is wrong, as in TruncatedFile

from __future__ import annotations

from pathlib import Path


def printable(text: str) -> str:
    """`text` on one line: names of files and tensors may hold anything, and it must not reach a terminal as it is."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class ModelFileError(Exception):
    """A model file that can't be used. `str()` is one line: file, tensor (if any), problem, what to do."""

    next_step = "Get the file again from where it came from."

    def __init__(self, path: Path | str, problem: str, *, tensor: str | None = None, hint: str | None = None) -> None:
        self.path = Path(path)
        self.problem = problem
        self.tensor = tensor
        self.hint = hint if hint is not None else self.next_step
        super().__init__(path, problem, tensor, self.hint)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.tensor is None else f"{self.path}: tensor {self.tensor}: "
        return printable(f"{where}{self.problem}. {self.hint}".rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.path, self.problem, self.tensor, self.hint)


def _rebuild(kind: type[ModelFileError], path: Path, problem: str, tensor: str | None, hint: str) -> ModelFileError:
    return kind(path, problem, tensor=tensor, hint=hint)


class UnreadableFile(ModelFileError):
    """The operating system refuses the file: missing, a folder, no permission."""

    next_step = "Check the path and its permissions."


class TruncatedFile(ModelFileError):
    """The file ends before what its header promises."""

    next_step = "The download is incomplete: get the file again and compare its size."


class CorruptFile(ModelFileError):
    """The bytes are not a GGUF file, or contradict themselves."""

    next_step = "Get the file again and compare its checksum."


class WrongArchitecture(ModelFileError):
    """A sound model file of an architecture that Draftline doesn't run."""

    next_step = "Use a GGUF file of the dense Qwen3.5 family (general.architecture = qwen35)."


class MissingMetadata(ModelFileError):
    """A metadata key that the model can't be built without is absent."""

    next_step = "Convert the model to GGUF again with a current converter."


class WrongMetadata(ModelFileError):
    """A metadata value of another kind than expected, or one that makes no sense."""

    next_step = "Convert the model to GGUF again with a current converter."


class MissingTensor(ModelFileError):
    """A tensor that the architecture needs is absent."""

    next_step = "Use a complete model file (not a draft-only, vision or split part)."


class WrongTensorShape(ModelFileError):
    """A tensor whose shape contradicts the metadata."""

    next_step = "Convert the model to GGUF again with a current converter."


class DamagedTensor(ModelFileError):
    """A tensor with values that no trained model has: the file was not copied or downloaded to its end, or spoilt."""

    next_step = "Download or copy the file again, and compare its checksum."


class UselessWeights(ModelFileError):
    """Every weight is a number, but what is computed from them isn't."""

    next_step = "Its weights are spoilt, or were never trained: use another file."


class UnsupportedTensorType(ModelFileError):
    """A tensor in a quantisation that Draftline doesn't read (or write)."""

    next_step = "Use another quantisation of the model, such as Q4_K_M or Q8_0."
