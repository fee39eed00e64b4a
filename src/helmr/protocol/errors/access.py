"""401, 403: who asks, and what they may."""

from __future__ import annotations

from helmr.protocol.errors.root import Refused


class Unauthorized(Refused):
    """Who you are, or what you may do, is the problem."""


class Unauthenticated(Unauthorized):
    """The request carries no valid credential."""

    code, status = "unauthenticated", 401
    hint = 'Send "Authorization: Bearer hlmr_sk_...".'


class Forbidden(Unauthorized):
    """The credential does not permit this."""

    code, status = "forbidden", 403
