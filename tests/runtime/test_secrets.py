"""Keys, tokens and the key of the certificate are not revealed."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import jwt
import pytest
import trustme

from penstock.core.access import read_policy
from tests.runtime.guarded import running

ACCESS = """
[tls]
certificate = "c.pem"
key = "k.pem"

[jwt]
issuer = "i"
audience = "a"
keys = "secret"
algorithms = ["HS256"]
"""
SECRET = "canary-secret-of-an-issuer-that-nobody-may-see"


def test_no_secret_is_ever_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are not in a log line, an answer, the figures or the app's own description."""
    caplog.set_level(logging.INFO)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "k.pem")
    (tmp_path / "secret").write_text(SECRET)
    tls, issuer = (
        '[tls]\ncertificate = "c.pem"\nkey = "k.pem"\n',
        '[jwt]\nissuer = "i"\naudience = "a"\nkeys = "secret"\n',
    )
    (tmp_path / "access.toml").write_text(f'{tls}{issuer}algorithms = ["HS256"]\n')
    claims = {"iss": "i", "aud": "a", "sub": "bob", "scope": "admin", "exp": time.time() + 60}
    seen = []
    with running(tmp_path / "data", read_policy(tmp_path / "access.toml")) as gateway:
        gateway.trust(authority)
        key = gateway.add("boss", "admin")
        token, forged = jwt.encode(claims, SECRET, "HS256"), jwt.encode(claims, SECRET + "x", "HS256")
        secrets = [key, key[:-1] + "x", token, forged]
        for text in secrets:
            for path in ("/v1/app", "/metrics", "/v1/openapi.json", "/v1/streams/none", "/v1/none", "/v1/acks/x", "/"):
                answer = gateway.get(path, text)
                seen.append(f"{answer.headers} {answer.text}")
            seen.append(gateway.post("a", text, events=[7]).text)
            seen.append(str(gateway.talk("/v1/live", text)))
            with gateway.client() as client:
                seen.append(client.get("/v1/app", headers={"Authorization": f"Basic {text}"}).text)
        (tmp_path / "k.pem").write_text("rubbish")
        gateway.keys.revoke("boss")
        gateway.reload()
        seen.append(gateway.get("/v1/app", key).text)
    said = "\n".join(seen) + caplog.text + repr(gateway.gateway.gate) + repr(gateway.gateway.settings)
    key_lines = certificate.private_key_pem.bytes().decode().splitlines()[1:-1]
    parts = [text.rpartition(".")[2][:24] for text in (token, forged)] + [key[9:40], SECRET, *key_lines]
    assert [part for part in parts if part in said] == []
    assert "penstock.access" in caplog.text, "the change was seen"
