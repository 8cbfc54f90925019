"""Tests of the workbench, in the order of its sections.

The file is its own set of downstream servers: `python test_workbench.py SERVER [ARG...]`
runs one of those that are registered with `@downstream`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

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


def serve_raw(*tools: dict[str, Any], **handlers: Handler) -> None:
    """Serve plain JSON-RPC of the older era, without the SDK and its manners.

    `handlers` maps methods, with `_` for `/`, to functions from a request to its result;
    None sends nothing. By default `tools/call` answers with the arguments as JSON text.
    """

    def initialize(_: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "raw", "version": "1"},
        }

    def call(request: dict[str, Any]) -> dict[str, Any]:
        return text_result(json.dumps(request["params"].get("arguments")))

    known: dict[str, Handler] = {
        "initialize": initialize,
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
            error = {"code": -32601, "message": "Method not found"}
            send({"id": request["id"], "error": error})


def serve_sdk(server: Server[Any]) -> None:
    """Serve a low-level SDK server, which speaks both protocol eras, over stdio."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)


@downstream
def plain() -> None:
    """Tools `echo` (answers with its arguments) and `pid`."""

    def call(request: dict[str, Any]) -> dict[str, Any]:
        if request["params"]["name"] == "pid":
            return text_result(str(os.getpid()))
        return text_result(json.dumps(request["params"].get("arguments")))

    serve_raw(tool("echo"), tool("pid"), tools_call=call)


@downstream
def environment(*_: str) -> None:
    """A tool that answers with the environment of its process."""
    answer = text_result(json.dumps(dict(os.environ)))
    serve_raw(tool("get"), tools_call=lambda _: answer)


@downstream
def tools_named(*names: str) -> None:
    """Tools of these names."""
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
def forking(notes: str) -> None:
    """`noted` with a child that holds its stdin and stdout open; notes the child's pid."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    note(f"{notes}.child", child)
    noted(notes)


@downstream
def scripted(code: str) -> None:
    """Runs some Python code in this module."""
    exec(code, globals())  # noqa: S102


def page(
    request: dict[str, Any], cursor: Callable[[int], int | None]
) -> dict[str, Any]:
    """One tool, `t0`, `t1`...; `cursor` maps the number of this page to the next."""
    number = int((request.get("params") or {}).get("cursor") or 0)
    following = cursor(number)
    more = {} if following is None else {"nextCursor": str(following)}
    return {"tools": [tool(f"t{number}")], **more}


def refuse(request: dict[str, Any], code: int = -32603) -> None:
    error = {"code": code, "message": "refused as asked"}
    send({"id": request["id"], "error": error})


@downstream
def mirror() -> None:
    """`answer` answers with its arguments as the response, or with its `line` as it is."""

    def call(request: dict[str, Any]) -> dict[str, Any] | None:
        arguments = request["params"]["arguments"]
        if request["params"]["name"] == "pid":
            return text_result(str(os.getpid()))
        if "line" in arguments:
            print(arguments["line"].replace("ID", str(request["id"])), flush=True)
        else:
            send({"id": request["id"], **arguments})
        return None

    properties = {"n": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["n"]}
    serve_raw(tool("answer", outputSchema=schema), tool("pid"), tools_call=call)


@downstream
def disorderly(name: str) -> None:
    """`echo` answers with the server's name and the arguments, in no certain order."""
    lock = threading.Lock()

    def call(request: dict[str, Any]) -> None:
        def answer() -> None:
            result = text_result(json.dumps([name, request["params"]["arguments"]]))
            with lock:
                send({"id": request["id"], "result": result})

        threading.Timer(time.time_ns() // 1000 % 7 / 1000, answer).start()

    serve_raw(tool(), tools_call=call)


# === Downstream servers: connections ==================================================


def initialized(**tools: bool) -> dict[str, Any]:
    """The result of `initialize` with these capabilities of the tools."""
    return {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": tools},
        "serverInfo": {"name": "older", "version": "1"},
    }


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

    def initialize(_: dict[str, Any]) -> dict[str, Any]:
        announce(bool(late))
        return initialized(**{capability: True})

    def listing(request: dict[str, Any]) -> dict[str, Any] | None:
        if "cursor" not in request.get("params", {}):
            state["listings"] += 1
            own = [tool("become", title="own"), tool("listings", title="own")]
            return {"tools": own, "nextCursor": "2"}
        time.sleep(state["seconds"])
        page, fault = {"tools": state["tools"]}, state["fault"]
        if state["meanwhile"] is not None:
            state.update(tools=state["meanwhile"], meanwhile=None)
            announce(1)
        if fault == "exit":
            os._exit(1)
        if fault == "error":
            send({"id": request["id"], "error": {"code": -32603, "message": "no"}})
            return None
        return json.loads(fault) if fault else page

    def call(request: dict[str, Any]) -> dict[str, Any]:
        if request["params"]["name"] == "become":
            state.update(request["params"]["arguments"])
            announce(state["times"])
        return text_result(str(state["listings"]))

    serve_raw(initialize=initialize, tools_list=listing, tools_call=call)


@downstream
def farewell(marker: str) -> None:
    """Announces changes once its stdin has ended."""
    serve_raw(tool())
    for _ in range(100):
        send({"method": "notifications/tools/list_changed"})
    Path(marker).touch()


def changing_server() -> Server[Any]:
    """Tools `become` (`tools`, `seconds` of a listing), `era`, `echo`, `big` (`bytes`).

    With `lose`, `become` ends the listen streams instead of announcing the change.
    """
    import anyio
    from mcp import types
    from mcp.server import subscriptions
    from mcp.server.lowlevel.server import Server
    from mcp.shared.exceptions import MCPError

    bus = subscriptions.InMemorySubscriptionBus()
    streams = subscriptions.ListenHandler(bus)
    own = [tool(name, title="own") for name in ("become", "era", "echo", "big")]
    state: dict[str, Any] = {"tools": [], "seconds": 0, "lose": ""}

    async def listen(context: Any, params: Any) -> Any:
        result = await streams(context, params)
        if state["lose"] == "error":
            raise MCPError(-32603, "lost")
        return result

    async def list_tools(_: Any, __: Any) -> Any:
        await anyio.sleep(state["seconds"])
        return types.ListToolsResult.model_validate({"tools": own + state["tools"]})

    async def call(context: Any, params: Any) -> Any:
        arguments = params.arguments or {}
        answer = {
            "era": context.protocol_version,
            "echo": f"Echo: {arguments.get('message')}",
            "big": "x" * arguments.get("bytes", 0),
        }.get(params.name, "")
        if params.name == "become":
            state.update({"lose": "", **arguments})
            if state["lose"]:
                streams.close()
            else:
                await bus.publish(subscriptions.ToolsListChanged())
                await context.session.send_tool_list_changed()
        return types.CallToolResult.model_validate(text_result(answer))

    return Server(
        "changing",
        on_list_tools=list_tools,
        on_call_tool=call,
        on_subscriptions_listen=listen,
    )


@downstream
def changing_sdk() -> None:
    serve_sdk(changing_server())


@downstream
def remote_sdk(transport: str) -> None:
    """The same over HTTP, at port PORT."""
    import uvicorn
    from mcp.server.sse import SseServerTransport

    server = changing_server()
    sse = SseServerTransport("/messages")

    async def over_sse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            async with sse.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        elif scope["type"] == "http":
            await sse.handle_post_message(scope, receive, send)

    app = over_sse if transport == "sse" else server.streamable_http_app()
    listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
    print("port", listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_config=None)).run([listener])


@downstream
def scripted_remote() -> None:
    """An older-era server over HTTP and SSE, without the SDK, that goes wrong as told.

    The path of a URL says what goes wrong with every request; the name of a tool, what
    goes wrong with one call, once three calls of `wait` are in flight.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    faults = ("reset", "cut", "401", "500")
    names = (*faults, "wait", "release", "credentials", "forget", "refuse", "calls")
    waiting, released = threading.Semaphore(0), threading.Event()
    stream: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    state: dict[str, Any] = {"session": "1", "stale": "404", "calls": 0}
    credentials: set[str] = set()

    def run(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        state["calls"] += 1
        if name == "wait":
            waiting.release()
            released.wait()
        elif name == "release":
            released.set()
        elif name == "forget":
            state.update(session="2", **arguments)
        answers = {"credentials": sorted(credentials), "calls": state["calls"]}
        return text_result(json.dumps(answers.get(name)))

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            path, session = self.path[1:].split("?")[0], self.headers["Mcp-Session-Id"]
            credentials.add(self.headers["Authorization"] or "")
            if path not in ("mcp", "sse", "messages"):
                self.fail(path)
            elif session not in (None, state["session"]):
                self.fail(state["stale"])
            elif body:
                self.serve(json.loads(body), path == "messages")
            elif session:
                self.fail("405")
            else:
                kind = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
                self.wfile.write(kind + b"event: endpoint\ndata: /messages\n\n")
                while True:
                    self.wfile.write(b"data: %s\n\n" % stream.get())

        do_GET = do_POST

        def serve(self, request: dict[str, Any], streams: bool) -> None:
            method, params = request["method"], request.get("params", {})
            if method == "notifications/cancelled":
                released.wait()
            if params.get("name") in faults:
                for _ in range(3):
                    waiting.acquire()
                return self.fail(params["name"])
            if streams or "id" not in request:
                self.answer(202)
            reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request.get("id")}
            reply["result"] = {"tools": list(map(tool, names))}
            if method == "initialize":
                reply["result"] = initialized()
            elif method == "tools/call":
                reply["result"] = run(params["name"], params.get("arguments", {}))
            if params.get("name") == "refuse":
                del reply["result"]
                reply["error"] = params["arguments"]
            if streams:
                stream.put(json.dumps(reply).encode())
            elif "id" in request:
                status = 400 if "error" in reply else 200
                self.answer(status, json.dumps(reply).encode())

        def answer(self, status: int, body: bytes = b"{}") -> None:
            kind = "application/json" if body.startswith(b"{") else "text/html"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Mcp-Session-Id", state["session"])
            self.end_headers()
            self.wfile.write(body)

        def fail(self, fault: str) -> None:
            if fault.isdigit():
                self.answer(int(fault), b"no such session")
            elif fault == "html":
                self.answer(200, b"<html>Welcome</html>")
            elif fault == "hang":
                released.wait()
            elif fault == "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
            else:  # without lingering, a close is a reset
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                os.close(self.connection.detach())

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer.request_queue_size = 200
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        print("port", server.server_port, flush=True)
        server.serve_forever()


@downstream
def crashing() -> None:
    """Exits instead of answering each second call."""
    answers = iter([text_result("ok")])
    serve_raw(tool("call"), tools_call=lambda _: next(answers, None) or os._exit(3))


@downstream
def counted(journal: str, end: str = "") -> None:
    """Writes each start to a file; start N has the tools `pid`, `kept_N`, `hidden_N`."""
    with Path(journal).open("a") as file:
        file.write("started\n")
    if end:
        sys.exit(end)
    count = len(Path(journal).read_text().splitlines())
    tools = map(tool, ("pid", f"kept_{count}", f"hidden_{count}"))
    serve_raw(*tools, tools_call=lambda _: text_result(str(os.getpid())))


# === Downstream servers: a transparent proxy ==========================================

OLDER, MODERN = "2025-11-25", "2026-07-28"
RESERVED = "io.modelcontextprotocol/"
CAPABILITIES = f"{RESERVED}clientCapabilities"
OWN_TOOLS = [
    tool(n) for n in ("error", "ask", "say", "wait", "tally", "rounds", "seen")
]
OWN_TOOLS += [tool("result", outputSchema={"type": "object", "required": ["x"]})]


def json_result(value: Any) -> dict[str, Any]:
    return text_result(json.dumps(value, sort_keys=True))


def next_round(params: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for one of `rounds` after the other, then answer with the last responses."""
    done = int(params.get("requestState") or 0)
    rounds = params["arguments"]["rounds"]
    if done < len(rounds):
        state = {"resultType": "input_required", "requestState": str(done + 1)}
        return {**state, **rounds[done]}
    return {"resultType": "complete", **json_result(params.get("inputResponses"))}


