"""A Python program or a notebook that trains -> the settings in its calls; it is read by `ast`, never run."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, cast

from finitune.facts import Adapter, Batching, Facts, Hardware, Optimizer, Precision, Quantization, Training
from finitune.finding import UnreadableInput
from finitune.sources.configs import lightning, training_arguments
from finitune.sources.configs.format import Format, Place, Settings, Started
from finitune.sources.configs.program import typed
from finitune.sources.configs.program.bindings import reader_of
from finitune.sources.configs.program.calls import READ, setup_of, starts_of
from finitune.sources.configs.program.names import Call, Names, names_of
from finitune.sources.configs.program.setup import Setup
from finitune.sources.result import Supervision
from finitune.sources.text import kind_of, short

MAX_CHARACTERS = 2**21
"""Twice as long as the longest file of PyTorch; its tree takes about 200 bytes for each character."""

MAX_STARTS = 16
"""So many trainings of one program are read; more are a test suite, and say the same again."""

PYTHON = "python program"
"""The key of the settings that `parse` gives."""

SUFFIXES = {".py", ".ipynb"}
MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.,() ]+\?{1,2}\s*|(\w+\s*=\s*)[%!].*)$")
"""A line of a notebook that IPython reads and Python does not; of `files = !ls` the name stays."""

PYTHON_CELL = re.compile(r"\s*%%(time|timeit|capture|prun|memit)\b")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """One training of a program: what was read of it, and from which line on each cell of a notebook stands."""

    names: Names = field(repr=False)
    start: Call | ast.ClassDef | None
    setup: Setup
    cells: Sequence[tuple[int, int]] = ()
    """First line and number of each cell."""
    unread: Sequence[str] = ()
    started: Started | None = None
    """How it is started, where that is known."""
    from_flags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of each setting that comes from the command line, its flag, "" where several may be meant."""

    def place(self, line: int) -> Place:
        """The cell, for a notebook, and the line in it."""
        first, cell = max(((f, n) for f, n in self.cells if f <= line), default=(1, None))
        return cell, line - first + 1

    def spelt(self, line: int) -> str:
        cell, inner = self.place(line)
        return f"line {inner}" if cell is None else f"cell {cell}, line {inner}"


def parse(text: str, file: str) -> dict[str, Any] | None:
    """The trainings of a program; None for text that is none.

    Raises UnreadableInput for what is not Python, or does not train.
    """
    notebook = PurePath(file).suffix == ".ipynb"
    if not notebook and PurePath(file).suffix != ".py" and not re.match(r"#!.*\bpython", text):
        return None
    try:
        tree, cells, unread = _notebook(text, file) if notebook else (_tree(text, file), (), ())
        found = _programs(names_of(tree, file), cells, unread)
    except (RecursionError, MemoryError):
        raise UnreadableInput(f"{file}: nested too deeply (expected a Python program)") from None
    except UnreadableInput:
        raise
    except ValueError as error:
        raise UnreadableInput(f"{file}: {short(error)} (expected a Python program)") from None
    if not found:
        raise UnreadableInput(
            f"{file}: a Python {'notebook' if notebook else 'program'} without a call that sets up a training "
            "(expected TrainingArguments, an optimizer, Lightning's Trainer...)"
        )
    return {PYTHON: found}


def _programs(
    names: Names, cells: Sequence[tuple[int, int]], unread: Sequence[str], started: Started | None = None
) -> list[Program]:
    reader = reader_of(names, flags=started.flags if started else None)
    return [
        Program(
            names=names, start=start, setup=setup_of(reader, start), cells=cells, unread=unread, started=started
        )
        for start in starts_of(reader)[:MAX_STARTS]
    ]  # fmt: skip


def started(data: Settings, how: Started) -> dict[str, Any]:
    """The trainings of a program that is started with flags; each value of a setting that they change is theirs."""
    one = _program(data)
    found = _programs(one.names, one.cells, one.unread, how) or [_program(data)]
    bare = reader_of(one.names)
    decided = [_from_flags(each.setup, setup_of(bare, each.start), how.flags) for each in found]
    return {PYTHON: [dataclasses.replace(e, from_flags=d) for e, d in zip(found, decided, strict=True)]}


def _from_flags(setup: Setup, bare: Setup, flags: Settings) -> dict[str, str]:
    """The settings that are not what they would be without the flags, each with its flag."""
    found: dict[str, str] = {}
    for key in setup.lines:
        value = _said(setup, key)
        if key and value != _said(bare, key):
            alike = [name for name, said in flags.items() if typed.plain(said) == value]
            found[key] = key if key in flags else alike[0] if len(alike) == 1 else ""
    return found


