"""The house rules that no type checker holds: who may import whom, and where the outside world may be touched.

Every file is parsed, so that imports inside functions count, too. Each rule is a function from a file to what is wrong
with it, and is itself tried on a file that breaks it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("autoscaler", "cost", "jobs")
VALUES = frozenset({"model", "events", "units", "errors", "states"})
MAX_LINES = 450

# Files that may touch what others may not, and why.
PRIVATE_RAY = {
    "autoscaler/ray_state.py": "the state of the cluster has no public API",
    "jobs/ray_train.py": "Ray Train's controller is extended from inside",
    "jobs/ray_record.py": "Ray Train's record of checkpoints is mended before it is read",
    "jobs/ray_group.py": "Ray Train's worker group is extended from inside",
    "jobs/cluster_view.py": "draining nodes have no public API",
    "platform/tradewind/clouds/ray_provider.py": "extends the node provider of Ray's own launcher",
    "benchmarks/planning/peers.py": "runs Ray's schedulers as peers",
    "jobs/spares.py": "worker processes are started ahead of time by a call that only Ray itself uses",
}
ENVIRONMENT = {
    "platform/tradewind/config.py": "the one place that reads settings",
    "platform/tradewind/service.py": "hands the head's token to Ray, which takes it from nowhere else",
    "autoscaler/providers/raylets.py": "passes the environment on to the processes that it starts",
    "platform/tradewind/node/machine.py": "a machine's environment is what its image and its cloud say of it",
    "platform/tradewind/emulators/machines.py": "passes what is harmless on to the machines that it boots",
    "platform/tradewind/emulators/ray_stop.py": "learns to which emulated machine it belongs",
    "jobs/examples/jax_slice.py": "a user's program: learns its job id and its storage as any other does",
    "platform/tradewind/node/watch.py": "finds the metadata service where the vendors' SDKs find it",
    "jobs/trainer.py": "learns its job id, which the controller sets for the entrypoint",
    "jobs/ray_train.py": "sets Ray Train's own switches",
    "jobs/spares.py": "learns its job id in a process that has no task yet",
}
PRINTING = ("platform/tradewind/cli", "platform/tradewind/demo", "jobs/examples/", "benchmarks/", "tests/")
# Modules of the package that stand below the controller, and what they may import beside the values.
LOW = {
    "store": frozenset[str](),
    "config": frozenset({"config_models", "config_ray", "config_types", "config_yaml"}),
    "config_ray": frozenset({"config_yaml"}),
    "config_models": frozenset({"config", "config_clouds", "config_types"}),
    "config_clouds": frozenset({"config_types"}),
    "config_types": frozenset[str](),
    "config_yaml": frozenset({"config_types"}),
}


@dataclass(frozen=True)
class Source:
    path: str  # relative to the root
    tree: ast.Module
    lines: int = 0

    @property
    def top(self) -> str:
        return self.path.split("/")[0]

    @property
    def module(self) -> str:
        """The dotted name inside of `tradewind`: "store", "cost.ledger"."""
        return self.path.removeprefix("platform/tradewind/").removesuffix(".py").replace("/", ".")

    @property
    def package(self) -> list[str]:
        """Where its relative imports start."""
        parts = ["tradewind", *self.module.split(".")]
        return parts[:-1]


def source(path: str, text: str) -> Source:
    return Source(path, ast.parse(text), text.count("\n"))


def files() -> Iterator[Path]:
    for top in ("platform", *FOLDERS, "tests", "benchmarks"):
        for folder, _, names in os.walk(ROOT / top):  # does not follow the three links
            yield from (Path(folder) / name for name in names if name.endswith(".py"))


SOURCES = [source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted(files())]


def imports(of: Source) -> Iterator[str]:
    """Every name that is imported, with what is taken from it: `from a import b` gives "a.b"."""
    for node in ast.walk(of.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*of.package[: len(of.package) - node.level + 1]] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in (
            "importlib.import_module",
            "import_module",
            "__import__",
        ):
            yield from (
                arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )


def _name(node: ast.AST) -> str:
    """`a.b.c` of an expression, or ""."""
    if isinstance(node, ast.Attribute):
        inner = _name(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def attributes(of: Source) -> Iterator[str]:
    yield from (_name(node) for node in ast.walk(of.tree) if isinstance(node, ast.Attribute))


def ours(of: Source) -> Iterator[str]:
    """The modules of our package that it imports: "model", "cost.ledger", "" for the package itself."""
    for name in imports(of):
        if name == "tradewind" or name.startswith("tradewind."):
            yield name.removeprefix("tradewind").removeprefix(".")


# --- the rules -------------------------------------------------------------------------------------------------


def wrong_direction(of: Source) -> list[str]:
    if of.top in ("tests", "benchmarks") or of.path.startswith("jobs/examples/"):
        return []  # they stand where users stand
    allowed: frozenset[str] | set[str]
    if of.top in FOLDERS:
        allowed = VALUES | {of.top}
    elif of.module in VALUES:
        allowed = VALUES
    elif of.module in LOW:
        allowed = VALUES | LOW[of.module]
    else:
        return []
    return [f"imports tradewind.{name}" for name in ours(of) if name.split(".")[0] not in allowed]


def bare_folder(of: Source) -> list[str]:
    return [f"imports {name}: write tradewind.{name}" for name in imports(of) if name.split(".")[0] in FOLDERS]


def private_ray(of: Source) -> list[str]:
    if of.path in PRIVATE_RAY or of.top == "tests":
        return []
    return [f"uses {name}" for name in (*imports(of), *attributes(of)) if _is_private_ray(name)]


def _is_private_ray(name: str) -> bool:
    first, *rest = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in rest)
    return first == "ray" and (hidden or rest[:1] == ["autoscaler"] or rest[:2] == ["core", "generated"])


def environment(of: Source) -> list[str]:
    if of.path in ENVIRONMENT or of.top in ("tests", "benchmarks"):
        return []
    touched = ("os.environ", "os.getenv", "os.putenv", "os.environb")
    return [f"uses {name}" for name in (*imports(of), *attributes(of)) if name in touched]


def printing(of: Source) -> list[str]:
    if of.path.startswith(PRINTING):
        return []
    calls = (node for node in ast.walk(of.tree) if isinstance(node, ast.Call))
    return [f"prints in line {node.lineno}" for node in calls if _name(node.func) == "print"]


def too_long(of: Source) -> list[str]:
    """Tests are lists of cases, which do not get harder to read by their number."""
    return [f"has {of.lines} lines; at most {MAX_LINES}"] if of.lines > MAX_LINES and of.top != "tests" else []


def swallowed(of: Source) -> list[str]:
    """`except Exception: pass`, which hides defects."""
    found = (node for node in ast.walk(of.tree) if isinstance(node, ast.ExceptHandler))
    silent = (node for node in found if all(isinstance(line, ast.Pass) for line in node.body))
    broad = (node for node in silent if node.type is None or _name(node.type) in ("Exception", "BaseException"))
    return [f"swallows every error in line {node.lineno}" for node in broad]


RULES = (wrong_direction, bare_folder, private_ray, environment, printing, too_long, swallowed)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds_everywhere(rule: Callable[[Source], list[str]]) -> None:
    assert [f"{each.path}: {wrong}" for each in SOURCES for wrong in rule(each)] == []


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (wrong_direction, "cost/x.py", "from tradewind.autoscaler import fleet"),
        (wrong_direction, "jobs/x.py", "def f():\n    import tradewind.controller"),
        (wrong_direction, "autoscaler/policies/x.py", "from ...cost import ledger"),
        (wrong_direction, "autoscaler/x.py", "from tradewind import client"),
        (wrong_direction, "cost/x.py", "import importlib\nimportlib.import_module('tradewind.jobs.run')"),
        (wrong_direction, "platform/tradewind/model.py", "from tradewind.store import EventLog"),
        (wrong_direction, "platform/tradewind/store.py", "from tradewind.config import Settings"),
        (bare_folder, "tests/x.py", "from cost.ledger import Ledger"),
        (bare_folder, "platform/tradewind/x.py", "import autoscaler"),
        (private_ray, "jobs/x.py", "from ray._private import state"),
        (private_ray, "jobs/x.py", "from ray import _raylet"),
        (private_ray, "jobs/x.py", "import ray\nray._private.worker.global_worker"),
        (private_ray, "platform/tradewind/x.py", "from ray.core.generated import gcs_pb2"),
        (private_ray, "cost/x.py", "import ray.autoscaler.v2.sdk"),
        (private_ray, "jobs/x.py", "from ray.train.v2._internal.util import x"),
        (environment, "cost/x.py", "import os\nos.environ['A']"),
        (environment, "jobs/x.py", "from os import getenv"),
        (printing, "cost/x.py", "print(1)"),
        (too_long, "cost/x.py", "\n" * (MAX_LINES + 1)),
        (swallowed, "cost/x.py", "try:\n    f()\nexcept Exception:\n    pass"),
        (swallowed, "cost/x.py", "try:\n    f()\nexcept:\n    pass"),
    ],
)
def test_the_rule_sees_what_breaks_it(rule: Callable[[Source], list[str]], path: str, text: str) -> None:
    assert rule(source(path, text)) != []


def test_the_rules_let_through_what_is_right() -> None:
    right = source(
        "autoscaler/policies/x.py",
        "import ray, tradewind.model\nfrom tradewind.autoscaler.plan import Plan\nfrom . import buy\n",
    )
    assert [wrong for rule in RULES for wrong in rule(right)] == []


def test_every_exception_is_still_needed() -> None:
    there = {each.path: each for each in SOURCES}
    for path in (path for path in ENVIRONMENT if path in there):
        renamed = Source("platform/tradewind/other.py", there[path].tree)
        assert environment(renamed), f"{path} no longer touches the environment: take it off the list"
    for path in (path for path in PRIVATE_RAY if path in there):
        renamed = Source("platform/tradewind/other.py", there[path].tree)
        assert private_ray(renamed), f"{path} no longer touches Ray's private modules: take it off the list"


# --- the layout ------------------------------------------------------------------------------------------------


def test_every_folder_was_looked_at() -> None:
    found = {each.path for each in SOURCES}
    assert {"platform/tradewind/model.py", "autoscaler/fleet.py", "cost/__init__.py", "jobs/__init__.py"} <= found


def test_platform_is_no_package() -> None:
    """An `__init__.py` there would replace the standard library's `platform` for everyone who works in this folder."""
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_the_standard_library_keeps_its_platform() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import platform; platform.system(); print(platform.__file__)"
    for arguments in ([sys.executable, "-c", code, str(ROOT)], [sys.executable, "-c", code, ""]):
        found = subprocess.check_output(arguments, cwd=ROOT, text=True).strip()
        assert not Path(found).is_relative_to(ROOT / "platform")
        assert found.endswith("platform.py")


@pytest.mark.parametrize("name", FOLDERS)
def test_the_package_reaches_the_folder_by_a_relative_link(name: str) -> None:
    link = ROOT / "platform" / "tradewind" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{name}"
    assert link.resolve() == ROOT / name


def test_values_and_log_load_without_the_heavy_ones() -> None:
    code = """
import sys
import tradewind.events, tradewind.store, tradewind.config_models, tradewind.autoscaler.fleet
print({"ray", "torch", "fastapi", "rich", "click", "boto3"} & set(sys.modules))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
