"""PyTorch as it is: the engine that every other one is compared with, and falls back to."""

from __future__ import annotations

from typing import Any

import torch


class Eager:
    """Runs a module on a batch.

    Args:
        module: in eval mode, on ``device``.
        device: ``cpu`` or ``cuda:N``.
        channels_last: keep 4-D weights and inputs in that memory format; faster for convolutions on CPU and GPU.
    """

    def __init__(self, module: torch.nn.Module, *, device: str, channels_last: bool = False) -> None:
        self._channels_last = channels_last and not isinstance(module, torch.jit.ScriptModule)
        self._module = module.to(memory_format=torch.channels_last) if self._channels_last else module
        self._device = device

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the engine's device; the same one when it is there already."""
        return tensor.to(self._device, non_blocking=True)

    def run(self, *inputs: torch.Tensor, **named: Any) -> Any:
        """Call the module without recording gradients; returns what it returns."""
        if self._channels_last:
            inputs = tuple(
                tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
                for tensor in inputs
            )
        with torch.inference_mode():
            return self._module(*inputs, **named)
