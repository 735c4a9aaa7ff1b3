"""A captured step on disk: its batches, random number states and loss, for whoever wants to run it again.

`captures/step00000031-rank00000.safetensors` holds the tensors under their path in the step, for instance
`0.0.kwargs.input_ids` (micro-step, call, path), the `.json` beside it everything else: a tensor stands there as
`{"tensor": NAME}`. The weights that are trained lie in `...-weights.safetensors` where they are small. No pickle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finitune.finding import UnreadableInput, number, number_name
from finitune.json_memory import json_memory
from finitune.monitor.capture.model_files import describe, tensors_of, why_not
from finitune.monitor.capture.model_keys import dtype_of
from finitune.monitor.capture.step import Call, Capture, MicroStep
from finitune.monitor.loss_graph.loss_operators import OPERATORS
from finitune.monitor.loss_graph.objective import Objective, Term
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.probes.ranks import is_sharded
from finitune.monitor.probes.surroundings import Autocast, Randomness
from finitune.monitor.weights_file import write_tensors
from finitune.recorded_rows import MAX_MEMORY
from finitune.recording import write_json

FORMAT = 2
MAX_BYTES = 256 * 2**20
"""Larger batches (images, audio) are described, not written."""
MAX_JSON_BYTES = 2**25
"""Of the file that names the tensors of a step; the state of Python's random numbers takes 7 kB for each call."""
MAX_WEIGHTS = 256 * 2**20
"""Of all captures of a recording: adapters and small models are kept, the weights of large ones are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCapture:
    """A capture as read back, ready to be run again on the model it was read for."""

    capture: Capture
    scale: float
    losses: tuple[float | None, ...]
    """Of every micro-step as the loop saw them, scaled."""


def save_capture(
    capture: Capture, model: nn.Module, directory: Path, *, step: int, rank: int, scale: float, inside: Any = None
) -> tuple[Path, bool] | None:
    """Write the capture of `step`; returns the path of its JSON file, and whether it can be run again in another
    process; None when no call was captured.

    `inside` is the autocast dtype within the model's own forward, where that was seen.
    """
    tensors: dict[str, Tensor] = {}
    modules = {id(module): name for name, module in model.named_modules()}
    micro_steps = [_micro_step(micro, f"{at}", tensors, modules) for at, micro in enumerate(capture.micro_steps)]
    if not any(micro["calls"] for micro in micro_steps):
        return None
    path = directory / f"step{step:08d}-rank{rank:05d}.json"
    written = sum(t.nbytes for t in tensors.values()) <= MAX_BYTES
    if written:
        _save(tensors, path.with_suffix(".safetensors"))
    described = describe(model, [call.module for m in capture.micro_steps for call in m.calls], inside)
    data = {
        "format": FORMAT,
        "step": step,
        "rank": rank,
        "scale": scale,
        "not_runnable": capture.runnable,
        "micro_steps": micro_steps,
        "tensors": {name: {"shape": list(t.shape), "dtype": dtype_name(t.dtype)} for name, t in tensors.items()},
        "tensors_written": written,
        "model": described,
        "weights": _save_weights(model, path),
    }
    write_json(path, data)
    here = any(
        (micro.objective and micro.objective.only_here) or any(call.fed for call in micro.calls)
        for micro in capture.micro_steps
    )  # what the program computes of its own weights, or between two calls, is not written
    return path, written and not here and capture.runnable is None and why_not(described) is None


def load_capture(data: Mapping[str, Any], file: Path, model: nn.Module) -> StoredCapture:
    """The capture of `data`, the JSON of `file`, for `model` on the model's device.

    Raises UnreadableInput for a capture that does not hold what it should.
    """
    device = next(model.parameters()).device
    try:
        stored = _Stored(
            tensors=tensors_of(file.with_suffix(".safetensors")), device=device, modules=dict(model.named_modules())
        )
        micro_steps = [stored.micro_step(micro) for micro in data["micro_steps"]]
        losses = tuple(number(micro["scaled_loss"]) for micro in data["micro_steps"])
        return StoredCapture(capture=Capture(micro_steps=micro_steps), scale=float(data["scale"]), losses=losses)
    except UnreadableInput:
        raise
    except Exception as error:  # whatever a value of the wrong kind comes to
        raise UnreadableInput(f"{file}: not a captured step as finitune writes it ({error!r:.200})") from None


def read_capture(file: Path) -> dict[str, Any]:
    """The JSON of a capture.

    Raises UnreadableInput where there is none, or one that cannot be run again.
    """
    try:
        if not file.is_file() and file.exists():
            raise UnreadableInput(f"{file}: a pipe or a device (expected a captured step)")
        if file.stat().st_size > MAX_JSON_BYTES:
            raise UnreadableInput(f"{file}: {file.stat().st_size} bytes (expected at most {MAX_JSON_BYTES})")
        text = file.read_text(encoding="utf-8")
        if json_memory(text) > MAX_MEMORY:
            raise UnreadableInput(f"{file}: more values than fit into the memory (expected a captured step)")
        data = json.loads(text)
    except UnreadableInput:
        raise
    except FileNotFoundError:
        raise UnreadableInput(f"{file}: missing (expected a captured step)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{file}: not readable as JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UnreadableInput(f"{file}: a capture in another format (expected {FORMAT}, as this finitune writes it)")
    if data.get("not_runnable"):
        raise UnreadableInput(f"{file}: {data['not_runnable']}")
    if not data.get("tensors_written"):
        raise UnreadableInput(f"{file}: the batch was larger than {MAX_BYTES // 2**20} MiB and was not written")
    return data


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    write_tensors(temporary, tensors.items())
    temporary.replace(path)


def _save_weights(model: nn.Module, path: Path) -> str | None:
    """The file with the parameters that are trained, as they are; None where they are too large for a recording."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if is_sharded(list(trained.values())):
        return None
    there = sum(file.stat().st_size for file in path.parent.glob("*-weights.safetensors"))
    if there + sum(p.nbytes for p in trained.values()) > MAX_WEIGHTS:
        return None
    file = path.with_name(f"{path.stem}-weights.safetensors")
    _save(trained, file)
    return file.name


