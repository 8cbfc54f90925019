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

The protocol has two eras. In the older one (up to 2025-11-25) a client begins with
`initialize`, and a server may ask and log at any time; in the newer one (2026-07-28)
there is `server/discover`, and a server's questions are the result of a call, which
is repeated with the answers. https://modelcontextprotocol.io/specification
"""

from __future__ import annotations

import signal
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (a copied file meets any Python)
    sys.exit(f"workbench.py needs Python 3.11 or newer, not {sys.version.split()[0]}")
if __name__ == "__main__":
    # A Ctrl-C during the imports below would end in a traceback. `run_until_signal`
    # installs the handlers that stop the servers, before any is started.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

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
import socket
import stat
import tomllib
import uuid
import zoneinfo
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, get_args
from urllib.parse import parse_qsl

# asyncio and anyio are both here: the SDK is written on anyio, whose cancel scopes also
# serve us, while processes and pipes on the event loop are asyncio's alone.
try:
    import anyio.abc
    import httpx2
    from mcp import ClientSession, MCPError, ServerSession, stdio_server, types
    from mcp.client.session import ClientRequestContext, IncomingMessage
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
    from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, create_model
    from pydantic_core import ValidationError, to_json
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    sys.exit(
        f"workbench.py needs the package mcp, 2.3 or newer ({error}): "
        "pip install 'mcp>=2.3,<3', or start it with: uv run workbench.py"
    )

__version__ = "0.10.0"

# In seconds. A client closes our stdin, waits 2 s, sends SIGTERM, waits 2 s and kills:
# so 2 * EXIT_GRACE + DRAIN_TIMEOUT < EXIT_TIMEOUT < 4.
OPEN_TIMEOUT = 5.0  # then `open_toolbox` answers with the servers that are up
ANSWER_TIMEOUT = 50.0  # for servers to start: clients give up on a request at 60
CONNECT_TIMEOUT = 180.0  # a first `npx` or `uvx` downloads its package
HTTP_TIMEOUT = 10.0  # to connect, and for a server to take a notification
EXIT_GRACE = 1.0  # between the end of a server's stdin, SIGTERM and SIGKILL
EXIT_TIMEOUT = 3.2  # from a signal or the end of stdin, whatever may still hang
LAST_WORDS = 2.0  # of a lost HTTP session or a cancelled HTTP call
DRAIN_TIMEOUT = 0.25  # of a process's output, after the first sign of its end
# The first and the longest pause before a lost `subscriptions/listen` is asked again.
LISTEN_PAUSE, LONGEST_LISTEN_PAUSE = 1.0, 300.0

ANSWER_LIMIT = 50_000  # characters of an answer that every model sees whole
MAX_PAGES = 250  # of one `tools/list`, before its server is taken to be looping

log = logging.getLogger("workbench")
JSON = dict[str, Any]  # an object, as it is on the wire


# === Configuration ====================================================================
# From a file, ours or another client's, to a `WorkbenchConfig` that needs no more
# checks: every problem is collected with its place, and told at once.


class ConfigError(Exception):
    """A configuration that cannot be used: its file, then its `problems`, by line."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n".join([f"{source}:", *problems]))
        self.problems = problems


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
    excluded_tools: tuple[str, ...] = ()
    description: str = ""  # in another client's file

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


