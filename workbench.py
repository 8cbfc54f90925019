# /// script
# requires-python = ">=3.11"
# dependencies = ["mcp>=2.3,<3"]
# ///
"""MCP Workbench: one MCP server in front of many, grouped into named toolboxes.

A model sees two meta-tools: `open_toolbox` starts a toolbox's servers and returns their
tools, `use_tool` calls one by its full name, `{toolbox}__{server}__{tool}`.

    python workbench.py [CONFIG]                     serve over stdio
    python workbench.py [CONFIG] --check             start every server, report on each
    python workbench.py [CONFIG] --call NAME [JSON]  call one tool
    python workbench.py --toolbox [--http PORT]      serve the built-in echo/time tools

Without CONFIG: WORKBENCH_CONFIG, else ./workbench-config.json, else a built-in demo.

The protocol has two eras. In the older one (up to 2025-11-25) a client begins with
`initialize`, and a server may ask and log at any time; in the newer one (2026-07-28)
there is `server/discover`, and a server's questions are the result of a call, which
is repeated with the answers. https://modelcontextprotocol.io/specification
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import difflib
import fnmatch
import functools
import inspect
import json
import logging
import math
import os
import re
import select
import signal
import sys
import zoneinfo
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn, cast, get_args

# asyncio and anyio are both here: the SDK is written on anyio, whose cancel scopes also
# serve us, while processes and pipes on the event loop are asyncio's alone.
try:
    import tomllib

    import anyio.abc
    import httpx2
    import uvicorn
    from mcp import Client, ClientSession, MCPError, ServerSession, types
    from mcp.client.session import IncomingMessage
    from mcp.client.stdio import get_default_environment
    from mcp.os.win32.utilities import get_windows_executable_command
    from mcp.server.lowlevel.server import Server
    from mcp.server.sse import SseServerTransport
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.message import SessionMessage
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS
    from pydantic import BeforeValidator, Field, TypeAdapter
    from pydantic_core import ArgsKwargs, ValidationError, from_json, to_json
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    how = "pip install 'mcp>=2.3,<3', or start it with: uv run workbench.py"
    sys.exit(f"workbench.py needs Python 3.11 and mcp 2.3 or newer ({error}): {how}")

__version__ = "0.10.0"

# In seconds. A client closes our stdin, waits 2 s, sends SIGTERM, waits 2 s and kills:
# so 2 * EXIT_GRACE + DRAIN_TIMEOUT < EXIT_TIMEOUT < 4.
OPEN_TIMEOUT = 5.0  # then `open_toolbox` answers with the servers that are up
ANSWER_TIMEOUT = 50.0  # for servers to start: clients give up on a request at 60
CONNECT_TIMEOUT = 180.0  # a first `npx` or `uvx` downloads its package
REPLY_TIMEOUT = 10.0  # of a remote server, to be connected to; of any, to be probed
EXIT_GRACE = 1.0  # between the end of a server's stdin, SIGTERM and SIGKILL
EXIT_TIMEOUT = 3.2  # from a signal or the end of stdin, whatever may still hang
DRAIN_TIMEOUT = 0.25  # of a process's output, after the first sign of its end

ANSWER_LIMIT = 20_000  # characters of an answer of `open_toolbox`
MAX_PAGES = 250  # of one `tools/list`, before its server is taken to be looping

log = logging.getLogger("workbench")
JSON = dict[str, Any]  # an object, as it is on the wire


# === Configuration ====================================================================
# From a file, ours or another client's, to a `WorkbenchConfig` that needs no more
# checks: every problem is collected with its place, and told at once.


class ConfigError(SystemExit):
    """A configuration that cannot be used: its file, then all its problems, by line."""


@dataclass(frozen=True)
class ServerConfig:
    """One downstream server: a process (`command`) or a remote endpoint (`url`)."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: str = ""  # of a URL: `sse`, or else Streamable HTTP
    tool_filters: tuple[str, ...] = ("*",)
    excluded_tools: tuple[str, ...] = ()

    def allows(self, tool: str) -> bool:
        """Whether the downstream tool of this name may be seen and called."""
        fits = functools.partial(fnmatch.fnmatchcase, tool)
        if any(map(fits, self.excluded_tools)):
            return False
        return any(map(fits, self.tool_filters))


@dataclass(frozen=True)
class ToolboxConfig:
    """A named group of servers that are opened together."""

    description: str
    servers: Mapping[str, ServerConfig]


@dataclass(frozen=True)
class WorkbenchConfig:
    """A checked configuration, with its `${VAR}` references expanded."""

    toolboxes: Mapping[str, ToolboxConfig]
    variables: Mapping[str, str] = field(default_factory=dict)  # withheld from servers
    secrets: tuple[str, ...] = ()  # the longest first: it may contain another
    source: str = ""  # its file

    def mask(self, text: str) -> str:
        """A text fit to be shown, without secrets and control characters."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return _CONTROLS.sub(" ", text)


_TABLE_KEYS = ("toolboxes", "mcpServers", "servers", "context_servers", "mcp_servers")
# The fields of a `ServerConfig`, their types, and the keys that clients use for them.
_FIELDS: dict[str, tuple[type, str]] = {
    "command": (str, "command"),
    "args": (list, "args"),
    "env": (dict, "env"),
    "cwd": (str, "cwd"),
    "url": (str, "url serverUrl httpUrl"),
    "headers": (dict, "headers"),
    "transport": (str, "transport type"),
    "tool_filters": (list, "toolFilters includeTools enabled_tools tools"),
    "excluded_tools": (list, "excludeTools disabledTools disabled_tools"),
}
_KNOWN_KEYS = {"description", "mcpServers", "disabled", "enabled"}
_KNOWN_KEYS |= {key for _, keys in _FIELDS.values() for key in keys.split()}
_TYPE_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
_TYPE_NAMES |= {bool: "a boolean", type(None): "nothing"}
_VARIABLE = r"\$\{(?:env:)?([A-Z_][A-Z0-9_]*)"
_FOREIGN = r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*\b"
_REFERENCE = re.compile(rf"{_VARIABLE}(?::-([^}}]*))?\}}|({_FOREIGN})|\$\{{")
# Editors write JSON with comments and trailing commas; in a string, neither is one.
_COMMENT = r"//[^\n]*|/\*.*?\*/"
_NOISE = rf'(?s)("(?:[^"\\]|\\.)*")|{_COMMENT}|,(?=(?:\s|{_COMMENT})*+[\]}}])'
# Terminal sequences and control characters, all but the line feed.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_UNKNOWN_MODE = """\
Configuration field 'toolMode' set to {!r} is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


