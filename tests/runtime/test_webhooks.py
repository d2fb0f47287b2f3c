"""Webhooks in a gateway: the API, their owners, the effect of a revoked key, and webhooks of the app."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.app.check import check
from penstock.core.access import Policy
from penstock.core.access.policy import Jwt
from penstock.core.access.tokens import LEEWAY_S
from penstock.core.errors import RateLimited
from penstock.core.files import write_atomic
from penstock.core.signing import new_secret
from penstock.runtime.webhooks import declared
from penstock.serve.webhooks.invitations import CALLERS_MAX, FORGET_S, UNANSWERED_MAX, Invitations
from tests.access.support import SECRET, signed
from tests.access.test_tokens import AUDIENCE, ISSUER
from tests.harness import wait_for
from tests.runtime import guarded
from tests.runtime.guarded import Reading, Running, running
from tests.runtime.hooked import QUICK, Receiver, asking, gateway, receiver, registered, state_is

__all__ = ["gateway", "receiver"]


def test_a_webhook_is_registered_verified_told_paused_resumed_and_removed(gateway: Running, receiver: Receiver) -> None:
    with asking(gateway) as ask:
        hook = ask("POST", body={"url": receiver.url, "stream": "a", "name": "mine"}, expect=201)
        assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", hook["secret"])
        receiver.secrets.append(hook["secret"])
        id = hook["id"]
        state_is(ask, id, "active")
        gateway.post("a", events={"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        wait_for(lambda: ask("GET", f"/{id}")["delivered"] == 1)
        hook = ask("GET", f"/{id}")
        assert "secret" not in hook
        assert (hook["name"], hook["stream"], hook["pending"], hook["lag"], hook["dead"]) == ("mine", "a", 0, 0, 0)
        assert ask("POST", f"/{id}/pause")["state"] == "paused"
        gateway.post("a", events={"k": "one", "n": 2})
        assert ask("GET", f"/{id}")["lag"] == 1
        assert [hook["id"] for hook in ask("GET")["webhooks"]] == [id]
        ask("POST", f"/{id}/resume")
        wait_for(lambda: [event["n"] for event in receiver.events()] == [1, 2])
        ask("POST", body={"url": receiver.url, "stream": "a", "name": "mine"}, expect=409)
        ask("DELETE", f"/{id}", expect=204)
        ask("GET", f"/{id}", expect=404)
        gateway.post("a", events={"k": "one", "n": 3})
        assert ask("GET") == {"webhooks": []}


def test_a_webhook_waits_until_its_address_answers_the_challenge(gateway: Running, receiver: Receiver) -> None:
    receiver.willing = False
    with asking(gateway) as ask:
        webhook = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)
        receiver.secrets.append(webhook["secret"])
        gateway.post("a", events={"k": "one", "n": 1})
        wait_for(lambda: "different challenge" in (ask("GET", f"/{webhook['id']}")["reason"] or ""))
        assert ask("POST", f"/{webhook['id']}/verify")["state"] == "pending"
        assert receiver.bodies == []
        receiver.willing = True
        assert ask("POST", f"/{webhook['id']}/verify")["state"] == "active"
        wait_for(lambda: len(receiver.bodies) == 1)
        ask("POST", f"/{webhook['id']}/verify", expect=409)


def test_an_address_that_has_not_agreed_is_not_asked_as_often_as_someone_likes(
    gateway: Running, receiver: Receiver
) -> None:
    """This holds for `verify`, and for `pause` and `resume`: the response says when the next challenge may be sent."""
    receiver.willing = False
    with asking(gateway) as ask:
        id = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)["id"]
        wait_for(lambda: "different challenge" in (ask("GET", f"/{id}")["reason"] or ""))
        for _ in range(2):
            ask("POST", f"/{id}/verify")
        for _ in range(20):
            refused = ask("POST", f"/{id}/verify", expect=429)
        assert (refused["code"], refused["retry_after_s"] > 0) == ("rate_limited", True)
        ask("POST", f"/{id}/pause")
        assert ask("POST", f"/{id}/resume", expect=429)["code"] == "rate_limited"


def test_an_address_that_has_not_agreed_is_not_asked_by_registering_again_and_again(
    gateway: Running, receiver: Receiver
) -> None:
    """Removing the webhook does not help. Other callers may still register, and an address that agrees does not
    count."""
    mine, others = gateway.add("mine", "consume:a"), gateway.add("others", "consume:a")
    with asking(gateway, mine) as ask, asking(gateway, others) as other:
        for _ in range(2):
            registered(ask, receiver)
        receiver.willing = False
        for _ in range(UNANSWERED_MAX):
            id = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)["id"]
            ask("DELETE", f"/{id}", expect=204)
        refused = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=429)
        assert (refused["code"], 0 < refused["retry_after_s"] <= FORGET_S) == ("rate_limited", True)
        other("POST", body={"url": receiver.url, "stream": "a"}, expect=201)


def test_a_registration_that_was_not_answered_is_forgotten_after_a_while() -> None:
    now = 0.0
    invitations = Invitations(lambda: now)
    for _ in range(UNANSWERED_MAX):
        invitations.take("ada")
    with pytest.raises(RateLimited):
        invitations.take("ada")
    now = FORGET_S
    invitations.take("ada")
    with pytest.raises(RateLimited):
        invitations.take("ada")


def test_callers_whose_registrations_are_forgotten_take_no_memory() -> None:
    now = 0.0
    invitations = Invitations(lambda: now)
    for number in range(CALLERS_MAX):
        invitations.take(str(number))
    now = FORGET_S + 1
    invitations.take("ada")
    assert len(invitations._clear_at) == 1


def test_the_registrations_of_so_many_callers_only_are_counted() -> None:
    invitations = Invitations(lambda: 0.0)
    for number in range(CALLERS_MAX + 5):
        invitations.take(str(number))
    assert len(invitations._clear_at) == CALLERS_MAX
    assert str(CALLERS_MAX + 4) in invitations._clear_at


def test_an_answer_that_is_too_deep_to_be_read_is_no_agreement(gateway: Running, receiver: Receiver) -> None:
    receiver.said = b'{"x":' + b"[" * 60_000
    with asking(gateway) as ask:
        id = ask("POST", body={"url": receiver.url, "stream": "a"}, expect=201)["id"]
        webhook = ask("POST", f"/{id}/verify")
        assert (webhook["state"], "is not" in webhook["reason"]) == ("pending", True)


def test_dead_letters_are_shown_and_sent_again(gateway: Running, receiver: Receiver) -> None:
    receiver.status = 500
    with asking(gateway) as ask:
        id = registered(ask, receiver)
        gateway.post("a", events=[{"k": "one", "n": 1}, {"k": "one", "n": 2}])
        wait_for(lambda: ask("GET", f"/{id}")["dead"] == 2)
        dead = ask("GET", f"/{id}/dead")["dead"]
        assert [letter["message"]["data"]["events"][0]["n"] for letter in dead] == [1, 2]
        assert {letter["error"] for letter in dead} == {"the receiver returned 500"}
        assert ask("GET", f"/{id}/dead?after={dead[0]['number']}")["dead"] == dead[1:]
        receiver.status = 200
        assert ask("POST", f"/{id}/dead/redrive", {"number": dead[1]["number"]}) == {"redriven": 1}
        wait_for(lambda: [event["n"] for event in receiver.events()] == [2])
        assert ask("POST", f"/{id}/dead/redrive") == {"redriven": 1}
        wait_for(lambda: [event["n"] for event in receiver.events()] == [2, 1])


def test_after_rotation_both_secrets_sign(gateway: Running, receiver: Receiver) -> None:
    with asking(gateway) as ask:
        id = registered(ask, receiver)
        [old] = receiver.secrets
        new = ask("POST", f"/{id}/rotate")["secret"]
        receiver.secrets = [new]
        gateway.post("a", events={"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        receiver.secrets = [old]
        gateway.post("a", events={"k": "one", "n": 2})
        wait_for(lambda: len(receiver.bodies) == 2)
        assert [len(signature.split()) for signature in receiver.signatures] == [2, 2]
        assert ask("GET", f"/{id}")["secrets"] == 2


def test_without_a_grace_period_the_old_secret_signs_no_more(tmp_path: Path, receiver: Receiver) -> None:

    with running(tmp_path, settings=replace(QUICK, webhook_grace_hours=0.0)) as gateway, asking(gateway) as ask:
        id = registered(ask, receiver)
        receiver.secrets = [ask("POST", f"/{id}/rotate")["secret"]]
        gateway.post("a", events={"k": "one"})
        wait_for(lambda: len(receiver.bodies) == 1)
        assert len(receiver.signatures[0].split()) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "malformed_body"),
        ([], "malformed_body"),
        ({"url": 1, "stream": "a"}, "malformed_body"),
        ({"url": "http://127.0.0.1/", "stream": "a", "more": 1}, "malformed_body"),
        ({"url": "http://127.0.0.1/"}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "view": "v"}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "batch": 0}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "batch": 1001}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "name": "x" * 65}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "name": "a\nb"}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "since": ""}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "a", "since": "rubbish"}, "bad_cursor"),
        ({"url": "http://127.0.0.1/", "stream": "a", "where": "k ="}, "bad_expression"),
        ({"url": "http://127.0.0.1/", "stream": "a", "where": "nothing = 1"}, "bad_expression"),
        ({"url": "https://10.0.0.1/", "stream": "a"}, "bad_parameter"),
        ({"url": "http://127.0.0.1/", "stream": "none"}, "not_found"),
        ({"url": "x" * 70_000, "stream": "a"}, "too_large"),
    ],
)
def test_what_cannot_be_registered_is_refused_by_its_code(gateway: Running, body: Any, code: str) -> None:
    with gateway.client() as client:
        assert client.post("/v1/webhooks", json=body).json()["code"] == code
        assert client.get("/v1/webhooks").json() == {"webhooks": []}


def test_there_are_only_so_many_webhooks(tmp_path: Path, receiver: Receiver) -> None:

    with running(tmp_path, settings=replace(QUICK, webhooks_max=1)) as gateway, asking(gateway) as ask:
        registered(ask, receiver)
        ask("POST", body={"url": receiver.url, "stream": "a"}, expect=503)


@pytest.mark.parametrize("grants", [["consume:*", "produce:b"], ["consume:*", "produce:*"], ["produce:a"]])
def test_webhooks_of_others_are_not_there_for_anyone_but_an_admin(
    gateway: Running, receiver: Receiver, grants: list[str]
) -> None:
    """Two tenants: every path of one's webhook, requested by the other."""
    mine, others, boss = gateway.add("mine", "consume:a"), gateway.add("others", *grants), gateway.add("boss", "admin")
    with asking(gateway, mine) as ask, asking(gateway, others) as other, asking(gateway, boss) as admin:
        id = registered(ask, receiver)
        assert other("GET") == {"webhooks": []}
        for method, path in (
            ("GET", ""), ("DELETE", ""), ("GET", "/dead"), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/verify"),
            ("POST", "/rotate"), ("POST", "/dead/redrive"),
        ):  # fmt: skip
            other(method, f"/{id}{path}", expect=404)
        other("POST", f"/{id}/redrive", {"since": "earliest"}, expect=404)
        assert ask("GET", f"/{id}")["state"] == "active"
        assert [webhook["id"] for webhook in admin("GET")["webhooks"]] == [id]
        assert admin("POST", f"/{id}/pause")["state"] == "paused"
        assert admin("POST", f"/{id}/resume")["owner"] == "key:mine"
        ask("POST", body={"url": receiver.url, "stream": "b"}, expect=403)
        ask("POST", body={"url": receiver.url, "view": "none"}, expect=403)