# Terminal sequences and control characters, all but the line feed.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def make_mask(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that makes a text fit to be shown, without secrets and controls.

    Secrets are masked as they are and as JSON escapes them, from 8 characters on.
    """
    forms: set[str] = set()
    go_escapes = str.maketrans({"&": r"\u0026", "<": r"\u003c", ">": r"\u003e"})
    for secret in secrets:
        # Nobody could act on an error that hides which file was not found.
        if not os.path.exists(secret):
            for line in secret.splitlines():
                forms.add(line)
                for ensure_ascii in (True, False):
                    escaped = json.dumps(line, ensure_ascii=ensure_ascii)[1:-1]
                    php_escaped = escaped.replace("/", r"\/")
                    forms |= {escaped, php_escaped, escaped.translate(go_escapes)}
    # A secret may be part of another: the longer one has to be tried first.
    longest_first = sorted(forms, key=len, reverse=True)
    patterns = [re.escape(form) for form in longest_first if len(form.strip()) >= 8]
    pattern = re.compile("|".join(patterns) or "(?!)")
    return lambda text: _CONTROLS.sub(" ", pattern.sub("***", text))


@dataclass(frozen=True)
class WorkbenchConfig:
    """A checked configuration, with its `${VAR}` references expanded."""

    toolboxes: Mapping[str, ToolboxConfig]
    variables: frozenset[str] = frozenset()  # it refers to them: withheld from servers
    mask: Callable[[str], str] = field(default_factory=lambda: make_mask(()))
    warnings: tuple[str, ...] = ()  # lines about what was ignored
    source: str = ""  # its file; the built-in demo has none


_JSON_TYPES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
    object: "nothing",
}
# In place of a value that is not there; its type is `object`.
_MISSING = object()
# Where clients have their servers: most of them, VS Code, Zed, Codex.
_CLIENT_KEYS = ("mcpServers", "servers", "context_servers", "mcp_servers")
# The keys of a server entry and their types; lists and objects hold strings. Each is
# a field of `ServerConfig`, under a name of Python's.
_LOCAL_KEYS: dict[str, type] = {"command": str, "args": list, "env": dict, "cwd": str}
_REMOTE_KEYS: dict[str, type] = {"url": str, "headers": dict}
_COMMON_KEYS: dict[str, type] = {"toolFilters": list, "excludeTools": list}
_COMMON_KEYS |= {"description": str, "transport": str}
_SWITCHES = {"disabled": False, "enabled": True}
# What other clients write for a key of ours.
_KEY_ALIASES = {"serverUrl": "url", "httpUrl": "url", "type": "transport"}
_KEY_ALIASES |= dict.fromkeys(["includeTools", "enabled_tools", "tools"], "toolFilters")
_KEY_ALIASES |= dict.fromkeys(["disabledTools", "disabled_tools"], "excludeTools")
# The spellings of a transport.
_TRANSPORTS = {"stdio": "stdio", "local": "stdio", "sse": "sse", "http": "http"}
_TRANSPORTS |= {"streamable-http": "http", "streamableHttp": "http"}
_TRANSPORTS |= {"streamable_http": "http", "remote": "http"}
# A password with `/`, `?` or `#` does not match: its rest would be taken for the path,
# and shown.
_URL = re.compile(
    r"""(?ix) https?://
    ((?P<login>[^/?#]*)@)?
    (\[[0-9a-f:.%]+\] | [^/?#@:\[\]\s]+) (:\d{1,5})?
    (/[^?#]*)? (\?(?P<query>[^#]*))? (\#[^@]*)?"""
)
_REFERENCE = re.compile(
    r"""(?x)
    \$\{ (?:env:)? (?P<name>[A-Z_][A-Z0-9_]*) (?: :-(?P<default>[^}]*) )? \}
    | (?P<foreign> \$\{[^}]*\} | \$[A-Z_][A-Z0-9_]*\b )
    | (?P<unclosed> \$\{ )"""
)
_DYNAMIC_MODE = """\
Configuration field 'toolMode' set to 'dynamic' is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


def _join(place: str, key: str) -> str:
    """The place of a key below another place, as problems name it."""
    if not key.isprintable() or not re.fullmatch(r"[^\s.\[\]\"]+", key):
        key = json.dumps(key)
    return f"{place}.{key}".removeprefix(".")


@dataclass
class _ConfigReader:
    """Reads a decoded configuration and collects every problem with its place."""

    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)
    secrets: list[str] = field(default_factory=list)  # pasted entries hold them

    def add_problem(self, place: str, expected: str, found: str) -> None:
        """Note a problem; `found` is a type or a name, for a value may be secret."""
        self.problems.append(f"{place}: expected {expected}, found {found}")

    def is_kind(self, value: Any, kind: type, place: str) -> bool:
        """Whether a value is of this JSON type; if not, that is a problem."""
        if isinstance(value, kind):
            return True
        # TOML has dates and times as well.
        found = _JSON_TYPES.get(type(value), "a date or time")
        self.add_problem(place, _JSON_TYPES[kind], found)
        return False

    def read_toolboxes(self, data: Any) -> dict[str, ToolboxConfig]:
        """The toolboxes of a workbench's own file, or of another client's."""
        if not self.is_kind(data, dict, "configuration"):
            return {}
        if "toolboxes" not in data:
            return self.read_client_file(data)
        self.warn_unknown(data, "configuration", ["toolboxes", "toolMode"])
        toolboxes = self.read_all(data, "toolboxes", "", self.read_toolbox)
        mode = data.get("toolMode")
        if mode == "dynamic":
            self.problems += _DYNAMIC_MODE.splitlines()
        elif mode == "proxy":
            self.warnings.append("toolMode: 'proxy' is the only mode, ignored")
        elif "toolMode" in data:
            found = _JSON_TYPES.get(type(mode), "a date or time")
            self.add_problem("toolMode", "'proxy' or no such key", found)
        return toolboxes

    def read_client_file(self, data: JSON) -> dict[str, ToolboxConfig]:
        """Each server of another client's file as a toolbox of its own name."""
        sources = [(data, key, "") for key in _CLIENT_KEYS if key in data][:1]
        # `claude mcp add` writes into the entry of the project in ~/.claude.json.
        with suppress(LookupError, TypeError, OSError):
            folder = os.getcwd()
            own = {"mcpServers": data["projects"][folder]["mcpServers"]}
            sources.append((own, "mcpServers", _join("projects", folder)))
        if not sources:
            expected = f"'toolboxes', or another client's {', '.join(_CLIENT_KEYS)}"
            self.add_problem("configuration", expected, "none of them")
        toolboxes = {}
        for source, key, at in sources:
            servers = self.read_all(source, key, at, self.read_server)
            for name, server in servers.items():
                description = server.description or f"Tools of the MCP server '{name}'"
                toolboxes[name] = ToolboxConfig(description, {name: server})
        return toolboxes

    def read_all(
        self, data: JSON, key: str, parent: str, read_entry: Callable[..., Any]
    ) -> JSON:
        """What `read_entry` makes of each of `data[key]`, toolboxes or servers."""
        items: JSON = {}
        place = _join(parent, key)
        entries = data.get(key, _MISSING)
        if not self.is_kind(entries, dict, place):
            return items
        for name, entry in entries.items():
            at = _join(place, name)
            if name.startswith("_"):
                # A comment, or a server that is commented out.
                self.note_references({"": entry})
                continue
            if "__" in name or name[-1:] in ("", "_") or not name.isprintable():
                expected = "a printable name without '__' that does not end in '_'"
                self.add_problem(at, expected, json.dumps(name))
            if self.is_kind(entry, dict, at):
                item = read_entry(entry, at)
                if item is not None:
                    items[name] = item
        return items

    def note_references(self, entry: JSON) -> None:
        # A token that is meant for one server must not reach the others because its key
        # is misspelt, or its server switched off.
        for key, value in entry.items():
            if key.startswith("_"):
                continue  # a comment
            for reference in _REFERENCE.finditer(json.dumps(value, default=str)):
                if reference["name"]:
                    self.variables.add(reference["name"])

    def read_toolbox(self, entry: JSON, place: str) -> ToolboxConfig:
        self.note_references({**entry, "mcpServers": None})
        self.warn_unknown(entry, place, ["description", "mcpServers"])
        description = self.read(entry, "description", str, place)
        problems_before = len(self.problems)
        servers = self.read_all(entry, "mcpServers", place, self.read_server)
        if not servers and len(self.problems) == problems_before:
            expected = "at least one server that is not disabled"
            self.add_problem(f"{place}.mcpServers", expected, "none")
        return ToolboxConfig(description, servers)

    def read_server(self, entry: JSON, place: str) -> ServerConfig | None:
        """One server entry; None where it is switched off."""
        self.note_references(entry)
        for key, default in _SWITCHES.items():
            if key in entry and self.read(entry, key, bool, place) == (not default):
                return None
        if isinstance(entry.get("tools"), dict):
            # Codex keeps there which tools were approved: an unknown key, no filter.
            entry = {**entry, "tools.*": entry["tools"]}
            del entry["tools"]
        names = [_KEY_ALIASES.get(key, key) for key in entry]
        is_local = "command" in names
        kinds = (_LOCAL_KEYS if is_local else _REMOTE_KEYS) | _COMMON_KEYS
        unknown = self.warn_unknown(entry, place, [*kinds, *_SWITCHES])
        if is_local == ("url" in names):
            found = "both" if is_local else f"neither{unknown}"
            self.add_problem(place, "either 'command' or 'url'", found)
        excluded: tuple[str, ...] = ()
        values: JSON = {}
        for key, item in entry.items():
            name = _KEY_ALIASES.get(key, key)
            if name == "excludeTools":
                # What one of several such keys switches off stays off.
                excluded += self.read(entry, key, list, place) or ()
            elif name == "toolFilters" and item == "*":
                values.setdefault(name, ("*",))
            elif name == "description" and item == "":
                continue  # as some clients write it
            elif name in kinds and (key == name or name not in entry):
                # Our own name of a key wins over its aliases.
                value = self.read(entry, key, kinds[name], place)
                if value is not None:
                    values[name] = value
                    self.check_value(name, value, _join(place, key))
        possible = ["stdio"] if is_local else ["http", "sse"]
        values["transport"] = _TRANSPORTS.get(values.get("transport", possible[0]), "")
        if values["transport"] not in possible:
            at = f"{place}.{'transport' if 'transport' in entry else 'type'}"
            self.add_problem(at, " or ".join(possible), "another string")
        values["tool_filters"] = values.pop("toolFilters", ("*",))
        return ServerConfig(**values, excluded_tools=excluded)

    def check_value(self, key: str, value: Any, place: str) -> None:
        """Check what is more than a matter of types, and note what may be secret."""
        if key == "env":
            self.add_secrets(value.values())
        elif key == "headers":
            for name, header in value.items():
                # `Bearer TOKEN`: the token may be told without the word before it.
                self.add_secrets([header, *header.split()])
                self.is_line(header, _join(place, name))
        elif key == "command":
            self.is_line(value, place)
        elif key == "url" and self.is_line(value, place):
            self.check_url(value, place)

    def add_secrets(self, texts: Iterable[str]) -> None:
        for text in texts:
            # What only looks like a reference is told: see `expand`.
            if not _REFERENCE.fullmatch(text):
                self.secrets.append(text)

    def is_line(self, text: str, place: str) -> bool:
        """Whether a text has no control characters; if it has, that is a problem."""
        if not _CONTROLS.search(text.replace("\n", "\r")):
            return True
        # A file with CRLF leaves a line end at the end of its variables.
        expected = "no control characters (a line end in a variable?)"
        self.add_problem(place, expected, "some")
        return False

    def check_url(self, url: str, place: str) -> None:
        if "${" in url:
            return  # what stays of it was told
        parts = _URL.fullmatch(url)
        if parts is None:
            expected = "an http:// or https:// URL"
            if "@" in url:
                expected += " ('/', '?' and '#' of a password percent-encoded)"
            self.add_problem(place, expected, "another string")
            return
        login, query = parts.groupdict("").values()
        self.secrets += [login, *login.split(":", 1), query]
        self.secrets += [value for _, value in parse_qsl(query)]

    def read(self, data: JSON, key: str, kind: type, place: str) -> Any:
        """`data[key]`, expanded, if of this JSON type; else None, and a problem."""
        value = data.get(key, _MISSING)
        at = _join(place, key)
        if not self.is_kind(value, kind, at):
            return None
        if kind is list:
            return tuple(self.read_item(v, f"{at}[{i}]") for i, v in enumerate(value))
        if kind is dict:
            return {k: self.read_item(v, _join(at, k)) for k, v in value.items()}
        if kind is str:
            value = self.read_item(value, at)
            if not value.strip():
                self.add_problem(at, "a non-empty string", "an empty string")
                return None
        return value

    def read_item(self, value: Any, place: str) -> str:
        if not self.is_kind(value, str, place):
            return ""
        return _REFERENCE.sub(functools.partial(self.expand, place), value)

    def expand(self, place: str, reference: re.Match[str]) -> str:
        """The value of `${VAR}` or `${VAR:-default}`; what is neither stays as is."""
        name = reference["name"]
        if reference["foreign"]:
            about = "is not of the form ${VARIABLE}: it reaches the server as text"
            self.warnings.append(f"{place}: {json.dumps(reference[0])} {about}")
        elif reference["unclosed"]:
            self.add_problem(place, "a '}' after '${'", "the end of the string")
        elif name in self.environ:
            return self.environ[name]
        elif reference["default"] is not None:
            return reference["default"]
        else:
            unset = f"environment variable {name} is not set"
            hint = f"set it, or write ${{{name}:-default}}"
            self.problems.append(f"{place}: {unset}: {hint}")
        return reference[0]

    def warn_unknown(self, entry: JSON, place: str, known: list[str]) -> str:
        """Warn of keys that mean nothing here; the same in words for an error."""
        unknown = []
        for key in entry:
            if not key.startswith("_") and _KEY_ALIASES.get(key, key) not in known:
                unknown.append(_join("", key))
        if not unknown:
            return ""
        about = f"unknown keys {', '.join(unknown)}"
        self.warnings.append(f"{place}: {about}, ignored (known: {', '.join(known)})")
        return f" ({about})"


def parse_config(
    data: Any, environ: Mapping[str, str], source: str = "configuration"
) -> WorkbenchConfig:
    """Check a decoded configuration, expand its variables; or raise `ConfigError`."""
    reader = _ConfigReader(environ)
    toolboxes = reader.read_toolboxes(data)
    if reader.problems:
        raise ConfigError(source, list(dict.fromkeys(reader.problems)))
    secrets = [environ[name] for name in reader.variables if name in environ]
    mask = make_mask(secrets + reader.secrets)
    warnings = tuple(dict.fromkeys(reader.warnings))
    variables = frozenset(reader.variables)
    return WorkbenchConfig(toolboxes, variables, mask, warnings, source)


_STRING = r'(?P<string>"(?:[^"\\]|\\.)*")'
_COMMENT = re.compile(rf"(?s){_STRING}|//[^\n]*|/\*.*?\*/")
_TRAILING_COMMA = re.compile(rf"(?s){_STRING}|,(?=\s*[\]}}])")


def _decode_commented(text: str) -> Any:
    """Decode JSON with comments and trailing commas, as editors write it."""

    def blank(found: re.Match[str]) -> str:
        if found["string"]:
            return found["string"]
        # By spaces: the lines and columns in errors stay those of the file.
        return re.sub(r"[^\n]", " ", found[0])

    return decode_json(_TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text)))


def decode_json(text: str | bytes) -> Any:
    """What a JSON text stands for, with U+FFFD for each half of a surrogate pair.

    JavaScript makes these where it cuts a text. They have no UTF-8, and cannot be sent.
    Raises ValueError or RecursionError.
    """
    whole = json.dumps(json.loads(text), ensure_ascii=False)
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", whole))


def load_config(path: str, environ: Mapping[str, str] = os.environ) -> WorkbenchConfig:
    """Read the configuration file at `path`; any fault of it raises `ConfigError`."""
    # A path may have bytes that are no text, and could not be shown or sent.
    source = path.encode(errors="replace").decode()
    language = "JSON"
    decode: Callable[[str], Any] = _decode_commented
    if path.endswith(".toml"):
        language, decode = "TOML", tomllib.loads
    try:
        data = decode(Path(path).read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(source, [f"cannot be read: {error.strerror}"]) from None
    except (ValueError, RecursionError) as error:
        problem = f"expected {language} in UTF-8, found: {error}"
        raise ConfigError(source, [problem]) from None
    return parse_config(data, environ, source)


def find_config(argument: str | None, environ: Mapping[str, str]) -> WorkbenchConfig:
    """The configuration to serve: argument, WORKBENCH_CONFIG, ./workbench-config.json.

    Without any of them, this file's own echo/time toolbox. Raises `ConfigError`.
    """
    default = "workbench-config.json"
    if argument is not None:
        return load_config(argument, environ)
    if environ.get("WORKBENCH_CONFIG"):
        return load_config(environ["WORKBENCH_CONFIG"], environ)
    if os.path.exists(default):
        return load_config(default, environ)
    arguments = (os.path.abspath(__file__), "--toolbox")
    server = ServerConfig("stdio", sys.executable, arguments)
    demo = ToolboxConfig("Echo and time", {"toolbox": server})
    return WorkbenchConfig({"demo": demo})


# === Tool names =======================================================================
# How a tool is named across toolboxes and servers, and how some of them are.


def full_tool_name(toolbox: str, server: str, tool: str) -> str:
    return f"{toolbox}__{server}__{tool}"


def split_tool_name(name: str) -> tuple[str, str, str]:
    """Toolbox, server and tool of a full name; ValueError if it is none."""
    # The tool may contain `__` itself, the other two cannot.
    toolbox, server, tool = name.split("__", 2)
    if "" in (toolbox, server, tool):
        raise ValueError(f"empty part in {name!r}")
    return toolbox, server, tool


def matches_pattern(pattern: str, *names: str) -> bool:
    """Whether a pattern matches toolbox, server and name of a tool.

    With the first of these names alone, it is whether it can match anything there. Its
    parts are counted from the right: `read_*` is of any server, `slack__*` is all
    of one, `work__slack__post` is one tool.
    """
    parts = ["*", "*", *pattern.split("__", 2)][-3:]
    pairs = zip(names, parts, strict=False)
    return all(name == part or fnmatch.fnmatchcase(name, part) for name, part in pairs)


# === Workbench ========================================================================
# The open toolboxes and the way through them: what the meta-tools do, without MCP.


class ToolError(Exception):
    """What went wrong, in one sentence for the model: a result with `isError`."""


class Unreached(Exception):
    """A call that its server has never seen: it may be sent once more."""


@dataclass
class Workbench:
    """The state of a running workbench, for one client.

    Its task group holds the connections; cancelling it closes every toolbox.
    """

    config: WorkbenchConfig
    task_group: anyio.abc.TaskGroup
    # By name, those that were opened or used: the last connection of each server. It
    # is replaced by a newer one, never removed.
    open_toolboxes: dict[str, dict[str, Connection]] = field(default_factory=dict)
    # The client's session, of its last request.
    client: ServerSession | None = None
    log_level: types.LoggingLevel = "debug"  # of what that client wants to see

    def start(self, toolbox: str, server: str) -> Connection:
        """The connection of a server, a new one if it has none or that has ended.

        Without any `await`, so that concurrent callers share one attempt.
        """
        connections = self.open_toolboxes.setdefault(toolbox, {})
        former = connections.get(server)
        if former is None or former.ended:
            connections[server] = Connection(self, toolbox, server, former)
            self.task_group.start_soon(connections[server].run)
        return connections[server]

    def servers_of(self, toolbox: str) -> Mapping[str, ServerConfig]:
        """The configured servers of a toolbox; `ToolError` if there is no such one."""
        if toolbox in self.config.toolboxes:
            return self.config.toolboxes[toolbox].servers
        names = ", ".join(self.config.toolboxes) or "none"
        raise ToolError(f"Toolbox '{toolbox}' not found. Available toolboxes: {names}")

    async def open_toolbox(
        self, toolbox: str, patterns: list[str], on_progress: ProgressFnT
    ) -> JSON:
        """Start what is not up of a toolbox's servers; its state and its tools.

        With patterns, only of the servers and tools that one of them matches. Answers
        when every server has settled, after `OPEN_TIMEOUT` if one is up by then, else
        when the first one is up, at the latest after `ANSWER_TIMEOUT`. `on_progress`
        gets the name of each that settles. Raises `ToolError` if none of them started.
        """
        early_deadline = anyio.current_time() + OPEN_TIMEOUT
        last_deadline = anyio.current_time() + ANSWER_TIMEOUT
        servers = []
        for server in self.servers_of(toolbox):
            if not patterns or find_patterns(patterns, toolbox, server):
                servers.append(server)
                self.start(toolbox, server)
        settled: list[str] = []

        async def wait_for(connection: Connection) -> None:
            await connection.wait_until_current(early_deadline)
            if connection.ended and connection.worth_restarting:
                # A remote server may have been restarted, which shows when it is asked.
                connection = self.start(toolbox, connection.server)
                await connection.wait_until_current(early_deadline)
            if connection.is_up:
                waiting.cancel_scope.deadline = early_deadline
            settled.append(connection.server)
            await on_progress(len(settled), len(servers), connection.server)

        async with anyio.create_task_group() as waiting:
            waiting.cancel_scope.deadline = last_deadline
            for server in servers:
                waiting.start_soon(wait_for, self.open_toolboxes[toolbox][server])
        answer = self.describe_toolbox(toolbox, servers, patterns)
        failed = answer.get("servers_failed", {})
        if servers and len(failed) == len(servers):
            reasons = "; ".join(f"{each}: {why}" for each, why in failed.items())
            raise ToolError(f"Toolbox '{toolbox}' could not be opened. {reasons}")
        return answer

    def describe_toolbox(
        self, toolbox: str, servers: list[str], patterns: list[str]
    ) -> JSON:
        """The result of `open_toolbox`: these servers' state and their tools."""
        answer: JSON = {
            "toolbox": toolbox,
            "description": self.config.toolboxes[toolbox].description,
            "servers_connected": 0,
            "servers_failed": {},
            "servers_connecting": [],
            "note": "",
            "instructions": {},
            "tools": [],
        }
        unmatched = set(patterns)
        for server in servers:
            connection = self.open_toolboxes[toolbox][server]
            if connection.is_up:
                answer["servers_connected"] += 1
                if connection.session.instructions:
                    answer["instructions"][server] = connection.session.instructions
                for name, tool in connection.tools.items():
                    found = find_patterns(patterns, toolbox, server, name)
                    unmatched -= found
                    if found or not patterns:
                        answer["tools"].append(describe_tool(connection, tool))
                continue
            # Whether it has tools that they match is not known.
            unmatched -= find_patterns(patterns, toolbox, server)
            if connection.ended:
                answer["servers_failed"][server] = connection.describe_end()
            else:
                answer["servers_connecting"].append(server)
        set_note(answer, [each for each in patterns if each in unmatched])
        return bounded(answer)

    async def use_tool(
        self, toolbox: str, name: str, params: JSON, on_progress: ProgressFnT | None
    ) -> JSON:
        """Call a tool by its full name, on its server, started if it is not up.

        `params` are the wire parameters of `tools/call` without the name, the result
        is the server's as it came. Raises `ToolError` if there is no such tool or its
        server failed, `MCPError` for the server's own JSON-RPC error.
        """
        server, tool = self.route(toolbox, name)
        whose = f"server '{toolbox}/{server}'"
        # Once more after a start that is worth repeating, or if the server has ended
        # before it saw the call: none is sent twice.
        last_deadline = anyio.current_time() + ANSWER_TIMEOUT
        for _ in range(2):
            connection = self.start(toolbox, server)
            if tool not in connection.tools:
                with anyio.CancelScope(deadline=last_deadline):
                    deadline = anyio.current_time() + OPEN_TIMEOUT
                    await connection.wait_until_current(deadline)
            if not connection.settled.is_set():
                raise ToolError(f"{whose} is still starting: call again")
            if connection.is_up:
                if tool not in connection.tools:
                    closest = self.suggest(toolbox, name)
                    raise ToolError(f"{whose} has no tool '{tool}'{closest}")
                with suppress(Unreached):
                    return await connection.call({"name": tool, **params}, on_progress)
            elif not connection.worth_restarting:
                break
        raise ToolError(f"{whose} has not seen the call: {connection.describe_end()}")

    def route(self, toolbox: str, name: str) -> tuple[str, str]:
        """The server and the tool of a full name; `ToolError` if it leads nowhere."""
        servers = self.servers_of(toolbox)
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

    def suggest(self, toolbox: str, name: str) -> str:
        """A question after the tools whose full names come close to this one."""
        names = []
        for server, connection in self.open_toolboxes.get(toolbox, {}).items():
            for tool in connection.tools:
                names.append(full_tool_name(toolbox, server, tool))
        close = [each for each in names if each.endswith(f"__{name}")]
        if not close:
            close = difflib.get_close_matches(name, names, cutoff=0.5)
        return f". Did you mean {' or '.join(close)}?" if close else ""


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    async with anyio.create_task_group() as task_group:
        yield Workbench(config, task_group)
        task_group.cancel_scope.cancel()


# The hints that say something: the others are what a client assumes without them.
_TELLING_HINTS = {"readOnlyHint": True, "destructiveHint": False}
_TELLING_HINTS |= {"idempotentHint": True, "openWorldHint": False}


def describe_tool(connection: Connection, tool: types.Tool) -> JSON:
    """What a client sends to a model of a server's tool, and where it comes from."""
    schema = dict(tool.input_schema)
    schema.pop("$schema", None)
    entry = {
        "name": full_tool_name(connection.toolbox, connection.server, tool.name),
        "description": tool.description or f"Tool from {connection.name}",
        "source_server": connection.server,
        "toolbox_name": connection.toolbox,
        "inputSchema": schema,
    }
    annotations = tool.annotations or types.ToolAnnotations()
    given = annotations.model_dump(by_alias=True)
    hints = {key: value for key, value in _TELLING_HINTS.items() if given[key] is value}
    if hints:
        entry["annotations"] = hints
    return entry


def find_patterns(patterns: list[str], *names: str) -> set[str]:
    """Those that match a tool of these names, or could match one below them."""
    return {each for each in patterns if matches_pattern(each, *names)}


def set_note(answer: JSON, unmatched: list[str]) -> None:
    """Say in an answer what it lacks: servers that are starting, patterns' tools."""
    notes = []
    if answer["servers_connecting"]:
        names = ", ".join(answer["servers_connecting"])
        again = "Call open_toolbox again to get their tools."
        notes.append(f"Still starting: {names}. {again}")
    if unmatched:
        forms = "patterns are like 'read_*' or 'server__*'"
        shown = ", ".join(unmatched)[:1000]
        notes.append(f"No tool matches {shown} ({forms}).")
    answer["note"] = " ".join(notes)


def bounded(answer: JSON) -> JSON:
    """An answer of `open_toolbox` without what is empty, in `ANSWER_LIMIT` characters.

    The longest tools lose all but their name and the first line of their description,
    then, if that is not enough, all but their name; no more of them than necessary, and
    the note says so. What servers say at length is cut before.
    """
    if _size(_without_empty(answer)) > ANSWER_LIMIT:
        for texts in (answer["instructions"], answer["servers_failed"]):
            if _size(texts) > ANSWER_LIMIT // 4:
                for server, text in texts.items():
                    texts[server] = first_line(text)
    if _size(_without_empty(answer)) > ANSWER_LIMIT:
        tools = answer["tools"]
        former_note = answer["note"]
        about = f"of {len(tools)} tools are listed without inputSchema: call "
        about += "open_toolbox with their names in 'tools' to get it."
        # The number that is told in the end has at most as many digits.
        answer["note"] = f"{former_note} {len(tools)} {about}".strip()
        excess = _size(_without_empty(answer)) - ANSWER_LIMIT
        for kept in ({"name", "description"}, {"name"}):
            for tool in sorted(tools, key=_size, reverse=True):
                if excess <= 0:
                    break
                excess -= _size(tool)
                tool["description"] = first_line(tool["description"])
                for key in tool.keys() - kept:
                    del tool[key]
                excess += _size(tool)
        number = sum("inputSchema" not in tool for tool in tools)
        answer["note"] = f"{former_note} {number} {about}".strip()
    return _without_empty(answer)


def _without_empty(answer: JSON) -> JSON:
    always = ("servers_connected", "tools")
    return {key: item for key, item in answer.items() if item or key in always}


def _size(value: JSON) -> int:
    return len(compact(value))


def first_line(text: str) -> str:
    """The first line of a text that is not empty, at most 200 characters of it."""
    return text.strip().partition("\n")[0][:200]


def compact(value: Any) -> str:
    """JSON without white space; non-ASCII as it is, and null for what JSON lacks."""
    return to_json(value, inf_nan_mode="null").decode()


def counted(number: int, noun: str) -> str:
    """A number of things in words: `1 tool`, `2 tools`."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"


# === MCP server =======================================================================
# The workbench as an MCP server: the two meta-tools on the SDK's low-level `Server`.
# Here, and nowhere else, errors become results of tools, without secrets in them.

RequestContext = ServerRequestContext[Any]
ToolFunction = Callable[..., Awaitable[JSON | str]]
# A 2026-07-28 client needs it in each result; for others the SDK takes it out.
_COMPLETE = {"resultType": "complete"}


class Tool(NamedTuple):
    """A tool of a server of ours."""

    declared: types.Tool
    arguments: type[BaseModel]
    function: ToolFunction


Registry = dict[str, Tool]


def register(
    registry: Registry, title: str, annotations: types.ToolAnnotations | None = None
) -> Callable[[ToolFunction], ToolFunction]:
    """Add a function to a registry as a tool of its name, described by its docstring.

    Its parameters after the context are the tool's arguments: of their types, pydantic
    makes the JSON schema and the model that checks what comes. The function returns a
    wire result or, for short, a text; a `ToolError` becomes a result with `isError`.
    """

    def add(function: ToolFunction) -> ToolFunction:
        name = function.__name__
        parameters = inspect.get_annotations(function, eval_str=True)
        del parameters["context"], parameters["return"]
        strict: Any = {"strict": True, "extra": "forbid"}
        model = create_model(name, __config__=strict, **parameters)
        schema = model.model_json_schema()
        for part in (schema, *schema["properties"].values()):
            # Every model that is connected reads the schema, and needs neither.
            part.pop("title", None)
            part.pop("additionalProperties", None)
        declared = types.Tool(name=name, title=title, input_schema=schema)
        declared.description = function.__doc__
        declared.annotations = annotations
        registry[name] = Tool(declared, model, function)
        return function

    return add


def tool_server(
    name: str, registry: Registry, mask: Callable[[str], str], **options: Any
) -> Server[Any]:
    """A low-level MCP server of these tools; `options` are those of the SDK."""

    async def list_all(*_: object) -> types.ListToolsResult:
        tools = [tool.declared for tool in registry.values()]
        return types.ListToolsResult(tools=tools)

    async def call(context: RequestContext, params: types.CallToolRequestParams) -> Any:
        if params.name not in registry:
            text = f"Tool '{params.name}' not found: use {' and '.join(registry)}"
            raise MCPError(types.INVALID_PARAMS, text)
        tool = registry[params.name]
        try:
            arguments = tool.arguments.model_validate(params.arguments or {})
        except ValidationError as error:
            problems = [f"'{each['loc'][0]}': {each['msg']}" for each in error.errors()]
            text = f"Invalid arguments for tool '{params.name}': {'; '.join(problems)}"
            return {**_text_result(mask(text)), "isError": True}
        try:
            result = await tool.function(context, **dict(arguments))
            return _text_result(result) if isinstance(result, str) else result
        except ToolError as error:
            return {**_text_result(mask(str(error))), "isError": True}

    return Server(
        name, version=__version__, on_list_tools=list_all, on_call_tool=call, **options
    )


def _text_result(text: str) -> JSON:
    return {"content": [{"type": "text", "text": text}], **_COMPLETE}


def _decode(value: Any) -> Any:
    """What a string holds as JSON: models tend to send lists and objects so."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return decode_json(value)
    return value


def _decode_arguments(value: Any) -> Any:
    return _decode(value) if value else {}


def _decode_patterns(value: Any) -> Any:
    """A list of patterns for a single one, for a list in a string, and for nothing."""
    if value in (None, ""):
        return []
    decoded = _decode(value)
    return decoded if isinstance(decoded, list) else [value]


_Name = Annotated[
    str, Field(description="Full name from open_toolbox: {toolbox}__{server}__{tool}")
]
_Arguments = Annotated[
    JSON,
    BeforeValidator(_decode_arguments),
    Field(default_factory=dict, description="What the tool's inputSchema asks for"),
]
_PARTS = "Names or patterns: read_* (any server), slack__* (server slack). Default all"
_Patterns = Annotated[
    list[str],
    BeforeValidator(_decode_patterns),
    Field(default_factory=list, description=_PARTS),
]


async def open_toolbox(
    context: RequestContext, toolbox_name: str, tools: _Patterns
) -> str:
    """Start a toolbox's servers and get their tools with input schemas."""
    workbench: Workbench = context.lifespan_context
    workbench.client = context.session
    on_progress = context.session.report_progress
    return compact(await workbench.open_toolbox(toolbox_name, tools, on_progress))


# Errors of a server that the client has to act on, and not the model.
_FOR_CLIENT = (types.URL_ELICITATION_REQUIRED, types.MISSING_REQUIRED_CLIENT_CAPABILITY)
# What of a request's `_meta` belongs to one hop.
_OF_THIS_HOP = re.compile(r"progressToken$|io\.modelcontextprotocol/")


async def use_tool(
    context: RequestContext, toolbox_name: str, tool_name: _Name, arguments: _Arguments
) -> JSON:
    """Call a tool of a toolbox and get its own result."""
    workbench: Workbench = context.lifespan_context
    workbench.client = context.session
    request = context.params or {}
    meta = request.get("_meta") or {}
    of_retry = request.keys() & {"inputResponses", "requestState"}
    params: JSON = {key: request[key] for key in of_retry}
    params["arguments"] = arguments
    params["_meta"] = {key: meta[key] for key in meta if not _OF_THIS_HOP.match(key)}
    on_progress = context.session.report_progress if "progressToken" in meta else None
    try:
        result = await workbench.use_tool(toolbox_name, tool_name, params, on_progress)
        return _deliverable(result, context.session)
    except MCPError as error:
        if of_retry or error.code in _FOR_CLIENT:
            raise
        failure = f"the server answered with error {error.code}: {error.message}"
        data = compact(error.data)
        if error.data is not None and len(data) <= 500:
            failure += f" (data: {data})"
    except ToolError as error:
        failure = str(error)
    place = f"tool '{tool_name}' in toolbox '{toolbox_name}'"
    raise ToolError(f"Error executing {place}: {failure}")


def _deliverable(result: JSON, session: ServerSession) -> JSON:
    """A downstream result in what the client's protocol era can carry."""
    if is_modern(session):
        return {**_COMPLETE, **result}
    if not isinstance(result.get("structuredContent", {}), dict):
        # Older eras know objects alone, and the SDK would refuse the whole result.
        del result["structuredContent"]
    return result


def meta_tools(config: WorkbenchConfig) -> Registry:
    """The two meta-tools, with the names that a toolbox may have."""
    registry: Registry = {}
    starting = types.ToolAnnotations(destructive_hint=False, idempotent_hint=True)
    using = types.ToolAnnotations(destructive_hint=True)
    register(registry, "Open Toolbox", starting)(open_toolbox)
    register(registry, "Use Tool", using)(use_tool)
    if config.toolboxes:
        # Many clients do not show the instructions, where the names are as well.
        properties = registry["open_toolbox"].declared.input_schema["properties"]
        properties["toolbox_name"]["enum"] = list(config.toolboxes)
    return registry


_USAGE = "Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."
_DEMO_NOTE = "This is a demo. Give your own file as argument or in WORKBENCH_CONFIG."


def instructions(config: WorkbenchConfig) -> str:
    """What a client is told about the toolboxes on connecting, in plain text."""
    if not config.toolboxes:
        return f"No toolboxes configured. Add them to 'toolboxes' in {config.source}."
    parts = ["Available Toolboxes:"]
    for name, toolbox in config.toolboxes.items():
        part = f"{name} ({counted(len(toolbox.servers), 'server')})"
        part += f"\n  Description: {toolbox.description}"
        if len(toolbox.servers) > 1:
            part += f"\n  Servers: {', '.join(toolbox.servers)}"
        parts.append(part)
    parts.append(_USAGE)
    if not config.source:
        parts.append(_DEMO_NOTE)
    return "\n\n".join(parts)


def create_server(config: WorkbenchConfig) -> Server[Any]:
    """The workbench as a low-level MCP server, to be run for one client."""

    async def set_level(context: Any, params: types.SetLevelRequestParams) -> JSON:
        context.lifespan_context.log_level = params.level
        return {}

    async def roots_changed(context: RequestContext, _: object) -> None:
        workbench: Workbench = context.lifespan_context
        for connections in list(workbench.open_toolboxes.values()):
            for connection in list(connections.values()):
                if connection.is_up and not is_modern(connection.session):
                    changed = types.RootsListChangedNotification()
                    await connection.session.send_notification(changed)

    server = tool_server(
        "mcp-workbench",
        meta_tools(config),
        config.mask,
        instructions=instructions(config),
        lifespan=lambda _: running_workbench(config),
    )
    # Not as arguments of `Server`: those warn that 2026-07-28 has neither any more.
    server.add_request_handler(
        "logging/setLevel", types.SetLevelRequestParams, set_level
    )
    server.add_notification_handler(
        "notifications/roots/list_changed", types.NotificationParams, roots_changed
    )
    return server


# === Connections ======================================================================
# One start of a server, to the end of its connection: session, tools, calls, relay.
#
# What carries the messages is a transport, in the next section. It is entered as
# `async with transport(connection) as streams`, and
#  - yields the server's messages, of which it has made what can be made,
#  - gives every other line of output to `connection.log_output`,
#  - calls `connection.mark_closed(reason)` after the last message,
#  - ends a request that goes wrong with an `MCPError`, raised or in an answer that it
#    makes up, whose `data` is one of three marks that no server can know:

_UNREACHED = os.urandom(16).hex()  # not seen: it may go over a new connection
_FAILED = os.urandom(16).hex()  # refused or nonsense: a new one would not help
_LOST = os.urandom(16).hex()  # sent, and perhaps executed
# How the SDK begins what it says in the place of a remote server that went silent.
_SDK_WORDS = ("SSE stream ", "Failed to parse SSE message")
_NOT_REPEATED = "the call may have taken effect and was not repeated"
# Questions of one server that its client may leave open.
MAX_QUESTIONS = 100
# A round without questions wants time.
ROUND_PAUSE = 0.25

_WireRequest = types.Request[JSON, str]
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)
# The scopes of the questions that a remote server asks in the course of one call: set
# by `_call_once`, brought to `_ask` by `Streams.last_context`. What a process asks
# belongs to no call, and ends with the process.
_QUESTIONS: ContextVar[set[anyio.CancelScope]] = ContextVar("_QUESTIONS")


@dataclass
class Streams(anyio.abc.UnreliableObjectStream[SessionMessage]):
    """Both directions of a connection, as a session of the SDK wants them.

    While `limit` requests of the other side are open, any other is refused: what waits
    for a person must not fill the memory.
    """

    messages: AsyncIterator[SessionMessage]
    transmit: Callable[[SessionMessage], Awaitable[None]]
    limit: float = math.inf
    # Of the task that has read the last message. The SDK asks for it, and handles the
    # message in it.
    last_context: Context | None = None
    _open: set[types.RequestId | None] = field(default_factory=set)

    async def receive(self) -> SessionMessage:
        while True:
            item = await anext(self.messages)
            message = item.message
            self._open.discard(cancelled_id(message))
            if self.limit == math.inf or not isinstance(message, types.JSONRPCRequest):
                return item
            if message.id in self._open:
                # JSON-RPC knows no such request, and it would not be counted.
                continue
            if len(self._open) < self.limit:
                self._open.add(message.id)
                return item
            refusal = _failure(f"more than {self.limit} open requests", "")
            await self.transmit(SessionMessage(_error_response(message.id, refusal)))

    async def send(self, item: SessionMessage) -> None:
        await self.transmit(item)
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
            self._open.discard(item.message.id)

    async def aclose(self) -> None:
        """Nothing: what is behind the streams belongs to the transport."""


def cancelled_id(message: types.JSONRPCMessage) -> types.RequestId | None:
    """The id of the request that a message takes back; None if it does not."""
    if not isinstance(message, types.JSONRPCNotification):
        return None
    if message.method != "notifications/cancelled":
        return None
    request_id = (message.params or {}).get("requestId")
    return request_id if isinstance(request_id, str | int) else None


# How a server that knows only the newer era may refuse `initialize`. To ask others
# for it would keep the client waiting for the reason.
_NEWER_ERRORS = (
    types.UNSUPPORTED_PROTOCOL_VERSION,
    types.METHOD_NOT_FOUND,
    types.INVALID_REQUEST,
    types.INVALID_PARAMS,
)


class Connection:
    """One start of a server, to the end of its connection.

    It holds all that must not outlive it: one that is still winding down cannot touch
    what belongs to its successor. `run` is its owner, the one task that enters and
    leaves what belongs to it; everyone else waits for its events and calls through it.

                  settled  closed
        starting     -       -
        failing      -      set    it is told only when nothing of it is left
        up          set      -     session and listed are there
        ended       set     set    reason says why; it is of no more use, but what runs
                                   of it may still take its time to stop

    To end a connection from outside, call `mark_closed`; who waits for it may begin the
    next one.
    """

    session: ClientSession

    def __init__(
        self, workbench: Workbench, toolbox: str, server: str, former: Connection | None
    ) -> None:
        self.workbench = workbench
        self.toolbox = toolbox
        self.server = server
        self.name = f"{toolbox}/{server}"
        self.config = workbench.config.toolboxes[toolbox].servers[server]
        # The server is offered what this client can do.
        self.client = workbench.client
        self.listed: dict[str, types.Tool] = {}
        self.reason = ""
        self.output: deque[str] = deque(maxlen=20)
        self.settled = anyio.Event()
        self.closed = anyio.Event()
        # The next one may do better than this one, if this one ends.
        self.worth_restarting = False
        # It was sent `server/discover`, and nothing has been agreed on since.
        self.is_probed = False
        # It is spoken to in the older era alone: see `mark_older`.
        self.is_older: bool = former is not None and former.is_older
        # A refresh of the tools is due; the last one that became due has ended.
        self._changed = anyio.Event()
        self._refreshed = anyio.Event()
        self._refreshed.set()

    @property
    def is_up(self) -> bool:
        return self.settled.is_set() and not self.closed.is_set()

    @property
    def ended(self) -> bool:
        return self.settled.is_set() and self.closed.is_set()

    @property
    def tools(self) -> dict[str, types.Tool]:
        """What the server lists and the filters let through, by downstream name."""
        listed = self.listed.items()
        return {name: tool for name, tool in listed if self.config.allows(name)}

    def log_output(self, line: str) -> None:
        """Log a line of its output that is no message, and remember it."""
        # Masked before it is cut: half a secret would not be found.
        text = self.workbench.config.mask(line).strip()[:_LOG_LIMIT]
        if text:
            self.output.append(text[:300])
            log.info("[%s] %s", self.name, text)

    def mark_closed(self, reason: str) -> None:
        """Nothing can be sent over the connection any more, and this is why."""
        if not self.reason:
            if self.config.url and self.config.url not in reason:
                reason = f"{self.config.url}: {reason}"
            self.reason = " ".join(self.workbench.config.mask(reason).split())[:2000]
        self.closed.set()

    def mark_older(self) -> None:
        """It ended when it was probed, as servers on older releases of the Rust SDK do.

        They end at any first request but `initialize`.
        """
        self.is_older = True
        self.worth_restarting = True

    def describe_end(self) -> str:
        """How it ended, with the last lines that it wrote to stderr."""
        if not self.output:
            return self.reason
        return f"{self.reason}; its last stderr lines: {' | '.join(self.output)}"

    async def run(self) -> None:
        """Own the connection from the start of the server to the end."""
        try:
            with anyio.move_on_after(CONNECT_TIMEOUT) as starting:
                await self._hold(starting)
            # If nothing has given a reason before: the first one counts.
            self.mark_closed(f"no answer within {CONNECT_TIMEOUT:g} seconds")
            log.info("%s: %s", self.name, self.describe_end())
        finally:
            # Whoever waits has waited long enough.
            self.mark_closed("was stopped")
            self.settled.set()
            self._refreshed.set()

    async def _hold(self, starting: anyio.CancelScope) -> None:
        """Start the server, get to know it, and keep up with it until it is closed."""
        transport = _http_transport if self.config.url else _process_transport
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_when_closed, tasks.cancel_scope)
                async with transport(self) as streams, self._open_session(streams):
                    await self._negotiate()
                    self.is_probed = False
                    self.listed = await self._list_tools()
                    self.worth_restarting = True
                    # From now on it may live as long as it likes.
                    starting.deadline = math.inf
                    self.settled.set()
                    self._log_start()
                    if self._announces_changes() and is_modern(self.session):
                        tasks.start_soon(self._listen)
                    await self._refresh_loop()
        except Exception as error:
            # It must not take the other connections with it.
            log.debug("%s: failed", self.name, exc_info=True)
            self.mark_closed(explain(error))

    async def _cancel_when_closed(self, scope: anyio.CancelScope) -> None:
        await self.closed.wait()
        if self.config.transport == "http" and self.settled.is_set():
            # Calls that are in flight on requests of their own may yet be answered.
            await anyio.sleep(LAST_WORDS)
        scope.cancel()

    def _open_session(self, streams: Streams) -> ClientSession:
        self.session = ClientSession(
            streams,
            streams,
            client_info=types.Implementation(name="mcp-workbench", version=__version__),
            message_handler=self._on_message,
            logging_callback=self._on_log,
            **_relay(self.client),
        )
        return self.session

    async def _negotiate(self) -> None:
        """Agree on a protocol era: the client's own, where the server has a choice.

        Only in the older one can it ask an older client for anything, and send it logs.
        """
        if is_modern(self.client) and not self.is_older:
            self.is_probed = True
            # Whatever is wrong with its answer, it may know the older era.
            with suppress(MCPError, RuntimeError, ValidationError):
                await self.session.discover()
            if self.session.protocol_version is not None:
                return
        try:
            await self.session.initialize()
        except (RuntimeError, MCPError) as error:
            # A RuntimeError: it has answered in a version that knows no `initialize`.
            if isinstance(error, MCPError) and error.code not in _NEWER_ERRORS:
                raise
            await self.session.discover()

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

    def _log_start(self) -> None:
        log.info("%s: connected, %s", self.name, counted(len(self.tools), "tool"))
        log.debug("%s: its tools are %s", self.name, ", ".join(self.tools))
        if self._announces_changes():
            log.debug("Server supports tool change notifications: %s", self.name)
        for pattern in self.config.tool_filters + self.config.excluded_tools:
            if pattern != "*" and not fnmatch.filter(self.listed, pattern):
                where = "toolFilters or excludeTools"
                log.warning("%s: %r of %s matches no tool", self.name, pattern, where)

    def _announces_changes(self) -> bool:
        capabilities = self.session.server_capabilities or types.ServerCapabilities()
        tools = capabilities.tools or types.ToolsCapability()
        return bool(tools.list_changed)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ElicitCompleteNotification) and self.client:
            await self.client.send_notification(message)
        elif isinstance(message, types.ToolListChangedNotification):
            said = "Received tools/list_changed notification from server"
            log.info("%s: %s", said, self.name)
            if not self._announces_changes():
                said = "Received tools notification from server without listChanged"
                log.warning("%s capability: %s", said, self.name)
            self.tools_changed()

    def tools_changed(self) -> None:
        """Make a refresh of the tools due."""
        if not self._refreshed.is_set():
            skipped = "Skipping duplicate discovery - already in progress"
            log.debug("%s for: %s", skipped, self.name)
        if not self._changed.is_set():
            self._changed.set()
            self._refreshed = anyio.Event()

    async def _refresh_loop(self) -> None:
        """List the tools again after changes, one listing at a time."""
        while True:
            await self._changed.wait()
            # Swapped before the listing begins: changes during it cost one more, and
            # none of them is lost.
            self._changed = anyio.Event()
            refreshed = self._refreshed
            try:
                await self._refresh()
            finally:
                refreshed.set()

    async def _refresh(self) -> None:
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                new = await self._list_tools()
        except (MCPError, ValueError, RuntimeError, TimeoutError) as error:
            log.warning("%s: kept its old tools: %s", self.name, explain(error))
            return
        old = self.listed
        self.listed = new
        added = len(new.keys() - old.keys())
        removed = len(old.keys() - new.keys())
        modified = sum(old[name] != new[name] for name in old.keys() & new.keys())
        counts = f"{added} added, {removed} removed, {modified} modified"
        log.info("%s: tools refreshed: %s", self.name, counts)

    async def wait_until_current(self, deadline: float) -> None:
        """Wait until it is up or has ended, and for a refresh that is due.

        The deadline, a time of the event loop, is for the refresh, which has one second
        at least.
        """
        if self.is_up and self.config.url:
            # Its announcements come over a stream that it may not have, or have lost.
            self.tools_changed()
        await self.settled.wait()
        with anyio.move_on_after(max(deadline - anyio.current_time(), 1)):
            await self._refreshed.wait()

    async def _listen(self) -> None:
        """Hold a 2026-07-28 server's `subscriptions/listen` stream open.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/subscriptions
        """
        pause = LISTEN_PAUSE
        while True:
            try:
                async with listen(self.session, tools_list_changed=True) as events:
                    # For what has changed before it was open.
                    self.tools_changed()
                    async for _ in events:
                        # Each event reaches `_on_message` as well.
                        pause = LISTEN_PAUSE
            except SubscriptionLost:
                pass
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            # A host that ends the stream at once, as serverless ones do, would be asked
            # and listed for ever.
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_LISTEN_PAUSE)

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

        It may take as long as it likes; cancelling the caller cancels it downstream.
        An older client is asked what a 2026-07-28 server wants to know, round after
        round. Raises `Unreached`, `ToolError` if the server died or gave no valid
        answer, `MCPError` for a JSON-RPC error of its own.
        """
        result = await self._call_once(params, on_progress)
        asks_itself = not is_modern(self.client)
        while asks_itself and result.get("resultType") == "input_required":
            answers = await self._answer_questions(result)
            try:
                result = await self._call_once({**params, **answers}, on_progress)
            except Unreached:
                raise self._death() from None
        return result

    async def _answer_questions(self, result: JSON) -> JSON:
        """The client's answers to an `InputRequiredResult`, as params of the next call.

        https://modelcontextprotocol.io/specification/2026-07-28/basic/utilities/mrtr
        """
        try:
            required = types.InputRequiredResult.model_validate(result, by_name=False)
        except ValidationError as error:
            raise ToolError(f"server '{self.name}': {explain(error)}") from None
        params: JSON = {}
        if required.request_state is not None:
            params["requestState"] = required.request_state
        if not required.input_requests:
            await anyio.sleep(ROUND_PAUSE)
            return params
        responses: JSON = {}
        context = ClientRequestContext(session=self.session, request_id="input")
        dispatch = self.session.dispatch_input_request
        answer: Any = None
        async with anyio.create_task_group() as asking:
            asking.start_soon(self._cancel_when_closed, asking.cancel_scope)
            for key, question in required.input_requests.items():
                try:
                    answer = await dispatch(context, question)
                except MCPError as error:
                    answer = error.error
                except ValidationError as error:
                    text = explain(error)
                    answer = types.ErrorData(code=types.INVALID_PARAMS, message=text)
                if isinstance(answer, types.ErrorData):
                    break
                responses[key] = answer.model_dump(
                    by_alias=True, mode="json", exclude_none=True
                )
            asking.cancel_scope.cancel()
        if isinstance(answer, types.ErrorData):
            refused = f"the client gave no answer to its {question.method}"
            raise ToolError(f"server '{self.name}': {refused}: {answer.message}")
        if len(responses) < len(required.input_requests):
            raise self._death()
        return {**params, "inputResponses": responses}

    async def _call_once(self, params: JSON, on_progress: ProgressFnT | None) -> JSON:
        # Not the SDK's own `call_tool`: it checks the result against the outputSchema,
        # after the call has taken effect, and may list the tools first.
        request = _WireRequest(method="tools/call", params=params)
        questions: set[anyio.CancelScope] = set()
        token = _QUESTIONS.set(questions)
        try:
            result: JSON = await self.session.send_request(
                request, _RAW_RESULT, progress_callback=on_progress
            )
            if result.get("resultType", "input_required") != "input_required":
                # The SDK has validated it, but takes anything with a `resultType` for an
                # `InputRequiredResult`.
                types.CallToolResult.model_validate(result, by_name=False)
            return result
        except ValidationError as error:
            raise ToolError(f"server '{self.name}': {explain(error)}") from None
        except MCPError as error:
            raise await self._call_error(error) from None
        finally:
            _QUESTIONS.reset(token)
            # A dialog of a remote server must not outlive the call that it is for.
            for scope in questions:
                scope.cancel()

    def _death(self) -> ToolError:
        again = "the next one starts the server again"
        end = f"{self.describe_end()}; {_NOT_REPEATED}, {again}"
        return ToolError(f"server '{self.name}' {end}")

    async def _call_error(self, error: MCPError) -> Exception:
        """What the error of a call means; the error itself, if the server's own."""
        if error.data == _UNREACHED:
            return Unreached()
        # What the SDK gives to calls that are in flight at the end, or sent after it.
        closed = (types.CONNECTION_CLOSED, "Connection closed")
        if (error.code, error.message) == closed:
            # A server may say so itself, and live on.
            with anyio.move_on_after(2 * DRAIN_TIMEOUT):
                await self.closed.wait()
                return self._death()
        text = " ".join(error.message.split())
        if error.data == _FAILED:
            return ToolError(f"server '{self.name}': {text}")
        if self.config.url and error.message.startswith(_SDK_WORDS):
            text = f"{self.config.url}: {text}"
        elif error.data != _LOST:
            return error
        return ToolError(f"server '{self.name}': {text}; {_NOT_REPEATED}")


def is_modern(session: ClientSession | ServerSession | None) -> bool:
    """Whether a session speaks 2026-07-28 or later, where no server asks or logs."""
    return session is not None and session.protocol_version in MODERN_PROTOCOL_VERSIONS


def explain(error: BaseException) -> str:
    """One readable line, never empty, for what lies behind an error."""
    behind: BaseException | None = error
    while isinstance(behind, Exception):
        error = behind
        behind = error.__cause__
        if isinstance(error, ExceptionGroup):
            behind = error.exceptions[0]
        elif error.args and isinstance(error.args[0], Exception):
            # So httpcore hands on what lies behind.
            behind = error.args[0]
        elif not error.__suppress_context__:
            behind = error.__context__
    text = str(error)
    if isinstance(error, ValidationError):
        text = _explain_validation(error)
    elif isinstance(error, socket.gaierror):
        # Its number is not one of the system's.
        text = f"the host is not found: {error.strerror}"
    elif isinstance(error, OSError) and error.errno:
        # asyncio has texts of its own, which leave out what was wrong.
        text = os.strerror(error.errno)
        if error.filename:
            text = f"{error.filename}: {text}"
    return " ".join(text.split()) or type(error).__name__


def _explain_validation(error: ValidationError) -> str:
    """The first field of an answer that is not valid MCP."""
    errors = error.errors(include_url=False, include_input=False)
    # A union reports the errors of all its members: those of another type say nothing.
    others = {each["loc"][:-1] for each in errors if each["type"] == "literal_error"}
    own = [each for each in errors if each["loc"][:-1] not in others]
    first = max(own or errors, key=lambda each: len(each["loc"]))
    place = ".".join(map(str, first["loc"])) or "result"
    return f"its answer is not valid MCP: {place}: {first['msg']}"


async def _ask(
    client: ServerSession, request: types.ServerRequest, result: type[types.Result]
) -> Any:
    """A client's answer to a server's question, unless the call that it is for ends."""
    with anyio.CancelScope() as scope:
        questions = _QUESTIONS.get(set())
        questions.add(scope)
        try:
            return await client.send_request(request, result)
        finally:
            questions.discard(scope)
    raise MCPError(types.INTERNAL_ERROR, "the call that it was asked in is over")


def _relay(client: ServerSession | None) -> JSON:
    """What servers may ask of a client, as arguments of their `ClientSession`.

    A server is offered what the client has declared and no more. Where the client's era
    has no such requests, the server gets an error at once.
    """
    if client is None:
        return {}
    offered = client.client_capabilities or types.ClientCapabilities()
    elicitation = offered.elicitation or types.ElicitationCapability()
    # A client that names no mode has the form.
    modes = elicitation.model_dump(exclude_none=True) or {"form": {}}

    ask = functools.partial(_ask, client)

    async def sample(_: Any, params: types.CreateMessageRequestParams) -> Any:
        request = types.CreateMessageRequest(params=params)
        return await ask(request, types.CreateMessageResultWithTools)

    async def elicit(_: Any, params: types.ElicitRequestParams) -> Any:
        if params.mode not in modes:
            text = f"client has no {params.mode} elicitation"
            raise MCPError(types.INVALID_PARAMS, text)
        if params.mode == "url" and not params.elicitation_id:
            # 2026-07-28 has none, and older clients need one.
            params = params.model_copy(update={"elicitation_id": str(uuid.uuid4())})
        return await ask(types.ElicitRequest(params=params), types.ElicitResult)

    async def list_roots(context: ClientRequestContext) -> Any:
        params = types.RequestParams(_meta=context.meta) if context.meta else None
        return await ask(types.ListRootsRequest(params=params), types.ListRootsResult)

    callbacks: JSON = {}
    if offered.sampling:
        callbacks["sampling_callback"] = sample
        callbacks["sampling_capabilities"] = offered.sampling
    if offered.elicitation:
        callbacks["elicitation_callback"] = elicit
    if offered.roots:
        callbacks["list_roots_callback"] = list_roots
    return callbacks


# === Transports =======================================================================
# What carries a connection's messages: a process and its pipes, or a remote endpoint.

_CHUNK = 65536  # bytes
_LOG_LIMIT = 8192  # bytes of a line that is logged
_MASK_LIMIT = 1 << 18  # bytes of it that are masked before; variables have half of it
_LINE_LIMIT = 128 << 20  # bytes of one that is a message


def _read_message(line: bytes, mark: str = _FAILED) -> types.JSONRPCMessage | None:
    """A JSON-RPC message; for an answer that is not valid MCP, the error that says so.

    It has this mark. None if it is neither: a log line may have an `id` and an `error`, too.
    """
    with suppress(ValidationError):
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    # The SDK's parser fails on half a surrogate pair as well, and on deep nesting.
    try:
        message = decode_json(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    if message.get("jsonrpc") != "2.0":
        return None
    if isinstance(message.get("id"), float):
        # Gson, by which Java servers write JSON, makes 2.0 of 2.
        with suppress(OverflowError, ValueError):
            message["id"] = int(message["id"])
    adapter: TypeAdapter[Any] = types.jsonrpc_message_adapter
    if "method" not in message:
        is_error = "error" in message
        adapter = TypeAdapter(types.JSONRPCError if is_error else types.JSONRPCResponse)
    try:
        valid: types.JSONRPCMessage = adapter.validate_python(message, by_name=False)
        return valid
    except ValidationError as error:
        request_id = message.get("id")
        if "method" not in message and isinstance(request_id, str | int):
            return _error_response(request_id, _failure(explain(error), mark))
        return None


def _failure(message: str, mark: str = _FAILED) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, message, mark)


def _error_response(request_id: types.RequestId, error: MCPError) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error.error)