def messages_of(params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a call of `say` asks for; progress goes under the call's token, or nowhere."""
    token = (params.get("_meta") or {}).get("progressToken")
    for message in params["arguments"]["messages"]:
        content = message["params"]
        if "progress" not in content:
            yield message
        elif token is not None:
            yield {**message, "params": {**content, "progressToken": token}}


@downstream
def both_eras() -> None:
    """Tools that do what their arguments say, in both eras, on the SDK's server."""
    import anyio
    from mcp import types
    from mcp.server.lowlevel.server import Server
    from mcp.shared.exceptions import MCPError
    from pydantic import RootModel

    started: list[int] = []
    cancelled: list[int] = []
    meeting: list[Any] = []
    idle, met = anyio.Event(), anyio.Event()

    async def ask(session: Any, method: str, params: Any) -> Any:
        request: Any = types.Request[Any, str](method=method, params=params)
        try:
            return (await session.send_request(request, RootModel[Any])).root
        except MCPError as error:
            return error.error.model_dump(exclude_none=True)

    async def say(session: Any, params: Mapping[str, Any]) -> None:
        if "with_another_call" in params["arguments"]:
            meeting.append(params)
            if len(meeting) == 2:
                met.set()
            await met.wait()
        for message in messages_of(params):
            await session.send_notification(RootModel[Any](message))

    async def wait(session: Any, number: int) -> None:
        nonlocal idle
        started.append(number)
        try:
            await session.report_progress(number)
            await anyio.sleep_forever()
        finally:
            cancelled.append(number)
            idle.set()
            idle = anyio.Event()

    async def call(context: Any, params: types.CallToolRequestParams) -> Any:
        session, given, value = context.session, params.arguments or {}, None
        match params.name:
            case "result":
                return {"resultType": "complete", **given}
            case "rounds":
                return next_round(context.params)
            case "error":
                raise MCPError(**given)
            case "ask":
                value = await ask(session, **given)
            case "say":
                await say(session, context.params)
            case "wait":
                await wait(session, **given)
            case "tally":
                while len(started) > len(cancelled):
                    await idle.wait()
                value = {"started": sorted(started), "cancelled": sorted(cancelled)}
            case "seen":
                value = {"era": session.protocol_version, "_meta": {}, **context.params}
                value["pids"] = [os.getpid(), os.getppid()]
        return {"resultType": "complete", **json_result(value)}

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        tools = [types.Tool.model_validate(each) for each in OWN_TOOLS]
        return types.ListToolsResult(tools=tools)

    serve_sdk(Server("both", on_list_tools=list_tools, on_call_tool=call))


@downstream
def one_era(refusal: str = "") -> None:
    """The same tools without the SDK, in the older era alone.

    With the code of an error that refuses `initialize`: in 2026-07-28 alone.
    """
    complete = {"resultType": "complete"} if refusal else {}
    seen: dict[str, Any] = {"era": MODERN if refusal else OLDER, "levels": []}

    def initialize(request: dict[str, Any]) -> dict[str, Any] | None:
        version = request["params"]["protocolVersion"]
        if refusal:
            data = {"supported": [MODERN], "requested": version}
            error = {"code": int(refusal), "message": "Unknown", "data": data}
            send({"id": request["id"], "error": error})
            return None
        seen[CAPABILITIES] = request["params"]["capabilities"]
        result: dict[str, Any] = {"capabilities": {"tools": {}, "logging": {}}}
        info = {"name": "older", "version": "1"}
        return {**result, "protocolVersion": version, "serverInfo": info}

    def call(request: dict[str, Any]) -> dict[str, Any] | None:
        params = request["params"]
        given, value = params.get("arguments") or {}, None
        match params["name"]:
            case "result":
                return {**complete, **given}
            case "rounds":
                return next_round(params)
            case "error":
                send({"id": request["id"], "error": given})
                return None
            case "ask":
                send({"id": f"ask {request['id']}", **given})
                return None
            case "say":
                for message in messages_of(params):
                    send(message)
            case "seen":
                value = {**seen, "_meta": {}, **params}
        return {**complete, **json_result(value)}

    def answered(message: dict[str, Any]) -> None:
        result = json_result(message.get("result") or message.get("error"))
        send({"id": int(message["id"].removeprefix("ask ")), "result": result})

    def set_level(request: dict[str, Any]) -> dict[str, Any]:
        seen["levels"].append(request["params"]["level"])
        return {}

    def roots_changed(_: Any) -> None:
        params = {"level": "info", "data": "roots changed"}
        send({"method": "notifications/message", "params": params})

    def listing(**result: Any) -> Handler:
        hints = {"ttlMs": 0, "cacheScope": "private"} if refusal else {}
        return lambda _: {**complete, **hints, **result}

    discover = listing(supportedVersions=[MODERN], capabilities={"tools": {}})
    handlers = {"server_discover": discover} if refusal else {}
    serve_raw(
        initialize=initialize,
        tools_list=listing(tools=OWN_TOOLS),
        tools_call=call,
        logging_setLevel=set_level,
        notifications_roots_list_changed=roots_changed,
        **{"": answered, **handlers},
    )


# === A downstream server that misbehaves ==============================================

ODD_NAMES = ["a__b", "__", "_x_", "with spaces", "🧰 é", "n" * 200, "box__bad__echo"]


def hang() -> None:
    Path("hanging").touch()
    while True:
        time.sleep(60)


def ignore_the_end() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    atexit.register(hang)  # after the end of stdin


def misbehave(what: str, request: dict[str, Any]) -> dict[str, Any]:
    """Do one thing wrong when a request comes; what it is answered with."""
    match what:
        case "exits" | "exits inside a line":
            sys.stderr.write("boom" if what.endswith("line") else "boom\n")
            os._exit(3)
        case "answers and exits":
            send({"id": request["id"], "result": text_result("answered")})
            os._exit(3)
        case "hangs":
            hang()
        case "ignores the end":
            ignore_the_end()
        case "has a child" | "leaves a child":
            child = os.fork()
            if not child:
                ignore_the_end()
                hang()
            Path(f"{child}.pid").touch()
            if what == "leaves a child":
                os._exit(3)
        case "answers nonsense":
            atexit.register(os.closerange, 0, 3)  # the pipes end before the process
            return {"capabilities": 7, "tools": 7, "content": 7}
        case "answers twice":
            send({"id": request["id"], "result": text_result("answered")})
        case "answers an unknown id":
            send({"id": 987654321, "result": text_result("unasked")})
            send({"id": "unknown", "error": {"code": 1, "message": "unasked"}})
        case "answers half":
            print('{"jsonrpc": "2.0", "id": ', end="", flush=True)
            hang()
        case "answers 1 MB" | "answers 20 MB":
            return text_result("x" * 1_000_000 * int(what.split()[1]))
        case "floods stderr":
            sys.stderr.write("a line of a flood that nobody reads\n" * 20_000)
        case "writes a huge line to stderr":
            sys.stderr.write("x" * 20_000_000)
        case "writes to stderr":
            sys.stderr.write("hello\nGrüße\n")
        case "closes stdout":
            os.close(1)
            hang()
        case "changes its tools":
            send({"method": "notifications/tools/list_changed"})
            listing = json.loads(sys.stdin.buffer.readline())  # the call is waiting
            send({"id": listing["id"], "result": {"tools": [tool("other")]}})
        case "lists a name twice":
            return {"tools": [tool(), tool(description="again")]}
        case "asks what nobody knows":
            send({"id": "question", "method": "no/such"})
            reply = json.loads(sys.stdin.buffer.readline())
            return text_result(f"{reply['id']}: {reply['error']['code']}")
        case "writes garbage":
            sys.stdout.buffer.write(b"\xff\xfe\n\n \r\nlistening\n[]\n7\n{}\n")
        case "tells the tool's name":
            return text_result(request["params"]["name"])
    return text_result("answered")


@downstream
def misbehaving(at: str = "never", what: str = "") -> None:
    """Mark the process as `PID.pid`, and do `what` whenever the method `at` comes."""
    Path(f"{os.getpid()}.pid").touch()
    if at == "start":
        misbehave(what, {})
    handlers: dict[str, Handler] = {at: lambda request: misbehave(what, request)}
    serve_raw(tool(), *map(tool, ODD_NAMES), **handlers)


if __name__ == "__main__":  # before the imports that a server has no time for
    DOWNSTREAM[sys.argv[1]](*sys.argv[2:])
    sys.exit()

import asyncio
import dataclasses
import datetime
import functools
import gc
import http.client
import logging
import random
import sys
import tomllib
import zoneinfo
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import anyio
import anyio.abc
import httpx2
import pytest
from mcp import Client, StdioServerParameters, types
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

import workbench

pytestmark = pytest.mark.anyio


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
    """A client of a workbench process, over stdio."""
    program, *args = command(config, folder)
    env = dict(os.environ)
    parameters = StdioServerParameters(command=program, args=args, env=env)
    async with Client(parameters, mode=mode, **callbacks) as client:
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
{"disabled": "yes", "command": "x"} => .disabled: expected a boolean, found string
{} => : expected either 'command' or 'url', found neither
{"command": "x", "url": "http://x"} => : expected either 'command' or 'url', found both
{"command": "x", "type": "sse"} => .type: expected stdio, found another string
{"url":"http://x", "type":"stdio"} => .type: expected http or sse, found another string
{"command": "x", "transport": 1} => .transport: expected a string, found number
{"command": ""} => .command: expected a non-empty string, found an empty string
{"command": "x", "args": "y"} => .args: expected a list, found string
{"command": "x", "args": ["y", true]} => .args[1]: expected a string, found boolean
{"command": "x", "env": []} => .env: expected an object, found list
{"command": "x", "env": {"A": {}}} => .env.A: expected a string, found object
{"command": "x", "cwd": null} => .cwd: expected a string, found null
{"url": 1} => .url: expected a string, found number
{"url": "x.com"} => .url: expected an http:// or https:// URL, found another string
{"url": "http:///x"} => .url: expected an http:// or https:// URL, found another string
{"url": "http://[:"} => .url: expected an http:// or https:// URL, found another string
{"url": "http://x", "headers": {"A": " b"}} => .headers.A: expected printable ASCII without space around it, found another string
{"url": "http://x", "headers": {"A": 1}} => .headers.A: expected a string, found number
{"command": "x", "toolFilters": "a*"} => .toolFilters: expected a list, found string
{"command": "x", "toolFilters": [1]} => .toolFilters[0]: expected a string, found number
""".strip().splitlines()


@pytest.mark.parametrize("case", BAD_ENTRIES)
def test_a_bad_server_entry_is_an_error(case: str) -> None:
    entry, _, problem = case.partition(" => ")
    assert problems_of(one_server(**json.loads(entry))) == [AT + problem]


BAD_CONFIGURATIONS = """
[]
  configuration: expected an object, found list
null
  configuration: expected an object, found null
{}
  toolboxes: expected an object, found nothing
{"toolMode": "static", "toolboxes": []}
  toolMode: expected 'proxy' or no such key, found string
  toolboxes: expected an object, found list
{"toolMode": null, "toolboxes": {"t": null}}
  toolMode: expected 'proxy' or no such key, found null
  toolboxes.t: expected an object, found null
{"toolboxes": {"t": {}, "u": {"description": "d", "mcpServersOld": "${"}}}
  toolboxes.u.mcpServersOld: expected a '}' after '${', found the end of the string
  toolboxes.t.description: expected a string, found nothing
  toolboxes.t.mcpServers: expected an object, found nothing
  toolboxes.u.mcpServers: expected an object, found nothing
{"toolboxes": {"t": {"description": " ", "mcpServers": {}}}}
  toolboxes.t.description: expected a non-empty string, found an empty string
  toolboxes.t.mcpServers: expected at least one server that is not disabled, found none
{"toolboxes": {"t": {"description": "d", "mcpServers": {"s": {"disabled": true}}}}}
  toolboxes.t.mcpServers: expected at least one server that is not disabled, found none
{"toolboxes": {"t": {"description": 1, "mcpServers": ["x"]}}}
  toolboxes.t.description: expected a string, found number
  toolboxes.t.mcpServers: expected an object, found list
"""


@pytest.mark.parametrize("case", re.split(r"\n(?=\S)", BAD_CONFIGURATIONS.strip()))
def test_a_bad_configuration_is_reported_whole(case: str) -> None:
    data, *problems = map(str.strip, case.splitlines())
    assert problems_of(json.loads(data)) == problems


def test_type_and_transport_must_agree() -> None:
    problem = f"{AT}.type: expected what 'transport' says, found something else"
    data = one_server(url="http://x", type="sse", transport="http")
    assert problems_of(data) == [problem]


def test_a_disabled_server_hides_no_problem_of_another() -> None:
    data = one_server(command="x", disabled=True)
    data["toolboxes"]["t"]["mcpServers"]["s.x"] = {"command": "${"}
    [problem] = problems_of(data)
    assert "s.x" in problem and "expected a '}' after '${'" in problem


@pytest.mark.parametrize("name", ["", "a__b", "a_", "a\n", "\u200b", "\ud800"])
def test_a_name_that_could_not_be_told_from_others_is_an_error(name: str) -> None:
    data = one_server(command="x")
    box = data["toolboxes"]["t"]
    data["toolboxes"] = {name: {**box, "mcpServers": {name: {"command": "x"}}}}
    found = json.dumps(name)
    shown = name if name.startswith("a_") else found
    rule = "expected a printable name without '__' that does not end in '_'"
    places = f"toolboxes.{shown}", f"toolboxes.{shown}.mcpServers.{shown}"
    assert problems_of(data) == [f"{place}: {rule}, found {found}" for place in places]


DYNAMIC_MODE = """\
Configuration field 'toolMode' set to 'dynamic' is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md""".splitlines()


def test_dynamic_tool_mode_is_refused_after_the_other_problems() -> None:
    data = {"toolMode": "dynamic", "toolboxes": {}}
    assert problems_of(data) == DYNAMIC_MODE
    other = "toolboxes: expected an object, found list"
    assert problems_of({**data, "toolboxes": []}) == [other, *DYNAMIC_MODE]


def test_what_is_ignored_is_warned_about_with_its_place() -> None:
    keys = {"headers": 5, "timeout": 1, "autoApprove": ["x"], "trust": None, "dev": {}}
    data = {**one_server(command="x", **keys), "mcpServers": {}, "toolMode": "proxy"}
    data["toolboxes"]["t"]["icon"] = "i"
    warnings = workbench.parse_config(data, {}).warnings
    places = [line.partition(": unknown key")[0] for line in warnings]
    assert places == [
        "mcpServers",
        "toolMode: 'proxy' is the only mode, ignored",
        "toolboxes.t.icon",
        *(f"{AT}.{key}" for key in keys),
    ]


def test_comments_are_ignored_and_other_keys_do_not_expand() -> None:
    env = {"_": 1, "${A}": "${A}"}
    off = {"command": "${UNSET}", "disabled": True}
    data = one_server(command="x", env=env, _x="${UNSET} ${")
    box = data["toolboxes"]["t"]
    box["mcpServers"] |= {"_": [1], "off": off}
    box["_y"] = data["toolboxes"]["_z"] = data["_"] = "${"
    config = workbench.parse_config(data, {"A": "v"})
    server = workbench.ServerConfig("stdio", command="x", env={"${A}": "v"})
    assert config.toolboxes == {"t": workbench.ToolboxConfig("d", {"s": server})}
    assert config.warnings == ()


URL = "https://example.com/mcp"
PASTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"command": "npx", "args": ["-y"], "env": {}}, {"args": ("-y",)}),
    ({"type": "stdio", "command": "npx", "disabled": False, "alwaysAllow": []}, {}),
    ({"url": URL, "headers": {"A": "B ${T}"}}, {"headers": {"A": "B t"}}),
    ({"type": "http", "url": URL, "timeout": 60}, {}),
    ({"type": "streamable-http", "url": URL}, {}),
    ({"type": "streamableHttp", "transport": "http", "url": URL}, {}),
    ({"type": "sse", "url": URL}, {"transport": "sse"}),
]


@pytest.mark.parametrize(("entry", "expected"), PASTED)
def test_an_entry_of_another_client_is_taken_as_it_is(
    entry: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = workbench.parse_config(one_server(**entry), {"T": "t"})
    remote = {"transport": "http", "url": URL}
    kind = remote if "url" in entry else {"transport": "stdio", "command": "npx"}
    server = workbench.ServerConfig(**{**kind, **expected})
    assert config.toolboxes["t"].servers["s"] == server


def test_no_problem_line_shows_a_value() -> None:
    data = one_server(url="${S}", type="${S}", disabled="${S}", headers="${S}")
    problems = problems_of({**data, "toolMode": "${S}"}, S="hunter2-hunter2")
    assert len(problems) >= 4
    assert "hunter2" not in "".join(problems)


VARIABLES = {"A": "x", "A_1": "y", "_B": "z", "EMPTY": "", "RAW": r"${A} $A \1 }"}
EXPANSIONS = r"""
<${A}${A_1}-${_B}> <xy-z>
${NO:-d} d
${NO:-} .
${NO:-a:-b} a:-b
${A:-d} x
${EMPTY} .
${EMPTY:-d} .
${RAW} ${A}.$A.\1.}
${NO:-${A}} ${A}
${A}} x}
$${A} $x
${A${A} ${A${A}
"""
UNCHANGED = (
    "$A $ $} ${} ${a} ${1X} ${x%/} ${A%/} ${A-d} ${A:=d} ${:-d} ${A.B} ${Ä} ${A٣}"
)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [line.split() for line in EXPANSIONS.strip().splitlines()]
    + [[text, text] for text in UNCHANGED.split()],
)
def test_variables_expand(text: str, expanded: str) -> None:
    result = workbench.expand_env(text, VARIABLES)
    assert (result.replace(" ", ".") or ".") == expanded


def test_all_that_cannot_expand_is_reported() -> None:
    text = "${NO} ${A} ${NO} ${a:-d ${NO"
    problems = [
        "environment variable NO is not set: set it, or write ${NO:-default}",
        "expected a '}' after '${', found the end of the string",
    ]
    with pytest.raises(workbench.ConfigError) as error:
        workbench.expand_env(text, VARIABLES)
    assert error.value.problems == problems
    found = problems_of(one_server(command="x", note=[{"k": text}]), A="x")
    assert found == [f"{AT}.note[0].k: {problem}" for problem in problems]


def loaded(data: bytes, folder: Path) -> workbench.WorkbenchConfig | list[str]:
    """The configuration in a file with this content, or its problems."""
    path = folder / "c.json"
    path.write_bytes(data)
    try:
        return workbench.load_config(str(path), {})
    except workbench.ConfigError as error:
        return [line.replace(str(path), "FILE") for line in error.problems]


def test_duplicate_keys_are_errors_that_name_the_key(tmp_path: Path) -> None:
    keys = ",".join(f'"{key}": 1' for key in "dcbadcba")
    data = '{"toolboxes": {"_": {}, "t": {}, "\\u0074": {' + keys + "}}}"
    places = ["toolboxes.t", *(f"toolboxes.t.{key}" for key in "dcba")]
    twice = "expected this key once, found it more than once"
    problems = loaded(data.encode(), tmp_path)
    assert isinstance(problems, list)
    assert problems[:5] == [f"{place}: {twice}" for place in places]


NOT_UTF8 = "FILE: expected JSON in UTF-8, found: 'utf-8' codec can't decode byte "


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "FILE: line 1 column 1: expected JSON, found: Expecting value"),
        (b"// no\n{}", "FILE: line 1 column 1: expected JSON, found: Expecting value"),
        (b'{"a":\n x}', "FILE: line 2 column 2: expected JSON, found: Expecting value"),
        (b"{} {}", "FILE: line 1 column 4: expected JSON, found: Extra data"),
        (b'{"\xe4": 1}', NOT_UTF8 + "0xe4 in position 2: invalid continuation byte"),
        (b"\xff\xfe{\0}\0", NOT_UTF8 + "0xff in position 0: invalid start byte"),
    ],
)
def test_a_file_that_is_not_json_is_an_error(
    data: bytes, problem: str, tmp_path: Path
) -> None:
    assert loaded(data, tmp_path) == [problem]


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_an_error(start: str, end: str, tmp_path: Path) -> None:
    data = start * 100_000 + "0" + end * 100_000
    problems = loaded(data.encode(), tmp_path)
    assert isinstance(problems, list) and len(problems) == 1
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    assert problems_of(nested) == ["configuration: expected less nesting, found more"]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    config = loaded(b'\xef\xbb\xbf{"toolboxes": {}}', tmp_path)
    assert isinstance(config, workbench.WorkbenchConfig)


def test_the_configuration_is_searched_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert workbench.find_config(None, {}) == workbench.demo_config()
    for name in ("a", "b", "workbench-config.json"):
        Path(name).write_text('{"toolboxes": {}}')
    assert workbench.find_config("a", {"WORKBENCH_CONFIG": "b"}).source == "a"
    assert workbench.find_config(None, {"WORKBENCH_CONFIG": "b"}).source == "b"
    assert workbench.find_config(None, {}).source == "workbench-config.json"


@pytest.mark.parametrize(
    ("path", "why"), [("no", "No such file or directory"), (".", "Is a directory")]
)
def test_a_given_path_that_cannot_be_read_is_an_error(
    path: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("workbench-config.json").write_text('{"toolboxes": {}}')
    for argument, environ in (path, {}), (None, {"WORKBENCH_CONFIG": path}):
        with pytest.raises(workbench.ConfigError) as error:
            workbench.find_config(argument, environ)
        assert error.value.problems == [f"{path}: cannot be read: {why}"]


def test_the_demo_is_this_file_run_by_this_interpreter() -> None:
    [server] = workbench.demo_config().toolboxes["demo"].servers.values()
    program = (sys.executable, os.path.abspath(workbench.__file__), "--toolbox")
    assert (server.command, *server.args) == program


def test_the_example_loads_without_variables_and_shows_every_key() -> None:
    example = ROOT / "workbench-config.example.json"
    assert workbench.load_config(str(example), {}).warnings == ()
    toolboxes = json.loads(example.read_text())["toolboxes"].values()
    entries = [entry for box in toolboxes for entry in box["mcpServers"].values()]
    local = {"_comment", "command", "args", "env", "cwd", "toolFilters", "disabled"}
    assert set().union(*entries) == local | {"transport", "url", "headers"}


def test_the_script_header_asks_for_what_the_requirements_ask_for() -> None:
    script = Path(workbench.__file__).read_text()
    header = re.search(r"^# /// script\n((?:# .*\n)+?)# ///$", script, re.MULTILINE)
    assert header is not None
    fields = tomllib.loads(header[1].replace("# ", ""))
    requirements = (ROOT / "requirements.txt").read_text().split()
    assert [*fields["dependencies"], "pytest"] == requirements


@pytest.mark.parametrize(
    ("filters", "seen"),
    [
        ({}, ["read_a", "Read_b", "list", "read"]),
        ({"toolFilters": "*"}, ["read_a", "Read_b", "list", "read"]),
        ({"toolFilters": ["read_*", "l?st"]}, ["read_a", "list"]),
        ({"toolFilters": ["[Rr]ead_[!a]", "read"]}, ["Read_b", "read"]),
        ({"toolFilters": []}, []),
    ],
)
async def test_a_filtered_tool_can_be_neither_seen_nor_called(
    filters: dict[str, Any], seen: list[str]
) -> None:
    names = ("read_a", "Read_b", "list", "read")
    config = configuration(s=entry("tools_named", *names, **filters))
    async with connected(config) as client:
        tools = (await open_box(client))["tools"]
        called = [n for n in names if not (await use(client, "s", n)).is_error]
    assert [tool["_meta"]["original_name"] for tool in tools] == called == seen


# === Tool names =======================================================================


@pytest.mark.parametrize(
    "name", ["t s x", "a_b c-d _x", "t s __x", "ä s.1 x__y_ ", "t s _"]
)
def test_a_full_tool_name_splits_into_its_parts(name: str) -> None:
    toolbox, server, tool = name.split(" ", 2)
    full_name = workbench.full_tool_name(toolbox, server, tool)
    assert workbench.split_tool_name(full_name) == (toolbox, server, tool)


@pytest.mark.parametrize("name", ["", "x", "t__s", "t__s__", "__s__x", "t____x"])
def test_another_form_of_tool_name_is_an_error(name: str) -> None:
    with pytest.raises(ValueError):
        workbench.split_tool_name(name)


# === MCP server =======================================================================

ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


@ERAS
async def test_the_handshake_tells_the_truth(mode: str) -> None:
    async with connected({"toolboxes": {}}, mode) as client:
        info, capabilities = client.server_info, client.server_capabilities
        assert (client.protocol_version == "2026-07-28") == (mode == "auto")
    assert info is not None
    assert (info.name, info.version) == ("mcp-workbench", "0.10.0")
    declared = capabilities.model_dump(by_alias=True, exclude_none=True)
    assert declared == {"tools": {"listChanged": False}, "logging": {}}


INSTRUCTIONS = """\
Available Toolboxes:

web (1 server)
  Description: The web

main (2 servers)
  Description: Files, and ünïcode

Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."""


@ERAS
async def test_the_instructions_list_the_toolboxes_in_order(mode: str) -> None:
    two = {"a": {"command": "x"}, "b": {"command": "x"}, "off": {"disabled": True}}
    toolboxes = {
        "web": {"description": "The web", "mcpServers": {"s": {"url": URL}}},
        "main": {"description": "Files, and ünïcode", "mcpServers": two},
    }
    config = workbench.parse_config({"toolboxes": toolboxes}, {}, "c.json")
    async with Client(workbench.create_server(config), mode=mode) as client:
        assert client.instructions == INSTRUCTIONS


def test_without_toolboxes_the_instructions_say_where_to_add_them() -> None:
    config = workbench.parse_config({"toolboxes": {}}, {}, "/etc/c.json")
    where = "No toolboxes configured. Add them under 'toolboxes' in /etc/c.json."
    assert workbench.instructions(config) == where


def test_the_instructions_of_the_demo_say_what_it_is() -> None:
    instructions = workbench.instructions(workbench.demo_config())
    assert "demo (1 server)" in instructions
    assert "WORKBENCH_CONFIG" in instructions.splitlines()[-1]


@ERAS
async def test_there_are_two_tools_of_at_most_1000_bytes(mode: str) -> None:
    async with connected(configuration(s=entry("plain")), mode) as client:
        await open_box(client)
        page = await client.list_tools()
    tools = page.model_dump(mode="json", by_alias=True, exclude_none=True)["tools"]
    compact = json.dumps(tools, ensure_ascii=False, separators=(",", ":"))
    assert len(compact.encode()) <= 1000
    hints = ("readOnly", "destructive", "idempotent", "openWorld")
    assert all(tool["title"] and tool["description"] for tool in tools)
    assert [
        (tool["name"], *(tool["annotations"][f"{hint}Hint"] for hint in hints))
        for tool in tools
    ] == [
        ("open_toolbox", False, False, True, True),
        ("use_tool", False, True, False, True),
    ]


async def test_connecting_and_listing_start_nothing(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"open({str(started)!r}, 'w')"
    config = configuration(s={"command": sys.executable, "args": ["-c", code]})
    async with connected(config) as client:
        await client.list_tools()
    assert not started.exists()


# === Environment and secrets ==========================================================


async def test_a_referenced_variable_reaches_only_the_servers_that_set_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TOKEN", "ARG", "OFF", "PLAIN", "NOTE"):
        monkeypatch.setenv(f"WB_{name}", name)
    config = configuration(
        named=entry("environment", env={"WB_TOKEN": "${WB_TOKEN}"}),
        renamed=entry("environment", env={"WB_OTHER": "${WB_TOKEN:-}"}),
        argument=entry("environment", "${WB_ARG} ${HOME} ${PATH}"),
        off=entry("environment", "${WB_OFF}", disabled=True),
        none=entry("environment", _note="${WB_NOTE}"),
    )
    everybody = {"WB_PLAIN": "PLAIN", "WB_NOTE": "NOTE"}
    expected = {
        "named": {**everybody, "WB_TOKEN": "TOKEN"},
        "renamed": {**everybody, "WB_OTHER": "TOKEN"},
        "argument": everybody,
        "none": everybody,
    }
    seen = {}
    async with connected(config) as client:
        await open_box(client)
        for server in expected:
            variables = json.loads(text(await use(client, server, "get")))
            assert variables.keys() >= {"HOME", "PATH"}
            names = [name for name in variables if name.startswith("WB_")]
            seen[server] = {name: variables[name] for name in names}
    assert seen == expected


TOKEN = "tok-0123456789"
KEY = "---BEGIN---\nMIIEpAIBAAKC\\ä\n---END---"


async def test_no_secret_is_logged_or_answered(tmp_path: Path) -> None:
    words = ("${WB_TOKEN}", "${WB_KEY}")
    url = "http://user:url-password@127.0.0.1:1/mcp?a=${WB_TOKEN}&b=url-query"
    config = configuration(
        call=entry("dying", "call", *words, env={"WB_TOKEN": "${WB_TOKEN}"}),
        start=entry("dying", "start", *words),
        command={"command": "/none/${WB_TOKEN}", "env": {"A": "literal-env"}},
        cwd=entry("plain", cwd="/none/${WB_TOKEN}"),
        http={"url": url, "headers": {"A": "Bearer ${WB_TOKEN}"}},
        sse={"url": url, "type": "sse", "headers": {"A": "literal-header"}},
    )
    program, *args = command(config, tmp_path, "--verbose")
    env = {**os.environ, "WB_TOKEN": TOKEN, "WB_KEY": KEY}
    parameters = StdioServerParameters(command=program, args=args, env=env)
    with (tmp_path / "stderr").open("w") as errlog:
        async with Client(stdio_client(parameters, errlog=errlog)) as client:
            answer = await open_box(client)
            failed = answer["servers_failed"]
            errors = [text(await use(client, server, "die")) for server in failed]
            errors.append(text(await use(client, "call", "die")))
    assert failed.keys() == {"start", "command", "cwd", "http", "sse"}
    stderr = (tmp_path / "stderr").read_text()
    assert "[box/start] ***" in stderr
    masked = [failed["start"], failed["command"], failed["cwd"], errors[-1]]
    assert all("***" in reason for reason in masked)
    everything = "\n".join([stderr, json.dumps(answer), *errors])
    secrets = [TOKEN[:6], "BEGIN", "MIIE", "END", "url-password", "url-query"]
    secrets += ["literal-env", "literal-header"]
    assert [secret for secret in secrets if secret in everything] == []


@pytest.mark.parametrize(
    "secret", ["two  words\there ", 'a"quote\\d one', "kurz-ä-lang"]
)
def test_a_secret_is_masked_in_whatever_form_a_line_shows_it(secret: str) -> None:
    config = configuration(a={"command": "x", "args": ["${T}"]})
    mask = workbench.parse_config(config, {"T": secret}).mask
    for shown in (secret, secret.strip(), " ".join(secret.split()), json.dumps(secret)):
        assert mask(f"<{shown}>").strip('<">') == "***"


async def test_only_what_may_be_secret_is_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ("SHORT", "1234567"), ("PLACE", str(tmp_path)), ("T", TOKEN):
        monkeypatch.setenv(f"WB_{name}", value)
    words = ("${WB_SHORT}", "${WB_PLACE}", "${WB_T}", "seen")
    remote = {"url": "http://127.0.0.1:1/?e"}
    config = configuration(
        a=entry("plain"), b=entry("dying", "start", *words), c=remote
    )
    async with connected(config) as client:
        failed = (await open_box(client))["servers_failed"]
    assert f"1234567 {tmp_path} *** seen" in failed["b"]
    assert "***" not in failed["c"]


# === The command line =================================================================


def finished(
    folder: Path, *options: str, config: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """What became of a workbench process whose stdin is at its end."""
    arguments = command(config, folder, *options) if config else [sys.executable]
    arguments += [] if config else [workbench.__file__, *options]
    pipes: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "input": ""}
    return subprocess.run(arguments, cwd=folder, timeout=60, check=False, **pipes)


def test_an_empty_path_is_a_path_that_cannot_be_read() -> None:
    with pytest.raises(workbench.ConfigError, match="cannot be read"):
        workbench.find_config("", {})


def test_a_bad_configuration_ends_the_program(tmp_path: Path) -> None:
    config = configuration(s=entry("plain", "${UNSET_}"), u={})
    process = finished(tmp_path, config=config)
    places = [line.partition(": ")[0] for line in process.stderr.splitlines()]
    servers = "toolboxes.box.mcpServers"
    assert places == [f"{servers}.s.args[3]", f"{servers}.u"]
    assert (process.returncode, process.stdout) == (1, "")


def test_without_a_configuration_the_demo_works_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKBENCH_CONFIG", raising=False)
    process = finished(tmp_path)
    assert (process.returncode, process.stdout) == (0, "")
    assert re.search("demo.*WORKBENCH_CONFIG", process.stderr)
    process = finished(tmp_path, "--call", "demo__toolbox__echo", '{"text": "Hi."}')
    assert (process.returncode, process.stdout) == (0, "Hi.\n")


def test_check_reports_on_every_server(tmp_path: Path) -> None:
    config = configuration(s=entry("plain", colour="red"), long=entry("tools_named"))
    process = finished(tmp_path, "--check", config=config)
    first, second, *_ = process.stdout.splitlines()
    assert re.fullmatch(r"box/s +ok +\d+\.\d s +2 tools", first)
    assert re.fullmatch(r"box/long +ok +\d+\.\d s +0 tools", second)
    assert "toolboxes.box.mcpServers.s.colour: unknown key" in process.stderr
    assert process.returncode == 0


def test_check_fails_where_a_server_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WB_T", TOKEN)
    config = configuration(bad=entry("dying", "start", "${WB_T}"), s=entry("plain"))
    config["toolboxes"] |= {"more": {"description": "d", "mcpServers": {"c": {}}}}
    config["toolboxes"]["more"]["mcpServers"]["c"] = {"command": "/none"}
    process = finished(tmp_path, "--check", config=config)
    bad, good, missing, *_ = process.stdout.splitlines()
    assert re.match(r"box/bad +FAILED .*exited with status 3.*\*\*\*", bad)
    assert re.match(r"box/s +ok .*2 tools", good)
    assert re.match(r"more/c +FAILED .*/none", missing)
    assert (process.returncode, TOKEN in process.stdout) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "status", "stdout"),
    [
        (["box__s__texts"], 0, "a é\nb\n"),
        (["box__s__echo", '{"a": 1}'], 0, '{"name": "echo", "arguments": {"a": 1}}\n'),
        (["box__s__refusal"], 1, "no\n"),
        (["box__s__image"], 0, None),
    ],
)
def test_call_prints_texts_and_other_content_as_json(
    arguments: list[str], status: int, stdout: str | None, tmp_path: Path
) -> None:
    config = configuration(s=entry("shapes"))
    process = finished(tmp_path, "--call", *arguments, config=config)
    if stdout is None:
        image = {"type": "image", "data": "AA==", "mimeType": "image/png"}
        assert json.loads(process.stdout) == {"content": [image], "isError": False}
    else:
        assert (process.returncode, process.stdout) == (status, stdout)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nonsense"], "{toolbox}__{server}__{tool}"),
        (["no__s__x"], "Toolbox 'no' not found. Available toolboxes: box"),
        (["box__no__x"], "'no'"),
        (["box__s__ech"], "box__s__echo"),
        (["box__s__echo", "{"], "JSON"),
        (["box__s__echo", "[1]"], "object"),
    ],
)
def test_call_says_what_is_wrong(
    arguments: list[str], why: str, tmp_path: Path
) -> None:
    config = configuration(s=entry("shapes"))
    process = finished(tmp_path, "--call", *arguments, config=config)
    assert (process.returncode, process.stdout) == (1, "")
    assert why in process.stderr and "Traceback" not in process.stderr


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        workbench.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, "0.10.0\n")


BAD_OPTIONS = ["--nonsense", "--call", "--call a b c", "--check --call a", "a b"]
BAD_OPTIONS += ["--http 1", "--check --toolbox", "--toolbox --http"]


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_options_that_do_not_fit_end_with_status_2(options: str) -> None:
    with pytest.raises(SystemExit) as end:
        workbench.main(options.split())
    assert end.value.code == 2


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


def listing(*tools: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a server that has these tools."""
    return runs(f"serve_raw(*{tools!r})")


def noted_calls(file: Path) -> list[str]:
    """The calls that the `noted` servers of this file got."""
    return [word for word in file.read_text().split() if not word.isdigit()]


def noted_pids(file: Path) -> list[int]:
    """The starts of the `noted` servers of this file."""
    return [int(word) for word in file.read_text().split() if word.isdigit()]


async def shown_names(client: Client) -> list[str]:
    return [tool["name"] for tool in (await open_box(client))["tools"]]


async def at_once(count: int, call: Callable[[], Any]) -> list[Any]:
    """What so many concurrent calls return."""
    results: list[Any] = []

    async def collect() -> None:
        results.append(await call())

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(collect)
    return results


MISSING = {"command": "no-such-command"}
EVERY_FIELD = {
    "icons": [{"src": "https://example.com/icon.png"}],
    "name": "read",
    "description": "Liest ä",
    "annotations": {"readOnlyHint": True, "x": 1},
    "inputSchema": {"type": "object", "$defs": {"x": True}},
    "title": "T",
    "x-vendor": {"deep": [None, 1.5]},
    "source_server": "forged",
    "_meta": {"own": None, "source_server": "forged"},
}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "a", "version": "1"},
    "instructions": "Größe zählt",
}


