"""Calls an answer and tells what came of it: in the notebook's own process, or alone in the sandbox.

As a script, ``python -I -S worker.py SITE``, it reads a request from standard input, runs the answer's code and writes
the outcomes to standard output. It must stay stand-alone: the standard library and NumPy (found in the folder SITE),
nothing of this package, since inside the sandbox there is nothing else.

What travels is a tree of plain values (:func:`pack`): JSON with the bytes of arrays behind it. Nothing is pickled,
and reading never allocates more than what was sent.
"""

import __future__

import io
import linecache
import os
import re
import struct
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from json import dumps, loads  # by name: an answer that patches json changes nothing here
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
import numpy as np
from numpy import errstate, ndarray

if __name__ == "__main__":
    sys.path.remove(sys.argv[1])  # what else is installed there is not for answers

ANSWER = "<answer>"
"""The file name under which an answer's code is compiled."""
READY = b"R"
"""Written once the sandbox stands and before any code of the answer runs."""
LARGEST = 4_000_000
"""Bytes of one array that travels."""
LENGTHS = struct.Struct(">QQ")
_DTYPE = re.compile(r"[<>|=][biufc][0-9]{1,2}")


@dataclass(frozen=True)
class Foreign:
    """Stands for a value that is not plain data; only its type, in words, travels."""

    description: str


def told(error: str, message: str, line: str) -> str:
    """An exception in one or two lines."""
    return (f"{error}: {message}" if message else error) + (f"\n  in {line}" if line else "")


@dataclass(frozen=True)
class Outcome:
    """What one call gave."""

    value: Any = None
    error: str = ""
    """Name of the exception's type."""
    message: str = ""
    line: str = ""
    """The last line of the answer's own code that the exception passed through: ``line 3: return x / 0``."""
    changed: tuple[int, ...] = ()
    """Indices of the arguments that the call changed."""
    printed: str = ""
    """The beginning of what the call printed."""


def attempt(function: Callable[..., Any], inputs: Sequence[Any]) -> Outcome:
    """Call ``function`` on inputs of its own, and catch what it raises, prints and warns."""
    own = copied(inputs)
    value, error, message, line = None, "", "", ""
    printed = _Beginning()
    with warnings.catch_warnings(), errstate(all="ignore"), redirect_stdout(printed):
        warnings.simplefilter("ignore")
        try:
            value = kept(function(*own))
        except KeyboardInterrupt:
            raise
        except BaseException as exception:  # SystemExit too: an answer must not end the checker
            error, message, line = blame(exception, _file_of(function))
    changed = tuple(i for i, x in enumerate(inputs) if _changed(x, own[i]))
    return Outcome(value, error, message, line, changed, printed.text)


