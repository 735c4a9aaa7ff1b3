"""Rows with images: where each of them stands, and real image-text models of transformers trained on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_settings import config

from finitune.finding import UnreadableInput
from finitune.train.prepared import prepare
from finitune.train.rows import sft_rows

OMNILMM = Path(__file__).parents[2] / "examples" / "omnilmm"
PICTURE = OMNILMM / "data" / "images" / "red-bar.png"
SLOT = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def rows_of(folder: Path, *data: Any, sees: bool = True) -> Any:
    for name in ("a.png", "b.png"):
        shutil.copy(PICTURE, folder / name)
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in data))
    return sft_rows(file, chat=True, sees=sees)


def asked(content: Any, answer: Any = "a") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]


def test_an_image_stands_where_its_mark_is(tmp_path: Path) -> None:
    both = {"images": ["a.png", "b.png"], "messages": asked("<image>\nleft, <image> right?")}
    form, (row, plain) = rows_of(tmp_path, both, {"messages": asked("no image")})
    assert form == "answers"
    assert row["prompt"][0]["content"] == [SLOT, text("left, "), SLOT, text(" right?")]
    assert row["completion"][0]["content"] == [text("a")]
    assert [image["path"] for image in row["images"]] == [str(tmp_path / name) for name in ("a.png", "b.png")]
    assert plain["prompt"][0]["content"] == [text("no image")]
    assert plain["images"] == []


def test_images_without_a_mark_come_first_and_parts_are_read_as_they_are(tmp_path: Path) -> None:
    _, (row,) = rows_of(tmp_path, {"image": "a.png", "messages": [{"role": "system", "content": "s"}, *asked("q")]})
    assert [one["content"] for one in row["prompt"]] == [[text("s")], [SLOT, text("q")]]
    parts = {"messages": asked([text("see "), {"type": "image", "image": "b.png"}, text("?")], [text("a")])}
    _, (row,) = rows_of(tmp_path, parts)
    assert row["prompt"][0]["content"] == [text("see "), SLOT, text("?")]
    assert row["images"][0]["path"] == str(tmp_path / "b.png")


def test_rows_of_text_have_no_images(tmp_path: Path) -> None:
    assert rows_of(tmp_path, {"messages": asked("q")}) == (
        "answers",
        [{"prompt": asked("q")[:1], "completion": asked("q")[1:]}],
    )


@pytest.mark.parametrize(
    ("row", "sees", "why"),
    [
        ({"image": "c.png", "messages": asked("q")}, True, "line 1: image: c.png is not there"),
        ({"image": 3, "messages": asked("q")}, True, "line 1: image: expected the name of a file, found a number"),
        ({"image": "a.png", "messages": asked("<image> <image>")}, True, "<image> stands 2 times for 1 images"),
        ({"image": "a.png", "messages": asked("q")}, False, "the model has no processor"),
    ],
)
def test_images_that_cannot_be_used_are_named(tmp_path: Path, row: Any, sees: bool, why: str) -> None:
    with pytest.raises(UnreadableInput, match=why):
        rows_of(tmp_path, row, sees=sees)


def test_the_plan_cuts_no_row_with_an_image(tmp_path: Path) -> None:
    paths = {"model_name_or_path": OMNILMM / "llava", "dataset_name": OMNILMM / "data" / "signs.json"}
    chosen = prepare(config(tmp_path, "use_peft: true", **paths), trains=False).plan.settings()
    assert chosen["max_length"] is None
    assert chosen["lora_target_modules"] == ["all-linear"]
    written = prepare(config(tmp_path, "max_length: 64", **paths), trains=False).plan.settings()
    assert written["max_length"] == 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "use_peft: true\nlora_r: 4\n"], ids=["full", "lora"])
def test_an_image_text_model_is_trained_through_its_processor(kind: str, tmp_path: Path, capsys: Any) -> None:
    """LLaVA of transformers, on rows with and without an image; what it answers is read off the image."""
    for needed in ("torch", "trl", "peft", "PIL"):
        pytest.importorskip(needed)
    from finitune.recording import Recording
    from finitune.train.run import train

    paths = {"model_name_or_path": OMNILMM / "llava", "dataset_name": OMNILMM / "data" / "signs.json"}
    more = "max_steps: 8\nlogging_steps: 1\ngradient_checkpointing: false\nlearning_rate: 3.0e-3\n" + kind
    assert train(config(tmp_path, more + "finitune: {report: false}\n", **paths)) == 0
    said = capsys.readouterr().err
    assert f"{'merged' if kind else 'final'}: loaded again, as it was trained" in said
    assert (tmp_path / "out" / "final" / "processor_config.json").exists()
    losses = Recording.load(tmp_path / "out" / "finitune").signals["loss"].values
    assert losses[-1] < 0.8 * losses[0]
