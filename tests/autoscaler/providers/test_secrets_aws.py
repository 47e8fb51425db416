"""AWS Secrets Manager behind the seam, boto3 against the emulator: by the controller's key and by instance identity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tradewind.autoscaler.providers.secrets import open_secrets
from tradewind.autoscaler.providers.secrets_aws import AwsSecrets
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.errors import AuthError, Conflict, InvalidRequest, NotFound, Transient

REGION, NAME = "us-east-1", "tradewind/f/aws-us-east-1/node"


class Clock:
    now_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(scope="module")
def server() -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        yield emulator


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cloud(server: AwsEmulator, clock: Clock) -> AwsEmulator:
    server.reset(clock)
    return server


@pytest.fixture(scope="module")
def session() -> Any:
    import boto3

    return boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)


@pytest.fixture(scope="module")
def made(server: AwsEmulator, session: Any) -> AwsSecrets:
    return AwsSecrets(REGION, server.url, session=session)


@pytest.fixture
def store(made: AwsSecrets, cloud: AwsEmulator, clock: Clock) -> AwsSecrets:
    made._sleep = clock.sleep  # the same SDK client for all tests: making one takes a while
    return made


def test_what_is_put_is_there(store: AwsSecrets) -> None:
    store.put(NAME, "one")
    store.put(NAME, "one")
    assert store.get(NAME) == "one"
    store.put(NAME, "two")
    assert store.get(NAME) == "two"


def test_the_same_text_again_makes_no_version(store: AwsSecrets, cloud: AwsEmulator) -> None:
    for text in ("one", "one", "two", "two"):
        store.put(NAME, text)
    assert list(cloud.vault.secrets[REGION, NAME].versions.values()) == ["one", "two"]


def test_what_is_not_there_is_not_found_and_deleting_it_is_done(store: AwsSecrets) -> None:
    with pytest.raises(NotFound):
        store.get(NAME)
    store.delete(NAME)


def test_a_deleted_secret_is_gone_and_its_name_can_be_used_again(store: AwsSecrets) -> None:
    store.put(NAME, "one")
    store.delete(NAME)
    store.delete(NAME)
    with pytest.raises(NotFound):
        store.get(NAME)
    assert store.list("tradewind/") == []
    store.put(NAME, "two")  # while AWS still blocks the name for a moment
    assert store.get(NAME) == "two"


def test_a_secret_in_its_recovery_window_is_taken_back_into_use(store: AwsSecrets) -> None:
    store.put(NAME, "one")
    store._client.delete_secret(SecretId=NAME, RecoveryWindowInDays=7)  # as somebody at the console does
    with pytest.raises(Conflict):
        store.get(NAME)
    store.put(NAME, "two")
    assert store.get(NAME) == "two"


def test_lists_by_prefix_over_pages(store: AwsSecrets) -> None:
    names = [f"tradewind/f/c{n}/node" for n in range(25)]
    for name in [*names, "tradewind/g/c/node", "Tradewind/f/c/node"]:
        store.put(name, "x")
    assert store.list("tradewind/f/") == sorted(names)


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a b", "a/", "ä", "x" * 200])
def test_bad_names_are_refused(store: AwsSecrets, name: str) -> None:
    with pytest.raises(InvalidRequest):
        store.put(name, "x")
    with pytest.raises(InvalidRequest):
        store.get(name)


@pytest.mark.parametrize("text", ["", "x" * 30_000])
def test_texts_that_no_store_takes_are_refused(store: AwsSecrets, text: str) -> None:
    with pytest.raises(InvalidRequest):
        store.put(NAME, text)


def test_denied_and_broken(store: AwsSecrets, cloud: AwsEmulator) -> None:
    store.put(NAME, "one")
    cloud.faults.denied.add("GetSecretValue")
    with pytest.raises(AuthError, match="secretsmanager:GetSecretValue"):
        store.get(NAME)
    cloud.faults.denied.clear()
    cloud.faults.failing = 1
    assert store.get(NAME) == "one"  # asked again
    cloud.faults.failing = 100
    with pytest.raises(Transient):
        store.get(NAME)


def test_no_secret_stands_in_an_error(store: AwsSecrets, cloud: AwsEmulator) -> None:
    cloud.faults.denied.add("CreateSecret")
    with pytest.raises(AuthError) as error:
        store.put(NAME, "very-secret")
    assert "very-secret" not in f"{error.value!r} {error.value}"


def test_a_role_reads_the_secret_of_its_kind_alone(server: AwsEmulator, store: AwsSecrets, cloud: AwsEmulator) -> None:
    import boto3
    from botocore.exceptions import ClientError

    from tradewind.emulators.aws_books import Machine

    for kind in ("node", "head"):
        store.put(f"tradewind/f/c/{kind}", kind)
    machine = Machine("i-1", REGION, "a", "m5.large", False, "ami", "s", {}, "", "", 0.0, 0.0, profile="tradewind-node")
    keys = cloud.identities.credentials(machine, cloud.books.clock())
    session = boto3.Session(keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"])
    node = open_secrets("aws", REGION, endpoint_url=server.url, credentials=session)
    assert node.get("tradewind/f/c/node") == "node"
    for refused in (
        lambda: node.get("tradewind/f/c/head"),
        lambda: node.put("tradewind/f/c/node", "x"),
        lambda: node.list("t"),
    ):
        with pytest.raises(AuthError):
            refused()
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        session.client("ec2", REGION, endpoint_url=server.url).describe_instances()
