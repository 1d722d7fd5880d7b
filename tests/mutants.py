"""Changes a right answer in one place at a time, as a slip would: signs, off by one, sin for cos, axes, a lost term.

``mutants(source)`` gives them as source code; ``survives(exercise, source)`` tells whether ``check`` would let one
pass. See test_mutants.py for the run over all solutions.
"""

import ast
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch  # noqa: F401  (seconds that no time limit below may count)

from posenc_ref.grading.checker import broken_properties, judge, tried_on
from posenc_ref.grading.worker import attempt

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}  # fmt: skip
_EXCHANGED = (
    "sin cos", "min max", "minimum maximum", "floor ceil", "tril triu", "zeros ones", "any all", "argmin argmax",
    "log log2", "exp exp2", "sum mean", "real imag", "float64 float32", "int64 int32", "cumsum cumprod",
    "amin amax", "ones_like zeros_like",
)  # fmt: skip
NAMES = {a: b for pair in _EXCHANGED for a, b in (pair.split(), pair.split()[::-1])}
CONSTANT_FACTOR = 1.25


@dataclass(frozen=True)
class Mutant:
    """One change."""

    kind: str
    source: str
    line: str
    """The changed line, as it reads now; "(gone)" where a statement was taken out."""
    was: str


def mutants(source: str) -> list[Mutant]:
    """All mutants of a cell, each with one change, none twice."""
    original = ast.unparse(ast.parse(source)).splitlines()
    parameters, asked = _parameters(ast.parse(source)), _solution_lines(source)
    found: dict[str, Mutant] = {}
    for number in range(len(_sites(ast.parse(source)))):
        node, parent, *_ = _sites(ast.parse(source))[number]
        if getattr(node, "lineno", 0) not in asked:
            continue
        for choice in range(len(_changes(node, parent, parameters))):
            tree = ast.parse(source)
            node, parent, field, index = _sites(tree)[number]
            kind, new = _changes(node, parent, parameters)[choice]
            if kind == "dtype" and node in _inner_returns(tree):
                continue
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new
            text = ast.unparse(ast.fix_missing_locations(tree))
            changed = [(a, b) for a, b in _aligned(original, text.splitlines()) if a != b]
            if changed and text not in found:
                was, line = changed[0]
                found[text] = Mutant(kind, text, line.strip() or "(gone)", was.strip())
    return list(found.values())


def _aligned(a: list[str], b: list[str]) -> Iterator[tuple[str, str]]:
    if len(a) == len(b):
        return zip(a, b, strict=True)
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return iter([(a[at] if at < len(a) else "", b[at] if len(b) > len(a) and at < len(b) else "")])


def _sites(tree: ast.AST) -> list[tuple[ast.AST, ast.AST, str, int | None]]:
    """Every place where a node can be exchanged: node, parent, field, index. Imports, texts and errors are left out."""
    found = []
    for name, value in ast.iter_fields(tree):
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(node, ast.AST) or isinstance(
                node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr
            ):
                continue
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            found.append((node, tree, name, index))
            found += _sites(node)
    return found


