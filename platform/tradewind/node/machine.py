"""This machine: its folder, environment, address and secret store, and its end. The edge that boot.py stands on.

A machine's private address comes from its cloud's metadata service: with several network cards, or on an emulated
machine, the address of the way out would be another one.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tradewind.autoscaler.providers.secrets import SecretStore, open_secrets
from tradewind.errors import InvalidRequest, RayError, Transient
from tradewind.node.boot_plan import BootPlan
from tradewind.node.folder_secrets import FolderSecrets

log = logging.getLogger(__name__)

_LINK_LOCAL = "http://169.254.169.254"
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Machine:
    folder: Path  # private to the node; token and key lie here
    env: Mapping[str, str]

    @classmethod
    def here(cls) -> Machine:
        env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}  # of some other cluster
        folder = Path(env.get("TRADEWIND_NODE_DIR") or Path.home() / ".tradewind-node")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        return cls(folder, env)

    @property
    def temp_folder(self) -> Path:
        """Of Ray. Short: its sockets lie below, and their paths are limited."""
        return Path(self.env.get("TMPDIR") or "/tmp") / "ray"

    def address(self, plan: BootPlan) -> str:
        """The one that other nodes reach it by."""
        if given := plan.endpoints.get("address"):
            return given
        if plan.cloud in ("aws", "gcp", "azure"):
            found = _METADATA[plan.cloud](self._metadata_url(plan))
        else:
            found = _way_out(plan.head_address or urlsplit(plan.controller_url).netloc)
        try:
            return str(ip_address(found.strip()))
        except ValueError as error:
            raise InvalidRequest(f"the metadata service names no address: {found[:80]!r}") from error

    def _metadata_url(self, plan: BootPlan) -> str:
        """Where the vendors' own SDKs look, too."""
        if given := plan.endpoints.get("metadata"):
            return given.rstrip("/")
        if plan.cloud == "aws":
            return self.env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _LINK_LOCAL).rstrip("/")
        if plan.cloud == "gcp":
            return f"http://{self.env.get('GCE_METADATA_HOST', 'metadata.google.internal')}"
        return self.env.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", _LINK_LOCAL).rstrip("/")

    def tpu_env(self, plan: BootPlan) -> dict[str, str]:
        """What Ray makes labels and resources of. All hosts of a slice boot by one text: only the machine itself
        knows its number among them."""
        if not plan.tpu:
            return {}
        base = self._metadata_url(plan)
        number = _gcp(base, "instance/attributes/agent-worker-number") if plan.cloud == "gcp" else "0"
        return {**plan.tpu, "TPU_NAME": plan.launch_id, "TPU_WORKER_ID": number.strip()}

    @property
    def start_lock(self) -> str:
        """Emulated machines share one kernel, where Ray's nodes must not start at the same time."""
        return self.env.get("TRADEWIND_START_LOCK", "")

    def secrets(self, plan: BootPlan) -> SecretStore:
        where = plan.endpoints.get("secrets", "")
        if where.startswith("file:"):
            return FolderSecrets(Path(urlsplit(where).path))
        return open_secrets(
            plan.cloud,
            plan.region,
            project=plan.endpoints.get("project") or self._project(plan),
            vault_url=plan.endpoints.get("vault", ""),
            endpoint_url=where,
            ca_file=plan.endpoints.get("ca_file", ""),  # an emulator's
        )

    def _project(self, plan: BootPlan) -> str:
        return _gcp(self._metadata_url(plan), "project/project-id").strip() if plan.cloud == "gcp" else ""

    def adopt(self, env: Mapping[str, str]) -> None:
        """For this process, too: what speaks to Ray takes its token and certificate from the environment."""
        os.environ.update(env)

    def shut_down(self) -> None:
        """Ends the machine; where the cloud is told so at the launch, ended means deleted."""
        done = subprocess.run(["shutdown", "-h", "now"], check=False)
        if done.returncode:
            log.error("shutdown ended with status %d", done.returncode)


def _aws_address(base: str) -> str:
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask("PUT", f"{base}/latest/api/token", ttl)
    return _ask("GET", f"{base}/latest/meta-data/local-ipv4", {"X-aws-ec2-metadata-token": token})


def _gcp_address(base: str) -> str:
    return _gcp(base, "instance/network-interfaces/0/ip")


def _gcp(base: str, path: str) -> str:
    return _ask("GET", f"{base}/computeMetadata/v1/{path}", {"Metadata-Flavor": "Google"})


def _azure_address(base: str) -> str:
    path = "metadata/instance/network/interface/0/ipv4/ipAddress/0/privateIpAddress"
    return _ask("GET", f"{base}/{path}?api-version=2021-02-01&format=text", {"Metadata": "true"})


_METADATA = {"aws": _aws_address, "gcp": _gcp_address, "azure": _azure_address}


def _ask(method: str, url: str, headers: Mapping[str, str]) -> str:
    try:
        # A proxy must not be asked for what is this machine's own; plain HTTP needs no authorities, which load slowly.
        with httpx.Client(trust_env=False, verify=url.startswith("https:"), timeout=_TIMEOUT_S) as client:
            return client.request(method, url, headers=dict(headers)).raise_for_status().text
    except httpx.HTTPError as error:
        raise Transient(f"the metadata service does not answer: {method} {url}: {error}") from error


def _way_out(towards: str) -> str:
    """The address of this machine on the way to another; nothing is sent."""
    host, _, port = towards.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host or towards, int(port) if port.isdigit() else 443))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RayError(f"there is no way from here to {towards}: {error}", "check network and head_address") from error
