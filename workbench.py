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
    python workbench.py --toolbox [--http PORT]      serve the built-in echo/time toolbox

Protocol: https://modelcontextprotocol.io/specification (up to 2026-07-28)
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import difflib
import fnmatch
import functools
import io
import ipaddress
import json
import logging
import logging.handlers
import math
import os
import queue
import re
import select
import signal
import socket
import stat
import sys
import threading
import zoneinfo
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar, cast, get_args
from urllib.parse import urlencode, urlsplit

import anyio
import anyio.abc
import httpx2
from anyio.streams.memory import MemoryObjectSendStream
from mcp import types
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.session import ServerSession
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import (
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

__version__ = "0.10.0"

# All in seconds.
OPEN_TIMEOUT = 5.0  # after it `open_toolbox` answers with the servers that are up
CONNECT_TIMEOUT = 55.0  # to start a server; TypeScript clients give up after 60
EXIT_GRACE = 1.5  # between closing a server's stdin, SIGTERM and SIGKILL
OUTPUT_GRACE = 0.25  # for the rest of an output after the first sign of its end
STDOUT_GRACE = 0.5  # for our last answers to be read, after the end of stdin
LOG_GRACE = 0.5  # for our last log lines to be read, before the process ends
NOTIFY_TIMEOUT = 2.0  # for a remote server to take a notification
RELISTEN_DELAY = 1.0  # between attempts to open a lost `subscriptions/listen` stream

MAX_PAGES = 250  # of one `tools/list`, before its server is taken to be looping

log = logging.getLogger("workbench")
JSON = dict[str, Any]  # an object, as it is on the wire


# === Configuration ====================================================================


class ConfigError(Exception):
    """A configuration that cannot be used.

    `problems` holds one line for each thing that is wrong, starting with its place.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


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

    def allows(self, tool: str) -> bool:
        """Whether `toolFilters` let the downstream tool of this name through."""
        return any(fnmatch.fnmatchcase(tool, pattern) for pattern in self.tool_filters)

    @property
    def shown_url(self) -> str:
        """The URL as it may be shown: without its query and user information."""
        parts = urlsplit(self.url)
        return parts._replace(
            netloc=parts.netloc.rpartition("@")[2], query="", fragment=""
        ).geturl()


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
    secrets: tuple[str, ...] = ()  # texts that no log line and no reason may show
    warnings: tuple[str, ...] = ()  # lines about what was ignored
    source: str | None = None  # its file
    is_demo: bool = False

    def mask(self, text: str) -> str:
        """`text` with `***` in place of every secret."""
        return functools.reduce(lambda t, s: t.replace(s, "***"), self.secrets, text)


_REFERENCE = re.compile(r"\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand_env(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${VAR}` and `${VAR:-default}` by their values, in one pass.

    The first `}` ends a reference, a variable that is set but empty wins over the
    default, and values are inserted literally. What does not look like a variable
    (`$VAR`, `${a}`) stays as it is.

    Raises:
        ConfigError: A variable without default is not set, or a `${` is not closed.
    """
    problems: dict[str, None] = {}

    def value(reference: re.Match[str]) -> str:
        variable = _VARIABLE.fullmatch(reference[1])
        if not reference[2]:
            problems["expected a '}' after '${', found the end of the string"] = None
        elif variable is not None:
            name, default = variable.groups()
            if name in environ or default is not None:
                return environ.get(name, default or "")
            hint = f"set it, or write ${{{name}:-default}}"
            problems[f"environment variable {name} is not set: {hint}"] = None
        return reference[0]

    expanded = _REFERENCE.sub(value, text)
    if problems:
        raise ConfigError(*problems)
    return expanded


class _Object(dict[str, Any]):
    """A JSON object that remembers the keys that stand in it twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        count = Counter(key for key, _ in pairs)
        self.duplicates = [key for key in count if count[key] > 1]


_NOTHING = object()
_JSON_TYPES: dict[type, str] = {
    dict: "object",
    list: "list",
    str: "string",
    bool: "boolean",
    type(None): "null",
    object: "nothing",
}
_TRANSPORTS = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_HEADER = re.compile("[!-~]([\t -~]*[!-~])?")
_T = TypeVar("_T")


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "number")


def _join(place: str, key: str) -> str:
    plain = key.isprintable() and re.fullmatch(r"[^\s.\[\]\"]+", key)
    shown = key if plain else json.dumps(key)
    return f"{place}.{shown}" if place else shown


class _ConfigParser:
    """Reads a configuration value by value and collects every problem by its place.

    The first problem of a place counts: what follows from it is not reported as well.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: dict[str, tuple[str, ...]] = {}
        self.warnings: list[str] = []
        self.variables: set[str] = set()

    def problem(self, place: str, expected: str, found: str) -> None:
        text = f"expected {expected}, found {found}"
        self.problems.setdefault(place or "configuration", (text,))

    def expand(self, value: Any, place: str) -> Any:
        """`value` with the variables expanded in every string, but under `_` keys."""
        if isinstance(value, str):
            return self.expand_text(value, place)
        if isinstance(value, list):
            return [self.expand(v, f"{place}[{i}]") for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        for key in value.duplicates if isinstance(value, _Object) else ():
            self.problem(_join(place, key), "this key once", "it more than once")
        return {
            key: item if key.startswith("_") else self.expand(item, _join(place, key))
            for key, item in value.items()
        }

    def expand_text(self, text: str, place: str) -> str:
        bodies = (_VARIABLE.fullmatch(body) for body, end in _REFERENCE.findall(text))
        self.variables |= {body[1] for body in bodies if body is not None}
        try:
            text = expand_env(text, self.environ)
            text.encode()
        except ConfigError as error:
            self.problems[place or "configuration"] = tuple(error.problems)
        except UnicodeEncodeError:
            self.problem(place, "Unicode text", "half a surrogate pair")
        return text

    def typed(self, value: Any, kind: type[_T], place: str) -> _T:
        """`value` if it is of this JSON type, else a problem and an empty value."""
        if isinstance(value, kind):
            return value
        article = "an" if kind is dict else "a"
        self.problem(place, f"{article} {_JSON_TYPES[kind]}", _json_type(value))
        return kind()

    def entries(self, value: Any, place: str) -> dict[str, Any]:
        """The entries of an object, without the comments."""
        table = self.typed(value, dict, place)
        return {key: item for key, item in table.items() if not key.startswith("_")}

    def named(self, value: Any, place: str) -> dict[str, Any]:
        """The entries of an object whose keys are names of toolboxes or servers."""
        entries = self.entries(value, place)
        for name in entries:
            if "__" in name or name[-1:] in ("", "_") or not name.isprintable():
                expected = "a printable name without '__' that does not end in '_'"
                self.problem(_join(place, name), expected, json.dumps(name))
        return entries

    def warn_unknown(self, entry: Mapping[str, Any], place: str, *known: str) -> None:
        about = f"unknown key, ignored (known: {', '.join(known)})"
        unknown = [_join(place, key) for key in entry if key not in known]
        self.warnings += [f"{at}: {about}" for at in unknown]

    def text(self, value: Any, place: str) -> str:
        text = self.typed(value, str, place)
        if not text.strip():
            self.problem(place, "a non-empty string", "an empty string")
        return text

    def texts(self, value: Any, place: str) -> tuple[str, ...]:
        items = enumerate(self.typed(value, list, place))
        return tuple(self.typed(item, str, f"{place}[{i}]") for i, item in items)

    def text_map(self, value: Any, place: str) -> dict[str, str]:
        items = self.entries(value, place).items()
        return {key: self.typed(item, str, _join(place, key)) for key, item in items}

    def headers(self, value: Any, place: str) -> dict[str, str]:
        headers = self.text_map(value, place)
        for name, text in headers.items():
            if not (_HEADER.fullmatch(name) and _HEADER.fullmatch(text or "-")):
                expected = "printable ASCII without space around it"
                self.problem(_join(place, name), expected, "another string")
        return headers

    def filters(self, value: Any, place: str) -> tuple[str, ...]:
        return ("*",) if value == "*" else self.texts(value, place)

    def url(self, value: Any, place: str) -> str:
        url = self.text(value, place)
        try:
            parts = urlsplit(url)
            valid = (
                parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            )
        except ValueError:  # its address or port is malformed
            valid = False
        if not valid:
            self.problem(place, "an http:// or https:// URL", "another string")
        return url

    def transport(self, entry: Mapping[str, Any], place: str) -> str:
        """What `command` or `url`, and `transport` or `type`, say together."""
        local = "command" in entry
        if local == ("url" in entry):
            found = "both" if local else "neither"
            self.problem(place, "either 'command' or 'url'", found)
        transport = "stdio" if local else "http"
        declared = set()
        for key in [key for key in ("transport", "type") if key in entry]:
            at, expected = f"{place}.{key}", "stdio" if local else "http or sse"
            transport = _TRANSPORTS.get(self.typed(entry[key], str, at), "")
            declared.add(transport)
            if not transport or (transport == "stdio") != local:
                self.problem(at, expected, "another string")
        if len(declared) > 1:
            self.problem(f"{place}.type", "what 'transport' says", "something else")
        return transport

    def server(self, value: Any, place: str) -> ServerConfig | None:
        """One entry of `mcpServers`; None where it is disabled."""
        entry = self.entries(value, place)
        if self.typed(entry.get("disabled", False), bool, f"{place}.disabled"):
            inside = f"{place}."  # its variables need not be set
            found = self.problems.items()
            self.problems = {at: p for at, p in found if not at.startswith(inside)}
            return None
        transport = self.transport(entry, place)
        readers: dict[str, Callable[[Any, str], Any]] = {"toolFilters": self.filters}
        if transport == "stdio":
            readers |= {"command": self.text, "args": self.texts}
            readers |= {"env": self.text_map, "cwd": self.text}
        else:
            readers |= {"url": self.url, "headers": self.headers}
        self.warn_unknown(entry, place, *readers, "transport", "type", "disabled")
        values = {
            key.replace("toolFilters", "tool_filters"): read(
                entry[key], f"{place}.{key}"
            )
            for key, read in readers.items()
            if key in entry
        }
        return ServerConfig(transport, **values)

    def toolbox(self, value: Any, place: str) -> ToolboxConfig:
        entry = self.entries(value, place)
        if not isinstance(value, dict):
            return ToolboxConfig("", {})
        self.warn_unknown(entry, place, "description", "mcpServers")
        at = f"{place}.mcpServers"
        described = self.text(
            entry.get("description", _NOTHING), f"{place}.description"
        )
        named = self.named(entry.get("mcpServers", _NOTHING), at)
        servers = {name: self.server(v, _join(at, name)) for name, v in named.items()}
        enabled = {name: s for name, s in servers.items() if s is not None}
        if not enabled:
            self.problem(at, "at least one server that is not disabled", "none")
        return ToolboxConfig(described, enabled)

    def toolboxes(self, data: Any) -> dict[str, ToolboxConfig]:
        entry = self.entries(data, "")
        if not isinstance(data, dict):
            return {}
        self.warn_unknown(entry, "", "toolboxes", "toolMode")
        if entry.get("toolMode") == "proxy":
            self.warnings.append("toolMode: 'proxy' is the only mode, ignored")
        elif entry.get("toolMode", "dynamic") != "dynamic":
            found = _json_type(entry["toolMode"])
            self.problem("toolMode", "'proxy' or no such key", found)
        named = self.named(entry.get("toolboxes", _NOTHING), "toolboxes")
        return {
            name: self.toolbox(v, _join("toolboxes", name)) for name, v in named.items()
        }


_DYNAMIC_MODE = """\
Configuration field 'toolMode' set to 'dynamic' is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


def _shown_forms(secret: str) -> set[str]:
    """The forms in which a secret may stand in a line of text."""
    escaped = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
    return {secret, secret.strip(), " ".join(secret.split()), *escaped}


def parse_config(
    data: Any, environ: Mapping[str, str], source: str | None = None
) -> WorkbenchConfig:
    """Check a decoded configuration and expand its variables from `environ`.

    Raises:
        ConfigError: With all problems of the configuration at once.
    """
    parser = _ConfigParser(environ)
    try:
        data = parser.expand(data, "")
    except RecursionError:
        raise ConfigError("configuration: expected less nesting, found more") from None
    toolboxes = parser.toolboxes(data)
    problems = [
        f"{at}: {text}" for at, texts in parser.problems.items() for text in texts
    ]
    if isinstance(data, dict) and data.get("toolMode") == "dynamic":
        problems += _DYNAMIC_MODE.splitlines()
    if problems:
        raise ConfigError(*problems)
    values = [environ[name] for name in parser.variables & environ.keys()]
    lines = {line for v in values if not os.path.exists(v) for line in v.splitlines()}
    shown = {form for line in lines for form in _shown_forms(line)}
    servers = [s for toolbox in toolboxes.values() for s in toolbox.servers.values()]
    shown |= {urlsplit(server.url).query for server in servers}
    secrets = [text for text in shown if len(text) >= 8]
    return WorkbenchConfig(
        toolboxes,
        frozenset(parser.variables),
        tuple(sorted(secrets, key=len, reverse=True)),
        tuple(parser.warnings),
        source,
    )


def load_config(path: str, environ: Mapping[str, str] = os.environ) -> WorkbenchConfig:
    """Read the configuration file at `path`.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or `parse_config` objects.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        data = json.loads(text, object_pairs_hook=_Object)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        at = f"{path}: line {error.lineno} column {error.colno}"
        raise ConfigError(f"{at}: expected JSON, found: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected JSON in UTF-8, found: {error}") from None
    return parse_config(data, environ, path)


def demo_config() -> WorkbenchConfig:
    """The configuration without any file: this file's own echo/time toolbox."""
    command = (sys.executable, (os.path.abspath(__file__), "--toolbox"))
    toolbox = ToolboxConfig(
        "Echo and time", {"toolbox": ServerConfig("stdio", *command)}
    )
    return WorkbenchConfig({"demo": toolbox}, is_demo=True)


def find_config(argument: str | None, environ: Mapping[str, str]) -> WorkbenchConfig:
    """The configuration to serve: argument, WORKBENCH_CONFIG, ./workbench-config.json.

    Raises:
        ConfigError: See `load_config`; a path that was given has to be readable.
    """
    if argument is not None or environ.get("WORKBENCH_CONFIG"):
        given = environ["WORKBENCH_CONFIG"] if argument is None else argument
        return load_config(given, environ)
    if os.path.exists("workbench-config.json"):
        return load_config("workbench-config.json", environ)
    return demo_config()


# === Tool names =======================================================================


def full_tool_name(toolbox: str, server: str, tool: str) -> str:
    """`{toolbox}__{server}__{tool}`."""
    return f"{toolbox}__{server}__{tool}"


def split_tool_name(name: str) -> tuple[str, str, str]:
    """Toolbox, server and tool of a full name; the tool may contain `__` itself.

    Raises:
        ValueError: `name` is not of the form `{toolbox}__{server}__{tool}`.
    """
    toolbox, server, tool = name.split("__", 2)
    if not (toolbox and server and tool):
        raise ValueError(f"empty part in {name!r}")
    return toolbox, server, tool


# === Connections ======================================================================


class ToolError(Exception):
    """What went wrong, in one sentence for the model: a result with `isError`."""


_WireRequest = types.Request[JSON, str]
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)
_Inbox = MemoryObjectSendStream[SessionMessage | Exception]
_SESSION_ID = "mcp-session-id"
_CLOSED = "Connection closed"  # what the SDK says of a call whose connection ended
# The `data` of JSON-RPC errors that a transport of ours made up, in place of the server.
_OWN_ERROR = "workbench: what is wrong with the answer"
_UNREACHED = "workbench: the server is gone and has not seen this request"


class _Link:
    """One life of a server: from one start to the end of its connection.

    A new life gets a new link, so that one that is still winding down cannot touch
    what belongs to its successor.
    """

    def __init__(self, client: ServerSession | None) -> None:
        self.client = client  # whose request started it: offered what that one can do
        self.session: ClientSession | None = None  # set once its tools are known
        self.settled = anyio.Event()  # connected or failed
        self.gone = anyio.Event()  # it is ending, nothing more reaches it
        self.hangup = anyio.Event()  # it has ended, and all that it said was read
        self.changed = anyio.Event()  # its tools did, since the last listing began
        self.fresh = anyio.Event()  # no refresh of its tools is due or running
        self.stderr: deque[str] = deque(maxlen=10)  # its last lines
        self.end = ""  # how it ended, where that was not our doing
        self.reason = ""  # why it did not connect

    @property
    def up(self) -> bool:
        return self.session is not None and not self.gone.is_set()

    def tools_changed(self) -> bool:
        """Make a refresh of the tools due; False if one is due or running already."""
        self.changed.set()
        if self.fresh.is_set():
            self.fresh = anyio.Event()
            return True
        return False

    def why(self, cause: str) -> str:
        """`cause`, with the last lines that the server wrote to stderr."""
        lines = " | ".join(self.stderr)
        return f"{cause}; its last stderr lines: {lines}" if lines else cause


class ServerConnection:
    """One downstream server: its configuration, current tools, and current link.

    `name` is `toolbox/server`. `owners` is the task group that runs the tasks which
    hold its links; `environment` is the one of its process.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        owners: anyio.abc.TaskGroup,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.config = config
        self.tools: list[JSON] = []
        self.connect_seconds = 0.0
        self.log_level: types.LoggingLevel | None = None
        self._owners = owners
        self._environment = environment
        self._link = _Link(None)
        self._link.gone.set()

    @property
    def up(self) -> bool:
        """Connected, with its tools listed."""
        return self._link.up

    @property
    def failure(self) -> str | None:
        """Why the server is not up; None while it is up or starting."""
        if self._link.up or not self._link.settled.is_set():
            return None
        return self._link.reason or self._link.why(self._link.end or "hung up")

    @property
    def instructions(self) -> str | None:
        """What the server tells its clients about itself."""
        session = self._link.session
        return session.instructions if session is not None else None

    def has_tool(self, name: str) -> bool:
        """Whether the server's current list has a tool of this downstream name."""
        return any(tool["name"] == name for tool in self.tools)

    def start(self, client: ServerSession | None) -> None:
        """Start the server unless it is up or starting.

        It has no `await`, so any number of concurrent callers share one attempt.
        """
        if self._link.gone.is_set():
            self._link = _Link(client)
            self._owners.start_soon(self._own, self._link)

    async def refreshed(self, client: ServerSession | None) -> None:
        """Wait for a refresh of the tool list that is due, at most `OPEN_TIMEOUT`.

        A server that was up and died meanwhile is started again.
        """
        if self._link.session is not None:
            with anyio.move_on_after(OPEN_TIMEOUT):
                if self._link.up:
                    await self._link.fresh.wait()
                await self.settled(client)

    async def settled(self, client: ServerSession | None) -> _Link:
        """Start the server if need be and wait until it is up or has failed.

        One that died while this was looking is started once more.
        """
        for _ in range(2):
            self.start(client)
            link = self._link
            if not link.settled.is_set():  # even waiting for nothing takes a while
                await link.settled.wait()
            if link.up or link.session is None:
                break
        return link

    async def ensure_up(self, client: ServerSession | None) -> _Link:
        """Start the server if it is not up, and wait for it.

        Raises:
            ToolError: It did not start, and why.
        """
        link = await self.settled(client)
        if link.session is None:
            raise ToolError(f"server '{self.name}' failed to start: {link.reason}")
        return link

    async def call(
        self,
        client: ServerSession | None,
        params: JSON,
        on_progress: ProgressFnT | None,
    ) -> JSON:
        """Send `tools/call` with these wire parameters; the wire result as it came.

        Raises:
            ToolError: The server failed to start or died, or its answer is not valid.
            MCPError: The server's own JSON-RPC error.
        """
        was_up = self.up
        link = await self.ensure_up(client)
        session = cast(ClientSession, link.session)
        if _is_modern(session) and self.log_level is not None:  # of an older client
            opted_in = {types.LOG_LEVEL_META_KEY: self.log_level}
            params = {**params, "_meta": {**params.get("_meta", {}), **opted_in}}
        # Not the SDK's own `call_tool`: it checks the result, and may list tools first.
        request = _WireRequest(method="tools/call", params=params)
        try:
            result: JSON = await session.send_request(
                request, _RAW_RESULT, progress_callback=on_progress
            )
            if result.get("resultType", "input_required") != "input_required":
                # The SDK takes anything with a `resultType` for the other kind of result.
                types.CallToolResult.model_validate(result, by_name=False)
            return result
        except ValidationError as error:
            text = f"server '{self.name}' answered with something that is not valid MCP"
            raise ToolError(f"{text}: {_first_error(error)}") from None
        except MCPError as error:
            if error.data != _UNREACHED or not was_up:
                raise self._call_failure(link, error) from None
        return await self.call(client, params, on_progress)  # in a fresh life

    def _call_failure(self, link: _Link, error: MCPError) -> Exception:
        """What to tell of a call that ended in `error`: the server's own, or ours."""
        is_cut = bool(self.config.url) and error.message.startswith("SSE stream")
        if error.data == _OWN_ERROR or is_cut:
            return ToolError(f"server '{self.name}': {error.message}")
        is_end = (error.code, error.message) == (types.CONNECTION_CLOSED, _CLOSED)
        if error.data != _UNREACHED and not (is_end and link.gone.is_set()):
            return error
        end = f"server '{self.name}' {link.why(link.end or 'hung up')}"
        if error.data == _UNREACHED:
            return ToolError(f"{end}; it has not seen the call, so call again")
        return ToolError(
            f"{end}; the call may have taken effect and was not repeated, the next one "
            "starts the server again"
        )

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Remember the client's log level, and tell it to a server that can log."""
        self.log_level = level
        session = self._link.session
        if session is None or not self._link.up or _is_modern(session):
            return
        if session.server_capabilities and session.server_capabilities.logging:
            params = types.SetLevelRequestParams(level=level)
            request = types.SetLevelRequest(params=params)
            with suppress(MCPError, ValidationError):
                await session.send_request(request, types.EmptyResult, OPEN_TIMEOUT)

    async def roots_changed(self) -> None:
        """Tell the server that the client's roots have changed."""
        session = self._link.session
        if session is not None and self._link.up and not _is_modern(session):
            await session.send_notification(types.RootsListChangedNotification())

    async def _own(self, link: _Link) -> None:
        """Hold one life of the server; this task alone enters and leaves its session."""
        started = anyio.current_time()
        try:
            with anyio.fail_after(CONNECT_TIMEOUT) as scope:
                transport = self._transport(link)
                async with (
                    transport as (read, write),
                    self._session(link, read, write) as session,
                ):
                    try:
                        await self._connect(link, session)
                        scope.deadline = math.inf  # it may live as long as it likes
                        self.connect_seconds = anyio.current_time() - started
                        link.settled.set()
                        await self._follow(link, session)
                    finally:
                        link.gone.set()  # what ends from here on is our own doing
        except Exception as error:  # must not take the other connections with it
            link.reason = link.why(link.end or self._cause(error))
            self.connect_seconds = anyio.current_time() - started
            log.warning("%s: %s", self.name, link.reason, exc_info=True)
        finally:
            for event in (link.gone, link.settled, link.fresh):
                event.set()  # nobody waits for it any longer

    async def _connect(self, link: _Link, session: ClientSession) -> None:
        await _negotiate(session, link.client)
        self.tools = await self._list_tools(session)
        link.session = session
        log.info("%s: connected, %d tools", self.name, len(self.tools))

    def _transport(self, link: _Link) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        if self.config.transport == "stdio":
            return _process_transport(self.name, self.config, self._environment, link)
        return _http_transport(self.config, link)

    def _session(self, link: _Link, read: Any, write: Any) -> ClientSession:
        return ClientSession(
            read,
            write,
            client_info=types.Implementation(name="mcp-workbench", version=__version__),
            message_handler=functools.partial(self._on_message, link),
            logging_callback=functools.partial(self._on_log, link),
            **(_relay(link.client) if link.client is not None else {}),
        )

    def _cause(self, error: BaseException) -> str:
        """One readable line for why a server did not start."""
        error = _innermost(error)
        text = _one_line(error)
        if isinstance(error, ValidationError):
            text = f"its answer is not valid MCP: {_first_error(error)}"
        elif isinstance(error, TimeoutError):
            text = f"no answer within {CONNECT_TIMEOUT:g} seconds"
        elif isinstance(error, OSError) and error.filename is not None:
            text = f"cannot start {error.filename!r}: {error.strerror}"
        url = self.config.shown_url
        return text if url in text else f"{url}: {text}"

    async def _list_tools(self, session: ClientSession) -> list[JSON]:
        """All pages of the server's tools that the filters let through."""
        tools: list[JSON] = []
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < MAX_PAGES:
            seen.add(cursor)
            try:
                page = await _list_page(session, cursor)
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise
                break  # it has no tools
            tools += page["tools"]
            cursor = page.get("nextCursor") or None
        return [tool for tool in tools if self.config.allows(tool["name"])]

    async def _follow(self, link: _Link, session: ClientSession) -> None:
        """Keep the tool list current until the server hangs up."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._refresh, link, session)
            if _announces_tool_changes(session):
                log.debug("Server supports tool change notifications: %s", self.name)
                if _is_modern(session):
                    tasks.start_soon(self._listen, link, session)
            if self.log_level is not None:
                await self.set_log_level(self.log_level)
            await link.hangup.wait()
            tasks.cancel_scope.cancel()
        log.info("%s %s", self.name, link.end)

    async def _refresh(self, link: _Link, session: ClientSession) -> None:
        """List the tools again after each change, one listing at a time.

        `changed` is renewed before a listing begins, so any number of changes during
        it cost exactly one more, and none is lost.
        """
        while True:
            if not link.changed.is_set():
                link.fresh.set()
            await link.changed.wait()
            link.changed = anyio.Event()
            try:
                with anyio.fail_after(CONNECT_TIMEOUT):
                    tools = await self._list_tools(session)
            except (MCPError, ValidationError, TimeoutError) as error:
                log.warning("%s: kept its old tools: %s", self.name, self._cause(error))
            else:
                log.info("%s: tools refreshed: %s", self.name, _diff(self.tools, tools))
                self.tools = tools

    async def _listen(self, link: _Link, session: ClientSession) -> None:
        """Hold a 2026-07-28 server's `subscriptions/listen` stream open.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/subscriptions
        """
        while True:
            try:
                async with listen(session, tools_list_changed=True) as subscription:
                    self._tools_changed(link)  # for what changed before it was open
                    async for _ in subscription:
                        pass  # each event reaches `_on_message` as well
            except (MCPError, SubscriptionLost) as error:
                log.debug("%s: lost its change notifications: %s", self.name, error)
            await anyio.sleep(RELISTEN_DELAY)

    def _tools_changed(self, link: _Link) -> None:
        if not link.tools_changed():
            skipped = "Skipping duplicate discovery - already in progress for: %s"
            log.debug(skipped, self.name)

    async def _on_message(self, link: _Link, message: IncomingMessage) -> None:
        if isinstance(message, anyio.EndOfStream):
            link.hangup.set()
        elif isinstance(message, types.ElicitCompleteNotification) and link.client:
            await link.client.send_notification(message)
        elif isinstance(message, types.ToolListChangedNotification):
            received = "Received tools/list_changed notification from server: %s"
            log.info(received, self.name)
            if link.session is not None and not _announces_tool_changes(link.session):
                log.warning(
                    "Received tools notification from server without listChanged "
                    "capability: %s",
                    self.name,
                )
            self._tools_changed(link)

    async def _on_log(
        self, link: _Link, params: types.LoggingMessageNotificationParams
    ) -> None:
        log.debug("[%s] %s: %s", self.name, params.level, params.data)
        if link.client is None or _is_modern(link.client):
            return  # a 2026-07-28 client opts in request by request
        levels = get_args(types.LoggingLevel)
        if levels.index(params.level) >= levels.index(self.log_level or levels[0]):
            message = types.LoggingMessageNotification(params=params)
            await link.client.send_notification(message)


def _is_modern(session: ClientSession | ServerSession) -> bool:
    """Whether the peer speaks 2026-07-28 or later, without `initialize`."""
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS


def _announces_tool_changes(session: ClientSession) -> bool:
    capabilities = session.server_capabilities
    tools = capabilities.tools if capabilities is not None else None
    return tools is not None and bool(tools.list_changed)


def _innermost(error: BaseException) -> BaseException:
    """What lies behind an error: the first of a group, what it was raised from."""
    behind: Any = error
    while isinstance(behind, Exception):
        error, behind = behind, behind.__cause__ or behind.__context__
        if isinstance(error, ExceptionGroup):
            behind = error.exceptions[0]
    return error


def _one_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, ConnectionError) and error.errno:
        text = os.strerror(error.errno)  # asyncio has a text of its own
    return " ".join(text.split()) or type(error).__name__


def _first_error(error: ValidationError) -> str:
    """The first offending field of an answer, and what is wrong with it."""
    errors = error.errors(include_url=False, include_input=False)
    # A union reports all its members: those of another type do not matter.
    others = {e["loc"][:-1] for e in errors if e["type"] == "literal_error"}
    first = next((e for e in errors if e["loc"][:-1] not in others), errors[0])
    return f"{'.'.join(map(str, first['loc'])) or 'result'}: {first['msg']}"


def _diff(old: list[JSON], new: list[JSON]) -> str:
    before = {tool["name"]: tool for tool in old}
    after = {tool["name"]: tool for tool in new}
    modified = sum(before[name] != after[name] for name in before.keys() & after.keys())
    added, removed = len(after.keys() - before), len(before.keys() - after)
    return f"{added} added, {removed} removed, {modified} modified"


async def _negotiate(session: ClientSession, client: ServerSession | None) -> None:
    """Agree on a protocol era with a server: the client's own, where it has a choice.

    A server that speaks both eras can ask an older client for sampling, elicitation and
    roots, and send it logs, in the older one alone. The last `discover` is for a server
    whose slow start let the first one time out before it was read.
    """
    steps = [session.discover, session.initialize, session.discover]
    if client is not None and not _is_modern(client):
        steps = [session.initialize, session.discover]
    errors: list[Exception] = []
    for step in steps:
        try:
            await step()
            return
        except (MCPError, RuntimeError, ValidationError) as error:
            errors.append(error)
    raise errors[steps.index(session.initialize)]


async def _list_page(session: ClientSession, cursor: str | None) -> JSON:
    """One page of `tools/list`, as it came where the SDK allows it."""
    params = types.PaginatedRequestParams(cursor=cursor)
    if _is_modern(session):
        # The SDK needs to see this listing: it mirrors arguments into HTTP headers.
        page = await session.list_tools(params=params)
        return page.model_dump(mode="json", by_alias=True, exclude_unset=True)
    request = types.ListToolsRequest(params=params)
    return cast(JSON, await session.send_request(request, _RAW_RESULT))


def _relay(client: ServerSession) -> JSON:
    """What servers may ask of a client, as arguments of their `ClientSession`.

    A server is offered what the client has declared and no more. Where the client's era
    has no such requests, the server gets an error at once.
    """
    offered = client.client_capabilities or types.ClientCapabilities()
    modes = offered.elicitation or types.ElicitationCapability()

    async def ask(request: types.ServerRequest, result_type: type[Any]) -> Any:
        try:
            return await client.send_request(request, result_type)
        except MCPError as error:
            return error.error
        except ValidationError as error:
            text = f"the client's answer is not valid MCP: {_first_error(error)}"
            return types.ErrorData(code=types.INTERNAL_ERROR, message=text)

    async def sample(_: object, params: types.CreateMessageRequestParams) -> Any:
        request = types.CreateMessageRequest(params=params)
        return await ask(request, types.CreateMessageResultWithTools)

    async def list_roots(context: ClientRequestContext) -> Any:
        params = types.RequestParams(_meta=context.meta) if context.meta else None
        return await ask(types.ListRootsRequest(params=params), types.ListRootsResult)

    async def elicit(_: object, params: types.ElicitRequestParams) -> Any:
        lacks_form = modes.url is not None and modes.form is None
        if modes.url is None if params.mode == "url" else lacks_form:
            text = f"the client does not support elicitation in {params.mode} mode"
            return types.ErrorData(code=types.INVALID_PARAMS, message=text)
        return await ask(types.ElicitRequest(params=params), types.ElicitResult)

    return {
        "sampling_capabilities": offered.sampling,
        "sampling_callback": sample if offered.sampling else None,
        "elicitation_callback": elicit if offered.elicitation else None,
        "list_roots_callback": list_roots if offered.roots else None,
    }


def _end(link: _Link, inbox: _Inbox, how: str) -> None:
    """Close a link's read stream, after everything that is in it.

    A call that fails from here on has met the end of its server, and the session must
    not be left before the answers that did arrive are read: hence the last message.
    """
    link.end = link.end or how
    link.gone.set()
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        inbox.send_nowait(anyio.EndOfStream())
    inbox.close()


class _LineSplitter:
    """Cuts chunks of bytes into lines, and a line at `limit` bytes.

    The parts of an unfinished line are kept apart: a line of 20 MB arrives in hundreds
    of chunks, and joining it anew for each would cost the square of its length.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._parts: list[bytes] = []
        self._room = self._limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes."""
        self._parts.append(chunk)
        self._room -= len(chunk)
        if b"\n" not in chunk and self._room > 0:
            return []
        *lines, rest = b"".join(self._parts).split(b"\n")
        if len(rest) >= self._limit:
            lines, rest = [*lines, rest], b""
        self._parts, self._room = [rest], self._limit - len(rest)
        return [line for line in lines if line.strip()]


_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]")
_LINE_LIMIT = 8192  # bytes of a server's output that stand in one line of the log


_ANSWERED = re.compile(rb'"id"\s*:\s*(\d+)')
_HALF_PAIRS = re.compile("[\ud800-\udfff]")


def _repaired(line: bytes) -> str:
    """JSON text that pydantic reads: without half surrogate pairs and the like.

    Raises:
        ValueError: It is no JSON in any reading.
    """
    text = line.decode(errors="replace")
    text = json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    return _HALF_PAIRS.sub("\N{REPLACEMENT CHARACTER}", text)


def _parse_message(line: bytes) -> types.JSONRPCMessage:
    """One message of a server; an answer that is none as the error that says so.

    Raises:
        ValueError: It is neither, so that nobody waits for it.
    """
    adapter = types.jsonrpc_message_adapter
    with suppress(ValueError):
        return adapter.validate_json(line, by_name=False)
    answered, why = _ANSWERED.search(line), "it cannot be read"
    with suppress(ValueError, RecursionError):
        text = _repaired(line)
        with suppress(ValidationError):
            return adapter.validate_json(text, by_name=False)
        kind = types.JSONRPCError if '"error"' in text else types.JSONRPCResponse
        try:
            return kind.model_validate_json(text)
        except ValidationError as error:
            why = _first_error(error)
    if answered is None or not (b'"result"' in line or b'"error"' in line):
        raise ValueError("not a message")
    text = f"answered with something that is not valid MCP: {why}"
    failure = types.ErrorData(code=types.INTERNAL_ERROR, message=text, data=_OWN_ERROR)
    return types.JSONRPCError(jsonrpc="2.0", id=int(answered[1]), error=failure)


class _ServerProcess(asyncio.SubprocessProtocol):
    """A server process: its stdout as messages, its stderr as log lines, its end.

    It is the write stream of the transport as well. The SDK's `stdio_client` does not
    fit: it takes the end of stdout for the end of the server, which a child may hold
    open for ever, leaves such a child running, and tells neither status nor process.
    """

    def __init__(self, name: str, link: _Link) -> None:
        self._name = name
        self._link = link
        self._died = False
        self._exited = anyio.Event()
        self._splitters = {1: _LineSplitter(), 2: _LineSplitter(_LINE_LIMIT)}
        self.inbox, self.messages = anyio.create_memory_object_stream[
            SessionMessage | Exception
        ](math.inf)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        stdin = self._transport.get_pipe_transport(0)
        self._stdin = cast(asyncio.WriteTransport, stdin)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        for line in self._splitters[fd].feed(data):
            if fd == 2:
                text = _CONTROLS.sub(" ", line.decode(errors="replace")).strip()
                self._link.stderr.append(text)
                log.info("[%s] %s", self._name, text)
            else:
                self._receive(line)

    def _receive(self, line: bytes) -> None:
        try:
            message = _parse_message(line)
        except ValueError:
            shown = line[:_LINE_LIMIT].decode(errors="replace")
            text = f"not an MCP message on stdout: {shown}"
            self._link.stderr.append(text)
            log.warning("%s: %s", self._name, text)
            return
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            self.inbox.send_nowait(SessionMessage(message))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd != 2:
            self._ending()

    def process_exited(self) -> None:
        self._exited.set()
        self._ending()

    def _ending(self) -> None:
        """Send nothing more; leave the rest of its output a moment to arrive."""
        if not self._link.gone.is_set():
            self._died = True
            self._link.gone.set()
            asyncio.get_running_loop().call_later(
                OUTPUT_GRACE, self.connection_lost, None
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """All pipes are closed and the process has exited, or its time is up."""
        self.pipe_data_received(2, b"\n")  # a last line may lack it
        status = self._transport.get_returncode()
        how = f"exited with status {status}"
        if status is None:
            how = "closed its stdin or stdout"
        elif status < 0:
            names = {number.value: number.name for number in signal.Signals}
            how = f"was killed by {names.get(-status, f'signal {-status}')}"
        _end(self._link, self.inbox, how if self._died else "")

    async def send(self, message: SessionMessage) -> None:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        if not self._stdin.is_closing():
            self._stdin.write(text.encode() + b"\n")
        if self._stdin.is_closing():  # before, or by this: nobody reads it any more
            self._ending()
            if isinstance(message.message, types.JSONRPCRequest):
                raise MCPError(types.CONNECTION_CLOSED, _CLOSED, _UNREACHED)
            raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        self._stdin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stdin.close()

    async def stop(self) -> None:
        """Close its stdin, then SIGTERM, then SIGKILL; its children go with it.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        self._stdin.close()
        if not await self._exits():
            self._signal("SIGTERM")
            await self._exits()
        self._signal("SIGKILL")  # also to children that outlived it
        await self._exits()
        self._transport.close()

    async def _exits(self) -> bool:
        with anyio.move_on_after(EXIT_GRACE):
            await self._exited.wait()
        return self._exited.is_set()

    def _signal(self, name: str) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):  # it leads a process group of its own
                os.killpg(self._transport.get_pid(), getattr(signal, name))
            else:
                self._transport.kill()