def _dump(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


async def _lines(
    read: Callable[[int], Awaitable[bytes]], limit: int = _LINE_LIMIT
) -> AsyncIterator[bytes]:
    """The lines that can be read, without their ends, cut where they pass `limit`.

    asyncio's own `readline` would keep twice the limit in memory.
    """
    line = bytearray()
    # A pipe that breaks is one that ends.
    with suppress(OSError):
        while chunk := await read(_CHUNK):
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield bytes(line + end)[:limit]
                line.clear()
                # Who writes without end would have the event loop to himself.
                await asyncio.sleep(0)
            line += rest
            del line[limit:]
    if line:
        yield bytes(line)


# SubprocessStreamProtocol is in asyncio's documentation of `Process`, but not in its
# `__all__`: it makes the three pipes stream readers and writers.
class _ServerProcess(asyncio.subprocess.SubprocessStreamProtocol):
    """A server process: its stdout as messages, its stderr as log lines, its end.

    The SDK's `stdio_client` takes the end of stdout, which a child may hold open, for
    the end of the server, leaves such a child running, and does not tell the status.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, connection: Connection) -> None:
        super().__init__(_CHUNK, asyncio.get_running_loop())
        self.streams = Streams(self._messages(), self._send, MAX_QUESTIONS)
        self._connection = connection
        self._exited = anyio.Event()
        self._stdin_copy: int | None = None
        self._has_sent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._stderr_read = asyncio.create_task(self._read_stderr())
        if sys.platform != "win32":
            # For `_has_read_all`: asyncio closes the pipe before the end is told.
            pipe = self.stdin.get_extra_info("pipe")
            # A process that has exited at once has it closed already.
            if not pipe.closed:
                self._stdin_copy = os.dup(pipe.fileno())

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        # Nobody waits for the end of stdin: asyncio would log its exception, and keep
        # with it all that the traceback refers to.
        super().pipe_connection_lost(fd, None if fd == 0 else exc)

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()
        self.stdin.close()
        # Its children may hold its output open for as long as they like.
        asyncio.get_running_loop().call_later(DRAIN_TIMEOUT, self._process.close)

    async def _messages(self) -> AsyncIterator[SessionMessage]:
        """What the server says on stdout, until all of it was read and it has ended."""
        async for line in _lines(self.stdout.read):
            message = _read_message(line)
            if message is None:
                self._log_output(line)
            else:
                yield SessionMessage(message)
        self.stdin.close()
        await asyncio.wait([self._stderr_read], timeout=DRAIN_TIMEOUT)
        if self._connection.is_probed and self._has_read_all():
            self._connection.mark_older()
        self._connection.mark_closed(self._describe_status())

    async def _read_stderr(self) -> None:
        async for line in _lines(self.stderr.read, _MASK_LIMIT):
            self._log_output(line)
        # Who waits for this task wants to know the status.
        await self._exited.wait()

    def _log_output(self, line: bytes) -> None:
        self._connection.log_output(line[:_MASK_LIMIT].decode(errors="replace"))

    def _describe_status(self) -> str:
        status = self._process.get_returncode()
        if status is None:
            return "closed its stdout"
        if status >= 0:
            return f"exited with status {status}"
        names = {each.value: each.name for each in signal.Signals}
        return f"was killed by {names.get(-status, f'signal {-status}')}"

    def _has_read_all(self) -> bool:
        """Whether something was written to its stdin, and nothing is left of it."""
        if sys.platform == "win32":
            return True  # it cannot be asked there
        if self._stdin_copy is None:
            return False
        import fcntl
        import termios

        unread = fcntl.ioctl(self._stdin_copy, termios.FIONREAD, bytes(4))
        return self._has_sent and not any(unread)

    async def _send(self, item: SessionMessage) -> None:
        message = item.message
        if not self.stdin.is_closing():
            self.stdin.write(_dump(message) + b"\n")
            if not self.stdin.is_closing():
                self._has_sent = True
        # The write itself may have shown that nobody reads it.
        if self.stdin.is_closing() and isinstance(message, types.JSONRPCRequest):
            # Why is known only when the rest of its output has been read.
            with anyio.move_on_after(2 * DRAIN_TIMEOUT):
                await self._connection.closed.wait()
            self._connection.mark_closed("closed its stdin")
            raise _failure("the server has not seen it", _UNREACHED)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            # Only so is a server held up that asks and does not read. A request or its
            # cancellation must not wait for such a server.
            with suppress(ConnectionError):
                await self.stdin.drain()

    async def stop(self) -> None:
        """Close its stdin, then SIGTERM, then SIGKILL; its children go with it.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        self.stdin.close()
        if self._stdin_copy is not None:
            os.close(self._stdin_copy)
        for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            with anyio.move_on_after(EXIT_GRACE):
                await self._exited.wait()
                # A launcher may end before its worker, whose end nobody tells us.
                while self._signal_group(0):
                    await anyio.sleep(0.02)
                break
            self._signal_group(number)
        await asyncio.wait([self._stderr_read], timeout=DRAIN_TIMEOUT)
        self._process.close()

    def _signal_group(self, number: int) -> bool:
        """Signal the process and its children, and tell if any is left; 0 only asks."""
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), number)
                return True
        elif number:
            with suppress(ProcessLookupError):
                self._process.kill()
        return False


