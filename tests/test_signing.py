"""Signatures of webhooks: the published vector, a second implementation, and messages with one byte changed."""

from __future__ import annotations

import time
from base64 import b64encode
from datetime import UTC, datetime

import pytest
import standardwebhooks

from penstock.core.errors import BadSignature
from penstock.core.signing import ID, SIGNATURE, TIMESTAMP, new_secret, secret_bytes, sign, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
PUBLISHED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def signed(*secrets: str, at: int | None = None, body: bytes = BODY) -> dict[str, str]:
    return sign(secrets or (SECRET,), MESSAGE, int(time.time()) if at is None else at, body)


def test_the_published_vector_is_signed_and_verified() -> None:
    headers = signed(at=AT)
    assert headers == {ID: MESSAGE, TIMESTAMP: str(AT), SIGNATURE: PUBLISHED}
    assert verify(SECRET, headers, BODY, now=AT) == MESSAGE


def test_another_implementation_accepts_our_signature_and_we_accept_its() -> None:
    secret = new_secret()
    theirs = standardwebhooks.Webhook(secret)
    theirs.verify(BODY, signed(secret))
    now = time.time()
    headers = signed(secret, at=int(now))
    assert theirs.sign(MESSAGE, datetime.fromtimestamp(int(now), UTC), BODY.decode()) == headers[SIGNATURE]


def test_a_message_with_any_byte_changed_is_refused() -> None:
    headers = signed(at=AT)
    for name in (ID, TIMESTAMP):
        for place in range(len(headers[name])):
            for flipped in (1, 2, 4, 8):
                value = bytearray(headers[name].encode())
                value[place] ^= flipped
                with pytest.raises(BadSignature):
                    verify(SECRET, headers | {name: value.decode()}, BODY, now=AT, tolerance_s=float("inf"))
    for place in range(len(BODY)):
        for bit in range(8):
            body = bytearray(BODY)
            body[place] ^= 1 << bit
            with pytest.raises(BadSignature):
                verify(SECRET, headers, bytes(body), now=AT)


def test_a_signature_with_any_byte_changed_is_refused() -> None:
    headers = signed(at=AT)
    for place in range(len(PUBLISHED) - 2):
        changed = PUBLISHED[:place] + ("A" if PUBLISHED[place] != "A" else "B") + PUBLISHED[place + 1 :]
        with pytest.raises(BadSignature):
            verify(SECRET, headers | {SIGNATURE: changed}, BODY, now=AT)


@pytest.mark.parametrize("seconds", [-301, 301])
def test_a_message_out_of_its_time_is_refused(seconds: int) -> None:
    with pytest.raises(BadSignature, match="clocks"):
        verify(SECRET, signed(at=AT), BODY, now=AT + seconds)
    assert verify(SECRET, signed(at=AT), BODY, now=AT + seconds // 301 * 299) == MESSAGE


@pytest.mark.parametrize("missing", [ID, TIMESTAMP, SIGNATURE])
def test_a_message_without_one_of_its_headers_is_refused_by_its_name(missing: str) -> None:
    headers = signed()
    del headers[missing]
    with pytest.raises(BadSignature, match=missing):
        verify(SECRET, headers, BODY)


@pytest.mark.parametrize("timestamp", ["", "abc", "1614265330.0", "-1", "+1", "१२", "9" * 400])
def test_a_timestamp_that_is_no_whole_number_is_refused(timestamp: str) -> None:
    with pytest.raises(BadSignature):
        verify(SECRET, signed() | {TIMESTAMP: timestamp}, BODY)


def test_while_secrets_change_both_verify_and_afterwards_one() -> None:
    old, new = new_secret(), new_secret()
    both = signed(new, old)
    assert verify(old, both, BODY) == verify(new, both, BODY) == verify([new, old], signed(old), BODY) == MESSAGE
    standardwebhooks.Webhook(old).verify(BODY, both)
    with pytest.raises(BadSignature):
        verify(old, signed(new), BODY)


def test_a_signature_of_a_kind_we_do_not_know_is_passed_over() -> None:
    headers = signed()
    assert verify(SECRET, headers | {SIGNATURE: f"v1a,{PUBLISHED[3:]} v2,x rubbish {headers[SIGNATURE]}"}, BODY)
    with pytest.raises(BadSignature):
        verify(SECRET, headers | {SIGNATURE: headers[SIGNATURE].replace("v1,", "v1a,")}, BODY)


def test_names_of_headers_may_be_written_in_any_case() -> None:
    assert verify(SECRET, {name.title(): value for name, value in signed().items()}, BODY) == MESSAGE


def test_a_new_secret_is_random_and_of_the_form_of_the_specification() -> None:
    one, other = new_secret(), new_secret()
    assert one != other
    assert one.startswith("whsec_")
    assert 24 <= len(secret_bytes(one)) <= 64


@pytest.mark.parametrize(
    "text", ["", "whsec_", "whsec_!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + b64encode(b"x" * 23).decode()]
)
def test_what_is_no_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="a secret must be whsec_ followed by 24 to 64 random bytes") as caught:
        secret_bytes(text)
    assert not text or text == "whsec_" or text not in str(caught.value)
