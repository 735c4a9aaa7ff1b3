"""A shell script that launches a trainer -> the settings in its flags, and the files that it names.

The script is read, never run. Each command that launches a trainer is a run of its own; its flags are read as the
format that they belong to (TrainingArguments, LLaMA-Factory...), those of `accelerate launch` as an accelerate file.
A Python program that it starts is read with these flags.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from finitune.facts import Facts, Parallel
from finitune.finding import UnreadableInput
from finitune.sources.configs import (
    llamafactory,
    megatron,
    nemo,
    openrlhf,
    overrides,
    python,
    scheduler,
    swift,
    torchtune,
    training_arguments,
    verl,
)
from finitune.sources.configs.beside import beside
from finitune.sources.configs.format import Asked, Format, Place, Settings, Started
from finitune.sources.configs.keys import group
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.configs.launches import CONFIG_FLAGS, DEEPSPEED_FLAGS, LAUNCHERS, RECIPE, Launch, launch_of
from finitune.sources.editing.shell_words import UNKNOWN, Command, Script
from finitune.sources.text import short, text_of

MAX_CHARACTERS = 2**17
MAX_LAUNCHES = 16
"""So many launches of one script are read; more come from a loop that was written out, and say the same again."""

SCRIPT_START = re.compile(
    r"\A(?:#!.*\b(ba|z|da|k)?sh\b|(export\s+)?[A-Za-z_][A-Za-z0-9_]*=\S*\s*$|(cd|mpirun|nohup|set|source|srun) )"
)
SUFFIXES = {".sh", ".bash", ".zsh", ".slurm", ".sbatch"}

TELLING = (training_arguments.KEYS | llamafactory.KEYS) - {"output_dir"}
"""Flags whose value would say something here."""

LAUNCHER_KEYS = {
    "world": ("num_processes", "nproc_per_node", "num_gpus"), "nodes": ("nnodes", "num_machines", "num_nodes"),
}  # fmt: skip

SHELLS, RUN_TEXT = ("bash", "sh", "zsh"), ("-c", "-lc", "-ic", "-xc")
MAX_DEPTH = 2
"""Shells within shells."""

DIALECTS = (
    verl.FORMAT, openrlhf.FORMAT, megatron.FORMAT, swift.FORMAT, torchtune.FORMAT, nemo.FORMAT, overrides.OVERRIDES
)  # fmt: skip
"""Formats that are known by their flags, before those that share names with many programs."""

SHELL = "shell script"
"""The key of the settings that `parse` gives."""

MORE = "more launches"
"""The key of a yes or no: were there more launches than are read?"""

CARD = "card asked for"
"""The key of the card that the script asks its scheduler for."""


def parse(text: str, file: str) -> dict[str, Any] | None:
    """The launches of a script; None for text that is no script.

    Raises UnreadableInput for a script that launches no trainer, or is larger than any.
    """
    if not is_script(text, file):
        return None
    if len(text) > MAX_CHARACTERS:
        raise UnreadableInput(f"{file}: {len(text)} characters (expected a shell script of at most {MAX_CHARACTERS})")
    try:
        script = Script(text=text)
    except ValueError as error:
        raise UnreadableInput(f"{file}: {error} (expected a shell script)") from None
    telling = list(itertools.islice((one for one in _launches(script) if _tells(one, file)), MAX_LAUNCHES + 1))
    if not telling:
        absent = sorted({name for one in _launches(script) if (name := unread_program({SHELL: [one]}, file))})
        why = f" ({short(', '.join(absent))}, which it starts, is not here)" if absent else ""
        raise UnreadableInput(f"{file}: no command that launches a trainer with settings that are known here{why}")
    return {SHELL: telling, CARD: scheduler.asked(script.text)}


def _inner(command: Command, text: str) -> Script | None:
    """What `bash -c '...'` runs, in its place in a script that is empty but for it."""
    words = [PurePosixPath(word.text).name for word in command.words]
    at = next((i for i, pair in enumerate(itertools.pairwise(words)) if pair[0] in SHELLS and pair[1] in RUN_TEXT), -1)
    if at < 0 or at + 2 >= len(words):
        return None
    start, end = command.words[at + 2].place
    if end - start < 2 or text[start] not in "'\"" or text[end - 1] != text[start]:
        return None
    return Script(text=re.sub(r"[^\n]", " ", text[: start + 1]) + text[start + 1 : end - 1])


def _launches(script: Script, *, depth: int = 0) -> Iterator[Launch]:
    folders: list[str] = []
    for command in script.commands():
        if depth < MAX_DEPTH and (inner := _inner(command, script.text)):
            yield from _launches(inner, depth=depth + 1)
            continue
        words = [word.text for word in command.words]
        if words[0] == "cd" and len(words) == 2 and UNKNOWN not in words[1]:
            folders.append(words[1])
        elif launch := launch_of(command, script.text):
            yield dataclasses.replace(launch, folders=tuple(folders))


def _tells(launch: Launch, file: str) -> bool:
    """Whether anything is known of it: files, flags, or a program that trains."""
    return bool(launch.configs) or format_of_flags(launch.flags) is not None or _program(launch, file) is not None


def _program(launch: Launch, file: str) -> Path | None:
    """The program that is started, where it is here and trains."""
    if launch.program is None or UNKNOWN in launch.program:
        return None
    path = beside(file, launch.program, launch.folders)
    if not path.is_file():
        return None
    try:
        return path if python.parse(text_of(path, expected="a Python program"), str(path)) else None
    except UnreadableInput:
        return None


def unread_program(data: Settings, file: str) -> str | None:
    """The program of the launch, where it is not here."""
    launch = _first(data)
    if launch.program is None or launch.module or UNKNOWN in launch.program:
        return None
    return None if beside(file, launch.program, launch.folders).is_file() else launch.program


def starts(data: Settings, file: str) -> Started | None:
    """The program of the launch, with its flags."""
    launch = _first(data)
    path = _program(launch, file)
    if path is None:
        return None
    return Started(file=path if Path(file).is_absolute() else _relative(path), flags=launch.flags, by=file)


def _relative(path: Path) -> Path:
    """As the user would name it."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def is_script(text: str, file: str) -> bool:
    """By the name of the file, or by how the text begins."""
    return PurePosixPath(file).suffix in SUFFIXES or _opens_script(text)