async def test_the_answer_of_open_toolbox_is_compact_json_of_exactly_this_shape() -> (
    None
):
    a = runs(f"serve_raw({EVERY_FIELD}, initialize=lambda _: {INITIALIZED})")
    config = configuration(b=listing(tool("bare")), none=MISSING, a=a)
    async with connected(config) as client:
        answer = text(await client.call_tool("open_toolbox", {"toolbox_name": "box"}))
    reason = json.dumps(json.loads(answer)["servers_failed"]["none"])
    assert answer == (
        '{"toolbox":"box","description":"A box","servers_connected":2,'
        f'"servers_failed":{{"none":{reason}}},'
        '"instructions":{"a":"Größe zählt"},"tools":['
        '{"name":"box__b__bare","description":"Tool from box/b",'
        '"source_server":"b","toolbox_name":"box","inputSchema":{"type":"object"},'
        '"_meta":{"source_server":"b","toolbox_name":"box","original_name":"bare"}},'
        '{"name":"box__a__read","description":"[box/a] Liest ä",'
        '"source_server":"a","toolbox_name":"box",'
        '"annotations":{"readOnlyHint":true,"x":1},'
        '"inputSchema":{"type":"object","$defs":{"x":true}},"title":"T",'
        '"x-vendor":{"deep":[null,1.5]},"_meta":{"own":null,"source_server":"a",'
        '"toolbox_name":"box","original_name":"read"}}]}'
    )


@pytest.mark.parametrize(
    "filters, visible",
    [
        (["read_*", "list"], ["read_file", "list"]),
        (["?ist", "READ_*"], ["list"]),
        ([], []),
        ("*", ["read_file", "write_file", "list"]),
    ],
)
async def test_a_tool_that_is_filtered_out_can_be_neither_seen_nor_called(
    filters: Any, visible: list[str]
) -> None:
    all_names = ["read_file", "write_file", "list"]
    server = {**listing(*map(tool, all_names)), "toolFilters": filters}
    async with opened(a=server) as client:
        assert await shown_names(client) == [f"box__a__{name}" for name in visible]
        results = [await use(client, "a", name) for name in all_names]
    called = [n for n, r in zip(all_names, results) if "has no tool" not in text(r)]
    assert (
        called == visible == [n for n, r in zip(all_names, results) if not r.is_error]
    )


async def test_opening_again_starts_only_what_is_not_up(tmp_path: Path) -> None:
    file, later = tmp_path / "a", tmp_path / "later"
    servers = {"a": entry("noted", file), "b": entry("plain", cwd=str(later))}
    async with connected(configuration(**servers)) as client:
        first = await open_box(client)
        assert await open_box(client) == first and list(first["servers_failed"]) == [
            "b"
        ]
        later.mkdir()
        assert (await open_box(client))["servers_connected"] == 2
    assert len(noted_pids(file)) == 1


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_twenty_concurrent_opens_start_each_server_once(
    tmp_path: Path, mode: str
) -> None:
    servers = {name: entry("noted", tmp_path / name) for name in "abc"}
    async with connected(configuration(**servers), mode) as client:
        answers = await at_once(20, functools.partial(open_box, client))
    assert [answer["servers_connected"] for answer in answers] == [3] * 20
    assert [len(noted_pids(tmp_path / name)) for name in "abc"] == [1, 1, 1]


async def test_the_same_server_in_two_toolboxes_is_two_processes() -> None:
    config = configuration(a=entry("plain"))
    config["toolboxes"]["other"] = config["toolboxes"]["box"]
    found = set()
    async with connected(config) as client:
        for box in ("box", "other"):
            await client.call_tool("open_toolbox", {"toolbox_name": box})
            arguments = {"toolbox_name": box, "tool_name": f"{box}__a__pid"}
            found.add(text(await client.call_tool("use_tool", arguments)))
    assert len(found) == 2 and all(map(str.isdigit, found))


async def test_a_failing_server_costs_only_itself() -> None:
    async with connected(configuration(a=MISSING, b=entry("plain"))) as client:
        [(server, reason)] = (await open_box(client))["servers_failed"].items()
        failed = await use(client, "a", "echo")
        assert server == "a" and failed.is_error and reason in text(failed)
        assert text(await use(client, "b", "echo", {"x": 1})) == '{"x": 1}'


async def test_where_all_servers_fail_the_toolbox_is_closed_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench, "CONNECT_TIMEOUT", 1)
    silent = entry("noted", tmp_path / "silent", tmp_path / "never")
    async with connected(configuration(x=MISSING, silent=silent)) as client:
        open_it = functools.partial(client.call_tool, "open_toolbox")
        results = await at_once(2, lambda: open_it({"toolbox_name": "box"}))
        for result in results:
            assert result.is_error and "no-such-command" in text(result)
            assert "no answer within 1 seconds" in text(result)
        assert text(await use(client, "silent", "pid")) == (
            "Error executing tool 'box__silent__pid' in toolbox 'box': Toolbox 'box' is "
            "not currently open. Please open it first with open_toolbox."
        )
        [pid] = noted_pids(tmp_path / "silent")
        await until(lambda: not is_alive(pid))


async def test_an_open_whose_servers_fail_does_not_end_another_one(
    tmp_path: Path,
) -> None:
    """`a` fails at first, and `b` once `a` was started again: by the second open."""
    file, gate = str(tmp_path / "a"), tmp_path / "gate"
    tries = f"os.path.exists({file!r}) and len(open({file!r}).readlines())"
    a = f"noted({file!r}, {str(gate)!r}) if {tries} else note({file!r}, 0)"
    config = configuration(a=runs(a), b=runs(f"while ({tries}) < 2: time.sleep(0.01)"))
    answers: list[dict[str, Any]] = []

    async def open_it(**options: Any) -> None:
        answers.append(await open_box(client, **options))

    async def on_progress(done: float, total: float | None, name: str | None) -> None:
        if name == "a" and not gate.exists():
            tasks.start_soon(open_it)
        elif name == "b":
            gate.touch()

    async with connected(config) as client, anyio.create_task_group() as tasks:
        await open_it(progress_callback=on_progress)
        assert (await use(client, "a", "pid")).is_error is False
    assert [answer["servers_connected"] for answer in answers] == [1, 1]


async def test_a_slow_server_comes_up_in_the_background(tmp_path: Path) -> None:
    slow = entry("noted", tmp_path / "slow", tmp_path / "gate")
    async with connected(configuration(slow=slow, fast=entry("plain"))) as client:
        with anyio.fail_after(workbench.OPEN_TIMEOUT + 2):
            answer = await open_box(client)
        assert (answer["servers_connected"], answer["servers_connecting"]) == (
            1,
            ["slow"],
        )
        assert {tool["source_server"] for tool in answer["tools"]} == {"fast"}
        (tmp_path / "gate").touch()
        answer = await open_box(client)
    assert answer["servers_connected"] == 2 and "servers_connecting" not in answer
    assert len(noted_pids(tmp_path / "slow")) == 1


