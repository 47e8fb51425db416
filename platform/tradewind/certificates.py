"""Certificates of a fleet: an authority per cell, and one for the controller's agents' door. Pure but for the random
numbers of the keys; `now_s` is a value.

The authority's certificate is public and stands in user-data. Its key stays with the controller and the cell's head.
A node makes a key of its own at every boot, which never leaves it, and has it signed at the head's join desk. All
keys are ECDSA P-256: small enough for user-data, and known to gRPC, Python and every cloud's image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tradewind.errors import InvalidRequest

DAY_S = 86_400.0
AUTHORITY_LIFE_S = 730 * DAY_S
# Longer than a machine lives by custom: Ray's running processes never look at the files again (docs/designs/boot.md).
NODE_LIFE_S = 90 * DAY_S
CLOCK_SLACK_S = 3600.0  # a node whose clock is behind must not find its certificate in the future
RENEW_AFTER = 2 / 3  # of its life


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate with its key."""

    cert_pem: str
    key_pem: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs for one cell."""

    cert_pem: str
    key_pem: str = field(repr=False)

    @classmethod
    def make(cls, name: str, now_s: float, life_s: float = AUTHORITY_LIFE_S) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), _name(name), key.public_key(), now_s, now_s + life_s)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(_cert_text(builder.sign(key, hashes.SHA256())), _key_text(key))

    @classmethod
    def of(cls, ca_pem: str, key_pem: str) -> Authority:
        """The one of a bundle that this key belongs to."""
        public = _load_key(key_pem).public_key()
        for found in x509.load_pem_x509_certificates(ca_pem.encode()):
            if found.public_key() == public:
                return cls(_cert_text(found), key_pem)
        raise InvalidRequest("no certificate of the bundle belongs to the key", "both come from one controller")

    def sign(self, csr_pem: str, addresses: Sequence[str], now_s: float, life_s: float = NODE_LIFE_S) -> str:
        """A certificate for the key of the request, valid at these addresses alone. What the request says beside its
        key counts for nothing: the desk decides for what it vouches."""
        try:
            request = x509.load_pem_x509_csr(csr_pem.encode())
            signed = request.is_signature_valid
        except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
            raise InvalidRequest(f"not a certificate request: {error}", "send one in PEM") from error
        key = request.public_key()
        if not signed or not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidRequest("the request is not signed by an elliptic curve key", "make one with make_request")
        return self._issue(key, addresses, now_s, life_s)

    def has_signed(self, cert_pem: str) -> bool:
        found = x509.load_pem_x509_certificate(cert_pem.encode())
        try:
            found.verify_directly_issued_by(x509.load_pem_x509_certificate(self.cert_pem.encode()))
        except (ValueError, InvalidSignature):
            return False
        return True

    def identity(self, addresses: Sequence[str], now_s: float, life_s: float = NODE_LIFE_S) -> Identity:
        """Key and certificate at once, for the one who holds the authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Identity(self._issue(key.public_key(), addresses, now_s, life_s), _key_text(key))

    def _issue(self, key: ec.EllipticCurvePublicKey, addresses: Sequence[str], now_s: float, life_s: float) -> str:
        if not addresses:
            raise InvalidRequest("a certificate without an address is good for nothing", "give the node's address")
        mine = x509.load_pem_x509_certificate(self.cert_pem.encode())
        until_s = min(now_s + life_s, mine.not_valid_after_utc.timestamp())
        builder = _builder(_name(addresses[0]), mine.subject, key, now_s, until_s)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # Ray's nodes are both
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(_load_key(self.key_pem).public_key())
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (issuer, False),  # from 3.13 on, Python refuses a certificate without it
            (x509.SubjectAlternativeName([_alternative(each) for each in dict.fromkeys(addresses)]), False),
            (x509.ExtendedKeyUsage(uses), False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        return _cert_text(builder.sign(_load_key(self.key_pem), hashes.SHA256()))


def make_key() -> str:
    return _key_text(ec.generate_private_key(ec.SECP256R1()))


def make_request(key_pem: str, name: str) -> str:
    """A request to sign the key's public half."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return request.sign(_load_key(key_pem), hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def expires_at_s(cert_pem: str) -> float:
    """Of the first certificate in the text."""
    return x509.load_pem_x509_certificate(cert_pem.encode()).not_valid_after_utc.timestamp()


def renew_at_s(cert_pem: str) -> float:
    """From then on a new one is wanted, long before the old one ends."""
    found = x509.load_pem_x509_certificate(cert_pem.encode())
    start_s, end_s = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return start_s + RENEW_AFTER * (end_s - start_s)


def addresses_of(cert_pem: str) -> tuple[str, ...]:
    found = x509.load_pem_x509_certificate(cert_pem.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names)


# --- rotation of authorities --------------------------------------------------------------------------------------


def rotated(authorities: Sequence[Authority], name: str, now_s: float) -> tuple[Authority, ...]:
    """Those that are still trusted, the newest last. The newest gets a successor long before it ends, and
    ended ones are left out: in between, both are trusted, so nobody has to change at the same moment."""
    valid = tuple(each for each in authorities if expires_at_s(each.cert_pem) > now_s)
    if valid and now_s < renew_at_s(valid[-1].cert_pem):
        return valid
    return (*valid, Authority.make(name, now_s))


def bundle(authorities: Iterable[Authority]) -> str:
    """What others trust: all of them."""
    return "".join(each.cert_pem for each in authorities)


# --- cryptography's objects ---------------------------------------------------------------------------------------


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_s: float, until_s: float
) -> x509.CertificateBuilder:
    start = datetime.fromtimestamp(now_s, UTC) - timedelta(seconds=CLOCK_SLACK_S)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(datetime.fromtimestamp(until_s, UTC))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])  # 64 signs are allowed


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _load_key(key_pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidRequest("the key is not of an elliptic curve", "make one with make_key")
    return key


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def _cert_text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
