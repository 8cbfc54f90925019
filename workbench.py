# /// script
# requires-python = ">=3.11"
# dependencies = ["mcp>=2.3,<3"]
# ///
"""MCP Workbench: one MCP server in front of many, grouped into named toolboxes.

A model sees two meta-tools: `open_toolbox` starts a toolbox's servers and returns their
tools, `use_tool` calls one by its full name, `{toolbox}__{server}__{tool}`. One broken
server costs only itself, a server that died is started again by the next call, and
nothing is left running.

    python workbench.py [CONFIG]                     serve over stdio
    python workbench.py [CONFIG] --check             start every server, report on each
    python workbench.py [CONFIG] --call NAME [JSON]  call one tool
    python workbench.py --toolbox [--http PORT]      serve the built-in echo/time tools

Without CONFIG: WORKBENCH_CONFIG, else ./workbench-config.json, else a built-in demo.
Protocol: https://modelcontextprotocol.io/specification (up to 2026-07-28)
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (a copied file meets any Python)
    sys.exit(f"workbench.py needs Python 3.11 or newer, not {sys.version.split()[0]}")

import argparse
import asyncio
import datetime
import difflib
import fnmatch
import functools
import inspect
import ipaddress
import json
import logging
import math
import os
import re
import select
import signal
import socket
import stat
import zoneinfo
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast, get_args
from urllib.parse import parse_qsl

import anyio.abc
import httpx2
from mcp import ClientSession, MCPError, ServerSession, stdio_server, types
from mcp.client.session import IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.os.win32.utilities import get_windows_executable_command
from mcp.server import transport_security as security
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.message import SessionMessage
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import to_json
from starlette.requests import Request

__version__ = "0.10.0"

# All in seconds.
OPEN_TIMEOUT = 5.0  # after it `open_toolbox` answers with the servers that are up
ANSWER_TIMEOUT = 50.0  # after it every caller is answered: some give up at 60
CONNECT_TIMEOUT = 180.0  # to start or list: a first `npx` downloads its package
HTTP_TIMEOUT = 10.0  # to connect to a remote server, and for it to take a notification
EXIT_GRACE = 1.0  # between closing a server's stdin, SIGTERM and SIGKILL
LAST_WORDS = 2.0  # for what a lost session or a cancelled call still has to say
OUTPUT_GRACE = 0.25  # for the rest of an output after the first sign of its end
EXIT_TIMEOUT = 3.2  # from a signal or the end of stdin to the end of this process
RELISTEN_DELAY = 1.0  # between attempts to open a lost `subscriptions/listen` stream

MAX_PAGES = 250  # of one `tools/list`, before its server is taken to be looping
LARGE_ANSWER = 50_000  # characters of a result, from which on clients cut it

log = logging.getLogger("workbench")
JSON = dict[str, Any]  # an object, as it is on the wire


# === Configuration ====================================================================


class ConfigError(Exception):
    """A configuration that cannot be used: its file, then its `problems`, by line."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join([f"{source}:", *problems]))
        self.problems = problems


_URL = re.compile(r"https?://(?:([^/?#]*)@)?[^/?#@]+[^?#]*\??([^#]*).*")


@dataclass(frozen=True)
class ServerConfig:
    """One downstream server: a process (`command`) or a remote endpoint (`url`)."""

    transport: str  # stdio, http or sse
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    tool_filters: tuple[str, ...] = ("*",)
    description: str = ""  # in another client's file

    def allows(self, tool: str) -> bool:
        """Whether `toolFilters` let the downstream tool of this name through."""
        return any(fnmatch.fnmatchcase(tool, pattern) for pattern in self.tool_filters)

    def secrets(self) -> list[str]:
        """The values of the entry that may be secrets: pasted ones often hold them."""
        words = [word for text in self.headers.values() for word in text.split()]
        values = [*self.env.values(), *self.headers.values(), *words]  # Bearer, token
        for who, query in _URL.findall(self.url):
            values += [who, query, *who.split(":", 1), *dict(parse_qsl(query)).values()]
        return values


@dataclass(frozen=True)
class ToolboxConfig:
    """A named group of servers that are opened together."""

    description: str
    servers: Mapping[str, ServerConfig]


@dataclass(frozen=True)
class WorkbenchConfig:
    """A checked configuration, with its `${VAR}` references expanded."""

    toolboxes: Mapping[str, ToolboxConfig]
    variables: frozenset[str] = frozenset()  # it refers to them: withheld from servers
    mask: Callable[[str], str] = str  # a text with `***` in place of every secret
    warnings: tuple[str, ...] = ()  # lines about what was ignored
    source: str = ""  # its file; the built-in demo has none


_REFERENCE = re.compile(
    r"\$\{(?:env:)?([A-Z_][A-Z0-9_]*)(?::-([^}]*))?\}"  # ${VAR}, ${VAR:-default}
    r"|\$\{[^}]*(\}?)"  # what another program may understand, or one that does not end
)
_NOTHING = object()  # in place of a value that is not there
_JSON_TYPES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
_JSON_TYPES |= {bool: "a boolean", type(None): "null", object: "nothing"}
# What other clients write for what is ours: Windsurf, Gemini CLI, most of them.
_SPELLINGS = {"serverUrl": "url", "httpUrl": "url", "type": "transport"}
_SPELLINGS |= dict.fromkeys(["streamable-http", "streamableHttp"], "http")
# The keys of a server entry and their types; lists and objects hold strings.
_LOCAL_KEYS = {"command": str, "args": list, "env": dict, "cwd": str}
_REMOTE_KEYS = {"url": str, "headers": dict}
_COMMON_KEYS = {"toolFilters": list, "description": str, "transport": str}


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "a number")


def _join(place: str, key: str) -> str:
    is_plain = key.isprintable() and re.fullmatch(r"[^\s.\[\]\"]+", key)
    return f"{place}.{key if is_plain else json.dumps(key)}".removeprefix(".")


