"""A model of a library described in plain data, and built again from it in another process.

Only models of transformers and PEFT adapters on them: their code is installed, so a name and a configuration are
enough. Code of the user's own program is never imported, and no pickle is read.
"""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from finitune.finding import UnreadableInput, as_json
from finitune.monitor.capture.model_keys import bounded, configuration, dtype_of, lora
from finitune.monitor.probes.names import dtype_name

ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def describe(model: nn.Module, called: Sequence[nn.Module], inside: torch.dtype | None = None) -> dict[str, Any]:
    """What it takes to build the module that the loop calls again, and where it lies within `model`.

    `inside` is the autocast dtype that the module's own forward turns on, as accelerate has it do.
    """
    names = {id(module): name for name, module in model.named_modules()}
    module = called[0] if called else model
    adapted = getattr(module, "peft_config", None) if hasattr(module, "get_base_model") else None
    base = module.get_base_model() if adapted else module  # pyright: ignore[reportCallIssue]
    parameters = dict(model.named_parameters())
    usual = Counter(p.dtype for p in parameters.values() if p.is_floating_point()).most_common(1)
    dtype = usual[0][0] if usual else torch.float32
    trained = [name for name, p in parameters.items() if p.requires_grad]
    config: Any = getattr(base, "config", None)
    return {
        "place": names.get(id(module), ""),
        "class": _class_name(base),
        "config": as_json(config.to_dict()) if hasattr(config, "to_dict") else None,
        "path": getattr(config, "_name_or_path", None) or None,
        "attention": getattr(config, "_attn_implementation", None),
        "adapters": {name: as_json(one.to_dict()) for name, one in adapted.items()} if adapted else {},
        "device": next((p.device.type for p in parameters.values()), "cpu"),
        "training": module.training,
        "checkpointing": _checkpointing(base),
        "autocast_inside": dtype_name(inside) if inside else None,
        "trained": "all" if len(trained) == len(parameters) else trained,
        "dtype": dtype_name(dtype),
        "other_dtypes": {
            n: dtype_name(t.dtype)
            for n, t in [*parameters.items(), *model.named_buffers()]
            if t.is_floating_point() and t.dtype != dtype
        },
    }


def build(described: Mapping[str, Any], directory: Path | None, weights: Path | None) -> nn.Module:
    """The watched model again, on this machine's device, with the weights in `directory` and `weights` over them.

    `weights` holds the parameters that were trained as they were in the captured step; `directory` is a model as
    transformers saves it, an adapter as PEFT does, or the last good step of a recording; where all parameters were
    trained and kept it is not needed. Raises UnreadableInput where something is missing or does not fit.
    """
    try:
        return _built(described, directory, weights)
    except UnreadableInput:
        raise
    except Exception as error:  # the libraries raise what they like for a configuration that is none
        raise UnreadableInput(f"the model of the run cannot be built again ({_line(error)})") from None


def _built(described: Mapping[str, Any], directory: Path | None, weights: Path | None) -> nn.Module:
    own = tensors_of(weights) if weights is not None else {}
    module = _with_weights(described, directory, whole=bool(own) and described["trained"] == "all", own=_bytes(own))
    model = _at_its_place(module, described["place"])
    parameters = dict(model.named_parameters())
    trained = parameters.keys() if described["trained"] == "all" else set(described["trained"])
    strange = next(iter((set(trained) | own.keys()) - parameters.keys()), None)
    if strange is not None:
        raise UnreadableInput(f"{directory}: another model than that of the run, which has a parameter {strange}")
    for name, tensor in [*parameters.items(), *model.named_buffers()]:
        if tensor.is_floating_point():
            dtype = described["other_dtypes"].get(name, described["dtype"])
            tensor.data = tensor.data.to(dtype_of(dtype))
    for name, p in parameters.items():
        p.requires_grad_(name in trained)
        if name in own:
            _copy(own[name], p, name, weights)
    module.train(described["training"])
    if described["checkpointing"] is not None:
        base = module.get_base_model() if described["adapters"] else module  # pyright: ignore[reportCallIssue]
        base.gradient_checkpointing_enable(described["checkpointing"])  # pyright: ignore[reportCallIssue]
    if described["autocast_inside"]:
        _compute_in(module, dtype_of(described["autocast_inside"]))
    usable = described["device"] == "cuda" and torch.cuda.is_available()
    return model.to("cuda" if usable else "cpu")


