"""A fleet's folder, <home>/<fleet>: where a controller and its clients find each other on one machine.

controller.json says where the controller listens, token (mode 600) is what it wants to hear, controller.log is what
it printed. Written by the controller, read by client and CLI.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tradewind.errors import ConfigError, ControllerError, Problem, Unauthorized


@dataclass(frozen=True, slots=True)
class Announcement:
    """The content of controller.json."""

    url: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True)
class FleetHome:
    root: Path
    fleet: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.fleet):
            found = f"{self.fleet!r} cannot be the name of a folder"
            raise ConfigError([Problem("--fleet", "", found)], "use letters, digits and dashes")

    @property
    def folder(self) -> Path:
        return self.root / self.fleet

    @property
    def controller_file(self) -> Path:
        return self.folder / "controller.json"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def log_file(self) -> Path:
        return self.folder / "controller.log"

    def make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ControllerError(f"cannot make {self.folder}: {error.strerror}", "give another --home") from error

    def make_token(self) -> str:
        """The token of this fleet; a new one if there is none."""
        self.make()
        try:
            handle = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return self.read_token()
        token = secrets.token_urlsafe(32)
        with os.fdopen(handle, "w") as file:
            file.write(token)
        return token

    def read_token(self) -> str:
        """Raises Unauthorized where it is missing, empty, or others may read it."""
        path = self.token_file
        try:
            mode = path.stat().st_mode & 0o777
            token = path.read_text().strip()
        except OSError as error:
            raise Unauthorized(f"cannot read the token {path}: {error.strerror}", "the controller writes it") from error
        if mode & 0o077:
            raise Unauthorized(f"others may read {path} (mode {mode:o})", f"chmod 600 {path}")
        if not token:
            raise Unauthorized(f"{path} is empty", "remove it and start the controller again")
        return token

    def announce(self, url: str, pid: int, version: str) -> None:
        """Tell clients where the controller is. Whole or not at all: it is read at any moment."""
        self.make()
        draft = self.controller_file.with_suffix(f".{pid}.tmp")
        draft.write_text(json.dumps(asdict(Announcement(url, pid, version))))
        draft.replace(self.controller_file)

    def withdraw(self) -> None:
        self.controller_file.unlink(missing_ok=True)

    def announced(self) -> Announcement | None:
        """What controller.json says, if there is one. The controller may have died since."""
        try:
            found = json.loads(self.controller_file.read_text())
            return Announcement(str(found["url"]), int(found["pid"]), str(found["version"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ControllerError(f"cannot read {self.controller_file}: {error}", "remove this file") from error

    def log_size(self) -> int:
        return self.log_file.stat().st_size if self.log_file.exists() else 0

    def log_tail(self, lines: int = 15, after: int = 0) -> str:
        """The last lines of what was written after so many bytes (all of it, where the file was begun anew)."""
        try:
            written = self.log_file.read_bytes()
        except FileNotFoundError:
            return ""
        text = written[after if after <= len(written) else 0 :].decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    @contextmanager
    def starting(self, timeout_s: float) -> Iterator[None]:
        """One start at a time: two notebooks that connect at once get one controller."""
        self.make()
        until_s = time.monotonic() + timeout_s
        with open(self.folder / "start.lock", "w") as file:
            while not _locked(file.fileno()):
                if time.monotonic() > until_s:
                    raise ControllerError("another process is starting this fleet", "wait for it, then try again")
                time.sleep(0.05)
            yield


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def announced_fleets(root: Path) -> list[str]:
    """The fleets under a home that have a controller, or had one that died."""
    return sorted(path.parent.name for path in root.glob("*/controller.json"))


def meant_fleet(place: FleetHome) -> str:
    """The fleet under the same home whose name is nearly this one, running or not; empty: there is none."""
    known = {path.parent.name for file in ("controller.json", "token") for path in place.root.glob(f"*/{file}")}
    near = difflib.get_close_matches(place.fleet, sorted(known - {place.fleet}), n=1)
    return "" if place.fleet in known or not near else near[0]


def pick_fleet(root: Path, wanted: str | None, default: str, is_sure: bool = False) -> str:
    """The one that is asked for, else the only one that runs, else the default. `is_sure`: never by default where
    several run, since what is done to it cannot be undone."""
    if wanted:
        return wanted
    found = announced_fleets(root)
    if len(found) > 1 and (is_sure or default not in found):
        hint = f"say which with --fleet before the command, like `tradewind --fleet {found[0]} ...`"
        raise ControllerError(f"several fleets run: {', '.join(found)}", hint)
    return found[0] if len(found) == 1 else default
