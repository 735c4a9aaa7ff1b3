"""The user's source as trees."""

from __future__ import annotations

import ast

import pytest

from finitune.monitor.user_code import source_tree


@pytest.mark.parametrize(("failures", "is_read"), [(1, True), (99, False)])
def test_a_tree_that_another_thread_disturbs_is_made_again(failures, is_read, tmp_path, monkeypatch):
    file, parse, left = tmp_path / "program.py", ast.parse, [failures]
    file.write_text("x = 1\n")

    def disturbed(text):
        left[0] -= 1
        if left[0] >= 0:
            raise SystemError("AST constructor recursion depth mismatch (before=57, after=50)")
        return parse(text)

    monkeypatch.setattr(source_tree.ast, "parse", disturbed)
    assert (source_tree.parsed(str(file)) is not None) == is_read
