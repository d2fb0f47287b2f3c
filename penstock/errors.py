"""Every error that Penstock raises on purpose.

    PenstockError                   code                retry  HTTP
    ├── DeclarationError            declaration         no     -     the app's own file is wrong
    ├── ViewError                   view                no     -     a user's view fails, with its file:line
    ├── HandlerError                handler             no     -     a handler cannot go on
    ├── SourceFailed                source_failed       no     -     a feed cannot go on, and trying again is no use
    ├── RequestError                request             no     400   the caller's input is wrong
    │   ├── MalformedBody           malformed_body      no     400
    │   ├── BadParameter            bad_parameter       no     400
    │   ├── BadCursor               bad_cursor          no     400
    │   ├── BadExpression           bad_expression      no     400   a condition that cannot be read, or is not allowed
    │   ├── BadQuery                bad_query           no     400   SQL that cannot be read, or does not fit the data
    │   ├── QueryRefused            query_refused       no     400   SQL with something that is not allowed
    │   ├── QueryTooSlow            query_too_slow      no     422   a query was ended when its time was over
    │   ├── QueryTooLarge           query_too_large     no     422   a query took more memory than it may
    │   ├── Unauthorized            unauthorized        no     401   who the caller is was not proved
    │   ├── BadSignature            bad_signature       no     401   a webhook that is not signed as it should be
    │   ├── Forbidden               forbidden           no     403   the caller may not do this
    │   ├── NotFound                not_found           no     404
    │   ├── Conflict                conflict            no     409   not in the state that the thing is in
    │   ├── TooSlow                 too_slow            no     408   head or body did not come in time
    │   ├── TooLarge                too_large           no     413
    │   ├── HeadTooLarge            head_too_large      no     431
    │   ├── UnsupportedMedia        unsupported_media   no     415
    │   ├── UnsupportedCoding       unsupported_coding  no     501   a transfer coding other than chunked
    │   └── InvalidEvents           invalid_events      no     422
    ├── NoReplyYet                  no_reply_yet        no     504   the events are taken; the reply comes later
    ├── Busy                        busy                yes    503   come back after `retry_after_s`
    │   ├── Overloaded              overloaded          yes    429
    │   ├── RateLimited             rate_limited        yes    429   this caller has used up its rate
    │   ├── DiskFull                disk_full           yes    507
    │   └── Stopping                stopping            yes    503
    ├── StorageError                storage             no     500
    │   ├── Damaged                 damaged             no     500   bytes on disk are not what was written
    │   ├── EventUnreadable         event_unreadable    no     500   a stored event does not fit its class
    │   ├── NewerFormat             newer_format        no     500
    │   ├── SyncFailed              sync_failed         no     500   final: the process exits with EXIT_IO
    │   └── LedgerMismatch          ledger_mismatch     no     500   checkpoint and ledger disagree
    ├── AlreadyRunning              already_running     no     -
    └── MissingTool                 missing_tool        no     -     carries the command that mends it

Each carries a message for a person, `fields` for a program, and says by `retry` whether the same call can succeed
later. `as_problem` is the one place that turns an error into `application/problem+json` (RFC 9457).
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_IO = 74
"""Exit status after a failed fsync (EX_IOERR of sysexits): the supervisor restarts, nothing was acknowledged."""
EXIT_JAVA = 70
"""Exit status of an engine whose Java process has ended (EX_SOFTWARE): the supervisor restarts it."""


class PenstockError(Exception):
    code: ClassVar[str] = "penstock"
    status: ClassVar[int] = 500
    retry: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(kind: type[PenstockError], message: str, fields: dict[str, Any]) -> PenstockError:
    return kind(message, **fields)


class DeclarationError(PenstockError):
    code = "declaration"


class ViewError(PenstockError):
    code = "view"


class HandlerError(PenstockError):
    code = "handler"


class SourceFailed(PenstockError):
    code = "source_failed"


class RequestError(PenstockError):
    code = "request"
    status = 400


class MalformedBody(RequestError):
    code = "malformed_body"


class BadParameter(RequestError):
    code = "bad_parameter"


class BadCursor(RequestError):
    code = "bad_cursor"


class BadExpression(RequestError):
    """Carries `part`, "where" or "select", and `position`, the index of the character in it that the error is about."""

    code = "bad_expression"

    @property
    def part(self) -> str | None:
        return self.fields.get("part")

    @property
    def position(self) -> int | None:
        return self.fields.get("position")


class BadQuery(RequestError):
    code = "bad_query"


class QueryRefused(RequestError):
    code = "query_refused"


class QueryTooSlow(RequestError):
    code = "query_too_slow"
    status = 422


class QueryTooLarge(RequestError):
    code = "query_too_large"
    status = 422


class Unauthorized(RequestError):
    code = "unauthorized"
    status = 401


class BadSignature(RequestError):
    code = "bad_signature"
    status = 401


class Forbidden(RequestError):
    code = "forbidden"
    status = 403


class NotFound(RequestError):
    code = "not_found"
    status = 404


class Conflict(RequestError):
    code = "conflict"
    status = 409


class TooSlow(RequestError):
    code = "too_slow"
    status = 408


class HeadTooLarge(RequestError):
    code = "head_too_large"
    status = 431


class TooLarge(RequestError):
    code = "too_large"
    status = 413


class UnsupportedMedia(RequestError):
    code = "unsupported_media"
    status = 415


class UnsupportedCoding(RequestError):
    code = "unsupported_coding"
    status = 501


class InvalidEvents(RequestError):
    code = "invalid_events"
    status = 422


class NoReplyYet(PenstockError):
    """Carries the answer of a request that was taken, and whose reply did not come in time."""

    code = "no_reply_yet"
    status = 504


class Busy(PenstockError):
    code = "busy"
    status = 503
    retry = True

    def __init__(self, message: str, *, retry_after_s: int = 1, **fields: Any) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **fields)
        self.retry_after_s = retry_after_s


class Overloaded(Busy):
    code = "overloaded"
    status = 429


class RateLimited(Busy):
    code = "rate_limited"
    status = 429


class DiskFull(Busy):
    code = "disk_full"
    status = 507


class Stopping(Busy):
    code = "stopping"


class StorageError(PenstockError):
    code = "storage"


class Damaged(StorageError):
    code = "damaged"


class EventUnreadable(StorageError):
    code = "event_unreadable"


class NewerFormat(StorageError):
    code = "newer_format"


class SyncFailed(StorageError):
    code = "sync_failed"


class LedgerMismatch(StorageError):
    code = "ledger_mismatch"


class AlreadyRunning(PenstockError):
    code = "already_running"


class MissingTool(PenstockError):
    code = "missing_tool"


def as_problem(error: PenstockError) -> dict[str, Any]:
    """The error as an RFC 9457 object. Storage details stay in the log: a caller gets the code and the sentence."""
    title = type(error).code.replace("_", " ").capitalize()
    return {
        "type": "about:blank",
        "title": title,
        "status": error.status,
        "code": error.code,
        "detail": error.message,
    } | {name: value for name, value in error.fields.items() if not isinstance(error, StorageError)}
