"""What a machine must know to become a node, and the user-data that brings it there. Pure.

The controller makes a plan for each launch; the provider hands its text to the cloud; cloud-init (or Google's startup
script) runs it as root. No secret stands in it: whoever may see the machine's description may see its user-data. The
same plan gives the same text, since a repeated launch must be the same request.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, Self

from pydantic import TypeAdapter, ValidationError

from tradewind import __version__
from tradewind.errors import ConfigError, InvalidRequest, Problem

Role = Literal["head", "worker"]
FAILED = "TRADEWIND BOOT FAILED"  # what to look for in a console
TOLD = 75  # exit status of a node that has said why it ends, and has shut down
MAX_BYTES = 16 * 1024  # AWS; the others take more
DEFAULT_INSTALL = f"tradewind=={__version__}"


@dataclass(frozen=True, slots=True)
class BootPlan:
    """All that a node must know, and no secrets."""

    fleet: str
    cell: str
    launch_id: str
    cloud: str
    region: str
    role: Role
    secret: str  # its name in the cloud's secret store
    ca_pem: str  # of the cell
    head_address: str = ""  # worker: of the GCS, "10.0.0.4:6379"
    join_url: str = ""  # worker: the join desk, "https://10.0.0.4:8441"
    controller_url: str = ""  # head: the agents' door; empty: a head that nobody calls for
    controller_ca_pem: str = ""  # head: whom to trust there
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)  # beside CPUs and GPUs
    num_cpus: float | None = None  # None: what Ray finds
    num_gpus: float | None = None
    memory_bytes: int | None = None
    python: str = ""  # an interpreter that has Ray and tradewind; empty: found or installed
    install: str = DEFAULT_INSTALL  # pip requirements where tradewind is not found, with blanks between them
    setup: tuple[str, ...] = ()  # the user's own commands, each in a shell of its own, before all else
    dead_man_s: float = 900.0  # so long without its head (worker) or its controller (head): it shuts down
    storage: str = ""  # where checkpoints go: s3://..., gs://..., abfs://..., or a folder
    tpu: Mapping[str, str] = field(default_factory=dict)  # what Ray must know of a slice (autoscaler/slices.py)
    # What the machine cannot find by itself: "vault" (Azure), "project" (GCP); and of emulators, where its services
    # are: "metadata", "secrets", "ca_file", "address".
    endpoints: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        needed = ("head_address", "join_url") if self.role == "worker" else ()
        missing = [
            name for name in ("fleet", "cell", "launch_id", "secret", "ca_pem", *needed) if not getattr(self, name)
        ]
        if missing:
            raise ConfigError([Problem("boot plan", name, "is empty") for name in missing], "the controller sets it")

    def to_json(self) -> str:
        """One line, in ASCII, keys in order."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            problems = [Problem("boot plan", ".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
            raise ConfigError(problems, "controller and node may be of different versions") from error


def user_data(plan: BootPlan) -> str:
    """A bash script for cloud-init. Raises InvalidRequest when it is too long for AWS."""
    told = replace(plan, setup=())  # they stand in the script itself
    text = _SCRIPT.format(
        failed=FAILED,
        told=TOLD,
        title=_comment(f"{plan.role} {plan.launch_id} of {plan.fleet}/{plan.cell}"),
        # One line of JSON cannot be the line that ends the text, whatever stands in it.
        plan=told.to_json(),
        dead_man_s=max(60, round(plan.dead_man_s)),
        setup="\n".join(f"setup {shlex.quote(command)}" for command in plan.setup),
        python=shlex.quote(plan.python),
        install=" ".join(shlex.quote(each) for each in plan.install.split()) or "''",
    )
    if "\0" in text:
        raise InvalidRequest("the boot plan has a NUL sign in it", "take it out of `boot:` in the fleet file")
    if (size := len(text.encode())) > MAX_BYTES:
        hint = "put long set-up commands into the image, or into a script that a command fetches"
        raise InvalidRequest(f"user-data has {size} bytes, more than the {MAX_BYTES} that AWS takes", hint)
    return text


def failure_in(console: str) -> str:
    """Why a machine says that it did not come up, by what its console shows; empty: it does not say so."""
    found = [line.partition(f"{FAILED}: ")[2].strip() for line in console.splitlines() if f"{FAILED}: " in line]
    return found[-1] if found else ""


def _comment(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


# The timer is armed first: whatever hangs after it, nobody pays for the machine for long. Its mark is the file `up`,
# which the node writes once Ray runs. Output goes to the machine's console: cloud-init and Google's startup scripts
# run with their output on it. The shell stays: should the node's process be killed, it ends the machine.
_SCRIPT = """#!/bin/bash
# Tradewind: {title}
set -u
umask 077
export HOME="${{HOME:-/root}}" PYTHONUNBUFFERED=1
export TRADEWIND_NODE_DIR="${{TRADEWIND_NODE_DIR:-$HOME/.tradewind-node}}"
mkdir -p "$TRADEWIND_NODE_DIR" && cd "$TRADEWIND_NODE_DIR" && rm -f up || exit 1

fail() {{
  echo "{failed}: $1"
  shutdown -h now
  exit 1
}}

( sleep {dead_man_s}; [ -e up ] || fail "not up after {dead_man_s} s" ) < /dev/null &

cat > plan.json <<'TRADEWIND_PLAN'
{plan}
TRADEWIND_PLAN

setup() {{
  echo "tradewind: set-up: $1"
  bash -c "$1" < /dev/null || fail "set-up command ended with status $?: $1"
}}
{setup}

has() {{
  "$1" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("ray") and u.find_spec("tradewind")))'
}} 2> /dev/null
new_enough() {{ "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }} 2> /dev/null

python={python}
if [ -z "$python" ]; then
  for each in "$TRADEWIND_NODE_DIR/venv/bin/python" python3.13 python3.12 python3.11 python3 python; do
    if has "$each"; then python="$each"; break; fi
  done
fi
if [ -z "$python" ]; then
  for each in python3.11 python3.12 python3.13 python3; do
    if new_enough "$each"; then
      "$each" -m venv "$TRADEWIND_NODE_DIR/venv" || fail "$each cannot make a venv (the image lacks python3-venv)"
      python="$TRADEWIND_NODE_DIR/venv/bin/python"
      break
    fi
  done
  [ -n "$python" ] || fail "the image has no Python 3.11 or newer (choose another, or install it in boot.setup)"
fi
if ! has "$python"; then
  echo "tradewind: installing with $python"
  "$python" -m pip install --quiet --disable-pip-version-check {install} || fail "cannot install tradewind with $python"
fi
"$python" -m tradewind.node boot --plan plan.json &
node=$!
trap 'kill -TERM "$node"' TERM INT
wait "$node"; status=$?  # once in any case: it may be over already
while kill -0 "$node" 2> /dev/null; do wait "$node"; status=$?; done
case $status in
  0|{told}) ;;
  *) fail "the node's process ended with status $status" ;;
esac
"""
