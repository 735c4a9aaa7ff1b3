"""Which keys of a captured model are believed: a recording may come from a stranger.

The libraries that build the model again act on what its configuration says: they import modules, fetch code and weights
by name, compile regular expressions and reserve memory. So what is passed on to them is on a list, and plain.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as registration

from finitune.finding import UnreadableInput

ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Any other name with a slash is code that transformers fetches from the hub."""

LORA = {
    "task_type": str, "r": int, "lora_alpha": float, "lora_dropout": float, "fan_in_fan_out": bool, "bias": str,
    "use_rslora": bool, "use_dora": bool, "lora_bias": bool, "inference_mode": bool, "target_modules": list,
    "modules_to_save": list, "exclude_modules": list, "layers_to_transform": list, "layers_pattern": list,
    "rank_pattern": dict, "alpha_pattern": dict, "init_lora_weights": bool,
}  # fmt: skip
"""The keys of a LoRA adapter that change what it computes, with their types; a list may also be its one entry."""
LEFT_OUT = {
    "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "megatron_core",
    "qalora_group_size", "runtime_config",
}  # fmt: skip
MAX_RANK = 2**14

_REFUSED = re.compile(
    r"backbone|timm|quantization|auto_map|trust|remote|_implementation|use_kernels|kernel_config|_plan$|distributed|"
    r"pretrained|name_or_path|custom_|(?:^|_)path$|url$|repo"
)
"""Keys of a configuration that name code or weights elsewhere."""
_COUNTS = re.compile(r"(?:layer|block|depth|head|expert|stage|level|group)s?$")
MAX_COUNT, MAX_SIZE = 2**14, 2**31
"""Modules of a kind, and anything else that is whole; a vocabulary times a hidden size is bounded by the weights."""
MAX_MODULES = 10**6
MAX_DEPTH = 16
BYTES_PER_PARAMETER = 0.25
"""Weights quantised to four bits, and half of that again for what is tied."""

_OLDER = (
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "head_dim", "layer_types",
    "sliding_window", "num_labels", "output_attentions", "use_cache", "is_decoder", "add_cross_attention",
    "tie_word_embeddings", "tie_encoder_decoder", "model_type",
)  # fmt: skip
"""Keys that other versions of transformers write for the same classes."""
_PLAIN = re.compile(r"[\w.-]{1,300}")


