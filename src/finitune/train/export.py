"""After a training: the saved model is loaded again and compared with the one that was trained; adapters are merged."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from finitune.monitor.heal.float32_forward import compute_in_float32
from finitune.monitor.probes.ranks import whole
from finitune.train.checkpoints import STAGING, NotFinite, seal

LOST = 0.1
"""Of what an adapter changes in the logits, this share may be lost by rounding the merged weights."""
AGREES = 1e-2
"""The same for logits of a model that was saved and loaded again, over their own spread."""
SAMPLE = 24
"""New tokens."""


class NotAsTrained(Exception):
    """What was saved is not what was trained; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was saved: `off` is its distance to the trained model over what `of` says; `sample` is what it writes."""

    path: Path
    off: float
    of: str
    sample: str
    agrees: bool
    note: str = ""


def is_fully_sharded(model: nn.Module) -> bool:
    """True where FSDP2 holds it in parts."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def as_a_whole(model: Any, final: Path, base: Path) -> Any:
    """A fully sharded model once more, of its files, on the host of the first rank; None on the others, which all
    call this. Raises NotAsTrained on the first where the files do not hold what was trained, bit for bit.
    """
    first, trained = dist.get_rank() == 0, dict[str, Tensor]()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gathered = whole(parameter.detach())
            if first:
                trained[name] = gathered.cpu()
    if not first:
        return None
    adapter = hasattr(model, "disable_adapter")
    if adapter:
        from peft import get_peft_model_state_dict

        trained = get_peft_model_state_dict(model, state_dict=trained)
    saved = {name: tensor for file in sorted(final.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    for name, tensor in trained.items():
        if name not in saved or not torch.equal(saved[name], tensor.to(saved[name].dtype)):
            raise NotAsTrained(f"{name} is not what was trained")
    return _adapted(model, final, base)[0] if adapter else _class_of(model).from_pretrained(final, dtype=torch.float32)


def export(model: Any, trainer: Any, final: Path, base: Path, batch: Mapping[str, Tensor], *, merge: bool) -> Exported:
    """Prove what is saved of the trained model in `final`, or the adapter in it, merged into `base`. One process; all
    of it in float32.

    On the host, where there is room for it; a quantised base stays where it is. Raises NotFinite, and OSError for a
    disk that is full.
    """
    if not getattr(model, "is_quantized", False):
        model.to("cpu")
    with _as_trained(model):
        trained = _logits(model, batch)
    spread, kind = trained.std(), _class_of(model)
    if not hasattr(model, "disable_adapter"):
        again = kind.from_pretrained(final, dtype=torch.float32)
        return _proved(final, again, trained, batch, spread, "their spread", trainer, AGREES)
    with _as_trained(model), model.disable_adapter():
        effect = torch.maximum((trained - _logits(model, batch)).square().mean().sqrt(), AGREES * spread)
    of = "what the adapter changes"
    if not merge:
        return _proved(final, _adapted(model, final, base)[0], trained, batch, effect, of, trainer, LOST)
    target = final.parent / "merged"
    dtype = _write_merged(model, final, base, target, None, trainer)
    again = kind.from_pretrained(target, dtype=torch.float32)
    found = _proved(target, again, trained, batch, effect, of, trainer, LOST)
    if found.agrees or dtype == torch.float32:
        return found
    _write_merged(model, final, base, target, torch.float32, trainer)
    again = kind.from_pretrained(target, dtype=torch.float32)
    note = f"in float32, for {dtype} loses {found.off:.0%} of what the adapter changes".replace("torch.", "")
    return dataclasses.replace(_proved(target, again, trained, batch, effect, of, trainer, LOST), note=note)


def _write_merged(
    trained: Any, adapter: Path, base: Path, target: Path, dtype: torch.dtype | None, trainer: Any
) -> torch.dtype:
    """Base and adapter added in float32, kept in `dtype`, by default that of the base, which is returned."""
    adapted, own = _adapted(trained, adapter, base)
    own = dtype or own
    merged: Any = adapted.merge_and_unload(safe_merge=True)
    work = target.parent / STAGING / target.name
    shutil.rmtree(work, ignore_errors=True)
    merged.to(own).save_pretrained(work)
    trainer.processing_class.save_pretrained(work)
    seal(work)
    if target.exists():
        shutil.rmtree(target)
    work.rename(target)
    shutil.rmtree(work.parent, ignore_errors=True)
    return own


def _adapted(trained: Any, adapter: Path, base: Path) -> tuple[Any, torch.dtype]:
    """The saved adapter on its base in float32, and the dtype of the base.

    A 4-bit base is what it was while the adapter was trained on it: its weights as they are multiplied.
    """
    from peft import PeftModel

    plain: Any = _class_of(trained).from_pretrained(base, dtype="auto")
    own = plain.dtype
    plain = plain.float()
    _take_quantised(plain, trained)
    return PeftModel.from_pretrained(plain, str(adapter)), own


def _class_of(model: Any) -> Any:
    """That of the model itself, under whatever PEFT and FSDP2 have put around it."""
    own = type(model.get_base_model() if hasattr(model, "get_base_model") else model)
    return next(kind for kind in own.__mro__ if not issubclass(kind, FSDPModule))


def _take_quantised(plain: nn.Module, trained: Any) -> None:
    """The weights of quantised layers, in float32, in place of those that they were made from."""
    modules = dict(plain.named_modules())
    for name, layer in trained.get_base_model().named_modules():
        inner: Any = getattr(layer, "base_layer", layer)
        if not _is_quantised(inner):
            continue
        dequantize: Any = importlib.import_module("bitsandbytes.functional").dequantize_4bit
        inner.state_dict()  # on a CPU the weights were packed for inference, and this unpacks them
        state = inner.weight.quant_state
        own: Any = modules.get(name.removesuffix(".base_layer"))
        if own is not None:
            own.weight.data.copy_(dequantize(inner.weight.data, state).to(own.weight))


def _is_quantised(part: nn.Module) -> bool:
    return getattr(getattr(part, "weight", None), "quant_state", None) is not None


def _proved(
    path: Path, model: Any, trained: Tensor, batch: Mapping[str, Tensor], over: Tensor, of: str, trainer: Any,
    limit: float,
) -> Exported:  # fmt: skip
    again = _logits(model.eval(), batch)
    if not bool(torch.isfinite(again).all()):
        raise NotFinite(f"{path}: its logits are not finite")
    off = float((again - trained).square().mean().sqrt() / over.clamp_min(1e-12))
    return Exported(path=path, off=off, of=of, sample=_sample(model, batch, trainer), agrees=off <= limit)


@contextlib.contextmanager
def _as_trained(model: Any) -> Any:
    """In float32 throughout, without dropout."""
    was, undo = model.training, compute_in_float32(model)
    model.eval()
    for part in model.modules():
        if _is_quantised(part):
            part.training = True  # else bitsandbytes packs it for inference on a CPU, and fails for some widths
    try:
        yield
    finally:
        undo()
        model.train(was)


def tokenizer_of(processing: Any) -> Any:
    """Of a processor, which has one, or a tokenizer itself."""
    return getattr(processing, "tokenizer", processing)


@torch.no_grad()
def _logits(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Of the tokens that are no padding, in float32, on the host."""
    device = next(model.parameters()).device
    given = {key: value.to(device) for key, value in batch.items() if key != "labels"}
    return model(**given).logits.float()[given["attention_mask"].bool()].cpu()


@torch.no_grad()
def _sample(model: Any, batch: Mapping[str, Tensor], trainer: Any) -> str:
    """What it writes after the prompt of the first row, the likeliest token each time."""
    device, ids = next(model.parameters()).device, batch["input_ids"]
    row, labels = batch["attention_mask"][0].bool(), batch["labels"][0]
    answer = int((labels[row] != -100).nonzero()[0]) if bool((labels[row] == -100).any()) else int(row.sum()) // 2
    prompt = row.nonzero()[: max(1, answer), 0]
    words = tokenizer_of(trainer.processing_class)
    given = {  # what has a value for each token is cut with them, images are not
        key: (value[:1, prompt] if value.shape[:2] == ids.shape else value).to(device)
        for key, value in batch.items() if key != "labels"
    }  # fmt: skip
    written = model.generate(**given, max_new_tokens=SAMPLE, do_sample=False, pad_token_id=words.pad_token_id)
    return words.decode(written[0, len(prompt) :], skip_special_tokens=True)