@asynccontextmanager
async def _process_transport(
    name: str, config: ServerConfig, environment: Mapping[str, str], link: _Link
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server's process and speak to it over stdin and stdout."""
    command = config.command
    if sys.platform == "win32":
        from mcp.os.win32.utilities import get_windows_executable_command

        command = get_windows_executable_command(command)
    process = _ServerProcess(name, link)
    with process.inbox, process.messages:
        with anyio.CancelScope(shield=True):  # else it might run with nobody to stop it
            await asyncio.get_running_loop().subprocess_exec(
                lambda: process,
                command,
                *config.args,
                env=environment,
                cwd=config.cwd,
                start_new_session=True,
            )
        try:
            yield process.messages, process
        finally:
            with anyio.CancelScope(shield=True):
                await process.stop()


class _HttpClient(httpx2.AsyncClient):
    """Answers for the server where something goes wrong with one request.

    An exception would end the SDK's transport, and with it every other call in flight
    on the same server; an error status would not be named.
    """

    def __init__(self, config: ServerConfig, link: _Link, inbox: _Inbox) -> None:
        # A call may be silent for ever, and so may any number of others beside it.
        timeout, limits = httpx2.Timeout(30, read=None), httpx2.Limits()
        super().__init__(headers=dict(config.headers), timeout=timeout, limits=limits)
        self._config = config
        self._link = link
        self._inbox = inbox
        self._had_stream = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        body = json.loads(request.content) if request.method == "POST" else {}
        if request.method == "GET" and _SESSION_ID in request.headers:
            return await self._open_stream(request, options)
        may_wait = request.method == "GET" or ("method" in body and "id" in body)
        # A notification would hold up what follows it, the end of a session ours.
        limit = math.inf if may_wait else NOTIFY_TIMEOUT
        with anyio.move_on_after(limit, shield=request.method == "DELETE"):
            try:
                response = await super().send(request, **options)
                is_stream = "event-stream" in response.headers.get("content-type", "")
                if response.status_code >= 400 or not is_stream:
                    await response.aread()
            except httpx2.RequestError as error:
                return self._refuse(request, body, _one_line(_innermost(error)))
            return self._checked(request, body, response)
        return httpx2.Response(202, request=request)

    async def _open_stream(
        self, request: httpx2.Request, options: JSON
    ) -> httpx2.Response:
        """Open an older server's stream of notifications, however long it takes.

        The SDK would give up after two failures. What the server said while there was
        no stream is lost, so that its tools are listed again.
        """
        while True:
            with suppress(httpx2.RequestError):
                response = await super().send(request, **options)
                if response.status_code < 500:
                    break
                await response.aclose()
            await anyio.sleep(RELISTEN_DELAY)
        if self._had_stream:
            self._link.tools_changed()
        self._had_stream = True
        if response.status_code >= 400:
            await response.aread()
        return self._checked(request, {}, response)

    def _checked(
        self, request: httpx2.Request, body: JSON, response: httpx2.Response
    ) -> httpx2.Response:
        """A response that the SDK can take, or what the request gets in its place."""
        media_type = response.headers.get("content-type", "")
        if response.status_code >= 400:
            return self._refuse_status(request, body, response)
        unanswered = "id" in body and body.get("method", "initialize") != "initialize"
        is_final = response.is_success and "event-stream" not in media_type
        if self._config.transport == "sse" or not (unanswered and is_final):
            return response
        try:
            message = _parse_message(response.content)
        except ValueError:
            told = f"HTTP {response.status_code} with {media_type or 'nothing'}"
            return self._refuse(request, body, f"{told} instead of an MCP message")
        return self._answer(request, body, message)

    def _refuse_status(
        self, request: httpx2.Request, body: JSON, response: httpx2.Response
    ) -> httpx2.Response:
        """An error status as the server's own error, or one that names the status."""
        status = response.status_code
        gone = status == 404 or (status == 400 and _NO_SESSION.search(response.text))
        if gone and _SESSION_ID in request.headers:
            self._link.end = "ended the session"
            self._link.gone.set()  # but others may still be told so themselves
            loop = asyncio.get_running_loop()
            loop.call_later(NOTIFY_TIMEOUT, self._link.hangup.set)
            return self._refuse(request, body, "the session is gone", _UNREACHED)
        with suppress(ValidationError):
            error = types.JSONRPCError.model_validate_json(response.content)
            return self._answer(request, body, error)
        hint = ": check 'headers' in the configuration" if status in (401, 403) else ""
        why = f"HTTP {status} {response.reason_phrase}{hint}"
        return self._refuse(request, body, why)

    def _refuse(
        self, request: httpx2.Request, body: JSON, why: str, data: str = _OWN_ERROR
    ) -> httpx2.Response:
        text = f"{self._config.shown_url}: {why}"
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=text, data=data)
        reply = types.JSONRPCError(jsonrpc="2.0", id=None, error=error)
        return self._answer(request, body, reply)

    def _answer(
        self, request: httpx2.Request, body: JSON, message: types.JSONRPCMessage
    ) -> httpx2.Response:
        """Give a request its answer as if the server had sent it by a stream."""
        error = message.error.message if isinstance(message, types.JSONRPCError) else ""
        if request.method != "POST":
            raise ToolError(error)
        if "method" not in body:  # an answer of ours, which the server now waits for
            _end(self._link, self._inbox, f"did not take an answer: {error}")
        elif "id" in body:
            reply = message.model_copy(update={"id": body["id"]})
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                self._inbox.send_nowait(SessionMessage(reply))
        return httpx2.Response(202, request=request)


