"""Certificates: what TLS itself makes of them, and when they are renewed."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from tradewind.certificates import (
    AUTHORITY_LIFE_S,
    DAY_S,
    Authority,
    Identity,
    addresses_of,
    bundle,
    expires_at_s,
    make_key,
    make_request,
    renew_at_s,
    rotated,
)
from tradewind.errors import InvalidRequest

NOW_S = time.time()
CA = Authority.make("cell", NOW_S)


@contextlib.contextmanager
def served(identity: Identity, folder: Path, client_ca: str) -> Iterator[tuple[str, int]]:
    """A TLS server on 127.0.0.7 that wants a client certificate, as Ray's do, and greets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "c").write_text(identity.cert_pem)
    (folder / "k").write_text(identity.key_pem)
    context.load_cert_chain(folder / "c", folder / "k")
    context.load_verify_locations(cadata=client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.7", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as plain, context.wrap_socket(plain, True) as tls:
                tls.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            thread.join(10)


def greeting(where: tuple[str, int], trust: str, mine: Identity | None, folder: Path, name: str = "127.0.0.7") -> bytes:
    context = ssl.create_default_context(cadata=trust)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does by itself from 3.13 on
    if mine:
        (folder / "mc").write_text(mine.cert_pem)
        (folder / "mk").write_text(mine.key_pem)
        context.load_cert_chain(folder / "mc", folder / "mk")
    with socket.create_connection(where, 10) as plain, context.wrap_socket(plain, server_hostname=name) as tls:
        return tls.recv(5)


def test_nodes_of_one_cell_trust_each_other(tmp_path: Path) -> None:
    key_pem = make_key()
    joined = Identity(CA.sign(make_request(key_pem, "n1"), ["127.0.0.8", "127.0.0.1"], NOW_S), key_pem)
    with served(CA.identity(["127.0.0.7"], NOW_S), tmp_path, CA.cert_pem) as where:
        assert greeting(where, CA.cert_pem, joined, tmp_path) == b"hello"


def test_a_certificate_is_good_at_its_own_address_alone(tmp_path: Path) -> None:
    with (
        served(CA.identity(["127.0.0.9"], NOW_S), tmp_path, CA.cert_pem) as where,
        pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"),
    ):
        greeting(where, CA.cert_pem, CA.identity(["127.0.0.8"], NOW_S), tmp_path)


def test_another_cells_nodes_are_strangers(tmp_path: Path) -> None:
    other = Authority.make("cell", NOW_S)
    with (
        served(other.identity(["127.0.0.7"], NOW_S), tmp_path, other.cert_pem) as where,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        greeting(where, CA.cert_pem, None, tmp_path)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    with (
        served(CA.identity(["127.0.0.7"], NOW_S - 3000, life_s=60), tmp_path, CA.cert_pem) as where,
        pytest.raises(ssl.SSLCertVerificationError, match="expired"),
    ):
        greeting(where, CA.cert_pem, None, tmp_path)


def test_only_the_key_of_a_request_counts() -> None:
    """A node may write into its request what it likes: the desk says what it vouches for."""
    key = ec.generate_private_key(ec.SECP256R1())
    wish = x509.SubjectAlternativeName([x509.DNSName("head.example")])
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "head")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(wish, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    request = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    given = CA.sign(request, ["10.0.0.5"], NOW_S)
    assert addresses_of(given) == ("10.0.0.5",)
    found = x509.load_pem_x509_certificate(given.encode())
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_what_is_no_request_is_refused() -> None:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n")])
    weak = x509.CertificateSigningRequestBuilder().subject_name(name)
    other_kind = weak.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    cut = make_request(make_key(), "n").replace("A", "B", 1)
    for text in ("", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----", other_kind, cut):
        with pytest.raises(InvalidRequest):
            CA.sign(text, ["10.0.0.5"], NOW_S)
    with pytest.raises(InvalidRequest, match="address"):
        CA.sign(make_request(make_key(), "n"), [], NOW_S)


def test_nothing_outlives_its_authority() -> None:
    late_s = NOW_S + AUTHORITY_LIFE_S - DAY_S
    assert expires_at_s(CA.identity(["10.0.0.5"], late_s).cert_pem) == expires_at_s(CA.cert_pem)


def test_a_new_one_is_wanted_long_before_the_end() -> None:
    cert = CA.identity(["10.0.0.5"], NOW_S, life_s=90 * DAY_S).cert_pem
    assert NOW_S + 59 * DAY_S < renew_at_s(cert) < NOW_S + 61 * DAY_S


def test_authorities_overlap(tmp_path: Path) -> None:
    """Who was told of the old one only, and who has a certificate of the new one: both ends meet by the bundle."""
    start_s = NOW_S - 500 * DAY_S
    first = rotated((), "door", start_s)
    assert rotated(first, "door", start_s + 100 * DAY_S) == first
    both = rotated(first, "door", NOW_S)
    assert both[:-1] == first
    for signer in both:
        with served(signer.identity(["127.0.0.7"], NOW_S), tmp_path, bundle(both)) as where:
            assert greeting(where, bundle(both), both[0].identity(["127.0.0.8"], NOW_S), tmp_path) == b"hello"
    after_s = start_s + AUTHORITY_LIFE_S + DAY_S
    assert rotated(both, "door", after_s) == both[1:]


def test_the_authority_of_a_key_is_found_in_a_bundle() -> None:
    other = Authority.make("cell", NOW_S)
    assert Authority.of(bundle([other, CA]), CA.key_pem) == CA
    with pytest.raises(InvalidRequest):
        Authority.of(other.cert_pem, CA.key_pem)


def test_a_key_is_not_shown_by_accident() -> None:
    assert "PRIVATE" not in repr(CA)
    assert "PRIVATE" not in repr(CA.identity(["10.0.0.5"], NOW_S))