@dataclass
class _ConfigReader:
    """Reads a decoded configuration; collects its secrets, and problems by place."""

    problems: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def read_toolboxes(self, file: Any) -> dict[str, ToolboxConfig]:
        """The toolboxes of a file; each server of another client's file is its own."""
        data = self.expect("configuration", file, dict)
        tables = {key: data[key] for key in _TABLE_KEYS if key in data}
        # `claude mcp add` writes into the entry of the project in ~/.claude.json.
        with suppress(LookupError, TypeError, OSError):
            cwd = os.getcwd()
            tables[f"projects.{cwd}.mcpServers"] = data["projects"][cwd]["mcpServers"]
        if "toolboxes" in tables:
            tables = {"toolboxes": tables["toolboxes"]}
        if not tables:
            self.problems.append(f"configuration: expected {' or '.join(_TABLE_KEYS)}")
        if data.get("toolMode", "proxy") != "proxy":
            self.problems.append(_UNKNOWN_MODE.format(data["toolMode"]))
        toolboxes = {}
        for place, table in tables.items():
            for name, at, entry in self.entries(place, table):
                about = entry.get("description") or f"Tools of the MCP server '{name}'"
                members = iter([(name, at, entry)])
                if place == "toolboxes":
                    about = entry.get("description") or None
                    members = self.entries(f"{at}.mcpServers", entry.get("mcpServers"))
                servers = {one: self.read_server(p, each) for one, p, each in members}
                description = self.read(f"{at}.description", about, str)
                toolboxes[name] = ToolboxConfig(description, servers)
        return toolboxes

    def entries(self, place: str, table: Any) -> Iterator[tuple[str, str, JSON]]:
        """Name, place and content of each toolbox or server that is not left out."""
        for name, value in self.expect(place, table, dict).items():
            at = f"{place}.{name}"
            if name.startswith("_"):
                continue  # a comment
            entry = self.expect(at, value, dict)
            if entry.get("disabled") or not entry.get("enabled", True):
                continue
            if "__" in f"_{name}_":
                self.problems.append(f"{at}: a name must not have '__' or end in '_'")
            unknown = {key for key in entry if not key.startswith("_")} - _KNOWN_KEYS
            if unknown:
                log.warning("%s: unknown keys %s, ignored", at, sorted(unknown))
            yield name, at, entry

    def read_server(self, at: str, entry: JSON) -> ServerConfig:
        """One server entry, as this or another client writes it."""
        values: JSON = {}
        for name, (kind, spellings) in _FIELDS.items():
            for key in spellings.split():
                value = entry.get(key)
                if key == "tools" and isinstance(value, dict):
                    continue  # Codex keeps there which of them were approved
                # Clients write these for what is not there, and for all tools.
                if value not in (None, "", "*"):
                    values[name] = self.read(f"{at}.{key}", value, kind)
        if ("command" in values) == ("url" in values):
            self.problems.append(f"{at}: expected either command or url in {[*entry]}")
        config = ServerConfig(**values)
        # The login and the query of a URL.
        texts = re.findall(r"(?<=//)[^/?#]*(?=@)|(?<=\?).*", config.url)
        texts += config.headers.values()
        # A part may be told alone, such as the token of `Bearer TOKEN`.
        parts = re.split(r"[\s:#&=]+", " ".join(texts))
        self.secrets += [*texts, *parts, *config.env.values()]
        return config

    def read(self, at: str, value: Any, kind: type) -> Any:
        """A string, a list or an object of strings, with references expanded."""
        value = self.expect(at, value, kind)
        if kind is list:
            return tuple(self.read(f"{at}[{i}]", v, str) for i, v in enumerate(value))
        if kind is dict:
            return {key: self.read(f"{at}.{key}", value[key], str) for key in value}
        return _REFERENCE.sub(functools.partial(self.expand, at), value)

    def expect(self, at: str, value: Any, kind: type) -> Any:
        """The value, if it is of this JSON type; else an empty one, and a problem."""
        if isinstance(value, kind):
            return value
        # The type alone: the value may be secret.
        found = _TYPE_NAMES.get(type(value), "a number")
        self.problems.append(f"{at}: expected {_TYPE_NAMES[kind]}, found {found}")
        return kind()

    def expand(self, at: str, reference: re.Match[str]) -> str:
        """The value of `${VAR}` or `${VAR:-default}`; what is neither stays as is."""
        name, default, foreign = reference.groups()
        value = os.environ.get(name or "", default)
        if foreign:
            log.warning("%s: %s is no ${VARIABLE} and stays as it is", at, foreign)
        elif value is None:
            expected = "a variable that is set, or ${NAME:-default}"
            self.problems.append(f"{at}: expected {expected}, not {reference[0]}")
        return reference[0] if value is None else value


def parse_config(data: Any, source: str = "file", text: str = "") -> WorkbenchConfig:
    """Check a configuration, decoded from this text; `ConfigError` for its problems."""
    reader = _ConfigReader()
    toolboxes = reader.read_toolboxes(data)
    if reader.problems:
        raise ConfigError("\n".join([f"{source}:", *reader.problems]))
    # Wherever they stand, in a comment too: a token that is meant for one server must
    # not reach the others because its key is misspelt, or its server switched off.
    named = re.findall(_VARIABLE, text + json.dumps(data, default=str))
    variables = {name: os.environ[name] for name in os.environ.keys() & set(named)}
    secrets = reader.secrets + list(variables.values())
    forms: set[str] = set()
    # Their lines as well: what a server writes to stderr is shown line by line.
    for secret in secrets + "\n".join(secrets).splitlines():
        # Nobody could act on an error that hides which file was not found.
        if len(secret.strip()) >= 8 and not os.path.exists(secret):
            escaped = json.dumps(secret, ensure_ascii=False)[1:-1]
            forms |= {secret, escaped, json.dumps(secret)[1:-1]}
    longest_first = tuple(sorted(forms, key=len, reverse=True))
    return WorkbenchConfig(toolboxes, variables, longest_first, source)


def find_config(argument: str | None) -> WorkbenchConfig:
    """The configuration to serve, of a file or the demo; `ConfigError` for a fault."""
    path = argument or os.environ.get("WORKBENCH_CONFIG")
    if not path and os.path.exists("workbench-config.json"):
        path = "workbench-config.json"
    if not path:
        server = ServerConfig(sys.executable, (os.path.abspath(__file__), "--toolbox"))
        note = "This is a demo. Give your own file as argument or in WORKBENCH_CONFIG."
        demo = ToolboxConfig(f"Echo and time. {note}", {"toolbox": server})
        return WorkbenchConfig({"demo": demo}, source=note)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        if path.endswith(".toml"):
            data = tomllib.loads(text)
        else:
            # Spaces in their place keep the lines and columns in errors.
            plain = re.sub(_NOISE, lambda m: m[1] or re.sub(".", " ", m[0]), text)
            data = from_json(plain)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON or TOML: {error}") from None
    return parse_config(data, path, text)


# === Tool names =======================================================================
# In full, it is `{toolbox}__{server}__{tool}`, and only the tool's part may have `__`.


def find_patterns(patterns: list[str], *names: str) -> set[str]:
    """Those that match toolbox, server and tool, or may do so if no tool is given."""
    found = set()
    for pattern in patterns:
        # From the right: `read_*` is of any server, `slack__*` all of one.
        parts = ["*", "*", *pattern.split("__", 2)][-3:]
        if all(map(fnmatch.fnmatchcase, names, parts)):
            found.add(pattern)
    return found


# === Workbench ========================================================================
# The open toolboxes and the way through them: what the meta-tools do, without MCP.


class ToolError(Exception):
    """What went wrong, in one sentence for the model: a result with `isError`."""


class Unreached(ToolError):
    """A request that its server has never seen: it may be sent once more."""