async def test_after_the_timeout_the_first_server_that_is_up_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
    slow = entry("noted", tmp_path / "slow", tmp_path / "gate")
    answers: list[str] = []
    async with opened(slow=slow, none=MISSING, fast=entry("plain")) as client:
        answer = await open_box(client)  # a repeated open waits the same way
        assert (answer["servers_connected"], answer["servers_connecting"]) == (
            1,
            ["slow"],
        )

        async def use_slow() -> None:
            answers.append(text(await use(client, "slow", "pid")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use_slow)  # waits for a server that is starting
            assert text(await use(client, "fast", "echo", {"x": 1})) == '{"x": 1}'
            (tmp_path / "gate").touch()
    assert answers == [str(pid) for pid in noted_pids(tmp_path / "slow")]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_progress_tells_each_server_that_settles(
    tmp_path: Path, mode: str
) -> None:
    slow = entry("noted", tmp_path / "slow", tmp_path / "gate")
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(done: float, total: float | None, name: str | None) -> None:
        told.append((done, total, name))
        if len(told) == 2:
            (tmp_path / "gate").touch()

    config = configuration(slow=slow, none=MISSING, fast=entry("plain"))
    async with connected(config, mode) as client:
        await open_box(client, progress_callback=on_progress)
    assert [done for done, _, _ in told] == [1, 2, 3]
    assert {(total, name) for _, total, name in told[:2]} == {(3, "none"), (3, "fast")}
    assert told[2:] == [(3, 3, "slow")]


async def test_an_unknown_toolbox_is_answered_with_those_that_exist() -> None:
    config = configuration(a=entry("plain"))
    config["toolboxes"]["other"] = config["toolboxes"]["box"]
    async with connected(config) as client:
        result = await client.call_tool("open_toolbox", {"toolbox_name": "bx"})
    assert result.is_error
    assert text(result) == "Toolbox 'bx' not found. Available toolboxes: box, other"


SPEAK = "sys.stderr.write('one\\ntwo'); sys.stderr.flush(); "
LISTED = "serve_raw(tools_list=lambda _: {})".replace


@pytest.mark.parametrize(
    "server, parts",
    [
        (MISSING, ["no-such-command", "No such file or directory"]),
        (entry("plain", cwd="/no/such/folder"), ["/no/such/folder", "No such file"]),
        ({"command": "/dev/null"}, ["/dev/null", "Permission denied"]),
        (runs(f"{SPEAK}sys.exit(3)"), ["exited", "status 3", "one", "two"]),
        (runs(f"{SPEAK}os.kill(os.getpid(), 9)"), ["SIGKILL", "one", "two"]),
        (runs("os.kill(os.getpid(), 40)"), ["killed", "40"]),
        (runs("print('Usage: ...\\n{}')"), ["exited", "status 0"]),
        (runs("serve_raw(initialize=refuse)"), ["refused as asked"]),
        (runs("serve_raw(tools_list=refuse)"), ["refused as asked"]),
        (runs(LISTED("{}", "{}")), ["tools: "]),
        (runs(LISTED("{}", "{'tools': {}}")), ["tools: "]),
        (runs(LISTED("{}", "{'tools': [{'name': ''}]}")), ["tools.0.inputSchema: "]),
        (runs(LISTED("{}", "{'tools': [tool(), tool(1)]}")), ["tools.1.name: "]),
        (runs(LISTED("{}", "{'tools': [], 'nextCursor': 1}")), ["nextCursor: "]),
        (runs(LISTED("{}", "[]")), ["result"]),
    ],
)
async def test_the_reason_of_a_failure_is_one_line_that_says_why(
    server: dict[str, Any], parts: list[str]
) -> None:
    async with connected(configuration(bad=server, good=entry("plain"))) as client:
        reason = (await open_box(client)).get("servers_failed", {}).get("bad", "")
    assert [part for part in parts if part not in reason] == [] and reason.isprintable()


@pytest.mark.parametrize(
    "code, expected",
    [
        ("serve_raw(tools_list=lambda r: refuse(r, -32601))", []),
        ("print('garbage\\n{}\\n[1]', flush=True); serve_raw(tool('x'))", ["x"]),
        ("page(r, lambda n: n + 1 if n < 2 else None)", ["t0", "t1", "t2"]),
        ("page(r, lambda n: 1)", ["t0", "t1"]),
        ("page(r, lambda n: n + 1)", [f"t{number}" for number in range(250)]),
    ],
)
async def test_a_tool_list_is_read_to_its_end(code: str, expected: list[str]) -> None:
    if code.startswith("page"):
        code = f"serve_raw(tools_list=lambda r: {code})"
    async with connected(configuration(a=runs(code))) as client:
        assert await shown_names(client) == [f"box__a__{name}" for name in expected]


# === Using a tool =====================================================================


NOT_OPEN = (
    "Toolbox 'shut' is not currently open. Please open it first with open_toolbox."
)
NAME_FORM = "{toolbox}__{server}__{tool}"


@pytest.mark.parametrize(
    "toolbox, tool_name, reason",
    [
        ("shut", "shut__a__echo", NOT_OPEN),
        ("no", "no__a__echo", "Toolbox 'no' not found. Available toolboxes: box, shut"),
        ("box", "echo", NAME_FORM),
        ("box", "", NAME_FORM),
        ("box", "box__a", NAME_FORM),
        ("box", "box__a__", NAME_FORM),
        ("box", "box____echo", NAME_FORM),
        ("box", "__a__echo", NAME_FORM),
        ("box", "shut__a__echo", "'shut'"),
        ("box", "box__c__echo", "a, b"),
        ("box", "box__a__ecoh", "box__a__echo"),
        ("box", "box__a__Echo", "box__a__echo"),
    ],
)
async def test_a_name_that_leads_nowhere_is_an_error_that_helps(
    toolbox: str, tool_name: str, reason: str
) -> None:
    config = configuration(a=entry("plain"), b=entry("plain"))
    config["toolboxes"]["shut"] = config["toolboxes"]["box"]
    async with connected(config) as client:
        await open_box(client)
        arguments = {"toolbox_name": toolbox, "tool_name": tool_name}
        result = await client.call_tool("use_tool", arguments)
    prefix = f"Error executing tool '{tool_name}' in toolbox '{toolbox}': "
    assert result.is_error and text(result).startswith(prefix)
    assert reason in text(result).removeprefix(prefix)


ECHO = {"toolbox_name": "box", "tool_name": "box__a__echo"}


@pytest.mark.parametrize(
    "name, arguments, field",
    [
        ("open_toolbox", None, "toolbox_name"),
        ("open_toolbox", {"toolbox_name": 5}, "toolbox_name"),
        ("open_toolbox", {"toolbox_name": "box", "servers": []}, "servers"),
        ("use_tool", {"tool_name": "box__a__echo"}, "toolbox_name"),
        ("use_tool", {"toolbox_name": "box"}, "tool_name"),
        ("use_tool", {**ECHO, "tool_name": None}, "tool_name"),
        ("use_tool", {**ECHO, "toolbox_name": ["box"]}, "toolbox_name"),
        ("use_tool", {**ECHO, "args": {}}, "args"),
        ("use_tool", {**ECHO, "arguments": [1]}, "arguments"),
        ("use_tool", {**ECHO, "arguments": 0}, "arguments"),
        ("use_tool", {**ECHO, "arguments": "x=1"}, "arguments"),
        ("use_tool", {**ECHO, "arguments": ""}, "arguments"),
        ("use_tool", {**ECHO, "arguments": "[1]"}, "arguments"),
        ("use_tool", {**ECHO, "arguments": '"{}"'}, "arguments"),
        ("use_tool", {**ECHO, "arguments": '{"x": NaN}'}, "arguments"),
        ("use_tool", {**ECHO, "arguments": r'{"x": "\ud83d"}'}, "arguments"),
    ],
)
async def test_bad_arguments_of_a_meta_tool_are_an_error_that_names_the_field(
    name: str, arguments: dict[str, Any] | None, field: str
) -> None:
    async with opened(a=entry("plain")) as client:
        result = await client.call_tool(name, arguments)
        assert result.is_error and f"'{field}'" in text(result)
        assert text(await use(client, "a", "echo", {"x": 1})) == '{"x": 1}'


VALUES = {
    "null": None,
    "Größe 😀": [1, -2.5, True, {"": None}],
    "big": 2**70,
    "s": "{}",
}


@pytest.mark.parametrize(
    "given, received",
    [
        ({}, {}),
        ({"arguments": None}, {}),
        ({"arguments": VALUES}, VALUES),
        ({"arguments": json.dumps(VALUES)}, VALUES),
    ],
)
async def test_arguments_reach_the_server_as_they_are(
    given: dict[str, Any], received: dict[str, Any]
) -> None:
    async with opened(a=entry("plain")) as client:
        result = await client.call_tool("use_tool", {**ECHO, **given})
    assert json.loads(text(result)) == received


@pytest.mark.parametrize("name", ["box__a__echo", "echo", "OPEN_TOOLBOX", ""])
async def test_any_other_tool_is_a_protocol_error_with_a_hint(name: str) -> None:
    async with opened(a=entry("plain")) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(name, {})
    assert caught.value.code == -32602 and "use_tool" in caught.value.message
    assert caught.value.message.startswith(f"Tool '{name}' not found: ")


@pytest.mark.parametrize("name", ["a__b", "_a", "__", "two words", "😀 ü", "x" * 200])
async def test_a_tool_of_any_name_can_be_called(name: str) -> None:
    async with opened(a=listing(tool("other"), tool(name))) as client:
        assert f"box__a__{name}" in await shown_names(client)
        assert text(await use(client, "a", name, {"x": 1})) == '{"x": 1}'


# === Results ==========================================================================


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
RESULTS: dict[str, dict[str, Any]] = {
    "every kind of block": {"content": BLOCKS},
    "several megabytes": text_result("ä😀x" * 1_000_000),
    "nothing": {"content": []},
    "structured": text_result("", structuredContent={"n": 1, "deep": [{"x": None}]}),
    "not its schema": text_result("", structuredContent={"n": "no integer"}),
    "an error": text_result("went wrong", isError=True),
    "meta": text_result("x", isError=False, _meta={"example.com/x": {"id": None}}),
}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("kind", RESULTS)
async def test_a_result_comes_as_the_server_sent_it(kind: str, mode: str) -> None:
    async with opened(mode, a=entry("mirror")) as client:
        result = await use(client, "a", "answer", {"result": RESULTS[kind]})
    dumped = result.model_dump(mode="json", by_alias=True, exclude_unset=True)
    meta = dumped.pop("_meta", {})
    meta.pop("io.modelcontextprotocol/serverInfo", None)  # the newer era's, of this hop
    assert dumped.pop("resultType", "complete") == "complete"
    assert dumped | ({"_meta": meta} if meta else {}) == RESULTS[kind]


@pytest.mark.parametrize("code", [-32000, -32602, -32603, 42])
async def test_an_error_of_the_server_is_told_with_code_and_message(code: int) -> None:
    error = {"code": code, "message": "no luck", "data": {"more": 1}}
    async with opened(a=entry("mirror")) as client:
        pid = text(await use(client, "a", "pid"))
        result = await use(client, "a", "answer", {"error": error})
        assert text(await use(client, "a", "pid")) == pid  # not taken for a death
    prefix = "Error executing tool 'box__a__answer' in toolbox 'box': "
    assert result.is_error and text(result).startswith(prefix)
    assert str(code) in text(result) and "no luck" in text(result)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("code", [-32042, -32021])
async def test_an_error_that_addresses_the_client_passes_through(
    code: int, mode: str
) -> None:
    error = {"code": code, "message": "client, act", "data": {"x": [None]}}
    async with opened(mode, a=entry("mirror")) as client:
        with pytest.raises(MCPError) as caught:
            await use(client, "a", "answer", {"error": error})
    assert caught.value.error.model_dump(exclude_unset=True) == error


@pytest.mark.parametrize(
    "answer, field",
    [
        ('"result": {}', "content"),
        ('"result": {"content": [{"type": "text"}]}', "text"),
        ('"result": {"content": [{"type": "image", "data": "aGk="}]}', "mimeType"),
        ('"result": {"content": [], "isError": "maybe"}', "isError"),
        ('"result": []', "result"),
        ('"result": null', "result"),
        ('"error": {"message": "x"}', "code"),
        (f'"result": {"[" * 9000}{"]" * 9000}', "not valid MCP"),
        ('"result": {"content": [}', "cannot be read"),
    ],
)
async def test_an_answer_that_is_not_valid_mcp_is_an_error_that_names_the_field(
    answer: str, field: str
) -> None:
    line = f'{{"jsonrpc": "2.0", "id": ID, {answer}}}'
    async with opened(a=entry("mirror")) as client:
        pid = text(await use(client, "a", "pid"))
        with anyio.fail_after(5):
            result = await use(client, "a", "answer", {"line": line})
        assert text(await use(client, "a", "pid")) == pid
    prefix = "Error executing tool 'box__a__answer' in toolbox 'box': "
    assert result.is_error and text(result).startswith(prefix)
    assert field in text(result).removeprefix(prefix)


async def test_the_last_words_of_a_server_are_its_own_error() -> None:
    code = """
def call(request):
    for _ in range(9):
        send({"method": "notifications/message", "params": {"level": "info", "data": 1}})
    send({"id": request["id"], "error": {"code": -32042, "message": "Sign in"}})
    os._exit(3)
serve_raw(tool("sign_in"), tools_call=call)
"""
    async with opened(a=runs(code)) as client:
        with pytest.raises(MCPError) as caught:
            await use(client, "a", "sign_in")
    assert (caught.value.code, caught.value.message) == (-32042, "Sign in")


async def test_a_server_that_dies_while_it_lists_its_tools_again_is_started_again(
    tmp_path: Path,
) -> None:
    code = f"""
life = Path({str(tmp_path / "life")!r})
def listed(_):
    if not life.exists():
        life.write_text("1")
        send({{"method": "notifications/tools/list_changed"}})
        return {{"tools": [tool("old")]}}
    if life.read_text() == "1":
        life.write_text("2")
        os._exit(4)
    return {{"tools": [tool("new")]}}
serve_raw(tools_list=listed)
"""
    async with opened(a=runs(code)) as client:
        assert text(await use(client, "a", "new", {})) == "{}"


@pytest.mark.parametrize(
    ("written", "read"),
    [(r"\ud83d", "\ufffd"), ("\x07", "\x07"), (r"\ud83d\ude00", "😀")],
)
async def test_text_that_is_no_good_json_is_read_all_the_same(
    written: str, read: str
) -> None:
    result = f'{{"content": [{{"type": "text", "text": "cut {written}"}}]}}'
    line = f'{{"jsonrpc": "2.0", "id": ID, "result": {result}}}'
    async with opened(a=entry("mirror")) as client:
        assert text(await use(client, "a", "answer", {"line": line})) == f"cut {read}"


async def test_a_thousand_calls_fifty_at_a_time_get_their_own_answers(
    tmp_path: Path,
) -> None:
    config = configuration(**{name: entry("disorderly", name) for name in "abc"})
    numbers, answers = iter(range(1000)), dict[int, Any]()
    async with connected_process(config, tmp_path) as client:
        await open_box(client)

        async def call_until_all_are_done() -> None:
            for number in numbers:
                server = "abc"[number % 3]
                answer = await use(client, server, "echo", {"number": number})
                answers[number] = json.loads(text(answer))

        await at_once(50, call_until_all_are_done)
    assert answers == {n: ["abc"[n % 3], {"number": n}] for n in range(1000)}


# === A server that dies ===============================================================


async def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(pid))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_death_between_calls_is_not_noticed_by_the_caller(
    tmp_path: Path, mode: str
) -> None:
    file = tmp_path / "a"
    async with opened(mode, a=entry("noted", file)) as client:
        for _ in range(10):
            await killed(noted_pids(file)[-1])
            assert text(await use(client, "a", "pid")) == str(noted_pids(file)[-1])
    assert len(noted_pids(file)) == 11


async def test_twenty_calls_after_a_death_start_the_server_once(tmp_path: Path) -> None:
    file = tmp_path / "a"
    async with opened(a=entry("noted", file)) as client:
        await killed(noted_pids(file)[0])
        results = await at_once(20, lambda: use(client, "a", "pid"))
    [_, second] = noted_pids(file)
    assert [text(result) for result in results] == [str(second)] * 20


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_opening_again_starts_a_server_that_has_died(
    tmp_path: Path, mode: str
) -> None:
    files = tmp_path / "a", tmp_path / "b"
    servers = {"a": entry("noted", files[0]), "b": entry("noted", files[1])}
    async with connected(configuration(**servers), mode) as client:
        first = await open_box(client)
        for _ in range(10):
            await killed(noted_pids(files[0])[-1])
            assert await open_box(client) == first
    assert [len(noted_pids(file)) for file in files] == [11, 1]


async def test_a_server_that_closes_its_stderr_is_not_dead() -> None:
    code = "os.dup2(os.open(os.devnull, os.O_WRONLY), 2); plain()"
    async with opened(a=runs(code)) as client:
        pid = text(await use(client, "a", "pid"))
        assert text(await use(client, "a", "pid")) == pid


async def test_use_tool_starts_a_server_that_failed_to_start(tmp_path: Path) -> None:
    later = tmp_path / "later"
    async with opened(a=entry("plain", cwd=str(later)), b=entry("plain")) as client:
        assert (await use(client, "a", "echo")).is_error
        later.mkdir()
        assert text(await use(client, "a", "echo", {"x": 1})) == '{"x": 1}'


async def test_a_server_killed_during_calls_fails_these_and_no_others(
    tmp_path: Path,
) -> None:
    file, gate = tmp_path / "a", str(tmp_path / "gate")
    results: dict[str, types.CallToolResult] = {}
    servers = {"a": entry("noted", file), "b": entry("noted", tmp_path / "b")}
    async with opened(**servers) as client:

        async def wait(key: str) -> None:
            results[key] = await use(client, key[0], "wait", {"until": gate})

        async with anyio.create_task_group() as others:
            others.start_soon(wait, "b")
            with anyio.fail_after(5):
                async with anyio.create_task_group() as calls:
                    calls.start_soon(wait, "a1")
                    calls.start_soon(wait, "a2")
                    await until(lambda: "wait" in noted_calls(file))
                    os.kill(noted_pids(file)[0], signal.SIGKILL)
            assert text(await use(client, "a", "pid")) == str(noted_pids(file)[1])
            Path(gate).touch()
    prefix = "Error executing tool 'box__a__wait' in toolbox 'box': "
    for failed in (results["a1"], results["a2"]):
        assert failed.is_error and text(failed).startswith(prefix)
        assert "SIGKILL" in text(failed) and "first words" in text(failed)
    assert noted_calls(file) == ["wait", "pid"]  # the other one was still in the pipe
    assert text(results["b"]) == str(noted_pids(tmp_path / "b")[0])


async def test_a_server_that_exits_during_a_call_has_its_last_words_in_the_error(
    tmp_path: Path,
) -> None:
    async with opened(a=entry("noted", tmp_path / "a")) as client:
        with anyio.fail_after(3):
            result = await use(client, "a", "exit")
        assert not (await use(client, "a", "pid")).is_error
    parts = ("exited", "status 7", "first words", "last words")
    assert (
        result.is_error and [part for part in parts if part not in text(result)] == []
    )
    assert noted_calls(tmp_path / "a") == ["exit", "pid"]


async def test_the_answer_of_a_server_that_then_exits_is_delivered(
    tmp_path: Path,
) -> None:
    async with opened(a=entry("noted", tmp_path / "a")) as client:
        assert text(await use(client, "a", "answer_and_exit")) == "the answer"


@pytest.mark.parametrize("during_a_call", [True, False])
async def test_the_end_of_a_server_whose_child_lives_on_is_noticed(
    tmp_path: Path, during_a_call: bool
) -> None:
    file, children = tmp_path / "a", tmp_path / "a.child"
    async with opened(a=entry("forking", file)) as client:
        with anyio.fail_after(5):
            if during_a_call:
                assert "last words" in text(await use(client, "a", "exit"))
            else:
                os.kill(noted_pids(file)[0], signal.SIGKILL)
                while len(noted_pids(file)) == 1:
                    await client.call_tool("open_toolbox", {"toolbox_name": "box"})
            assert text(await use(client, "a", "pid")) == str(noted_pids(file)[1])
        await until(lambda: not is_alive(noted_pids(children)[0]))
    left = noted_pids(file) + noted_pids(children)
    await until(lambda: not any(map(is_alive, left)))


# === Real servers =====================================================================


REAL_SERVERS = Path(workbench.__file__).parent / ".ci" / "servers"
NPM, PYPI = "node_modules/.bin/mcp-server-", "py/bin/mcp-server-"
HOME = {"name": "Zuhause 🏠", "entityType": "place", "observations": ["ä", ""]}
NOON = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
REAL_CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    f"{NPM}everything": [
        ("echo", {"message": "Grüße 😀"}),
        ("echo", {}),
        ("get-tiny-image", {}),
        ("get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("get-resource-links", {"count": 3}),
        ("get-resource-reference", {"resourceType": "Text"}),
        ("get-structured-content", {"location": "Chicago"}),
    ],
    f"{NPM}filesystem": [
        ("list_directory", {"path": "."}),
        ("read_text_file", {"path": "large ä.txt"}),
        ("read_media_file", {"path": "sound.wav"}),
        ("read_text_file", {"path": "/etc/hostname"}),
    ],
    f"{NPM}memory": [("create_entities", {"entities": [HOME]}), ("read_graph", {})],
    f"{PYPI}time": [("convert_time", NOON), ("get_current_time", {"timezone": "No"})],
    f"{PYPI}git": [
        ("git_status", {"repo_path": "."}),
        ("git_log", {"repo_path": "."}),
        ("git_show", {"repo_path": ".", "revision": "nothing"}),
    ],
}


