"""What a frame shows of its variables it does not keep; what the program itself has asked for stays."""

from __future__ import annotations

import sys
import weakref

from finitune.monitor.user_code.frame_variables import locals_of


class Large:
    """Stands for the output of a model."""


def test_what_a_function_deletes_after_its_frame_was_read_is_gone():
    large = Large()
    there = weakref.ref(large)
    assert locals_of(sys._getframe())["large"] is large
    del large
    assert there() is None


def test_the_variables_that_the_program_holds_are_left_alone():
    held, seven = locals(), 7
    read = locals_of(sys._getframe())
    assert read["seven"] == seven == held["seven"]
    assert read is not held


def test_while_a_debugger_runs_they_are_left_to_it(monkeypatch):
    """What it finds missing there it takes for deleted."""
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    shown = sys._getframe().f_locals
    locals_of(sys._getframe())
    assert "shown" in shown or sys.version_info >= (3, 13)


SPACES = """
seven = 7
read = locals_of(sys._getframe())

class Own:
    eight = 8
    read = locals_of(sys._getframe())
"""


def test_those_of_a_module_and_of_a_class_are_its_own():
    space = {"sys": sys, "locals_of": locals_of}
    exec(SPACES, space)
    assert space["read"] is space
    assert space["Own"].eight == 8
    assert space["Own"].read["eight"] == 8
