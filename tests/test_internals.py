"""Internals of our dependencies that we use. Their upper bounds in `pyproject.toml` exist for this: when one is
raised, a failure here says which file of ours to review. (The Java side of Spark is called in tests/analyze.)
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import pytest
import sqlglot
import uvicorn
import uvloop
from nats.aio.client import Client
from pyspark import SparkContext, cloudpickle, daemon
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.internal import InternalFunction
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import _create_local_socket
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parser import Parser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.core.filters.syntax import _PARTS, PlainParser
from tests.serve.fakes import run

EDGE, PROTOCOL, SHORT_WAY = "penstock/http/edge.py", "penstock/http/protocol.py", "penstock/collect/protocol.py"
GATEWAY, ANALYZE, SQL = "penstock/runtime/gateway.py", "penstock/analyze", "penstock/serve/query"
ASKED = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def require(holds: object, what: str, *users: str) -> None:
    assert holds, f"{what} is not as {' and '.join(users)} relies on"


SIGNATURES: list[tuple[Callable[..., Any], list[str], str]] = [
    (HttpToolsProtocol.connection_made, ["transport"], EDGE),
    (HttpToolsProtocol.connection_lost, ["exc"], EDGE),
    (HttpToolsProtocol.data_received, ["data"], EDGE),
    (HttpToolsProtocol.handle_websocket_upgrade, [], EDGE),
    (HttpToolsProtocol._should_upgrade, [], EDGE),
    (HttpToolsProtocol.on_header, ["name", "value"], EDGE),
    (HttpToolsProtocol.on_response_complete, [], EDGE),
    (HttpToolsProtocol.send_400_response, ["msg"], EDGE),
    (HttpToolsProtocol.on_message_begin, [], SHORT_WAY),
    (HttpToolsProtocol.on_url, ["url"], SHORT_WAY),
    (HttpToolsProtocol.on_headers_complete, [], SHORT_WAY),
    (HttpToolsProtocol.on_body, ["body"], SHORT_WAY),
    (HttpToolsProtocol.on_message_complete, [], SHORT_WAY),
    (HttpToolsProtocol._start_asgi_task, ["cycle", "app"], PROTOCOL),
    (RequestResponseCycle.send, ["message"], PROTOCOL),
    (WebSocketsSansIOProtocol.handle_connect, ["event"], PROTOCOL),
    (WebSocketsSansIOProtocol.handle_cont, ["event"], PROTOCOL),
    (WebSocketsSansIOProtocol.handle_ping, [], PROTOCOL),
    (WebSocketsSansIOProtocol.handle_parser_exception, [], PROTOCOL),
    (WebSocketsSansIOProtocol.send_receive_event_to_app, [], PROTOCOL),
    (WebSocketsSansIOProtocol.send, ["message"], PROTOCOL),
    (WebSocketsSansIOProtocol.connection_lost, ["exc"], PROTOCOL),
    (WebSocketsSansIOProtocol.data_received, ["data"], PROTOCOL),
    (ServerProtocol.accept, ["request"], PROTOCOL),
    (ServerProtocol.reject, ["status", "text"], PROTOCOL),
    (ServerProtocol.recv_frame, ["frame"], PROTOCOL),
    (ServerProtocol.fail, ["code", "reason"], PROTOCOL),
    (ServerProtocol.data_to_send, [], PROTOCOL),
    (uvicorn.Server._serve, ["sockets"], GATEWAY),
    (Parser.parse, ["raw_tokens", "sql"], "penstock/core/filters/syntax.py"),
    (DuckDB.Parser._advance, ["times"], f"{SQL}/parsing.py"),
    (_create_local_socket, ["sock_info"], f"{ANALYZE}/fetching.py"),
    (ArrowCollectSerializer.load_stream, ["stream"], f"{ANALYZE}/fetching.py"),
    (InternalFunction._invoke_internal_function_over_columns, ["name", "cols"], f"{ANALYZE}/summaries.py"),
    (daemon.manager, [], f"{ANALYZE}/workers.py"),
    (cloudpickle.register_pickle_by_value, ["module"], f"{ANALYZE}/session.py"),
]


@pytest.mark.parametrize(
    ("called", "names", "user"), SIGNATURES, ids=lambda parameter: getattr(parameter, "__qualname__", None)
)
def test_a_method_that_we_call_or_override_has_these_parameters(
    called: Callable[..., Any], names: list[str], user: str
) -> None:
    parameters = [name for name in inspect.signature(called).parameters if name != "self"]
    require(parameters == names, f"{called.__module__}.{called.__qualname__}({', '.join(parameters)})", user)


class Transport:
    """Accepts everything written. It is never paused or closed."""

    def __init__(self) -> None:
        self.written = bytearray()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    resume_reading = set_protocol = pause_reading


def build(kind: type[Any]) -> Any:
    """A protocol of uvicorn with a connection, on the loop that runs."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    protocol = kind(config, ServerState(), {})
    protocol.connection_made(Transport())
    return protocol


