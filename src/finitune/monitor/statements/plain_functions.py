"""An expression of the user's computed again, with the functions that it calls, where all of it is plain arithmetic.

A function, or the forward of a model, is not called: its statements are read off its source and computed one after the
other, as `arithmetic` does it, so that nothing of the user's is written to; what the computation has made by itself is.
Modules of torch, and what is TorchScript, are called where they write nothing and draw no random numbers; autograd
functions as torch calls them. What is more than that has no value, and what is computed from it has none.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isnan
from numbers import Real
from types import CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from finitune.finding import Origin
from finitune.monitor.origin.frame_modules import names_of_inner
from finitune.monitor.origin.operator_watch import UNSEEN, OperatorWatch
from finitune.monitor.probes.finite import places
from finitune.monitor.probes.graph_nodes import nodes_behind
from finitune.monitor.probes.modules import unwrapped
from finitune.monitor.probes.quiet import without_warnings
from finitune.monitor.replay.limits import Communicates, OverBudget
from finitune.monitor.statements.known_results import variables_returned
from finitune.monitor.statements.new_tensors import MadeHere
from finitune.monitor.statements.plain_modules import is_plain_module, is_plain_record, is_plain_script
from finitune.monitor.statements.plain_statements import Returned, Statements, is_bad
from finitune.monitor.user_code import numpy_arithmetic
from finitune.monitor.user_code.arithmetic import DICTIONARIES, MISSING, applied_by_name, evaluate
from finitune.monitor.user_code.ended_frames import EndedFrame
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.generators import YIELDED
from finitune.monitor.user_code.source_line import is_users, user_frames
from finitune.monitor.user_code.source_tree import lambda_of, scope_of
from finitune.monitor.user_code.sums import comes_out_as
from finitune.monitor.user_code.torch_arithmetic import NotPlain, is_distribution
from finitune.monitor.user_code.transforms import is_transform, is_transformed, weights_of, with_functions
from finitune.monitor.user_code.variables import function_behind, names_within, value_of

MOST_CALLS = 16
"""Of functions within one another."""
NOT_COMPUTED = (
    NotPlain, OverBudget, Communicates,
    RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
)  # fmt: skip
"""What is raised where an expression cannot be computed again."""
_LISTS = (nn.Module.parameters, nn.Module.named_parameters, nn.Module.buffers, nn.Module.named_buffers)
_PARTS = ("get_input_embeddings", "get_output_embeddings", "get_submodule", "get_parameter", "get_buffer")
"""Methods of models that give a part of theirs."""
_OF_CHECKPOINT = (*inspect.signature(checkpoint).parameters, "preserve_rng_state")
_OF_DICTS = ("items", "keys", "values")
_NO_RESULT = (ast.Tuple(elts=[]), MISSING)


class Evaluation(Statements):
    """`found` tells whether what is looked for was made by now. `line` is the statement within a function that made it,
    as `user_line` gives it, and `now` the one that is computed. A function that has `ended` is computed from what it
    held when it called a model, whatever it was given. `result` is a call with what it has returned, as far as that is
    known. Where a tensor is `wanted`, of what a function is given not all need be known. `of_models` holds
    what models return, call by call, by the identity of each.
    """

    def __init__(
        self, found: Callable[[], bool], ended: Iterable[EndedFrame] = (), *, draws: bool = False,
        result: tuple[ast.expr, Any] = _NO_RESULT, wanted: Tensor | None = None,
        of_models: Mapping[int, Sequence[Any]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        super().__init__(found)
        self._call_known, self._result = result
        self._of_models = {identity: iter(each) for identity, each in of_models.items()}
        self._wanted = wanted
        self.gave_wanted = False
        """What was wanted came out of an operation, bit for bit."""
        self.draws = draws
        self.bad_number: Origin | None = None
        """The first operation of numbers or numpy that made something bad, where no operator of torch did before."""
        self.of_number = False
        """What is looked for was made of a number that is NaN."""
        self._began = torch.autograd._get_sequence_nr()
        self._depth = 0
        self._ended = {one.f_code: one for one in ended}
        self._returned: dict[str, Any] = {}
        self._made = MadeHere()
        self._is_within = False
        self._modules: list[str] = []
        self._names: Mapping[int, str] | None = None

    def placed_by(self, watch: OperatorWatch) -> None:
        """The watch names the statement that is computed, and the module within another whose method runs."""
        watch.line = lambda: self.now
        watch.module = lambda: self._modules[-1] if self._modules else None

    def value(self, node: ast.expr, values: Mapping[str, Any]) -> Any:
        """Raises NotPlain, and what torch raises."""
        if self._is_within:
            if self._ended:
                node, values = self._with_returned(node, values)
            return evaluate(node, values, self)
        with self._within():
            return self.value(node, values)

    def statements(self, body: Sequence[ast.stmt], values: dict[str, Any], code: CodeType) -> None:
        """Run them on these `values`, which they change. Raises as `value` does."""
        with self._within():
            self.run(body, values, code)

    @contextmanager
    def _within(self) -> Iterator[None]:
        self._is_within = True
        try:
            with self._made:
                yield
        finally:
            self._is_within = False

    def computed(self, value: Any, name: str, operands: Iterable[Any]) -> Any:
        operands = list(operands)
        if not self._was_found:  # no whole number is NaN, and a large one is no float
            fractions = (each for each in operands if isinstance(each, Real) and not isinstance(each, int))
            self.of_number |= any(map(isnan, fractions))
        if self._wanted is not None and not self.gave_wanted:
            with _disable_current_modes():
                self.gave_wanted = comes_out_as(value, self._wanted)
        if numpy_arithmetic.is_own(value) and not any(value is each for each in operands):
            self._made.add(value)
        if self.bad_number is None and numpy_arithmetic.is_bad(value) and not self.found():
            given = pytree.tree_leaves(operands)
            spelled = any(isinstance(each, str) for each in given)  # float("inf") is meant
            if not spelled and not any(map(is_bad, given)):
                self.bad_number = _origin(name, value, self.now)
        return value

    def result(self, function: Any, *args: Any, **named: Any) -> Any:
        """What a function of the user's gives for these arguments. Raises as `value` does."""
        names = {f"argument {n}": each for n, each in enumerate(args)}
        given: list[ast.expr] = [ast.Name(id=name, ctx=ast.Load()) for name in names]
        keywords = [ast.keyword(arg=name, value=ast.Name(id=name, ctx=ast.Load())) for name in named]
        call = ast.Call(func=ast.Name(id="the function", ctx=ast.Load()), args=given, keywords=keywords)
        return self.value(call, {"the function": function, **names, **named})

    def made(self, container: Any) -> Any:
        self._made.add(container)
        return container

    def owns(self, value: Any) -> bool:
        return self._made.owns(value)

    def read(self, owner: Any, attribute: property) -> Any:
        return self._call(attribute.fget, "a property", (owner,), {})

    def bears_missing(self, node: ast.expr, values: Mapping[str, Any]) -> bool:
        called = value_of(node, values)
        if isinstance(called, nn.Module) and id(unwrapped(called)) in self._of_models:
            return True
        function, _ = function_behind(called) if self._wanted is not None else (None, None)
        return function is not None and is_users(function.__code__.co_filename)

    def function(self, node: ast.Lambda, values: Mapping[str, Any]) -> Callable[..., Any]:
        return _Nested(self, node, dict(values), None)

    def nested(self, node: ast.FunctionDef, values: dict[str, Any], code: CodeType) -> Callable[..., Any]:
        return _Nested(self, node, values, code)

    def returned(self, one: EndedFrame) -> Any:
        """What a function that has ended returned, from its call of the model on."""
        scope = scope_of(one.f_code)
        if not isinstance(scope, ast.FunctionDef):
            raise NotPlain(one.f_code.co_name)
        body = [each for each in scope.body if (each.end_lineno or each.lineno) >= one.f_lineno]
        return self._result_of(body, variables_of(one), one.f_code)

    def _with_returned(self, node: ast.expr, values: Mapping[str, Any]) -> tuple[ast.expr, Mapping[str, Any]]:
        """Calls of functions that have ended replaced by names for what they returned."""
        there = {**values, **self._returned}
        evaluation = self

        class Replaced(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                function, _ = function_behind(value_of(node.func, values), of_models=True)
                one = None if function is None else evaluation._ended.get(function.__code__)
                if one is None:
                    return self.generic_visit(node)
                name = f"{one.f_code.co_name} has returned"
                if name not in there:
                    del evaluation._ended[one.f_code]  # it may call itself
                    there[name] = evaluation._returned[name] = evaluation.returned(one)
                    evaluation._ended[one.f_code] = one
                return ast.copy_location(ast.Name(id=name, ctx=ast.Load()), node)

        return Replaced().visit(copy.deepcopy(node)), there

    def called(self, node: ast.expr, values: Mapping[str, Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Name) and node.id == "map" and node.id not in values and args and not named:
            return self.made([self._call(args[0], "map", each, {}) for each in zip(*args[1:], strict=False)])
        called = self.value(node, values) if isinstance(node, ast.Call) else value_of(node, values)
        if _are_known(args, named):
            if isinstance(called, FunctionType) and inspect.unwrap(called) is inspect.unwrap(torch.autograd.grad):
                return self._gradients(*args, **named)
            if called is checkpoint:
                function, *rest = args
                return self._call(
                    function, "checkpoint", rest, {k: v for k, v in named.items() if k not in _OF_CHECKPOINT}
                )
            if is_transformed(called):
                return with_functions(called, self._again)(*args, **named)
            if called is torch.func.functional_call:
                return self._functional_call(*args, **named)
            owner = value_of(node.value, values) if isinstance(node, ast.Attribute) and node.attr == "apply" else None
            owner = owner or (getattr(called, "__self__", None) if getattr(called, "__name__", "") == "apply" else None)
            if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
                return owner.apply(*args, **named)
            makes = is_transform(called) or is_distribution(called) or is_plain_record(called)
            compares = called is torch.distributions.kl_divergence and all(is_distribution(type(one)) for one in args)
            if makes or compares or called is functools.partial:
                return called(*args, **named)
            if isinstance(node, ast.Attribute) and node.attr in _OF_DICTS:
                held = value_of(node.value, values)
                if type(held) in DICTIONARIES:
                    return list(getattr(held, node.attr)())
            if isinstance(called, MethodType) and called.__func__ in _LISTS:
                return list(called(*args, **named))
            if isinstance(called, MethodType) and called.__name__ in _PARTS and isinstance(called.__self__, nn.Module):
                return called(*args, **named)
        result = self._result if node is getattr(self._call_known, "func", None) else MISSING
        return self._call(called, ast.unparse(node), args, named, result)

    def _call(
        self, called: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], result: Any = MISSING
    ) -> Any:
        owner = unwrapped(called) if isinstance(called, nn.Module) else getattr(called, "__self__", None)
        within = self._name_of(owner) if isinstance(owner, nn.Module) else None
        self._modules += [within] if within else []
        try:
            return self._result_of_call(called, name, args, named, result)
        except NOT_COMPUTED:
            if isinstance(called, nn.Module):
                given = [each for each in pytree.tree_leaves((args, named)) if isinstance(each, Tensor)]
                with _disable_current_modes():  # what looks at an input is no operator of the step
                    found = [places(each, limit=0) for each in given if is_bad(each)]
                self.gave_bad |= any(one.nan or one.inf for one in found)
            raise
        finally:
            del self._modules[len(self._modules) - bool(within) :]

    def _name_of(self, module: nn.Module) -> str | None:
        """Of one within another that a variable holds."""
        if self._names is None:
            self._names = names_of_inner()
        return self._names.get(id(module))

    def _result_of_call(
        self, called: Any, name: str, args: Sequence[Any], named: Mapping[str, Any], result: Any
    ) -> Any:
        if isinstance(called, _Nested):
            return called(*args, **named)
        if isinstance(called, nn.Module) and id(unwrapped(called)) in self._of_models:
            result = next(self._of_models[id(unwrapped(called))], MISSING)
            if result is MISSING:
                raise NotPlain(name)
            return result
        if isinstance(called, functools.partial):
            return self._call(called.func, name, (*called.args, *args), {**called.keywords, **named}, result)
        if _are_known(args, named):
            with suppress(NotPlain):
                return applied_by_name(called, args, named, draws=self.draws)
            if isinstance(called, nn.Module) and is_plain_module(model := unwrapped(called)):
                return type(model).forward(model, *args, **named)
            if isinstance(called, torch.jit.ScriptFunction | torch.jit.ScriptModule) and is_plain_script(called):
                return (called.forward if isinstance(called, torch.jit.ScriptModule) else called)(*args, **named)
        function, own = function_behind(called, of_models=True)
        if function is None or not is_users(function.__code__.co_filename) or self._depth >= MOST_CALLS:
            raise NotPlain(name)
        scope = scope_of(function.__code__) or lambda_of(function.__code__)
        if not isinstance(scope, ast.FunctionDef | ast.Lambda):
            raise NotPlain(name)
        bound = inspect.signature(function).bind(*([] if own is None else [own]), *args, **named)
        bound.apply_defaults()
        values = {**names_within(function), **bound.arguments}
        return self._result_of(scope, values, function.__code__, variables_returned(scope, result))

    def _again(self, function: Any) -> Any:
        """A function of the user's, computed here when torch calls it."""
        return lambda *args, **named: self._call(function, getattr(function, "__name__", ""), args, named)

    def _functional_call(self, module: nn.Module, weights: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args if isinstance(args, tuple) else (args,)
        with weights_of(module, weights):
            return self._call(module, type(module).__name__, given, kwargs or {})

    def _result_of(
        self, scope: ast.FunctionDef | ast.Lambda | Sequence[ast.stmt], values: dict[str, Any], code: CodeType | None,
        known: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:  # fmt: skip
        self.look(self.now)  # at what it is given
        generates = code is not None and bool(code.co_flags & inspect.CO_GENERATOR)
        values = {**values, YIELDED: list[Any]()} if generates else values
        now, self._depth = self.now, self._depth + 1
        known, self.known = self.known, known
        try:
            if isinstance(scope, ast.Lambda):
                return self.value(scope.body, values)
            assert code is not None, "only a lambda may have none"
            self.run(scope.body if isinstance(scope, ast.FunctionDef) else scope, values, code)
            if generates:
                return self.made(values[YIELDED])
        except Returned as returned:
            if returned.value is MISSING:
                raise NotPlain("what is returned") from None
            return returned.value
        finally:
            self.now, self.known, self._depth = now, known, self._depth - 1
        return None

    def _gradients(self, outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> Any:
        """Of what was computed here, or through a graph that the user keeps and that has no hooks of theirs."""
        nodes = nodes_behind([outputs] if isinstance(outputs, Tensor) else outputs)
        is_kept = options.get("retain_graph") or options.get("create_graph")
        if any(node._sequence_nr() < self._began for node in nodes) and (not is_kept or _sets_hooks()):
            raise NotPlain("gradients through a graph of the user's")
        return inspect.unwrap(torch.autograd.grad)(outputs, inputs, grad_outputs, **{**options, "retain_graph": True})


def _sets_hooks() -> bool:
    """The files whose functions run speak of hooks on tensors, which no node shows."""
    files = {frame.f_code.co_filename for frame in user_frames()}
    return any("register_hook" in line for file in files for line in linecache.getlines(file))


def maker_of(
    wanted: Tensor, compute: Callable[[Evaluation], Any], of_models: Mapping[int, Sequence[Any]] | None = None
) -> Origin | None:
    """The operator that makes this tensor bad as something of the user's is computed; None where it does not come out
    again on the way, bit for bit.
    """
    watch = OperatorWatch.of_arithmetic()
    evaluation = Evaluation(lambda: False, wanted=wanted, of_models=of_models or {})
    evaluation.placed_by(watch)
    with without_warnings(), torch.no_grad(), watch, suppress(*NOT_COMPUTED):
        compute(evaluation)
    return watch.found(bad_loss=True) if evaluation.gave_wanted else None


class _Nested:
    """A function that is defined within one that is computed here, and is computed as that one is."""

    def __init__(
        self, evaluation: Evaluation, node: ast.FunctionDef | ast.Lambda, values: dict[str, Any], code: CodeType | None
    ) -> None:
        self._evaluation, self._node, self._values, self._code = evaluation, node, values, code
        self._defaults = [evaluation.value(each, values) for each in node.args.defaults]

    def __call__(self, *args: Any, **named: Any) -> Any:
        names = [one.arg for one in (*self._node.args.posonlyargs, *self._node.args.args)]
        defaults = dict(zip(names[len(names) - len(self._defaults) :], self._defaults, strict=True))
        given = {**defaults, **dict(zip(names, args, strict=False)), **named}
        if len(args) > len(names) or set(given) != set(names):
            raise NotPlain(ast.unparse(self._node.args))
        return self._evaluation._result_of(self._node, {**self._values, **given}, self._code)


def _origin(name: str, value: Any, line: str | None) -> Origin:
    shape = list(getattr(value, "shape", ()))
    return Origin(
        module=None, op=f"aten.{name}" if hasattr(torch.ops.aten, name) else UNSEEN, phase="input",
        dtype=str(getattr(value, "dtype", "float64")), shape=shape, line=line,
    )  # fmt: skip


def _are_known(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    return not any(each is MISSING for each in (*args, *named.values()))
