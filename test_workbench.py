"""Tests of the workbench, in the order of its sections.

The file is its own set of downstream servers: `python test_workbench.py SERVER [ARG...]`
runs one of those that are registered with `@downstream`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

# === Downstream servers ===============================================================

DOWNSTREAM: dict[str, Callable[..., None]] = {}


def downstream(run: Callable[..., None]) -> Callable[..., None]:
    """Register a function as a server that a test can put into a configuration."""
    DOWNSTREAM[run.__name__] = run
    return run


def entry(name: str, *arguments: object, **more: Any) -> dict[str, Any]:
    """The configuration of a downstream server of this file.

    It runs as a module, because Python keeps the bytecode of modules alone.
    """
    file = Path(str(sys.modules[DOWNSTREAM[name].__module__].__file__))
    module = f"run_module({file.stem!r}, run_name='__main__')"
    start = f"import sys; sys.path.insert(0, {str(file.parent)!r}); "
    args = ["-c", f"{start}from runpy import run_module; {module}", name]
    return {"command": sys.executable, "args": [*args, *map(str, arguments)], **more}


def send(message: Mapping[str, Any]) -> None:
    """Write one JSON-RPC message to stdout, as a server."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name: str = "echo", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def text_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


Handler = Callable[[dict[str, Any]], dict[str, Any] | None]


def initialized(**tools: bool) -> dict[str, Any]:
    """The result of `initialize` with these capabilities of the tools."""
    return {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": tools},
        "serverInfo": {"name": "older", "version": "1"},
    }


def serve_raw(*tools: dict[str, Any], **handlers: Handler) -> None:
    """Serve plain JSON-RPC of the older era, without the SDK and its manners.

    `handlers` maps methods, with `_` for `/`, to functions from a request to its result;
    None sends nothing. By default `tools/call` answers with the arguments as JSON text.
    """

    def call(request: dict[str, Any]) -> dict[str, Any]:
        return text_result(json.dumps(request["params"].get("arguments")))

    known: dict[str, Handler] = {
        "initialize": lambda _: initialized(listChanged=True),
        "ping": lambda _: {},
        "tools_list": lambda _: {"tools": list(tools)},
        "tools_call": call,
        **handlers,
    }
    for line in sys.stdin.buffer:
        request = json.loads(line)
        handler = known.get(request.get("method", "").replace("/", "_"))
        if handler is not None:
            result = handler(request)
            if result is not None and "id" in request:
                send({"id": request["id"], "result": result})
        elif "id" in request and "method" in request:
            refuse(request, -32601)


@downstream
def plain() -> None:
    """Two tools that answer with their arguments."""
    serve_raw(tool("echo"), tool("other"))


@downstream
def environment(*_: str) -> None:
    """A tool that answers with the environment of its process."""
    answer = text_result(json.dumps(dict(os.environ)))
    serve_raw(tool("get"), tools_call=lambda _: answer)


@downstream
def tools_named(*names: str) -> None:
    serve_raw(*map(tool, names))


@downstream
def dying(moment: str, *last_words: str) -> None:
    """A server that exits at its `start` or in a `call`, with last words."""

    def die(_: dict[str, Any]) -> None:
        print(*last_words, file=sys.stderr)
        print("no JSON:", *last_words)
        print("x" * 190, *last_words, flush=True)
        sys.exit(3)

    if moment == "start":
        die({})
    serve_raw(tool("die"), tools_call=die)


@downstream
def shapes() -> None:
    """Tools with results of different shapes; `echo` answers with its parameters."""
    image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    results: dict[str, dict[str, Any]] = {
        "texts": {"content": [{"type": "text", "text": t} for t in ("a é", "b")]},
        "image": {"content": [image], "isError": False},
        "refusal": text_result("no", isError=True),
    }

    def call(request: dict[str, Any]) -> dict[str, Any]:
        params = request["params"]
        return results.get(params["name"]) or text_result(json.dumps(params))

    serve_raw(tool("echo"), *map(tool, results), tools_call=call)


def note(file: str, line: object) -> None:
    with open(file, "a") as stream:
        stream.write(f"{line}\n")


@downstream
def noted(notes: str, gate: str = "/") -> None:
    """Notes its pid and its calls in a file; says nothing before the file `gate` exists.

    Tools: `pid`; `wait` for the file `until`; `exit`; `answer_and_exit`.
    """
    note(notes, os.getpid())
    while not os.path.exists(gate):
        time.sleep(0.01)
    print("first words", file=sys.stderr, flush=True)

    def call(request: dict[str, Any]) -> dict[str, Any]:
        name, arguments = request["params"]["name"], request["params"]["arguments"]
        note(notes, name)
        while name == "wait" and not os.path.exists(arguments["until"]):
            time.sleep(0.01)
        if name == "answer_and_exit":
            send({"id": request["id"], "result": text_result("the answer")})
        if name.endswith("exit"):
            print("last words", end="", file=sys.stderr, flush=True)
            os._exit(7)
        return text_result(str(os.getpid()))

    serve_raw(*map(tool, ("pid", "wait", "exit", "answer_and_exit")), tools_call=call)


@downstream
def scripted(code: str) -> None:
    """Runs some Python code in this module."""
    exec(code, globals())  # noqa: S102


def page(request: dict[str, Any], last: int) -> dict[str, Any]:
    """One tool, `t0`, `t1`...; what follows the last page is that page again."""
    number = int((request.get("params") or {}).get("cursor", 0))
    return {"tools": [tool(f"t{number}")], "nextCursor": str(min(number + 1, last))}


def refuse(request: dict[str, Any], code: int = -32603) -> None:
    error = {"code": code, "message": "refused as asked"}
    send({"id": request["id"], "error": error})


# === Downstream servers: connections ==================================================


@downstream
def changing(capability: str = "listChanged", late: str = "") -> None:
    """Tools `become`, which changes the others, and `listings`, which counts.

    A list has two pages. `become` takes `tools` (the second page), `times` that this is
    announced, `seconds` that a listing takes, `fault` of the second page, `meanwhile`
    (the tools that replace the others during the next listing).
    """
    state: dict[str, Any] = {"tools": [], "times": 1, "seconds": 0, "fault": ""}
    state |= {"listings": 0, "meanwhile": [tool(late)] if late else None}

    def announce(times: int) -> None:
        for _ in range(times):
            send({"method": "notifications/tools/list_changed"})

    def listing(request: dict[str, Any]) -> dict[str, Any] | None:
        if "cursor" not in request.get("params", {}):
            state["listings"] += 1
            return {"tools": [tool("become"), tool("listings")], "nextCursor": "2"}
        time.sleep(state["seconds"])
        page, fault = {"tools": state["tools"]}, state["fault"]
        if state["meanwhile"] is not None:
            state.update(tools=state["meanwhile"], meanwhile=None)
            announce(1)
        if fault == "exit":
            os._exit(1)
        if fault == "error":
            refuse(request)
            return None
        return json.loads(fault) if fault else page

    def call(request: dict[str, Any]) -> dict[str, Any]:
        if request["params"]["name"] == "become":
            state.update(request["params"]["arguments"])
            announce(state["times"])
        return text_result(str(state["listings"]))

    result = initialized(**{capability: True})
    serve_raw(initialize=lambda _: result, tools_list=listing, tools_call=call)


def changing_server() -> Any:
    """Tools `become` (`tools`, `seconds` of a listing), `era` and `echo`.

    With `lose`, `become` ends the listen streams instead of announcing the change.
    """
    import anyio
    from mcp import types
    from mcp.server import subscriptions
    from mcp.server.lowlevel.server import Server
    from mcp.shared.exceptions import MCPError

    bus = subscriptions.InMemorySubscriptionBus()
    streams = subscriptions.ListenHandler(bus)
    own = list(map(tool, ("become", "era", "echo")))
    state: dict[str, Any] = {"tools": [], "seconds": 0}

    async def listen(context: Any, params: Any) -> Any:
        await streams(context, params)
        raise MCPError(-32603, "lost")

    async def list_tools(_: Any, __: Any) -> Any:
        await anyio.sleep(state["seconds"])
        return types.ListToolsResult.model_validate({"tools": own + state["tools"]})

    async def call(context: Any, params: Any) -> Any:
        given = params.arguments or {}
        if params.name == "become":
            state.update(given)
            if "lose" in given:
                streams.close()
            else:
                await bus.publish(subscriptions.ToolsListChanged())
                await context.session.send_tool_list_changed()
        era, echo = context.protocol_version, f"Echo: {given.get('message')}"
        answer = text_result(era if params.name == "era" else echo)
        return types.CallToolResult.model_validate(answer)

    on: Any = {"on_list_tools": list_tools, "on_call_tool": call}
    return Server("changing", on_subscriptions_listen=listen, **on)


@downstream
def changing_sdk(port: str = "") -> None:
    """The same over stdio, or over HTTP at a port."""
    import anyio
    from mcp.server.stdio import stdio_server

    server = changing_server()

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    if port:
        import uvicorn

        listener = socket.create_server(("127.0.0.1", int(port)))
        print("port", port, flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_config=None)
        uvicorn.Server(config).run([listener])
    else:
        anyio.run(run)


def response(status: int, body: str = "", **headers: str) -> bytes:
    """A whole HTTP response; `_` in the name of a header stands for `-`."""
    headers = {"content_type": "application/json", "connection": "close", **headers}
    headers["content_length"] = str(len(body.encode()))
    lines = [f"{name.replace('_', '-')}: {each}" for name, each in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", body]).encode()


EVENTS = {"content_type": "text/event-stream"}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
DENIAL = '{"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "%s"}}'
HTTP_FAULTS = {
    "400": response(400, "Bad Request: No valid session ID provided"),
    "401": response(401),
    "403": response(403, DENIAL % "Go"),
    "full": response(400, DENIAL % "session 7 is full: no such session_name"),
    "404": response(404, "Not\nfound"),
    "500": response(500, "Oh\nno"),
    "moved": response(307, location="/moved/"),
    "elsewhere": response(307, location="http://sesame@127.0.0.1:1/mcp?sesame"),
    "page": response(302, location="/login"),
    "html": response(200, "<html>\n</html>", content_type="text/html"),
    "unreadable": response(200, "data: {\n\n", **EVENTS),
    "ended": response(200, ": no answer\n\n", **EVENTS),
    "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",
    "closed": b"",
}


def event(data: Any, kind: str = "message") -> bytes:
    body = data if isinstance(data, str) else json.dumps({"jsonrpc": "2.0", **data})
    return f"event: {kind}\ndata: {body}\n\n".encode()


class Remote:
    """An older-era server over HTTP, in this process, that goes wrong as told.

    `answers` maps tools, other methods and a question's id to a result, None for an
    answer without one, an HTTP response or a function that returns one of these. The
    path says how: `/mcp` answers with JSON, `/stream` with events, `/sse` on its one
    stream, `/hang` never, and those of `HTTP_FAULTS` with them. A GET is answered with
    the status that is its query.
    """

    def __init__(self) -> None:
        self.session, self.stale = "1", "404"  # what any other session is answered
        self.seen: set[str | None] = set()  # values of the header Authorization
        self.calls: list[str] = []  # the keys of `answers`, GET and DELETE
        self.connections = 0  # that are open
        self.released = asyncio.Event()
        self.listener: Any = None
        self.stream: Any = None  # of `/sse`
        self.answers: dict[str, Any] = {**HTTP_FAULTS, "initialize": initialized()}
        self.answers |= {"server/discover": response(400), "tools/list": self.listing}
        self.answers |= {"ok": text_result("ok"), "wait": self.wait}

    async def listing(self, *_: Any) -> dict[str, Any]:
        return {"tools": list(map(tool, self.answers))}

    async def wait(self, *_: Any) -> dict[str, Any]:
        await self.released.wait()
        return text_result("released")

    async def answer(self, request: dict[str, Any], path: str, stream: Any) -> bytes:
        """What is sent in answer to a JSON-RPC message."""
        params = request.get("params") or {}
        name = params.get("name") or request.get("method") or request["id"]
        self.calls.append(name)
        answer = self.answers.get(name, response(202))
        if path == "/stream" and not isinstance(answer, bytes):
            stream.write(STREAM)
        if callable(answer):
            answer = await answer(request, stream)
        if isinstance(answer, bytes):
            return answer
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        reply |= {} if answer is None else {"result": answer}
        if path == "/messages":
            self.stream.write(event(reply))
            return response(202)
        whole = response(200, json.dumps(reply), mcp_session_id=self.session)
        return event(reply) if path == "/stream" else whole

    async def respond(self, head: str, body: bytes, stream: Any) -> bytes:
        method, target, *_ = head.split()
        path, _, query = target.partition("?")
        headers = dict(re.findall(r"(?m)^([\w-]+): (.*)\r$", head.lower()))
        self.seen.add(headers.get("authorization"))
        if path[1:] in HTTP_FAULTS:
            return HTTP_FAULTS[path[1:]]
        if headers.get("mcp-session-id", self.session) != self.session:
            return HTTP_FAULTS[self.stale]
        if path == "/sse":
            self.stream = stream
            stream.write(STREAM + event("/messages", "endpoint"))
        if path in ("/sse", "/hang"):
            await anyio.sleep_forever()
        if method == "POST":
            return await self.answer(json.loads(body), path, stream)
        self.calls.append(method)
        return response(200 if method == "DELETE" else int(query or 405))

    async def serve(self, reader: Any, stream: Any) -> None:
        """Answer the one request of a connection, unless its client closes it before."""

        async def respond() -> None:
            stream.write(await self.respond(head, body, stream))

        self.connections += 1
        with closing(stream), contextlib.suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            tasks = [asyncio.ensure_future(each) for each in (respond(), reader.read())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        self.connections -= 1

    def at(self, path: str = "/mcp", **more: Any) -> dict[str, Any]:
        return remote(self.listener.sockets[0].getsockname()[1], path, **more)


def remote(port: int, path: str = "/mcp", **more: Any) -> dict[str, Any]:
    """The configuration of a server at this port and path."""
    kind = "sse" if path == "/sse" else "http"
    return {"url": f"http://127.0.0.1:{port}{path}", "transport": kind, **more}


# === Downstream servers: a transparent proxy ==========================================

OLDER, MODERN = "2025-11-25", "2026-07-28"
RESERVED = "io.modelcontextprotocol/"
CAPABILITIES = f"{RESERVED}clientCapabilities"
OWN_TOOLS = [*map(tool, ("error", "ask", "say", "wait", "rounds", "seen"))]
OWN_TOOLS += [tool("result", outputSchema={"type": "object", "required": ["x"]})]


def json_result(value: Any) -> dict[str, Any]:
    return text_result(json.dumps(value, sort_keys=True))


def is_modern(request: dict[str, Any]) -> bool:
    """Whether a request is one of 2026-07-28."""
    meta = request.get("params", {}).get("_meta") or {}
    return f"{RESERVED}protocolVersion" in meta


def answer(request: dict[str, Any], **result: Any) -> None:
    """Send the result of a request in the era of the request."""
    complete = {"resultType": "complete"} if is_modern(request) else {}
    send({"id": request["id"], "result": {**complete, **result}})


def messages_of(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a call of `say` asks for, under the token of the call."""
    params = request["params"]
    token = {"progressToken": (params.get("_meta") or {}).get("progressToken")}
    for message in params["arguments"]["messages"]:
        yield {**message, "params": {**token, **message["params"]}}


class Eras:
    """The protocol's methods, by their names, and tools that do what they are told."""

    able: Mapping[str, Any] = {"capabilities": {"tools": {}, "logging": {}}}
    hints: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}

    def __init__(self, spoken: str) -> None:
        self.spoken = spoken
        self.known: dict[str, Any] = {"levels": [], "started": [], "cancelled": []}
        self.saying: list[dict[str, Any]] = []  # calls that wait for others to say it
        self.waiting: dict[object, int] = {}  # the numbers of calls, by their ids

    def initialize(self, request: dict[str, Any]) -> None:
        if OLDER not in self.spoken:
            return refuse(request, -32022)  # an unsupported protocol version
        self.known[CAPABILITIES] = request["params"]["capabilities"]
        about = {"serverInfo": {"name": "eras", "version": "1"}, **self.able}
        answer(request, protocolVersion=request["params"]["protocolVersion"], **about)

    def server_discover(self, request: dict[str, Any]) -> None:
        if MODERN not in self.spoken:
            return refuse(request, -32601)
        answer(request, supportedVersions=[MODERN], **self.able, **self.hints)

    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, tools=OWN_TOOLS, **self.hints)

    def logging_setLevel(self, request: dict[str, Any]) -> None:
        self.known["levels"].append(request["params"]["level"])
        answer(request)

    def notifications_roots_list_changed(self, _: Any) -> None:
        params = {"level": "info", "data": "roots changed"}
        send({"method": "notifications/message", "params": params})

    def notifications_cancelled(self, notification: dict[str, Any]) -> None:
        """Take back what the call asked for, if it was not one of `wait`."""
        number = notification["params"]["requestId"]
        if number in self.waiting:
            self.known["cancelled"].append(self.waiting.pop(number))
        else:
            params = {"requestId": f"ask {number}"}
            send({"method": "notifications/cancelled", "params": params})

    def tools_call(self, request: dict[str, Any]) -> None:
        params = request["params"]
        getattr(self, params["name"])(request, **params.get("arguments") or {})

    def result(self, request: dict[str, Any], **given: Any) -> None:
        answer(request, **given)

    def error(self, request: dict[str, Any], **given: Any) -> None:
        send({"id": request["id"], "error": given})

    def rounds(self, request: dict[str, Any], rounds: list[dict[str, Any]]) -> None:
        """Ask for one round after the other, then answer with the last responses."""
        params = request["params"]
        done = int(params.get("requestState") or 0)
        if done == len(rounds):
            return answer(request, **json_result(params.get("inputResponses")))
        state = {"resultType": "input_required", "requestState": str(done + 1)}
        answer(request, **state, **rounds[done])

    def ask(self, request: dict[str, Any], **given: Any) -> None:
        send({"id": f"ask {request['id']}", **given})

    def answered(self, message: dict[str, Any]) -> None:
        asking = {"id": int(message["id"].removeprefix("ask "))}
        answer(asking, **json_result(message.get("result") or message.get("error")))

    def say(self, request: dict[str, Any], calls: int = 1, **_: Any) -> None:
        """Send the messages of this many calls at once, in turn."""
        self.saying.append(request)
        if len(self.saying) == calls:
            for messages in zip(*map(messages_of, self.saying), strict=True):
                list(map(send, messages))
            while self.saying:
                answer(self.saying.pop(), **json_result(None))

    def wait(self, request: dict[str, Any], number: int) -> None:
        self.waiting[request["id"]] = number
        self.known["started"].append(number)

    def seen(self, request: dict[str, Any]) -> None:
        era = MODERN if is_modern(request) else OLDER
        told = {"era": era, "_meta": {}, **self.known, **request["params"]}
        answer(request, **json_result(told))


@downstream
def eras(spoken: str) -> None:
    """A server of the eras `spoken`."""
    its: Any = Eras(spoken)
    handlers = {name: getattr(its, name) for name in vars(Eras)}
    serve_raw(**{"": its.answered, **handlers})


# === A downstream server that misbehaves ==============================================

GARBAGE = b"""\xff\xfe\n\n \r\nlistening\n[]\n7\n{}
{"jsonrpc": "2.0", "id": %d, "method": 7}
{"jsonrpc": "2.0", "id": "unknown", "error": {"code": 1, "message": "unasked"}}
{"jsonrpc": "2.0", "id": 987654321, "result": {}}
"""


def hang(why: int | str = "hangs", *_: object) -> None:
    Path(f"{os.getpid()}.{why}").touch()
    signal.pause()


def ignore_the_end() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hang)
    atexit.register(hang)  # after the end of stdin


