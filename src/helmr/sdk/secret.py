"""`secret()`: a Secret of the Environment in a Template's Computers. SPEC [A8], [X1]."""

from __future__ import annotations

from collections.abc import Sequence

from helmr.protocol.secrets import SecretBinding, check_binding


def secret(
    name: str,
    *,
    env: str | None = None,
    file: str | None = None,
    protected: bool = False,
    allowed_origins: Sequence[str] = (),
    headers: Sequence[str] = (),
) -> SecretBinding:
    """Bind the Secret `name` as the variable `env` or the file `file`.

    A protected one is an opaque placeholder inside; the egress proxy exchanges it towards `allowed_origins` only, in `headers` only
    (by default Authorization, X-Api-Key, Private-Token). Without either name, `env` is the Secret's own. Raises `ValueError` for a
    reserved variable or a malformed binding [X2].
    """
    if isinstance(allowed_origins, str) or isinstance(headers, str):
        raise TypeError("allowed_origins and headers are lists of texts.")
    return check_binding(
        SecretBinding(
            name=name,
            env=env or ("" if file else name),
            file=file or "",
            mode="protected" if protected else "raw",
            allowed_origins=tuple(allowed_origins),
            headers=tuple(headers),
        )
    )
