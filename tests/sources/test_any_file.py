"""Whatever lies in place of any file that `check` reads: exit code 2 and one line, soon, in little memory.

Checks run in a child process whose address space is limited. A new format is damaged here as soon as it has one of
the healthy configurations of the benchmark, which a test demands.
"""

import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources import dialects, worlds
from tests.sources.worlds import chat, jsonl

from finitune.sources.configs.format import format_of, formats
from finitune.sources.configs.runs import loaded

LONGEST_SECONDS = 5.0
HANGS = 60.0
"""Wall seconds; a machine may be busy, a hang lasts longer."""
MOST_MEMORY_KIB = 2**20
ADDRESS_SPACE = 6 * 2**30

CHILD = f"""
import contextlib, io, json, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE}, {ADDRESS_SPACE}))
from finitune.cli.main import main
for line in sys.stdin:
    out, err, begun = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(json.loads(line))
        except BaseException as error:
            code = repr(error)[:500]
    # ru_maxrss would begin with what the process was that forked this one.
    usage = int(next(row for row in open("/proc/self/status") if row.startswith("VmHWM")).split()[1])
    print(json.dumps([code, err.getvalue(), time.process_time() - begun, usage]), flush=True)
"""

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    healthy = importlib.import_module("healthy_configs")
CONFIGS = [
    (file, content if isinstance(content, str) else json.dumps(content))
    for _, files, _ in healthy.HEALTHY
    for file, content in files
]
CONFIGS += list({**dialects.FILES, **dialects.SCRIPTS}.items())
PROGRAM = """import torch
from trl import SFTConfig
RATE = 2e-4
parser = argparse.ArgumentParser()
parser.add_argument("--clip", type=float, default=1.0)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("llama", torch_dtype=torch.bfloat16)
config = SFTConfig("out", bf16=True, learning_rate=RATE, max_grad_norm=args.clip)
"""
NOTEBOOK = {"cells": [{"cell_type": "code", "source": PROGRAM.splitlines(keepends=True)}]}
BY_CONTENT = [one for one in CONFIGS if one[0] not in dialects.SCRIPTS]
CONFIGS += [("train.py", PROGRAM), ("train.ipynb", json.dumps(NOTEBOOK))]  # known by their names
REQUIREMENTS = {
    "requirements.txt": "torch==2.6.0\ntransformers[torch]>=4 ; python_version > '3'\n-r x.txt\n",
    "uv.lock": 'version = 1\n[[package]]\nname = "torch"\nversion = "2.6.0"\nsource = { registry = "x" }\n',
    "Pipfile.lock": '{"default": {"torch": {"version": "==2.6.0"}}}',
    "environment.yml": "name: x\ndependencies:\n  - python=3.11\n  - pytorch=2.6.0\n  - pip:\n    - trl==0.9\n",
}


class Child:
    """One process that checks what it is told to; a new one is started after a death."""

    process = None

    def check(self, *words):
        if self.process is None or self.process.poll() is not None:
            self.close()
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "80"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            self.check("check", os.devnull)
        self.process.stdin.write(json.dumps(["check", *words]) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], HANGS)[0]:
            self.process.kill()
            raise AssertionError(f"{words} hangs")
        answer = self.process.stdout.readline()
        assert answer, f"{words} killed the process"
        code, err, seconds, memory = json.loads(answer)
        assert code in (0, 1, 2), (code, words)
        assert seconds < LONGEST_SECONDS
        assert memory < MOST_MEMORY_KIB
        if code == 2:
            assert err.startswith("finitune")
            assert err.count("\n") == 1
        return code, err

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def child():
    one = Child()
    yield one
    one.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    worlds.model(folder / "m", shards=2)
    (folder / "m/chat_template.jinja").write_text(worlds.CHATML)
    jsonl(folder / "d.jsonl", [chat(), {"text": "what is"}, {"prompt": "a ", "completion": "b"}] * 3)
    (folder / "d.json").write_text(json.dumps([chat()] * 3))
    (folder / "d.csv").write_text('text,labels\n"what is","[1, 2]"\nthe answer,\n')
    (folder / "d.tsv").write_text("text\nwhat is\n")
    (folder / "d.txt").write_text("what is\nthe answer\n")
    if importlib.util.find_spec("pyarrow"):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.table({"text": ["what is the answer"] * 500}), folder / "d.parquet")
    for name, text in {**REQUIREMENTS, "c.json": '{"fp16": true, "learning_rate": 1e-5}'}.items():
        (folder / name).write_text(text)
    return folder


DATA = ["d.jsonl", "d.json", "d.csv", "d.tsv", "d.txt", "d.parquet"]
MODEL = [
    "m/config.json", "m/tokenizer.json", "m/tokenizer_config.json", "m/chat_template.jinja",
    "m/model-00001-of-00002.safetensors", "m/model.safetensors.index.json",
]  # fmt: skip
INPUTS = [*DATA, *MODEL, *REQUIREMENTS]


def words_for(world: Path, name: str) -> list[str]:
    """The command line that reads the file."""
    data = name if name in DATA else "d.jsonl"
    more = ["--requirements", str(world / name)] if name in REQUIREMENTS else []
    return [str(world / "c.json"), "--model", str(world / "m"), "--data", str(world / data), *more]


