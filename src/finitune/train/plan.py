"""What a fine-tune is to run with: what the user wrote, what is chosen for the rest, and the reason of each choice.

A pure function of settings and facts. What the user wrote is kept; where check finds it dangerous, that is said.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from finitune.facts import DEFAULT_LOSS_SCALE, Facts, Hardware
from finitune.finding import Finding, NotChecked
from finitune.preflight import foresee
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.configs.training_arguments import FORMAT
from finitune.train.rows import Form
from finitune.train.settings import Written

SFT_LENGTH, SFT_BATCH, SFT_EPOCHS = 1024, 8, 3.0
"""TRL's own defaults: tokens per row, rows per device and step, passes over the data."""
LEARNING_RATE = {"full": 2e-5, "adapter": 2e-4}
"""TRL's default for all weights, and ten times it for adapters (Schulman et al., LoRA Without Regret, 2025)."""
WARM_UP_SHARE = 0.1
CLIP = 1.0
MOST_BETWEEN_SAVES = 500
"""Steps, as of TrainingArguments."""
SAVES, KEPT = 10, 2
ROUNDS = 4
"""So often check is asked again after what it proposed was taken."""

BESIDE = ("loss_scale", "padding_side", "pad_token", "add_bos_token", "float32_modules", "embedding_rows")
"""Choices that are no arguments of TRL: of the tokenizer, of the loss scaler, and ours."""
OF_TOKENIZER = ("padding_side", "pad_token", "add_bos_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One setting with its reason; `by` says whose it is."""

    key: str
    value: Any
    why: str
    by: Literal["you", "finitune"] = "finitune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All settings of a run. `findings` are what check has to say of them; `tokens` get new embedding rows."""

    choices: Sequence[Choice]
    findings: Sequence[Finding]
    not_checked: Sequence[NotChecked] = ()
    card: str = "CPU"
    tokens: Sequence[int] = ()
    steps: int | None = None
    """Of the optimizer, as far as the data tell."""
    schema: str = field(default="finitune.plan/1")

    def settings(self) -> dict[str, Any]:
        """The arguments of TRL."""
        return {one.key: one.value for one in self.choices if one.key not in BESIDE}

    def beside(self) -> dict[str, Any]:
        """Those of the tokenizer and ours."""
        return {one.key: one.value for one in self.choices if one.key in BESIDE}


def plan(
    written: Written, facts: Facts, *, card: Hardware | None, form: Form = "text", images: bool = False,
    world: int = 1, not_checked: Sequence[NotChecked] = (),
) -> Plan:  # fmt: skip
    """Settings for a run on `card`, None for a CPU, in `world` processes. `facts` are those of model, data and card;
    `images`: rows have some.
    """
    draft = _Draft(written)
    draft.take(precision(written.keys, card, facts))
    draft.take(_of_model(facts))
    draft.take(_of_images(written.keys) if images else ())
    steps = _steps(draft.values(), facts, world)
    draft.take(_of_data(form))
    draft.take(_of_optimizer(draft.values(), steps))
    draft.take(_of_saving(steps))
    findings: Sequence[Finding] = ()
    tokens: set[int] = set()
    for _ in range(ROUNDS):
        findings = _found(draft.values(), facts, card, written)
        proposed = list(_proposed(findings, draft))
        if not proposed:
            break
        draft.take(proposed)
    if not draft.values().get("fp16"):
        draft.drop("loss_scale")
    if written.ours.repair_tokens:
        cured = [one for one in findings if one.remedy is not None and one.remedy.name == "reinit-token-rows"]
        tokens = {token for one in cured for token in one.where.tokens or ()}
        draft.take(
            Choice(key="embedding_rows", value=sorted(tokens), why=f"drawn anew in a copy of the model: {one.message}")
            for one in cured[:1]
        )
        findings = [one for one in findings if one not in cured]
    return Plan(
        choices=draft.choices(), findings=findings, not_checked=not_checked, card=card.name if card else "CPU",
        tokens=sorted(tokens), steps=steps,
    )  # fmt: skip


class _Draft:
    """Choices so far; what the user wrote is never replaced."""

    def __init__(self, written: Written) -> None:
        why = f"written in {written.file.name}"
        self._by_user = {key: Choice(key=key, value=value, why=why, by="you") for key, value in written.keys.items()}
        if written.ours.float32_modules:
            modules = list(written.ours.float32_modules)
            self._by_user["float32_modules"] = Choice(key="float32_modules", value=modules, why=why, by="you")
        self._chosen: dict[str, Choice] = {}

    def take(self, choices: Iterable[Choice]) -> None:
        for one in choices:
            if one.key not in self._by_user:
                self._chosen[one.key] = one

    def drop(self, key: str) -> None:
        """Of what was chosen, and has lost its reason by a later choice."""
        self._chosen.pop(key, None)

    def is_written(self, key: str) -> bool:
        return key in self._by_user

    def choices(self) -> list[Choice]:
        return [*self._chosen.values(), *self._by_user.values()]

    def values(self) -> dict[str, Any]:
        return {one.key: one.value for one in self.choices()}


def precision(keys: Mapping[str, Any], card: Hardware | None, facts: Facts | None = None) -> Iterator[Choice]:
    """In which dtype it computes and keeps the weights."""
    adapter, four = bool(keys.get("use_peft")), bool(keys.get("load_in_4bit"))
    asked = next((key for key in ("fp16", "bf16") if keys.get(key)), None)
    if card is None:
        yield Choice(key="use_cpu", value=True, why="there is no GPU here")
    if asked is None and not ("fp16" in keys or "bf16" in keys):
        asked = None if card is None else "bf16" if card.bfloat16 else "fp16"
        why = _why_precision(card)
        yield Choice(key="bf16", value=asked == "bf16", why=why)
        yield Choice(key="fp16", value=asked == "fp16", why=why)
    if asked == "fp16" and card is not None:
        why = "GradScaler halves it after an overflow and doubles it after 2000 finite steps"
        yield Choice(key="loss_scale", value=f"dynamic, from {DEFAULT_LOSS_SCALE:g}", why=why)
    if not adapter:
        why = "trained weights are kept in float32: half precision rounds small updates away, and a scaler needs it"
        yield Choice(key="dtype", value="float32", why=why)
    elif card is None or asked is None:
        yield Choice(key="dtype", value="float32", why="the dtype in which the run computes")
    elif asked == "bf16":
        yield Choice(key="dtype", value="bfloat16", why="the base is frozen; PEFT keeps the adapter in float32")
    elif four:
        why = "4-bit weights are multiplied in it, and in float16 outlier channels overflow"
        yield Choice(key="dtype", value="float32", why=why)
    else:
        lost = [one.name for one in (facts.weights.tensors if facts and facts.weights else ()) if one.overflow]
        why = f"{lost[0]} holds values beyond float16" if lost else "the base is frozen, and float16 holds its weights"
        yield Choice(key="dtype", value="float32" if lost else "float16", why=why)


def _why_precision(card: Hardware | None) -> str:
    if card is None:
        return "a CPU computes in float32; float16 is not trained on it"
    if card.bfloat16:
        return f"{card.name} computes in bfloat16, whose range is that of float32: no loss scale, nothing overflows"
    return f"{card.name} has no units for bfloat16: float16 with a loss scale, weights in float32"


def _of_model(facts: Facts) -> Iterator[Choice]:
    why = "fused: scores are kept in float32 inside it, where eager attention stores them in the dtype of the run"
    yield Choice(key="attn_implementation", value="sdpa", why=why)
    limit = facts.model.max_positions if facts.model else None
    if limit is not None and limit < SFT_LENGTH:
        yield Choice(
            key="max_length", value=limit, why=f"the model knows {limit} positions, TRL's default is {SFT_LENGTH}"
        )
    else:
        known = f"; the model knows {limit} positions" if limit else ""
        yield Choice(key="max_length", value=SFT_LENGTH, why=f"TRL's default{known}")
    why = "a token that attends to the left alone sees no padding, and no row begins with a pad"
    yield Choice(key="padding_side", value="right", why=why)
    words = facts.vocabulary
    if words is not None and (words.pad_id is None or words.pad_id == words.eos_id):
        for token in words.spare_pad or ():
            yield Choice(key="pad_token", value=token, why="a token of the vocabulary that has no other task")


def _of_images(keys: Mapping[str, Any]) -> Iterator[Choice]:
    why = "an image is as many tokens as it has features: a row that is cut within one is refused by the model"
    yield Choice(key="max_length", value=None, why=why)
    if keys.get("use_peft"):
        why = "PEFT knows the layers of language models by name, of models with images hardly any"
        yield Choice(key="lora_target_modules", value=["all-linear"], why=why)


def _of_data(form: Form) -> Iterator[Choice]:
    if form == "answers":
        yield Choice(
            key="completion_only_loss", value=True, why="each row has one answer: the loss is that of the answer"
        )
    elif form == "conversations":
        why = "rows have several answers: the loss is that of whole rows, for few templates tell answers apart"
        yield Choice(key="assistant_only_loss", value=False, why=why)


def _of_optimizer(keys: Mapping[str, Any], steps: int | None) -> Iterator[Choice]:
    kind = "adapter" if keys.get("use_peft") else "full"
    why = (
        "usual for all weights: TRL's default"
        if kind == "full"
        else "usual for adapters: ten times that of all weights"
    )
    yield Choice(key="learning_rate", value=LEARNING_RATE[kind], why=why)
    name = str(keys.get("optim", "adamw_torch"))
    why = "one bad batch moves the weights no further than an ordinary one"
    yield Choice(key="max_grad_norm", value=CLIP, why=why)
    if "warmup_ratio" not in keys and steps is not None:
        yield _warm_up(name, float(keys.get("adam_beta2", 0.999)), steps)
    if "adam" in name:
        why = "its state is in float32, which holds it; float16 would round it to zero"
        yield Choice(key="adam_epsilon", value=1e-8, why=why)


def _warm_up(name: str, beta2: float, steps: int) -> Choice:
    """2 / (1 - beta2) steps (Ma and Yarats, On the adequacy of untuned warmup for adaptive optimization, 2019)."""
    share = max(1, round(WARM_UP_SHARE * steps))
    wanted = round(2 / (1 - beta2)) if "adam" in name and beta2 < 1 else share
    if wanted <= share:
        return Choice(key="warmup_steps", value=wanted, why="2 / (1 - beta2): so long Adam's second moment is a guess")
    why = f"a tenth of {steps} steps" + ("; Adam's second moment is a guess at first" if "adam" in name else "")
    return Choice(key="warmup_steps", value=share, why=why)


def _of_saving(steps: int | None) -> Iterator[Choice]:
    if steps is not None:
        every = min(MOST_BETWEEN_SAVES, max(1, math.ceil(steps / SAVES)))
        yield Choice(key="save_steps", value=every, why=f"a kill costs at most so many of {steps} steps")
    yield Choice(key="save_total_limit", value=KEPT, why="the last one that was proved whole is kept beside the newest")
    yield Choice(key="logging_nan_inf_filter", value=False, why="a loss that is not finite is printed as it is")
    yield Choice(key="report_to", value="none", why="no tracker was asked for")


def _steps(keys: Mapping[str, Any], facts: Facts, world: int) -> int | None:
    """Optimizer steps of the run."""
    asked = keys.get("max_steps")
    if isinstance(asked, int | float) and asked > 0:
        return int(asked)
    if facts.tokens is None:
        return None
    rows = facts.tokens.sequences
    if keys.get("packing"):
        rows = math.ceil(sum(facts.tokens.counts.tolist()) / int(keys.get("max_length") or SFT_LENGTH))
    batch = int(keys.get("per_device_train_batch_size", SFT_BATCH)) * world
    micro = math.ceil(rows / max(1, batch))
    per_epoch = math.ceil(micro / max(1, int(keys.get("gradient_accumulation_steps", 1))))
    return max(1, math.ceil(per_epoch * float(keys.get("num_train_epochs", SFT_EPOCHS))))


def _found(values: Mapping[str, Any], facts: Facts, card: Hardware | None, written: Written) -> Sequence[Finding]:
    said = FORMAT.read(values, str(written.file))
    settled = dataclasses.replace(said.over(facts), hardware=card, disagreements=(), unknown_keys=())
    if settled.batching is not None and "padding_side" in values:
        side = dataclasses.replace(settled.batching, padding_side=str(values["padding_side"]))
        settled = dataclasses.replace(settled, batching=side)
    kept = set(values.get("float32_modules", ()))
    return [one for one in foresee(settled).findings if one.where.module is None or one.where.module not in kept]


def _proposed(findings: Sequence[Finding], draft: _Draft) -> Iterator[Choice]:
    """What check proposes, as far as the user has not written it."""
    known = fields_of(FORMAT.name)
    now = draft.values()
    for one in findings:
        remedy, why = one.remedy, f"{one.cause}: {one.message}"
        if one.cause == "fp16-activation-overflow" and one.where.module:
            modules = [*now.get("float32_modules", ()), one.where.module]
            if one.where.module not in now.get("float32_modules", ()) and not draft.is_written("float32_modules"):
                yield Choice(key="float32_modules", value=modules, why=why)
            continue
        patch = dict(remedy.patch or {}) if remedy is not None and remedy.safety != "advice" else {}
        takes = known is not None and all(key in known.names or key in OF_TOKENIZER for key in patch)
        if takes and not any(draft.is_written(key) for key in patch):
            yield from (Choice(key=key, value=v, why=why) for key, v in patch.items() if now.get(key) != v)
