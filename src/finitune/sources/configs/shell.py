"""A shell script that launches a trainer -> the settings in its flags, and the files that it names.

The script is read, never run. Each command that launches a trainer is a run of its own; its flags are read as the
format that they belong to (TrainingArguments, LLaMA-Factory...), those of `accelerate launch` as an accelerate file.
A Python program that it starts is read with these flags.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, cast

from finitune.facts import Facts, Parallel
from finitune.finding import UnreadableInput
from finitune.sources.configs import llamafactory, python, scheduler, training_arguments
from finitune.sources.configs.beside import beside
from finitune.sources.configs.format import Asked, Format, Place, Settings, Started
from finitune.sources.configs.keys import group
from finitune.sources.configs.known_keys import fields_of
from finitune.sources.editing.shell_words import UNKNOWN, Command, Script, flag_of
from finitune.sources.text import short, text_of

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

RUNNERS = {"uv", "srun", "poetry", "pdm", "rye", "hatch", "pixi", "conda", "mamba", "nohup", "time", "env"}
"""They start the command that follows, or a program itself."""

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

CARD = "card asked for"
"""The key of the card that the script asks its scheduler for."""


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
    program: str | None = None
    """The Python file that is started, as the command names it."""
    folders: Sequence[str] = ()
    """Those that the script changes to before."""
    lines: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """Of each flag."""
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
    telling = list(islice((one for one in _launches(script) if _tells(one, file)), MAX_LAUNCHES + 1))
    if not telling:
        raise UnreadableInput(f"{file}: no command that launches a trainer with settings that are known here")
    return {SHELL: telling, CARD: scheduler.asked(script.text)}


def _launches(script: Script) -> Iterator[Launch]:
    folders: list[str] = []
    for command in script.commands():
        words = [word.text for word in command.words]
        if words[0] == "cd" and len(words) == 2 and UNKNOWN not in words[1]:
            folders.append(words[1])
        elif launch := _launch(command, script.text):
            yield dataclasses.replace(launch, folders=tuple(folders))


def _tells(launch: Launch, file: str) -> bool:
    """Whether anything is known of it: files, flags, or a program that trains."""
    return bool(launch.configs) or format_of_flags(launch.flags) is not None or _program(launch, file) is not None


def _program(launch: Launch, file: str) -> Path | None:
    """The program that is started, where it is here and trains."""
    if launch.program is None or UNKNOWN in launch.program:
        return None
    path = beside(file, launch.program, launch.folders, above=1)  # scripts/run.sh is started from the folder above
    if not path.is_file():
        return None
    try:
        return path if python.parse(text_of(path, expected="a Python program"), str(path)) else None
    except UnreadableInput:
        return None


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
    """What the launcher itself is told; the rest stands in the settings that `follows` gives."""
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


def title(data: Settings) -> str:
    """`torchrun train.py`."""
    launch = _first(data)
    return f"{launch.launcher} {launch.program}" if launch.program else "shell"


def places(data: Settings) -> dict[str, Place]:
    """The line of each flag, under its own name and the others that transformers has for it."""
    launch = _first(data)
    lines = {"": launch.line, **launch.lines}
    for table in training_arguments.FORMAT.tables.values():
        for names in table.values():
            line = next((launch.lines[name] for name in names if name in launch.lines), None)
            for name in names if line is not None else ():
                lines.setdefault(name, cast(int, line))
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


def _launch(command: Command, text: str) -> Launch | None:
    words = [word.text for word in command.words]
    start = next((i for i, w in enumerate(words) if LAUNCHERS.fullmatch(PurePosixPath(w).name)), None)
    if start is not None:
        launcher, rest = PurePosixPath(words[start]).name, words[start + 1 :]
    else:
        start = _program_word(words)
        if start is None:
            return None
        launcher, rest = "python", words[start:]
    if launcher.startswith("python"):
        launcher, rest = _python(rest)
    entry = next(
        (i for i, w in enumerate(rest) if w.endswith(".py") or (i and rest[i - 1] in ("-m", "--module"))), None
    )
    before, after = (rest[:entry], rest[entry + 1 :]) if entry is not None else ([], rest)
    launcher_flags, _ = _flags(before)
    flags, positions = _flags(after)
    program = None
    if entry is not None:
        launcher = MODULES.get(rest[entry], launcher) if launcher == "python" else launcher
        program = rest[entry] if rest[entry].endswith(".py") else f"{rest[entry].replace('.', '/')}.py"
    return Launch(
        launcher=launcher,
        launcher_flags={key: value for key, value in launcher_flags.items() if UNKNOWN not in str(value)},
        flags={key: value for key, value in flags.items() if UNKNOWN not in str(value)},
        configs=list(_configs(launcher, launcher_flags, flags, positions)),
        unknown=sorted(key for key, value in flags.items() if UNKNOWN in str(value)),
        line=command.line,
        command=dataclasses.replace(command, words=command.words[start:]),
        program=program,
        lines={
            flag: text.count("\n", 0, word.place[0]) + 1
            for word in command.words if (flag := flag_of(word.text) or _assigned(word.text))
        },
    )  # fmt: skip


def _program_word(words: Sequence[str]) -> int | None:
    """The program that is started without naming an interpreter: `./train.py`, `uv run train.py`."""
    through = PurePosixPath(words[0]).name in RUNNERS
    return next((i for i, w in enumerate(words) if w.endswith(".py") and (through or not i)), None)


def _assigned(word: str) -> str | None:
    """The key of `key=value`."""
    key, said, _ = word.partition("=")
    return key if said and re.fullmatch(r"[\w.+]+", key) else None


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
    starts=starts,
    card=card,
    title=title,
    places=places,
    left_out=left_out,
)
