"""A shell script that launches a trainer -> the settings in its flags, and the files that it names.

The script is read, never run. Each command that launches a trainer is a run of its own; its flags are read as the
format that they belong to (TrainingArguments, LLaMA-Factory...), those of `accelerate launch` as an accelerate file.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, cast

from finitune.facts import Facts, Parallel
from finitune.finding import UnreadableInput
from finitune.sources.configs import llamafactory, training_arguments
from finitune.sources.configs.format import Format, Settings
from finitune.sources.configs.keys import group
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.editing.shell_words import UNKNOWN, Command, Script, flag_of
from finitune.sources.text import short

MAX_CHARACTERS = 2**17
MAX_LAUNCHES = 16
"""So many launches of one script are read; more come from a loop that was written out, and say the same again."""

LAUNCHERS = re.compile(
    r"torchrun|torchpippy-run|deepspeed|accelerate|python(\d(\.\d+)?)?|llamafactory-cli|axolotl|trl|ludwig|swift|colossalai"
)
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate", "axolotl.cli.train": "axolotl", "llamafactory.cli": "llamafactory-cli",
}  # fmt: skip
"""What `python -m` may start, under the name of the command that does the same."""

SCRIPT_START = re.compile(
    r"\A(?:#!.*\b(ba|z|da|k)?sh\b|(export\s+)?[A-Za-z_][A-Za-z0-9_]*=\S*\s*$|(cd|mpirun|nohup|set|source|srun) )"
)
SUFFIXES = {".sh", ".bash", ".zsh", ".slurm", ".sbatch"}

DEEPSPEED_FLAGS = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file", "deepspeed_path")
CONFIG_FLAGS = ("config", "c", "config_file")
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")

TELLING = (training_arguments.KEYS | llamafactory.KEYS) - {"output_dir"}
"""Flags whose value would say something here."""

LAUNCHER_KEYS = {
    "world": ("num_processes", "nproc_per_node", "num_gpus"), "nodes": ("nnodes", "num_machines", "num_nodes"),
}  # fmt: skip

SHELL = "shell script"
"""The key of the settings that `parse` gives."""

MORE = "more launches"
"""The key of a yes or no: were there more launches than are read?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command that launches a trainer. Flags without a value are True; several values are a list."""

    launcher: str
    launcher_flags: Settings
    flags: Settings
    configs: Sequence[str]
    unknown: Sequence[str]
    """Flags whose value only running the script could tell."""
    line: int
    command: Command = field(repr=False, compare=False)
    """Its words from the launcher on, with their places in the script."""


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
    launches = (launch for command in script.commands() if (launch := _launch(command)))
    telling = list(islice((one for one in launches if one.configs or format_of_flags(one.flags)), MAX_LAUNCHES + 1))
    if not telling:
        raise UnreadableInput(f"{file}: no command that launches a trainer with settings that are known here")
    return {SHELL: telling}


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
    return [(launch.line, {SHELL: [launch], MORE: more}) for launch in kept]


def read(data: Settings, file: str) -> Facts:
    """What the launcher itself is told; the rest stands in the settings that `follows` gives."""
    launch = _first(data)
    if launch.launcher == "accelerate":
        return Facts()
    named = launch.launcher == "deepspeed" or any(launch.flags.get(key) for key in DEEPSPEED_FLAGS)
    kind = "deepspeed" if named else None
    flags = {key: value for key, value in launch.launcher_flags.items() if str(value).isdigit()}
    return Facts(parallel=group(Parallel, flags, file, LAUNCHER_KEYS, kind=kind))


def flags_of(data: Settings) -> tuple[Format, Settings] | None:
    """The flags as settings, and the format that they belong to."""
    flags = {key: value for key, value in _first(data).flags.items() if key not in (*DEEPSPEED_FLAGS, *CONFIG_FLAGS)}
    found = format_of_flags(flags)
    return found and (found, flags)


def format_of_flags(flags: Settings) -> Format | None:
    """LLaMA-Factory's, or the arguments of transformers, whose names most programs use."""
    if llamafactory.recognises_flags(flags):
        return llamafactory.FORMAT
    own = {key: value for key, value in flags.items() if key not in training_arguments.OTHERS_KEYS}
    return training_arguments.FORMAT if training_arguments.recognises(own) else None


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


