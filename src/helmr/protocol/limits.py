"""The limits of the contract, once. Sizes are bytes of compact UTF-8 JSON unless said. SPEC [S1], [E6], [Q2], [C8]."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

INPUT_BYTES: Final = 256 * KIB
RESULT_BYTES: Final = 256 * KIB
CONTENT_BYTES: Final = 256 * KIB
CONTENT_PARTS: Final = 64
RESPONSE_BYTES: Final = 256 * KIB
TURN_OUTPUT_BYTES: Final = 8 * MIB
"""Output and admitted questions of one Turn, together."""

KEY_BYTES: Final = 512
IDEMPOTENCY_KEY_BYTES: Final = 512
LABELS: Final = 16
LABEL_BYTES: Final = 256
JSON_DEPTH: Final = 64

QUESTION_OPTIONS: Final = 100
OPTION_ID_BYTES: Final = 128
OPTION_LABEL_BYTES: Final = 256
OPTION_DESCRIPTION_BYTES: Final = 2 * KIB
ANSWER_TEXT_BYTES: Final = 8 * KIB
ANSWER_BYTES: Final = 64 * KIB
RESPONSE_ID_BYTES: Final = 512

BLOB_BYTES: Final = 1024 * MIB
"""One file of a project or of an image."""

EVENTS_PAGE: Final = 100
EVENTS_PAGE_MAX: Final = 1000
EVENTS_PAGE_BYTES: Final = 4 * MIB
PAGE: Final = 50
PAGE_MAX: Final = 100

COMMAND_ARGUMENTS: Final = 128
COMMAND_ARGUMENT_BYTES: Final = 64 * KIB
COMMAND_ENVIRONMENT_BYTES: Final = 256 * KIB
COMMAND_STDIN_BYTES: Final = MIB
"""Before base64."""
COMMAND_TIMEOUT_MS: Final = 5 * 60 * 1000
COMMAND_LONGEST_MS: Final = 24 * 60 * 60 * 1000
COMMAND_LOG_BYTES: Final = 16 * MIB
"""What is kept of the output of one Command: the last so many bytes of both streams [C8]."""
COMMANDS_KEPT_SECONDS: Final = 30 * 24 * 60 * 60
"""How long after their end Commands and their output are kept."""

SECRET_BYTES: Final = 64 * KIB
"""The longest value of a Secret."""
SECRET_VARIABLE_BYTES: Final = 256 * KIB
"""The values of all Secrets that one Computer has as variables, together."""
SECRET_FILE_BYTES: Final = MIB
"""The values of all others that it has, together."""
SECRET_BINDINGS: Final = 64
"""Secrets of one Computer."""

CLEANUP_SECONDS: Final = 10.0
"""What a handler and its cancellation callbacks share after a stop mark [S13]."""

OUTPUT_WINDOW: Final = 64
"""Unacknowledged frames that a Session process may have under way (DESIGN 7)."""

PIPE_WINDOW: Final = 256
"""Values that one `output.pipe` keeps in flight [A4]."""

FRAME_BYTES: Final = MIB
"""The longest payload of one guest frame; twice 256 KiB fields and room for escapes."""

SAVE_OBJECT_BYTES: Final = 512 * MIB
"""The longest part of a save that a worker sends."""

STRIKES: Final = 3
LEASE_SECONDS: Final = 60
RENEW_SECONDS: Final = 10
WORKER_LOST_SECONDS: Final = 30