def misbehave(what: str, request: dict[str, Any]) -> dict[str, Any]:
    """Do one thing wrong when a request comes; what it is answered with."""
    match what.split():
        case ["exits"]:
            os.write(2, b"boom")
            os._exit(3)
        case ["hangs"]:
            hang()
        case ["answers", "half"]:
            os.write(1, b'{"jsonrpc": "2.0", "id": %d, ' % request["id"])
            hang()
        case ["closes", "stdout"]:
            os.close(1)
            hang()
        case ["ignores", "the", "end"]:
            ignore_the_end()
            child = os.fork()  # which holds stdin and stdout open
            if not child:
                signal.pause()
            Path(f"{child}.pid").touch()
        case ["answers", "nonsense"]:
            return {"capabilities": 7}
        case ["answers", "1", "MB"]:
            return text_result("x" * 1_000_000)
        case ["floods", "stderr"]:
            os.write(2, b"a line of a flood that nobody reads\n" * 5_000)
        case ["writes", "garbage"]:
            os.write(1, GARBAGE % request["id"])
        case ["writes", "a", "huge", "line"]:
            os.write(2, b"x" * 20_000_000 + b"\n")
        case ["repeats", line, "on", name]:
            Path(f"{os.getpid()}.hangs").touch()
            while True:
                os.write({"stdout": 1, "stderr": 2}[name], f"{line}\n".encode() * 1000)
        case ["asks", "what", "nobody", "knows"]:
            send({"id": "question", "method": "no/such"})
            reply = json.loads(sys.stdin.buffer.readline())
            return text_result(f"{reply['id']}: {reply['error']['code']}")
    return text_result("answered")


@downstream
def misbehaving(at: str = "never", what: str = "") -> None:
    """Mark the process as `PID.pid`, and do `what` whenever the method `at` comes."""
    Path(f"{os.getpid()}.pid").touch()
    if at == "start":
        misbehave(what, {})
    handlers: dict[str, Handler] = {at: lambda request: misbehave(what, request)}
    serve_raw(tool(), **handlers)


if __name__ == "__main__":  # before the imports that a server has no time for
    DOWNSTREAM[sys.argv[1]](*sys.argv[2:])
    sys.exit()

import asyncio
import datetime
import functools
import gc
import http.client
import http.server
import itertools
import logging
import random
import shutil
import tomllib
import zoneinfo
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast, get_args

import anyio
import anyio.abc
import httpx2
import pytest
from mcp import Client, StdioServerParameters, types
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

import workbench

pytestmark = pytest.mark.anyio
Monkey = pytest.MonkeyPatch
Logs = pytest.LogCaptureFixture


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# === Clients ==========================================================================


def configuration(**servers: dict[str, Any]) -> dict[str, Any]:
    """A configuration with one toolbox, `box`, of these servers."""
    return {"toolboxes": {"box": {"description": "A box", "mcpServers": servers}}}


@asynccontextmanager
async def connected(
    config: dict[str, Any], mode: str = "legacy", **callbacks: Any
) -> AsyncIterator[Client]:
    """A client of a workbench in this process."""
    server = workbench.create_server(workbench.parse_config(config, os.environ))
    async with Client(server, mode=mode, **callbacks) as client:
        yield client


def command(config: dict[str, Any], folder: Path, *options: str) -> list[str]:
    """The command line of a workbench process that serves this configuration."""
    path = folder / "workbench-config.json"
    path.write_text(json.dumps(config))
    return [sys.executable, workbench.__file__, str(path), *options]


@asynccontextmanager
async def connected_process(
    config: dict[str, Any], folder: Path, mode: str = "legacy", **callbacks: Any
) -> AsyncIterator[Client]:
    """A client of a workbench process, whose log is the file `stderr` in the folder."""
    program, *args = command(config, folder, "--verbose")
    env = dict(os.environ)
    parameters = StdioServerParameters(command=program, args=args, env=env)
    with (folder / "stderr").open("w") as log:
        process = stdio_client(parameters, errlog=log)
        async with Client(process, mode=mode, **callbacks) as client:
            yield client


async def open_box(client: Client, **options: Any) -> dict[str, Any]:
    """What `open_toolbox` answers for the toolbox `box`."""
    arguments = {"toolbox_name": "box"}
    result = await client.call_tool("open_toolbox", arguments, **options)
    assert isinstance(result.content[0], types.TextContent)
    assert not result.is_error, result.content[0].text
    answer: dict[str, Any] = json.loads(result.content[0].text)
    return answer


async def use(
    client: Client, server: str, name: str, arguments: Any = None, **options: Any
) -> types.CallToolResult:
    """The result of `use_tool` for a tool of the toolbox `box`."""
    full_name = f"box__{server}__{name}"
    request = {"toolbox_name": "box", "tool_name": full_name}
    request |= {} if arguments is None else {"arguments": arguments}
    return await client.call_tool("use_tool", request, **options)


def text(result: types.CallToolResult) -> str:
    """The text of a result with one text block."""
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not reaped does not."""
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Wait for something outside of this process that nothing can be awaited for."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


ROOT = Path(workbench.__file__).parent


# === Configuration ====================================================================


def one_server(**entry: Any) -> dict[str, Any]:
    """A configuration of one server, `t.s`."""
    return {"toolboxes": {"t": {"description": "d", "mcpServers": {"s": entry}}}}


def problems_of(data: Any, **environ: str) -> list[str]:
    with pytest.raises(workbench.ConfigError) as error:
        workbench.parse_config(data, environ)
    return error.value.problems


AT = "toolboxes.t.mcpServers.s"
BAD_ENTRIES = """
{"disabled": "yes", "command": "x"} => .disabled: expected a boolean, found a string
{} => : expected either 'command' or 'url', found neither
{"command": "x", "serverUrl": "http://x"} => : expected either 'command' or 'url', found both
{"command": "x", "type": "sse"} => .type: expected stdio, found another string
{"url": "http://x", "type": "stdio"} => .type: expected http or sse, found another string
{"command": ""} => .command: expected a non-empty string, found an empty string
{"command": "x", "args": ["y", true]} => .args[1]: expected a string, found a boolean
{"url": "x.com"} => .url: expected an http:// or https:// URL, found another string
{"command": "x", "toolFilters": "a*"} => .toolFilters: expected a list, found a string
""".strip().splitlines()


@pytest.mark.parametrize("case", BAD_ENTRIES)
def test_a_bad_server_entry_is_an_error(case: str) -> None:
    entry, _, problem = case.partition(" => ")
    assert problems_of(one_server(**json.loads(entry))) == [AT + problem]


BAD_CONFIGURATIONS = """
[]
  configuration: expected an object, found a list
{"projects": {}, "theme": "dark"}
  configuration: expected 'toolboxes', or another client's 'mcpServers' or 'servers', found none of them
{"toolMode": null, "toolboxes": {"t": null, "u": {}}}
  toolboxes.t: expected an object, found null
  toolboxes.u.description: expected a string, found nothing
  toolboxes.u.mcpServers: expected an object, found nothing
  toolMode: expected 'proxy' or no such key, found null
{"toolboxes": {"t": {"description": " ", "mcpServers": {"s": {"disabled": true}}}}}
  toolboxes.t.description: expected a non-empty string, found an empty string
  toolboxes.t.mcpServers: expected at least one server that is not disabled, found none
{"toolboxes": {"a__b": {"description": "d", "mcpServers": {"a_": {"command": "x"}}}}}
  toolboxes.a__b: expected a printable name without '__' that does not end in '_', found "a__b"
  toolboxes.a__b.mcpServers.a_: expected a printable name without '__' that does not end in '_', found "a_"
{"mcpServers": {"s": {"command": "x", "args": ["${NO} ${a"]}}}
  mcpServers.s.args[0]: environment variable NO is not set: set it, or write ${NO:-default}
  mcpServers.s.args[0]: expected a '}' after '${', found the end of the string
{"servers": {"": {"command": "x"}, "\\u200b": {"command": "x"}, "s": 1, "t": {"description": 1, "url": "http://x"}}}
  servers."": expected a printable name without '__' that does not end in '_', found ""
  servers."\\u200b": expected a printable name without '__' that does not end in '_', found "\\u200b"
  servers.s: expected an object, found a number
  servers.t.description: expected a string, found a number
{"toolMode": "dynamic", "toolboxes": []}
  toolboxes: expected an object, found a list
  Configuration field 'toolMode' set to 'dynamic' is no longer supported.
  Dynamic mode was removed in version 0.10.0.
  Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
  For migration guidance, see: "Upgrading" in README.md
"""


@pytest.mark.parametrize("case", re.split(r"\n(?=\S)", BAD_CONFIGURATIONS.strip()))
def test_a_bad_configuration_is_reported_whole(case: str) -> None:
    data, *problems = map(str.strip, case.splitlines())
    assert problems_of(json.loads(data)) == problems


def warned_about(config: workbench.WorkbenchConfig) -> list[str]:
    """The places of a configuration's warnings."""
    return [line.split(": ")[0] for line in config.warnings]


def test_what_is_ignored_is_warned_about_except_comments() -> None:
    more = {"headers": 5, "timeout": 1, "autoApprove": ["${"], "unit": None}
    data = one_server(command="x", env={"_": 1, "${A}": "${A}"}, _x="${", **more)
    data |= {"mcpServers": {}, "toolMode": "proxy", "_": "${"}
    box = data["toolboxes"]["t"]
    off = {"command": "${UNSET}", "disabled": True}
    box["mcpServers"] |= {"_": [1], "off": off}
    box |= {"_y": "${", "icon": "${UNSET}"}
    config = workbench.parse_config(data, {"A": "v"})
    server = workbench.ServerConfig("stdio", command="x", env={"${A}": "v"})
    assert config.toolboxes == {"t": workbench.ToolboxConfig("d", {"s": server})}
    places = ["mcpServers", "toolboxes.t.icon", *(f"{AT}.{key}" for key in more)]
    assert warned_about(config) == [*places, "toolMode"]


# A client's own file; then for each server its toolbox's name, how it is started, all
# strings that it gets, and its description if it has its own; last the places that are
# warned about.
CLIENT_FILES = """
Claude {"numStartups": 5, "projects": {"/p": {"mcpServers": {}}}, "oauthAccount": "${",
  "mcpServers": {"a": {"type": "http", "url": "${BASE:-https://a.b}/mcp", "headers": {}},
    "b": {"type": "sse", "url": "https://b"}, "c": {"type": "stdio", "command": "uvx"}}}
  a: http https://a.b/mcp
  b: sse https://b
  c: stdio uvx
VS Code {"inputs": [{"type": "promptString", "id": "key", "password": true}], "servers": {
    "a": {"type": "http", "url": "https://a", "headers": {"A": "Bearer ${input:key}"}}}}
  a: http https://a Bearer ${input:key}
  ! servers.a.headers.A
Others {"theme": "GitHub", "mcpServers": {
    "a": {"command": "npx", "args": ["z"], "env": {"K": "${env:KEY}"}, "envFile": ".env"},
    "b": {"type": "streamableHttp", "url": "https://b", "headers": {"K": "${KEY}"}},
    "c": {"transport": "streamable-http", "serverUrl": "https://c"},
    "d": {"httpUrl": "https://d", "description": "Its own", "trust": false},
    "off": {"command": "${UNSET}", "disabled": true}}}
  a: stdio npx z k
  b: http https://b k
  c: http https://c
  d: http https://d (Its own)
  ! mcpServers.a.envFile mcpServers.d.trust
"""


@pytest.mark.parametrize("case", re.split(r"\n(?=[A-Z])", CLIENT_FILES.strip()))
def test_the_file_of_another_client_is_a_configuration(case: str) -> None:
    data, *expected = re.split(r"\n  (?=\w+: |! )", case[case.index("{") :])
    config = workbench.parse_config(json.loads(data), {"KEY": "k"})
    found = []
    for name, box in config.toolboxes.items():
        server = box.servers[name]
        told = [server.transport, server.command or server.url, *server.args]
        told += [*server.env.values(), *server.headers.values()]
        if box.description != f"Tools of the MCP server '{name}'":
            told.append(f"({box.description})")
        found.append(f"{name}: {' '.join(told)}")
    if config.warnings:
        found.append(f"! {' '.join(warned_about(config))}")
    assert found == expected


VARIABLES = {"A": "x", "A_1": "y", "_B": "z", "EMPTY": "", "RAW": r"${A} $A \1 }"}
EXPANSIONS = r"""
<${A}${A_1}-${_B}> = <xy-z>
${env:A} ${env:NO:-d} ${NO:-d} = x d d
<${NO:-}> = <>
${NO:-a:-b} = a:-b
<${EMPTY}${EMPTY:-d}> = <>
${RAW} = ${A} $A \1 }
${NO:-${A}} = ${A}
${A}} = x}
$A $ $} $${A} = $A $ $} $x
"""
LEFT_ALONE = "${} ${a} ${1X} ${A%/} ${A-d} ${A:=d} ${:-d} ${Ä} ${A٣} ${A${A} ${input:A}"
LEFT_ALONE += " ${env:a} ${env:} ${ENV:A}"


def test_variables_expand_and_what_only_looks_like_one_is_warned_about() -> None:
    rows = [tuple(line.split(" = ")) for line in EXPANSIONS.strip().splitlines()]
    rows += [(text, text) for text in LEFT_ALONE.split()]
    data = one_server(command="x", args=[text for text, _ in rows])
    config = workbench.parse_config(data, VARIABLES)
    expanded = config.toolboxes["t"].servers["s"].args
    assert [(text, it) for (text, _), it in zip(rows, expanded, strict=True)] == rows
    left = [f"{AT}.args[{i}]" for i, (text, it) in enumerate(rows) if text == it]
    assert warned_about(config) == left


BAD_FILES = [
    (b"", "line 1 column 1 "),
    (b'{"a":\n x}', "line 2 column 2 "),
    (b"{} {}", "line 1 column 4 "),
    (b'{"\xe4": 1}', "UTF-8"),
    (b'{"a":' * 100_000 + b"0" + b"}" * 100_000, "JSON"),
    (b'{"a": 1, "\\u0061": 1, "toolboxes": {}}', '"a"'),
]