def checked(described: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The description of a model with nothing in it but what is believed. Raises UnreadableInput, naming the key."""
    try:
        return _checked(described)
    except UnreadableInput as error:
        raise UnreadableInput(f"{file}: {error}") from None
    except _Refused as error:
        raise UnreadableInput(f"{file}: model.{error}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{file}: model: not as finitune writes it ({error!r:.100})") from None


class _Refused(Exception):
    """KEY: what is there (expected what)."""


def _checked(described: Mapping[str, Any]) -> dict[str, Any]:
    place, trained = described["place"], described["trained"]
    if not isinstance(place, str) or place.count(".") > MAX_DEPTH or (place and not _PLAIN.fullmatch(place)):
        raise _Refused("place: not the name of a module")
    if trained != "all" and not _is_names(trained):
        raise _Refused("trained: expected the names of parameters")
    if described["attention"] not in ATTENTION:
        raise _Refused(f"attention: {described['attention']!r:.60} (expected one of {', '.join(map(str, ATTENTION))})")
    checkpointing = described["checkpointing"]
    if checkpointing is not None and not all(isinstance(value, bool) for value in checkpointing.values()):
        raise _Refused("checkpointing: expected true or false for each of its keys")
    adapters = {str(name): dict(settings) for name, settings in described["adapters"].items()}
    for settings in adapters.values():
        if settings.get("peft_type") == "LORA":
            lora(settings, trained)
    inside, path = described["autocast_inside"], described.get("path")
    return {
        "place": place,
        "class": str(described["class"]),
        "config": described["config"],
        "path": path if isinstance(path, str) else None,
        "attention": described["attention"],
        "adapters": adapters,
        "device": described["device"],
        "training": described["training"] is True,
        "checkpointing": checkpointing,
        "autocast_inside": None if inside is None else _dtype_name("autocast_inside", inside),
        "trained": trained,
        "dtype": _dtype_name("dtype", described["dtype"]),
        "other_dtypes": {name: _dtype_name("other_dtypes", one) for name, one in described["other_dtypes"].items()},
    }


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of that name. Raises ValueError for any other name of torch."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r:.60} (expected a dtype such as float16)")  # noqa: TRY004
    return found


def _dtype_name(key: str, name: Any) -> str:
    try:
        if not dtype_of(name).is_floating_point:
            raise ValueError(f"{name!r:.60} (expected a dtype of floats)")
    except ValueError as error:
        raise _Refused(f"{key}: {error}") from None
    return name


def configuration(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration that its class declares. Raises UnreadableInput for code, paths, and sizes that
    no model has.
    """
    declared = {name for parent in kind.config_class.__mro__ for name in _parameters(parent)} | {*_OLDER}
    declared |= {*getattr(kind.config_class, "attribute_map", {})}
    known = {key: value for key, value in config.items() if key in declared or _REFUSED.search(key)}
    try:
        return dict(_plain_settings(known, 0))
    except _Refused as error:
        raise UnreadableInput(f"the configuration of the captured model: {error}") from None


def _parameters(kind: type) -> Iterable[str]:
    try:
        return inspect.signature(kind.__init__).parameters
    except ValueError:
        return ()


def _plain_settings(settings: Mapping[str, Any], depth: int) -> Iterable[tuple[str, Any]]:
    for key, value in settings.items():
        if key in ("dtype", "torch_dtype", "transformers_version") or key[:1] == "_" or value is None:
            continue
        if key == "quantization_config" and _is_bitsandbytes(value):
            yield key, value
        elif _REFUSED.search(key):
            if value and key != "backbone_config":
                raise _Refused(f"{key}: is not passed on to transformers")
        else:
            _refuse_large(key, value, depth)
            yield key, dict(_plain_settings(value, depth + 1)) if isinstance(value, Mapping) else value  # pyright: ignore[reportUnknownArgumentType]


def _refuse_large(key: str, value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(f"{key:.60}: nested too deeply")
    if isinstance(value, int) and abs(value) > (MAX_COUNT if _COUNTS.search(key) else MAX_SIZE):
        raise _Refused(f"{key:.60}: {min(abs(value), 10**18)} (expected at most {MAX_COUNT} layers, {MAX_SIZE} else)")
    if isinstance(value, list | str) and len(cast("Sequence[Any]", value)) > 2**16:
        raise _Refused(f"{key:.60}: {len(cast('Sequence[Any]', value))} entries (expected at most {2**16})")
    for one in cast("list[Any]", value) if isinstance(value, list) else ():
        _refuse_large(key, one, depth + 1)


def _is_bitsandbytes(value: Any) -> bool:
    """Quantisation that is a library's own, with settings that are plain."""
    if not isinstance(value, Mapping):
        return False
    settings = cast("Mapping[str, Any]", value)
    plain = all(
        one is None or isinstance(one, bool | int | float) or _is_name(one) or _is_names(one)
        for one in settings.values()
    )  # fmt: skip
    return settings.get("quant_method") == "bitsandbytes" and plain


def lora(settings: Mapping[str, Any], trained: str | Sequence[str]) -> dict[str, Any]:
    """The settings of a LoRA adapter for peft. `trained` are the parameters of the run, which name its modules where
    the settings have a regular expression, which is never run.

    Raises UnreadableInput for a key that is not on the list, or a value that is not plain.
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key in LEFT_OUT or value is None or value in ({}, []) or (value is False and key not in LORA):
            continue
        kind = LORA.get(key)
        if kind is None:
            raise UnreadableInput(f"the adapter of the captured model: {key:.60}: is not passed on to peft")
        if key == "target_modules" and isinstance(value, str):
            found[key] = _modules_of(trained)
        elif key == "init_lora_weights" and value == "gaussian":
            found[key] = True  # the weights of the run take their place
        elif not _fits(kind, value):
            raise UnreadableInput(
                f"the adapter of the captured model: {key}: {value!r:.60} (expected plain {kind.__name__})"
            )
        else:
            found[key] = value
    return found


def _fits(kind: type, value: Any) -> bool:
    if kind is list:
        return _is_name(value) or _is_names(value) or _is_counts(value)
    if kind is dict:
        return isinstance(value, Mapping) and all(
            _is_name(name) and _is_number(one, MAX_RANK) for name, one in cast("Mapping[Any, Any]", value).items()
        )
    if kind is str:
        return _is_name(value)
    if kind is bool:
        return isinstance(value, bool)
    return _is_number(value, MAX_RANK) and (kind is float or (isinstance(value, int) and value > 0))


def _modules_of(trained: str | Sequence[str]) -> list[str]:
    names = () if isinstance(trained, str) else trained
    found = {name.partition(".lora_")[0].partition("base_model.model.")[2] for name in names if ".lora_" in name}
    if not found - {""}:
        raise UnreadableInput(
            "the adapter of the captured model: target_modules: a regular expression, which is not run (expected names)"
        )
    return sorted(found - {""})


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_name, cast("list[Any]", value)))


def _is_counts(value: Any) -> bool:
    each = cast("list[Any]", value if isinstance(value, list) else [value])
    return all(_is_number(one, MAX_COUNT) and isinstance(one, int) for one in each)


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


@contextmanager
def bounded(file_bytes: int) -> Generator[None, None, None]:
    """While it lasts, a model with more modules or parameters than files of so many bytes can hold is not built.

    Raises UnreadableInput.
    """
    most = max(file_bytes / BYTES_PER_PARAMETER, 2**20)
    modules, parameters = 0, 0.0

    def count_module(_parent: nn.Module, _name: str, _child: Any) -> None:
        nonlocal modules
        modules += 1
        if modules > MAX_MODULES:
            raise UnreadableInput(f"the captured model has more than {MAX_MODULES} modules")

    def count_parameter(_module: nn.Module, _name: str, parameter: Any) -> None:
        nonlocal parameters
        parameters += math.prod(parameter.shape) if parameter is not None else 0
        if parameters > most:
            raise UnreadableInput(f"the captured model has more parameters than {file_bytes} bytes of weights can hold")

    hooks = (
        registration.register_module_module_registration_hook(count_module),
        registration.register_module_parameter_registration_hook(count_parameter),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
