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
import contextlib
import datetime
import difflib
import fnmatch
import functools
import ipaddress
import json
import logging
import logging.handlers
import math
import os
import queue
import re
import signal
import socket
import stat
import sys
import threading
import zoneinfo
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast, get_args
from urllib.parse import urlencode, urlsplit, urlunsplit

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
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

__version__ = "0.10.0"

OPEN_TIMEOUT = 5.0
"""Seconds after which `open_toolbox` answers with the servers that are up by then."""

CONNECT_TIMEOUT = 55.0
"""Seconds a server has to start; TypeScript clients give up on a request after 60."""

EXIT_GRACE = 1.5
"""Seconds between closing a server's stdin, SIGTERM and SIGKILL."""

OUTPUT_GRACE = 0.25
"""Seconds for the rest of a process's output after the first sign of its end."""

STDOUT_GRACE = 0.5
"""Seconds for our own last answers to be read, after the end of stdin."""

LOG_GRACE = 0.5
"""Seconds for our own last log lines to be read, before the process ends."""

RELISTEN_DELAY = 1.0
"""Seconds between two attempts to open a lost `subscriptions/listen` stream."""

MAX_PAGES = 250
"""Pages of one `tools/list` that are read before the server is taken to be looping."""

log = logging.getLogger("workbench")


# === Configuration ====================================================================


class ConfigError(Exception):
    """A configuration that cannot be used.

    `problems` holds one line for each thing that is wrong, starting with its place.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class ServerConfig:
    """One downstream server: a process (`command`) or a remote endpoint (`url`)."""

    transport: str
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
        """The URL as it may be shown: without its query and its user information."""
        parts = urlsplit(self.url)
        netloc = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


@dataclass(frozen=True)
class ToolboxConfig:
    """A named group of servers that are opened together."""

    description: str
    servers: Mapping[str, ServerConfig]


@dataclass(frozen=True)
class WorkbenchConfig:
    """A checked configuration, with its `${VAR}` references expanded.

    `variables` are the names that it refers to: they are withheld from the servers.
    `secrets` are the texts that no log line and no reason may show; `warnings` are
    lines about what was ignored. `source` is the file it came from, None for the demo.
    """

    toolboxes: Mapping[str, ToolboxConfig]
    variables: frozenset[str] = frozenset()
    secrets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    source: str | None = None

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
    problems: list[str] = []

    def value(reference: re.Match[str]) -> str:
        variable = _VARIABLE.fullmatch(reference[1])
        if not reference[2]:
            problems.append("expected a '}' after '${', found the end of the string")
        elif variable is not None:
            name, default = variable.groups()
            if name in environ or default is not None:
                return environ.get(name, default or "")
            problems.append(
                f"environment variable {name} is not set: set it, "
                f"or write ${{{name}:-default}}"
            )
        return reference[0]

    expanded = _REFERENCE.sub(value, text)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return expanded


def _variables(text: str) -> set[str]:
    """The names of the variables that `text` refers to."""
    found = (_VARIABLE.fullmatch(body) for body, end in _REFERENCE.findall(text) if end)
    return {match[1] for match in found if match is not None}


class _Object(dict[str, Any]):
    """A JSON object that remembers the keys that stand in it twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        keys = [key for key, _ in pairs]
        self.duplicates = {key for key in keys if keys.count(key) > 1}


_JSON_TYPES = {dict: "object", list: "list", str: "string", bool: "boolean"}
_TRANSPORTS = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_COMMON_KEYS = {"type", "transport", "disabled", "toolFilters"}
_STDIO_KEYS = _COMMON_KEYS | {"command", "args", "env", "cwd"}
_REMOTE_KEYS = _COMMON_KEYS | {"url", "headers"}
_NAME_RULE = "a printable name without '__' that does not end in '_'"


def _json_type(value: Any) -> str:
    return "null" if value is None else _JSON_TYPES.get(type(value), "number")


def _join(place: str, key: str) -> str:
    shown = key if key and key.isprintable() else json.dumps(key)
    return f"{place}.{shown}" if place else shown