@dataclass
class _ConfigReader:
    """Reads a decoded configuration and collects every problem with its place."""

    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)

    def problem(self, place: str, expected: str, found: str) -> None:
        what = f"expected {expected}, found {found}"
        self.problems.append(f"{place or 'configuration'}: {what}")

    def expanded(self, place: str, reference: re.Match[str]) -> str:
        """The value of `${VAR}` or `${VAR:-default}`; what is neither stays as it is.

        The first `}` ends a reference, a variable that is set but empty wins over the
        default, values are inserted literally, `${env:VAR}` is `${VAR}`.
        """
        name, default, end = reference.groups()
        if name is None and end:
            about = "a ${...} that names no variable (in capitals) stays as text"
            self.warnings.append(f"{place}: {about}")
        elif name is None:
            self.problem(place, "a '}' after '${'", "the end of the string")
        else:
            self.variables.add(name)
            if name in self.environ or default is not None:
                return self.environ.get(name, default or "")
            unset = f"environment variable {name} is not set"
            hint = f"set it, or write ${{{name}:-default}}"
            self.problems.append(f"{place}: {unset}: {hint}")
        return reference[0]

    def read(self, value: Any, kind: type, place: str, is_key: bool = True) -> Any:
        """`value`, expanded, if it is of this JSON type; else None, and a problem."""
        if not isinstance(value, kind):
            return self.problem(place, _JSON_TYPES[kind], _json_type(value))
        if isinstance(value, list):
            items = enumerate(value)
            return tuple(self.read(v, str, f"{place}[{i}]", False) for i, v in items)
        if isinstance(value, dict):
            entries = self.entries(value, place).items()
            return {k: self.read(v, str, _join(place, k), False) for k, v in entries}
        if isinstance(value, str):
            value = _REFERENCE.sub(functools.partial(self.expanded, place), value)
            if is_key and not value.strip():
                return self.problem(place, "a non-empty string", "an empty string")
        return value

    def entries(self, value: Any, place: str) -> JSON:
        """The entries of an object, without the comments."""
        if not isinstance(value, dict):
            self.problem(place, "an object", _json_type(value))
            return {}
        return {key: item for key, item in value.items() if not key.startswith("_")}

    def named(self, value: Any, place: str, read: Callable[[Any, str], Any]) -> JSON:
        """What `read` makes of an object's entries, toolboxes or servers, by name."""
        entries = self.entries(value, place)
        for name in entries:
            if "__" in name or name[-1:] in ("", "_") or not name.isprintable():
                expected = "a printable name without '__' that does not end in '_'"
                self.problem(_join(place, name), expected, json.dumps(name))
        items = {name: read(v, _join(place, name)) for name, v in entries.items()}
        return {name: item for name, item in items.items() if item is not None}

    def warn_unknown(self, entry: JSON, place: str, known: Iterable[str]) -> None:
        about = f"unknown key, ignored (known: {', '.join(known)})"
        unknown = [key for key in entry if _SPELLINGS.get(key, key) not in known]
        self.warnings += [f"{_join(place, key)}: {about}" for key in unknown]

    def server(self, value: Any, place: str) -> ServerConfig | None:
        """One server entry; None where it is disabled."""
        entry = self.entries(value, place)
        if not isinstance(value, dict):
            return ServerConfig("")
        if self.read(entry.get("disabled", False), bool, f"{place}.disabled"):
            referred = _REFERENCE.finditer(json.dumps(entry))
            self.variables |= {reference[1] for reference in referred if reference[1]}
            return None
        if entry.get("toolFilters") == "*":
            del entry["toolFilters"]
        ours_last = sorted(entry, key=lambda key: key not in _SPELLINGS)  # and it wins
        written = {_SPELLINGS.get(key, key): key for key in ours_last}
        is_local = "command" in written
        if is_local == ("url" in written):
            found = "both" if is_local else "neither"
            self.problem(place, "either 'command' or 'url'", found)
        kinds = {**(_LOCAL_KEYS if is_local else _REMOTE_KEYS), **_COMMON_KEYS}
        self.warn_unknown(entry, place, [*kinds, "disabled"])
        at = {key: f"{place}.{written[key]}" for key in kinds if key in written}
        values = {k: self.read(entry[written[k]], kinds[k], at[k]) for k in at}
        possible = ["stdio"] if is_local else ["http", "sse"]
        transport = values.pop("transport", possible[0])
        transport = _SPELLINGS.get(transport, transport)
        if transport not in (*possible, None):
            self.problem(at["transport"], " or ".join(possible), "another string")
        if values.get("url") and not _URL.fullmatch(values["url"]):
            self.problem(at["url"], "an http:// or https:// URL", "another string")
        filters = values.pop("toolFilters", ("*",))
        return ServerConfig(transport, tool_filters=filters, **values)

    def toolbox(self, value: Any, place: str) -> ToolboxConfig:
        entry = self.entries(value, place)
        if not isinstance(value, dict):
            return ToolboxConfig("", {})
        self.warn_unknown(entry, place, ["description", "mcpServers"])
        entry = {"description": _NOTHING, "mcpServers": _NOTHING, **entry}
        description = self.read(entry["description"], str, f"{place}.description")
        at = f"{place}.mcpServers"
        enabled = self.named(entry["mcpServers"], at, self.server)
        if isinstance(entry["mcpServers"], dict) and not enabled:
            self.problem(at, "at least one server that is not disabled", "none")
        return ToolboxConfig(description, enabled)

    def toolboxes(self, data: Any) -> dict[str, ToolboxConfig]:
        """The toolboxes of a workbench's own file, or of another client's."""
        entry = self.entries(data, "")
        for key in ("mcpServers", "servers"):
            if key in entry and "toolboxes" not in entry:
                servers = self.named(entry[key], key, self.server)
                named = "Tools of the MCP server '{}'".format
                return {
                    name: ToolboxConfig(it.description or named(name), {name: it})
                    for name, it in servers.items()
                }
        if isinstance(data, dict) and "toolboxes" not in entry:
            expected = "'toolboxes', or another client's 'mcpServers' or 'servers'"
            self.problem("", expected, "none of them")
        self.warn_unknown(entry, "", ["toolboxes", "toolMode"])
        toolboxes = self.named(entry.get("toolboxes", {}), "toolboxes", self.toolbox)
        mode = entry.get("toolMode", "proxy")
        if mode == "dynamic":
            self.problems += _DYNAMIC_MODE.splitlines()
        elif mode != "proxy":
            self.problem("toolMode", "'proxy' or no such key", _json_type(mode))
        elif "toolMode" in entry:
            self.warnings.append("toolMode: 'proxy' is the only mode, ignored")
        return toolboxes


_DYNAMIC_MODE = """\
Configuration field 'toolMode' set to 'dynamic' is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


def _masking(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that masks what may be secret of these texts, as JSON has it too."""
    lines = {line for s in secrets if not os.path.exists(s) for line in s.splitlines()}
    forms = {json.dumps(t, ensure_ascii=a)[1:-1] for t in lines for a in (True, False)}
    shown = sorted((t for t in lines | forms if len(t.strip()) >= 8), key=len)
    pattern = re.compile("|".join(map(re.escape, reversed(shown))) or "(?!)")
    return functools.partial(pattern.sub, "***")


def parse_config(
    data: Any, environ: Mapping[str, str], source: str = "configuration", *problems: str
) -> WorkbenchConfig:
    """Check a decoded configuration and expand its variables from `environ`.

    Raises `ConfigError` with `problems` and all of its own, each with its place.
    """
    reader = _ConfigReader(environ)
    reader.problems += problems
    toolboxes = reader.toolboxes(data)
    if reader.problems:
        raise ConfigError(source, [*dict.fromkeys(reader.problems)])
    servers = [s for toolbox in toolboxes.values() for s in toolbox.servers.values()]
    secrets = [environ[name] for name in reader.variables & environ.keys()]
    secrets += [secret for server in servers for secret in server.secrets()]
    variables = frozenset(reader.variables)
    warnings = tuple(dict.fromkeys(reader.warnings))
    return WorkbenchConfig(toolboxes, variables, _masking(secrets), warnings, source)


