"""A job's working folder on its way to a cell: packed once, named by what is in it, fetched by the head.

What Ray leaves out of an upload is left out here, too: .git, virtual environments, and what .gitignore and .rayignore
name. The same files give the same digest, so that a job that moves, or comes back, sends nothing twice.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tradewind.errors import ConfigError, Problem

DIGEST_SCHEME = "tradewind-folder:"  # + digest: stands for the folder until the head has it
MAX_BYTES = 256 * 2**20  # Ray itself takes 512 MiB; data belongs into storage
MAX_FILES = 20_000
ALWAYS_OUT = (".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".ruff_cache")
IGNORE_FILES = (".gitignore", ".rayignore")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip knows: times must not change the digest


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of an ignore file, from the folder that it stands in."""

    base: str  # "" or "src/"
    pattern: str
    keeps: bool = False  # "!..."
    folders_only: bool = False
    anchored: bool = False

    @classmethod
    def parse(cls, line: str, base: str) -> _Rule | None:
        text = line.rstrip("\n").strip()
        if not text or text.startswith("#"):
            return None
        keeps, text = text.startswith("!"), text.removeprefix("!")
        folders_only, text = text.endswith("/"), text.rstrip("/")
        anchored = "/" in text
        return cls(base, text.removeprefix("/"), keeps, folders_only, anchored) if text else None

    def is_about(self, path: str, is_folder: bool) -> bool:
        if (self.folders_only and not is_folder) or not path.startswith(self.base):
            return False
        inside = path[len(self.base) :]
        if self.anchored:
            return _match(inside.split("/"), self.pattern.split("/"))
        return fnmatch.fnmatchcase(inside.rpartition("/")[2], self.pattern)


def _match(path: list[str], pattern: list[str]) -> bool:
    """`**` stands for any number of folders."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_match(path[skip:], pattern[1:]) for skip in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _match(path[1:], pattern[1:])


def _is_out(path: str, is_folder: bool, rules: tuple[_Rule, ...]) -> bool:
    """The last rule that is about it decides."""
    if path.rpartition("/")[2] in ALWAYS_OUT:
        return True
    told = [rule for rule in rules if rule.is_about(path, is_folder)]
    return bool(told) and not told[-1].keeps


def files_of(folder: Path, base: str = "", rules: tuple[_Rule, ...] = ()) -> Iterator[tuple[str, Path]]:
    """(name in the folder, path), in order of names. Links are followed to files, not to folders."""
    for name in IGNORE_FILES:
        ignore = folder / name
        if ignore.is_file():
            lines = ignore.read_text(errors="replace").splitlines()
            rules = (*rules, *(rule for line in lines if (rule := _Rule.parse(line, base)) is not None))
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name, is_folder = f"{base}{entry.name}", entry.is_dir(follow_symlinks=False)
        if _is_out(name, is_folder, rules):
            continue
        if is_folder:
            yield from files_of(Path(entry.path), f"{name}/", rules)
        elif entry.is_file():
            yield name, Path(entry.path)


def pack_folder(folder: Path, into: Path) -> str:
    """The digest; `into`/DIGEST.zip is there when this returns. Raises ConfigError for a folder that is too large."""
    files = list(files_of(folder))
    size = sum(path.stat().st_size for _, path in files)
    if size > MAX_BYTES or len(files) > MAX_FILES:
        found = f"{len(files)} files of {size / 2**20:.0f} MiB"
        message = f"{folder} holds {found}; at most {MAX_FILES} files of {MAX_BYTES // 2**20} MiB are sent to a cell"
        raise ConfigError([Problem("job", "working_dir", message)], "name what is not needed in a .rayignore")
    into.mkdir(parents=True, exist_ok=True)
    digest, aside = hashlib.sha256(), into / f".{os.getpid()}-{os.urandom(4).hex()}.part"
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as packed:
            for name, path in files:
                content, mode = path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644
                for part in (name.encode(), oct(mode).encode(), hashlib.sha256(content).digest()):
                    digest.update(len(part).to_bytes(8, "big") + part)
                info = zipfile.ZipInfo(name, _EPOCH)
                info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
                packed.writestr(info, content)
        name = digest.hexdigest()[:32]
        aside.replace(into / f"{name}.zip")
    finally:
        aside.unlink(missing_ok=True)
    return name


def fetch_folder(http: httpx.Client, digest: str, into: Path) -> Path:
    """On the head: from the controller, unless it is there already."""
    path = into / f"{digest}.zip"
    if path.exists():
        return path
    into.mkdir(parents=True, exist_ok=True)
    aside = into / f".{os.urandom(4).hex()}.part"
    try:
        with http.stream("GET", f"folders/{digest}") as response, aside.open("wb") as file:
            if not response.is_success:
                raise RuntimeError(f"the controller has no folder {digest}: status {response.status_code}")
            for piece in response.iter_bytes():
                file.write(piece)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path