def _micro_step(
    micro: MicroStep, prefix: str, tensors: dict[str, Tensor], modules: Mapping[int, str]
) -> dict[str, Any]:
    objective = micro.objective
    return {
        "scaled_loss": None if micro.root is None or micro.root.numel() != 1 else float(micro.root),
        "calls": [_call(call, f"{prefix}.{at}", tensors, modules) for at, call in enumerate(micro.calls)],
        "objective": None if objective is None else _plain(objective.whole, f"{prefix}.objective", tensors),
        "constant": objective is not None and objective.constant,
    }


def _call(call: Call, prefix: str, tensors: dict[str, Tensor], modules: Mapping[int, str]) -> dict[str, Any]:
    random = call.randomness or Randomness.now()  # a call that goes on from another is fed by it, and not loaded
    tensors[f"{prefix}.random.cpu"] = random.cpu
    tensors |= {f"{prefix}.random.cuda{index}": state for index, state in random.devices.items()}
    return {
        "module": modules.get(id(call.module)),
        "args": _plain(call.args, f"{prefix}.args", tensors),
        "kwargs": _plain(dict(call.kwargs), f"{prefix}.kwargs", tensors),
        "autocast": [[device, enabled, dtype_name(dtype)] for device, enabled, dtype in call.autocast.states],
        "autocast_cache": call.autocast.cache,
        "outputs": {str(number): place for number, place in call.outputs.items()},
        "random_cpu": f"{prefix}.random.cpu",
        "random_cuda": {str(index): f"{prefix}.random.cuda{index}" for index in random.devices},
        "random_python": random.python,
        "random_numpy": random.numpy,
    }


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; tensors are put into `tensors` under `name`, and what cannot be written is named."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": number_name(value)}
    if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
        return {"unknown": "weight that the loss uses by itself"}
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Term):
        inputs = [_plain(each, f"{name}.{at}", tensors) for at, each in enumerate(value.inputs)]
        return {"term": value.name, "kept": _plain(value.kept, name, tensors), "inputs": inputs}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_plain(each, f"{name}.{at}", tensors) for at, each in enumerate(value)]}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _plain(each, f"{name}.{key}", tensors) for key, each in value.items()}}
    return {"unknown": type(value).__name__}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Turns the JSON of a capture into what it stands for."""

    tensors: Mapping[str, Tensor]
    device: torch.device
    modules: Mapping[str, nn.Module]

    def micro_step(self, data: Mapping[str, Any]) -> MicroStep:
        loss = number(data["scaled_loss"])
        whole = self.value(data["objective"])
        calls = [self.call(call) for call in data["calls"]]
        uses = frozenset(number for call in calls for number in call.outputs)
        objective = Objective(whole=whole, uses=uses, constant=data["constant"])
        return MicroStep(calls=calls, root=None if loss is None else torch.tensor(loss), objective=objective)

    def call(self, data: Mapping[str, Any]) -> Call:
        version, internal, gauss = data["random_python"]
        states = tuple((device, enabled, dtype_of(dtype)) for device, enabled, dtype in data["autocast"])
        devices = {int(i): self.tensors[name] for i, name in data["random_cuda"].items()}
        return Call(
            module=self.modules[data["module"]],
            args=self.value(data["args"]),
            kwargs=self.value(data["kwargs"]),
            randomness=Randomness(
                cpu=self.tensors[data["random_cpu"]],
                devices=devices if self.device.type == "cuda" else {},
                python=(version, tuple(internal), gauss),
                numpy=data["random_numpy"],
            ),
            autocast=Autocast(states=self._autocast(states), cache=data["autocast_cache"]),
            versions=(),
            outputs={int(number): place for number, place in data["outputs"].items()},
        )

    def _autocast(self, states: Any) -> Any:
        """What was on is on for the device that runs it now."""
        on = next(((enabled, dtype) for _, enabled, dtype in states if enabled), None)
        return ((self.device.type, *on),) if on else tuple(s for s in states if s[0] in ("cpu", self.device.type))

    def value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        ((kind, held),) = [item for item in data.items() if item[0] not in ("kept", "inputs")]
        match kind:
            case "tensor":
                return self.tensors[held].to(self.device)
            case "float":
                return number(held)
            case "dtype":
                return dtype_of(held)
            case "device":
                return self.device
            case "term":
                if held not in OPERATORS:
                    raise ValueError(f"{held!r:.60}: no operator of a loss that can be run again")
                inputs = tuple(self.value(each) for each in data["inputs"])
                return Term(name=held, kept=self.value(data["kept"]), inputs=inputs)
            case "list":
                return [self.value(each) for each in held]
            case "tuple":
                return tuple(self.value(each) for each in held)
            case "dict":
                return {key: self.value(each) for key, each in held.items()}
            case _:
                raise ValueError(f"an argument of the type {held}, which is not written")
