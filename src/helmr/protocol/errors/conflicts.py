"""409, 410: the state forbids it now, or what was asked for is gone."""

from __future__ import annotations

from helmr.protocol.errors.root import Refused


class Conflict(Refused):
    """The state does not allow this now."""

    code, status = "conflict", 409


class SessionKeyConflict(Conflict):
    """The key already names a Session of this Agent."""

    code = "session_key_conflict"
    hint = "Enqueue on the Session that `session_id` names, or choose another key."


class IdempotencyConflict(Conflict):
    """The idempotency key was used for another request."""

    code = "idempotency_conflict"
    hint = "Use a new key for a new request."


class SessionNotOpen(Conflict):
    """The Session is closing or closed."""

    code = "session_not_open"


class SessionNotClosed(Conflict):
    """The Session is not closed."""

    code = "session_not_closed"
    hint = "Close or cancel it first."


class NoCurrentDeployment(Conflict):
    """The Environment has no current Deployment."""

    code = "no_current_deployment"
    hint = "Run `helmr deploy`, or `helmr dev` in your project."


class TurnNotRunning(Conflict):
    """The Turn is not running."""

    code = "turn_not_running"


class TurnStopping(Conflict):
    """The Turn is already being stopped."""

    code = "turn_stopping"


class MemberExists(Conflict):
    """There is a member with this address already."""

    code = "member_exists"
    hint = "`helmr member list` shows it; `helmr member change` changes its role."


class ProjectExists(Conflict):
    """There is a project with this name already."""

    code = "project_exists"


class EnvironmentExists(Conflict):
    """The project has an Environment with this name already."""

    code = "environment_exists"


class LastOwner(Conflict):
    """Nobody would own the installation then."""

    code = "last_owner"
    hint = "Make somebody else an owner first."


class ApiKeyEnded(Conflict):
    """The API key is revoked, expired, or replaced already."""

    code = "api_key_ended"
    hint = "Make a new one with `helmr key create`."


class WorkerRemoved(Conflict):
    """This worker was removed."""

    code = "worker_removed"
    hint = "Its host comes back as another worker: `helmr worker enrol`."


class WorkerExists(Conflict):
    """There is a worker of that name already."""

    code = "worker_exists"
    hint = "Take another name, or make a token that names this worker: it is enrolled again then."


class WorkerNotEnrolled(Conflict):
    """This worker links with the shared credential, which is no worker's own."""

    code = "worker_not_enrolled"
    hint = "Enrol it: `helmr worker token --name NAME`, and `helmr worker enrol` on its host."


class MessageClosed(Conflict):
    """The Turn takes no messages now: it is not running, has no message handler, or is settling."""

    code = "message_closed"
    hint = "Enqueue a new Turn instead."


class HoldNotReleasable(Conflict):
    """This hold is released by the system alone."""

    code = "hold_not_releasable"


class QuestionAlreadyResponded(Conflict):
    """The question already has its answer."""

    code = "question_already_responded"


class QuestionCancelled(Conflict):
    """The question was cancelled."""

    code = "question_cancelled"


class ComputerDeleting(Conflict):
    """The Computer is being deleted."""

    code = "computer_deleting"


class ComputerBusy(Conflict):
    """The Computer has open Sessions."""

    code = "computer_busy"
    hint = "`helmr computer members` shows them."


class ComputerKeyConflict(Conflict):
    """The key already names a Computer of this Template."""

    code = "computer_key_conflict"
    hint = "Use the Computer that `computer_id` names, delete it, or choose another key."


class PathRefused(Conflict):
    """What the path names on the Computer can't be copied so."""

    code = "path_refused"


class PortRefused(Conflict):
    """Nothing on the Computer took the connection to that port."""

    code = "port_refused"
    hint = "Start what listens there; it must listen on the Computer's loopback, or on all addresses."


class ComputerMismatch(Conflict):
    """The Computer was made from another image or other resources than the Agent's Template."""

    code = "computer_mismatch"


class BaseMismatch(Conflict):
    """The Computer needs a host with the base that it was made on."""

    code = "base_mismatch"


class SaveDamaged(Conflict):
    """The save of the Computer's files is damaged, or was made with other keys."""

    code = "save_damaged"
    hint = "Restore an earlier save; `detail` names what is wrong with this one."


class ChannelUnavailable(Conflict):
    """The Slack channel can't be posted to."""

    code = "channel_unavailable"


class DelegationLimit(Conflict):
    """The delegation limits of the Environment are reached."""

    code = "delegation_limit"


class CapacityWaitBlocked(Conflict):
    """The awaited work can only run once the caller's own Computer gives way."""

    code = "capacity_wait_blocked"


class SecretExists(Conflict):
    """The Environment has a Secret of that name."""

    code = "secret_exists"
    hint = "`helmr secret rotate NAME` gives it a new value."


class SecretRevoked(Conflict):
    """The Secret was revoked, for good."""

    code = "secret_revoked"
    hint = "Create it again: its name is free."


class SecretUnavailable(Conflict):
    """The Computer needs a Secret that its Environment lacks, or holds one that was revoked."""

    code = "secret_unavailable"
    hint = "`helmr secret create NAME` makes it; what waits for it goes on by itself."


class CursorExpired(Refused):
    """The events below `retained_after` were expired."""

    code, status = "cursor_expired", 410
    hint = "Read from `retained_after`."


class SetUpAlready(Conflict):
    """This installation has its first owner already."""

    code = "set_up_already"
    hint = "Sign in, or ask an admin for an invitation."


class SignInNotOffered(Conflict):
    """This installation offers no such way to sign in."""

    code = "sign_in_not_offered"
    hint = "Operators configure a provider with HELMR_OIDC_ISSUER."


class CodeInvalid(Conflict):
    """The one-time code is wrong, too old, or was used."""

    code, status = "code_invalid", 410
    hint = "Ask for another one."