def load_config(path: str, environ: Mapping[str, str] = os.environ) -> WorkbenchConfig:
    """Read the configuration file at `path`; any fault of it raises `ConfigError`."""
    source = path.encode(errors="replace").decode()  # as it can be shown and sent
    problems: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> JSON:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:  # else the last one would win without a word
                found = f"expected once in its object, found {count} times"
                problems.append(f"key {json.dumps(key)}: {found}")
        return dict(pairs)

    try:
        text = _without_halves(Path(path).read_bytes()).decode("utf-8-sig")
        data = json.loads(text, object_pairs_hook=unique)
    except OSError as error:
        raise ConfigError(source, [f"cannot be read: {error.strerror}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(source, [f"expected JSON in UTF-8, found: {error}"]) from None
    return parse_config(data, environ, source, *problems)


def find_config(argument: str | None, environ: Mapping[str, str]) -> WorkbenchConfig:
    """The configuration to serve: argument, WORKBENCH_CONFIG, ./workbench-config.json.

    Without any of them, this file's own echo/time toolbox as a demo. Raises
    `ConfigError`, also where a path that was given cannot be read.
    """
    path = environ.get("WORKBENCH_CONFIG") or None if argument is None else argument
    if path is None and os.path.exists("workbench-config.json"):
        path = "workbench-config.json"
    if path is not None:
        return load_config(path, environ)
    command = (sys.executable, (os.path.abspath(__file__), "--toolbox"))
    servers = {"toolbox": ServerConfig("stdio", *command)}
    return WorkbenchConfig({"demo": ToolboxConfig("Echo and time", servers)})


# === Tool names =======================================================================


def full_tool_name(toolbox: str, server: str, tool: str) -> str:
    """`{toolbox}__{server}__{tool}`."""
    return f"{toolbox}__{server}__{tool}"


def split_tool_name(name: str) -> tuple[str, str, str]:
    """Toolbox, server and tool of a full name; ValueError if it is none.

    The tool may contain `__` itself, the other two cannot.
    """
    toolbox, server, tool = name.split("__", 2)
    if not (toolbox and server and tool):
        raise ValueError(f"empty part in {name!r}")
    return toolbox, server, tool


# === Transports =======================================================================

# A life enters a transport and gets its wire. A transport calls `life.hung_up` when it
# knows how the connection has ended; a request that is sent in vain waits for that.

_Messages = AsyncIterator[SessionMessage]
_Read = Callable[[int], Awaitable[bytes]]
_SESSION_ID = "mcp-session-id"
_CHUNK = 65536  # bytes
_LOG_LIMIT = 8192  # bytes of a line that is logged
_LINE_LIMIT = 128 << 20  # bytes of one that is a message
# The data of errors that we make up in a server's place. No server can know them.
_OURS = os.urandom(16).hex()
_UNREACHED = os.urandom(16).hex()  # ours, too: the server has not seen the request

_HALVES = re.compile(rb"(?i)\\\\|\\ud[89ab]\w\w\\ud[c-f]\w\w|(\\ud[89a-f]\w\w)")


def _without_halves(text: bytes) -> bytes:
    """JSON text with U+FFFD in place of each half of a surrogate pair.

    JavaScript makes them where it cuts a text, and no strict parser takes them.
    """
    if b"\\u" not in text:
        return text
    return _HALVES.sub(lambda m: rb"\ufffd" if m[1] else m[0], text)


def _decoded(value: Any) -> Any:
    """What a JSON text stands for; anything else as it is."""
    with suppress(ValueError, RecursionError, AttributeError):
        return json.loads(_without_halves(value.encode()))
    return value


def _failure(message: str, data: str = _OURS) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, message, data)


def _read_message(line: bytes) -> types.JSONRPCMessage | None:
    """A JSON-RPC message; for an answer that is not valid MCP, the error that says so.

    None if it is neither: a log line may have an `id` and an `error`, too.
    """
    text = _without_halves(line)
    valid = text if text.isascii() else text.decode(errors="replace")
    try:
        return types.jsonrpc_message_adapter.validate_json(valid, by_name=False)
    except ValidationError:
        whole = _decoded(line.decode(errors="replace"))
    number = whole.get("id") if isinstance(whole, dict) else None
    is_answer = isinstance(number, str | int | float) and "method" not in whole
    if not is_answer or whole.get("jsonrpc") != "2.0":
        return None
    kind = types.JSONRPCError if "error" in whole else types.JSONRPCResponse
    try:
        return kind.model_validate(whole, by_name=False)
    except ValidationError as error:
        return _answer(number, _failure(explain(error)).error)


def _answer(number: Any, error: types.ErrorData) -> types.JSONRPCError:
    return types.JSONRPCError.model_construct(jsonrpc="2.0", id=number, error=error)


def _dump(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


async def _lines(read: _Read, limit: int = _LINE_LIMIT) -> AsyncIterator[bytes]:
    """The lines that can be read, without their ends, cut where they pass `limit`.

    The parts of a long line are joined once: to do so with each chunk costs the square
    of its length. Between short ones everybody else has a turn.
    """
    parts: list[bytes] = []
    with suppress(OSError):  # a pipe that breaks is one that ends
        while chunk := await read(_CHUNK):
            *lines, rest = chunk.split(b"\n")
            for number, line in enumerate(lines):
                if number:  # else who writes without end has the event loop to himself
                    await asyncio.sleep(0)
                yield b"".join([*parts, line])
                parts = []
            parts.append(rest)
            if sum(map(len, parts)) > limit:
                yield b"".join(parts)[:_LOG_LIMIT]
                parts = []
    if any(parts):
        yield b"".join(parts)


@dataclass
class _Wire(anyio.abc.AsyncResource):
    """Both streams of a session: messages that are iterated, and a way to send one."""

    messages: _Messages
    send: Callable[[SessionMessage], Awaitable[None]]

    def __aiter__(self) -> _Messages:
        return self.messages

    async def aclose(self) -> None:
        """Nothing: what is behind the streams belongs to others."""


class _ServerProcess(asyncio.subprocess.SubprocessStreamProtocol):
    """A server process: its stdout as messages, its stderr as log lines, its end.

    The SDK's `stdio_client` waits for the end of stdout, which a child may hold open,
    leaves such a child running, and tells neither status nor process.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, life: Life) -> None:
        super().__init__(_CHUNK, asyncio.get_running_loop())
        self._life = life
        self._exited = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.process = cast(asyncio.SubprocessTransport, transport)
        self._ended = asyncio.create_task(self._read_stderr())

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()
        self.stdin.close()
        # Its children may hold its output open for as long as they like.
        asyncio.get_running_loop().call_later(OUTPUT_GRACE, self.process.close)

    async def messages(self) -> _Messages:
        """What the server says on stdout, until all of it was read and it has ended."""
        async for line in _lines(self.stdout.read):
            if (message := _read_message(line)) is not None:
                yield SessionMessage(message)
            else:
                self._life.said(line.decode(errors="replace"))
        self.stdin.close()
        await asyncio.wait([self._ended], timeout=OUTPUT_GRACE)
        status = self.process.get_returncode()
        if status is None:
            how = "closed its stdout"
        elif status >= 0:
            how = f"exited with status {status}"
        else:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(-status, f'signal {-status}')}"
        self._life.hung_up(how)

    async def _read_stderr(self) -> None:
        """Log what the server writes to stderr, until it has ended; keep the last."""
        async for line in _lines(self.stderr.read, _LOG_LIMIT):
            self._life.said(line.decode(errors="replace"))
        await self._exited.wait()  # its status is known, too

    async def send(self, message: SessionMessage) -> None:
        is_request = isinstance(message.message, types.JSONRPCRequest)
        if not self.stdin.is_closing():
            self.stdin.write(_dump(message.message) + b"\n")
        if self.stdin.is_closing() and is_request:  # maybe by this: nobody reads it
            with anyio.move_on_after(2 * OUTPUT_GRACE):  # to know why
                await self._life.gone.wait()
            self._life.hung_up("closed its stdin")
            raise _failure("it has not seen the request", _UNREACHED)

    async def stop(self) -> None:
        """Close its stdin, then SIGTERM, then SIGKILL; its children go with it.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        self.stdin.close()
        for name in ("SIGTERM", "SIGKILL"):
            await asyncio.wait([self._ended], timeout=EXIT_GRACE)
            with suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):  # it leads a process group of its own
                    os.killpg(self.process.get_pid(), getattr(signal, name))
                else:
                    self.process.kill()
        await asyncio.wait([self._ended], timeout=OUTPUT_GRACE)
        self.process.close()


@asynccontextmanager
async def _process_transport(life: Life) -> AsyncIterator[_Wire]:
    """Start a server's process and speak to it over stdin and stdout."""
    config, command = life.config, life.config.command
    if sys.platform == "win32":
        command = get_windows_executable_command(command)
    withheld = life.shared.config.variables
    inherited = {k: v for k, v in os.environ.items() if k not in withheld}
    with anyio.CancelScope(shield=True):  # else it might run with nobody to stop it
        _, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: _ServerProcess(life),
            command,
            *config.args,
            env={**inherited, **get_default_environment(), **config.env},
            cwd=config.cwd,
            start_new_session=True,
        )
    try:
        yield _Wire(process.messages(), process.send)
    finally:
        with anyio.CancelScope(shield=True):
            await process.stop()


@dataclass
class _Events(httpx2.AsyncByteStream):
    """A stream of events, with the messages in it as `_read_message` has them."""

    stream: httpx2.AsyncByteStream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self.stream)
        async for line in _lines(lambda _: anext(chunks, b"")):
            message = _read_message(line[5:]) if line.startswith(b"data:") else None
            yield (line if message is None else b"data:" + _dump(message)) + b"\n"

    async def aclose(self) -> None:
        await self.stream.aclose()


# The id of the request of ours that a task belongs to: to its answer or to a question
# that the server asks in it.
_REQUEST = ContextVar[Any]("_REQUEST", default=None)
# How servers that do not just answer 404 name a lost session, even under a call's id.
_NO_SESSION = re.compile(
    rb"(?i)\b(no|not|invalid|missing|unknown|expired)\b[^.]{0,20}\bsession\b"
    rb"|\bsession\b[^.]{0,20}\b(not found|expired|terminated)\b|\bnot initialized\b"
)