def _changes(node: ast.AST, parent: ast.AST, parameters: list[str]) -> list[tuple[str, ast.AST]]:
    found: list[tuple[str, ast.AST]] = []
    match node:
        case ast.Constant(value=bool()):
            found.append(("constant", ast.Constant(not node.value)))
        case ast.Constant(value=int()):
            found += [("off by one", ast.Constant(node.value + 1)), ("off by one", ast.Constant(node.value - 1))]
        case ast.Constant(value=float()):
            found.append(("constant", ast.Constant(node.value * CONSTANT_FACTOR if node.value else 1.0)))
        case ast.Constant(value=str()) if "->" in node.value:
            found += [("axes", ast.Constant(text)) for text in _other_subscripts(node.value)]
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()) if not _is_axis(node, parent):
            found.append(("sign", node.operand))
        case ast.BinOp():
            if swap := OPERATORS.get(type(node.op)):
                found.append(("sign", ast.BinOp(node.left, swap(), node.right)))
            found.append(("dropped term", node.left))
            if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.BitAnd | ast.BitOr):
                found.append(("dropped term", node.right))
            if isinstance(node.op, ast.Sub | ast.MatMult | ast.Div) and not _is_abs(parent):
                found.append(("order", ast.BinOp(node.right, node.op, node.left)))
        case ast.BoolOp():
            found.append(("condition", ast.BoolOp(OPERATORS[type(node.op)](), node.values)))
            found += [("dropped term", value) for value in node.values]
        case ast.Compare(ops=[op]):
            found += [("condition", ast.Compare(node.left, [new()], node.comparators)) for new in COMPARISONS[type(op)]]
        case ast.IfExp():
            found.append(("condition", ast.IfExp(node.test, node.orelse, node.body)))
        case ast.If() | ast.While():
            found.append(("condition", type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)))
        case ast.Slice():
            for part in ("lower", "upper", "step"):
                if getattr(node, part) and ast.unparse(getattr(node, part)) != "0":
                    new = ast.Slice(node.lower, node.upper, node.step)
                    setattr(new, part, None)
                    found.append(("dropped term", new))
        case ast.Tuple() | ast.List() if isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
            found.append(("order", type(node)(node.elts[::-1], node.ctx)))
        case ast.Name(ctx=ast.Load(), id=name):
            if name in NAMES:
                found.append(("other function", ast.Name(NAMES[name], node.ctx)))
            if name in parameters and len(parameters) > 1:
                other = parameters[(parameters.index(name) + 1) % len(parameters)]
                found.append(("other variable", ast.Name(other, node.ctx)))
        case ast.Attribute():
            if node.attr in NAMES:
                found.append(("other function", ast.Attribute(node.value, NAMES[node.attr], node.ctx)))
            if node.attr in ("T", "mT"):
                found.append(("axes", node.value))
        case ast.Call():
            found += _changed_calls(node)
        case ast.Return() if node.value is not None:
            found.append(("dtype", ast.Return(ast.Call(ast.Name("_narrow", ast.Load()), [node.value], []))))
        case ast.AugAssign():
            if swap := OPERATORS.get(type(node.op)):
                found.append(("sign", ast.AugAssign(node.target, swap(), node.value)))
            found.append(("dropped term", ast.Pass()))
        case ast.Expr() if not isinstance(node.value, ast.Constant):
            found.append(("dropped term", ast.Pass()))
        case ast.Assign(targets=[ast.Subscript()]):
            found.append(("dropped term", ast.Pass()))
        case ast.Break() | ast.Continue():
            found.append(("dropped term", ast.Pass()))
    return found


def _solution_lines(source: str) -> set[int]:
    """Numbers of the lines that a learner writes: between the marks, or all where there are none."""
    asked, inside = set(), "### BEGIN SOLUTION" not in source
    for number, line in enumerate(source.splitlines(), start=1):
        if line.strip() in ("### BEGIN SOLUTION", "### END SOLUTION"):
            inside = "BEGIN" in line
        elif inside:
            asked.add(number)
    return asked


def _parameters(tree: ast.Module) -> list[str]:
    """Of the answer: the last function in the cell, or the last method."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    outer = [n for n in tree.body if isinstance(n, ast.FunctionDef)] or functions
    return [a.arg for a in outer[-1].args.args if a.arg != "self"] if outer else []


def _inner_returns(tree: ast.Module) -> list[ast.AST]:
    """Those of functions within a function: only the answer's own result has a dtype to keep."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inner = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.FunctionDef) and n is not f]
    return [n for f in inner for n in ast.walk(f) if isinstance(n, ast.Return)]


def _is_abs(parent: ast.AST) -> bool:
    return isinstance(parent, ast.Call) and ast.unparse(parent.func) in ("abs", "np.abs", "math.fabs", "torch.abs")


