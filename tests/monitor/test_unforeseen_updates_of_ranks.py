"""Two ranks that hold the same weights, and an own optimizer that spoils them from finite gradients."""

from __future__ import annotations

import pytest
from tests.monitor.test_ranks import BEGINS, STEPS, two_ranks

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

SCRIPT = (
    BEGINS
    + """
import hashlib

faults, steps, step = json.loads(sys.argv[1]), int(sys.argv[3]), 0

class Normalised(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p].setdefault("momentum", torch.zeros_like(p))
                unit = p.grad / p.grad.norm()
                if rank == 1 and faults.get(str(step)) == "flipped bit":
                    held.view(torch.int32).bitwise_or_(0x7F800000)
                held.mul_(0.9).add_(unit)
                p.sub_(held, alpha=group["lr"])

class Wrapping(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.base = inner

    @torch.no_grad()
    def step(self):
        for group in self.base.param_groups:
            for p in group["params"]:
                p.grad.div_(p.grad.norm())
        self.base.step()

model = nn.ModuleDict({"body": nn.Linear(6, 8), "a": nn.Linear(8, 1), "b": nn.Linear(8, 1)})

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model

    def forward(self, x):
        h = self.parts["body"](x).tanh()
        return torch.cat([self.parts["a"](h), self.parts["b"](h)], 1)

ddp = nn.parallel.DistributedDataParallel(Heads())
optimizer = OPTIMIZER
generator = torch.Generator().manual_seed(rank)

def digest():
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

history = []
try:
    with finitune.watch(ddp, optimizer, run_dir=out + "/run"):
        for step in range(1, steps + 1):
            x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)
            seen = torch.ones(8, 2)
            if faults.get(str(step)) == "unseen":  # the gradient of that head is exactly zero
                seen[:, 1] = 0
            loss = ((ddp(x) - y).square() * seen).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append([digest(), all(bool(p.isfinite().all()) for p in model.parameters())])
finally:
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump(history, file)
dist.destroy_process_group()
"""
)
OWN, WRAPPING = "Normalised(ddp.parameters())", "Wrapping(torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9))"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [OWN, WRAPPING])
def test_each_rank_takes_it_back_and_one_reports_it(tmp_path, optimizer):
    codes, said, (first, second) = two_ranks(tmp_path, {4: "unseen", STEPS: "unseen"}, source=_with(optimizer))
    assert codes == [0, 0], said
    assert first == second
    assert all(finite for _, finite in first)
    assert first[3] == first[2], "discarded"
    assert len({weights for weights, _ in first}) == STEPS - 2, "every other step trains"
    found = diagnose(tmp_path / "run").incidents
    assert [(one.step, one.symptom, one.rank) for one in found[:1]] == [(4, "nonfinite-update", 0)]
    assert found[0].origin is not None
    assert ".norm()" in found[0].origin.line
    assert [text.count("step 4: the update is not finite") for text in said] == [1, 0]
    assert not Recording.load(tmp_path / "run").events("broken")


@pytest.mark.slow
def test_momentum_that_it_wraps_is_put_back(tmp_path):
    ran: list[list[object]] = []
    for name, faults, skips in (("spoilt", {4: "unseen"}, 0), ("without", {}, 4)):
        (tmp_path / name).mkdir()
        _, _, (weights, _) = two_ranks(tmp_path / name, faults, source=_with(WRAPPING, skips))
        ran.append(weights)
    assert ran[0] == ran[1]


@pytest.mark.slow
def test_one_that_persists_ends_both(tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, dict.fromkeys(range(4, STEPS + 1), "unseen"), source=_with(OWN))
    assert codes == [3, 3], said
    assert first == second


@pytest.mark.slow
def test_what_one_rank_alone_has_seen_ends_both(tmp_path):
    """Its weights are those of before the update, the others' are not."""
    codes, said, _ = two_ranks(tmp_path, {4: "flipped bit"}, timeout=60, source=_with(OWN))
    assert codes == [3, 3], said
    assert all("step 5: some ranks have taken the update before back" in text for text in said)
    assert "step 4: the update is not finite" in said[1]


def _with(optimizer, skips=0):
    """The script with that optimizer, whose step number `skips` the loop leaves out."""
    step = f"    step != {skips} and optimizer.step()\n"
    return SCRIPT.replace("OPTIMIZER", optimizer).replace("    optimizer.step()\n", step)
