"""Google's Secret Manager and Azure's Key Vault behind the seam, against the emulators: as AWS does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.autoscaler.providers.secrets_azure import AzureSecrets
from tradewind.autoscaler.providers.secrets_gcp import GcpSecrets
from tradewind.emulators.azure import AzureEmulator, Token
from tradewind.emulators.gcp import GcpEmulator
from tradewind.errors import AuthError, InvalidRequest, NotFound, Transient, Unsupported

NODE, HEAD = "tradewind/f/c-1/node", "tradewind/f/c-1/head"


@dataclass
class Site:
    cloud: str
    emulator: Any
    store: Any
    node: SecretStore  # by the identity of a node

    def deny_reading(self) -> None:
        denied = "secretmanager.versions.access" if self.cloud == "gcp" else "vaults/secrets/GET"
        self.emulator.faults.denied.add(denied)


def _gcp() -> Site:
    from google.oauth2.credentials import Credentials

    emulator = GcpEmulator(page_size=5).start()
    node = Credentials(emulator._account_token("nodes@emulated"))
    store = GcpSecrets("emulated", emulator.url, credentials=emulator.credentials())
    return Site("gcp", emulator, store, GcpSecrets("emulated", emulator.url, credentials=node))


def _azure() -> Site:
    emulator = AzureEmulator(page_size=5).start()
    store = AzureSecrets(emulator.url, credential=emulator.credential(), ca_file=emulator.ca_file)
    identity = Token(emulator._identity_token("tradewind-node"))
    return Site("azure", emulator, store, AzureSecrets(emulator.url, credential=identity, ca_file=emulator.ca_file))


@pytest.fixture(scope="module", params=[_gcp, _azure], ids=["gcp", "azure"])
def opened(request: pytest.FixtureRequest) -> Iterator[Site]:
    site: Site = request.param()
    yield site
    site.emulator.close()


@pytest.fixture
def site(opened: Site) -> Site:
    opened.emulator.vault.secrets.clear()
    opened.emulator.faults.denied.clear()
    opened.emulator.faults.broken = 0
    return opened


def test_what_is_put_is_there(site: Site) -> None:
    for text in ("one", "one", "two"):
        site.store.put(NODE, text)
        assert site.store.get(NODE) == text


def test_what_is_not_there_is_not_found_and_deleting_it_is_done(site: Site) -> None:
    with pytest.raises(NotFound):
        site.store.get(NODE)
    site.store.delete(NODE)


def test_a_deleted_secret_is_gone_and_its_name_can_be_used_again(site: Site) -> None:
    site.store.put(NODE, "one")
    site.store.delete(NODE)
    site.store.delete(NODE)
    with pytest.raises(NotFound):
        site.store.get(NODE)
    assert site.store.list("tradewind/") == []
    assert not site.emulator.vault.secrets
    site.store.put(NODE, "two")
    assert site.store.get(NODE) == "two"


def test_lists_by_prefix_over_pages(site: Site) -> None:
    names = [f"tradewind/f/c-{n}/node" for n in range(12)]
    for name in [*names, "tradewind/f2/c/node", "other/tradewind/f"]:
        site.store.put(name, "x")
    assert site.store.list("tradewind/f/") == sorted(names)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a b", "a/", "a.b", "a_b", "x" * 200])
def test_bad_names_are_refused(site: Site, name: str) -> None:
    with pytest.raises(InvalidRequest):
        site.store.put(name, "x")


def test_a_node_reads_the_secret_of_its_kind_alone(site: Site) -> None:
    site.store.put(NODE, "for nodes")
    site.store.put(HEAD, "for heads")
    assert site.node.get(NODE) == "for nodes"
    for refused in (lambda: site.node.get(HEAD), lambda: site.node.put(NODE, "x"), lambda: site.node.list("t")):
        with pytest.raises(AuthError):
            refused()


def test_denied_and_broken(site: Site) -> None:
    site.store.put(NODE, "very-secret")
    site.deny_reading()
    with pytest.raises(AuthError) as error:
        site.store.get(NODE)
    assert "very-secret" not in str(error.value)


def test_google_keeps_one_version_and_a_broken_service_is_transient() -> None:
    site = _gcp()
    try:
        for text in ("one", "two", "three", "three"):
            site.store.put(NODE, text)
        [secret] = site.emulator.vault.secrets.values()
        assert [version is not None for version in secret.versions] == [False, False, True]
        site.emulator.faults.broken = 1
        with pytest.raises(Transient):
            site.store.get(NODE)
        secret.versions.append(None)  # somebody destroyed the newest one
        site.store.put(NODE, "four")
        assert site.store.get(NODE) == "four"
    finally:
        site.emulator.close()


def test_azure_recovers_what_may_not_be_purged() -> None:
    site = _azure()
    try:
        site.emulator.vault.purge_protection = True
        site.store.put(NODE, "one")
        site.store.delete(NODE)
        with pytest.raises(NotFound):
            site.store.get(NODE)
        assert site.store.list("tradewind/") == []
        site.store._sleep = lambda _: None
        site.store.put(NODE, "two")
        assert site.store.get(NODE) == "two"
    finally:
        site.emulator.close()


def test_azure_wants_the_address_of_a_vault() -> None:
    from tradewind.autoscaler.providers.secrets import open_secrets

    with pytest.raises(InvalidRequest, match="key vault"):
        open_secrets("azure", "eastus")
    with pytest.raises(InvalidRequest, match="key vault"):
        open_secrets("azure", vault_url="http://plain")
    with pytest.raises(Unsupported):
        open_secrets("local")
