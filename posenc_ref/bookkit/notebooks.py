"""Execute notebooks in place, so that the same notebook gives the same bytes each time.

``python -m posenc_ref.bookkit.notebooks execute FILE…`` runs each notebook from its first cell, in order, and
replaces the file only when all cells ran. ``normalise FILE…`` only tidies: what editors add goes away.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import nbformat

from posenc_ref.files import write_whole

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class CellFailed(RuntimeError):
    """A cell of a notebook raised."""


def execute(path: Path, timeout: int = 120) -> None:
    """Run the notebook at ``path`` and write its outputs into it; on an error leave the file as it was."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", record_timing=False, resources=where)
    client.extra_arguments = ["--log-level=ERROR"]  # no note about unencrypted loopback sockets
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            try:
                client.execute_cell(cell, index)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                raise CellFailed(f"{path}: cell {index}: {_reason(error)}\n{cell.source}") from error
    write(path, normalised(notebook))


def normalised(notebook: Any) -> Any:
    """Return the notebook without what differs between editors and runs; sources and outputs stay."""
    language = {"name": "python"}
    notebook.metadata = nbformat.NotebookNode(kernelspec=KERNEL, language_info=language)
    for number, cell in enumerate(notebook.cells):
        cell.id = cell.get("id") or f"cell-{number}"
        for key in ("execution", "collapsed", "jupyter", "vscode"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    return notebook


def write(path: Path, notebook: Any) -> None:
    """Write a notebook, whole or not at all."""
    nbformat.validate(notebook)
    write_whole(path, nbformat.writes(notebook) + "\n")


def _joined(outputs: list[Any]) -> list[Any]:
    """Merge neighbouring pieces of one stream: how a kernel cuts its prints into messages is chance."""
    merged: list[Any] = []
    for output in outputs:
        output.pop("execution_count", None) if output.output_type == "display_data" else None
        if merged and output.output_type == "stream" == merged[-1].output_type and output.name == merged[-1].name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def _reason(error: BaseException) -> str:
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    return f"{name}: {value}".strip().splitlines()[0]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m posenc_ref.bookkit.notebooks", description=__doc__)
    parser.add_argument("command", choices=("execute", "normalise"))
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    for path in options.files:
        start = time.perf_counter()
        try:
            if options.command == "execute":
                print(f"{path} …", end=" ", flush=True)
                execute(path)
                print(f"{time.perf_counter() - start:.0f} s")
            else:
                write(path, normalised(nbformat.read(path, as_version=4)))
        except (CellFailed, OSError, ValueError, nbformat.reader.NotJSONError) as error:
            print(f"{path} failed and is as it was\n{error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