@pytest.mark.parametrize(("data", "told"), BAD_FILES)
def test_a_file_must_be_plain_json(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(data)
    with pytest.raises(workbench.ConfigError) as error:
        workbench.load_config(str(path), {})
    [problem] = error.value.problems
    assert (str(error.value), told in problem) == (f"{path}:\n{problem}", True)


def test_configuration_is_found_in_order(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.chdir(tmp_path)
    find, variable = workbench.find_config, "WORKBENCH_CONFIG"
    [server] = find(None, {}).toolboxes["demo"].servers.values()
    program = (sys.executable, os.path.abspath(workbench.__file__), "--toolbox")
    assert (server.command, *server.args) == program
    for name in ("a", "b", "workbench-config.json"):
        Path(name).write_text('\ufeff{"toolboxes": {}}', "utf-8")
    assert find("a", {variable: "b"}).source == "a"
    assert find(None, {variable: "b"}).source == "b"
    assert find(None, {}).source == "workbench-config.json"
    for path, environ in ("no", {}), (".", {}), ("", {}), (None, {variable: "no"}):
        with pytest.raises(workbench.ConfigError, match="cannot be read: "):
            find(path, environ)


def test_the_example_loads_without_variables() -> None:
    example = workbench.load_config(str(ROOT / "workbench-config.example.json"), {})
    assert (len(example.toolboxes) > 0, example.warnings) == (True, ())


def test_the_script_header_asks_for_what_the_requirements_ask_for() -> None:
    script = Path(workbench.__file__).read_text()
    header = re.search(r"^# /// script\n((?:# .*\n)+?)# ///$", script, re.MULTILINE)
    assert header is not None
    fields = tomllib.loads(header[1].replace("# ", ""))
    requirements = (ROOT / "requirements.txt").read_text().split()
    assert [*fields["dependencies"], "pytest"] == requirements


FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "star": ({"toolFilters": "*"}, ["read_a", "Read_b", "list", "read", "🧰 a__b_"]),
    "patterns": ({"toolFilters": ["read_*", "l?st"]}, ["read_a", "list"]),
    "classes": ({"toolFilters": ["[Rr]ead_[!a]", "read"]}, ["Read_b", "read"]),
    "none": ({"toolFilters": []}, []),
}


async def test_a_filtered_tool_can_be_neither_seen_nor_called() -> None:
    names = FILTERS["star"][1]
    servers = {s: entry("tools_named", *names, **f) for s, (f, _) in FILTERS.items()}
    async with connected(configuration(**servers)) as client:
        seen = [tool["name"] for tool in (await open_box(client))["tools"]]
        tried = [(s, n, await use(client, s, n)) for s in servers for n in names]
    called = [f"box__{s}__{n}" for s, n, result in tried if not result.is_error]
    allowed = [f"box__{s}__{n}" for s, (_, ns) in FILTERS.items() for n in ns]
    assert seen == called == allowed


# === Tool names =======================================================================


def test_a_full_tool_name_splits_into_its_parts_and_nothing_else_does() -> None:
    for name in ("t s x", "a_b c-d _x", "t s __x", "ä s.1 x__y_ ", "t s _"):
        parts = tuple(name.split(" ", 2))
        assert workbench.split_tool_name(workbench.full_tool_name(*parts)) == parts
    for name in ("", "x", "t__s", "t__s__", "__s__x", "t____x"):
        with pytest.raises(ValueError):
            workbench.split_tool_name(name)


# === MCP server =======================================================================

ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])
INSTRUCTIONS = """\
Available Toolboxes:

web (1 server)
  Description: The web

main (2 servers)
  Description: Files, and ünïcode

Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."""


@ERAS
async def test_the_handshake_tells_the_truth(mode: str) -> None:
    local, remote = {"command": "x"}, {"url": "https://example.com/mcp"}
    servers = {"a": local, "b": remote, "off": {"disabled": True}}
    toolboxes = {
        "web": {"description": "The web", "mcpServers": {"s": remote}},
        "main": {"description": "Files, and ünïcode", "mcpServers": servers},
    }
    async with connected({"toolboxes": toolboxes}, mode) as client:
        info, capabilities = client.server_info, client.server_capabilities
        assert (client.protocol_version == "2026-07-28") == (mode == "auto")
        assert client.instructions == INSTRUCTIONS
    assert info is not None
    assert (info.name, info.version) == ("mcp-workbench", "0.10.0")
    declared = capabilities.model_dump(by_alias=True, exclude_none=True)
    assert declared == {"tools": {"listChanged": False}, "logging": {}}


async def listed(client: Client) -> list[dict[str, Any]]:
    """The tools of `tools/list` as they are on the wire."""
    tools = (await client.list_tools()).tools
    return [each.model_dump(by_alias=True, exclude_none=True) for each in tools]


