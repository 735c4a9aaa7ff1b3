"""Methods that a framework calls through the forward of a module, so that a wrapper around it sees a forward.

Lightning runs `training_step` in this way within DistributedDataParallel and FSDP (`_ForwardRedirection`; in Fabric
`_redirection_through_forward`): for one call the module has another forward, which puts the own one back and calls the
method. What the module itself computes are the calls within.
"""

from __future__ import annotations

from types import FunctionType

from torch import nn

_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")
_REDIRECTS = "wrapped_forward"


def is_redirected(module: nn.Module) -> bool:
    """Whether the call of `module` that begins now is that of another method."""
    forward = vars(module).get("forward")
    if type(forward) is not FunctionType or forward.__name__ != _REDIRECTS:
        return False
    return forward.__module__.partition(".")[0] in _PACKAGES