def why_not(described: Mapping[str, Any]) -> str | None:
    """Why a model so described cannot be built again; None when it can, if its weights are there."""
    package = str(described["class"]).partition(".")[0]
    if package != "transformers" or described["config"] is None:
        return (
            f"the model is of the class {described['class']}, which this process does not have: only models of "
            "transformers, and PEFT adapters on them, can be built again. While it trains, finitune run -- COMMAND or "
            "finitune.watch(model, optimizer) puts the causes to the test"
        )
    kinds = [one.get("peft_type") for one in described["adapters"].values()]
    if len(kinds) > 1:
        return f"{len(kinds)} adapters at once are not built again"
    return f"an adapter of the type {kinds[0]!s:.40} is not built again" if kinds and kinds != ["LORA"] else None


def tensors_of(file: Path) -> dict[str, Tensor]:
    """What a safetensors file holds, by name.

    Raises UnreadableInput.
    """
    from safetensors import SafetensorError  # not in the training process, which may lack it
    from safetensors.torch import load_file

    if file.exists() and not file.is_file():
        raise UnreadableInput(f"{file}: a pipe or a device (expected a safetensors file)")
    try:
        return load_file(file)
    except FileNotFoundError:
        raise UnreadableInput(f"{file}: missing (expected the tensors of a captured step)") from None
    except (MemoryError, RuntimeError) as error:
        raise UnreadableInput(f"{file}: not read ({_line(error)})") from None
    except (OSError, SafetensorError) as error:
        raise UnreadableInput(f"{file}: not readable as safetensors ({error})") from None


def _class_name(module: nn.Module) -> str:
    """With its package; a class that another library derived on the fly goes by the name of its parent."""
    for kind in type(module).__mro__:
        if kind.__module__.startswith("transformers.models.") and kind.__name__ in type(module).__name__:
            return f"transformers.{kind.__name__}"
    return f"{type(module).__module__}.{type(module).__name__}"


def _checkpointing(module: nn.Module) -> dict[str, Any] | None:
    """The settings of activation checkpointing, as its modules keep them; None where it is off."""
    for part in module.modules():
        function = getattr(part, "_gradient_checkpointing_func", None)
        if function is not None and getattr(part, "gradient_checkpointing", False):
            known = function.keywords if isinstance(function, functools.partial) else {}
            return {key: value for key, value in known.items() if isinstance(value, bool)}
    return None


def _with_weights(described: Mapping[str, Any], directory: Path | None, *, whole: bool, own: int) -> nn.Module:
    """The called module; with weights where `directory` has them, and with any where all of them are `whole` anyway."""
    import transformers

    kind: Any = getattr(transformers, described["class"].partition(".")[2], None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) and kind.config_class):
        name = f"{described['class']:.100}"
        raise UnreadableInput(f"{name}: no model of the transformers {transformers.__version__} that is here")
    config = kind.config_class.from_dict(configuration(kind, described["config"]))
    dtype = dtype_of(described["dtype"])
    if whole:
        return _empty(kind, config, described, own)
    if directory is None:
        raise UnreadableInput(
            "the recording does not hold the weights (a large model, or a base below adapters): name the directory of "
            "the model that was fine-tuned with --model DIR"
        )
    adapter = directory if (directory / ADAPTER).is_file() else None
    base = _base_of(adapter, described) if adapter else directory
    if not (base / "config.json").is_file() and (base / "model.safetensors").is_file():
        model = _empty(kind, config, described, own + _bytes_in(base))
        _load_plain(model, base / "model.safetensors", str(described["place"]))
    else:
        with bounded(own + _bytes_in(base)):
            model = _pretrained(kind, config, base, dtype, described["attention"])
    if not described["adapters"]:
        return model
    with bounded(own + _bytes_in(base) + (_bytes_in(adapter) if adapter else 0)):
        return _adapted(model, described, adapter)


