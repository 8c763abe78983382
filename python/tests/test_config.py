"""The one JSON of every adapter: defaults, and one line that names what is wrong."""

from __future__ import annotations

import pytest

from quire_kv.config import Config
from quire_kv.errors import ConfigError

DIGEST = "sha256:" + "ab" * 32


def test_defaults():
    c = Config.parse(None)
    assert c.server == "127.0.0.1:7420" and c.transport == "auto" and c.durability is None
    assert 0 < c.lookup_timeout <= 0.3 and c.load_timeout == 1.0 and c.save_timeout == 1.0
    assert ":" in c.name


def test_what_adapters_and_engines_add():
    c = Config.parse({"models": 3, "backend_name": "x", "instance": "a"}, frozenset({"models"}), frozenset({"backend_name"}))
    assert c.extra == {"models": 3} and c.name == "a"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sever": "x:1"}, "sever"),
        ({"server": "nowhere"}, "server"),
        ({"server": "host:0"}, "server"),
        ({"server": "unix:relative"}, "server"),
        ({"server": 7420}, "server"),
        ({"transport": "rdma"}, "transport"),
        ({"durability": "tape"}, "durability"),
        ({"weights": "melted"}, "weights"),
        ({"category": "urgent"}, "category"),
        ({"copy_threads": 0}, "copy_threads"),
        ({"copy_threads": 65}, "copy_threads"),
        ({"copy_threads": True}, "copy_threads"),
        ({"model_digest": "abc"}, "model_digest"),
        ({"model_digest": "sha256:" + "AB" * 32}, "model_digest"),
        ({"lookup_timeout_ms": 0}, "lookup_timeout_ms"),
        ({"load_timeout_ms": 1.5}, "load_timeout_ms"),
        ({"save_timeout_ms": True}, "save_timeout_ms"),
        ({"open_timeout_ms": 10**9}, "open_timeout_ms"),
        ({"tls_cert": "a"}, "tls_key"),
        ({"tls_cert": "a", "tls_key": "b"}, "tls_ca"),
        ({"token_file": ""}, "token_file"),
        ({"instance": "x" * 200}, "instance"),
        ([], "JSON object"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(settings, named):
    with pytest.raises(ConfigError) as e:
        Config.parse(settings)
    assert named in str(e.value) and "\n" not in str(e.value)


def test_the_model_must_be_stated():
    with pytest.raises(ConfigError, match="model_digest.*quire model digest"):
        Config.parse({"weights": "frozen"}).require_model()
    with pytest.raises(ConfigError, match='"weights": "frozen"'):
        Config.parse({"model_digest": DIGEST}).require_model()
    assert Config.parse({"model_digest": DIGEST, "weights": "frozen"}).require_model() == DIGEST


def test_the_token_is_read_from_its_file_and_never_shown(tmp_path):
    file = tmp_path / "token"
    file.write_text("qk_secret\n")
    c = Config.parse({"token_file": str(file)})
    assert c.token() == "qk_secret" and "secret" not in repr(c)
    file.write_text("")
    with pytest.raises(ConfigError, match="empty"):
        c.token()
    file.unlink()
    with pytest.raises(ConfigError, match="token_file"):
        c.token()
