"""Where URL and key come from, and that a key never goes to another server than its own. SPEC 12."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from helmr.client.configuration import dev_file, login_file, read_saved, resolve, save
from helmr.protocol.errors import ConfigurationMissing


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def test_arguments_come_first_then_the_process_environment_then_the_login_then_dev(home: dict[str, str]) -> None:
    save(dev_file(home), "http://127.0.0.1:1", "dev-key")
    assert (resolve(environ=home).url, resolve(environ=home).origin) == ("http://127.0.0.1:1", "dev")
    save(login_file(home), "https://helmr.example.com/", "login-key")
    assert resolve(environ=home).url == "https://helmr.example.com"
    assert resolve(environ=home).api_key == "login-key"
    named = home | {"HELMR_API_URL": "https://two.example.com", "HELMR_API_KEY": "env-key"}
    assert (resolve(environ=named).url, resolve(environ=named).api_key) == ("https://two.example.com", "env-key")
    given = resolve("https://three.example.com/base/", "arg-key", named)
    assert (given.url, given.api_key, given.origin) == ("https://three.example.com/base", "arg-key", "arguments")


def test_a_saved_key_is_never_sent_to_another_server(home: dict[str, str]) -> None:
    save(login_file(home), "https://helmr.example.com", "login-key")
    assert resolve("https://helmr.example.com/", environ=home).api_key == "login-key"
    with pytest.raises(ConfigurationMissing, match="no API key for"):
        resolve("https://evil.example.com", environ=home)
    with pytest.raises(ConfigurationMissing):
        resolve(environ=home | {"HELMR_API_URL": "https://evil.example.com"})


def test_nothing_configured_says_what_to_do(home: dict[str, str]) -> None:
    with pytest.raises(ConfigurationMissing) as caught:
        resolve(environ=home)
    assert "HELMR_API_URL" in caught.value.advice
    with pytest.raises(ConfigurationMissing, match="no server URL"):
        resolve(api_key="key", environ=home)


@pytest.mark.parametrize("url", ["ftp://x", "helmr.example.com", "http://", "http://x:99999", "http://u:p@x", "http://x/?q=1", "http://[x"])
def test_what_is_no_server_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationMissing):
        resolve(url, "key", {})


@pytest.mark.parametrize("key", [" ", "a b", "a\nb", "schlüssel"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationMissing):
        resolve("http://x", key, {})


def test_a_saved_file_is_private_and_others_reach_makes_it_refused(home: dict[str, str]) -> None:
    path = login_file(home)
    save(path, "https://helmr.example.com", "key")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigurationMissing, match="others"):
        read_saved(path)


@pytest.mark.parametrize("content", ["", "[]", '{"url": "http://x"}', '{"url": 1, "api_key": "k"}'])
def test_a_broken_saved_file_is_named(home: dict[str, str], content: str) -> None:
    path = login_file(home)
    path.parent.mkdir(parents=True)
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(ConfigurationMissing, match=r"login\.json"):
        resolve(environ=home)


def test_xdg_folders_are_obeyed_and_the_key_is_not_shown(home: dict[str, str]) -> None:
    folders = home | {"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"}
    assert (str(dev_file(folders)), str(login_file(folders))) == ("/s/helmr/dev.json", "/c/helmr/login.json")
    assert str(dev_file(home)).endswith("/.local/state/helmr/dev.json")
    assert "secret" not in repr(resolve("http://x", "secret", {}))


def test_an_environment_goes_with_the_credential_that_it_was_saved_with(home: dict[str, str]) -> None:
    """A person's default is theirs alone: another key has an Environment of its own."""
    save(login_file(home), "https://helmr.example.com", "hlmr_ut_x", "shop/live")
    assert resolve(environ=home).environment == "shop/live"
    assert resolve(api_key="hlmr_sk_x", environ=home).environment is None
    assert resolve(environ=home, environment="a/b").environment == "a/b"
    assert resolve(environ=home | {"HELMR_ENVIRONMENT": "c/d"}).environment == "c/d"
    assert resolve("http://x", "key", home | {"HELMR_ENVIRONMENT": "c/d"}).environment == "c/d"
    for wrong in ("a", "a/", "/b", "a/b/c", "a/ä", "a/b\n"):
        with pytest.raises(ConfigurationMissing):
            resolve(environ=home, environment=wrong)