class _HttpClient(httpx2.AsyncClient):
    """Answers in the server's place where something goes wrong with one request.

    An exception would end the SDK's transport, and with it every other call in flight
    on the same server; an error status would not be named.
    """

    write: Any  # the SDK's stream of what is to be sent

    def __init__(self, life: Life) -> None:
        # No compression: bodies are read on the way. No limits: a call may be silent
        # for ever, and so may any number of others beside it.
        headers = {"accept-encoding": "identity", **life.config.headers}
        timeout = httpx2.Timeout(HTTP_TIMEOUT, read=None)
        super().__init__(headers=headers, timeout=timeout, limits=httpx2.Limits())
        self._life = life
        self.tasks = anyio.create_task_group()  # that end with the connection

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "GET":  # fails on its own, and the SDK knows how to go on
            is_rest = "last-event-id" in request.headers  # of an answer: may be lost
            with anyio.fail_after(HTTP_TIMEOUT if is_rest else None):
                return await self._checked(request, options)
        body = json.loads(await request.aread() or b"{}")
        number = body.get("id")
        if "method" not in body or number is None:
            return await self._tell(request, body, options)
        _REQUEST.set(number)
        request.extensions["id"] = number
        headers = {"content-type": "application/json"}
        try:
            if body["method"] == _OURS:  # see `_give_up`
                raise _failure(body["params"]["why"])
            response = await self._checked(request, options)
            is_sse = self._life.config.transport == "sse"
            if is_sse or not (response.is_success and response.is_closed):
                return response  # the answer is still to come
            message = _read_message(response.content)
            if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                kind = response.headers.get("content-type", "nothing")
                raise self._failed(f"{_status(response)} with {kind}, no answer")
            message.id = number
            headers[_SESSION_ID] = response.headers.get(_SESSION_ID, "")
        except MCPError as error:
            message = _answer(number, error.error)
        content = _dump(message)
        return httpx2.Response(200, headers=headers, content=content, request=request)

    async def _tell(
        self, request: httpx2.Request, body: JSON, options: JSON
    ) -> httpx2.Response:
        """Send what gets no answer: a notification, an answer, the end of a session."""
        request.extensions["timeout"]["read"] = HTTP_TIMEOUT
        if body.get("method") == "notifications/cancelled":
            # The server may still take back what it has asked in that call.
            number = body["params"]["requestId"]
            self.tasks.start_soon(self._give_up, number, {"why": "gone"}, LAST_WORDS)
        is_last = request.method == "DELETE"  # and so the task is cancelled already
        with anyio.move_on_after(EXIT_GRACE if is_last else None, shield=is_last):
            try:
                return await self._checked(request, options)
            except MCPError as error:
                log.debug("%s: %s", self._life.name, error.message)
                if "method" not in body and (asker := _REQUEST.get()) is not None:
                    why = {"why": f"it refused the client's answer: {error.message}"}
                    self.tasks.start_soon(self._give_up, asker, why, 0)
        return httpx2.Response(204, request=request)

    async def _give_up(self, number: Any, params: JSON, delay: float) -> None:
        """End a request of ours with an error, after a while."""
        await anyio.sleep(delay)
        # Before 2026-07-28 the SDK reads an answer on until its id is used again.
        once_more = {"jsonrpc": "2.0", "id": number, "method": _OURS, "params": params}
        await self.write.send(SessionMessage(types.JSONRPCRequest(**once_more)))

    async def _checked(self, request: httpx2.Request, options: JSON) -> httpx2.Response:
        """The response to a request, if it is a success or a redirect within its host.

        Else an `MCPError`: the server's own, or what went wrong, with the HTTP status.
        """
        try:
            response = await super().send(request, **options)
            kind = response.headers.get("content-type", "").lower()
            if response.is_success and kind.startswith("text/event-stream"):
                response.stream = _Events(cast(Any, response.stream))
                return response
            content = b""
            # Nobody waits for the rest of an error.
            with anyio.move_on_after(None if response.is_success else HTTP_TIMEOUT):
                content = await response.aread()
        except httpx2.RequestError as error:
            raise self._failed(explain(error)) from None
        if response.is_success:
            return response
        if (there := response.next_request) is not None:
            if (there.method, there.url.netloc) == (request.method, request.url.netloc):
                return response  # which the SDK follows
            location = there.url.copy_with(query=None, userinfo=b"")
            raise self._failed(f"{_status(response)} to {location} is not followed")
        status = response.status_code
        if status in (401, 403):
            hint = "check 'headers' in the configuration"
            raise self._failed(f"{_status(response)}: {hint}")
        own: Any = None
        with suppress(ValidationError):
            own = types.JSONRPCError.model_validate_json(content)
        if "id" in request.extensions and _SESSION_ID in request.headers:
            has_seen_it = own is not None and own.id == request.extensions["id"]
            names_it = status in (400, 404) and _NO_SESSION.search(content)
            if names_it or (status == 404 and not has_seen_it):
                self._life.hung_up("ended the session")
                raise _failure(_status(response), _UNREACHED)
        if own is not None:
            raise MCPError.from_error_data(own.error)
        raise self._failed(_status(response))

    def _failed(self, why: str) -> MCPError:
        text = f"{self._life.config.url}: {why}"
        if self._life.config.transport == "sse":  # an answer has no other way to come
            self._life.hung_up(f"failed: {text}")
        return _failure(text)


def _status(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}"


@asynccontextmanager
async def _http_transport(life: Life) -> AsyncIterator[_Wire]:
    """Speak to a remote server over Streamable HTTP or the older SSE transport."""

    async def messages(read: Any) -> _Messages:
        async for message in read:
            _REQUEST.set(read.last_context.get(_REQUEST))
            yield message
        life.hung_up("closed the connection")

    async def send(message: SessionMessage) -> None:
        http.tasks.start_soon(http.write.send, message)  # it waits for the one before

    http = _HttpClient(life)
    url = life.config.url
    wire: Any = streamable_http_client(url, http_client=http, max_sse_event_size=None)
    if life.config.transport == "sse":
        wire = sse_client(url, httpx_client_factory=lambda *_, **__: http)
    async with aclosing(http), wire as (read, http.write), http.tasks:
        yield _Wire(messages(read), send)
        http.tasks.cancel_scope.cancel()


# === Connections ======================================================================


class ToolError(Exception):
    """What went wrong, in one sentence for the model: a result with `isError`."""


_News = types.SetLevelRequest | types.RootsListChangedNotification  # of the client
_WireRequest = types.Request[JSON, str]
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)
_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]")
# What is logged of a server, `toolbox/server` (the first four are of seed 004).
_RECEIVED = "Received tools/list_changed notification from server: %s"
_UNASKED = "Received tools notification from server without listChanged capability: %s"
_SUPPORTED = "Server supports tool change notifications: %s"
_SKIPPED = "Skipping duplicate discovery - already in progress for: %s"
_REFRESHED = "%s: tools refreshed: %d added, %d removed, %d modified"


@dataclass
class Shared:
    """What all lives of servers in one process have in common."""

    config: WorkbenchConfig
    owners: anyio.abc.TaskGroup  # runs the tasks that hold the servers
    client: ServerSession | None = None  # the one that is served
    log_level: types.SetLevelRequest | None = None  # which it has sent last