# How servers say that a session is gone where they do not answer 404, as they should.
_NO_SESSION = re.compile(
    r"\b(no|not|invalid|missing|unknown|expired)\b[^.]{0,20}\bsession\b"
    r"|\bsession\b[^.]{0,20}\b(not found|expired|terminated)\b",
    re.IGNORECASE,
)


@asynccontextmanager
async def _http_transport(
    config: ServerConfig, link: _Link
) -> AsyncIterator[tuple[Any, Any]]:
    """Speak to a remote server over Streamable HTTP or the older SSE transport."""
    inbox, messages = anyio.create_memory_object_stream[Any](math.inf)
    http = _HttpClient(config, link, inbox)
    transport: AbstractAsyncContextManager[Any] = streamable_http_client(
        config.url, http_client=http, max_sse_event_size=None
    )
    if config.transport == "sse":
        transport = sse_client(config.url, httpx_client_factory=lambda *_, **__: http)
    with inbox, messages:
        try:
            async with transport as (read, write), anyio.create_task_group() as tasks:
                tasks.start_soon(_pump, link, read, inbox)
                yield messages, write
                tasks.cancel_scope.cancel()
        finally:
            await http.aclose()


async def _pump(link: _Link, read: Any, inbox: _Inbox) -> None:
    how = ""
    try:
        async for message in read:
            with suppress(anyio.BrokenResourceError):  # the session was left already
                inbox.send_nowait(message)
        how = "" if link.gone.is_set() else "closed the connection"
    finally:
        _end(link, inbox, how)