def _launch(command: Command) -> Launch | None:
    words = [word.text for word in command.words]
    start = next((i for i, w in enumerate(words) if LAUNCHERS.fullmatch(PurePosixPath(w).name)), None)
    if start is None:
        return None
    launcher, rest = PurePosixPath(words[start]).name, words[start + 1 :]
    if launcher.startswith("python"):
        launcher, rest = _python(rest)
    entry = next(
        (i for i, w in enumerate(rest) if w.endswith(".py") or rest[max(i - 1, 0)] in ("-m", "--module")), None
    )
    before, after = (rest[:entry], rest[entry + 1 :]) if entry is not None else ([], rest)
    launcher_flags, _ = _flags(before)
    flags, positions = _flags(after)
    if entry is not None:
        launcher = MODULES.get(rest[entry], launcher) if launcher == "python" else launcher
    return Launch(
        launcher=launcher,
        launcher_flags={key: value for key, value in launcher_flags.items() if UNKNOWN not in str(value)},
        flags={key: value for key, value in flags.items() if UNKNOWN not in str(value)},
        configs=list(_configs(launcher, launcher_flags, flags, positions)),
        unknown=sorted(key for key, value in flags.items() if UNKNOWN in str(value)),
        line=command.line,
        command=dataclasses.replace(command, words=command.words[start:]),
    )


def _python(rest: list[str]) -> tuple[str, list[str]]:
    """`python -m torch.distributed.run ...` is torchrun; other modules and scripts are programs."""
    if rest[:1] == ["-u"]:
        rest = rest[1:]
    if len(rest) > 1 and rest[0] == "-m" and rest[1] in MODULES:
        return MODULES[rest[1]], rest[2:]
    return "python", rest


def _flags(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Flags with their values, and the words before the first flag. Of a repeated flag the last counts."""
    flags: dict[str, Any] = {}
    positions: list[str] = []
    name: str | None = None
    for word in words:
        if flag := flag_of(word):
            _, said, value = word.partition("=")
            flags[flag] = _plain(value) if said else True
            name = None if said else flag
        elif name is None:
            key, said, value = word.partition("=")  # key=value, as llamafactory-cli takes it
            if said and re.fullmatch(r"\w+", key):
                flags[key] = _plain(value)
            else:
                positions.append(word)
        elif flags[name] is True:
            flags[name] = _plain(word)
        elif UNKNOWN in word:  # may stand for more flags
            name = None
        elif isinstance(flags[name], list):
            flags[name].append(word)
        else:
            flags[name] = [flags[name], word]
    return flags, positions


def _plain(value: str) -> str | None:
    return None if value in ("None", "null", "") else value


def _configs(launcher: str, launcher_flags: Settings, flags: Settings, positions: Sequence[str]) -> Iterator[str]:
    named = [flags.get(key) for key in DEEPSPEED_FLAGS]
    if launcher == "accelerate":
        named.append(launcher_flags.get("config_file"))
    named += [flags.get(key) for key in CONFIG_FLAGS]
    named += [word for word in positions if word.endswith(CONFIG_SUFFIXES)]
    for name in named:
        if isinstance(name, str) and name.endswith(CONFIG_SUFFIXES) and UNKNOWN not in name:
            yield name


FORMAT = Format(
    name="shell",
    recognises=recognises,
    read=read,
    parse=parse,
    runs=runs,
    follows=follows,
    lenient=True,  # the files that a script names may lie where it will run
    flags=flags_of,
    left_out=left_out,
)
