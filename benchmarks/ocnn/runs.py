"""A folder of runs: its configuration, and of each run the records and a checkpoint.

::

    DIR/configuration.json          what all runs have in common, and the environment
    DIR/METHOD/seed-N/run.json      the method's settings
    DIR/METHOD/seed-N/records.jsonl one line for each epoch
    DIR/METHOD/seed-N/checkpoint    the state after the last of them, until it is done
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import serialization

from benchmarks.ocnn.measuring import Record
from benchmarks.shared.results import environment

T = TypeVar("T")


class FolderError(ValueError):
    """The folder holds something else; the message is one line."""


class Run:
    """One method with one seed.

    Args:
        path: Its folder.
    """

    def __init__(self, path: Path):
        self.path = path

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.path.parent.name

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.path.name.removeprefix("seed-"))

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings, and the seconds of compilation."""
        return json.loads((self.path / "run.json").read_text("utf-8"))

    def records(self) -> list[Record]:
        """Those of the epochs so far."""
        file = self.path / "records.jsonl"
        if not file.exists():
            return []
        lines = file.read_text("utf-8").splitlines()
        # JSON knows no NaN, which a diverged run is full of.
        rows = [json.loads(line) for line in lines]
        return [Record._make(_number(row[k]) for k in Record._fields) for row in rows]

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write down how it is run, or see that it is run in the same way."""
        if (self.path / "run.json").exists():
            found = {k: v for k, v in self.settings.items() if k in settings}
            if found != settings:
                raise FolderError(
                    f"{self.path} holds a run with {_words(found)}; this one would "
                    f"have {_words(settings)}: choose another --out"
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self.path / "run.json", _json(dict(settings)))

    def note(self, **more: Any) -> None:
        """Add to the settings what is known only later."""
        _write(self.path / "run.json", _json({**self.settings, **more}))

    def save(self, records: list[Record], state: Any) -> None:
        """Write the records and the state after them.

        The checkpoint has the records too, so that a run that is stopped between the
        two files loses nothing.
        """
        content = {
            "records": [list(record) for record in records],
            "state": serialization.to_state_dict(state),
        }
        _write(self.path / "checkpoint", serialization.msgpack_serialize(content))
        lines = [_line(record) for record in records]
        _write(self.path / "records.jsonl", "".join(lines).encode())

    def restore(self, state: T) -> tuple[list[Record], T]:
        """The records, and the state after the last of them.

        Args:
            state: One of the same structure; returned if there is no checkpoint.
        """
        file = self.path / "checkpoint"
        if not file.exists():
            return [], state
        content: Any = serialization.msgpack_restore(file.read_bytes())
        restored = serialization.from_state_dict(state, content["state"])
        records = [Record._make(row) for row in content["records"]]
        return records, jax.tree.map(jnp.asarray, restored)

    def finish(self) -> None:
        """Remove the checkpoint."""
        (self.path / "checkpoint").unlink(missing_ok=True)


def open_folder(path: Path, configuration: Mapping[str, Any], *, resume: bool) -> None:
    """Make the folder, or see that it is one of this configuration.

    Raises:
        FolderError: If it holds anything else, or runs that are not to be resumed.
    """
    file = path / "configuration.json"
    if not file.exists():
        if path.exists() and any(path.iterdir()):
            raise FolderError(f"{path} is not empty and no folder of runs")
        path.mkdir(parents=True, exist_ok=True)
        content = {"configuration": dict(configuration), **environment()}
        _write(file, _json(content))
        return
    found = read_configuration(path)["configuration"]
    if found != json.loads(json.dumps(dict(configuration))):
        different = [k for k in configuration if found.get(k) != configuration[k]]
        raise FolderError(
            f"{path} holds runs of another configuration, with "
            f"{_words({k: found.get(k) for k in different})}: choose another --out"
        )
    if not resume:
        raise FolderError(
            f"{path} holds runs of this configuration: add --resume to go on with "
            "them, or choose another --out"
        )


def read_configuration(path: Path) -> dict[str, Any]:
    """The configuration of a folder, and the environment in which it was begun.

    Raises:
        FolderError: If it is no folder of runs.
    """
    file = path / "configuration.json"
    if not file.is_file():
        raise FolderError(f"{path} is no folder of runs: it has no {file.name}")
    return json.loads(file.read_text("utf-8"))


def find_runs(path: Path) -> Iterator[Run]:
    """The runs in a folder that have records."""
    for file in sorted(path.glob("*/seed-*/records.jsonl")):
        yield Run(file.parent)


def _number(value):
    return math.nan if value is None else value


def _line(record):
    row = {
        name: value if math.isfinite(value) else None
        for name, value in record._asdict().items()
    }
    return json.dumps(row, allow_nan=False) + "\n"


def _json(content):
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _words(settings):
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _write(file, content):
    """All of it or nothing: a kill must not leave half a file."""
    part = file.with_name(file.name + ".part")
    part.write_bytes(content)
    part.replace(file)