@dataclass
class Workbench:
    """The state of a running workbench, for one client."""

    config: WorkbenchConfig
    task_group: anyio.abc.TaskGroup  # of the connections: its end closes every toolbox
    # By name, the last connection of each server that was opened or used.
    open_toolboxes: dict[str, dict[str, Connection]] = field(default_factory=dict)
    client: ServerSession | None = None  # of the client's last request
    log_level: types.LoggingLevel = "debug"  # of what that client wants to see
    probed: set[str] = field(default_factory=set)  # which may end of `server/discover`

    def start(self, toolbox: str, server: str) -> Connection:
        """The connection of a server, a new one if it has none or that has ended."""
        # Without any `await`: concurrent callers share one attempt.
        connections = self.open_toolboxes.setdefault(toolbox, {})
        if server not in connections or connections[server].ended:
            connections[server] = Connection(self, toolbox, server)
            self.task_group.start_soon(connections[server].run)
        return connections[server]

    async def connect(self, toolbox: str, server: str) -> Connection:
        """Wait until a server is up, with its current tools, or cannot be started."""
        connection = self.start(toolbox, server)
        await connection.wait_until_current()
        if connection.ended and connection.worth_restarting:
            # That a remote server was restarted shows only when it is asked. And some
            # end when they are probed: see `_negotiate`.
            connection = self.start(toolbox, server)
            await connection.wait_until_current()
        return connection

    def servers_of(self, toolbox: str) -> Mapping[str, ServerConfig]:
        """The configured servers of a toolbox; `ToolError` if there is no such one."""
        if toolbox in self.config.toolboxes:
            return self.config.toolboxes[toolbox].servers
        names = ", ".join(self.config.toolboxes)
        raise ToolError(f"Toolbox '{toolbox}' not found. Available toolboxes: {names}")

    async def open_toolbox(
        self, toolbox: str, patterns: list[str], on_progress: ProgressFnT
    ) -> JSON:
        """Start what is not up of a toolbox's servers; their state and their tools.

        Answers when all have settled, after `OPEN_TIMEOUT` if one is up by then, else
        when the first is up, at the latest after `ANSWER_TIMEOUT`. Raises `ToolError`.
        """
        began = anyio.current_time()
        names = self.servers_of(toolbox)
        servers = [each for each in names if find_patterns(patterns, toolbox, each)]
        settled: list[str] = []

        async def wait_for(server: str) -> None:
            connection = await self.connect(toolbox, server)
            if connection.is_up:
                waiting.cancel_scope.deadline = began + OPEN_TIMEOUT
            settled.append(server)
            await on_progress(len(settled), len(servers), server)

        async with anyio.create_task_group() as waiting:
            waiting.cancel_scope.deadline = began + ANSWER_TIMEOUT
            for server in servers:
                waiting.start_soon(wait_for, server)
        answer = self.describe(toolbox, servers, patterns)
        failed = answer.get("servers_failed", {})
        if 0 < len(failed) == len(servers):
            reasons = "; ".join(f"{each}: {why}" for each, why in failed.items())
            raise ToolError(f"Toolbox '{toolbox}' could not be opened. {reasons}")
        return answer

    def describe(self, toolbox: str, servers: list[str], patterns: list[str]) -> JSON:
        """The result of `open_toolbox`: these servers' state and their tools."""
        answer: JSON = {"toolbox": toolbox}
        answer["description"] = self.config.toolboxes[toolbox].description
        answer["servers_connected"] = 0
        up = []
        for server in servers:
            connection = self.open_toolboxes[toolbox][server]
            if connection.is_up:
                up.append(connection)
                answer["servers_connected"] += 1
            elif connection.ended:
                failed = answer.setdefault("servers_failed", {})
                failed[server] = connection.describe_end()
            else:
                answer.setdefault("servers_connecting", []).append(server)
        if "servers_connecting" in answer:
            names = ", ".join(answer["servers_connecting"])
            again = "Call open_toolbox again to get their tools."
            answer["note"] = f"Still starting: {names}. {again}"
        add_tools(answer, up, patterns)
        return bounded(answer)

    async def use_tool(
        self, toolbox: str, name: str, params: JSON, on_progress: ProgressFnT | None
    ) -> JSON:
        """Call a tool by its full name, on its server, started if it is not up.

        `params` and the result are those of `tools/call` on the wire. Raises
        `ToolError`, or the `MCPError` of the server.
        """
        servers = self.servers_of(toolbox)
        if not name.startswith(tuple(f"{toolbox}__{server}__" for server in servers)):
            expected = "a name {toolbox}__{server}__{tool} with one of the servers"
            raise ToolError(f"expected {expected} {', '.join(servers)}")
        _, server, tool = name.split("__", 2)
        whose = f"server '{toolbox}/{server}'"
        # Once more, if the server has not seen the call: none is sent twice.
        for _ in range(2):
            connection = self.start(toolbox, server)
            if tool not in connection.tools:
                with anyio.move_on_after(ANSWER_TIMEOUT):
                    connection = await self.connect(toolbox, server)
            if not connection.is_up:
                raise ToolError(f"{whose} is not up: {connection.describe_end()}")
            if tool not in connection.tools:
                names = [f"{toolbox}__{server}__{each}" for each in connection.tools]
                near = ", ".join(difflib.get_close_matches(name, names, cutoff=0))
                raise ToolError(f"{whose} has no tool '{tool}', nearest: {near}")
            try:
                return await connection.call({**params, "name": tool}, on_progress)
            except Unreached as error:
                failure = str(error)
        raise ToolError(f"{whose} has not seen the call: {failure}")


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    async with anyio.create_task_group() as task_group:
        yield Workbench(config, task_group)
        task_group.cancel_scope.cancel()


def add_tools(answer: JSON, up: list[Connection], patterns: list[str]) -> None:
    """Put the tools that a pattern matches into an answer of `open_toolbox`.

    Of a part, it says how many there are, so that a model may look wider; and a server
    introduces itself only with the first part.
    """
    is_part = patterns != ["*"]
    unmatched = set(patterns)
    total = 0
    tools = []
    for connection in up:
        text = connection.session.instructions
        if text and not (is_part and connection.is_introduced):
            answer.setdefault("instructions", {})[connection.server] = text
        connection.is_introduced = True
        total += len(connection.tools)
        for name, tool in connection.tools.items():
            found = find_patterns(patterns, connection.toolbox, connection.server, name)
            unmatched -= found
            if found:
                tools.append(describe_tool(connection, tool))
    if is_part:
        names = ", ".join(connection.server for connection in up) or "no server"
        note = f"{len(tools)} of {total} tools of {names} match."
        if unmatched:
            note += f" No tool matches {', '.join(sorted(unmatched))}."
        answer["note"] = f"{note} {answer.get('note', '')}".strip()
    answer["tools"] = tools


def describe_tool(connection: Connection, tool: types.Tool) -> JSON:
    """What a model is told of a server's tool, and where it comes from."""
    schema = dict(tool.input_schema)
    schema.pop("$schema", None)
    entry: JSON = {
        "name": f"{connection.toolbox}__{connection.server}__{tool.name}",
        "description": tool.description or f"Tool from {connection.name}",
        "source_server": connection.server,
        "toolbox_name": connection.toolbox,
        "inputSchema": schema,
    }
    given = (tool.annotations or types.ToolAnnotations()).model_dump(by_alias=True)
    # The others are what a model assumes without them.
    for hint, telling in (("readOnlyHint", True), ("destructiveHint", False)):
        if given[hint] is telling:
            entry.setdefault("annotations", {})[hint] = telling
    return entry


def bounded(answer: JSON) -> JSON:
    """An answer in `ANSWER_LIMIT` characters.

    The longest tools keep name and beginning of description, then only the name; no
    more of them than necessary.
    """
    if len(compact(answer)) <= ANSWER_LIMIT:
        return answer
    # What servers say at length must not cost all the tools.
    for texts in (answer.get("instructions", {}), answer.get("servers_failed", {})):
        for server, text in texts.items():
            limit = ANSWER_LIMIT // 5 // len(texts)
            texts[server] = _CONTROLS.sub(" ", text[:limit])  # each is six in JSON
            if len(text) > limit:
                texts[server] += "…"
    tools = answer["tools"]
    about = f"of {len(tools)} tools are listed without inputSchema: call open_toolbox "
    about += "with their names in 'tools' to get it."
    # The note has a key and a number as well.
    excess = len(compact(answer)) + len(about) + 20 - ANSWER_LIMIT
    for kept in ({"name", "description"}, {"name"}):
        for tool in sorted(tools, key=lambda tool: len(compact(tool)), reverse=True):
            if excess > 0:
                excess -= len(compact(tool))
                text = tool["description"].strip()
                start = text.partition("\n")[0][:200]
                tool["description"] = text if start == text else f"{start}…"
                for key in tool.keys() - kept:
                    del tool[key]
                excess += len(compact(tool))
    number = sum("inputSchema" not in tool for tool in tools)
    if number:
        answer["note"] = f"{answer.get('note', '')} {number} {about}".strip()
    return answer


def compact(value: Any) -> str:
    """JSON without white space; non-ASCII as it is, and null for what JSON lacks."""
    return to_json(value, inf_nan_mode="null").decode()


# === MCP server =======================================================================
# The workbench as an MCP server: the two meta-tools on the SDK's low-level `Server`.
# Here, and nowhere else, errors become results of tools, without secrets in them.

# What clients are told of a tool; and what checks a call's arguments, and makes it.
Tool = tuple[types.Tool, TypeAdapter[Any]]


