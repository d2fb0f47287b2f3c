"""The exceptions that a client raises, and the server errors that a retry might resolve.

ClientError
├── ServerError      the server, or a proxy in front of it, refused the request; has `code`, `status`, `fields`
├── Unreachable      no valid response arrived in time
├── OutboxFull       the outbox is full, and its policy is to refuse further events
└── GaveUp           raised by a user's effect: do not retry this intent
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.backoff import retry_after_s

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
"""Status codes of errors that retrying the same request might resolve."""
NEVER = frozenset({"damaged", "newer_format", "ledger_mismatch", "no_reply_yet"})
"""Codes of errors that must not be retried even if their status is in `AGAIN`: they need an operator's attention, or
are not failures."""


class ClientError(Exception):
    """Base class of the exceptions a client raises."""


class ServerError(ClientError):
    """A response with a status of 400 or above, or an `error` message. `code` is for programs, and the text is for
    users."""

    def __init__(self, status: int, code: str | None, detail: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{detail} ({code or status})")
        self.status = status
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})
        self.retry_after_s: float | None = _retry_after_number(self.fields.get("retry_after_s"))

    @property
    def retry(self) -> bool:
        """Whether the same request can succeed later."""
        return retry_helps(self.status, self.code)


class Unreachable(ClientError):
    """The server sent no valid response in time. The outcome of the call is unknown."""


class OutboxFull(ClientError):
    """The outbox is full, and `when_full` is "refuse". The event was not accepted."""


class GaveUp(ClientError):
    """Raised by an effect if the other side will never accept an intent. The intent is kept, and later intents are
    performed."""


class ConnectionLost(Exception):
    """A connection broke or delivered invalid data. Users never see this error: the connection is retried."""


class TransportBlocked(Exception):
    """Something between the client and the server blocks this transport."""


def retry_helps(status: int, code: str | None) -> bool:
    """Return whether the client retries an error. `code` is None if the response had no problem object with a code."""
    return status in AGAIN and code not in NEVER


def certificate_refused(error: BaseException) -> bool:
    """Return whether a connection failed because the server's certificate is not trusted: retrying cannot fix that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def from_problem(problem: Any, status: int = 500) -> ServerError:
    """Return the client error for a problem object, or for the status alone if `problem` is not an object."""
    if not isinstance(problem, dict):
        return ServerError(status, None, f"the server responded with {status}")
    own_status = problem.get("status")
    code = problem.get("code")
    detail = problem.get("detail") or problem.get("title") or f"the server responded with {status}"
    known = ("type", "title", "status", "code", "detail")
    fields = {name: value for name, value in problem.items() if name not in known}
    chosen = own_status if isinstance(own_status, int) and not isinstance(own_status, bool) else status
    return ServerError(chosen, code if isinstance(code, str) else None, str(detail), fields)


def from_answer(status: int, media_type: str, body: bytes, retry_after: str | None) -> ServerError:
    """Return the client error for an HTTP response, from the server or an intermediary."""
    problem: Any = None
    if media_type.partition(";")[0].strip().lower() == "application/problem+json":
        try:
            problem = msgspec.json.decode(body)
        except msgspec.DecodeError:
            problem = None
    error = from_problem(problem, status)
    error.status = status
    if (seconds := retry_after_s(retry_after)) is not None:  # if it is a date, the back-off is used
        error.retry_after_s = seconds
    return error


def _retry_after_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
