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
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from finitune.monitor.heal.float32_forward import compute_in_float32
from finitune.train.checkpoints import STAGING, NotFinite, seal

LOST = 0.1
"""Of what an adapter changes in the logits, this share may be lost by rounding the merged weights."""
AGREES = 1e-2
"""The same for logits of a model that was saved and loaded again, over their own spread."""
SAMPLE = 24
"""New tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was saved: `off` is its distance to the trained model over what `of` says; `sample` is what it writes."""

    path: Path
    off: float
    of: str
    sample: str
    agrees: bool
    note: str = ""


def export(trainer: Any, final: Path, base: Path, batch: Mapping[str, Tensor], *, merge: bool) -> Exported:
    """Prove the model in `final`, or the adapter in it, merged into `base`. One process; all of it in float32.

    On the host, where there is room for it; a quantised base stays where it is. Raises NotFinite, and OSError for a
    disk that is full.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not getattr(model, "is_quantized", False):
        model.to("cpu")
    with _as_trained(model):
        trained = _logits(model, batch)
    spread = trained.std()
    if not hasattr(model, "disable_adapter"):
        again = AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32)
        return _proved(final, again, trained, batch, spread, "their spread", trainer, AGREES)
    with _as_trained(model), model.disable_adapter():
        effect = torch.maximum((trained - _logits(model, batch)).square().mean().sqrt(), AGREES * spread)
    of = "what the adapter changes"
    if not merge:
        return _proved(final, _adapted(model, final, base)[0], trained, batch, effect, of, trainer, LOST)
    target = final.parent / "merged"
    dtype = _write_merged(model, final, base, target, None, trainer)
    again = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    found = _proved(target, again, trained, batch, effect, of, trainer, LOST)
    if found.agrees or dtype == torch.float32:
        return found
    _write_merged(model, final, base, target, torch.float32, trainer)
    again = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
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

    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    own = plain.dtype
    plain = plain.float()
    _take_quantised(plain, trained)
    return PeftModel.from_pretrained(plain, str(adapter)), own


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


@torch.no_grad()
def _logits(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Of the tokens that are no padding, in float32, on the host."""
    device = next(model.parameters()).device
    ids, mask = (batch[key].to(device) for key in ("input_ids", "attention_mask"))
    return model(input_ids=ids, attention_mask=mask).logits.float()[mask.bool()].cpu()


@torch.no_grad()
def _sample(model: Any, batch: Mapping[str, Tensor], trainer: Any) -> str:
    """What it writes after the prompt of the first row, the likeliest token each time."""
    row, mask, labels = (batch[key][0] for key in ("input_ids", "attention_mask", "labels"))
    row, labels = row[mask.bool()], labels[mask.bool()]
    answer = int((labels != -100).nonzero()[0]) if bool((labels == -100).any()) else max(1, len(row) // 2)
    prompt = row[: max(1, answer)][None].to(next(model.parameters()).device)
    written = model.generate(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=SAMPLE, do_sample=False,
        pad_token_id=trainer.processing_class.pad_token_id,
    )  # fmt: skip
    return trainer.processing_class.decode(written[0, prompt.shape[1] :], skip_special_tokens=True)