@ERAS
async def test_listing_the_two_tools_starts_nothing(mode: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with connected(configuration(s=entry("noted", notes)), mode) as client:
        tools = await listed(client)
        assert not notes.exists()
        await open_box(client)
        assert await listed(client) == tools
    opening = {**DEFAULT_HINTS, "destructiveHint": False, "idempotentHint": True}
    hints = [{**DEFAULT_HINTS, **each["annotations"]} for each in tools]
    assert hints == [opening, DEFAULT_HINTS] and all(each["title"] for each in tools)
    meta = {"anthropic/maxResultSizeChars": 200_000}
    told = [(each["name"], each.get("_meta")) for each in tools]
    assert told == [("open_toolbox", meta), ("use_tool", None)]


async def test_the_tools_name_the_toolboxes_and_cost_little() -> None:
    [box] = one_server(command="x")["toolboxes"].values()
    async with connected({"toolboxes": {"b": box, "ä a": box}}) as client:
        tools = await listed(client)
    keys = ("name", "description", "inputSchema")  # what clients send to a model
    told = [{key: each[key] for key in keys} for each in tools]
    name = told[0]["inputSchema"]["properties"]["toolbox_name"]
    assert name.pop("enum") == ["b", "ä a"]
    # 170 tokens: o200k makes 145 of 606 bytes of these texts, and more than four bytes
    # to a token of any like them.
    assert len(json.dumps(told, separators=(",", ":"))) <= 170 * 4


# === Environment and secrets ==========================================================


async def test_a_variable_reaches_only_servers_that_set_it(monkeypatch: Monkey) -> None:
    for name in ("TOKEN", "ARG", "OFF", "NOTE"):
        monkeypatch.setenv(f"WB_{name}", name)
    config = configuration(
        named=entry("environment", env={"WB_TOKEN": "${WB_TOKEN}"}),
        renamed=entry("environment", env={"WB_OTHER": "${WB_TOKEN:-}"}),
        argument=entry("environment", "${env:WB_ARG} ${HOME} ${PATH}"),
        off=entry("environment", "${WB_OFF}", disabled=True),
        none=entry("environment", _note="${WB_NOTE}"),
    )
    seen = {}
    async with connected(config) as client:
        await open_box(client)
        for server in ("named", "renamed", "argument", "none"):
            variables = json.loads(text(await use(client, server, "get")))
            assert variables.keys() >= {"HOME", "PATH"}
            names = {name for name in variables if name.startswith("WB_")}
            seen[server] = names - {"WB_NOTE"}  # which all see
    own: dict[str, set[str]] = {"named": {"WB_TOKEN"}, "renamed": {"WB_OTHER"}}
    assert seen == {**own, "argument": set(), "none": set()}


TOKEN = "tok-0123456789"
KEY = "---BEGIN---\nMIIEpAIBAAKC\\ä\n---END---"
LITERALS = ["env-0123456", "header-0123", "query-01234", "user-012345", "pass-012345"]


async def test_no_secret_is_logged_or_told(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setenv("WB_TOKEN", TOKEN)
    monkeypatch.setenv("WB_KEY", KEY)
    words = ("${WB_TOKEN}", "${WB_KEY}", *LITERALS, "Grüße")
    value, header, query, user, password = LITERALS
    url = f"http://{user}:{password}@127.0.0.1:1/mcp?"
    config = configuration(
        call=entry("dying", "call", *words, env={"A": "${WB_TOKEN}", "B": value}),
        start=entry("dying", "start", *words),
        command={"command": "/none/${WB_TOKEN}"},
        cwd=entry("plain", cwd="/none/${WB_TOKEN}"),
        http={"url": url + "a=${WB_TOKEN}", "headers": {"A": "Bearer ${WB_TOKEN}"}},
        sse={"url": url + query, "type": "sse", "headers": {"A": f"Bearer {header}"}},
    )
    async with connected_process(config, tmp_path) as client:
        answer = await open_box(client)
        failed = answer["servers_failed"]
        errors = [text(await use(client, server, "die")) for server in failed]
        errors.append(text(await use(client, "call", "die")))
    assert failed.keys() == {"start", "command", "cwd", "http", "sse"}
    stderr = (tmp_path / "stderr").read_text()
    assert f"[box/start] ***{' ***' * len(LITERALS)} Grüße\n" in stderr
    masked = [failed["start"], failed["command"], failed["cwd"], errors[-1]]
    assert all("***" in reason for reason in masked)
    everything = "\n".join([stderr, json.dumps(answer), *errors])
    secrets = [TOKEN[:6], "BEGIN", "MIIE", "END", *LITERALS]
    assert [secret for secret in secrets if secret in everything] == []
    assert f"Serving box from {tmp_path}" in stderr.splitlines()[0]
    assert re.search("DEBUG .*box/call.*: .*die", stderr)  # the names of its tools


def test_only_what_may_be_secret_is_masked(tmp_path: Path) -> None:
    environ = {"SHORT": "1234567", "PLACE": str(tmp_path), "T": TOKEN, "U": "unused-00"}
    words = ["${SHORT} ${PLACE} ${T} ${NO:-default-0}", "argument-0"]
    data = one_server(command="x", args=words, env={"A": (key := 'a"quote\\d  ä')})
    mask = workbench.parse_config(data, environ).mask
    plain = f"argument-0 1234567 default-0 {tmp_path} unused-00"
    assert mask(f"{plain} {TOKEN}") == f"{plain} ***"
    forms = key, json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1]
    assert [mask(f"<{form}>") for form in forms] == ["<***>"] * 3


async def test_a_secret_longer_than_what_is_shown_of_a_line_is_masked() -> None:
    secret = "s3cret" * 80
    code = "sys.stderr.write(os.environ['KEY'] + '\\n'); sys.exit(3)"
    config = configuration(a=entry("scripted", code, env={"KEY": secret}))
    async with connected(config) as client:
        result = await client.call_tool("open_toolbox", {"toolbox_name": "box"})
    assert "***" in text(result) and "s3cret" not in text(result)


# === The command line =================================================================

Capture = pytest.CaptureFixture[str]


def test_a_bad_configuration_ends_the_program(tmp_path: Path, capsys: Capture) -> None:
    [path, *_] = arguments = command(configuration(s={}, u={}), tmp_path, "--check")[2:]
    assert workbench.main(arguments) == 1
    places = [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()]
    assert places == [f"{path}:", *(f"toolboxes.box.mcpServers.{s}" for s in "su")]


async def test_the_demo_is_served_and_says_what_it_is(tmp_path: Path) -> None:
    start: Any = {"command": sys.executable, "args": [workbench.__file__]}
    parameters = StdioServerParameters(**start, cwd=tmp_path)
    with (tmp_path / "stderr").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            arguments = {"toolbox_name": "demo", "tool_name": "demo__toolbox__echo"}
            call = {**arguments, "arguments": {"text": "Hi."}}
            assert text(await client.call_tool("use_tool", call)) == "Hi."
            told = client.instructions or ""
    assert "demo (1 server)" in told
    for note in (told.splitlines()[-1], (tmp_path / "stderr").read_text()):
        assert "demo" in note and "argument" in note and "WORKBENCH_CONFIG" in note


async def test_no_toolbox_from_a_path_that_is_no_text_is_told(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"of-\xff-bytes")
    folder.mkdir()
    async with connected_process({"toolboxes": {}}, folder) as client:
        [opening, _] = await listed(client)
        instructions = client.instructions or ""
    assert "INFO Serving no toolboxes from /" in (folder / "stderr").read_text()
    assert re.match("No toolboxes configured.*'toolboxes'.*-bytes/", instructions)
    assert "enum" not in opening["inputSchema"]["properties"]["toolbox_name"]


def test_an_older_python_gets_a_sentence() -> None:
    found = Path.home().glob(".pyenv/versions/3.10.*/bin/python")
    python = next(found, None) or shutil.which("python3.10")
    if python is None:
        pytest.skip("needs a Python 3.10")
    arguments = [python, workbench.__file__, "--version"]
    process = subprocess.run(arguments, capture_output=True, check=False)
    assert re.fullmatch(rb".*Python 3\.11 or newer.* 3\.10\..*\n", process.stderr)
    assert process.returncode == 1


def test_check_prints_each_server_as_it_settles(tmp_path: Path) -> None:
    gate, starts = tmp_path / "gate", tmp_path / "starts"
    code = f"open({str(starts)!r}, 'a').write('x'); exit('last words')"
    config = configuration(
        slow=entry("noted", tmp_path / "slow", gate),
        bad={"command": sys.executable, "args": ["-c", code]},
        s=entry("tools_named", "a", toolFilters=["a", "no_*"], colour="red"),
    )
    arguments = command(config, tmp_path, "--check")
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    pipes: dict[str, Any] = {"stdout": PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(arguments, env=env, encoding="utf-8", **pipes) as process:
        assert process.stdout is not None
        end = threading.Timer(60, process.kill)
        end.start()
        lines = [process.stdout.readline() for _ in range(4)]
        gate.touch()
        slow, _ = process.stdout.readlines()
        end.cancel()
    unknown, unmatched, bad, good = sorted(lines, key=lambda x: ("WARN" not in x, x))
    assert "box.mcpServers.s.colour" in unknown and "no_*" in unmatched
    assert re.fullmatch(r"box/bad +FAILED +\d+\.\d s +.*status 1.*last words\n", bad)
    assert re.fullmatch(r"box/s +ok +\d+\.\d s +1 tool .*\n", good)
    assert re.match(r"box/slow +ok .*4 tools", slow)
    assert (process.returncode, starts.read_text()) == (1, "x")


async def test_check_tells_the_cost(capsys: Capture, monkeypatch: Monkey) -> None:
    told = "lambda _: {**initialized(), 'instructions': 'i' * 500}"
    toolboxes = {}
    for name, described in {"over": "'d' * 51_000", "under": "'ä' * 48_000"}.items():
        costly = f"tool(description={described}, title='t' * 99), initialize={told}"
        server = entry("scripted", f"serve_raw({costly})")
        toolboxes[name] = {"description": "d", "mcpServers": {"s": server}}
    config = workbench.parse_config({"toolboxes": toolboxes}, os.environ)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for no_color in ("1", ""):
        monkeypatch.setenv("NO_COLOR", no_color)
        assert await workbench.check(config) == 0
        *servers, context, large = capsys.readouterr().out.splitlines()
        assert ["\033[32mok" in line for line in servers] == [not no_color] * 2
    lines = "\n".join([*sorted(servers), context]).replace(",", "")
    over, under, own, native = map(int, re.findall("([0-9]+) bytes", lines))
    assert [over, under] == pytest.approx([51_620, 96_620], abs=50)
    assert native == pytest.approx(147_120, abs=50) and 600 < own < 1_200
    assert "'over'" in large and "'under'" not in large


IMAGE = {"type": "image", "data": "AA==", "mimeType": "image/png"}
IMAGE_RESULT = json.dumps({"content": [IMAGE], "isError": False}, indent=2)
CALLS = [  # of a tool, its arguments; status, stdout, and what stderr tells
    ("box__s__texts", "{}", 0, "a é\nb\n", ""),
    ("box__s__echo", '{"a": 1}', 0, '{"name": "echo", "arguments": {"a": 1}}\n', ""),
    ("box__s__image", "{}", 0, f"{IMAGE_RESULT}\n", ""),
    ("box__s__refusal", "{}", 1, "no\n", ""),
    ("no__s__x", "{}", 1, "", "Toolbox 'no' not found. Available toolboxes: box"),
    ("box__s__echo", "{", 1, "", "JSON"),
    ("box__s__echo", "[1]", 1, "", "object"),
]


async def test_call_prints_a_result_or_says_what_is_wrong(capsys: Capture) -> None:
    data = configuration(s=entry("shapes"))
    config, failed = workbench.parse_config(data, os.environ), []
    for name, arguments, status, stdout, why in CALLS:
        found = await workbench.call(config, name, arguments), *capsys.readouterr()
        if found[:2] != (status, stdout) or why not in found[2]:
            failed.append((name, arguments, *found))
    assert failed == []


def test_call_works_without_a_path(tmp_path: Path) -> None:
    program, file, _ = command(configuration(s=entry("plain")), tmp_path)
    arguments = [program, file, "--call", "box__s__echo", '{"a": 1}']
    place: Any = {"cwd": tmp_path, "env": {**os.environ, "WORKBENCH_CONFIG": ""}}
    assert subprocess.check_output(arguments, **place) == b'{"a": 1}\n'


BAD_OPTIONS = ["--nonsense", "--call", "--call a b c", "--check --call a", "a b"]
BAD_OPTIONS += ["--http 1", "--check --toolbox", "--toolbox --http"]
BAD_OPTIONS += ["--call NAME FILE", "--call FILE NAME", "--call NAME {} FILE"]


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_unfit_options_end_with_status_2(options: str, capsys: Capture) -> None:
    arguments = options.replace("FILE", workbench.__file__).split()
    with pytest.raises(SystemExit) as end:  # not `main`: it could end this process
        workbench.parse_command_line(arguments)
    told = "CONFIG goes before --call" in " ".join(capsys.readouterr().err.split())
    assert (end.value.code, told or "FILE" not in options) == (2, True)


# === Opening a toolbox ================================================================


@asynccontextmanager
async def opened(
    mode: str = "legacy", /, **servers: dict[str, Any]
) -> AsyncIterator[Client]:
    """A client of a workbench in this process, with the toolbox `box` open."""
    async with connected(configuration(**servers), mode) as client:
        await open_box(client)
        yield client


def runs(code: str) -> dict[str, Any]:
    return entry("scripted", code)


def noted_pids(file: Path) -> list[int]:
    """The starts of the `noted` servers of this file."""
    return [int(word) for word in file.read_text().split() if word.isdigit()]


async def shown_names(client: Client) -> list[str]:
    return [tool["name"] for tool in (await open_box(client))["tools"]]


async def at_once(count: int, call: Callable[[], Any]) -> list[Any]:
    """What so many concurrent calls return."""
    return await asyncio.gather(*(call() for _ in range(count)))


MISSING = {"command": "no-such-command"}
DEFAULT_HINTS = {"readOnlyHint": False, "destructiveHint": True}
DEFAULT_HINTS |= {"idempotentHint": False, "openWorldHint": True}
EVERY_FIELD = {
    "name": "read",
    "description": " Liest\nä ",
    "annotations": {hint: not value for hint, value in DEFAULT_HINTS.items()},
    "inputSchema": {"$schema": "s", "type": "object", "title": "In", "x": [None, 1.5]},
    "outputSchema": {"type": "object"},
    "title": "T",
    "x-vendor": {"deep": None},
    "source_server": "forged",
    "_meta": {"own": None},
}


async def test_the_answer_of_open_toolbox_has_exactly_this_shape() -> None:
    told = "{**initialized(), 'instructions': 'Größe zählt'}"
    a = runs(f"serve_raw({EVERY_FIELD}, initialize=lambda _: {told})")
    bare = tool("bare", description="", annotations={**DEFAULT_HINTS, "title": "T"})
    config = configuration(b=runs(f"serve_raw({bare})"), none=MISSING, a=a)
    async with connected(config) as client:
        answer = text(await client.call_tool("open_toolbox", {"toolbox_name": "box"}))
    reason = json.dumps(json.loads(answer)["servers_failed"]["none"])
    assert answer == (
        '{"toolbox":"box","description":"A box","servers_connected":2,'
        f'"servers_failed":{{"none":{reason}}},'
        '"instructions":{"a":"Größe zählt"},"tools":['
        '{"name":"box__b__bare","description":"Tool from box/b",'
        '"source_server":"b","toolbox_name":"box","inputSchema":{"type":"object"}},'
        '{"name":"box__a__read","description":" Liest\\nä ",'
        '"source_server":"a","toolbox_name":"box","inputSchema":{"type":"object",'
        '"title":"In","x":[null,1.5]},'
        '"annotations":{"readOnlyHint":true,"destructiveHint":false,'
        '"idempotentHint":true,"openWorldHint":false}}]}'
    )


async def test_a_failing_server_costs_only_itself(tmp_path: Path) -> None:
    file, later = tmp_path / "a", tmp_path / "later"
    servers = {"a": entry("noted", file), "b": entry("plain", cwd=str(later))}
    async with connected(configuration(**servers)) as client:
        first = await open_box(client)
        [(server, reason)] = first["servers_failed"].items()
        failed = await use(client, "b", "echo")
        assert server == "b" and failed.is_error and reason in text(failed)
        assert await open_box(client) == first
        later.mkdir()
        assert text(await use(client, "b", "echo", {"x": 1})) == '{"x": 1}'
        assert (await open_box(client))["servers_connected"] == 2
    assert len(noted_pids(file)) == 1


async def test_where_all_fail_nothing_is_left(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(workbench, "CONNECT_TIMEOUT", 1)
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.1)
    pid = tmp_path / "pid"
    silent = {"command": "sh", "args": ["-c", f"echo $$ > {pid}; exec sleep 600"]}
    async with connected(configuration(x=MISSING, silent=silent)) as client:
        open_it = functools.partial(client.call_tool, "open_toolbox")
        for result in await at_once(2, lambda: open_it({"toolbox_name": "box"})):
            assert result.is_error and "no-such-command" in text(result)
            assert "no answer within 1 seconds" in text(result)
        await until(lambda: not is_alive(int(pid.read_text())))


async def test_a_failed_open_does_not_end_another_one(tmp_path: Path) -> None:
    """All servers of the first one fail, but `a` was started again by the second."""
    later, a, gate, end = (tmp_path / name for name in ("later", "a", "gate", "end"))
    waiting = f"while not os.path.exists({str(end)!r}): time.sleep(0.01)"
    servers = {"a": entry("noted", a, gate, cwd=str(later)), "b": runs(waiting)}
    settled: list[Any] = []

    async def on_progress(*told: Any) -> None:
        settled.append(told)

    async with connected(configuration(**servers)) as client:
        first = asyncio.ensure_future(open_box(client, progress_callback=on_progress))
        await until(lambda: len(settled) == 1)
        later.mkdir()
        second = asyncio.ensure_future(open_box(client))
        await until(a.exists)
        end.touch()
        await until(lambda: len(settled) == 2)
        gate.touch()
        answers = await first, await second
        assert (await use(client, "a", "pid")).is_error is False
    assert [answer["servers_connected"] for answer in answers] == [1, 1]


def test_the_time_limits_are_those_that_clients_can_wait_for() -> None:
    times = (workbench.OPEN_TIMEOUT, workbench.ANSWER_TIMEOUT)
    assert (*times, workbench.CONNECT_TIMEOUT) == (5, 50, 180)


async def test_open_waits_for_first_server(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
    slow = entry("noted", tmp_path / "slow", tmp_path / "gate")
    note = "Still starting: slow. Call open_toolbox again to get their tools."
    async with connected(configuration(slow=slow, fast=entry("plain"))) as client:
        for _ in range(2):  # a repeated open waits the same way
            with anyio.fail_after(20):
                answer = await open_box(client)
            assert {tool["source_server"] for tool in answer["tools"]} == {"fast"}
            assert (answer["servers_connecting"], answer["note"]) == (["slow"], note)
        assert text(await use(client, "fast", "echo", {"x": 1})) == '{"x": 1}'
        (tmp_path / "gate").touch()
        assert not (await use(client, "slow", "pid")).is_error
        assert "servers_connecting" not in await open_box(client)


async def test_all_are_told_by_the_timeout(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
    monkeypatch.setattr(workbench, "ANSWER_TIMEOUT", 0.3)
    slow = entry("noted", tmp_path / "slow", tmp_path / "gate")
    async with connected(configuration(slow=slow, none=MISSING)) as client:
        with anyio.fail_after(20):
            answer = await open_box(client)
            early = text(await use(client, "slow", "pid"))
        monkeypatch.setattr(workbench, "ANSWER_TIMEOUT", 30)
        (tmp_path / "gate").touch()
        pid = text(await use(client, "slow", "pid"))
    assert (answer["servers_connected"], answer["servers_connecting"]) == (0, ["slow"])
    assert early.startswith("Error") and "still starting" in early
    assert [int(pid)] == noted_pids(tmp_path / "slow")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_progress_tells_who_has_settled(tmp_path: Path, mode: str) -> None:
    slow = entry("noted", tmp_path / "slow", tmp_path / "gate")
    told: list[Any] = []

    async def on_progress(*progress: Any) -> None:
        told.append(progress)
        if len(told) == 2:
            (tmp_path / "gate").touch()

    config = configuration(slow=slow, none=MISSING, fast=entry("plain"))
    async with connected(config, mode) as client:
        await open_box(client, progress_callback=on_progress)
    assert [(done, total) for done, total, _ in told] == [(1, 3), (2, 3), (3, 3)]
    names = [name for _, _, name in told]
    assert (sorted(names[:2]), names[2:]) == (["fast", "none"], ["slow"])


SPEAK = "sys.stderr.write('one\\ntwo'); sys.stderr.flush(); "


def lists(result: str) -> dict[str, Any]:
    """The configuration of a server with this Python code for its list of tools."""
    return runs(f"serve_raw(tools_list=lambda r: {result})")


FAILURES: list[tuple[dict[str, Any], list[str]]] = [
    (MISSING, ["no-such-command", "No such file or directory"]),
    (runs(f"{SPEAK}sys.exit(3)"), ["exited", "status 3", "one", "two"]),
    (runs(f"{SPEAK}os.kill(os.getpid(), 9)"), ["SIGKILL", "one", "two"]),
    (runs("os.kill(os.getpid(), 40)"), ["killed", "40"]),
    (runs("print('Usage: ...\\n{}')"), ["exited", "status 0"]),
    (lists("refuse(r)"), ["refused as asked"]),
    (lists("{'tools': {}}"), ["tools: "]),
    (lists("{'tools': [{'name': ''}]}"), ["tools.0.inputSchema: "]),
    (lists("{'tools': [tool(), tool(1)]}"), ["tools.1.name: "]),
    (lists("{'tools': [], 'nextCursor': 1}"), ["nextCursor: "]),
    (lists("[]"), ["result"]),
]


async def test_the_reason_of_a_failure_is_one_line(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 30)
    servers = {f"s{number}": server for number, (server, _) in enumerate(FAILURES)}
    async with connected(configuration(**servers, good=entry("plain"))) as client:
        failed = (await open_box(client))["servers_failed"]
    assert failed.keys() == servers.keys()
    for reason, (_, parts) in zip(failed.values(), FAILURES):
        assert reason.isprintable() and all(part in reason for part in parts), reason


async def test_a_reason_has_20_lines_of_stderr_cut_at_300_characters() -> None:
    lines = [f"{number:02}" + "y" * 298 for number in range(25)]
    code = f"[print(line + 'z' * 9, file=sys.stderr) for line in {lines}]; sys.exit(3)"
    async with connected(configuration(a=runs(code), b=entry("plain"))) as client:
        reason = (await open_box(client))["servers_failed"]["a"]
    assert [line for line in lines if line in reason] == lines[5:]
    assert reason.count("y") == 20 * 298 and "z" not in reason


TOOL_LISTS = {
    "refuse(r, -32601)": [],
    "page(r, 2)": ["t0", "t1", "t2"],
    "page(r, 999)": [f"t{number}" for number in range(250)],
    "print('garbage\\n{}\\n[1]', flush=True) or {'tools': [tool('x')]}": ["x"],
}


async def test_a_tool_list_is_read_to_its_end(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 30)
    servers = {f"s{number}": lists(code) for number, code in enumerate(TOOL_LISTS)}
    async with connected(configuration(**servers)) as client:
        answer = await open_box(client)
    named = zip(servers, TOOL_LISTS.values())
    expected = [f"box__{server}__{name}" for server, names in named for name in names]
    assert [tool["name"] for tool in answer["tools"]] == expected
    assert answer["servers_connected"] == len(servers)


# === Using a tool =====================================================================


async def test_use_tool_starts_the_one_server_that_it_needs(tmp_path: Path) -> None:
    """However many use it, or open its toolbox, at once; and one for each toolbox."""
    file, other = tmp_path / "a", tmp_path / "b"
    config = configuration(a=entry("noted", file), b=entry("noted", other))
    config["toolboxes"]["twin"] = config["toolboxes"]["box"]
    twin = {"toolbox_name": "twin", "tool_name": "twin__a__pid"}
    async with connected(config) as client:
        results = await at_once(20, lambda: use(client, "a", "pid"))
        assert not other.exists()
        answers = await at_once(20, functools.partial(open_box, client))
        results.append(await client.call_tool("use_tool", twin))
    assert [answer["servers_connected"] for answer in answers] == [2] * 20
    first, second = map(str, noted_pids(file))
    assert [text(result) for result in results] == [first] * 20 + [second]
    assert len(noted_pids(other)) == 1


NAME_FORM = "{toolbox}__{server}__{tool}"
DEAD_ENDS = [
    ("no", "no__a__echo", "Toolbox 'no' not found. Available toolboxes: box, shut"),
    ("box", "echo", NAME_FORM),
    ("box", "box__a__", NAME_FORM),
    ("box", "shut__a__echo", "'shut'"),
    ("box", "box__c__echo", "a, b"),
    ("box", "box__a__ecoh", "box__a__echo"),
]


async def test_a_name_that_leads_nowhere_is_an_error_that_helps() -> None:
    config = configuration(a=entry("plain"), b=entry("plain"))
    config["toolboxes"]["shut"] = config["toolboxes"]["box"]
    async with connected(config) as client:
        result = await client.call_tool("open_toolbox", {"toolbox_name": "no"})
        assert result.is_error and text(result) == DEAD_ENDS[0][2]
        for toolbox, tool_name, reason in DEAD_ENDS:
            arguments = {"toolbox_name": toolbox, "tool_name": tool_name}
            result = await client.call_tool("use_tool", arguments)
            prefix = f"Error executing tool '{tool_name}' in toolbox '{toolbox}': "
            assert result.is_error and text(result).startswith(prefix)
            assert reason in text(result).removeprefix(prefix)


ECHO = {"toolbox_name": "box", "tool_name": "box__a__echo"}
BAD_ARGUMENTS: list[tuple[str, dict[str, Any] | None, str]] = [
    ("open_toolbox", None, "toolbox_name"),
    ("open_toolbox", {"toolbox_name": "box", "servers": []}, "servers"),
    ("use_tool", {"tool_name": "box__a__echo"}, "toolbox_name"),
    ("use_tool", {**ECHO, "tool_name": None}, "tool_name"),
    ("use_tool", {**ECHO, "args": {}}, "args"),
    ("use_tool", {**ECHO, "arguments": [1]}, "arguments"),
    ("use_tool", {**ECHO, "arguments": "[1]"}, "arguments"),
]


async def test_bad_arguments_are_an_error_that_names_the_field() -> None:
    async with opened(a=entry("plain")) as client:
        for name, arguments, field in BAD_ARGUMENTS:
            result = await client.call_tool(name, arguments)
            assert result.is_error and f"'{field}'" in text(result), arguments
        assert text(await use(client, "a", "echo", {"x": 1})) == '{"x": 1}'


VALUES = {"null": None, "Größe 😀": [1, -2.5, True, {"": None}], "i": 2**70, "s": "{}"}


async def test_arguments_reach_the_server_as_they_are() -> None:
    half = r'{"cut": "\ud83d"}'  # half of a surrogate pair
    given = [{}, None, VALUES, json.dumps(VALUES), half]
    async with opened(a=entry("plain")) as client:
        results = [await use(client, "a", "echo", arguments) for arguments in given]
        null = await client.call_tool("use_tool", {**ECHO, "arguments": None})
    received = [json.loads(text(result)) for result in [*results, null]]
    assert received == [{}, {}, VALUES, VALUES, {"cut": "\ufffd"}, {}]


async def test_any_other_tool_is_a_protocol_error_with_a_hint() -> None:
    async with opened(a=entry("plain")) as client:
        for name in ("box__a__echo", "echo", "OPEN_TOOLBOX", ""):
            with pytest.raises(MCPError, match="use_tool") as caught:
                await client.call_tool(name, {})
            assert caught.value.code == -32602
            assert caught.value.message.startswith(f"Tool '{name}' not found: ")


# === Results ==========================================================================

# `answer` answers with its arguments as the response, after its `line` as it is; `count`
# tells how many calls of `answer` this process has had.
MIRROR = runs("""
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the end of stderr is no death
calls = []
def call(request):
    if request["params"]["name"] == "count":
        return text_result(str(len(calls)))
    calls.append(1)
    arguments = request["params"]["arguments"]
    print(arguments.pop("line", "").replace("ID", str(request["id"])), flush=True)
    if arguments:
        send({"id": request["id"], **arguments})
schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
serve_raw(tool("answer", outputSchema=schema), tool("count"), tools_call=call)
""")
RESOURCE = {"uri": "file:///t", "mimeType": "text/plain"}
ANNOTATIONS = {"audience": ["user"], "priority": 0.5}
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "Größe 😀 \u2028 \x00 漢字"},
    {"type": "text", "text": "", "annotations": ANNOTATIONS, "_meta": {"x": [None]}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {**RESOURCE, "text": "é", "_meta": {"x": 1}}},
    {"type": "resource", "resource": {**RESOURCE, "blob": "aGk="}},
    {"type": "resource_link", "name": "t", "title": "T", "size": 5, **RESOURCE},
]
DEEP = json.loads('{"a":' * 220 + "1" + "}" * 220)
RESULTS: list[dict[str, Any]] = [
    text_result("deeper than some parsers read", structuredContent=DEEP),
    {"content": BLOCKS},
    {"content": []},
    text_result("ä😀x" * 300_000),
    text_result("not its schema", structuredContent={"n": "x", "deep": [{"x": None}]}),
    text_result("wrong", isError=True, _meta={"example.com/x": {"id": None}}),
]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_result_comes_as_the_server_sent_it(mode: str) -> None:
    async with opened(mode, a=MIRROR) as client:
        for expected in RESULTS:
            result = await use(client, "a", "answer", {"result": expected})
            dumped = result.model_dump(mode="json", by_alias=True, exclude_unset=True)
            meta = dumped.pop("_meta", {})
            meta.pop("io.modelcontextprotocol/serverInfo", None)  # of this hop
            assert dumped.pop("resultType", "complete") == "complete"
            assert dumped | ({"_meta": meta} if meta else {}) == expected


def told(result: types.CallToolResult) -> str:
    """What a failed call of `answer` says after the words that all errors begin with."""
    prefix = "Error executing tool 'box__a__answer' in toolbox 'box': "
    assert result.is_error and text(result).startswith(prefix)
    return text(result).removeprefix(prefix)


async def test_an_error_of_the_server_is_told_and_its_data_have_no_power() -> None:
    """The call is neither repeated nor taken for a death."""
    forged = "workbench: the server is gone and has not seen this request"
    data: list[Any] = [None, forged, "unreached", {"retry": True}, [[]]]
    closed = {"code": -32000, "message": "Connection closed"}
    errors = [{**closed, "data": item} for item in data]
    errors += [{"code": code, "message": "no luck"} for code in (-32603, -32602, 42)]
    async with opened(a=MIRROR) as client:
        for error in errors:
            reason = told(await use(client, "a", "answer", {"error": error}))
            assert str(error["code"]) in reason and error["message"] in reason
        assert text(await use(client, "a", "count")) == str(len(errors))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_error_that_addresses_the_client_passes_through(mode: str) -> None:
    async with opened(mode, a=MIRROR) as client:
        for code in (-32042, -32021):
            error = {"code": code, "message": "client, act", "data": {"x": [None]}}
            with pytest.raises(MCPError) as caught:
                await use(client, "a", "answer", {"error": error})
            assert caught.value.error.model_dump(exclude_unset=True) == error


SPOILT_ANSWERS = {
    "": "not valid MCP",  # neither result nor error
    '"result": {}, ': "content",
    '"result": {"content": [{"type": "text"}]}, ': "text",
    '"result": {"content": [{"type": "image", "data": "aGk="}]}, ': "mimeType",
    '"result": {"content": [], "isError": "maybe"}, ': "isError",
    '"result": null, ': "result",
    '"error": {"message": "x"}, ': "code",
    '"error": "x", ': "error",
}


async def test_a_spoilt_answer_is_an_error_that_names_the_field() -> None:
    async with opened(a=MIRROR) as client:
        for spoilt, field in SPOILT_ANSWERS.items():
            line = f'{{{spoilt}"id": ID, "jsonrpc": "2.0"}}'
            with anyio.fail_after(5):
                result = await use(client, "a", "answer", {"line": line})
            assert field in told(result), spoilt
        assert text(await use(client, "a", "count")) == str(len(SPOILT_ANSWERS))
        answer = {"result": text_result("no luck", isError="true")}
        assert (await use(client, "a", "answer", answer)).is_error is True


async def test_a_log_line_with_the_id_of_a_call_is_not_its_answer() -> None:
    lines = """{"level": 40, "id": ID, "error": "cache miss"}
{"level": 30, "id": ID, "result": {"content": []}}
{"jsonrpc": "1.0", "id": ID}"""
    async with opened(a=MIRROR) as client:
        answer = {"line": lines, "result": text_result("the answer")}
        with anyio.fail_after(5):
            assert text(await use(client, "a", "answer", answer)) == "the answer"


# === A server that dies ===============================================================


async def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(pid))


def resources() -> list[int]:
    """How many processes, descriptors, tasks and objects of ours there are."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ours = [each for each in gc.get_objects() if type(each).__module__ == "workbench"]
    files, tasks = os.listdir("/proc/self/fd"), asyncio.all_tasks()
    return [len(each) for each in (children, files, tasks, ours)]


async def leaves_nothing_behind(before: list[int]) -> None:
    await until(lambda: all(n <= m for n, m in zip(resources(), before)))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_death_between_calls_goes_unnoticed(tmp_path: Path, mode: str) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    servers = {"a": entry("noted", file), "b": entry("noted", other)}
    async with connected(configuration(**servers), mode) as client:
        first = await open_box(client)
        before = resources()
        for count in (1, 20, 1):
            await killed(noted_pids(file)[-1])
            results = await at_once(count, lambda: use(client, "a", "pid"))
            assert {text(r) for r in results} == {str(noted_pids(file)[-1])}
        await killed(noted_pids(file)[-1])
        with anyio.fail_after(5):
            while len(noted_pids(file)) == 4:  # its end is about to be noticed
                again = await open_box(client)
        await leaves_nothing_behind(before)
    assert again == first
    assert (len(noted_pids(file)), len(noted_pids(other))) == (5, 1)


async def test_a_server_killed_during_calls_fails_these_only(tmp_path: Path) -> None:
    file, other, gate = tmp_path / "a", tmp_path / "b", tmp_path / "gate"
    async with opened(a=entry("noted", file), b=entry("noted", other)) as client:
        calls = [
            asyncio.ensure_future(use(client, name, "wait", {"until": str(gate)}))
            for name in "aab"  # that of `b` is sent last
        ]
        await until(lambda: all("wait" in x.read_text() for x in (file, other)))
        os.kill(noted_pids(file)[0], signal.SIGKILL)
        with anyio.fail_after(5):
            failed = [text(await call) for call in calls[:2]]
        assert text(await use(client, "a", "pid")) == str(noted_pids(file)[1])
        gate.touch()
        assert text(await calls[2]) == str(noted_pids(other)[0])
    prefix = "Error executing tool 'box__a__wait' in toolbox 'box': .*"
    for each in failed:
        assert re.search(f"^{prefix}SIGKILL.*first words", each)
    noted = re.findall("[a-z]+", file.read_text())
    assert noted == ["wait", "pid"]  # the other one was still in the pipe


async def test_what_a_server_says_before_it_exits_is_delivered(tmp_path: Path) -> None:
    file = tmp_path / "a"
    async with opened(a=entry("noted", file)) as client:
        with anyio.fail_after(5):
            told = text(await use(client, "a", "exit"))
        assert text(await use(client, "a", "answer_and_exit")) == "the answer"
    assert re.search("^Error.*exited.*status 7.*first words.*last words", told)
    assert re.findall("[a-z_]+", file.read_text()) == ["exit", "answer_and_exit"]


async def test_the_end_of_a_server_with_a_child_is_noticed(tmp_path: Path) -> None:
    file, children = tmp_path / "a", tmp_path / "children"
    forking = f"""
if not (child := os.fork()):
    time.sleep(600)
note({str(children)!r}, child)
noted({str(file)!r})
"""
    async with opened(a=runs(forking)) as client:
        with anyio.fail_after(10):
            assert "last words" in text(await use(client, "a", "exit"))
            assert text(await use(client, "a", "pid")) == str(noted_pids(file)[1])
            os.kill(noted_pids(file)[1], signal.SIGKILL)
            while len(noted_pids(file)) == 2:
                await client.call_tool("open_toolbox", {"toolbox_name": "box"})
        await until(lambda: not any(map(is_alive, noted_pids(children)[:2])))
    left = noted_pids(file) + noted_pids(children)
    await until(lambda: not any(map(is_alive, left)))


# === Real servers =====================================================================

REAL_SERVERS = Path(workbench.__file__).parent / ".ci" / "servers"
REAL_CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "node_modules/.bin/mcp-server-filesystem .": [
        ("list_directory", {"path": "."}),
        ("read_text_file", {"path": "large ä.txt"}),
        ("read_media_file", {"path": "sound.wav"}),
        ("read_text_file", {"path": "/etc/hostname"}),
    ],
    "py/bin/mcp-server-git": [
        ("git_status", {"repo_path": "."}),
        ("git_log", {"repo_path": "."}),
        ("git_show", {"repo_path": ".", "revision": "nothing"}),
    ],
}


@pytest.fixture
def real_servers(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Real servers over a small git repository; skips the test where one is absent."""
    folder, servers = tmp_path / "work", {}
    for line in REAL_CALLS:
        program, *args = line.split()
        if not (REAL_SERVERS / program).exists():
            pytest.skip(f"{REAL_SERVERS / program} is not installed")
        command = {"command": str(REAL_SERVERS / program), "args": args}
        servers[program.split("-")[-1]] = {**command, "cwd": str(folder)}
    folder.mkdir()
    (folder / "large ä.txt").write_text("Größe 😀\n" * 30_000)
    (folder / "sound.wav").write_bytes(bytes(range(256)))
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["commit", "-qm", "Größe", "--allow-empty"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return servers


async def test_real_servers_answer_as_they_do_without_us(
    real_servers: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    answers: dict[str, list[Any]] = {name: [] for name in real_servers}
    calls = dict(zip(real_servers, REAL_CALLS.values()))

    async def ask(name: str, call: Callable[..., Any]) -> None:
        results = [await call(*each) for each in calls[name]]
        answers[name].append([result.model_dump() for result in results])

    async def ask_directly(name: str) -> None:
        parameters = StdioServerParameters(**real_servers[name], env=dict(os.environ))
        async with Client(parameters, mode="legacy") as direct:
            await ask(name, direct.call_tool)

    process = connected_process(configuration(**real_servers), tmp_path)
    async with process as client, anyio.create_task_group() as tasks:
        for name in real_servers:
            tasks.start_soon(ask_directly, name)
            tasks.start_soon(ask, name, functools.partial(use, client, name))
    assert [name for name, (one, other) in answers.items() if one != other] == []


# === Connections: tool changes ========================================================

eras_of_changing = [("changing", "legacy"), ("changing_sdk", "auto")]
in_both_eras = pytest.mark.parametrize(("server", "mode"), eras_of_changing)


@pytest.fixture
def log(caplog: Logs) -> Logs:
    caplog.set_level(logging.DEBUG, "workbench")
    return caplog


async def become(client: Client, *tools: dict[str, Any], **more: Any) -> None:
    result = await use(client, "a", "become", {"tools": tools, **more})
    assert not result.is_error, text(result)


async def changed(client: Client) -> list[dict[str, Any]]:
    """What `open_toolbox` shows of the tools that change."""
    tools = [
        tool(shown["name"].removeprefix("box__a__"), inputSchema=shown["inputSchema"])
        for shown in (await open_box(client))["tools"]
    ]
    own = ("become", "listings", "era", "echo")
    return [each for each in tools if each["name"] not in own]


async def shows(client: Client, *tools: dict[str, Any]) -> None:
    """Wait until `open_toolbox` shows these tools."""
    with anyio.fail_after(20):
        while await changed(client) != list(tools):
            await anyio.sleep(0.01)


@in_both_eras
async def test_a_change_is_there_for_the_next_call(server: str, mode: str) -> None:
    async with opened(mode, a=entry(server)) as client:
        for count in range(10):
            shown = tool("shown", inputSchema={"type": "object", "required": ["x"]})
            await become(client, shown, tool(f"used_{count}"))
            assert not (await use(client, "a", f"used_{count}")).is_error, count
            edited = tool("shown", inputSchema={"type": "object", "title": str(count)})
            await become(client, edited, tool(f"added_{count}"))
            assert await changed(client) == [edited, tool(f"added_{count}")]


async def test_a_thousand_announcements_cost_two_or_three_listings(log: Logs) -> None:
    """And a change during the first of these is not lost."""
    async with opened(a=entry("changing")) as client:
        before = int(text(await use(client, "a", "listings")))
        change = {"times": 1000, "seconds": 0.5, "meanwhile": [tool("y")]}
        await become(client, tool("x"), **change)
        assert await changed(client) == [tool("y")]
        assert int(text(await use(client, "a", "listings"))) - before in (2, 3)
    skipped = "Skipping duplicate discovery - already in progress for: box/a"
    assert ("workbench", logging.DEBUG, skipped) in log.record_tuples


async def test_an_open_waits_for_no_more_than_one_listing_begun_after_it() -> None:
    code = """
def listed(_):
    send({"method": "notifications/tools/list_changed"})
    time.sleep(0.05)
    return {"tools": [tool()]}
serve_raw(tools_list=listed)"""
    async with opened(a=runs(code)) as client:
        with anyio.fail_after(workbench.OPEN_TIMEOUT - 1):
            for _ in range(3):
                await open_box(client)


async def test_only_a_call_of_an_unknown_tool_waits(monkeypatch: Monkey) -> None:
    async with opened("auto", a=entry("changing_sdk")) as client:
        await become(client, tool("x"), seconds=1000)
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 1000)
        assert text(await use(client, "a", "echo", {"message": "x"})) == "Echo: x"
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0.1)
        assert (await use(client, "a", "x")).is_error
        assert await changed(client) == []


LATE = """
tools = []
def listed(request):
    if tools:
        return {"tools": tools}
    tools.append(tool("late"))
    answer = {"jsonrpc": "2.0", "id": request["id"], "result": {"tools": []}}
    print(json.dumps(answer))  # is sent together with what follows
    send({"method": "notifications/tools/list_changed"})
serve_raw(tools_list=listed)
"""


@pytest.mark.parametrize("seconds", [0, 5])
async def test_no_early_change_is_lost(seconds: float, monkeypatch: Monkey) -> None:
    """One that is announced just before the first list, or just after it."""
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", seconds)
    for server in (entry("changing", "listChanged", "late"), runs(LATE)):
        async with connected(configuration(a=server)) as client:
            assert await changed(client) == [tool("late")]


async def test_a_refresh_that_fails_half_way_keeps_the_old_list() -> None:
    async with opened(a=entry("changing")) as client:
        await become(client, tool("x"))
        await shows(client, tool("x"))
        for fault in ("error", "{}", '{"tools": 1}', '{"tools": [{}]}'):
            await become(client, tool("y"), fault=fault)
            assert await changed(client) == [tool("x")], fault
        await become(client, tool("z"), fault="")
        assert await changed(client) == [tool("z")]


async def test_a_server_that_dies_during_a_refresh_is_started_again() -> None:
    async with opened(a=entry("changing")) as client:
        box = {"toolbox_name": "box"}
        asks = {"open_toolbox": box, "use_tool": {**box, "tool_name": "box__a__x"}}
        for name, arguments in asks.items():
            await become(client, tool("x"), fault="exit")
            await client.call_tool(name, arguments)
            assert await changed(client) == []
            assert text(await use(client, "a", "listings")) == "1"


async def test_a_lost_listen_stream_is_opened_again(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "RELISTEN_DELAY", 0.1)
    async with opened("auto", a=entry("changing_sdk")) as client:
        await become(client, tool("y"), lose=True)
        await shows(client, tool("y"))
        await become(client, tool("z"))
        await shows(client, tool("z"))


@in_both_eras
async def test_announcements_are_only_logged(server: str, mode: str, log: Logs) -> None:
    config, ear = configuration(a=entry(server)), Ear()
    async with connected(config, mode, **ear.callbacks) as client:
        await shows(client)
        await become(client, *map(tool, "abc"))
        await shows(client, *map(tool, "abc"))
        await become(client, tool("a", title="A"), *map(tool, "xyz"))
        await shows(client, *map(tool, "axyz"))
    received = "Received tools/list_changed notification from server: box/a"
    assert log.record_tuples.count(("workbench", logging.INFO, received)) == 2
    supported = "Server supports tool change notifications: box/a"
    assert ("workbench", logging.DEBUG, supported) in log.record_tuples
    counts = re.compile("box/a.*3 added.*2 removed.*1 modified")
    levels = [r.levelno for r in log.records if counts.search(r.message)]
    assert (levels, ear.heard) == ([logging.INFO], [])


async def test_an_announcement_without_the_capability_warns(log: Logs) -> None:
    async with opened(a=entry("changing", "none", toolFilters=["[!f]*"])) as client:
        await become(client, tool("x"), tool("filtered out"))
        assert await changed(client) == [tool("x")]
    [warning] = [r.message for r in log.records if r.levelno == logging.WARNING]
    told = "Received tools notification from server without listChanged capability: %s"
    assert warning == told % "box/a"
    assert "Server supports tool change notifications: box/a" not in log.messages


# === Connections: remote servers ======================================================


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@asynccontextmanager
async def listening(port: int) -> AsyncIterator[None]:
    """A process of `changing_sdk` at this port, once it says so."""
    server, said = entry("changing_sdk", port), b""
    line = [server["command"], *server["args"]]
    async with await anyio.open_process(line, stderr=subprocess.STDOUT) as process:
        try:
            while b"port %d\n" % port not in said:
                said += await cast(Any, process.stdout).receive()
            yield
        finally:
            process.kill()


@pytest.fixture
async def server() -> AsyncIterator[Remote]:
    server = Remote()
    server.listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    yield server
    server.listener.close()


async def test_a_remote_server_announces_changes_in_both_eras(log: Logs) -> None:
    async with listening(port := free_port()):
        for mode, version in (("legacy", OLDER), ("auto", MODERN)):
            log.clear()
            async with opened(mode, a=remote(port)) as client:
                assert text(await use(client, "a", "era")) == version
                with anyio.fail_after(20):  # its stream may not be open at once
                    while "1 added" not in log.text:
                        await become(client, tool(mode))


async def test_a_remote_result_may_have_megabytes(server: Remote) -> None:
    for path in ("/mcp", "/stream", "/sse"):
        async with opened(a=server.at(path)) as client:
            for size in (1_000_000, 5_000_000, 1_000_000):
                server.answers["big"] = text_result("x" * size)
                result = await use(client, "a", "big")
                fits = path != "/sse" or size == 1_000_000  # the limit of the SDK
                assert (len(text(result)) == size) == fits, path


async def test_every_request_has_the_headers_and_no_timeout_and_goes_where_it_is_sent(
    server: Remote, monkeypatch: Monkey
) -> None:
    """That a call may be silent for ever; a redirect within the host is followed."""
    limits: set[Any] = set()
    send = httpx2.AsyncClient.send

    async def watch(self: Any, request: httpx2.Request, **options: Any) -> Any:
        if b'"id"' in request.content or request.method == "GET":
            limits.add(request.extensions["timeout"]["read"])
        return await send(self, request, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "send", watch)
    monkeypatch.setenv("PASSWORD", "sesame-open")
    more = {"headers": {"Authorization": "Bearer ${PASSWORD}"}}
    servers = {path[1:]: server.at(path, **more) for path in ("/mcp", "/sse", "/moved")}
    async with opened(**servers) as client:
        answers = {text(await use(client, name, "ok")) for name in servers}
    assert (server.seen, limits) == ({"bearer sesame-open"}, {None})
    assert answers == {"ok"}


REFUSED = {
    "401": "HTTP 401.*headers",
    "403": "HTTP 403.*headers",
    "404": "HTTP 404",
    "500": "HTTP 500",
    "full": "session 7 is full",
    "elsewhere": "HTTP 307",
    "page": "HTTP (302|405)",
    "html": "html",
    **dict.fromkeys(("unreadable", "ended", "cut", "closed"), ""),
}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_remote_server_that_does_not_connect_says_why_in_one_line(
    mode: str, server: Remote, monkeypatch: Monkey
) -> None:
    limits = {"HTTP_TIMEOUT": 2, "CONNECT_TIMEOUT": 6, "OPEN_TIMEOUT": 60}
    for name, seconds in limits.items():
        monkeypatch.setattr(workbench, name, seconds)
    here = server.at("")["url"]
    reasons = {f"http {here}/{fault}": why for fault, why in REFUSED.items()}
    if mode == "legacy":
        reasons |= {
            "http http://127.0.0.1:1/mcp": "refused",
            "http http://no-such-host.invalid/mcp": "",
            f"http {here}/hang": "no answer within 6 seconds",
            f"sse {here.replace('http', 'https')}/mcp": "no answer within 2 seconds",
            **{f"sse {here}/{n}": REFUSED[n] for n in ("401", "403", "500", "cut")},
        }
    more: Any = {"headers": {"Authorization": "open-sesame"}}
    servers: dict[str, Any] = {"works": entry("plain")}
    patterns = {}
    for name, why in reasons.items():
        transport, url = name.split()
        servers[name] = {"transport": transport, "url": f"{url}?key=sesame", **more}
        patterns[name] = f"(?!.*sesame)(?=.*{re.escape(url)}).*{why}.*"
    async with connected(configuration(**servers), mode) as client:
        told = (await open_box(client))["servers_failed"]
    wrong = [said for n, said in told.items() if not re.fullmatch(patterns[n], said)]
    assert (wrong, told.keys()) == ([], patterns.keys())


async def test_a_request_that_fails_costs_only_its_own_call(server: Remote) -> None:
    failing = [name for name in REFUSED if name != "404"]
    start = "Error executing tool 'box__a__"
    async with opened(a=server.at()) as client:
        siblings = asyncio.gather(*(use(client, "a", "wait") for _ in range(3)))
        await until(lambda: server.calls.count("wait") == 3)
        results = await asyncio.gather(*(use(client, "a", name) for name in failing))
        server.released.set()
        answers = [text(result) for result in await siblings]
    patterns = [f"{start}{name}'.*{REFUSED[name]}.*" for name in failing]
    told = zip(patterns, map(text, results))
    assert [each for each in told if not re.fullmatch(*each)] == []
    assert answers == ["released"] * 3
    assert [server.calls.count(name) for name in failing] == [1] * len(failing)


async def test_a_failure_over_sse_is_told_and_mended(server: Remote) -> None:
    async with opened(a=server.at("/sse")) as client:
        for name in ("500", "closed"):
            failed = text(await use(client, "a", name))
            assert re.search(f"^Error.*{REFUSED[name]}", failed)
            assert text(await use(client, "a", "ok")) == "ok"
        calling = asyncio.ensure_future(use(client, "a", "wait"))
        await until(lambda: "wait" in server.calls)
        server.stream.close()
        assert "may have taken effect" in text(await calling)
        assert text(await use(client, "a", "ok")) == "ok"


async def test_a_json_body_is_the_answer_whatever_its_id(server: Remote) -> None:
    def body(**more: Any) -> bytes:
        whole = {"jsonrpc": "2.0", "id": None, **more}
        return response(200, json.dumps(whole, indent=1))

    async def gone(request: dict[str, Any], _: Any) -> bytes:  # but not the session
        return response(404, json.dumps({**request, "error": error}))

    error = {"code": 7, "message": "no luck"}
    server.answers["result"] = body(id=999, result=text_result("a\ud83d"))
    server.answers |= {"error": body(error=error), "none": body(method="x")}
    server.answers["gone"] = gone
    names = "result", "error", "none", "gone"
    async with opened(a=server.at()) as client:
        with anyio.fail_after(20):
            told = [text(await use(client, "a", name)) for name in names]
    assert told[0] == "a\ufffd" and "HTTP 200" in told[2]
    assert "7: no luck" in told[1] and "7: no luck" in told[3]
    assert server.calls.count("gone") == server.calls.count("initialize") == 1


async def test_spoilt_answers_are_errors_over_any_transport(server: Remote) -> None:
    half = text_result("a\ud83d, 😀")
    server.answers |= {"neither": None, "half": half}
    servers = {path[1:]: server.at(path) for path in ("/mcp", "/stream", "/sse")}
    local = runs(f"serve_raw(tool('half'), tools_call=lambda _: {half})")
    async with opened(**servers, local=local) as client:
        with anyio.fail_after(20):
            spoilt = [text(await use(client, name, "neither")) for name in servers]
            halves = [text(await use(client, n, "half")) for n in (*servers, "local")]
    assert [told for told in spoilt if "not valid MCP" not in told] == []
    assert halves == ["a\ufffd, 😀"] * 4


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_call_whose_events_can_be_resumed_ends_when_its_server_stays_dead(
    is_silent: bool, server: Remote, monkeypatch: Monkey
) -> None:
    async def die(*_: Any) -> bytes:
        if is_silent:
            monkeypatch.setattr(server, "respond", server.wait)
        else:
            server.listener.close()
        return STREAM + b"id: 1\nretry: 10\ndata: \n\n"

    monkeypatch.setattr(workbench, "HTTP_TIMEOUT", 0.5)
    server.answers["die"] = die
    async with opened(a=server.at()) as client:
        with anyio.fail_after(20):
            result = await use(client, "a", "die")
    assert text(result).startswith("Error executing tool 'box__a__die'")


async def test_a_server_without_a_get_stream_is_listed_anew(server: Remote) -> None:
    servers = {f"get{n}": server.at(f"/mcp?{n}") for n in (404, 405, 429)}
    async with opened(**servers) as client:
        server.answers["seen"] = text_result("new")
        names = await shown_names(client)
        server.answers["used"] = text_result("new")
        answers = [text(await use(client, name, "used")) for name in servers]
    assert {f"box__{name}__seen" for name in servers} <= {*names}
    assert (answers, server.calls.count("initialize")) == (["new"] * 3, 3)


async def test_many_silent_calls_leave_no_connection_open(server: Remote) -> None:
    servers = {path[1:]: server.at(path) for path in ("/mcp", "/stream")}
    async with opened(**servers) as client:
        before = server.connections
        async with anyio.create_task_group() as calls:
            for name in ["mcp"] * 110 + ["stream"] * 10:
                calls.start_soon(use, client, name, "wait")
            await until(lambda: server.calls.count("wait") == 120, 20)
            assert text(await use(client, "mcp", "ok")) == "ok"
            calls.cancel_scope.cancel()
        await until(lambda: server.connections <= before, 20)


async def test_a_clients_answer_that_is_refused_costs_one_call(server: Remote) -> None:
    async def ask(request: dict[str, Any], stream: Any) -> bytes:
        question = {**ELICIT, "id": request["params"]["arguments"]["how"]}
        stream.write(STREAM + event(question))
        await accepted.wait()
        return event({"id": request["id"], "result": text_result("accepted")})

    async def moved(*_: Any) -> bytes:
        return next(answers)

    async def slow(*_: Any) -> bytes:
        await anyio.sleep(1.2)
        accepted.set()
        return response(202)

    accepted = anyio.Event()
    answers = iter([response(307, location="/mcp"), response(500)])
    server.answers |= {"ask": ask, "refused": response(500), "slow": slow}
    server.answers["moved"] = moved
    config = configuration(a=server.at())
    async with connected(config, **Ear("elicitation").callbacks) as client:
        sibling = asyncio.ensure_future(use(client, "a", "wait"))
        with anyio.fail_after(20):
            for how in ("refused", "moved"):
                refused = await use(client, "a", "ask", {"how": how})
                assert refused.is_error and "HTTP 500" in text(refused)
            taken = await use(client, "a", "ask", {"how": "slow"})
        server.released.set()
        assert [text(taken), text(await sibling)] == ["accepted", "released"]


async def test_a_cancelled_call_takes_its_question_back(server: Remote) -> None:
    async def ask(_: Any, stream: Any) -> None:
        params = {**FORM, "_meta": {"answer": "never"}}
        stream.write(STREAM + event({**ELICIT, "id": "q", "params": params}))
        await until(lambda: "notifications/cancelled" in server.calls)
        end = {"method": "notifications/cancelled", "params": {"requestId": "q"}}
        stream.write(event(end))
        await anyio.sleep_forever()

    server.answers["ask"], ear = ask, Ear("elicitation")
    async with connected(configuration(a=server.at()), **ear.callbacks) as client:
        call = asyncio.ensure_future(use(client, "a", "ask"))
        await ear.asked.wait()
        call.cancel()
        await until(ear.withdrawn.is_set)


@pytest.mark.parametrize("stale", ["404", "400"])
async def test_a_forgotten_session_is_replaced(stale: str, server: Remote) -> None:
    server.stale = stale
    async with opened(a=server.at()) as client:
        before = resources()
        for server.session in "234":
            results = await at_once(9, lambda: use(client, "a", "ok"))
            assert [text(result) for result in results] == ["ok"] * 9
        await leaves_nothing_behind(before)
    counted = map(server.calls.count, ("ok", "initialize", "DELETE"))
    assert [*counted] == [27, 4, 1]  # only the last session is there to be ended


async def test_a_late_listing_of_a_former_session_is_ignored(server: Remote) -> None:
    async def late(*_: Any) -> dict[str, Any]:
        old = await server.listing()
        server.answers |= {"tools/list": server.listing, "new": text_result("new")}
        await server.released.wait()
        return old

    async with opened(a=server.at()) as client:
        server.answers["tools/list"] = late
        opening = asyncio.ensure_future(open_box(client))
        await until(lambda: "new" in server.answers)
        server.session = "2"
        assert text(await use(client, "a", "ok")) == "ok"
        server.released.set()
        await opening
        assert "box__a__new" in await shown_names(client)
        assert text(await use(client, "a", "new")) == "new"


async def test_a_remote_server_that_was_restarted_answers_the_next_call() -> None:
    async def answers() -> list[str]:
        calls = (use(client, "a", "echo", {"message": "x"}) for client in (old, new))
        return [text(result) for result in await asyncio.gather(*calls)]

    config = configuration(a=remote(port := free_port()))
    async with connected(config, "legacy") as old, connected(config, "auto") as new:
        for _ in range(2):
            async with listening(port):
                assert await answers() == ["Echo: x"] * 2
        assert "refused" in (await answers())[0]
        async with listening(port):
            assert await answers() == ["Echo: x"] * 2


# === A transparent proxy ==============================================================

FORM: dict[str, Any] = {"mode": "form", "message": "Who?"}
FORM |= {"requestedSchema": {"type": "object", "properties": {}}}
SIGN_IN = {"mode": "url", "message": "Sign in", "url": "https://a.b/c?d=e"}
SIGN_IN |= {"elicitationId": "e1"}
ELICIT = {"method": "elicitation/create", "params": FORM}
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
PARIS = {"type": "text", "text": "Paris"}
SAMPLED = {"role": "assistant", "model": "m", "content": PARIS, "stopReason": "end"}
ODD = {"content": [PARIS], "structuredContent": [1, None]}
ROOTS = {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}
ROUND = {"inputRequests": {"who": ELICIT, "where": {"method": "roots/list"}}}
LOGS = [
    {"method": "notifications/message", "params": {"level": level, "data": [level]}}
    for level in get_args(types.LoggingLevel)
]


def dumped(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


class Ear:
    """A client's callbacks, of those with `able` in their names, and all they heard.

    The `_meta` of a request may hold the answer that it gets, "never" for none.
    """

    def __init__(self, able: str = "") -> None:
        self.heard: list[Any] = []
        self.asked, self.withdrawn = anyio.Event(), anyio.Event()
        sampled = types.CreateMessageResultWithTools
        tools = types.SamplingCapability(tools=types.SamplingToolsCapability())
        callbacks = {
            "elicitation_callback": self._answer(types.ElicitResult, ACCEPTED),
            "sampling_callback": self._answer(sampled, SAMPLED),
            "list_roots_callback": self._answer(types.ListRootsResult, ROOTS),
            "sampling_capabilities": tools,
        }
        able_to = {name: each for name, each in callbacks.items() if able in name}
        self.callbacks: dict[str, Any] = {**able_to, "message_handler": self._listen}

    def _answer(self, model: Any, usual: Any) -> Any:
        async def answer(context: Any, params: Any = None) -> Any:
            meta = context.meta or {}
            self.heard.append(dumped(params) if params else {"_meta": meta})
            given = meta.get("answer", usual)
            if given == "never":
                self.asked.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    self.withdrawn.set()
            return (types.ErrorData if "code" in given else model).model_validate(given)

        return answer

    async def _listen(self, message: Any) -> None:
        self.heard.append(dumped(message))


@dataclass
class Peer:
    """The server `name` in the box `box` as a client of the workbench sees it."""

    client: Client
    ear: Ear
    name: str

    async def call(self, tool: str, arguments: Any = None, **params: Any) -> Any:
        """The wire result, without what is in all of 2026-07-28, or `{"error": ...}`."""
        given = {"toolbox_name": "box", "tool_name": f"box__{self.name}__{tool}"}
        params |= {"name": "use_tool", "arguments": given}
        params["arguments"]["arguments"] = arguments or {}
        request = types.Request[Any, str](method="tools/call", params=params)
        kind: Any = TypeAdapter(dict[str, Any])
        try:
            result = await self.client.session.send_request(request, kind)
        except MCPError as error:
            return {"error": dumped(error.error)}
        meta = result.pop("_meta", {})
        meta.pop(f"{RESERVED}serverInfo", None)
        result.pop("resultType", None)
        return result | ({"_meta": meta} if meta else {})

    async def answer(self, tool: str, arguments: Any = None, **options: Any) -> Any:
        """The JSON that is the text of a tool's result."""
        result = await self.call(tool, arguments, **options)
        return json.loads(result["content"][0]["text"])


@asynccontextmanager
async def box_peer(
    mode: str, ear: Ear, folder: Path | None = None, **servers: Any
) -> AsyncIterator[Peer]:
    """The first of these servers in a workbench: in this process or its own."""
    connect: Any = connected
    if folder is not None:
        connect = functools.partial(connected_process, folder=folder)
    async with connect(configuration(**servers), mode=mode, **ear.callbacks) as client:
        yield Peer(client, ear, next(iter(servers)))


BOTH, OLDER_ONE = entry("eras", f"{OLDER} {MODERN}"), entry("eras", OLDER)
OWN_SERVERS = {"both": BOTH, "older": OLDER_ONE, "modern": entry("eras", MODERN)}
# A client's mode and a server's eras: the last two pairs have to be bridged.
PAIRS = LEGACY, AUTO, _, _ = "legacy both", "auto both", "legacy modern", "auto older"
STEPS: list[tuple[Any, ...]] = []  # pairs, a call, its result, what is heard


def step(
    pairs: Any, tool: str, given: Any, result: Any, *heard: Any, **more: Any
) -> None:
    """Register a call: its result, and what the client hears meanwhile."""
    STEPS.append((pairs, tool, given, more, result, [*heard]))


def progress(label: str, **token: Any) -> list[dict[str, Any]]:
    """A hundred progress notifications, `label 1` to `label 100`."""
    method, total = "notifications/progress", {"total": 100, **token}
    params = [{"progress": n, "message": f"{label} {n}"} for n in range(1, 101)]
    return [{"method": method, "params": {**total, **each}} for each in params]


def register_results_and_messages() -> None:
    structured: Any = {"structuredContent": {"y": None, "list": [1.5, {"é": {}}]}}
    meta = {"_meta": {"com.example/a": {"b": [1]}, "c": "d"}}
    full: Any = {"content": [PARIS], "isError": False, **structured, **meta}
    step(PAIRS, "result", full, full)
    step([AUTO], "result", ODD, ODD)
    error = {"code": -32602, "message": "Unknown", "data": {"a": [1]}}
    for retry in ({"requestState": "s"}, {"inputResponses": {"a": ROOTS}}):
        step([AUTO], "error", error, {"error": error}, **retry)
    done, steps = json_result(None), {"messages": progress("step")}
    for token in ("mine", 0):
        asking: Any = {"progressToken": token}
        step(PAIRS, "say", steps, done, *progress("step", **asking), _meta=asking)
    end = {"elicitationId": "e1"}
    messages = [*LOGS, {"method": "notifications/elicitation/complete", "params": end}]
    step([LEGACY], "say", {"messages": messages}, done, *messages)
    step(["auto older"], "say", {"messages": LOGS}, done)


def register_requests() -> None:
    asked = {"messages": [{"role": "user", "content": PARIS}], "maxTokens": 9}
    asked |= {"temperature": 0.5, "metadata": {"k": 1}, "stopSequences": ["."]}
    asked |= {"tools": [tool("t")], "toolChoice": {"mode": "required"}}
    used = {"type": "tool_use", "id": "1", "name": "t", "input": {"a": [1, None]}}
    error = {"code": -7, "message": "Asleep", "data": {"why": 1}}
    for method, params, *answers in (
        ("elicitation/create", FORM, ACCEPTED, error),
        ("elicitation/create", SIGN_IN, {"action": "decline"}),
        ("sampling/createMessage", asked, SAMPLED, {**SAMPLED, "content": [used]}),
        ("roots/list", {}, ROOTS, error),
    ):
        for answer in answers:
            heard = {**params, "_meta": {"answer": answer}}
            request = {"method": method, "params": heard}
            step([LEGACY], "ask", request, json_result(answer), heard)


register_results_and_messages()
register_requests()


async def test_what_a_server_sends_reaches_the_client_as_it_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    wrong: list[Any] = []

    async def observe(pair: str) -> None:
        mode, server = pair.split()
        folder = tmp_path_factory.mktemp(mode)
        async with box_peer(mode, Ear(), folder, a=OWN_SERVERS[server]) as peer:
            for pairs, tool, given, more, *expected in STEPS:
                if pair in pairs:
                    peer.ear.heard, result = [], None
                    with anyio.move_on_after(30):
                        result = await peer.call(tool, given, **more)
                    if [result, peer.ear.heard] != expected:
                        wrong.append((pair, tool, given, more, result, peer.ear.heard))

    async with anyio.create_task_group() as tasks:
        for pair in PAIRS:
            tasks.start_soon(observe, pair)
    assert wrong == []


async def test_a_client_of_2026_is_asked_in_rounds() -> None:
    given, config = {"rounds": [ROUND, {}, {}, ROUND]}, configuration(a=BOTH)
    async with connected(config, "auto", **Ear().callbacks) as client:
        responses = json.loads(text(await use(client, "a", "rounds", given)))
    assert responses == {"who": ACCEPTED, "where": ROOTS}


@ERAS
async def test_progress_comes_under_its_own_token(mode: str, tmp_path: Path) -> None:
    async def call(label: str) -> None:
        given = {"messages": progress(label), "calls": 2}
        await peer.call("say", given, _meta={"progressToken": label})

    async with box_peer(mode, Ear(), tmp_path, a=BOTH) as peer:
        with anyio.fail_after(30):
            await asyncio.gather(call("a"), call("b"))
    heard = [each["params"] for each in peer.ear.heard]
    for label in "ab":
        told = [each["message"] for each in heard if each["progressToken"] == label]
        assert told == [f"{label} {n}" for n in range(1, 101)]


@ERAS
async def test_cancelled_calls_leave_nothing_behind(mode: str, tmp_path: Path) -> None:
    moments = random.Random(4)

    async def call(number: int) -> None:
        with anyio.move_on_after(moments.uniform(0, 0.3)):
            await peer.call("wait", {"number": number})

    folder = tmp_path if mode == "auto" else None  # in memory no cancelling is sent
    async with box_peer(mode, Ear(), folder, a=BOTH) as peer:
        await open_box(peer.client)
        before, seen = len(asyncio.all_tasks()), await peer.answer("seen")
        with anyio.fail_after(30):
            while not seen["started"]:
                await asyncio.gather(*map(call, range(100)))
                seen = await peer.answer("seen")
            while sorted(seen["started"]) != sorted(seen["cancelled"]):
                seen = await peer.answer("seen")
            await until(lambda: len(asyncio.all_tasks()) <= before)


@pytest.mark.parametrize("pair", PAIRS)
async def test_a_server_is_called_in_its_clients_era_if_it_can(pair: str) -> None:
    own = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "a.b/c": {"x": [None]}}
    foreign = {f"{RESERVED}logLevel": "debug", f"{RESERVED}x": 1, "progressToken": "me"}
    mode, server = pair.split()
    async with box_peer(mode, Ear(), a=OWN_SERVERS[server]) as peer:
        seen = await peer.answer("seen", _meta={**own, **foreign})
    era, meta = OLDER if pair in (LEGACY, "auto older") else MODERN, seen["_meta"]
    assert (seen["era"], meta.pop("progressToken") != "me") == (era, True)
    assert {key: meta.pop(key, None) for key in own} == own
    names = ("clientCapabilities", "clientInfo", "protocolVersion")
    hop = [f"{RESERVED}{name}" for name in names] if era == MODERN else []
    assert sorted(meta) == hop  # what belongs to one hop is not passed on


async def test_what_the_eras_cannot_bridge_is_an_error_at_once() -> None:
    async with box_peer("legacy", Ear(), a=OWN_SERVERS["modern"]) as peer:
        assert await peer.call("result", ODD) == {"content": [PARIS]}
        asked = await peer.call("rounds", {"rounds": [ROUND]})
        assert asked["isError"] and MODERN in asked["content"][0]["text"]
        spoilt = await peer.call("result", {"content": 5})
        assert spoilt["isError"] and ": content" in spoilt["content"][0]["text"]
    async with box_peer("auto", Ear(), a=OLDER_ONE) as peer:
        assert "code" in await peer.answer("ask", ELICIT)


OFFERS: dict[tuple[str, str], Any] = {
    ("legacy", "nothing"): {},
    ("legacy", "roots"): {"roots": {"listChanged": True}},
    ("legacy", "elicitation"): {"elicitation": {"form": {}, "url": {}}},
    ("legacy", "sampling_callback"): {"sampling": {}},
    ("legacy", "sampling"): {"sampling": {"tools": {}}},
    ("auto", "sampling"): {"sampling": {"tools": {}}},
}


async def test_a_server_is_offered_what_the_client_declared() -> None:
    offers = {}
    for mode, able in OFFERS:
        async with box_peer(mode, Ear(able), a=BOTH) as peer:
            seen = await peer.answer("seen")
        offers[mode, able] = {**seen, **seen["_meta"]}[CAPABILITIES]
    assert offers == OFFERS


@pytest.mark.parametrize(("declared", "mode"), [({}, "form"), ({"url": {}}, "url")])
async def test_an_elicitation_mode_that_the_client_lacks_is_an_error(
    declared: Any, mode: str, monkeypatch: Monkey
) -> None:
    capabilities = types.ClientCapabilities.model_validate({"elicitation": declared})
    monkeypatch.setattr(ClientSession, "_build_capabilities", lambda *_: capabilities)
    async with box_peer("legacy", Ear(), a=OLDER_ONE) as peer:
        form = await peer.answer("ask", ELICIT)
        url = await peer.answer("ask", {**ELICIT, "params": SIGN_IN})
    assert ("code" in form, "code" in url) == (mode != "form", mode != "url")
    assert [each["mode"] for each in peer.ear.heard] == [mode]


async def test_changed_roots_are_told_to_every_open_server() -> None:
    ear, older = Ear(), OLDER_ONE
    async with box_peer("legacy", ear, a=older, b=older) as peer:
        await open_box(peer.client)
        changed = types.RootsListChangedNotification()
        await peer.client.session.send_notification(changed)
        await until(lambda: len(ear.heard) == 2)
    assert [each["params"]["data"] for each in ear.heard] == ["roots changed"] * 2


async def test_a_log_level_holds_for_open_servers_and_later_ones(caplog: Logs) -> None:
    caplog.set_level(logging.DEBUG, "workbench")
    ear, names, levels = Ear(), ("older", "modern"), ["error", "critical"]
    servers: Any = {name: OWN_SERVERS[name] for name in names}
    async with box_peer("legacy", ear, **servers) as peer:
        for level in levels:
            params = types.SetLevelRequestParams.model_validate({"level": level})
            request = types.SetLevelRequest(params=params)
            await peer.client.session.send_request(request, types.EmptyResult)
            await open_box(peer.client)
        for peer.name in names:
            await peer.call("say", {"messages": LOGS})
        older, modern = [await Peer(peer.client, ear, n).answer("seen") for n in names]
    assert older["levels"] == levels
    assert modern["_meta"][f"{RESERVED}logLevel"] == "critical"
    assert ear.heard == LOGS[5:] * 2
    logged = [each for each in caplog.records if "'debug'" in each.getMessage()]
    assert [each.levelname for each in logged] == ["DEBUG"] * 2  # our own has them all


async def test_without_a_client_a_server_speaks_its_newest_era(tmp_path: Path) -> None:
    line = command(configuration(a=BOTH), tmp_path)
    process = await anyio.run_process([*line, "--call", "box__a__seen"])
    seen = json.loads(process.stdout)
    assert (seen["era"], seen["_meta"][CAPABILITIES]) == (MODERN, {})


# === Built-in toolbox =================================================================


async def test_the_toolbox_lists_the_tools_of_the_seed() -> None:
    async with Client(workbench.create_toolbox_server()) as client:
        echo, time = (await client.list_tools()).tools
    assert (echo.title, echo.input_schema["required"]) == ("Echo Tool", ["text"])
    assert (time.title, time.input_schema.get("required")) == ("Time Tool", None)
    assert "returns the text it was given" in str(echo.description)
    assert "current server time" in str(time.description)


async def call_toolbox(name: str, **arguments: Any) -> types.CallToolResult:
    async with Client(workbench.create_toolbox_server()) as client:
        return await client.call_tool(name, arguments)


async def test_echo_returns_its_text() -> None:
    for said in ("", "zwölf 🧰\n\0", "x" * 1_000_000):
        result = await call_toolbox("echo", text=said)
        assert (text(result) == said, bool(result.is_error)) == (True, False), said[:9]


async def test_input_that_does_not_conform_is_an_error_that_names_the_field() -> None:
    for name, arguments, field in (
        ("echo", {}, "text"),
        ("echo", {"text": 1}, "text"),
        ("echo", {"text": "a", "volume": "loud"}, "volume"),
        ("time", {"timezone": None}, "timezone"),
    ):
        result = await call_toolbox(name, **arguments)
        assert result.is_error and f"'{field}'" in text(result), arguments


async def test_time_knows_every_iana_zone_and_no_other(monkeypatch: Monkey) -> None:
    now = datetime.datetime.fromisoformat("2026-03-08T06:59:59+00:00")
    clock = SimpleNamespace(now=now.astimezone)
    fixed = SimpleNamespace(datetime=clock, UTC=datetime.UTC)
    monkeypatch.setattr(workbench, "datetime", fixed)
    zones = zoneinfo.available_timezones()
    assert zones, "no zone data on this machine"
    async with Client(workbench.create_toolbox_server()) as client:
        for zone in zones:
            shown = text(await client.call_tool("time", {"timezone": zone}))
            assert shown == now.astimezone(zoneinfo.ZoneInfo(zone)).isoformat(), zone
        no_zones = ["Mars/Phobos", "America", "../etc/passwd", "zone.tab"]
        for zone in [*no_zones, ".", "", "UTC\0", "x" * 5000]:
            result = await client.call_tool("time", {"timezone": zone})
            told = text(result).startswith(f"Unknown timezone {zone!r}")
            assert result.is_error and told, zone


async def test_time_is_now_in_utc_which_needs_no_zone_data(monkeypatch: Monkey) -> None:
    def no_data(name: str) -> None:
        raise IsADirectoryError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", no_data)
    for zone in ({}, {"timezone": "UTC"}):
        shown = text(await call_toolbox("time", **zone))
        age = time.time() - datetime.datetime.fromisoformat(shown).timestamp()
        assert age < 60 and shown.endswith("+00:00")
    assert (await call_toolbox("time", timezone="Europe/Berlin")).is_error


# === The toolbox over HTTP ============================================================


@dataclass
class HttpToolbox:
    """A toolbox process that serves over HTTP."""

    process: subprocess.Popen[str]
    url: str
    port: int


@contextmanager
def http_toolbox(address: str) -> Iterator[HttpToolbox]:
    """Run `--toolbox --http ADDRESS` and read its port from the log."""
    line = [sys.executable, workbench.__file__, "--toolbox", "--http", address]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            found = re.search(r"http://\S+:(\d+)/mcp", first)
            assert found, first
            yield HttpToolbox(process, found[0], int(found[1]))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def toolbox() -> Iterator[HttpToolbox]:
    with http_toolbox("0") as running:
        yield running


def request_bytes(method: str, **params: Any) -> bytes:
    """A JSON-RPC request as it goes over the wire."""
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return json.dumps(message).encode()


PING = request_bytes("ping")
MEDIA_TYPES = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Connection": "close",
}


