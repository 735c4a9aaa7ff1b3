"""A training loop that a Python program writes out itself: optimizer, clipping, autocast, loss scaling."""

from __future__ import annotations

import ast
import math
import re
from typing import Any, cast

from finitune.facts import DEFAULT_LOSS_SCALE
from finitune.sources.configs.keys import dtype_of
from finitune.sources.configs.program.bindings import called, keywords, value_of
from finitune.sources.configs.program.model import cast_of, loads
from finitune.sources.configs.program.names import Call, last_name
from finitune.sources.configs.program.setup import Setup, number, only, take, taken_call, worded
from finitune.sources.configs.program.values import Computed, Defined, Reader, known
from finitune.sources.configs.program.written import line_of

OPTIMIZERS = re.compile(
    r"(Fused|DeepSpeedCPU|Paged|Sparse)?(Adam|AdamW|SGD|RMSprop|Adagrad|Adafactor|Lion|RAdam|NAdam|Adamax|LAMB|Lamb|"
    r"Adadelta|Muon|Sophia|SophiaG|ASGD|Prodigy|AdEMAMix|AdamWScheduleFree)(_?(8|32)bit)?"
)
LOOP_KEYS = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
SCALES = re.compile(r"scale", re.IGNORECASE)
"""In a name: the program may scale its loss in a way of its own."""

CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_gradients")


def optimizers(reader: Reader) -> list[tuple[Call, dict[str, Any]]]:
    """The optimizers that the program makes and what they are given, the one with the highest rate first."""
    found: list[tuple[Call, dict[str, Any]]] = []
    for call in reader.names.calls:
        name = last_name(call.node.func)
        if not OPTIMIZERS.fullmatch(name) or not taken_call(reader, call) or "." not in called(reader, call):
            continue
        said = keywords(reader, call)
        if len(call.node.args) > 1:
            said.setdefault("lr", value_of(reader, call.node.args[1], call.site))
        groups = value_of(reader, call.node.args[0], call.site) if call.node.args else None
        held = cast(list[Any], groups) if isinstance(groups, list) else []
        rates = [cast(dict[str, Any], one).get("lr") for one in held if isinstance(one, dict)]
        numbers = [rate for one in (*rates, said.get("lr")) if (rate := number(one)) is not None]
        if numbers:
            said["lr"] = max(numbers)
        found.append((call, said))
    return sorted(found, key=lambda one: -(number(one[1].get("lr")) or 0.0))


def loop(reader: Reader, setup: Setup) -> None:
    """The loop that the program writes out itself."""
    for call, said in optimizers(reader)[:1]:
        take(reader, setup, setup.arguments, call, only(said, tuple(LOOP_KEYS)), LOOP_KEYS)
        setup.arguments["optim"] = last_name(call.node.func).lower()
        setup.lines["optim"] = call.line
        betas = said.get("betas")
        if known(betas) and isinstance(betas, list) and len(cast(list[Any], betas)) == 2:
            setup.arguments["adam_beta1"], setup.arguments["adam_beta2"] = betas
        setup.unused.update(key for key in said if key not in (*LOOP_KEYS, "betas", "params", "**"))
    _clipping(reader, setup)
    _clips_scaled(reader, setup)
    _mixed_precision(reader, setup)
    loaders = [call for call in reader.names.calls_named("DataLoader") if taken_call(reader, call)]
    for call in loaders[:1]:
        names = {"batch_size": "per_device_train_batch_size"}
        take(reader, setup, setup.arguments, call, only(keywords(reader, call), ("batch_size",)), names)


def _clipping(reader: Reader, setup: Setup) -> None:
    calls = [call for name in CLIPS for call in reader.names.calls_named(name) if taken_call(reader, call)]
    stepped = [call for call in reader.names.calls_named("backward") if isinstance(call.node.func, ast.Attribute)]
    if not calls:
        # DeepSpeed clips by itself; a model that somebody wrote may train well without
        if stepped and not prepared(reader) and loads(reader):
            setup.arguments["max_grad_norm"] = 0.0
            setup.lines["max_grad_norm"] = stepped[0].line
        return
    call = calls[0]
    said = next((keyword.value for keyword in call.node.keywords if keyword.arg == "max_norm"), None)
    said = call.node.args[1] if said is None and len(call.node.args) > 1 else said
    norm = keywords(reader, call).get("max_norm") if said is None else value_of(reader, said, call.site)
    setup.lines["max_grad_norm"] = (
        call.line if number(norm) is None or said is None else line_of(reader, said, call.site)
    )
    if isinstance(norm, float) and math.isinf(norm):
        norm = 0.0  # it measures and does not clip
    if number(norm) is not None and last_name(call.node.func) != "clip_grad_value_":
        setup.arguments["max_grad_norm"] = norm
    elif isinstance(norm, Computed):
        setup.computed["max_grad_norm"] = norm