def recognises(data: Settings) -> bool:
    """True for what `parse` gives."""
    return SHELL in data


def runs(data: Settings) -> list[tuple[int, Settings]]:
    """The line and the settings of each launch."""
    launches = cast(list[Launch], data[SHELL])
    kept, more = launches[:MAX_LAUNCHES], len(launches) > MAX_LAUNCHES
    return [(launch.line, {SHELL: [launch], MORE: more, CARD: data.get(CARD)}) for launch in kept]


def read(data: Settings, file: str) -> Facts:
    """The settings of the launcher itself; the rest stands in the settings that `follows` gives."""
    launch = _first(data)
    if launch.launcher == "accelerate":
        return Facts()
    named = launch.launcher == "deepspeed" or any(launch.flags.get(key) for key in DEEPSPEED_FLAGS)
    kind = "deepspeed" if named else None
    flags = {key: value for key, value in launch.launcher_flags.items() if str(value).isdigit()}
    asked = card(data, file)
    if (
        asked
        and asked.count
        and launch.launcher in ("torchrun", "deepspeed")
        and not flags.keys() & LAUNCHER_KEYS["world"]
    ):
        flags["num_gpus"] = asked.count  # as many processes on a node as it has cards
    return Facts(parallel=group(Parallel, flags, file, LAUNCHER_KEYS, kind=kind))


def card(data: Settings, file: str) -> Asked | None:  # noqa: ARG001
    """What the script asks its scheduler for."""
    return cast("Asked | None", data.get(CARD))


def flags_of(data: Settings) -> tuple[Format, Settings] | None:
    """The flags as settings, and the format that they belong to."""
    launch = _first(data)
    found = format_of_flags(launch.flags)
    if found is None or launch.launcher != "trl":
        return found
    return found[0], {**found[1], training_arguments.BFLOAT16_BY_DEFAULT: True}


