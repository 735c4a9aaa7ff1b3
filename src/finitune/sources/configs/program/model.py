"""How a Python program loads its model: dtype, attention, quantisation, adapters."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, cast

from finitune.sources.configs.keys import dtype_of
from finitune.sources.configs.program.bindings import keywords, value_of
from finitune.sources.configs.program.names import Call, last_name
from finitune.sources.configs.program.setup import Setup, first, only, surely, take, taken_call, worded
from finitune.sources.configs.program.values import Computed, Reader, Record, known

LOADERS = re.compile(r"(AutoModel\w*|\w*For[A-Z]\w+|Fast(Language|Vision)?Model|\w+Model|SentenceTransformer)$")
NOT_TRAINED = re.compile(r"Peft|Config|Tokeni[sz]er|Processor|AutoencoderKL|Scheduler")
UNSLOTH = re.compile(r"^Fast(Language|Vision|Text)?Model$")

LORA_KEYS = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "use_rslora": "use_rslora",
    "use_dora": "use_dora", "target_modules": "lora_target_modules", "modules_to_save": "modules_to_save",
}  # fmt: skip
LOAD_KEYS = {
    "torch_dtype": "torch_dtype", "dtype": "torch_dtype", "attn_implementation": "attn_implementation",
    "use_flash_attention_2": "use_flash_attention_2", "max_seq_length": "max_seq_length",
}  # fmt: skip
OTHER_ADAPTERS = {
    "PromptTuningConfig": "prompt-tuning", "PrefixTuningConfig": "prefix-tuning", "PromptEncoderConfig": "p-tuning",
    "AdaptionPromptConfig": "adaption-prompt", "IA3Config": "ia3", "VeraConfig": "vera", "LNTuningConfig": "ln-tuning",
    "MultitaskPromptTuningConfig": "prompt-tuning", "FourierFTConfig": "fourier",
}  # fmt: skip
"""Of PEFT, whose few numbers are of another size than LoRA's."""

BITS = {"load_in_4bit": 4, "load_in_8bit": 8}


def loaded(reader: Reader, setup: Setup) -> None:
    """How the model is loaded: dtype, attention, quantisation, name."""
    call = first(reader, loads(reader))
    said: dict[str, Any] = {}
    unsloth = False
    if call is not None:
        said = keywords(reader, call)
        unsloth = bool(UNSLOTH.match(last_name(cast(ast.Attribute, call.node.func).value)))
        if call.node.args:
            said.setdefault("model_name", value_of(reader, call.node.args[0], call.site))
        named = worded(said.get("model_name", said.get("pretrained_model_name_or_path")), call.line)
        if isinstance(named, str):
            setup.arguments.setdefault("model_name_or_path", named)
            setup.lines.setdefault("model_name_or_path", call.line)
        kept = {k: v for k, v in only(said, tuple(LOAD_KEYS)).items() if LOAD_KEYS[k] not in setup.arguments}
        take(reader, setup, setup.arguments, call, {k: v for k, v in kept.items() if v is not None}, LOAD_KEYS)
        doubtful = [] if surely(reader, call) else [one for one in loads(reader) if _rivals(one, call)]
        rivals = [keywords(reader, one) for one in doubtful]
        for key in ("dtype", "torch_dtype"):
            if any(known(one.get(key)) and one.get(key) != said.get(key) for one in rivals):
                setup.arguments.pop("torch_dtype", None)
                setup.computed["torch_dtype"] = Computed(call.line)
        if setup.trainer:
            _cast_whole(reader, call, setup)
        if unsloth:
            said.setdefault("load_in_4bit", not said.get("full_finetuning") and not said.get("load_in_8bit"))
    elif setup.trainer:
        _named_to_trainer(reader, setup)
    _quantised(reader, setup, call, said, unsloth=unsloth)


def _named_to_trainer(reader: Reader, setup: Setup) -> None:
    """The trainers of TRL take a name, and load the model themselves."""
    for call in reader.names.calls:
        if not last_name(call.node.func).endswith("Trainer") or not taken_call(reader, call):
            continue
        named = (
            value_of(reader, call.node.args[0], call.site) if call.node.args else keywords(reader, call).get("model")
        )
        if isinstance(named, str):
            setup.arguments.setdefault("model_name_or_path", named)
            setup.lines.setdefault("model_name_or_path", call.line)