class Life:
    """One life of a server, from a start to the end of its connection.

    It holds all that must not outlive the connection: one that is still winding down
    cannot touch what belongs to its successor.
    """

    session: ClientSession  # once it is connected

    def __init__(self, toolbox: str, server: str, shared: Shared) -> None:
        self.toolbox, self.server = toolbox, server
        self.name = f"{toolbox}/{server}"
        self.config = shared.config.toolboxes[toolbox].servers[server]
        self.shared = shared
        self.client = shared.client  # a server is offered what this one can do
        self.listed: dict[str, types.Tool] = {}  # by their names
        self.how = ""  # how it ended or failed, where that was not our doing
        self.stderr: deque[str] = deque(maxlen=20)  # its last lines
        self.settled = anyio.Event()  # it is up or has failed
        self.gone = anyio.Event()  # it has ended, and `how` is known
        self._changed = anyio.Event()  # its tools did: a refresh is due
        self._refreshed = anyio.Event()  # the last refresh that became due has ended
        self._refreshed.set()

    @property
    def up(self) -> bool:
        """Connected, with its tools listed."""
        return self.settled.is_set() and not self.gone.is_set()

    @property
    def tools(self) -> dict[str, types.Tool]:
        """What the server lists and the filters let through, by downstream name."""
        return {n: tool for n, tool in self.listed.items() if self.config.allows(n)}

    @property
    def failure(self) -> str | None:
        """Why the server is not up; None while it is up or starting."""
        return None if self.up or not self.settled.is_set() else self.why()

    def said(self, line: str) -> None:
        """Log a line of its output that is no message, and remember it."""
        masked = self.shared.config.mask(line)[:_LOG_LIMIT]
        if text := _CONTROLS.sub(" ", masked).strip():
            self.stderr.append(text[:300])
            log.info("[%s] %s", self.name, text)

    def hung_up(self, how: str) -> None:
        """Nothing can be sent over the connection any more, and this is why."""
        self.how = self.how or self.shared.config.mask(how)
        self.gone.set()

    def why(self) -> str:
        """How it ended, with the last lines that it wrote to stderr."""
        how, lines = self.how or "hung up", " | ".join(self.stderr)
        return f"{how}; its last stderr lines: {lines}" if lines else how

    async def run(self) -> None:
        """Hold the connection; this task alone enters and leaves what is part of it."""
        transport = _http_transport if self.config.url else _process_transport
        try:
            with anyio.fail_after(CONNECT_TIMEOUT) as scope:
                async with transport(self) as wire, self._connect(wire):
                    await _negotiate(self.session, self.client)
                    self.listed = await self._list_tools()
                    if not self.listed and self._announces_changes():
                        with anyio.move_on_after(OUTPUT_GRACE):  # some do so at once
                            await self._changed.wait()
                    scope.deadline = math.inf  # it may live as long as it likes
                    self.settled.set()
                    await self._follow()
        except Exception as error:  # must not take the other connections with it
            self.hung_up(explain(error, self.config.url))
            log.info("%s: failed: %s", self.name, self.why(), exc_info=True)
        finally:  # nobody waits any longer
            self.hung_up("")
            self.settled.set()
            self._refreshed.set()

    def _connect(self, wire: Any) -> ClientSession:
        self.session = ClientSession(
            wire,
            wire,
            client_info=types.Implementation(name="mcp-workbench", version=__version__),
            message_handler=self._on_message,
            logging_callback=self._on_log,
            **(_relay(self.client) if self.client is not None else {}),
        )
        return self.session

    async def _list_tools(self) -> dict[str, types.Tool]:
        """All pages of the server's tools, by name."""
        tools: dict[str, types.Tool] = {}
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < MAX_PAGES:
            seen.add(cursor)
            params = types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self.session.list_tools(params=params)
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise
                break  # it has no tools
            tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor or None
        return tools

    async def _follow(self) -> None:
        """Keep the tool list current until the server is gone."""
        log.info("%s: connected, %s", self.name, counted(len(self.tools), "tool"))
        log.debug("%s: its tools are %s", self.name, ", ".join(self.tools))
        for pattern in self.config.tool_filters:
            if pattern != "*" and not fnmatch.filter(self.listed, pattern):
                log.warning("%s: toolFilters: %r matches no tool", self.name, pattern)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._refresh)
            if self._announces_changes():
                log.debug(_SUPPORTED, self.name)
                if _is_modern(self.session):
                    tasks.start_soon(self._listen)
            if self.shared.log_level is not None:
                await self.tell(self.shared.log_level)
            await self.gone.wait()
            if self.config.transport == "http":  # its other calls may yet be answered
                await anyio.sleep(LAST_WORDS)
            tasks.cancel_scope.cancel()
        log.info("%s %s", self.name, self.how)

    def _announces_changes(self) -> bool:
        capabilities = self.session.server_capabilities or types.ServerCapabilities()
        return bool(capabilities.tools and capabilities.tools.list_changed)

    async def _refresh(self) -> None:
        """List the tools again after changes, one listing at a time."""
        while True:
            await self._changed.wait()
            # Before it begins: changes during it cost one more, and none is lost.
            self._changed, refreshed = anyio.Event(), self._refreshed
            try:
                with anyio.fail_after(CONNECT_TIMEOUT):
                    new = await self._list_tools()
            except (MCPError, ValidationError, TimeoutError) as error:
                why = explain(error, self.config.url)
                log.warning("%s: kept its old tools: %s", self.name, why)
            else:
                old = self.listed
                self.listed = new
                modified = sum(old[n] != new[n] for n in old.keys() & new.keys())
                counts = len(new.keys() - old), len(old.keys() - new), modified
                log.info(_REFRESHED, self.name, *counts)
            refreshed.set()

    def tools_changed(self) -> None:
        """Make a refresh of the tools due."""
        if not self._refreshed.is_set():
            log.debug(_SKIPPED, self.name)
        if not self._changed.is_set():
            self._changed.set()
            self._refreshed = anyio.Event()

    async def refreshed(self, deadline: float) -> None:
        """Wait until it is up or has failed, and for a refresh that is due.

        That of a remote server always is, once it is up. The deadline, in seconds of
        the event loop, is for the refresh; it has one second at least.
        """
        if self.up and self.config.url:  # it may have no way to announce a change
            self.tools_changed()
        await self.settled.wait()
        with anyio.move_on_after(max(deadline - anyio.current_time(), 1)):
            await self._refreshed.wait()

    async def _listen(self) -> None:
        """Hold a 2026-07-28 server's `subscriptions/listen` stream open.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/subscriptions
        """
        while True:
            with suppress(MCPError, SubscriptionLost):
                async with listen(self.session, tools_list_changed=True) as events:
                    self.tools_changed()  # for what changed before it was open
                    async for _ in events:
                        pass  # each event reaches `_on_message` as well
            await anyio.sleep(RELISTEN_DELAY)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ElicitCompleteNotification) and self.client:
            await self.client.send_notification(message)
        elif isinstance(message, types.ToolListChangedNotification):
            log.info(_RECEIVED, self.name)
            if not self._announces_changes():
                log.warning(_UNASKED, self.name)
            self.tools_changed()

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        log.debug("[%s] %s: %s", self.name, params.level, params.data)
        if self.client is None or _is_modern(self.client):
            return  # which opts in request by request
        levels = get_args(types.LoggingLevel)
        least = asked.params.level if (asked := self.shared.log_level) else "debug"
        if levels.index(params.level) >= levels.index(least):
            message = types.LoggingMessageNotification(params=params)
            await self.client.send_notification(message)

    async def tell(self, news: _News) -> None:
        """Pass on what the client lets its servers know, if this one is of its era."""
        if not self.up or _is_modern(self.session):
            return
        if isinstance(news, types.RootsListChangedNotification):
            await self.session.send_notification(news)
        elif (able := self.session.server_capabilities) and able.logging:
            with suppress(MCPError, ValidationError):
                await self.session.send_request(news, types.EmptyResult, OPEN_TIMEOUT)

    async def call(self, params: JSON, on_progress: ProgressFnT | None) -> JSON:
        """Send `tools/call` with these wire parameters; the wire result as it came.

        Raises `ToolError` if it died or gave no valid answer, `MCPError` for a JSON-RPC
        error of its own, and with `_UNREACHED` if another life may be tried.
        """
        asked = self.shared.log_level  # by an older client
        if asked is not None and _is_modern(self.session):
            level = {types.LOG_LEVEL_META_KEY: asked.params.level}
            params = {**params, "_meta": {**params.get("_meta", {}), **level}}
        # Not the SDK's own `call_tool`: it checks the result, and may list tools first.
        request = _WireRequest(method="tools/call", params=params)
        try:
            result: JSON = await self.session.send_request(
                request, _RAW_RESULT, progress_callback=on_progress
            )
            if result.get("resultType", "input_required") != "input_required":
                # The SDK takes anything with a `resultType` for the other kind.
                types.CallToolResult.model_validate(result, by_name=False)
            return result
        except (MCPError, ValidationError) as error:
            closed = (types.CONNECTION_CLOSED, "Connection closed")  # as the SDK has it
            if isinstance(error, ValidationError) or error.data == _OURS:
                failure = f": {explain(error)}"
            elif (error.code, error.message) == closed and self.gone.is_set():
                once = "the call may have taken effect and was not repeated"
                failure = f" {self.why()}; {once}, the next one starts the server again"
            else:
                raise
        raise ToolError(f"server '{self.name}'{failure}")


def _is_modern(session: ClientSession | ServerSession) -> bool:
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS


