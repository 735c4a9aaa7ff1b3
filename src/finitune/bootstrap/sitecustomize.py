"""Put on PYTHONPATH by `finitune run`: waits for torch in every Python process of the user's command.

Only the standard library is imported here, and nothing but import hooks is left behind. The interpreter's own
`sitecustomize`, which this file hides, is run first.
"""

import importlib
import importlib.util
import os
import sys


def _run_the_hidden_one(here):
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _WaitFor:
    """Finds nothing itself: when `module` is asked for, has `integration` told once it is there."""

    def __init__(self, module, integration):
        self.module = module
        self.integration = integration
        self.looking = False

    def find_spec(self, name, path=None, target=None):
        if name != self.module or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                if self in sys.meta_path:  # who only asks whether the module is there does not execute it
                    sys.meta_path.remove(self)
                    self.attach()

            spec.loader.exec_module = exec_module
        return spec

    def attach(self):
        try:
            _make_finitune_importable()
            importlib.import_module(f"finitune.integrations.{self.integration}").attach()
        except Exception as error:  # the user's program runs, watched or not
            print(f"finitune: could not attach to {self.module} ({type(error).__name__}: {error})", file=sys.stderr)


def _make_finitune_importable():
    """The user's command may run in another environment: then finitune is taken from where it was started."""
    if "finitune" not in sys.modules and importlib.util.find_spec("finitune") is None:
        home = os.environ["FINITUNE_HOME"]
        file = os.path.join(home, "__init__.py")
        spec = importlib.util.spec_from_file_location("finitune", file, submodule_search_locations=[home])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["finitune"] = module
        spec.loader.exec_module(module)


try:
    _run_the_hidden_one(os.path.dirname(os.path.abspath(__file__)))
finally:
    if os.environ.get("FINITUNE_RUN_DIR"):
        sys.meta_path[:0] = [
            _WaitFor("torch", "any_program"),
            _WaitFor("transformers.trainer", "transformers"),
            _WaitFor("deepspeed.runtime.engine", "deepspeed"),
            _WaitFor("ludwig.trainers.trainer", "ludwig"),
        ]