def _said(setup: Setup, key: str) -> Any:
    """The value of a key, wherever it was put."""
    inner = [one for one in setup.others if isinstance(one, Mapping)]
    parts: list[Mapping[str, Any]] = [setup.arguments, setup.precision, setup.quantization, setup.batching, *inner]
    parts += [cast("Mapping[str, Any]", one) for part in inner for one in part.values() if isinstance(one, Mapping)]
    return next((part[key] for part in parts if key in part), None)


def from_flags(data: Settings) -> Mapping[str, str]:
    """The settings that the command line decides, each with its flag."""
    return _program(data).from_flags


def own_flags(data: Settings) -> bool:
    """Whether the program says what its flags mean."""
    return typed.declares_flags(_program(data).names)


def _tree(text: str, file: str, what: str = "") -> ast.Module:
    if len(text) > MAX_CHARACTERS:
        raise UnreadableInput(f"{file}: {len(text)} characters (expected Python of at most {MAX_CHARACTERS})")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own, about its escapes
            return ast.parse(text)
    except SyntaxError as error:
        raise UnreadableInput(f"{file}: {what}line {error.lineno or 1}: not Python 3 ({short(error.msg)})") from None


def _notebook(text: str, file: str) -> tuple[ast.Module, list[tuple[int, int]], list[str]]:
    """The code cells as one program; cells that are not Python are left out and named."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{file}: not a notebook, which is JSON ({short(error)})") from None
    held: Any = cast(Mapping[str, Any], data).get("cells") if isinstance(data, Mapping) else None
    if not isinstance(held, list):
        raise UnreadableInput(f"{file}: cells: expected a list, found {kind_of(held)} (expected a notebook)")
    body: list[ast.stmt] = []
    cells: list[tuple[int, int]] = []
    unread: list[str] = []
    first, characters = 1, 0
    for number, cell in enumerate(cast(list[Any], held), start=1):
        source = _source(cell)
        characters += len(source)
        if characters > MAX_CHARACTERS:
            raise UnreadableInput(f"{file}: cells of more than {MAX_CHARACTERS} characters (expected a notebook)")
        if not source.strip():
            continue
        try:
            tree = ast.increment_lineno(_tree(_without_magic(source), file, f"cell {number}, "), first - 1)
        except UnreadableInput as error:
            unread.append(str(error))
            continue
        body += tree.body
        cells.append((first, number))
        first += source.count("\n") + 2
    if unread and not body:
        raise UnreadableInput(unread[0])
    return ast.Module(body=body, type_ignores=[]), cells, unread


def _source(cell: Any) -> str:
    """The code of a cell; empty for text."""
    if not isinstance(cell, Mapping):
        return ""
    said = cast(Mapping[str, Any], cell)
    source = said.get("source") if said.get("cell_type") == "code" else ""
    if isinstance(source, list):
        source = "".join(line for line in cast(list[Any], source) if isinstance(line, str))
    return source if isinstance(source, str) else ""


def _without_magic(source: str) -> str:
    """The cell with as many lines, in which IPython's own do nothing."""
    lines = source.split("\n")
    start = next((line for line in lines if line.strip()), "")
    if start.lstrip().startswith("%%") and not PYTHON_CELL.match(start):
        return "\n" * source.count("\n")
    return "\n".join(
        MAGIC.sub(lambda found: f"{found[1]}{f'{found[2]}None' if found[2] else 'pass'}", line) for line in lines
    )


def recognises(data: Settings) -> bool:
    """True for what `parse` gives."""
    return PYTHON in data


def runs(data: Settings) -> list[tuple[int, Settings]]:
    """The line and the settings of each training."""
    programs = cast(list[Program], data[PYTHON])
    return [(one.place(one.setup.lines[""])[1], {PYTHON: [one]}) for one in programs]


def read(data: Settings, file: str) -> Facts:
    """What no settings of a framework say: the loop of the program, how its model is loaded, what it pads with."""
    return _facts(_program(data).setup, file)


def settled(facts: Facts, data: Settings, file: str, card: Hardware) -> Facts:
    """The facts, with what the program asks the card answered."""
    program = _program(data)
    if not any(one.card for one in program.setup.computed.values()):
        return facts
    flags = program.started.flags if program.started else None
    setup = setup_of(reader_of(program.names, card=card, flags=flags), program.start)
    answered = _facts(setup, file)
    if setup.trainer:
        read = training_arguments.read(setup.arguments, file)
        answered = dataclasses.replace(answered, precision=read.precision, disagreements=read.disagreements)
    return answered.over(facts)