def real_server(path: str, folder: Path) -> dict[str, Any]:
    """A real server over a small git repository; skips the test where it is absent."""
    program = REAL_SERVERS / path
    if not program.exists():
        pytest.skip(f"{program} is not installed")
    folder.mkdir()
    (folder / "large ä.txt").write_text("Größe 😀\n" * 300_000)
    (folder / "sound.wav").write_bytes(bytes(range(256)))
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["commit", "-qm", "Größe", "--allow-empty"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    arguments = ["."] if path.endswith("filesystem") else []
    return {"command": str(program), "args": arguments, "cwd": str(folder)}


@pytest.mark.parametrize("path", REAL_CALLS)
async def test_a_real_server_answers_as_it_does_without_us(
    path: str, tmp_path: Path
) -> None:
    server = real_server(path, tmp_path / "work")

    async def results(call: Callable[..., Any]) -> list[str]:
        """What the calls return, without the time of day."""
        found = [await call(name, arguments) for name, arguments in REAL_CALLS[path]]
        return [re.sub(r"\d+:\d+:\d+", "", r.model_dump_json()) for r in found]

    env = {**os.environ, "MEMORY_FILE_PATH": f"{tmp_path}/direct"}
    parameters = StdioServerParameters(**server, env=env)
    async with Client(parameters, mode="legacy") as client:
        tools = (await client.list_tools()).tools
        expected = await results(client.call_tool)
    server["env"] = {"MEMORY_FILE_PATH": f"{tmp_path}/through"}
    async with connected_process(configuration(a=server), tmp_path) as client:
        shown = (await open_box(client))["tools"]
        assert await results(functools.partial(use, client, "a")) == expected
    for tool, ours in zip(tools, shown, strict=True):
        changed = {
            "name": f"box__a__{tool.name}",
            "_meta": ours["_meta"],
            "icons": None,
        }
        changed["description"] = f"[box/a] {tool.description}"
        wanted = tool.model_dump(by_alias=True) | changed
        assert types.Tool.model_validate(ours).model_dump(by_alias=True) == wanted


# === Connections: tool changes ========================================================


in_both_eras = pytest.mark.parametrize(
    ("server", "mode"), [("changing", "legacy"), ("changing_sdk", "auto")]
)
all_remote = pytest.mark.parametrize(
    ("server", "mode"), [("http", "legacy"), ("http", "auto"), ("sse", "legacy")]
)
both_transports = pytest.mark.parametrize("transport", ["http", "sse"])


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the workbench logs."""
    caplog.set_level(logging.DEBUG, "workbench")
    return caplog


@asynccontextmanager
async def listening(command: list[str], port: int = 0) -> AsyncIterator[int]:
    """A process that serves HTTP: the port that it says it listens on."""
    env = {**os.environ, "PORT": str(port)}
    start = anyio.open_process(command, env=env, stderr=subprocess.STDOUT)
    async with await start as process:
        try:
            assert process.stdout is not None
            said = b""
            while (match := re.search(rb"port (\d+)\n", said)) is None:
                said += await process.stdout.receive()
            yield int(match[1])
        finally:
            process.kill()


def script(name: str, *arguments: object) -> list[str]:
    """The command line of a downstream server of this file."""
    config = entry(name, *arguments)
    return [config["command"], *config["args"]]


def remote(port: int, transport: str = "http", **more: Any) -> dict[str, Any]:
    """The configuration of a server that listens at this port."""
    path = "sse" if transport == "sse" else "mcp"
    url = f"http://127.0.0.1:{port}/{path}"
    return {"url": url, "transport": transport, **more}


@asynccontextmanager
async def box_with(server: str, mode: str, **callbacks: Any) -> AsyncIterator[Client]:
    """A client of a workbench with an open toolbox, whose server `a` changes."""
    async with contextlib.AsyncExitStack() as stack:
        if server in ("http", "sse"):
            process = listening(script("remote_sdk", server))
            config = remote(await stack.enter_async_context(process), server)
        else:
            config = entry(server)
        async with connected(configuration(a=config), mode, **callbacks) as client:
            with anyio.fail_after(30):
                await open_box(client)
                yield client


async def become(client: Client, *tools: dict[str, Any], **more: Any) -> None:
    result = await use(client, "a", "become", {"tools": tools, **more})
    assert not result.is_error, text(result)


async def changed(client: Client) -> list[dict[str, Any]]:
    """What `open_toolbox` shows of the tools that change, as their server lists them."""
    tools = (await open_box(client))["tools"]
    return [
        tool(shown["_meta"]["original_name"], inputSchema=shown["inputSchema"])
        for shown in tools
        if shown.get("title") != "own"
    ]


async def shows(client: Client, *tools: dict[str, Any]) -> None:
    """Wait until `open_toolbox` shows these tools."""
    with anyio.fail_after(5):
        while await changed(client) != list(tools):
            await anyio.sleep(0.01)


async def announces(client: Client, *tools: dict[str, Any]) -> None:
    """Change the tools until `open_toolbox` shows it: remote streams open late."""
    with anyio.fail_after(5):
        while await changed(client) != list(tools):
            await become(client, *tools)


@in_both_eras
async def test_a_change_is_there_for_the_next_call(server: str, mode: str) -> None:
    async with box_with(server, mode) as client:
        for count in range(20):
            shown = tool("shown", inputSchema={"type": "object", "required": ["x"]})
            await become(client, shown, tool(f"used_{count}"))
            assert not (await use(client, "a", f"used_{count}")).is_error, count
            edited = tool("shown", inputSchema={"type": "object", "title": str(count)})
            await become(client, edited, tool(f"added_{count}"))
            assert await changed(client) == [edited, tool(f"added_{count}")]


@all_remote
async def test_a_remote_server_announces_changes_too(server: str, mode: str) -> None:
    async with box_with(server, mode) as client:
        for name in "abc":
            await announces(client, tool(name))


async def test_a_thousand_announcements_cost_two_or_three_listings() -> None:
    async with box_with("changing", "legacy") as client:
        before = int(text(await use(client, "a", "listings")))
        await become(client, tool("x"), times=1000, seconds=0.5)
        assert not (await use(client, "a", "x")).is_error
        assert await changed(client) == [tool("x")]
        assert int(text(await use(client, "a", "listings"))) - before in (2, 3)


async def test_only_a_call_of_an_unknown_tool_waits_for_a_refresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with box_with("changing_sdk", "auto") as client:
        await become(client, tool("x"), seconds=1000)
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 1000)
        assert text(await use(client, "a", "echo", {"message": "x"})) == "Echo: x"
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0.1)
        assert (await use(client, "a", "x")).is_error
        assert await changed(client) == []


async def test_a_change_during_a_refresh_counts(log: pytest.LogCaptureFixture) -> None:
    async with box_with("changing", "legacy") as client:
        await become(client, tool("x"), meanwhile=[tool("y")])
        assert await changed(client) == [tool("y")]
    skipped = "Skipping duplicate discovery - already in progress for: box/a"
    assert ("workbench", logging.DEBUG, skipped) in log.record_tuples


async def test_a_change_while_connecting_is_not_lost() -> None:
    config = configuration(a=entry("changing", "listChanged", "late"))
    async with connected(config) as client:
        assert await changed(client) == [tool("late")]


@pytest.mark.parametrize("fault", ["error", "{}", '{"tools": 1}', '{"tools": [{}]}'])
async def test_a_refresh_that_fails_half_way_keeps_the_old_list(fault: str) -> None:
    async with box_with("changing", "legacy") as client:
        await become(client, tool("x"))
        await shows(client, tool("x"))
        await become(client, tool("y"), fault=fault)
        assert await changed(client) == [tool("x")]
        await become(client, tool("z"), fault="")
        assert await changed(client) == [tool("z")]


async def test_a_server_that_dies_during_a_refresh_is_started_again() -> None:
    async with box_with("changing", "legacy") as client:
        await become(client, tool("x"), fault="exit")
        await client.call_tool("open_toolbox", {"toolbox_name": "box"})
        assert await changed(client) == []
        assert text(await use(client, "a", "listings")) == "1"


@pytest.mark.parametrize("lose", ["gracefully", "error"])
async def test_a_lost_listen_stream_is_opened_again(lose: str) -> None:
    async with box_with("changing_sdk", "auto") as client:
        await become(client, tool("x"))
        await shows(client, tool("x"))
        await become(client, tool("y"), lose=lose)
        await shows(client, tool("y"))
        await become(client, tool("z"))
        assert await changed(client) == [tool("z")]


@in_both_eras
async def test_announcements_are_logged(
    server: str, mode: str, log: pytest.LogCaptureFixture
) -> None:
    async with box_with(server, mode) as client:
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
    assert levels == [logging.INFO]


async def test_an_announcement_without_the_capability_warns_and_is_processed(
    log: pytest.LogCaptureFixture,
) -> None:
    async with connected(configuration(a=entry("changing", "none"))) as client:
        await open_box(client)
        await become(client, tool("x"))
        assert await changed(client) == [tool("x")]
    warning = (
        "Received tools notification from server without listChanged capability: box/a"
    )
    assert log.record_tuples.count(("workbench", logging.WARNING, warning)) == 1
    assert "Server supports tool change notifications: box/a" not in log.messages


async def test_an_announcement_after_shutdown_began_does_no_harm(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    async with connected(configuration(a=entry("farewell", tmp_path / "m"))) as client:
        await open_box(client)
    assert (tmp_path / "m").exists()
    assert not [record for record in log.records if record.levelno > logging.INFO]


async def test_tool_filters_apply_to_a_refreshed_list() -> None:
    server = entry("changing", toolFilters=["become", "read_*"])
    async with connected(configuration(a=server)) as client:
        await open_box(client)
        await become(client, tool("read_x"), tool("write_x"))
        assert (await use(client, "a", "write_x")).is_error
        assert await changed(client) == [tool("read_x")]


@in_both_eras
async def test_the_client_is_never_told_of_changes(server: str, mode: str) -> None:
    messages: list[Any] = []

    async def receive(message: Any) -> None:
        messages.append(message)

    async with box_with(server, mode, message_handler=receive) as client:
        await become(client, tool("x"))
        await shows(client, tool("x"))
        tools = client.server_capabilities.tools
    assert tools is not None and tools.list_changed is False
    assert messages == []


# === Connections: remote servers ======================================================


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a `scripted_remote`."""
    async with listening(script("scripted_remote")) as port:
        yield port


@all_remote
async def test_a_remote_server_is_spoken_to_in_the_era_of_the_client(
    server: str, mode: str
) -> None:
    async with box_with(server, mode) as client:
        era = text(await use(client, "a", "era"))
    assert era == ("2026-07-28" if mode == "auto" else "2025-11-25")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_remote_result_may_have_megabytes(mode: str) -> None:
    async with box_with("http", mode) as client:
        size = 5_000_000
        assert len(text(await use(client, "a", "big", {"bytes": size}))) == size


async def test_a_message_over_sse_may_have_a_megabyte_and_no_more() -> None:
    async with box_with("sse", "legacy") as client:
        for size, fits in ((1_000_000, True), (5_000_000, False), (1_000_000, True)):
            result = await use(client, "a", "big", {"bytes": size})
            assert (len(text(result)) == size) == fits


@both_transports
async def test_headers_are_sent_with_every_request(
    transport: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "sesame-open")
    headers = {"Authorization": "Bearer ${PASSWORD}"}
    server = remote(port, transport, headers=headers)
    async with connected(configuration(a=server)) as client:
        await open_box(client)
        assert text(await use(client, "a", "credentials")) == '["Bearer sesame-open"]'


@all_remote
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:1/mcp", "refused"),
        ("http://no-such-host.invalid/mcp", ""),
        ("http://127.0.0.1:{}/401", "HTTP 401.*headers"),
        ("http://127.0.0.1:{}/404", "HTTP 404"),
        ("http://127.0.0.1:{}/500", "HTTP 500"),
        ("http://127.0.0.1:{}/html", "html"),
        ("http://127.0.0.1:{}/hang", ""),
        ("http://127.0.0.1:{}/reset", ""),
        ("http://127.0.0.1:{}/cut", ""),
        ("https://127.0.0.1:{}/mcp", "SSL"),
    ],
)
async def test_a_remote_server_that_does_not_connect_says_why_in_one_line(
    address: str,
    reason: str,
    server: str,
    mode: str,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workbench, "CONNECT_TIMEOUT", 2)
    url, headers = address.format(port), {"Authorization": "open-sesame"}
    failing = {"url": f"{url}?key=sesame", "transport": server, "headers": headers}
    async with connected(configuration(a=failing, b=entry("plain")), mode) as client:
        answer = await open_box(client)
        assert answer["servers_connected"] == 1
        why = answer["servers_failed"]["a"]
        assert url in why and "sesame" not in why
        assert re.fullmatch(f".*{reason}.*", why)


@both_transports
async def test_a_remote_server_that_hangs_keeps_nobody_waiting(
    transport: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0.1)
    hanging = {"url": f"http://127.0.0.1:{port}/hang", "transport": transport}
    async with connected(configuration(a=hanging, b=entry("plain"))) as client:
        answer = await open_box(client)
        assert answer["servers_connecting"] == ["a"]
        assert text(await use(client, "b", "echo", {"x": 1})) == '{"x": 1}'


@both_transports
@pytest.mark.parametrize("fault", ["reset", "cut", "401", "500"])
async def test_a_request_that_fails_costs_only_its_own_call(
    fault: str, transport: str, port: int
) -> None:
    answers = []

    async def wait() -> None:
        answers.append(text(await use(client, "a", "wait")))

    async with connected(configuration(a=remote(port, transport))) as client:
        await open_box(client)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as siblings:
                for _ in range(3):
                    siblings.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                failed = await use(client, "a", fault)
                await use(client, "a", "release")
    prefix = f"Error executing tool 'box__a__{fault}' in toolbox 'box': "
    assert failed.is_error and text(failed).startswith(prefix)
    assert f"HTTP {fault}" in text(failed) or not fault.isdigit()
    assert answers == ["null"] * 3


async def test_no_number_of_silent_calls_is_in_the_way_of_another(port: int) -> None:
    async with connected(configuration(a=remote(port))) as client:
        await open_box(client)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as calls:
                for _ in range(120):
                    calls.start_soon(use, client, "a", "wait")
                await anyio.wait_all_tasks_blocked()
                assert not (await use(client, "a", "release")).is_error


@both_transports
async def test_no_timeout_cuts_a_silent_call(
    transport: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = set()
    send = httpx2.AsyncClient.send

    async def watch(self: Any, request: httpx2.Request, **options: Any) -> Any:
        limits.add((request.method, request.extensions["timeout"]["read"]))
        return await send(self, request, **options)

    monkeypatch.setattr(httpx2.AsyncClient, "send", watch)
    async with connected(configuration(a=remote(port, transport))) as client:
        await open_box(client)
        await use(client, "a", "calls")
    assert {limit for limit in limits if limit[0] == "POST"} == {("POST", None)}
    assert {limit for limit in limits if limit[0] == "GET"} == {("GET", None)}


@pytest.mark.parametrize("stale", ["404", "400"])
async def test_a_call_to_a_forgotten_session_goes_to_a_fresh_one(
    stale: str, port: int
) -> None:
    async with connected(configuration(a=remote(port))) as client:
        await open_box(client)
        await use(client, "a", "forget", {"stale": stale})
        assert text(await use(client, "a", "calls")) == "2"


async def test_all_calls_to_a_forgotten_session_go_to_a_fresh_one(port: int) -> None:
    results = []

    async def call() -> None:
        results.append(await use(client, "a", "credentials"))

    async with connected(configuration(a=remote(port))) as client:
        await open_box(client)
        await use(client, "a", "forget")
        async with anyio.create_task_group() as calls:
            for _ in range(9):
                calls.start_soon(call)
    assert [result.is_error for result in results] == [False] * 9


@pytest.mark.parametrize(
    ("code", "message"),
    [(-32602, "no such session_name"), (-32000, "booking session 7 is full")],
)
async def test_an_answer_with_status_400_does_not_repeat_the_call(
    code: int, message: str, port: int
) -> None:
    async with connected(configuration(a=remote(port))) as client:
        await open_box(client)
        error = {"code": code, "message": message}
        refused = await use(client, "a", "refuse", error)
        assert refused.is_error and f"{code}: {message}" in text(refused)
        assert text(await use(client, "a", "calls")) == "2"


async def test_a_notification_that_a_server_does_not_take_holds_up_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbench, "NOTIFY_TIMEOUT", 0.1)
    async with connected(configuration(a=remote(port))) as client:
        await open_box(client)
        with anyio.move_on_after(0.2):
            await use(client, "a", "wait")
        with anyio.fail_after(5):
            assert not (await use(client, "a", "release")).is_error