def ask(
    toolbox: HttpToolbox, method: str, path: str, body: Any = None, **headers: str
) -> http.client.HTTPResponse:
    """Send one HTTP request; the answer, whose body may still be coming."""
    named = MEDIA_TYPES | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", toolbox.port, timeout=10)
    connection.request(method, path, body, named)
    return connection.getresponse()


def status(toolbox: HttpToolbox, *request: Any, **headers: str) -> int:
    with ask(toolbox, *request, **headers) as response:
        return response.status


class RawSession:
    """A session of the SSE transport, with nothing but an HTTP client."""

    def __init__(self, toolbox: HttpToolbox) -> None:
        self.toolbox, self.stream = toolbox, ask(toolbox, "GET", "/mcp")
        self.close = self.stream.close
        self.first_event = self.next_event()
        self.endpoint = self.first_event.partition(b"data: ")[2].strip().decode()

    def next_event(self) -> bytes:
        event = b""
        while line := self.stream.readline().rstrip():
            event += line + b"\n"
        return event

    def post(self, body: bytes) -> int:
        return status(self.toolbox, "POST", self.endpoint, body)

    def result(self, method: str, **params: Any) -> Any:
        """Post a request; the result that then comes on the stream."""
        assert self.post(request_bytes(method, **params)) == 202
        event, data = self.next_event().splitlines()
        assert event == b"event: message"
        return json.loads(data.removeprefix(b"data: "))["result"]