def explain(error: BaseException, url: str = "") -> str:
    """One readable line, never empty, for what lies behind an error, with this URL."""
    is_request = isinstance(error, httpx2.TimeoutException)
    limit = HTTP_TIMEOUT if is_request else CONNECT_TIMEOUT
    behind: Any = error
    while isinstance(behind, Exception):  # its cause, or the first of a group
        error, behind = behind, behind.__cause__ or behind.__context__
        if isinstance(error, ExceptionGroup):
            behind = error.exceptions[0]
    text = str(error)
    if isinstance(error, ValidationError):
        errors = error.errors(include_url=False, include_input=False)
        # A union reports all its members: those of another type do not matter.
        others = {e["loc"][:-1] for e in errors if e["type"] == "literal_error"}
        first = next((e for e in errors if e["loc"][:-1] not in others), errors[0])
        field = ".".join(map(str, first["loc"])) or "result"
        text = f"its answer is not valid MCP: {field}: {first['msg']}"
    elif isinstance(error, TimeoutError):
        text = f"no answer within {limit:g} seconds"
    elif isinstance(error, ConnectionError | FileNotFoundError) and error.errno:
        text = os.strerror(error.errno)  # asyncio has a text of its own
        text = f"{error.filename}: {text}" if error.filename else text
    line = " ".join(text.split()) or type(error).__name__
    return line if url in line else f"{url}: {line}"


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 tool`, `2 tools`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


async def _negotiate(session: ClientSession, client: ServerSession | None) -> None:
    """Agree on a protocol era with a server: the client's own, where it has a choice.

    Only in the older one can it ask an older client for anything, and send it logs.
    """
    refused = (MCPError, RuntimeError, ValidationError)
    if client is None or _is_modern(client):
        with suppress(*refused):
            await session.discover()
            return
    try:
        await session.initialize()
    except refused:  # it knows nothing else, or was slow the first time
        await session.discover()  # its error has this one behind it, for `explain`


def _relay(client: ServerSession) -> JSON:
    """What servers may ask of a client, as arguments of their `ClientSession`.

    A server is offered what the client has declared and no more. Where the client's era
    has no such requests, the server gets an error at once.
    """
    offered = client.client_capabilities or types.ClientCapabilities()
    modes = offered.elicitation or types.ElicitationCapability()
    lacking = "url" if modes.url is None else "form" if modes.form is None else None

    async def ask(request: Any, result: Any, context: Any, params: Any = None) -> Any:
        if request is types.ElicitRequest and params.mode == lacking:
            raise MCPError(types.INVALID_PARAMS, f"client has no {lacking} elicitation")
        if params is None and context.meta:
            params = types.RequestParams(_meta=context.meta)
        return await client.send_request(request(params=params), result)

    callbacks: JSON = {"sampling_capabilities": offered.sampling}
    for name, request, result in (
        ("sampling", types.CreateMessageRequest, types.CreateMessageResultWithTools),
        ("elicitation", types.ElicitRequest, types.ElicitResult),
        ("list_roots", types.ListRootsRequest, types.ListRootsResult),
    ):
        if getattr(offered, name.removeprefix("list_")):
            callbacks[f"{name}_callback"] = functools.partial(ask, request, result)
    return callbacks


# === Workbench ========================================================================


_HINTS = {"readOnlyHint": False, "destructiveHint": True}  # of the protocol
_HINTS |= {"idempotentHint": False, "openWorldHint": True}


def _shown(life: Life) -> Iterable[JSON]:
    """What a client sends to a model of a server's tools, and where they come from."""
    for tool in life.tools.values():
        given = tool.annotations.model_dump(by_alias=True) if tool.annotations else {}
        hints = {k: given[k] for k, v in _HINTS.items() if given.get(k) == (not v)}
        schema = {k: v for k, v in tool.input_schema.items() if k != "$schema"}
        yield {
            "name": full_tool_name(life.toolbox, life.server, tool.name),
            "description": tool.description or f"Tool from {life.name}",
            "source_server": life.server,
            "toolbox_name": life.toolbox,
            "inputSchema": schema,
        } | ({"annotations": hints} if hints else {})


@dataclass
class Workbench(Shared):
    """The state of a running workbench; cancelling `owners` closes every toolbox."""

    # By name, those that were opened or used: the current lives of their servers.
    open_toolboxes: dict[str, dict[str, Life]] = field(default_factory=dict)

    def start(self, toolbox: str, server: str) -> Life:
        """The current life of a server, a new one if it has none or that has ended.

        Without any `await`, so that concurrent callers share one attempt.
        """
        lives = self.open_toolboxes.setdefault(toolbox, {})
        if server not in lives or lives[server].gone.is_set():
            lives[server] = Life(toolbox, server, self)
            self.owners.start_soon(lives[server].run)
        return lives[server]

    def configured(self, name: str) -> ToolboxConfig:
        """The configuration of a toolbox; `ToolError` if it has none."""
        if name not in self.config.toolboxes:
            names = ", ".join(self.config.toolboxes) or "none"
            raise ToolError(f"Toolbox '{name}' not found. Available toolboxes: {names}")
        return self.config.toolboxes[name]

    def answer(self, toolbox: str) -> JSON:
        """The result of `open_toolbox` (seed: Open Toolbox Response Format)."""
        config = self.config.toolboxes[toolbox]
        lives = [self.open_toolboxes[toolbox][server] for server in config.servers]
        up = [life for life in lives if life.up]
        starting = [life.server for life in lives if not life.settled.is_set()]
        note = f"Still starting: {', '.join(starting)}. Call open_toolbox again to get "
        told = {life.server: life.session.instructions for life in up}
        answer = {
            "toolbox": toolbox,
            "description": config.description,
            "servers_connected": len(up),
            "servers_failed": {it.server: why for it in lives if (why := it.failure)},
            "servers_connecting": starting,
            "note": f"{note}their tools." if starting else "",
            "instructions": {name: text for name, text in told.items() if text},
            "tools": [tool for life in up for tool in _shown(life)],
        }
        always = ("servers_connected", "tools")
        return {key: item for key, item in answer.items() if item or key in always}

    async def open_toolbox(self, toolbox: str, on_progress: ProgressFnT) -> JSON:
        """Start what is not up of a toolbox's servers; its state and its tools.

        Answers when every server has settled, after `OPEN_TIMEOUT` if one is up by
        then, else when the first one is up, at the latest after `ANSWER_TIMEOUT`.
        `on_progress` gets the number of settled servers, of all servers, and the name
        of the one that settled. Raises `ToolError` if none of them started.
        """
        soon = anyio.current_time() + OPEN_TIMEOUT
        late = anyio.current_time() + ANSWER_TIMEOUT
        servers = self.configured(toolbox).servers
        for server in servers:
            self.start(toolbox, server)
        settled: list[str] = []

        async def settle(life: Life) -> None:
            await life.refreshed(soon)
            if life.up:
                tasks.cancel_scope.deadline = soon
            if life.server not in settled:
                settled.append(life.server)
                await on_progress(len(settled), len(servers), life.server)

        while True:  # another open may start one again that has failed here
            async with anyio.create_task_group() as tasks:
                tasks.cancel_scope.deadline = late
                for life in self.open_toolboxes[toolbox].values():
                    tasks.start_soon(settle, life)
            answer = self.answer(toolbox)
            failed = answer.get("servers_failed", {})
            if len(failed) == len(servers):
                why = "; ".join(f"{server}: {why}" for server, why in failed.items())
                raise ToolError(f"Toolbox '{toolbox}' could not be opened. {why}")
            if answer["servers_connected"] or anyio.current_time() >= late:
                return answer

    def route(self, toolbox: str, name: str) -> tuple[str, str]:
        """The server and the tool of a full name; `ToolError` if it leads nowhere."""
        servers = self.configured(toolbox).servers
        try:
            prefix, server, tool = split_tool_name(name)
        except ValueError:
            form = "the name is not of the form {toolbox}__{server}__{tool}"
            raise ToolError(form + self.suggest(toolbox, name)) from None
        if prefix != toolbox:
            instead = f"pass toolbox_name '{prefix}', or a tool of this one"
            raise ToolError(f"the name is one of toolbox '{prefix}': {instead}")
        if server not in servers:
            raise ToolError(f"it has no server '{server}', only {', '.join(servers)}")
        return server, tool

    async def use_tool(
        self, toolbox: str, name: str, params: JSON, on_progress: ProgressFnT | None
    ) -> JSON:
        """Call a tool by its full name, on its server, started if it is not up.

        `params` are the wire parameters of `tools/call` without the name, the result
        is the server's as it came. Raises `ToolError` if there is no such tool or its
        server failed, `MCPError` for the server's own JSON-RPC error.
        """
        server, tool = self.route(toolbox, name)
        for _ in range(2):  # a life can end at any moment, but a call is sent only once
            life = self.start(toolbox, server)
            if tool not in life.tools:
                with anyio.move_on_after(ANSWER_TIMEOUT):
                    await life.refreshed(anyio.current_time() + OPEN_TIMEOUT)
            if not life.settled.is_set():
                raise ToolError(f"server '{life.name}' is still starting: call again")
            try:
                if life.up and tool in life.tools:
                    return await life.call({"name": tool, **params}, on_progress)
            except MCPError as error:
                if error.data != _UNREACHED:
                    raise
            if life.up:
                unknown = f"server '{life.name}' has no tool '{tool}'"
                raise ToolError(unknown + self.suggest(toolbox, name))
            if not life.listed:  # it has not even started
                break
        raise ToolError(f"server '{life.name}' has not seen the call: {life.why()}")

    def suggest(self, toolbox: str, name: str) -> str:
        """A question after the tools whose full names come close to this one."""
        lives = [it for it in self.open_toolboxes.get(toolbox, {}).values() if it.up]
        names = [tool["name"] for life in lives for tool in _shown(life)]
        close = difflib.get_close_matches(name, names, cutoff=0.5)
        return f". Did you mean {' or '.join(close)}?" if close else ""

    async def tell_servers(self, news: _News) -> None:
        """Pass on what the client lets its servers know: see `Life.tell`."""
        async with anyio.create_task_group() as tasks:
            for lives in self.open_toolboxes.values():
                for life in lives.values():
                    tasks.start_soon(life.tell, news)


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    async with anyio.create_task_group() as owners:
        try:
            yield Workbench(config, owners)
        finally:
            owners.cancel_scope.cancel()


# === MCP server =======================================================================


_Context = ServerRequestContext[Any]
_COMPLETE = {"resultType": "complete"}  # a 2026-07-28 client needs it
Run = Callable[..., Awaitable[JSON | str]]
Registry = dict[str, tuple[types.Tool, Any, Run]]


def tool(registry: Registry, title: str, **more: Any) -> Callable[[Run], Run]:
    """Add a function to a registry as a tool of its name, described by its docstring.

    Its parameters after the context are the tool's arguments: of their types, pydantic
    makes the JSON schema and the model that checks what comes. `more` are further
    fields of the tool. The function returns a wire result or, for short, a text; a
    `ToolError` that it raises becomes a result with `isError`.
    """

    def add(run: Run) -> Run:
        # Between the context and the result.
        _, *arguments, _ = inspect.get_annotations(run, eval_str=True).items()
        strict: JSON = {"__config__": {"strict": True, "extra": "forbid"}}
        model = create_model(run.__name__, **strict, **dict(arguments))
        schema = model.model_json_schema()
        for part in (schema, *schema["properties"].values()):
            for needless in ("title", "additionalProperties"):  # a model reads it all
                part.pop(needless, None)
        about: JSON = {"title": title, "description": run.__doc__, **more}
        declared = types.Tool(name=run.__name__, input_schema=schema, **about)
        registry[run.__name__] = declared, model, run
        return run

    return add


def tool_server(name: str, registry: Registry, **options: Any) -> Server[Any]:
    """A low-level MCP server (`options` are the SDK's); errors become results here."""

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[it[0] for it in registry.values()])

    async def call_tool(context: _Context, params: types.CallToolRequestParams) -> JSON:
        if params.name not in registry:
            text = f"Tool '{params.name}' not found: use {' and '.join(registry)}"
            raise MCPError(types.INVALID_PARAMS, text)
        _, model, run = registry[params.name]
        try:
            arguments = dict(model.model_validate(params.arguments or {}))
            result = await run(context, **arguments)
        except ValidationError as error:
            problems = [f"'{each['loc'][0]}': {each['msg']}" for each in error.errors()]
            why = f"Invalid arguments for tool '{params.name}': {'; '.join(problems)}"
            return {**_text_result(why), "isError": True}
        except ToolError as error:
            return {**_text_result(str(error)), "isError": True}
        return _text_result(result) if isinstance(result, str) else result

    options |= {"on_list_tools": list_tools, "on_call_tool": call_tool}
    return Server(name, version=__version__, **options)


def _text_result(text: str) -> JSON:
    return {"content": [{"type": "text", "text": text}], **_COMPLETE}


def _compact(value: Any) -> str:
    return to_json(value, inf_nan_mode="null").decode()


META_TOOLS: Registry = {}
_HARMLESS = types.ToolAnnotations(destructive_hint=False, idempotent_hint=True)
# Claude Code cuts the result of any other tool at 50,000 characters.
_LARGE = {"anthropic/maxResultSizeChars": 200_000}
_FULL_NAME = "Full name from open_toolbox: {toolbox}__{server}__{tool}"
_FullName = Annotated[str, Field(description=_FULL_NAME)]
_ARGUMENTS: Any = Field({}, description="What the tool's inputSchema asks for")
# Models tend to send an object as a string that holds it: that is taken for it.
_OBJECT = BeforeValidator(lambda it: _decoded("{}" if it in (None, "") else it))
_Arguments = Annotated[JSON, _OBJECT, _ARGUMENTS]
# Errors of a server that are no use to a model.
_FOR_CLIENT = (types.URL_ELICITATION_REQUIRED, types.MISSING_REQUIRED_CLIENT_CAPABILITY)


@tool(META_TOOLS, "Open Toolbox", annotations=_HARMLESS, _meta=_LARGE)
async def open_toolbox(context: _Context, toolbox_name: str) -> str:
    """Start a toolbox's servers and get their tools with input schemas."""
    workbench: Workbench = context.lifespan_context
    workbench.client = context.session
    on_progress = context.session.report_progress
    return _compact(await workbench.open_toolbox(toolbox_name, on_progress))


@tool(META_TOOLS, "Use Tool", annotations=types.ToolAnnotations(destructive_hint=True))
async def use_tool(
    context: _Context, toolbox_name: str, tool_name: _FullName, arguments: _Arguments
) -> JSON:
    """Call a tool of a toolbox and get its own result."""
    workbench: Workbench = context.lifespan_context
    workbench.client = session = context.session
    wire = context.params or {}
    meta = wire.get("_meta") or {}
    of_this_hop = re.compile(r"progressToken$|io\.modelcontextprotocol/")
    passed_on = {k: v for k, v in meta.items() if not of_this_hop.match(k)}
    retry = {k: wire[k] for k in ("inputResponses", "requestState") if k in wire}
    params = {"arguments": arguments, "_meta": passed_on, **retry}
    on_progress = session.report_progress if "progressToken" in meta else None
    try:
        result = await workbench.use_tool(toolbox_name, tool_name, params, on_progress)
        return _deliverable(result, session)
    except MCPError as error:
        if retry or error.code in _FOR_CLIENT:
            raise
        failure = f"the server answered with error {error.code}: {explain(error)}"
    except ToolError as error:
        failure = str(error)
    place = f"tool '{tool_name}' in toolbox '{toolbox_name}'"
    raise ToolError(workbench.config.mask(f"Error executing {place}: {failure}"))


def _deliverable(result: JSON, session: ServerSession) -> JSON:
    """A downstream result in what the client's protocol era can carry."""
    if _is_modern(session):
        return {**_COMPLETE, **result}
    if result.get("resultType") == "input_required":
        raise ToolError("it asks for input as only 2026-07-28 clients understand")
    if not isinstance(result.get("structuredContent", {}), dict):
        # Older eras know objects alone, and the SDK would refuse the whole result.
        return {k: v for k, v in result.items() if k != "structuredContent"}
    return result


_DEMO_NOTE = "This is a demo. Give your own file as argument or in WORKBENCH_CONFIG."
_USAGE = "Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."


def instructions(config: WorkbenchConfig) -> str:
    """What a client is told about the toolboxes on connecting, in plain text."""
    if not config.toolboxes:
        return f"No toolboxes configured. Add them to 'toolboxes' in {config.source}."
    lines = ["Available Toolboxes:", ""]
    for name, toolbox in config.toolboxes.items():
        lines += [f"{name} ({counted(len(toolbox.servers), 'server')})"]
        lines += [f"  Description: {toolbox.description}", ""]
    return "\n".join([*lines, _USAGE] + ["", _DEMO_NOTE] * (not config.source))


def meta_tools(config: WorkbenchConfig) -> Registry:
    """The two meta-tools, with the names that a toolbox may have."""
    tools = {n: (it[0].model_copy(deep=True), *it[1:]) for n, it in META_TOOLS.items()}
    if names := list(config.toolboxes):  # many clients do not show the instructions
        properties = tools["open_toolbox"][0].input_schema["properties"]
        properties["toolbox_name"]["enum"] = names
    return tools


def create_server(config: WorkbenchConfig) -> Server[Any]:
    """The workbench as a low-level MCP server, to be run over any transport."""

    async def set_level(context: _Context, params: Any) -> types.EmptyResult:
        workbench: Workbench = context.lifespan_context
        workbench.log_level = news = types.SetLevelRequest(params=params)
        await workbench.tell_servers(news)
        return types.EmptyResult()

    async def roots_changed(context: _Context, _: object) -> None:
        news = types.RootsListChangedNotification()
        await context.lifespan_context.tell_servers(news)

    server = tool_server(
        "mcp-workbench",
        meta_tools(config),
        instructions=instructions(config),
        lifespan=lambda _: running_workbench(config),
    )
    # Not as arguments: those say that logging and roots are deprecated in 2026-07-28.
    level, roots = "logging/setLevel", "notifications/roots/list_changed"
    server.add_request_handler(level, types.SetLevelRequestParams, set_level)
    server.add_notification_handler(roots, types.NotificationParams, roots_changed)
    return server


# === Built-in toolbox =================================================================


TOOLBOX_TOOLS: Registry = {}
_Text = Annotated[str, Field(description="The text to echo back.")]
_IANA = "An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC."
_Timezone = Annotated[str, Field("UTC", description=_IANA)]


@tool(TOOLBOX_TOOLS, "Echo Tool")
async def echo(_: _Context, text: _Text) -> str:
    """A simple tool that returns the text it was given."""
    return text


@tool(TOOLBOX_TOOLS, "Time Tool")
async def time(_: _Context, timezone: _Timezone) -> str:
    """Returns the current server time, optionally in a specific timezone."""
    zone: datetime.tzinfo = datetime.UTC  # which needs no zone data, unlike any other
    if timezone != "UTC":
        try:
            zone = zoneinfo.ZoneInfo(timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            why = f"Unknown timezone {timezone!r}: expected an IANA name (Europe/Paris)"
            raise ToolError(why) from None
    return datetime.datetime.now(zone).isoformat(timespec="seconds")


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server."""
    return tool_server("mcp-toolbox", TOOLBOX_TOOLS)


def toolbox_app(address: str) -> Any:
    """The built-in toolbox, bound to `address`, as an ASGI application (seed 001).

    `/mcp` speaks Streamable HTTP; a GET without a session opens the older SSE
    transport, whose messages are posted to `/mcp/messages?sessionId=...`.
    """
    server = create_toolbox_server()
    http = server.streamable_http_app(host="")  # with no host, it leaves checks to us
    sse = SseServerTransport("/mcp/messages")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # the lifespan of the Streamable HTTP sessions
            return await http(scope, receive, send)
        request = Request(scope, receive)
        path, method = request.url.path, request.method
        if (refusal := await _refusal(request, address)) is not None:
            await refusal(scope, receive, send)
        elif path == "/mcp/messages":  # whose query the SDK spells in its own way
            query = scope["query_string"].replace(b"sessionId=", b"session_id=")
            scope = {**scope, "query_string": query}
            await sse.handle_post_message(scope, receive, _as_in_the_seed(send))
        elif (path, method) == ("/mcp", "GET") and not request.headers.get(_SESSION_ID):
            stream = sse.connect_sse(scope, receive, _as_in_the_seed(send))
            async with stream as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            await http(scope, receive, send)

    return app


async def _refusal(request: Request, address: str) -> Any:
    """Check Host and Origin (DNS rebinding); the response if they are wrong."""
    hosts = [request.headers.get("host", "")]
    if ipaddress.ip_address(address).is_loopback:
        names = {"127.0.0.1", "localhost", "[::1]", address}
        hosts = [host for name in names for host in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    allowed: JSON = {"allowed_hosts": hosts, "allowed_origins": origins}
    settings = security.TransportSecuritySettings(**allowed)
    checks = security.TransportSecurityMiddleware(settings)
    return await checks.validate_request(request)


def _as_in_the_seed(send: Any) -> Any:
    """Answer as the seed says where the SDK has a name and a status of its own."""

    async def adapted(message: Any) -> None:
        if message.get("status") == 404:  # no such session
            message = {**message, "status": 400}
        body = message.get("body", b"")
        if body.startswith(b"event: endpoint"):
            message = {**message, "body": body.replace(b"session_id=", b"sessionId=")}
        await send(message)

    return adapted


# === Running ==========================================================================


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over stdin and stdout until one of them is closed.

    For pipes not with the SDK's streams: they cost three thread switches a message.
    """
    options = server.create_initialization_options()
    loop = asyncio.get_running_loop()
    exit_soon = functools.partial(loop.call_later, EXIT_TIMEOUT, os._exit, 0)
    modes = [os.fstat(fd).st_mode for fd in (0, 1)]
    are_pipes = all(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes)
    # What comes in on a socket that is both would be taken for the end of stdout.
    if not are_pipes or os.path.sameopenfile(0, 1) or sys.platform == "win32":
        async with stdio_server() as streams:
            try:
                await server.run(streams[0], streams[1], options)
            except anyio.get_cancelled_exc_class():
                os._exit(0)  # the SDK's reader thread would block until stdin ends
            exit_soon()  # where nobody reads the last answer
        os._exit(0)  # so would one that looks up a name, until it has found it
    reader = asyncio.StreamReader(_CHUNK)

    class Stdout(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            exit_soon()
            scope.cancel()

    async def messages() -> _Messages:
        async for line in _lines(reader.read):
            if (message := _read_message(line)) is not None:
                yield SessionMessage(message)
        exit_soon()  # whatever may still hang then

    async def send(message: SessionMessage) -> None:
        # Without waiting: a client that does not read must not hold up our end.
        stdout.write(_dump(message.message) + b"\n")

    stdin = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: stdin, os.fdopen(0, "rb"))
    stdout, _ = await loop.connect_write_pipe(Stdout, os.fdopen(1, "wb"))
    wire: Any = _Wire(messages(), send)
    with anyio.CancelScope() as scope:
        await server.run(wire, wire, options)
        stdout.close()  # after what is still to be written
        await anyio.sleep_forever()


def serve_http(address: str) -> int:
    """Serve the built-in toolbox on `[HOST:]PORT` until a signal; the exit status."""
    import uvicorn  # slow to import, and only needed here

    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except (ValueError, OverflowError, OSError) as error:
        log.error("Cannot listen on %s (expected [HOST:]PORT): %s", address, error)
        return 1
    bound, number = listener.getsockname()[:2]  # `host` may be any name for it
    url = httpx2.URL(scheme="http", host=bound, port=number, path="/mcp")
    log.info("Toolbox at %s", url)
    if not ipaddress.ip_address(bound).is_loopback:
        log.warning("No authentication: bind to %s in a trusted environment only", host)
    # Without a timeout it would wait for the open streams.
    options: JSON = {"log_config": None, "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(toolbox_app(bound), **options))
    # Streams that are open at the end are not errors, as uvicorn has it.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    return run(0, server.serve, [listener])


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # nobody reads it any more
        print(text, flush=True)


def _amount(*parts: Any) -> str:
    size = sum(len(_compact(part).encode()) for part in parts)
    return f"{size:,} bytes (about {size // 4:,} tokens)"


# How a tool is dumped to what clients send to a model.
_SENT: JSON = {"include": {"name", "description", "input_schema"}, "by_alias": True}


async def check(config: WorkbenchConfig) -> int:
    """Start every server once, print a line for each as it settles, then sizes.

    The result is an exit status: 1 if a server failed.
    """
    states = {True: "ok    ", False: "FAILED"}
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        states = {True: "\033[32mok    \033[0m", False: "\033[31mFAILED\033[0m"}

    async def report(life: Life) -> None:
        started = anyio.current_time()
        await life.settled.wait()
        took = anyio.current_time() - started
        about = life.failure
        if about is None:
            sizes = _amount([*_shown(life)], life.session.instructions or "")
            about = f"{counted(len(life.tools), 'tool'):9}  {sizes}"
        _say(f"{life.name:{width}}  {states[not life.failure]}  {took:5.1f} s  {about}")

    async with running_workbench(config) as workbench:
        boxes = config.toolboxes.items()
        lives = [workbench.start(name, s) for name, box in boxes for s in box.servers]
        width = max((len(life.name) for life in lives), default=0)
        async with anyio.create_task_group() as tasks:
            for life in lives:
                tasks.start_soon(report, life)
        has_failed = any(life.failure for life in lives)
        tools = [t.model_dump(**_SENT) for life in lives for t in life.listed.values()]
        answers = {name: _compact(workbench.answer(name)) for name in config.toolboxes}
    meta = [tool.model_dump(**_SENT) for tool, *_ in meta_tools(config).values()]
    own = _amount(meta, instructions(config))
    native = f"{_amount(tools)} with {counted(len(tools), 'tool')} listed natively"
    _say(f"Model context: {own} with the workbench, {native}")
    for name, answer in answers.items():
        if len(answer) > LARGE_ANSWER:
            size = f"{len(answer):,} characters, clients cut more than {LARGE_ANSWER:,}"
            _say(f"Toolbox '{name}' opens with {size}: split it, or use toolFilters")
    return int(has_failed)


async def call(config: WorkbenchConfig, name: str, arguments: str = "{}") -> int:
    """Call one tool by its full name and print its result; the exit status.

    Text is printed as it is, a result with other content as JSON.
    """
    given = _decoded(arguments)
    async with running_workbench(config) as workbench:
        try:
            if not isinstance(given, dict):
                raise ToolError("expected its arguments as a JSON object")
            toolbox = name.split("__")[0]
            result = await workbench.use_tool(toolbox, name, {"arguments": given}, None)
        except (ToolError, MCPError) as error:
            print(config.mask(f"{name}: {error}"), file=sys.stderr)
            return 1
    content = result.get("content")
    if content and all(block["type"] == "text" for block in content):
        _say("\n".join(block["text"] for block in content))
    else:
        _say(json.dumps(result, ensure_ascii=False, indent=2))
    return int(bool(result.get("isError")))


def run(interrupted: int, main: Callable[..., Awaitable[Any]], *given: Any) -> int:
    """Run `main` until it returns a status, or a signal cancels it: `interrupted` then.

    The handlers stay until the process ends: a second signal must not stop the cleanup.
    """

    async def until_signalled() -> int:
        loop = asyncio.get_running_loop()
        soon = loop.call_soon_threadsafe

        def on_signal(*_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: we are done already
                # For what nothing else can stop: a thread that looks up a name, say.
                soon(loop.call_later, EXIT_TIMEOUT, os._exit, interrupted)
                soon(scope.cancel)

        with anyio.CancelScope() as scope:
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), on_signal)
            return await main(*given) or 0
        return interrupted

    return anyio.run(until_signalled)


def log_to_stderr(mask: Callable[[str], str], level: int) -> None:
    """Log masked lines to stderr from a level on, but drop what it has no room for.

    A client that does not read our stderr would block whoever writes to it.
    """
    is_windows = sys.platform == "win32"  # where no pipe can be asked

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if level > logging.DEBUG:
                record.exc_info = record.exc_text = None
            line = mask(self.format(record)).encode(errors="replace") + b"\n"
            with suppress(OSError):  # nobody reads it any more
                while line and (is_windows or select.select((), (2,), (), 0)[1]):
                    line = line[os.write(2, line[:512]) :]  # PIPE_BUF: it never blocks

    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(format=form, handlers=[Handler()])
    log.setLevel(level)


def parse_command_line(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line; exits with status 2 where they do not fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, mode = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("config", nargs="?", metavar="CONFIG", help="path of the configuration file")
    mode("--check", action="store_true", help="start every server and report on each")
    mode("--toolbox", action="store_true", help="serve the built-in echo/time toolbox")
    mode("--call", nargs="+", metavar=("NAME", "JSON"), help="call one tool")
    add("--http", metavar="[HOST:]PORT", help="serve the toolbox over HTTP")
    add("--verbose", action="store_true", help="log debug lines")
    add("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    given = options.call or []
    if len(given) > 2 or any(map(os.path.exists, given)):
        parser.error("--call takes NAME and one JSON object; CONFIG goes before --call")
    if options.http is not None and not options.toolbox:
        parser.error("--http goes with --toolbox")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parse_command_line(arguments)
    try:
        config = None if options.toolbox else find_config(options.config, os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    level = logging.WARNING if options.check else logging.INFO  # its table has the rest
    level = logging.DEBUG if options.verbose else level
    log_to_stderr(config.mask if config else str, level)
    if config is None:
        if options.http is not None:
            return serve_http(options.http)
        return run(0, serve_stdio, create_toolbox_server())
    for warning in config.warnings:
        log.warning("%s", warning)
    if options.check:
        return run(1, check, config)
    if options.call:
        return run(1, call, config, *options.call)
    names = ", ".join(config.toolboxes) or "no toolboxes"
    origin = f" from {config.source}" if config.source else f". {_DEMO_NOTE}"
    log.info("Serving %s%s", names, origin)
    return run(0, serve_stdio, create_server(config))


if __name__ == "__main__":
    cast(Any, sys.stdout).reconfigure(errors="replace")
    os._exit(main())  # the interpreter's own end takes longer than all of ours
