"""The command ``posenc``: grade exercises, show progress, run experiments, read a model's configuration."""

import io
import os
import sys

HELP = """usage: posenc {grade,progress,lab,config} ...

  posenc grade [PATH ...]                  grade exercise notebooks
  posenc progress [FOLDER]                 show what is done, and the next exercise
  posenc lab run [--suite NAME]            train the small models of a suite
  posenc lab show [EXPERIMENT]             show what was measured
  posenc config FILE                       say what a config.json does with position

posenc grade --help, posenc lab run --help and posenc config --help say more."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Whoever reads the output may stop reading (``| head``), and a console may lack a character: neither is an error.

    >>> main(["help"]).bit_length()
    usage: posenc {grade,progress,lab,config} ...
    ...
    0
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = _main((sys.argv[1:] if arguments is None else arguments) or ["help"])
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left has no reader
        return 141


def _main(arguments: list[str]) -> int:
    command, *rest = arguments
    if command in ("grade", "progress"):
        from posenc_ref.grading.__main__ import main as grading

        return grading([command, *rest])
    if command == "lab":
        from posenc_ref.lab.commands import main as lab

        return lab(rest)
    if command == "config":
        from posenc_ref.configs.command import main as config

        return config(rest)
    if command in ("help", "--help", "-h"):
        print(HELP)
        return 0
    print(f"posenc: command must be grade, progress, lab or config, got {command!r}\n\n{HELP}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