def make_tool(function: Callable[..., Awaitable[JSON]], title: str) -> Tool:
    """A tool with a function's name, docstring, and parameters after the context."""
    adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
    schema = adapter.json_schema()
    schema["required"].remove("context")
    del schema["properties"]["context"]
    for part in (schema, *schema["properties"].values()):
        # Every model that is connected reads the schema, and needs neither.
        part.pop("title", None)
        part.pop("additionalProperties", None)
    declared = types.Tool(name=function.__name__, title=title, input_schema=schema)
    declared.description = inspect.getdoc(function)
    return declared, adapter


def tool_server(name: str, tools: list[Tool], config: WorkbenchConfig) -> Server[Any]:
    """A low-level MCP server of these tools; no secret of `config` is in its errors."""
    adapters = {declared.name: adapter for declared, adapter in tools}

    async def list_all(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[declared for declared, _ in tools])

    async def call(context: Any, params: types.CallToolRequestParams) -> Any:
        if params.name not in adapters:
            text = f"Tool '{params.name}' not found: use {' and '.join(adapters)}"
            raise MCPError(types.INVALID_PARAMS, text)
        given = ArgsKwargs((context,), params.arguments)
        try:
            result = await adapters[params.name].validate_python(given)
        except (ToolError, ValidationError) as error:
            result = text_result(config.mask(explain(error)), is_error=True)
        except MCPError as error:
            raise MCPError(error.code, config.mask(error.message), error.data) from None
        # A 2026-07-28 client needs the type; for others the SDK takes it out.
        return {"resultType": "complete", **result}

    return Server(name, version=__version__, on_list_tools=list_all, on_call_tool=call)


