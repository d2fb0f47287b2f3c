"""Fixtures: key files, and a policy that accepts tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.access import KeyFile, Policy
from penstock.core.access.policy import Jwt
from tests.access.support import SECRET
from tests.access.test_tokens import AUDIENCE, ISSUER


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def tokens(tmp_path: Path) -> Policy:
    (tmp_path / "secret").write_text(SECRET)
    return Policy(jwt=Jwt(ISSUER, AUDIENCE, tmp_path / "secret", ("HS256",), rate=5))
