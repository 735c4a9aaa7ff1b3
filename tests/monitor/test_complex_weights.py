"""Complex weights: a bad part of one element is caught, located and discarded as that of a real one is."""

import pytest
import torch
from torch import nn

from finitune.monitor.probes.finite import are_finite, is_finite, norms, places
from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4
VALUES = [complex(float("nan"), 0), complex(0, float("inf")), complex(float("-inf"), 1), complex(1, float("nan"))]
DTYPES = [torch.complex64, torch.complex128]


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_part_that_is_not_finite(dtype, value):
    tensor = torch.ones(3, 2, dtype=dtype)
    assert is_finite(tensor)
    assert float(norms([tensor])) == pytest.approx(6**0.5)
    tensor[1, 0] = value
    assert not is_finite(tensor)
    assert not are_finite([tensor.conj()])
    assert not bool(torch.isfinite(norms([tensor])))
    found = places(tensor)
    assert (found.count, found.indices, found.peak) == (1, [[1, 0]], 1.0)


class Spectrum(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=dtype))

    def forward(self, x):
        return (x * self.weight).abs().sum(1)


def trained(directory, kind, dtype, loss_of, after_backward=lambda model, step: None):
    """The model after seven steps, and the recording."""
    torch.manual_seed(0)
    model = Spectrum(dtype)
    optimizer = kind(model.parameters(), lr=0.01)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, 8):
            optimizer.zero_grad()
            loss_of(model, torch.randn(8, 4, dtype=dtype), step).backward()
            after_backward(model, step)
            optimizer.step()
    recording = Recording.load(directory)
    assert not recording.events("broken")
    return model, recording


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_derivative_of_a_length_of_zero(tmp_path, dtype, kind):
    """The loss is finite, its gradient is not."""

    def lengths(model, x, step):
        if step == BAD:
            x[3] = 0
        return model(x).sqrt().mean()

    model, recording = trained(tmp_path, kind, dtype, lengths)
    (incident,) = recording.events("incident")
    assert (incident["step"], incident["symptom"]) == (BAD, "nonfinite-gradient")
    assert recording.events("origin")[0]["origin"]["op"] == "aten.div"
    assert is_finite(model.weight)


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_bad_element_of_the_gradient(tmp_path, value):
    def spoil(model, step):
        if step == BAD:
            model.weight.grad[2] = value

    model, recording = trained(tmp_path, torch.optim.Adam, torch.complex64, lambda m, x, _: m(x).mean(), spoil)
    assert [incident["step"] for incident in recording.events("incident")] == [BAD]
    assert is_finite(model.weight)


@pytest.mark.parametrize("clip", [False, True])
def test_finite_gradients_whose_squares_overflow(tmp_path, clip):
    def clipped(model, _):
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    large = lambda model, x, step: model(x).mean() * (1e25 if step == BAD else 1.0)  # noqa: E731
    _, recording = trained(tmp_path, torch.optim.AdamW, torch.complex64, large, clipped)
    assert not [one for one in recording.events("incident") if one["level"] == "incident"]
