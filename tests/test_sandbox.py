"""Grading of hostile and broken notebooks: none forges a score, none stops the batch, nothing is left behind.

Each row of the table in the grading rules is a real notebook here, graded with the real sandbox.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from posenc_ref.grading import worker
from posenc_ref.grading.checker import Tried, verdict_on
from posenc_ref.grading.exercise import find_exercise
from posenc_ref.grading.grade import Grader
from posenc_ref.grading.sandbox import MIB, PROCESSES, Limits, Sandbox, SandboxError, _at_most
from posenc_ref.grading.submission import read_submission
from posenc_ref.grading.worker import Outcome, pack, unpack

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap: apt install bubblewrap")

ROTATE = find_exercise("rope.rotate")
LIMITS = Limits(wall_s=10, cpu_s=2, memory_bytes=512 * MIB)
RELEASE = json.loads((Path(__file__).parents[1] / "exercises" / "08_rope.ipynb").read_text("utf-8"))

RIGHT = """
def rotate(x, positions):
    angle = positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
"""


def function(*lines):
    """An answer whose body is ``lines``."""
    return "\n    ".join(["def rotate(x, positions):", *lines])


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    """A sandbox whose processes can be told from those of other test runs: its worker lies at a path of its own."""
    own = tmp_path_factory.mktemp("sandbox") / "worker.py"
    shutil.copy(worker.__file__, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "__file__", str(own))
        box = Sandbox(LIMITS)
        box.own_path = str(own)
        yield box


@pytest.fixture(autouse=True)
def nothing_left(box):
    yield
    deadline = time.monotonic() + 5
    while (left := processes(box.own_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "a process outlived the grading"


def processes(marker):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                found.append(entry.parent.name)
        except OSError:
            pass
    return found


def notebook(code):
    """The learner's notebook with the answer cell of exercise 8.1 filled in."""
    filled = copy.deepcopy(RELEASE)
    (cell,) = [c for c in filled["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "rope-rotate"]
    cell["source"] = code
    return filled


def hand_in(folder, code):
    folder.mkdir(exist_ok=True)
    (folder / "08_rope.ipynb").write_text(json.dumps(notebook(code)))
    return folder


@pytest.fixture(scope="module")
def grader(box):
    return Grader([ROTATE], box, seed=7)


def grade(grader, *folders):
    return list(grader.grade([(f.name, f) for f in folders]))


def row(grader, tmp_path, code):
    (graded,) = grade(grader, hand_in(tmp_path / "learner", code))
    return graded.rows[0]


def test_this_machine_s_sandbox_is_strong(box):
    assert box.strong, box.why_weak


def test_right_and_wrong_answers_get_their_scores(grader, tmp_path):
    assert row(grader, tmp_path, RIGHT).status == "passed"
    wrong = row(grader, tmp_path, RIGHT.replace("1j * angle", "-1j * angle"))
    assert (wrong.score, wrong.status) == (0, "failed")
    assert wrong.message == ROTATE.mistakes[0].diagnosis
    stub = function("raise NotImplementedError('exercise 8.1')")
    assert row(grader, tmp_path, stub).status == "not started"
    assert row(grader, tmp_path, "import math\n" + stub).status == "not started"  # found out by running it


@pytest.mark.parametrize(("code", "message", "next_step"), [
    ("import torch\n" + RIGHT, "ModuleNotFoundError: No module named 'torch'", "NumPy and the standard library"),
    (function("from scipy import fft", "return x"), "line 2: from scipy", "NumPy and the standard library"),
    (function("return helper(x)"), "NameError", "the answer cell alone"),
    (function("return x[0][99]"), "IndexError", "run its check to see the message"),
    (function("while True:", "    pass"), "stopped at the time limit; is there a loop that does not end?", ""),
])  # fmt: skip
def test_what_the_grader_cannot_run_it_explains(grader, tmp_path, code, message, next_step):
    failed = row(grader, tmp_path, code)
    assert failed.status == "failed" and message in failed.message and next_step in failed.next_step


LOOK_AROUND = """
import os, socket
found = []
for folder in ("/proc", "/etc/passwd", "/sys", "/var", "/home", "/bin", "/usr/bin", "/opt", "/mnt", "/run"):
    if os.path.exists(folder):
        found.append(folder)
for folder, folders, files in os.walk("/"):
    if folder.startswith(("/usr/lib", "/lib")):
        folders[:] = [f for f in folders if "python" in f or "packages" in f]
    found += [os.path.join(folder, f) for f in files if f.endswith(".ipynb") or "posenc" in f or "progress" == f[:8]]
    found += [os.path.join(folder, f) for f in folders if "posenc" in f or f in ("hypothesis", "torch", "nbformat")]
for attempt in (lambda: socket.create_connection(("127.0.0.1", 22), 1), lambda: open("/here", "w")):
    try:
        found.append(attempt())
    except OSError:
        pass
raise RuntimeError(f"found {found}")
"""

TAKE_POWER = """
import os
got = []
for attempt in (os.fork, lambda: os.setuid(0), lambda: os.kill(1, 9), lambda: os.chroot("/tmp")):
    try:
        got.append(attempt())
    except OSError:
        pass
raise RuntimeError(f"got {got}")
"""

ASK_THE_KERNEL = """
import ctypes, ctypes.util, os
libc = ctypes.CDLL(None, use_errno=True)
got = [
    name
    for name, arguments in {
        "fork": (), "vfork": (), "setuid": (0,), "kill": (1, 9), "chroot": (b"/tmp",), "ptrace": (16, 1, 0, 0),
        "mount": (b"none", b"/tmp", b"proc", 0, 0), "umount2": (b"/tmp", 2), "sethostname": (b"x", 1),
        "setns": (0, 0), "swapon": (b"/tmp/x", 0), "reboot": (0,), "mknod": (b"/tmp/d", 0o60666, 0x800),
        "unshare": (0x10000000,), "shmget": (0, 1 << 20, 0o1600), "memfd_create": (b"x", 0), "msgget": (0, 0o1600),
    }.items()
    if getattr(libc, name)(*arguments) != -1
]
raise RuntimeError(f"got {got}")
"""

HOSTILE = {
    "forks without end": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", "time limit",
    ),
    "asks the kernel": (ASK_THE_KERNEL, re.escape("RuntimeError: got []")),
    "lets an alarm raise": (
        "import signal, sys, time\nsignal.signal(signal.SIGALRM, lambda *_: sys.exit())\n"
        + function("signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)", "time.sleep(9)", "return x"),
        "SystemExit|without an answer|time limit",
    ),
    "replies as the worker would": (
        "import sys\n"
        + function(
            "frame = sys._getframe()", "while 'send' not in frame.f_locals: frame = frame.f_back",
            "frame.f_locals['send']({'outcomes': [(x, '', '', ())] * len(frame.f_locals['request']['cases'])})",
            "frame.f_locals['leave'](0)",
        ),
        "the shape is|numbers differ",
    ),
    "replies with more than asked": (
        "import sys\n"
        + function(
            "frame = sys._getframe()", "while 'send' not in frame.f_locals: frame = frame.f_back",
            "frame.f_locals['send']({'outcomes': [(x, '', '', ())] * 999})", "frame.f_locals['leave'](0)",
        ),
        "sent 999 results, asked for are",
    ),
    "returns a view without end": (function("return np.broadcast_to(0.0, (2**50,))"), r"shape \(1125899906842624,\)"),
    "returns tuples in tuples": (
        function("t = ()", "for _ in range(7): t = (t,) * 9999", "return t"), "time limit|memory|MemoryError",
    ),
    "loops for ever": (function("while True:", "    pass"), "time limit"),
    "ignores signals": (
        "import signal, time\nfor n in (1, 2, 15, 24):\n    signal.signal(n, signal.SIG_IGN)\n"
        + function("while True:", "    pass"),
        "time limit",
    ),
    "allocates without end": (
        function("hoard = []", "while True:", "    hoard.append(bytearray(2**24))"), "MemoryError|time limit",
    ),
    "fills the scratch space": (
        "for n in range(100):\n    with open(f'/tmp/{n}', 'wb') as f:\n        f.write(bytes(2**20))", "No space left",
    ),
    "writes one large file": ("open('/tmp/big', 'wb').write(bytes(2**24))", "File too large|without an answer"),
    "forks": (function("import os", "os.fork()"), "BlockingIOError\n.*line 3: os.fork"),
    "starts a thread": (function("import threading", "threading.Thread(target=print).start()"), "RuntimeError"),
    "exits in the call": (function("import sys", "sys.exit()"), "SystemExit\n.*line 3: sys.exit"),
    "exits at import": ("import sys\nsys.exit('bye')\n" + RIGHT, "SystemExit: bye\n.*line 2: sys.exit"),
    "leaves at once": (function("import os", "os._exit(0)"), "os._exit.*\n.*line 3: os._exit"),
    "kills itself": (function("import os", "os.kill(os.getpid(), 9)"), "without an answer|time limit"),
    "crashes the interpreter": (function("import ctypes", "ctypes.string_at(0)"), "without an answer"),
    "raises at import": ("x = 1\ny = x / 0\n" + RIGHT, "ZeroDivisionError: division by zero\n.*line 2: y = x / 0"),
    "is no Python": ("def rotate(x, positions:\n    return x", "SyntaxError.*\n.*line 1"),
    "nests too deeply": ("x = " + "(" * 5000 + ")" * 5000, "Error|without an answer"),
    "defines something else": ("def turn(x, positions):\n    return x", "defines no function rotate"),
    "needs another cell": (function("return helper(x)"), "NameError"),
    "calls the reference": (function("from posenc_ref.rotary import rope", "return x"), "ModuleNotFoundError"),
    "patches numpy": (
        "np.allclose = np.array_equal = lambda *a, **k: True\nnp.abs = lambda x: 0 * np.asarray(x)\n"
        "import numpy.testing\nnumpy.testing.assert_allclose = lambda *a, **k: None\n" + function("return x * 2"),
        "numbers differ",
    ),
    "patches modules": (
        "import sys, types\nfake = types.ModuleType('posenc_ref')\nfake.check = lambda *a: True\n"
        "for name in ('posenc_ref', 'posenc_ref.grading', 'IPython', 'json', 'numpy.testing'):\n"
        "    sys.modules[name] = fake\n" + function("return x * 2"),
        "numbers differ",
    ),
    "patches builtins": (
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 26\n"
        + function("return x * 2"),
        "numbers differ|without an answer|not an answer",
    ),
    "lies about equality": (
        "class Yes:\n    __array__ = None\n    shape = dtype = property(lambda self: self)\n"
        "    __eq__ = __bool__ = lambda *a: True\n    __sub__ = __abs__ = __le__ = __getattr__ = lambda *a: Yes()\n"
        + function("return Yes()"),
        "of type Yes, asked for is a NumPy array",
    ),
    "subclasses ndarray": (
        RIGHT.replace("rotate", "right") + "\nclass Mine(np.ndarray):\n    pass\n"
        + function("return right(x, positions).view(Mine)"),
        "of type Mine",
    ),
    "returns objects": (function("return np.full(x.shape, None)"), "dtype object"),
    "returns a broadcastable shape": (function("return np.zeros((1, 1, 1))"), "the shape is"),
    "returns NaN": (function("return np.full(x.shape, np.nan)"), "has nan"),
    "returns float32": (
        RIGHT.replace("rotate", "right") + function("return right(x, positions).astype('float32')"), "dtype is float32",
    ),
    "returns a large array": (function("return np.zeros(2**21)"), r"shape \(2097152,\), asked for"),
    "returns many large arrays": (function("return np.zeros(2**18)"), "larger than"),
    "changes its input": (
        RIGHT.replace("rotate", "right") + function("y = right(x, positions)", "x += 1", "return y"), "changes",
    ),
    "looks around": (LOOK_AROUND, re.escape("RuntimeError: found []")),
    "takes power": (TAKE_POWER, re.escape("RuntimeError: got []")),
    "replies early": (
        "import os, sys, json, struct\n"
        "header = json.dumps({'d': {'outcomes': {'l': []}}}).encode()\n"
        "for n in range(3, 60):\n    try:\n        os.write(n, struct.pack('>QQ', len(header), 0) + header)\n"
        "    except OSError:\n        pass\n" + RIGHT,
        "sent 0 results, asked for are",
    ),
    "announces without end": (
        "import os, struct\nfor n in range(3, 60):\n    try:\n        os.write(n, struct.pack('>QQ', 2**62, 2**62))\n"
        "    except OSError:\n        pass\n" + RIGHT,
        "larger than",
    ),
    "floods the pipe": (
        "import os\nfor n in range(3, 60):\n    try:\n        while True:\n            os.write(n, bytes(2**16))\n"
        "    except OSError:\n        pass\n" + RIGHT,
        "not an answer|larger than|time limit",
    ),
}  # fmt: skip


HARMLESS = {
    "prints 100 MB": RIGHT.replace("    return", "    print('x' * 10**7)\n    return") + "\nprint('y' * 10**8)",
    "patches what checks use": (
        "import sys, numpy.testing, json\nsys.modules['IPython'] = sys.modules['posenc_ref'] = None\n"
        "np.allclose = np.array_equal = numpy.testing.assert_allclose = json.dumps = json.loads = None\n" + RIGHT
    ),
    "closes the standard streams": "import sys, os\nsys.stdout.close()\nsys.stdout = None\nos.close(1)\n" + RIGHT,
    "registers work for the end": "import atexit, time\natexit.register(time.sleep, 60)\n" + RIGHT,
}


@pytest.fixture(scope="module")
def batch(grader, tmp_path_factory):
    """All of them graded as one class."""
    room = tmp_path_factory.mktemp("class")
    answers = HARMLESS | {name: code for name, (code, _) in HOSTILE.items()}
    return {g.name: g.rows[0] for g in grade(grader, *[hand_in(room / name, code) for name, code in answers.items()])}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_score_nothing(batch, name):
    assert (batch[name].status, batch[name].score) == ("failed", 0)
    assert re.search(HOSTILE[name][1], batch[name].message), batch[name].message


@pytest.mark.parametrize("name", HARMLESS)
def test_odd_but_right_answers_get_their_score(batch, name):
    assert batch[name].status == "passed", batch[name].message


def test_nothing_passes_from_one_answer_to_the_next(box):
    leave = function(
        "import os",
        "for folder in ('/tmp', '/', '/dev', '/site', '/dev/shm', '/var/tmp', '/run'):",
        "    try: open(folder + '/note', 'w').write('1.0')",
        "    except OSError: pass",
        "return np.array(os.path.exists('/tmp/note'))",
    )
    find = function("import os", "return np.array([f for _, _, files in os.walk('/') for f in files if f == 'note'])")
    left, found = (box.run(code, "rotate", [(np.ones(2), np.ones(2))]).outcomes[0] for code in (leave, find))
    assert left.value == np.True_, "nothing was left: this test shows nothing"
    assert found.value.shape == (0,)


def test_visible_inputs_by_heart_fail_on_hidden_ones(grader, tmp_path):
    visible = Tried(ROTATE, seed=0)
    table = {
        x.tobytes() + p.tobytes(): right.tolist() for (x, p), right in zip(visible.inputs, visible.right, strict=True)
    }
    code = f"TABLE = {table!r}\n" + function(
        "return np.array(TABLE.get(x.tobytes() + positions.tobytes(), x)).reshape(x.shape)"
    )
    module = {"np": np}
    exec(code, module)
    assert verdict_on(ROTATE, module["rotate"]).kind == "property", "it must know all visible values"
    assert row(grader, tmp_path, code).status == "failed"


def test_hidden_inputs_come_from_the_seed(box):
    def drawn(seed):
        return [pack(i) for i in Grader([ROTATE], box, seed)._hidden(ROTATE).inputs]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1))) >= 20