def require_attributes(thing: object, names: str, *users: str) -> None:
    for name in names.split():
        require(hasattr(thing, name), f"{type(thing).__module__}.{type(thing).__name__}.{name}", *users)


def test_the_http_protocol_keeps_its_state_in_these_attributes() -> None:
    async def main() -> None:
        protocol = build(HttpToolsProtocol)
        require(protocol.cycle is None, "HttpToolsProtocol.cycle before a request", EDGE)
        protocol.data_received(ASKED)
        names = (
            "client config cycle expect_100_continue flow headers loop parser pipeline scope server_state transport url"
        )
        require_attributes(protocol, names, EDGE, SHORT_WAY)
        require_attributes(protocol.flow, "write_paused resume_reading", EDGE, SHORT_WAY)
        require_attributes(protocol.server_state, "default_headers total_requests", EDGE)
        require_attributes(protocol.parser, "get_method get_http_version should_keep_alive", SHORT_WAY)
        require_attributes(protocol.parser, "feed_data set_dangerous_leniencies should_upgrade", EDGE)
        names = "disconnected keep_alive message_event response_complete"
        require_attributes(protocol.cycle, names, EDGE, SHORT_WAY)
        names = "chunked_encoding expected_content_length flow response_started scope send transport"
        require_attributes(protocol.cycle, names, PROTOCOL)
        require(protocol.cycle.scope["state"] == {}, "the state in a scope", SHORT_WAY)
        require(STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n", "STATUS_LINE", EDGE)
        await cancelled(protocol)

    run(main())


async def cancelled(protocol: Any) -> None:
    for task in list(protocol.tasks):
        task.cancel()
    await asyncio.gather(*protocol.tasks, return_exceptions=True)


def test_a_callback_that_raises_stops_the_parser_and_is_answered_with_400() -> None:
    refused: list[str] = []

    class Refusing(HttpToolsProtocol):
        def on_headers_complete(self) -> None:
            raise ValueError("no")

        def send_400_response(self, msg: str) -> None:
            refused.append(msg)

    async def main() -> None:
        build(Refusing).data_received(ASKED)

    run(main())
    require(len(refused) == 1, "what HttpToolsProtocol does when a callback raises", EDGE)
    assert issubclass(httptools.HttpParserCallbackError, httptools.HttpParserError)


def test_pipelined_requests_wait_newest_first_and_begin_by_start_asgi_task() -> None:
    begun: list[Any] = []

    class Watched(HttpToolsProtocol):
        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            begun.append(cycle)

    async def main() -> None:
        protocol = build(Watched)
        protocol.data_received(3 * ASKED)
        first = begun[0]
        require(len(begun) == 1 and first is not protocol.cycle, "who begins pipelined requests", EDGE, PROTOCOL)
        require(isinstance(protocol.pipeline, deque) and len(protocol.pipeline) == 2, "the pipeline", EDGE)
        require(protocol.pipeline[0][0] is protocol.cycle, "the order of the pipeline", EDGE)
        second = protocol.pipeline[-1][0]
        first.response_complete = True
        first.on_response()
        require(begun == [first, second], "the request that follows an answer", EDGE)

    run(main())


def test_a_cycle_that_is_told_that_it_sends_no_chunks_sends_none() -> None:
    async def main() -> None:
        protocol = build(HttpToolsProtocol)
        protocol.data_received(ASKED)
        cycle = protocol.cycle
        cycle.chunked_encoding, cycle.expected_content_length = False, float("inf")
        await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
        await cycle.send({"type": "http.response.body", "body": b"x", "more_body": True})
        written = bytes(protocol.transport.written)
        require(written.endswith(b"\r\n\r\nx") and b"chunked" not in written, "chunked_encoding of a cycle", PROTOCOL)
        await cancelled(protocol)

    run(main())


def test_the_websocket_protocol_keeps_its_state_in_these_attributes() -> None:
    async def main() -> None:
        protocol = build(WebSocketsSansIOProtocol)
        names = (
            "close_sent close_timer config conn curr_msg_data_type disconnected frames handshake_complete logger loop"
        )
        require_attributes(protocol, f"{names} queue read_paused transport writable", PROTOCOL)
        require(isinstance(protocol.conn, ServerProtocol), "WebSocketsSansIOProtocol.conn", PROTOCOL)
        require(protocol.writable.is_set(), "WebSocketsSansIOProtocol.writable", PROTOCOL)
        protocol.frames = [b"a", b"b"]
        protocol.curr_msg_data_type = "text"
        protocol.send_receive_event_to_app()
        given = protocol.queue.get_nowait()
        require(given == {"type": "websocket.receive", "text": "ab"}, "how frames become a message", PROTOCOL)

    run(main())


def test_the_sans_io_protocol_of_websockets_keeps_its_state_in_these_attributes() -> None:
    protocol = ServerProtocol(state=State.OPEN, max_size=5, logger=None)
    require(protocol.max_message_size == 5, "ServerProtocol.max_message_size", PROTOCOL)
    require(protocol.current_size is None, "ServerProtocol.current_size", PROTOCOL)
    protocol.recv_frame(Frame(Opcode.TEXT, b"ab", fin=False))
    require(protocol.current_size == 2, "ServerProtocol.current_size within a message", PROTOCOL)
    assert protocol.close_sent is None
    protocol.fail(1008, "so")
    closing: Any = protocol.close_sent
    require((closing.code, closing.reason) == (1008, "so"), "ServerProtocol.close_sent", PROTOCOL)
    require(b"".join(protocol.data_to_send()).endswith(b"so"), "ServerProtocol.data_to_send", PROTOCOL)


def test_a_refusal_of_websockets_can_be_given_another_body() -> None:
    response = ServerProtocol(logger=None).reject(426, "")
    response.body = b"{}"
    del response.headers["Content-Length"]
    response.headers["Content-Length"] = "2"
    require(response.serialize().endswith(b"\r\n\r\n{}"), "the body of a Response", PROTOCOL)


def test_a_server_is_run_without_signal_handlers_and_makes_its_server_by_the_loop() -> None:
    arguments: dict[str, Any] = {}

    class Recording(uvloop.Loop):
        async def create_server(self, *given: Any, **options: Any) -> Any:
            arguments.update(options, given=given)
            return await super().create_server(*given, **{**options, "ssl": None})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def main() -> None:
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()
        config.ssl = context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server = uvicorn.Server(config)
        server.should_exit = True
        with socket.create_server(("127.0.0.1", 0)) as listener:
            await server._serve([listener])
        require(
            arguments["ssl"] is context and callable(arguments["given"][0]), "how uvicorn calls create_server", GATEWAY
        )

    with asyncio.Runner(loop_factory=Recording) as runner:
        runner.run(main())
    require("signal" not in inspect.getsource(uvicorn.Server._serve), "uvicorn.Server._serve", GATEWAY)


def test_the_tls_protocol_of_uvloop_takes_these_arguments() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        context, over = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), loop.create_future()
        protocol = SSLProtocol(loop, asyncio.Protocol(), context, over, server_side=True, ssl_handshake_timeout=1.0)
        require_attributes(protocol, "connection_made connection_lost", EDGE)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_the_client_of_nats_knows_what_its_server_said() -> None:
    require(
        Client()._server_info == {}, "nats.aio.client.Client._server_info", "penstock/collect/sources/nats/source.py"
    )


