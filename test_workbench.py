"""Tests of the workbench, in the order of its sections.

Before them stand the servers and the clients that they use.
"""

from __future__ import annotations

import atexit
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
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, cast, get_args

# === Downstream servers ===============================================================
#
# `python test_workbench.py SERVER [ARGUMENT...]` runs one, a function of that name. The
# tests start hundreds, so they come before imports that take longer than a server does.


def entry(name: str, *arguments: object, **more: Any) -> dict[str, Any]:
    """The configuration of a downstream server of this file.

    It runs as a module, because Python keeps the bytecode of modules alone.
    """
    file = Path(__file__)
    code = f"import runpy, sys; sys.path.insert(0, {str(file.parent)!r}); "
    code += f"runpy.run_module({file.stem!r}, run_name='__main__')"
    args = ["-c", code, name, *map(str, arguments)]
    return {"command": sys.executable, "args": args} | more


def send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n")
    sys.stdout.flush()


def refuse(request: dict[str, Any], code: int = -32603) -> None:
    send({"id": request["id"], "error": {"code": code, "message": "refused as asked"}})


def tool(name: str = "echo", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}} | more


def text_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]} | more


def json_result(value: Any) -> dict[str, Any]:
    return text_result(json.dumps(value, sort_keys=True))


def initialized(**tools: bool) -> dict[str, Any]:
    return {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": tools},
        "serverInfo": {"name": "older", "version": "1"},
    }


def page(request: dict[str, Any], last: int) -> dict[str, Any]:
    """One tool, `t0`, `t1`...; what follows the last page is that page again."""
    number = int(request.get("params", {}).get("cursor", 0))
    return {"tools": [tool(f"t{number}")], "nextCursor": str(min(number + 1, last))}


def serve_raw(*tools: dict[str, Any], **handlers: Any) -> None:
    """Serve plain JSON-RPC of the older era, without the SDK and its manners.

    `handlers` maps methods, with `_` for `/`, to functions from a request to a result;
    None sends nothing. By default `tools/call` answers with the arguments as JSON text.
    """
    known: dict[str, Any] = {
        "initialize": lambda _: initialized(listChanged=True),
        "ping": lambda _: {},
        "tools_list": lambda _: {"tools": list(tools)},
        "tools_call": lambda r: text_result(json.dumps(r["params"].get("arguments"))),
    } | handlers
    for line in sys.stdin.buffer:
        request = json.loads(line)
        handler = known.get(request.get("method", "").replace("/", "_"))
        if handler is not None:
            result = handler(request)
            if result is not None and "id" in request:
                send({"id": request["id"], "result": result})
        elif "id" in request and "method" in request:
            refuse(request, -32601)


def plain() -> None:
    serve_raw(tool("echo"), tool("other"))


def scripted(code: str, *_: str) -> None:
    """Runs some Python code in this module; what follows is in `sys.argv`."""
    exec(code, globals())  # noqa: S102


def note(file: str, line: object) -> None:
    with open(file, "a") as stream:
        stream.write(f"{line}\n")


def noted(notes: str, gate: str = "/") -> None:
    """Notes its pid and calls in a file; says nothing before the file `gate` exists.

    Tools: `pid`; `wait` for the file `until`; `exit`; `answer_and_exit`.
    """
    note(notes, os.getpid())
    while not os.path.exists(gate):
        time.sleep(0.01)
    print("first words", file=sys.stderr, flush=True)

    def call(request: dict[str, Any]) -> dict[str, Any]:
        name = request["params"]["name"]
        note(notes, name)
        if name == "wait":
            while not os.path.exists(request["params"]["arguments"]["until"]):
                time.sleep(0.01)
        if name == "answer_and_exit":
            send({"id": request["id"], "result": text_result("the answer")})
        if name.endswith("exit"):
            print("last words", end="", file=sys.stderr, flush=True)
            os._exit(7)
        return text_result(str(os.getpid()))

    serve_raw(*map(tool, ("pid", "wait", "exit", "answer_and_exit")), tools_call=call)


def changing(capability: str = "listChanged") -> None:
    """Tools `become`, which changes the others, and `listings`, which counts.

    A list has two pages. `become` takes `tools` (the second page), `times` that this is
    announced, `seconds` that a listing takes, `fault` of the second page, `meanwhile`
    (for each of the next listings, the tools that replace the others during it).
    """
    state: dict[str, Any] = {"tools": [], "times": 1, "seconds": 0, "fault": ""}
    state |= {"meanwhile": [], "listings": 0}

    def announce(times: int) -> None:
        for _ in range(times):
            send({"method": "notifications/tools/list_changed"})

    def listing(request: dict[str, Any]) -> Any:
        if "cursor" not in request.get("params", {}):
            state["listings"] += 1
            schema = {"$schema": "x", "type": "object"}
            own = [tool("become"), tool("listings", inputSchema=schema)]
            return {"tools": own, "nextCursor": "2"}
        time.sleep(state["seconds"])
        second_page = {"tools": state["tools"]}
        if state["meanwhile"]:
            state["tools"] = state["meanwhile"].pop(0)
            announce(1)
        if state["fault"] == "exit":
            os._exit(1)
        if state["fault"] == "error":
            return refuse(request)
        if state["fault"] == "silence":
            return None
        return json.loads(state["fault"] or json.dumps(second_page))

    def call(request: dict[str, Any]) -> dict[str, Any]:
        if request["params"]["name"] == "become":
            state.update(request["params"]["arguments"])
            announce(state["times"])
        return text_result(str(state["listings"]))

    result = initialized(**{capability: True})
    serve_raw(initialize=lambda _: result, tools_list=listing, tools_call=call)


def changing_server() -> Any:
    """One on the SDK, with the tools `become` (`tools`), `era` and `echo`.

    With `lose`, `become` ends the listen streams instead of announcing the change.
    """
    from mcp import types
    from mcp.server import subscriptions
    from mcp.server.lowlevel.server import Server
    from mcp.shared.exceptions import MCPError

    bus = subscriptions.InMemorySubscriptionBus()
    streams = subscriptions.ListenHandler(bus)
    own = [tool("become"), tool("era"), tool("echo")]
    state: dict[str, Any] = {"tools": []}

    async def listen(context: Any, params: Any) -> Any:
        await streams(context, params)
        raise MCPError(-32603, "lost")

    async def list_tools(_: Any, __: Any) -> Any:
        return types.ListToolsResult.model_validate({"tools": own + state["tools"]})

    async def call(context: Any, params: Any) -> Any:
        given = params.arguments or {}
        said = f"Echo: {given.get('message')}"
        if params.name == "era":
            said = context.protocol_version
        elif params.name == "become":
            state.update(given)
            if "lose" in given:
                streams.close()
            else:
                await bus.publish(subscriptions.ToolsListChanged())
                await context.session.send_tool_list_changed()
        return types.CallToolResult.model_validate(text_result(said))

    on: Any = {"on_list_tools": list_tools, "on_call_tool": call}
    return Server("changing", on_subscriptions_listen=listen, **on)


def changing_sdk() -> None:
    import anyio
    from mcp.server.stdio import stdio_server

    server = changing_server()

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


OLDER, MODERN = "2025-11-25", "2026-07-28"
RESERVED = "io.modelcontextprotocol/"
CAPABILITIES = f"{RESERVED}clientCapabilities"
OWN_TOOLS = [*map(tool, ("error", "ask", "say", "wait", "rounds", "seen", "write"))]
OWN_TOOLS.append(tool("result", outputSchema={"type": "object", "required": ["x"]}))


def is_modern(request: dict[str, Any]) -> bool:
    meta = request.get("params", {}).get("_meta") or {}
    return f"{RESERVED}protocolVersion" in meta


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    if is_modern(request):
        result = {"resultType": "complete"} | result
    send({"id": request["id"], "result": result})


