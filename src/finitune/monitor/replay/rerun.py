"""Run a captured step again in place and leave no trace: gradients, buffers, random numbers are put back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from finitune.monitor.capture.outputs import output_tensors
from finitune.monitor.capture.step import Call, Capture, MicroStep
from finitune.monitor.loss_graph.loss_operators import WEIGHT
from finitune.monitor.loss_graph.objective import terms
from finitune.monitor.probes.finite import norms
from finitune.monitor.probes.graph_nodes import nodes_behind
from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.probes.module_state import untouched
from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.padding import Run
from finitune.monitor.probes.ranks import ALONE, Group, is_sharded
from finitune.monitor.probes.surroundings import Autocast
from finitune.monitor.replay.limits import Limits, OverBudget
from finitune.monitor.replay.rounding import Rounding, trial_rounded
from finitune.monitor.replay.trial import Trial, trial_update
from finitune.monitor.user_code.held_sources import attributes, sources_kept


@dataclass(slots=True, kw_only=True)
class Setting:
    """How a step is run again; an arm changes one field or the model, for the time of one run."""

    model: nn.Module
    capture: Capture
    scale: float = 1.0
    """The loss scale of the captured step."""
    run_scale: float | None = None
    """Multiply the loss with this instead of `scale`."""
    dtype: torch.dtype | None = None
    """Compute in this dtype instead of the captured one."""
    change_inputs: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    lay_out: Callable[[Run, Any, Call], list[Tensor]] | None = None
    """Call the model with the rows of its batch laid out in another way; the outputs are as the loop wants them."""
    optimizer: Any = None
    eager: bool = False
    """Run compiled functions as they are written, so that every operator is seen."""
    update_times: float | None = None
    """Apply the optimizer's update with its learning rate times this, look at the loss, and take it back."""
    rounding: Rounding | None = None
    """Make a trial update tensor by tensor, with this rounding, instead."""
    group: Group = ALONE
    """The ranks that run it together; alone, an operator that communicates is refused."""
    limits: Limits = field(default_factory=Limits)
    of_inputs: bool = False
    """Take the gradients of what the calls were given too, where that wants them."""
    past: Any = None
    """The last steps of the run, where they were kept (`finitune.monitor.heal.past.Past`)."""
    summing: nn.Parameter | None = None
    """Whose gradients are being summed up over the micro-steps now."""

    @property
    def models(self) -> list[nn.Module]:
        """`model`, and the other modules that the loop calls in the step, none of them within another."""
        found = [self.model]
        for module in (call.module for micro in self.capture.micro_steps for call in micro.calls):
            within = {id(m) for known in found for m in known.modules()}
            if id(module) not in within:
                inside = {id(m) for m in module.modules()}
                found = [known for known in found if known is self.model or id(known) not in inside] + [module]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of the step gave. `norms` has one entry per trained tensor, in the order of `trained_in`."""

    losses: tuple[float, ...]
    norms: Tensor
    """As backward left them, so multiplied by the loss scale where it was kept."""

    trial: Trial | None = None
    """What a trial update did, where one was asked for."""
    bad_elsewhere: bool = False
    """Not finite on some rank of those that the model is sharded over."""

    @property
    def finite(self) -> bool:
        """On this rank."""
        return all(map(math.isfinite, self.losses)) and bool(torch.isfinite(self.norms).all())

    @property
    def passed(self) -> bool:
        """Finite, and not made worse by a trial update."""
        better = self.trial is None or sum(self.trial.losses) <= sum(self.losses)
        return self.finite and not self.bad_elsewhere and better

    def same_losses(self, other: Outcome) -> bool:
        """Bit for bit, a NaN like any other."""
        pairs = zip(self.losses, other.losses, strict=False)
        return len(self.losses) == len(other.losses) and all(a == b or (a != a and b != b) for a, b in pairs)


def rerun(setting: Setting, arm: AbstractContextManager[None] | None = None) -> Outcome:
    """Forward and backward of every micro-step under `arm`, gradients summed as in the real step.

    No gradient is accumulated in the parameters, so no hook that reduces over ranks or steps an optimizer runs. Raises
    whatever the model raises, and what `setting.limits` raises; the model is as it was either way. Where the model is
    sharded, all ranks of its group call this alike.
    """
    over, outcome, error = setting.limits.left <= 0, None, None
    if setting.group.split:
        (over,) = setting.group.agree(over, device=device_of(setting.model))
    if over:
        raise OverBudget(f"more than {setting.limits.seconds:g} seconds")
    try:
        outcome = _run(setting, arm)
    except Exception as raised:
        error = raised
    if setting.group.split:
        bad, failed = setting.group.agree(
            outcome is None or not outcome.finite, error is not None, device=device_of(setting.model)
        )
        if failed and error is None:
            raise RuntimeError("another rank could not run its part")
        outcome = outcome and replace(outcome, bad_elsewhere=bad)
    if outcome is None:
        raise error or RuntimeError("the step was not run")
    return outcome


def _run(setting: Setting, arm: AbstractContextManager[None] | None) -> Outcome:
    parameters = trained_in(setting)
    with _untouched(setting), _compiling_nothing(eager=setting.eager), setting.limits.alone(setting.group):
        with arm or nullcontext():  # around the step alone: what is measured of it is no part of it
            losses, sums = _summed(setting, parameters)
            trial = None
            if setting.update_times is not None:
                again = lambda: tuple(float(_loss(setting, micro)) for micro in setting.capture.micro_steps)  # noqa: E731
                pairs = list(zip(parameters, sums, strict=True))
                trial = trial_update(setting.optimizer, setting.update_times, pairs, again)
            elif setting.rounding is not None:
                pairs = list(zip(parameters, sums, strict=True))
                trial = trial_rounded(setting.optimizer, pairs, setting.rounding)
        each = norms([p.new_zeros(()) if g is None else g for p, g in zip(parameters, sums, strict=True)]).cpu()
        return Outcome(losses=tuple(losses), norms=each, trial=trial)


def _summed(setting: Setting, parameters: list[nn.Parameter]) -> tuple[list[float], list[Tensor | None]]:
    """The loss of every micro-step, and the gradients of all of them together."""
    losses: list[float] = []
    sums: list[Tensor | None] = [None] * len(parameters)
    for micro in setting.capture.micro_steps:
        loss, each = _micro_step(setting, micro, parameters)
        losses.append(loss)
        for n, gradient in enumerate(each):
            setting.summing = parameters[n]
            sums[n] = _sum(sums[n], gradient)
        setting.summing = None
    return losses, sums


def gradients(setting: Setting) -> list[tuple[nn.Parameter, Tensor | None]]:
    """Every trained tensor with its gradient in this step, None where none reaches it; raises as `rerun` does."""
    parameters = trained_in(setting)
    with _untouched(setting), _compiling_nothing(), setting.limits.alone(setting.group):
        return list(zip(parameters, _summed(setting, parameters)[1], strict=True))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def why_not_runnable(setting: Setting) -> str | None:
    """Why the step cannot be run again; None when it can. Asked of all ranks where the model is sharded over them."""
    why = setting.capture.runnable or setting.limits.why_not(setting.model, together=setting.group.split)
    if setting.group.split and not is_sharded(trainable(setting.model)):
        why = why or "FSDP 1 lets no step be run again"
    if setting.group.split:
        (somewhere,) = setting.group.agree(why is not None, device=device_of(setting.model))
        return why or ("another rank cannot run its part of the step again" if somewhere else None)
    return why


def losses_of(setting: Setting) -> tuple[float, ...]:
    """Forward only, of every micro-step; wrap in `torch.no_grad()` to keep no graph."""
    with _untouched(setting), _compiling_nothing():
        return tuple(float(_loss(setting, micro)) for micro in setting.capture.micro_steps)


def outputs_of(setting: Setting) -> list[Tensor]:
    """What all calls of the step put out, without its loss. Raises what the model raises."""
    with (
        _untouched(setting), _compiling_nothing(eager=setting.eager), setting.limits.alone(setting.group),
        torch.enable_grad(),
    ):  # fmt: skip
        return [out for micro in setting.capture.micro_steps for out in _call_all(setting, micro, {})]


def own_gradients(setting: Setting, parameters: list[nn.Parameter]) -> list[Tensor]:
    """What this rank computes in the step, summed over micro-steps; hooks of the loop, which reduce, do not run."""
    with _untouched(setting), _compiling_nothing(), setting.limits.alone(setting.group), torch.enable_grad():
        each = [torch.autograd.grad(_loss(setting, micro), parameters) for micro in setting.capture.micro_steps]
        sums = list(each[0])
        for gradients in each[1:]:
            sums = [a + b for a, b in zip(sums, gradients, strict=True)]
        return sums


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def trained_in(setting: Setting) -> list[nn.Parameter]:
    """What the captured step can have given a gradient: of the modules that are called, and of the loss by itself."""
    objectives = [micro.objective for micro in setting.capture.micro_steps if micro.objective is not None]
    alone = [term.kept["variable"] for one in objectives for term in terms(one.whole) if term.name == WEIGHT]
    given = leaves_of([(call.args, call.kwargs) for call in _calls(setting)]) if setting.of_inputs else []
    alone += [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.is_leaf]
    found = [*(p for model in setting.models for p in trainable(model)), *(p for p in alone if p.requires_grad)]
    return list({id(p): p for p in found}.values())


def silences_hooks(model: nn.Module, but_of: str | None = None) -> bool:
    """True where a run of the model leaves out hooks that the real step has called, but for those `but_of` a package;
    see `rerun`.
    """
    hooks = (hook for p in model.parameters() for hook in (p._post_accumulate_grad_hooks or {}).values())
    return any(but_of is None or not str(getattr(hook, "__module__", "")).startswith(f"{but_of}.") for hook in hooks)


def _calls(setting: Setting) -> list[Call]:
    return [call for micro in setting.capture.micro_steps for call in micro.calls]


@contextmanager
def _untouched(setting: Setting) -> Iterator[None]:
    """The models, and the sources of random numbers that the program has handed to them or keeps in variables."""
    given = leaves_of([(call.args, call.kwargs) for call in _calls(setting)])
    with untouched(*setting.models), sources_kept([*given, *attributes(setting.optimizer)]):
        yield


def _compiling_nothing(*, eager: bool = False) -> AbstractContextManager[Any]:
    """What is compiled runs compiled where it fits, the rest eagerly: the compiler would remember our way of calling,
    and refuse a function of the loop that it could not compile under watch.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager" if eager else "eager_on_recompile")