@pytest.mark.parametrize("program", ["remote_sdk", "server-everything"])
@all_remote
async def test_a_remote_server_that_was_restarted_answers_the_next_call(
    program: str, server: str, mode: str
) -> None:
    command = script("remote_sdk", server)
    if program == "server-everything":
        executable = REAL_SERVERS / "node_modules" / ".bin" / "mcp-server-everything"
        if not executable.exists():
            pytest.skip("server-everything is not installed")
        command = [str(executable), "sse" if server == "sse" else "streamableHttp"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async with connected(configuration(a=remote(port, server)), mode) as client:
        async with listening(command, port):
            await open_box(client)
        async with listening(command, port):
            result = await use(client, "a", "echo", {"message": "restarted"})
            assert text(result) == "Echo: restarted"
        assert (await use(client, "a", "echo", {"message": "down"})).is_error
        async with listening(command, port):
            result = await use(client, "a", "echo", {"message": "back"})
            assert text(result) == "Echo: back"
            if program == "remote_sdk":
                await announces(client, tool("x"))


# === Connections: reconnecting ========================================================


def resources() -> dict[str, int]:
    """How many there are of what a reconnect must not leave behind."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return {
        "processes": len(children.read_text().split()),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "objects": sum(type(o).__module__ == "workbench" for o in gc.get_objects()),
    }


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts in /proc")
async def test_a_server_that_crashes_on_each_second_call_answers_the_others() -> None:
    async with connected(configuration(a=entry("crashing"))) as client:
        await open_box(client)
        answers = [(await use(client, "a", "call")).is_error for _ in range(3)]
        before = resources()
        answers += [(await use(client, "a", "call")).is_error for _ in range(198)]
        assert answers == [False, True] * 100 + [False]
        await until(lambda: all(n <= before[key] for key, n in resources().items()))


async def kill(pid: int) -> None:
    """Kill a server and leave the workbench the time to notice."""
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    await anyio.wait_all_tasks_blocked()


async def test_concurrent_calls_share_one_reconnect(tmp_path: Path) -> None:
    answers = set()

    async def call() -> None:
        answers.add(text(await use(client, "a", "pid")))

    async with connected(configuration(a=entry("counted", tmp_path / "j"))) as client:
        await open_box(client)
        await kill(int(text(await use(client, "a", "pid"))))
        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(call)
    assert len(answers) == 1
    assert (tmp_path / "j").read_text() == "started\n" * 2


async def test_a_server_that_keeps_failing_costs_each_call_one_attempt(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "j"
    servers = {"a": entry("counted", journal, "not today"), "b": entry("plain")}
    async with connected(configuration(**servers)) as client:
        await open_box(client)
        for count in (2, 3, 4):
            result = await use(client, "a", "pid")
            assert result.is_error and "not today" in text(result)
            await use(client, "b", "echo")
            assert journal.read_text() == "started\n" * count


async def test_a_reconnect_takes_the_current_tools_and_keeps_the_filters(
    tmp_path: Path,
) -> None:
    server = entry("counted", tmp_path / "j", toolFilters=["pid", "kept_*"])
    async with connected(configuration(a=server)) as client:
        await open_box(client)
        await kill(int(text(await use(client, "a", "pid"))))
        assert not (await use(client, "a", "kept_2")).is_error
        assert (await use(client, "a", "hidden_2")).is_error
        assert await changed(client) == [tool("pid"), tool("kept_2")]


# === A transparent proxy ==============================================================


EVERYTHING = REAL_SERVERS / "node_modules" / ".bin" / "mcp-server-everything"


FORM: dict[str, Any] = {"mode": "form", "message": "Who?"}
FORM |= {"requestedSchema": {"type": "object", "properties": {}}}
SIGN_IN = {"mode": "url", "message": "Sign in", "url": "https://a.b/c?d=e"}
SIGN_IN |= {"elicitationId": "e1"}
ELICIT = {"method": "elicitation/create", "params": FORM}
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
REFUSALS = {"action": "decline"}, {"action": "cancel"}
PARIS = {"type": "text", "text": "Paris"}
SAMPLED = {"role": "assistant", "model": "m", "content": PARIS, "stopReason": "end"}
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
        capabilities = types.SamplingCapability(tools=types.SamplingToolsCapability())
        callbacks = {
            "elicitation_callback": (types.ElicitResult, ACCEPTED),
            "sampling_callback": (types.CreateMessageResultWithTools, SAMPLED),
            "list_roots_callback": (types.ListRootsResult, ROOTS),
        }
        self.callbacks: dict[str, Any] = {
            name: functools.partial(self._answer, *usual)
            for name, usual in callbacks.items()
            if able in name
        } | {"message_handler": self._listen}
        if able in "sampling_capabilities":
            self.callbacks["sampling_capabilities"] = capabilities

    async def _answer(
        self, model: Any, usual: Any, context: Any, params: Any = None
    ) -> Any:
        meta = context.meta or {}
        self.heard.append(dumped(params) if params else {"_meta": meta})
        answer = meta.get("answer", usual)
        if answer == "never":
            self.asked.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.withdrawn.set()
        return (types.ErrorData if "code" in answer else model).model_validate(answer)

    async def _listen(self, message: Any) -> None:
        self.heard.append(dumped(message))


@dataclasses.dataclass
class Peer:
    """A server as a client sees it: directly or, with a name, in the box `box`."""

    client: Client
    ear: Ear
    name: str | None = None

    async def call(
        self, tool: str, arguments: Any = None, on_progress: Any = None, **params: Any
    ) -> dict[str, Any]:
        """The wire result of a tool call, or `{"error": ...}` with the wire error."""
        params |= {"name": tool, "arguments": arguments or {}}
        if self.name is not None:
            full_name = f"box__{self.name}__{tool}"
            params["arguments"] = {"arguments": params["arguments"]}
            params["arguments"] |= {"toolbox_name": "box", "tool_name": full_name}
            params["name"] = "use_tool"
        request = types.Request[Any, str](method="tools/call", params=params)
        wire_result: Any = TypeAdapter(dict[str, Any])
        send_request = self.client.session.send_request
        try:
            result: dict[str, Any] = await send_request(
                request, wire_result, progress_callback=on_progress
            )
        except MCPError as error:
            return {"error": dumped(error.error)}
        return result

    async def answer(self, tool: str, arguments: Any = None, **options: Any) -> Any:
        """The JSON that is the text of a tool's result."""
        result = await self.call(tool, arguments, **options)
        return json.loads(result["content"][0]["text"])

    async def ask_for_ever(self) -> None:
        params = {**FORM, "_meta": {"answer": "never"}}
        await self.call("ask", {"method": "elicitation/create", "params": params})


@asynccontextmanager
async def direct_peer(server: Any, mode: str, ear: Ear) -> AsyncIterator[Peer]:
    parameters = StdioServerParameters(**server, env=dict(os.environ))
    async with Client(parameters, mode=mode, **ear.callbacks) as client:
        yield Peer(client, ear)


@asynccontextmanager
async def box_peer(
    folder: Path, mode: str, ear: Ear, **servers: Any
) -> AsyncIterator[Peer]:
    """The first of these servers, in the open box of a workbench process."""
    config, name = configuration(**servers), next(iter(servers))
    async with connected_process(config, folder, mode, **ear.callbacks) as client:
        await open_box(client)
        yield Peer(client, ear, name)


# Each scenario runs against a server itself and against the workbench in front of it, in
# one connection for all of them; the client must see the same of both.

OWN_SERVERS = {
    "both": entry("both_eras"),
    "older": entry("one_era"),
    "modern": entry("one_era", types.UNSUPPORTED_PROTOCOL_VERSION),
    "modern2": entry("one_era", types.METHOD_NOT_FOUND),
}
OLDER_PAIRS = "legacy both", "legacy older"
MODERN_PAIRS = "auto both", "auto modern"
BRIDGED_PAIRS = "legacy modern", "auto older"
ALL_PAIRS = *OLDER_PAIRS, *MODERN_PAIRS, *BRIDGED_PAIRS

Run = Callable[[Peer], Awaitable[Any]]
Key = tuple[str, str, str]
SCENARIOS: dict[Key, tuple[Run, Any]] = {}


def scenario(
    expected: Any, *pairs: str, direct: bool = True, name: str = ""
) -> Callable[[Run], Run]:
    """Register what a client sees, for pairs of its mode and a server."""

    def register(run: Run) -> Run:
        title = name or run.__name__.replace("_", " ")
        for pair in pairs:
            SCENARIOS[title, pair, "workbench"] = run, expected
            if direct and pair in (*OLDER_PAIRS, *MODERN_PAIRS):
                SCENARIOS[title, pair, "direct"] = run, expected
        return run

    return register


def step(
    name: str, pairs: Any, tool: str, given: Any, result: Any, *heard: Any, **more: Any
) -> None:
    """A scenario of one call: its result, and what the client heard meanwhile."""

    async def run(peer: Peer) -> Any:
        peer.ear.heard.clear()
        answer = await peer.call(tool, given, **more)
        meta = answer.pop("_meta", {})
        meta.pop(f"{RESERVED}serverInfo", None)  # 2026-07-28 adds these two
        if answer.get("resultType") == "complete":
            del answer["resultType"]
        return answer | ({"_meta": meta} if meta else {}), list(peer.ear.heard)

    scenario((result, list(heard)), *pairs, name=name)(run)


def failure(name: str, pairs: Any, tool: str, given: Any, *parts: str) -> None:
    """A scenario of a call that fails through the workbench: parts of the reason."""

    async def run(peer: Peer) -> Any:
        result = await peer.call(tool, given)
        full_name = f"box__{peer.name}__{tool}"
        start = f"Error executing tool '{full_name}' in toolbox 'box': "
        told: str = result["content"][0]["text"]
        reason = told.removeprefix(start) if told.startswith(start) else ""
        return result["isError"], [part for part in parts if part in reason]

    scenario((True, list(parts)), *pairs, name=name, direct=False)(run)


def register_results() -> None:
    noted = {"annotations": {"audience": ["user"], "priority": 0.5}, "_meta": {"k": 1}}
    file = {"uri": "file:///a", "mimeType": "text/plain"}
    image = {"type": "image", "data": "aQ==", "mimeType": "image/png"}
    contents: list[Any] = [
        {"type": "text", "text": "é", **noted},
        {**image, **noted},
        {"type": "audio", "data": "aQ==", "mimeType": "audio/wav"},
        {"type": "resource_link", "name": "a", "title": "A", "size": 1, **file},
        {"type": "resource", "resource": {**file, "text": "t"}, **noted},
        {"type": "resource", "resource": {**file, "blob": "aQ=="}},
    ]
    meta = {"_meta": {"com.example/a": {"b": [1]}, "c": "d"}}
    structured: Any = {"y": None, "list": [None, 1.5, {"é": {}}]}
    odd = {"content": [PARIS], "structuredContent": [1, None]}
    for name, result in {
        "every kind of content": {"content": contents, "isError": False, **meta},
        "a failure of the tool": {"content": [PARIS], "isError": True},
        "nothing where the output schema wants something": {"content": []},
        "a broken output schema": {"content": [], "structuredContent": structured},
    }.items():
        step(name, ALL_PAIRS, "result", result, result)
    name = "structured content that is no object"
    step(name, MODERN_PAIRS, "result", odd, odd)
    step(name, ["legacy modern"], "result", odd, {"content": [PARIS]})
    pairs = "legacy older", "auto modern", *BRIDGED_PAIRS
    failure("an invalid answer", pairs, "result", {"content": 5}, "content")


def register_errors() -> None:
    error: dict[str, Any] = {"code": -32050, "message": "Out of paper"}
    parts = "-32050", "Out of paper"
    failure("an error", ALL_PAIRS, "error", {**error, "data": [1]}, *parts)
    for code, data in {
        types.URL_ELICITATION_REQUIRED: {"elicitations": [SIGN_IN]},
        types.MISSING_REQUIRED_CLIENT_CAPABILITY: {"requiredCapabilities": {}},
    }.items():
        error |= {"code": code, "data": data}
        step(f"error {code}", ALL_PAIRS, "error", {**error}, {"error": {**error}})
    error = {"code": -32602, "message": "Unknown", "data": {"a": [1]}}
    for key, value in {"requestState": "s", "inputResponses": {"a": ROOTS}}.items():
        name, retry = f"an error of a retry with {key}", {key: value}
        step(name, MODERN_PAIRS, "error", error, {"error": error}, **retry)
    given = {"rounds": [ROUND]}
    required = {"resultType": "input_required", "requestState": "1", **ROUND}
    step("a round of input", MODERN_PAIRS, "rounds", given, required)
    failure("input of an older client", ["legacy modern"], "rounds", given)


def progress(label: str, **token: Any) -> list[dict[str, Any]]:
    """A hundred progress notifications, `label 1` to `label 100`."""
    method, total = "notifications/progress", {"total": 100, **token}
    params = [{"progress": n, "message": f"{label} {n}"} for n in range(1, 101)]
    return [{"method": method, "params": {**total, **each}} for each in params]


def register_messages() -> None:
    def say(
        name: str, pairs: Any, messages: list[Any], *heard: Any, **more: Any
    ) -> None:
        given, nothing = {"messages": messages}, json_result(None)
        step(name, pairs, "say", given, nothing, *heard, **more)

    for token in ("mine", 0):
        name, meta = f"progress under token {token!r}", {"progressToken": token}
        say(name, ALL_PAIRS, progress("step"), *progress("step", **meta), _meta=meta)
    say("no progress without a token", ALL_PAIRS, progress("step"))
    end = {"elicitationId": "e1"}
    messages = [*LOGS, {"method": "notifications/elicitation/complete", "params": end}]
    say("logs, and the end of elicitation", OLDER_PAIRS, messages, *messages)
    say("no logs for a 2026 client", ["auto older"], LOGS)


def register_requests() -> None:
    asked = {"messages": [{"role": "user", "content": PARIS}], "maxTokens": 9}
    asked |= {"temperature": 0.5, "metadata": {"k": 1}, "stopSequences": ["."]}
    with_tools = {**asked, "tools": [tool("t")], "toolChoice": {"mode": "required"}}
    used = {"type": "tool_use", "id": "1", "name": "t", "input": {"a": [1, None]}}
    error = {"code": -7, "message": "Asleep", "data": {"why": 1}}
    for method, params, *answers in (
        ("elicitation/create", FORM, ACCEPTED, *REFUSALS, error),
        ("elicitation/create", SIGN_IN, {"action": "accept"}, *REFUSALS, error),
        ("sampling/createMessage", asked, SAMPLED, error),
        ("sampling/createMessage", with_tools, {**SAMPLED, "content": [used]}),
        ("roots/list", {}, ROOTS),
    ):
        for answer in answers:
            heard = {**params, "_meta": {"answer": answer}}
            name = f"{method} {params.get('mode', '')}: {json.dumps(answer)}"
            request, told = {"method": method, "params": heard}, json_result(answer)
            step(name, OLDER_PAIRS, "ask", request, told, heard)


register_results()
register_errors()
register_messages()
register_requests()


@scenario(OLDER, *OLDER_PAIRS, "auto older")
@scenario(MODERN, *MODERN_PAIRS, "auto modern2", "legacy modern", "legacy modern2")
async def the_era_of_the_server(peer: Peer) -> Any:
    return (await peer.answer("seen"))["era"]


OWN_META = {
    "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    "tracestate": "a=b",
    "com.example/a": {"x": None, "y": [None]},
}
HOP = [
    f"{RESERVED}{k}" for k in ("clientCapabilities", "clientInfo", "protocolVersion")
]


@scenario((OWN_META, []), *OLDER_PAIRS, "auto older", direct=False)
@scenario((OWN_META, HOP), *MODERN_PAIRS, "legacy modern", direct=False)
async def the_meta_of_a_request_without_what_belongs_to_a_hop(peer: Peer) -> Any:
    hop = {f"{RESERVED}logLevel": "debug", f"{RESERVED}x": 1}
    meta = (await peer.answer("seen", _meta={**OWN_META, **hop}))["_meta"]
    return {k: meta.pop(k) for k in OWN_META if k in meta}, sorted(meta)


@scenario(["code", "message"], "auto older", direct=False)
async def an_error_where_a_2026_client_is_asked_in_mid_call(peer: Peer) -> Any:
    return sorted(await peer.answer("ask", ELICIT))


@scenario({"who": ACCEPTED, "where": ROOTS}, *MODERN_PAIRS)
async def many_rounds_of_input(peer: Peer) -> Any:
    given: Any = {"rounds": [ROUND, {}, {}, ROUND]}
    if peer.name is None:
        return json.loads(text(await peer.client.call_tool("rounds", given)))
    return json.loads(text(await use(peer.client, peer.name, "rounds", given)))


@scenario({n: progress(n) for n in "ab"}, "legacy both", "auto both")
async def the_progress_of_two_calls_at_once(peer: Peer) -> Any:
    heard: dict[str, list[Any]] = {"a": [], "b": []}

    async def call(label: str) -> None:
        async def on_progress(n: float, total: float | None, message: Any) -> None:
            params = {"total": total, "progress": n, "message": message}
            heard[label].append({"method": "notifications/progress", "params": params})

        given = {"messages": progress(label), "with_another_call": True}
        await peer.call("say", given, on_progress)

    async with anyio.create_task_group() as tasks:
        for label in heard:
            tasks.start_soon(call, label)
    return heard


@scenario((True, True, True), "legacy both", "auto both")
async def a_hundred_calls_cancelled_at_random_moments(peer: Peer) -> Any:
    moments, known = random.Random(4), set()

    async def call(number: int, seconds: float) -> None:
        async def on_progress(started: float, *_: Any) -> None:
            known.add(started)

        with anyio.move_on_after(seconds):
            await peer.call("wait", {"number": number}, on_progress)

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(call, number, moments.uniform(0, 0.5))
    tally = await peer.answer("tally")  # it answers when none of them runs any more
    cancelled = tally["cancelled"]
    return bool(known), known <= set(cancelled), tally["started"] == cancelled


@scenario([PARIS], *OLDER_PAIRS)
async def another_result_while_a_request_is_never_answered(peer: Peer) -> Any:
    peer.ear.asked, peer.ear.withdrawn = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.ask_for_ever)
        await peer.ear.asked.wait()
        result = await peer.call("result", {"content": [PARIS]})
        tasks.cancel_scope.cancel()
    return result["content"]


@scenario(True, "legacy both")
async def a_request_withdrawn_with_the_call_that_asked(peer: Peer) -> Any:
    await another_result_while_a_request_is_never_answered(peer)
    await peer.ear.withdrawn.wait()
    return True


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Any]:
    """What the client of each scenario saw."""
    seen: dict[Key, Any] = {}
    failures = LookupError, MCPError, RuntimeError, TimeoutError, ValueError

    async def observe(peer: Peer, *where: str) -> None:
        for key, (run, _) in SCENARIOS.items():
            if key[1:] == where:
                try:
                    with anyio.fail_after(10):
                        seen[key] = await run(peer)
                except failures as error:
                    seen[key] = repr(error)

    async def through(mode: str) -> None:
        folder = tmp_path_factory.mktemp(mode)
        async with box_peer(folder, mode, Ear(), **OWN_SERVERS) as peer:
            for name in OWN_SERVERS:
                here = dataclasses.replace(peer, name=name)
                await observe(here, f"{mode} {name}", "workbench")

    async def direct(pair: str) -> None:
        mode, name = pair.split()
        async with direct_peer(OWN_SERVERS[name], mode, Ear()) as peer:
            await observe(peer, pair, "direct")

    async def everywhere() -> None:
        async with anyio.create_task_group() as tasks:
            for mode in ("legacy", "auto"):
                tasks.start_soon(through, mode)
            for pair in (*OLDER_PAIRS, *MODERN_PAIRS):
                tasks.start_soon(direct, pair)

    anyio.run(everywhere)
    return seen


@pytest.mark.parametrize("key", SCENARIOS, ids=" - ".join)
def test_a_client_sees(key: Key, observed: dict[Key, Any]) -> None:
    assert observed[key] == SCENARIOS[key][1]


@pytest.mark.parametrize(
    ("mode", "server", "able", "capabilities"),
    [
        ("legacy", "older", "nothing", {}),
        ("legacy", "older", "roots", {"roots": {"listChanged": True}}),
        ("legacy", "older", "elicitation", {"elicitation": {"form": {}, "url": {}}}),
        ("legacy", "older", "sampling_callback", {"sampling": {}}),
        ("legacy", "older", "sampling", {"sampling": {"tools": {}}}),
        ("auto", "modern", "nothing", {}),
        ("auto", "modern", "sampling", {"sampling": {"tools": {}}}),
    ],
)
async def test_a_server_is_offered_what_the_client_declared(
    mode: str, server: str, able: str, capabilities: Any, tmp_path: Path
) -> None:
    async with box_peer(tmp_path, mode, Ear(able), a=OWN_SERVERS[server]) as peer:
        seen = await peer.answer("seen")
    assert {**seen, **seen["_meta"]}[CAPABILITIES] == capabilities


