"""The errors that Penstock raises.

    PenstockError                   code                retry  HTTP
    ├── DeclarationError            declaration         no     -     the app's own file is wrong
    ├── ViewError                   view                no     -     a user's view fails, with its file:line
    ├── HandlerError                handler             no     -     a handler cannot continue
    ├── SourceFailed                source_failed       no     -     a source cannot continue, and a retry does not help
    ├── RequestError                request             no     400   the caller's input is wrong
    │   ├── MalformedBody           malformed_body      no     400
    │   ├── BadParameter            bad_parameter       no     400
    │   ├── BadCursor               bad_cursor          no     400
    │   ├── BadExpression           bad_expression      no     400   a condition is invalid, or not allowed
    │   ├── BadQuery                bad_query           no     400   SQL is invalid, or does not fit the data
    │   ├── QueryRefused            query_refused       no     400   SQL uses something that is not allowed
    │   ├── QueryTooSlow            query_too_slow      no     422   a query exceeded its time limit
    │   ├── QueryTooLarge           query_too_large     no     422   a query exceeded its memory limit
    │   ├── Unauthorized            unauthorized        no     401   the caller is not authenticated
    │   ├── BadSignature            bad_signature       no     401   the signature of a webhook is invalid
    │   ├── Forbidden               forbidden           no     403   the caller is not allowed to do this
    │   ├── NotFound                not_found           no     404
    │   ├── Conflict                conflict            no     409   the current state does not allow the request
    │   ├── TooSlow                 too_slow            no     408   the head or the body did not arrive in time
    │   ├── TooLarge                too_large           no     413
    │   ├── HeadTooLarge            head_too_large      no     431
    │   ├── UnsupportedMedia        unsupported_media   no     415
    │   ├── UnsupportedCoding       unsupported_coding  no     501   a transfer coding other than chunked
    │   └── InvalidEvents           invalid_events      no     422
    ├── NoReplyYet                  no_reply_yet        no     504   the events were accepted, but there is no reply yet
    ├── Busy                        busy                yes    503   retry after `retry_after_s`
    │   ├── Overloaded              overloaded          yes    429
    │   ├── RateLimited             rate_limited        yes    429   this caller has exceeded its rate
    │   ├── DiskFull                disk_full           yes    507
    │   └── Stopping                stopping            yes    503
    ├── StorageError                storage             no     500
    │   ├── Damaged                 damaged             no     500   bytes on disk differ from what was written
    │   ├── EventUnreadable         event_unreadable    no     500   a stored event does not fit its class
    │   ├── NewerFormat             newer_format        no     500
    │   ├── SyncFailed              sync_failed         no     500   final: the process exits with EXIT_IO
    │   └── LedgerMismatch          ledger_mismatch     no     500   the checkpoint and the ledger disagree
    ├── AlreadyRunning              already_running     no     -
    └── MissingTool                 missing_tool        no     -     contains the command that fixes it

Each error has a `message` for people and `fields` for programs. `retry` says whether the same call might succeed later.
Only `as_problem` converts errors to `application/problem+json` (RFC 9457).
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_IO = 74
"""Exit status after a failed fsync (EX_IOERR in sysexits.h). The supervisor restarts the process. Nothing that was
being written has been acknowledged."""
EXIT_JAVA = 70
"""Exit status of an engine after its Java process has ended (EX_SOFTWARE). The supervisor restarts the engine."""


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
        return (_unpickled_error, (type(self), self.message, self.fields))


def _unpickled_error(kind: type[PenstockError], message: str, fields: dict[str, Any]) -> PenstockError:
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
    """An invalid expression. `part` is "where" or "select", and `position` is the index of the invalid character."""

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
    """The reply did not arrive in time, but the events were accepted. The fields contain the response to the
    request."""

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
    """Return the error as an RFC 9457 object. The fields of a storage error appear only in the log: the caller gets
    just the code and message."""
    title = type(error).code.replace("_", " ").capitalize()
    return {
        "type": "about:blank",
        "title": title,
        "status": error.status,
        "code": error.code,
        "detail": error.message,
    } | {name: value for name, value in error.fields.items() if not isinstance(error, StorageError)}
