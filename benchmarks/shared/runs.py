"""Records of runs as lines of JSON, so that a stopped command goes on where it was."""

import json
from pathlib import Path
from typing import Any


class Runs:
    """A file of records."""

    def __init__(self, path: Path):
        self.path = path
        text = path.read_text("utf-8") if path.exists() else ""
        # A last line without its end was cut by a kill: it is done again.
        lines = [line for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        self.records: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if "".join(lines) != text:
            path.write_text("".join(lines), "utf-8")

    def find(self, **keys: Any) -> list[dict[str, Any]]:
        """The records with these values."""
        wanted = keys.items()
        return [r for r in self.records if all(r[k] == v for k, v in wanted)]

    def add(self, record: dict[str, Any]) -> None:
        """Keep a record."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)