def _facts(setup: Setup, file: str) -> Facts:
    framework = "lightning" if _lit(setup) else "accelerate" if setup.others else "torch"
    facts = Facts() if setup.trainer else training_arguments.read(setup.arguments, file, framework=framework)
    if setup.trainer and not training_arguments.recognises(setup.arguments):
        facts = Facts(training=Training(framework="transformers", source=file))
    if setup.precision:
        key = "autocast" if "autocast" in setup.lines else "dtype"
        loaded = facts.precision.parameters if facts.precision else None
        said: dict[str, Any] = {**setup.precision, "parameters": setup.precision.get("parameters") or loaded}
        precision = Precision(requested_by="torch", source=f"{file}: {key}", **said)
        facts = dataclasses.replace(facts, precision=precision)
    quantization = Quantization(source=f"{file}: bnb_4bit_compute_dtype", **setup.quantization)
    training = facts.training or Training(source=file)
    optimizer = facts.optimizer or Optimizer(source=file)
    return dataclasses.replace(
        facts,
        optimizer=dataclasses.replace(optimizer, clips_scaled=True) if setup.clips_scaled else facts.optimizer,
        quantization=quantization if setup.quantization else facts.quantization,
        adapter=Adapter(kind=setup.adapters[0], source=f"{file}: adapter") if setup.adapters else facts.adapter,
        batching=_batching(setup, facts, file),
        training=dataclasses.replace(training, added_tokens=setup.tokens) if setup.tokens else facts.training,
    )


def _batching(setup: Setup, facts: Facts, file: str) -> Batching | None:
    if not setup.batching:
        return facts.batching
    return dataclasses.replace(facts.batching or Batching(source=file), **setup.batching)


def _lit(setup: Setup) -> bool:
    return any(isinstance(one, Mapping) and "trainer" in one for one in setup.others)


def follows(data: Settings) -> Iterator[str | Settings]:
    """The arguments of its Trainer, and what it hands to Lightning, accelerate and DeepSpeed."""
    setup = _program(data).setup
    if setup.trainer and training_arguments.recognises(setup.arguments):
        yield setup.arguments
    yield from setup.others


def supervision(data: Settings, file: str) -> Supervision:
    """How rows are cut, where the program has its own loop."""
    return training_arguments.supervision(_program(data).setup.arguments, file)


def named_data(data: Settings) -> Iterator[str]:
    """What it loads, or names among its arguments."""
    setup = _program(data).setup
    yield from setup.data or training_arguments.named_data(setup.arguments)


def left_out(data: Settings, file: str) -> Iterator[str]:
    """What only running the program would tell, with the line that computes it."""
    program = _program(data)
    yield from program.unread
    if program.started and (others := len(cast(list[Program], data[PYTHON])) - 1):
        yield f"{file}: of {others + 1} trainings in it only the first was read with what {program.started.by} types"
    for key, one in program.setup.computed.items():
        if not one.card and (key in READ or key in ("adapter", "autocast", "deepspeed", "labels")):
            name = "further settings" if key == "**" else key
            yield f"{file}: {name} (computed in {program.spelt(one.line)})"


def undecided(data: Settings, file: str) -> Iterator[str]:
    """What the program asks the card, with the line that asks."""
    program = _program(data)
    for key, one in program.setup.computed.items():
        if one.card:
            yield f"{file}: {key} (asked of the card in {program.spelt(one.line)}; --gpu tells)"


def title(data: Settings) -> str:
    """What trains, in a few words."""
    setup = _program(data).setup
    if setup.trainer:
        method = str(setup.arguments.get("stage", "")).upper()
        return f"TRL {method}" if method else "transformers Trainer"
    if _lit(setup):
        return "Lightning"
    inner = [one for one in setup.others if isinstance(one, Mapping)]
    return "accelerate loop" if any("mixed_precision" in one for one in inner) else "PyTorch loop"


def unused(data: Settings) -> int:
    """How many keywords of its calls say nothing here."""
    return len(_program(data).setup.unused)


def places(data: Settings) -> dict[str, Place]:
    """Where each key is said, under its own name and that of TrainingArguments; "" is where the training begins."""
    program = _program(data)
    lines = dict(program.setup.lines)
    for group, table in lightning.FORMAT.tables.items():
        for name, keys in table.items():
            line = next((lines[leaf] for key in keys if (leaf := key.rpartition(".")[2]) in lines), None)
            for usual in training_arguments.FORMAT.tables[group].get(name, ()) if line is not None else ():
                lines.setdefault(usual, cast(int, line))
    return {key: program.place(line) for key, line in lines.items() if key not in program.from_flags}


def _program(data: Settings) -> Program:
    return cast(list[Program], data[PYTHON])[0]


FORMAT = Format(
    name="python",
    recognises=recognises,
    read=read,
    parse=parse,
    runs=runs,
    follows=follows,
    settled=settled,
    started=started,
    from_flags=from_flags,
    own_flags=own_flags,
    supervision=supervision,
    data=named_data,
    left_out=left_out,
    undecided=undecided,
    title=title,
    unused=unused,
    places=places,
    editable=False,
)
