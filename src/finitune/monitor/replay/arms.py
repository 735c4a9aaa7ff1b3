"""Arms: each changes one thing about the captured step for the time of one run.

An arm is a function below, found by its name: `module_float32` is the arm `module-float32=NAME`. What follows `=` is
passed as text. Each is a context manager over the Setting and puts the model back as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from finitune.monitor.capture.step import Call
from finitune.monitor.probes.embeddings import input_embedding, vocabulary_size
from finitune.monitor.probes.optimizers import fresh_state, parameters_of
from finitune.monitor.probes.padding import IGNORED_LABEL, Run, in_reverse, on_the_other_side, one_row_at_a_time
from finitune.monitor.replay.attention import PLAIN, TORCHS, by_mathematics, kernel_of, on_copies, take_kernel
from finitune.monitor.replay.empty_rows import EmptyRows
from finitune.monitor.replay.fewer_rows import without
from finitune.monitor.replay.float32_casts import Float32Casts
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.replay.rounding import ByChance, Rounding, no_room, to_nearest
from finitune.monitor.replay.trial import refuse_large

Arm = Callable[..., Any]


@contextmanager
def again(setting: Setting) -> Iterator[None]:
    """Nothing changed: a run that passes means that the fault does not repeat."""
    yield


@contextmanager
def float32(setting: Setting) -> Iterator[None]:
    """Parameters, inputs and compute in float32, also where the code of the program casts to float16."""
    setting.dtype = torch.float32
    with _cast_parameters(setting.model, torch.float32), Float32Casts():
        yield


@contextmanager
def bfloat16(setting: Setting) -> Iterator[None]:
    """Compute in bfloat16; parameters too, where they are kept in half precision."""
    setting.dtype = torch.bfloat16
    half = any(
        torch.float16 in (getattr(m, "compute_dtype", None), *(p.dtype for p in m.parameters(recurse=False)))
        for m in setting.model.modules()
    )
    with _cast_parameters(setting.model, torch.bfloat16 if half else None):
        yield


@contextmanager
def loss_scale_1(setting: Setting) -> Iterator[None]:
    """The loss not scaled: a step that is still bad cannot be saved by any loss scale.

    A factor that the loop itself multiplies its loss with is a scale too.
    """
    if setting.scale == 1.0:
        factors = {micro.objective.factor for micro in setting.capture.micro_steps if micro.objective is not None}
        setting.scale = max(1.0, *factors) if len(factors) == 1 else 1.0
    setting.run_scale = 1.0
    yield


@contextmanager
def loss_scale_half(setting: Setting) -> Iterator[None]:
    """The loss scale of the step before, which had not grown yet."""
    setting.run_scale = setting.scale / 2
    yield


@contextmanager
def module_float32(setting: Setting, name: str) -> Iterator[None]:
    """One module in float32, its output cast back to the dtype it had."""
    module = setting.model.get_submodule(name)
    own = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]
        device = tensors[0].device.type if tensors else "cpu"
        back = tensors[0].dtype if tensors else torch.float32
        if torch.is_autocast_enabled(device):
            back = torch.get_autocast_dtype(device)
        args, kwargs = pytree.tree_map(lambda leaf: _to(leaf, torch.float32), (args, kwargs))
        with torch.autocast(device, enabled=False), Float32Casts():
            out = own(*args, **kwargs)
        return pytree.tree_map(lambda leaf: _to(leaf, back), out)

    with _cast_parameters(module, torch.float32):
        module.forward = forward
        try:
            yield
        finally:
            del module.forward


@contextmanager
def replace_embedding_rows(setting: Setting, ids: str) -> Iterator[None]:
    """Rows of the input embedding (comma-separated ids) replaced by other rows that the same batch uses."""
    embedding = input_embedding(setting.model)
    if embedding is None:
        raise ValueError("the model has no input embedding that could be found")
    chosen = [int(i) for i in ids.split(",")]
    weight = embedding.weight
    norms = weight.detach().float().norm(dim=1)
    typical = (norms - norms.median()).abs().argsort()[: len(chosen) + 16].tolist()
    donors = [i for i in typical if i not in chosen][: len(chosen)]
    with _changed(weight, lambda w: w.index_copy_(0, torch.tensor(chosen, device=w.device), w[donors].clone())):
        yield


@contextmanager
def repair_weight(setting: Setting, name: str) -> Iterator[None]:
    """Elements of one tensor that are non-finite, or far beyond all its others, set to zero."""
    weight = dict([*setting.model.named_parameters(), *setting.model.named_buffers()])[name]
    with _changed(weight, lambda w: w.masked_fill_(~_plausible(w), 0.0)):
        yield


@contextmanager
def label_every_token(setting: Setting) -> Iterator[None]:
    """Labels taken from the inputs, so that every row has supervised tokens."""

    def relabelled(kwargs: dict[str, Any]) -> dict[str, Any]:
        if "labels" not in kwargs or "input_ids" not in kwargs:
            raise ValueError("the batch has no labels and input_ids to relabel")
        ids, classes = kwargs["input_ids"], vocabulary_size(setting.model)
        if classes is None or kwargs["labels"].shape != ids.shape:
            raise ValueError("the model does not predict tokens, so they are no labels")
        # Outside of the vocabulary an id stands for an image, and as a label it would end the CUDA context.
        labels = ids.masked_fill((ids < 0) | (ids >= classes), IGNORED_LABEL)
        # A trainer that counts the targets itself hands their number to the model.
        counted = {"num_items_in_batch": labels.numel()} if kwargs.get("num_items_in_batch") is not None else {}
        return {**kwargs, "labels": labels, **counted}

    setting.change_inputs = relabelled
    yield


@contextmanager
def shuffle_tokens(setting: Setting) -> Iterator[None]:
    """The tokens of each row in another order, labels as they were: a placebo for causes in the labels."""

    def shuffled(kwargs: dict[str, Any]) -> dict[str, Any]:
        ids = kwargs["input_ids"]
        order = list(range(ids.shape[1]))
        random.Random(0).shuffle(order)
        return {**kwargs, "input_ids": ids[:, order]}

    setting.change_inputs = shuffled
    yield


@contextmanager
def row_by_row(setting: Setting) -> Iterator[None]:
    """Each row of the batch by itself, without its padding."""
    setting.lay_out = lambda run, given, call: one_row_at_a_time(run, given, _ids_of(call), call.padding())
    yield


@contextmanager
def pad_other_side(setting: Setting) -> Iterator[None]:
    """The padding on the other side of every row."""

    def moved(run: Run, given: Any, call: Call) -> list[Tensor]:
        ids, padding = _ids_of(call), call.padding()
        if padding is None:
            raise ValueError("no row of the batch is padded")
        if bool(padding.where.all(dim=1).any()):
            raise ValueError("a row of padding alone has no other side")
        return on_the_other_side(run, given, ids, padding)

    setting.lay_out = moved
    yield


@contextmanager
def reverse_rows(setting: Setting) -> Iterator[None]:
    """The rows of the batch in the opposite order: a placebo for causes in the padding."""
    setting.lay_out = lambda run, given, call: in_reverse(run, given, _ids_of(call))
    yield


def _ids_of(call: Call) -> Tensor:
    ids = call.token_ids()
    if ids is None:
        raise ValueError("the call has no token ids of rows and positions")
    return ids


@contextmanager
def attention_math(setting: Setting) -> Iterator[None]:
    """Attention by plain mathematics, without the kernel that the model takes."""
    kernel = kernel_of(setting.model)
    if kernel == PLAIN:
        raise ValueError("attention is computed by plain mathematics as it is")
    undo = take_kernel(setting.model, PLAIN) if kernel not in (None, TORCHS) else None
    try:
        with by_mathematics():
            yield
    finally:
        if undo is not None:
            undo()


@contextmanager
def attention_copies(setting: Setting) -> Iterator[None]:
    """The same kernel on copies of queries, keys and values: a placebo for causes in the kernel."""
    with on_copies(setting.model):
        yield


@contextmanager
def zero_empty_rows(setting: Setting) -> Iterator[None]:
    """Zeros from every softmax of a row that sees no key."""
    with EmptyRows():
        yield


@contextmanager
def zero_other_rows(setting: Setting) -> Iterator[None]:
    """Zeros from the rows next to those that see no key: a placebo for the same."""
    with EmptyRows(neighbours=True):
        yield


@contextmanager
def leave_rows_out(setting: Setting, rows: str) -> Iterator[None]:
    """Some samples of the step (comma-separated, from 0, counted through its micro-steps) left out of it."""
    setting.capture = without(setting.capture, {int(row) for row in rows.split(",")})
    yield


@contextmanager
def optimizer_float32(setting: Setting) -> Iterator[None]:
    """Weights, gradients and the optimizer's moments in float32, and a trial update with them."""
    refuse_large(setting.optimizer, torch.float32.itemsize)
    setting.update_times = 1.0
    state = setting.optimizer.state
    own = {p: dict(entries) for p, entries in state.items()}
    with float32(setting):
        for p, entries in own.items():
            state[p] = {name: _to(value, torch.float32) for name, value in entries.items()}
        try:
            yield
        finally:
            state.update(own)


