"""What is measured of each optimizer step of a process: losses, gradients, and what is sampled around it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from finitune.monitor.capture.step import Capture
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes import activations
from finitune.monitor.probes.activations import Activations
from finitune.monitor.probes.measurement import SPOILS, UNDONE, Measured, Reading, confirmed, measure, shares_of
from finitune.monitor.probes.optimizers import learning_rate, will_spoil
from finitune.monitor.reduction import ReductionCheck
from finitune.monitor.run import Run
from finitune.monitor.running_statistics import FINITE, RunningStatistics
from finitune.monitor.samples import Samples

ACTIVATIONS_EVERY = 64
DEVICE_ERRORS = ("AcceleratorError", "DeferredCudaCallError")


def is_of_device(error: Exception) -> bool:
    """Whether the device is lost: the user's own operator did it, wherever it shows."""
    return type(error).__name__ in DEVICE_ERRORS or "CUDA error" in str(error)


class StepMeasures:
    """`step` is the number of the optimizer step that is measured, from 1. `broken` is called with an exception of
    finitune's own.
    """

    def __init__(self, run: Run, broken: Callable[[BaseException], None]) -> None:
        self.statistics = RunningStatistics(run)
        self._run = run
        self._broken = broken
        self._reductions: dict[int, ReductionCheck] = {}
        self._samples: dict[int, Samples] = {}
        self._activations: Activations | None = None

    def before(
        self, step: int, watched: Watched, capture: Capture, gradients: list[Tensor], *, exact: bool, asks: bool | None
    ) -> Measured:
        """All of a step that is about to be made. `exact` and `asks`: see `measure`. Where the further signals of one
        rank fail, it goes on without them, and reduces as much as the others do.
        """
        update, group = watched.update, watched.group
        own_scale = update.loss_scale
        scale = own_scale if own_scale is not None else capture.scale
        unclipped, watched.unclipped = watched.unclipped, None
        length, shares = watched.shares
        if length != len(gradients):
            shares = shares_of(gradients, group, gradients[0].device)
            watched.shares = len(gradients), shares
        rate = learning_rate(watched.optimizer())
        half = unclipped is None or unclipped.half
        spoils = will_spoil(watched.optimizer(), rate, half=half) if self._run.guards else None
        check = self._reduction_of(watched)
        try:
            more = self._signals(step, watched, capture)
            extra = check.flat(step, update.gradients()) if check is not None else None
            replicas = self._samples_of(watched).of_weights(step) if check is not None else None
        except Exception as error:
            if is_of_device(error):
                raise
            self._broken(error)
            unknown = (None, None) if check is None else (check.unknown(step), torch.tensor(math.nan))
            more, (extra, replicas) = {}, unknown
        more |= {"lr": rate} if isinstance(rate, Tensor) else {}
        more |= {SPOILS: spoils} if spoils is not None else {}
        more |= {UNDONE: 1.0} if watched.undone else {}
        watched.undone = False
        scaled = own_scale is not None or update.gradients_are_scaled
        return measure(
            step, capture.roots, gradients, unclipped, scale=scale, scaled=scaled, group=group, shares=shares,
            more=more, exact=exact, extra=extra, replicas=replicas, asks=asks,
        )  # fmt: skip

    def _signals(self, step: int, watched: Watched, capture: Capture) -> dict[str, Tensor | float]:
        """What is read beside what the verdict rests on."""
        more = dict(self._samples_of(watched).before(step, capture.micro_steps)) | self.of_statistics(step)
        if self._activations is not None:
            more |= self._activations.end()
            self._activations = None
        return more

    def of_statistics(self, step: int) -> dict[str, Tensor]:
        finite = self.statistics.take(step)
        return {} if finite is None else {FINITE: finite}

    def judge_statistics(self, reading: Reading) -> Reading:
        """See `RunningStatistics.judge`."""
        try:
            return self.statistics.judge(reading)
        except Exception as error:
            self._broken(error)
            return reading

    def read_alone(
        self, step: int, watched: Watched, capture: Capture, gradients: list[Tensor], *, scaled: bool
    ) -> Reading:
        """Losses and gradients, read at once. `scaled`: these still carry the loss scale."""
        unclipped, watched.unclipped = watched.unclipped, None
        scale = capture.scale
        measured = measure(
            step, capture.roots, gradients, unclipped, scale=scale, scaled=scaled and scale is not None,
            group=watched.group, more=self.of_statistics(step),
        )  # fmt: skip
        return confirmed(measured.read(), measured)

    def after(self, step: int, watched: Watched) -> None:
        """The step was made."""
        self._samples_of(watched).after(step)

    def step_over(self, step: int) -> None:
        """In level `full` the activations of the next step are watched now and then, where no model is compiled."""
        if self._run.level == "full" and step % ACTIVATIONS_EVERY == 1 and self._activations is None:
            self._activations = activations.begun(self._run.modules.roots(), self._run.speech.once)

    def backward_begins(self, step: int, watched: Watched) -> None:
        """A backward is about to add to the gradients of this optimizer, for the step of that number."""
        try:
            self._samples_of(watched).backward_begins()
            check = self._reduction_of(watched)
            if check is not None and watched.evaluations and watched.gated:
                check.leave()  # a closure is evaluated again, and the first time was judged
            elif check is not None:
                check.begin(step)
        except Exception as error:  # the step is judged without them
            self._broken(error)

    def backward_ended(self, watched: Watched) -> None:
        self._samples_of(watched).backward_ended()

    def reduction_of(self, watched: Watched) -> ReductionCheck | None:
        """The comparison that is under way, if any."""
        return self._reductions.get(watched.number)

    def _reduction_of(self, watched: Watched) -> ReductionCheck | None:
        """The comparison with an independent reduction, where the ranks of a group hold the same parameters."""
        group = watched.group
        if group.size == 1 or not group.known or group.sharded or not group.replicated:
            return None
        if watched.number not in self._reductions:
            named = [(self._run.modules.name(p), p) for p in watched.parameters()]
            self._reductions[watched.number] = ReductionCheck(named, group)
        return self._reductions[watched.number]

    def _samples_of(self, watched: Watched) -> Samples:
        if watched.number not in self._samples:
            self._samples[watched.number] = Samples(watched, self._run)
        return self._samples[watched.number]