def on_tensors(function: Callable[..., Any], use: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A function of PyTorch as one of arrays. ``use(function, *tensors)`` works with it, if a call is not enough."""
    import torch

    def call(*inputs: Any) -> Any:
        tensors = [torch.from_numpy(x) if isinstance(x, ndarray) else x for x in inputs]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # new layers start the same way in each call
            return back(use(function, *tensors) if use else function(*tensors))

    def back(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(back(x) for x in value)
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return Foreign("a NumPy array, no tensor") if type(value) is ndarray else value
        try:
            return value.detach().resolve_conj().resolve_neg().numpy()
        except (TypeError, RuntimeError):  # NumPy has no bfloat16
            return Foreign(f"a tensor of dtype {value.dtype} on device {value.device}")

    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def kept(value: Any) -> Any:
    """The same result in memory of its own, so that a later call cannot overwrite it."""
    if type(value) is tuple:
        return tuple(kept(x) for x in value)
    return value.copy() if type(value) is ndarray and value.nbytes <= LARGEST else value


def _file_of(function: Any) -> str:
    """Where a function, or the class of a layer, was written."""
    answer = getattr(function, "__wrapped__", function)
    code = getattr(answer, "__code__", None) or getattr(getattr(answer, "__init__", None), "__code__", None)
    return code.co_filename if code else ""


class _Beginning(io.TextIOBase):
    """Keeps the first thousand characters written and forgets the rest."""

    text = ""

    def write(self, text: str) -> int:
        if len(self.text) < 1000:
            self.text += text[: 1000 - len(self.text)]
        return len(text)


def copied(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The same inputs in memory of their own."""
    return tuple(x.copy() if isinstance(x, ndarray) else x for x in inputs)


def _changed(before: Any, after: Any) -> bool:
    if not isinstance(before, ndarray):
        return False
    return bool(before.shape != after.shape or before.dtype != after.dtype or before.tobytes() != after.tobytes())


def blame(exception: BaseException, file: str) -> tuple[str, str, str]:
    """Type and message of an exception, and the last line of ``file`` that it passed through."""
    number, trace = 0, exception.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            number = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(exception, SyntaxError) and exception.filename == file:
        number = exception.lineno or 0
    try:
        message = (str(exception).splitlines() or [""])[0][:200]
    except Exception:  # an exception of the answer's own may fail here as well
        message = ""
    message = message.removesuffix(f" ({file}, line {number})")
    code = linecache.getline(file, number).strip()[:120] if number else ""
    return type(exception).__name__[:80], message, f"line {number}: {code}" if code else ""


# --- the wire


def pack(value: Any) -> bytes:
    """Plain data as bytes: None, bool, int, float, str, tuple, list, dict, arrays and scalars of NumPy.

    >>> unpack(pack({"x": (np.arange(3), 2.5, None)}))
    {'x': (array([0, 1, 2]), 2.5, None)}
    """
    blobs: list[bytes] = []
    header = dumps(_encoded(value, blobs, depth=0)).encode()
    body = b"".join(blobs)
    return LENGTHS.pack(len(header), len(body)) + header + body


def _encoded(x: Any, blobs: list[bytes], depth: int) -> Any:
    kind = type(x)
    if x is None or kind in (bool, float) or (kind is int and x.bit_length() <= 256):
        return x
    if kind is str:
        return x if len(x) <= 200_000 else {"x": "a str"}
    if kind in (tuple, list) and len(x) <= 10_000 and depth < 8:
        return {kind.__name__[0]: [_encoded(y, blobs, depth + 1) for y in x]}
    if kind is dict and depth < 8 and all(type(k) is str for k in x):
        return {"d": {k: _encoded(y, blobs, depth + 1) for k, y in x.items()}}
    if kind is ndarray and _DTYPE.fullmatch(x.dtype.str) and x.nbytes <= LARGEST:
        blobs.append(x.tobytes())
        return {"a": [x.dtype.str, list(x.shape)]}
    if kind in SCALARS:
        blobs.append(x.tobytes())
        return {"s": x.dtype.str}
    return {"x": x.description if kind is Foreign else describe(x)}


SCALARS = {np.dtype(c).type for c in "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}


def describe(x: Any) -> str:
    """What ``x`` is, in words, without calling any method of a class that is not plain."""
    kind = type(x)
    if x is None:
        return "None (is there a return?)"
    if kind in (list, tuple):
        return f"a {kind.__name__} of {len(x)}"
    if kind is ndarray:
        return f"an array of dtype {x.dtype} and shape {x.shape}"
    if kind in (bool, int, float) and abs(x) < 1e18:
        return f"{x!r}, of type {kind.__name__}"
    module = type.__getattribute__(kind, "__module__")
    name = str(type.__getattribute__(kind, "__name__"))
    return f"of type {name}" if module in ("builtins", "__main__") else f"of type {module}.{name}"[:160]


def unpack(data: bytes) -> Any:
    """Read what :func:`pack` wrote; ValueError if it is anything else."""
    try:
        header_length, body_length = LENGTHS.unpack_from(data)
        if len(data) != LENGTHS.size + header_length + body_length:
            raise ValueError("the lengths do not fit")
        reader = io.BytesIO(data[LENGTHS.size + header_length :])
        value = _decoded(loads(data[LENGTHS.size : LENGTHS.size + header_length]), reader)
        if reader.read(1):
            raise ValueError("there is more than was announced")
        return value
    except (struct.error, KeyError, TypeError, AttributeError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"not a message: {error!r:.80}") from None


def _decoded(x: Any, reader: io.BytesIO) -> Any:
    if not isinstance(x, dict):
        if isinstance(x, list):
            raise ValueError("a list without a tag")
        return x
    ((tag, content),) = x.items()
    if tag == "x":
        return Foreign(str(content)[:200])
    if tag in ("t", "l"):
        items = [_decoded(y, reader) for y in content]
        return tuple(items) if tag == "t" else items
    if tag == "d":
        return {str(k): _decoded(y, reader) for k, y in content.items()}
    dtype_name, shape = content if tag == "a" else (content, [])
    if tag not in ("a", "s") or not _DTYPE.fullmatch(dtype_name) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"unknown tag or dtype {tag!r:.20}")
    dtype, count = np.dtype(dtype_name), 1
    for n in shape:
        count *= n
    if count * dtype.itemsize > reader.getbuffer().nbytes or len(shape) > 32:
        raise ValueError("an array larger than the message")
    array = np.frombuffer(reader.read(count * dtype.itemsize), dtype).reshape(shape)
    return array.copy() if tag == "a" else array[()]


# --- inside the sandbox


def serve() -> None:
    """Answer one request, then end the process at once, whatever the answer's code left running."""
    leave = os._exit
    request = unpack(sys.stdin.buffer.read())
    used = None
    if request["torch"] is not None:
        sys.path.append(sys.argv[1])
        used = caller(request["torch"])
    reply = os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    _confine(request["limits"])
    os.write(reply, READY)  # from here on, a failure is the answer's

    def send(message: dict[str, Any]) -> None:
        data = memoryview(pack(message))
        while data:
            data = data[os.write(reply, data) :]

    def ended(status: int = 0) -> None:
        frame = sys._getframe(1)
        code = linecache.getline(ANSWER, frame.f_lineno).strip() if frame.f_code.co_filename == ANSWER else ""
        send({"load": ("os._exit", f"status {status}", f"line {frame.f_lineno}: {code}" if code else "")})
        leave(0)

    os._exit = ended  # type: ignore[assignment]
    code = request["code"]
    linecache.cache[ANSWER] = (len(code), None, code.splitlines(keepends=True), ANSWER)
    module = {"__name__": "__main__", "np": np, "math": __import__("math")}
    try:
        exec(compile(code, ANSWER, "exec", dont_inherit=True), module)
        function: Any = module.get(request["function"])
    except BaseException as exception:
        send({"load": blame(exception, ANSWER)})
        leave(0)
    if not callable(function):
        send({"load": (f"the answer cell defines no function {request['function']}", "", "")})
        leave(0)
    if used:
        function = used(function)
    outcomes = []
    for inputs in request["cases"]:
        o = attempt(function, inputs)
        outcomes.append((o.value, o.error, o.line, o.changed))  # no message: it could quote a hidden input
    try:
        send({"outcomes": outcomes})
    except MemoryError:
        send({"load": ("the answers together are larger than the memory", "", "")})
    leave(0)


def caller(source: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How an answer in PyTorch is called: by the function in ``source``, or as it is if that is empty."""
    module: dict[str, Any] = {"__name__": "use", "np": np, "torch": __import__("torch")}
    no_annotations = __future__.annotations.compiler_flag  # they name Any, which is not there
    exec(compile(source, "<use>", "exec", no_annotations), module)
    functions = [x for x in module.values() if getattr(x, "__module__", "") == "use"]
    return lambda answer: on_tensors(answer, *functions)


def _confine(limits: dict[str, int]) -> None:
    """Give up root, where the sandbox left the right to do so, and lower the limits for good."""
    if limits["drop_root"]:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        import resource
    except ImportError:  # Windows
        return
    bounds = {
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 1,  # no further process, no thread: an answer needs none
    }
    for what, bound in bounds.items():
        try:
            resource.setrlimit(what, (bound, bound))
        except (OSError, ValueError):
            if limits["strict"]:
                raise


if __name__ == "__main__":
    serve()
