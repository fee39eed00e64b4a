"""The limits of the Environment that `helmr serve` and `helmr dev` are configured for, from the environment's variables. SPEC [S5], [S22].

The variables are described in `helmr.server` and docs/reference/limits.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from helmr.control.service.limits import AdmissionLimit, EnvironmentLimits
from helmr.protocol.duration import duration_ms, retention_ms
from helmr.protocol.errors import ConfigurationMissing, InvalidValue
from helmr.protocol.unset import UNSET, UnsetType


def limits_from(environ: Mapping[str, str] = os.environ) -> EnvironmentLimits:
    """What the variables say of admission, retention and triggers; what they don't say stays as it is. Raises `ConfigurationMissing`."""
    admission: AdmissionLimit | UnsetType | None = UNSET
    rate, burst = environ.get("HELMR_ADMISSION_RATE", ""), environ.get("HELMR_ADMISSION_BURST", "")
    if burst and rate in ("", "unlimited"):
        raise ConfigurationMissing("HELMR_ADMISSION_BURST needs a HELMR_ADMISSION_RATE.", hint="")
    if rate == "unlimited":
        admission = None
    elif rate:
        try:
            perhaps = float(rate)
            most = int(burst) if burst else max(1, math.ceil(perhaps))
            admission = AdmissionLimit(rate=perhaps, burst=most)
        except (ValueError, OverflowError, InvalidValue):
            told = 'HELMR_ADMISSION_RATE must be a number over 0 and up to 1000000 (Turns a second) or "unlimited", '
            raise ConfigurationMissing(told + "HELMR_ADMISSION_BURST a whole number from 1 to 1000000.", hint="") from None
    return EnvironmentLimits(
        admission=admission,
        payload_retention_ms=_retention(environ, "HELMR_PAYLOAD_RETENTION"),
        computer_retention_ms=_retention(environ, "HELMR_COMPUTER_RETENTION"),
        trigger_computer_retention_ms=_retention(environ, "HELMR_TRIGGER_COMPUTER_RETENTION"),
        trigger_grace_ms=_grace(environ),
    )


def _grace(environ: Mapping[str, str]) -> int | UnsetType:
    text = environ.get("HELMR_TRIGGER_GRACE", "")
    try:
        found = duration_ms(text, "HELMR_TRIGGER_GRACE") if text else UNSET
        return EnvironmentLimits(trigger_grace_ms=found).trigger_grace_ms
    except ValueError as error:
        raise ConfigurationMissing(str(error), hint="") from None
    except InvalidValue as error:
        raise ConfigurationMissing(f"HELMR_TRIGGER_GRACE: {error.detail}", hint="") from None


def _retention(environ: Mapping[str, str], name: str) -> int | UnsetType | None:
    text = environ.get(name, "")
    try:
        return retention_ms(text, name) if text else UNSET
    except ValueError as error:
        raise ConfigurationMissing(str(error), hint='Or "never".') from None
