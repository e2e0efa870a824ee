"""What the kernel can't run or can't be made for, named so that the torch executor can take over with a reason."""

from __future__ import annotations


class UnsupportedByKernel(Exception):  # noqa: N818
    """The kernel can't run this model. str() names the tensor or the dimension and what runs it instead."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the decode kernel can't run this model: {reason}; the torch executor can")
        self.reason = reason


class KernelCompileError(Exception):
    """The kernel can't be compiled here. str() says what is missing or wrong and what to do."""


class KernelFault(Exception):  # noqa: N818
    """A launch went wrong: the device's context can't be used any more. str() says what is known of it."""


class NoGpu(Exception):  # noqa: N818
    """There is no GPU that the kernel could run on. str() says why not."""
