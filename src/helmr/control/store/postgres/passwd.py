"""Run a program under an account that the machine's user list lacks: `python -I passwd.py UID GID PROGRAM [ARGUMENT ...]`.

initdb asks the user list for the name of its uid and refuses to work without one. Instead of adding a user to the machine, a private
mount namespace shows the program a user list with one more line. Whoever isn't root can only name its own uid. Exits with `NO_NAMESPACE`
where such a namespace can't be had.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile

NO_NAMESPACE = 77

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000


def main() -> None:
    uid, gid, *command = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _enter_namespace(libc)
        _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        _show_user_list(libc, uid, gid)
    except OSError as error:
        print(f"no private mount namespace: {error}", file=sys.stderr)
        sys.exit(NO_NAMESPACE)
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    os.execv(command[0], command)


def _enter_namespace(libc: ctypes.CDLL) -> None:
    """A mount namespace; who is not root gets one within a user namespace, where it stays who it is."""
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(_CLONE_NEWNS if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNS))
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def _show_user_list(libc: ctypes.CDLL, uid: int, gid: int) -> None:
    with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as source:
        users = source.read()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{users.rstrip()}\nhelmr-postgres:x:{uid}:{gid}::/nonexistent:/usr/sbin/nologin\n")
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        _check(libc.mount(os.fsencode(file.name), b"/etc/passwd", None, _MS_BIND, None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