@asynccontextmanager
async def _process_transport(connection: Connection) -> AsyncIterator[Streams]:
    """Start a server's process and speak to it over stdin and stdout."""
    config = connection.config
    command = config.command
    if sys.platform == "win32":
        command = get_windows_executable_command(command)
    env = dict(os.environ)
    for name in connection.workbench.config.variables:
        env.pop(name, None)
    # What the SDK always passes, such as PATH, is never withheld.
    env |= get_default_environment() | dict(config.env)
    loop = asyncio.get_running_loop()
    factory = functools.partial(_ServerProcess, connection)
    start = loop.subprocess_exec(
        factory, command, *config.args, env=env, cwd=config.cwd, start_new_session=True
    )
    try:
        # Cancelled half way, it might run with nobody to stop it.
        with anyio.CancelScope(shield=True):
            _, process = await start
    except FileNotFoundError as error:
        if " " in command and error.filename == command:
            hint = "put the arguments of a command into 'args'"
            raise OSError(f"{explain(error)}: {hint}") from None
        raise
    try:
        yield process.streams
    finally:
        with anyio.CancelScope(shield=True):
            await process.stop()


_SESSION_ID = "mcp-session-id"
# The method of a request that is never sent: see `_http_transport`.
_ABORT = "workbench/abort"
# uvicorn and Node close a connection that was idle for 5 seconds: a request that comes
# just then would be lost.
_IDLE_TIMEOUT = 2.0
# The most of an event over the older SSE transport, in the SDK.
_SSE_LIMIT = 1 << 20
_ENDPOINT = re.compile(rb"(?m)^data: ?(\S+)")
# By these, the end of a host that has vanished shows after a minute.
_TCP_OPTIONS = {
    "TCP_KEEPIDLE": 30,  # seconds
    "TCP_KEEPALIVE": 30,  # the same on macOS
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,  # milliseconds
}


