"""Put on PYTHONPATH by `finitune run`: waits for torch in every Python process of the user's command.

Only the standard library is imported here, and nothing but import hooks is left behind. The interpreter's own
`sitecustomize`, which this file hides, is run first.
"""

import ast
import importlib
import importlib.util
import os
import re
import sys

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run_the_hidden_one(here):
    """Run the next `sitecustomize` behind the directory `here`; one that hides this file in turn is not run again."""
    from importlib.machinery import PathFinder

    paths = [os.path.abspath(p or ".") for p in sys.path]
    behind = paths.index(here) + 1 if here in paths else 0
    spec = PathFinder.find_spec("sitecustomize", [p for p in paths[behind:] if p != here and p not in paths[:behind]])
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module  # what the program imports by this name
        spec.loader.exec_module(module)


class WaitFor:
    """Finds nothing itself: calls `before` when `module` is about to run, and `attach(module)` once it is there."""

    def __init__(self, module, attach, before=None):
        self.module = module
        self.attach = attach
        self.before = before
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        if name != self.module or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                # Not sooner: many a library looks for torch without importing it.
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self.call(self.before)
                execute(module)
                mark(self.module)
                self.call(self.attach, module)

            spec.loader.exec_module = exec_module
        return spec

    def call(self, function, *arguments):
        try:
            if function is not None:
                make_finitune_importable()
                function(*arguments)
        except Exception as error:  # the user's program runs, watched or not
            print(f"finitune: could not attach to {self.module} ({type(error).__name__}: {error})", file=sys.stderr)


def make_finitune_importable():
    """The user's command may run in another environment: then finitune is taken from where it was started."""
    if "finitune" not in sys.modules and importlib.util.find_spec("finitune") is None:
        file = os.path.join(HOME, "__init__.py")
        spec = importlib.util.spec_from_file_location("finitune", file, submodule_search_locations=[HOME])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["finitune"] = module
        spec.loader.exec_module(module)


def integrations():
    """(module to wait for, what to call then): `AFTER` and `attach` of every file of `finitune.integrations`."""
    folder = os.path.join(HOME, "integrations")
    for file in sorted(os.listdir(folder)):
        if file.endswith(".py"):
            with open(os.path.join(folder, file), encoding="utf-8") as text:
                waits_for = re.search(r"^AFTER = (\(.*?\))$", text.read(), re.MULTILINE | re.DOTALL)
            for module in ast.literal_eval(waits_for.group(1)) if waits_for else ():
                yield module, attach_of(file[: -len(".py")])


def attach_of(name):
    return lambda _module: importlib.import_module("finitune.integrations." + name).attach()


def mark(name):
    """Tell the launcher how far a process has come; nothing depends on it."""
    try:
        with open(os.path.join(os.environ["FINITUNE_MARKS"], name), "a"):
            pass
    except (KeyError, OSError):
        pass


if __name__ == "sitecustomize":
    mark("python")
    try:
        run_the_hidden_one(os.path.dirname(os.path.abspath(__file__)))
    finally:
        if os.environ.get("FINITUNE_RUN_DIR"):
            sys.meta_path[:0] = [WaitFor(module, attach) for module, attach in integrations()]