def _micro_step(
    setting: Setting, micro: MicroStep, parameters: list[nn.Parameter]
) -> tuple[float, tuple[Tensor | None, ...]]:
    with torch.enable_grad():
        # ZeRO 3 reduces where gradients are accumulated, into buckets that the next step would find filled.
        if setting.group.split and not any(hasattr(p, "ds_tensor") for p in parameters):
            return _accumulated(setting, micro, parameters)
        root = _loss(setting, micro)
        if not _checkpoints_reentrantly(root):
            gradients = torch.autograd.grad(root, parameters, allow_unused=True)
            if all(g is None for g in gradients) and math.isfinite(root.detach()):
                raise RuntimeError("no gradient reaches the parameters when the step is run again")
            return float(root.detach()), gradients
        del root
        with _other_leaves(setting.models, parameters) as leaves:
            return _accumulated(setting, micro, leaves)


def _checkpoints_reentrantly(root: Tensor) -> bool:
    """True where reentrant activation checkpointing is in the graph of `root`: torch's, DeepSpeed's, Unsloth's.

    Its backward puts gradients into parameters that lie on no path of the graph outside. `torch.autograd.grad` finds
    none there, and does not say so.
    """
    return any(
        isinstance(node, BackwardCFunction) and "checkpoint" in type(node).__name__.lower()
        for node in nodes_behind([root])
    )