# === Workbench ========================================================================


@dataclass(frozen=True)
class OpenedToolbox:
    """A toolbox that was opened, with a connection for each of its servers."""

    name: str
    config: ToolboxConfig
    connections: Mapping[str, ServerConnection]

    def tools(self) -> list[JSON]:
        """The tools of all servers that are up, as `open_toolbox` shows them."""
        servers = self.connections.items()
        return [self._shown(name, t) for name, c in servers if c.up for t in c.tools]

    def _shown(self, server: str, tool: Mapping[str, Any]) -> JSON:
        source = f"{self.name}/{server}"
        described = tool.get("description")
        origin = {"source_server": server, "toolbox_name": self.name}
        shown = {
            "name": full_tool_name(self.name, server, tool["name"]),
            "description": f"[{source}] {described}"
            if described
            else f"Tool from {source}",
            **origin,
        }
        shown |= {k: v for k, v in tool.items() if k not in shown and k != "icons"}
        meta = {**origin, "original_name": tool["name"]}
        return {**shown, "_meta": {**(tool.get("_meta") or {}), **meta}}

    def answer(self) -> JSON:
        """The result of `open_toolbox` (seed: Open Toolbox Response Format)."""
        servers = self.connections.items()
        failures = {name: c.failure for name, c in servers if c.failure is not None}
        connecting = [n for n, c in servers if not c.up and n not in failures]
        told = {name: c.instructions for name, c in servers if c.up and c.instructions}
        return {
            "toolbox": self.name,
            "description": self.config.description,
            "servers_connected": sum(c.up for _, c in servers),
            **({"servers_failed": failures} if failures else {}),
            **({"servers_connecting": connecting} if connecting else {}),
            **({"instructions": told} if told else {}),
            "tools": self.tools(),
        }

    async def settle(
        self, client: ServerSession | None, on_progress: ProgressFnT | None
    ) -> None:
        """Start the servers, wait as `open_toolbox` promises, report each that settles."""
        send, settled = anyio.create_memory_object_stream[str](math.inf)
        deadline = anyio.current_time() + OPEN_TIMEOUT

        async def settle(server: str) -> None:
            await self.connections[server].settled(client)
            send.send_nowait(server)

        with send, settled:
            async with anyio.create_task_group() as tasks:
                for server in self.connections:
                    tasks.start_soon(settle, server)
                for count in range(len(self.connections)):
                    server = await settled.receive()
                    if self.connections[server].up:  # from now on it may be too late
                        tasks.cancel_scope.deadline = deadline
                    if on_progress is not None:
                        await on_progress(count + 1, len(self.connections), server)
        async with anyio.create_task_group() as tasks:
            tasks.cancel_scope.deadline = deadline
            for connection in self.connections.values():
                tasks.start_soon(connection.refreshed, client)

    def suggest(self, tool_name: str) -> str:
        """A question after the tools whose full names come close to this one."""
        names = [tool["name"] for tool in self.tools()]
        close = difflib.get_close_matches(tool_name, names, cutoff=0.5)
        return f". Did you mean {' or '.join(close)}?" if close else ""