def text_result(text: str, is_error: bool = False) -> JSON:
    """A text as the result of a tool, as it is on the wire."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _decode(value: Any) -> Any:
    """What a string holds as JSON: models tend to send lists and objects so."""
    with suppress(TypeError, ValueError):
        value = from_json(value)
    return value or {}


def _as_list(value: Any) -> Any:
    decoded = _decode(value) or ["*"]
    return decoded if isinstance(decoded, list) else [value]


_Arguments = Annotated[JSON, BeforeValidator(_decode), Field(default={})]
_Patterns = Annotated[list[str], BeforeValidator(_as_list), Field(default=["*"])]


async def open_toolbox(context: Any, toolbox_name: str, tools: _Patterns) -> JSON:
    """Start a toolbox's servers and get their tools with input schemas.

    `tools`: names or patterns (* anywhere, several add up): read_* (any server),
    slack__* (server slack), full names. Large toolboxes come partly without schemas.
    """
    workbench: Workbench = context.lifespan_context
    workbench.client = context.session
    on_progress = context.session.report_progress
    answer = await workbench.open_toolbox(toolbox_name, tools, on_progress)
    return text_result(compact(answer))


# Errors of a server that the client has to act on, and not the model; so are all of a
# retry, which brings the client's answers.
_FOR_CLIENT = (types.URL_ELICITATION_REQUIRED, types.MISSING_REQUIRED_CLIENT_CAPABILITY)
# What of a request's `_meta` belongs to one hop.
_OF_THIS_HOP = re.compile(r"progressToken$|io\.modelcontextprotocol/")


async def use_tool(
    context: Any, toolbox_name: str, tool_name: str, arguments: _Arguments
) -> JSON:
    """Call a tool, by its full name from open_toolbox, as its inputSchema asks."""
    workbench: Workbench = context.lifespan_context
    workbench.client = context.session
    meta = context.params.get("_meta", {})
    params = {**context.params, "arguments": arguments}
    params["_meta"] = {key: meta[key] for key in meta if not _OF_THIS_HOP.match(key)}
    of_retry = params.keys() & {"inputResponses", "requestState"}
    on_progress = context.session.report_progress if "progressToken" in meta else None
    place = f"Error executing tool '{tool_name}' in toolbox '{toolbox_name}'"
    try:
        return await workbench.use_tool(toolbox_name, tool_name, params, on_progress)
    except (ToolError, ValidationError) as error:
        raise ToolError(f"{place}: {explain(error)}") from None
    except MCPError as error:
        if of_retry or error.code in _FOR_CLIENT:
            raise
        raise ToolError(f"{place}: the server's error {error.code}: {error}") from None


def instructions(config: WorkbenchConfig) -> str:
    """What a client is told about the toolboxes on connecting, in plain text."""
    if not config.toolboxes:
        return f"No toolboxes configured. Add them to 'toolboxes' in {config.source}."
    lines = ["Available Toolboxes:"]
    for name, toolbox in config.toolboxes.items():
        noun = "server" if len(toolbox.servers) == 1 else "servers"
        lines.append(f"\n{name} ({len(toolbox.servers)} {noun})")
        lines.append(f"  Description: {toolbox.description}")
        if len(toolbox.servers) > 1:
            lines.append(f"  Servers: {', '.join(toolbox.servers)}")
    lines.append("\nUse `open_toolbox` to connect to a toolbox, ")
    return "\n".join(lines) + "then `use_tool` to invoke tools."


def meta_tools(config: WorkbenchConfig) -> list[Tool]:
    """The two meta-tools, with the names that a toolbox may have."""
    tool, adapter = make_tool(open_toolbox, "Open Toolbox")
    hints = types.ToolAnnotations(destructive_hint=False, idempotent_hint=True)
    tool.annotations = hints
    if config.toolboxes:
        # Many clients do not show the instructions, where the names are as well.
        tool.input_schema["properties"]["toolbox_name"]["enum"] = list(config.toolboxes)
    return [(tool, adapter), make_tool(use_tool, "Use Tool")]


def create_server(config: WorkbenchConfig) -> Server[Any]:
    """The workbench as a low-level MCP server, to be run for one client."""

    async def set_level(context: Any, params: types.SetLevelRequestParams) -> JSON:
        context.lifespan_context.log_level = params.level
        return {}

    server = tool_server("mcp-workbench", meta_tools(config), config)
    server.instructions = instructions(config)
    server.lifespan = lambda _: running_workbench(config)
    # Not as an argument of `Server`, which warns that 2026-07-28 has it no more.
    level = types.SetLevelRequestParams
    server.add_request_handler("logging/setLevel", level, set_level)
    return server


# === Connections ======================================================================
# One start of a server, to the end of its connection: session, tools, calls, relay.
# What carries the messages is a transport, in the next section. It is entered by the
# owner, and raises what is wrong with the server then. Its `send` waits for nobody but
# the answer, and raises `Unreached` for a request that the server cannot have seen,
# `ToolError` for one that failed otherwise. It gives other output to
# `connection.log_output`, and calls `connection.mark_closed` after the last message;
# then either its messages end, or it raises.

_LOG_LIMIT = 1 << 18  # bytes of a line: to mask 32 MiB takes a second
_NOT_VALID = "not valid MCP"
_WireRequest = types.Request[JSON, str]
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)


@dataclass
class Streams(anyio.abc.UnreliableObjectStream[SessionMessage]):
    """Both directions of a connection, as a session of the SDK wants them."""

    next_message: Callable[[], Awaitable[SessionMessage]]
    transmit: Callable[[SessionMessage], Awaitable[None]]

    async def receive(self) -> SessionMessage:
        # At the end, its StopAsyncIteration ends the session's loop.
        return await self.next_message()

    async def send(self, item: SessionMessage) -> None:
        await self.transmit(item)

    async def aclose(self) -> None:
        """Nothing: what is behind the streams belongs to the transport."""


class Connection:
    """One start of a server, to the end of its connection; a restart makes another one.

    `run` is its owner, the one task that enters and leaves what belongs to it; everyone
    else waits for its events and calls through it.

                  settled  closed
        starting     -       -
        failing      -      set    it is told only when nothing of it is left
        up          set      -     session and tools are there
        ended       set     set    calls in flight may yet be answered
    """

    def __init__(self, workbench: Workbench, toolbox: str, server: str) -> None:
        self.session: ClientSession  # from the start of the server on
        self.workbench = workbench
        self.toolbox = toolbox
        self.server = server
        self.name = f"{toolbox}/{server}"
        self.config = workbench.config.toolboxes[toolbox].servers[server]
        self.client = workbench.client  # the server is offered what it can do
        self.tools: dict[str, types.Tool] = {}  # that the filters let through
        self.is_introduced = False  # its instructions were told
        self.reason = "still starting, call again"
        self.output: deque[str] = deque(maxlen=20)
        self.settled = anyio.Event()
        self.closed = anyio.Event()
        self.worth_restarting = False  # if it ends, the next one may do better
        self._calls = anyio.CapacityLimiter(math.inf)  # each in flight holds a token
        self._listing = anyio.Lock()
        self._is_outdated = False  # the tools changed after the last listing had begun

    @property
    def is_up(self) -> bool:
        return self.settled.is_set() and not self.closed.is_set()

    @property
    def ended(self) -> bool:
        return self.settled.is_set() and self.closed.is_set()

    def log_output(self, line: bytes) -> None:
        """Log a line of its output that is no message, and remember it."""
        # Masked before it is cut: half a secret would not be found.
        text = self.workbench.config.mask(line[:_LOG_LIMIT].decode(errors="replace"))
        if text.strip():
            self.output.append(text.strip()[:300])
            log.info("[%s] %s", self.name, text.strip())

    def mark_closed(self, reason: str) -> None:
        """Nothing can be sent any more; the first reason counts."""
        if not self.closed.is_set():
            self.reason = " ".join(self.workbench.config.mask(reason).split())
            self.closed.set()

    def describe_end(self) -> str:
        """How it ended, with the last lines that it wrote to stderr."""
        return "; stderr: ".join([self.reason, *self.output])

    async def run(self) -> None:
        """Own the connection from the start of the server to the end."""
        transport = _remote_transport if self.config.url else _process_transport
        try:
            with anyio.move_on_after(CONNECT_TIMEOUT) as starting:
                async with transport(self) as streams, self._open_session(streams):
                    await self._negotiate()
                    await self._list_tools()
                    # From now on it may live as long as it likes.
                    starting.deadline = math.inf
                    self.worth_restarting = True
                    self.settled.set()
                    await self.closed.wait()
                    # What is in flight may yet be answered: the last one leaves room.
                    self._calls.total_tokens = 1
                    async with self._calls:
                        pass
            self.mark_closed(f"gave no answer within {CONNECT_TIMEOUT:g} seconds")
        except Exception as error:
            # It must not take the other connections with it.
            log.debug("%s: failed", self.name, exc_info=True)
            self.mark_closed(explain(error))
        self.settled.set()
        log.info("%s: %s", self.name, self.describe_end())

    def _open_session(self, streams: Streams) -> ClientSession:
        """A session that offers the server what the client has declared."""
        declared = self.client.client_capabilities if self.client else None
        offer = declared or types.ClientCapabilities()
        callbacks: JSON = {"message_handler": self._on_message}
        callbacks["logging_callback"] = self._on_log
        identity = types.Implementation(name="mcp-workbench", version=__version__)
        callbacks["client_info"] = identity
        callbacks["sampling_capabilities"] = offer.sampling
        sampled = types.CreateMessageResultWithTools
        for name, is_offered, question, answer in (
            ("sampling", offer.sampling, types.CreateMessageRequest, sampled),
            ("elicitation", offer.elicitation, types.ElicitRequest, types.ElicitResult),
            ("list_roots", offer.roots, types.ListRootsRequest, types.ListRootsResult),
        ):
            if is_offered:
                ask = functools.partial(self._ask, question, answer)
                callbacks[f"{name}_callback"] = ask
        self.session = ClientSession(streams, streams, **callbacks)
        return self.session

    async def _negotiate(self) -> None:
        """Agree on a protocol era: the client's own, where the server has a choice."""
        probed = self.workbench.probed
        if is_modern(self.client) and self.name not in probed:
            # Servers on older releases of the Rust SDK end at any first request but
            # `initialize`: one that ends now is started once more, in the older era.
            probed.add(self.name)
            self.worth_restarting = True
            await self._discover()
        if self.session.protocol_version is None:
            try:
                await self.session.initialize()
            except Exception:
                # It may know the newer era alone.
                if not await self._discover():
                    raise
        probed.discard(self.name)
        if self._announces_changes():
            log.debug("Server supports tool change notifications: %s", self.name)

    async def _discover(self) -> bool:
        """Whether the server knows the newer era, which is agreed on then."""
        with suppress(Exception), anyio.move_on_after(REPLY_TIMEOUT):
            await self.session.discover()
        return self.session.protocol_version is not None

    def _announces_changes(self) -> bool:
        offered = self.session.server_capabilities or types.ServerCapabilities()
        return offered.tools is not None and offered.tools.list_changed is True

    async def _on_message(self, message: IncomingMessage) -> None:
        if not isinstance(message, types.ToolListChangedNotification):
            return
        log.info("Received tools/list_changed notification from server: %s", self.name)
        if not self._announces_changes():
            said = "Received tools notification from server without listChanged"
            log.warning("%s capability: %s", said, self.name)
        if self._listing.locked():
            said = "Skipping duplicate discovery - already in progress"
            log.debug("%s for: %s", said, self.name)
        # If they are outdated, the listing that is due will have this change as well.
        if not self._is_outdated:
            self._is_outdated = True
            await self.wait_until_current()

    async def wait_until_current(self) -> None:
        """Wait until it is up or has ended, and a while for tools that have changed."""
        if self.is_up and (self.config.url or is_modern(self.session)):
            # It announces changes on a stream that may be lost, or that nobody holds.
            self._is_outdated = True
        await self.settled.wait()
        # It goes on when nobody waits for it any more.
        refresh = asyncio.create_task(self._refresh())
        await asyncio.wait([refresh], timeout=OPEN_TIMEOUT)

    async def _refresh(self) -> None:
        """List the tools again, unless that has been done since they changed."""
        # One at a time: changes during a listing cost one more, whoever waits for it.
        async with self._listing:
            if not self._is_outdated:
                return
            self._is_outdated = False
            try:
                with anyio.fail_after(ANSWER_TIMEOUT):
                    await self._list_tools()
            except (MCPError, ToolError, ValueError, TimeoutError) as error:
                log.warning("%s: kept its old tools: %s", self.name, explain(error))

    async def _list_tools(self) -> None:
        """Get all pages of the server's tools; keep what the filters let through."""
        tools: dict[str, types.Tool] = {}
        cursor: str | None = None
        seen: set[str | None] = {""}
        while cursor not in seen and len(seen) <= MAX_PAGES:
            seen.add(cursor)
            params = types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self.session.list_tools(params=params)
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise
                break  # it has no tools
            tools |= {t.name: t for t in page.tools if self.config.allows(t.name)}
            cursor = page.next_cursor
        added = len(tools.keys() - self.tools.keys())
        removed = len(self.tools.keys() - tools.keys())
        modified = sum(self.tools[t] != tools[t] for t in self.tools.keys() & tools)
        counts = f"{added} added, {removed} removed, {modified} modified"
        log.info("%s: %d tools: %s", self.name, len(tools), counts)
        log.debug("%s: its tools are %s", self.name, ", ".join(tools))
        for pattern in set(self.config.tool_filters) - {"*"}:
            if not fnmatch.filter(tools, pattern):
                log.warning("%s: toolFilters: no tool is %r", self.name, pattern)
        self.tools = tools

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        log.debug("[%s] %s: %s", self.name, params.level, params.data)
        if self.client is None or is_modern(self.client):
            return  # such a client opts in request by request
        levels = get_args(types.LoggingLevel)
        if levels.index(params.level) >= levels.index(self.workbench.log_level):
            message = types.LoggingMessageNotification(params=params)
            await self.client.send_notification(message)

    async def call(self, params: JSON, on_progress: ProgressFnT | None) -> JSON:
        """Send `tools/call` with these wire parameters; the wire result as it came.

        Whoever cancels it, with a time limit for one, cancels it downstream as well.
        Raises `Unreached`, `ToolError`, `ValidationError`, or the server's `MCPError`.
        """
        # The SDK's `call_tool` would check the result, after the side effect.
        request = _WireRequest(method="tools/call", params=params)
        self._calls.acquire_nowait()
        try:
            result: JSON = await self.session.send_request(
                request, _RAW_RESULT, progress_callback=on_progress
            )
            if result.get("resultType") != "input_required":
                # The SDK takes whatever has a type for an `InputRequiredResult`.
                types.CallToolResult.model_validate(result, by_name=False)
            elif not is_modern(self.client):
                raise ToolError(f"server '{self.name}' asks in a way of 2026-07-28")
            return result
        except MCPError as error:
            # A server may say so itself, and live on.
            if error.code != types.CONNECTION_CLOSED or not self.closed.is_set():
                raise
            told = f"server '{self.name}' {self.describe_end()}"
            told += "; the call may have taken effect and was not repeated"
            raise ToolError(told) from None
        finally:
            self._calls.release()

    async def _ask(self, request: Any, result: Any, _: Any, params: Any = None) -> Any:
        """Ask the client what the server asks; one of 2026-07-28 refuses at once."""
        client = cast(ServerSession, self.client)
        return await client.send_request(request(params=params), result)


