"""The commands of a shell script that launch a trainer: the launcher, the program, their flags and files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from finitune.sources.configs.format import Settings
from finitune.sources.editing.shell_words import UNKNOWN, Command, flag_of

LAUNCHERS = re.compile(
    r"torchrun|torchpippy-run|deepspeed|accelerate|python(\d(\.\d+)?)?|llamafactory-cli|axolotl|trl|ludwig|swift|megatron|tune|colossalai"
)
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate", "axolotl.cli.train": "axolotl", "llamafactory.cli": "llamafactory-cli",
}  # fmt: skip
"""What `python -m` may start, under the name of the command that does the same."""

ASSIGNED = re.compile(r"\+{0,2}\w[\w.]*")
"""The key of `key=value`."""

DOTTED = re.compile(r"\A[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""A module in a package."""

RECIPE = "torchtune recipe"
"""The flag under which the recipe of `tune run` is kept, and the settings typed beside its file."""

COMMAND = "swift command"
"""The flag under which the verb of `swift VERB` is kept where it trains; a tuner need not be named there."""

MEGATRON_COMMAND = "megatron command"
"""That of `megatron VERB`, with which ms-swift trains through Megatron."""

TRAINS = {"sft", "pt", "rlhf"}
"""Verbs of ms-swift that train."""

VERBS = {"swift": COMMAND, "megatron": MEGATRON_COMMAND}

RUNNERS = {"uv", "srun", "poetry", "pdm", "rye", "hatch", "pixi", "conda", "mamba", "nohup", "time", "env"}
"""They start the command that follows, or a program itself."""

DEEPSPEED_FLAGS = ("deepspeed", "deepspeed_config", "ds_config", "deepspeed_config_file", "deepspeed_path")
CONFIG_FLAGS = ("config", "c", "config_file")
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")


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
    module: bool = False
    """Whether it is named as a module, which may be that of an installed package."""
    folders: Sequence[str] = ()
    """Those that the script changes to before."""
    lines: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """Of each flag."""
    command: Command = field(repr=False, compare=False)
    """Its words from the launcher on, with their places in the script."""


def launch_of(command: Command, text: str) -> Launch | None:
    """The launch that a command of the script `text` is; None for one that launches nothing."""
    words = [word.text for word in command.words]
    start = _launcher_word(words)
    if start is not None:
        launcher, rest = PurePosixPath(words[start]).name, words[start + 1 :]
    else:
        start = _program_word(words)
        if start is None:
            return None
        launcher, rest = "python", words[start:]
    if launcher.startswith("python"):
        launcher, rest = _python(rest)
    if launcher == "tune":
        rest = _recipe(rest)
    if launcher in VERBS and rest and not rest[0].startswith("-"):
        if rest[0] not in TRAINS:
            return None
        rest = [*rest[1:], f"--{VERBS[launcher]}", rest[0]]
    entry = _entry(rest)
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
        module=entry is not None and not rest[entry].endswith(".py"),
        lines={
            flag: text.count("\n", 0, word.place[0]) + 1
            for word in command.words if (flag := flag_of(word.text) or _assigned(word.text))
        },
    )  # fmt: skip


def _launcher_word(words: Sequence[str]) -> int | None:
    """The first launcher; of a runner the first that is no value of its options: `uv run --with trl accelerate`."""
    found = [i for i, word in enumerate(words) if LAUNCHERS.fullmatch(PurePosixPath(word).name)]
    if found and PurePosixPath(words[0]).name in RUNNERS:
        entry = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
        free = [i for i in found if i < entry and not words[i - 1].startswith("-")]
        return (free or found)[0]
    return found[0] if found else None


def _recipe(rest: Sequence[str]) -> list[str]:
    """`tune run --nnodes 1 RECIPE --config FILE key=value...`, with what is typed over the file in front."""
    at = next((i for i, word in enumerate(rest) if word.startswith("--config")), len(rest))
    typed = [word for word in rest[at:] if _assigned(word)]
    named = [f"--{RECIPE}", rest[at - 1]] if 0 < at < len(rest) else []
    return [*typed, *(word for word in rest[at:] if word not in typed), *named]


def _entry(rest: Sequence[str]) -> int | None:
    """Which word is the program: a file, or the module behind -m, which torchrun takes anywhere behind it."""
    for i, word in enumerate(rest):
        if word.endswith(".py") or (i and rest[i - 1] in ("-m", "--module") and not word.startswith("-")):
            return i
        if DOTTED.fullmatch(word) and {"-m", "--module"} & set(rest[:i]):
            return i
    return None


def _program_word(words: Sequence[str]) -> int | None:
    """The program that is started without naming an interpreter: `./train.py`, `uv run train.py`."""
    through = PurePosixPath(words[0]).name in RUNNERS
    return next((i for i, w in enumerate(words) if w.endswith(".py") and (through or not i)), None)


def _assigned(word: str) -> str | None:
    """The key of `key=value`."""
    key, said, _ = word.partition("=")
    return key.lstrip("+") if said and ASSIGNED.fullmatch(key) else None


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
            key, said, value = word.partition("=")  # key=value, as llamafactory-cli takes it, and key.key=value
            if said and ASSIGNED.fullmatch(key):
                flags[key.lstrip("+")] = _plain(value)
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
