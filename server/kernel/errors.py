"""Errors of the kernel's plan: what it can't run, named so that the torch executor can take over with a reason."""

from __future__ import annotations


class UnsupportedByKernel(Exception):  # noqa: N818
    """The kernel can't run this model. str() names the tensor or the dimension and what runs it instead."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the decode kernel can't run this model: {reason}; the torch executor can")
        self.reason = reason
