"""The calls of a Python program that set up a training -> settings as the files of its framework would have them."""

from __future__ import annotations

import ast
import re
from typing import Any, cast

from finitune.sources.configs import lightning, training_arguments
from finitune.sources.configs.program.bindings import called, class_fields, flags_among, keywords, taken, value_of
from finitune.sources.configs.program.loop import loop, optimizers, prepared
from finitune.sources.configs.program.model import adapters, loaded
from finitune.sources.configs.program.names import Call, last_name
from finitune.sources.configs.program.setup import Setup, only, surely, take, taken_call, worded
from finitune.sources.configs.program.typed import ARGUMENT_PARSERS
from finitune.sources.configs.program.values import Computed, Defined, Reader

METHODS = {
    "SFT", "DPO", "GRPO", "KTO", "ORPO", "CPO", "PPO", "RLOO", "Reward", "OnlineDPO", "GKD", "NashMD", "XPO", "BCO",
    "PRM", "PPOv2", "RFT", "AlignProp", "DDPO", "IterativeSFT",
}  # fmt: skip
"""What the configurations of TRL are for, `SFTConfig` and so on."""

LIGHTNING = re.compile(r"(pytorch_)?lightning(\.|$)|^(pl|L)\.")
TRAINER_KEYS = ("max_seq_length", "packing")
"""Arguments of the trainers of earlier releases of TRL that are settings now."""

LOADED_FORMS = ("json", "csv", "parquet", "text", "pandas", "arrow")
"""What `load_dataset` takes for the form of files, and not for a name."""

RESPONSES = {"DataCollatorForCompletionOnlyLM": "response_template", "train_on_responses_only": "response_part"}
"""Calls that mask what stands before an answer, and the argument that says how an answer begins."""

READ = training_arguments.KEYS | {
    key.partition(".")[0] for table in training_arguments.FORMAT.tables.values() for keys in table.values()
    for key in keys
} | {
    "adam_beta1", "adam_beta2", "warmup_steps", "warmup_ratio", "use_cpu", "no_cuda", "use_dora", "bf16_full_eval",
    "bnb_4bit_compute_dtype", "quantization", "gradient_checkpointing_kwargs", "model_init_kwargs", "**",
    *lightning.KEYS,
}  # fmt: skip
"""Keywords that say something here."""


def is_arguments(name: str) -> bool:
    """TrainingArguments, a class named after it, or one of TRL's configurations."""
    return name.endswith("TrainingArguments") or (name.endswith("Config") and name.removesuffix("Config") in METHODS)


def starts_of(reader: Reader) -> list[Call | ast.ClassDef | None]:
    """What each training of the program begins with: a call, a class of arguments, or None for a loop of its own."""
    names = reader.names
    calls = [call for call in names.calls if taken_call(reader, call)]
    classes = [
        scope.node for scope in names.scopes.values()
        if isinstance(scope.node, ast.ClassDef) and any(is_arguments(last_name(base)) for base in scope.node.bases)
    ]  # fmt: skip
    own = {node.name for node in classes}
    made = [call for call in calls if (name := last_name(call.node.func)) in own or _is_kin(reader, call, name)]
    from_command_line = [
        node for node in classes
        if node.name not in {last_name(call.node.func) for call in made}
    ]  # fmt: skip
    if made or from_command_line:
        return [*made, *from_command_line]
    lit = [call for call in calls if last_name(call.node.func) in ("Trainer", "Fabric") and is_lightning(reader, call)]
    if lit:
        return list(lit)
    parsers = [call for call in calls if last_name(call.node.func) in ARGUMENT_PARSERS and _method_parsed(call)]
    if parsers:
        return list(parsers[:1])
    trains = any(
        last_name(call.node.func) == "backward" and isinstance(call.node.func, ast.Attribute) for call in calls
    )
    return [None] if trains or prepared(reader) or optimizers(reader) else []


def _is_kin(reader: Reader, call: Call, name: str) -> bool:
    return is_arguments(name) and not isinstance(value_of(reader, call.node.func, call.site), Defined)


def _method_parsed(call: Call) -> str | None:
    """The class of arguments among those that a parser of the command line makes."""
    parsed = [last_name(one) for arg in call.node.args for one in getattr(arg, "elts", [arg])]
    return next((name for name in parsed if is_arguments(name)), None)


def setup_of(reader: Reader, start: Call | ast.ClassDef | None) -> Setup:
    """Everything that the program says about the training that begins there."""
    setup = Setup(trainer=start is not None and not (isinstance(start, Call) and is_lightning(reader, start)))
    if isinstance(start, ast.ClassDef):
        _class_of_arguments(reader, start, setup)
    elif start is not None and last_name(start.node.func) in ARGUMENT_PARSERS:
        _given_arguments(reader, start.line, setup)
        _of_method(_method_parsed(start) or "", setup)
    elif start is not None and setup.trainer:
        _arguments(reader, start, setup)
    elif start is not None:
        trainer: dict[str, Any] = {}
        said = keywords(reader, start)
        take(reader, setup, trainer, start, said)
        setup.unused.update(key for key in said if key not in lightning.KEYS)
        setup.others.append({"trainer": {"max_epochs": None, **trainer}, **_lit_optimizer(reader, setup)})
    loaded(reader, setup)
    adapters(reader, setup)
    _small_settings(reader, setup)
    if start is None:
        loop(reader, setup)
    setup.lines.setdefault("", _line_of(start) or min(setup.lines.values(), default=1))
    return setup


