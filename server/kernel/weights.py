"""The weights of a model file as the interpreter reads them: by name, dequantised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from server.gguf.codecs import dequantise
from server.gguf.reader import ModelFile
from server.kernel.model import KernelModel


class Weights:
    """Dequantised tensors of a file, each made when it is first asked for.

    draft_ids: ascending token ids of the draft head's rows (None: the first ones). keep: matrices stay in memory
    dequantised; otherwise only their bytes do, for models that wouldn't fit.
    """

    def __init__(
        self,
        file: ModelFile,
        model: KernelModel,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        draft_ids: Sequence[int] | None = None,
        keep: bool = True,
    ) -> None:
        self.file = file
        self.dtype = dtype
        self.device = torch.device(device)
        self.keep = keep
        ids = range(model.draft_rows) if draft_ids is None else draft_ids
        if len(ids) != model.draft_rows:
            raise ValueError(f"{len(ids)} ids for a draft head of {model.draft_rows} rows")
        self.draft_ids = torch.tensor(list(ids), dtype=torch.int64, device=self.device)
        self._raw: dict[str, Tensor] = {}
        self._whole: dict[tuple[str, bool], Tensor] = {}

    def matrix(self, name: str, draft: bool = False) -> Tensor:
        """[rows, columns]; `draft`: the rows of the draft vocabulary alone."""
        if (name, draft) in self._whole:
            return self._whole[name, draft]
        raw = self._bytes(name)
        whole = self._dequantised(raw[self.draft_ids] if draft else raw, name)
        if self.keep:
            self._whole[name, draft] = whole
        return whole

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Rows of a matrix, [len(ids), columns]."""
        return self._dequantised(self._bytes(name)[ids], name)

    def vector(self, name: str) -> Tensor:
        """A small tensor in its own shape."""
        if (name, False) not in self._whole:
            self._whole[name, False] = self.file.tensor(name).to(self.device, self.dtype)
        return self._whole[name, False]

    def _bytes(self, name: str) -> Tensor:
        if name not in self._raw:
            self._raw[name] = self.file.raw(name).to(self.device)
        return self._raw[name]

    def _dequantised(self, raw: Tensor, name: str) -> Tensor:
        return dequantise(raw, self.file.info(name).type).to(self.dtype)