async def _keep_alive(event: str, info: Mapping[str, Any]) -> None:
    """Have the system probe a connection that is silent; a trace function of httpcore.

    Without it, a call to a host that has vanished is never answered.
    """
    if event != "connection.connect_tcp.complete":
        return
    tcp = info["return_value"].get_extra_info("socket")
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if hasattr(socket, name):
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


@dataclass
class _Events(httpx2.AsyncByteStream):
    """The body of an event stream, decoded, with what can be made of its messages."""

    response: httpx2.Response
    connection: Connection
    has_endpoint: bool = False  # of the older SSE transport, the first event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_sse = self.connection.config.transport == "sse"
        parts: list[bytes] = []
        async for chunk in self.response.aiter_bytes():
            # Only whole lines go on: an escape may be cut in two anywhere.
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            parts.append(chunk[:end])
            if end:
                events = b"".join(parts)
                parts = []
                if is_sse:
                    self._check_sse(events)
                yield b"".join(map(self._repair, events.splitlines(keepends=True)))
            parts.append(chunk[end:])
        yield b"".join(parts)
        if is_sse:
            self.connection.mark_closed("closed its event stream")

    def _repair(self, line: bytes) -> bytes:
        """A line, with what can be made of an answer that the SDK would drop."""
        if not line.startswith(b"data:"):
            return line
        with suppress(ValidationError):
            types.jsonrpc_message_adapter.validate_json(line[5:], by_name=False)
            return line
        message = _read_message(line[5:])
        return line if message is None else b"data:" + _dump(message) + b"\n"

    def _check_sse(self, events: bytes) -> None:
        """Say what the SDK's `sse_client` fails on, for it tells nobody in time."""
        url = self.response.request.url
        endpoint = _ENDPOINT.search(events)
        if endpoint and not self.has_endpoint:
            self.has_endpoint = True
            target = url.join(endpoint[1].decode(errors="replace"))
            if (target.scheme, target.netloc) != (url.scheme, url.netloc):
                elsewhere = f"another origin, {target.copy_with(query=None)}"
                self.connection.mark_closed(f"its messages were to go to {elsewhere}")
        if len(events) > _SSE_LIMIT:
            limit = f"sent more than {_SSE_LIMIT:,} bytes at once"
            self.connection.mark_closed(f"{limit}, which the transport sse cannot take")

    async def aclose(self) -> None:
        await self.response.aclose()


