"""Tests of the workbench, in its order, after the servers and clients they share."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

# === Downstream servers ===============================================================
# `python test_workbench.py OPTIONS` runs one. The tests start hundreds, so they come
# before imports that take longer than such a server does, those for annotations too.

OLDER, MODERN = "2025-11-25", "2026-07-28"
IDENTITY = {"name": "its own", "version": "1"}
ANNOUNCING = {"capabilities": {"tools": {"listChanged": True}}}
CHANGED = {"method": "notifications/tools/list_changed"}
RESERVED = "io.modelcontextprotocol/"
CAPABILITIES = f"{RESERVED}clientCapabilities"
CLIENT_INFO = f"{RESERVED}clientInfo"
TOOLS = ["echo", "result", "write", "say", "ask", "wait", "seen", "become"]
WINDOWS = sys.platform == "win32"
if sys.platform == "win32":
    import _winapi
    import msvcrt


def local(**options: Any) -> dict[str, Any]:
    """The entry of a `Downstream`; with `-I`, the bytecode of a module is kept."""
    file = Path(__file__)
    code = f"import runpy, sys; sys.path.insert(0, {str(file.parent)!r}); "
    code += f"runpy.run_module({file.stem!r}, run_name='__main__')"
    args = ["-Xutf8", "-Ic", code, json.dumps(options, default=str)]
    return {"command": sys.executable, "args": args}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}} | more


def text_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]} | more


def json_result(value: Any) -> dict[str, Any]:
    return text_result(json.dumps(value, sort_keys=True))


def note(path: object, line: object) -> None:
    """Append a line to a file, to which other processes append as well."""
    with open(str(path), "a", encoding="utf-8") as stream:
        if sys.platform == "win32" and path != os.devnull:
            # Two that append at once write to the same place, so one has to wait.
            os.lseek(stream.fileno(), 1 << 30, os.SEEK_SET)
            msvcrt.locking(stream.fileno(), msvcrt.LK_LOCK, 1)
        stream.write(f"{line}\n")


def send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n")
    sys.stdout.flush()


def refuse(request: dict[str, Any], code: int, message: str = "refused") -> None:
    send({"id": request["id"], "error": {"code": code, "message": message}})


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    meta = request.get("params", {}).get("_meta") or {}
    if f"{RESERVED}protocolVersion" in meta:
        result = {"resultType": "complete"} | result
    send({"id": request["id"], "result": result})


class Downstream:
    """A server process in plain JSON-RPC; its methods are the protocol's and its tools.

    `on` maps methods, and `start`, to Python code that is run instead. Each process
    adds its number and calls to `notes`.
    """

    about: Mapping[str, Any] = {"capabilities": {"tools": {}, "logging": {}}}
    hints: Mapping[str, Any] = {"ttlMs": 0, "cacheScope": "private"}

    def __init__(self, eras: str = OLDER, notes: str = os.devnull, **more: Any) -> None:
        self.eras = eras
        self.notes = notes
        self.about = {**self.about, **more.get("about", {})}
        self.tools = more.get("tools") or [tool(name) for name in TOOLS]
        self.on: dict[str, str] = more.get("on", {})
        self.known: dict[str, Any] = {"calls": 0}
        self.note(os.getpid())

    def note(self, line: object) -> None:
        note(self.notes, line)

    def hang(self, *_: object) -> None:
        self.note("hangs")
        time.sleep(9999)

    def wait_for(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.01)

    def bear(self, code: str = "self.hang()") -> None:
        """Start a child that has its pipes, and runs this code."""
        import subprocess

        options = json.dumps({"notes": self.notes, "on": {"start": code}})
        line = [*sys.orig_argv[:-1], options]
        child = subprocess.Popen(line, 0, None, sys.stdin, sys.stdout, sys.stderr)
        self.note(child.pid)

    def outlast(self) -> None:
        """Note SIGTERM and the end of stdin, and live on."""
        signal.signal(signal.SIGTERM, lambda *_: self.note("signalled"))
        self.start()
        self.note("ended")
        self.hang()

    def start(self, *_: object) -> None:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            self.handle(request.get("method", "answered").replace("/", "_"), request)

    def handle(self, method: str, request: dict[str, Any]) -> None:
        if method in self.on:
            names = {"self": self, "request": request}
            exec(self.on[method], globals() | names)  # noqa: S102
        elif hasattr(self, method):
            getattr(self, method)(request)
        elif "id" in request:
            refuse(request, -32601)

    def initialize(self, request: dict[str, Any]) -> None:
        if OLDER not in self.eras:
            return refuse(request, -32022)
        self.known[CAPABILITIES] = request["params"]["capabilities"]
        self.known[CLIENT_INFO] = request["params"]["clientInfo"]
        own = {"protocolVersion": OLDER, "serverInfo": IDENTITY}
        answer(request, {**own, **self.about})

    def server_discover(self, request: dict[str, Any]) -> None:
        if MODERN not in self.eras:
            sys.exit("probed")  # as some do: only a server that must be is probed
        answer(request, {**self.about, "supportedVersions": [MODERN], **self.hints})

    def tools_list(self, request: dict[str, Any]) -> None:
        answer(request, {**self.hints, "tools": self.tools})

    def notifications_cancelled(self, notification: dict[str, Any]) -> None:
        self.note(f"cancelled-{notification['params']['requestId']}")

    def tools_call(self, request: dict[str, Any]) -> None:
        name = request["params"]["name"]
        self.note(name)
        self.known["calls"] += 1
        call = getattr(self, name, self.echo)
        call(request, request["params"].get("arguments") or {})

    def echo(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        answer(request, json_result(given))

    def result(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        answer(request, given)

    def write(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        line = given["line"].replace("ID", str(request["id"]))
        os.write(1, line.encode("latin-1") + b"\n")  # in which `é` is no UTF-8

    def say(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        token = (request["params"].get("_meta") or {}).get("progressToken")
        for message in given["messages"]:
            message["params"].setdefault("progressToken", token)
            send(message)
        answer(request, json_result(None))

    def ask(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        send(dict(given, id=f"ask {request['id']}"))

    def answered(self, message: dict[str, Any]) -> None:
        asking = {"id": int(message["id"].removeprefix("ask "))}
        answer(asking, json_result(message.get("result") or message.get("error")))

    def wait(self, request: dict[str, Any], _: object) -> None:
        self.note(f"waiting-{request['id']}")

    def seen(self, request: dict[str, Any], _: object) -> None:
        answer(request, json_result({"_meta": {}} | self.known | request["params"]))

    def become(self, request: dict[str, Any], given: dict[str, Any]) -> None:
        """Get `tools` beside its own, and tell that so many times."""
        self.tools[len(TOOLS) :] = given["tools"]
        self.on |= given.get("on", {})
        for _ in range(given.get("times", 1)):
            send(CHANGED)
        answer(request, json_result(None))


if __name__ == "__main__":
    Downstream(**json.loads(sys.argv[1])).handle("start", {})
    sys.exit()

import ast
import asyncio
import datetime
import logging
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.parse
import zoneinfo
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from queue import Queue
from textwrap import dedent
from typing import Any, get_args

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, types
from mcp.client.sse import sse_client

import workbench

# === Clients ==========================================================================
# Most tests connect a client to a workbench in this process, some to a process of it.

ROOT = Path(workbench.__file__).parent
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
ERAS = pytest.mark.parametrize("eras", [OLDER, MODERN])
PIPE = subprocess.PIPE
PYTHON = [sys.executable]
os.environ.pop("WORKBENCH_CONFIG", None)  # that of the person who runs the tests
Monkey = pytest.MonkeyPatch
Logs = pytest.LogCaptureFixture
Capture = pytest.CaptureFixture[str]
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("error")]

HOME = "USERPROFILE" if WINDOWS else "HOME"
PATIENCE = 90 if WINDOWS else 30  # seconds for a test; under Wine, all takes longer
KILLED = 9 if WINDOWS else -9  # the status of a process that was killed

BOX: dict[str, Any] = {"toolbox_name": "box"}
HANDSHAKE = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": IDENTITY}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def hurry(tmp_path: Path, monkeypatch: Monkey) -> None:
    """No proxies, nor certificates, which take longer to read than most tests."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "_ca_certs", "ssl_cert_file")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture
def log(caplog: Logs) -> Logs:
    caplog.set_level(logging.DEBUG, "workbench")
    return caplog


@pytest.fixture
def pauses(monkeypatch: Monkey) -> list[float]:
    """The seconds of all pauses, which are short here."""
    sleep = anyio.sleep
    asked: list[float] = []

    def sleep_less(seconds: float) -> Any:
        asked.append(seconds)
        return sleep(min(seconds, 0.02))

    monkeypatch.setattr(anyio, "sleep", sleep_less)
    return asked


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


def configuration(**servers: Any) -> dict[str, Any]:
    return {"toolboxes": {"box": {"description": "A box", "mcpServers": servers}}}


def parse(data: Any, read_only: bool = False) -> workbench.WorkbenchConfig:
    return workbench.parse_config(data, "the file", workbench.Secrets(), read_only)


@asynccontextmanager
async def connected(
    mode: str = "legacy", /, callbacks: Any = (), config: Any = None, **servers: Any
) -> AsyncIterator[Client]:
    """A client of a workbench in this process, which has `PATIENCE` for everything."""
    read_only = servers.pop("read_only", False)
    config = parse(config or configuration(**servers), read_only)
    server = workbench.create_server(config)
    with anyio.fail_after(PATIENCE):
        async with Client(server, mode=mode, **dict(callbacks)) as client:
            yield client


async def open_box(client: Client, tools: Any = None, **more: Any) -> Any:
    """What `open_toolbox` answers for the toolbox `box`, or these tools of it."""
    arguments = BOX | {"tools": tools}  # null for no value is all
    result = await client.call_tool("open_toolbox", arguments, **more)
    assert not result.is_error, text(result)
    return json.loads(text(result))


async def use(
    client: Client, server: str, name: str, given: Any = None, **more: Any
) -> Any:
    """The result of `use_tool` for a tool of `box`; null for no arguments is {}."""
    request = BOX | {"tool_name": f"box__{server}__{name}", "arguments": given}
    return await client.call_tool("use_tool", request, **more)


def text(result: Any) -> str:
    [block] = result.content
    return str(block.text)


async def answer_of(client: Client, server: str, name: str, given: Any = None) -> Any:
    return json.loads(text(await use(client, server, name, given)))


async def error_of(client: Client, server: str, name: str, given: Any = None) -> str:
    """Why `use_tool` fails, behind the words that name the tool and the toolbox."""
    result = await use(client, server, name, given)
    start = f"Error executing tool 'box__{server}__{name}' in toolbox 'box': "
    assert result.is_error and text(result).startswith(start)
    return text(result).removeprefix(start)


def find(path: Any) -> workbench.WorkbenchConfig:
    options = Namespace(CONFIG=path, read_only=False)
    return workbench.find_config(options, workbench.Secrets())