def _cast_whole(reader: Reader, load: Call, setup: Setup) -> None:
    """`model.half()` and its like, between the loading and the Trainer, or in the same expression as the loading."""
    trainers = [call for call in reader.names.calls if last_name(call.node.func).endswith("Trainer")]
    for call in reader.names.calls:
        dtype = cast_of(reader, call)
        if dtype is None or not surely(reader, call) or call.site.scope is not load.site.scope:
            continue
        inner: ast.AST = call.node
        while isinstance(inner, ast.Call | ast.Attribute) and inner is not load.node:
            inner = inner.func if isinstance(inner, ast.Call) else inner.value
        owned = isinstance(inner, ast.Name) and inner.id in load.targets
        before = any(one.site.scope is call.site.scope and call.site.at < one.site.at for one in trainers)
        if inner is load.node or (owned and before):
            setup.arguments["torch_dtype"] = dtype
            setup.lines["torch_dtype"] = setup.lines["dtype"] = call.line


def cast_of(reader: Reader, call: Call) -> str | None:
    """The dtype that a call casts a whole model to: `half()`, `bfloat16()`, `to(torch.float16)`."""
    name = last_name(call.node.func)
    if name not in ("half", "bfloat16", "to") or not isinstance(call.node.func, ast.Attribute):
        return None
    dtype: str | None = {"half": "float16", "bfloat16": "bfloat16"}.get(name)
    for argument in (*call.node.args, *(k.value for k in call.node.keywords if k.arg == "dtype")):
        plain = worded(value_of(reader, argument, call.site), call.line)
        dtype = dtype or (dtype_of(plain) if isinstance(plain, str) and plain.startswith("torch.") else None)
    return dtype


def loads(reader: Reader) -> list[Call]:
    """The calls that load a model."""
    found: list[Call] = []
    for call in reader.names.calls_named("from_pretrained"):
        owner = last_name(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else ""
        if LOADERS.search(owner) and not NOT_TRAINED.search(owner):
            found.append(call)
    return found


def _rivals(one: Call, other: Call) -> bool:
    """In two arms of one branch."""
    arms = dict(one.site.blocks)
    return any(arm != arms.get(block, arm) for block, arm in other.site.blocks)


def _quantised(reader: Reader, setup: Setup, load: Call | None, said: Mapping[str, Any], *, unsloth: bool) -> None:
    made = first(reader, reader.names.calls_named("BitsAndBytesConfig"))
    given = said.get("quantization_config")
    if isinstance(given, Record) and given.made.endswith("BitsAndBytesConfig"):
        fields: Mapping[str, Any] = given.attributes
    elif made is not None and isinstance(given, Computed):
        setup.computed["quantization"] = given
        return
    else:
        fields = said
    bits = next((n for key, n in BITS.items() if fields.get(key) is True), None)
    if bits is None:
        unknown = [value for key in BITS if isinstance(value := fields.get(key), Computed)]
        if unknown:
            setup.computed["quantization"] = unknown[0]
        return
    line = made.line if made is not None and fields is not said else load.line if load else 1
    compute = worded(fields.get("bnb_4bit_compute_dtype"), line)
    kind = worded(fields.get("bnb_4bit_quant_type", "nf4" if unsloth else "fp4"), line)
    if isinstance(compute, Computed):
        setup.computed["bnb_4bit_compute_dtype"] = compute
    default = compute is None
    if default and bits == 4 and unsloth:
        compute = setup.arguments.get("torch_dtype")  # it computes in the dtype that it loads
    elif default and bits == 4:
        compute = "float32"  # that of bitsandbytes
    setup.lines["bnb_4bit_compute_dtype"] = setup.lines["load_in_4bit"] = setup.lines["load_in_8bit"] = line
    setup.quantization.update(
        bits=bits, kind=kind if bits == 4 else "int8", compute_dtype_is_default=default,
        compute_dtype=dtype_of(compute) if isinstance(compute, str) and bits == 4 else None,
    )  # fmt: skip


def adapters(reader: Reader, setup: Setup) -> None:
    """LoraConfig, or the keywords of Unsloth's get_peft_model."""
    configs = [call for call in reader.names.calls if last_name(call.node.func).endswith("LoraConfig")]
    unsloth = reader.names.calls_named("get_peft_model")
    configs += [call for call in unsloth if any(keyword.arg == "r" for keyword in call.node.keywords)]
    call = first(reader, configs)
    if call is None:
        other = first(reader, [c for c in reader.names.calls if last_name(c.node.func) in OTHER_ADAPTERS])
        setup.adapters.extend([OTHER_ADAPTERS[last_name(other.node.func)]] if other is not None else [])
        return
    if not surely(reader, call):
        setup.computed["adapter"] = Computed(call.line)
    else:
        said = only(keywords(reader, call), tuple(LORA_KEYS))
        take(reader, setup, setup.arguments, call, {"use_peft": True, **said}, LORA_KEYS)
