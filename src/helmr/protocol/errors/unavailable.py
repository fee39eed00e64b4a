"""429, 503: try again."""

from __future__ import annotations

from helmr.protocol.errors.root import Refused


class Unavailable(Refused):
    """Not now; try again."""

    status, retryable = 503, True


class AdmissionUnavailable(Unavailable):
    """The Environment's admission rate is used up."""

    code, status = "admission_unavailable", 429
    hint = "Retry after the seconds that Retry-After names, with the same idempotency key."


class TooManyAttempts(Unavailable):
    """There were too many attempts to sign in."""

    code, status, retryable = "too_many_attempts", 429, False
    hint = "Wait as long as Retry-After says."


class SignInBusy(Unavailable):
    """Too many people sign in at this moment."""

    code = "sign_in_busy"


class ProviderUnavailable(Unavailable):
    """The provider of sign-ins can't be asked now."""

    code = "provider_unavailable"
    hint = "Try again; operators find the reason in the server's log."


class DatabaseUnavailable(Unavailable):
    """The database is away."""

    code = "database_unavailable"
    hint = "Retry with the same idempotency key; accepted work is not lost."


class StorageFull(Unavailable):
    """There is no room on the server's disk for what was sent."""

    code, status, retryable = "storage_full", 503, True
    hint = "Repeat it when the operator has made room."


class BlobCollected(Unavailable):
    """An old blob of this content was collected while it was put."""

    code = "blob_collected"
    hint = "Put it again."


class CapacityUnavailable(Unavailable):
    """No worker has room for the Computer now, or its own one is away."""

    code = "capacity_unavailable"
    hint = "Hibernate a Computer or close Sessions that nobody needs, or add a worker."


class SaveUnavailable(Unavailable):
    """The Computer can't be saved now: it is nowhere or on its way, its host is away, or this installation keeps no saves."""

    code = "save_unavailable"
    hint = "Try again once it runs, sleeps or is cold; `helmr computer get` shows where it is."


class SecretsUnavailable(Unavailable):
    """This installation has no master key, so it keeps no Secrets."""

    code, retryable = "secrets_unavailable", False
    hint = "Give the control planes a file of master keys with HELMR_MASTER_KEY_FILE."


class ComputerUnreachable(Unavailable):
    """The Computer runs, and this control plane has no way to it now."""

    code = "computer_unreachable"
    hint = "Retry: its worker comes back, or the request reaches the control plane that has its link."


class StreamsExhausted(Unavailable):
    """The Computer has as many open shells, copies and tunnels as it may."""

    code, status = "streams_exhausted", 429
    hint = "End one, or try again later."


class StreamBroken(Unavailable):
    """The way to the Computer was lost, and what ran there for it has ended."""

    code = "stream_broken"


class ShuttingDown(Unavailable):
    """This control plane is stopping."""

    code = "shutting_down"
    hint = "Retry; another control plane answers, or this one after its restart."