JUNK = [
    b"[" * 20_000, b"{" * 20_000, b"9" * 5000, b"1e999", b"NaN", b"\0" * 50, b'"' * 9, b"*a &a ", b"../../etc/passwd",
    b"/dev/zero", b"\xff" * 8, b"-1", b"\\ud800",
]  # fmt: skip


@st.composite
def damages(draw):
    """A function from sound bytes to damaged ones."""
    kind = draw(st.sampled_from(["cut", "flip", "drop", "insert", "encode", "other", "repeat"]))
    a, b = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    junk = draw(st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.sampled_from(JUNK))
    codec = draw(st.sampled_from(["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp500"]))

    def damage(sound: bytes) -> bytes:
        i, j = sorted((int(a * len(sound)), int(b * len(sound))))
        if kind == "flip" and sound:
            i = min(i, len(sound) - 1)
            return sound[:i] + bytes([sound[i] ^ (1 + int(b * 254))]) + sound[i + 1 :]
        return {
            "cut": sound[:i], "drop": sound[:i] + sound[j:], "insert": sound[:i] + junk + sound[i:], "other": junk,
            "encode": sound.decode("latin-1").encode(codec, "replace"), "repeat": sound[:j] + sound[i:],
        }.get(kind, sound)  # fmt: skip

    return damage


def test_every_format_has_a_sound_file_here(tmp_path):
    known = set()
    for name, text in CONFIGS:
        (tmp_path / name).write_text(text)
        known.add(format_of(loaded(tmp_path / name)[0]))
    assert known == set(formats().values())


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(CONFIGS), damages())
def test_damaged_configurations(child, tmp_path, config, damage):
    name, text = config
    (tmp_path / name).write_bytes(damage(text.encode()))
    child.check(str(tmp_path / name))


@pytest.mark.parametrize("name", INPUTS)
@settings(max_examples=25)
@given(damage=damages())
def test_damaged_inputs(child, world, name, damage):
    path = world / name
    if not path.exists():
        pytest.skip("needs pyarrow")
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    try:
        child.check(*words_for(world, name))
    finally:
        path.write_bytes(sound)


def pipe(path):
    os.mkfifo(path)


KINDS = {"a directory": Path.mkdir, "a pipe": pipe, "zeros": lambda path: path.symlink_to("/dev/zero"),
         "a dangling link": lambda path: path.symlink_to("nowhere"), "itself": lambda path: path.symlink_to(path),
         "nothing": Path.touch}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["c.json", *INPUTS])
def test_something_else_in_place_of_a_file(child, world, name, kind):
    path = world / name
    if not path.exists():
        pytest.skip("needs pyarrow")
    sound = path.read_bytes()
    path.unlink()
    try:
        KINDS[kind](path)
        code, _ = child.check(*words_for(world, name))
        if name in DATA or name == "c.json":
            assert code == 2
    finally:
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(sound)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["c.json", *DATA, "requirements.txt"])
def test_a_file_that_may_not_be_read(child, world, name):
    (world / name).chmod(0)
    try:
        assert child.check(*words_for(world, name))[0] == 2
    finally:
        (world / name).chmod(0o644)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 99_999_999, 0])
def test_a_header_that_lies_about_its_length(child, world, length):
    path = world / "m/model-00001-of-00002.safetensors"
    sound = path.read_bytes()
    path.write_bytes(length.to_bytes(8, "little") + sound[8:])
    try:
        assert child.check(*words_for(world, "d.jsonl"))[0] == 1
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize("name", ["../m2/x.safetensors", "/etc/passwd", "..\\x", "C:\\x", "a/../../x", "", "\0"])
def test_an_index_that_leads_outside(child, world, name):
    path = world / "m/model.safetensors.index.json"
    sound = path.read_bytes()
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    try:
        code, err = child.check(*words_for(world, "d.jsonl"))
        assert code == 2
        assert "leaves the directory" in err
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize(("name", "text"), BY_CONTENT)
@pytest.mark.parametrize("suffix", ["", ".txt", ".conf", ".json", ".yaml"])
def test_a_configuration_is_known_by_its_content_whatever_its_name(tmp_path, name, text, suffix):
    right, wrong = tmp_path / name, tmp_path / f"config{suffix}"
    right.write_text(text)
    expected = format_of(loaded(right)[0])
    wrong.write_text(text)
    assert format_of(loaded(wrong)[0]) is expected


@pytest.mark.parametrize(
    "text",
    ['{"name": "package", "version": "1.0"}', "services:\n  web: {image: x}\n", "# notes\n", "a,b\n1,2\n", "hello"],
)
def test_an_unknown_file_is_refused_with_what_was_expected(child, tmp_path, text):
    (tmp_path / "x").write_text(text)
    code, err = child.check(str(tmp_path / "x"))
    assert code == 2
    assert "expected" in err


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow")
@settings(max_examples=60)
@given(place=st.integers(4, 120), value=st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), length=st.integers(1, 6))
def test_page_headers_of_parquet_that_lie(child, world, place, value, length):
    path = world / "d.parquet"
    sound = path.read_bytes()
    path.write_bytes(sound[:place] + bytes([value]) * length + sound[place + length :])
    try:
        child.check(*words_for(world, "d.parquet"))
    finally:
        path.write_bytes(sound)
