"""Who is calling: the tenant that a request's branches are scoped by."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

_CREDENTIAL_HEADERS: Final = ("authorization", "x-api-key", "api-key")
_PERSON: Final = b"boomerang-tenant"
ANONYMOUS: Final = blake2b(b"", digest_size=16, person=_PERSON).digest()
"""The tenant of all callers that present nothing, where no identity is asked for."""


def tenant_of(headers: Mapping[str, str], identity_header: str) -> bytes | None:
    """The caller's tenant, 16 bytes; a digest, so that no credential is kept.

    With ``identity_header`` set, only that header counts, and a caller without it has no identity: None, and
    nothing is looked up or remembered for it. Otherwise the credential names the tenant.
    """
    if identity_header:
        named = headers.get(identity_header, "")
        return _digest(identity_header, named) if named else None
    for name in _CREDENTIAL_HEADERS:
        if headers.get(name):
            return _digest("credential", headers[name])
    return ANONYMOUS


def _digest(kind: str, value: str) -> bytes:
    return blake2b(f"{kind}\0{value}".encode(), digest_size=16, person=_PERSON).digest()