@contextmanager
def rounded_by_chance(setting: Setting) -> Iterator[None]:
    """A trial update in float32, tensor by tensor, rounded up or down by chance, where float32 copies do not fit."""
    _rounded(setting, ByChance())
    yield


@contextmanager
def rounded_to_nearest(setting: Setting) -> Iterator[None]:
    """The same, rounded to the nearest: a placebo."""
    _rounded(setting, to_nearest)
    yield


@contextmanager
def fresh_moments(setting: Setting) -> Iterator[None]:
    """A trial update by an optimizer that remembers nothing."""
    setting.update_times = 1.0
    with fresh_state(setting.optimizer, parameters_of(setting.optimizer)):
        yield


@contextmanager
def fresh_first_moment(setting: Setting) -> Iterator[None]:
    """A trial update with the mean of the gradients forgotten, and their squares kept: a placebo."""
    setting.update_times = 1.0
    state = setting.optimizer.state
    own = {p: entries["exp_avg"] for p, entries in state.items() if "exp_avg" in entries}
    for p, mean in own.items():
        state[p]["exp_avg"] = torch.zeros_like(mean)
    try:
        yield
    finally:
        for p, mean in own.items():
            state[p]["exp_avg"] = mean


@contextmanager
def update_times(setting: Setting, factor: str) -> Iterator[None]:
    """A trial update with the learning rate times `factor`: passed where the batch's loss does not rise."""
    setting.update_times = float(factor)
    yield