class _HttpClient(httpx2.AsyncClient):
    """Answers in the server's place where something goes wrong with one request.

    An exception would end the SDK's transport, and with it every other call in flight
    on the same server; an error status would not be named. `send` is overridden, and no
    `transport` is passed, because that would switch the environment's proxies off.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(
            headers=dict(connection.config.headers),
            # A call may be silent for ever, or take long to be sent.
            timeout=httpx2.Timeout(HTTP_TIMEOUT, read=None, write=None),
            # Any number of others may be silent beside it.
            limits=httpx2.Limits(keepalive_expiry=_IDLE_TIMEOUT),
        )
        self._connection = connection
        self._is_sse = connection.config.transport == "sse"

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        if request.method == "GET":
            # One that resumes the answer of a call may come from a server that is dead.
            is_resumption = "last-event-id" in request.headers
            with anyio.fail_after(HTTP_TIMEOUT if is_resumption else None):
                return await self._exchange(request)
        if request.method == "DELETE":
            # At the end of a session the task is cancelled already.
            with anyio.CancelScope(shield=True):
                return await self._send_oneway(request, EXIT_GRACE)
        message = json.loads(request.content)
        if not {"method", "id"} <= message.keys():
            return await self._send_oneway(request, HTTP_TIMEOUT)
        if self._is_sse:
            # Its answer comes over the one event stream.
            return await self._send_oneway(request, None)
        return await self._send_request(request, message)

    async def _send_request(
        self, request: httpx2.Request, message: JSON
    ) -> httpx2.Response:
        """The answer to a JSON-RPC request: an event stream, or one message."""
        headers = {"content-type": "application/json"}
        try:
            if message["method"] == _ABORT:
                raise _failure("the call was cancelled")
            response = await self._exchange(request)
            if isinstance(response.stream, _Events):
                return response
            answer = _read_message(response.content)
            if not isinstance(answer, types.JSONRPCResponse | types.JSONRPCError):
                kind = response.headers.get("content-type", "nothing")
                raise self._failed(f"{_status(response)} with {kind}, no answer", _LOST)
            answer.id = message["id"]
            headers[_SESSION_ID] = response.headers.get(_SESSION_ID, "")
            body = _dump(answer)
        except MCPError as error:
            body = _dump(_error_response(message["id"], error))
        except (ValueError, RuntimeError) as error:
            # A result that is nested too deeply, say: nobody else must pay for it.
            failure = self._failed(explain(error), _LOST)
            body = _dump(_error_response(message["id"], failure))
        return httpx2.Response(200, headers=headers, content=body, request=request)

    async def _send_oneway(
        self, request: httpx2.Request, timeout: float | None
    ) -> httpx2.Response:
        """Send what has no answer: a notification, an answer, the end of a session."""
        try:
            with anyio.move_on_after(timeout):
                response = await self._exchange(request)
                await response.aclose()
        except MCPError as error:
            log.debug("%s: %s", self._connection.name, error.message)
            if self._is_sse:
                # A call waits for an answer that has no other way to come.
                self._connection.mark_closed(error.message)
        return httpx2.Response(204, request=request)

    async def _exchange(self, request: httpx2.Request) -> httpx2.Response:
        """The response to a request; an `MCPError` with the status if it fails."""
        try:
            response = await self._fetch(request)
        except httpx2.RequestError as error:
            raise self._request_failed(error) from None
        if _has_events(response):
            # Without the charset, which PHP adds by itself: events are UTF-8. And
            # without the encoding, which is undone.
            headers = {"content-type": "text/event-stream"}
            headers[_SESSION_ID] = response.headers.get(_SESSION_ID, "")
            events = _Events(response, self._connection)
            return httpx2.Response(200, headers=headers, stream=events, request=request)
        if response.is_success:
            return response
        if await self._has_lost_session(request, response):
            self._connection.mark_closed("ended the session")
            mark = _UNREACHED if _SESSION_ID in request.headers else _FAILED
            raise self._failed(_status(response), mark)
        raise self._refusal(response)

    async def _fetch(self, request: httpx2.Request) -> httpx2.Response:
        """The response after redirects; read, unless it is an event stream."""
        request.extensions["trace"] = _keep_alive
        response = await super().send(request, stream=True)
        for _ in range(self.max_redirects):
            following = response.next_request
            if following is None or not _may_follow(request, following):
                break
            await response.aclose()
            response = await super().send(following, stream=True)
        if not _has_events(response):
            # Nobody waits for the rest of an error.
            timeout = None if response.is_success else HTTP_TIMEOUT
            with anyio.move_on_after(timeout):
                async with aclosing(response):
                    await response.aread()
        return response

    async def _has_lost_session(
        self, request: httpx2.Request, response: httpx2.Response
    ) -> bool:
        """Whether a refusal is one of the session, and not of what was asked in it.

        Servers have many words for it, and a tool may have the same: so it is one if a
        ping is refused with the very same. Of 404, which the protocol has for it, the
        words do not matter; others have to speak of a session.
        """
        if self._is_sse or not self._connection.settled.is_set():
            return False
        if request.method != "POST" or b'"method"' not in request.content:
            return False
        if not 400 <= response.status_code < 500:
            return False
        # With the id of what was refused: only so are the refusals the same.
        request_id = json.loads(request.content).get("id", "ping")
        content = compact({"jsonrpc": "2.0", "id": request_id, "method": "ping"})
        headers = request.headers.copy()
        del headers["content-length"]
        ping = httpx2.Request("POST", request.url, headers=headers, content=content)
        faults = suppress(httpx2.RequestError, httpx2.ResponseNotRead)
        with anyio.move_on_after(HTTP_TIMEOUT), faults:
            pong = await self._fetch(ping)
            await pong.aclose()
            if pong.status_code != response.status_code:
                return False
            if pong.status_code == 404:
                return _SESSION_ID in request.headers
            names_it = b"session" in response.content.lower()
            return names_it and pong.content == response.content
        return False

    def _refusal(self, response: httpx2.Response) -> MCPError:
        """The error of a response that is no success."""
        status = _status(response)
        if response.next_request is not None:
            target = response.next_request.url.copy_with(query=None, userinfo=b"")
            return self._failed(f"{status} to {target} is not followed")
        if response.status_code in (401, 403):
            return self._failed(f"{status}: check 'headers' in the configuration")
        if response.status_code == 405 and not self._is_sse:
            status += ': an older server? Add "type": "sse" to its configuration'
        with suppress(ValidationError, httpx2.ResponseNotRead):
            own = types.JSONRPCError.model_validate_json(response.content)
            if own.error.code not in _FOR_CLIENT:
                own.error.message += f" ({status})"
            return MCPError.from_error_data(own.error)
        return self._failed(status, _LOST if response.is_server_error else _FAILED)

    def _request_failed(self, error: httpx2.RequestError) -> MCPError:
        reason = explain(error)
        if isinstance(error, httpx2.TimeoutException):
            reason = f"no answer within {HTTP_TIMEOUT:g} seconds"
        is_unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        return self._failed(reason, _FAILED if is_unsent else _LOST)

    def _failed(self, reason: str, mark: str = _FAILED) -> MCPError:
        return _failure(f"{self._connection.config.url}: {reason}", mark)


def _status(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}"


def _may_follow(request: httpx2.Request, following: httpx2.Request) -> bool:
    """Whether a redirect keeps the method and the host, and goes to no plain HTTP."""
    old, new = request.url, following.url
    if (following.method, new.netloc) != (request.method, old.netloc):
        return False
    return new.scheme in (old.scheme, "https")


def _has_events(response: httpx2.Response) -> bool:
    kind = response.headers.get("content-type", "").lower()
    return response.is_success and kind.startswith("text/event-stream")


@asynccontextmanager
async def _http_transport(connection: Connection) -> AsyncIterator[Streams]:
    """Speak to a remote server over Streamable HTTP or the older SSE transport."""
    http = _HttpClient(connection)
    url = connection.config.url
    transport: Any
    if connection.config.transport == "sse":
        transport = sse_client(url, httpx_client_factory=lambda *_, **__: http)
    else:
        transport = streamable_http_client(
            url, http_client=http, max_sse_event_size=_LINE_LIMIT
        )

    async def messages() -> AsyncIterator[SessionMessage]:
        async for item in read:
            if isinstance(item, SessionMessage):
                streams.last_context = read.last_context
                yield item
        connection.mark_closed("closed the connection")

    async def send(item: SessionMessage) -> None:
        # Not waited for: the SDK sends a message only after the notification before it
        # was taken. It keeps their order.
        sending.start_soon(write.send, item)
        request_id = cancelled_id(item.message)
        if request_id is not None and connection.config.transport == "http":
            sending.start_soon(abort, request_id)

    async def abort(request_id: types.RequestId) -> None:
        """Stop reading the answer to a cancelled request, which may never come."""
        # The server may still take back what it has asked in that call.
        await anyio.sleep(LAST_WORDS)
        # The SDK's `_in_flight_posts` drops a request whose id is used again.
        request = types.JSONRPCRequest(jsonrpc="2.0", id=request_id, method=_ABORT)
        await write.send(SessionMessage(request))

    streams = Streams(messages(), send, MAX_QUESTIONS)
    sending = anyio.create_task_group()
    # The client has no exit of its own that would wait for what is still open.
    async with aclosing(http), transport as (read, write), sending:
        yield streams
        sending.cancel_scope.cancel()


# === Built-in toolbox =================================================================
# A server of our own with two tools, in the same kind of registry, over stdio or HTTP.


TOOLBOX_TOOLS: Registry = {}
_Text = Annotated[str, Field(description="The text to echo back.")]
_ZONE = "An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC."
_Timezone = Annotated[str, Field(default="UTC", description=_ZONE)]


@register(TOOLBOX_TOOLS, "Echo Tool")
async def echo(context: RequestContext, text: _Text) -> str:
    """A simple tool that returns the text it was given."""
    return text


@register(TOOLBOX_TOOLS, "Time Tool")
async def time(context: RequestContext, timezone: _Timezone) -> str:
    """Returns the current server time, optionally in a specific timezone."""
    # UTC needs no zone data, unlike any other.
    zone: datetime.tzinfo = datetime.UTC
    if timezone != "UTC":
        try:
            zone = zoneinfo.ZoneInfo(timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            expected = "expected an IANA name (Europe/Paris)"
            raise ToolError(f"Unknown timezone {timezone!r}: {expected}") from None
    return datetime.datetime.now(zone).isoformat(timespec="seconds")


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server."""
    return tool_server("mcp-toolbox", TOOLBOX_TOOLS, make_mask(()))