def test_broken_notebooks_get_a_message_and_the_batch_goes_on(grader, tmp_path):
    def learner(name, code=RIGHT):
        return hand_in(tmp_path / name, code)

    def edited(name, edit):
        content = notebook(RIGHT)
        edit(content["cells"])
        (learner(name) / "08_rope.ipynb").write_text(json.dumps(content))

    def at(cells, grade_id="rope-rotate"):
        return next(i for i, c in enumerate(cells) if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)

    def raw(name, data):
        (learner(name) / "08_rope.ipynb").write_bytes(data)

    learner("honest")
    learner("honest-wrong", function("return x"))
    learner("loops", "while True: pass")
    edited("deleted", lambda cells: cells.pop(at(cells)))
    edited("altered", lambda cells: cells[at(cells, "rope-rotate-check")].update(source="check('x', lambda: 1)"))
    edited("moved", lambda cells: cells.insert(0, cells.pop(at(cells))))
    edited("copied", lambda cells: cells.append(copy.deepcopy(cells[at(cells)])))
    edited("two-answers", lambda cells: cells.append({**cells[at(cells)], "source": function("return x")}))
    edited("retyped", lambda cells: cells[at(cells)].update(cell_type="markdown"))
    edited(
        "odd-cells", lambda cells: cells.extend([None, 3, {"metadata": []}, {"metadata": {"nbgrader": 1}, "source": 5}])
    )
    edited("huge-cell", lambda cells: cells[at(cells)].update(source=RIGHT + "#" * 200_000))
    (learner("renamed") / "08_rope.ipynb").rename(tmp_path / "renamed" / "my rope (2).ipynb")
    (learner("missing") / "08_rope.ipynb").unlink()
    raw("empty", b"")
    raw("corrupt", json.dumps(RELEASE).encode()[:-40])
    raw("no-notebook", b"[1, 2]")
    raw("not-text", bytes(range(256)))
    raw("deep", b"[" * 200_000)
    raw("huge", b'{"cells": [' + b" " * 10_000_000 + b"]}")
    raw("many-cells", b'{"cells": [' + b"{}," * 300_000 + b"{}]}")
    raw("old-format", b'{"worksheets": [], "nbformat": 3}')
    (learner("link") / "08_rope.ipynb").unlink()
    (tmp_path / "link" / "08_rope.ipynb").symlink_to(tmp_path / "honest" / "08_rope.ipynb")
    (learner("pipe") / "08_rope.ipynb").unlink()
    os.mkfifo(tmp_path / "pipe" / "08_rope.ipynb")
    (learner("folder") / "08_rope.ipynb").unlink()
    (tmp_path / "folder" / "08_rope.ipynb").mkdir()
    (tmp_path / "linked-folder").symlink_to(tmp_path / "honest")
    (learner("bad-progress") / "progress.json").write_text('{"exercises": {"rope.rotate": {"attempts": "many"}}}')

    expected = {
        "honest": ("passed", ""),
        "honest-wrong": ("failed", "numbers differ"),
        "loops": ("failed", "time limit"),
        "deleted": ("missing", "was deleted"),
        "altered": ("passed", ""),
        "moved": ("passed", ""),
        "copied": ("passed", ""),
        "two-answers": ("missing", "2 different answer cells"),
        "retyped": ("missing", "of type markdown"),
        "odd-cells": ("passed", ""),
        "huge-cell": ("missing", "longer than"),
        "renamed": ("passed", ""),
        "missing": ("missing", "08_rope.ipynb is missing"),
        "empty": ("missing", "is empty"),
        "corrupt": ("missing", "not JSON"),
        "no-notebook": ("missing", "has no cells"),
        "not-text": ("missing", "not JSON"),
        "deep": ("missing", "not JSON"),
        "huge": ("missing", "larger than 10 MB"),
        "many-cells": ("missing", "was deleted"),
        "old-format": ("missing", "has no cells"),
        "link": ("missing", "links are not followed"),
        "pipe": ("missing", "not a plain file"),
        "folder": ("missing", "not a plain file|cannot be opened"),
        "linked-folder": ("missing", "not handed in"),
        "bad-progress": ("passed", ""),
    }
    folders = sorted(p for p in tmp_path.iterdir() if p.is_dir())
    graded = {g.name: g for g in grade(grader, *folders)}
    assert graded.keys() == expected.keys()
    for name, (status, message) in expected.items():
        result = graded[name].rows[0]
        assert result.status == status and re.search(message, result.message), (name, result)
        assert graded[name].score == (ROTATE.difficulty if status == "passed" else 0)
        assert graded[name].points == ROTATE.difficulty, "the points are the release's, whatever was handed in"
    assert "check cell was changed" in graded["altered"].notes[0]
    assert "is there 2 times" in graded["copied"].notes[0]
    assert "found in my rope (2).ipynb" in graded["renamed"].notes[0]