def _line_of(start: Call | ast.ClassDef | None) -> int | None:
    return start.line if isinstance(start, Call) else start.lineno if start is not None else None


def _arguments(reader: Reader, start: Call, setup: Setup) -> None:
    name = last_name(start.node.func)
    own = value_of(reader, start.node.func, start.site)
    said = {**(class_fields(reader, own.scope) if isinstance(own, Defined) else {}), **keywords(reader, start)}
    for one in reader.names.attributes:  # training_args.fp16 = True
        if one.owner in start.targets:
            said[one.name] = value_of(reader, one.value, one.site)
            setup.lines[one.name] = one.value.lineno
    later = dict(setup.lines)
    take(reader, setup, setup.arguments, start, said)
    setup.lines.update(later)
    _of_method(name, setup)
    setup.unused.update(key for key in said if key not in READ)
    for call in reader.names.calls:  # what the trainers of earlier releases took themselves
        if last_name(call.node.func).endswith("Trainer") and (older := only(keywords(reader, call), TRAINER_KEYS)):
            take(reader, setup, setup.arguments, call, {k: v for k, v in older.items() if k not in setup.arguments})


def _class_of_arguments(reader: Reader, start: ast.ClassDef, setup: Setup) -> None:
    """Defaults of a class of arguments, and what the command line says otherwise."""
    scope = reader.names.scopes[id(start)]
    for key, value in class_fields(reader, scope).items():
        line = scope.bindings[key][-1].line if key in scope.bindings else start.lineno
        plain = worded(value, line)
        into = setup.computed if isinstance(plain, Computed) else setup.arguments
        into[key] = plain
        setup.lines[key] = line
        setup.unused.update({key} - READ)
    _given_arguments(reader, start.lineno, setup)
    _of_method(next((last_name(base) for base in start.bases if is_arguments(last_name(base))), ""), setup)


def _given_arguments(reader: Reader, line: int, setup: Setup) -> None:
    """What is typed for fields of TrainingArguments and its kin."""
    for key, value in flags_among(reader, reader.typed).items():
        if key in READ:
            setup.arguments[key] = value
            setup.lines[key] = line
            setup.computed.pop(key, None)


def _of_method(name: str, setup: Setup) -> None:
    method = name.removesuffix("Config")
    if method in METHODS:
        setup.arguments.setdefault("stage", method.lower())
        if setup.computed.keys().isdisjoint({"fp16", "bf16", "**"}):
            setup.arguments[training_arguments.BFLOAT16_BY_DEFAULT] = True


def is_lightning(reader: Reader, call: Call) -> bool:
    return last_name(call.node.func) in ("Trainer", "Fabric") and bool(LIGHTNING.match(called(reader, call)))


def _lit_optimizer(reader: Reader, setup: Setup) -> dict[str, Any]:
    """What `configure_optimizers` makes, as LightningCLI's file would say it."""
    found: dict[str, Any] = {}
    for call, said in optimizers(reader)[:1]:
        take(reader, setup, found, call, said)
        return {"optimizer": {"class_path": f"torch.optim.{last_name(call.node.func)}", "init_args": found}}
    return {}


def _loaded_data(reader: Reader, setup: Setup) -> None:
    """What `load_dataset` of datasets loads, where constants say it."""
    for call in reader.names.calls_named("load_dataset"):
        if not taken_call(reader, call):
            continue
        kind = value_of(reader, call.node.args[0], call.site) if call.node.args else keywords(reader, call).get("path")
        files = keywords(reader, call).get("data_files")
        if isinstance(files, dict):
            files = cast(dict[str, Any], files).get("train")
        files = cast(list[Any], files)[:1] if isinstance(files, list) else [files]
        if kind in LOADED_FORMS or files != [None]:
            setup.data.extend(one for one in files if isinstance(one, str))
        elif isinstance(kind, str):
            setup.data.append(kind)


def _template_of(reader: Reader, node: ast.expr) -> str | None:
    """The model whose chat template it is, in `AutoTokenizer.from_pretrained(NAME).chat_template`."""
    if not isinstance(node, ast.Attribute) or node.attr != "chat_template":
        return None
    made = [
        call for call in reader.names.calls_named("from_pretrained")
        if call.node is node.value or (isinstance(node.value, ast.Name) and node.value.id in call.targets)
    ]  # fmt: skip
    said = value_of(reader, made[0].node.args[0], made[0].site) if len(made) == 1 and made[0].node.args else None
    return said.rpartition("/")[2] if isinstance(said, str) else None


