"""A secret store in a folder: for machines that share a disk, as on the local cloud and in tests.

Each secret is a file of mode 600, which is all its protection: like any file, the machine's own user can read it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from tradewind.errors import NotFound


class FolderSecrets:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def put(self, name: str, text: str) -> None:
        draft = self.folder / f".{os.getpid()}.{secrets.token_hex(4)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        draft.replace(self._path(name))

    def get(self, name: str) -> str:
        try:
            return self._path(name).read_text()
        except FileNotFoundError as error:
            raise NotFound(f"there is no secret {name}", "the controller writes it before it launches") from error

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def list(self, prefix: str) -> Sequence[str]:
        names = (unquote(path.name[2:]) for path in self.folder.glob("s-*"))
        return sorted(name for name in names if name.startswith(prefix))

    def _path(self, name: str) -> Path:
        """A name may have slashes; a file of it lies in this folder all the same."""
        return self.folder / f"s-{quote(name, safe='')}"
