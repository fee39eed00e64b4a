"""`helmr server rotate-master-key`: a new master key in the place of the old one, step by step. SPEC [X1]."""

from __future__ import annotations

import click

from helmr.cli.connection import run_async
from helmr.cli.local import installed
from helmr.cli.terminal import Output


@click.command("rotate-master-key")
@click.option("--add", is_flag=True, help="First step: add a new version to the file of master keys. It is not used yet.")
@click.option("--retire", is_flag=True, help="Last step: take the versions that nothing needs any more out of database and file.")
@click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")
def rotate_master_key(add: bool, retire: bool, as_json: bool) -> int:
    """Renew the master key. The file is HELMR_MASTER_KEY_FILE, the database DATABASE_URL.

    \b
    1. helmr server rotate-master-key --add       a new version in this file
    2. copy the file to every control plane, and restart each
    3. helmr server rotate-master-key             it wraps from now on, and all is wrapped by it
    4. helmr server rotate-master-key --retire    the old one is forgotten; then copy the file again
    """
    installed("server rotate-master-key")
    if add and retire:
        raise click.UsageError("Give one of --add and --retire.")
    from pathlib import Path

    from helmr.control.service.keyfile import add_key, read_keyring, remove_key
    from helmr.control.service.rotation import Rotation
    from helmr.control.store.pool import Database
    from helmr.server import ServerConfig

    config, output = ServerConfig.from_environ(), Output(as_json=as_json)
    file: Path = config.key_file

    if add:
        version = add_key(file)
        text = f"Version {version} is in {file}, and not used yet. Copy the file to every control plane and restart each."
        output.answer({"version": version, "file": str(file)}, lambda: output.note(text))
        return 0

    async def run() -> int:
        database = Database(config.dsn, size=2)
        await database.start()
        try:
            rotation = Rotation(database, read_keyring(file))
            if retire:
                retired = await rotation.retire()
                for version in retired:
                    remove_key(file, version)
                told = ", ".join(map(str, retired)) or "none"
                output.answer({"retired": list(retired)}, lambda: output.note(f"Retired versions: {told}."))
                return 0
            done = await rotation.run(lambda count: output.note(f"{count} keys wrapped anew"))
        finally:
            await database.stop()
        unused = ", ".join(map(str, done.unused)) or "none"
        text = f"Version {done.version} wraps everything ({done.rewrapped} keys wrapped anew). Not needed any more: {unused}."
        output.answer({"version": done.version, "rewrapped": done.rewrapped, "unused": list(done.unused)}, lambda: output.note(text))
        return 0

    return run_async(run)