class Workbench:
    """The state of one running workbench: its configuration and its open toolboxes.

    `owners` is the task group that runs the tasks which hold the servers; cancelling it
    closes every toolbox.
    """

    def __init__(self, config: WorkbenchConfig, owners: anyio.abc.TaskGroup) -> None:
        self.config = config
        self.open_toolboxes: dict[str, OpenedToolbox] = {}
        self.log_level: types.LoggingLevel | None = None
        self._owners = owners

    def connections(self) -> list[ServerConnection]:
        """The connections of all open toolboxes."""
        toolboxes = self.open_toolboxes.values()
        return [c for toolbox in toolboxes for c in toolbox.connections.values()]

    def prepare(self, name: str) -> OpenedToolbox:
        """The open toolbox of this name, opened now if need be; it starts no server.

        Raises:
            ToolError: There is no such toolbox.
        """
        if name not in self.config.toolboxes:
            names = ", ".join(self.config.toolboxes) or "none"
            raise ToolError(f"Toolbox '{name}' not found. Available toolboxes: {names}")
        if name not in self.open_toolboxes:
            config = self.config.toolboxes[name]
            connections = {s: self._connection(name, s) for s in config.servers}
            self.open_toolboxes[name] = OpenedToolbox(name, config, connections)
        return self.open_toolboxes[name]

    def _connection(self, toolbox: str, server: str) -> ServerConnection:
        config = self.config.toolboxes[toolbox].servers[server]
        withheld = self.config.variables
        shared = {k: v for k, v in os.environ.items() if k not in withheld}
        environment = {**shared, **get_default_environment(), **config.env}
        name = f"{toolbox}/{server}"
        connection = ServerConnection(name, config, self._owners, environment)
        connection.log_level = self.log_level
        return connection

    async def open_toolbox(
        self,
        name: str,
        client: ServerSession | None = None,
        on_progress: ProgressFnT | None = None,
    ) -> JSON:
        """Start what is not up of a toolbox's servers; its state and its tools.

        Answers when every server has settled, after `OPEN_TIMEOUT` if one is up by
        then, or when the first one is up after that. `on_progress` gets the number of
        settled servers, of all servers, and the name of the one that settled.

        Raises:
            ToolError: There is no such toolbox, or none of its servers started.
        """
        toolbox = self.prepare(name)
        servers = toolbox.connections
        while True:
            await toolbox.settle(client, on_progress)
            failed = {name: c.failure for name, c in servers.items() if c.failure}
            if any(connection.up for connection in servers.values()):
                return toolbox.answer()
            if len(failed) == len(servers):
                break  # else another open has started one again that had failed here
        if self.open_toolboxes.get(name) is toolbox:
            del self.open_toolboxes[name]
        reasons = "; ".join(f"{server}: {why}" for server, why in failed.items())
        raise ToolError(f"Toolbox '{name}' could not be opened. {reasons}")

    async def use_tool(
        self,
        toolbox_name: str,
        tool_name: str,
        params: Mapping[str, Any],
        client: ServerSession | None = None,
        on_progress: ProgressFnT | None = None,
    ) -> JSON:
        """Call a tool of an open toolbox by its full name; the server's result as it came.

        `params` are the wire parameters of `tools/call` without the name.

        Raises:
            ToolError: There is no such tool, or its server failed.
            MCPError: The server's own JSON-RPC error.
        """
        if (
            toolbox_name in self.config.toolboxes
            and toolbox_name not in self.open_toolboxes
        ):
            raise ToolError(
                f"Toolbox '{toolbox_name}' is not currently open. "
                "Please open it first with open_toolbox."
            )
        toolbox = self.prepare(toolbox_name)
        connection, tool = self._route(toolbox, tool_name)
        await connection.ensure_up(client)
        if not connection.has_tool(tool):
            await connection.refreshed(client)
        if not connection.has_tool(tool):
            unknown = f"server '{connection.name}' has no tool '{tool}'"
            raise ToolError(unknown + toolbox.suggest(tool_name))
        return await connection.call(client, {"name": tool, **params}, on_progress)

    def _route(
        self, toolbox: OpenedToolbox, tool_name: str
    ) -> tuple[ServerConnection, str]:
        """The connection and the downstream name that a full tool name stands for."""
        try:
            prefix, server, tool = split_tool_name(tool_name)
        except ValueError:
            form = "the name is not of the form {toolbox}__{server}__{tool}"
            raise ToolError(form + toolbox.suggest(tool_name)) from None
        if prefix != toolbox.name:
            raise ToolError(
                f"the name starts with '{prefix}', which is not this toolbox: pass "
                f"toolbox_name '{prefix}', or a tool of this one"
            )
        if server not in toolbox.connections:
            servers = ", ".join(toolbox.connections)
            raise ToolError(f"it has no server '{server}'. Its servers: {servers}")
        return toolbox.connections[server], tool

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Set the level of log messages that the client wants, on every server."""
        self.log_level = level
        async with anyio.create_task_group() as tasks:
            for connection in self.connections():
                tasks.start_soon(connection.set_log_level, level)


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    async with anyio.create_task_group() as owners:
        try:
            yield Workbench(config, owners)
        finally:
            owners.cancel_scope.cancel()


# === MCP server =======================================================================


OPEN_TOOLBOX = types.Tool(
    name="open_toolbox",
    title="Open Toolbox",
    description="Start a toolbox's servers and get its tools with their input schemas. "
    "An unknown name is answered with the available ones.",
    input_schema={
        "type": "object",
        "properties": {"toolbox_name": {"type": "string"}},
        "required": ["toolbox_name"],
    },
    annotations=types.ToolAnnotations(
        read_only_hint=False,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=True,
    ),
)
_FULL_NAME = "Full name from open_toolbox: {toolbox}__{server}__{tool}"
_ARGUMENTS = "What the tool's inputSchema asks for"
USE_TOOL = types.Tool(
    name="use_tool",
    title="Use Tool",
    description="Call a tool of an open toolbox and get its own result.",
    input_schema={
        "type": "object",
        "properties": {
            "toolbox_name": {"type": "string"},
            "tool_name": {"type": "string", "description": _FULL_NAME},
            "arguments": {"type": "object", "description": _ARGUMENTS},
        },
        "required": ["toolbox_name", "tool_name"],
    },
    annotations=types.ToolAnnotations(
        read_only_hint=False,
        destructive_hint=True,
        idempotent_hint=False,
        open_world_hint=True,
    ),
)
_META_TOOLS = {tool.name: tool for tool in (OPEN_TOOLBOX, USE_TOOL)}
_COMPLETE = {"resultType": "complete"}  # a 2026-07-28 client needs it
_DEMO_NOTE = "This is the built-in demo: set WORKBENCH_CONFIG to the path of your own."
_Context = ServerRequestContext[Workbench]


def instructions(config: WorkbenchConfig) -> str:
    """What a client is told about the toolboxes on connecting, in plain text."""
    if not config.toolboxes:
        where = config.source or "the configuration"
        return f"No toolboxes configured. Add them under 'toolboxes' in {where}."
    lines = ["Available Toolboxes:", ""]
    for name, toolbox in config.toolboxes.items():
        plural = "s" if len(toolbox.servers) != 1 else ""
        lines += [f"{name} ({len(toolbox.servers)} server{plural})"]
        lines += [f"  Description: {toolbox.description}", ""]
    lines += [
        "Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."
    ]
    return "\n".join([*lines, "", _DEMO_NOTE] if config.is_demo else lines)


def create_server(config: WorkbenchConfig) -> Server[Workbench]:
    """The workbench as a low-level MCP server, to be run over any transport."""

    @asynccontextmanager
    async def lifespan(_: Server[Workbench]) -> AsyncIterator[Workbench]:
        async with running_workbench(config) as workbench:
            yield workbench

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(_META_TOOLS.values()))

    async def set_level(
        context: _Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        await context.lifespan_context.set_log_level(params.level)
        return types.EmptyResult()

    async def roots_changed(context: _Context, _: types.NotificationParams) -> None:
        async with anyio.create_task_group() as tasks:
            for connection in context.lifespan_context.connections():
                tasks.start_soon(connection.roots_changed)

    server = Server(
        "mcp-workbench",
        version=__version__,
        instructions=instructions(config),
        lifespan=lifespan,
        on_list_tools=list_tools,
    )
    # Not as arguments: those say that logging and roots are deprecated in 2026-07-28.
    roots = "notifications/roots/list_changed"
    server.add_request_handler("tools/call", types.CallToolRequestParams, _call_tool)
    server.add_request_handler(
        "logging/setLevel", types.SetLevelRequestParams, set_level
    )
    server.add_notification_handler(roots, types.NotificationParams, roots_changed)
    return server


async def _call_tool(
    context: _Context, params: types.CallToolRequestParams
) -> JSON | types.CallToolResult:
    """The one place where errors become results that a model can act on."""
    if params.name not in _META_TOOLS:
        raise MCPError(
            types.INVALID_PARAMS,
            f"Tool '{params.name}' not found: open its toolbox with open_toolbox, then "
            "call it through use_tool",
        )
    mask = context.lifespan_context.config.mask
    try:
        arguments = _checked_arguments(params)
        if params.name == USE_TOOL.name:
            return await _use_tool(context, arguments)
        answer = await context.lifespan_context.open_toolbox(
            arguments["toolbox_name"], context.session, context.session.report_progress
        )
    except ToolError as error:
        return _text_result(mask(str(error)), is_error=True)
    if failed := answer.get("servers_failed"):
        answer["servers_failed"] = {name: mask(why) for name, why in failed.items()}
    return {"content": [{"type": "text", "text": _compact(answer)}], **_COMPLETE}


def _text_result(text: str, is_error: bool = False) -> types.CallToolResult:
    content = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[content], is_error=is_error)


def _compact(value: Any) -> str:
    return to_json(value, inf_nan_mode="null").decode()


async def _use_tool(context: _Context, arguments: JSON) -> JSON:
    toolbox, tool = arguments["toolbox_name"], arguments["tool_name"]
    wire, session = context.params or {}, context.session
    retry = {
        key: wire[key] for key in ("inputResponses", "requestState") if key in wire
    }
    params = {"arguments": arguments["arguments"], **retry}
    meta = wire.get("_meta") or {}
    own = {key for key in meta if key.startswith("io.modelcontextprotocol/")}
    if passed_on := {k: meta[k] for k in meta.keys() - own - {"progressToken"}}:
        params["_meta"] = passed_on  # the other keys belong to this hop alone
    on_progress = session.report_progress if "progressToken" in meta else None
    try:
        result = await context.lifespan_context.use_tool(
            toolbox, tool, params, session, on_progress
        )
        return _deliverable(result, session)
    except MCPError as error:
        codes = (
            types.URL_ELICITATION_REQUIRED,
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        )
        if retry or error.code in codes:
            raise  # it addresses the client, not the model
        failure = f"the server answered with error {error.code}: {error.message}"
    except ToolError as error:
        failure = str(error)
    raise ToolError(f"Error executing tool '{tool}' in toolbox '{toolbox}': {failure}")


def _deliverable(result: JSON, session: ServerSession) -> JSON:
    """A downstream result in what the client's protocol era can carry."""
    if _is_modern(session):
        return {**_COMPLETE, **result}
    if result.get("resultType") == "input_required":
        raise ToolError(
            "the server asks for input in a way that only clients of protocol "
            "2026-07-28 understand"
        )
    if not isinstance(result.get("structuredContent", {}), dict):
        # Older eras know objects alone, and the SDK would refuse the whole result.
        return {k: v for k, v in result.items() if k != "structuredContent"}
    return result


