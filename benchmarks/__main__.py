"""``python -m benchmarks`` lists the commands; ``… NAME`` runs one, ``… --all`` all."""

import importlib
import sys

from benchmarks import everything
from benchmarks.index import COMMANDS, QUESTIONS
from benchmarks.shared.results import running
from benchmarks.shared.tables import table


def main() -> int | None:
    """Run the command that is named first, or list them all."""
    name, *arguments = sys.argv[1:] or ["--list"]
    if name == "--all":
        return everything.main(arguments)
    if name in COMMANDS:
        module = f"benchmarks.{COMMANDS[name].module}"
        with running(name, module, arguments):
            return importlib.import_module(module).main(arguments)
    if name not in ("--list", "--help", "-h"):
        print(f"python -m benchmarks: there is no {name}", file=sys.stderr)
        return 2
    rows = [
        (question, name, c.answers, c.duration, c.result)
        for question, group in QUESTIONS.items()
        for name, c in group.items()
    ]
    header = ("question", "python -m benchmarks …", "answers", "duration", "result")
    print(table(header, rows))
    return None


if __name__ == "__main__":
    sys.exit(main())
