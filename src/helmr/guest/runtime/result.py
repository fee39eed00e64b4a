"""What a handler returned, as the JSON that is persisted. SPEC [S10], [A2]."""

from __future__ import annotations

from typing import Any, Final

from helmr.guest.runtime.stopping import describe
from helmr.protocol import jsontext
from helmr.protocol.errors import AuthoringError, HelmrError
from helmr.protocol.limits import RESULT_BYTES
from helmr.sdk.schema import Schema, encoded, validated

TOO_DEEP: Final = f"The result is nested too deeply: at most {jsontext.JSON_DEPTH} levels of lists and objects are kept."


class ResultInvalid(AuthoringError):
    """What the handler returned does not fit the result schema, or is no finite JSON [S10]."""

    code = "result_invalid"


class ResultTooLarge(AuthoringError):
    """The result is larger than 256 KiB [S10]."""

    code = "result_too_large"


async def validated_result(schema: Schema[Any], value: object) -> bytes:
    """The encoded output of the result schema. Raises `ResultInvalid` and `ResultTooLarge`."""
    try:
        output = await validated(schema, value)
    except HelmrError as error:
        raise ResultInvalid(error.detail) from error
    except RecursionError as error:
        raise ResultInvalid(TOO_DEEP) from error
    except Exception as error:
        raise ResultInvalid(f"The result schema raised {describe(error)}") from error
    return encoded_result(schema, output)


def encoded_result(schema: Schema[Any] | None, output: object) -> bytes:
    """Encode what a result schema gave, or what a handler without one returned. Raises `ResultInvalid` and `ResultTooLarge`."""
    try:
        data = jsontext.dumps(output if isinstance(output, str) and schema is None else encoded(schema, output))
    except HelmrError as error:
        raise ResultInvalid(error.detail) from error
    except RecursionError as error:
        raise ResultInvalid(TOO_DEEP) from error
    except Exception as error:
        raise ResultInvalid(f"The result schema raised {describe(error)}") from error
    if len(data) > RESULT_BYTES:
        raise ResultTooLarge(f"The result is {len(data)} bytes; at most {RESULT_BYTES} are allowed.")
    return data