def _clips_scaled(reader: Reader, setup: Setup) -> None:
    """Clipping between `scaler.scale(loss).backward()` and `scaler.unscale_`, or where nothing unscales."""
    made = [call for call in reader.names.calls_named("GradScaler") if taken_call(reader, call)]
    off = any(keywords(reader, call).get("enabled") is False for call in made)
    scalers = {name for call in made for name in call.targets}
    for call in reader.names.calls if not off else ():
        if last_name(call.node.func) not in CLIPS or not called(reader, call).startswith("torch."):
            continue
        before = [
            last_name(one.node.func) for one in reader.names.calls
            if one.site.scope is call.site.scope and one.line < call.line and _may_follow(one, call)
            and (owner(one) in scalers or owner(one).lower().endswith("scaler"))
        ]  # fmt: skip
        if "scale" in before and not {"unscale_", "unscale", "get_scale"} & set(before) and taken_call(reader, call):
            setup.clips_scaled.append(call.line)
            setup.lines.setdefault("clips_scaled", call.line)


def _may_follow(one: Call, other: Call) -> bool:
    """Whether both can run in one go: they are in no two arms of one branch."""
    arms = dict(one.site.blocks)
    return all(arms.get(node, arm) == arm for node, arm in other.site.blocks)


def _mixed_precision(reader: Reader, setup: Setup) -> None:
    """autocast, GradScaler, and models that are cast as a whole."""
    scalers = [call for call in reader.names.calls_named("GradScaler") if taken_call(reader, call)]
    scaler: dict[str, Any] = {}
    for call in scalers[:1]:
        take(reader, setup, scaler, call, only(keywords(reader, call), ("enabled", "init_scale", "growth_interval")))
    scaled = bool(scalers) and scaler.get("enabled") is not False
    if "enabled" in setup.computed:
        setup.computed["autocast"] = setup.computed.pop("enabled")
        return
    scale = number(scaler.get("init_scale")) or DEFAULT_LOSS_SCALE
    none: dict[str, Any] = {"scaler": "none"}
    unscaled = none if _plainly_unscaled(reader) else {}
    scaling = {"float16": {"scaler": "dynamic", "initial_scale": scale} if scaled else unscaled}
    cast_to = _cast_to(reader, setup)
    for call in reader.names.calls_named("autocast"):
        if not taken_call(reader, call) or isinstance(value_of(reader, call.node.func, call.site), Defined):
            continue
        said = keywords(reader, call)
        device = value_of(reader, call.node.args[0], call.site) if call.node.args else said.get("device_type", "cuda")
        enabled, dtype = said.get("enabled", True), said.get("dtype")
        if dtype is None and len(call.node.args) > 1:
            dtype = value_of(reader, call.node.args[1], call.site)
        if enabled is False:
            continue
        default = "torch.bfloat16" if device == "cpu" else "torch.float16"
        compute = dtype_of(str(worded(dtype, call.line))) if dtype is not None else dtype_of(default)
        setup.lines["autocast"] = call.line
        if isinstance(enabled, Computed) or compute is None:
            asked = next((one for one in (enabled, dtype) if isinstance(one, Computed)), Computed(call.line))
            setup.computed["autocast"] = asked
            return
        setup.precision.update(compute=compute, parameters=cast_to, **scaling.get(compute, none))
        return
    if cast_to is not None:
        setup.precision.update(compute=cast_to, parameters=cast_to, **scaling.get(cast_to, none))


def _plainly_unscaled(reader: Reader) -> bool:
    """Whether the program goes backward from a loss itself and no name in it speaks of a scale."""
    names = {node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(reader.names.module.node)
             if isinstance(node, ast.Name | ast.Attribute)}  # fmt: skip
    back = [call for call in reader.names.calls_named("backward") if taken_call(reader, call)]
    own = [call for call in back if isinstance(call.node.func, ast.Attribute) and not call.node.args]
    plain = [call for call in own if isinstance(cast(ast.Attribute, call.node.func).value, ast.Name | ast.Attribute)]
    return bool(plain) and not any(SCALES.search(name) for name in names)


def _cast_to(reader: Reader, setup: Setup) -> str | None:
    """The dtype of a model that is cast as a whole: `model.half()`, `Net().to(torch.bfloat16)`."""
    models = {owner(call) for call in reader.names.calls_named("parameters")} - {""}
    for call in reader.names.calls:
        dtype = cast_of(reader, call) if models & {owner(call), *call.targets} and taken_call(reader, call) else None
        if dtype is not None:
            setup.lines["dtype"] = call.line
            return dtype
    return None


def owner(call: Call) -> str:
    """`model` of `self.model.half()`; empty where there is none."""
    return last_name(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else ""


def prepared(reader: Reader) -> bool:
    """Whether DeepSpeed takes the training over."""
    return any(called(reader, call) == "deepspeed.initialize" for call in reader.names.calls_named("initialize"))