def _checked_arguments(params: types.CallToolRequestParams) -> JSON:
    """The arguments of a meta-tool, with `arguments` as an object.

    Models tend to send an object as a string that holds it: that is taken for it.
    """
    tool = _META_TOOLS[params.name]
    fields: dict[str, JSON] = tool.input_schema["properties"]
    given = dict(params.arguments or {})
    for name in given.keys() - fields.keys():
        known = ", ".join(fields)
        raise ToolError(f"{tool.name} has no argument '{name}'. It takes: {known}")
    if "arguments" in fields:
        given["arguments"] = _decoded(given.get("arguments"))
    for name, schema in fields.items():
        found = _json_type(given.get(name, _NOTHING))
        if found != schema["type"]:
            expected = f"expected {schema['type']}, found {found}"
            raise ToolError(f"{tool.name}: argument '{name}': {expected}")
    return given


def _decoded(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            decoded = json.loads(arguments)
            json.dumps(decoded, ensure_ascii=False, allow_nan=False).encode()
            return decoded
    return arguments


# === Built-in toolbox =================================================================


TOOLBOX_TOOLS: dict[str, tuple[types.Tool, Callable[..., str]]] = {}


def toolbox_tool(
    title: str, description: str, required: tuple[str, ...] = (), **parameters: str
) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a function as a tool of the built-in toolbox, under its own name.

    `parameters` maps each (string) parameter to its description. The function gets
    checked arguments; a `ToolError` that it raises becomes a result with `isError`.
    """
    described = {n: {"type": "string", "description": d} for n, d in parameters.items()}
    schema = {
        "type": "object",
        "properties": described,
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
    }

    def register(run: Callable[..., str]) -> Callable[..., str]:
        tool = types.Tool(name=run.__name__, input_schema=schema)
        tool.title, tool.description = title, description
        TOOLBOX_TOOLS[tool.name] = (tool, run)
        return run

    return register


@toolbox_tool(
    "Echo Tool",
    "A simple tool that returns the text it was given.",
    required=("text",),
    text="The text to echo back.",
)
def echo(text: str) -> str:
    """The text itself (seed: Tool Schemas)."""
    return text


@toolbox_tool(
    "Time Tool",
    "Returns the current server time, optionally in a specific timezone.",
    timezone="An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC.",
)
def time(timezone: str = "UTC") -> str:
    """The current time in ISO 8601 with its offset (seed: Tool Schemas).

    Raises:
        ToolError: There is no such timezone.
    """
    zone: datetime.tzinfo = datetime.UTC  # which needs no zone data, unlike any other
    if timezone != "UTC":
        try:
            zone = zoneinfo.ZoneInfo(timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            expected = "an IANA name such as 'America/New_York'"
            raise ToolError(
                f"Unknown timezone {timezone!r}: expected {expected}"
            ) from None
    return _now().astimezone(zone).isoformat(timespec="seconds")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server."""

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool for tool, _ in TOOLBOX_TOOLS.values()])

    async def call_tool(
        _: object, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            return _text_result(_run_toolbox_tool(params.name, params.arguments or {}))
        except ToolError as error:
            return _text_result(str(error), is_error=True)

    return Server(
        "mcp-toolbox",
        version=__version__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _run_toolbox_tool(name: str, arguments: JSON) -> str:
    # Slow to import, and only needed here.
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    if name not in TOOLBOX_TOOLS:
        known = ", ".join(TOOLBOX_TOOLS)
        text = f"Unknown tool '{name}'. Available tools: {known}"
        raise MCPError(types.INVALID_PARAMS, text)
    tool, run = TOOLBOX_TOOLS[name]
    errors = Draft202012Validator(tool.input_schema).iter_errors(arguments)
    problems = [": ".join([*map(str, error.path), error.message]) for error in errors]
    if problems:
        raise ToolError(f"Invalid arguments for tool '{name}': {'; '.join(problems)}")
    return run(**arguments)


class ToolboxApp:
    """The built-in toolbox as an ASGI application (seed: API Endpoints).

    `/mcp` speaks Streamable HTTP; a GET without a session opens the older SSE
    transport, whose messages are posted to `/mcp/messages?sessionId=...`. `host` is the
    address that it is bound to.
    """

    def __init__(self, host: str) -> None:
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._host = host
        self._server = create_toolbox_server()
        self._http = self._server.streamable_http_app(transport_security=unchecked)
        self._sse = SseServerTransport("/mcp/messages", unchecked)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # the lifespan of the Streamable HTTP sessions
            return await self._http(scope, receive, send)
        request = Request(scope, receive)
        path, method = request.url.path, request.method
        if (refusal := await self._refusal(request)) is not None:
            await refusal(scope, receive, send)
        elif path == "/mcp/messages":
            await self._post_message(request, send)
        elif (path, method) == ("/mcp", "GET") and not request.headers.get(_SESSION_ID):
            await self._stream(request, send)
        else:
            await self._http(scope, receive, send)

    async def _refusal(self, request: Request) -> Response | None:
        """Check Host and Origin against DNS rebinding, and the content type."""
        hosts = [request.headers.get("host", "")]
        if _is_loopback(self._host):
            names = {"127.0.0.1", "localhost", "[::1]", self._host}
            hosts = [host for name in names for host in (name, f"{name}:*")]
        origins = [
            f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts
        ]
        allowed = TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=origins
        )
        refusal = await TransportSecurityMiddleware(allowed).validate_request(request)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip()
        is_json = media_type.lower() == "application/json"
        if refusal is None and request.method == "POST" and not is_json:
            return PlainTextResponse("Content-Type must be application/json", 415)
        return refusal

    async def _stream(self, request: Request, send: Any) -> None:
        async def rename(message: Any) -> None:  # the SDK says session_id
            body = message.get("body", b"")
            if body.startswith(b"event: endpoint"):
                message = {
                    **message,
                    "body": body.replace(b"session_id=", b"sessionId="),
                }
            await send(message)

        stream = self._sse.connect_sse(request.scope, request.receive, rename)
        async with stream as (read, write):
            options = self._server.create_initialization_options()
            await self._server.run(read, write, options)

    async def _post_message(self, request: Request, send: Any) -> None:
        async def as_400(message: Any) -> None:  # the SDK answers 404: no such session
            if message["type"] == "http.response.start" and message["status"] == 404:
                message = {**message, "status": 400}
            await send(message)

        session_id = request.query_params.get("sessionId")
        if session_id is None and request.method == "POST":
            response = PlainTextResponse("sessionId is required", 400)
            return await response(request.scope, request.receive, send)
        query = urlencode({"session_id": session_id}).encode()
        scope = {**request.scope, "query_string": query}
        await self._sse.handle_post_message(scope, request.receive, as_400)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


# === Running ==========================================================================


_ESCAPED = re.compile(rb"\\u[dD]")  # half of a surrogate pair, where JavaScript cut one


class _Stdin:
    """Lines of stdin, read on the event loop.

    The SDK's reader is a thread that a signal cannot stop: the process would hang until
    stdin closes. It also costs three thread switches for each message.
    """

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        splitter = _LineSplitter()
        while True:
            await anyio.wait_readable(0)
            try:
                chunk = os.read(0, 65536)
            except OSError:  # a terminal that was closed
                return
            for line in splitter.feed(chunk or b"\n"):
                text: bytes | str = line
                with suppress(ValueError, RecursionError):
                    text = _repaired(line) if _ESCAPED.search(line) else line
                yield text
            if not chunk:
                return


class _Stdout:
    """stdout, written on the event loop; `on_close` is called once nobody reads it."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._on_close = on_close

    async def write(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            if not select.select((), (1,), (), 0)[1]:  # which spares most waits
                await anyio.wait_writable(1)
            try:  # PIPE_BUF: a writable pipe takes as much without blocking
                data = data[os.write(1, data[:4096]) :]
            except OSError:
                return self._on_close()

    async def flush(self) -> None:
        pass


def _can_be_polled(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    is_stream = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    return is_stream and sys.platform != "win32"


async def _watch_stdout(on_close: Callable[[], None]) -> None:
    """Notice that an idle client is gone: our end then polls as readable, and hung up."""
    await anyio.wait_readable(1)
    poll = select.poll()
    poll.register(1, 0)
    if poll.poll(0):
        on_close()


async def serve_stdio(server: Server[Any]) -> int:
    """Serve over stdin and stdout until stdin ends or the task is cancelled."""
    polled = _can_be_polled(0) and _can_be_polled(1)
    async with anyio.create_task_group() as tasks:
        stop, streams = tasks.cancel_scope.cancel, cast(tuple[Any, ...], ())
        if polled:
            streams = (_Stdin(), _Stdout(stop))
            tasks.start_soon(_watch_stdout, stop)
        async with stdio_server(*streams) as (read, write):
            try:
                await server.run(read, write, server.create_initialization_options())
            except anyio.get_cancelled_exc_class():
                if not polled:
                    os._exit(0)  # the SDK's reader thread would block until stdin ends
                raise
            # What is still to be written must not wait for a client that does not read.
            tasks.cancel_scope.deadline = anyio.current_time() + STDOUT_GRACE
        stop()
    return 0


def serve_http(address: str) -> int:
    """Serve the built-in toolbox on `[HOST:]PORT` until a signal; the exit status."""
    import uvicorn  # slow to import, and only needed here

    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except (ValueError, OverflowError):
        log.error("Cannot listen on %r: expected [HOST:]PORT", address)
        return 1
    except OSError as error:
        log.error("Cannot listen on %s: %s", address, error.strerror)
        return 1
    address, port_number = listener.getsockname()[:2]  # `host` may be any name for it
    shown = f"[{address}]" if ":" in address else address
    log.info("Toolbox at http://%s:%d/mcp", shown, port_number)
    if not _is_loopback(address):
        log.warning("No authentication: bind to %s in a trusted environment only", host)
    # Without a timeout it would wait for the open streams.
    options: JSON = {"log_config": None, "timeout_graceful_shutdown": 1}
    toolbox = uvicorn.Server(uvicorn.Config(ToolboxApp(address), **options))
    # Streams that are open at the end are not errors, as uvicorn has it.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not toolbox.should_exit)

    async def serve() -> int:
        await toolbox.serve(sockets=[listener])
        return 0

    return run(serve, interrupted=0)


async def check(config: WorkbenchConfig) -> int:
    """Start every server, print a line for each, then what the model's context holds.

    The result is an exit status: 1 if a server failed.
    """
    colors = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    ok, failed = "ok    ", "FAILED"
    if colors:
        ok, failed = f"\033[32m{ok}\033[0m", f"\033[31m{failed}\033[0m"
    async with running_workbench(config) as workbench:
        for name in config.toolboxes:
            workbench.prepare(name)
        connections = workbench.connections()
        for connection in connections:
            connection.start(None)
        width = max((len(connection.name) for connection in connections), default=0)
        for connection in connections:
            await connection.settled(None)
            why, seconds = connection.failure, connection.connect_seconds
            about = (
                f"{len(connection.tools)} tools" if why is None else config.mask(why)
            )
            state = ok if why is None else failed
            print(f"{connection.name:{width}}  {state}  {seconds:4.1f} s  {about}")
        flat = [tool for connection in connections for tool in connection.tools]
        failures = [c for c in connections if c.failure is not None]
    tools = [
        t.model_dump(mode="json", by_alias=True, exclude_none=True)
        for t in _META_TOOLS.values()
    ]
    size = len((_compact(tools) + instructions(config)).encode())
    print(
        f"Model context: {_amount(size)} with the workbench, "
        f"{_amount(len(_compact(flat).encode()))} with {len(flat)} tools listed flat"
    )
    return int(bool(failures))


def _amount(size: int) -> str:
    return f"{size:,} bytes (about {size // 4:,} tokens)"


async def call(config: WorkbenchConfig, name: str, arguments: str = "{}") -> int:
    """Call one tool by its full name and print its result; the exit status.

    Text is printed as it is, a result with other content as JSON.
    """
    params = {"arguments": _decoded(arguments)}
    if not isinstance(params["arguments"], dict):
        print("the arguments: expected a JSON object", file=sys.stderr)
        return 1
    try:
        toolbox = split_tool_name(name)[0]
    except ValueError:
        print(f"{name}: expected {{toolbox}}__{{server}}__{{tool}}", file=sys.stderr)
        return 1
    async with running_workbench(config) as workbench:
        try:
            workbench.prepare(toolbox)
            result = await workbench.use_tool(toolbox, name, params)
        except (ToolError, MCPError) as error:
            print(config.mask(f"{name}: {error}"), file=sys.stderr)
            return 1
    content = result.get("content")
    if content and all(block["type"] == "text" for block in content):
        print(*(block["text"] for block in content), sep="\n")
    else:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    return int(result.get("isError", False))


def run(main: Callable[[], Awaitable[int]], interrupted: int) -> int:
    """Run `main` to its end, or until SIGINT, SIGTERM or SIGHUP cancel it.

    The handlers stay until the process ends: a second signal must not stop the cleanup.
    Returns what `main` returns, or `interrupted`.
    """

    async def until_signalled() -> int:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:

            def stop(*_: object) -> None:
                with suppress(RuntimeError):  # the loop is closed: we are done already
                    loop.call_soon_threadsafe(scope.cancel)

            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), stop)
            return await main()
        return interrupted

    return anyio.run(until_signalled)


class _LogQueue(logging.handlers.QueueHandler):
    """Hands log lines to a thread, and drops them where that thread cannot keep up.

    A client that does not read our stderr blocks whoever writes to it.
    """

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(queue.Full):
            self.queue.put_nowait(record)


class _LogFormatter(logging.Formatter):
    """Masks secrets, and shows a traceback only where debug lines are shown."""

    mask: Callable[[str], str] = staticmethod(str)

    def format(self, record: logging.LogRecord) -> str:
        if not log.isEnabledFor(logging.DEBUG):
            record.exc_info = record.exc_text = None
        return self.mask(super().format(record))


def start_logging(verbose: bool) -> tuple[_LogFormatter, Callable[[], None]]:
    """Log to stderr; the formatter, and a function that writes what is left, briefly."""
    formatter = _LogFormatter("%(asctime)s %(levelname)s %(message)s")
    handler = _LogQueue(queue.Queue(10_000))
    handler.setFormatter(formatter)
    listener = logging.handlers.QueueListener(handler.queue, logging.StreamHandler())
    listener.start()
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.DEBUG if verbose else logging.INFO)

    def flush() -> None:
        stopper = threading.Thread(target=listener.stop, daemon=True)
        stopper.start()
        stopper.join(LOG_GRACE)

    return formatter, flush


def parse_command_line(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line; exits with status 2 where they do not fit."""
    parser = argparse.ArgumentParser(
        description="One MCP server in front of many, grouped into named toolboxes.",
        epilog="Without CONFIG: WORKBENCH_CONFIG, else ./workbench-config.json if it is "
        "there, else a built-in demo.",
    )
    add, modes = parser.add_argument, parser.add_mutually_exclusive_group()
    add("config", nargs="?", help="path of the configuration file")
    for option, about in (
        ("--check", "start every server and report on each"),
        ("--toolbox", "serve the built-in echo/time toolbox"),
    ):
        modes.add_argument(option, action="store_true", help=about)
    pair = ("NAME", "JSON")
    modes.add_argument("--call", nargs="+", metavar=pair, help="call one tool")
    add("--http", metavar="[HOST:]PORT", help="serve the toolbox over HTTP")
    add("--verbose", action="store_true", help="log debug lines")
    add("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    if options.call and len(options.call) > 2:
        parser.error("--call takes a NAME and at most one JSON object")
    if options.http is not None and not options.toolbox:
        parser.error("--http goes with --toolbox")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parse_command_line(arguments)
    formatter, flush = start_logging(options.verbose)
    bind = functools.partial
    try:
        if options.http is not None:
            return serve_http(options.http)
        if options.toolbox:
            return run(bind(serve_stdio, create_toolbox_server()), interrupted=0)
        config = find_config(options.config, os.environ)
        formatter.mask = config.mask
        for warning in config.warnings:
            log.warning("%s", warning)
        if options.check:
            return run(bind(check, config), interrupted=1)
        if options.call:
            return run(bind(call, config, *options.call), interrupted=1)
        if config.is_demo:
            log.info("%s", _DEMO_NOTE)
        return run(bind(serve_stdio, create_server(config)), interrupted=0)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        flush()


if __name__ == "__main__":
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    try:
        status = main()
        sys.stdout.flush()
    except* BrokenPipeError:  # nobody reads what --check or --call print
        status = 1
    # Not `sys.exit`: the logging thread may be blocked by a stderr that nobody reads.
    os._exit(status)