CLIENT_INFO = {"name": "http.client", "version": "1"}
CLIENT = {"protocolVersion": OLDER, "clientInfo": CLIENT_INFO, "capabilities": {}}


def streamable_session(toolbox: HttpToolbox) -> dict[str, str]:
    """Initialize a session of Streamable HTTP; the header that names it."""
    body = request_bytes("initialize", **CLIENT)
    with ask(toolbox, "POST", "/mcp", body) as response:
        return {"Mcp-Session-Id": response.headers["Mcp-Session-Id"]}


def test_the_seed_flow_needs_nothing_but_an_http_client(toolbox: HttpToolbox) -> None:
    with closing(RawSession(toolbox)) as session:
        media_type = session.stream.headers["Content-Type"].partition(";")[0]
        assert (session.stream.status, media_type) == (200, "text/event-stream")
        first = rb"event: endpoint\ndata: /mcp/messages\?sessionId=[0-9a-f]{32}\n"
        assert re.fullmatch(first, session.first_event)
        info = session.result("initialize", **CLIENT)["serverInfo"]
        assert info == {"name": "mcp-toolbox", "version": workbench.__version__}
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert session.post(json.dumps(done).encode()) == 202
        said = session.result("tools/call", name="echo", arguments={"text": "hello"})
        assert said["content"] == [{"type": "text", "text": "hello"}]


