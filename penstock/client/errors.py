"""What a client raises, and which errors of the server are worth another try.

ClientError
├── ServerError      the server, or something before it, said no: has `code`, `status`, `fields`
├── Unreachable      no sound answer came in the time that there was
├── OutboxFull       the outbox has no room, and its policy is to refuse
└── GaveUp           raised by a user's effect: this one is not to be tried again
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
"""Statuses after which the same request can succeed."""
NEVER = frozenset({"damaged", "newer_format", "ledger_mismatch", "no_reply_yet"})
"""Codes with such a status all the same, for which somebody must see to the server, or which are no failure."""


class ClientError(Exception):
    """Everything that a client raises on purpose."""


class ServerError(ClientError):
    """An answer of 400 or more, or an `error` message: `code` is for programs, the text is for people."""

    def __init__(self, status: int, code: str | None, detail: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{detail} ({code or status})")
        self.status = status
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})
        self.retry_after_s: float | None = _number(self.fields.get("retry_after_s"))

    @property
    def retry(self) -> bool:
        """Whether the same can succeed later."""
        return retry_helps(self.status, self.code)


class Unreachable(ClientError):
    """The server did not answer, or not soundly, for as long as the call was given. What became of it is not known."""


class OutboxFull(ClientError):
    """An outbox that refuses when it is full is full. The event was not taken."""


class GaveUp(ClientError):
    """For effects to raise: the other side will never take this one. It is kept, and the ones after it go on."""


class Lost(Exception):
    """A connection broke, or what came over it makes no sense. Never seen by users: it is tried again."""


class NotSpoken(Exception):
    """Something between client and server does not let this transport through."""


def retry_helps(status: int, code: str | None) -> bool:
    """Whether an error with this status, and this code if it has a problem, is tried again."""
    return status in AGAIN and code not in NEVER


def certificate_refused(error: BaseException) -> bool:
    """Whether a connection failed because the other side's certificate is not to be trusted: that does not mend itself,
    and must not be waited out in silence."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def from_problem(problem: Any, status: int = 500) -> ServerError:
    """The error of a problem object; of anything else, that of the status."""
    if not isinstance(problem, dict):
        return ServerError(status, None, f"the server answered {status}")
    told = problem.get("status")
    code = problem.get("code")
    detail = problem.get("detail") or problem.get("title") or f"the server answered {status}"
    known = ("type", "title", "status", "code", "detail")
    fields = {name: value for name, value in problem.items() if name not in known}
    chosen = told if isinstance(told, int) and not isinstance(told, bool) else status
    return ServerError(chosen, code if isinstance(code, str) else None, str(detail), fields)


def from_answer(status: int, media_type: str, body: bytes, retry_after: str | None) -> ServerError:
    """The error of an HTTP answer, whoever gave it."""
    problem: Any = None
    if media_type.partition(";")[0].strip().lower() == "application/problem+json":
        try:
            problem = msgspec.json.decode(body)
        except msgspec.DecodeError:
            problem = None
    error = from_problem(problem, status)
    error.status = status
    if (seconds := _seconds(retry_after)) is not None:
        error.retry_after_s = seconds
    return error


def _seconds(text: str | None) -> float | None:
    """What `Retry-After` says, if it says seconds; a date is left to the back-off."""
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return float(text)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
