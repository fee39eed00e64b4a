"""401, 403, and what the device flow says: who asks, and what they may."""

from __future__ import annotations

from helmr.protocol.errors.root import Refused


class Unauthorized(Refused):
    """Who you are, or what you may do, is the problem."""


class Unauthenticated(Unauthorized):
    """The request carries no valid credential."""

    code, status = "unauthenticated", 401
    hint = 'Send "Authorization: Bearer hlmr_sk_...".'


class EnrolmentRefused(Unauthorized):
    """The enrolment token is unknown, expired or used."""

    code, status = "enrolment_refused", 403
    hint = "Make another one with `helmr worker token`. If nobody here has used it, somebody else has: remove the worker that came of it."


class Forbidden(Unauthorized):
    """The credential does not permit this."""

    code, status = "forbidden", 403


class SignInRefused(Unauthenticated):
    """The email address or the password is wrong."""

    code = "sign_in_refused"
    hint = "Try again, or ask an admin for a link that sets a new password."


class OriginRefused(Unauthorized):
    """A browser sent this from another site, or to another name of this server."""

    code, status = "origin_refused", 403
    hint = "Open the installation at its own address; operators set it with HELMR_PUBLIC_URL."


class ProviderRefused(Unauthorized):
    """The sign-in at the provider can't be used here."""

    code, status = "provider_refused", 403
    hint = "Begin again; if it persists, ask an admin whether you are a member under the address that the provider verified."


class AccessDenied(Unauthorized):
    """The person said no, or may not sign in any more."""

    code, status = "access_denied", 403
    hint = "Run `helmr login` again."


class AuthorizationPending(Unauthorized):
    """The person has not decided yet."""

    code, status = "authorization_pending", 400
    hint = "Ask again after the interval."


class SlowDown(Unauthorized):
    """This was asked before the interval was over, which is longer now."""

    code, status = "slow_down", 400
    hint = "Ask again after the interval that is told here."


class DeviceCodeExpired(Unauthorized):
    """The device code is unknown, too old, or was taken."""

    code, status = "expired_token", 400
    hint = "Run `helmr login` again."