def test_a_failing_comparison_is_no_pass_and_does_not_stop_the_batch(grader, tmp_path, monkeypatch):
    def broken(*_):
        raise KeyError("a bug of ours")

    monkeypatch.setattr("posenc_ref.grading.grade.diagnose", broken)
    folders = [hand_in(tmp_path / name, RIGHT) for name in ("a", "b")]
    assert [(g.rows[0].status, g.score) for g in grade(grader, *folders)] == [("grader failed", 0)] * 2


@pytest.mark.parametrize("forged", [
    b"", b"\0" * 15, b"\0" * 16, worker.LENGTHS.pack(2, 0) + b"[]", worker.LENGTHS.pack(4, 0) + b"{}{}",
    worker.LENGTHS.pack(2**62, 2**62), pack({"x": 1}) + b"more", pack(np.ones(3))[:-1],
    *(worker.LENGTHS.pack(len(h), 8) + h + bytes(8) for h in (
        b'{"a": ["|O8", [1]]}', b'{"a": ["<f8", [1000000000000]]}', b'{"a": ["<f8", [-1]]}', b'{"a": ["<f8", [0.5]]}',
        b'{"a": ["<f8", [1, 1, 1, 0]]}', b'{"a": ["<f8,<f8", [1]]}', b'{"a": ["<f3", [1]]}', b'{"q": 1}', b'{"a": 3}',
    )),
    worker.LENGTHS.pack(60_000, 0) + b'{"l":[' * 10_000,
])  # fmt: skip
def test_forged_messages_are_refused(forged):
    with pytest.raises(ValueError):
        unpack(forged)


