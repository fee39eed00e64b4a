"""400, 413, 422: the request must be mended."""

from __future__ import annotations

from helmr.protocol.errors.root import Refused


class Malformed(Refused):
    """The request is malformed."""

    code, status = "invalid_request", 400


class InvalidRequest(Malformed):
    """The request is malformed."""


class UnknownField(Malformed):
    """The request has a field that this operation does not know."""

    code = "unknown_field"
    hint = "Take the field away; the API document lists what is known."


class EnvironmentRequired(Malformed):
    """The request names no Environment."""

    code = "environment_required"
    hint = 'Send the header "Helmr-Environment: project/environment".'


class InvalidCursor(Malformed):
    """The cursor is beyond the end, or none of ours."""

    code = "invalid_cursor"
    hint = "Start again from the beginning, or from the last sequence you have seen."


class ContentInvalid(Malformed):
    """The content is no finite JSON of the allowed shape."""

    code, status = "content_invalid", 422


class ContentKindUnsupported(Malformed):
    """This Agent takes a list of text parts."""

    code, status = "content_kind_unsupported", 422
    hint = 'Send [{"type": "text", "text": "..."}].'


class InputEmpty(Malformed):
    """The input is empty."""

    code, status = "input_empty", 422
    hint = "Leave the input out to create a Session without a Turn."


class InvalidValue(Malformed):
    """A value of the request is outside what is allowed."""

    code, status = "invalid_value", 422


class DigestMismatch(Malformed):
    """The bytes are others than their digest says."""

    code, status = "digest_mismatch", 422
    hint = "Send them again; if it persists, something changes them on the way."


class ListingInvalid(Malformed):
    """The listing of files is malformed, or would leave its folder."""

    code, status = "listing_invalid", 422


class AnswerInvalid(Malformed):
    """The answer does not fit the question."""

    code, status = "answer_invalid", 422


class ContentLimitExceeded(Malformed):
    """The content is over its limit."""

    code, status = "content_limit_exceeded", 413
    hint = "Send less, or in several parts."


class RequestTooLarge(Malformed):
    """The request body is too large."""

    code, status = "request_too_large", 413


class RequestTooSlow(Malformed):
    """The request did not come in time."""

    code, status, retryable = "request_too_slow", 408, True


class RootSessionRequired(Malformed):
    """Only root Sessions may ask people questions."""

    code, status = "root_session_required", 422