def _empty(kind: Any, config: Any, described: Mapping[str, Any], file_bytes: int) -> nn.Module:
    """The module with any weights; first without memory for them, to see whether they are as many as in the files."""
    with bounded(file_bytes), torch.device("meta"):
        kind._from_config(copy.deepcopy(config), dtype=torch.float32, attn_implementation=described["attention"])
    return kind._from_config(config, dtype=torch.float32, attn_implementation=described["attention"])


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _bytes_in(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def _pretrained(kind: Any, config: Any, directory: Path, dtype: torch.dtype, attention: str | None) -> nn.Module:
    if (directory / ADAPTER).exists():  # transformers would load it by itself, with whatever it names
        raise UnreadableInput(f"{directory}: {ADAPTER} beside the model (expected the model alone)")
    if not list(directory.glob("*.safetensors")):
        raise UnreadableInput(f"{directory}: no *.safetensors here (expected a model as save_pretrained writes it)")
    try:
        model, loading = kind.from_pretrained(
            directory, config=config, dtype=dtype, attn_implementation=attention, use_safetensors=True,
            local_files_only=True, output_loading_info=True,
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise UnreadableInput(f"{directory}: the model of the run cannot be loaded from it ({_line(error)})") from None
    if loading["missing_keys"]:
        first = min(loading["missing_keys"])
        raise UnreadableInput(f"{directory}: no weights for {first}, which the model of the run has")
    return model


def _adapted(model: nn.Module, described: Mapping[str, Any], adapter: Path | None) -> nn.Module:
    import peft

    ((name, settings),) = described["adapters"].items()
    known = lora(settings, described["trained"])
    adapted = peft.get_peft_model(model, peft.LoraConfig(**known), adapter_name=name)  # pyright: ignore[reportArgumentType]
    if adapter is None:
        return adapted
    # not PeftModel.from_pretrained, which does whatever the adapter's own configuration says
    stored = tensors_of(adapter / ADAPTER_WEIGHTS)
    wanted = peft.get_peft_model_state_dict(adapted, adapter_name=name, save_embedding_layers=False)  # pyright: ignore[reportArgumentType]
    absent = next((key for key in wanted if key not in stored), None)
    if absent is not None:
        raise UnreadableInput(f"{adapter / ADAPTER_WEIGHTS}: no weights for {absent}, which the adapter of the run has")
    peft.set_peft_model_state_dict(adapted, stored, adapter_name=name)  # pyright: ignore[reportArgumentType]
    return adapted


def _base_of(adapter: Path, described: Mapping[str, Any]) -> Path:
    """Where the model under an adapter lies: what the adapter itself says, or the run's configuration."""
    said = json.loads((adapter / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    for path in (described["path"], said):
        if path and (Path(path) / "config.json").is_file():
            return Path(path)
    raise UnreadableInput(f"{adapter}: an adapter, and the model below it is not at {said}: name it with --model DIR")


def _load_plain(module: nn.Module, file: Path, place: str) -> None:
    """Weights by their names in the watched model, of which `module` is the part at `place`."""
    prefix = f"{place}." if place else ""
    stored = tensors_of(file)
    for name, p in module.named_parameters():
        if prefix + name not in stored:
            raise UnreadableInput(f"{file}: no weights for {prefix}{name}, which the model of the run has")
        _copy(stored[prefix + name], p, prefix + name, file)


def _copy(stored: Tensor, p: nn.Parameter, name: str, file: Path | None) -> None:
    if stored.shape != p.shape:
        shapes = f"{list(stored.shape)}, the model of the run has {list(p.shape)}"
        raise UnreadableInput(f"{file}: {name} has the shape {shapes}")
    p.data = stored.to(device=p.device, dtype=p.dtype)


def _at_its_place(module: nn.Module, place: str) -> nn.Module:
    """`module` within empty modules, so that it has the name it had in the watched model."""
    for name in reversed(place.split(".") if place else []):
        outer = nn.Module()
        outer.add_module(name, module)
        module = outer
    return module


def _compute_in(module: nn.Module, dtype: torch.dtype) -> None:
    """Autocast within the module's own forward, and outputs in float32, as accelerate prepares a model."""
    own = module.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        device = next(module.parameters()).device.type
        with torch.autocast(device, dtype=dtype) if dtype is not torch.float32 else nullcontext():
            output = own(*args, **kwargs)
        return pytree.tree_map(lambda leaf: leaf.float() if _is_half(leaf) else leaf, output)

    module.forward = forward


def _is_half(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