def test_messages_arrive_as_they_were():
    sent = {
        "values": (None, True, 3, -2.5, "text", [np.float32(0.1)], np.arange(6).reshape(2, 3)[:, ::-1], np.array(1j))
    }
    (got,) = unpack(pack(sent)).values()
    for a, b in zip(got, sent["values"], strict=True):
        assert type(a) is type(b)
        assert np.array_equal(a, b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0)
    assert np.isnan(unpack(pack(float("nan"))))
    assert unpack(pack({1, 2})).description == "of type set"


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
time.sleep(0.3)
"""


def test_a_daemon_dies_with_its_sandbox(box, tmp_path):
    """The limit on processes would stop it before; this shows that the second wall stands as well."""
    command = box._command[:-2]
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    daemon = subprocess.Popen([*command, "-c", DAEMON, marker], start_new_session=True)
    deadline = time.monotonic() + 5
    while len(processes(marker)) < 3 and time.monotonic() < deadline:  # bwrap itself shows the marker as well
        time.sleep(0.02)
    assert len(processes(marker)) >= 3, "the daemon never started: this test shows nothing"
    daemon.wait(timeout=10)
    assert not processes(marker)


@pytest.mark.parametrize("bwrap", ["no-such-program", "false"])
def test_without_bubblewrap_isolation_is_called_weak(tmp_path, bwrap):
    weak = Grader([ROTATE], Sandbox(LIMITS, bwrap=bwrap), seed=7)
    assert not weak.sandbox.strong and "bubblewrap" in weak.sandbox.why_weak
    assert row(weak, tmp_path, RIGHT).status == "passed"
    assert row(weak, tmp_path, function("import posenc_ref")).status == "failed"
    probe = LOOK_AROUND.replace('os.walk("/")', "()")
    assert "'/proc'" in row(weak, tmp_path, probe).message, "the probe finds nothing even where there is something"


def test_who_is_not_root_gets_a_user_namespace(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    box = Sandbox(LIMITS)
    assert "--unshare-all" in box._command or not box.strong
    if box.strong:
        grader = Grader([ROTATE], box, seed=7)
        assert row(grader, tmp_path, RIGHT).status == "passed"
        assert "found []" in row(grader, tmp_path, LOOK_AROUND).message
        if os.getuid() == 0:  # then the kernel exempts it from the limit on processes, and the probe must tell
            assert "got [" in (message := row(grader, tmp_path, TAKE_POWER).message) and "got []" not in message


BOMB = """
import os
def rotate(x, positions):
    started = 0
    while started < 99:
        try:
            if os.fork() == 0:
                while True: os.sched_yield()
            started += 1
        except OSError:
            break
    return started