def toolbox_app(address: str) -> ASGIApp:
    """The built-in toolbox, bound to this IP address, as an ASGI application.

    `/mcp` speaks Streamable HTTP. A GET without a session opens the older SSE
    transport, whose messages are posted to `/mcp/messages?sessionId=...`.
    https://modelcontextprotocol.io/specification/2024-11-05/basic/transports
    """
    server = create_toolbox_server()
    # With no host, it leaves the checks of Host and Origin to us.
    http = server.streamable_http_app(host="")
    sse = SseServerTransport("/mcp/messages")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The lifespan of the Streamable HTTP sessions.
            return await http(scope, receive, send)
        request = Request(scope, receive)
        is_stream = request.method == "GET" and not request.headers.get(_SESSION_ID)
        refusal = await _check_origin(request, address)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif request.url.path == "/mcp/messages":
            query = scope["query_string"].replace(b"sessionId=", b"session_id=")
            scope = {**scope, "query_string": query}
            await sse.handle_post_message(scope, receive, _with_session_id(send))
        elif request.url.path == "/mcp" and is_stream:
            stream = sse.connect_sse(scope, receive, _with_session_id(send))
            async with stream as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            await http(scope, receive, send)

    return app


async def _check_origin(request: Request, address: str) -> Response | None:
    """Check Host and Origin (DNS rebinding); the response if they are wrong."""
    # Bound to any other address, it has names that we do not know: any Host will do.
    hosts = [request.headers.get("host", "")]
    if ipaddress.ip_address(address).is_loopback:
        names = ["127.0.0.1", "localhost", "[::1]", address]
        hosts = names + [f"{name}:*" for name in names]
    origins = [f"http://{host}" for host in hosts]
    origins += [f"https://{host}" for host in hosts]
    settings = security.TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=origins
    )
    checks = security.TransportSecurityMiddleware(settings)
    return await checks.validate_request(request)