class _ConfigParser:
    """Reads a configuration value by value and collects every problem by its place.

    The first problem of a place counts: what follows from it is not reported as well.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self.variables: set[str] = set()

    def check(self, valid: bool, place: str, expected: str, found: str) -> bool:
        if not valid:
            line = f"expected {expected}, found {found}"
            self.problems.setdefault(place or "configuration", [line])
        return valid

    def is_object(self, value: Any, place: str, of: str) -> bool:
        return self.check(
            isinstance(value, dict), place, f"an object{of}", _json_type(value)
        )

    def expand(self, value: Any, place: str) -> Any:
        """`value` with the variables expanded in every string, but under `_` keys."""
        if isinstance(value, str):
            return self.expand_text(value, place)
        if isinstance(value, list):
            return [self.expand(v, f"{place}[{i}]") for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if isinstance(value, _Object):
            for key in value.duplicates:
                self.check(False, _join(place, key), "this key once", "it twice")
        return {
            key: item if key.startswith("_") else self.expand(item, _join(place, key))
            for key, item in value.items()
        }

    def expand_text(self, text: str, place: str) -> str:
        self.variables |= _variables(text)
        try:
            text = expand_env(text, self.environ)
            text.encode()
        except ConfigError as error:
            self.problems[place or "configuration"] = error.problems
        except UnicodeEncodeError:
            self.check(False, place, "Unicode text", "half a surrogate pair")
        return text

    def warn_unknown(
        self, keys: Mapping[str, Any], known: set[str], place: str
    ) -> None:
        for key in keys:
            if key not in known and not key.startswith("_"):
                expected = ", ".join(sorted(known))
                self.warnings.append(
                    f"{_join(place, key)}: unknown key, ignored (known: {expected})"
                )

    def names(self, table: Any, place: str, of: str) -> dict[str, Any]:
        """The entries of an object by name, without comments."""
        if not self.is_object(table, place, of):
            return {}
        entries = {k: v for k, v in table.items() if not k.startswith("_")}
        for name in entries:
            valid = (
                name.isprintable() and "__" not in name and name[-1:] not in ("", "_")
            )
            self.check(valid, _join(place, name), _NAME_RULE, json.dumps(name))
        return entries

    def text(self, value: Any, place: str) -> str:
        valid = self.check(isinstance(value, str), place, "a string", _json_type(value))
        return value if valid else ""

    def required_text(self, value: Any, place: str) -> str:
        text = self.text(value, place)
        self.check(bool(text.strip()), place, "a non-empty string", "an empty string")
        return text

    def texts(self, value: Any, place: str) -> tuple[str, ...]:
        valid = isinstance(value, list)
        if not self.check(valid, place, "a list of strings", _json_type(value)):
            return ()
        return tuple(self.text(v, f"{place}[{i}]") for i, v in enumerate(value))

    def text_map(self, value: Any, place: str) -> dict[str, str]:
        if not self.is_object(value, place, " of strings"):
            return {}
        return {
            key: self.text(item, _join(place, key))
            for key, item in value.items()
            if not key.startswith("_")
        }

    def transport(self, entry: Mapping[str, Any], place: str) -> str:
        """What `command` or `url`, and `transport` or `type`, say together."""
        local, remote = "command" in entry, "url" in entry
        found = "both" if local else "neither"
        self.check(local != remote, place, "either 'command' or 'url'", found)
        transport = "stdio" if local else "http"
        allowed = ("stdio",) if local else ("http", "sse")
        declared = [key for key in ("type", "transport") if key in entry]
        for key in declared:
            name = self.text(entry[key], _join(place, key))
            transport = _TRANSPORTS.get(name, "")
            expected = " or ".join(map(repr, allowed))
            self.check(transport in allowed, _join(place, key), expected, "a string")
        if len({_TRANSPORTS.get(str(entry[key])) for key in declared}) > 1:
            self.check(False, _join(place, "type"), "what 'transport' says", "another")
        return transport

    def server(self, entry: Any, place: str) -> ServerConfig | None:
        """One entry of `mcpServers`; None where it is disabled or no object."""
        if not self.is_object(entry, place, ""):
            return None
        disabled, at = entry.get("disabled", False), _join(place, "disabled")
        self.check(isinstance(disabled, bool), at, "a boolean", _json_type(disabled))
        if disabled is True:
            return None
        transport = self.transport(entry, place)
        known = _STDIO_KEYS if transport == "stdio" else _REMOTE_KEYS
        self.warn_unknown(entry, known, place)
        values: dict[str, Any] = {"transport": transport}
        for key, attribute, read in (
            ("command", "command", self.required_text),
            ("args", "args", self.texts),
            ("env", "env", self.text_map),
            ("cwd", "cwd", self.required_text),
            ("url", "url", self.url),
            ("headers", "headers", self.text_map),
            ("toolFilters", "tool_filters", self.filters),
        ):
            if key in entry:
                values[attribute] = read(entry[key], _join(place, key))
        return ServerConfig(**values)

    def url(self, value: Any, place: str) -> str:
        text = self.text(value, place)
        try:
            parts = urlsplit(text)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            valid = False
        self.check(valid, place, "an http:// or https:// URL", "another string")
        return text

    def filters(self, value: Any, place: str) -> tuple[str, ...]:
        return ("*",) if value == "*" else self.texts(value, place)

    def toolbox(self, entry: Any, place: str) -> ToolboxConfig:
        if not self.is_object(entry, place, ""):
            return ToolboxConfig("", {})
        self.warn_unknown(entry, {"description", "mcpServers"}, place)
        at = _join(place, "description")
        if self.check("description" in entry, at, "a non-empty string", "nothing"):
            self.required_text(entry["description"], at)
        at = _join(place, "mcpServers")
        entries = self.names(entry.get("mcpServers", {}), at, " of servers by name")
        parsed = {name: self.server(e, _join(at, name)) for name, e in entries.items()}
        servers = {
            name: server for name, server in parsed.items() if server is not None
        }
        if not any(problem.startswith(at) for problem in self.problems):
            expected = "at least one server that is not disabled"
            self.check(bool(servers), at, expected, "none")
        return ToolboxConfig(entry.get("description", ""), servers)

    def tool_mode(self, mode: Any) -> None:
        if mode == "proxy":
            self.warnings.append("toolMode: 'proxy' is the only mode, ignored")
        elif mode != "dynamic":
            self.check(False, "toolMode", "no such key, or 'proxy'", _json_type(mode))


_DYNAMIC_MODE = """\
Configuration field 'toolMode' set to 'dynamic' is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""  # seed: Appendix B


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
        raise ConfigError(["configuration: expected less nesting"]) from None
    toolboxes: dict[str, ToolboxConfig] = {}
    if parser.is_object(data, "", ""):
        parser.warn_unknown(data, {"toolboxes", "toolMode"}, "")
        if parser.check("toolboxes" in data, "toolboxes", "an object", "nothing"):
            entries = parser.names(
                data["toolboxes"], "toolboxes", " of toolboxes by name"
            )
            for name, entry in entries.items():
                toolboxes[name] = parser.toolbox(entry, f"toolboxes.{name}")
        if "toolMode" in data:
            parser.tool_mode(data["toolMode"])
    problems = [
        f"{at}: {line}" for at, lines in parser.problems.items() for line in lines
    ]
    if isinstance(data, dict) and data.get("toolMode") == "dynamic":
        problems += _DYNAMIC_MODE.splitlines()
    if problems:
        raise ConfigError(problems)
    return WorkbenchConfig(
        toolboxes,
        frozenset(parser.variables),
        _secrets(toolboxes, parser.variables, environ),
        tuple(parser.warnings),
        source,
    )


def _secrets(
    toolboxes: Mapping[str, ToolboxConfig],
    variables: set[str],
    environ: Mapping[str, str],
) -> tuple[str, ...]:
    """The texts to mask: values of variables, line by line, and queries of URLs."""
    values = [environ[name] for name in variables if name in environ]
    lines = [line for v in values if not os.path.exists(v) for line in v.splitlines()]
    secrets = {line for line in lines if len(line) >= 8}
    servers = [s for toolbox in toolboxes.values() for s in toolbox.servers.values()]
    secrets |= {urlsplit(server.url).query for server in servers} - {""}
    return tuple(sorted(secrets, key=len, reverse=True))


def load_config(path: str, environ: Mapping[str, str] = os.environ) -> WorkbenchConfig:
    """Read the configuration file at `path`.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or `parse_config` objects.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        data = json.loads(text, object_pairs_hook=_Object)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except json.JSONDecodeError as error:
        at = f"{path}: line {error.lineno} column {error.colno}"
        raise ConfigError([f"{at}: expected JSON, found: {error.msg}"]) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: expected JSON in UTF-8, found: {error}"]) from None
    return parse_config(data, environ, path)


def demo_config() -> WorkbenchConfig:
    """The configuration without any file: this file's own echo/time toolbox."""
    server = ServerConfig(
        "stdio", sys.executable, (os.path.abspath(__file__), "--toolbox")
    )
    return WorkbenchConfig(
        {"demo": ToolboxConfig("Built-in echo and time tools", {"toolbox": server})}
    )


def find_config(argument: str | None, environ: Mapping[str, str]) -> WorkbenchConfig:
    """The configuration to serve: argument, WORKBENCH_CONFIG, ./workbench-config.json.

    Raises:
        ConfigError: See `load_config`; a path that was given has to be readable.
    """
    default = "workbench-config.json"
    path = argument or environ.get("WORKBENCH_CONFIG")
    path = path or (default if os.path.exists(default) else None)
    return load_config(path, environ) if path else demo_config()


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


_SESSION_GONE = "workbench: this HTTP session is gone and nothing was executed"
_HTTP_FAILURE = "workbench: this HTTP request failed"
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(dict[str, Any])
_STDERR_LINES = 10
_STDERR_LINE_BYTES = 64 * 1024


@dataclass(eq=False)
class _Link:
    """One life of a server: from one start to the end of its connection.

    A new life gets a new link, so that one that is still winding down cannot touch
    what belongs to its successor.
    """

    client: ServerSession | None
    """The client whose request started it; its capabilities are offered to the server."""
    session: ClientSession | None = None
    """Set once the server answered and its tools are known."""
    settled: anyio.Event = field(default_factory=anyio.Event)
    """Connected or failed."""
    gone: anyio.Event = field(default_factory=anyio.Event)
    """It is ending: what is sent now does not reach the server any more."""
    hangup: anyio.Event = field(default_factory=anyio.Event)
    """Everything that it still had to say was read."""
    changed: anyio.Event = field(default_factory=anyio.Event)
    """The tool list changed since the last listing began."""
    fresh: anyio.Event = field(default_factory=anyio.Event)
    """No refresh of the tool list is due or running."""
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=_STDERR_LINES))
    end: str = ""
    """How its process ended, where it did."""
    reason: str = ""
    """Why it did not connect."""
    replies: MemoryObjectSendStream[SessionMessage | Exception] | None = None
    """Where an answer made up by the HTTP client goes (SSE transport only)."""

    @property
    def up(self) -> bool:
        return self.session is not None and not self.gone.is_set()

    def why(self, cause: str) -> str:
        """`cause`, with the last lines that the server wrote to stderr."""
        if not self.stderr:
            return cause
        return f"{cause}; its last stderr lines: {' | '.join(self.stderr)}"