async def test_a_message_for_no_session_is_answered_400(toolbox: HttpToolbox) -> None:
    session = RawSession(toolbox)
    assert session.post(PING) == 202
    session.close()
    await until(lambda: session.post(PING) == 400)
    queries = "", "?", "?sessionId=", "?sessionId=x", f"?sessionId={'0' * 32}"
    paths = [f"/mcp/messages{query}" for query in queries]
    assert {status(toolbox, "POST", path, PING) for path in paths} == {400}


BAD_REQUESTS: list[tuple[str, Any, dict[str, str], set[int]]] = [
    ("POST", b"", {}, {400}),
    ("POST", b"\xff", {}, {400}),
    ("POST", b'{"hello": "you"}', {}, {400}),
    ("POST", b"[" * 100_000, {}, {400}),
    ("PUT", PING, {}, {405}),
    ("POST", PING, {"Content_Type": "text/plain"}, {400, 415}),
]


def test_a_bad_request_gets_its_4xx_and_harms_no_session(toolbox: HttpToolbox) -> None:
    with closing(RawSession(toolbox)) as session:
        for method, body, headers, expected in BAD_REQUESTS:
            for path in ("/mcp", session.endpoint):
                told = status(toolbox, method, path, body, **headers)
                assert told in expected, (method, path, (body or b"")[:20], headers)
                assert session.result("ping") == {}