def is_modern(session: ClientSession | ServerSession | None) -> bool:
    """Whether a session speaks 2026-07-28 or later, where no server asks or logs."""
    return session is not None and session.protocol_version in MODERN_PROTOCOL_VERSIONS


def explain(error: BaseException) -> str:
    """A readable text, never empty, for what lies behind an error."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False)[0]
        return f"{_NOT_VALID}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, ExceptionGroup):
        return explain(error.exceptions[0])
    for behind in (error.__cause__, *error.args):
        if isinstance(behind, Exception):
            return explain(behind)
    return str(error).strip() or type(error).__name__


# === Transports =======================================================================
# What carries a connection's messages: a process and its pipes, or a remote endpoint.

_READ_AHEAD = 8 << 20  # bytes; what a process has left in its pipe is to fit
_LINE_LIMIT = 128 << 20  # bytes of one that is a message
_SESSION_ID = "mcp-session-id"
_HEADERS = {"accept": "application/json, text/event-stream"}
_HEADERS |= {"content-type": "application/json"}


def _read_message(line: bytes) -> types.JSONRPCMessage | None:
    """A JSON-RPC message, or None; for an answer that is not valid, an error."""
    adapter: TypeAdapter[types.JSONRPCMessage] = types.jsonrpc_message_adapter
    text = line.decode(errors="replace")
    message = _decode(text)
    if message == text:
        # JavaScript cuts texts within surrogate pairs, and a half has no UTF-8.
        with suppress(ValueError, RecursionError):
            whole = json.dumps(json.loads(text), ensure_ascii=False)
            message = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", whole))
    with suppress(ValidationError):
        return adapter.validate_python(message, by_name=False)
    if isinstance(message, dict) and not message.get("method"):
        failure = {"code": types.INTERNAL_ERROR, "message": _NOT_VALID}
        with suppress(ValidationError):
            return adapter.validate_python(message | {"error": failure})
    return None


def _dump(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


async def _lines(read: Callable[[int], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    """The lines that can be read, without their ends, until one passes the limit."""
    line = bytearray()
    # A pipe that breaks is one that ends.
    with suppress(OSError):
        while chunk := await read(65536):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield bytes(line + end)
                line.clear()
                # Who writes without end would have the event loop to himself.
                await asyncio.sleep(0)
            line += rest
            if len(line) > _LINE_LIMIT:
                return
    if line:
        yield bytes(line)


class _ServerProcess(asyncio.subprocess.SubprocessStreamProtocol):
    """A server process: its stdout as messages, its stderr as log lines, its end.

    The SDK's `stdio_client` takes the end of stdout, which a child may hold open, for
    the end of the server, and leaves such a child running.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, connection: Connection) -> None:
        super().__init__(_READ_AHEAD, asyncio.get_running_loop())
        self._connection = connection
        self._exited = anyio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._stderr_read = asyncio.create_task(self._read_stderr())

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()
        # Its children may hold its pipes open for as long as they like.
        asyncio.get_running_loop().call_later(DRAIN_TIMEOUT, self._process.close)

    async def messages(self) -> AsyncIterator[SessionMessage]:
        """What the server says on stdout, until all of it was read and it has ended."""
        async for line in _lines(self.stdout.read):
            message = _read_message(line)
            if message is not None:
                yield SessionMessage(message)
            else:
                self._connection.log_output(line)
        # Then its status is known as well.
        await asyncio.wait([self._stderr_read], timeout=DRAIN_TIMEOUT)
        status = self._process.get_returncode()
        end = f"exited with status {status}"
        if status is None:
            end = "closed its stdout, or wrote a line that is too long"
        self._connection.mark_closed(end)

    async def _read_stderr(self) -> None:
        async for line in _lines(self.stderr.read):
            self._connection.log_output(line)
        await self._exited.wait()

    async def send(self, item: SessionMessage) -> None:
        """Write a message to its stdin; `Unreached` for a request that nobody reads."""
        # Not waited for: a server that does not read must not hold up anybody.
        self.stdin.write(_dump(item.message) + b"\n")
        if self.stdin.is_closing() and isinstance(item.message, types.JSONRPCRequest):
            # Why is known only when the rest of its output has been read.
            with anyio.move_on_after(2 * DRAIN_TIMEOUT):
                await self._connection.closed.wait()
            self._connection.mark_closed("closed its stdin")
            raise Unreached(self._connection.describe_end())

    async def aclose(self) -> None:
        """Close its stdin, then SIGTERM, then SIGKILL; its children go with it.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        with anyio.CancelScope(shield=True):
            self.stdin.close()
            for number in (signal.SIGTERM, 9):  # SIGKILL, which Windows does not have
                with anyio.move_on_after(EXIT_GRACE):
                    while self._signal_group(0):
                        await anyio.sleep(0.02)
                self._signal_group(number)
            await asyncio.wait([self._stderr_read], timeout=DRAIN_TIMEOUT)
        self._process.close()

    def _signal_group(self, number: int) -> bool:
        """Signal the process and its children, and tell if any is left; 0 only asks."""
        if sys.platform == "win32":
            return self._process.get_returncode() is None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.get_pid(), number)
            return True
        return False


@asynccontextmanager
async def _process_transport(connection: Connection) -> AsyncIterator[Streams]:
    """Start a server's process and speak to it over stdin and stdout."""
    config = connection.config
    command = config.command
    if sys.platform == "win32":
        command = get_windows_executable_command(command)
    withheld = connection.workbench.config.variables
    env = {name: value for name, value in os.environ.items() if name not in withheld}
    # What the SDK always passes, such as PATH, is never withheld.
    env |= get_default_environment() | dict(config.env)
    factory = functools.partial(_ServerProcess, connection)
    start = asyncio.get_running_loop().subprocess_exec(
        factory, command, *config.args, env=env, cwd=config.cwd, start_new_session=True
    )
    # Cancelled half way, it might run with nobody to stop it.
    with anyio.CancelScope(shield=True):
        _, process = await start
    async with aclosing(process):
        yield Streams(process.messages().__anext__, process.send)


