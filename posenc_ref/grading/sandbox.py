"""Runs an answer where it can do no harm and see nothing: bubblewrap, resource limits, one process for each answer.

What is inside: Python's standard library, NumPy, the worker, 16 MB of scratch space, and the inputs of one exercise.
What is not: this package, the right answers, other submissions, the home folder, /proc, /etc, a shell, the network,
the right to start a process or a thread. Values come back as plain data and are compared outside.

Run as root, the worker changes to the user ``nobody`` before the answer's code is read, so that the limit on processes
binds (the kernel exempts root); run as anybody else, bubblewrap makes a user namespace. Without bubblewrap only the
resource limits are left (none on Windows), and files and network are open: :attr:`Sandbox.strong` is then False.
"""

import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from posenc_ref.grading import worker
from posenc_ref.grading.worker import LENGTHS, READY, Outcome

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one answer may use."""

    wall_s: float = 60.0  # much more than cpu_s, so that a busy machine fails nobody
    cpu_s: int = 8
    memory_bytes: int = 1024 * MIB
    file_bytes: int = 8 * MIB
    reply_bytes: int = 8 * MIB


class SandboxError(RuntimeError):
    """The sandbox itself did not work; says nothing about the answer."""


@dataclass(frozen=True)
class Run:
    """What came out of the sandbox: an outcome for each case, or the reason why there are none."""

    outcomes: tuple[Outcome, ...] = ()
    failure: str = ""


class Sandbox:
    """A way to run answers, found out once.

    ``strong`` tells whether bubblewrap works here; if not, ``why_weak`` says why.
    """

    def __init__(self, limits: Limits | None = None, *, bwrap: str = "bwrap") -> None:
        self.limits = limits or Limits()
        self.strong, self.why_weak, self._drop_root = True, "", False
        linux, found = sys.platform == "linux", shutil.which(bwrap)
        if linux and found:
            for self._drop_root in (True, False) if os.geteuid() == 0 else (False,):
                self._command = [*_bubblewrap(found, self._drop_root), *_python("/worker.py", "/site")]
                try:
                    self.run("def f(x):\n    return x + 1", "f", [(1,)])
                    return
                except SandboxError as error:
                    self.why_weak = f"bubblewrap does not work here: {error}"
        else:
            how = "install it (Debian: apt install bubblewrap)" if linux else "it exists on Linux only"
            self.why_weak = f"bubblewrap is missing: {how}"
        self.strong, self._command = False, _python(worker.__file__, str(Path(np.__file__).parents[1]))

    def run(self, code: str, function: str, cases: Sequence[tuple[Any, ...]]) -> Run:
        """Run ``code``, then call ``function`` from it on each of the cases."""
        with tempfile.TemporaryDirectory(prefix="posenc-") as scratch, tempfile.TemporaryFile() as request:
            request.write(worker.pack(self._request(code, function, cases)))
            request.seek(0)
            process = subprocess.Popen(
                self._command,
                stdin=request, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd="/" if self.strong else scratch, env=_ENVIRONMENT, start_new_session=True,
            )  # fmt: skip
            try:
                data, problem = _reply(process, self.limits)
            finally:
                _kill(process)
            assert process.stderr is not None
            complaint = "" if data else process.stderr.read(2000).decode(errors="replace").strip()
            process.stderr.close()
        if not data.startswith(READY):
            raise SandboxError(complaint.splitlines()[-1] if complaint else problem or "the worker did not start")
        if problem:
            return Run(failure=problem)
        return _read(data[len(READY) :], [len(inputs) for inputs in cases], process.returncode)

    def _request(self, code: str, function: str, cases: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        limits = {
            "cpu_s": self.limits.cpu_s, "memory_bytes": self.limits.memory_bytes,
            "file_bytes": self.limits.file_bytes, "drop_root": self._drop_root, "strict": self.strong,
        }  # fmt: skip
        return {"code": code, "function": function, "cases": list(cases), "limits": limits}


_ENVIRONMENT = {
    "LANG": "C.UTF-8", "HOME": "/tmp", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    **({"SYSTEMROOT": os.environ["SYSTEMROOT"]} if "SYSTEMROOT" in os.environ else {}),
}  # fmt: skip


def _executable() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _python(script: str, packages: str) -> list[str]:
    return [_executable(), "-I", "-S", "-B", script, packages]


def _bubblewrap(bwrap: str, drop_root: bool) -> list[str]:
    """The command line that shows Python and NumPy, read-only, and nothing else."""
    base = Path(sys.base_prefix)
    libraries = [Path(p) for p in ("/lib", "/lib64", "/usr/lib", "/usr/lib64") if Path(p).is_dir()]
    libraries += [p for p in (base / "lib", base / "lib64") if p.is_dir() and p not in libraries]
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(base)}))
    if not any(stdlib.is_relative_to(p) for p in libraries):
        libraries.append(stdlib)
    packages = {Path(p) for p in site.getsitepackages([sys.base_prefix])} | {Path("/usr/lib/python3/dist-packages")}
    hidden = sorted(p for p in packages if p.is_dir() and any(p.is_relative_to(x) for x in libraries))
    numpy = Path(np.__file__).parent  # shown as /site, so that no path tells where the course lies
    shown = [
        word for p in (numpy, numpy.with_name("numpy.libs")) for word in ("--ro-bind-try", str(p), f"/site/{p.name}")
    ]
    files = [Path(_executable()), Path("/etc/ld.so.cache"), Path("/etc/alternatives")]

    def bind(paths: Sequence[Path]) -> list[str]:
        folders = sorted({str(parent) for p in paths for parent in p.parents if str(parent) != "/"})
        made = [word for folder in folders for word in ("--perms", "0755", "--dir", folder)]  # or nobody cannot enter
        return made + [word for p in paths for word in ("--ro-bind-try", str(p), str(p))]

    return [
        bwrap, "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL",
        *(("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
           "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if drop_root else ("--unshare-all",)),
        "--size", str(16 * MIB), "--perms", "1777", "--tmpfs", "/tmp",  # first: Python itself may lie below /tmp
        *bind(libraries), *[word for p in hidden for word in ("--perms", "0755", "--tmpfs", str(p))],
        *bind(files), "--perms", "0755", "--dir", "/site", *shown, "--ro-bind", worker.__file__, "/worker.py",
        "--perms", "0755", "--dir", "/dev", "--dev-bind", "/dev/null", "/dev/null",
        "--remount-ro", "/", "--chdir", "/tmp",
        *[word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)],
    ]  # fmt: skip


def _reply(process: "subprocess.Popen[bytes]", limits: Limits) -> tuple[bytes, str]:
    """The bytes of one message, or of what there is of it, and the reason why it is not whole."""
    assert process.stdout is not None
    data = bytearray()
    too_long: list[bool] = []
    reader = threading.Thread(
        target=_read_message, args=(process.stdout, data, limits.reply_bytes, too_long), daemon=True
    )
    reader.start()
    reader.join(limits.wall_s)
    if reader.is_alive():
        _kill(process)
        reader.join(5)
        return bytes(data), f"stopped at the time limit: no answer within {limits.wall_s:g} s"
    return bytes(data), f"the answer is larger than {limits.reply_bytes // MIB} MB" if too_long else ""


def _read_message(pipe: IO[bytes], data: bytearray, most: int, too_long: list[bool]) -> None:
    need = len(READY) + LENGTHS.size
    with suppress(OSError, ValueError):  # the pipe is closed when time is up
        while len(data) < need:
            part = os.read(pipe.fileno(), min(need - len(data), MIB))
            if not part:
                return
            data += part
            if len(data) == len(READY) + LENGTHS.size:
                need += sum(LENGTHS.unpack_from(data, len(READY)))
                if need > most:
                    too_long.append(True)
                    return


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the process and what it started, and wait until it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def _read(data: bytes, arities: Sequence[int], status: int) -> Run:
    if not data:
        cpu = status in (-signal.SIGKILL, 128 + signal.SIGKILL, 128 + signal.SIGXCPU, -signal.SIGXCPU)
        too_long = "stopped at the time limit; is there a loop that does not end?"
        return Run(failure=too_long if cpu else f"the process ended without an answer ({status})")
    try:
        message = worker.unpack(data)
        if "load" in message:
            return Run(failure=worker.told(*(str(x)[:300] for x in message["load"])))
        if len(message["outcomes"]) != len(arities):
            sent = len(message["outcomes"])
            return Run(failure=f"the process sent {sent} results, asked for are {len(arities)}")
        outcomes = tuple(
            Outcome(value, str(error)[:80], "", str(line)[:200], tuple(range(arity)[i] for i in changed))
            for (value, error, line, changed), arity in zip(message["outcomes"], arities, strict=True)
        )
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        return Run(failure="the process sent something that is not an answer")
    return Run(outcomes)
