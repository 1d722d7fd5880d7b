"""The browser edition: JupyterLab without a server, the package as a wheel, and a notebook that reads configurations.

It is part of the book as built. When a reader opens the notebook, Python itself (Pyodide), NumPy and array-api-compat
come from public servers; nothing else does, and no page of the book needs it.
"""

import subprocess
import sys
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
KERNEL = Path(sys.prefix, "share/jupyter/labextensions/@jupyterlite/pyodide-kernel-extension")
"""The only extension that the edition takes of those installed here."""


def build_edition(html: Path) -> None:
    """Put the edition into ``html/browser``, ``html`` an absolute path; :class:`RuntimeError` if the tools fail."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "source")  # a copy: building leaves files beside what is built
        copytree(ROOT / "posenc_ref", source / "posenc_ref", ignore=ignore_patterns("__pycache__"))
        copy(ROOT / "pyproject.toml", source)
        _run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", f"{folder}/pypi", source)
        _run(
            "jupyter", "lite", "build", "--lite-dir", folder, "--contents", ROOT / "book" / "browser",
            "--output-dir", html / "browser", "--no-sourcemaps",
            "--ignore-sys-prefix", "federated_extensions", f"--LiteBuildConfig.federated_extensions={KERNEL}",
            cwd=folder,  # it leaves a file there
        )  # fmt: skip


def _run(*command: str | Path, cwd: str | None = None) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:3]))} failed:\n{(result.stdout + result.stderr)[-2000:]}")
