"""The running statistics of batch norms: a forward writes them, whether its step is made or not, and an average never
loses a NaN. Those of finite numbers are kept; what a bad batch has left of them is put back.

They are read on the device with what is measured of each step. Nothing is kept of a model without such norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.measurement import Reading
from finitune.monitor.run import Run
from finitune.monitor.samples import all_finite

FINITE = "statistics_finite"
"""Not recorded: 1 where all of them are finite as the step is made."""
LOST = "lost_statistics"
LOOKED_FOR_EVERY = 64
"""Steps after which the models are looked through again for norms."""
MOST_MODELS = 64
"""Of which the statistics of before the first forward are kept."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Tensors of one axis, device and dtype, and the values that they had."""

    tensors: list[Tensor]
    flat: Tensor

    @staticmethod
    def of(tensors: Iterable[Tensor]) -> list[Copied]:
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        return [Copied(group, torch.cat(group)) for group in alike.values()]

    def each(self) -> Iterator[tuple[Tensor, Tensor]]:
        sizes = [len(tensor) for tensor in self.tensors]
        yield from zip(self.tensors, self.flat.split(sizes), strict=True)


class RunningStatistics:
    """Of all models of this process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._norms: list[_NormBase] = []
        self._looked: tuple[list[int], int] = ([], 0)
        """The identities of the models that were looked through, and the step from which that is done again."""
        self._taken: list[Copied] = []
        self._taken_of = 0
        """The step of which it is not known yet whether those are finite."""
        self._kept: list[Copied] = []
        self._kept_of = 0
        self._first: dict[int, list[Copied]] = {}
        """By the identity of a model, of before its first forward."""

    def model_called(self, model: nn.Module) -> None:
        """Its forward is about to run."""
        if id(model) not in self._first and len(self._first) < MOST_MODELS:
            self._first[id(model)] = Copied.of(t for norm in _norms([model]) for t in _tensors(norm))

    def take(self, step: int) -> Tensor | None:
        """Copy what they are now that the first optimizer makes this step, on the device. Returns 1 where all are
        finite, else 0, shape []; None where there are none, or another optimizer has asked.
        """
        if step == self._taken_of:
            return None
        self._taken_of = step
        self._taken = Copied.of(t for norm in self._norms_at(step) if norm.training for t in _tensors(norm))
        return all_finite([one.flat for one in self._taken]) if self._taken else None

    def judge(self, reading: Reading) -> Reading:
        """The step is over: keep what was finite, or put back what was. To the reading is added how many are lost."""
        finite = reading.more.get(FINITE)
        if finite == 1 and reading.step == self._taken_of:
            self._kept, self._kept_of = self._taken, reading.step
        if finite != 0:
            return reading
        bad = [norm for norm in self._norms if norm.training and not all(map(is_finite, _tensors(norm)))]
        known = self._known() if self._run.guards else {}
        put_back = [norm for norm in bad if _put_back(norm, known)]
        if put_back:
            self._say(reading.step, put_back)
        lost = len(bad) - len(put_back)
        return replace(reading, more={**reading.more, LOST: float(lost)}) if lost else reading

    def _norms_at(self, step: int) -> list[_NormBase]:
        models = self._run.modules.roots()
        looked, due = self._looked
        if looked != (now := [id(model) for model in models]) or step >= due:
            self._looked = now, step + LOOKED_FOR_EVERY
            self._norms = _norms(models)
        return self._norms

    def _known(self) -> dict[int, Tensor]:
        """The newest values that are kept, by the identity of their tensor."""
        copies = [*(one for each in self._first.values() for one in each), *self._kept]
        return {id(tensor): values for one in copies for tensor, values in one.each()}

    def _say(self, step: int, put_back: list[_NormBase]) -> None:
        first, count = put_back[0], len(put_back)
        name = self._run.modules.name(_tensors(first)[0]).rpartition(".")[0] or type(first).__name__
        norms = f"1 batch norm ({name})" if count == 1 else f"{count} batch norms (first: {name})"
        of = f"step {self._kept_of}" if self._kept_of else "before the first step"
        text = f"the running statistics of {norms} were not finite; those of {of} are put back"
        self._run.recorder.event("action", step=step, action="none", text=text)
        self._run.speech.rarer("running statistics", f"step {step}: {text}")


@torch.no_grad()
def _put_back(norm: _NormBase, known: Mapping[int, Tensor]) -> bool:
    """Whether finite ones are known."""
    own = _tensors(norm)
    if not all(id(t) in known and is_finite(known[id(t)]) for t in own):
        return False
    for tensor in own:
        tensor.copy_(known[id(tensor)])
    return True


def _norms(models: Sequence[nn.Module]) -> list[_NormBase]:
    found = {id(module): module for model in models for module in model.modules() if isinstance(module, _NormBase)}
    return [norm for norm in found.values() if _tensors(norm)]


def _tensors(norm: _NormBase) -> list[Tensor]:
    kept = (norm.running_mean, norm.running_var)
    return [t for t in kept if type(t) is Tensor and t.dim() == 1 and t.is_floating_point() and not t.is_meta]