def _is_axis(node: ast.AST, parent: ast.AST) -> bool:
    """A negative axis is often the same as a positive one: only its number is changed."""
    of_shape = (
        isinstance(parent, ast.Subscript) and isinstance(parent.value, ast.Attribute) and parent.value.attr == "shape"
    )
    by_name = isinstance(parent, ast.keyword) and parent.arg in ("axis", "dim", "axes")
    reshaped = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute)
    known = reshaped and parent.func.attr in ("reshape", "size", "sum", "softmax", "transpose", "swapaxes", "unsqueeze")
    return isinstance(node.operand, ast.Constant) and (of_shape or by_name or known)


def _changed_calls(node: ast.Call) -> list[tuple[str, ast.AST]]:
    found: list[tuple[str, ast.AST]] = []
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in (
        "swapaxes",
        "transpose",
        "permute",
        "movedim",
        "flip",
        "sort",
        "abs",
        "cumsum",
        "conj",
        "copy",
        "clamp",
    ):
        method = isinstance(node.func, ast.Attribute) and not _is_module(node.func.value)
        found.append(("dropped term", node.func.value if method else node.args[0]))
    if name == "where" and len(node.args) == 3:
        found.append(("order", ast.Call(node.func, [node.args[0], *node.args[:0:-1]], node.keywords)))
    if name in ("outer", "arctan2", "clip", "divmod") and len(node.args) > 1:
        found.append(("order", ast.Call(node.func, node.args[::-1], node.keywords)))
    if name == "clip":
        found.append(("dropped term", node.args[0] if _is_module(node.func.value) else node.func.value))
    if name == "arange":
        found.append(("off by one", ast.BinOp(node, ast.Add(), ast.Constant(1))))
    if name == "range" and len(node.args) == 1:
        found.append(("off by one", ast.Call(node.func, [ast.Constant(1), *node.args], [])))
    for keyword in node.keywords:
        rest = [k for k in node.keywords if k is not keyword]
        found.append(("dropped term", ast.Call(node.func, node.args, rest)))
    return found


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "math", "torch", "F")


def _other_subscripts(text: str) -> list[str]:
    """Einsum with two axes of the result exchanged, or two of its first operand."""
    given, result = text.split("->")
    first, *others = given.split(",")
    found = []
    if len(result) > 1:
        found.append(f"{given}->{result[1]}{result[0]}{result[2:]}")
    if len(first) > 1:
        found.append(",".join([f"{first[:-2]}{first[-1]}{first[-2]}", *others]) + "->" + result)
    return found


def _narrow(x):
    """A result in half the precision."""
    if isinstance(x, tuple):
        return (_narrow(x[0]), *x[1:])
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, int | float | np.number):
        return np.float32(x)
    if isinstance(x, np.ndarray):
        narrow = {"float32": np.float16, "int64": np.int32, "complex128": np.complex64, "bool": np.int64}
        return x.astype(narrow.get(str(x.dtype), np.float32))
    if not hasattr(x, "is_floating_point") or not x.is_floating_point():
        return x
    return x.half() if str(x.dtype) == "torch.float32" else x.float()


# --- running one


class TooLong(KeyboardInterrupt):
    """Raised in an answer whose time is up; as a KeyboardInterrupt, since nothing else passes through ``attempt``."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stops a loop that does not end, after so many seconds of computing: a busy machine changes nothing."""

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def survives(exercise, source: str, seconds: float = 2.0) -> bool:
    """Would ``check`` let this cell pass? The same verdict, without the search for the smallest input."""
    tried = tried_on(exercise)
    try:
        with time_limit(seconds), np.errstate(all="ignore"):
            module = {"__name__": "__main__", "np": np, "math": math, "_narrow": _narrow}
            exec(compile(source, "<mutant>", "exec"), module)
            function = exercise.on_arrays(module[exercise.function])
            for inputs, right in zip(tried.inputs, tried.right, strict=True):
                if judge(exercise, attempt(function, inputs), right):
                    return False
            return not broken_properties(exercise, function, tried.inputs[:12])
    except (Exception, TooLong):
        return False