def test_the_parser_of_sqlglot_asks_these_tables_and_names_its_nodes_so() -> None:
    user = "penstock/core/filters/syntax.py"
    for name in vars(PlainParser):
        if name.isupper():
            require(isinstance(getattr(Parser, name, None), dict), f"sqlglot.parser.Parser.{name}", user)
    for name, parts in _PARTS.items():
        kind = getattr(exp, name, None)
        require(kind is not None, f"sqlglot.exp.{name}", user)
        known = set(getattr(kind, "arg_types", ()))
        require(parts & {"low", "high", "is_string", "quoted"} <= known, f"the parts of sqlglot.exp.{name}", user)
    tree = sqlglot.parse_one("SELECT a FROM t")
    require(isinstance(tree.args.get("from_"), exp.From), "the FROM of a tree", "penstock/cep/recognize/statement.py")


def test_the_parser_and_the_writer_of_a_query_are_counted_by_the_methods_that_we_override() -> None:
    steps = {"read": 0, "written": 0}

    class Reading(DuckDB.Parser):  # type: ignore[valid-type, misc]
        def _advance(self, times: int = 1) -> None:
            steps["read"] += 1
            super()._advance(times)

    class Writing(DuckDB.Generator):  # type: ignore[valid-type, misc]
        def sql(self, *given: Any, **named: Any) -> str:
            steps["written"] += 1
            return str(super().sql(*given, **named))

    dialect, text = DuckDB(), "SELECT a + 1 FROM t WHERE b > 2"
    [tree] = Reading(dialect=dialect).parse(dialect.tokenize(text), text)
    require(steps["read"] >= 8, "how often Parser._advance is called", f"{SQL}/parsing.py")
    assert Writing(dialect="duckdb").generate(tree) == text
    require(steps["written"] >= 8, "how often Generator.sql is called", f"{SQL}/writing.py")