class _RemoteServer:
    """A remote server, over Streamable HTTP or the older SSE transport.

    A message is posted in the task that sends it: what goes wrong with a request is
    raised there and ends no other, and cancelling the task closes its connection.
    https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._address = connection.config.url  # as the mask knows it
        self._url = self._endpoint = httpx2.URL(self._address)
        self.received: asyncio.Queue[SessionMessage] = asyncio.Queue()
        self.is_sse = connection.config.transport == "sse"
        self.has_endpoint = anyio.Event()
        self.http = httpx2.AsyncClient(
            headers=_HEADERS | dict(connection.config.headers),
            # A call may be silent for ever, or take long to be sent, beside any others.
            timeout=httpx2.Timeout(REPLY_TIMEOUT, read=None, write=None),
            limits=httpx2.Limits(keepalive_expiry=2.0),
            follow_redirects=True,
            event_hooks={"request": [self._check_host]},
        )

    async def _check_host(self, request: httpx2.Request) -> None:
        # Headers may be secret: no redirect must take them to another host.
        allowed = [(self._url.scheme, self._url.netloc), ("https", self._url.netloc)]
        if (request.url.scheme, request.url.netloc) not in allowed:
            raise httpx2.RequestError("it leads to another host")

    async def send(self, item: SessionMessage) -> None:
        """Post a message; for a request, until its answer has come."""
        headers = getattr(item.metadata, "headers", None)
        content: JSON = {"headers": headers, "content": _dump(item.message)}
        if isinstance(item.message, types.JSONRPCRequest):
            # Over the older transport, the answer comes in the one event stream.
            awaited = "" if self.is_sse else str(item.message.id)
            return await self._exchange("POST", content, awaited)
        with anyio.move_on_after(REPLY_TIMEOUT):
            await self._try("POST", content)

    async def _try(self, method: str, content: JSON) -> str:
        """Make an HTTP request whose failure ends nothing; why it has failed."""
        try:
            await self._exchange(method, content)
        except ToolError as error:
            log.debug("%s: %s", self._connection.name, error)
            return str(error)
        return ""

    async def listen(self) -> None:
        """Read what belongs to no request; over the older transport, everything."""
        if self.is_sse:
            end = await self._try("GET", {}) or "closed its event stream"
            self._connection.mark_closed(end)
            # Which ends the calls that wait for it.
            raise ToolError(end)
        await self._connection.settled.wait()
        version = str(self._connection.session.protocol_version)
        self.http.headers["mcp-protocol-version"] = version
        while _SESSION_ID in self.http.headers:
            failure = await self._try("GET", {})
            # It may have no such stream at all.
            await anyio.sleep(60 if failure else 1)

    async def _exchange(self, method: str, content: JSON, awaited: str = "") -> None:
        """Make an HTTP request; hand on what comes, up to the answer with this id."""
        said = ""
        try:
            async with self.http.stream(method, self._endpoint, **content) as response:
                status = response.status_code
                if response.headers.get(_SESSION_ID):
                    self.http.headers[_SESSION_ID] = response.headers[_SESSION_ID]
                in_session = awaited and _SESSION_ID in response.request.headers
                is_refused = in_session and response.is_error
                async for event in _events(response):
                    said = event.data
                    if is_refused and (status == 404 or "session" in said.lower()):
                        # The next call is to begin another one.
                        self._connection.mark_closed(f"{self._address}: HTTP {status}")
                        if status == 404:
                            raise Unreached(self._connection.reason)
                    if self._receive(event, awaited):
                        return
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise ToolError(f"{self._address}: {explain(error)}") from None
        if awaited or not response.is_success:
            # Masked before it is cut: half a secret would not be found.
            shown = " ".join(self._connection.workbench.config.mask(said).split())
            raise ToolError(f"{self._address}: HTTP {status} {shown[:300]}")

    def _receive(self, event: httpx2.ServerSentEvent, awaited: str) -> bool:
        """Hand on the message of an event, and tell if it is the answer awaited."""
        if event.event == "endpoint":
            self._endpoint = self._url.join(event.data)
            self.has_endpoint.set()
        message = _read_message(event.data.encode())
        if message is None:
            return False
        self.received.put_nowait(SessionMessage(message))
        return not hasattr(message, "method") and str(message.id) == awaited


async def _events(response: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
    """The events of a response; its body is one, if it is no stream of them."""
    kind = response.headers.get("content-type", "")
    if response.is_success and kind.startswith("text/event-stream"):
        async for event in httpx2.EventSource(response, _LINE_LIMIT):
            yield event
            await asyncio.sleep(0)  # as in `_lines`
    else:
        body = await response.aread()
        yield httpx2.ServerSentEvent(data=body.decode(errors="replace"))


@asynccontextmanager
async def _remote_transport(connection: Connection) -> AsyncIterator[Streams]:
    """Speak to a remote server over Streamable HTTP or the older SSE transport."""
    server = _RemoteServer(connection)
    # The client has no exit of its own that would wait for what is still open.
    async with aclosing(server.http), anyio.create_task_group() as tasks:
        tasks.start_soon(server.listen)
        if server.is_sse:
            await server.has_endpoint.wait()
        yield Streams(server.received.get, server.send)
        tasks.cancel_scope.cancel()


# === Built-in toolbox =================================================================
# A server of our own with two tools, made in the same way, over stdio or HTTP.

# This machine, with or without a port: bound to it, we answer only to its names.
_LOOPBACK = re.compile(r"(?i)(localhost|\[?::1\]?|127(\.\d+){1,3})(:\d+)?")
_Text = Annotated[str, Field(description="The text to echo back.")]
_ZONE = "An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC."
_Timezone = Annotated[str, Field(default="UTC", description=_ZONE)]


async def echo(context: Any, text: _Text) -> JSON:
    """A simple tool that returns the text it was given."""
    return text_result(text)


async def time(context: Any, timezone: _Timezone) -> JSON:
    """Returns the current server time, optionally in a specific timezone."""
    try:
        # UTC needs no zone data, unlike any other.
        zone = datetime.UTC if timezone == "UTC" else zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(f"Unknown timezone {timezone!r}: no IANA name") from None
    return text_result(datetime.datetime.now(zone).isoformat(timespec="seconds"))


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server. A tool is added here."""
    tools = [make_tool(echo, "Echo Tool"), make_tool(time, "Time Tool")]
    return tool_server("mcp-toolbox", tools, WorkbenchConfig({}))


def toolbox_app(bound_to: str) -> ASGIApp:
    """The built-in toolbox as an ASGI application: Streamable HTTP, and older SSE."""
    server = create_toolbox_server()
    # With no host, it leaves the checks of Host and Origin to us.
    http = server.streamable_http_app(host="")
    sse = SseServerTransport("/mcp/messages")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_renamed(message: Message) -> None:
            # The SDK names the session `session_id`, and answers 404 without one.
            if message.get("status") == 404:
                message["status"] = 400
            if message.get("body", b"").startswith(b"event: endpoint"):
                message["body"] = message["body"].replace(b"session_id", b"sessionId")
            await send(message)

        if scope["type"] != "http":
            # The lifespan of the Streamable HTTP sessions.
            return await http(scope, receive, send)
        request = Request(scope)
        host = request.headers.get("host", "")
        origin = request.headers.get("origin", f"http://{host}")
        is_known = _LOOPBACK.fullmatch(host) or not _LOOPBACK.fullmatch(bound_to)
        route = f"{request.method} {request.url.path}"
        if not is_known or origin.partition("://")[2] != host:
            await Response("Invalid Host or Origin", 403)(scope, receive, send)
        elif request.url.path == "/mcp/messages":
            query = scope["query_string"].replace(b"sessionId=", b"session_id=")
            scope["query_string"] = query
            await sse.handle_post_message(scope, receive, send_renamed)
        elif route == "GET /mcp" and _SESSION_ID not in request.headers:
            async with sse.connect_sse(scope, receive, send_renamed) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            await http(scope, receive, send)

    return app


# === Running ==========================================================================
# The command line, stdin and stdout, signals, and the log.