def _with_session_id(send: Send) -> Send:
    """Name the session `sessionId`, and answer 400, not 404, where there is none."""

    async def adapted(message: Message) -> None:
        if message.get("status") == 404:
            message = {**message, "status": 400}
        body = message.get("body", b"")
        if body.startswith(b"event: endpoint"):
            message = {**message, "body": body.replace(b"session_id=", b"sessionId=")}
        await send(message)

    return adapted


# === Running ==========================================================================
# The command line, stdin and stdout, signals, and the log.

# Bytes that a client may leave unread; beyond, it gets answers and nothing else.
_UNREAD_LIMIT = 4 << 20


def exit_by_force_after(seconds: float, status: int) -> None:
    """End the process then, whatever it still waits for.

    Asked for at every end: a signal, that of stdin, that of stdout. Some things cannot
    be cancelled: a thread that reads stdin or looks up a name, a writer whose reader
    does not read.
    """
    asyncio.get_running_loop().call_later(seconds, os._exit, status)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over stdin and stdout until one of them is closed."""
    kinds = {stat.S_IFMT(os.fstat(descriptor).st_mode) for descriptor in (0, 1)}
    are_pipes = kinds <= {stat.S_IFIFO, stat.S_IFSOCK}
    # What comes in on a socket that is both would be taken for the end of stdout.
    is_one_socket = os.path.sameopenfile(0, 1)
    if are_pipes and not is_one_socket and sys.platform != "win32":
        await _serve_pipes(server)
        return
    async with stdio_server() as (read, write):
        # Without what the SDK's reader could not read.
        messages = (item async for item in read if isinstance(item, SessionMessage))
        try:
            await _serve(server, Streams(messages, write.send))
        finally:
            # All servers are stopped, but the SDK's reader blocks until stdin ends.
            exit_by_force_after(DRAIN_TIMEOUT, 0)


async def _serve(server: Server[Any], client: Streams) -> None:
    """Serve one client until its messages end."""
    # The `initialize` that ended a run, until the next one begins with it.
    pending: list[SessionMessage] = []

    async def messages_of_one_run() -> AsyncIterator[SessionMessage]:
        """The messages up to an `initialize` that comes after `server/discover`."""
        while pending:
            yield pending.pop()
        is_probed = False
        async for item in client.messages:
            method = getattr(item.message, "method", "")
            if method == "initialize" and is_probed:
                pending.append(item)
                return
            is_probed |= method == "server/discover"
            yield item
        exit_by_force_after(EXIT_TIMEOUT, 0)

    while True:
        streams = Streams(messages_of_one_run(), client.transmit)
        await server.run(streams, streams, server.create_initialization_options())
        # The SDK settles for an era at the first request, and would refuse the older
        # handshake of a client that did not wait for the newer one.
        if not pending:
            return


async def _serve_pipes(server: Server[Any]) -> None:
    """Serve without the SDK's streams, which cost three thread switches a message."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(_CHUNK)

    class Stdout(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            exit_by_force_after(EXIT_TIMEOUT, 0)
            scope.cancel()

    async def messages() -> AsyncIterator[SessionMessage]:
        async for line in _lines(reader.read):
            # Without a mark: a server may see what becomes of its question.
            message = _read_message(line, "")
            if message is not None:
                yield SessionMessage(message)

    async def send(item: SessionMessage) -> None:
        # Without waiting: a client that does not read must not hold up our end.
        if stdout.get_write_buffer_size() > _UNREAD_LIMIT:
            if isinstance(item.message, types.JSONRPCNotification):
                return
            if isinstance(item.message, types.JSONRPCRequest):
                # A question that fails so is an error for the server that asks.
                raise anyio.BrokenResourceError
        stdout.write(_dump(item.message) + b"\n")

    stdin = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: stdin, os.fdopen(0, "rb"))
    stdout, _ = await loop.connect_write_pipe(Stdout, os.fdopen(1, "wb"))
    with anyio.CancelScope() as scope:
        await _serve(server, Streams(messages(), send))
        stdout.close()
        # Until what is still to be written has been, and the scope is cancelled.
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
    # `host` may be any name for the address.
    bound, bound_port = listener.getsockname()[:2]
    url = httpx2.URL(scheme="http", host=bound, port=bound_port, path="/mcp")
    log.info("Toolbox at %s", url)
    if not ipaddress.ip_address(bound).is_loopback:
        log.warning("No authentication: bind to %s in a trusted environment only", host)
    app = toolbox_app(bound)
    # Without a timeout, it would wait for the open streams.
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # Streams that are open at the end are not errors, as uvicorn has it.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    return run_until_signal(0, server.serve, [listener])


async def check(config: WorkbenchConfig) -> int:
    """Start every server once and report on each, then sizes; 1 if one failed."""
    if not config.toolboxes:
        _say(f"No server is configured in {config.source}.")
        return 1
    async with running_workbench(config) as workbench:
        connections = []
        for toolbox, entry in config.toolboxes.items():
            for server in entry.servers:
                connections.append(workbench.start(toolbox, server))
        width = max(len(_short_name(each)) for each in connections)
        workbench.task_group.start_soon(_report_waiting, connections)
        async with anyio.create_task_group() as reports:
            for connection in connections:
                reports.start_soon(_report, connection, width)
        tools: list[types.Tool] = []
        for connection in connections:
            if connection.is_up:
                tools += connection.tools.values()
        if tools:
            own = [tool.declared for tool in meta_tools(config).values()]
            before = _amount(_as_sent(own), instructions(config))
            native = f"{_amount(_as_sent(tools))} natively"
            _say(f"Model context: {before} before a toolbox is opened,")
            _say(f"instead of {native} with {counted(len(tools), 'tool')}")
        for toolbox, entry in config.toolboxes.items():
            opened = workbench.describe_toolbox(toolbox, [*entry.servers], [])["tools"]
            shortened = sum("inputSchema" not in tool for tool in opened)
            if shortened:
                about = f"{shortened} of {len(opened)} tools without inputSchema"
                _say(f"Toolbox '{toolbox}' opens with {about}: split it, or open parts")
        return int(not all(each.is_up for each in connections))


def _short_name(connection: Connection) -> str:
    # In another client's file, each server is a toolbox of its own name.
    if connection.toolbox == connection.server:
        return connection.server
    return connection.name


async def _report(connection: Connection, width: int) -> None:
    began = anyio.current_time()
    await connection.settled.wait()
    seconds = anyio.current_time() - began
    state, color, about = "FAILED", 31, connection.reason
    if connection.is_up:
        tools = [describe_tool(connection, each) for each in connection.tools.values()]
        state, color, about = "ok    ", 32, counted(len(tools), "tool")
        if tools:
            cost = _amount(tools, connection.session.instructions or "")
            about = f"{about:9}  {cost}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        state = f"\033[{color}m{state}\033[0m"
    lines = [f"{_short_name(connection):{width}}  {state}  {seconds:5.1f} s  {about}"]
    if not connection.is_up:
        lines += connection.output
    _say("\n    ".join(lines))


async def _report_waiting(connections: list[Connection]) -> None:
    while True:
        await anyio.sleep(10)
        waiting = [each for each in connections if not each.settled.is_set()]
        _say(f"Still starting: {', '.join(map(_short_name, waiting))}")


def _as_sent(tools: Iterable[types.Tool]) -> list[JSON]:
    """What clients send to a model of tools."""
    fields = {"name", "description", "input_schema"}
    return [tool.model_dump(include=fields, by_alias=True) for tool in tools]


def _amount(*parts: Any) -> str:
    size = sum(len(compact(part).encode()) for part in parts)
    return f"{size:,} bytes (about {size // 4:,} tokens)"


def _say(text: str) -> None:
    # Nobody may read it any more.
    with suppress(BrokenPipeError):
        print(text, flush=True)


async def call_once(config: WorkbenchConfig, name: str, arguments: str = "{}") -> int:
    """Call one tool, print its texts, or JSON if it has others; the exit status."""
    async with running_workbench(config) as workbench:
        try:
            given = _decode_arguments(arguments)
            if not isinstance(given, dict):
                expected = "expected its arguments as a JSON object"
                raise ToolError(f"{expected}, got: {arguments}")
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


def run_until_signal(
    status_if_signalled: int, function: Callable[..., Awaitable[Any]], *arguments: Any
) -> int:
    """Run a coroutine function until it returns a status, or a signal cancels it.

    The handlers stay until the process ends: a second signal must not stop the cleanup.
    They are not the event loop's, because Windows has none there.
    """

    async def run() -> int:
        loop = asyncio.get_running_loop()

        def on_signal(*_: object) -> None:
            # When the loop is closed we are done already.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(stop)

        def stop() -> None:
            exit_by_force_after(EXIT_TIMEOUT, status_if_signalled)
            scope.cancel()

        with anyio.CancelScope() as scope:
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                if hasattr(signal, name):
                    signal.signal(getattr(signal, name), on_signal)
            return await function(*arguments) or 0
        return status_if_signalled

    return anyio.run(run)


class _StderrHandler(logging.Handler):
    """Writes masked lines to stderr, with tracebacks at the debug level alone.

    A client that does not read our stderr would block whoever writes to it: what it
    has no room for is dropped.
    """

    def __init__(self, mask: Callable[[str], str]) -> None:
        super().__init__()
        self._mask = mask

    def emit(self, record: logging.LogRecord) -> None:
        if not log.isEnabledFor(logging.DEBUG):
            record.exc_info = record.exc_text = None
        line = self._mask(self.format(record)).encode(errors="replace") + b"\n"
        # Nobody may read it any more.
        with suppress(OSError):
            while line and self._has_room():
                # PIPE_BUF of the POSIX standard: so much never blocks.
                line = line[os.write(2, line[:512]) :]

    def _has_room(self) -> bool:
        if sys.platform == "win32":
            return True  # no pipe can be asked there
        return bool(select.select((), (2,), (), 0)[1])


def parse_command_line(arguments: list[str] | None) -> argparse.Namespace:
    """The options of the command line; exits with status 2 where they do not fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add_mode = parser.add_mutually_exclusive_group().add_argument
    add("config", nargs="?", metavar="CONFIG", help="path of the configuration file")
    add_mode("--check", action="store_true", help="start every server, report on each")
    add_mode("--toolbox", action="store_true", help="serve the built-in echo and time")
    add_mode(
        "--call", nargs="+", default=[], metavar=("NAME", "JSON"), help="call a tool"
    )
    add("--http", metavar="[HOST:]PORT", help="serve the toolbox over HTTP")
    add("--verbose", action="store_true", help="log debug lines")
    add("--version", action="version", version=__version__)
    options = parser.parse_args(arguments)
    given = options.call
    if len(given) > 2 or any(map(os.path.exists, given)):
        parser.error("--call takes NAME and one JSON object; CONFIG goes before --call")
    if options.http is not None and not options.toolbox:
        parser.error("--http goes with --toolbox")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = parse_command_line(arguments)
    config = WorkbenchConfig({})
    if not options.toolbox:
        try:
            config = find_config(options.config, os.environ)
        except ConfigError as error:
            print(config.mask(str(error)), file=sys.stderr)
            return 1
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(format=form, handlers=[_StderrHandler(config.mask)])
    log.setLevel(logging.INFO)
    if options.verbose:
        log.setLevel(logging.DEBUG)
    elif options.check:
        log.setLevel(logging.WARNING)  # its table says the rest
    for warning in config.warnings:
        log.warning("%s", warning)
    if options.http is not None:
        return serve_http(options.http)
    if options.check:
        return run_until_signal(1, check, config)
    if options.call:
        return run_until_signal(1, call_once, config, *options.call)
    if options.toolbox:
        server = create_toolbox_server()
    else:
        server = create_server(config)
        names = ", ".join(config.toolboxes) or "no toolboxes"
        origin = f" from {config.source}" if config.source else f". {_DEMO_NOTE}"
        log.info("Serving %s%s", names, origin)
    if os.isatty(0):
        options_for_people = "--check tests the servers, --help tells more"
        log.info("Waiting for an MCP client on stdin; %s", options_for_people)
        log.info("Ctrl-C ends it")
    return run_until_signal(0, serve_stdio, server)


if __name__ == "__main__":
    cast(Any, sys.stdout).reconfigure(errors="replace")
    # The interpreter's own end takes longer than all of ours.
    os._exit(main())