"""


def test_where_root_has_no_limit_on_processes_a_cgroup_has_one_or_the_report_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # so that the worker stays root, if we are
    box = Sandbox(LIMITS)
    (outcome,) = box.run(BOMB, "rotate", [(1, 2)]).outcomes if box.bounded else (Outcome(0),)
    assert outcome.value <= PROCESSES and (box.isolation == "bubblewrap") == box.bounded
    if os.getuid() == 0:
        monkeypatch.setattr("posenc_ref.grading.sandbox._cgroup_for_pids", lambda: "")
        without = Sandbox(LIMITS)
        assert not without.bounded and "no limit on processes" in without.isolation


def test_no_folder_is_taken_for_a_cgroup(tmp_path):
    with pytest.raises(OSError), _at_most(PROCESSES, str(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def test_a_sandbox_that_stops_working_says_so(box, tmp_path):
    broken = copy.copy(box)
    program = tmp_path / "bwrap"  # one that takes every option and fails
    program.write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    program.chmod(0o755)
    broken._command = [str(program)]
    with pytest.raises(SandboxError, match="no namespaces"):
        broken.run(RIGHT, "rotate", [])
    assert row(Grader([ROTATE], broken, seed=7), tmp_path, RIGHT).status == "grader failed"


def test_submission_reads_attempts(tmp_path):
    hand_in(tmp_path, RIGHT)
    (tmp_path / "progress.json").write_text('{"exercises": {"rope.rotate": {"attempts": 3, "passed": false}}}')
    assert read_submission(tmp_path, "x", [ROTATE]).attempts == {"rope.rotate": 3}


def test_outcomes_never_hold_the_message_of_a_call(box):
    """It could quote a hidden input."""
    run = box.run(function("raise ValueError(str(x))"), "rotate", [(np.ones(2), np.ones(2))])
    assert run.outcomes == (Outcome(error="ValueError", line="line 2: raise ValueError(str(x))"),)
