"""An update that is known only with the step after it, which is bad."""

from __future__ import annotations

import torch
from torch import nn

import finitune


def test_what_the_first_update_was_is_known_in_the_bad_step_after_it(tmp_path, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e13)
    with finitune.watch(model, optimizer, run_dir=tmp_path / "run"):
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.ones(3, 4)), torch.zeros(3, 2)).backward()
            optimizer.step()
    said = capsys.readouterr().err
    assert "finitune: step 2: loss is inf" in said
    assert "lr-too-high, likely: an update was measured as" in " ".join(said.split())


def test_a_second_step_that_a_hundredth_of_the_first_update_does_not_save(tmp_path, capsys):
    """The update is larger than the weights, and the fault is in the derivative of a square root at 0."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    with finitune.watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(2):
            loss = model(torch.full((3, 4), 1.0 - step)).square().sum(1).sqrt().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    said = capsys.readouterr().err
    assert "finitune: step 2: gradients are not finite" in said
    assert "lr-too-high" not in said