@pytest.mark.parametrize(("declared", "mode"), [({}, "form"), ({"url": {}}, "url")])
async def test_an_elicitation_mode_that_the_client_lacks_is_an_error(
    declared: Any, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capabilities = types.ClientCapabilities.model_validate({"elicitation": declared})
    monkeypatch.setattr(ClientSession, "_build_capabilities", lambda *_: capabilities)
    async with box_peer(tmp_path, "legacy", Ear(), a=OWN_SERVERS["older"]) as peer:
        form = await peer.answer("ask", ELICIT)
        url = await peer.answer("ask", {**ELICIT, "params": SIGN_IN})
    assert ("code" in form, "code" in url) == (mode != "form", mode != "url")
    assert [each["mode"] for each in peer.ear.heard] == [mode]


async def test_changed_roots_are_told_to_every_open_server(tmp_path: Path) -> None:
    ear, older = Ear(), OWN_SERVERS["older"]
    async with box_peer(tmp_path, "legacy", ear, a=older, b=older) as peer:
        changed = types.RootsListChangedNotification()
        await peer.client.session.send_notification(changed)
        await until(lambda: len(ear.heard) == 2)
    assert [each["params"]["data"] for each in ear.heard] == ["roots changed"] * 2


async def test_a_log_level_holds_for_open_servers_and_later_ones(
    tmp_path: Path,
) -> None:
    ear, older = Ear(), OWN_SERVERS["older"]

    async def set_level(level: Any) -> None:
        params = types.SetLevelRequestParams(level=level)
        request = types.SetLevelRequest(params=params)
        await client.session.send_request(request, types.EmptyResult)

    config = configuration(a=older, b=older)
    async with connected_process(config, tmp_path, **ear.callbacks) as client:
        await set_level("error")
        await open_box(client)
        await set_level("critical")
        for peer in (Peer(client, ear, "a"), Peer(client, ear, "b")):
            assert (await peer.answer("seen"))["levels"] == ["error", "critical"]
            await peer.call("say", {"messages": LOGS})
    assert ear.heard == LOGS[5:] * 2


async def test_log_messages_are_in_our_own_log_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "workbench")
    async with connected(configuration(a=OWN_SERVERS["older"])) as client:
        await open_box(client)
        await Peer(client, Ear(), "a").call("say", {"messages": LOGS[-1:]})
    records = [each for each in caplog.records if "emergency" in each.getMessage()]
    assert [each.levelname for each in records] == ["DEBUG"]


async def test_cancelled_calls_leave_no_task_behind() -> None:
    async with connected(configuration(a=OWN_SERVERS["both"])) as client:
        await open_box(client)
        before = len(asyncio.all_tasks())
        with anyio.fail_after(10):
            await a_hundred_calls_cancelled_at_random_moments(Peer(client, Ear(), "a"))
        await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_client_that_leaves_while_asked_leaves_no_process(
    tmp_path: Path,
) -> None:
    ear, both = Ear(), OWN_SERVERS["both"]
    async with (
        anyio.create_task_group() as tasks,
        box_peer(tmp_path, "legacy", ear, a=both) as peer,
    ):
        pids = (await peer.answer("seen"))["pids"]
        tasks.start_soon(peer.ask_for_ever)
        with anyio.fail_after(5):
            await ear.asked.wait()
    await until(lambda: not any(map(is_alive, pids)))


async def test_without_a_client_a_server_speaks_its_newest_era(tmp_path: Path) -> None:
    line = command(configuration(a=OWN_SERVERS["both"]), tmp_path)
    process = await anyio.run_process([*line, "--call", "box__a__seen"])
    seen = json.loads(process.stdout)
    assert seen["era"] == MODERN
    assert seen["_meta"][CAPABILITIES] == {}


EVERYTHING_ARGUMENTS: dict[str, dict[str, Any]] = {
    "echo": {"message": "é"},
    "get-annotated-message": {"messageType": "success", "includeImage": True},
    "get-structured-content": {"location": "Chicago"},
    "get-sum": {"a": 1, "b": 2.5},
    "gzip-file-as-resource": {"data": "data:text/plain,a", "outputType": "resource"},
    "trigger-long-running-operation": {"duration": 0.1},
    "trigger-sampling-request": {"prompt": "Capital?"},
    "trigger-url-elicitation": {"url": "https://a.b", "elicitationId": "e"},
    "simulate-research-query": {"topic": "t"},
}


@pytest.mark.skipif(not EVERYTHING.exists(), reason=f"{EVERYTHING} is not installed")
@pytest.mark.parametrize(("able", "count"), [("nothing", 13), ("", 17)])
async def test_every_tool_of_server_everything_is_the_same_through_the_workbench(
    able: str, count: int, tmp_path: Path
) -> None:
    def timeless(result: Any) -> Any:
        return json.loads(re.sub(r"\d+:\d+:\d+ [AP]M", "TIME", json.dumps(result)))

    server = {"command": str(EVERYTHING)}
    async with (
        direct_peer(server, "legacy", Ear(able)) as direct,
        box_peer(tmp_path, "legacy", Ear(able), a=server) as through,
    ):
        names = [each.name for each in (await direct.client.list_tools()).tools]
        tools = (await open_box(through.client))["tools"]
        assert [each["_meta"]["original_name"] for each in tools] == names
        assert len(names) == count
        for name in names:
            given = EVERYTHING_ARGUMENTS.get(name)
            expected = timeless(await direct.call(name, given))
            assert timeless(await through.call(name, given)) == expected


# === Built-in toolbox =================================================================


SEED_TIMEZONE = (
    "An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC."
)
SEED_TOOLS = {
    "echo": (
        "Echo Tool",
        "A simple tool that returns the text it was given.",
        {"text": {"type": "string", "description": "The text to echo back."}},
        ["text"],
    ),
    "time": (
        "Time Tool",
        "Returns the current server time, optionally in a specific timezone.",
        {"timezone": {"type": "string", "description": SEED_TIMEZONE}},
        [],
    ),
}


async def call_toolbox(name: str, arguments: Any = None) -> types.CallToolResult:
    """Call a tool of the built-in toolbox in this process."""
    async with Client(workbench.create_toolbox_server()) as client:
        return await client.call_tool(name, arguments)


def stop_clock(monkeypatch: pytest.MonkeyPatch, at: str) -> datetime.datetime:
    """Make it `at` for the time tool."""
    now = datetime.datetime.fromisoformat(at)
    monkeypatch.setattr(workbench, "_now", lambda: now)
    return now


async def test_the_toolbox_lists_the_tools_of_the_seed() -> None:
    async with Client(workbench.create_toolbox_server()) as client:
        tools = (await client.list_tools()).tools
    listed = {}
    for tool in tools:
        schema = {"required": [], **tool.input_schema}
        properties, required = schema.pop("properties"), schema.pop("required")
        listed[tool.name] = (tool.title, tool.description, properties, required)
        assert schema == {"type": "object", "additionalProperties": False}
    assert listed == SEED_TOOLS


@pytest.mark.parametrize("said", ["", "hello", "zwölf 🧰\n\0", "x" * 1_000_000])
async def test_echo_returns_its_text(said: str) -> None:
    result = await call_toolbox("echo", {"text": said})
    assert (text(result), bool(result.is_error)) == (said, False)


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("echo", None, "text"),
        ("echo", {"text": 1}, "text"),
        ("echo", {"text": None}, "text"),
        ("echo", {"text": "a", "volume": "loud"}, "volume"),
        ("time", {"timezone": 5}, "timezone"),
        ("time", {"timezone": None}, "timezone"),
        ("time", {"zone": "UTC"}, "zone"),
    ],
)
async def test_input_that_does_not_conform_is_an_error_that_names_the_field(
    name: str, arguments: Any, field: str
) -> None:
    result = await call_toolbox(name, arguments)
    assert result.is_error and re.search(rf"\b{field}\b", text(result))


async def test_a_tool_that_the_toolbox_lacks_is_a_protocol_error() -> None:
    async with Client(workbench.create_toolbox_server()) as client:
        with pytest.raises(MCPError, match="'nope'") as caught:
            await client.call_tool("nope")
    assert caught.value.code == types.INVALID_PARAMS


@pytest.mark.parametrize(
    ("now", "zone", "shown"),
    [
        ("2026-03-08T06:59:59Z", "UTC", "2026-03-08T06:59:59+00:00"),
        ("2026-03-08T06:59:59Z", "America/New_York", "2026-03-08T01:59:59-05:00"),
        ("2026-03-08T07:00:00Z", "America/New_York", "2026-03-08T03:00:00-04:00"),
        ("2026-10-25T00:59:59Z", "Europe/Berlin", "2026-10-25T02:59:59+02:00"),
        ("2026-10-25T01:00:00Z", "Europe/Berlin", "2026-10-25T02:00:00+01:00"),
        ("2026-04-04T14:59:59Z", "Australia/Lord_Howe", "2026-04-05T01:59:59+11:00"),
        ("2026-04-04T15:00:00Z", "Australia/Lord_Howe", "2026-04-05T01:30:00+10:30"),
        ("2026-12-31T18:15:00Z", "Asia/Kathmandu", "2027-01-01T00:00:00+05:45"),
    ],
)
async def test_time_follows_a_zone_on_both_sides_of_a_change(
    now: str, zone: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_clock(monkeypatch, now)
    assert text(await call_toolbox("time", {"timezone": zone})) == shown


async def test_time_knows_every_iana_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = stop_clock(monkeypatch, "2026-07-01T12:00:00Z")
    zones = zoneinfo.available_timezones()
    assert zones, "no zone data on this machine"
    async with Client(workbench.create_toolbox_server()) as client:
        for zone in zones:
            shown = text(await client.call_tool("time", {"timezone": zone}))
            moment = datetime.datetime.fromisoformat(shown)
            offset = now.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset()
            assert (moment, moment.utcoffset()) == (now, offset), zone


UNKNOWN_ZONES = ["Mars/Phobos", "America", "America/", "../etc/passwd", "/etc/passwd"]
UNKNOWN_ZONES += ["Europe/../Europe/Berlin", "zone.tab", ".", "", "\0", "UTC\0"]


@pytest.mark.parametrize("zone", [*UNKNOWN_ZONES, pytest.param("x" * 5000, id="long")])
async def test_an_unknown_timezone_is_an_error_that_says_so(zone: str) -> None:
    result = await call_toolbox("time", {"timezone": zone})
    assert result.is_error and text(result).startswith(f"Unknown timezone {zone!r}")


@pytest.mark.parametrize("arguments", [None, {}, {"timezone": "UTC"}])
async def test_utc_needs_no_zone_data(
    arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_data(name: str) -> None:
        raise IsADirectoryError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", no_data)
    stop_clock(monkeypatch, "2026-02-03T04:05:06Z")
    assert text(await call_toolbox("time", arguments)) == "2026-02-03T04:05:06+00:00"
    assert (await call_toolbox("time", {"timezone": "Europe/Berlin"})).is_error


async def test_a_tool_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "TOOLBOX_TOOLS", dict(workbench.TOOLBOX_TOOLS))

    @workbench.toolbox_tool("Shout Tool", "Shouts.", ("text",), text="What to shout.")
    def shout(text: str) -> str:
        return text.upper()

    async with Client(workbench.create_toolbox_server()) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("shout", {"text": "hey"})
        refused = await client.call_tool("shout", {})
    assert [(tool.name, tool.title) for tool in tools][2:] == [("shout", "Shout Tool")]
    assert (text(result), refused.is_error) == ("HEY", True)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_toolbox_is_served_over_stdio(mode: str) -> None:
    args = [workbench.__file__, "--toolbox"]
    parameters = StdioServerParameters(command=sys.executable, args=args)
    async with Client(parameters, mode=mode) as client:
        said = text(await client.call_tool("echo", {"text": "hello"}))
        moment = datetime.datetime.fromisoformat(text(await client.call_tool("time")))
    assert (said, moment.utcoffset()) == ("hello", datetime.timedelta(0))


# === The toolbox over HTTP: the wire ==================================================


@dataclass
class HttpToolbox:
    """A toolbox process that serves over HTTP."""

    process: subprocess.Popen[str]
    url: str
    port: int

    def last_words(self) -> str:
        """Wait for its end; the rest of its stderr."""
        assert self.process.stderr is not None
        self.process.wait(5)
        return self.process.stderr.read()


@contextmanager
def http_toolbox(address: str) -> Iterator[HttpToolbox]:
    """Run `--toolbox --http ADDRESS` and read its port from the log."""
    command = [sys.executable, workbench.__file__, "--toolbox", "--http", address]
    stderr = subprocess.PIPE
    with subprocess.Popen(command, stderr=stderr, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.search(r"http://\S+:(\d+)/mcp", line)
            assert found, line
            yield HttpToolbox(process, found[0], int(found[1]))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def toolbox() -> Iterator[HttpToolbox]:
    with http_toolbox("0") as running:
        yield running


@pytest.fixture(scope="module")
def exposed_toolbox() -> Iterator[HttpToolbox]:
    with http_toolbox("0.0.0.0:0") as running:
        yield running


def request_bytes(method: str, number: int = 1, **params: Any) -> bytes:
    """A JSON-RPC request as it goes over the wire."""
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode()


PING_BYTES = request_bytes("ping")
INITIALIZE_BYTES = request_bytes(
    "initialize",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "http.client", "version": "1"},
)
INITIALIZED_BYTES = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'
MEDIA_TYPES = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


def ask(
    toolbox: HttpToolbox, method: str, path: str, body: Any = None, **headers: str
) -> http.client.HTTPResponse:
    """Send one HTTP request; the head of the answer."""
    named = MEDIA_TYPES | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", toolbox.port, timeout=10)
    with closing(connection):
        connection.request(method, path, body, named)
        with connection.getresponse() as response:
            return response


class RawSession:
    """A stream and its session, with nothing but an HTTP client."""

    def __init__(self, toolbox: HttpToolbox, **headers: str) -> None:
        self.toolbox = toolbox
        address = ("127.0.0.1", toolbox.port)
        self.connection = http.client.HTTPConnection(*address, timeout=10)
        self.connection.request("GET", "/mcp", headers=MEDIA_TYPES | headers)
        self.response = self.connection.getresponse()
        self.first_event = b"" if headers else self.next_event()
        self.endpoint = self.first_event.partition(b"data: ")[2].strip().decode()

    def next_event(self) -> bytes:
        return b"".join(iter(self.response.readline, b"\r\n"))

    def answer(self, body: bytes) -> Any:
        """Post a request; the message that then comes on the stream."""
        assert ask(self.toolbox, "POST", self.endpoint, body).status == 202
        event, data = self.next_event().splitlines()
        assert event == b"event: message"
        return json.loads(data.removeprefix(b"data: "))

    def initialize(self) -> Any:
        answer = self.answer(INITIALIZE_BYTES)
        assert ask(self.toolbox, "POST", self.endpoint, INITIALIZED_BYTES).status == 202
        return answer

    def echo(self, said: str) -> Any:
        call = {"name": "echo", "arguments": {"text": said}}
        return self.answer(request_bytes("tools/call", 7, **call))

    def close(self) -> None:
        self.response.close()
        self.connection.close()


@pytest.fixture
def raw_session(toolbox: HttpToolbox) -> Iterator[RawSession]:
    with closing(RawSession(toolbox)) as session:
        session.initialize()
        yield session


def streamable_session(toolbox: HttpToolbox) -> dict[str, str]:
    """Initialize a session of Streamable HTTP; the header that names it."""
    response = ask(toolbox, "POST", "/mcp", INITIALIZE_BYTES)
    assert response.status == 200
    return {"Mcp-Session-Id": response.headers["Mcp-Session-Id"]}


def test_the_seed_flow_needs_nothing_but_an_http_client(toolbox: HttpToolbox) -> None:
    with closing(RawSession(toolbox)) as session:
        assert session.response.status == 200
        media_type = session.response.headers["Content-Type"].partition(";")[0]
        assert media_type == "text/event-stream"
        first = rb"event: endpoint\r\ndata: /mcp/messages\?sessionId=[0-9a-f]{32}\r\n"
        assert re.fullmatch(first, session.first_event)
        info = session.initialize()["result"]["serverInfo"]
        assert info == {"name": "mcp-toolbox", "version": workbench.__version__}
        result = {"content": [{"type": "text", "text": "hello"}], "isError": False}
        assert session.echo("hello") == {"jsonrpc": "2.0", "id": 7, "result": result}


@pytest.mark.parametrize(
    "query", ["", "?", "?sessionId=", "?sessionId=x", "?sessionId=" + "0" * 32]
)
def test_a_message_for_no_session_is_answered_400(
    query: str, toolbox: HttpToolbox
) -> None:
    assert ask(toolbox, "POST", f"/mcp/messages{query}", PING_BYTES).status == 400


async def test_a_closed_session_is_answered_400(toolbox: HttpToolbox) -> None:
    session = RawSession(toolbox)
    assert ask(toolbox, "POST", session.endpoint, PING_BYTES).status == 202
    session.close()
    await until(
        lambda: ask(toolbox, "POST", session.endpoint, PING_BYTES).status == 400
    )


TOO_LONG = 4 * 1024 * 1024 + 1
CHUNK = f"{TOO_LONG:x}\r\n".encode() + b" " * TOO_LONG


@pytest.mark.parametrize("path", ["/mcp/messages", "/mcp"])
@pytest.mark.parametrize(
    ("status", "method", "body", "headers"),
    [
        (400, "POST", b"", {}),
        (400, "POST", b"{", {}),
        (400, "POST", b"\xff", {}),
        (400, "POST", b"null", {}),
        (400, "POST", b'{"hello": "you"}', {}),
        (400, "POST", b"[" * 100_000, {}),
        (403, "POST", PING_BYTES, {"Origin": "http://evil.example"}),
        (405, "PUT", PING_BYTES, {}),
        (405, "HEAD", None, {}),
        (413, "POST", b"", {"Content_Length": str(TOO_LONG)}),
        (413, "POST", CHUNK, {"Transfer_Encoding": "chunked"}),
        (415, "POST", PING_BYTES, {"Content_Type": "text/plain"}),
        (415, "POST", PING_BYTES, {"Content_Type": ""}),
        (421, "POST", PING_BYTES, {"Host": "evil.example"}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_request_gets_its_4xx_and_harms_no_session(
    status: int,
    method: str,
    body: Any,
    headers: dict[str, str],
    path: str,
    raw_session: RawSession,
) -> None:
    path = raw_session.endpoint if path == "/mcp/messages" else path
    assert ask(raw_session.toolbox, method, path, body, **headers).status == status
    assert raw_session.echo("still here")["id"] == 7


def test_a_streamable_http_session_ends_with_its_delete(toolbox: HttpToolbox) -> None:
    session = streamable_session(toolbox)
    assert ask(toolbox, "DELETE", "/mcp", **session).status == 200
    assert ask(toolbox, "GET", "/mcp", **session).status == 404


# === The toolbox over HTTP: its clients ===============================================


TRANSPORTS = [("sse", "legacy"), ("http", "legacy"), ("http", "auto")]


def toolbox_client(toolbox: HttpToolbox, transport: str, mode: str) -> Client:
    """An SDK client of the toolbox."""
    over_sse = transport == "sse"
    return Client(sse_client(toolbox.url) if over_sse else toolbox.url, mode=mode)


@pytest.mark.parametrize(("transport", "mode"), TRANSPORTS)
async def test_one_url_serves_every_client_of_the_sdk(
    transport: str, mode: str, toolbox: HttpToolbox
) -> None:
    async with toolbox_client(toolbox, transport, mode) as client:
        assert (client.protocol_version == "2026-07-28") == (mode == "auto")
        assert text(await client.call_tool("echo", {"text": "hé"})) == "hé"
        assert (await client.call_tool("time", {"timezone": "Mars"})).is_error


@pytest.mark.parametrize(("transport", "mode"), TRANSPORTS)
async def test_a_workbench_has_the_toolbox_as_its_own_server(
    transport: str, mode: str, toolbox: HttpToolbox
) -> None:
    remote = {"transport": transport, "url": toolbox.url}
    async with connected(configuration(remote=remote), mode) as client:
        names = [tool["name"] for tool in (await open_box(client))["tools"]]
        assert names == ["box__remote__echo", "box__remote__time"]
        assert text(await use(client, "remote", "echo", {"text": "hello"})) == "hello"


async def test_fifty_clients_get_their_own_answers(toolbox: HttpToolbox) -> None:
    answers: dict[str, str] = {}
    here: set[int] = set()
    all_here = anyio.Event()

    async def talk(number: int) -> None:
        async with toolbox_client(toolbox, *TRANSPORTS[number % 3]) as client:
            here.add(number)
            if len(here) == 50:
                all_here.set()
            await all_here.wait()
            for said in (f"client {number}, turn {turn}" for turn in range(3)):
                answers[said] = text(await client.call_tool("echo", {"text": said}))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as clients:
            for number in range(50):
                clients.start_soon(talk, number)
    assert len(answers) == 150
    assert {said: answer for said, answer in answers.items() if said != answer} == {}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_two_hundred_dropped_sessions_leave_nothing_behind() -> None:
    with http_toolbox("0") as running:

        def descriptors() -> int:
            return len(os.listdir(f"/proc/{running.process.pid}/fd"))

        assert ask(running, "GET", "/unknown").status == 404  # so it serves by now
        before = descriptors()
        sessions = [RawSession(running) for _ in range(200)]
        streams = [RawSession(running, **streamable_session(running)) for _ in "12345"]
        assert descriptors() >= before + 200
        for session in sessions + streams:
            session.close()
        await until(lambda: descriptors() <= before)
        paths = [session.endpoint for session in sessions]
        await until(
            lambda: {ask(running, "POST", p, PING_BYTES).status for p in paths} == {400}
        )


# === The toolbox over HTTP: who may talk to it ========================================


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/messages", "/unknown"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example", 421),
        ("Host", "127.0.0.1.evil.example", 421),
        ("Origin", "http://evil.example", 403),
        ("Origin", "http://127.0.0.1.evil.example", 403),
        ("Origin", "null", 403),
    ],
)
def test_on_loopback_a_foreign_host_or_origin_is_refused_on_every_route(
    header: str, value: str, status: int, method: str, path: str, toolbox: HttpToolbox
) -> None:
    assert ask(toolbox, method, path, **{header: value}).status == status


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_on_loopback_its_own_names_are_served(host: str, toolbox: HttpToolbox) -> None:
    host = f"{host}:{toolbox.port}"
    origin = f"http://{host}"
    assert ask(toolbox, "GET", "/mcp", Host=host, Origin=origin).status == 200


def test_loopback_by_another_name_is_loopback() -> None:
    with http_toolbox("LOCALHOST:0") as running:
        assert ask(running, "GET", "/mcp", Host="evil.example").status == 421


def test_it_is_bound_to_loopback_unless_told_otherwise(toolbox: HttpToolbox) -> None:
    assert toolbox.url == f"http://127.0.0.1:{toolbox.port}/mcp"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", toolbox.port), timeout=5)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),
        (200, {"Host": "toolbox.example:8000"}),
        (200, {"Host": "10.1.2.3", "Origin": "http://10.1.2.3"}),
        (200, {"Host": "toolbox.example", "Origin": "https://toolbox.example"}),
        (403, {"Host": "toolbox.example", "Origin": "http://toolbox.example:81"}),
        (403, {"Host": "toolbox.example", "Origin": "http://evil.example"}),
        (403, {"Origin": "http://localhost"}),
        (403, {"Origin": "null"}),
    ],
)
def test_bound_elsewhere_any_host_is_served_but_no_foreign_origin(
    status: int, headers: dict[str, str], exposed_toolbox: HttpToolbox
) -> None:
    assert ask(exposed_toolbox, "GET", "/mcp", **headers).status == status


