"""Chapters are found by file name, asked by parameter name, and cannot harm each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from finitune.chapter import Answer, Chapter, ask, chapters, slug


def chapter(doc: str, **names: object) -> Chapter:
    module = ModuleType("lr_too_high", doc)
    vars(module).update(names)
    return Chapter(name="lr-too-high", module=module)


def test_title_and_sections_come_from_the_docstring() -> None:
    one = chapter("A title.\n\n## What happens\nThis.\n\nAnd this.\n\n## References\n- a\n- b # c\n")
    assert one.title == "A title."
    assert one.sections == {"What happens": "This.\n\nAnd this.", "References": "- a\n- b # c"}
    assert chapter("").title == ""
    assert chapter("Only a title.").sections == {}


def test_what_a_chapter_declares() -> None:
    one = chapter("t", remedies=["lower-lr"], see=print)
    assert one.declared("remedies") == ["lower-lr"]
    assert one.declared("experiments") == []
    assert one.function("see") is print
    assert one.function("foresee") is None


@pytest.mark.parametrize("name", ["fp16_activation_overflow", "finitune.causes.fp16_activation_overflow"])
def test_slug(name: str) -> None:
    assert slug(name) == "fp16-activation-overflow"


def both(loss: float, lr: float = 0.5) -> Iterator[float]:
    yield loss
    yield lr


def test_a_function_is_asked_by_the_names_of_its_parameters() -> None:
    assert ask(both, {"loss": 1.0, "lr": 2.0, "unrelated": 3}) == Answer(results=[1.0, 2.0])
    assert ask(both, {"loss": 1.0}) == Answer(results=[1.0, 0.5])
    assert ask(both, {"loss": 1.0, "lr": None}) == Answer(results=[1.0, 0.5])


def test_a_missing_input_means_not_asked() -> None:
    assert ask(both, {"lr": 1.0}) == Answer(results=[], missing=("loss",))
    assert ask(both, {"loss": None}).missing == ("loss",)
    assert ask(both, {"loss": 0.0}).missing == (), "zero is an answer"


def test_one_result_or_none_need_no_iterator() -> None:
    assert ask(lambda: 3, {}).results == [3]
    assert ask(lambda: None, {}).results == []


def test_a_broken_function_is_reported() -> None:
    def raises(loss: float) -> Iterator[float]:
        yield loss
        raise KeyError("gone")

    assert ask(raises, {"loss": 1.0}) == Answer(results=[], broken="KeyError: 'gone'")


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that adds a good chapter, a broken one, and one under the name of ours."""
    (tmp_path / "their_cause.py").write_text('"""Their cause."""\n')
    (tmp_path / "their_fault.py").write_text("raise RuntimeError('broken at import')\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    entries = "their_cause = their_cause\ntheir_fault = their_fault\nlr_too_high = their_cause\n"
    (info / "entry_points.txt").write_text(f"[finitune.causes]\n{entries}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("their_cause", None)


def test_third_parties_add_chapters_and_a_broken_one_harms_no_other(third_party: Path) -> None:
    with pytest.warns(RuntimeWarning, match="their_fault of causes was left out"):
        found = chapters.__wrapped__("causes")
    assert found["their-cause"].title == "Their cause."
    assert "their-fault" not in found
    assert found["lr-too-high"].module.__name__ == "finitune.causes.lr_too_high"
    assert list(found) == sorted(found)
