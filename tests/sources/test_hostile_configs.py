"""Whatever a configuration file holds: a clean reading or one line, in little time and memory."""

import json
import math
import resource
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.worlds import one_line

from finitune.facts_json import facts_as_json, facts_from_json
from finitune.finding import UnreadableInput
from finitune.sources.configs.format import format_of
from finitune.sources.configs.known_keys import fields_of, unknown
from finitune.sources.configs.runs import is_config
from finitune.sources.editing.shell_words import MAX_VALUE, Script
from finitune.sources.gather import gather

LONGEST_SECONDS = 5.0
MOST_MEMORY = 2**28


def endure(content: bytes, name: str) -> str | None:
    """Read it; the one line it was refused with, or None."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            facts = gather(path).facts
            json.dumps(facts_as_json(facts), allow_nan=False)
            refused = None
        except UnreadableInput as error:
            refused = one_line(error)
            assert len(refused) < 1000
        assert time.process_time() - start < LONGEST_SECONDS
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY
    return refused


def aliases(levels: int) -> str:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join([*rows, f"learning_rate: *a{levels - 1}", "fp16: true"])


def merges(levels: int) -> str:
    rows = ["a0: &a0 {fp16: true}"]
    rows += [f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, levels)]
    return "\n".join([*rows, "learning_rate: 1"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (aliases(9), "beyond 100000 values"),
        (merges(9), "beyond 100000 values"),
        ("a: &a [*a]\nfp16: true", "holds itself"),
        ("a: &a\n  b: *a\nfp16: true", "holds itself"),
        ("fp16: " + "[" * 100_000, "depth"),
        ("fp16: " + "{a: " * 50_000, "depth"),
        ("".join(f"{' ' * i}a:\n" for i in range(1000)) + "fp16: true", "depth"),  # PyYAML 6.0.4 refuses it too
        ("learning_rate: " + "1" * 100_000, "a number of 100000 digits"),
        ("learning_rate: " + "1:" * 100_000 + "1", "a number of"),
        ("learning_rate: " + "x" * 900_000, "expected a number"),
        ("fp16: true\nx: " + "y" * 2_000_000, "characters (expected YAML"),
        ("? [a, b]\n: c\nfp16: true", "neither JSON nor YAML"),
        ("fp16: !!python/name:os.system", "neither JSON nor YAML"),
        ("learning_rate: 2020-99-99\n", "neither JSON nor YAML"),
        ("\x01", "neither JSON nor YAML"),
        ("learning_rate: .nan", "expected a number"),
        ("per_device_train_batch_size: 1e400", "expected a number"),
        ("zero_optimization: {stage: {a: 1}}", "stage"),
        ("mixed_precision: {a: 1}", "expected a word"),
    ],
)  # fmt: skip
def test_hostile_yaml(text, expected):
    refused = endure(text.encode(), "c.yaml")
    assert refused is not None
    assert expected in refused


@pytest.mark.parametrize(
    "text",
    [
        "A=x\n" + "A=$A$A\n" * 100_000 + "python t.py --fp16 $A",
        "python t.py --fp16 " + "$A" * 300_000,
        "A=$B\nB=$A\npython t.py --fp16 --x $A",
        "python t.py --fp16 '" + "x" * 10_000_000,
        "x" * 10_000_000,
        "python t.py --fp16 " + "\\x" * 400_000,
        "python t.py --fp16 " + "$(" * 400_000,
        "python t.py --fp16 " + "${" * 400_000,
        "python t.py --fp16 " + "`" * 900_000,
        "python t.py --fp16 " + "'" * 900_001,
        "python t.py --fp16 " + '"' * 900_001,
        "python t.py --fp16 " + '"${' * 300_000,
        "python t.py --fp16 <<A\n" + "\n" * 900_000,
        "cat <<A\n" * 100_000,
        "python t.py --fp16 " + "--a " * 200_000,
        "python t.py --fp16 --a " + "b " * 400_000,
        "python t.py --fp16 --" + "a" * 900_000,
        "".join(f"python t.py --fp16 --learning_rate {i}\n" for i in range(20_000)),
        "A=(" * 300_000,
        "A=1;" * 200_000,
        "A=(" + "x " * 400_000,
        "python t.py --fp16" + ";" * 900_000,
        "{" * 900_000,
        ">" * 900_000,
        "python t.py --fp16 " + "> a" * 300_000,
        "python t.py --fp16 \0\1\2",
    ],
)
def test_hostile_scripts(text):
    endure(("#!/bin/sh\n" + text).encode(), "run.sh")


def test_variables_of_variables_stay_small():
    (command,) = Script(text="A=xx\n" + "A=$A$A\n" * 40 + "a $A").commands()
    assert sum(len(word.text) for word in command.words) <= MAX_VALUE + 2


shell_pieces = st.sampled_from(
    ["python", "t.py", "--fp16", "--learning_rate", "1e-5", " ", "\n", "'", '"', "\\", "$", "${", "}", "(", ")", "A",
     "=", "A=", "$A", "${A:-b}", "`", "<<", "EOF", ">", "&", ";", "|", "#", "[@]", "+=", "\0", "\r", "{", "--deepspeed",
     "x.json", "torchrun", "accelerate", "launch", "-m", "export "]
)  # fmt: skip


@given(st.lists(shell_pieces, max_size=40).map("".join) | st.text())
def test_any_script_at_all(text):
    endure(("#!/bin/sh\n" + text).encode("utf-8", "surrogatepass"), "run.sh")


@given(st.binary(max_size=300), st.sampled_from(["c.yaml", "c.json", "run.sh", "c"]))
def test_any_bytes_at_all(content, name):
    endure(content, name)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["auto", "fp16", "bf16", "no", "1e-5", math.inf, "lora", "full", "cpu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OPENERS = {
    "accelerate": {"compute_environment": "LOCAL_MACHINE"}, "axolotl": {"base_model": "x"},
    "deepspeed": {"steps_per_print": 1}, "llamafactory": {"cutoff_len": 8},
    "ludwig": {"model_type": "llm", "base_model": "x"}, "training_arguments": {"output_dir": "o"},
}  # fmt: skip


def settings_with(name: str) -> st.SearchStrategy[dict]:
    """Sections and keys of the format with values of any kind."""
    names = fields_of(name).names
    tops = st.sampled_from(sorted({n.split(".")[0] for n in names}))
    sections = {n.rsplit(".", 1)[0].split(".")[0] for n in names if "." in n}
    leaves = st.sampled_from(sorted(n.rsplit(".", 1)[1] for n in names if "." in n) or ["x"])
    nested = st.dictionaries(leaves, values, max_size=4)
    flat = st.dictionaries(tops, values, max_size=6)
    deep = st.dictionaries(st.sampled_from(sorted(sections) or ["x"]), nested, max_size=3)
    return st.tuples(flat, deep).map(lambda pair: {**pair[0], **pair[1], **OPENERS[name]})


@pytest.mark.parametrize("name", OPENERS)
@given(data=st.data())
def test_any_value_under_any_key(name, data):
    said = data.draw(settings_with(name))
    try:
        facts = gather(said).facts
    except UnreadableInput as error:
        one_line(error)
        return
    assert facts_from_json(json.loads(json.dumps(facts_as_json(facts), allow_nan=False))) is not None


@pytest.mark.parametrize("name", OPENERS)
def test_every_format_knows_its_own(name):
    assert format_of(OPENERS[name]).name == name
    fields = fields_of(name)
    assert fields.release.split()[0].isidentifier()
    assert not any(list(unknown(name, {key.split(".")[0]: None}, "f", open_ended=False)) for key in fields.names)


@pytest.mark.parametrize(
    ("name", "key", "near", "open_ended"),
    [
        ("training_arguments", "bp16", ["bf16", "fp16"], True),
        ("training_arguments", "learnig_rate", ["learning_rate"], True),
        ("training_arguments", "per_device_train_bacth_size", ["per_device_train_batch_size"], True),
        ("training_arguments", "dataset_train_splits", None, True),
        ("training_arguments", "use_qlora", None, True),
        ("training_arguments", "actor_gradient_checkpointing", None, True),
        ("deepspeed", "_comment", None, False),
        ("deepspeed", "//", None, False),
        ("training_arguments", "gradient_acumulation_steps", ["gradient_accumulation_steps"], True),
        ("training_arguments", "train_file", None, True),
        ("training_arguments", "my_own_flag", None, True),
        ("axolotl", "micro_batchsize", ["micro_batch_size"], False),
        ("deepspeed", "zero_optimisation", ["zero_optimization"], False),
        ("llamafactory", "something_else_entirely_new", [], False),
    ],
)
def test_did_you_mean(name, key, near, open_ended):
    found = list(unknown(name, {key: 1}, "f", open_ended=open_ended))
    assert (list(found[0].near)[: len(near)] if found else None) == near


def test_files_that_are_no_configuration_are_told_apart(tmp_path):
    for name, text, known in [
        ("a.json", '{"fp16": true, "learning_rate": 1}', True),
        ("b.json", '{"name": "a package"}', False),
        ("c.yaml", yaml.safe_dump({"services": {}}), False),
        ("d.yaml", "{{ template }}\n  a: b: c", False),
        ("e.sh", "echo hello\n", False),
        ("f.sh", "torchrun t.py --fp16\n", True),
    ]:
        (tmp_path / name).write_text(text)
        assert is_config(tmp_path / name) is known
    assert is_config(tmp_path / "absent") is False