@pytest.mark.parametrize("address", ["0.0.0.0:0", "localhost:0"])
def test_bound_elsewhere_it_warns_of_no_authentication(address: str) -> None:
    with http_toolbox(address) as running:
        assert ask(running, "GET", "/unknown").status == 404  # so it serves by now
        running.process.terminate()
        lines = running.last_words().splitlines()
    warnings = [line for line in lines if "WARNING" in line]
    assert ["authentication" in line for line in warnings] == [True] * (
        address[0] == "0"
    )


# === The toolbox over HTTP: start and end =============================================


@pytest.mark.parametrize(
    "signals", [("SIGTERM",), ("SIGINT",), ("SIGTERM", "SIGINT")], ids="+".join
)
def test_a_signal_ends_it_with_status_0_while_streams_are_open(
    signals: tuple[str, ...],
) -> None:
    with ExitStack() as opened:
        running = opened.enter_context(http_toolbox("127.0.0.1:0"))
        session = opened.enter_context(closing(RawSession(running)))
        stream = RawSession(running, **streamable_session(running))
        opened.enter_context(closing(stream))
        address = ("127.0.0.1", running.port)
        half_a_request = opened.enter_context(socket.create_connection(address))
        head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        half_a_request.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        session.initialize()
        for name in signals:
            running.process.send_signal(getattr(signal, name))
        stderr = running.last_words()
        assert (running.process.returncode, "Traceback" in stderr) == (0, False)


async def run_toolbox(address: str) -> tuple[int, str, list[str]]:
    """Start a toolbox that cannot serve: exit status, stdout and lines of stderr."""
    command = [sys.executable, workbench.__file__, "--toolbox", "--http", address]
    with anyio.fail_after(20):
        ended = await anyio.run_process(command, check=False)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode().splitlines()


async def test_a_port_in_use_is_one_line_and_status_1(toolbox: HttpToolbox) -> None:
    address = f"127.0.0.1:{toolbox.port}"
    status, stdout, [line] = await run_toolbox(address)
    assert (status, stdout) == (1, "")
    assert address in line and "Address already in use" in line


@pytest.mark.parametrize(
    "address", ["", "nowhere", "127.0.0.1:", "70000", "a.invalid:0"]
)
async def test_an_address_that_cannot_be_served_is_refused(address: str) -> None:
    status, stdout, lines = await run_toolbox(address)
    assert status in (1, 2) and address in lines[-1]
    assert ("Traceback" in "".join(lines), stdout) == (False, "")


# === A process at the other end of raw lines ==========================================

HANDSHAKE: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "wire", "version": "1"},
}


class Wire:
    """A workbench process, spoken to in raw JSON-RPC lines; one that hangs is killed.

    Its toolbox `box` has a healthy server, `good`, and one for each of `faults`: when
    (a method, or "start") and what. All of them run, and leave their marks, in `folder`.
    """

    def __init__(
        self, folder: Path, *options: str, streams: Any = None, **faults: Any
    ) -> None:
        servers = {
            name: entry("misbehaving", *fault, cwd=str(folder))
            for name, fault in {"good": (), **faults}.items()
        }
        arguments = command(configuration(**servers), folder, *options)
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        with open(folder / "stderr", "wb") as file:
            streams = {"stderr": file, **pipes, **(streams or {})}
            self.process: Any = subprocess.Popen(arguments, **streams)
        self.watchdog = threading.Timer(40, self.process.kill)
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
        self.process.__exit__(None, None, None)

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self, method: str, **params: Any) -> bytes:
        """A new request, with the id `last_id`."""
        self.last_id += 1
        request = {"id": self.last_id, "method": method, "params": params}
        line = json.dumps({"jsonrpc": "2.0", **request}, ensure_ascii=False)
        return line.encode() + b"\n"

    def begin(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self.write(self.line(method, **params))
        return self.last_id

    def answer(self, request: int) -> dict[str, Any]:
        """Wait for the answer to a request."""
        while request not in self.answers:
            line = self.process.stdout.readline()
            assert line, "the workbench ended, or hung and was killed"
            message = json.loads(line)
            self.answers[message.get("id")] = message
        return self.answers.pop(request)

    def initialize(self) -> dict[str, Any]:
        return self.answer(self.begin("initialize", **HANDSHAKE))

    def begin_open(self) -> int:
        arguments = {"toolbox_name": "box"}
        return self.begin("tools/call", name="open_toolbox", arguments=arguments)

    def begin_use(self, server: str, name: str = "echo", **arguments: Any) -> int:
        names = {"toolbox_name": "box", "tool_name": f"box__{server}__{name}"}
        arguments = {**names, "arguments": arguments}
        return self.begin("tools/call", name="use_tool", arguments=arguments)

    def text(self, request: int) -> str:
        """The text that a tool answers a request with."""
        [block] = self.answer(request)["result"]["content"]
        return str(block["text"])

    def open_box(self) -> dict[str, Any]:
        """Initialize, and open the box; the answer."""
        self.initialize()
        answer: dict[str, Any] = json.loads(self.text(self.begin_open()))
        return answer

    def use(self, server: str, name: str = "echo", **arguments: Any) -> str:
        return self.text(self.begin_use(server, name, **arguments))

    def still_serves(self) -> bool:
        """Whether the workbench answers, and the healthy server through it."""
        ping = self.answer(self.begin("ping"))
        return ping["result"] == {} and self.use("good", x="y") == '{"x": "y"}'

    async def hanging(self) -> None:
        """Wait until a server has reached the point where it hangs."""
        await until((self.folder / "hanging").exists)

    def servers_left(self) -> list[int]:
        pids = [int(mark.stem) for mark in self.folder.glob("*.pid")]
        return [pid for pid in pids if is_alive(pid)]

    def end(self, how: str) -> None:
        if how == "end of stdin":
            self.process.stdin.close()
        elif how in ENDINGS:
            self.process.send_signal(signal.Signals[how])

    async def status(self, how: str = "end of stdin") -> int:
        """End it; the exit status, if it ends in time and leaves no process behind."""
        self.end(how)
        status: int = self.process.wait(5)
        await until(lambda: not self.servers_left(), 1)
        return status


# === Shutdown =========================================================================

ENDINGS = ["SIGINT", "SIGTERM", "end of stdin"]
STATES = {
    "not initialized": (),
    "nothing open": (),
    "one open": (),
    "half open": ("initialize", "hangs"),
    "a call in flight": ("tools_call", "hangs"),
    "a server that ignores the end": ("start", "ignores the end"),
    "a client that does not read": ("tools_call", "answers 1 MB"),
}


async def bring_to(wire: Wire, state: str) -> None:
    assert wire.answer(wire.begin("ping"))["result"] == {}  # it serves
    if state == "not initialized":
        return
    wire.initialize()
    if state == "nothing open":
        return
    opening = wire.begin_open()
    if state == "half open":
        return await wire.hanging()
    assert '"servers_connected":2' in wire.text(opening)
    if state == "a call in flight":
        wire.begin_use("bad")
        await wire.hanging()
    elif state == "a client that does not read":
        for _ in range(20):
            wire.begin_use("bad")
        await until(lambda: bool(select.select([wire.process.stdout], [], [], 0)[0]))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_it_ends_in_every_state_and_leaves_nothing(
    ending: str, state: str, tmp_path: Path
) -> None:
    with Wire(tmp_path, bad=STATES[state]) as wire:
        await bring_to(wire, state)
        assert await wire.status(ending) == 0


@pytest.mark.parametrize("first", ["SIGTERM", "end of stdin"])
async def test_a_second_signal_changes_nothing(first: str, tmp_path: Path) -> None:
    with Wire(tmp_path, bad=("start", "ignores the end")) as wire:
        wire.open_box()
        wire.end(first)
        await wire.hanging()
        wire.end("SIGTERM")
        assert await wire.status("SIGINT") == 0


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
async def test_a_closed_stdout_is_the_end(busy: bool, tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        wire.open_box()
        wire.process.stdout.close()
        if busy:
            wire.begin_use("good")
        assert await wire.status("closed stdout") == 0


async def test_stdout_may_be_a_file(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as file:
        streams = {"stdout": file}
        with Wire(tmp_path, streams=streams, bad=("initialize", "hangs")) as wire:
            wire.begin("initialize", **HANDSHAKE)
            wire.begin_open()
            await wire.hanging()
            assert await wire.status("SIGTERM") == 0
        file.seek(0)
        assert json.loads(file.readline())["id"] == 1


@pytest.mark.parametrize(
    ("options", "at", "ending"),
    [
        (["--check"], "initialize", "SIGINT"),
        (["--call", "box__bad__echo"], "tools_call", "SIGTERM"),
    ],
    ids=["check", "call"],
)
async def test_an_interrupted_command_leaves_nothing(
    options: list[str], at: str, ending: str, tmp_path: Path
) -> None:
    with Wire(tmp_path, *options, bad=(at, "hangs")) as wire:
        await wire.hanging()
        assert await wire.status(ending) != 0


# === Standard error ===================================================================


@pytest.mark.parametrize("what", ["floods stderr", "writes a huge line to stderr"])
async def test_a_client_that_never_reads_stderr_stops_nothing(
    what: str, tmp_path: Path
) -> None:
    streams = {"stderr": subprocess.PIPE}
    with Wire(tmp_path, streams=streams, bad=("tools_call", what)) as wire:
        wire.open_box()
        assert [wire.use("bad"), wire.use("bad")] == ["answered", "answered"]
        assert wire.still_serves()
        assert await wire.status("SIGTERM") == 0


async def test_the_stderr_of_a_server_is_logged_line_by_line(tmp_path: Path) -> None:
    with Wire(tmp_path, bad=("start", "writes to stderr")) as wire:
        wire.open_box()
        await wire.status()
    log = (tmp_path / "stderr").read_text()
    assert re.findall(r"\[box/bad\] (.*)", log) == ["hello", "Grüße"]


# === Faults of servers ================================================================

FAULTS: list[tuple[str, str, str, str]] = [
    # when, what, why `open_toolbox` calls it failed, what a call answers (as patterns)
    ("start", "exits", "exited.*boom", "exited.*boom"),
    ("initialize", "exits", "exited.*boom", "exited.*boom"),
    ("tools_list", "exits", "exited.*boom", "exited.*boom"),
    ("tools_call", "exits", "", "exited.*boom"),
    ("tools_call", "exits inside a line", "", "exited.*boom"),
    ("tools_call", "answers and exits", "", "^answered$"),
    ("start", "has a child", "", "^{}$"),
    ("tools_call", "leaves a child", "", "exited"),
    ("tools_call", "hangs", "", ""),
    ("tools_call", "answers half", "", ""),
    ("tools_call", "answers twice", "", "^answered$"),
    ("tools_call", "answers an unknown id", "", "^answered$"),
    ("initialize", "answers nonsense", "capabilities", "capabilities"),
    ("tools_list", "answers nonsense", r"\btools\b", r"\btools\b"),
    ("tools_call", "answers nonsense", "", "content"),
    ("tools_call", "answers 20 MB", "", "^x{20000000}$"),
    ("start", "floods stderr", "", "^{}$"),
    ("tools_call", "closes stdout", "", "^Error executing tool"),
    ("start", "ignores the end", "", "^{}$"),
    ("tools_call", "changes its tools", "", "^answered$"),
    ("tools_list", "lists a name twice", "", "^{}$"),
    ("tools_call", "asks what nobody knows", "", "^question: -32601$"),
    ("tools_call", "writes garbage", "", "^answered$"),
]


@pytest.mark.parametrize(
    ("at", "what", "failure", "called"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS]
)
async def test_a_fault_costs_only_its_server(
    at: str, what: str, failure: str, called: str, tmp_path: Path
) -> None:
    with Wire(tmp_path, bad=(at, what)) as wire:
        reason = wire.open_box().get("servers_failed", {}).get("bad", "")
        assert re.search(failure or "^$", reason)
        call = wire.begin_use("bad")
        if called:
            assert re.search(called, wire.text(call))
        else:
            await wire.hanging()
        assert wire.still_serves()
        assert not wire.answers, "something that nobody had asked for"
        assert await wire.status() == 0


async def test_servers_that_hang_are_left_to_start(tmp_path: Path) -> None:
    points = ("start", "initialize", "tools_list")
    with Wire(tmp_path, **{at: (at, "hangs") for at in points}) as wire:
        assert wire.open_box()["servers_connecting"] == [*points]
        assert wire.still_serves()
        assert await wire.status() == 0


def test_tools_of_unusual_names_can_be_used(tmp_path: Path) -> None:
    with Wire(tmp_path, bad=("tools_call", "tells the tool's name")) as wire:
        wire.open_box()
        assert [wire.use("bad", name) for name in ODD_NAMES] == ODD_NAMES


# === Faults of clients ================================================================

BAD_LINES = [
    b"",
    b" \t",
    b"{not json}",
    b"\xff\xfe",
    b"null",
    b'"text"',
    b"{}",
    b"[]",
    b'[{"jsonrpc": "2.0", "id": "a", "method": "ping"}]',
    b'{"jsonrpc": "1.0", "id": "b", "method": "ping"}',
    b'{"jsonrpc": "2.0", "id": "c", "result": {}}',
    b'{"jsonrpc": "2.0", "id": "d", "method": 7}',
    b'{"jsonrpc": "2.0", "id": {"e": 1}, "method": "ping"}',
    b'{"jsonrpc": "2.0", "id": "f", "method": "tools/call", "params": [1]}',
    b'{"jsonrpc": "2.0", "id": "g", "method": "tools/call", "params": {"name": 7}}',
    b'{"jsonrpc": "2.0", "method": "no/such/notification", "params": {"x": 1}}',
    b'{"jsonrpc": "2.0", "method": "notifications/cancelled"}',
    b"[" * 100_000,
    b"x" * 1_000_000,
]


def test_lines_that_are_no_requests_change_nothing(tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        wire.open_box()
        for line in BAD_LINES:
            wire.write(line + b"\n")
            assert wire.still_serves(), line


def test_an_unknown_method_is_an_error(tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        wire.initialize()
        assert wire.answer(wire.begin("no/such"))["error"]["code"] == -32601


def test_requests_before_initialize_start_nothing(tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        early = [wire.begin("tools/list"), wire.begin_open()]
        assert all("error" in wire.answer(request) for request in early)
        assert not wire.servers_left()
        assert wire.open_box()["servers_connected"] == 1


def test_an_argument_of_20_megabytes_comes_back(tmp_path: Path) -> None:
    with Wire(tmp_path) as wire:
        wire.open_box()
        big = "x" * 20_000_000
        assert wire.use("good", x=big) == json.dumps({"x": big})


async def test_a_client_that_pauses_gets_every_answer(tmp_path: Path) -> None:
    with Wire(tmp_path, bad=("tools_call", "answers 1 MB")) as wire:
        wire.open_box()
        calls = [wire.begin_use("bad") for _ in range(50)]
        await anyio.sleep(3)  # the pause itself, not a wait for something
        assert [len(wire.text(call)) for call in calls] == [1_000_000] * 50


def test_input_may_be_cut_anywhere_inside_a_character(tmp_path: Path) -> None:
    arguments = {"text": "é🧰"}
    names = {"toolbox_name": "box", "tool_name": "box__good__echo"}
    params = {"name": "use_tool", "arguments": {**names, "arguments": arguments}}
    with Wire(tmp_path) as wire:
        wire.open_box()
        for size in range(len("é🧰".encode()) + 1):
            ping, ping_id = wire.line("ping"), wire.last_id
            line = wire.line("tools/call", **params)
            cut = line.index("é".encode()) + size
            wire.write(ping + line[:cut])
            wire.answer(ping_id)  # so the first part was read on its own
            wire.write(line[cut:])
            assert json.loads(wire.text(wire.last_id)) == arguments


@pytest.mark.parametrize("source", ["pipe", "file", "nothing"])
def test_input_is_answered_and_its_end_ends_it(source: str, tmp_path: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HANDSHAKE}
    given = b"" if source == "nothing" else json.dumps(request).encode() + b"\n"
    path = Path(os.devnull) if source == "nothing" else tmp_path / "input"
    path.write_bytes(given)
    arguments = command(configuration(a=entry("plain")), tmp_path)
    with path.open("rb") as file:
        stdin: Any = {"input": given} if source == "pipe" else {"stdin": file}
        ended = subprocess.run(
            arguments, check=False, stdout=subprocess.PIPE, timeout=10, **stdin
        )
    answers = [json.loads(line)["id"] for line in ended.stdout.splitlines()]
    assert (ended.returncode, answers) == (0, [1] if given else [])
