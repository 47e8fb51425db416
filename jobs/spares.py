"""Warm processes for the next worker group: most of a restart is Python importing torch, so it is done beforehand.

Ray's raylets can be asked to start worker processes ahead of time (`PrestartWorkers`). Ours run `warm_up` when they
start, and stay idle until a worker of this job needs a process on that node. Without them everything works the same,
some seconds slower.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

# Ray calls the function that this variable names, in every new worker process of the environment that sets it.
HOOK_ENV = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
KEEP_S = 24 * 3600
RPC_TIMEOUT_S = 10.0
JOB_ENV = "TRADEWIND_SPARE_OF"
KV_NAMESPACE = b"tradewind"
MODULES = ("torch", "torch.distributed", "ray.train.torch", "ray.train.torch.config", "tradewind.jobs.run")


def warm_up() -> None:
    """Runs in a new worker process, before it takes work: imports, and a first step of an optimizer, which has torch
    load half of its compiler."""
    import ray
    from ray.experimental.internal_kv import _internal_kv_put

    for name in MODULES:
        importlib.import_module(name)
    _take_a_step()
    # Through the key-value store: a worker that has no task yet must not call actors (Ray 2.60 aborts the process).
    key = f"{_prefix(os.environ[JOB_ENV])}{ray.get_runtime_context().get_node_id()}/{os.getpid()}"
    _internal_kv_put(key, b"warm", namespace=KV_NAMESPACE)


def count_warm(job_id: str) -> Counter[str]:
    """Processes of a job that have ever become warm, by node."""
    from ray.experimental.internal_kv import _internal_kv_list

    keys = _internal_kv_list(_prefix(job_id), namespace=KV_NAMESPACE)
    return Counter(key.decode().split("/")[-2] for key in keys)


def forget(job_id: str) -> None:
    """Remove what the spares of a job have written."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(_prefix(job_id), del_by_prefix=True, namespace=KV_NAMESPACE)


def _prefix(job_id: str) -> str:
    return f"spare/{job_id}/"


def _take_a_step() -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()


def environment(job_id: str, inherited: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime environment for workers that warm up. A hook that the user has set stays."""
    if HOOK_ENV in inherited.get("env_vars", {}):
        return {}
    return {"env_vars": {HOOK_ENV: f"{__name__}.warm_up", JOB_ENV: job_id}}


@dataclass(frozen=True, slots=True)
class Kind:
    """A spare fits only workers of the same job and environment."""

    job_id: str  # Ray's, hex
    runtime_env: str  # serialized


def expected_kind(job_id: str) -> Kind:
    """What workers will be, before there is one to ask: the environment of this process (an actor or driver of the job)
    with ours on top, written as Ray writes it. A wrong guess costs a process that nobody uses."""
    import ray

    context = ray.get_runtime_context()
    inherited = json.loads(context.get_runtime_env_string() or "{}")
    ours = environment(job_id, inherited)
    merged = inherited | ours | {"env_vars": inherited.get("env_vars", {}) | ours.get("env_vars", {})}
    return Kind(context.get_job_id(), json.dumps(merged, sort_keys=True, separators=(",", ":")))


def order(node: Mapping[str, Any], kind: Kind, count: int) -> None:
    """Ask a node (an entry of `ray.nodes()`) for `count` spares. Returns at once; a refusal is logged."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    request = node_manager_pb2.PrestartWorkersRequest(
        language=common_pb2.Language.PYTHON,
        job_id=bytes.fromhex(kind.job_id),
        keep_alive_duration_secs=KEEP_S,
        num_workers=count,
    )
    request.runtime_env_info.serialized_runtime_env = kind.runtime_env
    answer = node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers.future(
        request, timeout=RPC_TIMEOUT_S
    )

    def done(call: Any) -> None:
        if call.exception() is not None:
            logger.info("no spare process on %s: %s", node["NodeManagerAddress"], call.exception())
        channel.close()

    answer.add_done_callback(done)


def wanted(
    held: Mapping[str, int], free: Mapping[str, int], have: Mapping[str, int], settled: bool, limit: int
) -> dict[str, int]:
    """Spares to ask for, by node: one for each worker there, once the group has settled; on nodes that the group does
    not use yet, as many as could go there. Pure."""
    need = {node: min(count, limit) for node, count in free.items() if node not in held}
    if settled:
        need |= dict(held)
    return {node: count - have.get(node, 0) for node, count in need.items() if count > have.get(node, 0)}
