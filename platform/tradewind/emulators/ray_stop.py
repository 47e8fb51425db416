"""`ray stop` of an emulated machine (machines.py puts it on its PATH): ends the Ray of this machine alone."""

from __future__ import annotations

import os

import psutil

from tradewind.autoscaler.providers.local_processes import MARK_ENV, read_mark

_PROGRAMS = ("raylet", "gcs_server", "ray::", "ray/dashboard", "ray/_private", "bin/ray start")


def main() -> None:
    mine = os.environ[MARK_ENV]
    for process in psutil.process_iter(["pid", "cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if read_mark(process.info["pid"]) == mine and any(program in command for program in _PROGRAMS):
            process.terminate()


if __name__ == "__main__":
    main()