def _tokens(reader: Reader, setup: Setup) -> None:
    """Tokens that are added, and the format of a chat."""
    trained = any("trainable_token_indices" in keywords(reader, c) for c in reader.names.calls_named("LoraConfig"))
    for name in () if trained else ("add_special_tokens", "add_tokens"):
        for call in reader.names.calls_named(name):
            said = value_of(reader, call.node.args[0], call.site) if call.node.args and surely(reader, call) else None
            by_name = cast("dict[str, Any]", said if isinstance(said, dict) else {"": said})
            for key, held in by_name.items():
                tokens = cast("list[Any]", held if isinstance(held, list) else [held])
                setup.tokens.extend(one for one in tokens if isinstance(one, str) and key != "pad_token")
    for call in reader.names.calls_named("setup_chat_format"):
        setup.arguments.setdefault("chat_template", "chatml")
        setup.lines.setdefault("chat_template", call.line)
    for call in reader.names.calls_named("get_chat_template"):
        if isinstance(template := keywords(reader, call).get("chat_template"), str):
            setup.arguments.setdefault("chat_template", template)
            setup.lines.setdefault("chat_template", call.line)


def _masks_by_id(reader: Reader) -> bool:
    """Whether the collator is that of transformers, which masks every padding id, whatever labels the rows have."""
    for call in reader.names.calls_named("DataCollatorForLanguageModeling"):
        mlm = (
            value_of(reader, call.node.args[1], call.site) if call.node.args[1:] else keywords(reader, call).get("mlm")
        )
        if mlm is False and surely(reader, call) and called(reader, call).startswith("transformers."):
            return True
    return False


def _response_template(reader: Reader, setup: Setup) -> None:
    """The text behind which targets begin; what a program makes of its rows itself is not known here."""
    for name, key in RESPONSES.items():
        for call in reader.names.calls_named(name):
            said = keywords(reader, call).get(key)
            if said is None and call.node.args and name.startswith("DataCollator"):
                said = value_of(reader, call.node.args[0], call.site)
            formats = any("formatting_func" in keywords(reader, one) for one in reader.names.calls)
            if isinstance(said, str) and not formats and not reader.names.calls_named("map"):
                setup.arguments.setdefault("response_template", said)
                setup.lines.setdefault("response_template", call.line)
            else:
                setup.computed.setdefault("labels", Computed(call.line))


def _small_settings(reader: Reader, setup: Setup) -> None:
    """Settings that are made by one line each."""
    for one in reader.names.attributes:
        if one.name == "pad_token":
            end = isinstance(one.value, ast.Attribute) and one.value.attr == "eos_token"
            value = "eos_token" if end else value_of(reader, one.value, one.site)
            if isinstance(value, str):
                setup.batching.update(pad_token=value, **({"eos_token": value} if end else {}))
                setup.lines["pad_token"] = one.value.lineno
                written = "eos_token" in reader.names.joined  # at the end of each text
                if end and taken(reader, one.site.blocks) is True and _masks_by_id(reader) and written:
                    setup.batching["masks_end"] = True
        elif one.name == "padding_side" and isinstance(value := value_of(reader, one.value, one.site), str):
            setup.batching["padding_side"] = value
            setup.lines["padding_side"] = one.value.lineno
        elif one.name == "chat_template" and (template := _template_of(reader, one.value)):
            setup.arguments.setdefault("chat_template", template)
            setup.lines["chat_template"] = one.value.lineno
    _loaded_data(reader, setup)
    _tokens(reader, setup)
    _response_template(reader, setup)
    for call in reader.names.calls_named("gradient_checkpointing_enable"):
        if surely(reader, call):
            setup.arguments.setdefault("gradient_checkpointing", True)
            setup.lines.setdefault("gradient_checkpointing", call.line)
            how = only(keywords(reader, call), ("gradient_checkpointing_kwargs",))
            take(reader, setup, setup.arguments, call, {k: v for k, v in how.items() if k not in setup.arguments})
    for call in reader.names.calls_named("Accelerator"):
        if taken_call(reader, call):
            found: dict[str, Any] = {}
            take(
                reader,
                setup,
                found,
                call,
                only(keywords(reader, call), ("mixed_precision", "gradient_accumulation_steps")),
            )
            setup.arguments.update(only(found, ("gradient_accumulation_steps",)))
            if asked := only(found, ("mixed_precision",)):
                setup.others.append({"compute_environment": "LOCAL_MACHINE", **asked})
    for call in reader.names.calls_named("initialize"):
        if called(reader, call) == "deepspeed.initialize":
            said = keywords(reader, call)
            config = worded(said.get("config", said.get("config_params")), call.line)
            if isinstance(config, str | dict) and config:
                setup.others.append(cast("str | dict[str, Any]", config))
            elif isinstance(config, Computed):
                setup.computed["deepspeed"] = config
