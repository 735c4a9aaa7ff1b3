"""The lists of keys are read from packages' files, and hold what the installed releases have."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from scripts import fields

CONFIG = """
from pydantic import BaseModel, Field
class Base(BaseModel):
    stage: int = Field(0, alias="zero_stage")
    _private: int = 0
    not_annotated = 1
class Other(Base):
    lr: float
"""
LOOKED_UP = """
def read(d, other):
    if SCALE in d and "clip" not in d:
        return d[WINDOW], d.get("steps", 1), get(d, SIZE, 0), other["no"], d[0], d["no key"], d[unknown]
"""


def package(root: Path, **files: str) -> Path:
    (root / "p").mkdir()
    for name, text in files.items():
        (root / "p" / f"{name}.py").write_text(text, encoding="utf-8")
    return root


def test_annotated_fields_and_their_aliases(tmp_path: Path) -> None:
    root = package(tmp_path, config=CONFIG)
    source = fields.Fields(files="p/*.py", classes="Base", section="zero.")
    assert {*source.read(root)} == {"zero.stage", "zero.zero_stage", "zero._private"}
    inherits = fields.Fields(files="p/*.py", classes="Other")
    assert {*inherits.read(root)} == {"stage", "zero_stage", "_private", "lr"}


def test_keys_that_are_looked_up(tmp_path: Path) -> None:
    constants = 'SCALE = "scale"\nWINDOW = "window"\nSIZE = "size"\nLIMIT = 3\n'
    root = package(tmp_path, config=LOOKED_UP, constants=constants)
    source = fields.Keys(files="p/config.py", dictionary="d", constants="p/constants.py")
    assert {*source.read(root)} == {"scale", "clip", "window", "steps", "size"}


def test_a_list_keeps_what_it_has_and_takes_on_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = package(tmp_path, config=CONFIG)
    info = root / "p-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: p\nVersion: 2.1\n", encoding="utf-8")
    (tmp_path / "f.txt").write_text("# p 1.0\n# a note\nearlier\nstage = 0 | 1\n", encoding="ascii")
    monkeypatch.setattr(fields, "LISTS", tmp_path)
    monkeypatch.setattr(fields, "SOURCES", {"f": (fields.Fields(files="p/*.py"),), "g": (fields.Fields(files="q/*"),)})
    fields.main(root)
    expected = "# p 2.1\n# a note\nearlier\nlr\nstage = 0 | 1\nzero_stage\n"
    assert (tmp_path / "f.txt").read_text(encoding="ascii") == expected
    fields.main(root)
    assert (tmp_path / "f.txt").read_text(encoding="ascii") == expected


@pytest.mark.parametrize(("name", "packages"), [("training_arguments", ["transformers", "trl"]),
                                                ("accelerate", ["accelerate"])])  # fmt: skip
def test_the_lists_hold_what_the_installed_releases_have(name: str, packages: list[str]) -> None:
    text = (fields.LISTS / f"{name}.txt").read_text(encoding="ascii")
    root = Path(pytest.importorskip(packages[0]).__file__).parent.parent
    if any(f"{package} {version(package)}" not in text.splitlines()[0] for package in packages):
        pytest.skip("the list is of other releases")
    keys = {line.partition(" = ")[0] for line in text.splitlines()}
    read = {key for source in fields.SOURCES[name] for key in source.read(root)}
    assert len(read) > 50
    assert read <= keys