def format_of_flags(said: Settings) -> tuple[Format, Settings] | None:
    """A trainer's own, or the arguments of transformers, whose names most programs use; with its settings."""
    kept = ("config",) if RECIPE in said else ()
    if isinstance(engine := said.get("deepspeed"), str) and not PurePosixPath(engine).suffix:
        kept = (*kept, "deepspeed")  # settings that the program has by name
    flags = {k: value for k, value in said.items() if k in kept or k not in (*DEEPSPEED_FLAGS, *CONFIG_FLAGS)}
    for kind in DIALECTS:
        if kind.of_flags and (settings := kind.of_flags(flags)) is not None:
            return kind, settings
    if llamafactory.recognises_flags(flags):
        return llamafactory.FORMAT, flags
    own = {key: value for key, value in flags.items() if key not in training_arguments.OTHERS_KEYS}
    return (training_arguments.FORMAT, flags) if training_arguments.recognises(own) else None


def follows(data: Settings) -> Iterator[str | Settings]:
    """The settings of the launcher, and the files that are named."""
    launch = _first(data)
    if launch.launcher == "accelerate":
        said = dict(launch.launcher_flags)
        if "use_deepspeed" in said or "deepspeed_config_file" in said:
            inner = {key: value for key, value in said.items() if f"deepspeed_config.{key}" in _accelerate_names()}
            said = {**said, "distributed_type": "DEEPSPEED", "deepspeed_config": inner}
        yield {"compute_environment": "LOCAL_MACHINE", **{k: v for k, v in said.items() if k in _ACCELERATE_FLAGS}}
    yield from launch.configs


def title(data: Settings) -> str:
    """`torchrun train.py`."""
    launch = _first(data)
    kind, flags = flags_of(data) or (training_arguments.FORMAT, data)
    by = kind.title(flags) if kind in DIALECTS and kind.title else ""
    return by or (f"{launch.launcher} {launch.program}" if launch.program else "shell")


def places(data: Settings) -> dict[str, Place]:
    """The line of each flag, under its own name and the others that transformers has for it."""
    launch = _first(data)
    lines = {"": launch.line, **launch.lines}
    found = flags_of(data)
    if found and found[0] is overrides.OVERRIDES:
        lines = {name: line for key, line in launch.lines.items() if (name := overrides.usual(key))} | lines
    for part, table in (found[0] if found else training_arguments.FORMAT).tables.items():
        usual = training_arguments.FORMAT.tables.get(part, {})
        for name, keys in table.items():
            line = next((launch.lines[key] for key in keys if key in launch.lines), None)
            if line is not None:
                lines = dict.fromkeys((*keys, *usual.get(name, ())), line) | lines
    return {key: (None, line) for key, line in lines.items()}


def left_out(data: Settings, file: str) -> Iterator[str]:
    """What running the script would tell, and the launches that were not read."""
    launches = cast(list[Launch], data[SHELL])
    first = launches[0]
    unknown = [key for key in first.unknown if key in TELLING]
    if unknown:
        yield f"{file}: line {first.line}: only running the script would tell {short(', '.join(unknown))}"
    if data.get(MORE):
        yield f"{file}: only the first {MAX_LAUNCHES} launches were read"


_ACCELERATE_FLAGS = {
    "mixed_precision", "num_processes", "num_machines", "distributed_type", "deepspeed_config", "use_cpu",
}  # fmt: skip


def _accelerate_names() -> frozenset[str]:
    fields = fields_of("accelerate")
    return fields.names if fields else frozenset()


def _first(data: Settings) -> Launch:
    return cast(list[Launch], data[SHELL])[0]


def _opens_script(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("# ")), "")
    command = re.sub(r"^\s*(?:[A-Za-z_]\w*=\S*\s+)*", "", first)  # variables may be set for one command alone
    word = PurePosixPath(command.split(maxsplit=1)[0]).name if command else ""
    return bool(SCRIPT_START.match(first)) or (LAUNCHERS.fullmatch(word) is not None and " " in command.strip())


FORMAT = Format(
    name="shell",
    recognises=recognises,
    read=read,
    parse=parse,
    runs=runs,
    follows=follows,
    flags=flags_of,
    starts=starts,
    unread_program=unread_program,
    card=card,
    title=title,
    places=places,
    left_out=left_out,
)
