"""Who is calling: the tenant that a request's branches are scoped by."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

_CREDENTIAL_HEADERS: Final = ("authorization", "x-api-key", "api-key")
_PERSON: Final = b"boomerang-tenant"
ANONYMOUS: Final = blake2b(b"", digest_size=16, person=_PERSON).digest()
"""The tenant of all callers that present nothing, where no identity is asked for."""


def tenant_of(headers: Sequence[tuple[str, str]], identity_header: str) -> bytes | None:
    """The caller's tenant, 16 bytes; a digest, so that no credential is kept.

    ``headers`` are all that came, names in lower case. With ``identity_header`` set, only that header counts,
    and a caller without it has no identity: None, and nothing is looked up or remembered for it. Otherwise
    the credential names the tenant. A header that came twice is in doubt, as an engine or a gateway may read
    either: no identity.
    """
    names = (identity_header,) if identity_header else _CREDENTIAL_HEADERS
    named = [header for header in headers if header[0] in names]
    for name in names if named else ():
        values = [value for given, value in named if given == name]
        if len(values) > 1:
            return None
        if values and values[0]:
            return _digest(identity_header or "credential", values[0])
    return None if identity_header else ANONYMOUS


def _digest(kind: str, value: str) -> bytes:
    return blake2b(f"{kind}\0{value}".encode(), digest_size=16, person=_PERSON).digest()
