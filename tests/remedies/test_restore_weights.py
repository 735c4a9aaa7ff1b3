from finitune.facts import Model
from finitune.remedies.restore_weights import propose


def test_fires_with_the_check_that_proves_it():
    assert propose(Model(path="my model")).command == "finitune check --model 'my model'"


def test_stays_quiet_about_a_command_without_a_path():
    remedy = propose()
    assert remedy.command is None