_UNREAD_LIMIT = 100  # messages; beyond, a client gets no more notifications
_PIPE_BUF = getattr(select, "PIPE_BUF", 512)  # bytes that fit where there is any room


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over stdin and stdout until one of them is closed.

    The SDK's own streams would not end before stdin does. Each `initialize` begins a
    run of the server: in one that began otherwise, the SDK would refuse it.
    """
    lines = _lines(_read_stdin)
    outgoing, unsent = anyio.create_memory_object_stream[bytes](math.inf)
    opening: list[SessionMessage] = []

    async def messages_of_one_run() -> AsyncIterator[SessionMessage]:
        if opening:
            yield opening.pop()
        async for line in lines:
            message = _read_message(line)
            if getattr(message, "method", "") == "initialize":
                opening.append(SessionMessage(cast(types.JSONRPCRequest, message)))
                return
            if message is not None:
                yield SessionMessage(message)
        # The end of stdin is one more signal to end.
        signal.raise_signal(signal.SIGTERM)

    async def send(item: SessionMessage) -> None:
        # Without waiting: a client that does not read must not hold up our end.
        is_read = outgoing.statistics().current_buffer_used < _UNREAD_LIMIT
        if is_read or not isinstance(item.message, types.JSONRPCNotification):
            outgoing.send_nowait(_dump(item.message) + b"\n")

    options = server.create_initialization_options()
    async with anyio.create_task_group() as tasks, outgoing:
        tasks.start_soon(_write_stdout, unsent)
        while True:
            streams = Streams(messages_of_one_run().__anext__, send)
            await server.run(streams, streams, options)


async def _read_stdin(size: int) -> bytes:
    if sys.platform == "win32":
        # Its event loop cannot poll a pipe.
        return await asyncio.to_thread(os.read, 0, size)
    # A file cannot be polled, and need not be.
    with suppress(PermissionError):
        await anyio.wait_readable(0)
    return os.read(0, size)


async def _write_stdout(lines: AsyncIterator[bytes]) -> None:
    # What was answered before the end is written; `run_until_signal` sets the limit.
    with anyio.CancelScope(shield=True), suppress(OSError):
        async for line in lines:
            rest = memoryview(line)
            while rest:
                if not _has_room(1):
                    await anyio.wait_writable(1)
                rest = rest[os.write(1, rest[:_PIPE_BUF]) :]
    # If nobody reads it any more, it is as if the client had ended us.
    signal.raise_signal(signal.SIGTERM)


def _has_room(descriptor: int) -> bool:
    """Whether a write would not block; on Windows, no pipe can be asked."""
    if sys.platform == "win32":
        return True
    return bool(select.select((), (descriptor,), (), 0)[1])


async def serve_http(address: str) -> None:
    """Serve the built-in toolbox on `[HOST:]PORT`."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal():
        sys.exit(f"Cannot listen on {address}: expected [HOST:]PORT")
    log.info("Toolbox at http://%s:%s/mcp", host, port)
    if not _LOOPBACK.fullmatch(host):
        log.warning("No authentication: bind to %s in a trusted environment only", host)
    config = uvicorn.Config(toolbox_app(host), host, int(port), log_config=None)
    # Without a timeout, it would wait for the open streams.
    config.timeout_graceful_shutdown = 1
    await uvicorn.Server(config).serve()


async def check(config: WorkbenchConfig) -> int:
    """Start every server, side by side, and report on each; 1 if one of them failed."""
    reports: list[Awaitable[Connection]] = []
    async with running_workbench(config) as workbench:
        for toolbox, entry in config.toolboxes.items():
            for server in entry.servers:
                reports.append(_report(workbench, toolbox, server))
        connections = await asyncio.gather(*reports)
        if not connections:
            print(f"No server is configured in {config.source}.")
            return 1
        tools = [tool for each in connections for tool in each.tools.values()]
        own = [declared for declared, _ in meta_tools(config)]
        print(f"Model context: {_cost(own, instructions(config))} before opening any,")
        print(f"instead of {_cost(tools)} natively with {len(tools)} tools")
        return int(not all(connection.is_up for connection in connections))


async def _report(workbench: Workbench, toolbox: str, server: str) -> Connection:
    connection = workbench.start(toolbox, server)
    loop = asyncio.get_running_loop()
    began = loop.time()
    late = loop.call_later(10, print, f"Still starting: {connection.name}")
    await connection.settled.wait()
    late.cancel()
    took = f"{loop.time() - began:5.1f} s"
    result = "\n    ".join([f"FAILED  {took}  {connection.reason}", *connection.output])
    if connection.is_up:
        cost = _cost([], compact(workbench.describe(toolbox, [server], ["*"])))
        result = f"ok      {took}  {len(connection.tools):3} tools  {cost}"
    # In another client's file, each server is a toolbox of its own name.
    name = connection.name.removeprefix(f"{server}/")
    print(f"{name:20} {result}")
    return connection


def _cost(tools: list[types.Tool], text: str = "") -> str:
    """What a text and tools take of a model's context, as clients send them."""
    sent = {"__all__": {"name", "description", "input_schema"}}
    size = len(to_json(tools, include=sent)) + len(text.encode())
    return f"{size:,} bytes (about {size // 4:,} tokens)"


async def call_once(config: WorkbenchConfig, name: str, *words: str) -> int:
    """Call one tool as an MCP client does and print its result; the exit status."""
    given = {"toolbox_name": name.split("__")[0], "tool_name": name}
    given["arguments"] = " ".join(words) or "{}"
    async with Client(create_server(config), mode="legacy") as client:
        try:
            result = await client.call_tool("use_tool", given)
        except MCPError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    output = result.model_dump_json(by_alias=True, exclude_none=True, indent=2)
    if {block.type for block in result.content} == {"text"}:
        output = "\n".join(getattr(block, "text", "") for block in result.content)
    print(output, file=sys.stderr if result.is_error else sys.stdout)
    return int(result.is_error)


async def run_until_signal(status: int, work: Awaitable[int | None]) -> NoReturn:
    """Await what is to be done, and end with its status; with this one after a signal.

    The handlers stay until the end: a second signal must not stop the cleanup. They are
    not the event loop's, because Windows has none there. And the end is here, because
    that of the event loop waits for its threads, such as one that looks up a name.
    """
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # Whatever may still hang then.
        loop.call_later(EXIT_TIMEOUT, os._exit, status)
        scope.cancel()

    with anyio.CancelScope() as scope:
        # A terminal that is closed sends SIGHUP, but not to the servers' own sessions.
        hangup = getattr(signal, "SIGHUP", signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM, hangup):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
        status = await work or 0
    os._exit(status)


class _StderrHandler(logging.Handler):
    """Writes masked lines to stderr; what a client does not read there is dropped."""

    config = WorkbenchConfig({})  # whose secrets are masked

    def emit(self, record: logging.LogRecord) -> None:
        line = self.config.mask(self.format(record)).encode(errors="replace") + b"\n"
        # Nobody may read it any more.
        with suppress(OSError):
            while line and _has_room(2):
                line = line[os.write(2, line[:_PIPE_BUF]) :]


def main() -> None:
    """Run the command line; it does not return."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="path of the configuration file")
    add("--check", action="store_true", help="start every server, report on each")
    add("--call", nargs="+", metavar=("NAME", "JSON"), help="call one tool")
    add("--toolbox", action="store_true", help="serve the built-in echo and time")
    add("--http", metavar="[HOST:]PORT", help="serve echo and time over HTTP")
    add("--verbose", action="store_const", const=logging.DEBUG, help="log debug lines")
    options = parser.parse_args()
    handler = _StderrHandler()
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(format=form, handlers=[handler])
    usual = logging.WARNING if options.check or options.call else logging.INFO
    log.setLevel(options.verbose or usual)  # what `--check` prints says the rest
    if options.http:
        asyncio.run(run_until_signal(0, serve_http(options.http)))
    if options.toolbox:
        asyncio.run(run_until_signal(0, serve_stdio(create_toolbox_server())))
    config = handler.config = find_config(options.config)
    if options.check:
        asyncio.run(run_until_signal(1, check(config)))
    if options.call:
        asyncio.run(run_until_signal(1, call_once(config, *options.call)))
    log.info("Serving %s: %s", list(config.toolboxes), config.source)
    if os.isatty(0):
        log.info("Waiting for an MCP client on stdin. Ctrl-C ends; or --check, --help.")
    asyncio.run(run_until_signal(0, serve_stdio(create_server(config))))


if __name__ == "__main__":
    # What is printed to a pipe is to be there before `os._exit`.
    cast(Any, sys.stdout).reconfigure(errors="replace", line_buffering=True)
    main()
