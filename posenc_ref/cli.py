"""The command ``posenc``: ``posenc grade …`` grades exercises, ``posenc lab …`` runs experiments."""

import sys

HELP = """usage: posenc {grade,lab} ...

  posenc grade [PATH ...]                  grade exercise notebooks
  posenc lab run [--suite NAME]            train the small models of a suite
  posenc lab show [EXPERIMENT]             show what was measured

posenc grade --help and posenc lab run --help say more."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    >>> main(["help"]).bit_length()
    usage: posenc {grade,lab} ...
    ...
    0
    """
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["help"]
    if command == "grade":
        from posenc_ref.grading.__main__ import main as grade

        return grade(rest)
    if command == "lab":
        from posenc_ref.lab.commands import main as lab

        return lab(rest)
    if command in ("help", "--help", "-h"):
        print(HELP)
        return 0
    print(f"posenc: command must be grade or lab, got {command!r}\n\n{HELP}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
