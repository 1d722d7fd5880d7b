"""Runs an answer where it can do no harm and see nothing: bubblewrap, resource limits, one process for each answer.

What is inside: Python's standard library, NumPy, the worker, 16 MB of scratch space, and the inputs of one exercise.
What is not: this package, the right answers, other submissions, the home folder, /proc, /etc but the linker's files, a
shell, the network, the right to start a process or a thread, and what :mod:`posenc_ref.grading.seccomp` refuses. Values
come back as plain data and are compared outside.

Run as root, the worker changes to the user ``nobody`` before the answer's code is read, so that the limit on processes
binds (the kernel exempts root); where it cannot, a cgroup counts them, and where there is none,
:attr:`Sandbox.isolation` says so. Run as anybody else, bubblewrap makes a user namespace. Without bubblewrap only the
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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from posenc_ref.grading import seccomp, worker
from posenc_ref.grading.worker import LENGTHS, READY, Outcome

MIB = 1 << 20
PROCESSES = 8
"""How many a cgroup lets be at a time: bubblewrap's own, the answer's, and few more."""
IMPORT_S = 12
"""Seconds of computing that the import of PyTorch may take, beyond what an answer has."""


@dataclass(frozen=True)
class Limits:
    """What one answer may use."""

    wall_s: float = 60.0  # much more than cpu_s, so that a busy machine fails nobody
    cpu_s: int = 8
    memory_bytes: int = 1024 * MIB
    file_bytes: int = 8 * MIB
    reply_bytes: int = 8 * MIB

    def with_patience(self, share: float) -> "Limits":
        """Less time, yet enough for an answer that does no more than it should."""
        wall_s, cpu_s = max(min(10, self.wall_s), self.wall_s * share), max(min(3, self.cpu_s), int(self.cpu_s * share))
        return replace(self, wall_s=wall_s, cpu_s=cpu_s)


class SandboxError(RuntimeError):
    """The sandbox itself did not work; says nothing about the answer."""


@dataclass(frozen=True)
class Run:
    """What came out of the sandbox: an outcome for each case, or the reason why there are none."""

    outcomes: tuple[Outcome, ...] = ()
    failure: str = ""


class Sandbox:
    """A way to run answers, found out once.

    ``strong`` tells whether bubblewrap works here; if not, ``why_weak`` says why. ``bounded`` tells whether an answer
    that starts processes without end is stopped: by its own limit, or, where root has none, by a cgroup.
    """

    def __init__(self, limits: Limits | None = None, *, bwrap: str = "bwrap") -> None:
        self.limits = limits or Limits()
        self.strong, self.why_weak, self._drop_root = True, "", False
        self.bounded, self._cgroup = True, ""
        linux, found = sys.platform == "linux", shutil.which(bwrap)
        if linux and found:
            for self._drop_root in (True, False) if os.geteuid() == 0 else (False,):
                self._command = [*_bubblewrap(found, self._drop_root), *_python("/worker.py", "/site")]
                try:
                    self.bounded = self._no_fork()
                    if not self.bounded:
                        self._cgroup = _cgroup_for_pids()
                        self.bounded = bool(self._cgroup)
                    return
                except SandboxError as error:
                    self.why_weak = f"bubblewrap does not work here: {error}"
        else:
            how = "install it (Debian: apt install bubblewrap)" if linux else "it exists on Linux only"
            self.why_weak = f"bubblewrap is missing: {how}"
        self.strong, self._command = False, _python(worker.__file__, str(Path(np.__file__).parents[1]))

    @property
    def isolation(self) -> str:
        """What holds answers back, in words."""
        if not self.strong:
            return f"weak ({self.why_weak})"
        return "bubblewrap" if self.bounded else "bubblewrap, with no limit on processes: do not run it as root"

    def _no_fork(self) -> bool:
        """Is an answer stopped that starts a process? SandboxError if no answer runs at all."""
        code = "import os\ndef f(x):\n    if not os.fork():\n        os.kill(os.getpid(), 9)"
        run = self.run(code, "f", [(1,)])
        return [o.error for o in run.outcomes] == ["BlockingIOError"]

    def run(
        self,
        code: str,
        function: str,
        cases: Sequence[tuple[Any, ...]],
        torch: str | None = None,
        *,
        patience: float = 1.0,
    ) -> Run:
        """Run ``code``, then call ``function`` from it on each of the cases.

        ``patience`` is the share of the time limits that is granted.
        ``torch`` is :attr:`posenc_ref.grading.exercise.Exercise.torch`: unless it is None, PyTorch is there.
        """
        limits, command = self.limits.with_patience(patience), self._command if torch is None else self._with_torch()
        with (
            tempfile.TemporaryDirectory(prefix="posenc-") as scratch,
            tempfile.TemporaryFile() as request,
            tempfile.TemporaryFile() as kernel_filter,
            _at_most(PROCESSES, self._cgroup) as inside,
        ):
            if self.strong and (program := seccomp.program()):
                kernel_filter.write(program)
                kernel_filter.seek(0)
                command = [command[0], "--seccomp", str(kernel_filter.fileno()), *command[1:]]
            request.write(worker.pack(self._request(code, function, cases, torch, limits)))
            if torch is not None:
                limits = replace(limits, wall_s=limits.wall_s + 5 * IMPORT_S)
            request.seek(0)
            process = subprocess.Popen(
                [*inside, *command],
                stdin=request, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                cwd="/" if self.strong else scratch, env=_ENVIRONMENT, start_new_session=True,
                pass_fds=(kernel_filter.fileno(),) if self.strong else (),
            )  # fmt: skip
            try:
                data, problem = _reply(process, limits)
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

    def _with_torch(self) -> list[str]:
        """The command, with PyTorch and the little that it imports shown to the worker."""
        if not self.strong:
            return self._command
        spec = find_spec("torch")
        if not spec or not spec.origin:
            raise SandboxError("PyTorch is missing")
        packages, place = Path(spec.origin).parents[1], self._command.index("--remount-ro")
        names = ("torch", "torch.libs", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath")
        shown = [word for name in names for word in ("--ro-bind-try", str(packages / name), f"/site/{name}")]
        shown += ["--dev-bind", "/dev/urandom", "/dev/urandom"]  # PyTorch does not start without
        return self._command[:place] + shown + self._command[place:]

    def _request(
        self, code: str, function: str, cases: Sequence[tuple[Any, ...]], torch: str | None, limits: Limits
    ) -> dict[str, Any]:
        sent = {
            "cpu_s": limits.cpu_s + (0 if torch is None else IMPORT_S), "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes, "drop_root": self._drop_root, "strict": self.strong,
        }  # fmt: skip
        return {"code": code, "function": function, "cases": list(cases), "limits": sent, "torch": torch}


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


def _cgroup_for_pids() -> str:
    """A folder in which cgroups that count processes can be made; empty if there is none."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids")):  # version 2, version 1
        with suppress(OSError), _at_most(PROCESSES, str(root)):
            return str(root)
    return ""


@contextmanager
def _at_most(processes: int, cgroup: str) -> Iterator[list[str]]:
    """The words before a command that make a cgroup bound its number of processes; none where no cgroup is named."""
    if not cgroup:
        yield []
        return
    group = Path(tempfile.mkdtemp(prefix="posenc-", dir=cgroup))
    try:
        with (group / "pids.max").open("r+") as bound:  # the kernel made it, or this is no place for cgroups
            bound.write(str(processes))
        yield ["/bin/sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group)]
    finally:
        for _ in range(100):  # the last processes take a moment to go
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.01)


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