@contextmanager
def last_steps(setting: Setting, times: str) -> Iterator[None]:
    """The last steps of the run taken again before it, their learning rate times `times`, where they were kept."""
    if setting.past is None:
        raise ValueError("no earlier step was kept")
    with setting.past.again(setting, float(times)):
        yield


@contextmanager
def last_steps_clipped(setting: Setting) -> Iterator[None]:
    """The last steps taken again before it, each tensor's gradient clipped to twice its usual norm."""
    if setting.past is None:
        raise ValueError("no earlier step was kept")
    with setting.past.again(setting, 1.0, bound="clip"):
        yield


def arm_names() -> list[str]:
    """Every arm, spelled as in a recording."""
    return sorted(name.replace("_", "-") for name, value in globals().items() if _is_arm(name, value))


def arm(spelling: str) -> tuple[Arm, tuple[str, ...]]:
    """The function and its arguments for a spelling such as `module-float32=model.layers.7.mlp`.

    Raises ValueError for an unknown arm.
    """
    name, equals, argument = spelling.partition("=")
    function = globals().get(name.replace("-", "_"))
    if function is None or not _is_arm(name, function):
        raise ValueError(f"unknown arm {name!r}; there are {', '.join(arm_names())}")
    return function, ((argument,) if equals else ())


def _is_arm(name: str, value: Any) -> bool:
    return callable(value) and hasattr(value, "__wrapped__") and value.__module__ == __name__ and name[0] != "_"


def _plausible(weight: Tensor) -> Tensor:
    """True where an element is finite and within 1000 times the root mean square of the middle of the tensor."""
    magnitude = weight.detach().float().abs()
    typical = magnitude.flatten()[:: max(1, magnitude.numel() // 65536)].nanquantile(0.5)
    return torch.isfinite(weight) & (magnitude <= 1000 * typical.clamp_min(1e-30))


@contextmanager
def _changed(weight: Tensor, change: Callable[[Tensor], Any]) -> Iterator[None]:
    data = weight.data
    copy = data.clone()
    change(copy)
    weight.data = copy
    try:
        yield
    finally:
        weight.data = data


@contextmanager
def _cast_parameters(module: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """Floating parameters and buffers in `dtype` for a while, and products of quantised weights computed in it.

    None changes nothing.
    """
    kept = [(t, t.data) for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()]
    quantised = [m for m in module.modules() if isinstance(getattr(m, "compute_dtype", None), torch.dtype)]
    with ExitStack() as stack:
        if dtype is not None:
            for layer in quantised:
                stack.callback(setattr, layer, "compute_dtype", layer.compute_dtype)
                layer.compute_dtype = dtype  # pyright: ignore[reportArgumentType]
            for tensor, data in kept:
                if tensor.grad is not None:  # no tensor takes a gradient of another dtype
                    stack.callback(setattr, tensor, "grad", tensor.grad)
                    tensor.grad = None
                stack.callback(setattr, tensor, "data", data)
                tensor.data = data.to(dtype)
        yield


def _rounded(setting: Setting, rounding: Rounding) -> None:
    if no_room(setting.optimizer, setting.model) is None:
        raise ValueError("float32 copies fit, and show more")
    setting.rounding = rounding


def _to(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