def dumped(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def noted_pids(notes: Path) -> list[int]:
    return [int(word) for word in notes.read_text().split() if word.isdigit()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not reaped does not."""
    with suppress(OSError):
        if sys.platform == "win32":
            process = _winapi.OpenProcess(0x1000, False, pid)  # to ask for its status
            return _winapi.GetExitCodeProcess(process) == _winapi.STILL_ACTIVE
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/status")  # only Linux has this
        return not status.exists() or "\nState:\tZ" not in status.read_text()
    return False


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something outside of this process that nothing can be awaited for."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


class Ear:
    """A client's callbacks with `able` in their names; to a question they `answer`."""

    def __init__(self, able: str = "") -> None:
        self.heard: list[Any] = []
        self.answer: Any = ACCEPTED
        with_tools = types.SamplingCapability(tools=types.SamplingToolsCapability())
        every = {
            "elicitation_callback": partial(self.ask, types.ElicitResult),
            "sampling_callback": partial(self.ask, types.CreateMessageResultWithTools),
            "list_roots_callback": partial(self.ask, types.ListRootsResult),
            "sampling_capabilities": with_tools,
        }
        self.callbacks: dict[str, Any] = {"message_handler": self.listen}
        self.callbacks |= {name: each for name, each in every.items() if able in name}

    async def ask(self, model: Any, _: object, params: Any = None) -> Any:
        self.heard.append(dumped(params) if params else {})  # of roots
        kind = types.ErrorData if "code" in self.answer else model
        return kind.model_validate(self.answer)

    async def listen(self, message: Any) -> None:
        self.heard.append(dumped(message))

    async def progress(self, done: float, total: float | None, message: Any) -> None:
        self.heard.append((done, total, message))


class Wire(AbstractContextManager["Wire"]):
    """A workbench process; its servers are entries, or the `on` of a `Downstream`."""

    def __init__(
        self, folder: Path, *args: str, io: Any = (), start: Any = PYTHON, **on: Any
    ) -> None:
        self.notes = folder / "notes"
        self.notes.touch()
        for name, each in on.items():
            if not each.keys() & {"command", "url"}:
                on[name] = local(notes=self.notes, on=each)
        (folder / "workbench-config.json").write_text(json.dumps(configuration(**on)))
        line = [*start, workbench.__file__, *args]
        with open(folder / "stderr", "wb") as log:
            streams = {"stdin": PIPE, "stdout": PIPE, "stderr": log, **dict(io)}
            self.process: Any = subprocess.Popen(line, cwd=folder, **streams)
        self.watchdog = threading.Timer(PATIENCE + 10, self.process.kill)
        self.watchdog.start()
        self.last_id = 0

    def __exit__(self, *_: object) -> None:
        self.watchdog.cancel()
        self.process.kill()
        for pid in self.servers_left():
            with suppress(OSError):  # it may have ended since
                os.kill(pid, 9)
        with suppress(BrokenPipeError):
            self.process.__exit__(None, None, None)

    def begin(self, method: str, **params: Any) -> int:
        self.last_id += 1
        request = {"jsonrpc": "2.0", "id": self.last_id, "method": method}
        line = json.dumps(request | {"params": params}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        return self.last_id

    def begin_use(self, server: str) -> int:
        given = {"tool_name": f"box__{server}__echo"}
        return self.begin("tools/call", name="use_tool", arguments=given)

    def answer(self, request: int) -> dict[str, Any]:
        message: dict[str, Any] = {}
        while message.get("id") != request or "method" in message:
            line = self.process.stdout.readline()
            assert line, "the workbench ended, or hung and was killed"
            message = json.loads(line)
        return message

    def use(self, server: str) -> str:
        [block] = self.answer(self.begin_use(server))["result"]["content"]
        return str(block["text"])

    def initialize(self) -> Wire:
        """As a client does that knows 2026-07-28 as well, and asks for both at once."""
        meta = {f"{RESERVED}protocolVersion": MODERN, f"{RESERVED}clientInfo": IDENTITY}
        probe = self.begin("server/discover", _meta=meta | {CAPABILITIES: {}})
        handshake = self.begin("initialize", **HANDSHAKE)
        assert self.answer(probe)["error"]["code"] == -32601
        assert self.answer(handshake)["result"]["protocolVersion"] == OLDER
        return self

    def servers_left(self) -> list[int]:
        return [pid for pid in noted_pids(self.notes) if is_alive(pid)]

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


# Command lines, which rooms add theirs to: options; the exit status; stdout and stderr,
# as patterns; arguments of `run`. FILES has the files in their folder.
COMMANDS: list[tuple[str, int, str, str, dict[str, Any]]] = []
FILES: dict[str, dict[str, Any]] = {}
UNFIT = "do not go together; expected: "
ENVIRONMENT = dict(os.environ)
ASCII = ENVIRONMENT | {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": ""}


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """How one of `COMMANDS` has ended, without input, in a folder with other modules."""
    folder = tmp_path_factory.mktemp("commands")
    file = shutil.copy(workbench.__file__, folder)
    for name in ("mcp/__init__", "logging/__init__", "types", "calendar", "secrets"):
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise ImportError('a file of the project')")
    for name, config in FILES.items():
        (folder / name).write_text(json.dumps(config))
    stdin, writer = os.pipe()
    given: Any = {"stdin": stdin, "stdout": PIPE, "stderr": PIPE, "cwd": folder}
    given |= {"encoding": "utf-8", "timeout": PATIENCE, "env": ASCII}
    run: Any = subprocess.run
    with open(stdin), open(writer, "w"), ThreadPoolExecutor(2) as pool:
        running = []
        for options, *_, more in COMMANDS:
            line = [*PYTHON, file, *options.split()]
            running.append(pool.submit(run, **(given | {"args": line} | more)))
        yield lambda case: running[COMMANDS.index(case)].result()
        pool.shutdown(cancel_futures=True)


# === Configuration ====================================================================


def cases_of(table: str) -> list[tuple[str, list[str]]]:
    """The lines of a table, each with the lines that are indented below it."""
    cases = re.split(r"\n(?=\S)", table.strip())
    return [(head, its) for head, *its in (case.split("\n  ") for case in cases)]


# Each line is a file that is refused, TOML if it begins with `[`, in which `\n` ends a
# line; below it are its problems, as patterns.
BAD_FILES = cases_of(r"""
{"a":\n x}
  cannot be read as JSON.*line 2 column 2
{"theme": "dark", "toolbox": "s3cret"}
  configuration: 'toolbox': did you mean 'toolboxes'\? expected .*'theme', 'toolbox'.
"s3cret"
  configuration: expected an object, found a string
  configuration: expected .*toolboxes
{"toolboxes": {"a__b": null, "": {"description": "${NO}", "mcpServers": 7, "toolFilters": []}}}
  toolboxes.a__b: expected a name, without '__', not ending in '_'
  toolboxes.a__b: expected an object, found nothing
  toolboxes.a__b.mcpServers: expected an object, found nothing
  toolboxes.: expected a name
  toolboxes..description: \${NO} is not set
  toolboxes..mcpServers: expected an object, found a number
  toolboxes..toolFilters: unknown key: a server's keys are .*'excludeTools'.*'toolF
{"toolMode": "dynamic", "toolboxes": []}
  Configuration field 'toolMode' set to 'dynamic' is no longer supported.
  Dynamic mode was removed in version 0.10.0.
  Please remove the 'toolMode' field or set it to 'proxy' \(though .* now implicit\).
  For migration guidance, see: "Upgrading" in README.md
  toolboxes: expected an object, found a list
""")
# Each line has the name and the entry of a server; below it are its problems.
BAD_ENTRIES = cases_of(r"""
text "s3cret"
  : expected an object, found a string
  : expected one of .'command'
neither {"comand": "s3cret", "command": ""}
  : expected one of .'command'.*, found .*'comand'
types {"command": {"s3cret": 1}, "args": "s3cret", "env": {"A": []}, "disabled": "no"}
  .command: expected a string, found an object
  .args: expected a list, found a string
  .env.A: expected a string, found a list
  .disabled: expected a boolean, found a string
unset {"command": "x", "args": ["${NO} ${env:no}", "${A"], "env": {"A": "${NO_TOO}"}}
  .args.0.: \${NO} is not set: set it .*`env` .*, or write \${NO:-default}
  .args.0.: \${env:no} is not set
  .args.1.: \${A… is no variable here: write the value, or \${NAME} in capitals
  .env.A: \${NO_TOO} is not set
u_ {"command": "x", "toolFilters": "s3cret"}
  : expected a name, without '__', not ending in '_'
  .toolFilters: expected a list, found a string
""")
RULES = "tools excludedTools enabled_tools ToolFilters tool_allowlist toolsDeny "
RULES += "blockTool requireApproval autoApprove TOOL_APPROVAL"
VARIABLES = {"A": "x", "A_1": "y", "_B": "z", "EMPTY": "", "a_b": "small"}
VARIABLES["RAW"] = r"${A} $A \1 }"
# A text, and what it becomes; or a problem of the entry; or a warning. Any other stays.
EXPANSIONS = r"""
<${A}${A_1}-${_B}> = <xy-z>
${A:-d} <${NO:-}> ${NO:-d} = x <> d
<${EMPTY}${EMPTY:-d}> = <>
${RAW} = ${A} $A \1 }
${NO:-${A}} = ${A}
${env:A} ${env:NO:-d} ${env:a_b} = x d small
$ $} $${A} ${A${A} = $ $} $x ${Ax
${} ${1} ${A%/} ${A-d} ${:-d} ${Ä} $a no$A .
${a} : args[0]: ${a… is no variable here: write the value, or ${NAME} in capitals
${A} ${A : args[0]: ${A… is
${ENV:A} : args[0]: ${ENV… is
$MY_KEY ? args[0]: write ${NAME} if its end is a variable
--key=$MY_KEY ? args[0]: write ${NAME} if its end is a variable
""".strip().splitlines()


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused(case: Any, tmp_path: Path, monkeypatch: Monkey) -> None:
    """All its problems are told, behind its absolute path."""
    content, patterns = case
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("c.toml" if content[0] == "[" else "c.json")
    path.write_text(content.replace(r"\n", "\n"))
    with pytest.raises(workbench.ConfigError) as error:
        find(path.name)
    told = str(error.value)
    problems = told.removeprefix(f"{path}:").strip().splitlines()
    assert told.startswith(f"{path}:") and "s3cret" not in told
    for pattern in patterns:
        assert any(re.match(pattern, each) for each in problems), (pattern, problems)
    assert len(problems) == len(patterns), problems


@pytest.mark.usefixtures("ended")  # so that the command lines run meanwhile
async def test_one_bad_entry_costs_only_itself(notes: Path, log: Logs) -> None:
    """Its problems are its reason wherever reasons stand, and it is never started."""
    expected, servers = {}, {"good": local(notes=notes)}
    for line, patterns in BAD_ENTRIES:
        name, _, entry = line.partition(" ")
        servers[name] = json.loads(entry)
        expected[name] = patterns
    async with connected(**servers) as client:
        answer = await open_box(client)
        for name, patterns in expected.items():
            place = f"toolboxes.box.mcpServers.{name}"
            problem = (await error_of(client, name, "echo")).partition("not up: ")[2]
            assert problem.count(place) == len(patterns), problem
            for pattern in patterns:
                assert re.search(f"(^|; ){place}{pattern}", problem)
            assert answer["servers_failed"].pop(name).startswith(place)
    assert answer["servers_connected"] == 1 and answer["servers_failed"] == {}
    assert len(noted_pids(notes)) == 1 and "s3cret" not in log.text


def test_unknown_keys_are_told_in_one_line(monkeypatch: Monkey, log: Logs) -> None:
    """But one like a rule for tools is a problem, even a room's that is not there."""
    untranslated: Any = lambda path, entry, reader: entry
    monkeypatch.setattr(workbench, "translate_entry", untranslated, raising=False)
    monkeypatch.delitem(workbench.KEYS, "requireApproval", raising=False)
    entry = {"command": "x", "toolTimeout": 1, "toolNamePrefix": 2, "_tools": "${A"}
    misspelt = {key: entry | {key: ["read_*"]} for key in RULES.split()}
    data = configuration(_was=7, **misspelt)
    data["toolboxes"] |= {"_": 7, "off": {"enabled": False, "mcpServers": {}}}
    data["toolboxes"]["box"] |= {"_no": "${A", "oops": 1}
    config = parse(data | {"other": "${A"})
    assert list(config.toolboxes) == ["box"]
    warnings = []
    for key, server in config.toolboxes["box"].servers.items():
        place = f"toolboxes.box.mcpServers.{key}"
        assert server.problem.startswith(f"{place}.{key}: unknown key: ")
        warnings.append(
            f"{place}: unknown keys ['toolNamePrefix', 'toolTimeout'], ignored"
        )
    assert log.messages == [*warnings, "toolboxes.box: unknown keys ['oops'], ignored"]


@pytest.mark.parametrize("case", EXPANSIONS)
def test_a_variable_expands_once(case: str, monkeypatch: Monkey, log: Logs) -> None:
    """A warning does not show the text, which may be a password."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    given, sign, told = re.split("(?: ([=:?]) |$)", case, maxsplit=1)
    config = configuration(s={"command": "x", "args": [given], "env": {"${A}": "y"}})
    server: Any = parse(config).toolboxes["box"].servers["s"]
    place = "toolboxes.box.mcpServers.s."
    if sign == ":":
        assert server.problem.startswith(place + told)
    else:
        assert server.values["args"] == [told if sign == "=" else given]
        assert server.values["env"] == {"${A}": "y"}  # a key stays as it is
    assert log.messages == ([place + told] if sign == "?" else [])


def test_a_configuration_is_found_in_order(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_CONFIG", "")
    with pytest.raises(workbench.ConfigError, match="none: No such file"):
        find("none")
    assert "argument, in WORKBENCH_CONFIG" in find(None).source
    for name in ("argument", "variable", "workbench-config.json"):
        toolbox = {name: {"description": "d", "mcpServers": {}}}
        Path(name).write_text("\ufeff" + json.dumps({"toolboxes": toolbox}), "utf-8")
    assert list(find(None).toolboxes) == ["workbench-config.json"]
    monkeypatch.setenv("WORKBENCH_CONFIG", "variable")
    assert list(find(None).toolboxes) == ["variable"]
    assert list(find("argument").toolboxes) == ["argument"]


# === Workbench ========================================================================

MISSING = {"command": "no-such-command"}
INPUT = {"$schema": "s", "type": "object", "title": "In", "default": None}
EVERY_FIELD = tool("read", description=" Liest\nä\ud83d", inputSchema=INPUT, title="T")
EVERY_FIELD |= {"annotations": {"title": "A", "readOnlyHint": True}, "more": None}
EVERY_FIELD |= {"outputSchema": {"type": "object"}, "_meta": {"own": None}}
EVERY_FIELD |= {"icons": [{"src": "data:,"}], "execution": {"taskSupport": "optional"}}
PARTS = [  # of a toolbox, with its tools, and the note
    ("a__*", "a__echo a__other", "2 of 2 tools of a match."),
    (["box__a__echo", "a__ec*"], "a__echo", "1 of 2 tools of a match."),
    ('["*x__a__*er"]', "a__other", "1 of 2 tools of a match."),
    (["re*]", "z"], "b__re[1]", "1 of 4 tools of a, b, c match. No tool matches 'z'."),
    ("a__ECHO", "", "0 of 2 tools of a match. No tool matches 'a__ECHO'."),
    ("box__b__o__ther", "b__o__ther", "1 of 2 tools of b match."),
]
ALL_NAMES = "read_a Read_b list get[1] 🧰a__b_"
FILTERED: list[tuple[dict[str, Any], str]] = [  # with the tools that are left
    ({"toolFilters": ["read_*", "l?st", "get[1]"]}, "read_a list get[1]"),
    ({"toolFilters": ["[!l]*"], "excludeTools": ["read*"]}, "Read_b get[1] 🧰a__b_"),
    ({"toolFilters": []}, ""),
    ({"toolFilters": "*", "excludeTools": ["?ea*", "l*"]}, "get[1] 🧰a__b_"),
    ({"toolFilters": ["lost", "*"], "excludeTools": ["delte_*"]}, ALL_NAMES),
]


async def test_the_answer_of_open_toolbox_has_exactly_this_shape() -> None:
    read = local(tools=[EVERY_FIELD], about={"instructions": "Größe zählt"})
    bare = local(tools=[tool("bare", description="", annotations={})])
    async with connected(b=bare, a=read) as client:
        answer = text(await client.call_tool("open_toolbox", BOX))
    expected = (
        '{"toolbox":"box","description":"A box","servers_connected":2,'
        '"instructions":{"a":"Größe zählt"},"tools":['
        '{"name":"box__b__bare","description":"Tool from box/b","source_server":"b",'
        '"toolbox_name":"box","original_name":"bare","inputSchema":{"type":"object"},'
        '"annotations":{}},'
        '{"name":"box__a__read","title":"T","description":" Liest\\nä\ufffd",'
        '"source_server":"a","toolbox_name":"box","original_name":"read",'
        '"inputSchema":{"type":"object","title":"In","default":null},'
        '"annotations":{"title":"A","readOnlyHint":true}}]}'
    )
    assert json.loads(answer) == json.loads(expected) and len(answer) == len(expected)


async def test_a_failing_server_costs_only_itself(tmp_path: Path) -> None:
    ear, folder = Ear(), tmp_path / "later"
    async with connected(a=local(), b=local() | {"cwd": str(folder)}) as client:
        # Once each has settled, an answer waits for nothing.
        with anyio.fail_after(workbench.OPEN_TIMEOUT):
            first = await open_box(client, progress_callback=ear.progress)
        assert [each[:2] for each in ear.heard] == [(1, 2), (2, 2)]
        assert {each[2] for each in ear.heard} == {"a", "b"}
        assert first["servers_failed"]["b"] in await error_of(client, "b", "echo")
        assert await open_box(client) == first
        folder.mkdir()
        assert await answer_of(client, "b", "echo", {"x": 1}) == {"x": 1}
        last = await open_box(client)
    assert list(last) == ["toolbox", "description", "servers_connected", "tools"]


async def test_an_open_waits(tmp_path: Path, monkeypatch: Monkey, log: Logs) -> None:
    """For one server alone; it tells what those that are still starting wrote."""
    assert (workbench.OPEN_TIMEOUT, workbench.ANSWER_TIMEOUT) == (5, 50)
    gate, link = tmp_path / "gate", f"Visit https://a.b/{'c' * 500}"
    words = f"os.write(2, b'{link}\\nlast words\\n')"
    start = f"{words}; self.wait_for({str(gate)!r}); self.start()"
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0)
    async with connected(slow=local(on={"start": start}), fast=local()) as client:
        await open_box(client)
        await until(lambda: link in log.text)
        answer = await open_box(client)
        monkeypatch.setattr(workbench, "ANSWER_TIMEOUT", 0.3)
        assert "still starting" in await error_of(client, "slow", "echo")
        monkeypatch.undo()
        gate.touch()
        assert await answer_of(client, "slow", "echo") == {}
    assert answer["servers_connecting"] == ["slow"] and answer["servers_connected"] == 1
    again = 'Still starting: slow. Get its tools later, with ["slow__*"] in `tools`.'
    assert again in answer["note"] and link in answer["note"]


async def test_where_all_fail_none_is_left(notes: Path, monkeypatch: Monkey) -> None:
    """Each reason is one readable line that tells the cause."""
    monkeypatch.setattr(workbench, "START_TIMEOUT", 1.5)
    kill = "os.write(2, b'one\\n\\x1b[31mtwo'); os.kill(os.getpid(), 9)"
    no_key = {"initialize": "refuse(request, 7, 'no\\nkey')"}
    no_list = {"tools_list": "answer(request, {'tools': 7})"}
    reasons: dict[str, tuple[dict[str, Any], str]] = {
        "absent": (MISSING, "^cannot start 'no-such-command': .* not in PATH; write"),
        "blank": ({"command": "no such"}, "^cannot start 'no such': .* into `args`$"),
        "folder": (local() | {"cwd": "/no-such"}, "folder '.*no-such' is not there;"),
        "kill": (local(on={"start": kill}), f"status {KILLED}; one.* two"),
        "probed": (local(on=no_key), "^no key; probed$"),
        "spoilt": (local(notes=notes, on=no_list), "not valid"),
        "silent": (local(notes=notes, on={"start": "self.hang()"}), " 1.5 seconds"),
    }
    servers = {name: server for name, (server, _) in reasons.items()}
    async with connected(**servers) as client:
        result = await client.call_tool("open_toolbox", BOX)
        await until(lambda: not any(map(is_alive, noted_pids(notes))))
    assert result.is_error and len(noted_pids(notes)) == 2
    failed = json.loads(text(result))["servers_failed"]
    for name, (_, told) in reasons.items():
        assert failed[name].isprintable() and re.search(told, failed[name]), name


async def test_a_tool_list_is_read_to_its_end(log: Logs) -> None:
    """A tool whose declaration is not valid costs only itself."""
    schema = {"type": "object", "properties": {"required": ["x"]}}
    tools = [tool("Ann"), {"name": "Ben"}, tool("7") | {"name": 7}, "Cid"]
    tools += [tool("Eve", inputSchema=schema), tool("Dee")]
    none = local(on={"tools_list": "refuse(request, -32601)"})
    # The cursor of its last page leads back.
    page = "page = int(request.get('params', {}).get('cursor', 1))\n"
    page += "cursor = str(page % 3 + 1)\n"
    page += "answer(request, {'tools': [tool(f't{page}')], 'nextCursor': cursor})"
    pages = local(on={"tools_list": page})
    async with connected(none=none, a=local(tools=tools), b=pages) as client:
        answer = await open_box(client)
    shown = [each["name"].removeprefix("box__") for each in answer["tools"]]
    assert shown == ["a__Ann", "a__Dee", "b__t1", "b__t2", "b__t3"]
    assert answer["servers_connected"] == 3
    found = re.findall("WARNING .*an invalid tool.*(Ben|7|Cid|Eve)", log.text)
    assert found == ["Ben", "7", "Cid", "Eve"]


async def test_a_part_has_the_matching_tools_and_a_note_that_counts_them() -> None:
    """A server introduces itself only with all of its tools."""
    a = local(tools=[tool("echo"), tool("other")], about={"instructions": "x" * 2_001})
    b = local(tools=[tool("re[1]"), tool("o__ther")])
    c = local(on={"tools_list": "answer(request, {'tools': []})"})
    async with connected(a=a, b=b, c=c) as client:
        for part, names, told in PARTS:
            answer = await open_box(client, part)
            shown = [each["name"].removeprefix("box__") for each in answer["tools"]]
            assert (" ".join(shown), answer["note"]) == (names, told)
            assert ("instructions" in answer) == (part == "a__*")
        for nothing in (list[str](), "", "[]"):
            assert await open_box(client, nothing) == await open_box(client)
        answer = await open_box(client, "a__*")
    assert answer["instructions"] == {"a": "x" * 2_000 + "…"}


async def test_read_only_leaves_out_what_is_not_declared_so() -> None:
    tools = [tool("read", annotations={"readOnlyHint": True}), tool("write")]
    a = local(tools=[*tools, tool("wait", annotations={})])
    async with connected(a=a, read_only=True) as client:
        _, using = dumped(await client.list_tools())["tools"]
        assert using["annotations"] == {"readOnlyHint": True}
        answer = await open_box(client, "*__*")
        assert [each["name"] for each in answer["tools"]] == ["box__a__read"]
        assert "2 tools are left out" in answer["note"]
        told = await error_of(client, "a", "write")
        assert told == "'write' of 'box/a' is left out by --read-only"
        assert await answer_of(client, "a", "read", {"x": 1}) == {"x": 1}


async def test_a_server_starts_once_when_needed(tmp_path: Path) -> None:
    notes, others = tmp_path / "a", tmp_path / "b"
    config = configuration(a=local(notes=notes), b=local(notes=others), x=MISSING)
    config["toolboxes"]["twin"] = config["toolboxes"]["box"]
    async with connected(config=config) as client:
        tools = await client.list_tools()
        await asyncio.gather(*(use(client, "a", "echo") for _ in range(20)))
        part = await open_box(client, ["a__echo", "box__a__say"])
        assert part["servers_connected"] == 1 and "servers_failed" not in part
        assert len(noted_pids(notes)) == 1 and not others.exists()
        await asyncio.gather(*(open_box(client) for _ in range(20)))
        assert (await open_box(client, "a__*"))["servers_connected"] == 2
        assert await client.list_tools() == tools
        await client.call_tool("use_tool", {"tool_name": "twin__a__echo"})
    assert len(noted_pids(notes)) == 2 and len(noted_pids(others)) == 1


async def test_a_filtered_tool_can_be_neither_seen_nor_called(log: Logs) -> None:
    """It is told as that, and so is a pattern that filters nothing."""
    its = local(tools=[tool(name) for name in ALL_NAMES.split()])
    servers = {f"s{n}": its | given for n, (given, _) in enumerate(FILTERED)}
    audiences = {"app": ["app"], "both": ["app", "model"], "all": None}
    for_apps = [tool(k, _meta={"ui": {"visibility": v}}) for k, v in audiences.items()]
    async with connected(**servers, apps=local(tools=for_apps)) as client:
        shown = (await open_box(client, "apps__*"))["tools"]
        assert [each["original_name"] for each in shown] == ["both", "all"]
        assert "offers it to apps alone" in await error_of(client, "apps", "app")
        for server, (given, left) in zip(servers, FILTERED, strict=True):
            shown = (await open_box(client, f"{server}__*"))["tools"]
            assert [each["original_name"] for each in shown] == left.split()
            for name in set(ALL_NAMES.split()).difference(left.split()):
                told = await error_of(client, server, name)
                assert told.rpartition("is left out by ")[2] in given
    assert log.text.count("box/s0: tools: ") == 1  # so nothing was looked for again
    idle = re.findall("box/s4: its pattern (.*) matches none of its tools", log.text)
    assert idle == ["'lost'", "'delte_*'"] and log.text.count("matches none") == 2


# === MCP server =======================================================================

INSTRUCTIONS = """\
Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools. \
Toolboxes: web, main

Available Toolboxes:

web (1 server)
  Description: s

main (2 servers)
  Description: Files, and ünïcode
  Servers: b, a"""
NOT_FOUND = "Toolbox 'no' not found. Available toolboxes: box, mine"
NEAR = "Use {toolbox}__{server}__{tool}, such as "
WHOLE = {"tool_name": "box__b__echo"}
ADDED = {"wait_for_previous": True, "task_progress": "- [ ] x", "context": {}}
DELETE = ADDED | {"tool_name": "box__a__delete"}
BESIDE = "put what stands in {} into `arguments`, not beside it$"
BAD_CALLS: list[tuple[str, Any, str]] = [  # of a tool with arguments, and what is told
    ("open_toolbox", {"toolbox_name": "no"}, NOT_FOUND),
    ("open_toolbox", None, "^toolbox_name is not valid: Field required"),
    ("open_toolbox", BOX | {"tools": ["a", 1]}, "^tools.1 is not valid: "),
    ("use_tool", WHOLE | {"arguments": "{a:"}, "^arguments: expected a JSON object"),
    ("use_tool", {"tool_name": "echo"}, "a full name is .*toolboxes: box, mine$"),
    ("use_tool", {"tool_name": "box__echo"}, f"{NEAR}box__a__echo or box__b__echo"),
    ("use_tool", {"tool_name": "box__b__ecoh"}, "'ecoh', nearest: .'box__b__echo'"),
    ("use_tool", {"tool_name": "no__b__x"}, f"in toolbox 'no': {NOT_FOUND}"),
    ("use_tool", BOX | {"tool_name": "mine__mine__echo"}, "of toolbox 'box' matches"),
    ("use_tool", DELETE | {"args": {"path": "/x"}}, BESIDE.format("args")),
    ("use_tool", DELETE | {"params": '{"path": "/x"}'}, BESIDE.format("params")),
    ("use_tool", DELETE | {"path": "/x"}, BESIDE.format("path")),
]


@MODES
async def test_the_handshake_tells_who_we_are_and_our_toolboxes(mode: str) -> None:
    x = {"command": "x"}
    off = {"command": "${UNSET}", "enabled": False}
    servers = {"b": x, "a": x, "off": off, "too": off | {"disabled": True}}
    toolboxes = {
        "web": {"mcpServers": {"s": x}},
        "main": {"description": "Files, and ünïcode", "mcpServers": servers},
    }
    async with connected(mode, config={"toolboxes": toolboxes}) as client:
        assert client.instructions == INSTRUCTIONS
        assert (client.protocol_version == MODERN) == (mode == "auto")
        info: Any = client.server_info
        assert (info.name, info.version) == ("mcp-workbench", "0.10.0")
        told = dumped(client.server_capabilities)
        assert told == {"tools": {"listChanged": False}, "logging": {}}
    async with connected(mode, config={"toolboxes": {}}) as client:
        assert re.match("No toolboxes configured.*toolboxes", client.instructions or "")
        [opening, _] = (await client.list_tools()).tools
        assert "enum" not in json.dumps(opening.input_schema)


async def test_the_two_tools_say_what_they_are_in_260_tokens() -> None:
    async with connected(a={"disabled": True}) as client:
        assert (await open_box(client))["servers_connected"] == 0
        opening, using = dumped(await client.list_tools())["tools"]
    assert [opening["name"], using["name"]] == ["open_toolbox", "use_tool"]
    hints = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}
    assert opening["title"] and using["title"]
    assert opening["annotations"] == hints
    assert using["annotations"] == {"readOnlyHint": False}
    assert opening["_meta"] == using["_meta"] == {"anthropic/alwaysLoad": True}
    assert opening["inputSchema"]["properties"]["toolbox_name"].pop("enum") == ["box"]
    kept = ("name", "description", "inputSchema")  # what a model is sent
    sent = [each[key] for each in (opening, using) for key in kept]
    assert len(workbench.compact(sent)) <= 260 * 3.84  # bytes of a token of o200k


async def test_a_bad_call_is_an_error_that_helps(notes: Path) -> None:
    """None is executed without its arguments, which may delete everything."""
    schema = {"type": "object", "properties": {"path": {}}}
    tools = [tool("delete", inputSchema=schema), tool("echo")]
    data = configuration(a=local(notes=notes, tools=tools), b=local())
    data["toolboxes"]["mine"] = {"description": "", "mcpServers": {"mine": local()}}
    async with connected(config=data) as client:
        for name, arguments, told in BAD_CALLS:
            result = await client.call_tool(name, arguments)
            assert result.is_error and re.search(told, text(result)), arguments
        with pytest.raises(MCPError, match="^Tool 'x' not found: .*use_tool") as caught:
            await client.call_tool("x", {})
        assert caught.value.code == -32602
        # Keys that clients add mean nothing, and models write arguments as JSON.
        for given, told in ({}, "{}"), ({"a": 1}, '{"a": 1}'), ('{"a": 1}', '{"a": 1}'):
            whole = WHOLE | ADDED | {"arguments": given, "args": given}
            assert text(await client.call_tool("use_tool", whole)) == told
        assert not (await client.call_tool("open_toolbox", BOX | ADDED)).is_error
    assert "delete" not in notes.read_text()


# === Connections ======================================================================

HAS_SECRET = {"env": {"KEY": "sesame-open"}}
NOT_VALID = ".*not valid.*may have taken effect, and was not repeated$"
NOT_DONE = ", which cannot .* may have taken effect, and was not repeated$"
WRONG_ANSWERS = [  # and what is told
    ('"error": {"code": -32000, "message": "Go, sesame-open"}', r"-32000.*Go, \*\*\*"),
    ('"error": {"message": "x"}', NOT_VALID),
    ('"method": null, "result": null', NOT_VALID),
    ('"result": {"content": [{"type": "audio", "data": ""}]}', f"content{NOT_VALID}"),
    ('"result": {"resultType": "complete", "content": 7}', f"content{NOT_VALID}"),
    ('"result": {"resultType": "task", "content": []}', f"type 'task'{NOT_DONE}"),
    ('"result": {"task": {"taskId": "7"}}', f"type 'task'{NOT_DONE}"),
]
SCHEMA = {"type": "object", "properties": {}}
FORM = {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}
SIGN_IN = {"mode": "url", "message": "Go", "url": "https://a.b?c", "elicitationId": "e"}
ELICIT = {"method": "elicitation/create", "params": FORM}
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
PARIS = {"type": "text", "text": "Paris"}
SAMPLING: Any = {"messages": [{"role": "user", "content": PARIS}], "maxTokens": 9}
SAMPLED = {"role": "assistant", "model": "m", "content": PARIS, "stopReason": "end"}
ROOTS = {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}
QUESTIONS: list[tuple[str, dict[str, Any], Any]] = [  # and the client's answers
    ("elicitation/create", FORM, ACCEPTED),
    ("elicitation/create", FORM, {"code": -7, "message": "Asleep", "data": {"why": 1}}),
    ("elicitation/create", SIGN_IN, {"action": "decline"}),
    ("sampling/createMessage", SAMPLING | {"tools": [tool("t")]}, SAMPLED),
    ("roots/list", {}, ROOTS),
]
TEXT_FILE = {"uri": "file:///t", "mimeType": "text/plain"}
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "Größe 😀 \u2028 \x00 漢字"},
    {"type": "text", "text": "", "annotations": {"priority": 0.5}, "_meta": {"x": [0]}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "resource", "resource": TEXT_FILE | {"text": "é", "_meta": {"x": 1}}},
    TEXT_FILE | {"type": "resource_link", "name": "t", "title": "T", "size": 5},
]
RESULTS: list[dict[str, Any]] = [
    {"content": BLOCKS},
    text_result("not its schema", structuredContent={"n": "x", "deep": [{"x": None}]}),
    text_result("wrong", isError=True, _meta={"example.com/x": {"id": None}}),
    text_result("sesame-open"),  # a secret, which is the server's own affair
    {"structuredContent": {"n": "x"}},  # without content, which clients take
]
# Neither these, nor bytes that are no UTF-8, keep the answer behind them away.
NO_ANSWERS = '\xff\xfe\n\n \r\nlistening\n[]\n7\n{}\n{"id": 1, "method": 7}\n'
NO_ANSWERS += '{"level": 40, "id": ID, "error": "cache miss"}\n'
NO_ANSWERS += '{"jsonrpc": "2.0", "id": 987654321, "result": {}}\n'


async def become(client: Client, *tools: dict[str, Any], **more: Any) -> None:
    assert await answer_of(client, "a", "become", {"tools": tools, **more}) is None


async def changed(client: Client) -> list[dict[str, Any]]:
    """The tools that the server `a` has got."""
    its = (await open_box(client))["tools"][len(TOOLS) :]
    return [tool(own["original_name"], inputSchema=own["inputSchema"]) for own in its]


@ERAS
async def test_a_change_is_there_for_the_next_call(eras: str, log: Logs) -> None:
    later = [tool("a", inputSchema={"type": "object", "title": "A"})]
    later += [tool("x"), tool("y"), tool("z")]
    ear = Ear()
    a = local(eras=eras, about=ANNOUNCING)
    async with connected(a=a, callbacks=ear.callbacks) as client:
        await become(client, tool("a"), tool("b"), tool("c"))
        assert not (await use(client, "a", "c")).is_error
        await become(client, *later)
        assert await changed(client) == later
    received = "Received tools/list_changed notification from server: box/a"
    assert log.record_tuples.count(("workbench", logging.INFO, received)) == 2
    assert re.search("INFO .*box/a.*3 added.*2 removed.*1 modified", log.text)
    assert ear.heard == []


async def test_each_opening_lists_anew_and_so_does_a_new_name(notes: Path) -> None:
    """So each sees what has changed before it, also beside others."""
    gate = notes.with_name("gate")
    hold = f"self.note('lists'); self.wait_for({str(gate)!r})"
    on = {"tools_list": f"{hold}; self.tools_list(request)"}
    async with connected(a=local(notes=notes, about=ANNOUNCING)) as client:
        await become(client, tool("x"), on=on)
        waiting = [asyncio.ensure_future(changed(client)) for _ in range(20)]
        calls = [asyncio.ensure_future(use(client, "a", "x")) for _ in range(20)]
        await until(lambda: "lists" in notes.read_text())
        await anyio.wait_all_tasks_blocked()
        gate.touch()
        for seen in await asyncio.gather(*waiting):
            assert seen == [tool("x")]
        assert not any(called.is_error for called in await asyncio.gather(*calls))
        assert "has no tool" in await error_of(client, "a", "y")
    # The openings, the calls of a name that was new to them, and that of `y`.
    assert notes.read_text().count("lists") == 20 + 20 + 1


async def test_a_failed_refresh_keeps_old_tools(log: Logs, monkeypatch: Monkey) -> None:
    """And the list stays stale, so that the change is there after the next one."""
    a = local() | {"toolFilters": ["[!f]*"]}  # which announces without saying so
    async with connected(a=a) as client:
        await become(client, tool("filtered out"), tool("old"))
        assert await changed(client) == [tool("old")]
        monkeypatch.setattr(workbench, "OPEN_TIMEOUT", 0.3)
        for code in ("refuse(request, 7)", "answer(request, {'tools': 1})", "pass"):
            await become(client, tool("new"), on={"tools_list": code})
            assert await changed(client) == [tool("old")]
        monkeypatch.undo()
        mended = {"tools_list": "self.tools_list(request)"}
        await become(client, tool("new"), on=mended, times=0)  # which announces nothing
        assert await changed(client) == [tool("new")]
    warning = "Received tools notification from server without listChanged"
    assert f"{warning} capability: box/a" in log.messages


@ERAS
async def test_a_wrong_answer_is_an_error_of_its_call_alone(eras: str) -> None:
    """One that addresses the client passes to it, and keeps its data as they are."""
    async with connected(a=local(eras=eras) | HAS_SECRET) as client:
        for wrong, told in WRONG_ANSWERS:
            line = f'{{{wrong}, "id": ID, "jsonrpc": "2.0"}}'
            assert re.search(told, await error_of(client, "a", "write", {"line": line}))
        for code in (-32042, -32021):
            error = {
                "code": code,
                "message": "Go, sesame-open",
                "data": ["sesame-open"],
            }
            line = f'{{"error": {json.dumps(error)}, "id": ID, "jsonrpc": "2.0"}}'
            with pytest.raises(MCPError) as caught:
                await use(client, "a", "write", {"line": line})
            assert dumped(caught.value.error) == error | {"message": "Go, ***"}
        assert (await answer_of(client, "a", "seen"))["calls"] == len(WRONG_ANSWERS) + 3


async def test_a_question_reaches_the_client_and_is_answered(notes: Path) -> None:
    """And so is one by URL when it is done, and a server of a change of roots."""
    ear = Ear()
    noting = {"notifications_roots_list_changed": "self.note('roots changed')"}
    its = local(notes=notes, on=noting)
    async with connected(callbacks=ear.callbacks, a=its, b=its, c=its) as client:
        await open_box(client, ["a__*", "b__*"])
        for method, params, ear.answer in QUESTIONS:
            ear.heard.clear()
            given = {"method": method, "params": params}
            assert await answer_of(client, "a", "ask", given) == ear.answer
            assert ear.heard == [params]
        ear.heard.clear()
        complete = {"method": "notifications/elicitation/complete", "params": SIGN_IN}
        await use(client, "a", "say", {"messages": [complete]})
        assert ear.heard[0]["params"]["elicitationId"] == "e"
        await client.session.send_notification(types.RootsListChangedNotification())
        await until(lambda: notes.read_text().count("roots changed") == 2)
    assert len(noted_pids(notes)) == 2


async def test_a_server_is_offered_what_the_client_declared() -> None:
    """And told its name; a question that is the result of a call is its error."""
    editor = types.Implementation(name="an editor", version="7")
    asking = {"resultType": "input_required", "inputRequests": {"who": ELICIT}}
    servers = {"a": local(), "b": local(eras=MODERN)}
    for mode, able, offered in (
        ("legacy", "nothing", {}),
        ("legacy", "roots", {"roots": {"listChanged": True}}),
        ("legacy", "sampling", {"sampling": {"tools": {}}}),
        ("auto", "", {}),  # cannot be asked
    ):
        ear = Ear(able)
        its = ear.callbacks | {"client_info": editor}
        async with connected(mode, callbacks=its, **servers) as client:
            seen = await answer_of(client, "a", "seen")
            newer = (await answer_of(client, "b", "seen"))["_meta"]
            assert "code" in await answer_of(client, "a", "ask", ELICIT)
            told = await error_of(client, "b", "result", asking)
        assert "input" in told and "not valid" not in told and ear.heard == []
        assert seen[CAPABILITIES] == offered, (mode, able)
        if mode == "legacy":
            assert seen[CLIENT_INFO] == newer[CLIENT_INFO] == dumped(editor)


async def test_progress_and_logs_come_in_order_before_the_result(log: Logs) -> None:
    """Logs from the level on that the client sets; our own log has them all."""
    ear, meter = Ear(), Ear()
    levels = get_args(types.LoggingLevel)
    told = [{"level": level, "data": [level, "sesame-open"]} for level in levels]
    logs = [{"method": "notifications/message", "params": each} for each in told]
    done = [{"progress": number} for number in range(1, 101)]
    steps = [{"method": "notifications/progress", "params": each} for each in done]
    setting = "self.known['level'] = request['params']['level']"
    a = local(on={"logging_setLevel": setting})  # which is not answered
    b = local(on={"logging_setLevel": f"{setting}; refuse(request, -32601)"})
    silent = local(about={"capabilities": {}}, on={"logging_setLevel": setting})
    servers = {"a": a | HAS_SECRET, "b": b, "silent": silent}
    async with connected(callbacks=ear.callbacks, **servers) as client:
        given = {"messages": steps}
        await use(client, "a", "say", given, progress_callback=meter.progress)
        assert meter.heard == [(each["progress"], None, None) for each in done]
        ear.heard.clear()
        await use(client, "a", "say", {"messages": logs})
        assert ear.heard == logs
        level = types.SetLevelRequestParams(level=levels[3])
        request = types.SetLevelRequest(params=level)
        await client.session.send_request(request, types.EmptyResult)
        await use(client, "a", "say", {"messages": logs})
        await open_box(client)
        await anyio.wait_all_tasks_blocked()  # so a later server has been told as well
        told = [await answer_of(client, name, "seen") for name in servers]
    assert [each.get("level") for each in told] == [levels[3]] * 2 + [None]
    assert ear.heard == logs + logs[3:]
    assert log.text.count("DEBUG") >= len(ear.heard)


@MODES
@ERAS
async def test_a_result_comes_as_the_server_sent_it(mode: str, eras: str) -> None:
    """And the request's `_meta` goes down, except what is of one hop."""
    own = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "a.b/c": {"x": [None]}}
    own |= {f"my.{RESERVED}x": "b"}  # no name of the protocol
    hop = {f"{RESERVED}logLevel": "debug", f"{RESERVED}x": 1, "progressToken": "me"}
    strict = {"type": "object", "required": ["x"]}
    tools = [tool("result", outputSchema=strict), tool("write"), tool("seen")]
    async with connected(mode, a=local(eras=eras, tools=tools) | HAS_SECRET) as client:
        for result in RESULTS:
            model = await use(client, "a", "result", result)
            came = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
            assert came.pop("resultType", "complete") == "complete"
            came.setdefault("_meta", {}).pop(f"{RESERVED}serverInfo", None)
            assert came == {"content": [], "_meta": {}} | result
        its = '{"result": {"resultType": "complete"}, "id": ID, "jsonrpc": "2.0"}'
        assert not (await use(client, "a", "write", {"line": NO_ANSWERS + its})).content
        seen = json.loads(text(await use(client, "a", "seen", meta=own | hop)))
    assert seen["_meta"].pop("progressToken") != "me"
    if eras == MODERN:
        for name in ("clientCapabilities", "clientInfo", "protocolVersion"):
            del seen["_meta"][RESERVED + name]
    assert seen["_meta"] == own


async def test_cancelled_calls_are_cancelled_downstream(notes: Path) -> None:
    async with connected(a=local(notes=notes)) as client:
        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(use, client, "a", "wait")
            await until(lambda: notes.read_text().count("waiting") == 20)
            calls.cancel_scope.cancel()
        waiting = re.findall("waiting-(.*)", notes.read_text())
        told = {f"cancelled-{number}" for number in waiting}
        await until(lambda: told <= set(notes.read_text().split()))
        assert await answer_of(client, "a", "echo") == {}
        assert len(noted_pids(notes)) == 1


# === Processes ========================================================================

SHOWING = "answer(request, json_result([sys.argv[2:], dict(os.environ)]))"
SHOW = local(on={"tools_call": SHOWING})


async def test_a_death_costs_only_the_calls_in_flight(notes: Path, log: Logs) -> None:
    start = "os.write(2, b'\\x1b[31mfirst\\x07 words\\r\\n'); self.start()"
    a = local(notes=notes, on={"start": start})
    async with connected(a=a, b=local()) as client:
        calls = [asyncio.ensure_future(error_of(client, "a", "wait")) for _ in "12"]
        await until(lambda: notes.read_text().count("waiting") == 2)
        os.kill(noted_pids(notes)[-1], 9)  # SIGKILL; on Windows, its exit status
        for told in await asyncio.gather(*calls):
            assert re.search(f"status {KILLED}.*first  words.*not repeated$", told)
        uses = [answer_of(client, "a", "echo") for _ in range(20)]
        assert await asyncio.gather(*uses) == [{}] * 20
        # Output from before the last answer does not explain an end.
        last = asyncio.ensure_future(error_of(client, "a", "wait"))
        await until(lambda: notes.read_text().count("waiting") == 3)
        os.kill(noted_pids(notes)[-1], 9)
        assert "words" not in await last
    assert len(noted_pids(notes)) == 2
    assert notes.read_text().count("waiting") == 3  # so none was repeated
    assert ("workbench", logging.INFO, "[box/a] first  words") in log.record_tuples


async def test_an_end_beside_a_child_is_seen(notes: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.1)
    end = "self.echo(request, {}) if request['params']['arguments'] else 0\n"
    end += "os.write(2, b'first words\\nlast words'); os._exit(7)"
    its = {"start": "self.bear(); self.start()", "tools_call": end}
    async with connected(a=local(notes=notes, on=its)) as client:
        told = "status 7.*first words.*last words"
        assert re.search(told, await error_of(client, "a", "echo"))
        assert await answer_of(client, "a", "echo", {"answered": "before"}) == {}
    await until(lambda: not any(map(is_alive, noted_pids(notes))))


async def test_a_start_cut_short_leaves_none(notes: Path, monkeypatch: Monkey) -> None:
    kind: Any = workbench.TRANSPORTS["command"]
    spawn = kind.spawn

    async def spawn_slowly(*its: Any, **options: Any) -> None:
        await spawn(*its, **options)
        await until(lambda: len(noted_pids(notes)) == 2)
        leaving.cancel()
        await anyio.wait_all_tasks_blocked()

    monkeypatch.setattr(kind, "spawn", spawn_slowly)
    its = local(notes=notes, on={"start": "self.bear(); self.hang()"})
    leaving = anyio.CancelScope()
    async with connected(a=its) as client:
        with leaving:
            await open_box(client)
    await until(lambda: not any(map(is_alive, noted_pids(notes))))


async def test_servers_are_spawned_one_after_another(monkeypatch: Monkey) -> None:
    """The end by force would not know one that is spawned beside another."""
    kind: Any = workbench.TRANSPORTS["command"]
    spawn, before = kind.spawn, len(workbench.RUNNING)
    begun: list[Any] = []

    async def count_and_spawn(*its: Any, **options: Any) -> None:
        assert len(workbench.RUNNING) == before + len(begun)
        begun.append(its)
        await spawn(*its, **options)

    monkeypatch.setattr(kind, "spawn", count_and_spawn)
    async with connected(a=local(), b=local(), c=local()) as client:
        assert (await open_box(client))["servers_connected"] == 3


async def test_a_mute_server_is_replaced(notes: Path, monkeypatch: Monkey) -> None:
    """Its stdout is closed. The next process starts when this one has gone."""
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.6)
    deaf = "os.close(1)\nfor line in sys.stdin.buffer: pass\n"
    deaf += "time.sleep(0.2); self.note('gone'); os._exit(0)"
    async with connected(a=local(notes=notes, on={"tools_call": deaf})) as client:
        for _ in "12":
            assert "closed its stdout" in await error_of(client, "a", "echo")
    assert re.fullmatch(r"(\d+\ngone\n){2}", notes.read_text())


async def test_a_variable_reaches_only_servers_that_set_it(monkeypatch: Monkey) -> None:
    """And a secret one that an entry names, only those whose entries name it."""
    for name in ("WORD", "GONE", "TOKEN", "OTHER_TOKEN"):
        monkeypatch.setenv(f"WB_{name}", "ours")
    words = ["${WB_WORD} ${WB_PORT:-} ${WB_ON:-}", "~/x", "${WB_TOKEN}"]
    env = {"WB_WORD": "its ${WB_WORD}", "WB_PORT": 8080, "WB_ON": True, HOME: "/its"}
    own = SHOW | {"args": SHOW["args"] + words, "env": env | {"WB_GONE": None}}
    other = SHOW | {"args": SHOW["args"] + words[:2], "env": {"WB_X": "${WB_WORD}"}}
    async with connected(its=own, other=other) as client:
        [word, path, _], its = await answer_of(client, "its", "echo")
        assert (word, path) == ("its ours 8080 true", os.path.expanduser("~/x"))
        assert its[HOME] == "/its" and its["WB_PORT"] == "8080"
        [word, _], others = await answer_of(client, "other", "echo")
        assert word == "ours  " and "PATH" in others
    seen = [re.findall(r"\bWB_(\w+)", " ".join(each)) for each in (its, others)]
    assert set(seen[0]) == {"ON", "PORT", "WORD", "TOKEN", "OTHER_TOKEN"}
    assert set(seen[1]) == {"GONE", "X", "WORD", "OTHER_TOKEN"}


# === Messages =========================================================================


async def test_a_message_has_at_most_32_mib(monkeypatch: Monkey) -> None:
    assert workbench.MESSAGE_LIMIT == 32 * 1024**2
    monkeypatch.setattr(workbench, "MESSAGE_LIMIT", 2**20)
    # A progress bar may be one line on stderr, and longer than a message.
    progress = "os.write(2, b'%' * 3_000_000 + b'\\n'); self.tools_call(request)"
    async with connected(a=local(on={"tools_call": progress})) as client:
        largest = "x" * (2**20 - 1_000)
        assert text(await use(client, "a", "result", text_result(largest))) == largest
        told = await error_of(client, "a", "result", text_result(largest + largest))
        assert "beyond 1 MiB" in told and "may have taken effect" in told
        assert await answer_of(client, "a", "echo", {"x": 1}) == {"x": 1}


# === Secrets ==========================================================================

TELLING_NAMES = """
GITHUB_TOKEN accessToken client_secret PGPASSWORD DB_PASSWD passphrase OPENAI_API_KEY
apiKey api-key accessKey DB_PASS AUTH_HEADER Authorization bearer MY_PAT COOKIE
SENTRY_DSN JWT credentials
"""
OTHER_NAMES = "PATH MONKEY KEYBOARD tokenizer AUTHOR COMPASS PASSENGERS DATABASE_HOST"
SECRETS: list[tuple[dict[str, Any], str]] = [  # and texts that hold nothing else
    ({"env": {"DB": "db://u:p-ss.word@h/db"}}, "p-ss.word"),
    ({"env": {"A_KEY": "line.one\nline.two"}}, "line.one line.two"),
    ({"env": {"A_KEY": "abcdefg1", "B_KEY": "abcdefg1SECRET"}}, "abcdefg1SECRET"),
    ({"env": {"AUTH": "Bearer bear.er01"}}, "bear.er01"),
    ({"env": {"H": '{"Authorization": "Bearer head.er01"}'}}, "head.er01"),
    ({"args": ["-H", "Authorization: Bearer head.er02"]}, "head.er02"),
    ({"args": ["--header=X-Api-Key:head.er03"]}, "head.er03"),
    ({"args": ["https://h/?a=b&apiKey=of.query&c=d"]}, "of.query"),
    ({"args": ["h=db password=of.word1 u=x"]}, "of.word1"),
    ({"args": ["--api-key=amp&ersand"]}, "amp&ersand"),
    ({"args": ["--token", "${WB_MINE}"]}, "my-own-value"),
    ({"args": ["--db", "db://u:${WB_MINE:-a/b}@h/"]}, "my-own-value"),
    ({"args": ["none of it"]}, "sesame-open"),  # a variable of the environment
    ({"disabled": True, "env": {"A_KEY": "switched.off"}}, "switched.off"),
]


def mask(text: str, entry: dict[str, Any]) -> str:
    """The text as a workbench with this entry logs it."""
    kind = {} if "url" in entry else {"command": "x"}
    return parse(configuration(s=kind | entry)).secrets.mask(text)


@pytest.mark.parametrize("name", f"{TELLING_NAMES} {OTHER_NAMES}".split())
def test_a_value_is_secret_if_its_name_says_so(name: str) -> None:
    told = "***" if name in TELLING_NAMES.split() else "the value"
    args = [f"--{name}", "the value"], ["-e", f"{name}=the value"]
    for entry in ({"env": {name: "the value"}}, {"args": args[0]}, {"args": args[1]}):
        assert mask("the value", entry) == told


@pytest.mark.parametrize("entry, texts", SECRETS)
def test_secrets_are_masked(entry: Any, texts: str, monkeypatch: Monkey) -> None:
    monkeypatch.setenv("WB_MINE", "my-own-value")
    monkeypatch.setenv("WB_SECRET", "sesame-open")
    assert set(mask(f"{texts} {texts}", entry).split()) == {"***"}


def test_only_secrets_are_masked(tmp_path: Path, monkeypatch: Monkey) -> None:
    folder = tmp_path / "in My-Projects"  # whose last word is told alone as well
    folder.mkdir()
    monkeypatch.setenv("SHORT_KEY", "1234567")
    monkeypatch.setenv("KEY_FILE", str(folder))
    args = ["--verbose=very-much", "https://h.org/@owner/name", "--key", "1234567"]
    env = {"NODE_ENV": "production", "A_KEY": "${KEY_FILE}", "BLANK_KEY": " " * 8}
    told = f"1234567 {folder} {' ' * 8} very-much h.org/@owner production"
    assert mask(told, {"args": args, "env": env}) == told


def test_no_secret_is_logged_or_told(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.setenv("WB_TOKEN", "tok-0123456")
    said = "tok-0123456 key-0123456"
    die = f"print('{said} Grüße', file=sys.stderr); print('no {said}'); sys.exit(3)"
    servers: dict[str, Any] = {
        "early": local(on={"start": die}) | {"env": {"A_KEY": "key-0123456"}},
        "call": local(on={"tools_call": die}),
        "refused": local(on={"initialize": f"refuse(request, 7, '{said}')"}),
    }
    with Wire(tmp_path, "--verbose", **servers) as wire:
        wire.initialize()
        opening = wire.begin("tools/call", name="open_toolbox", arguments=BOX)
        told = [str(wire.answer(opening))]
        told += [wire.use(server) for server in (*servers, "tok-0123456")]
    told.append((tmp_path / "stderr").read_text("utf-8"))
    assert "[box/early] *** *** Grüße\n" in told[-1]
    for secret in said.split():
        assert secret not in "\n".join(told)


def test_no_description_or_refusal_tells_a_secret(monkeypatch: Monkey) -> None:
    """Not even one that stands in another toolbox."""
    monkeypatch.setenv("WB_TOKEN", "tok-0123456")
    server = {"command": "x", "env": {"A_KEY": "key-0123456"}}
    told = {"description": "${WB_TOKEN} key-0123456", "mcpServers": {}}
    data = {"toolboxes": {"a": told, "b": {"mcpServers": {"s": server}}}}
    assert "Description: *** ***" in workbench.instructions(parse(data))
    with pytest.raises(workbench.ConfigError, match="set to '.{3}' is no longer"):
        parse(data | {"toolMode": "key-0123456"})


def test_named_secrets_are_withheld(tmp_path: Path, monkeypatch: Monkey) -> None:
    passed_on = {"WB_USER", "WB_TZ", "WB_HOME", "WB_NOTE_KEY", "WB_WAS_KEY", "WB_KEY"}
    args = ["${WB_TOKEN:-x} ${WB_TZ:-UTC}", "--token", "${WB_MINE:-}"]
    args += ["${WB_AUTH_SOCK}", "User=sa;Password=${WB_PW:-a#1}${WB_MORE}"]
    args += ["${NO:-Authorization: Bearer} ${WB_BEHIND}"]
    args += ['{"${NO:-Authorization}": "${WB_NAMED}", "Key": "", "A": "${WB_TZ}"}']
    headers = {"X-User": "${WB_USER}", "Authorization": "Bearer ${WB_OF_HEADER}"}
    data = configuration(
        a={"command": "${WB_HOME}/x", "args": args, "_note": "${WB_NOTE_KEY}"},
        off={"command": "x", "disabled": True, "env": {"X": "${WB_OFF_KEY}"}},
        remote={"url": "https://h", "headers": headers},
        both={"command": "x", "url": "h", "headers": {"A": "${WB_BOTH_KEY}"}},
        _was={"command": "${WB_WAS_KEY}"},
    )
    data["history"] = "${WB_KEY}"
    names = set(re.findall("WB_[A-Z_]+", json.dumps(data)))
    for name in names:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("WB_AUTH_SOCK", str(tmp_path))  # a path that exists
    assert parse(data).withheld == names - passed_on - {"WB_AUTH_SOCK"}


# === Serving ==========================================================================

# The help fits a screen.
HELP = r"(?=(.*\n)+  python workbench.py \[CONFIG\] \[--read-only\]\n)"
COMMANDS.append(("--help", 0, HELP + r"(.*\n){,28}", "", {}))
COMMANDS.append(("--version", 0, "mcp-workbench 0.10.0\n", "", {}))
FILES["its.json"] = configuration(s=local() | {"größe": 1, "env": {"A": "a secret"}})
FILES["bad.json"] = {"toolboxes": {"box": {"description": "A box", "mcpServers": 7}}}
REASON = r"[/\\]bad.json:\ntoolboxes.box.mcpServers: expected an object, found .*\n$"
# A package `mcp` without what newer ones have. That there is none is a case of it.
SCRIPT = "import runpy, sys; sys.modules['mcp'] = sys; sys.argv.pop(0); "
SCRIPT += "runpy.run_path(sys.argv[0], run_name='__main__')"
OLD_MCP = {"args": [*PYTHON, "-Pc", SCRIPT, workbench.__file__]}
HOW = "^.* mcp.* pip install 'mcp>=2.3,<3'.* uv run .*\n$"
COMMANDS.append(("", 1, "", HOW, OLD_MCP))
# A client that asks gets an answer; one that does not has five seconds to read stderr.
ASKED = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": HANDSHAKE}
WHY = r'.*"id":7,.*-32602,"message":"(/|.:).*bad.json:\\ntoolboxes.box.mcpServers: .*\n'
ASKING = {"input": json.dumps(ASKED) + "\n", "stdin": None}
COMMANDS.append(("bad.json", 1, WHY, REASON, ASKING))
COMMANDS.append(("bad.json", 1, "", REASON, {}))
# The start tells what is served, what is withheld, what is wrong, and what is awaited.
FILES["no.json"] = configuration(no={"command": "${NO}", "args": ["${WB_TOKEN}"]})
TOLD = r"(?s)INFO Serving .*box.*no.json\n.*WARNING .*no.command: \${NO} is not set: "
TOLD += r".*INFO Withheld .*: \['WB_TOKEN'\]\n.*INFO .*Ctrl-C ends.*--check.*--help"
if not WINDOWS:
    OURS, TERMINAL = os.openpty()
    os.write(OURS, b"\4")  # the end of stdin, for the one that reads it
    AWAITING = {"stdin": TERMINAL, "env": ASCII | {"WB_TOKEN": "x"}}
    COMMANDS.append(("no.json", 0, "", TOLD, AWAITING))
    COMMANDS.append(("bad.json", 1, "", f"^/.*{REASON}", {"stdin": TERMINAL}))
STUBBORN = "os.write(2, b'a line that nobody reads\\n' * 9_000); "
STUBBORN += "self.bear('self.outlast()'); self.outlast()"
WARNED = "ended" if WINDOWS else "signalled"  # as a server is before it is killed
SERVERS = {
    "stubborn": {"start": STUBBORN},
    "initialize": {"initialize": "self.hang()"},
    "call": {"tools_call": "self.hang()"},
    "big": {"tools_call": "self.result(request, text_result('x' * 1_000_000))"},
}
BIG = ["big"] * 3  # the client reads nothing of these answers
# What ends it, in turn, and which servers are called before.
ENDINGS = [(["end of stdin"], BIG), (["closed stdout"], BIG)]
if not WINDOWS:  # where SIGTERM kills
    ENDINGS.append((["SIGINT", "SIGTERM", "SIGHUP"], ["initialize", "call"]))


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_line_is_obeyed_or_refused(case: Any, ended: Any) -> None:
    """Beside files of any name."""
    _, status, stdout, stderr, _ = case
    process = ended(case)
    assert re.fullmatch(stdout, process.stdout or "")
    assert re.search(stderr, process.stderr)
    assert "Traceback" not in process.stderr and process.returncode == status


@pytest.mark.parametrize(("endings", "calls"), ENDINGS)
def test_it_ends_and_leaves_nothing(endings: Any, calls: Any, tmp_path: Path) -> None:
    with Wire(tmp_path, io={"stderr": PIPE, "env": ENVIRONMENT}, **SERVERS) as wire:
        wire.initialize()
        # It writes more to stderr than a pipe holds, and no client reads that.
        assert wire.use("stubborn") == "{}"
        for server in calls:
            wire.begin_use(server)
        told = wire.notes.read_text
        if calls == BIG:
            wire.process.stdout.read(1)  # there is more than a pipe holds
        else:
            anyio.run(until, lambda: told().count("hangs") >= len(calls), 20)
        for ending in endings:
            wire.end(ending)
            anyio.run(until, lambda: WARNED in told())  # the stubborn one goes on
        assert wire.status() == 0


@pytest.mark.skipif(WINDOWS, reason="there, no signal stops a process")
def test_an_answer_whose_write_is_interrupted_comes_whole(tmp_path: Path) -> None:
    """Also where Python's stdout has no buffer. A stop makes the system write a part."""
    unbuffered = {"env": ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}}
    with Wire(tmp_path, io=unbuffered, big=SERVERS["big"]) as wire:
        wire.initialize()
        answers = [wire.begin_use("big") for _ in "12"]
        wire.process.stdout.peek(1)  # so it writes, and more than a pipe holds
        wire.process.send_signal(signal.SIGSTOP)
        os.waitpid(wire.process.pid, os.WUNTRACED)
        wire.process.send_signal(signal.SIGCONT)
        for request in answers:
            [block] = wire.answer(request)["result"]["content"]
            assert block["text"] == "x" * 1_000_000


@pytest.mark.skipif(WINDOWS, reason="there, the end of a process ends its servers")
async def test_a_busy_loop_is_ended_by_force(notes: Path, monkeypatch: Monkey) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(workbench, "EXIT_TIMEOUT", 0.1)
    monkeypatch.setattr(os, "_exit", statuses.append)
    async with connected(s=local(notes=notes)) as client:
        await open_box(client)
        workbench._end_by_force(7)  # by which the event loop is busy
        assert statuses == [7]
        [pid] = noted_pids(notes)
        await until(lambda: not is_alive(pid))


# === Room: Remote servers =============================================================


def response(status: int, body: Any = "", **headers: Any) -> bytes:
    if isinstance(body, dict):
        body = json.dumps(dict(body, jsonrpc="2.0"))
    sent = {"content_type": "application/json", "connection": "close"} | headers
    sent["content_length"] = len(body.encode())
    head = f"HTTP/1.1 {status} Said\r\n"
    for name, value in sent.items():
        head += f"{name.replace('_', '-')}: {value}\r\n"
    return f"{head}\r\n{body}".encode()


def event(data: Any, kind: str = "message") -> bytes:
    if not isinstance(data, str):
        data = json.dumps(dict(data, jsonrpc="2.0"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


OK = text_result("ok")
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
BAD_ENTRIES += cases_of(r"""
both {"command": "s3cret", "url": "s3cret"}
  : expected one of .'command', 'url'., found .'command', 'url'.
headers {"url": "s3cret", "headers": {"A": {"s3cret": 1}, "B": "${NO}"}}
  .headers.A: expected a string, found an object
  .headers.B: \${NO} is not set
""")
SECRETS.append(({"url": "http://h", "headers": {"X": "an any.value"}}, "any.value"))
LIMIT = 1 << 20  # of a message; in the program, it is larger

DECLINED = ("401", "403", "302")  # of the faults below, those that execute nothing
FAILED: dict[str, tuple[Any, str]] = {  # how a request fails, and what is told
    "401": (response(401, "Who?"), "HTTP 401"),
    "403": (403, "No such record"),
    "302": (response(302, location="/x?y=1"), "HTTP 302.* write http://.*/x in `url`"),
    "500": (response(500, "Oh\nno"), "HTTP 500.*Oh no"),
    "html": (response(200, "<html>"), "HTTP 200, no valid MCP.*<html>"),
    "accepted": (response(202), "HTTP 202, no valid MCP"),
    "ended": (STREAM + b": no answer\n\n", "stream ended before the answer"),
    "resumed": (STREAM + b"id: 1\nretry: 0\ndata: \n\n", "HTTP 404"),
    "large": (STREAM + b"id: 1\n\ndata: " + b"x" * LIMIT, "exceed"),
    "body": (response(200, " " * LIMIT), "HTTP 200, longer"),
    "closed": (b"", "disconnected"),
    "cut": (response(200, "{}")[:-1], "closed"),
}
INVALID = ["http://me:sesame/word@h/", "me:sesame@h/?k=sesame"]
BARE = {"id": None, "error": {"code": -32000, "message": "No valid session ID"}}
# How calls are answered one after another, and how many of them fail; how many times a
# session is made.
SESSIONS: dict[str, tuple[list[Any], int, int]] = {
    "404": ([response(404), OK], 0, 2),  # the only ones that are sent again
    "400": ([response(400, BARE), OK], 0, 2),
    "404 twice": ([response(404), response(404), OK], 1, 3),
    "410": ([response(410), OK], 1, 2),
    "own 404": ([404, OK, 404, 404, OK], 3, 2),  # under its id, this is the tool's
    "own 200": ([200, 200, 200, OK], 3, 1),
    "429": ([response(429)] * 3 + [OK], 3, 1),
    "503": ([response(503), OK] * 2 + [response(503)] * 2 + [OK], 4, 2),
    "broken": ([b"", response(200, "<html>"), OK], 2, 2),
    "404 without": ([response(404), OK], 1, 2),  # in no session, it may be the tool's
}
NO_METHOD = {"code": -32601, "message": "Method not found"}
# How later listings are answered, and whether the first of them ends the session.
LISTINGS: list[tuple[Any, bool]] = [({"tools": []}, False), (response(429), False)]
LISTINGS += [(NO_METHOD, False), (200, True), (403, True), (response(404), True)]
# What a stream says of `retry`, and after how many seconds it is asked for again.
RETRIES = [("retry: 0", 0), ("retry: 50", 0.05), (": none", 1), ("retry: -1", 1)]
# The environment; a URL, in which HERE is the server and the proxy; what is told.
DEAD, SOCKS = "http://127.0.0.1:1", "socks5://127.0.0.1:1"
PROXIES = [
    ({"HTTP_PROXY": DEAD}, "http://HERE", "^ok$"),  # loopback needs none
    ({"all_proxy": "HERE"}, "http://a.invalid", "^ok$"),
    ({"ALL_PROXY": SOCKS, "HTTP_PROXY": "http://HERE"}, "http://a.invalid", "^ok$"),
    ({"ALL_PROXY": "socks://me:sesame@x:1"}, "http://a.invalid", "proxy"),
    ({"HTTP_PROXY": "http://x:port"}, "http://a.invalid", "proxy"),
]
for exempt in ("*", "x,.invalid", "x, *.invalid", "a.invalid"):
    exempted = {"ALL_PROXY": "HERE", "NO_PROXY": exempt}
    PROXIES.append((exempted, "http://a.invalid:81", "^(?!.*proxy).*a.invalid:81"))


class Remote:
    """A server over HTTP, in this process, that answers as told.

    `answers` maps paths, tools and other methods to a result, an error, the status of
    an error, an HTTP response, a coroutine function of the message and the stream that
    returns one of these, or a list of these for one request after another. Requests of
    another era or session are refused.
    """

    def __init__(self) -> None:
        self.session = "1"
        self.is_newer = False  # whether it speaks 2026-07-28
        self.headers: dict[str, str] = {}  # of the last request
        self.secrets: set[str | None] = set()  # values of the header Authorization
        self.calls: list[str] = []  # the keys of `answers`, and GET
        self.released = asyncio.Event()
        self.listener: Any = None
        self.stream: Any = None  # of `/sse`
        self.connections = 0
        about = {"capabilities": {"tools": {}}, "serverInfo": IDENTITY}
        self.answers: dict[str, Any] = {
            "initialize": {"protocolVersion": OLDER, **about},
            "server/discover": {"supportedVersions": [MODERN], **about},
            "tools/list": self.list_tools,
            "GET": response(405),
            "/sse": self.open_stream,
            "ok": OK,
            "wait": self.wait,
            "late": self.answer_late,
        }

    async def list_tools(self, *_: Any) -> dict[str, Any]:
        return {"tools": [tool(name) for name in self.answers if "/" not in name]}

    async def wait(self, *_: Any) -> dict[str, Any]:
        await self.released.wait()
        return text_result("released")

    async def answer_late(self, request: Any, _: Any) -> bytes:
        """End the stream, and answer on the second that is asked for in its place."""
        late = STREAM + event({"id": request["id"], "result": OK})
        # The session may ask for a stream of its own meanwhile.
        self.answers["GET"] = [STREAM, late, late]
        return STREAM + b"id: first\nretry: 10\ndata: \n\n"

    async def open_stream(self, _: Any, stream: Any, host: str = "") -> None:
        self.stream = stream
        stream.write(STREAM + event(f"{host}/messages/{self.session}", "endpoint"))
        await anyio.sleep_forever()

    def refusal(self, path: str, message: dict[str, Any]) -> Any:
        is_newer = self.headers.get("mcp-protocol-version") == MODERN
        if is_newer != self.is_newer:
            return 400
        session = self.headers.get("mcp-session-id") or path.partition("/messages/")[2]
        if session not in ("", self.session):
            return response(404, "Session not found")
        if session != self.session and message.get("method") != "initialize":
            return response(400, "Missing session ID")
        return None

    async def respond(self, head: str, body: bytes, stream: Any) -> bytes:
        method, path, _ = re.split(r"[? ]", head, maxsplit=2)
        self.headers = dict(re.findall(r"(?m)^([\w-]+): (.*)\r$", head.lower()))
        self.secrets.add(self.headers.get("authorization"))
        message = json.loads(body or "{}")
        name = (message.get("params") or {}).get("name") or message.get("method")
        name = name or message.get("id", method)
        answer = self.refusal(path, message)
        if path in self.answers or not answer:
            self.calls.append(name)
            answer = self.answers.get(path, self.answers.get(name, response(202)))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if callable(answer):
            answer = await answer(message, stream)
        if isinstance(answer, bytes):
            return answer
        status = 200
        if isinstance(answer, int):
            status, answer = answer, {"code": -32000, "message": "No such record"}
        if "code" in answer:
            return response(status, {"id": message.get("id"), "error": answer})
        if self.is_newer:
            answer = {"resultType": "complete", **Downstream.hints, **answer}
        reply = {"id": message["id"], "result": answer}
        if "/messages/" not in path:
            return response(200, reply, mcp_session_id=self.session)
        self.stream.write(event(reply))
        return response(202)

    async def serve(self, reader: Any, stream: Any) -> None:
        """Answer the one request of a connection, unless its client closes it first."""
        self.connections += 1
        with closing(stream), suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            answer = asyncio.create_task(self.respond(head, body, stream))
            close = asyncio.create_task(reader.read())
            await asyncio.wait([answer, close], return_when=asyncio.FIRST_COMPLETED)
            close.cancel()
            if not answer.cancel():  # it is there
                stream.write(answer.result())
        self.connections -= 1

    async def listen(self, **options: Any) -> None:
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", **options)
        self.port = self.listener.sockets[0].getsockname()[1]

    def at(self, path: str = "/mcp", **more: Any) -> dict[str, Any]:
        kind = "sse" if path == "/sse" else "http"
        return {"url": f"http://127.0.0.1:{self.port}{path}", "transport": kind} | more


@pytest.fixture
async def remote(monkeypatch: Monkey) -> AsyncIterator[Remote]:
    # A new session waits so long for a former one, on which a call goes on, and the
    # end of a session for its answer.
    monkeypatch.setattr(workbench, "HANDOVER_TIMEOUT", 0.1)
    monkeypatch.setattr(workbench, "EXIT_GRACE", 0.1)
    remote = Remote()
    await remote.listen()
    yield remote
    remote.listener.close()


async def test_headers_go_with_each_request_to_their_host(remote: Remote) -> None:
    """Blanks around a value and a URL mean nothing, and a line end is a blank."""
    headers = {"authorization": "Bearer ${WB_NONE:-sesame-open}\r\n", "x": " \t"}
    headers["key"] = '-----BEGIN-----\r\n{"key": "\\n"}\0\f\n-----END-----\n'
    elsewhere = f"http://localhost:{remote.port}/mcp"
    remote.answers["/moved"] = response(307, location="/mcp")
    remote.answers["/left"] = response(307, location=f"{elsewhere}?key=sesame")
    remote.answers["/foreign"] = partial(remote.open_stream, host="http://elsewhere")
    paths = ("mcp", "sse", "moved", "foreign", "left")
    servers = {path: remote.at(f"/{path}", headers=headers) for path in paths}
    servers["foreign"]["transport"] = "sse"
    servers["mcp"]["url"] = f" {servers['mcp']['url']}\r\n"
    async with connected(**servers) as client:
        for name in ("mcp", "sse", "moved", "foreign"):
            assert text(await use(client, name, "ok")) == "ok"
        told = await error_of(client, "left", "ok")
    assert told.endswith(f"a redirect: write {elsewhere} in `url`")
    assert remote.secrets == {"bearer sesame-open"}
    assert remote.headers["key"] == '-----begin----- {"key": "\\n"} -----end-----'


async def test_a_fault_is_told(remote: Remote, monkeypatch: Monkey, log: Logs) -> None:
    """It costs one call. The host alone is told, and what may have been executed."""
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", PATIENCE)
    monkeypatch.setattr(workbench, "MESSAGE_LIMIT", LIMIT)
    remote.answers["GET"] = response(404)  # which tells of no session
    servers: dict[str, Any] = {"works": remote.at()}
    headers = {"Authorization": "open-sesame"}
    for fault, (answer, _) in FAILED.items():
        remote.answers[fault] = remote.answers[f"/sesame/{fault}"] = answer
        servers[fault] = remote.at(f"/sesame/{fault}?k=sesame", headers=headers)
    for fault in ("401", "500", "closed"):
        servers[f"sse {fault}"] = servers[fault] | {"transport": "sse"}
    servers["gone"] = servers["401"] | {"url": "http://127.0.0.1:1/sesame"}
    servers |= {f"{n} invalid": {"url": url} for n, url in enumerate(INVALID)}
    del servers["resumed"]  # it would wait for its handshake
    servers["named"] = remote.at("/sesame/named")
    remote.answers["/sesame/named"] = response(404, "Cannot POST /sesame/named")
    async with connected(**servers) as client:
        calling = asyncio.ensure_future(use(client, "works", "wait"))
        await until(lambda: "wait" in remote.calls)
        failed = (await open_box(client))["servers_failed"]
        assert ["works", *failed] == list(servers)
        assert workbench.NOT_REPEATED not in str(failed)
        assert "path in `url`" in failed["html"] and "`url`" in failed["0 invalid"]
        for fault in FAILED:
            failed[f"works {fault}"] = told = await error_of(client, "works", fault)
            assert remote.calls.count(fault) == 1, fault
            assert (workbench.NOT_REPEATED in told) == (fault not in DECLINED), told
            await use(client, "works", "ok")  # two in a row would end the session
        remote.answers["GET"] = response(200, "<html>")
        assert "no valid MCP" in await error_of(client, "works", "resumed")
        remote.released.set()
        assert text(await calling) == "released"
    assert "sesame" not in str(failed) + log.text
    for name, told in failed.items():
        *_, fault = name.split()
        assert re.search(FAILED.get(fault, (b"", ""))[1], told), name
        # A JSON-RPC error is the server's own, and speaks for itself.
        has_host = fault not in ("403", "invalid")
        assert told.isprintable() and ("http://127.0.0.1:" in told) == has_host, name


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
async def test_a_company_adds_its_authority(
    remote: Remote, tmp_path: Path, monkeypatch: Monkey
) -> None:
    how = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out certificate"
    how += " -subj /CN=wb -addext subjectAltName=IP:127.0.0.1"
    await anyio.run_process(how.split(), cwd=tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    remote.listener.close()
    await remote.listen(ssl=context)
    async with connected(a={"url": f"https://127.0.0.1:{remote.port}/mcp"}) as client:
        assert "SSL_CERT_FILE" in await error_of(client, "a", "ok")
        monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(tmp_path / "certificate"))
        assert text(await use(client, "a", "ok")) == "ok"


async def test_an_answer_comes_on_its_stream_or_a_later_one(remote: Remote) -> None:
    """And a question on that of its call."""
    answers: asyncio.Queue[Any] = asyncio.Queue()

    async def ask(request: Any, stream: Any) -> None:
        remote.answers[request["id"]] = take  # ids of requests and of questions are two
        stream.write(STREAM + event({**ELICIT, "id": request["id"]}))
        result = json_result(await answers.get())
        stream.write(event({"id": request["id"], "result": result}))
        await anyio.sleep_forever()

    async def take(answer: dict[str, Any], _: Any) -> bytes:
        answers.put_nowait(answer["result"])
        return response(202)

    remote.answers["ask"] = ask
    remote.session = ""  # so it has no stream of its own
    async with connected(callbacks=Ear().callbacks, a=remote.at()) as client:
        assert await answer_of(client, "a", "ask") == ACCEPTED
        assert text(await use(client, "a", "late")) == "ok"
    assert remote.calls.count("GET") == 2
    assert remote.headers["last-event-id"] == "first"
    assert remote.headers["mcp-protocol-version"] == OLDER


async def test_cancelled_requests_leave_nothing(remote: Remote) -> None:
    """Nor do calls whose stream ends: they fail."""
    remote.answers["accepted"] = response(202)
    async with connected(mcp=remote.at(), sse=remote.at("/sse")) as client:
        await open_box(client)
        async with anyio.create_task_group() as calls:
            for name in ["mcp"] * 50 + ["sse"] * 10:
                calls.start_soon(use, client, name, "wait")
            await until(lambda: remote.calls.count("wait") == 60, 20)
            assert text(await use(client, "mcp", "ok")) == "ok"
            calls.cancel_scope.cancel()
        await until(lambda: remote.connections == 1, 20)  # with the stream of `sse`
        await until(lambda: remote.calls.count("notifications/cancelled") == 60)
        open_calls = ("wait", "accepted")
        for name in open_calls:
            calling = asyncio.ensure_future(error_of(client, "sse", name))
            await until(lambda: remote.calls[-1] in open_calls)
            remote.stream.close()
            assert await calling and text(await use(client, "sse", "ok")) == "ok"
    # No session has ended but that of the stream.
    assert remote.calls.count("initialize") == 4


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_an_older_server_needs_no_transport(status: int, remote: Remote) -> None:
    """SSE is tried as well, and if that fails too, the first failure is told."""
    remote.answers["/sse"] = [response(status), remote.open_stream]
    remote.answers["/both"] = [response(status, "first words"), response(500)]
    sse, both = remote.at("/sse")["url"], remote.at("/both")["url"]
    async with connected(a={"url": sse}, b={"url": both}) as client:
        assert text(await use(client, "a", "ok")) == "ok"
        told = await error_of(client, "b", "ok")
    assert f"HTTP {status}" in told and "first words" in told


@pytest.mark.parametrize("case", SESSIONS)
async def test_a_session_ends_with_a_refusal(case: str, remote: Remote) -> None:
    """Or with a second failure. No call is sent twice, unless the session was gone."""
    answers, failures, sessions = SESSIONS[case]
    remote.session = "" if "without" in case else "1"
    remote.answers["x"] = left = list(answers)
    told: list[Any] = []
    async with connected(a=remote.at()) as client:
        waiting = asyncio.ensure_future(use(client, "a", "wait"))
        await until(lambda: "wait" in remote.calls)
        while left:
            told.append(await use(client, "a", "x"))
        # The first session has a call in flight, and the last one goes on.
        assert remote.calls.count("DELETE") in (0, sessions - 2)
        remote.released.set()
        assert text(await waiting) == "released"
    assert [each.is_error for each in told].count(True) == failures
    # What the server says under the id of a request is what its caller gets.
    assert str(told).count("No such record") == sum(type(x) is int for x in answers)
    assert remote.calls.count("x") == len(answers)
    assert remote.calls.count("initialize") == sessions


@pytest.mark.parametrize("case", LISTINGS)
async def test_a_refused_listing_ends_the_session(case: Any, remote: Remote) -> None:
    """No refusal of a GET or a notification does. The end is told, without a wait."""
    answer, is_end = case
    remote.answers |= {"GET": response(404), "notifications/initialized": response(404)}
    remote.answers["DELETE"] = lambda *_: anyio.sleep(PATIENCE)
    async with connected(a=remote.at()) as client:
        assert (await open_box(client))["tools"]
        # The session that follows can list.
        answers = [answer, remote.list_tools] if is_end else [answer, answer]
        remote.answers["tools/list"] = [*answers, remote.list_tools]
        for _ in range(2):
            opened = await open_box(client)
            assert opened["servers_connected"] == 1
            assert bool(opened["tools"]) != (answer in ({"tools": []}, NO_METHOD))
    assert remote.calls.count("initialize") == 1 + is_end
    assert remote.calls[-1] == "DELETE"


async def test_a_post_that_fails_ends_an_sse_connection(remote: Remote) -> None:
    """The server may have forgotten the session, although its stream goes on."""
    remote.answers |= {"busy": response(429), "lost": response(500)}
    async with connected(a=remote.at("/sse")) as client:
        for name, streams in (("busy", 1), ("lost", 2)):
            assert await error_of(client, "a", name)
            assert text(await use(client, "a", "ok")) == "ok"
            assert remote.calls.count("GET") == streams


async def test_a_server_may_change_its_era(remote: Remote) -> None:
    """At most two calls fail then, and nothing that has failed was executed."""
    told: list[str] = []
    async with connected(a=remote.at()) as client:
        for remote.is_newer in (False, True, False):
            remote.session = "" if remote.is_newer else "1"
            for _ in range(3):
                told.append(text(await use(client, "a", "ok")))
            assert told[-1] == "ok"
    assert remote.calls.count("ok") == told.count("ok")


@pytest.mark.parametrize("retry, pause", RETRIES)
async def test_a_stream_resumes(
    retry: str, pause: float, remote: Remote, log: Logs, pauses: list[float]
) -> None:
    again = f"{retry}\ndata: \n\n".encode()
    remote.answers["GET"] = STREAM + again + event(CHANGED)
    async with connected(a=remote.at()) as client:
        assert text(await use(client, "a", "ok")) == "ok"
        await until(lambda: pauses.count(pause) >= 3)
    assert "Received tools/list_changed notification from server: box/a" in log.messages


@pytest.mark.parametrize("case", PROXIES)
async def test_proxies_are_used(case: Any, remote: Remote, monkeypatch: Monkey) -> None:
    variables, url, told = case
    here = f"127.0.0.1:{remote.port}"
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HERE", here))
    async with connected(a={"url": url.replace("HERE", here) + "/mcp"}) as client:
        result = text(await use(client, "a", "ok"))
        assert re.search(told, result) and "sesame" not in result


# === Room: Sign-in ====================================================================

log_in = partial(workbench.log_in, secrets=workbench.Secrets())
BASIC = {"client_secret": "sesame", "token_endpoint_auth_method": "client_secret_basic"}
# Answers to a refresh that end no sign-in, and errors with their status that end one.
PASSING = [b"", response(400, '{"error": "temporarily_unavailable"}')]
PASSING += [response(403, '<p id="error">"error": "invalid_grant"</p>')]
FINAL = [(200, "invalid_grant"), (401, "invalid_client"), (503, "unauthorized_client")]
COMMANDS.append(("its.json --login https://x", 2, "", f"{UNFIT}--login URL\n$", {}))
SECRET = '{"access_token": "sesame-sesame", "error": "sesame-sesame"}'
LOGINS = [  # how one fails: the path that answers otherwise, its answer; the reason
    ("/authorize", {"error": "\x1b[1maccess_denied\nat all"}, "access_denied at all"),
    ("/authorize", {"state": "x"}, "within 2 seconds"),
    ("/register", response(201, SECRET), "Invalid registration .*"),
    ("/token", b"", ".*disconnected.*"),
    ("/token", response(400, SECRET), "Token exchange failed \\(400\\)"),
    ("/token", response(200, SECRET.replace("access_", "")), "Invalid token .*"),
    ("/token", None, "no answer came from .*"),
]
# What the documents of a server at HERE say otherwise, and how its paths answer then.
# Where a document cannot be had, clients register at `/register`.
NO_DOCUMENT = {"/.well-known/oauth-authorization-server": 500, "/register": 500}
DOCUMENTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"issuer": "HERE/"}, {"/authorize": {"iss": "HERE/"}}),
    ({"authorization_servers": ["HERE/a/"], "issuer": "HERE/a"}, {}),
    ({"authorization_endpoint": "HERE/authorize?a=b"}, {}),
    ({"registration_endpoint": "HERE/new"}, NO_DOCUMENT),
    ({}, {"named": f"{DEAD}/"}),
]


class Guarded(Remote):
    """A remote server that gives tokens; a refresh token that comes twice ends all.

    `paths` has other answers: an HTTP response, parameters of a redirect, or None for
    no answer at all. With a `password`, its client's id belongs in a Basic header.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers |= {"echo": OK, "leak": self.leak}
        self.paths: dict[str, Any] = {}
        self.about: dict[str, Any] = {}  # what its documents say otherwise
        self.password: dict[str, str] = {}
        self.issued: list[str] = []  # access and refresh tokens, the last ones last
        self.accepted: set[str] = set()  # access tokens
        self.refreshes: list[str] = []  # the tokens that came
        self.gate = asyncio.Event()
        self.gate.set()

    async def answer_late(self, request: Any, stream: Any) -> bytes:
        self.accepted.clear()
        return await super().answer_late(request, stream)

    async def leak(self, *_: Any) -> dict[str, Any]:
        return {"code": -32000, "message": f"You are {self.headers['authorization']}"}

    async def respond(self, head: str, body: bytes, stream: Any) -> bytes:
        url = httpx2.URL(head.split()[1])
        self.calls.append(url.path)
        other = self.paths.get(url.path, {})
        if other is None:
            await anyio.sleep_forever()
        if isinstance(other, int):
            other = response(other)
        if isinstance(other, bytes):
            return other
        given = dict(url.params) | dict(urllib.parse.parse_qsl(body.decode()))
        match url.path:
            case "/token":
                return await self.give_tokens(head, given)
            case "/register" | "/new":
                registered = json.loads(body) | {"client_id": "us"} | self.password
                return response(201, json.dumps(registered))
            case "/authorize":
                back = {"state": given["state"], "code": given["code_challenge"]}
                if "response_type" not in given:
                    back["error"] = "the request is cut"
                query = urllib.parse.urlencode(back | other)
                return response(302, location=f"{given['redirect_uri']}?{query}")
        if "/.well-known/" in url.path:
            origin = self.at("")["url"]
            about = {"resource": origin, "authorization_servers": [origin]}
            about |= {"issuer": origin, "token_endpoint": f"{origin}/token"}
            about["registration_endpoint"] = f"{origin}/register"
            about["authorization_endpoint"] = f"{origin}/authorize"
            return response(200, json.dumps(about | self.about))
        token = re.search(r"(?i)authorization: \w+ (.*)\r", head)
        if token and token[1] in self.accepted:
            return await super().respond(head, body, stream)
        named = f"Bearer resource_metadata={self.paths.get('named', '')}"
        return response(401, str(self.issued), www_authenticate=named)

    async def give_tokens(self, head: str, given: dict[str, str]) -> bytes:
        is_basic = "authorization: basic dxm6c2vzyw1l\r" in head.lower()  # us:sesame
        if is_basic != bool(self.password) or is_basic == ("client_id" in given):
            return response(401, '{"error": "invalid_client"}')
        assert given["resource"] == self.at("")["url"]
        if "code_verifier" not in given:
            self.refreshes.append(given["refresh_token"])
            await self.gate.wait()
            if given["refresh_token"] != self.issued[-1]:
                self.accepted.clear()
                return response(400, '{"error": "invalid_grant"}')
        tokens = {"access_token": os.urandom(16).hex(), "token_type": "bearer"}
        tokens["refresh_token"] = os.urandom(16).hex()
        self.issued += [tokens["access_token"], tokens["refresh_token"]]
        self.accepted = {tokens["access_token"]}
        return response(200, json.dumps(tokens))


@pytest.fixture
async def guarded(tmp_path: Path, monkeypatch: Monkey) -> AsyncIterator[Guarded]:
    """Beside a home without tokens, a browser whose user says yes, and no proxy."""
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setenv("ALL_PROXY", SOCKS)
    monkeypatch.setattr(workbench, "LOGIN_TIMEOUT", PATIENCE)
    browse: Any = lambda url: httpx2.get(url, follow_redirects=True, trust_env=False)
    monkeypatch.setattr("webbrowser.open", browse)
    guarded = Guarded()
    await guarded.listen()
    yield guarded
    guarded.listener.close()


async def test_a_person_signs_in_once_and_calls_go_on_until_it_is_revoked(
    guarded: Guarded, tmp_path: Path, log: Logs, monkeypatch: Monkey
) -> None:
    """And a new sign-in needs no restart; no token is logged or told."""
    monkeypatch.setattr(workbench, "__file__", str(tmp_path / "a b/workbench.py"))
    url = guarded.at()["url"]
    guarded.answers["GET"] = response(401)  # for which nothing is refreshed
    wanted = "HTTP 401: set `headers`, or sign in with: "
    async with connected(a=guarded.at("/mcp?key=sesame-sesame")) as client:
        for _ in range(2):
            _, _, command = (await error_of(client, "a", "echo")).partition(wanted)
            await log_in(url)
            slow = asyncio.ensure_future(use(client, "a", "wait"))
            await until(lambda: "wait" in guarded.calls)
            guarded.accepted.clear()  # the access token has expired
            assert text(await use(client, "a", "echo")) == "ok"
            guarded.released.set()
            assert text(await slow) == "released"
            guarded.accepted.clear()
            # The new token is masked.
            assert (await error_of(client, "a", "leak")).endswith("You are bearer ***")
            guarded.accepted.clear()
            guarded.issued.append("revoked")
            assert (await error_of(client, "a", "echo")).endswith(wanted + command)
            guarded.calls.clear()
    assert len(guarded.refreshes) == 7  # after the revocation, each call asks
    files = list((tmp_path / ".mcp-workbench").glob("*.json"))
    logged = "\n".join(log.messages)
    assert len(files) == 1 and not [t for t in guarded.issued if t in logged]
    if not WINDOWS:
        words = [sys.executable, workbench.__file__, "--login", url]
        assert shlex.split(command) == words
        assert files[0].stat().st_mode & 0o777 == 0o600
        assert files[0].parent.stat().st_mode & 0o777 == 0o700


async def test_one_of_three_refreshes(guarded: Guarded, tmp_path: Path) -> None:
    entry = guarded.at()
    with Wire(tmp_path, a=entry) as wire:
        starting = asyncio.to_thread(wire.initialize)
        await asyncio.gather(starting, log_in(entry["url"]))
        async with connected(a=entry) as client, connected(a=entry) as other:
            for is_refreshing in (False, True):
                uses = use(client, "a", "echo"), use(other, "a", "echo")
                third = asyncio.to_thread(wire.use, "a")
                told, *results = await asyncio.gather(third, *uses)
                assert [told, *map(text, results)] == ["ok"] * 3
                assert len(guarded.refreshes) == is_refreshing
                guarded.accepted.clear()
    assert len(guarded.refreshes) == 1  # a DELETE that is refused needs none


async def test_only_the_authorization_server_ends_a_sign_in(guarded: Guarded) -> None:
    """No other fault loses the tokens, and neither does a cancelled call."""
    guarded.password = BASIC
    await log_in(guarded.at()["url"])
    async with connected(a=guarded.at()) as client:
        assert text(await use(client, "a", "late")) == "ok"
        for answer in PASSING:
            guarded.accepted.clear()
            guarded.paths["/token"] = answer
            guarded.calls.clear()
            calls = [error_of(client, "a", "echo") for _ in "123"]
            for told in await asyncio.gather(*calls):
                assert re.search("no new tokens .*, try again later", told)
            assert guarded.calls.count("/token") == 1
        del guarded.paths["/token"]
        assert text(await use(client, "a", "echo")) == "ok"
        guarded.accepted.clear()
        guarded.gate = asyncio.Event()
        call = asyncio.ensure_future(use(client, "a", "echo"))
        await until(lambda: len(guarded.refreshes) == 3)
        call.cancel()
        await client.list_tools()  # the cancellation came before
        guarded.gate.set()
        assert text(await use(client, "a", "echo")) == "ok"
        for status, error in FINAL:
            await log_in(guarded.at()["url"])
            guarded.accepted.clear()
            guarded.paths["/token"] = response(status, json.dumps({"error": error}))
            assert "--login" in await error_of(client, "a", "echo")
            del guarded.paths["/token"]
    assert len(guarded.refreshes) == 3


async def test_what_a_browser_elsewhere_shows_is_pasted_into_the_terminal(
    guarded: Guarded, monkeypatch: Monkey, capsys: Capture
) -> None:
    """What has another state ends nothing. Only a tool's call may be answered 401."""
    pasted: Queue[bytes] = Queue()
    # It has no end, because that would reach an event loop that is closed by then.
    monkeypatch.setattr(sys, "stdin", Namespace(buffer=iter(pasted.get, None)))

    def come_back(url: str) -> bool:
        ends_at = httpx2.get(url, trust_env=False).headers["location"]
        callback, _, query = ends_at.partition("?")
        assert re.fullmatch("http://localhost:[0-9]+/callback", callback)
        for each in ("", "error=x", "code=x&state=y", query):
            pasted.put(f" {callback}?{each} \r\n".encode())
        return True

    monkeypatch.setattr("webbrowser.open", come_back)
    guarded.paths["/mcp"] = response(200, {"id": 1, "result": {}})
    await log_in(guarded.at()["url"])
    told = r"(?m)^http://.*/authorize\?(.*\n)*.*another machine(.*\n)*.*Paste"
    printed = capsys.readouterr().out
    assert re.search(told, printed) and "\nSigned in to http://" in printed


@pytest.mark.parametrize("case", DOCUMENTS)
async def test_documents_are_taken_as_written(case: Any, guarded: Guarded) -> None:
    """One that cannot be had is looked for elsewhere. A slash makes no other issuer."""
    told = json.dumps(case).replace("HERE", guarded.at("")["url"])
    guarded.about, guarded.paths = json.loads(told)
    await log_in(guarded.at()["url"])
    assert guarded.calls[-1] == "/token" and guarded.accepted


@pytest.mark.parametrize("case", LOGINS)
async def test_a_failed_login(case: Any, guarded: Guarded, monkeypatch: Monkey) -> None:
    """It says why in one sentence, which has no body of an answer."""
    path, guarded.paths[path], why = case
    monkeypatch.setattr(workbench, "LOGIN_TIMEOUT", 2)
    monkeypatch.setattr(workbench, "TOKEN_TIMEOUT", 0.5)
    with pytest.raises(workbench.ToolError) as failed:
        await log_in(guarded.at("/mcp?key=sesame-sesame")["url"])
    # As the log shows it, where no secret is known.
    shown = workbench.Secrets().mask(str(failed.value))
    origin = re.escape(guarded.at("")["url"])
    assert re.fullmatch(f"Not signed in to {origin}:? +{why}", shown)
    assert "sesame" not in shown


async def test_a_login_in_the_entry_is_used_instead(guarded: Guarded) -> None:
    servers = {"none": guarded.at()}
    servers["header"] = guarded.at(headers={"authorization": "Bearer own"})
    url = servers["none"]["url"]
    servers["login"] = {"url": url.replace("//", "//user:word@")}
    await log_in(url)
    guarded.accepted |= {"own", "dXNlcjp3b3Jk"}  # the second is `user:word`
    async with connected(**servers) as client:
        for name in servers:
            assert text(await use(client, name, "ok")) == "ok"
    stored = f"bearer {guarded.issued[0]}"
    assert guarded.secrets == {"bearer own", "basic dxnlcjp3b3jk", stored}


# === Room: Brief answers ==============================================================

LIST: dict[str, Any] = {"type": "array"}
OBJECT: dict[str, Any] = {"type": "object"}
EDIT = OBJECT | {"required": ["old"], "properties": {"old": {}, "new": LIST}}
MANY = OBJECT | {"properties": {f"k{n}": {} for n in range(10)}}
CIRCLE = LIST | {"items": {"$ref": "#/$defs/circle"}}
ARGUMENTS: list[tuple[Any, str]] = [  # the schema of an argument, and how it is shown
    ({"enum": ["a", None, 1, {}]}, ": a|null|1|{}"),
    ({"enum": list("abcdef")}, ": a|b|c|d|e|…"),
    # Quoted, because it has a sign, a comma or a quote, or nothing at all.
    ({"enum": ["|", ",", "'", '"', ""]}, ": " + r'''"|"|","|"'"|"\""|""'''),
    ({"type": ["array", "null"], "items": {"enum": ["a", "b"]}}, ": [a|b]"),
    (LIST | {"items": EDIT}, ": [{old, new?: []}]"),
    (MANY, ": {" + ", ".join(f"k{n}?" for n in range(9)) + ", …}"),
    ({"anyOf": [{"type": "null"}, {"oneOf": [{}, OBJECT, LIST]}]}, ": {}"),
    ({"allOf": [{"$ref": "#/properties/x"}]}, ": a|b"),
    (CIRCLE, ": [[]]"),
    ({"$ref": "#/$defs/none/0"}, ""),
    ({"type": "string"}, ""),
]
ORDINARY = "[tool(f't{n}', description='d' * 70, inputSchema={'type': 'object', "
ORDINARY += "'required': ['path'], 'properties': {'path': {}, 'limit': {}}})"
LEVELS = [  # how many tools there are, how the first is listed, what all lines lack
    (50, f"(path, limit?): {'d' * 60}…", ""),
    (150, "(path, limit?)", "descriptions"),
    (300, "(path)", "descriptions and optional arguments"),
    (600, "", "descriptions and optional arguments and other arguments"),
]


def long(tools: str, **more: Any) -> dict[str, Any]:
    """A server with these, as code, because Windows has short command lines."""
    return local(on={"tools_list": f"answer(request, {{'tools': {tools}}})"}, **more)


async def open_briefly(client: Client, *tools: str) -> Any:
    arguments = BOX | {"tools": tools, "brief": True}
    return json.loads(text(await client.call_tool("open_toolbox", arguments)))


async def test_a_brief_answer_has_each_tool_in_one_line() -> None:
    """Its note explains the signs, and a tool that is named in full comes whole."""
    tools = [tool("z"), tool("two", description="two\n lines")]
    for number, (argument, _) in enumerate(ARGUMENTS):
        schema: Any = {"type": "object", "required": ["y"], "properties": {}}
        schema["properties"] = {"x": {"enum": ["a", "b"]}, "y": argument}
        schema["$defs"] = {"circle": CIRCLE}
        tools.append(tool(f"t{number}", inputSchema=schema, description="What it does"))
    async with connected(a=local(tools=tools)) as client:
        answer = await open_briefly(client)
        part = await open_briefly(client, "box__a__t1", "a__z", "box__a__t?")
        [whole] = (await open_box(client, ["box__a__t1"]))["tools"]
        opening, _ = (await client.list_tools()).tools
    lines = dict(line.removeprefix("box__a__").split(")") for line in answer["tools"])
    for number, (_, how) in enumerate(ARGUMENTS):
        assert lines[f"t{number}(x?: a|b, y{how}"] == ": What it does"
    assert lines["two("] == ": two lines"
    assert part["tools"][0] == "box__a__z(): Tool from box/a"
    assert part["tools"][2] == whole and whole["inputSchema"]["$defs"]
    for note in (answer["note"], part["note"]):
        assert re.search(r"`\?` opt.*`\[\]`.*`{}`.*`…`.* full name in `tools`", note)
        assert "Keep `brief`" in note
    assert re.search("`brief`.*begin with it", str(opening.description), re.DOTALL)


async def test_a_long_brief_answer_has_no_descriptions_then_fewer_arguments() -> None:
    """Names are always there, and its note says what is missing and how to get it."""
    servers = {f"s{n}": long(f"{ORDINARY} for n in range({n})]") for n, *_ in LEVELS}
    async with connected(**servers) as client:
        for number, line, missing in LEVELS:
            answer = await open_briefly(client, f"s{number}__*")
            assert answer["tools"][0] == f"box__s{number}__t0{line}"
            assert len(answer["tools"]) == number
            assert number == 600 or len("".join(answer["tools"])) <= 8_000
            told = f"have no {missing}: `SERVER__*`"
            assert (told in answer["note"]) == bool(missing)


async def test_ordinary_tools_come_whole_and_the_longest_give_way() -> None:
    """First with their schemas, then with all but their names."""
    schema = "{'type': 'object', 'title': 'ä\"' * 200}"
    listing = f"[tool(f'tool-{{n}}', description='d' * 99, inputSchema={schema})"
    servers = {f"n{n}": long(f"{listing} for n in range({n})]") for n in (26, 900)}
    servers["big"] = long("[tool(f'b{n}', description='d' * 8_000) for n in range(4)]")
    servers["huge"] = long("[tool('huge', description='d' * 34_000)]")
    async with connected(**servers) as client:
        for parts, missing in (
            (["n26__*"], 0),
            ([f"box__big__b{n}" for n in range(3)], 0),
            (["n26__tool-1*", "big__*"], 4),
            (["n900__*"], 900),
            (["box__huge__huge", "box__big__b1"], 1),
        ):
            answer = await open_box(client, parts)
            lacking = [t for t in answer["tools"] if "inputSchema" not in t]
            assert len(lacking) == missing, parts
            assert missing or all("description" in each for each in answer["tools"])
            told = rf"{missing} .* no schema here: .* by full names .* fewer at a time"
            assert bool(re.search(told, answer["note"])) == bool(missing)
            names_alone = all(len(each) == 1 for each in answer["tools"])
            assert len(workbench.compact(answer)) <= 30_000 or names_alone
        [alone] = (await open_box(client, "huge"))["tools"]
    assert alone["inputSchema"] and len(alone["description"]) == 34_000


async def test_long_texts_leave_room_for_the_tools(monkeypatch: Monkey) -> None:
    """Instructions and reasons take a third of an answer at most, in equal shares."""
    monkeypatch.setattr(workbench, "OPEN_TIMEOUT", PATIENCE)
    servers = {f"x{n}": {"command": "x" * 900} for n in range(41)}
    manual = {"instructions": '"' * 2_500}
    its = long(f"{ORDINARY} for n in range(26)]", about=manual)
    async with connected(a=its, **servers) as client:
        part = await open_box(client, ["a__*"])
        whole = await open_box(client)
    assert len(part["instructions"]["a"]) == 2_001
    texts = [*whole["servers_failed"].values(), *whole["instructions"].values()]
    assert {len(each) for each in texts} == {10_000 // 42 + 1}
    assert all("inputSchema" in each for each in whole["tools"])


# === Room: Approval ===================================================================

MARKED = {"_meta": {"anthropic/requiresUserInteraction": True}}
GUARDED = {"requireApproval": ["del*"]}
GUARDED_TOOLS = [tool("echo"), tool("pay", **MARKED), tool("delete"), tool("wait")]
NO_QUESTION = "a person has to approve this call, and this client cannot ask them: use"
LONG: dict[str, Any] = {"padding": " " * 1_000, "ids": [7] * 30, "\u202e": 1}
LONG["ops"] = [{"all": True}] * 30
SHOWN_LONG: dict[str, Any] = LONG | {"padding": " " * 200 + "… 800 more characters"}
SHOWN_LONG["ids"] = [7] * 20 + ["… 10 more items"]
# A person who types a call has approved it.
FILES["guarded.json"] = configuration(a=local(tools=GUARDED_TOOLS) | GUARDED)
COMMANDS.append(("guarded.json --call box__a__delete", 1, "", NO_QUESTION, {}))
if not WINDOWS:
    TYPED = {"stdin": TERMINAL}
    COMMANDS.append(("guarded.json --call box__a__delete", 0, "{}\n", "", TYPED))


def guarded_server(notes: Path, **more: Any) -> dict[str, Any]:
    return local(notes=notes, tools=GUARDED_TOOLS, **more) | GUARDED


async def test_a_person_approves_each_call_that_needs_it(notes: Path) -> None:
    """Of a tool that is named or marked; nothing is sent without `accept`."""
    ear = Ear("elicitation")
    async with connected(callbacks=ear.callbacks, a=guarded_server(notes)) as client:
        assert await answer_of(client, "a", "echo", {"x": 1}) == {"x": 1}
        assert ear.heard == []
        for name in ("pay", "delete"):
            assert await answer_of(client, "a", name, LONG) == LONG
            shown = f"Call box__a__{name} with {workbench.compact(SHOWN_LONG)}?"
            shown = shown.replace("\u202e", r"\u202e")
            assert ear.heard.pop(0)["message"] == shown and ear.heard == []
        sent = notes.read_text()
        for ear.answer, answered in (
            ({"action": "decline"}, "decline"),
            ({"action": "cancel"}, "cancel"),
            ({"code": -7, "message": "Asleep"}, "an error, Asleep"),
        ):
            told = f"the client answered: {answered}; nothing was sent"
            assert told in await error_of(client, "a", "delete")
        assert "no tool" in await error_of(client, "a", "deleet")
        assert len(ear.heard) == 3 and notes.read_text() == sent


async def test_a_client_without_forms_cannot_call_what_is_named(notes: Path) -> None:
    """But what a server marks, which such a client does not heed itself."""
    able, unable = Ear("elicitation").callbacks, Ear("nothing").callbacks
    for mode, callbacks in (("legacy", unable), ("auto", able)):
        a = guarded_server(notes)
        async with connected(mode, callbacks=callbacks, a=a) as client:
            assert NO_QUESTION in await error_of(client, "a", "delete")
            assert await answer_of(client, "a", "pay") == {}
    assert "delete" not in notes.read_text()
    url_alone = types.ClientCapabilities.model_validate({"elicitation": {"url": {}}})
    asking: Any = Namespace(client_params=Namespace(capabilities=url_alone))
    assert not workbench._offers_forms(asking)


async def test_each_question_belongs_to_its_own_call(notes: Path) -> None:
    """Meanwhile, calls may be cancelled, and the server may end. Nobody is asked twice."""
    questions: dict[str, asyncio.Future[str]] = {}

    async def ask(_: object, params: Any) -> types.ElicitResult:
        path = json.loads(params.message.partition(" with ")[2][:-1])["path"]
        questions[path] = asyncio.get_running_loop().create_future()
        return types.ElicitResult(action=await questions[path])  # type: ignore[arg-type]

    callbacks = {"elicitation_callback": ask}
    async with connected(callbacks=callbacks, a=guarded_server(notes)) as client:
        calls = {}
        for path in ("kept", "given up", "late"):
            call = answer_of(client, "a", "delete", {"path": path})
            calls[path] = asyncio.ensure_future(call)
        await until(lambda: len(questions) == 3)
        calls["given up"].cancel()
        os.kill(noted_pids(notes)[0], 9)
        await until(lambda: not is_alive(noted_pids(notes)[0]))
        for path in ("late", "kept"):
            questions[path].set_result("accept")
            assert await calls[path] == {"path": path}
        with suppress(asyncio.InvalidStateError):
            questions["given up"].set_result("accept")
        assert await answer_of(client, "a", "echo") == {}
    assert notes.read_text().count("delete") == 2 and len(noted_pids(notes)) == 2


async def test_a_call_is_judged_where_it_is_sent(notes: Path, monkeypatch: Any) -> None:
    """The second process marks a tool that the first one did not."""
    send_call = workbench.Connection.call

    async def lose_connection(connection: Any, call: Any) -> Any:
        monkeypatch.setattr(workbench.Connection, "call", send_call)
        connection.mark_closed("lost")
        return await connection.call(call)

    monkeypatch.setattr(workbench.Connection, "call", lose_connection)
    marking = f"if len(open(self.notes).readlines()) > 1: self.tools[0] |= {MARKED}\n"
    marking += "self.tools_list(request)"
    a = guarded_server(notes, on={"tools_list": marking})
    ear = Ear("elicitation")
    async with connected(callbacks=ear.callbacks, a=a) as client:
        assert await answer_of(client, "a", "echo") == {}
    assert len(noted_pids(notes)) == 2 and len(ear.heard) == 1


# === Room: Other clients' files =======================================================

BAD_FILES += cases_of(r"""
{// "\n/*\n\n*/"a": [1,],\n "b" 1}
  cannot be read as JSON.*line 5 column 6
[a]\n# x\n{
  cannot be read as .*TOML if its name.*line 3, column 1
{"mcpServer": 7, "theme": "dark"}
  configuration: 'mcpServer': did you mean 'mcpServers'\? .*toolboxes.*mcp_servers.*, found .'mcpServer'
{"mcp": {"inputs": []}, "editor": 1}
  configuration: .*expected .*toolboxes.*, found .'mcp', 'editor'.
{"mcp": {"excluded": "s3cret"}, "mcpServers": "s3cret"}
  mcpServers: expected an object, found a string
  mcp.excluded: expected a list, found a string
""")
BAD_ENTRIES += cases_of(r"""
filters {"command": "x", "toolFilters": ["a"], "tools": ["*"]}
  .tools: expected the same
spelt {"command": "x", "excludeTools": ["a"], "disabledTools": {"s3cret": 1}}
  .disabledTools: expected
input {"command": "x", "env": {"A": "Bearer ${input:s3}", "B": "${workspaceFolder}"}}
  .env.A: \${input… is no variable here: write the value
  .env.B: \${workspaceFolder… is no variable here: write the value
codex {"url": "https://x", "bearer_token_env_var": "no_token", "tools": {"rm": false}}
  .tools.rm: expected an object, found a boolean
  .*\${(env:)?no_token} is not set
""")
# Below each file: its servers, the secret variables that it names, and its warnings.
CLIENT_FILES = """
=== Our own: workbench-config.json
{"_comment": "${", "mcpServers": {"x": {"env_vars": ["KEY"]}}, "toolboxes": {
  "box": {"description": "A box", "mcpServers": {
   "s": {"command": "x", "_x": "${", "autoApprove": ["${"], "trust": 1},
   "off": {"command": "${UNSET}", "disabled": true, "env": {"A": "${KEY2}"}},
   "_was": {"env": 7, "bearer_token_env_var": "OFF"}}}}}
> {"box": {"command": "x", "description": "A box"}}
> KEY2
> mcpServers: not served
=== Claude Code: .claude.json
{"numStartups": 5, "oauthAccount": "${", "mcpServers": {
  "a": {"type": "http", "url": "${B:-https://a.b}/@c/mcp?d=e@f", "headers": {}},
  "b": {"command": "${UNSET}"}, "c": {"command": "the user's"}},
 "projects": {"/elsewhere": {"mcpServers": {"x": {"command": "${env:KEY}"}}},
  "FOLDER": {"disabledMcpServers": ["b"], "history": ["${NOT_NAMED}"], "mcpServers": {
    "c": {"type": "stdio", "command": "uvx", "args": ["z"], "env": {}}}}}}
> {"a": {"transport": "http", "url": "https://a.b/@c/mcp?d=e@f"},
   "c": {"command": "uvx", "args": ["z"]}}
>
> not served, the servers of other projects: .'/elsewhere'.; start the workbench there
=== VS Code with Amp, and Zed: settings.json
{ // as in "http://"
  "mcp": {"inputs": [{"type": "promptString", "id": "key", "about": "\\"//\\""},],
   "servers": {"a": {"url": "https://a//,}/*b*/", /* { "x": */
     "headers": {"A": "Bearer ${env:my_key}"}}, "c": {"command": ["x"]},}},
  "amp.mcpServers": {"b": {"url": "https://b", "includeTools": ["r"]}}, "font": 7,
  "context_servers": {"d": {"source": "custom", "command": "x", "timeout": 7}},
  "amp.tools.disable": ["mcp__b__w", "Bash"]} /**/
> {"a": {"url": "https://a//,}/*b*/", "headers": {"A": "Bearer its"}},
   "b": {"url": "https://b", "toolFilters": ["r"]}, "c": {"command": "x"},
   "d": {"command": "x"}}
> my_key
> not applied, .* .'mcp__b__w', 'Bash'.; `excludeTools` .*does the same
=== Codex: config.toml
mcp_servers.b = { url = "${UNSET}", bearer_token_env_var = "OFF", enabled = false }
[mcp_servers.a]
command = "npx"
enabled_tools = ["r*"]
disabled_tools = ["rm"]
env_vars = ["KEY2", "NOT_SET", "my_key", { name = "KEY", source = "local" }]
excludeTools = ["mv"]
since = 2026-11-22
tools.read.approval_mode = "approve"
tools.mv.approval_mode = "prompt"
[mcp_servers.c]
url = "https://c"
default_tools_approval_mode = "prompt"
bearer_token_env_var = "my_token"
env_http_headers = { X = "KEY2", Z = "my_other" }
http_headers = { Y = "y" }
> {"a": {"command": "npx", "env": {"KEY2": "key2", "my_key": "its", "KEY": "key"},
         "toolFilters": ["r*"], "excludeTools": ["mv", "rm"], "requireApproval": ["mv"]},
   "c": {"url": "https://c", "requireApproval": ["*"], "headers": {"X": "key2", "Y": "y", "Z": "other's",
         "Authorization": "Bearer token's"}}}
> KEY KEY2 OFF my_key my_token
> mcp_servers.a: unknown keys ..since.., ignored
=== opencode: opencode.json
{"tools": {"a_write_file": false}, "permission": {"bash": "ask"}, "mcp": {
  "a": {"type": "local", "command": ["npx", "${A}"], "environment": {"A": "{env:KEY}"}},
  "b": {"type": "remote", "url": "https://b", "headers": {"A": "Bearer {env:my_key}"}},
  "c": {"type": "local", "command": ["x"], "environment": {"A": "{file:./s3cret}"}},
  "d": {"type": "local", "command": ["x"], "enabled": false}}}
> {"a": {"command": "npx", "args": ["key"], "env": {"A": "key"}},
   "b": {"transport": "remote", "url": "https://b", "headers": {"A": "Bearer its"}},
   "c": {"command": "x", "env": {"A": ""}, "problem":
         "mcp.c.env.A: ${file… is no variable here: write the value, or ${NAME} in capitals"}}
> KEY my_key
> not applied, .*a_write_file.*bash.*`excludeTools` .*does the same
=== Cursor, Windsurf, Cline, Gemini CLI and Copilot CLI: mcp.json
{"projects": 7, "disabledMcpServers": ["f"], "mcp": {"excluded": ["h"], "allowed":
  ["A", "b", "c", "d", "f", "g", "h"]}, "mcpServers": {
  "a": {"command": "npx", "args": ["z"], "env": {"_J": "${env:KEY}"},
    "working_directory": "/w", "autoApprove": ["${"]},
  "b": {"serverUrl": "https://b", "headers": {"K": "${KEY}"},
    "excludeTools": ["t"], "disabled_tools": ["u"]},
  "c": {"httpUrl": "https://c", "headers": {"A": "Bearer $ECRET"}, "disabled": false,
    "includeTools": ["r"], "excludeTools": ["s"], "description": "Its own"},
  "d": {"transport": "sse", "url": "https://d", "enabled": true},
  "f": {"command": "${UNSET}"}, "_h": {"command": "${UNSET}"},
  "h": {"command": "${UNSET}"}, "i": {"command": "${UNSET}"},
  "g": {"command": "npx", "args": [], "tools": ["r", "s"], "toolFilters": ["r", "s"]}}}
> {"a": {"command": "npx", "args": ["z"], "env": {"_J": "key"}, "cwd": "/w"},
   "b": {"url": "https://b", "headers": {"K": "key"}, "excludeTools": ["t", "u"]},
   "c": {"url": "https://c", "headers": {"A": "Bearer $ECRET"}, "toolFilters": ["r"],
         "excludeTools": ["s"], "description": "Its own"},
   "d": {"transport": "sse", "url": "https://d"},
   "g": {"command": "npx", "toolFilters": ["r", "s"]}}
> KEY
> mcpServers.c.headers.A: write \\${NAME}
"""
SET = {"my_key": "its", "my_token": "token's", "my_other": "other's"}
SET |= {name: name.lower() for name in ("KEY", "KEY2", "OFF", "NOT_NAMED")}


@pytest.mark.parametrize("case", CLIENT_FILES.split("\n=== ")[1:])
def test_a_file_is_served_as_its_client_means_it(
    case: str, tmp_path: Path, monkeypatch: Monkey, log: Logs
) -> None:
    if "https:" in case and "url" not in workbench.TRANSPORTS:
        pytest.skip("these are entries of remote servers")
    monkeypatch.chdir(tmp_path)
    title, _, rest = case.strip().partition("\n")
    written, servers, withheld, *warnings = re.split("\n> ?", rest)
    file = Path(title.split(": ")[1])
    here = Path.cwd().as_posix()
    # On Windows, neither slashes nor the case of the drive's letter matter.
    here = here[0].swapcase() + here[1:]
    file.write_text(written.replace("FOLDER", here), "utf-8")
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    config = find(str(file))
    # On Windows, all names of variables are in capitals.
    assert sorted(map(str.upper, config.withheld)) == sorted(withheld.upper().split())
    found = {}
    for name, box in config.toolboxes.items():
        [server] = box.servers.values()
        keys = workbench.KEYS | workbench.TRANSPORTS[server.kind].KEYS
        its = server.values.items()
        found[name] = {key: value for key, value in its if value != keys[key].default}
        if server.problem:
            found[name]["problem"] = server.problem
        if box.description != f"Tools of the MCP server '{name}'":
            found[name]["description"] = box.description
    assert found == json.loads(servers)
    for pattern, warning in zip(filter(None, warnings), log.messages, strict=True):
        assert re.match(pattern, warning) and "ECRET" not in warning


def test_a_key_that_is_added_is_read(monkeypatch: Monkey) -> None:
    """Also one that other clients keep for themselves."""
    monkeypatch.setitem(workbench.KEYS, "timeout", workbench.KEYS["description"])
    box = parse({"mcpServers": {"s": {"command": "x", "timeout": 7}}}).toolboxes["s"]
    assert box.servers["s"].values["timeout"] == "7" and not box.servers["s"].problem


def test_one_bad_entry_costs_no_other(monkeypatch: Monkey, log: Logs) -> None:
    """Its place names table and server as the file does. The workbench is left out."""
    # Without the room that heeds it, an approval of Codex is a problem.
    monkeypatch.delitem(workbench.KEYS, "requireApproval", raising=False)
    monkeypatch.chdir(ROOT)
    itself = {"command": "uv", "args": ["run", ".github/../workbench.py"]}
    toolbox = {"command": workbench.__file__, "args": ["--toolbox"]}
    unset = {"command": ["x", "${NO}"], "description": "${NO}"}
    ask = {"command": "x", "tools": {"rm": {"approval_mode": "prompt"}}}
    entries = {"_": 7, "good": toolbox, "us": itself, "unset": unset, "ask": ask}
    config = parse({"mcp": entries})
    assert log.messages == ["mcp.us: left out, it starts this workbench"]
    assert list(config.toolboxes) == ["good", "unset", "ask"]
    for name, box in config.toolboxes.items():
        [server] = box.servers.values()
        assert server.problem.startswith(f"mcp.{name}") == (name != "good")


# === Room: Reports ====================================================================

COMMANDS.append(("bad.json --check", 1, "", REASON, {}))
FILES["none.json"] = {"toolboxes": {}}
COMMANDS.append(("none.json --check", 1, "", "No server is configured", {}))
CALL = "its.json --call box__s__"
WORDS = CALL + 'result {"content": [{"type":"text","text":"Gr\\u00f6\\u00df"},'
WORDS += '{"type":"text","text":"en"}]}'
COMMANDS.append((WORDS, 0, "Größ\nen\n", "größe", {}))  # in UTF-8, whatever is usual
COMMANDS.append((f"--read-only {WORDS}", 1, "", "left out by --read-only", {}))
IMAGE = {"content": [BLOCKS[2]]}
AS_JSON = re.escape(json.dumps(IMAGE, indent=2)) + "\n"
COMMANDS.append((f"{CALL}result {json.dumps(IMAGE)}", 0, AS_JSON, "", {}))
COMMANDS.append((CALL + "x [1]", 1, "", 'JSON object such as {"text": "hi"}', {}))
COMMANDS.append(("its.json --call echo", 1, "", "__{tool}.*--verbose.*: box", {}))
COMMANDS.append(("--check --call x", 2, "", rf"{UNFIT}.*\[CONFIG\] --c", {}))
READING = {"annotations": {"readOnlyHint": True}}
PATHS: dict[str, Any] = {"type": "object", "required": ["path"]}
PATHS["properties"] = {"path": {}, "lim\x1b[1mit\n": {}}
# What is printed of servers: each line with those that are indented below it.
CHECKED = r"""
box/slow +ok +\d+\.\d s +1 tool  .*(\n    .*)*
box/good +ok +\d+\.\d s +2 tools  .*
    its pattern 'no_\*' matches none of its tools
    its pattern 'delte_\*' matches none of its tools
    box__good__read\(path, lim *it *\?\) is approved before each call
    box__good__x forged ok *\(\)
    box__good__rm is left out by excludeTools
    box__good__write is left out by --read-only
box/bad +FAILED +\d+\.\d s .*status 3.*
    first words
    last words
box/unset +FAILED .*s.unset.command: \${NO} is not set.*s.unset.args: expected a list.*
box/endless +FAILED .{,1020}
2 ok, 3 failed: box/bad, box/unset, box/endless; 2 warnings
"""


async def check(data: Any, *options: str) -> int:
    logging.getLogger("workbench").setLevel("DEBUG" if "verbose" in options else "INFO")
    try:
        return await workbench.check(parse(data, read_only="read_only" in options))
    finally:
        workbench.pattern_log.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("pauses")
async def test_check_reports(notes: Path, capsys: Capture) -> None:
    """It starts each server once, and tells when it has settled, and what it awaits."""
    gate = notes.with_name("gate")
    start = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nself.start()"
    die = "os.write(2, b'first words\\nlast words'); sys.exit(3)"
    tools = [tool("read", inputSchema=PATHS, **READING), tool("rm", **READING)]
    tools += [tool("write"), tool("x\nforged  ok\x1b[1m", **READING)]
    servers = {
        "slow": local(on={"start": start}, tools=tools[:1]),
        "good": local(tools=tools) | {"toolFilters": ["*", "no_*"]},
        "bad": local(notes=notes, on={"start": die}),
        "unset": {"command": "${NO}", "args": 7},
        "endless": {"command": "x" * 1_500},
    }
    servers["good"] |= {"excludeTools": ["rm", "delte_*"], "requireApproval": ["read"]}
    config = configuration(**servers)
    checking = asyncio.ensure_future(check(config, "verbose", "read_only"))
    said, waits = "", ""
    with anyio.fail_after(PATIENCE):
        while said.count("box/") < 4 or "waiting for: box/slow" not in waits:
            await anyio.sleep(0.01)
            printed = capsys.readouterr()
            said, waits = said + printed.out, waits + printed.err
    gate.touch()
    assert await checking == 1
    said += capsys.readouterr().out
    for pattern in re.split(r"\n(?=\S)", CHECKED.strip()):
        assert re.search(f"(?m)^{pattern}\n(?!    )", said), pattern
    assert len(noted_pids(notes)) == 1 and "\x1b" not in said


async def test_check_tells_what_a_context_holds(capsys: Capture, log: Logs) -> None:
    """And warns of a pattern that matches nothing there alone."""
    more: Any = {"title": "t" * 999, "annotations": READING["annotations"]}
    tools = [tool("x", description="ä" * 1_000, **more), tool("filtered out")]
    its = local(tools=tools) | {"toolFilters": ["x"], "excludeTools": ["${A_KEY}"]}
    its["env"] = {"A_KEY": "key-0123456"}
    assert await check({"mcpServers": {"s": its}}) == 0
    server, idle, summary, *rest = capsys.readouterr().out.replace(",", "").splitlines()
    assert server.startswith("s  ok     ")  # its toolbox has the same name
    whole = int(re.findall("([0-9]+) bytes", server)[0])
    assert whole == pytest.approx(3_250, abs=150)  # with the title, and the keys
    assert idle.startswith("    its pattern '***'") and summary == "1 ok; 1 warning"
    assert "pattern" not in log.text
    own, native, saved = map(int, re.findall("([0-9]+) bytes", " ".join(rest)))
    assert 900 < own < 1_400
    assert native == pytest.approx(2_050, abs=50) and saved == native - own
    assert await check(configuration(s=local(tools=[tool("x")]))) == 0
    assert "saved" not in capsys.readouterr().out


# === Room: Built-in toolbox ===========================================================

COMMANDS.append(("its.json --toolbox", 2, "", rf"{UNFIT}--toolbox \[--http.*\n$", {}))
COMMANDS.append(("--http 8000", 2, "", rf"{UNFIT}\[CONFIG\] \[--read-only\]\n$", {}))
COMMANDS.append(("--toolbox --http 0", 2, "", "argument --http: invalid .*'0'\n$", {}))


@pytest.mark.skipif(not zoneinfo.available_timezones(), reason="pip install tzdata")
async def test_the_toolbox_has_two_tools(monkeypatch: Monkey) -> None:
    async with Client(workbench.create_toolbox_server()) as client:
        call = client.call_tool
        echo, time = (await client.list_tools()).tools
        for said in ("", " zwölf 🧰\n\0", "x" * 1_000_000):
            result = await call("echo", {"text": said, "wait_for_previous": True})
            assert text(result) == said  # whatever clients add
        now = datetime.datetime.now(datetime.UTC)
        for zone in ("Europe/Berlin", "Asia/Kathmandu", "UTC"):
            shown = text(await call("time", {"timezone": zone}))
            moment = datetime.datetime.fromisoformat(shown)
            assert abs(moment - now) < datetime.timedelta(minutes=1), zone
            its = moment.astimezone(zoneinfo.ZoneInfo(zone))
            assert shown == its.isoformat(timespec="seconds")
        for zone in ("Mars/Phobos", "America", "../etc", ""):
            result = await call("time", {"timezone": zone})
            assert result.is_error and repr(zone) in text(result)
        for arguments in ({}, {"text": 1}):
            result = await call("echo", arguments)
            assert result.is_error and "text" in text(result), arguments
        monkeypatch.setattr(zoneinfo, "ZoneInfo", None)  # UTC needs no zone data
        assert text(await call("time")).endswith("+00:00")
    assert (echo.title, echo.input_schema["required"]) == ("Echo Tool", ["text"])
    assert time.title == "Time Tool" and not time.input_schema.get("required")
    assert echo.description == "A simple tool that returns the text it was given."
    assert "Returns the current server time" in str(time.description)


def test_one_url_serves_every_client_until_a_signal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # a free one
    line = [*PYTHON, workbench.__file__, "--toolbox", "--http", f"0.0.0.0:{port}"]
    url = f"http://127.0.0.1:{port}/mcp"
    # The first request waits until the server has started.
    client = httpx2.Client(transport=httpx2.HTTPTransport(retries=6), timeout=10)
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    post = partial(client.post, json=done)

    async def use_each_transport() -> None:
        for mode, at in ("legacy", url), ("auto", url), ("legacy", sse_client(url)):
            async with Client(at, mode=mode) as its:
                assert (its.protocol_version == MODERN) == (mode == "auto")
                result = await its.call_tool("echo", {"text": "session_id="})
                assert text(result) == "session_id="

    with client, subprocess.Popen(line, stderr=PIPE, text=True) as server:
        try:
            for query in ("", "?", "?sessionId=x", f"?sessionId={'0' * 32}"):
                assert post(f"{url}/messages{query}").status_code == 400, query
            anyio.run(use_each_transport)
            with client.stream("GET", url) as stream:
                lines = stream.iter_lines()
                assert next(lines) == "event: endpoint"
                path = next(lines).removeprefix("data: ")
                assert path.startswith("/mcp/messages?sessionId=")
                assert post(f"{url}{path.removeprefix('/mcp')}").status_code == 202
                server.terminate()
                _, log = server.communicate(timeout=20)
        finally:
            server.kill()
    assert server.returncode == WINDOWS  # where nothing can be sent but death
    assert re.search("WARNING .*authentication", log)


async def test_a_page_that_found_us_is_refused_on_every_route() -> None:
    evil = "127.0.0.1.evil.example"
    hosts = [  # what it is bound to; Host and Origin; the status
        ("127.0.0.1", "127.0.0.1:80", "http://127.0.0.1:80", 400),  # no such session
        ("127.0.0.1", evil, "", 403),
        ("127.0.0.1", "127.0.0.1:80", f"http://{evil}", 403),
        ("0.0.0.0", "a.example", "", 400),
        ("0.0.0.0", "a.example", "http://a.example", 403),
    ]
    for bound_to, host, origin, status in hosts:
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        app = httpx2.ASGITransport(workbench.ToolboxApp(bound_to))
        # An answer to a GET that is not refused would never end.
        with anyio.fail_after(PATIENCE):
            async with httpx2.AsyncClient(transport=app, headers=headers) as client:
                answers = [await client.post("http://x/mcp/messages")]
                if status == 403:
                    for method in ("GET", "POST", "DELETE"):
                        answers.append(await client.request(method, "http://x/mcp"))
        assert {answer.status_code for answer in answers} == {status}, headers


# === Room: uv =========================================================================

# A folder of an environment that was not activated would be taken for one that was.
FOLDERS = os.environ.get("PATH", os.defpath).split(os.pathsep)
FOLDERS = [each for each in FOLDERS if not Path(each, "../pyvenv.cfg").exists()]
PLAIN = dict(os.environ, LC_ALL="C.UTF-8", PATH=os.pathsep.join(FOLDERS))
FOLDERS.insert(0, str(Path(sys.executable).parent))
# The bytecode of what uv has installed is kept, so that later starts take less.
for name in ("PYTHONDONTWRITEBYTECODE", "UV", "UV_RUN_RECURSION_DEPTH", "VIRTUAL_ENV"):
    PLAIN.pop(name, None)
ACTIVATED = PLAIN | {"VIRTUAL_ENV": sys.prefix, "PATH": os.pathsep.join(FOLDERS)}
UVX = ["uvx", "--with", "mcp>=2.3,<3", "python>=3.11"]


def test_a_server_gets_the_environment_of_the_client(tmp_path: Path) -> None:
    # The program itself, because a shim of it changes PATH.
    line = [*UVX, "-c", "import os; print(os.environ['UV'])"]
    env = ACTIVATED | {"UV_HTTP_RETRIES": "0"}
    try:
        uv = subprocess.check_output(line, env=env, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("uv is not installed, or cannot install `mcp`")
    uvx = str(Path(uv).with_stem("uvx"))
    starts = [([uv, "run"], PLAIN), ([uvx, *UVX[1:]], ACTIVATED), (PYTHON, ACTIVATED)]
    for start, env in starts:
        folder = tmp_path / Path(start[0]).name
        folder.mkdir()
        show = SHOW | {"env": {"WB_PATH": "${PATH}"}}
        with Wire(folder, io={"env": env}, start=start, a=show) as wire:
            _, seen = json.loads(wire.initialize().use("a"))
        assert seen == env | {"WB_PATH": env["PATH"]}


# === Room: Windows ====================================================================

CTRL_C = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import test_workbench as tests
signal.signal(signal.SIGINT, signal.SIG_IGN)
with tests.Wire(tests.Path(sys.argv[1]), stubborn={"start": tests.STUBBORN}) as wire:
    wire.initialize().use("stubborn")
    os.kill(0, signal.CTRL_C_EVENT)  # to all in this console
    sys.exit(wire.status())
"""


@pytest.mark.skipif(not WINDOWS, reason="only Windows has this")
def test_ctrl_c_ends_it_and_it_ends_its_servers(tmp_path: Path, notes: Path) -> None:
    """They have not had it themselves: they were asked to end, then killed."""
    line = [*PYTHON, "-c", CTRL_C, str(tmp_path), str(ROOT)]
    flags = getattr(subprocess, "CREATE_NEW_CONSOLE", 0)
    assert subprocess.call(line, creationflags=flags) == 0
    assert "ended" in notes.read_text() and "signalled" not in notes.read_text()


# === README ===========================================================================

README = (ROOT / "README.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", README))
SERVED_FILES = """
~/.claude.json /path/claude.json ~/.codex/config.toml ~/.gemini/settings.json
~/.config/opencode/opencode.json /path/copy.json .mcp.json
"""


def blocks(language: str) -> list[str]:
    """The fenced blocks of the README in this language, also within lists."""
    block = rf"(?m)^ *```{language}\n((?:.*\n)*?) *```$"
    return [dedent(each) for each in re.findall(block, README)]


def pattern_of(shown: str) -> str:
    """What is shown, with `...` for anything, other numbers, and other blanks."""
    pattern = re.escape(shown).replace(r"\.\.\.", ".*")
    numbers = re.sub(r"\d([\d,]|\\\.)*", "[0-9.,]+", pattern)
    return re.sub(r"(\\ )+", " +", numbers)


REPORT, DEMO = [each.splitlines() for each in blocks("console")]
COMMANDS.append(("--check", 0, pattern_of(DEMO[1]) + r"\n(.*\n)+", "", {}))
COMMANDS.append(('--call demo__toolbox__echo {"text":"x"}', 0, "x\n", "", {}))


def test_the_script_header_and_the_requirements_ask_for_the_same() -> None:
    """An older Python gets as far as the sentence about it."""
    script = Path(workbench.__file__).read_text("utf-8")
    header: Any = re.search(r"(?m)^# /// script\n((?:# .*\n)+?)# ///$", script)
    requirements = (ROOT / "requirements.txt").read_text().split()
    assert re.findall('dependencies = .*"(.*)"', header[1]) + ["pytest"] == requirements
    assert {*re.findall(r"\bmcp>=[\d.,<]+", README)} == {requirements[0]}
    ast.parse(script, feature_version=(3, 9))


def test_shown_files_are_served(tmp_path: Path, monkeypatch: Monkey, log: Logs) -> None:
    """An entry starts the workbench, and the servers beside it are switched off."""
    monkeypatch.chdir(tmp_path)
    projects, ours = blocks("jsonc")
    before, after = projects.replace("/home/me/app", tmp_path.as_posix()).splitlines()
    for shown, name in [(ours, "project"), (before, "db"), (after, "db")]:
        Path("config.json").write_text(shown, "utf-8")
        assert list(find("config.json").toolboxes) == [name]
    example = find(str(ROOT / "workbench-config.example.json"))
    assert list(example.toolboxes) == ["project", "web"]
    lines = re.findall("mcp add .*(uv run .*)", README)
    for language in ("json", "toml"):
        for shown in blocks(language):
            Path(f"config.{language}").write_text(shown, "utf-8")
            for name, toolbox in find(f"config.{language}").toolboxes.items():
                values = toolbox.servers[name].values
                lines.append(" ".join([values["command"], *values["args"]]))
    expected = {f"uv run /path/workbench.py {file}" for file in SERVED_FILES.split()}
    assert set(lines) == expected and not log.messages


def test_the_readme_has_every_command_and_option() -> None:
    """And each that is shown is one of those that are tried."""
    tried = [options for options, *_ in COMMANDS]
    shown = DEMO[0] + "\n" + "\n".join(blocks("sh")) + SECTIONS["Command line"]
    for line in re.findall(r"workbench.py (--.*)|: `(--call .*)`\.", shown):
        assert "".join(line).replace("'", "") in tried
    named = re.findall(r"--(\w[\w-]*)", SECTIONS["Command line"])
    own = {"read-only", "verbose", "version", "http"}
    modes = {name.lstrip("-") for name in workbench.MODES}
    assert set(named) == own | modes - {"CONFIG"}
    # An error of the program points there.
    assert "Upgrading and removing" in SECTIONS


async def test_check_prints_as_shown(capsys: Capture) -> None:
    _, first, _, *others = REPORT
    [(name, count)] = re.findall(r"^(\w+) +ok .* (\d+) tools", first)
    tools = [tool(f"x{n}") | READING for n in range(int(count))]
    assert await check({"mcpServers": {name: local(tools=tools)}}) == 0
    printed = capsys.readouterr().out.splitlines()
    for line, shown in zip(printed, [first, *others], strict=False):
        assert re.fullmatch(pattern_of(shown), line)


async def test_a_model_gets_what_is_shown(tmp_path: Path, monkeypatch: Monkey) -> None:
    monkeypatch.chdir(tmp_path)
    async with Client(workbench.create_server(find(None))) as client:
        assert re.search("demo.*argument.*WORKBENCH_CONFIG", str(client.instructions))
        for shown in blocks("text")[0].split("> ")[1:]:
            call, expected = shown.splitlines()
            name, _, arguments = call.partition(" ")
            result = await client.call_tool(name, json.loads(arguments))
            assert re.fullmatch(pattern_of(expected), text(result))


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="a copy has the files alone")
def test_the_figures_of_rooms_are_those_that_are_printed() -> None:
    """In the guide, and in the map at the head of the program."""
    line = [*PYTHON, str(ROOT / ".ci/rooms"), "--figures"]
    printed = subprocess.check_output(line, text=True, encoding="utf-8")
    guide = (ROOT / ".github/CONTRIBUTING.md").read_text("utf-8")
    head, *_ = Path(workbench.__file__).read_text("utf-8").split("from __future__")
    comment = " ".join(head.replace("\n#", "\n").split())
    *sections, core, _ = re.findall(r"\| (.+?) \| (\d+) \|", printed)
    assert f"core ({int(core[1]):,} lines of code)" in guide
    for name, size in sections:
        assert f"{name} ({size})" in comment and f"| {name} | {size} |" in guide, name