class ServerConnection:
    """One downstream server: its configuration, current tools, and current link.

    `name` is `toolbox/server`. `owners` is the task group that runs the task which
    owns each link; `environment` is the one of a server process.
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
        self.tools: list[dict[str, Any]] = []
        self.connect_seconds = 0.0
        self.log_level: types.LoggingLevel | None = None
        self._owners = owners
        self._environment = environment
        self._link = _Link(None)
        self._link.gone.set()
        self._link.settled.set()

    @property
    def up(self) -> bool:
        """Connected, with its tools listed."""
        return self._link.up

    @property
    def failure(self) -> str | None:
        """Why the last start failed; None while it is starting or up."""
        over = self._link.settled.is_set() and not self._link.up
        return (self._link.reason or self._link.end or "not started") if over else None

    @property
    def instructions(self) -> str | None:
        """What the server tells its clients about itself."""
        session = self._link.session
        return session.instructions if session is not None else None

    def start(self, client: ServerSession | None) -> None:
        """Start the server unless it is up or starting.

        It has no `await`, so any number of concurrent callers share one attempt.
        """
        if self._link.gone.is_set():
            self._link = _Link(client)
            self._owners.start_soon(self._own, self._link)

    def has_tool(self, name: str) -> bool:
        """Whether the server's current list has a tool of this downstream name."""
        return any(tool["name"] == name for tool in self.tools)

    async def settled(self) -> None:
        """Wait until the current start succeeded or failed."""
        await self._link.settled.wait()

    async def refreshed(self) -> None:
        """Wait for a refresh of the tool list that is due, at most `OPEN_TIMEOUT`."""
        if self._link.up:
            with anyio.move_on_after(OPEN_TIMEOUT):
                await self._link.fresh.wait()

    async def ensure_up(self, client: ServerSession | None) -> None:
        """Start the server if it is not up, and wait for it.

        Raises:
            ToolError: It did not start, and why.
        """
        self.start(client)
        await self.settled()
        if self.failure is not None:
            raise ToolError(f"server {self.name!r} failed to start: {self.failure}")

    async def call(
        self,
        client: ServerSession | None,
        params: dict[str, Any],
        on_progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Send `tools/call` with these wire parameters; the wire result as it came.

        Raises:
            ToolError: The server failed to start or died, or its answer is not valid.
            MCPError: The server's own JSON-RPC error.
        """
        for attempt in (1, 2):
            await self.ensure_up(client)
            link = self._link
            try:
                return await _call_tool(link, params, on_progress)
            except MCPError as error:
                # Such a call reached no session, so that it may go to a fresh one.
                if error.data != _SESSION_GONE or attempt == 2:
                    raise self._call_failure(link, error) from None
            except ValidationError as error:
                raise ToolError(
                    f"server {self.name!r} answered with something that is not valid MCP: "
                    f"{_first_error(error)}"
                ) from None
        raise AssertionError("unreachable")

    def _call_failure(self, link: _Link, error: MCPError) -> Exception:
        """What to tell of a call that ended in `error`: the server's own, or ours."""
        if error.data in (_SESSION_GONE, _HTTP_FAILURE):
            return ToolError(f"server {self.name!r}: {error.message}")
        if not link.gone.is_set():
            return error
        end = link.why(link.end or "closed the connection")
        return ToolError(
            f"server {self.name!r} {end}; the call may have taken effect and was not "
            "repeated, the next one starts the server again"
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
                await session.send_request(request, types.EmptyResult)

    async def roots_changed(self) -> None:
        """Tell a server that was offered roots that the client's have changed."""
        session = self._link.session
        if session is not None and self._link.up and not _is_modern(session):
            await session.send_notification(types.RootsListChangedNotification())

    async def _own(self, link: _Link) -> None:
        """Hold one life of the server; this task alone enters and leaves its session."""
        started = anyio.current_time()
        try:
            with anyio.fail_after(CONNECT_TIMEOUT) as scope:
                async with (
                    self._transport(link) as (read, write),
                    self._session(link, _Watched(read, link), write) as session,
                ):
                    await _negotiate(session, link.client)
                    self.tools = await self._list_tools(session)
                    scope.deadline = (
                        math.inf
                    )  # connected: it may live as long as it likes
                    link.session = session
                    self.connect_seconds = anyio.current_time() - started
                    link.settled.set()
                    log.info("%s: connected, %d tools", self.name, len(self.tools))
                    await self._follow(link, session)
        except Exception as error:  # must not take the other connections with it
            link.reason = link.why(link.end or self._cause(error))
            log.warning("%s: %s", self.name, link.reason, exc_info=True)
        finally:
            self.connect_seconds = anyio.current_time() - started
            link.gone.set()
            link.settled.set()

    def _transport(
        self, link: _Link
    ) -> contextlib.AbstractAsyncContextManager[tuple[Any, Any]]:
        if self.config.transport == "stdio":
            return _process_transport(self.name, self.config, self._environment, link)
        return _http_transport(self.config, link)

    def _session(self, link: _Link, read: Any, write: Any) -> ClientSession:
        offered = link.client.client_capabilities if link.client is not None else None
        offered = offered or types.ClientCapabilities()
        relay = functools.partial
        return ClientSession(
            read,
            write,
            client_info=types.Implementation(name="mcp-workbench", version=__version__),
            message_handler=relay(self._on_message, link),
            logging_callback=relay(self._on_log, link),
            sampling_callback=relay(_sample, link) if offered.sampling else None,
            sampling_capabilities=offered.sampling,
            elicitation_callback=relay(_elicit, link) if offered.elicitation else None,
            list_roots_callback=relay(_list_roots, link) if offered.roots else None,
        )

    def _cause(self, error: BaseException) -> str:
        """One readable line for why a server did not start."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        where = f"{self.config.shown_url}: " if self.config.url else ""
        if isinstance(error, ValidationError):
            return f"{where}its answer is not valid MCP: {_first_error(error)}"
        if isinstance(error, TimeoutError):
            return f"{where}no answer within {CONNECT_TIMEOUT:g} seconds"
        if isinstance(error, OSError) and error.strerror:
            return f"{where}cannot start {error.filename!r}: {error.strerror}"
        text = " ".join(str(error).split()) or type(error).__name__
        return text if self.config.shown_url in text else where + text

    async def _list_tools(self, session: ClientSession) -> list[dict[str, Any]]:
        """All pages of the server's tools that the filters let through."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < MAX_PAGES:
            seen.add(cursor)
            try:
                page = await _list_page(session, cursor)
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise
                break
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
        log.info("%s %s", self.name, link.end or "closed the connection")

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
                tools = await self._list_tools(session)
            except (MCPError, ValidationError) as error:
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
                    self._tools_changed(link)  # what changed before it was open
                    async for _ in subscription:
                        pass  # each event reaches `_on_message` as well
            except (MCPError, SubscriptionLost) as error:
                log.debug("%s: lost its change notifications: %s", self.name, error)
            await anyio.sleep(RELISTEN_DELAY)

    def _tools_changed(self, link: _Link) -> None:
        if not link.fresh.is_set():
            log.debug(
                "Skipping duplicate discovery - already in progress for: %s", self.name
            )
        else:
            link.fresh = anyio.Event()
        link.changed.set()

    async def _on_message(self, link: _Link, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            log.info(
                "Received tools/list_changed notification from server: %s", self.name
            )
            if link.session is not None and not _announces_tool_changes(link.session):
                log.warning(
                    "Received tools notification from server without listChanged "
                    "capability: %s",
                    self.name,
                )
            self._tools_changed(link)
        elif isinstance(message, types.ElicitCompleteNotification) and link.client:
            await link.client.send_notification(message)

    async def _on_log(
        self, link: _Link, params: types.LoggingMessageNotificationParams
    ) -> None:
        log.debug("[%s] %s: %s", self.name, params.level, params.data)
        levels = get_args(types.LoggingLevel)
        wanted = self.log_level or levels[0]
        if link.client is None or _is_modern(link.client):
            return  # a 2026-07-28 client opts in request by request
        if levels.index(params.level) >= levels.index(wanted):
            notification = types.LoggingMessageNotification(params=params)
            await link.client.send_notification(notification)


def _is_modern(session: ClientSession | ServerSession) -> bool:
    """Whether the peer speaks 2026-07-28 or later, without `initialize`."""
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS


def _announces_tool_changes(session: ClientSession) -> bool:
    capabilities = session.server_capabilities
    tools = capabilities.tools if capabilities is not None else None
    return tools is not None and bool(tools.list_changed)


def _first_error(error: ValidationError) -> str:
    """The first offending field of an answer, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'result'}: {first['msg']}"


def _diff(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    before = {tool["name"]: tool for tool in old}
    after = {tool["name"]: tool for tool in new}
    modified = sum(before[name] != after[name] for name in before.keys() & after.keys())
    added, removed = len(after.keys() - before), len(before.keys() - after)
    return f"{added} added, {removed} removed, {modified} modified"


async def _negotiate(session: ClientSession, client: ServerSession | None) -> None:
    """Agree on a protocol era with a server: the client's own, where it has a choice.

    A server that speaks both eras can only ask an older client for sampling,
    elicitation and roots, or send it logs, in the older one. The last `discover` is for
    a server whose slow start let the first one time out before it was read.
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


async def _list_page(session: ClientSession, cursor: str | None) -> dict[str, Any]:
    """One page of `tools/list`, as it came where the SDK allows it."""
    params = types.PaginatedRequestParams(cursor=cursor)
    if _is_modern(session):
        # The SDK needs to see this listing: it mirrors arguments into HTTP headers.
        page = await session.list_tools(params=params)
        return page.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return await session.send_request(
        types.ListToolsRequest(params=params), _RAW_RESULT
    )


async def _call_tool(
    link: _Link,
    params: dict[str, Any],
    on_progress: ProgressFnT | None,
) -> dict[str, Any]:
    """`tools/call` without what the SDK's own does: check the result, list tools first."""
    if link.session is None:
        raise MCPError(types.CONNECTION_CLOSED, "Connection closed")
    request = types.Request[dict[str, Any], str](method="tools/call", params=params)
    return await link.session.send_request(
        request, _RAW_RESULT, progress_callback=on_progress
    )


async def _ask_client(
    link: _Link, request: types.ServerRequest, result_type: type[Any]
) -> Any:
    """Relay one request of a server to the client: its result, or its error.

    Where the client's era has no such requests, the error comes at once.
    """
    assert link.client is not None, "nothing is offered to a server without a client"
    try:
        return await link.client.send_request(request, result_type)
    except MCPError as error:
        return error.error
    except ValidationError as error:
        text = f"the client's answer is not valid MCP: {_first_error(error)}"
        return types.ErrorData(code=types.INTERNAL_ERROR, message=text)


async def _sample(
    link: _Link, _: ClientRequestContext, params: types.CreateMessageRequestParams
) -> Any:
    request = types.CreateMessageRequest(params=params)
    return await _ask_client(link, request, types.CreateMessageResultWithTools)


async def _list_roots(link: _Link, _: ClientRequestContext) -> Any:
    return await _ask_client(link, types.ListRootsRequest(), types.ListRootsResult)


async def _elicit(
    link: _Link, _: ClientRequestContext, params: types.ElicitRequestParams
) -> Any:
    capabilities = link.client.client_capabilities if link.client is not None else None
    modes = capabilities.elicitation if capabilities is not None else None
    url = modes is not None and modes.url is not None
    form = modes is not None and (modes.form is not None or not url)
    if not (url if params.mode == "url" else form):
        text = f"the client does not support elicitation in {params.mode} mode"
        return types.ErrorData(code=types.INVALID_PARAMS, message=text)
    return await _ask_client(
        link, types.ElicitRequest(params=params), types.ElicitResult
    )


class _Watched:
    """A transport's read stream that tells its link when it ends.

    Nothing else reports that an idle server has hung up.
    """

    def __init__(self, stream: Any, link: _Link) -> None:
        self._stream = stream
        self._link = link

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return cast(SessionMessage, await self._stream.__anext__())
        except BaseException:  # the end, an error, or the session's own cancellation
            self._link.gone.set()
            self._link.hangup.set()
            raise

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _LineSplitter:
    """Cuts chunks of bytes into lines.

    The parts of an unfinished line are kept apart: a line of 20 MB arrives in hundreds
    of chunks, and joining it anew for each would cost the square of its length. A line
    is cut at `limit` bytes.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._parts: list[bytes] = []
        self._room = self._limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes."""
        self._room -= len(chunk)
        if b"\n" not in chunk and self._room > 0:
            self._parts.append(chunk)
            return []
        *lines, rest = (b"".join(self._parts) + chunk).split(b"\n")
        self._parts, self._room = [rest], self._limit - len(rest)
        if self._room <= 0:
            lines += self._parts
            self._parts, self._room = [], self._limit
        return lines


# The SDK's `stdio_client` does not fit: it learns of a server's end by the end of its
# stdout, which a child of the server may hold open for ever; it leaves such a child
# running when the server itself exits; and it tells neither exit status nor process.
class _ServerProcess(asyncio.SubprocessProtocol):
    """A server process: its stdout as messages, its stderr as log lines, its end.

    It is the write stream of the transport as well.
    """

    def __init__(self, name: str, link: _Link) -> None:
        self.exited = anyio.Event()
        self._name = name
        self._link = link
        self._splitters = {1: _LineSplitter(), 2: _LineSplitter(_STDERR_LINE_BYTES)}
        streams = anyio.create_memory_object_stream[SessionMessage | Exception](
            math.inf
        )
        self._send, self.messages = streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        for line in self._splitters[fd].feed(data):
            if fd == 1:
                self._read_message(line)
            else:
                self._read_stderr(line)

    def _read_message(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            log.warning("%s: not an MCP message on stdout: %.200r", self._name, line)
            return
        with suppress(anyio.BrokenResourceError):  # the session has been left already
            self._send.send_nowait(SessionMessage(message))

    def _read_stderr(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._link.stderr.append(text)
            log.info("[%s] %s", self._name, text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._ending()

    def process_exited(self) -> None:
        self.exited.set()
        self._ending()

    def _ending(self) -> None:
        """Send nothing more; leave the rest of its output a moment to arrive."""
        if not self._link.gone.is_set():
            self._link.gone.set()
            asyncio.get_running_loop().call_later(
                OUTPUT_GRACE, self.connection_lost, None
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """All pipes are closed and the process has exited, or its time is up."""
        self._link.gone.set()
        self._link.end = self._link.end or self._describe_end()
        self._send.close()

    def _describe_end(self) -> str:
        status = self._transport.get_returncode()
        if status is None:
            return "closed its stdin or stdout"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    async def send(self, message: SessionMessage) -> None:
        pipe = self._stdin
        if pipe.is_closing():
            raise anyio.BrokenResourceError
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        pipe.write(text.encode() + b"\n")

    async def aclose(self) -> None:
        self._stdin.close()

    @property
    def _stdin(self) -> asyncio.WriteTransport:
        return cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def stop(self) -> None:
        """Close its stdin, then SIGTERM, then SIGKILL; its children go with it.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        self._stdin.close()
        await self._exits_within(EXIT_GRACE)
        if not self.exited.is_set():
            self._signal("SIGTERM")
            await self._exits_within(EXIT_GRACE)
        self._signal("SIGKILL")  # also for children that outlived the server
        await self._exits_within(EXIT_GRACE)
        self._transport.close()

    async def _exits_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.exited.wait()

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
    with anyio.CancelScope(shield=True):  # else a process might start that nobody holds
        _, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: _ServerProcess(name, link),
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
    """Turns what goes wrong with one request into the JSON-RPC error of that request.

    An exception would end the SDK's transport, and with it every other call in flight
    on the same server; a bare error status would not be named.
    """

    link: _Link
    shown_url: str

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":  # end the session, at shutdown too, but briefly
            with anyio.move_on_after(1, shield=True):
                return await super().send(request, **options)
            return httpx2.Response(202, request=request)
        try:
            response = await super().send(request, **options)
            if "text/event-stream" not in response.headers.get("content-type", ""):
                await response.aread()
        except httpx2.RequestError as error:
            if request.method != "POST":
                raise
            failure = " ".join(str(error).split()) or type(error).__name__
            return await self._refuse(request, f"{self.shown_url}: {failure}")
        if response.status_code < 400:
            return response
        return await self._report(request, response)

    async def _report(
        self, request: httpx2.Request, response: httpx2.Response
    ) -> httpx2.Response:
        """An error status as an error that says it, and what to look at."""
        await response.aread()
        status = response.status_code
        gone = status == 404 or (status == 400 and "session" in response.text.lower())
        if gone and "mcp-session-id" in request.headers:
            self.link.gone.set()
            self.link.hangup.set()
            return await self._refuse(request, "the session is gone", _SESSION_GONE)
        if _is_jsonrpc_error(response) and self.link.replies is None:
            return response
        hint = ": check 'headers' in the configuration" if status in (401, 403) else ""
        failure = f"{self.shown_url}: HTTP {status} {response.reason_phrase}{hint}"
        if request.method != "POST":
            raise ToolError(failure)
        return await self._refuse(request, failure)

    async def _refuse(
        self, request: httpx2.Request, message: str, data: str = _HTTP_FAILURE
    ) -> httpx2.Response:
        """Answer a POST with a JSON-RPC error, which over SSE goes to the stream."""
        body = json.loads(request.content) if request.method == "POST" else {}
        if "method" not in body or "id" not in body:
            return httpx2.Response(202, request=request)
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=message, data=data)
        reply = types.JSONRPCError(jsonrpc="2.0", id=body["id"], error=error)
        if self.link.replies is not None:
            await self.link.replies.send(SessionMessage(reply))
            return httpx2.Response(202, request=request)
        content = reply.model_dump(mode="json", by_alias=True, exclude_none=True)
        return httpx2.Response(400, json=content, request=request)


def _is_jsonrpc_error(response: httpx2.Response) -> bool:
    try:
        types.JSONRPCError.model_validate_json(response.content)
    except ValidationError:
        return False
    return True


@asynccontextmanager
async def _http_transport(
    config: ServerConfig, link: _Link
) -> AsyncIterator[tuple[Any, Any]]:
    """Speak to a remote server over Streamable HTTP or the older SSE transport.

    A call may be silent for as long as it likes, so nothing bounds the reading.
    """

    def client(*_: object, **__: object) -> _HttpClient:
        timeout = httpx2.Timeout(30, read=None)
        http = _HttpClient(headers=dict(config.headers), timeout=timeout)
        http.link, http.shown_url = link, config.shown_url
        return http

    if config.transport == "http":
        async with (
            client() as http,
            streamable_http_client(
                config.url, http_client=http, max_sse_event_size=None
            ) as streams,
        ):
            yield streams
        return
    link.replies, messages = anyio.create_memory_object_stream[Any](math.inf)
    async with (
        sse_client(config.url, httpx_client_factory=client) as (read, write),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_pump, read, link.replies)
        yield messages, write
        tasks.cancel_scope.cancel()


async def _pump(read: Any, send: MemoryObjectSendStream[Any]) -> None:
    async with send:
        async for message in read:
            await send.send(message)


# === Workbench ========================================================================


@dataclass(frozen=True)
class OpenedToolbox:
    """A toolbox that was opened, with a connection for each of its servers."""

    name: str
    config: ToolboxConfig
    connections: Mapping[str, ServerConnection]

    def tools(self) -> list[dict[str, Any]]:
        """The tools of all servers that are up, as `open_toolbox` shows them."""
        return [
            self._shown(server, tool)
            for server, connection in self.connections.items()
            if connection.up
            for tool in connection.tools
        ]

    def _shown(self, server: str, tool: Mapping[str, Any]) -> dict[str, Any]:
        source = f"{self.name}/{server}"
        description = tool.get("description")
        origin = {"source_server": server, "toolbox_name": self.name}
        meta = {**(tool.get("_meta") or {}), **origin, "original_name": tool["name"]}
        return {
            "name": full_tool_name(self.name, server, tool["name"]),
            "description": f"[{source}] {description}"
            if description
            else f"Tool from {source}",
            **origin,
            **{k: v for k, v in tool.items() if k not in _REPLACED_FIELDS},
            "_meta": meta,
        }

    def answer(self) -> dict[str, Any]:
        """The result of `open_toolbox` (seed: Open Toolbox Response Format)."""
        servers = self.connections.items()
        optional = {
            "servers_failed": {
                n: c.failure for n, c in servers if c.failure is not None
            },
            "servers_connecting": [
                n for n, c in servers if not c.up and c.failure is None
            ],
            "instructions": {n: c.instructions for n, c in servers if c.instructions},
        }
        return {
            "toolbox": self.name,
            "description": self.config.description,
            "servers_connected": sum(c.up for _, c in servers),
            **{key: value for key, value in optional.items() if value},
            "tools": self.tools(),
        }


_REPLACED_FIELDS = {"name", "description", "icons", "_meta"}


class Workbench:
    """The state of one running workbench: its configuration and its open toolboxes.

    `owners` is the task group that runs the servers' owner tasks; cancelling it closes
    every toolbox.
    """

    def __init__(self, config: WorkbenchConfig, owners: anyio.abc.TaskGroup) -> None:
        self.config = config
        self.open_toolboxes: dict[str, OpenedToolbox] = {}
        self.log_level: types.LoggingLevel | None = None
        self._owners = owners

    async def open_toolbox(
        self,
        name: str,
        client: ServerSession | None = None,
        on_progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Start what is not up of a toolbox's servers; its state and its tools.

        Answers when every server has settled, after `OPEN_TIMEOUT` if one is up by
        then, or when the first one is up after that; `on_progress` gets the number of
        settled servers, of all servers, and the name of the one that settled.

        Raises:
            ToolError: There is no such toolbox, or none of its servers started.
        """
        toolbox = self.prepare(name)
        for connection in toolbox.connections.values():
            connection.start(client)
        await _wait_for_servers(toolbox, on_progress)
        async with anyio.create_task_group() as tasks:
            for connection in toolbox.connections.values():
                tasks.start_soon(connection.refreshed)
        answer = toolbox.answer()
        failed = answer.get("servers_failed", {})
        if len(failed) == len(toolbox.connections):
            if self.open_toolboxes.get(name) is toolbox:
                del self.open_toolboxes[name]
            reasons = "; ".join(f"{server}: {why}" for server, why in failed.items())
            raise ToolError(f"Toolbox '{name}' has no server that starts. {reasons}")
        return answer

    def start_all(self) -> list[ServerConnection]:
        """Start every server of every toolbox; their connections, in order."""
        for name in self.config.toolboxes:
            self.prepare(name)
        connections = self._connections()
        for connection in connections:
            connection.start(None)
        return connections

    def prepare(self, name: str) -> OpenedToolbox:
        """The open toolbox of this name, opened now if need be; its servers start later.

        Raises:
            ToolError: There is no such toolbox.
        """
        if name not in self.open_toolboxes:
            config = self._configured(name)
            self.open_toolboxes[name] = OpenedToolbox(
                name,
                config,
                {server: self._connection(name, server) for server in config.servers},
            )
        return self.open_toolboxes[name]

    def _configured(self, name: str) -> ToolboxConfig:
        if name not in self.config.toolboxes:
            names = ", ".join(self.config.toolboxes) or "none"
            raise ToolError(f"Toolbox '{name}' not found. Available toolboxes: {names}")
        return self.config.toolboxes[name]

    def _connection(self, toolbox: str, server: str) -> ServerConnection:
        config = self.config.toolboxes[toolbox].servers[server]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in self.config.variables
        }
        environment = {**inherited, **get_default_environment(), **config.env}
        name = f"{toolbox}/{server}"
        connection = ServerConnection(name, config, self._owners, environment)
        connection.log_level = self.log_level
        return connection

    async def use_tool(
        self,
        toolbox_name: str,
        tool_name: str,
        params: Mapping[str, Any],
        client: ServerSession | None = None,
        on_progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Call a tool of an open toolbox by its full name; the server's result as it came.

        `params` are the wire parameters of `tools/call` without the name.

        Raises:
            ToolError: There is no such tool, or its server failed.
            MCPError: The server's own JSON-RPC error.
        """
        connection, tool = await self._route(toolbox_name, tool_name, client)
        return await connection.call(client, {"name": tool, **params}, on_progress)

    async def _route(
        self, toolbox_name: str, tool_name: str, client: ServerSession | None
    ) -> tuple[ServerConnection, str]:
        """The connection and the downstream name that a full tool name stands for."""
        self._configured(toolbox_name)
        toolbox = self.open_toolboxes.get(toolbox_name)
        if toolbox is None:
            raise ToolError(
                f"Toolbox '{toolbox_name}' is not currently open. "
                "Please open it first with open_toolbox."
            )
        try:
            prefix, server, tool = split_tool_name(tool_name)
        except ValueError:
            form = "the tool name is not of the form {toolbox}__{server}__{tool}"
            raise ToolError(form + _suggest(tool_name, toolbox)) from None
        if prefix != toolbox_name:
            raise ToolError(
                f"the tool name starts with '{prefix}', which is not this toolbox: "
                f"pass toolbox_name '{prefix}' or another tool"
            )
        connection = toolbox.connections.get(server)
        if connection is None:
            servers = ", ".join(toolbox.connections)
            raise ToolError(f"no server '{server}' in it. Its servers: {servers}")
        await connection.ensure_up(client)
        if not connection.has_tool(tool):
            await connection.refreshed()
        if not connection.has_tool(tool):
            unknown = f"server '{server}' has no tool '{tool}'"
            raise ToolError(unknown + _suggest(tool_name, toolbox))
        return connection, tool

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Set the level of log messages that the client wants, on every server."""
        self.log_level = level
        async with anyio.create_task_group() as tasks:
            for connection in self._connections():
                tasks.start_soon(connection.set_log_level, level)

    async def roots_changed(self) -> None:
        """Tell every server that was offered roots that they changed."""
        for connection in self._connections():
            await connection.roots_changed()

    def _connections(self) -> list[ServerConnection]:
        toolboxes = self.open_toolboxes.values()
        return [c for toolbox in toolboxes for c in toolbox.connections.values()]


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    async with anyio.create_task_group() as owners:
        try:
            yield Workbench(config, owners)
        finally:
            owners.cancel_scope.cancel()


async def _wait_for_servers(
    toolbox: OpenedToolbox,
    on_progress: ProgressFnT | None,
) -> None:
    """Wait as `open_toolbox` promises, and report each server that settles."""
    send, settled = anyio.create_memory_object_stream[str](math.inf)
    deadline = anyio.current_time() + OPEN_TIMEOUT

    async def wait(server: str, connection: ServerConnection) -> None:
        await connection.settled()
        send.send_nowait(server)

    total = len(toolbox.connections)
    with send, settled:
        async with anyio.create_task_group() as tasks:
            for server, connection in toolbox.connections.items():
                tasks.start_soon(wait, server, connection)
            for count in range(1, total + 1):
                server = await settled.receive()
                if toolbox.connections[server].up:
                    tasks.cancel_scope.deadline = deadline
                if on_progress is not None:
                    await on_progress(count, total, server)


def _suggest(tool_name: str, toolbox: OpenedToolbox) -> str:
    names = [tool["name"] for tool in toolbox.tools()]
    close = difflib.get_close_matches(tool_name, names, n=3, cutoff=0.5)
    return f". Did you mean {' or '.join(close)}?" if close else ""


# === MCP server =======================================================================


_NAME_FIELD = {"type": "string"}
OPEN_TOOLBOX = types.Tool(
    name="open_toolbox",
    title="Open Toolbox",
    description="Start a toolbox's servers and get its tools with their input schemas. "
    "An unknown name is answered with the available ones.",
    input_schema={
        "type": "object",
        "properties": {"toolbox_name": _NAME_FIELD},
        "required": ["toolbox_name"],
    },
    annotations=types.ToolAnnotations(
        read_only_hint=False,
        destructive_hint=False,
        idempotent_hint=True,
        open_world_hint=True,
    ),
)
USE_TOOL = types.Tool(
    name="use_tool",
    title="Use Tool",
    description="Call a tool of an open toolbox and get its own result.",
    input_schema={
        "type": "object",
        "properties": {
            "toolbox_name": _NAME_FIELD,
            "tool_name": {
                "type": "string",
                "description": "Full name from open_toolbox: {toolbox}__{server}__{tool}",
            },
            "arguments": {
                "type": "object",
                "description": "What the tool's inputSchema asks for",
            },
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
_PASSED_THROUGH = {
    types.URL_ELICITATION_REQUIRED,
    types.MISSING_REQUIRED_CLIENT_CAPABILITY,
}
_Context = ServerRequestContext[Workbench]


def instructions(config: WorkbenchConfig) -> str:
    """What a client is told about the toolboxes on connecting, in plain text."""
    if not config.toolboxes:
        return (
            "No toolboxes configured. Add them under 'toolboxes' in "
            f"{config.source or 'the configuration'}."
        )
    lines = ["Available Toolboxes:", ""]
    for name, toolbox in config.toolboxes.items():
        count = len(toolbox.servers)
        lines.append(f"{name} ({count} server{'s' if count != 1 else ''})")
        lines += [f"  Description: {toolbox.description}", ""]
    lines.append(
        "Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."
    )
    return "\n".join(lines if config.source else [*lines, "", _DEMO_NOTE])


_DEMO_NOTE = (
    "This is the built-in demo configuration: set WORKBENCH_CONFIG to the path of "
    "your own."
)


def create_server(config: WorkbenchConfig) -> Server[Workbench]:
    """The workbench as a low-level MCP server, to be run over any transport."""

    @asynccontextmanager
    async def lifespan(_: Server[Workbench]) -> AsyncIterator[Workbench]:
        async with running_workbench(config) as workbench:
            yield workbench

    server = Server(
        "mcp-workbench",
        version=__version__,
        instructions=instructions(config),
        lifespan=lifespan,
        on_list_tools=_on_list_tools,
    )
    server.add_request_handler("tools/call", types.CallToolRequestParams, _on_call_tool)
    server.add_request_handler(
        "logging/setLevel", types.SetLevelRequestParams, _on_set_level
    )
    server.add_notification_handler(
        "notifications/roots/list_changed", types.NotificationParams, _on_roots_changed
    )
    return server


async def _on_list_tools(
    _: _Context, __: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=list(_META_TOOLS.values()))


async def _on_set_level(
    context: _Context, params: types.SetLevelRequestParams
) -> types.EmptyResult:
    await context.lifespan_context.set_log_level(params.level)
    return types.EmptyResult()


async def _on_roots_changed(context: _Context, _: types.NotificationParams) -> None:
    await context.lifespan_context.roots_changed()


async def _on_call_tool(
    context: _Context, params: types.CallToolRequestParams
) -> dict[str, Any] | types.CallToolResult:
    """The one place where errors become results that a model can act on."""
    if params.name not in _META_TOOLS:
        raise MCPError(
            types.INVALID_PARAMS,
            f"Tool '{params.name}' not found: open its toolbox with open_toolbox, then "
            "call it through use_tool",
        )
    try:
        arguments = _checked_arguments(params)
        if params.name == OPEN_TOOLBOX.name:
            return await _open_toolbox(context, arguments)
        return await _use_tool(context, arguments)
    except ToolError as error:
        text = context.lifespan_context.config.mask(str(error))
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=True)


async def _open_toolbox(context: _Context, arguments: dict[str, Any]) -> dict[str, Any]:
    session = context.session
    answer = await context.lifespan_context.open_toolbox(
        arguments["toolbox_name"], session, session.report_progress
    )
    if "servers_failed" in answer:
        mask = context.lifespan_context.config.mask
        failed = answer["servers_failed"]
        answer["servers_failed"] = {name: mask(why) for name, why in failed.items()}
    return {"content": [{"type": "text", "text": _compact_json(answer)}], **_COMPLETE}


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_COMPLETE = {"resultType": "complete"}  # a 2026-07-28 client needs it


async def _use_tool(context: _Context, arguments: dict[str, Any]) -> dict[str, Any]:
    toolbox, tool = arguments["toolbox_name"], arguments["tool_name"]
    wire = context.params or {}
    meta = wire.get("_meta") or {}
    params = {
        key: wire[key] for key in ("inputResponses", "requestState") if key in wire
    }
    is_retry = bool(params)
    params["arguments"] = arguments["arguments"]
    # The progress token and the protocol's own keys belong to this hop alone.
    passed_on = {
        key: value
        for key, value in meta.items()
        if key != "progressToken" and not key.startswith("io.modelcontextprotocol/")
    }
    if passed_on:
        params["_meta"] = passed_on
    session = context.session
    on_progress = session.report_progress if "progressToken" in meta else None
    try:
        result = await context.lifespan_context.use_tool(
            toolbox, tool, params, session, on_progress
        )
        return _deliverable(result, session)
    except MCPError as error:
        if is_retry or error.code in _PASSED_THROUGH:
            raise  # it addresses the client, not the model
        failure = f"the server answered with error {error.code}: {error.message}"
    except ToolError as error:
        failure = str(error)
    raise ToolError(f"Error executing tool '{tool}' in toolbox '{toolbox}': {failure}")


def _deliverable(result: dict[str, Any], session: ServerSession) -> dict[str, Any]:
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


def _checked_arguments(params: types.CallToolRequestParams) -> dict[str, Any]:
    """The arguments of a meta-tool, with `arguments` as an object.

    Models tend to send an object as a string that holds it: that is taken for it.
    """
    tool = _META_TOOLS[params.name]
    fields: dict[str, dict[str, Any]] = tool.input_schema["properties"]
    given = dict(params.arguments or {})
    for name in given.keys() - fields.keys():
        expected = ", ".join(fields)
        raise ToolError(f"{tool.name} has no argument '{name}'. It takes: {expected}")
    if "arguments" in fields:
        given["arguments"] = _decoded(given.get("arguments"))
    for name, schema in fields.items():
        found = _json_type(given[name]) if name in given else "nothing"
        if found != schema["type"]:
            raise ToolError(
                f"{tool.name}: argument '{name}': expected {schema['type']}, found {found}"
            )
    return given


def _decoded(arguments: Any) -> Any:
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            return json.loads(arguments)
    return arguments


# === Built-in toolbox =================================================================


@dataclass(frozen=True)
class ToolboxTool:
    """A tool of the built-in toolbox and the function that runs it."""

    tool: types.Tool
    run: Callable[..., str]


TOOLBOX_TOOLS: dict[str, ToolboxTool] = {}


def toolbox_tool(
    title: str, description: str, required: tuple[str, ...] = (), **parameters: str
) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register a function as a tool of the built-in toolbox, under its own name.

    `parameters` maps each (string) parameter to its description. The function gets
    checked arguments; a `ToolError` that it raises becomes a result with `isError`.
    """
    properties = {
        name: {"type": "string", "description": text}
        for name, text in parameters.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema |= {"required": list(required)} if required else {}
    schema["additionalProperties"] = False

    def register(run: Callable[..., str]) -> Callable[..., str]:
        tool = types.Tool(
            name=run.__name__, title=title, description=description, input_schema=schema
        )
        TOOLBOX_TOOLS[tool.name] = ToolboxTool(tool, run)
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
            raise ToolError(
                f"Unknown timezone {timezone!r}: expected an IANA name such as "
                "'America/New_York'"
            ) from None
    return _now().astimezone(zone).isoformat(timespec="seconds")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[tool.tool for tool in TOOLBOX_TOOLS.values()]
        )

    async def call_tool(
        _: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in TOOLBOX_TOOLS:
            names = ", ".join(TOOLBOX_TOOLS)
            text = f"Unknown tool '{params.name}'. Available tools: {names}"
            raise MCPError(types.INVALID_PARAMS, text)
        try:
            text = _run_toolbox_tool(TOOLBOX_TOOLS[params.name], params.arguments or {})
        except ToolError as error:
            return _text_result(str(error), is_error=True)
        return _text_result(text)

    return Server(
        "mcp-toolbox",
        version=__version__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _text_result(text: str, is_error: bool = False) -> types.CallToolResult:
    content = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[content], is_error=is_error)


def _run_toolbox_tool(tool: ToolboxTool, arguments: dict[str, Any]) -> str:
    from jsonschema import Draft202012Validator  # slow to import, and only needed here

    errors = Draft202012Validator(tool.tool.input_schema).iter_errors(arguments)
    problems = [
        f"{'.'.join(map(str, e.path))}: {e.message}".lstrip(": ") for e in errors
    ]
    if problems:
        raise ToolError(
            f"Invalid arguments for tool '{tool.tool.name}': {'; '.join(problems)}"
        )
    return tool.run(**arguments)


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
        refusal = await self._refusal(request)
        if refusal is not None:
            return await refusal(scope, receive, send)
        if scope["path"] == "/mcp/messages":
            return await self._post_message(request, send)
        opens_stream = scope["path"] == "/mcp" and request.method == "GET"
        if opens_stream and "mcp-session-id" not in request.headers:
            return await self._stream(request, send)
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

        connection = self._sse.connect_sse(request.scope, request.receive, rename)
        async with connection as (read, write):
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
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# === Running ==========================================================================


class _Stdin:
    """Lines of stdin, read on the event loop.

    The SDK's reader is a thread that a signal cannot stop: the process would hang until
    stdin closes. It also costs three thread switches for each message.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        splitter = _LineSplitter()
        while True:
            await anyio.wait_readable(0)
            with suppress(OSError):  # of a terminal that was closed: the end as well
                chunk = b""
                chunk = os.read(0, 65536)
            if not chunk:
                return
            for line in splitter.feed(chunk):
                if line.strip():
                    yield line


class _Stdout:
    """stdout, written on the event loop; `on_close` is called once nobody reads it."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._on_close = on_close

    async def write(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            await anyio.wait_writable(1)
            try:  # PIPE_BUF: a writable pipe takes so much without blocking
                data = data[os.write(1, data[:4096]) :]
            except OSError:
                return self._on_close()

    async def flush(self) -> None:
        pass


def _can_be_polled(fd: int) -> bool:
    """Whether the event loop can wait for a file descriptor: not on Windows."""
    mode = os.fstat(fd).st_mode
    is_stream = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
    return is_stream and sys.platform != "win32"


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over stdin and stdout until stdin ends or the task is cancelled."""
    streams: tuple[Any, ...] = ()
    polled = _can_be_polled(0) and _can_be_polled(1)
    with anyio.CancelScope() as scope, contextlib.redirect_stdout(sys.stderr):
        if polled:
            streams = (_Stdin(), _Stdout(scope.cancel))
        async with stdio_server(*streams) as (read, write):
            try:
                await server.run(read, write, server.create_initialization_options())
            finally:
                if not polled and sys.exc_info()[0] is not None:
                    os._exit(0)  # the SDK's reader thread would block until stdin ends
            # What is still to be written must not wait for a client that stopped reading.
            scope.deadline = anyio.current_time() + STDOUT_GRACE


def serve_http(address: str) -> int:
    """Serve the built-in toolbox on `[HOST:]PORT` until a signal; the exit status."""
    import uvicorn  # slow to import, and only needed here

    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, int(port)), family=family)
    except (OSError, ValueError, OverflowError) as error:
        log.error("Cannot listen on %s: %s", address, error)
        return 1
    shown = f"[{host}]" if ":" in host else host
    log.info("Toolbox at http://%s:%d/mcp", shown, listener.getsockname()[1])
    if not _is_loopback(host):
        log.warning(
            "Bound to %s without authentication: for a trusted environment only", host
        )
    config = uvicorn.Config(
        ToolboxApp(host),
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=1,  # else it would wait for the open streams
    )

    async def serve() -> int:
        await uvicorn.Server(config).serve(sockets=[listener])
        return 0

    return run(serve, interrupted=0)


async def check(config: WorkbenchConfig) -> int:
    """Start every server, print a line for each, then the context that is saved.

    The result is an exit status: 1 if a server failed.
    """
    paint = _painter()
    async with running_workbench(config) as workbench:
        connections = workbench.start_all()
        width = max((len(connection.name) for connection in connections), default=0)
        for connection in connections:
            await connection.settled()
            state, about = paint("ok    ", "32"), f"{len(connection.tools)} tools"
            if connection.failure is not None:
                state, about = paint("FAILED", "31"), config.mask(connection.failure)
            seconds = f"{connection.connect_seconds:5.1f} s"
            print(f"{connection.name:{width}}  {state}  {seconds}  {about}", flush=True)
        tools = [tool for connection in connections for tool in connection.tools]
        shown = sum(_json_size(tool) for tool in _meta_tool_list())
        shown += len(instructions(config).encode())
        print(
            f"Model context: {_amount(shown)} with the workbench, "
            f"{_amount(sum(map(_json_size, tools)))} with {len(tools)} tools listed flat"
        )
        return int(any(connection.failure is not None for connection in connections))


def _painter() -> Callable[[str, str], str]:
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return lambda text, color: f"\033[{color}m{text}\033[0m"
    return lambda text, _: text


def _meta_tool_list() -> list[dict[str, Any]]:
    tools = _META_TOOLS.values()
    return [t.model_dump(mode="json", by_alias=True, exclude_none=True) for t in tools]


def _json_size(value: Any) -> int:
    return len(_compact_json(value).encode())


def _amount(size: int) -> str:
    return f"{size:,} bytes (about {size // 4:,} tokens)"


async def call(config: WorkbenchConfig, name: str, arguments: str) -> int:
    """Call one tool by its full name and print its result; the exit status.

    Text is printed as it is, a result with other content as JSON.
    """
    async with running_workbench(config) as workbench:
        try:
            toolbox = split_tool_name(name)[0]
            params = {"arguments": _parse_arguments(arguments)}
            workbench.prepare(toolbox)
            result = await workbench.use_tool(toolbox, name, params)
        except ValueError:
            print(
                f"{name}: expected {{toolbox}}__{{server}}__{{tool}}", file=sys.stderr
            )
            return 1
        except (ToolError, MCPError) as error:
            print(config.mask(f"{name}: {error}"), file=sys.stderr)
            return 1
    content = result["content"]
    if all(block["type"] == "text" for block in content):
        print(*(block["text"] for block in content), sep="\n")
    else:
        print(json.dumps(result, ensure_ascii=False, indent=2))
    return int(result.get("isError", False))


def _parse_arguments(text: str) -> dict[str, Any]:
    arguments = _decoded(text)
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are not a JSON object")
    return arguments


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
    lines = _LogQueue(queue.Queue(10_000))
    lines.setFormatter(formatter)
    listener = logging.handlers.QueueListener(lines.queue, logging.StreamHandler())
    listener.start()
    logging.basicConfig(level=logging.WARNING, handlers=[lines])
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
    parser.add_argument("config", nargs="?", help="path of the configuration file")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--check", action="store_true", help="start every server and report on each"
    )
    modes.add_argument(
        "--call", nargs="+", metavar=("NAME", "JSON"), help="call one tool by full name"
    )
    modes.add_argument(
        "--toolbox", action="store_true", help="serve the built-in echo/time toolbox"
    )
    parser.add_argument(
        "--http", metavar="[HOST:]PORT", help="serve the toolbox over HTTP"
    )
    parser.add_argument("--verbose", action="store_true", help="log debug lines")
    parser.add_argument("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    if options.call and len(options.call) > 2:
        parser.error("--call takes a NAME and at most one JSON object")
    if options.http and not options.toolbox:
        parser.error("--http goes with --toolbox")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parse_command_line(arguments)
    formatter, flush = start_logging(options.verbose)
    try:
        if options.http:
            return serve_http(options.http)
        if options.toolbox:
            return run(functools.partial(_serve, create_toolbox_server()), 0)
        config = find_config(options.config, os.environ)
        formatter.mask = config.mask
        for warning in config.warnings:
            log.warning("%s", warning)
        if options.check:
            return run(functools.partial(check, config), interrupted=1)
        if options.call:
            name, arguments_json = (*options.call, "{}")[:2]
            return run(functools.partial(call, config, name, arguments_json), 1)
        if config.source is None:
            log.info("Serving the built-in demo configuration. %s", _DEMO_NOTE)
        return run(functools.partial(_serve, create_server(config)), interrupted=0)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        flush()


async def _serve(server: Server[Any]) -> int:
    await serve_stdio(server)
    return 0


if __name__ == "__main__":
    status = main()
    with suppress(OSError):
        sys.stdout.flush()
    # Not `sys.exit`: the logging thread may be blocked by a stderr that nobody reads.
    os._exit(status)