def test_a_streamable_http_session_ends_with_its_delete(toolbox: HttpToolbox) -> None:
    session = streamable_session(toolbox)
    requests = ("GET", 200), ("DELETE", 200), ("GET", 404)
    for method, expected in requests:
        assert status(toolbox, method, "/mcp", **session) == expected


async def test_one_url_serves_every_client_at_once(toolbox: HttpToolbox) -> None:
    async def talk(number: int, transport: str, mode: str) -> str:
        way: Any = sse_client(toolbox.url) if transport == "sse" else toolbox.url
        async with Client(way, mode=mode) as client:
            for turn in range(3):
                said = f"cliént {number} of {transport} {mode}, turn {turn}"
                assert text(await client.call_tool("echo", {"text": said})) == said
            return client.protocol_version

    kinds = ("sse", "legacy"), ("http", "legacy"), ("http", "auto")
    talks = [talk(number, *kind) for number in range(8) for kind in kinds]
    assert (await asyncio.gather(*talks)).count(MODERN) == 8


def test_on_loopback_foreign_names_are_refused(toolbox: HttpToolbox) -> None:
    assert f"//127.0.0.1:{toolbox.port}/" in toolbox.url  # unless told otherwise
    for name in ("127.0.0.1", "localhost", "[::1]"):
        host = f"{name}:{toolbox.port}"
        told = status(toolbox, "GET", "/mcp", Host=host, Origin=f"http://{host}")
        assert told == 200, name
    methods = ("GET", "POST", "DELETE", "OPTIONS")
    paths = ("/mcp", "/mcp/", "/mcp/messages", "/unknown")
    evil = "127.0.0.1.evil.example"
    foreign = [("Host", evil, 421), ("Origin", f"http://{evil}", 403)]
    foreign += [("Host", "evil.example", 421), ("Origin", "null", 403)]
    for cell in itertools.product(methods, paths, foreign):
        method, path, (header, value, expected) = cell
        assert status(toolbox, method, path, **{header: value}) == expected, cell


def test_bound_elsewhere_it_warns_and_serves_any_host_but_no_foreign_origin() -> None:
    with http_toolbox("0.0.0.0:0") as running:
        for host, origin, expected in (
            ("toolbox.example:8000", "http://toolbox.example:8000", 200),
            ("toolbox.example", "https://toolbox.example", 200),
            ("toolbox.example", "http://toolbox.example:81", 403),
            ("toolbox.example", "null", 403),
        ):
            told = status(running, "GET", "/mcp", Host=host, Origin=origin)
            assert told == expected, (host, origin)
        stderr = cast(Any, running.process).stderr
        assert "WARNING No authentication" in stderr.readline()


@pytest.mark.parametrize("signals", ["SIGINT", "SIGTERM SIGINT"])
def test_a_signal_ends_it_with_status_0_while_streams_are_open(signals: str) -> None:
    with (
        http_toolbox("LOCALHOST:0") as running,
        closing(RawSession(running)) as session,
        ask(running, "GET", "/mcp", **streamable_session(running)),
        socket.create_connection(("127.0.0.1", running.port)) as half,
    ):
        head = "POST /mcp HTTP/1.1", "Host: localhost", "Content-Length: 9", "", ""
        half.sendall("\r\n".join(head).encode())  # and no body: uvicorn waits for it
        assert session.result("ping") == {}
        for name in signals.split():
            running.process.send_signal(getattr(signal, name))
        _, stderr = running.process.communicate(timeout=20)
    assert (running.process.returncode, stderr) == (0, "")  # no warning: it is loopback


@pytest.mark.filterwarnings("ignore:unclosed")  # of a port that is no port
def test_a_bad_address_is_one_line(toolbox: HttpToolbox, caplog: Logs) -> None:
    addresses = [f"127.0.0.1:{toolbox.port}", "", "nowhere", "70000", "127.0.0.1:"]
    assert [workbench.serve_http(address) for address in addresses] == [1] * 5
    lines = [record.getMessage() for record in caplog.records]
    assert [a in line for a, line in zip(addresses, lines, strict=True)] == [True] * 5
    assert "Address already in use" in lines[0]


# === A process at the other end of raw lines ==========================================

HANDSHAKE: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}
HANDSHAKE["clientInfo"] = {"name": "wire", "version": "1"}
PIPE = subprocess.PIPE


class Wire:
    """A workbench process, spoken to in raw JSON-RPC lines; one that hangs is killed.

    Its toolbox `box` has a healthy server, `good`, and the others that are given: an
    entry, or when it misbehaves (a method, or "start") and how. They run, and leave
    their marks, in `folder`.
    """

    def __init__(
        self, folder: Path, *options: str, stdio: Any = None, **more: Any
    ) -> None:
        servers = {
            name: server if isinstance(server, dict) else entry("misbehaving", *server)
            for name, server in {"good": (), **more}.items()
        }
        arguments = command(configuration(**servers), folder, *options)
        with open(folder / "stderr", "wb") as file:
            streams = {"stdin": PIPE, "stdout": PIPE, "stderr": file, **(stdio or {})}
            self.process: Any = subprocess.Popen(arguments, cwd=folder, **streams)
        self.watchdog = threading.Timer(60, self.process.kill)
        self.watchdog.start()
        self.folder = folder
        self.answers: dict[Any, dict[str, Any]] = {}
        self.last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.watchdog.cancel()
        self.process.kill()
        for pid in self.servers_left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.process.__exit__(None, None, None)

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self.last_id += 1
        request = {"jsonrpc": "2.0", "id": self.last_id, "method": method}
        line = json.dumps({**request, "params": params}, ensure_ascii=False)
        self.write(line.encode() + b"\n")
        return self.last_id

    def answer(self, request: int) -> dict[str, Any]:
        """Wait for the answer to a request."""
        while request not in self.answers:
            line = self.process.stdout.readline()
            assert line, "the workbench ended, or hung and was killed"
            message = json.loads(line)
            self.answers[message.get("id")] = message
        return self.answers.pop(request)

    def initialize(self) -> Self:
        assert self.answer(self.begin("initialize", **HANDSHAKE))["result"]
        return self

    def begin_use(self, server: str, name: str = "echo", **arguments: Any) -> int:
        names = {"toolbox_name": "box", "tool_name": f"box__{server}__{name}"}
        arguments = {**names, "arguments": arguments}
        return self.begin("tools/call", name="use_tool", arguments=arguments)

    def text(self, request: int) -> str:
        """The text that a tool answers a request with."""
        [block] = self.answer(request)["result"]["content"]
        return str(block["text"])

    def use(self, server: str, name: str = "echo", **arguments: Any) -> str:
        return self.text(self.begin_use(server, name, **arguments))

    def still_serves(self) -> bool:
        """Whether the workbench answers, and the healthy server through it."""
        ping = self.answer(self.begin("ping"))
        return ping["result"] == {} and self.use("good", x="y") == '{"x": "y"}'

    def hanging(self, number: int = 1) -> None:
        """Wait until so many servers have reached the point where they hang."""
        anyio.run(until, lambda: len([*self.folder.glob("*.hangs")]) >= number, 20)

    def servers_left(self) -> list[int]:
        pids = [int(mark.stem) for mark in self.folder.glob("*.pid")]
        return [pid for pid in pids if is_alive(pid)]

    def end(self, how: str) -> None:
        if how.startswith("SIG"):
            self.process.send_signal(signal.Signals[how])
        elif how == "end of stdin":
            self.process.stdin.close()
        else:
            self.process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                self.begin("ping")  # at the latest now it is noticed

    def status(self) -> int:
        """The exit status, once it has ended in time and left no process behind."""
        status: int = self.process.wait(9)  # 3.5 where nothing else runs
        anyio.run(until, lambda: not self.servers_left(), 2)
        return status


# === Shutdown =========================================================================

STATES = {  # what is called, beside a server that ignores the end
    "idle": [],
    "half open, with a call": ["initialize", "tools_call"],
    "remote servers that do not answer": [*["dead"] * 8, "lost"],
    "a client that reads nothing": ["big"] * 3,
}
ENDINGS = [
    *itertools.product(["SIGTERM", "end of stdin", "closed stdout"], STATES),
    ("SIGINT", "half open, with a call"),
    ("SIGHUP", "half open, with a call"),
    ("SIGTERM and SIGINT", "half open, with a call"),
    ("end of stdin and SIGTERM", "half open, with a call"),
]
LOST_LOOK_UP = """
import socket, time
socket.getaddrinfo = lambda *_, **__: open("0.hangs", "w") and time.sleep(60)
"""


class DeadServer(http.server.BaseHTTPRequestHandler):
    """A remote server that is listed, and then answers nothing any more.

    The path of its URL is the folder where it leaves its marks.
    """

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not re.search("initialize|list", request["method"]):
            Path(self.path, f"{time.monotonic_ns()}.hangs").touch()
            return self.do_DELETE()
        result = {**initialized(), "tools": [tool()]}
        answer = {"jsonrpc": "2.0", "id": request.get("id"), "result": result}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("mcp-session-id", "1")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_DELETE(self) -> None:
        self.rfile.read()  # until the client hangs up


def bring_to(wire: Wire, state: str) -> int:
    """The result is the number of servers that hang then."""
    wire.initialize().use("good")
    if wire.process.stderr:  # which nobody reads
        wire.use("flood")
    calls = [*map(wire.begin_use, STATES[state])]
    if wire.process.stderr:
        stdout, calls = [wire.process.stdout], []
        anyio.run(until, lambda: bool(select.select(stdout, [], [], 0)[0]))
    wire.hanging(len(calls))
    return len(calls)


def test_it_ends_and_leaves_nothing(tmp_path: Path, monkeypatch: Monkey) -> None:
    def check(endings: str, state: str) -> None:
        folder = tmp_path / f"{endings} {state}".replace(" ", "-")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(LOST_LOOK_UP)
        servers: dict[str, Any] = {
            "good": () if state == "idle" else ("start", "ignores the end"),
            "initialize": ("initialize", "hangs"),
            "tools_call": ("tools_call", "hangs"),
            "dead": {"url": f"http://127.0.0.1:{dead.server_port}{folder}"},
            "lost": {"url": "http://a.invalid"},
            "flood": ("tools_call", "floods stderr"),
            "big": ("tools_call", "answers 1 MB"),
        }
        stdio = {"stderr": PIPE} if "reads nothing" in state else {}
        with Wire(folder, stdio=stdio, **servers) as wire:
            hanging = bring_to(wire, state)
            for number, ending in enumerate(endings.split(" and ")):
                wire.hanging(hanging + number)  # and the one that ignored the first
                wire.end(ending)
            assert wire.status() == 0

    monkeypatch.setenv("PYTHONPATH", ".")
    dead = http.server.ThreadingHTTPServer(("127.0.0.1", 0), DeadServer)
    with dead, ThreadPoolExecutor(8) as pool:
        threading.Thread(target=dead.serve_forever).start()
        runs = {cell: pool.submit(check, *cell).exception for cell in ENDINGS}
        failures = {cell: repr(run()) for cell, run in runs.items() if run()}
        dead.shutdown()
    assert not failures
    assert [*tmp_path.glob("*/*.15")]  # SIGTERM comes before SIGKILL


def test_an_interrupted_check_leaves_nothing(tmp_path: Path) -> None:
    with Wire(tmp_path, "--check", bad=("initialize", "hangs")) as wire:
        wire.hanging()
        wire.end("SIGINT")
        assert wire.status() == 1


def test_stdout_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "stdout"
    with file.open("w") as out, Wire(tmp_path, stdio={"stdout": out}) as wire:
        wire.begin("initialize", **HANDSHAKE)
        anyio.run(until, lambda: '"id":1' in file.read_text())
        wire.end("SIGTERM")
        assert wire.status() == 0


# === Faults of servers ================================================================

FAULTS = {  # when a server does what wrong: what a call answers (a pattern), if it does
    ("tools_list", "exits"): "not seen the call: exited with status 3.*boom",
    ("initialize", "answers nonsense"): "not seen the call: .*not valid.*capabilities",
    ("tools_call", "closes stdout"): "^Error executing tool",
    ("tools_call", "asks what nobody knows"): "^question: -32601$",
    ("tools_call", "writes garbage"): "^answered$",
    ("start", "hangs"): "",
    ("initialize", "hangs"): "",
    ("tools_list", "hangs"): "",
    ("tools_call", "answers half"): "",
}


def test_a_fault_costs_only_its_server(tmp_path: Path) -> None:
    servers: dict[str, Any] = {" ".join(fault): fault for fault in FAULTS}
    wrong = {}
    with Wire(tmp_path, **servers) as wire:
        wire.initialize()
        calls = {server: wire.begin_use(server) for server in servers}
        assert wire.still_serves()
        for server, fault in servers.items():
            answer = wire.text(calls[server]) if FAULTS[fault] else ""
            if not re.search(FAULTS[fault], answer):
                wrong[server] = answer[:500]
        wire.hanging(5)  # those without an answer, and the one that closed stdout
        assert wire.still_serves() and not wire.answers  # that nobody had asked for
        wire.end("end of stdin")
        assert (wrong, wire.status()) == ({}, 0)


def peak_memory(pid: int) -> int:
    """The most memory that a process has had so far, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) // 1000


def test_what_a_server_writes_without_end_slows_only_itself(tmp_path: Path) -> None:
    servers: dict[str, Any] = {
        "lines": ("start", "repeats y on stdout"),
        "log": ("start", "repeats y on stderr"),
        "huge": ("tools_call", "writes a huge line"),
    }
    with Wire(tmp_path, stdio={"stderr": PIPE}, **servers) as wire:
        wire.initialize().use("good")
        before = peak_memory(wire.process.pid)
        *_, huge = map(wire.begin_use, servers)
        wire.hanging(2)  # in an endless loop, that is
        end, calls = time.monotonic() + 2, 0
        while time.monotonic() < end:
            assert wire.still_serves()
            calls += 1
        assert calls > 4 and wire.text(huge) == "answered"
        assert peak_memory(wire.process.pid) < before + 30
        wire.end("SIGTERM")
        assert wire.status() == 0


# === Faults of clients ================================================================

BAD_LINES = [
    b" \t",
    b"\xff\xfe",
    b"null",
    b'{"jsonrpc": "1.0", "id": "b", "method": "ping"}',
    b'{"jsonrpc": "2.0", "id": "c", "result": {}}',
    b'{"jsonrpc": "2.0", "id": {"e": 1}, "method": "ping"}',
    b'{"jsonrpc": "2.0", "id": "f", "method": "tools/call", "params": [1]}',
    b'{"jsonrpc": "2.0", "method": "notifications/cancelled"}',
    b"[" * 100_000,
]


def test_lines_that_are_no_requests_change_nothing(tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        wire.initialize()
        for line in BAD_LINES:
            wire.write(line + b"\n")
            assert wire.still_serves(), line


def test_an_argument_of_megabytes_comes_back_whole(tmp_path: Path) -> None:
    big = "é🧰x" * 1_000_000  # 7 MB, read in chunks that end inside of characters
    with Wire(tmp_path) as wire:
        assert wire.initialize().use("good", x=big) == json.dumps({"x": big})


def test_a_client_that_closes_stderr_is_served_all_the_same(tmp_path: Path) -> None:
    with Wire(tmp_path, stdio={"stderr": PIPE}) as wire:
        wire.process.stderr.close()
        assert wire.initialize().still_serves()
