"""Brings the lists of keys that configuration formats know up to the installed releases: `make fields`.

Keys are read from the syntax trees of a package's files. Nothing of a package is imported or run, so that it needs none
of its dependencies. What a list holds already stays: configurations were written for earlier releases too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

LISTS = Path(__file__).parent.parent / "src/finitune/sources/configs/fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The annotated fields of the classes with these names in `files`, and of their bases there, under `section`."""

    files: str
    classes: str = ".*"
    section: str = ""

    def read(self, root: Path) -> Iterator[str]:
        """Their names, dotted inside the section; an alias of pydantic counts besides."""
        nodes = [one for tree in _trees(root, self.files) for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
        meant = [one for one in nodes if re.fullmatch(self.classes, one.name)]
        for one in meant:  # grows while it is read
            bases = {base.id for base in one.bases if isinstance(base, ast.Name)}
            meant += [node for node in nodes if node.name in bases and node not in meant]
            for line in one.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield from (self.section + name for name in (line.target.id, *_aliases(line)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What `files` look up in a dictionary of this name, under `section`; `constants` say what its names stand for."""

    files: str
    dictionary: str
    section: str = ""
    constants: str = ""

    def read(self, root: Path) -> Iterator[str]:
        """`d[KEY]`, `KEY in d`, `d.get(KEY)` and `get_scalar_param(d, KEY)`, dotted inside the section."""
        named = {name: value for tree in _trees(root, self.constants) for name, value in _texts(tree)}
        for tree in _trees(root, self.files):
            for one in ast.walk(tree):
                match one:
                    case ast.Subscript(value=ast.Name(id=held), slice=key):
                        pass
                    case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=held)]):
                        pass
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=held), attr="get"), args=[key, *_]):
                        pass
                    case ast.Call(func=ast.Name(), args=[ast.Name(id=held), key, *_]):
                        pass
                    case _:
                        continue
                text = key.value if isinstance(key, ast.Constant) else named.get(getattr(key, "id", ""))
                if held == self.dictionary and isinstance(text, str) and text.isidentifier():
                    yield self.section + text


ARGUMENTS = Fields(files="transformers/training_args*.py", classes=".*TrainingArguments")
ZERO = "zero_optimization."

SOURCES: dict[str, tuple[Fields | Keys, ...]] = {
    "training_arguments": (
        ARGUMENTS,
        Fields(files="trl/trainer/*_config.py"),
        Fields(files="trl/experimental/*/*_config.py"),
        Fields(files="trl/scripts/utils.py", classes="ScriptArguments"),
    ),
    "accelerate": (
        Fields(files="accelerate/commands/config/config_args.py"),
        Keys(files="accelerate/commands/config/cluster.py", dictionary="deepspeed_config", section="deepspeed_config."),
        Keys(files="accelerate/commands/config/cluster.py", dictionary="fsdp_config", section="fsdp_config."),
    ),
    "deepspeed": (
        Keys(files="deepspeed/runtime/config.py", dictionary="param_dict", constants="deepspeed/**/constants.py"),
        Fields(files="deepspeed/runtime/zero/config.py", classes="DeepSpeedZeroConfig", section=ZERO),
        Fields(files="deepspeed/runtime/zero/offload_config.py", classes=".*Param.*", section=f"{ZERO}offload_param."),
        Fields(
            files="deepspeed/runtime/zero/offload_config.py", classes=".*Optim.*", section=f"{ZERO}offload_optimizer."
        ),
        Fields(files="deepspeed/runtime/precision_config.py", classes="DeepSpeedFP16Config", section="fp16."),
        Fields(files="deepspeed/runtime/precision_config.py", classes="DeepSpeedBF16Config", section="bf16."),
    ),
    "llamafactory": (ARGUMENTS, Fields(files="llamafactory/hparams/*_args.py")),
    "axolotl": (
        Fields(files="axolotl/utils/schemas/*.py", classes="AxolotlInputConfig"),
        Fields(files="axolotl/integrations/*/args.py", classes=".*Args"),
    ),
    "ludwig": (
        Fields(files="ludwig/schema/model_types/*.py"),
        Fields(files="ludwig/schema/trainer.py", section="trainer."),
        Fields(files="ludwig/schema/llms/peft.py", section="adapter."),
        Fields(files="ludwig/schema/llms/quantization.py", section="quantization."),
    ),
}


def main(root: Path) -> None:
    """Each list whose packages lie under `root`, a site-packages."""
    for name, sources in SOURCES.items():
        packages = list(dict.fromkeys(source.files.partition("/")[0] for source in sources))
        missing = [package for package in packages if not (root / package).is_dir()]
        if missing:
            print(f"{name}: left as it is, {', '.join(missing)} not installed")
            continue
        file = LISTS / f"{name}.txt"
        old, new = file.read_text(encoding="ascii"), updated(name, root)
        file.write_text(new, encoding="ascii", newline="\n")
        print(f"{name}: {len(new.splitlines()) - len(old.splitlines())} keys more")


def updated(name: str, root: Path) -> str:
    """The list of a format with the keys of the packages under `root` besides."""
    head, *lines = (LISTS / f"{name}.txt").read_text(encoding="ascii").splitlines()
    notes = [line for line in lines if line.startswith("#")]
    keys = {line.partition(" = ")[0]: line for line in lines if not line.startswith("#")}
    for source in SOURCES[name]:
        for key in source.read(root):
            if key.rpartition(".")[2][:1].islower():  # the others are constants, or private
                keys.setdefault(key, key)
    for found in distributions(path=[str(root)]):
        head = re.sub(rf"\b{re.escape(found.name)} \d\S*", f"{found.name} {found.version}", head)
    return "\n".join([head, *notes, *(keys[key] for key in sorted(keys)), ""])


def _trees(root: Path, files: str) -> Iterator[ast.Module]:
    for file in sorted(root.glob(files)) if files else ():
        yield ast.parse(file.read_bytes())


def _texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str):
            yield from ((target.id, line.value.value) for target in line.targets if isinstance(target, ast.Name))


def _aliases(line: ast.AnnAssign) -> Iterator[str]:
    for word in line.value.keywords if isinstance(line.value, ast.Call) else ():
        if word.arg == "alias" and isinstance(word.value, ast.Constant) and isinstance(word.value.value, str):
            yield word.value.value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
