"""The way out of a Computer, as both ends know it [C4]: where hostd's proxy lies, and what programs inside are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PROXY_SOCKET: Final = "egress.sock"
"""hostd's proxy in the Computer's run folder, beside `host.sock`; only in Computers whose Template allows hosts. Where guests can't connect
to it, a channel to it is passed in."""

PROXY_PORT: Final = 3128
"""The forwarder's port on 127.0.0.1 inside."""

CHANNEL_WORD: Final = b"+"
"""Goes with each channel that the supervisor hands to the forwarder."""

CONNECTIONS: Final = 128
"""Connections through the proxy that a Computer may have at once; more are refused."""

PROXY_VARIABLES: Final[Mapping[str, str]] = {
    name: value
    for upper, value in (
        ("HTTP_PROXY", f"http://127.0.0.1:{PROXY_PORT}"),
        ("HTTPS_PROXY", f"http://127.0.0.1:{PROXY_PORT}"),
        ("NO_PROXY", "localhost,127.0.0.1,::1"),
    )
    for name in (upper, upper.lower())
}
"""Environment of Sessions and Commands, in both spellings: programs look for either."""

TRUST_FOLDER: Final = "/opt/helmr/trust"
"""Read-only, in Computers with protected Secrets [X1]: what programs inside need to know to trust the proxy."""
AUTHORITY: Final = "ca.pem"
"""The Computer's own authority."""
BUNDLE: Final = "bundle.pem"
"""That, and the certificates that the image trusts."""

TRUST_VARIABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO"),
        f"{TRUST_FOLDER}/{BUNDLE}",
    ),
    **dict.fromkeys(("NODE_EXTRA_CA_CERTS", "DENO_CERT"), f"{TRUST_FOLDER}/{AUTHORITY}"),
}
"""Where programs look for what they trust: the first ones in the place of all else that they know, the last ones beside it."""
