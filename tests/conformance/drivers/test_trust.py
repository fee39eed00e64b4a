"""What programs of a Computer with protected Secrets trust, by every driver with a proxy [X1]; the proxy itself: `tests/unit/egress`."""

from __future__ import annotations

import pytest
from jail import Jail

from helmr.host.hostd.client import HostdRefused
from helmr.host.hostd.trust import KEY_FILE
from helmr.host.sandbox.driver import OWN_LAYER
from helmr.protocol.egress import TRUST_FOLDER, TRUST_VARIABLES

pytestmark = pytest.mark.anyio

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
ORIGIN = "https://api.test"
BOUND = {"name": "T", "env": "T", "mode": "protected", "allowed_origins": [ORIGIN]}
SECRET = {"name": "T", "placeholder": "hlmr_ph_0123456789abcdef", "value": "v" * 20, "allowed_origins": [ORIGIN], "headers": ["X-Api-Key"]}


async def start(jail: Jail, fence: int = 1, *, secrets: bool = True) -> None:
    await jail.start("c1", fence, egress=("api.test",), secrets=(BOUND,), protected=[SECRET] if secrets else [])


@pytest.mark.kinds("bubblewrap-root", "gvisor")
async def test_programs_are_shown_certificates_that_they_can_not_change_and_no_key(jail: Jail) -> None:
    await start(jail)
    async with jail.inside("c1") as inmate:
        variables = await inmate.value("dict(os.environ)")
        assert variables.items() >= dict(TRUST_VARIABLES).items()
        own = await inmate.value(f"open('{TRUST_FOLDER}/ca.pem').read()")
        assert (await inmate.value(f"open('{TRUST_FOLDER}/bundle.pem').read()")).startswith(own)
        assert "PRIVATE" not in own and await inmate.value(f"sorted(os.listdir('{TRUST_FOLDER}'))") == [
            "bundle.pem",
            "ca.pem",
            "public.pem",
        ]
        for attempt in (f"open('{TRUST_FOLDER}/ca.pem', 'a')", f"os.unlink('{TRUST_FOLDER}/ca.pem')", f"open('{TRUST_FOLDER}/x', 'w')"):
            assert (await inmate.run(f"import os; {attempt}")).exit
    assert (jail.state / "computers/c1" / KEY_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.kinds("bubblewrap-root", "bubblewrap-user", "docker")
async def test_the_images_bundle_has_the_authority_until_it_is_written_over_and_the_disk_never(jail: Jail) -> None:
    await start(jail)
    upper = jail.state / "computers/c1/disk/upper"
    if not (jail.state / "computers/c1" / OWN_LAYER).is_dir():
        pytest.skip("an overlay can't be mounted by this user here")
    async with jail.inside("c1") as inmate:
        own = await inmate.value(f"open('{TRUST_FOLDER}/ca.pem').read()")
        if not await inmate.value(f"os.path.isfile('{BUNDLE}')"):
            pytest.skip("this host has no bundle of certificates")
        assert own in await inmate.value(f"open('{BUNDLE}').read()")
        assert not (upper / BUNDLE[1:]).exists()
    # A run without the Secret: as the image has it.
    await jail.client.stop("c1", 1)
    await start(jail, secrets=False)
    async with jail.inside("c1") as inmate:
        assert own not in await inmate.value(f"open('{BUNDLE}').read()")
        assert not {"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"} & set(await inmate.value("list(os.environ)"))
    await jail.client.stop("c1", 1)
    await start(jail)
    async with jail.inside("c1") as inmate:
        assert own in await inmate.value(f"open('{BUNDLE}').read()")
        changed = f"import os; open('{BUNDLE}.new', 'w').write('mine'); os.rename('{BUNDLE}.new', '{BUNDLE}')"
        assert (await inmate.run(changed)).exit == 0
    await jail.client.stop("c1", 1)
    await start(jail)
    async with jail.inside("c1") as inmate:
        assert await inmate.value(f"open('{BUNDLE}').read()") == "mine"


@pytest.mark.kinds("process")
async def test_without_a_proxy_nothing_is_exchanged_and_nobody_is_told_to_trust_it(jail: Jail) -> None:
    await start(jail)
    async with jail.inside("c1") as inmate:
        assert not {"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"} & set(await inmate.value("list(os.environ)"))
    assert not (jail.state / "computers/c1" / KEY_FILE).exists()


@pytest.mark.kinds("bubblewrap-root")
async def test_secrets_are_told_under_the_fence_that_holds_the_computer(jail: Jail) -> None:
    await start(jail, 2)
    await jail.client.protect("c1", 2, [])
    for fence, secrets, code in ((1, [SECRET], "fence_stale"), (2, [{**SECRET, "value": "a\r\nb"}], "invalid_request")):
        with pytest.raises(HostdRefused) as refused:
            await jail.client.protect("c1", fence, secrets)
        assert refused.value.code == code and "a\r\nb" not in str(refused.value)
