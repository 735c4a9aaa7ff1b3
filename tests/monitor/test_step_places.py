"""An optimizer that steps for the first time later than another: in the same pass of the loop, or in a later loop."""

import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording


def made():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def last_step(directory):
    recording = Recording.load(directory)
    assert not recording.events("broken")
    (end,) = recording.events("end")
    return end["step"]


def test_in_the_same_pass(tmp_path):
    critic, criticizes = made()
    with watch(critic, criticizes, run_dir=tmp_path):
        (actor, acts), (encoder, encodes) = made(), made()
        for step in range(1, 11):
            criticizes.zero_grad()
            critic(torch.randn(4, 2)).square().mean().backward()
            criticizes.step()
            if step % 2 == 0:
                acts.zero_grad()
                actor(torch.randn(4, 2)).square().mean().backward()
                acts.step()
            encodes.zero_grad()
            encoder(torch.randn(4, 2)).square().mean().backward()
            encodes.step()
    assert last_step(tmp_path) == 10


def test_in_a_loop_of_its_own(tmp_path):
    first, steps = made()
    with watch(first, steps, run_dir=tmp_path):
        second, follows = made()
        for _ in range(5):
            steps.zero_grad()
            first(torch.randn(4, 2)).square().mean().backward()
            steps.step()
        for _ in range(5):
            follows.zero_grad()
            second(torch.randn(4, 2)).square().mean().backward()
            follows.step()
    assert last_step(tmp_path) == 10
