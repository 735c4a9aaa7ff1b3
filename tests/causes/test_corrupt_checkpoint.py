"""Files of which several are damaged."""

from tests.causes.parts import scanned
from tests.causes.rows import found


def test_fires_for_every_problem_of_the_files():
    problems = found("corrupt-checkpoint", weights=scanned(problems=("one", "two")))
    assert [one.severity for one in problems] == ["error", "error"]