def test_objects_of_pyspark_keep_their_java_side_in_these_attributes() -> None:
    require("self._jdf" in inspect.getsource(DataFrame.__init__), "DataFrame._jdf", ANALYZE)
    source = inspect.getsource(SparkSession.__init__)
    require("self._jvm" in source and "self._jsparkSession" in source, "SparkSession._jvm or ._jsparkSession", ANALYZE)
    require(hasattr(SparkContext, "_jvm"), "SparkContext._jvm", f"{ANALYZE}/plantree.py")
    users = f"{ANALYZE}/session.py", f"{ANALYZE}/archive.py"
    require(hasattr(SparkContext, "_gateway"), "SparkContext._gateway", *users)
    require("gateway.proc = proc" in inspect.getsource(launch_gateway), "the process of a gateway", *users)
    java: Any = object()
    require(StreamingQuery(java)._jsq is java, "StreamingQuery._jsq", f"{ANALYZE}/query.py")
    parameters = list(inspect.signature(DataFrame.__init__).parameters)
    require(parameters == ["self", "jdf", "sql_ctx"], "DataFrame(...)", f"{ANALYZE}/frames.py")


def test_a_function_of_spark_keeps_what_it_was_given_in_these_attributes() -> None:
    """Fingerprints have them: under other names, stored ones would no longer be those of the same functions."""
    function = UserDefinedFunction(abs, LongType(), evalType=100, deterministic=False)
    kept: Any = (function.func, function._returnType, function.evalType, function.deterministic)
    require(kept == (abs, LongType(), 100, False), "UserDefinedFunction", "penstock/app/fingerprints/values.py")
    require(str(LongType()) == "LongType()", "the text of a type", "penstock/app/fingerprints/values.py")


def test_a_parser_of_arguments_knows_its_options_and_commands_by_these_attributes() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port")
    commands = parser.add_subparsers(dest="command")
    run_command = commands.add_parser("run")
    user = "penstock/cli/arguments.py"
    require("--port" in parser._option_string_actions, "ArgumentParser._option_string_actions", user)
    require(commands in parser._actions, "ArgumentParser._actions", user)
    require(isinstance(commands, argparse._SubParsersAction), "argparse._SubParsersAction", user)
    require((commands.dest, commands.choices["run"]) == ("command", run_command), "the commands of a parser", user)


def test_pyspark_converts_types_and_limits_reads_by_these() -> None:
    named = inspect.signature(to_arrow_schema).parameters
    wanted = {"schema", "error_on_duplicated_field_names_in_struct", "timezone"}
    require(wanted <= named.keys(), "to_arrow_schema", f"{ANALYZE}/fetching.py", f"{ANALYZE}/frames.py")
    require("arrow_schema" in inspect.signature(from_arrow_schema).parameters, "from_arrow_schema", ANALYZE)
    require("at" in inspect.signature(from_arrow_type).parameters, "from_arrow_type", f"{ANALYZE}/summaries.py")
    require("returnType" in inspect.signature(arrow_udf).parameters, "arrow_udf", f"{ANALYZE}/summaries.py")
    require(ReadMaxRows(3).max_rows == 3, "ReadMaxRows.max_rows", f"{ANALYZE}/source.py", f"{ANALYZE}/handled.py")
    require(issubclass(ReadMaxRows, ReadLimit) and issubclass(ReadAllAvailable, ReadLimit), "ReadLimit", ANALYZE)