class Eras:
    """The protocol's methods, by their names, and tools that do what they are told."""

    able: Mapping[str, Any] = {"capabilities": {"tools": {}, "logging": {}}}
    hints: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}

    def __init__(self, spoken: str, refusal: int) -> None:
        self.spoken = spoken
        self.refusal = refusal  # of `initialize`
        self.known: dict[str, Any] = {"started": [], "cancelled": []}
        self.known |= {"responses": [], "calls": 0, "pid": os.getpid()}
        self.saying: list[dict[str, Any]] = []  # calls that wait for others to say it
        self.waiting: dict[object, int] = {}  # the numbers of calls, by their ids

    def initialize(self, request: dict[str, Any]) -> None:
        if OLDER not in self.spoken:
            return refuse(request, self.refusal)
        self.known[CAPABILITIES] = request["params"]["capabilities"]
        version = request["params"]["protocolVersion"]
        answer(request, initialized() | dict(self.able, protocolVersion=version))

    def server_discover(self, request: dict[str, Any]) -> None:
        if MODERN not in self.spoken:
            return refuse(request, -32601)
        answer(request, dict(self.able, supportedVersions=[MODERN], **self.hints))

    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, dict(self.hints, tools=OWN_TOOLS))

    def notifications_roots_list_changed(self, _: Any) -> None:
        params = {"level": "info", "data": "roots changed"}
        send({"method": "notifications/message", "params": params})

    def notifications_cancelled(self, notification: dict[str, Any]) -> None:
        request_id = notification["params"]["requestId"]
        if request_id in self.waiting:
            self.known["cancelled"].append(self.waiting.pop(request_id))

    def tools_call(self, request: dict[str, Any]) -> None:
        self.known["calls"] += 1
        params = request["params"]
        getattr(self, params["name"])(request, params.get("arguments") or {})

    def result(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        answer(request, given)

    def write(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the end of stderr is no death
        print(given["line"].replace("ID", str(request["id"])), flush=True)

    def error(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        send({"id": request["id"], "error": given})

    def rounds(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        """Ask for one round after the other, then answer with the last responses."""
        params = request["params"]
        done = int(params.get("requestState") or 0)
        self.known["responses"].append(params.get("inputResponses"))
        if "progressToken" in params["_meta"]:
            told = {"progressToken": params["_meta"]["progressToken"], "progress": done}
            send({"method": "notifications/progress", "params": told})
        if done == len(given["rounds"]):
            return answer(request, json_result(params.get("inputResponses")))
        state = {"resultType": "input_required", "requestState": str(done + 1)}
        answer(request, state | given["rounds"][done])

    def ask(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        send(dict(given, id=f"ask {request['id']}"))

    def answered(self, message: dict[str, Any]) -> None:
        asking = {"id": int(message["id"].removeprefix("ask "))}
        answer(asking, json_result(message.get("result") or message.get("error")))

    def say(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        """Send the messages of so many `calls` at once, in turn, under their tokens."""
        token = (request["params"].get("_meta") or {}).get("progressToken")
        for message in given["messages"]:
            message["params"].setdefault("progressToken", token)
        self.saying.append(request)
        if len(self.saying) == given.get("calls", 1):
            calls = [each["params"]["arguments"]["messages"] for each in self.saying]
            for messages in zip(*calls, strict=True):
                for message in messages:
                    send(message)
            while self.saying:
                answer(self.saying.pop(), json_result(None))

    def wait(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        self.waiting[request["id"]] = given["number"]
        self.known["started"].append(given["number"])

    def seen(self, request: dict[str, Any], _: dict[str, Any]) -> None:
        era = MODERN if is_modern(request) else OLDER
        told = {"era": era, "_meta": {}} | self.known | request["params"]
        answer(request, json_result(told))


def eras(spoken: str, refusal: str = "-32022") -> None:
    its: Any = Eras(spoken, int(refusal))
    handlers = {"": its.answered}  # a response has no method
    for name in vars(Eras):
        handlers[name] = getattr(its, name)
    serve_raw(**handlers)


GARBAGE = b"""\xff\xfe\n\n \r\nlistening\n[]\n7\n{}
{"jsonrpc": "2.0", "id": %d, "method": 7}
{"jsonrpc": "2.0", "id": "unknown", "error": {"code": 1, "message": "unasked"}}
{"jsonrpc": "2.0", "id": 987654321, "result": {}}
{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "\xff"}]}}
"""


def hang(why: int | str = "hangs", *_: object) -> None:
    Path(f"{os.getpid()}.{why}").touch()
    signal.pause()


def misbehave(what: str, request: dict[str, Any]) -> dict[str, Any]:
    """Do one thing wrong when a request comes; what it is answered with."""
    match what.split():
        case ["exits"]:
            os.write(2, b"boom")
            os._exit(3)
        case ["hangs"]:
            hang()
        case ["asks", "and", "exits"]:
            for number in range(110):
                send({"method": "roots/list", "id": number})
            os._exit(3)
        case ["answers", "half"]:
            os.write(1, b'{"jsonrpc": "2.0", "id": %d, ' % request["id"])
            hang()
        case ["closes", "stdout"]:
            os.close(1)
            hang()
        case ["ignores", "the", "end"]:
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(each, hang)
            atexit.register(hang)  # after the end of stdin
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
            os.write(1, GARBAGE % (request["id"], request["id"]))
        case ["writes", "a", "huge", "line"]:
            os.write(2, b"x" * 20_000_000 + b"\n")
        case ["repeats", line, "on", name]:
            Path(f"{os.getpid()}.hangs").touch()
            while True:
                os.write({"stdout": 1, "stderr": 2}[name], f"{line}\n".encode() * 1000)
        case ["says", "60", "MB"]:
            for _ in range(600):
                params = {"level": "info", "data": "x" * 100_000}
                send({"method": "notifications/message", "params": params})
            hang()
        case ["asks", "60", "MB"]:
            big = {"_meta": {"": "x" * 1_000_000}}
            for number in range(60):
                send({"method": "roots/list", "params": big, "id": str(number)})
            while "error" not in json.loads(sys.stdin.buffer.readline()):
                pass
            hang()
    return text_result("answered")


def misbehaving(at: str = "never", what: str = "") -> None:
    """Mark the process as `PID.pid`, and do `what` whenever the method `at` comes."""
    Path(f"{os.getpid()}.pid").touch()
    if at == "start":
        misbehave(what, {})
    serve_raw(tool(), **{at: lambda request: misbehave(what, request)})


def response(status: int, body: Any = "", **headers: str) -> bytes:
    """A whole HTTP response of a message or a text; `_` in a header stands for `-`."""
    if not isinstance(body, str):
        body = json.dumps(dict(body, jsonrpc="2.0"))
    sent = {"content_type": "application/json", "connection": "close"} | headers
    sent["content_length"] = str(len(body.encode()))
    head = f"HTTP/1.1 {status} Said\r\n"
    for name, value in sent.items():
        head += f"{name.replace('_', '-')}: {value}\r\n"
    return f"{head}\r\n{body}".encode()


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
DENIAL = '{"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "%s"}}'
DEEP = '{"jsonrpc": "2.0", "id": 1, "result": %s1}' % ('{"a": ' * 400) + "}" * 400
HTTP_FAULTS = {
    "400": response(400, "Bad Request: No valid session ID provided"),
    "401": response(401),
    "unauthorized": response(401, "Unauthorized: Session not found"),
    "403": response(403, DENIAL % "Go"),
    "full": response(400, DENIAL % r"session 7 is \u001b[31mfull"),
    "404": response(404, "Not\nfound"),
    "500": response(500, "Oh\nno"),
    "events": response(500, ": Oh no\n\n", content_type="text/event-stream"),
    "moved": response(307, location="/moved/"),
    "elsewhere": response(307, location="http://sesame@127.0.0.1:1/mcp?sesame"),
    "page": response(302, location="/login"),
    "loop": response(308, location="/loop"),
    "html": response(200, "<html>\n</html>", content_type="text/html"),
    "deep": response(200, DEEP),
    "unreadable": response(200, "data: {\n\n", content_type="text/event-stream"),
    "ended": response(200, ": no answer\n\n", content_type="text/event-stream"),
    "foreign": STREAM + b"event: endpoint\ndata: http://other.invalid/messages\n\n",
    "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{",
    "closed": b"",
}


def event(data: Any, kind: str = "message") -> bytes:
    """A server-sent event of a message, or a text; a space before it is optional."""
    if not isinstance(data, str):
        data = json.dumps(dict(data, jsonrpc="2.0"))
    return f"event: {kind}\ndata:{data}\n\n".encode()


class Remote:
    """An older-era server over HTTP, in this process, that goes wrong as told.

    `answers` maps tools, other methods and a question's id to a result, None for an
    answer without one, an HTTP response or a function that returns one of these. The
    path says how: `/mcp` answers with JSON, `/stream` with events, `/sse` on its one
    stream, `/hang` never, and those of `HTTP_FAULTS` with them. A GET is answered with
    the status that is its query.
    """

    def __init__(self) -> None:
        self.session = "1"
        self.stale = "404"  # what any other session is answered
        self.seen: set[str | None] = set()  # values of the header Authorization
        self.calls: list[str] = []  # the keys of `answers`, GET and DELETE
        self.connections = 0  # that are open
        self.endpoint = "/messages"  # of `/sse`
        self.released = asyncio.Event()
        self.listener: Any = None
        self.stream: Any = None  # of `/sse`
        self.answers: dict[str, Any] = dict(HTTP_FAULTS)
        self.answers["server/discover"] = response(400)
        self.answers["tools/list"] = self.listing
        self.answers.update(initialize=initialized(), ok=text_result("ok"))
        self.answers["wait"] = self.wait

    async def listing(self, *_: Any) -> dict[str, Any]:
        return {"tools": [tool(name) for name in self.answers]}

    async def wait(self, *_: Any) -> dict[str, Any]:
        await self.released.wait()
        return text_result("released")

    async def answer(self, request: dict[str, Any], path: str, stream: Any) -> bytes:
        params = request.get("params") or {}
        name = params.get("name") or request.get("method") or request["id"]
        self.calls.append(name)
        answer = self.answers.get(name, response(202))
        if path == "/stream" and not isinstance(answer, bytes):
            head = f"\r\nmcp-session-id: {self.session}\r\n\r\n".encode()
            stream.write(STREAM.replace(b"\r\n\r\n", head))
        if callable(answer):
            answer = await answer(request, stream)
        if isinstance(answer, bytes):
            return answer
        reply = {"id": request["id"]}
        if answer is not None:
            reply["result"] = answer
        if path == "/stream":
            return event(reply)
        if path == "/messages":
            self.stream.write(event(reply))
            return response(202)
        return response(200, reply, mcp_session_id=self.session)

    async def respond(self, head: str, body: bytes, stream: Any) -> bytes:
        method, target, _ = head.split(maxsplit=2)
        path, _, query = target.partition("?")
        headers = dict(re.findall(r"(?m)^([\w-]+): (.*)\r$", head.lower()))
        self.seen.add(headers.get("authorization"))
        if path[1:] in HTTP_FAULTS:
            return HTTP_FAULTS[path[1:]]
        if headers.get("mcp-session-id", self.session) != self.session:
            error = {"code": -32000, "message": "No such session"}
            gone = {"id": json.loads(body or "{}").get("id"), "error": error}
            return HTTP_FAULTS.get(self.stale) or response(400, gone)
        if path == "/sse":
            self.stream = stream
            stream.write(STREAM + event(f" {self.endpoint}", "endpoint"))
        if path in ("/sse", "/hang"):
            await anyio.sleep_forever()
        if method == "GET":
            self.calls.append(method)
            return response(int(query or 405))
        message = json.loads(body or b'{"method": "DELETE"}')
        return await self.answer(message, path, stream)

    async def serve(self, reader: Any, stream: Any) -> None:
        """Answer the one request of a connection, unless its client closes it first."""

        async def respond() -> None:
            stream.write(await self.respond(head, body, stream))

        self.connections += 1
        with closing(stream), suppress(asyncio.IncompleteReadError):
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
    kind = "sse" if path == "/sse" else "http"
    return {"url": f"http://127.0.0.1:{port}{path}", "transport": kind} | more


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    sys.exit()

import asyncio
import datetime
import gc
import http.client
import itertools
import logging
import tomllib
import zlib
import zoneinfo

import anyio
import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters, types
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

import workbench

# === Clients ==========================================================================
#
# Most tests connect a client to a workbench in this process, some to a process of it.

ROOT = Path(workbench.__file__).parent
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])
Monkey = pytest.MonkeyPatch
Logs = pytest.LogCaptureFixture
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def configuration(**servers: Any) -> dict[str, Any]:
    return {"toolboxes": {"box": {"description": "A box", "mcpServers": servers}}}


@asynccontextmanager
async def connected(
    config: dict[str, Any], mode: str = "legacy", **callbacks: Any
) -> AsyncIterator[Client]:
    """A client of a workbench in this process, which has 30 seconds for everything."""
    server = workbench.create_server(workbench.parse_config(config, os.environ))
    with anyio.fail_after(30):
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
    parameters = StdioServerParameters(command=program, args=args, env=dict(os.environ))
    with (folder / "stderr").open("w") as log, anyio.fail_after(30):
        process = stdio_client(parameters, errlog=log)
        async with Client(process, mode=mode, **callbacks) as client:
            yield client


BOX: dict[str, Any] = {"toolbox_name": "box"}


def dumped(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def listed(client: Client) -> Any:
    return dumped(await client.list_tools())["tools"]


async def open_box(client: Client, tools: Any = None, **more: Any) -> Any:
    """What `open_toolbox` answers for the toolbox `box`, or these tools of it."""
    arguments = BOX | {"tools": tools}  # null for no value is all
    result = await client.call_tool("open_toolbox", arguments, **more)
    assert not result.is_error, text(result)
    return json.loads(text(result))


async def use(client: Client, server: str, name: str, arguments: Any = None) -> Any:
    """The result of `use_tool` for a tool of `box`; null for no arguments is {}."""
    request = BOX | {"tool_name": f"box__{server}__{name}", "arguments": arguments}
    return await client.call_tool("use_tool", request)


def text(result: types.CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def error_of(client: Client, server: str, name: str, given: Any = None) -> str:
    """Why `use_tool` fails, behind the words that name the tool and the toolbox."""
    result = await use(client, server, name, given)
    start = f"Error executing tool 'box__{server}__{name}' in toolbox 'box': "
    assert result.is_error and text(result).startswith(start)
    return text(result).removeprefix(start)


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


PIPE = subprocess.PIPE
HANDSHAKE: dict[str, Any] = {"protocolVersion": OLDER, "capabilities": {}}
HANDSHAKE["clientInfo"] = {"name": "wire", "version": "1"}


def request_bytes(method: str, params: dict[str, Any], number: int = 7) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message, ensure_ascii=False).encode()


class Wire:
    """A workbench process, spoken to in raw JSON-RPC lines; one that hangs is killed.

    Its toolbox `box` has a healthy server, `good`, and the others that are given: an
    entry, or when it misbehaves (a method, or "start") and how. They run, and leave
    their marks, in `folder`.
    """

    def __init__(
        self, folder: Path, *options: str, stdio: Any = None, **more: Any
    ) -> None:
        servers = {"good": entry("misbehaving")}
        for name, server in more.items():
            if not isinstance(server, dict):
                server = entry("misbehaving", *server)
            servers[name] = server
        arguments = command(configuration(**servers), folder, *options)
        with open(folder / "stderr", "wb") as file:
            streams = {"stdin": PIPE, "stdout": PIPE, "stderr": file} | (stdio or {})
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
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            self.process.__exit__(None, None, None)

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        self.last_id += 1
        self.write(request_bytes(method, params, self.last_id) + b"\n")
        return self.last_id

    def answer(self, request: int) -> dict[str, Any]:
        while request not in self.answers:
            line = self.process.stdout.readline()
            assert line, "the workbench ended, or hung and was killed"
            message = json.loads(line)
            if "method" not in message or "id" not in message:  # not a question
                self.answers[message.get("id")] = message
        return self.answers.pop(request)

    def initialize(self, **able: Any) -> Self:
        handshake = dict(HANDSHAKE, capabilities=able)
        assert self.answer(self.begin("initialize", **handshake))["result"]
        return self

    def begin_use(self, server: str, name: str = "echo", **arguments: Any) -> int:
        given = BOX | {"tool_name": f"box__{server}__{name}", "arguments": arguments}
        return self.begin("tools/call", name="use_tool", arguments=given)

    def text(self, request: int) -> str:
        [block] = self.answer(request)["result"]["content"]
        return str(block["text"])

    def use(self, server: str, name: str = "echo", **arguments: Any) -> str:
        return self.text(self.begin_use(server, name, **arguments))

    def still_serves(self) -> bool:
        ping = self.answer(self.begin("ping"))
        return ping["result"] == {} and self.use("good", x="y") == '{"x": "y"}'

    def hanging(self, number: int = 1) -> None:
        """Wait until so many servers have reached the point where they hang."""
        anyio.run(until, lambda: len(list(self.folder.glob("*.hangs"))) >= number, 20)

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
            with suppress(BrokenPipeError):
                self.begin("ping")  # at the latest now it is noticed

    def status(self) -> int:
        """The exit status, once it has ended in time and left no process behind."""
        status: int = self.process.wait(5)  # 3.5 where nothing else runs
        anyio.run(until, lambda: not self.servers_left(), 2)
        return status


# === Configuration ====================================================================

AT = "toolboxes.box.mcpServers.s"


def problems_of(data: Any) -> list[str]:
    with pytest.raises(workbench.ConfigError) as error:
        workbench.parse_config(data, {})
    return error.value.problems


def warned_about(config: workbench.WorkbenchConfig) -> list[str]:
    return [line.partition(": ")[0] for line in config.warnings]


BAD_ENTRIES = """
{"disabled": "yes", "command": "x"} => .disabled: expected a boolean, found a string
{"comand": "x"} => : expected either 'command' or 'url', found neither (unknown keys \
comand)
{"command": "x", "serverUrl": "y"} => : expected either 'command' or 'url', found both
{"command": "x", "type": "sse"} => .type: expected stdio, found another string
{"url": "http://x", "transport": "a"} => .transport: expected http or sse, found another string
{"command": "x", "args": ["y", true]} => .args[1]: expected a string, found a boolean
{"url": "x.com"} => .url: expected an http:// or https:// URL, found another string
{"command": "x", "toolFilters": "a*"} => .toolFilters: expected a list, found a string
{"command": "s3c\\r"} => .command: expected no control characters
{"url": "https://x/s3c\\r\\n"} => .url: expected no control characters
{"url": "https://x", "headers": {"A": "s3c\\n"}} => .headers.A: expected no control
{"url": "https://x:s3c/t@x"} => .url: expected an http:// or https:// URL ('/', '?'
{"url": "https://s3c#t@x"} => .url: expected an http:// or https:// URL ('/', '?'
""".strip()


@pytest.mark.parametrize("case", BAD_ENTRIES.splitlines())
def test_a_bad_server_entry_is_an_error(case: str) -> None:
    entry, _, problem = case.partition(" => ")
    [told] = problems_of(configuration(s=json.loads(entry)))
    assert told.startswith(AT + problem) and "s3c" not in told


# Each line of JSON is a configuration; below it are its problems.
BAD_CONFIGURATIONS = """
[]
  configuration: expected an object, found a list
{"projects": {}, "theme": "dark"}
  configuration: expected 'toolboxes', or another client's mcpServers, servers, \
context_servers, mcp_servers, found none of them
{"toolMode": "", "toolboxes": {"t": null, "u": {}}}
  toolboxes.t: expected an object, found null
  toolboxes.u.description: expected a string, found nothing
  toolboxes.u.mcpServers: expected an object, found nothing
  toolMode: expected 'proxy' or no such key, found a string
{"toolboxes": {"t": {"description": " ", "mcpServers": {"s": {"disabled": true}}}}}
  toolboxes.t.description: expected a non-empty string, found an empty string
  toolboxes.t.mcpServers: expected at least one server that is not disabled, found none
{"toolboxes": {"a__b": {"description": "d", "mcpServers": {"a_": {"command": "x"}}}}}
  toolboxes.a__b: expected NAME, found "a__b"
  toolboxes.a__b.mcpServers.a_: expected NAME, found "a_"
{"mcpServers": {"s": {"command": "x", "args": ["${NO} ${NO} ${a"]}}}
  mcpServers.s.args[0]: environment variable NO is not set: set it, or write \
${NO:-default}
  mcpServers.s.args[0]: expected a '}' after '${', found the end of the string
{"servers": {"": {"command": "x"}, "\\u200b": {"command": "x"}, "s.t": 1.5, \
"t": {"description": 1, "url": "http://x"}}}
  servers."": expected NAME, found ""
  servers."\\u200b": expected NAME, found "\\u200b"
  servers."s.t": expected an object, found a number
  servers.t.description: expected a string, found a number
{"mcpServers": {"s": {"command": "x", "url": "http://${NO}/", "enabled": 1}}}
  mcpServers.s.enabled: expected a boolean, found a number
  mcpServers.s: expected either 'command' or 'url', found both
{"servers": {"s": {"url": "http://x:${NO}/"}}}
  servers.s.url: environment variable NO is not set: set it, or write ${NO:-default}
{"toolMode": "dynamic", "toolboxes": []}
  toolboxes: expected an object, found a list
  Configuration field 'toolMode' set to 'dynamic' is no longer supported.
  Dynamic mode was removed in version 0.10.0.
  Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now \
implicit).
  For migration guidance, see: "Upgrading" in README.md
""".replace("NAME", "a printable name without '__' that does not end in '_'")


@pytest.mark.parametrize("case", re.split(r"\n(?=\S)", BAD_CONFIGURATIONS.strip()))
def test_a_bad_configuration_is_reported_whole(case: str) -> None:
    data, *problems = case.split("\n  ")
    assert problems_of(json.loads(data)) == problems


def test_what_is_ignored_is_warned_about_unless_it_is_meant_to_be() -> None:
    server = {"command": "x", "timeout": 1, "autoApprove": ["${"], "_x": "${"}
    off = {"command": "${UNSET}", "disabled": True}
    was = {"env": {"A": "${TOKEN}"}}
    data = configuration(s=server, off=off, _was=was, _comment=[1])
    data["toolboxes"]["box"].update(_comment="${UNSET}", icon="${UNSET}")
    data.update(_comment="${", mcpServers={}, toolMode="proxy")
    config = workbench.parse_config(data, {})
    servers = {"s": workbench.ServerConfig("stdio", command="x")}
    assert config.toolboxes == {"box": workbench.ToolboxConfig("A box", servers)}
    assert config.variables == {"UNSET", "TOKEN"}
    assert warned_about(config) == ["configuration", "toolboxes.box", AT, "toolMode"]


# Files as other clients write them; below each, for every server: its toolbox's name,
# how it is started, all strings that it gets, which tools it may (+) and may not (-)
# offer, its description if it has its own; last the places that are warned about.
CLIENT_FILES = """
=== Claude Code: .claude.json
{"numStartups": 5, "oauthAccount": "${", "mcpServers": {
  "a": {"type": "http", "url": "${B:-https://a.b}/@c/mcp?d=e@f", "headers": {}},
  "b": {"type": "sse", "url": "https://[fd00::b%b]:8443"}},
 "projects": {"/elsewhere": {"mcpServers": {"x": {"command": "${UNSET}"}}},
  "FOLDER": {"allowedTools": [], "mcpServers": {
    "c": {"type": "stdio", "command": "uvx", "args": ["z"], "env": {}}}}}}
> a: http https://a.b/@c/mcp?d=e@f
> b: sse https://[fd00::b%b]:8443
> c: stdio uvx z
=== VS Code: mcp.json
{ // as in "http://", and with a\u00a0no-break space
  "inputs": [{"type": "promptString", "id": "key", "about": "\\"//\\""},],
  "servers": {"a": {"type": "streamable-http", "url": "https://a//,}/*b*/", /* { "x": */
    "headers": {"A": "Bearer ${input:key}"}},}} /**/
> a: http https://a//,}/*b*/ Bearer ${input:key}
> ! servers.a.headers.A
=== Zed: settings.json
{"theme": "One", "context_servers": { "a": {"source": "custom", "command": "x",},},} //
> a: stdio x
> ! context_servers.a
=== Codex: config.toml
[mcp_servers.a]
command = "npx"
enabled_tools = ["r*"]
since = 2026-11-22
disabled_tools = ["rm"]
env = { K = "k" }
[mcp_servers.a.tools.read]
approval_mode = "approve"
[mcp_servers.b]
url = "https://b"
bearer_token_env_var = "TOKEN"
enabled = false
> a: stdio npx k +r* -rm
> ! mcp_servers.a
=== Gemini CLI: settings.json
{"theme": "GitHub", "projects": 1, "servers": 1, "mcpServers": {"a": {"httpUrl": "https://a",
  "headers": {"A": "Bearer $KEY"}, "timeout": 9, "type": "streamable_http",
  "includeTools": ["r"], "excludeTools": ["s"], "description": "Its own"}}}
> a: http https://a Bearer $KEY +r -s (Its own)
> ! mcpServers.a mcpServers.a.headers.A
=== Cursor, Windsurf, Cline, opencode, JetBrains, Kiro, and Copilot CLI: mcp.json
{"mcpServers": {
  "a": {"command": "npx", "args": ["z"], "env": {"_J": "${env:KEY}"}, "envFile": "x"},
  "b": {"type": "remote", "serverUrl": "https://b", "headers": {"K": "${KEY}"},
    "disabledTools": ["t"]},
  "c": {"type": "streamableHttp", "url": "https://c", "disabled": false, "timeout": 9},
  "d": {"transport": "sse", "type": "http", "url": "https://d", "enabled": true,
    "description": ""},
  "e": {"type": "local", "command": ["${UNSET}"], "enabled": false},
  "f": {"command": "${UNSET}", "disabled": true, "autoApprove": []},
  "g": {"type": "local", "command": "npx", "args": [], "tools": ["r", "s"]}}}
> a: stdio npx z k
> b: http https://b k -t
> c: http https://c
> d: sse https://d
> g: stdio npx +r +s
> ! mcpServers.a mcpServers.c
"""


@pytest.mark.parametrize("case", CLIENT_FILES.split("\n=== ")[1:])
def test_the_file_of_another_client_is_a_configuration(
    case: str, tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.chdir(tmp_path)
    written, *expected = case.strip().split("\n> ")
    title, _, written = written.partition("\n")
    file = Path(title.split(": ")[1])
    file.write_text(written.replace("FOLDER", os.getcwd()), "utf-8")
    config = workbench.load_config(str(file), {"KEY": "k"})
    found = []
    for name, box in config.toolboxes.items():
        server = box.servers[name]
        words = [f"{name}:", server.transport, server.command or server.url]
        words += [*server.args, *server.env.values(), *server.headers.values()]
        if server.tool_filters != workbench.ServerConfig("").tool_filters:
            words += map("+{}".format, server.tool_filters)
        words += map("-{}".format, server.excluded_tools)
        if box.description != f"Tools of the MCP server '{name}'":
            words.append(f"({box.description})")
        found.append(" ".join(words))
    if config.warnings:
        found.append(" ".join(["!", *warned_about(config)]))
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
""".strip()


@pytest.mark.parametrize("case", EXPANSIONS.splitlines())
def test_a_variable_expands_in_one_pass_to_its_value_as_it_is(case: str) -> None:
    text, _, expected = case.partition(" = ")
    data = configuration(s={"command": "x", "args": [text], "env": {"${A}": text}})
    server = workbench.parse_config(data, VARIABLES).toolboxes["box"].servers["s"]
    assert list(server.args) == [expected]
    assert server.env == {"${A}": expected}  # a key stays as it is


LEFT_ALONE = "${} ${a} ${1X} ${A%/} ${A-d} ${A:=d} ${:-d} ${Ä} ${A٣} ${A${A} ${input:A}"
LEFT_ALONE += " ${env:a} ${env:} ${ENV:A} $MY_TOKEN $A"


@pytest.mark.parametrize("text", LEFT_ALONE.split())
def test_what_only_looks_like_a_variable_stays_and_is_warned_about(text: str) -> None:
    args = ["y", f"{text} {text}"]
    data = configuration(s={"command": "x", "args": args})
    # The real mapping: unlike a dict, it refuses what is no name.
    config = workbench.parse_config(data, os.environ)
    assert list(config.toolboxes["box"].servers["s"].args) == args
    [warning] = config.warnings  # once
    assert warning.startswith(f"{AT}.args[1]: {json.dumps(text)} ")


BAD_FILES = {
    b"": "line 1 column 1 ",
    b'{"a":\n x}': "line 2 column 2 ",
    b"{} {}": "line 1 column 4 ",
    b"[mcp_servers.s]\n# x\n{": "(at line 3, column 1)",
    b"[mcp_servers]\ns = 2026-11-22": "s: expected an object, found a date or time",
    b'{// "\n/*\n\n*/"a": [1,],\n "b" 1}': "line 5 column 6 ",
    b'{"\xe4": 1}': "UTF-8",
    b'{"a":' * 100_000 + b"0" + b"}" * 100_000: "JSON",
}


def test_a_file_that_cannot_be_used_is_an_error_that_says_where(tmp_path: Path) -> None:
    for data, told in BAD_FILES.items():
        path = tmp_path / ("c.toml" if data.startswith(b"[") else "c.json")
        path.write_bytes(data)
        with pytest.raises(workbench.ConfigError) as error:
            workbench.load_config(str(path), {})
        [problem] = error.value.problems
        assert told in problem
        assert str(error.value) == f"{path}:\n{problem}"


def test_a_configuration_is_found_in_order(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.chdir(tmp_path)
    demo = workbench.find_config(None, {"WORKBENCH_CONFIG": ""}).toolboxes["demo"]
    assert demo.servers["toolbox"].command == sys.executable
    for name in ("argument", "variable", "workbench-config.json"):
        Path(name).write_text('\ufeff{"toolboxes": {}}', "utf-8")
    environ = {"WORKBENCH_CONFIG": "variable"}
    assert workbench.find_config("argument", environ).source == "argument"
    assert workbench.find_config(None, environ).source == "variable"
    assert workbench.find_config(None, {}).source == "workbench-config.json"


def test_a_given_path_that_cannot_be_read_is_an_error() -> None:
    variable = {"WORKBENCH_CONFIG": "no"}
    for path, environ in (("no", {}), (".", {}), ("", {}), (None, variable)):
        with pytest.raises(workbench.ConfigError, match="cannot be read: "):
            workbench.find_config(path, environ)


def test_the_example_loads_without_variables_and_warnings() -> None:
    example = workbench.load_config(str(ROOT / "workbench-config.example.json"), {})
    assert example.toolboxes and not example.warnings


def test_the_script_header_asks_for_what_the_requirements_ask_for() -> None:
    script = Path(workbench.__file__).read_text()
    header: Any = re.search(r"(?m)^# /// script\n((?:# .*\n)+?)# ///$", script)
    fields = tomllib.loads(header[1].replace("# ", ""))
    requirements = (ROOT / "requirements.txt").read_text().split()
    assert fields["dependencies"] + ["pytest"] == requirements


ODD_NAMES = ["read_a", "Read_b", "list", "read", "🧰 a__b_"]
FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"toolFilters": "*"}, ODD_NAMES),
    ({"toolFilters": ["read_*", "l?st"]}, ["read_a", "list"]),
    ({"tools": ["[!l]*"], "excludeTools": ["?ead", "read_a"]}, ["Read_b", "🧰 a__b_"]),
    ({"excludeTools": ["l*"], "disabledTools": ["*a*"]}, []),
]


@pytest.mark.parametrize(("filters", "allowed"), FILTERS)
async def test_a_filtered_tool_can_be_neither_seen_nor_called(
    filters: dict[str, Any], allowed: list[str]
) -> None:
    server = entry("scripted", f"serve_raw(*map(tool, {ODD_NAMES}))", **filters)
    async with connected(configuration(s=server)) as client:
        assert await shown_names(client) == [f"box__s__{name}" for name in allowed]
        for name in ODD_NAMES:
            result = await use(client, "s", name)
            assert result.is_error == (name not in allowed), name


# === Configuration: secrets ===========================================================

TOKEN = "tok-0123456789" * 1500  # more than is logged of a line
KEY = "---BEGIN---\nMIIEpAIBAAKC\\ä\n---END---"
LITERALS = ["env-0123456", "header-0123", "query-01234", "user-012345", "pass-012345"]
LITERALS += ["again-01234", "typo-012345"]
DIE = """
def die(_=None):
    words = " ".join(sys.argv[3:])
    print(words, file=sys.stderr)
    print("no JSON:", words)
    print("x" * 190, words, flush=True)
    sys.exit(3)
"""


async def test_no_secret_is_logged_or_told(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setenv("WB_TOKEN", TOKEN)
    monkeypatch.setenv("WB_KEY", KEY)
    words = ["${WB_TOKEN}", "${WB_KEY}", *LITERALS, "Grüße"]
    call = DIE + "serve_raw(tool('die'), tools_call=die)"
    value, header, query, user, password, again, typo = LITERALS
    monkeypatch.setenv("WB_TYPO", typo)
    url = f"http://{user}:{password}@127.0.0.1:1/mcp?k={query}&k={again}&"
    config = configuration(
        call=entry("scripted", call, *words, env={"A": "${WB_TOKEN}", "B": value}),
        start=entry("scripted", DIE + "die()", *words, header="${WB_TYPO}"),
        command={"command": "/none/${WB_TOKEN}"},
        cwd=entry("plain", cwd="/none/${WB_TOKEN}"),
        http={"url": url + "a=${WB_TOKEN}", "headers": {"A": "Bearer ${WB_TOKEN}"}},
        sse={"url": url + "x", "type": "sse", "headers": {"A": f"Bearer {header}"}},
    )
    async with connected_process(config, tmp_path) as client:
        answer = await open_box(client)
        failed = answer["servers_failed"]
        assert failed.keys() == {"start", "command", "cwd", "http", "sse"}
        errors = [text(await use(client, server, "die")) for server in failed]
        errors.append(text(await use(client, TOKEN, "die")))
        errors.append(text(await client.call_tool("use_tool", {TOKEN: 1})))
        death = text(await use(client, "call", "die"))
    stderr = (tmp_path / "stderr").read_text()
    assert f"[box/start] ***{' ***' * len(LITERALS)} Grüße\n" in stderr
    for reason in (failed["start"], failed["command"], failed["cwd"], death):
        assert "***" in reason
    everything = "\n".join([stderr, json.dumps(answer), death, *errors])
    for secret in [TOKEN[:6], "BEGIN", "MIIE", "END", *LITERALS]:
        assert secret not in everything


async def why_it_fails(server: dict[str, Any]) -> str:
    async with connected(configuration(a=server)) as client:
        return text(await client.call_tool("open_toolbox", BOX))


def test_only_what_may_be_secret_is_masked(tmp_path: Path) -> None:
    variables = {"SHORT": "1234567", "FILE": str(tmp_path), "UNUSED": "unused-00"}
    args = ["literal-0", "${SHORT}", "${FILE}", "${NO:-default-0}", "${TOKEN}"]
    env = {"BLANK": " " * 8, "INPUT": "${input:key}"}
    data = configuration(s={"command": "x", "args": args, "env": env})
    config = workbench.parse_config(data, {**variables, "TOKEN": TOKEN})
    told = f"literal-0 unused-00{' ' * 8}1234567 {tmp_path} default-0 ${{input:key}}"
    assert config.mask(f"{told} {TOKEN}") == f"{told} ***"


SECRETS: list[tuple[dict[str, Any], str]] = [  # and texts that hold nothing else
    ({"headers": {"A": "12345678", "B": "1 2 34 5 6"}}, "12345678 1 2 34 5 6"),
    ({"headers": {"A": "abcdefgh", "B": "abcdefghSECRET"}}, "abcdefghSECRET"),
    ({"headers": {"A": "pa$SWORD-0123"}}, "pa$SWORD-0123"),
    ({"url": "http://u:abc:defg12@h/"}, "u:abc:defg12 abc:defg12"),
    ({"url": "http://h/?a=b&c=dEf&"}, "a=b&c=dEf&"),
    ({"headers": {"A": 'a"quote/ä'}}, r'a"quote/ä a\"quote/ä a\"quote/\u00e4'),
    ({"headers": {"PHP": 'a"quote/ä'}}, r"a\"quote\/\u00e4"),
    ({"headers": {"Go": "<tökén&1>"}}, r"\u003ctökén\u00261\u003e"),
]


def test_a_secret_is_masked_whole_and_as_json_escapes_it() -> None:
    for server, texts in SECRETS:
        data = configuration(s={"url": "http://h/", **server})
        mask = workbench.parse_config(data, {}).mask
        assert set(mask(texts).split()) == {"***"}, texts


# === Tool names =======================================================================


def test_a_full_tool_name_splits_into_its_parts_and_matches_them() -> None:
    for name in ("t s x", "a_b c-d _x", "t s __x__y", "ä s.1 x__y_ ", "t s x[1]"):
        parts = tuple(name.split(" ", 2))
        full_name = workbench.full_tool_name(*parts)
        assert full_name == "__".join(parts)
        assert workbench.split_tool_name(full_name) == parts
        assert workbench.matches_pattern(full_name, *parts)
        assert not workbench.matches_pattern(full_name, "other", *parts[1:])
    for name in ("", "x", "t__s", "t__s__", "__s__x", "t____x"):
        with pytest.raises(ValueError):
            workbench.split_tool_name(name)


# === Workbench: opening a toolbox =====================================================


@asynccontextmanager
async def opened(mode: str = "legacy", /, **servers: Any) -> AsyncIterator[Client]:
    async with connected(configuration(**servers), mode) as client:
        await open_box(client)
        yield client


def runs(code: str) -> dict[str, Any]:
    return entry("scripted", code)


def lists(result: str) -> dict[str, Any]:
    """A server that answers a request `r` for its tools with this Python value."""
    return runs(f"serve_raw(tools_list=lambda r: {result})")


def noted_pids(file: Path) -> list[int]:
    """The processes of the `noted` servers of this file, in the order of starts."""
    return [int(word) for word in file.read_text().split() if word.isdigit()]


async def shown_names(client: Client, tools: Any = None) -> list[str]:
    return [tool["name"] for tool in (await open_box(client, tools))["tools"]]


async def at_once(count: int, call: Callable[[], Any]) -> list[Any]:
    return await asyncio.gather(*(call() for _ in range(count)))


ECHO = BOX | {"tool_name": "box__a__echo"}
MISSING = {"command": "no-such-command"}
DEFAULT_HINTS = {"readOnlyHint": False, "destructiveHint": True}
DEFAULT_HINTS |= {"idempotentHint": False, "openWorldHint": True}
EVERY_FIELD = {
    "name": "read",
    "description": " Liest\nä ",
    "annotations": {hint: not default for hint, default in DEFAULT_HINTS.items()},
    "inputSchema": {"$schema": "s", "type": "object", "title": "In", "x": [None, 1.5]},
    "outputSchema": {"type": "object"},
    "title": "T",
    "x-vendor": {"deep": None},
    "source_server": "forged",
    "_meta": {"own": None},
}


async def test_the_answer_of_open_toolbox_has_exactly_this_shape() -> None:
    introduction = "{**initialized(), 'instructions': 'Größe zählt'}"
    read = runs(f"serve_raw({EVERY_FIELD}, initialize=lambda _: {introduction})")
    bare_tool = tool("bare", description="", annotations=DEFAULT_HINTS | {"title": "T"})
    bare = runs(f"serve_raw({bare_tool})")
    async with connected(configuration(b=bare, none=MISSING, a=read)) as client:
        answer = text(await client.call_tool("open_toolbox", BOX))
    assert workbench.compact(float("inf")) == "null"  # JSON has no such number
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


async def test_a_failing_server_costs_only_itself(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    folder = tmp_path / "later"
    config = configuration(a=entry("plain"), b=entry("plain", cwd=str(folder)))
    async with connected(config) as client:
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)  # when one is up
        first = await open_box(client)
        monkeypatch.undo()
        assert first["servers_connected"] == 1
        assert first["servers_failed"]["b"] in await error_of(client, "b", "echo")
        assert await open_box(client) == first
        folder.mkdir()
        assert text(await use(client, "b", "echo", {"x": 1})) == '{"x": 1}'
        last = await open_box(client)
    assert list(last) == ["toolbox", "description", "servers_connected", "tools"]


async def test_where_all_servers_fail_nothing_is_left_running(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(workbench, "CONNECT_TIMEOUT", 1)
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.1)
    pids = tmp_path / "pids"
    silent = {"command": "sh", "args": ["-c", f"echo $$ >> {pids}; exec sleep 600"]}
    async with connected(configuration(x=MISSING, silent=silent)) as client:
        for result in await at_once(2, lambda: client.call_tool("open_toolbox", BOX)):
            assert result.is_error
            assert "no-such-command" in text(result)
            assert "no answer within 1 seconds" in text(result)
        [pid] = noted_pids(pids)
        await until(lambda: not is_alive(pid))


def test_the_time_limits_are_those_that_clients_can_wait_for() -> None:
    assert (workbench.OPEN_TIMEOUT, workbench.ANSWER_TIMEOUT) == (5, 50)
    assert workbench.CONNECT_TIMEOUT == 180


async def test_an_open_waits_for_the_first_server_and_names_those_that_still_start(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    """Where none is up, it ends at the timeout, as does a call."""
    notes, gate = tmp_path / "slow", tmp_path / "gate"
    slow = entry("noted", notes, gate)
    note = "Still starting: slow. Call open_toolbox again to get their tools."
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
    async with connected(configuration(slow=slow, fast=entry("plain"))) as client:
        answers = await at_once(2, lambda: open_box(client))
        answers.append(await open_box(client))
        monkeypatch.setattr(workbench, "ANSWER_TIMEOUT", 0.3)
        answers.append(await open_box(client, ["slow__*", "no__*"]))
        assert "still starting" in await error_of(client, "slow", "pid")
        for answer in answers:
            assert answer["servers_connecting"] == ["slow"]
            assert answer["note"].startswith(note)
            assert {each["source_server"] for each in answer["tools"]} <= {"fast"}
        assert [each["servers_connected"] for each in answers] == [1, 1, 1, 0]
        assert ["no__*" in each["note"] for each in answers] == [False] * 3 + [True]
        monkeypatch.setattr(workbench, "ANSWER_TIMEOUT", 30)
        gate.touch()
        pid = int(text(await use(client, "slow", "pid")))
    assert noted_pids(notes) == [pid]


@ERAS
async def test_a_failed_open_does_not_end_another(tmp_path: Path, mode: str) -> None:
    """All servers of the first one fail, but `a` was started again by the second."""
    notes, folder = tmp_path / "a", tmp_path / "later"
    gate, end = tmp_path / "gate", tmp_path / "end"
    failing = runs(f"while not os.path.exists({str(end)!r}): time.sleep(0.01)")
    a = entry("noted", notes, gate, cwd=str(folder))
    settled: list[Any] = []

    async def on_progress(*progress: Any) -> None:
        settled.append(progress)

    async with connected(configuration(a=a, b=failing, c=MISSING), mode) as client:
        part = open_box(client, ["a__*", "b__*"], progress_callback=on_progress)
        first = asyncio.ensure_future(part)
        await until(lambda: len(settled) == 1)
        folder.mkdir()
        second = asyncio.ensure_future(open_box(client))
        await until(notes.exists)
        end.touch()
        assert (await first)["servers_connecting"] == ["a"]
        gate.touch()
        assert (await second)["servers_connected"] == 1
        assert text(await use(client, "a", "pid")) == str(noted_pids(notes)[0])
    assert settled == [(1, 2, "a"), (2, 2, "b")]  # each was told once


SPEAK = r"os.write(2, b'one\ntwo'); "
CODE = "for n in range(25): print(n, 'y' * 309, file=sys.stderr)\nsys.exit(3)"
CUT_LINES = " | ".join(f"{n} {'y' * 300}"[:300] for n in range(5, 25))
FAILURES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "absent": (MISSING, ["no-such-command", "No such file or directory"]),
    "kill": (runs(SPEAK + "os.kill(os.getpid(), 9)"), ["SIGKILL", "one | two"]),
    "long": (runs(CODE), [f"exited with status 3; its last stderr lines: {CUT_LINES}"]),
    "signal": (runs("os.kill(os.getpid(), 40)"), ["killed", "40"]),
    "refusal": (lists("refuse(r)"), ["refused as asked"]),
    "schema": (lists("{'tools': [{'name': ''}]}"), ["tools.0.inputSchema: "]),
    "name": (lists("{'tools': [tool(), tool(1)]}"), ["tools.1.name: "]),
    "result": (lists("[]"), ["result: "]),
}


async def test_a_reason_is_one_readable_line(monkeypatch: Monkey) -> None:
    """It has at most 20 lines of stderr, cut at 300 characters."""
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 30)
    servers = {name: server for name, (server, _) in FAILURES.items()}
    async with connected(configuration(good=entry("plain"), **servers)) as client:
        failed = (await open_box(client))["servers_failed"]
    for name, (_, parts) in FAILURES.items():
        assert failed[name].isprintable(), name
        for part in parts:
            assert part in failed[name], name
    for error, told in ((ValueError("a\n b"), "a b"), (ValueError(), "ValueError")):
        assert workbench.explain(error) == told


async def test_a_tool_list_is_read_to_its_end(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 30)
    three, many = lists("page(r, 2)"), lists("page(r, 999)")
    one = lists("refuse(r) if r.get('params') else {'tools': [], 'nextCursor': ''}")
    none = lists("refuse(r, -32601)")
    config = configuration(none=none, one=one, three=three, many=many)
    async with connected(config) as client:
        answer = await open_box(client)
    shown = [tool["name"] for tool in answer["tools"]]
    assert shown[:3] == ["box__three__t0", "box__three__t1", "box__three__t2"]
    assert shown[3:] == [f"box__many__t{number}" for number in range(250)]
    assert answer["servers_connected"] == 4


async def test_a_part_starts_and_counts_only_servers_it_needs(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    config = configuration(o=entry("noted", notes), a=entry("plain"), x=MISSING)
    async with connected(config) as client:
        for part, names in (
            ("a__*", ["box__a__echo", "box__a__other"]),
            (["box__a__echo", "a__ec*"], ["box__a__echo"]),
            ('["*__a__*er"]', ["box__a__other"]),
            ("b?x__a__[!e]*", ["box__a__other"]),
        ):
            answer = await open_box(client, part)
            assert [tool["name"] for tool in answer["tools"]] == names
            keys = ["toolbox", "description", "servers_connected", "tools"]
            assert list(answer) == keys and answer["servers_connected"] == 1
        assert not notes.exists()
        any_servers = await shown_names(client, ["pid", "other"])
        assert any_servers == ["box__o__pid", "box__a__other"]
        nothing: Any
        for nothing in ([], "", "[]"):
            assert await open_box(client, nothing) == await open_box(client)


async def test_what_matches_nothing_is_named_in_a_short_note() -> None:
    """Not so what a server that is not up might have."""
    async with connected(configuration(a=entry("plain"), b=MISSING)) as client:
        note = (await open_box(client, ["a__ECHO", "a__echo", "c__*", "b__*"]))["note"]
        assert "a__ECHO" in note and "c__*" in note
        assert "a__echo" not in note and "b__*" not in note
        nothing = await open_box(client, f"no__a__{60_000 * 'x'}")
        assert "no__a__xxx" in nothing["note"] and nothing["tools"] == []
        assert len(nothing["note"]) < 2_000
        failed = await client.call_tool("open_toolbox", {**BOX, "tools": "b__*"})
        assert failed.is_error and "no-such-command" in text(failed)


def size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


async def test_only_the_longest_tools_are_shortened(monkeypatch: Monkey) -> None:
    enough = "chr(10) + 'ä' * 250 + chr(10) * (n % 2) + 'z' * (n * 7 % 40 * 99)"
    too_many = "'ä' * (n * 77 % 400)"
    for words, count in ((enough, 40), (too_many, 400)):
        tools = f"[tool(f't{{n}}', description={words}) for n in range({count})]"
        async with opened(a=lists(f"{{'tools': {tools}}}")) as client:
            answer = await open_box(client, ["t*", "absent"])
            [again] = (await open_box(client, "t39"))["tools"]
            with monkeypatch.context() as unlimited:
                unlimited.setattr(workbench, "ANSWER_LIMIT", 10**9)
                whole = (await open_box(client))["tools"]
        assert again == whole[39] != answer["tools"][39]
        kept, cut = [0], [10**9]
        for shown, longer in zip(answer["tools"], whole, strict=True):
            first_line = longer["description"].strip().partition("\n")[0][:200]
            shorter = {"name": longer["name"], "description": first_line}
            if words == too_many:  # even with first lines alone
                longer, shorter = shorter, {"name": longer["name"]}
            assert shown in (longer, shorter)
            (kept if shown == longer else cut).append(size(longer))
        assert max(kept) <= min(cut)
        assert size(answer) <= 50_000 < size(answer) + min(cut)
        bare = sum("inputSchema" not in each for each in answer["tools"])
        assert f"{bare} of {len(whole)} tools" in answer["note"]
        assert "absent" in answer["note"]


async def test_what_servers_say_at_length_costs_no_tools(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "ANSWER_LIMIT", 10_000)
    told = "lambda _: initialized() | {'instructions': 'i' * 6_000}"
    a = runs(f"serve_raw(tool(description='z' * 5_000), initialize={told})")
    b = runs("sys.exit(20 * ('y' * 299 + chr(10)))")
    async with connected(configuration(a=a, b=b)) as client:
        answer = await open_box(client)
    assert size(answer) <= 10_000 and "inputSchema" in answer["tools"][0]


# === Workbench: using a tool ==========================================================


async def test_use_tool_starts_once_the_one_server_it_needs(tmp_path: Path) -> None:
    """The same server in another toolbox is another process."""
    notes, others = tmp_path / "a", tmp_path / "b"
    config = configuration(a=entry("noted", notes), b=entry("noted", others))
    config["toolboxes"]["twin"] = config["toolboxes"]["box"]
    twin = {"toolbox_name": "twin", "tool_name": "twin__a__pid"}
    async with connected(config) as client:
        results = await at_once(20, lambda: use(client, "a", "pid"))
        assert not others.exists()
        parts = ["b__*", ["a__pid", "pid"], None] * 7
        answers = await asyncio.gather(*(open_box(client, part) for part in parts))
        [pid] = noted_pids(notes)
        other = int(text(await client.call_tool("use_tool", twin)))
    assert {text(result) for result in results} == {str(pid)}
    assert [answer["servers_connected"] for answer in answers] == [1, 2, 2] * 7
    assert noted_pids(notes) == [pid, other] and len(noted_pids(others)) == 1


async def test_a_name_that_leads_nowhere_is_an_error_that_helps() -> None:
    not_found = "Toolbox 'no' not found. Available toolboxes: box, shut"
    archive = entry("plain", excludeTools=["other"])
    config = configuration(archive=archive, b=entry("plain"))
    config["toolboxes"]["shut"] = config["toolboxes"]["box"]
    async with connected(config) as client:
        result = await client.call_tool("open_toolbox", {"toolbox_name": "no"})
        assert result.is_error and text(result) == not_found
        for toolbox, tool_name, reason in (
            ("no", "no__a__echo", not_found),
            ("box", "box__a__", "{toolbox}__{server}__{tool}"),
            ("box", "shut__a__echo", "'shut'"),
            ("box", "box__c__echo", "archive, b"),
            ("box", "box__archive__ecoh", " mean box__archive__echo?"),
            ("box", "archive__ecoh", "box__archive__echo"),
            ("box", "box__b__ech", " mean box__b__echo or "),
            ("box", "echo", " mean box__archive__echo or box__b__echo?"),
        ):
            arguments = {"toolbox_name": toolbox, "tool_name": tool_name}
            result = await client.call_tool("use_tool", arguments)
            prefix = f"Error executing tool '{tool_name}' in toolbox '{toolbox}': "
            assert result.is_error and text(result).startswith(prefix)
            assert reason in text(result).removeprefix(prefix)


# === MCP server =======================================================================

INSTRUCTIONS = """\
Available Toolboxes:

web (1 server)
  Description: The web

main (2 servers)
  Description: Files, and ünïcode
  Servers: b, a

Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."""


@ERAS
async def test_the_handshake_tells_who_we_are_and_our_toolboxes(mode: str) -> None:
    remote = {"url": "https://example.com/mcp"}
    servers = {"b": {"command": "x"}, "a": remote, "off": {"disabled": True}}
    toolboxes = {
        "web": {"description": "The web", "mcpServers": {"s": remote}},
        "main": {"description": "Files, and ünïcode", "mcpServers": servers},
    }
    async with connected({"toolboxes": toolboxes}, mode) as client:
        assert client.instructions == INSTRUCTIONS
        assert (client.protocol_version == MODERN) == (mode == "auto")
        info: Any = client.server_info
        capabilities = dumped(client.server_capabilities)
    assert (info.name, info.version) == ("mcp-workbench", "0.10.0")
    assert capabilities == {"tools": {"listChanged": False}, "logging": {}}


@ERAS
async def test_handshake_and_listing_start_nothing(mode: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    servers = {"s": entry("noted", tmp_path / "s"), "other": entry("noted", notes)}
    async with connected(configuration(**servers), mode) as client:
        tools = await listed(client)
        # A server that had been started before this one is twice would have noted it.
        await use(client, "s", "exit")
        await use(client, "s", "pid")
        assert not notes.exists()
        await open_box(client)
        assert await listed(client) == tools


async def test_the_two_tools_say_what_they_are_in_200_tokens() -> None:
    box = configuration(s={"command": "x"})["toolboxes"]["box"]
    async with connected({"toolboxes": {"b": box, "ä a": box}}) as client:
        opening, using = await listed(client)
    assert opening["title"] and using["title"]
    harmless = {"destructiveHint": False, "idempotentHint": True}
    assert DEFAULT_HINTS | opening["annotations"] == DEFAULT_HINTS | harmless
    assert DEFAULT_HINTS | using["annotations"] == DEFAULT_HINTS
    assert opening["inputSchema"].keys() == {"type", "properties", "required"}
    names = opening["inputSchema"]["properties"]["toolbox_name"].pop("enum")
    assert names == ["b", "ä a"]
    sent = []
    for each in (opening, using):  # what clients send to a model
        sent += [each["name"], each["description"], each["inputSchema"]]
    # o200k makes more than four bytes to a token of any text like these.
    assert len(json.dumps(sent, separators=(",", ":"))) <= 200 * 4


@pytest.mark.parametrize("waits", [False, True])
def test_initialize_after_server_discover_is_served_in_the_older_era(
    waits: bool, tmp_path: Path
) -> None:
    """What was opened before it is closed."""
    meta = {f"{RESERVED}protocolVersion": MODERN, CAPABILITIES: {}}
    with Wire(tmp_path) as wire:
        wire.begin("server/discover", _meta=meta)
        call = wire.begin("tools/call", name="open_toolbox", arguments=BOX, _meta=meta)
        if waits:
            assert wire.answer(call)["result"]["resultType"] == "complete"
        assert wire.initialize().still_serves()
        anyio.run(until, lambda: len(wire.servers_left()) == 1)
        wire.end("end of stdin")
        assert wire.status() == 0


async def test_bad_arguments_are_an_error_that_names_the_field() -> None:
    async with connected(configuration(a=entry("plain"))) as client:
        for name, arguments, field in (
            ("open_toolbox", None, "toolbox_name"),
            ("open_toolbox", {"servers": []}, "servers"),  # a second fault
            ("open_toolbox", BOX | {"tools": {}}, "tools"),
            ("open_toolbox", BOX | {"tools": ["a", 1]}, "tools"),
            ("use_tool", {"tool_name": "box__a__echo"}, "toolbox_name"),
            ("use_tool", BOX | {"tool_name": None}, "tool_name"),
            ("use_tool", ECHO | {"arguments": [1]}, "arguments"),
            ("use_tool", ECHO | {"arguments": "[1]"}, "arguments"),
            ("use_tool", ECHO | {"arguments": "[" * 100_000}, "arguments"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error and f"'{field}'" in text(result), arguments


VALUES = {"null": None, "Größe 😀": [1, -2.5, True, {"": None}], "i": 2**70, "s": "{}"}
HALF = r'{"cut": "\ud83d"}'  # half of a surrogate pair


async def test_arguments_reach_the_server_as_they_are() -> None:
    async with opened(a=entry("plain")) as client:
        for nothing in (ECHO, ECHO | {"arguments": None}):
            assert text(await client.call_tool("use_tool", nothing)) == "{}"
        for given in (VALUES, json.dumps(VALUES)):
            assert json.loads(text(await use(client, "a", "echo", given))) == VALUES
        assert text(await use(client, "a", "echo", HALF)) == r'{"cut": "\ufffd"}'


async def test_any_other_tool_is_a_protocol_error_with_a_hint() -> None:
    async with connected(configuration(a=entry("plain"))) as client:
        for name in ("box__a__echo", "echo", "OPEN_TOOLBOX", ""):
            with pytest.raises(MCPError, match="use_tool") as caught:
                await client.call_tool(name, {})
            assert caught.value.code == -32602
            assert caught.value.message.startswith(f"Tool '{name}' not found: ")


# === Connections: a server that dies ==================================================


def resources() -> list[int]:
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    files = os.listdir("/proc/self/fd")
    ours = [each for each in gc.get_objects() if type(each).__module__ == "workbench"]
    return [len(children), len(files), len(asyncio.all_tasks()), len(ours)]


async def leaves_nothing_behind(before: list[int]) -> None:
    await until(lambda: all(now <= then for now, then in zip(resources(), before)))


@ERAS
async def test_a_death_between_calls_goes_unnoticed(tmp_path: Path, mode: str) -> None:
    notes, others = tmp_path / "a", tmp_path / "b"
    a, b = entry("noted", notes), entry("noted", others)
    async with connected(configuration(a=a, b=b), mode) as client:
        first = await open_box(client)
        before = resources()
        for count in (1, 20, 1, 0):
            os.kill(noted_pids(notes)[-1], signal.SIGKILL)
            await until(lambda: not is_alive(noted_pids(notes)[-1]))
            for result in await at_once(count, lambda: use(client, "a", "pid")):
                assert text(result) == str(noted_pids(notes)[-1])
        with anyio.fail_after(5):
            while len(noted_pids(notes)) == 4:  # its end is about to be noticed
                again = await open_box(client)
        await leaves_nothing_behind(before)
    assert again == first
    assert len(noted_pids(notes)) == 5 and len(noted_pids(others)) == 1


async def test_a_death_fails_the_calls_in_flight_and_no_others(
    tmp_path: Path, log: Logs
) -> None:
    notes, other, gate = tmp_path / "a", tmp_path / "b", tmp_path / "gate"
    async with opened(a=entry("noted", notes), b=entry("noted", other)) as client:
        calls = []
        for server in "aab":  # that of `b` is sent last
            call = use(client, server, "wait", {"until": str(gate)})
            calls.append(asyncio.ensure_future(call))
        await until(lambda: "wait" in notes.read_text() and "wait" in other.read_text())
        os.kill(noted_pids(notes)[0], signal.SIGKILL)
        with anyio.fail_after(5):
            for failed in await asyncio.gather(calls[0], calls[1]):
                told = "^Error executing tool 'box__a__wait' .*SIGKILL.*first words"
                assert failed.is_error and re.search(told, text(failed))
        assert text(await use(client, "a", "pid")) == str(noted_pids(notes)[1])
        gate.touch()
        assert text(await calls[2]) == str(noted_pids(other)[0])
    seen = re.findall("[a-z]+", notes.read_text())
    assert seen == ["wait", "pid"]  # the second `wait` was still in the pipe
    assert ("workbench", logging.INFO, "[box/a] first words") in log.record_tuples


async def test_the_end_of_a_server_with_a_child_is_noticed(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.1)
    notes, children = tmp_path / "a", tmp_path / "children"
    forking = f"""
if not (child := os.fork()):
    time.sleep(600)
note({str(children)!r}, child)
noted({str(notes)!r})"""
    async with opened(a=runs(forking)) as client:
        with anyio.fail_after(10):
            told = "exited.*status 7.*first words.*last words"
            assert re.search(told, text(await use(client, "a", "exit")))
            assert text(await use(client, "a", "pid")) == str(noted_pids(notes)[1])
            assert text(await use(client, "a", "answer_and_exit")) == "the answer"
        await until(lambda: not is_alive(noted_pids(children)[0]))
    left = noted_pids(notes) + noted_pids(children)
    await until(lambda: not any(map(is_alive, left)))


@pytest.mark.parametrize(("mode", "starts"), [("legacy", 1), ("auto", 2)])
async def test_only_a_server_that_ends_when_it_is_probed_is_started_once_more(
    mode: str, starts: int, tmp_path: Path
) -> None:
    picky, failing = tmp_path / "picky", tmp_path / "failing"
    wants_initialize = f"""
note({str(picky)!r}, os.getpid())
serve_raw(tool(), server_discover=lambda _: sys.exit("expected initialize"))"""
    fails = {"command": "sh", "args": ["-c", f"echo $$ >> {failing}; exit 3"]}
    says_it = """
method = json.loads(sys.stdin.buffer.readline())["method"]
print(f"no {method}", file=sys.stderr)
sys.exit(len(method))"""
    config = configuration(a=runs(wants_initialize), b=fails, c=runs(says_it))
    async with connected(config, mode) as client:
        failed = (await open_box(client))["servers_failed"]
        assert text(await use(client, "a", "echo", {"x": 1})) == '{"x": 1}'
        assert "status 3" in text(await use(client, "b", "echo"))
    assert re.search("status 10.*: no initialize$", failed["c"])
    assert len(noted_pids(picky)) == starts
    assert len(noted_pids(failing)) == 2  # by the open and by the call


# === Connections: tool changes ========================================================

CHANGING = [("changing", "legacy"), ("changing_sdk", "auto")]
in_both_eras = pytest.mark.parametrize(("server", "mode"), CHANGING)


@pytest.fixture
def log(caplog: Logs) -> Logs:
    caplog.set_level(logging.DEBUG, "workbench")
    return caplog


async def become(client: Client, *tools: dict[str, Any], **more: Any) -> None:
    result = await use(client, "a", "become", {"tools": tools, **more})
    assert not result.is_error, text(result)


async def changed(client: Client) -> list[dict[str, Any]]:
    tools = []
    for shown in (await open_box(client))["tools"]:
        name = shown["name"].removeprefix("box__a__")
        if name not in ("become", "listings", "era", "echo"):
            tools.append(tool(name, inputSchema=shown["inputSchema"]))
    return tools


async def shows(client: Client, *tools: dict[str, Any]) -> None:
    while await changed(client) != list(tools):
        await anyio.sleep(0.01)


async def test_a_process_is_listed_again_only_after_a_change() -> None:
    async with opened(a=entry("changing")) as client:
        for listings in ("1", "2"):
            await open_box(client)
            assert text(await use(client, "a", "listings")) == listings
            await become(client)


@in_both_eras
async def test_a_change_is_there_for_the_next_call(server: str, mode: str) -> None:
    async with opened(mode, a=entry(server)) as client:
        for count in range(10):
            await become(client, tool(f"used_{count}"))
            assert not (await use(client, "a", f"used_{count}")).is_error
            schema = {"type": "object", "title": f"Edit {count}"}
            await become(client, tool("edited", inputSchema=schema))
            assert await changed(client) == [tool("edited", inputSchema=schema)]


async def test_a_thousand_announcements_cost_two_or_three_listings(log: Logs) -> None:
    """And a change during the first of these is not lost."""
    async with opened(a=entry("changing")) as client:
        await become(client, times=1000, seconds=0.1, meanwhile=[[tool("y")]])
        assert await changed(client) == [tool("y")]
        assert text(await use(client, "a", "listings")) in ("3", "4")  # with the first
    skipped = "Skipping duplicate discovery - already in progress for: box/a"
    assert ("workbench", logging.DEBUG, skipped) in log.record_tuples


async def test_an_open_waits_for_one_listing_only(monkeypatch: Monkey) -> None:
    """Even where each of them is out of date when it comes."""
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 1000)
    async with opened(a=entry("changing")) as client:
        await become(client, tool("x"), seconds=0.1, meanwhile=[[tool("x")]] * 500)
        for _ in range(3):
            assert await changed(client) == [tool("x")]


async def test_only_an_unknown_name_waits_for_a_refresh(monkeypatch: Monkey) -> None:
    """And it waits for the time limit at most, as does an open, or for one second."""
    async with opened(a=entry("changing")) as client:
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
        await become(client, tool("z"), seconds=0.1)
        assert await changed(client) == [tool("z")]
        await become(client, tool("x"), fault="silence")
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 1000)
        assert not (await use(client, "a", "listings")).is_error
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
        used, tools = await asyncio.gather(use(client, "a", "x"), changed(client))
        assert used.is_error and tools == [tool("z")]


async def test_a_failed_refresh_keeps_old_tools(log: Logs, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "CONNECT_TIMEOUT", 1.5)  # of a start or a refresh
    async with opened(a=entry("changing")) as client:
        await become(client, tool("x"))
        await shows(client, tool("x"))
        for fault in ("silence", "error", "{}", '{"tools": 1}', '{"tools": [{}]}'):
            log.clear()
            await become(client, tool("y"), fault=fault)
            assert await changed(client) == [tool("x")], fault
            assert "WARNING" in log.text, fault  # so it was tried, and did fail
        await become(client, tool("z"), fault="")
        assert await changed(client) == [tool("z")]


async def test_a_death_during_a_refresh_goes_unnoticed(monkeypatch: Monkey) -> None:
    async with opened(a=entry("changing")) as client:
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 1000)
        await become(client, tool("x"), fault="exit")
        assert await changed(client) == []
        await become(client, tool("x"), fault="exit")
        assert "has no tool 'x'" in text(await use(client, "a", "x"))
        assert text(await use(client, "a", "listings")) == "1"


async def test_a_lost_listen_stream_is_opened_again(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "LISTEN_PAUSE", 0.05)
    async with opened("auto", a=entry("changing_sdk")) as client:
        await become(client, tool("y"), lose=True)
        await shows(client, tool("y"))
        await become(client, tool("z"))
        await shows(client, tool("z"))


@in_both_eras
async def test_a_change_is_logged_with_its_counts_and_not_told_to_the_client(
    server: str, mode: str, log: Logs
) -> None:
    ear = Ear()
    async with hearing(mode, ear, a=entry(server)) as client:
        await shows(client)
        await become(client, tool("a"), tool("b"), tool("c"))
        await shows(client, tool("a"), tool("b"), tool("c"))
        edited = tool("a", inputSchema={"type": "object", "title": "A"})
        await become(client, edited, tool("x"), tool("y"), tool("z"))
        await shows(client, edited, tool("x"), tool("y"), tool("z"))
    received = "Received tools/list_changed notification from server: box/a"
    assert log.record_tuples.count(("workbench", logging.INFO, received)) == 2
    supported = "Server supports tool change notifications: box/a"
    assert ("workbench", logging.DEBUG, supported) in log.record_tuples
    [_] = re.findall("INFO .*box/a.*3 added.*2 removed.*1 modified", log.text)
    assert ear.heard == []


async def test_an_announcement_without_the_capability_warns(log: Logs) -> None:
    """And it is processed as any other: `toolFilters` hold for new tools, too."""
    async with opened(a=entry("changing", "none", toolFilters=["[!f]*"])) as client:
        await become(client, tool("x"), tool("filtered out"))
        assert await changed(client) == [tool("x")]
    told = "Received tools notification from server without listChanged capability: "
    assert log.record_tuples.count(("workbench", logging.WARNING, f"{told}box/a")) == 1
    assert "Server supports tool change notifications: box/a" not in log.messages
    assert "Skipping" not in log.text


async def test_a_stream_of_changes_that_is_refused_or_ends_at_once_is_left_alone(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    """One is not asked for again, the other after growing pauses."""
    monkeypatch.setattr(workbench, "LISTEN_PAUSE", 0.02)
    serving = """
def listen(self, request):
    note({!r}, time.monotonic_ns())
    {}
Eras.able = {{"capabilities": {{"tools": {{"listChanged": True}}}}}}
Eras.subscriptions_listen = listen
eras(MODERN)"""
    refused, ended = tmp_path / "refused", tmp_path / "ended"
    a = runs(serving.format(str(refused), "refuse(request, -32601)"))
    b = runs(serving.format(str(ended), "answer(request, {})"))
    async with opened("auto", a=a, b=b):
        await until(lambda: ended.exists() and len(noted_pids(ended)) == 5)
    assert len(noted_pids(refused)) == 1
    pauses = [late - early for early, late in itertools.pairwise(noted_pids(ended))]
    assert all(pauses[n] > 0.016e9 * 2**n for n in range(4)), pauses  # nanoseconds


# === Connections: results =============================================================

LINES = {"code": -32603, "message": "one\n  two\x1b[31m"}
ERRORS: list[tuple[dict[str, Any], str]] = [  # and how they are told
    ({"code": -32000, "message": "Connection closed"}, "-32000: Connection closed"),
    (LINES | {"data": {"a": 7}}, '-32603: one\n  two  (data: {"a":7})'),
    ({"code": 42, "message": "no", "data": "x" * 1_000}, "42: no"),
]


async def test_an_error_of_the_server_is_told_and_its_data_have_no_power() -> None:
    """The call is neither repeated nor, whatever the code, taken for a death."""
    async with opened(a=OWN_SERVERS["older"]) as client:
        for error, told in ERRORS:
            assert (await error_of(client, "a", "error", error)).endswith(told)
        assert (await answer_of(client, "seen"))["calls"] == len(ERRORS) + 1


@ERAS
async def test_an_error_that_addresses_the_client_passes_through(
    mode: str, server: Remote
) -> None:
    error = {"code": -32602, "message": "client, act", "data": {"x": [None]}}
    retries: list[Any] = [{"requestState": "s"}, {"inputResponses": {"a": ROOTS}}]
    async with opened(mode, a=OWN_SERVERS["both"]) as client:
        assert (await raw_call(client, "error", error))["isError"]
        for retry in retries:
            assert await raw_call(client, "error", error, **retry) == {"error": error}
        for code in (-32042, -32021):
            error["code"] = code
            assert await raw_call(client, "error", error) == {"error": error}
    server.answers["refused"] = response(400, {"id": 1, "error": error})
    async with opened(mode, a=server.at()) as client:
        assert await raw_call(client, "refused") == {"error": error}


SPOILT_ANSWERS = {
    "": "result",  # neither result nor error
    '"result": {}, ': "content",
    '"result": {"content": [{"type": "audio", "data": ""}]}, ': "mimeType",
    '"result": {"content": [], "isError": "maybe"}, ': "isError",
    '"result": {"resultType": "complete", "content": 7}, ': "content",
    '"error": {"message": "x"}, ': "code",
}


@pytest.mark.parametrize(("mode", "server"), [("legacy", "older"), ("auto", "modern")])
async def test_a_spoilt_answer_is_an_error_of_the_call(mode: str, server: str) -> None:
    async with opened(mode, a=OWN_SERVERS[server]) as client:
        for spoilt, field in SPOILT_ANSWERS.items():
            line = f'{{{spoilt}"id": ID, "jsonrpc": "2.0"}}'
            with anyio.fail_after(5):
                told = await error_of(client, "a", "write", {"line": line})
            assert f"{field}: " in told, spoilt
        assert (await answer_of(client, "seen"))["calls"] == len(SPOILT_ANSWERS) + 1


async def test_a_log_line_with_the_id_of_a_call_is_not_its_answer() -> None:
    lines = """{"level": 40, "id": ID, "error": "cache miss"}
{"jsonrpc": "1.0", "id": ID, "result": {"content": []}}
{"jsonrpc": "2.0", "id": ID.0, "result": {"content": [], "_meta": {"x": "answer"}}}"""
    async with opened(a=OWN_SERVERS["older"]) as client:
        result = await raw_call(client, "write", {"line": lines})
    assert result == {"content": [], "_meta": {"x": "answer"}}


async def test_a_real_server_answers_as_without_us(tmp_path: Path) -> None:
    program = ROOT / ".ci/servers/node_modules/.bin/mcp-server-filesystem"
    if not program.exists():
        pytest.skip(f"{program} is not installed")
    (tmp_path / "large ä.txt").write_text("Größe 😀\n" * 30_000)
    (tmp_path / "sound.wav").write_bytes(bytes(range(256)))
    server = {"command": str(program), "args": ["."], "cwd": str(tmp_path)}
    parameters = StdioServerParameters.model_validate(server | {"env": os.environ})
    calls = [("list_directory", "."), ("read_text_file", "large ä.txt")]
    calls += [("read_media_file", "sound.wav"), ("read_text_file", "/etc/hostname")]
    async with opened(a=server) as client, Client(parameters, mode="legacy") as direct:
        for name, path in calls:
            expected = await direct.call_tool(name, {"path": path})
            assert await use(client, "a", name, {"path": path}) == expected, name
    assert expected.is_error  # the last one is refused


# === Connections: a transparent proxy =================================================

SCHEMA = {"type": "object", "properties": {}}
FORM: dict[str, Any] = {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}
SIGN_IN = {"mode": "url", "message": "Go", "url": "https://a.b?c", "elicitationId": "e"}
ELICIT = {"method": "elicitation/create", "params": FORM}
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
PARIS = {"type": "text", "text": "Paris"}
SAMPLED = {"role": "assistant", "model": "m", "content": PARIS, "stopReason": "end"}
ROOTS = {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}
LEVELS = get_args(types.LoggingLevel)
LOGS = [
    {"method": "notifications/message", "params": {"level": level, "data": [level]}}
    for level in LEVELS
]


class Ear:
    """A client's callbacks, of those with `able` in their names, and all they heard.

    The `_meta` of a request may hold the answer that it gets, "never" for none.
    """

    def __init__(self, able: str = "") -> None:
        self.heard: list[Any] = []
        self.asked = anyio.Event()
        self.withdrawn = anyio.Event()
        sampled = types.CreateMessageResultWithTools
        tools = types.SamplingCapability(tools=types.SamplingToolsCapability())
        callbacks = {
            "elicitation_callback": self._answer(types.ElicitResult, ACCEPTED),
            "sampling_callback": self._answer(sampled, SAMPLED),
            "list_roots_callback": self._answer(types.ListRootsResult, ROOTS),
            "sampling_capabilities": tools,
        }
        able_to = {name: each for name, each in callbacks.items() if able in name}
        self.callbacks: dict[str, Any] = {"message_handler": self._listen} | able_to

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


async def raw_call(client: Client, tool: str, given: Any = None, **params: Any) -> Any:
    """The wire result of a tool of `a` without what is in all of 2026, or the error."""
    names = BOX | {"tool_name": f"box__a__{tool}"}
    params |= {"name": "use_tool", "arguments": names | {"arguments": given or {}}}
    request = types.Request[Any, str](method="tools/call", params=params)
    kind: Any = TypeAdapter(dict[str, Any])
    try:
        result = await client.session.send_request(request, kind)
    except MCPError as error:
        return {"error": dumped(error.error)}
    result.pop("resultType", None)
    result.get("_meta", {}).pop(f"{RESERVED}serverInfo", None)
    if result.get("_meta") == {}:
        del result["_meta"]
    return result


async def answer_of(client: Client, tool: str, given: Any = None, **more: Any) -> Any:
    result = await raw_call(client, tool, given, **more)
    return json.loads(result["content"][0]["text"])


def hearing(mode: str, ear: Ear, folder: Path | None = None, **servers: Any) -> Any:
    """A client with an ear; one of 2026, given a folder, is that of a process."""
    config = configuration(**servers)
    # In memory it would send no cancelling, and hear of no progress.
    if folder is not None and mode == "auto":
        return connected_process(config, folder, mode, **ear.callbacks)
    return connected(config, mode, **ear.callbacks)


OWN_SERVERS = {
    "both": entry("eras", f"{OLDER} {MODERN}"),
    "older": entry("eras", OLDER),
    "modern": entry("eras", MODERN),
}
# A client's mode and a server's eras. Between the last two the workbench translates.
PAIRS = [("legacy", "both"), ("auto", "both"), ("legacy", "modern"), ("auto", "older")]
in_all_pairs = pytest.mark.parametrize(("mode", "server"), PAIRS)


async def test_a_server_of_the_newer_era_may_refuse_initialize_in_five_ways() -> None:
    answers = "answer(request, initialized() | {'protocolVersion': MODERN})"
    initialize = f"Eras.initialize = lambda _, request: {answers}; eras(MODERN)"
    servers = {"answers": runs(initialize)}
    for code in (-32022, -32601, -32600, -32602, -32603):
        servers[str(code)] = entry("eras", MODERN, code)
    async with connected(configuration(**servers)) as client:
        answer = await open_box(client)
    assert answer["servers_connected"] == 5
    assert "refused as asked" in answer["servers_failed"]["-32603"]


@in_all_pairs
async def test_meta_goes_down_except_what_is_of_one_hop(mode: str, server: str) -> None:
    own = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "a.b/c": {"x": [None]}}
    own |= {"progressTokens": "a", f"my.{RESERVED}x": "b"}  # no names of the protocol
    hop = {f"{RESERVED}logLevel": "debug", f"{RESERVED}x": 1, "progressToken": "me"}
    async with hearing(mode, Ear(), a=OWN_SERVERS[server]) as client:
        seen = await answer_of(client, "seen", _meta=own | hop)
    passed_on = seen["_meta"]
    assert passed_on.pop("progressToken") != "me"
    if seen["era"] == MODERN:
        for name in ("clientCapabilities", "clientInfo", "protocolVersion"):
            del passed_on[RESERVED + name]
    assert passed_on == own


ANNOTATIONS = {"audience": ["user"], "priority": 0.5}
TEXT_FILE = {"uri": "file:///t", "mimeType": "text/plain"}
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "Größe 😀 \u2028 \x00 漢字"},
    {"type": "text", "text": "", "annotations": ANNOTATIONS, "_meta": {"x": [None]}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource", "resource": TEXT_FILE | {"text": "é", "_meta": {"x": 1}}},
    {"type": "resource", "resource": TEXT_FILE | {"blob": "aGk="}},
    TEXT_FILE | {"type": "resource_link", "name": "t", "title": "T", "size": 5},
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


@in_all_pairs
async def test_a_result_comes_as_the_server_sent_it(mode: str, server: str) -> None:
    async with hearing(mode, Ear(), a=OWN_SERVERS[server]) as client:
        for result in RESULTS:
            assert await raw_call(client, "result", result) == result
        if mode == "legacy" and server == "modern":  # older eras have objects alone
            odd = {"content": [PARIS], "structuredContent": [1, None]}
            assert await raw_call(client, "result", odd) == {"content": [PARIS]}


def progress(label: str, **token: Any) -> list[dict[str, Any]]:
    texts = [f"{label} {number}" for number in range(1, 101)]
    told = [{"progress": n, "message": each} | token for n, each in enumerate(texts, 1)]
    return [{"method": "notifications/progress", "params": each} for each in told]


@in_all_pairs
async def test_progress_comes_in_order_under_the_callers_token_before_the_result(
    mode: str, server: str, tmp_path: Path
) -> None:
    ear = Ear()

    async def call(token: str | int) -> None:
        given = {"messages": progress(f"of {token}"), "calls": 2}
        await raw_call(client, "say", given, _meta={"progressToken": token})
        own = [each for each in ear.heard if each["params"]["progressToken"] == token]
        assert own == progress(f"of {token}", progressToken=token)

    async with hearing(mode, ear, tmp_path, a=OWN_SERVERS[server]) as client:
        await asyncio.gather(call("mine"), call(0))
        await raw_call(client, "say", {"messages": LOGS[:1]})
    if mode == "auto":  # such a client has to ask for logs, request by request
        assert LOGS[0] not in ear.heard


@ERAS
async def test_cancelled_calls_leave_nothing_behind(mode: str, tmp_path: Path) -> None:
    async def call(number: int) -> None:
        with anyio.move_on_after(number * 37 % 100 * 0.003):  # seconds, in no order
            await raw_call(client, "wait", {"number": number})

    async with hearing(mode, Ear(), tmp_path, a=OWN_SERVERS["both"]) as client:
        await open_box(client)
        before = len(asyncio.all_tasks())
        seen = await answer_of(client, "seen")
        while not seen["started"]:
            await asyncio.gather(*map(call, range(100)))
            seen = await answer_of(client, "seen")
        while sorted(seen["started"]) != sorted(seen["cancelled"]):
            seen = await answer_of(client, "seen")
        await until(lambda: len(asyncio.all_tasks()) <= before)


MESSAGE = {"role": "user", "content": PARIS}
SAMPLING = {"messages": [MESSAGE], "maxTokens": 9, "tools": [tool("t")], "metadata": {}}
USED = {"type": "tool_use", "id": "1", "name": "t", "input": {"a": [1, None]}}
ASLEEP = {"code": -7, "message": "Asleep", "data": {"why": 1}}
QUESTIONS: list[tuple[str, dict[str, Any], Any]] = [  # and the client's answers
    ("elicitation/create", FORM, ACCEPTED),
    ("elicitation/create", FORM, ASLEEP),
    ("elicitation/create", FORM, {"action": "cancel"}),
    ("elicitation/create", SIGN_IN, {"action": "decline"}),
    ("sampling/createMessage", SAMPLING, SAMPLED),
    ("sampling/createMessage", SAMPLING, {**SAMPLED, "content": [USED]}),
    ("roots/list", {}, ROOTS),
    ("roots/list", {}, ASLEEP),
]


async def test_a_servers_question_reaches_the_client_and_the_answer_goes_back() -> None:
    ear = Ear()
    async with hearing("legacy", ear, a=OWN_SERVERS["both"]) as client:
        for method, params, answer in QUESTIONS:
            ear.heard.clear()
            asked = {**params, "_meta": {"answer": answer}}
            given = {"method": method, "params": asked}
            assert await answer_of(client, "ask", given) == answer
            assert ear.heard == [asked]
        which = {"elicitationId": "e"}
        end = {"method": "notifications/elicitation/complete", "params": which}
        await raw_call(client, "say", {"messages": [end]})
        assert ear.heard[-1] == end


async def test_an_older_client_is_asked_all_questions_round_after_round() -> None:
    ear = Ear()
    asked: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for number, (method, params, answer) in enumerate(QUESTIONS):
        if answer != ASLEEP:
            params = {**params, "_meta": {"answer": answer}}
            params.pop("elicitationId", None)  # 2026-07-28 has none
            asked[str(number)] = {"method": method, "params": params}
            answers[str(number)] = answer
    questions = {"inputRequests": asked}
    given = {"rounds": [questions, {}, {}, questions]}  # an empty one wants time
    async with hearing("legacy", ear, a=OWN_SERVERS["modern"]) as client:
        await raw_call(client, "rounds", given, _meta={"progressToken": "mine"})
        seen = await answer_of(client, "seen")
    assert seen["responses"] == [None, answers, None, None, answers]
    told = [each["params"]["progress"] for each in ear.heard if "method" in each]
    assert told == [*range(5)]
    urls = [each for each in ear.heard if each.get("mode") == "url"]
    assert all(each["elicitationId"] for each in urls)  # older clients need one


def question(answer: Any, **more: Any) -> dict[str, Any]:
    return ELICIT | {"params": FORM | {"_meta": {"answer": answer}}} | more


def asking(answer: Any) -> dict[str, Any]:
    return {"inputRequests": {"who": question(answer)}}


async def test_a_client_of_2026_answers_the_rounds_of_its_call_itself() -> None:
    ear = Ear()
    answers = {"who": ACCEPTED}
    given = {"rounds": [asking(ACCEPTED), {}, asking(ACCEPTED)]}
    async with hearing("auto", ear, a=OWN_SERVERS["modern"]) as client:
        assert json.loads(text(await use(client, "a", "rounds", given))) == answers
        seen = await answer_of(client, "seen")
    assert seen["responses"] == [None, answers, None, answers]
    assert [each["message"] for each in ear.heard] == ["Who?", "Who?"]


async def test_a_round_that_cannot_be_answered_is_an_error_of_the_call() -> None:
    two = {"x": question(ASLEEP), "y": question(ACCEPTED)}
    for able, round_of, why in (
        ("roots", asking(ACCEPTED), "elicitation"),
        ("", {"inputRequests": two}, "Asleep"),
        ("", {"inputRequests": {"x": {"method": "no/such"}}}, "not valid MCP: "),
    ):
        async with hearing("legacy", Ear(able), a=OWN_SERVERS["modern"]) as client:
            told = await error_of(client, "a", "rounds", {"rounds": [{}, round_of]})
            seen = await answer_of(client, "seen")
        assert why in told and seen["responses"] == [None, None]


def test_an_invalid_answer_of_a_client_is_an_error_of_the_call(tmp_path: Path) -> None:
    with Wire(tmp_path, a=OWN_SERVERS["modern"]) as wire:
        wire.initialize(elicitation={})
        call = wire.begin_use("a", "rounds", rounds=[asking(ACCEPTED)])
        asked = json.loads(wire.process.stdout.readline())
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"foo": 1}}
        wire.write(json.dumps(answer).encode() + b"\n")
        assert "not valid MCP: action: " in wire.text(call)


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_question_ends_with_its_call(is_dead: bool) -> None:
    ear = Ear()
    given = {"rounds": [asking("never")]}
    async with hearing("legacy", ear, a=OWN_SERVERS["modern"]) as client:
        pid = (await answer_of(client, "seen"))["pid"]
        call = asyncio.ensure_future(use(client, "a", "rounds", given))
        await ear.asked.wait()
        if is_dead:
            os.kill(pid, signal.SIGKILL)
            assert "SIGKILL" in text(await call)
        call.cancel()
        await ear.withdrawn.wait()
        assert ((await answer_of(client, "seen"))["pid"] != pid) == is_dead


async def test_a_question_beyond_a_hundred_open_ones_is_refused() -> None:
    """Repeated, one is asked once; one that is taken back is not open."""
    never = {"_meta": {"answer": "never"}}
    messages = [{"id": "2", "method": "roots/list", "params": never}] * 2
    for number in range(1000, 1000 + workbench.MAX_QUESTIONS):
        over = {"requestId": f"ask {number}"}
        messages.append(question("never", id=over["requestId"]))
        messages.append({"method": "notifications/cancelled", "params": over})
    ear = Ear()
    async with hearing("legacy", ear, a=OWN_SERVERS["both"]) as client:
        await raw_call(client, "say", {"messages": messages})
        for _ in range(workbench.MAX_QUESTIONS):
            assert await answer_of(client, "ask", question(ASLEEP)) == ASLEEP
        assert await answer_of(client, "ask", ELICIT) == ACCEPTED
        await raw_call(client, "say", {"messages": messages[2::2] + messages[:1]})
        assert "open requests" in (await answer_of(client, "ask", ELICIT))["message"]
    assert ear.heard.count(never) == 1


async def test_an_older_server_that_asks_a_client_of_2026_gets_an_error() -> None:
    async with hearing("auto", Ear(), a=OWN_SERVERS["older"]) as client:
        assert "code" in await answer_of(client, "ask", ELICIT)


async def test_a_server_is_offered_what_the_client_declared() -> None:
    """It is spoken to in its client's era if it can."""
    for mode, able, offered in (
        ("legacy", "nothing", {}),
        ("legacy", "roots", {"roots": {"listChanged": True}}),
        ("legacy", "elicitation", {"elicitation": {"form": {}, "url": {}}}),
        ("legacy", "sampling_callback", {"sampling": {}}),
        ("legacy", "sampling", {"sampling": {"tools": {}}}),
        ("auto", "sampling", {"sampling": {"tools": {}}}),
    ):
        async with hearing(mode, Ear(able), a=OWN_SERVERS["both"]) as client:
            seen = await answer_of(client, "seen")
        assert (seen["era"] == MODERN) == (mode == "auto")
        assert "progressToken" not in seen["_meta"]  # nor has the client sent one
        told = seen["_meta"] if mode == "auto" else seen
        assert told[CAPABILITIES] == offered, able


async def test_a_server_that_died_is_spoken_to_in_its_era_again() -> None:
    async with opened("auto", a=OWN_SERVERS["both"]) as client:
        first = await answer_of(client, "seen")
        os.kill(first["pid"], signal.SIGKILL)
        await until(lambda: not is_alive(first["pid"]))
        assert (await answer_of(client, "seen"))["era"] == first["era"] == MODERN


@pytest.mark.parametrize(("declared", "mode"), [({}, "form"), ({"url": {}}, "url")])
async def test_an_elicitation_mode_that_the_client_lacks_is_an_error(
    declared: Any, mode: str, monkeypatch: Monkey
) -> None:
    capabilities = types.ClientCapabilities.model_validate({"elicitation": declared})
    monkeypatch.setattr(ClientSession, "_build_capabilities", lambda *_: capabilities)
    ear = Ear()
    async with hearing("legacy", ear, a=OWN_SERVERS["older"]) as client:
        form = await answer_of(client, "ask", ELICIT)
        url = await answer_of(client, "ask", {**ELICIT, "params": SIGN_IN})
    assert ("code" in form) == (mode == "url")
    assert ("code" in url) == (mode == "form")
    assert [each["mode"] for each in ear.heard] == [mode]


async def test_changed_roots_are_told_to_every_server_that_is_up_and_older() -> None:
    ear = Ear()
    older, newer = OWN_SERVERS["older"], OWN_SERVERS["modern"]
    async with hearing("legacy", ear, x=MISSING, a=newer, b=older, c=older) as client:
        await open_box(client)
        await client.session.send_notification(types.RootsListChangedNotification())
        await until(lambda: len(ear.heard) == 2)
        await answer_of(client, "seen")  # what `a` had said would have come before it
    assert [each["params"]["data"] for each in ear.heard] == ["roots changed"] * 2


async def test_an_older_client_gets_logs_from_the_level_it_sets(log: Logs) -> None:
    ear = Ear()
    async with hearing("legacy", ear, a=OWN_SERVERS["both"]) as client:
        await raw_call(client, "say", {"messages": LOGS})
        assert ear.heard == LOGS
        for number, level in enumerate(LEVELS):
            ear.heard.clear()
            request = types.SetLevelRequest.model_validate({"params": {"level": level}})
            await client.session.send_request(request, types.EmptyResult)
            await raw_call(client, "say", {"messages": LOGS})
            assert ear.heard == LOGS[number:]
    own = [each.levelname for each in log.records if "'alert'" in each.getMessage()]
    assert own == ["DEBUG"] * (1 + len(LEVELS))  # our own log has them all


# === Transports: a server process =====================================================


async def test_a_variable_reaches_only_servers_that_set_it(monkeypatch: Monkey) -> None:
    for name in ("TOKEN", "ARG", "OFF", "NOTE", "TYPO", "BOX"):
        monkeypatch.setenv(f"WB_{name}", "x")
    get = "serve_raw(tool('get'), tools_call=lambda _: json_result(dict(os.environ)))"
    config = configuration(
        named=entry("scripted", get, env={"WB_TOKEN": "${WB_TOKEN}", "HOME": "/its"}),
        renamed=entry("scripted", get, env={"WB_OTHER": "${WB_TOKEN:-}"}),
        argument=entry("scripted", get, "${env:WB_ARG:-} ${HOME} ${PATH}"),
        off=entry("scripted", get, "${WB_OFF}", disabled=True),
        none=entry("scripted", get, _note="${WB_NOTE}"),
        misspelt=entry("plain", environment={"X": "${WB_TYPO}"}),
    )
    config["toolboxes"]["box"]["description"] = "Box ${WB_BOX}"
    expected = {"named": "WB_TOKEN", "renamed": "WB_OTHER", "argument": "", "none": ""}
    async with connected(config) as client:
        for server, its_own in expected.items():
            variables = json.loads(text(await use(client, server, "get")))
            assert variables.keys() >= {"HOME", "PATH"}
            seen = {name for name in variables if name.startswith("WB_")}
            assert seen == {"WB_NOTE", *its_own.split()}  # a comment refers to nothing
            assert (variables["HOME"] == "/its") == (server == "named")


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) // 1000


SAME_QUESTION = '{"jsonrpc":"2.0","id":"%s","method":"ping"}' % ("x" * 30_000)
FAULTS = {  # when a server does what wrong: what a call answers (a pattern), if it does
    ("tools_list", "exits"): "not seen the call: exited with status 3.*boom",
    ("initialize", "answers nonsense"): "not seen the call: .*not valid.*capabilities",
    ("tools_call", "asks and exits"): "^Error executing tool .*exited with status 3",
    ("tools_call", "closes stdout"): "^Error executing tool .*closed its stdout",
    ("tools_call", "writes garbage"): "^\ufffd$",
    ("tools_call", "writes a huge line"): "^answered$",
    ("start", "hangs"): "",
    ("initialize", "hangs"): "",
    ("tools_list", "hangs"): "",
    ("tools_call", "answers half"): "",
    ("start", "repeats y on stdout"): "",
    ("start", "repeats y on stderr"): "",
    ("tools_call", f"repeats {SAME_QUESTION} on stdout"): "",
}


def test_a_fault_costs_only_its_server(tmp_path: Path) -> None:
    """And what it writes without end, only its own time."""
    servers: dict[str, Any] = {" ".join(fault)[:30]: fault for fault in FAULTS}
    with Wire(tmp_path, stdio={"stderr": PIPE}, **servers) as wire:
        wire.initialize(roots={}).use("good")
        before = peak_memory(wire.process.pid)
        calls = {server: wire.begin_use(server) for server in servers}
        for server, fault in servers.items():
            if FAULTS[fault]:
                assert re.search(FAULTS[fault], wire.text(calls[server])), server
        wire.hanging(8)  # those without an answer, and the one that closed stdout
        moments = [time.monotonic()]
        while moments[-1] < moments[0] + 1:  # second
            assert wire.still_serves()
            moments.append(time.monotonic())
        assert len(moments) > 2  # whatever else the machine does
        assert peak_memory(wire.process.pid) < before + 30
        assert wire.answers.keys() == {None}  # only its questions are taken back
        wire.end("SIGTERM")
        assert wire.status() == 0


async def test_a_server_that_closes_its_stdin_is_replaced(monkeypatch: Monkey) -> None:
    deaf = """
def call(request):
    os.close(0)
    send({"id": request["id"], "result": text_result(str(os.getpid()))})
    signal.pause()
serve_raw(tool(), tools_call=call)"""
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.1)
    async with opened(a=runs(deaf)) as client:
        first = int(text(await use(client, "a", "echo")))
        assert int(text(await use(client, "a", "echo"))) != first


# === Transports: a remote endpoint over HTTP ==========================================


@asynccontextmanager
async def listening(port: int = 0) -> AsyncIterator[int]:
    """A changing server at this port, which hangs up on all its clients in the end."""
    app = changing_server().streamable_http_app()
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", port))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        yield listener.getsockname()[1]
        server.should_exit = True


@pytest.fixture
async def server(monkeypatch: Monkey) -> AsyncIterator[Remote]:
    monkeypatch.setattr(workbench, "LAST_WORDS", 0.5)
    server = Remote()
    server.listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    yield server
    server.listener.close()


def opened_at(server: Remote, *names: str, **more: Any) -> Any:
    """A client with an open box of this server at several paths, which name it."""
    servers = {name: server.at(f"/{name}", **more) for name in names}
    return opened(**servers)


async def test_a_remote_server_announces_changes_in_both_eras(log: Logs) -> None:
    async with listening() as port:
        for mode, version in (("legacy", OLDER), ("auto", MODERN)):
            log.clear()
            async with opened(mode, a=remote(port)) as client:
                assert text(await use(client, "a", "era")) == version
                while "1 added" not in log.text:  # its stream may not be open at once
                    await become(client, tool(mode))


async def test_a_remote_result_may_have_megabytes(server: Remote) -> None:
    """Over SSE, where the SDK takes one, more of them are an error of the call."""
    server.answers["1 MB"] = text_result("x" * 1_000_000)
    server.answers["5 MB"] = text_result("x" * 5_000_000)
    async with opened_at(server, "mcp", "stream", "sse") as client:
        for name in ("mcp", "stream"):
            assert len(text(await use(client, name, "5 MB"))) == 5_000_000
        assert "1,048,576 bytes" in await error_of(client, "sse", "5 MB")
        assert len(text(await use(client, "sse", "1 MB"))) == 1_000_000


async def test_headers_go_with_every_request_and_redirect(server: Remote) -> None:
    headers = {"Authorization": "Bearer ${WB_NONE:-sesame-open}"}
    async with opened_at(server, "mcp", "sse", "moved", headers=headers) as client:
        for name in ("mcp", "sse", "moved"):
            assert text(await use(client, name, "ok")) == "ok"
    assert server.seen == {"bearer sesame-open"}


async def test_a_remote_call_may_be_silent(server: Remote, monkeypatch: Monkey) -> None:
    send = httpx2.AsyncClient.send

    async def watch(self: Any, request: httpx2.Request, **options: Any) -> Any:
        if b'"id"' in request.content or request.method == "GET":
            timeout = request.extensions["timeout"]
            assert timeout["read"] is None and timeout["write"] is None
        response = await send(self, request, **options)
        tcp = response.extensions["network_stream"].get_extra_info("socket")
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in (("IDLE", 30), ("INTVL", 10), ("CNT", 3)):  # 60 seconds
            option = getattr(socket, f"TCP_KEEP{name}")
            assert tcp.getsockopt(socket.IPPROTO_TCP, option) == value
        return response

    async def say_half(request: dict[str, Any], stream: Any) -> bytes:
        answer = response(200, {"id": request["id"], "result": text_result("slow")})
        stream.write(answer[:-1])
        await anyio.sleep(3 * workbench.HTTP_TIMEOUT)
        return answer[-1:]

    async def refuse_half(_: Any, stream: Any) -> None:
        stream.write(response(500, "Oh no")[:-1])
        await anyio.sleep_forever()

    monkeypatch.setattr(httpx2.AsyncClient, "send", watch)
    server.answers.update(slow=say_half, endless=refuse_half)
    async with opened_at(server, "mcp", "sse") as client:
        for name in ("mcp", "sse"):
            assert text(await use(client, name, "ok")) == "ok"
        monkeypatch.setattr(workbench, "HTTP_TIMEOUT", 0.1)
        assert text(await use(client, "mcp", "slow")) == "slow"
        assert "HTTP 500" in await error_of(client, "mcp", "endless")


# What a request that fails in one of these ways is told with, as a pattern. A server
# that has any of them at its path does not connect.
REFUSED = {
    "401": "HTTP 401.*headers",
    "403": "HTTP 403.*headers",
    "404": "HTTP 404",
    "500": "HTTP 500",
    "events": "HTTP 500",
    "full": r"session 7 is +full.* \(HTTP 400",
    "elsewhere": "HTTP 307",
    "page": "HTTP 302",
    "loop": "HTTP 308",
    "html": "text/html",
}
REFUSED |= dict.fromkeys(("deep", "unreadable", "ended", "cut", "closed"), r"\w")


@ERAS
async def test_a_remote_server_that_does_not_connect_says_why_in_one_line(
    mode: str, server: Remote, monkeypatch: Monkey
) -> None:
    """The line has the URL and no secret; servers that work are not disturbed."""
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 60)
    here = server.at("")["url"]
    server.endpoint = here.replace("http:", "https:") + "/messages"
    reasons = {f"http {here}/{fault}": why for fault, why in REFUSED.items()}
    if mode == "legacy":
        reasons["http http://127.0.0.1:1/mcp"] = "refused"
        reasons["http http://no-such-host.invalid/mcp"] = "the host is not found"
        for fault in ("401", "403", "500", "cut"):
            reasons[f"sse {here}/{fault}"] = REFUSED[fault]
        for path in ("foreign", "sse"):
            reasons[f"sse {here}/{path}"] = "another origin"
        reasons[f"sse {here}/ended"] = "closed its event stream"
    servers = {"works": server.at()}
    for name in reasons:
        transport, url = name.split()
        servers[name] = {"transport": transport, "url": f"{url}?key=sesame"}
        servers[name]["headers"] = {"Authorization": "open-sesame"}
    async with connected(configuration(**servers), mode) as client:
        told = (await open_box(client))["servers_failed"]
    assert told.keys() == reasons.keys()
    for name, why in told.items():
        url = name.split()[1]
        assert url in why and "sesame" not in why and why.isprintable()
        assert re.search(reasons[name], why.replace(url, "")), why


async def test_a_silent_server_is_given_up(server: Remote, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "HTTP_TIMEOUT", 0.2)
    url = server.at()["url"].replace("http:", "https:")  # nobody shakes hands there
    assert "within 0.2 seconds" in await why_it_fails({"url": url, "type": "sse"})
    monkeypatch.setattr(workbench, "CONNECT_TIMEOUT", 0.5)
    assert "within 0.5 seconds" in await why_it_fails(server.at("/hang"))


async def test_a_request_that_fails_costs_only_its_own_call(server: Remote) -> None:
    async with opened(a=server.at()) as client:
        siblings = asyncio.ensure_future(at_once(3, lambda: use(client, "a", "wait")))
        await until(lambda: server.calls.count("wait") == 3)
        for fault, why in REFUSED.items():
            if fault == "404":
                continue  # it means that the session is lost
            failed = await error_of(client, "a", fault)
            assert re.fullmatch(f".*{why}.*", failed), failed
            is_known = fault in ("401", "403", "full", "elsewhere", "page", "loop")
            assert ("not repeated" in failed) != is_known
            assert ("answered with error" in failed) == (fault == "full")
            assert server.at()["url"] in failed or fault == "full"
            assert server.calls.count(fault) == 1
        server.released.set()
        for sibling in await siblings:
            assert text(sibling) == "released"


async def test_a_failure_over_sse_is_told_and_mended(server: Remote) -> None:
    async with opened(a=server.at("/sse")) as client:
        for fault in ("500", "closed"):
            assert re.match(f".*{REFUSED[fault]}", await error_of(client, "a", fault))
            assert text(await use(client, "a", "ok")) == "ok"
        calling = asyncio.ensure_future(use(client, "a", "wait"))
        await until(lambda: "wait" in server.calls)
        server.stream.close()
        assert "may have taken effect" in text(await calling)
        assert text(await use(client, "a", "ok")) == "ok"


@pytest.mark.parametrize("how", ["LF", "CR", "gzip"])
async def test_an_event_is_read_while_the_stream_is_open(how: str, server: Any) -> None:
    """However its lines end, compressed, and as UTF-8 whatever PHP says it is."""

    async def speak(request: dict[str, Any], stream: Any) -> None:
        result = json.dumps(text_result("Größe"), ensure_ascii=False)
        said = event(f'{{"jsonrpc": "2.0", "id": {request["id"]}, "result": {result}}}')
        if how == "gzip":
            gzip = zlib.compressobj(wbits=31)
            said = gzip.compress(said) + gzip.flush(zlib.Z_SYNC_FLUSH)
            head = STREAM.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        else:
            head = STREAM.replace(b"event-stream", b"event-stream; charset=ISO-8859-1")
        if how == "CR":  # and a comment, so that the last one is no half of CRLF
            said = said.replace(b"\n", b"\r") + b":\r"
        stream.write(head + said)
        await anyio.sleep_forever()

    server.answers["speak"] = speak
    async with opened_at(server, "mcp") as client:
        assert text(await use(client, "mcp", "speak")) == "Größe"


async def test_a_spoilt_answer_is_no_silence_over_any_transport(server: Remote) -> None:
    """An error of the call, or for half a surrogate pair another character."""
    half = text_result("a\ud83d, \ude00😀")
    server.answers.update(neither=None, half=half)
    async with opened_at(server, "mcp", "stream", "sse") as client:
        for name in ("mcp", "stream", "sse"):
            assert "not valid MCP" in text(await use(client, name, "neither"))
            assert text(await use(client, name, "half")) == "a\ufffd, \ufffd😀"
    local = runs(f"serve_raw(tool('half'), tools_call=lambda _: {half})")
    async with opened(local=local) as client:
        assert text(await use(client, "local", "half")) == "a\ufffd, \ufffd😀"


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_call_whose_events_can_be_resumed_ends_when_its_server_stays_dead(
    is_silent: bool, server: Remote, monkeypatch: Monkey
) -> None:
    async def die(*_: Any) -> bytes:
        monkeypatch.setattr(workbench, "HTTP_TIMEOUT", 0.1)
        if is_silent:
            monkeypatch.setattr(server, "respond", server.wait)
        else:
            server.listener.close()
        return STREAM + b"id: 1\nretry: 10\ndata: \n\n"

    server.answers["die"] = die
    async with opened_at(server, "mcp") as client:
        assert await error_of(client, "mcp", "die")


async def test_a_server_without_a_get_stream_is_listed_anew(server: Remote) -> None:
    names = ("mcp?404", "mcp?405", "mcp?429")  # which a GET is answered with
    async with opened_at(server, *names) as client:
        server.answers["seen"] = text_result("new")
        shown = await shown_names(client)
        server.answers["used"] = text_result("new")
        for name in names:
            assert f"box__{name}__seen" in shown
            assert text(await use(client, name, "used")) == "new"
    assert server.calls.count("initialize") == 3  # so no session was taken for lost


async def test_many_silent_calls_leave_no_connection_open(server: Remote) -> None:
    async with opened_at(server, "mcp", "stream") as client:
        before = server.connections
        async with anyio.create_task_group() as calls:
            for name in ["mcp"] * 110 + ["stream"] * 10:
                calls.start_soon(use, client, name, "wait")
            await until(lambda: server.calls.count("wait") == 120, 20)
            assert text(await use(client, "mcp", "ok")) == "ok"
            calls.cancel_scope.cancel()
        await until(lambda: server.connections <= before, 20)
    assert "workbench/abort" not in server.calls  # which is our own affair


async def test_a_remote_server_gets_the_answer_to_its_question(server: Remote) -> None:
    async def ask(request: dict[str, Any], stream: Any) -> bytes:
        stream.write(STREAM + event({**ELICIT, "id": "question"}))
        return event({"id": request["id"], "result": json_result(await answered)})

    async def take(answer: dict[str, Any], _: Any) -> bytes:
        answered.set_result(answer["result"])
        return response(202)

    answered = asyncio.get_running_loop().create_future()
    server.answers.update(ask=ask, question=take)
    async with hearing("legacy", Ear(), a=server.at()) as client:
        assert json.loads(text(await use(client, "a", "ask"))) == ACCEPTED


async def test_a_json_body_is_the_answer_whatever_its_id(server: Remote) -> None:
    error = {"code": 7, "message": "no luck"}
    server.answers["result"] = response(200, {"id": 9, "result": text_result("good")})
    server.answers["error"] = response(200, {"id": None, "error": error})
    server.answers["none"] = response(200, {"id": None, "method": "x"})
    async with opened_at(server, "mcp") as client:
        assert text(await use(client, "mcp", "result")) == "good"
        assert "7: no luck" in text(await use(client, "mcp", "error"))
        assert "HTTP 200" in text(await use(client, "mcp", "none"))


@pytest.mark.parametrize("end", ["answered", "cancelled", "cut"])
async def test_a_question_ends_with_its_remote_call(end: str, server: Remote) -> None:
    async def ask(request: dict[str, Any], stream: Any) -> bytes:
        stream.write(STREAM + event(question("never", id="q")))
        await ear.asked.wait()
        if end == "cancelled":
            await until(lambda: "notifications/cancelled" in server.calls)
            over = {"method": "notifications/cancelled", "params": {"requestId": "q"}}
            stream.write(event(over))
            await anyio.sleep_forever()
        if end == "cut":
            return b""
        return event({"id": request["id"], "result": text_result("answered")})

    server.answers["ask"] = ask
    ear = Ear()
    async with hearing("legacy", ear, a=server.at()) as client:
        call = asyncio.ensure_future(use(client, "a", "ask"))
        await ear.asked.wait()
        if end == "cancelled":
            call.cancel()
        else:
            assert (text(await call) == "answered") == (end == "answered")
        await ear.withdrawn.wait()


async def test_a_forgotten_session_is_replaced(server: Remote) -> None:
    async with opened(a=server.at()) as client:
        before = resources()
        for session, stale in enumerate(("404", "400", "unauthorized", "error"), 2):
            server.session, server.stale = str(session), stale
            for result in await at_once(9, lambda: use(client, "a", "ok")):
                assert text(result) == "ok", stale
        await leaves_nothing_behind(before)
    assert server.calls.count("ok") == 36
    assert server.calls.count("initialize") == 5
    assert server.calls.count("DELETE") == 1  # only the last is there to be ended


async def test_a_session_that_began_on_an_event_stream_is_ended(server: Remote) -> None:
    async with opened_at(server, "stream") as client:
        assert text(await use(client, "stream", "ok")) == "ok"
    assert server.calls.count("DELETE") == 1


async def test_a_session_of_a_tools_own_is_no_session_of_ours(server: Remote) -> None:
    """Its call is not sent again, nor is one where nobody can tell what was meant."""

    async def browse(request: dict[str, Any], _: Any) -> bytes:
        error = {"code": -32000, "message": "No browser session is open"}
        return response(status, {"id": request["id"], "error": error})

    server.answers.update(browse=browse, mute=response(400))
    server.answers["down"] = response(500, "There is no session store")
    refusals = [(400, response(202)), (404, response(202)), (400, response(400))]
    refusals.append((404, b""))  # the ping is not answered
    async with opened(a=server.at()) as client:
        for status, server.answers["ping"] in refusals:
            told = text(await use(client, "a", "browse"))
            assert "-32000: No browser session is open" in told
        for name in ("mute", "down"):
            server.answers["ping"] = server.answers[name]
            assert "HTTP " in text(await use(client, "a", name))
            assert server.calls.count(name) == 1
    assert server.calls.count("browse") == 4
    assert server.calls.count("initialize") == 1


async def test_a_call_without_a_session_is_not_sent_again(server: Remote) -> None:
    """Whatever its server calls one, and however it then refuses everything."""
    server.session = ""
    async with opened(a=server.at()) as client:
        for fault in ("404", "400"):
            server.answers["ping"] = HTTP_FAULTS[fault]
            assert f"HTTP {fault}" in text(await use(client, "a", fault))
            assert server.calls.count(fault) == 1
    assert server.calls.count("initialize") == 1


async def test_idle_connections_are_closed(server: Remote, monkeypatch: Monkey) -> None:
    """Servers close one after 5 seconds; a call just then would be lost."""

    async def hold(request: dict[str, Any], stream: Any) -> None:
        reply = {"id": request["id"], "result": text_result("held")}
        stream.write(response(200, reply, connection="keep-alive"))
        await anyio.sleep_forever()

    assert workbench._IDLE_TIMEOUT < 5
    monkeypatch.setattr(workbench, "_IDLE_TIMEOUT", 0)
    server.answers["hold"] = hold
    async with opened_at(server, "mcp") as client:
        assert text(await use(client, "mcp", "hold")) == "held"
        assert text(await use(client, "mcp", "ok")) == "ok"


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    urls = ("http://a.b/mcp", "https://a.b/mcp")
    plain, secure = [httpx2.Request("POST", url) for url in urls]
    assert workbench._may_follow(plain, secure)
    assert not workbench._may_follow(secure, plain)


async def test_a_late_listing_of_a_former_session_is_ignored(server: Remote) -> None:
    async def late(*_: Any) -> dict[str, Any]:
        old = await server.listing()
        server.answers["tools/list"] = server.listing
        server.answers["new"] = text_result("new")
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
        listings = server.calls.count("tools/list")
        assert text(await use(client, "a", "new")) == "new"
        assert server.calls.count("tools/list") == listings  # the name was known


@ERAS
async def test_a_remote_server_that_was_restarted_is_used_again(mode: str) -> None:
    async with listening() as port:
        pass
    async with connected(configuration(a=remote(port)), mode) as client:
        for _ in range(2):
            async with listening(port):
                assert text(await use(client, "a", "echo")) == "Echo: None"
        told = text(await use(client, "a", "echo"))
        assert "refused" in told and "not repeated" not in told
        async with listening(port):
            assert text(await use(client, "a", "echo")) == "Echo: None"


async def test_a_failure_names_its_remedy_where_one_is_known(server: Remote) -> None:
    server.answers["initialize"] = response(405)
    url = server.at()["url"]
    assert re.search('405.*"type": "sse"', await why_it_fails({"url": url}))
    assert "sse" not in await why_it_fails({"url": url, "type": "sse"})
    assert re.search("npx -y z.*'args'", await why_it_fails({"command": "npx -y z"}))
    assert "'args'" not in await why_it_fails(MISSING)


# === Built-in toolbox =================================================================


async def test_the_toolbox_has_exactly_the_tools_echo_and_time() -> None:
    async with Client(workbench.create_toolbox_server()) as client:
        echo, time = (await client.list_tools()).tools
    assert [echo.name, echo.title] == ["echo", "Echo Tool"]
    assert echo.description == "A simple tool that returns the text it was given."
    assert echo.input_schema["required"] == ["text"]
    assert [time.name, time.title] == ["time", "Time Tool"]
    assert "Returns the current server time" in str(time.description)
    assert list(time.input_schema["properties"]) == ["timezone"]
    assert "required" not in time.input_schema


async def call_toolbox(name: str, **arguments: Any) -> types.CallToolResult:
    async with Client(workbench.create_toolbox_server()) as client:
        return await client.call_tool(name, arguments)


async def test_echo_returns_its_text() -> None:
    for said in ("", " zwölf 🧰\n\0", "x" * 1_000_000):
        result = await call_toolbox("echo", text=said)
        assert text(result) == said and not result.is_error


async def test_input_that_does_not_conform_is_an_error_that_names_the_field() -> None:
    for name, arguments, field in (
        ("echo", {}, "text"),
        ("echo", {"text": 1}, "text"),
        ("echo", {"text": "a", "volume": "loud"}, "volume"),
        ("time", {"timezone": None}, "timezone"),
    ):
        result = await call_toolbox(name, **arguments)
        assert result.is_error and f"'{field}'" in text(result), arguments


def assert_is_now(shown: str, zone: datetime.tzinfo) -> None:
    moment = datetime.datetime.fromisoformat(shown)
    age = datetime.datetime.now(datetime.UTC) - moment
    assert datetime.timedelta() <= age < datetime.timedelta(minutes=1), zone
    assert shown == moment.astimezone(zone).isoformat(timespec="seconds")


async def test_time_knows_every_iana_zone_and_no_other() -> None:
    zones = zoneinfo.available_timezones()
    assert zones, "no zone data on this machine"
    no_zones = ["Mars/Phobos", "America", "../etc/passwd", "zone.tab"]
    async with Client(workbench.create_toolbox_server()) as client:
        for zone in zones:
            shown = text(await client.call_tool("time", {"timezone": zone}))
            assert_is_now(shown, zoneinfo.ZoneInfo(zone))
        for zone in no_zones + [".", "", "UTC\0", "x" * 5000]:
            result = await client.call_tool("time", {"timezone": zone})
            assert result.is_error and f"Unknown timezone {zone!r}" in text(result)


async def test_the_default_utc_needs_no_zone_data(monkeypatch: Monkey) -> None:
    def no_data(name: str) -> None:
        raise no_file(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", no_data)
    for no_file in (zoneinfo.ZoneInfoNotFoundError, IsADirectoryError):
        assert (await call_toolbox("time", timezone="Europe/Berlin")).is_error
    assert_is_now(text(await call_toolbox("time")), datetime.UTC)
    assert_is_now(text(await call_toolbox("time", timezone="UTC")), datetime.UTC)


# === Built-in toolbox: over HTTP ======================================================

MEDIA_TYPES = {"Content-Type": "application/json", "Connection": "close"}
MEDIA_TYPES |= {"Accept": "application/json, text/event-stream"}


class HttpToolbox(NamedTuple):
    process: subprocess.Popen[str]
    url: str
    port: int

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}
    ) -> http.client.HTTPResponse:
        """Send one HTTP request; the answer, whose body may still be coming."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body, {**MEDIA_TYPES, **headers})
        return connection.getresponse()

    def status(self, method: str, path: str, body: Any = None, **more: Any) -> int:
        with self.ask(method, path, body, **more) as response:
            return response.status

    def session(self) -> dict[str, str]:
        """Initialize a session of Streamable HTTP; the header that names it."""
        body = request_bytes("initialize", HANDSHAKE)
        with self.ask("POST", "/mcp", body) as response:
            return {"Mcp-Session-Id": response.headers["Mcp-Session-Id"]}


@contextmanager
def http_toolbox(address: str) -> Iterator[HttpToolbox]:
    """Run `--toolbox --http ADDRESS` and read its port from the log."""
    line = [sys.executable, workbench.__file__, "--toolbox", "--http", address]
    with subprocess.Popen(line, stderr=PIPE, text=True) as process:
        try:
            first = cast(Any, process.stderr).readline()
            found = re.search(r"http://\S+:(\d+)/mcp", first)
            assert found, first
            yield HttpToolbox(process, found[0], int(found[1]))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def toolbox() -> Iterator[HttpToolbox]:
    with http_toolbox("0") as running:
        yield running


PING = request_bytes("ping", {})


class SseSession:
    def __init__(self, toolbox: HttpToolbox) -> None:
        self.toolbox = toolbox
        self.stream = toolbox.ask("GET", "/mcp")
        self.close = self.stream.close
        self.first_event, self.endpoint = self.next_event()

    def next_event(self) -> list[str]:
        event, data, end = [self.stream.readline().decode() for _ in range(3)]
        assert not end.strip()
        return [event.partition(": ")[2].strip(), data.partition(": ")[2].strip()]

    def post(self, body: bytes) -> int:
        return self.toolbox.status("POST", self.endpoint, body)

    def result(self, method: str, params: dict[str, Any]) -> Any:
        """Post a request; the result that then comes on the stream."""
        assert self.post(request_bytes(method, params)) == 202
        event, data = self.next_event()
        assert event == "message"
        return json.loads(data)["result"]


def test_an_sse_session_needs_only_an_http_client(toolbox: HttpToolbox) -> None:
    with closing(SseSession(toolbox)) as session:
        assert session.stream.status == 200
        assert session.stream.headers.get_content_type() == "text/event-stream"
        assert session.first_event == "endpoint"
        assert re.fullmatch(r"/mcp/messages\?sessionId=[0-9a-f]{32}", session.endpoint)
        info = session.result("initialize", HANDSHAKE)["serverInfo"]
        assert info == {"name": "mcp-toolbox", "version": workbench.__version__}
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert session.post(json.dumps(done).encode()) == 202
        call = {"name": "echo", "arguments": {"text": "session_id="}}
        content = session.result("tools/call", call)["content"]
        assert content == [{"type": "text", "text": "session_id="}]


async def test_a_message_for_no_session_is_answered_400(toolbox: HttpToolbox) -> None:
    session = SseSession(toolbox)
    assert session.post(PING) == 202
    session.close()
    await until(lambda: session.post(PING) == 400)
    for query in ("", "?", "?sessionId=", "?sessionId=x", f"?sessionId={'0' * 32}"):
        assert toolbox.status("POST", f"/mcp/messages{query}", PING) == 400, query


def test_a_bad_request_gets_its_4xx_and_harms_no_session(toolbox: HttpToolbox) -> None:
    plain = {"Content-Type": "text/plain"}
    with closing(SseSession(toolbox)) as session:
        for path in ("/mcp", session.endpoint):
            for body in (b"", b"\xff", b'{"hello": "you"}', b"[" * 100_000):
                assert toolbox.status("POST", path, body) == 400, (path, body[:20])
                assert session.result("ping", {}) == {}
            assert toolbox.status("PUT", path, PING) == 405, path
            assert toolbox.status("POST", path, PING, headers=plain) in (400, 415)
            assert session.result("ping", {}) == {}


def test_a_streamable_http_session_ends_with_its_delete(toolbox: HttpToolbox) -> None:
    session = toolbox.session()
    assert toolbox.status("GET", "/mcp", headers=session) == 200
    assert toolbox.status("DELETE", "/mcp", headers=session) == 200
    assert toolbox.status("GET", "/mcp", headers=session) == 404


async def test_one_url_serves_every_client_at_once(toolbox: HttpToolbox) -> None:
    async def talk(transport: Any, mode: str, number: int) -> str:
        async with Client(transport, mode=mode) as client:
            for turn in range(3):
                said = f"{mode} cliént {number}, turn {turn}"
                assert text(await client.call_tool("echo", {"text": said})) == said
            return client.protocol_version

    talks = []
    for number in range(8):
        talks.append(talk(sse_client(toolbox.url), "legacy", number))
        talks.append(talk(toolbox.url, "legacy", number))
        talks.append(talk(toolbox.url, "auto", number))
    assert await asyncio.gather(*talks) == [OLDER, OLDER, MODERN] * 8


def test_on_loopback_every_route_refuses_foreign_names(toolbox: HttpToolbox) -> None:
    assert f"//127.0.0.1:{toolbox.port}/" in toolbox.url  # unless told otherwise
    for name in ("127.0.0.1", "localhost", "[::1]"):
        for host in (name, f"{name}:{toolbox.port}"):
            own = {"Host": host, "Origin": f"http://{host}"}
            assert toolbox.status("GET", "/mcp", headers=own) == 200, host
    for path in ("/mcp", "/mcp/", "/mcp/messages", "/unknown"):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            for name in ("evil.example", "127.0.0.1.evil.example"):
                assert toolbox.status(method, path, headers={"Host": name}) == 421
            for name in ("http://127.0.0.1.evil.example", "null"):
                assert toolbox.status(method, path, headers={"Origin": name}) == 403


async def test_bound_elsewhere_it_serves_its_own_names_and_no_foreign_origin() -> None:
    for address, host, origin, status in (
        ("0.0.0.0", "toolbox.example:80", "http://toolbox.example:80", 400),
        ("0.0.0.0", "toolbox.example", "https://toolbox.example", 400),
        ("0.0.0.0", "toolbox.example", "http://toolbox.example:81", 403),
        ("0.0.0.0", "toolbox.example", "null", 403),
        ("127.0.0.2", "127.0.0.2:80", "http://127.0.0.2:80", 400),
    ):
        app = httpx2.ASGITransport(workbench.toolbox_app(address))
        headers = {"Host": host, "Origin": origin}
        async with httpx2.AsyncClient(transport=app, headers=headers) as client:
            answer = await client.post("http://x/mcp/messages")  # 400: no session
        assert answer.status_code == status, headers


@pytest.mark.parametrize(
    ("address", "host", "signals", "warning"),
    [
        ("LOCALHOST:0", "localhost", "SIGINT", ""),
        ("0.0.0.0:0", "a.example", "SIGTERM SIGINT", ".*WARNING.*authentication.*\n"),
    ],
)
def test_a_signal_ends_it_with_status_0_while_streams_are_open(
    address: str, host: str, signals: str, warning: str
) -> None:
    with (
        http_toolbox(address) as running,
        closing(SseSession(running)) as session,
        running.ask("GET", "/mcp", headers=running.session() | {"Host": host}) as get,
        socket.create_connection(("127.0.0.1", running.port)) as half,
    ):
        assert get.status == 200
        # There is no body, which the HTTP server therefore waits for.
        half.sendall(b"POST /mcp HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9\r\n\r\n")
        assert session.result("ping", {}) == {}
        for name in signals.split():
            running.process.send_signal(getattr(signal, name))
        assert running.process.wait(20) == 0
        # Not `communicate`: what was read beside the first line is kept by the file.
        assert re.fullmatch(warning, cast(Any, running.process.stderr).read())


async def test_its_address_may_be_one_of_ipv6() -> None:
    with http_toolbox("[::1]:0") as running:
        assert "//[::1]:" in running.url
        async with Client(running.url) as client:
            assert text(await client.call_tool("echo", {"text": "Hi."})) == "Hi."


@pytest.mark.filterwarnings("ignore:unclosed")  # of a port that is no port
def test_a_bad_address_is_one_line(toolbox: HttpToolbox, caplog: Logs) -> None:
    for address in (f"127.0.0.1:{toolbox.port}", "", "nowhere", "70000", "127.0.0.1:"):
        caplog.clear()
        assert workbench.serve_http(address) == 1
        [line] = caplog.messages
        assert address in line and "\n" not in line


# === Running ==========================================================================


def test_a_bad_configuration_ends_the_program_before_it_starts_anything(
    tmp_path: Path, capsys: Capture, monkeypatch: Monkey
) -> None:
    """Not so the built-in toolbox, which needs none."""
    notes = tmp_path / "notes"
    config = configuration(good=entry("noted", notes), s={}, s2={})
    arguments = command(config, tmp_path, "--check")[2:]
    assert workbench.main(arguments) == 1
    assert not notes.exists()
    told = re.findall("(?m)^(.*?):", capsys.readouterr().err)
    assert told == [arguments[0], AT, f"{AT}2"]
    monkeypatch.setenv("WORKBENCH_CONFIG", arguments[0])
    monkeypatch.setattr(workbench, "run_until_signal", lambda *_: 0)
    assert workbench.main(["--toolbox"]) == 0


async def test_the_demo_is_served_and_says_what_it_is(tmp_path: Path) -> None:
    args = [workbench.__file__, "--verbose"]
    parameters = StdioServerParameters(command=sys.executable, args=args, cwd=tmp_path)
    call: Any = {"toolbox_name": "demo", "tool_name": "demo__toolbox__echo"}
    call["arguments"] = {"text": "Hi."}
    with (tmp_path / "stderr").open("w") as log:
        async with Client(stdio_client(parameters, errlog=log)) as client:
            assert text(await client.call_tool("use_tool", call)) == "Hi."
            told = client.instructions or ""
    logged = (tmp_path / "stderr").read_text()
    assert "demo (1 server)" in told and " INFO Serving demo" in logged
    for note in (told.splitlines()[-1], logged.splitlines()[0]):
        assert re.search("demo.*argument.*WORKBENCH_CONFIG", note)
    assert re.search(" DEBUG demo/toolbox.*: .*echo.*time", logged)
    assert "Ctrl-C" not in logged  # which is for a person


async def test_without_toolboxes_it_says_where_to_add_them(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"of-\xff-bytes")  # a path that is no text
    folder.mkdir()
    async with connected_process({"toolboxes": {}}, folder) as client:
        [opening, _] = await listed(client)
        instructions = client.instructions or ""
        assert text(await client.call_tool("open_toolbox", BOX)).endswith(": none")
    assert re.match("No toolboxes configured.*'toolboxes'.*-bytes/", instructions)
    assert "enum" not in opening["inputSchema"]["properties"]["toolbox_name"]
    assert "INFO Serving no toolboxes from /" in (folder / "stderr").read_text()


HOW = ".* mcp.* pip install 'mcp>=2.3,<3'.* uv run .*\n"
INTERRUPT = "event == 'import' and args[0] == 'mcp' and signal.raise_signal(2)"
FIRST_CONTACTS = {  # what is wrong; the exit status, what stderr tells
    "sys.version_info = (3, 10)": (1, r".*Python 3\.11 or newer.*\n"),
    "sys.modules['mcp'] = None": (1, HOW),  # there is no such package
    "sys.modules['mcp'] = signal": (1, HOW),  # one that lacks what newer ones have
    f"sys.addaudithook(lambda event, args: {INTERRUPT})": (-signal.SIGINT, ""),
}


def test_what_cannot_start_ends_in_a_sentence_or_in_silence() -> None:
    for code, (status, told) in FIRST_CONTACTS.items():
        run = f"import runpy, signal, sys; {code}; sys.argv.pop(0); "
        run += "runpy.run_path(sys.argv[0], run_name='__main__')"
        arguments = [sys.executable, "-c", run, workbench.__file__, "--help"]
        process = subprocess.run(arguments, stderr=PIPE, check=False)
        assert re.fullmatch(told, process.stderr.decode())
        assert process.returncode == status


def test_a_traceback_is_logged_with_verbose_alone(log: Logs, capfd: Capture) -> None:
    failed = {"msg": "told", "exc_info": (OSError, OSError(), None)}
    for level, expected in (("INFO", "told\n"), ("DEBUG", "told\nOSError\n")):
        log.set_level(level, "workbench")
        workbench._StderrHandler(str).emit(logging.makeLogRecord(failed))
        assert capfd.readouterr().err == expected


def test_a_person_at_a_terminal_is_told_what_it_waits_for(tmp_path: Path) -> None:
    ours, terminal = os.openpty()
    with open(ours), open(terminal), Wire(tmp_path, stdio={"stdin": terminal}) as wire:
        stderr = tmp_path / "stderr"
        anyio.run(until, lambda: "Ctrl-C" in stderr.read_text(), 20)
        assert re.search("(?s)MCP client.*--check.*--help", stderr.read_text())
        wire.end("SIGINT")
        assert wire.status() in (0, -signal.SIGINT)  # it may not be serving yet


def test_stdout_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "stdout"
    with path.open("wb") as file, Wire(tmp_path, stdio={"stdout": file}) as wire:
        wire.begin("initialize", **HANDSHAKE)
        anyio.run(until, lambda: '"result"' in path.read_text(), 20)
        wire.end("end of stdin")
        assert wire.status() == 0


def test_check_warns_of_unknown_keys_and_of_filters_that_match_nothing(
    tmp_path: Path, log: Logs, capsys: Capture, monkeypatch: Monkey
) -> None:
    server = entry("plain", toolFilters=["echo", "no_*"], colour="red", size=1)
    command(configuration(s=server), tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # they are this process's
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_CONFIG", "")
    assert workbench.main(["--check"]) == 0
    [unknown, unmatched] = log.messages  # these warnings and nothing else
    assert re.match("toolboxes.box.mcpServers.s: .*colour, size", unknown)
    assert "no_*" in unmatched
    assert re.match("box/s +ok .* 1 tool ", capsys.readouterr().out)


async def test_check_starts_each_server_once_and_says_when_it_settles(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    """And every ten seconds which ones are still starting."""

    async def sleep_less(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0.01)
        if said.count("Still starting: box/slow") > 1:
            gate.touch()

    said: list[str] = []
    pauses: list[float] = []
    sleep = anyio.sleep
    monkeypatch.setattr(anyio, "sleep", sleep_less)
    monkeypatch.setattr(workbench, "_say", said.append)
    gate, starts = tmp_path / "gate", tmp_path / "starts"
    slow = entry("noted", tmp_path / "slow", gate)
    bad = runs(f"note({str(starts)!r}, 'x'); sys.stderr.write('last words')")
    config = configuration(slow=slow, bad=bad, good=entry("plain"))
    with anyio.fail_after(20):
        assert await workbench.check(workbench.parse_config(config, {})) == 1
    failed = r"box/bad   FAILED +\d+\.\d s  exited with status 0\n    last words"
    [_] = [line for line in said if re.fullmatch(failed, line)]
    good, slow_one = [line for line in said if re.search(r"  ok +\d+\.\d s  ", line)]
    assert re.match("box/good .* 2 tools ", good)
    assert re.match("box/slow .* 4 tools ", slow_one)
    assert starts.read_text() == "x\n" and max(pauses) == 10


async def test_check_colours_a_terminal(capsys: Capture, monkeypatch: Monkey) -> None:
    config = workbench.parse_config(configuration(s={"command": "no-such"}), {})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        assert await workbench.check(config) == 1
        assert ("\033[31mFAILED" in capsys.readouterr().out) == (not no_color)


async def test_check_tells_the_cost_with_us_and_natively(capsys: Capture) -> None:
    told = "lambda _: initialized() | {'instructions': 'i' * 500}"
    unsent = "title='t' * 99, annotations={'title': 't' * 99}"
    costly = f"tool(description='ä' * 60_000, {unsent})"
    server = entry("scripted", f"serve_raw({costly}, initialize={told})")
    data = configuration(s=server)
    data["toolboxes"]["box"]["description"] = "A box " * 1_000
    config = workbench.parse_config(data, os.environ)
    assert await workbench.check(config) == 0
    printed = capsys.readouterr().out.replace(",", "")
    opened, own, native = map(int, re.findall("([0-9]+) bytes", printed))
    assert opened == pytest.approx(120_620, abs=50)
    assert 6_600 < own < 7_200
    assert native == pytest.approx(120_060, abs=50)
    assert re.search("'box' opens with 1 of 1 tools without inputSchema.*\n$", printed)


async def test_check_gives_no_sizes_where_nothing_is_listed(capsys: Capture) -> None:
    server = entry("plain", toolFilters=[])
    for servers, status, line in (({}, 1, "No server "), ({"s": server}, 0, "s  ok ")):
        config = workbench.parse_config({"mcpServers": servers}, os.environ)
        assert await workbench.check(config) == status
        [printed] = capsys.readouterr().out.splitlines()
        assert printed.startswith(line)


TEXTS = [{"type": "text", "text": "a é"}, {"type": "text", "text": "b"}]
MIXED = {"content": [PARIS, BLOCKS[2]]}
CALLS = [  # a tool and its arguments; the status, stdout, and what stderr tells
    ("box__s__result", json.dumps({"content": TEXTS}), 0, "a é\nb\n", ""),
    ("box__s__result", json.dumps(text_result("no", isError=True)), 1, "no\n", ""),
    ("box__s__result", json.dumps(MIXED), 0, json.dumps(MIXED, indent=2) + "\n", ""),
    ("no__s__x", "{}", 1, "", "Toolbox 'no' not found. Available toolboxes: box"),
    ("box__s__result", "{'a': 1}", 1, "", "JSON object, got: {'a': 1}"),
    ("box__s__result", "sesame-open", 1, "", "JSON object, got: ***"),
    ("box__s__result", "[1]", 1, "", "object"),
]


async def test_call_prints_a_result_or_says_what_is_wrong(capsys: Capture) -> None:
    # Its tool `result` answers with its arguments, here in the older era.
    server = OWN_SERVERS["both"] | {"env": {"KEY": "sesame-open"}}
    config = workbench.parse_config(configuration(s=server), os.environ)
    for name, arguments, status, stdout, why in CALLS:
        assert await workbench.call_once(config, name, arguments) == status
        printed = capsys.readouterr()
        assert printed.out == stdout
        assert why in printed.err


def test_call_needs_no_path_and_no_stdout_that_can_show_all(tmp_path: Path) -> None:
    call = ["--call", "box__s__result", json.dumps({"content": TEXTS})]
    line = command(configuration(s=entry("eras", OLDER)), tmp_path, *call)
    del line[2]  # the path
    environ = os.environ | {"PYTHONIOENCODING": "ascii", "WORKBENCH_CONFIG": ""}
    told = subprocess.run(line, env=environ, cwd=tmp_path, stdout=PIPE, check=True)
    assert told.stdout == b"a ?\nb\n"


BAD_OPTIONS = "--nonsense, --call, --call a b c, --check --call a, a b, --http 1, "
BAD_OPTIONS += "--check --toolbox, --toolbox --http, --call a FILE, --call FILE a"


@pytest.mark.parametrize("options", BAD_OPTIONS.split(", "))
def test_unfit_options_end_with_status_2(options: str, capsys: Capture) -> None:
    arguments = options.replace("FILE", workbench.__file__).split()
    with pytest.raises(SystemExit) as end:  # not `main`: it could end this process
        workbench.parse_command_line(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("usage: ")


# === Running: shutdown ================================================================

ONCE = ["SIGTERM", "end of stdin", "closed stdout"]
TWICE = ["SIGINT and SIGTERM", "end of stdin and SIGTERM", "SIGHUP", "closed stdout"]
STATES = {  # how it ends, and what is called before, beside a server that ignores that
    "half open, with a call": (TWICE, ["initialize", "tools_call"]),
    "remote servers that do not answer": (ONCE, ["dead"] * 8 + ["lost"]),
    "a client that reads nothing": (ONCE, ["big"] * 3),
}
LOST_LOOK_UP = """import socket, time
socket.getaddrinfo = lambda *_, **__: open("0.hangs", "w") and time.sleep(60)"""


def check_ending(folder: Path, endings: str, called: list[str], dead: Any) -> None:
    """Call these servers, end the workbench, and see that nothing is left of it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LOST_LOOK_UP)
    servers: dict[str, Any] = {
        "good": ("start", "ignores the end"),
        "initialize": ("initialize", "hangs"),
        "tools_call": ("tools_call", "hangs"),
        "dead": dead,
        "lost": {"url": "http://a.invalid"},
        "flood": ("tools_call", "floods stderr"),
        "big": ("tools_call", "answers 1 MB"),
    }
    stdio = {"stderr": PIPE} if "big" in called else {}
    with Wire(folder, stdio=stdio, **servers) as wire:
        wire.initialize().use("good")
        if "big" in called:
            wire.use("flood")  # of stderr
        for server in called:
            wire.begin_use(server, folder=str(folder))
        if "big" in called:
            assert select.select([wire.process.stdout], [], [], 5)[0]
        waiting = len(called) - called.count("big")
        for number, ending in enumerate(endings.split(" and ")):
            wire.hanging(waiting + number)  # and the one that ignored the first
            wire.end(ending)
        assert wire.status() == 0


async def test_it_ends_and_leaves_nothing(
    tmp_path: Path, server: Remote, monkeypatch: Monkey
) -> None:
    async def hang_up(request: dict[str, Any], _: Any) -> None:
        folder = request["params"]["arguments"]["folder"]
        Path(folder, f"{time.monotonic_ns()}.hangs").touch()
        await anyio.sleep_forever()

    monkeypatch.setenv("PYTHONPATH", ".")
    server.answers.update(echo=hang_up, DELETE=server.wait)
    runs: dict[str, Any] = {}
    for state, (all_endings, called) in STATES.items():
        for endings in all_endings:
            cell = f"{endings} {state}".replace(" ", "-")
            arguments = tmp_path / cell, endings, called, server.at()
            runs[cell] = asyncio.to_thread(check_ending, *arguments)
    failures = await asyncio.gather(*runs.values(), return_exceptions=True)
    assert dict(zip(runs, failures, strict=True)) == dict.fromkeys(runs)
    assert list(tmp_path.glob("*/*.15"))  # SIGTERM comes before SIGKILL


def test_an_interrupted_check_leaves_nothing(tmp_path: Path) -> None:
    with Wire(tmp_path, "--check", bad=("initialize", "hangs")) as wire:
        wire.hanging()
        assert wire.process.stdout.readline().startswith(b"box/good  ok ")
        wire.end("SIGINT")
        assert wire.status() == 1


async def test_a_worker_has_its_grace_when_its_launcher_ends_first(
    tmp_path: Path, monkeypatch: Monkey
) -> None:
    worker = "trap 'sleep 0.1; touch saved; exit' TERM; touch ready; sleep 60 & wait"
    begin = f"subprocess.Popen(['sh', '-c', {worker!r}], stderr=subprocess.DEVNULL)"
    launcher = entry("scripted", f"{begin}; serve_raw(tool())", cwd=str(tmp_path))
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.5)
    async with opened(a=launcher):
        await until((tmp_path / "ready").exists)
    assert (tmp_path / "saved").exists()


def test_stdin_and_stdout_may_be_one_socket(tmp_path: Path) -> None:
    """As socat and inetd have it; here with answers that the client does not read."""
    ours, theirs = socket.socketpair()
    stdio = {"stdin": theirs, "stdout": theirs}
    big = ("tools_call", "answers 1 MB")
    with ours, Wire(tmp_path, stdio=stdio, big=big) as wire:
        theirs.close()
        wire.process.stdin = ours.makefile("wb")
        wire.process.stdout = ours.makefile("rb")
        assert wire.initialize().still_serves()
        wire.begin_use("big")
        assert select.select([ours], [], [], 5)[0]
        ours.shutdown(socket.SHUT_WR)
        assert wire.status() == 0


# === Running: faults of clients =======================================================


def test_what_waits_for_a_client_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    """Notifications are dropped, questions refused, and all answers come."""
    kinds = ("asks 60 MB", "says 60 MB", "hangs")
    servers = {kind.split()[0]: ("tools_call", kind) for kind in kinds}
    with Wire(tmp_path, **servers) as wire:
        wire.initialize(roots={}).use("good")
        before = peak_memory(wire.process.pid)
        for server in ("asks", "says"):
            wire.begin_use(server)
        wire.hanging(2)  # so all was said, and a question refused
        assert peak_memory(wire.process.pid) < before + 50
        calls = [wire.begin_use("good") for _ in range(50)]
        wire.begin_use("hangs")
        wire.hanging(3)  # it has been started after they were answered
        for call in calls:
            assert wire.text(call) == "{}"


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    with Wire(tmp_path_factory.mktemp("wire")) as wire:
        yield wire.initialize()


def test_lines_that_are_no_requests_change_nothing(wire: Wire) -> None:
    for line in (b" \t", b"\xff\xfe", b"null", b"[" * 100_000):
        wire.write(line + b"\n")
        assert wire.still_serves(), line


def test_a_client_that_initializes_twice_keeps_its_servers(wire: Wire) -> None:
    wire.use("good")
    before = wire.servers_left()
    assert wire.initialize().still_serves()
    assert wire.servers_left() == before


def test_an_argument_of_megabytes_comes_back_whole(wire: Wire) -> None:
    big = "é🧰x" * 1_000_000  # 7 MB, read in chunks that end inside of characters
    assert wire.use("good", x=big) == json.dumps({"x": big})


def test_a_client_that_closes_stderr_is_served_all_the_same(tmp_path: Path) -> None:
    with Wire(tmp_path, stdio={"stderr": PIPE}) as wire:
        wire.process.stderr.close()
        assert wire.initialize().still_serves()