def _accumulated(
    setting: Setting, micro: MicroStep, parameters: list[nn.Parameter]
) -> tuple[float, tuple[Tensor | None, ...]]:
    """By a backward that puts gradients into the parameters: of a model sharded by FSDP, whose hooks reduce them, and
    where reentrant checkpointing allows nothing else.
    """
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        root = _loss(setting, micro)
        root.backward()
        return float(root.detach()), tuple(p.grad for p in parameters)
    finally:
        for p, gradient in zip(parameters, kept, strict=True):
            p.grad = gradient


@contextmanager
def _other_leaves(models: list[nn.Module], parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters that share their values with those of the models, and have none of the hooks that act on the run."""
    others = {id(p): nn.Parameter(p.detach()) for p in parameters}
    modules = (m for model in models for m in model.modules())
    places = [(m, name, p) for m in modules for name, p in m._parameters.items() if p is not None]
    try:
        for module, name, p in places:
            module._parameters[name] = others.get(id(p), p)
        yield [others[id(p)] for p in parameters]
    finally:
        for module, name, p in places:
            module._parameters[name] = p


def _loss(setting: Setting, micro: MicroStep) -> Tensor:
    assert micro.objective is not None
    values: dict[int, Tensor] = {}
    _call_all(setting, micro, values)
    # The loop's own casts are in the graph that the objective was read from, so autocast must not add its own.
    autocast = micro.calls[-1].autocast if micro.calls else Autocast.now()
    with autocast.restored(off=True):
        times = None if setting.run_scale is None else setting.run_scale / setting.scale
        return micro.objective.rebuild(values, times)


def _call_all(setting: Setting, micro: MicroStep, values: dict[int, Tensor]) -> list[Tensor]:
    """What the calls of a micro-step put out; `values` gets it by the numbers of these outputs."""
    torch.clear_autocast_cache()
    found: list[Tensor] = []
    for call in micro.calls:
        outputs = _call(setting, call, values)
        values.update({number: outputs[place] for number, place in call.outputs.items()})
        found += outputs
    return found


def _call(setting: Setting, call: Call, before: dict[int, Tensor]) -> list[Tensor]:
    """`before` has the outputs of the calls before it, by their numbers."""
    if call.randomness is not None:
        call.randomness.restore()
    for back in call.sources:
        back()
    for one in call.carried:
        one.put_back()
    args, kwargs = call.args, dict(call.kwargs)
    if setting.change_inputs is not None:
        kwargs = setting.change_inputs(kwargs)
    dtype = setting.dtype
    if dtype is not None:
        args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))

    if call.fed:
        leaves, shape = pytree.tree_flatten((args, kwargs))
        with call.autocast.restored(off=True):
            for place, computed in call.fed.items():
                leaves[place] = computed.rebuild(before)
        args, kwargs = pytree.tree_unflatten(leaves, shape)

    def run(given: Any) -> list[Tensor]:
        return output_tensors(call.module(*given[0], **given[1]))

    with call.autocast.restored(dtype, off=dtype is torch.float32), _autocast_within(dtype):
        given = (args, kwargs)
        return run(given) if setting.lay_out is None else setting.lay_out(run, given, call)


@contextmanager
def _autocast_within(dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast that the model's own forward turns on, as accelerate has it do, is in `dtype` too; None: as it says."""
    enter = torch.autocast.__enter__
    changed: list[tuple[Any, torch.dtype | None, bool]] = []

    def entered(self: Any) -> Any:
        if self._enabled:
            changed.append((self, self.fast_dtype, self._enabled))
            self.fast_dtype, self._enabled = dtype, dtype is not torch.float32
        return enter(self)

    if dtype is not None:
        torch.autocast.__enter__ = entered
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter
        for autocast, own, enabled in reversed(changed):
            autocast.fast_dtype, autocast._enabled = own, enabled


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
