"""What fails inside a kernel is known when the host waits, and then the device is lost; the rest fails at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

ASSERTED = {
    "an id beyond the embedding": lambda: nn.Embedding(4, 2).to("counting")(torch.tensor([9]).to("counting")),
    "a negative id": lambda: nn.Embedding(4, 2).to("counting")(torch.tensor([-1]).to("counting")),
    "a label beyond the classes": lambda: F.cross_entropy(logits(), torch.tensor([0, 7]).to("counting")),
    "an index": lambda: logits()[torch.tensor([5]).to("counting")],
    "gather": lambda: logits().gather(1, torch.tensor([[5], [0]]).to("counting")),
    "a probability above one": lambda: F.binary_cross_entropy(logits() + 9, logits()),
    "an assertion": lambda: torch._assert_async(torch.tensor(False).to("counting")),
}


def logits():
    return torch.zeros(2, 3, device="counting")


@pytest.mark.parametrize("name", ASSERTED)
def test_an_assertion_in_a_kernel_is_raised_by_the_next_read(device, name):
    ASSERTED[name]()
    later = logits() + 1
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        later.sum().item()


def test_after_it_the_device_is_lost(device):
    x = logits()
    ASSERTED["an index"]()
    with pytest.raises(torch.AcceleratorError):
        x.tolist()
    for call in (x.tolist, lambda: x + 1, torch.accelerator.synchronize, lambda: torch.ones(2).to("counting")):
        with pytest.raises(torch.AcceleratorError):
            call()


def test_training_goes_on_until_somebody_reads(device):
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4)).to("counting")
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.tensor([[0, 9]]).to("counting")
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    with pytest.raises(torch.AcceleratorError):
        loss.item()


def test_copies_queued_before_the_fault_arrive_and_later_ones_do_not(device):
    before, after = torch.zeros(1, pin_memory=True), torch.zeros(1, pin_memory=True)
    x = torch.ones(1, device="counting")
    before.copy_(x, non_blocking=True)
    ASSERTED["an index"]()
    after.copy_(x, non_blocking=True)
    with pytest.raises(torch.AcceleratorError):
        x.item()
    assert (before.item(), after.item()) == (1, 0)


def test_what_the_host_can_see_is_raised_at_once(device):
    with pytest.raises(RuntimeError, match="shape"):
        logits() @ logits()
    with pytest.raises(RuntimeError):
        F.embedding(logits(), logits())  # ids that are no integers
    assert logits().sum().item() == 0


def test_an_error_in_a_backward_function_reaches_the_caller(device):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("in the user's backward")

    x = logits().requires_grad_()
    with pytest.raises(ValueError, match="in the user's backward"):
        Fails.apply(x).sum().backward()