def test_a_webhook_stops_when_its_owners_key_is_revoked(gateway: Running, receiver: Receiver) -> None:
    mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
    with asking(gateway, mine) as ask, asking(gateway, boss) as admin:
        id = registered(ask, receiver)
        gateway.post("a", boss, {"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        gateway.keys.revoke("mine")
        gateway.reload()
        gateway.post("a", boss, {"k": "one", "n": 2})
        webhook = state_is(admin, id, "stopped")
        assert "key:mine no longer has access" in webhook["reason"]
        assert len(receiver.bodies) == 1
        assert admin("POST", f"/{id}/resume")["owner"] == "key:boss"
        wait_for(lambda: [event["n"] for event in receiver.events()] == [1, 2])


def test_a_webhook_stops_though_nothing_is_to_be_sent(gateway: Running, receiver: Receiver) -> None:
    mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
    with asking(gateway, mine) as ask, asking(gateway, boss) as admin:
        id = registered(ask, receiver)
        gateway.keys.revoke("mine")
        gateway.reload()
        state_is(admin, id, "stopped")


def test_a_webhook_stops_when_its_owner_loses_the_grant_and_goes_on_under_a_key_that_was_rotated(
    gateway: Running, receiver: Receiver
) -> None:
    mine, boss = gateway.add("mine", "consume:a"), gateway.add("boss", "admin")
    with asking(gateway, mine) as ask, asking(gateway, boss) as admin:
        id = registered(ask, receiver)
        gateway.keys.rotate("mine", timedelta(0))
        gateway.reload()
        gateway.post("a", boss, {"k": "one", "n": 1})
        wait_for(lambda: len(receiver.bodies) == 1)
        path = gateway.keys.path
        write_atomic(path, path.read_bytes().replace(b'"consume:a"', b'"consume:b"'), durable=False)
        gateway.reload()
        webhook = state_is(admin, id, "stopped")
        assert "is no longer allowed to consume 'a'" in webhook["reason"]


def test_figures_tell_of_webhooks_without_paths_and_secrets(gateway: Running, receiver: Receiver) -> None:
    with asking(gateway) as ask:
        id = registered(ask, receiver)
        app, metrics = gateway.get("/v1/app"), gateway.get("/metrics").text
        [webhook] = app.json()["webhooks"]
        assert (webhook["name"], webhook["of"], webhook["state"]) == (id, "a", "active")
        assert webhook["address"] == f"http://127.0.0.1:{receiver.server_address[1]}"
        assert f'penstock_webhook_active{{webhook="{id}"}} 1.0' in metrics
        for text in (app.text, metrics):
            assert "hidden" not in text
            assert "secret-path" not in text
            assert receiver.secrets[0] not in text


def test_secrets_are_in_no_log(gateway: Running, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    receiver.status = 410
    with asking(gateway) as ask:
        id = registered(ask, receiver)
        ask("POST", f"/{id}/rotate")
        receiver.secrets.append(ask("POST", f"/{id}/rotate")["secret"])
        gateway.post("a", events={"k": "one"})
        state_is(ask, id, "disabled")
    assert "410" in caplog.text
    assert "whsec_" not in caplog.text
    assert not any(secret[6:] in caplog.text for secret in receiver.secrets)


def make_app(receiver: Receiver, secret: str) -> App:
    app = App("guarded")
    stream = app.stream("a", Reading, key="k")
    app.webhook("hook", of=stream, url=receiver.url, secret=secret, where="n > 1")
    return app


def test_a_webhook_that_the_app_declares_works_and_goes_on_after_a_restart(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.secrets.append(new_secret())
    monkeypatch.setenv("HOOK_SECRET", receiver.secrets[0])
    monkeypatch.setattr(guarded, "make_app", lambda: make_app(receiver, "HOOK_SECRET"))
    for number in (2, 3):
        with running(tmp_path, settings=QUICK) as gateway, asking(gateway) as ask:
            webhook = state_is(ask, "hook", "active")
            assert (webhook["declared"], webhook["owner"], webhook["where"]) == (True, "app", "n > 1")
            gateway.post("a", events=[{"k": "one", "n": 0}, {"k": "one", "n": number}])
            wait_for(lambda: receiver.events()[-1:] == [{"k": "one", "n": number}])  # noqa: B023
            ask("DELETE", "/hook", expect=409)
            ask("POST", "/hook/rotate", expect=409)
    assert [event["n"] for event in receiver.events()] == [2, 3]
    assert receiver.secrets[0].encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("webhooks.db*"))


def test_a_declared_webhook_without_its_secret_is_stopped_and_one_that_is_no_longer_declared_too(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "make_app", lambda: make_app(receiver, "HOOK_SECRET"))
    with running(tmp_path, settings=QUICK) as gateway, asking(gateway) as ask:
        assert "no such environment variable" in state_is(ask, "hook", "stopped")["reason"]
    monkeypatch.setattr(guarded, "make_app", lambda: _without(make_app(receiver, "HOOK_SECRET")))
    with running(tmp_path, settings=QUICK) as gateway, asking(gateway) as ask:
        assert "no longer declares" in state_is(ask, "hook", "stopped")["reason"]
        ask("DELETE", "/hook", expect=204)


def _without(app: App) -> App:
    app._webhooks.clear()
    return app


def test_a_declared_webhooks_secrets_may_be_in_a_file_and_be_two(tmp_path: Path, receiver: Receiver) -> None:
    one, two = new_secret(), new_secret()
    (tmp_path / "secret").write_text(f"{two}\n{one}\n")
    [webhook] = declared(make_app(receiver, str(tmp_path / "secret")), {})
    assert (webhook.secrets, webhook.wrong) == ((two, one), None)
    (tmp_path / "secret").write_text("whsec_short")
    [webhook] = declared(make_app(receiver, str(tmp_path / "secret")), {})
    assert webhook.secrets == ()
    assert "short" not in (webhook.wrong or "")
    [webhook] = declared(make_app(receiver, str(tmp_path / "none")), {})
    assert "No such file" in (webhook.wrong or "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"of": "none"}, "not a stream, view or feed of this app"),
        ({"url": "ftp://x"}, "https://"),
        ({"secret": "whsec_abc"}, "not the secret itself"),
        ({"secret": "not a name"}, "environment variable"),
        ({"secret": "PENSTOCK_X"}, "does not begin with PENSTOCK_"),
        ({"batch": 0}, "batch must be from 1"),
        ({"where": "none = 1"}, "none"),
        ({"name": "Bad Name"}, "the name is invalid"),
        ({"name": "a"}, "already used by"),
    ],
)
def test_a_declaration_that_is_wrong_is_found_by_check(given: dict[str, Any], message: str) -> None:
    app = App("test")
    app.stream("a", Reading, key="k")
    chosen = {"name": "hook", "of": "a", "url": "https://x.example/", "secret": "HOOK_SECRET"} | given
    app.webhook(chosen.pop("name"), **chosen)
    [problem] = check(app)
    assert message in problem.message
    assert problem.where.file.endswith("test_webhooks.py")


def test_a_sound_declaration_has_no_problem() -> None:
    app = App("test")
    stream = app.stream("a", Reading, key="k")
    feed = app.feed("part", of=stream, where="n > 1")
    app.webhook("one", of=feed, url="https://x.example/", secret=Path("/run/secrets/hook"), select=["k"])
    app.webhook("two", of="a", url="https://x.example/", secret="HOOK_SECRET", where="n > 1", batch=10)
    assert check(app) == []


def test_a_declared_webhook_of_a_stream_that_is_still_to_be_made_waits_for_it(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of a handler is a stream that the engine creates, and there is none here."""
    monkeypatch.setenv("HOOK_SECRET", new_secret())
    before = guarded.make_app

    def with_webhook() -> App:
        app = before()
        app.webhook("made", of="h", url=receiver.url, secret="HOOK_SECRET")
        return app

    monkeypatch.setattr(guarded, "make_app", with_webhook)
    with running(tmp_path, settings=QUICK) as gateway, asking(gateway) as ask:
        webhook = state_is(ask, "made", "active")
        assert (webhook["cursor"], webhook["lag"], webhook["last_error"]) == ("earliest", None, None)
        with gateway.client() as client:
            assert client.post("/v1/webhooks", json={"url": receiver.url, "stream": "h"}).status_code == 404


def test_a_damaged_file_stops_webhooks_and_nothing_else(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "webhooks.db").write_bytes(b"this is no database" * 100)
    with running(tmp_path, settings=QUICK) as gateway:
        assert gateway.get("/v1/webhooks").json()["code"] == "damaged"
        assert gateway.post("a").status_code == 200
        assert (
            "webhooks are not running, because their file cannot be used" in gateway.get("/v1/health").json()["reasons"]
        )
        assert gateway.get("/v1/app").json()["webhooks"] == []


def token(subject: str, lives_s: float, **claims: str) -> str:
    return signed(sub=subject, scope="consume:a", exp=int(time.time() + lives_s), **claims)


def test_a_webhook_sends_the_rows_that_its_owner_may_see(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "secret").write_text(SECRET)
    jwt = Jwt(ISSUER, AUDIENCE, tmp_path / "secret", ("HS256",))
    policy = Policy(jwt=jwt, rows={"a": "k = claim('place')"})
    with running(tmp_path / "data", policy, QUICK) as gateway:
        boss = gateway.add("boss", "admin")
        with asking(gateway, token("ada", 3600, place="here")) as ask:
            registered(ask, receiver, where="n > 1")
            for number in range(4):
                gateway.post("a", boss, [{"k": "here", "n": number}, {"k": "there", "n": number}])
            wait_for(lambda: [event["n"] for event in receiver.events()] == [2, 3])
    assert {event["k"] for event in receiver.events()} == {"here"}


def test_a_webhook_that_was_registered_with_a_token_ends_with_it(tmp_path: Path, receiver: Receiver) -> None:
    """It also ends with the process, which does not store tokens; a caller with another one resumes it."""
    (tmp_path / "secret").write_text(SECRET)
    policy = Policy(jwt=Jwt(ISSUER, AUDIENCE, tmp_path / "secret", ("HS256",)))
    with running(tmp_path / "data", policy, QUICK) as gateway:
        boss = gateway.add("boss", "admin")
        with asking(gateway, token("ada", 3600)) as ask:
            id = registered(ask, receiver)
            gateway.post("a", boss, {"k": "one", "n": 1})
            wait_for(lambda: len(receiver.bodies) == 1)
        with asking(gateway, token("eve", 3600)) as eve:
            eve("GET", f"/{id}", expect=404)
    with running(tmp_path / "data", policy, QUICK) as gateway:
        with asking(gateway, boss) as admin, asking(gateway, token("ada", 8 - LEEWAY_S)) as ask:
            assert "token:ada no longer has access" in state_is(admin, id, "stopped")["reason"]
            assert ask("POST", f"/{id}/resume")["state"] == "active"
            gateway.post("a", boss, {"k": "one", "n": 2})
            wait_for(lambda: len(receiver.bodies) == 2)
            assert "token:ada" in state_is(admin, id, "stopped")["reason"]
        with asking(gateway, token("ada", 3600)) as ask:
            gateway.post("a", boss, {"k": "one", "n": 3})
            ask("POST", f"/{id}/resume")
            wait_for(lambda: [event["n"] for event in receiver.events()] == [1, 2, 3])


def test_a_declared_webhook_is_shown_without_its_address() -> None:
    """Many services accept posts from anyone who knows the address."""
    app = App("shop")
    webhook = app.webhook("out", of=app.stream("orders"), url="https://x.example/services/hidden?t=hidden", secret="S")
    assert "hidden" not in repr(webhook)
    assert "out" in repr(webhook)
