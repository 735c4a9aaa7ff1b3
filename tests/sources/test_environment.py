import numpy as np
import pytest
from tests.sources.worlds import one_line

from finitune.finding import UnreadableInput
from finitune.sources import environment


def test_versions_of_this_environment():
    assert environment.read()["numpy"] == np.__version__


def test_pins_of_a_requirements_file(tmp_path):
    (tmp_path / "r.txt").write_text(
        "# comment\n--index-url https://x\n-r other.txt\ntorch==2.6.0+cu124 ; python_version > '3.8'\n"
        "DeepSpeed == 0.12.5  # pinned\nflash_attn[extra]===2.5\ntransformers>=4.40,<5\npeft\ntrl ~= 0.9\n"
        "numpy==1.26.4 \\\n    --hash=sha256:abc\ngit+https://github.com/a/b\n./local\nrequests==2.0\nxformers=0.0.20=py310\n"
        "unsloth @ git+https://github.com/unslothai/unsloth\naccelerate==1.*\nludwig==v0.11,!=0.10\n"
    )
    assert environment.read(tmp_path / "r.txt") == {
        "torch": "2.6.0+cu124", "deepspeed": "0.12.5", "flash-attn": "2.5", "numpy": "1.26.4", "xformers": "0.0.20",
        "ludwig": "0.11",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("uv.lock", '[[package]]\nname = "torch"\nversion = "2.6.0"\n[package.x]\nversion = "9"\n'),
        ("poetry.lock", "[[package]]\nname = 'Torch'\nversion = '2.6.0'\n[metadata]\n"),
        ("pylock.toml", 'lock-version = "1.0"\n[[packages]]\nname = "torch"\nversion = "2.6.0"\n'),
        ("Pipfile.lock", '{"default": {"torch": {"version": "==2.6.0"}, "trl": {"git": "x"}}, "develop": {}}'),
    ],
)  # fmt: skip
def test_lock_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert environment.read(tmp_path / name) == {"torch": "2.6.0"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.txt", "torch==2.0\n???\n"),
        ("r.txt", "two words\n"),
        ("uv.lock", "x = 1\n"),
        ("uv.lock", "[[package]]\nname = "),
        ("uv.lock", "[package]\n"),
        ("uv.lock", "x = " + "[" * 5000),
        ("Pipfile.lock", "{"),
        ("r.txt", "\xff"),
    ],
)
def test_a_file_that_is_none_of_them_is_one_line(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(UnreadableInput) as caught:
        environment.read(tmp_path / name)
    assert name in one_line(caught.value)


def test_an_absent_file_is_one_line(tmp_path):
    with pytest.raises(UnreadableInput, match="no such file"):
        environment.read(tmp_path / "absent.txt")


def test_an_environment_of_conda(tmp_path):
    path = tmp_path / "environment.yml"
    path.write_text(
        "name: x\ndependencies:\n  - python=3.11\n  - pytorch::pytorch=2.6.0=py3.11_cuda\n  - transformers>=4\n"
        "  - deepspeed==0.14.2\n  - pip\n  - pip:\n    - trl==0.9.6\n    - -r more.txt\n"
    )
    assert environment.read(path) == {"torch": "2.6.0", "deepspeed": "0.14.2", "trl": "0.9.6"}


def test_what_pip_freeze_prints(tmp_path):
    path = tmp_path / "freeze.txt"
    path.write_text(
        "torch==2.6.0+cu124\n-e git+https://example.org/y@abc#egg=trl\naccelerate @ file:///w/a.whl\npeft==0.15.0\n"
    )
    assert environment.read(path) == {"torch": "2.6.0+cu124", "peft": "0.15.0"}
