# /// script
# requires-python = ">=3.11"
# dependencies = ["mcp>=2.3,<3"]
# ///
"""MCP Workbench puts many MCP servers, in named toolboxes, behind two tools.

`open_toolbox` starts a toolbox's servers and returns their tools. `use_tool`
calls a tool by its full name, `{toolbox}__{server}__{tool}`.

  python workbench.py [CONFIG]            serve the workbench over stdio
  python workbench.py [CONFIG] --check    start every server, report on each
  python workbench.py [CONFIG] --call NAME [JSON]  call a tool by its full name
  python workbench.py --login URL         sign in to a remote server
  python workbench.py --toolbox           serve the built-in echo/time tools
  --http [HOST:]PORT    with --toolbox: serve them over HTTP
  --read-only           serve only tools that are declared read-only
  --verbose             log more, among it the names of each server's tools
  --version, --help     print the version, or this text

Without CONFIG: WORKBENCH_CONFIG, else ./workbench-config.json, else a demo.

  python workbench.py ~/.cursor/mcp.json --check
  python workbench.py config.json --call work__files__read '{"path": "a.txt"}'
  python workbench.py --login https://mcp.example.com/mcp
  python workbench.py --toolbox --http 8000
"""

# The protocol has two eras. Up to 2025-11-25, a client begins with `initialize`, and a
# server may ask the client and log at any time. From 2026-07-28 on, a client begins
# with `server/discover`, and a server asks only in the result of a call. Most published
# servers know only the older era. So the workbench refuses `server/discover` over
# stdio, and clients that know both eras fall back to `initialize`. A client that sends
# requests of the newer era all the same can list and call tools, but cannot be asked.
# https://modelcontextprotocol.io/specification

from __future__ import annotations

import _thread
import argparse
import asyncio
import datetime
import difflib
import enum
import fnmatch
import functools
import gc
import hashlib
import inspect
import json
import logging.handlers
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import webbrowser
import zoneinfo
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep  # `time` is a tool of the built-in toolbox
from typing import IO, Annotated, Any, NamedTuple, cast, get_args

# The SDK is written on anyio, whose cancel scopes and task groups serve here as well.
# asyncio does what anyio lacks: processes that report their exit, and tasks and timers
# that outlive a block. All packages come with `mcp`.
try:
    import tomllib

    import anyio.abc
    import httpx2
    import uvicorn
    from mcp import Client, ClientSession, MCPError, ServerSession, types
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.stdio import get_default_environment
    from mcp.server.lowlevel.server import Server
    from mcp.server.sse import SseServerTransport
    from mcp.shared import auth
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.message import SessionMessage
    from mcp_types.methods import validate_server_result
    from pydantic import AnyUrl, BeforeValidator, Field, TypeAdapter
    from pydantic_core import ArgsKwargs, ValidationError, from_json, to_json
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    how = "pip install 'mcp>=2.3,<3', or start it with: uv run workbench.py"
    sys.exit(f"workbench.py needs Python 3.11 and mcp 2.3 or newer ({error}): {how}")

__version__ = "0.10.0"

# The main timeouts, in seconds.
OPEN_TIMEOUT = 5.0  # for slower servers once one is up, and for a new listing
ANSWER_TIMEOUT = 50.0  # for servers to start or to list tools; clients give up at 60
START_TIMEOUT = 180.0  # for a start: a first `npx` or `uvx` downloads its package
CONNECT_TIMEOUT = 10.0  # for an HTTP connection, not for the answer
TOKEN_TIMEOUT = 20.0  # for a request to an authorization server
LOGIN_TIMEOUT = 300.0  # for a person to sign in
HANDOVER_TIMEOUT = 3.0  # for the end of a server's old process before its new one
LISTING_PAUSE = 1.0  # between two listings of a server that is up
EXIT_GRACE = 1.0  # between the end of a server's stdin, SIGTERM and SIGKILL
OUTPUT_TIMEOUT = 0.25  # for the last output of a process, its death, and the log
# A client that ends the workbench closes its stdin, waits 2 s, sends SIGTERM, waits 2 s
# and kills it. The servers must have ended before. The sum has the steps of
# `ServerProcess.__aexit__`, the log, and a moment more.
EXIT_TIMEOUT = 2 * EXIT_GRACE + 3 * OUTPUT_TIMEOUT + 0.1

ANSWER_LIMIT = 12_000  # characters of an answer of `open_toolbox`
PART_LIMIT = 20_000  # characters of an answer for a part of a toolbox
TEXT_LIMIT = 2_000  # characters of a server's instructions; clients cut there as well
MAX_PAGES = 250  # of one `tools/list`; a server with more pages is looping

# A name that begins with one underscore is used in its own section only.

log = logging.getLogger("workbench")
JSON = dict[str, Any]  # a JSON object, such as the wire form of a result
OnProgress = ProgressFnT | None


# === Configuration ====================================================================
# A file, ours or another client's, becomes a `WorkbenchConfig` of the right form. All
# problems of a file are reported together, each with its place. Commands and URLs are
# checked only by starting the server.


class ConfigError(ValueError):
    """A configuration cannot be used; the text names its file and every problem."""


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, with the wildcards of a shell, matches a name.

    Names are compared first, because the pattern `get[1]` matches only `get1`.
    """
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def without_null(members: JSON) -> JSON:
    """The members that are not null, which stands for what is not there."""
    return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True)
class ServerConfig:
    """A downstream server: either a process (`command`) or an endpoint (`url`).

    The type of a field's default is the JSON type that a file must have, but for the
    exceptions in `_ConfigReader.read`.
    """

    command: str = ""
    args: list[str] = field(default_factory=list)
    # None takes an inherited variable away.
    env: dict[str, str | None] = field(default_factory=dict)
    cwd: str = "."
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    transport: str = ""  # with a URL: `sse`, or anything else for Streamable HTTP
    tool_filters: list[str] = field(default_factory=lambda: ["*"])
    excluded_tools: list[str] = field(default_factory=list)
    description: str = ""  # of the toolbox, if the server is a toolbox of its own

    def allows(self, tool: str) -> bool:
        """Whether a model may see and call the downstream tool of this name."""
        if any(matches(tool, pattern) for pattern in self.excluded_tools):
            return False
        return any(matches(tool, pattern) for pattern in self.tool_filters)

    def find_secrets(self) -> list[str]:
        """The values of `env` and of headers, and the logins and queries of URLs.

        A secret elsewhere, such as in a URL's path, is known only if it comes from
        `${VAR}`.
        """
        env = without_null(self.env)
        # PATH, HOME and a few more are no secrets, and their parts are in many texts.
        for name in get_default_environment():
            env.pop(name, None)
        values = list(env.values())
        address = self.url.split("://", 1)[-1]
        texts = [*self.headers.values(), address.partition("?")[2]]
        # A password may have any character, so everything before the last `@` counts as
        # the login, unless a `/` stands before that `@`, as in the path `/@owner`.
        for login in re.findall(r"(.*[^/])@", address):
            texts += [login, login.partition(":")[2]]
        for text in [*self.args, *values]:
            texts += re.findall(r"://([^/\s]+)@", text)
            texts += re.findall(r"(?s)://[^?]*\?(.+)", text)
        # A part may be shown alone, such as the token of `Bearer TOKEN`.
        parts = re.split(r"[\s:/?#&=@]+", " ".join(texts))
        return texts + parts + values


@dataclass(frozen=True)
class ToolboxConfig:
    """A named group of servers that are opened together."""

    description: str
    servers: Mapping[str, ServerConfig]


# Colours and moves of a terminal, halves of surrogate pairs, and control characters
# except \n.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\0-\t\v-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass
class WorkbenchConfig:
    """A configuration of the right form, with its `${VAR}` references expanded.

    After the start, only the tokens that are masked change, by `learn`.
    """

    toolboxes: Mapping[str, ToolboxConfig]
    # The environment variables that the file names as `${VAR}`. A server gets such a
    # variable only through its own entry.
    withheld: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # where it came from, for messages
    secrets: frozenset[str] = frozenset()  # beside the withheld values
    read_only: bool = False  # by `--read-only`: only such tools are seen and called

    def __post_init__(self) -> None:
        self._names = set(self.toolboxes)
        for toolbox in self.toolboxes.values():
            self._names.update(toolbox.servers)
        # A model needs the names of toolboxes and servers, so a name is no secret.
        secrets = self.secrets.union(self.withheld.values()) - self._names
        forms = set()
        # The lines of a secret are secrets, because stderr is shown line by line.
        for text in map(str.strip, {*secrets, *"\n".join(secrets).splitlines()}):
            plain = _CONTROLS.sub(" ", text).strip()
            # A short text may occur by chance, and a path that exists is no secret.
            if len(plain) >= 8 and not os.path.exists(text):
                # Python's `json` has two forms of a text with other letters than ASCII.
                shown = _CONTROLS.sub(" ", json.dumps(text, ensure_ascii=False)[1:-1])
                forms |= {plain, shown, json.dumps(text)[1:-1]}
        # A secret may contain another one, and is replaced first.
        self._secrets = sorted(forms, key=len, reverse=True)
        # A workbench may run for weeks, and only its newest tokens are valid.
        self._tokens: deque[str] = deque(maxlen=99)

    def learn(self, *tokens: str) -> None:
        """Mask these tokens as well from now on; only the last 99 of them are kept."""
        self._tokens.extend(set(filter(None, tokens)).difference(self._tokens))

    def mask(self, text: str) -> str:
        """The text with `***` for each known secret, and without control characters.

        Programs cut secrets, and fold them into lines. So a part of one is masked as
        well, if it stands alone and has 12 or more letters, digits, `_` or `-`. Line
        feeds stay.
        """
        secrets = [*self._secrets, *self._tokens]
        # A colour may stand right before a part of a secret.
        text = _CONTROLS.sub(" ", text)
        for secret in secrets:
            text = text.replace(secret, "***")

        def mask_part(run: re.Match[str]) -> str:
            is_part = any(run[0] in secret for secret in secrets)
            return "***" if is_part and run[0] not in self._names else run[0]

        return re.sub("[A-Za-z0-9_-]{12,}", mask_part, text)


# The fields of a server, and their keys in clients' files. Of one field's keys, the last
# counts, but headers and exclusions add up, and filters must agree. `env` is read first,
# because the other values may refer to its variables.
_SPELLINGS = {
    "env": ["env", "environment"],
    "command": ["command"],
    "args": ["args"],
    "cwd": ["cwd"],
    "url": ["url", "serverUrl", "httpUrl"],
    "headers": ["headers", "http_headers", "env_http_headers", "bearer_token_env_var"],
    "transport": ["type", "transport"],
    "tool_filters": ["toolFilters", "includeTools", "enabled_tools", "tools"],
    "excluded_tools": ["excludeTools", "disabledTools", "disabled_tools"],
    "description": ["description"],
}
_KINDS = {name: type(default) for name, default in vars(ServerConfig()).items()}
_FIELDS = {key: name for name, keys in _SPELLINGS.items() for key in keys}
_FILTER_KEYS = _SPELLINGS["tool_filters"] + _SPELLINGS["excluded_tools"]
_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
_TYPE_NAMES |= {int: "a number", float: "a number", type(None): "nothing"}
# `${VAR`, `${env:VAR`, or `{env:VAR` of opencode, without what follows the name.
_VARIABLE = r"(?x) (?: \$\{ (?:env:)? | \{env: ) (?P<name> [A-Z_][A-Z0-9_]* )"
_DEFAULT = r"(?: :- (?P<default> [^}]* ) )? \}"
# A reference of another client, such as `${input:key}` or `{file:path}`, or of a shell.
_FOREIGN = r"(?: \$\{ | \{env: | \{file: ) [^}]* \} | \$ [A-Z_][A-Z0-9_]* \b"
_UNCLOSED = r"\$\{"
_REFERENCE = rf"{_VARIABLE} {_DEFAULT} | (?P<foreign> {_FOREIGN} ) | {_UNCLOSED}"


@dataclass
class _ConfigReader:
    """Reads a decoded configuration; collects secrets, and problems with their places."""

    problems: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def read_toolboxes(self, content: Any) -> dict[str, ToolboxConfig]:
        """The toolboxes of a file by their names, ours or another client's."""
        data = self.expect("configuration", content, dict)
        if data.get("toolMode", "proxy") != "proxy":
            self.problems.append(_UNKNOWN_MODE.format(data["toolMode"]))
        toolboxes = {}
        if "toolboxes" not in data:
            for path, table in self.find_tables(data).items():
                # Each server of another client's file is a toolbox of its own.
                for name, server in self.read_servers(path, table).items():
                    text = server.description or f"Tools of the MCP server '{name}'"
                    toolboxes[name] = ToolboxConfig(text, {name: server})
            return toolboxes
        for key in sorted(data.keys() & _TABLE_KEYS):
            log.warning("%s: not served, because there are toolboxes as well", key)
        for name, path, entry in self.read_entries("toolboxes", data["toolboxes"]):
            given = entry.pop("description", None)
            text = self.read(f"{path}.description", given, str, {})
            table = entry.pop("mcpServers", None)
            servers = self.read_servers(f"{path}.mcpServers", table)
            self.report_unknown_keys(path, entry)
            toolboxes[name] = ToolboxConfig(text, servers)
        return toolboxes

    def read_entries(self, at: str, table: Any) -> Iterator[tuple[str, str, JSON]]:
        """Name, path and content of each toolbox or server that is switched on."""
        for name, value in self.expect(at, table, dict).items():
            # An entry whose name begins with `_` is a comment.
            if name.startswith("_"):
                continue
            path = f"{at}.{name}"
            entry = without_null(self.expect(path, value, dict))
            on = self.expect(f"{path}.enabled", entry.pop("enabled", True), bool)
            off = self.expect(f"{path}.disabled", entry.pop("disabled", False), bool)
            if off or not on:
                continue
            if re.search("^$|__|_$", name):
                self.report(path, "expected a name, without '__', not ending in '_'")
            yield name, path, entry

    def read_servers(self, at: str, table: Any) -> dict[str, ServerConfig]:
        """The servers of a table by their names, without this workbench itself."""
        servers = {}
        for name, path, entry in self.read_entries(at, table):
            # Zed's extensions and opencode's organizations bring servers whose entries
            # here have only settings.
            fields = set(map(_FIELDS.get, entry))
            if at in ("context_servers", "mcp") and not fields & {"command", "url"}:
                log.warning("%s: left out, because it has no command and no URL", path)
                continue
            server = self.read_server(path, entry)
            self.secrets += server.find_secrets()
            words = map(os.path.expanduser, [server.command, *server.args])
            files = filter(os.path.exists, words)
            is_own = any(os.path.samefile(file, __file__) for file in files)
            if is_own and "--toolbox" not in server.args:
                log.warning("%s: left out, because it starts this workbench", path)
            else:
                servers[name] = server
        return servers

    def read_server(self, path: str, entry: JSON) -> ServerConfig:
        """One server. The keys of its fields are removed from the entry."""
        values = self.read_fields(path, entry)
        starts = list(filter(values.get, ("command", "url")))
        if len(starts) != 1:
            found = " and ".join(starts) or f"neither; unknown keys: {[*entry]}"
            self.report(path, f"expected either 'command' or 'url', found {found}")
        self.report_unknown_keys(path, entry)
        return ServerConfig(**values)

    def read_fields(self, path: str, entry: JSON) -> JSON:
        """The values of a server's fields, in whichever spelling they are given."""
        values: JSON = {}
        for key, name in _FIELDS.items():
            if key not in entry:
                continue
            at = f"{path}.{key}"
            given = entry.pop(key)
            env = without_null(values.get("env", {}))
            if key == "tools" and isinstance(given, dict):
                log.warning("%s: Codex's approvals of tools are not applied", at)
                continue
            if key == "command" and isinstance(given, list):
                # opencode writes the command and its arguments as one list.
                value, *values["args"] = self.read(at, given, list, env) or [""]
            else:
                value = self.read(at, given, _KINDS[name], env)
            if name == "headers":
                value = values.get(name, {}) | without_null(value)
            elif name == "excluded_tools":
                # The exclusions of all spellings add up.
                value += values.get(name, [])
            elif name == "tool_filters" and values.get(name, value) != value:
                self.report(at, "expected the same in all spellings")
            values[name] = value
        return values

    def report_unknown_keys(self, path: str, entry: JSON) -> None:
        """Warn of unknown keys. A misspelt filter is a problem: it filters nothing."""
        unknown = sorted(key for key in entry if not key.startswith("_"))
        filters = {key.lower(): key for key in _FILTER_KEYS}
        for key in unknown:
            # With this cutoff, one letter may be wrong in the shortest key, `tools`. A
            # few longer words, such as `toolset`, are refused as well.
            for near in difflib.get_close_matches(key.lower(), filters, 1, cutoff=0.8):
                hint = f"unknown key: did you mean a server's '{filters[near]}'?"
                self.report(f"{path}.{key}", hint)
        if unknown:
            log.warning("%s: unknown keys %s, ignored", path, unknown)

    def read(self, path: str, value: Any, kind: type, env: JSON) -> Any:
        """A text, or a list or object of texts, with its references expanded.

        References may name variables of `env`. In an object, null stays.
        """
        if kind is list and value == "*":
            value = ["*"]
        if kind is str and isinstance(value, bool | int | float):
            value = json.dumps(value)
        value = self.expect(path, value, kind)
        if kind is list:
            items = enumerate(value)
            return [self.read(f"{path}[{i}]", each, str, env) for i, each in items]
        if kind is dict:
            texts = dict(value)
            for key, each in value.items():
                if each is not None:
                    texts[key] = self.read(f"{path}.{key}", each, str, env)
            return texts
        if re.search(r"(?s)(?:^|=)[A-Za-z]:.*[\b\f\n\r\t]", value):
            log.warning(r"%s: has a tab or line feed: in JSON, write C:\\new", path)
        return re.sub(_REFERENCE, functools.partial(self.expand, path, env), value)

    def expand(self, path: str, env: JSON, reference: re.Match[str]) -> str:
        """The value of a variable, or its default. A foreign reference stays."""
        name, default, foreign = reference.group("name", "default", "foreign")
        if foreign:
            # The text is not shown, because it may be a password with a `$`.
            log.warning(
                "%s: left as it is; only ${NAME} is expanded, in capitals", path
            )
            return foreign
        # `${` that is not closed has no name, and so no value.
        value: str | None = {**os.environ, **env}.get(name, default)
        if value is None:
            how = "set it in `env` of the workbench's entry in your client, or write"
            self.report(path, f"{reference[0]} is not set: {how} ${{NAME:-default}}")
            return ""
        return value

    def expect(self, path: str, value: Any, kind: type) -> Any:
        """The value, if it is of this JSON type; otherwise an empty one."""
        if type(value) is kind:
            return value
        # Only the type is shown, because the value may be secret.
        found = _TYPE_NAMES[type(value)]
        self.report(path, f"expected {_TYPE_NAMES[kind]}, found {found}")
        return kind()

    def report(self, path: str, problem: str) -> None:
        """Collect a problem; `parse_config` reports all of them together."""
        self.problems.append(f"{path}: {problem}")

    def find_tables(self, data: JSON) -> JSON:
        """The tables of servers in another client's file, by their places.

        Servers that a list of names switches off are marked as `disabled` there.
        """
        tables = without_null({key: data.get(key) for key in _TABLE_KEYS})
        # `mcp` is opencode's table. In VS Code, its `servers` is the table. In Gemini
        # CLI, it has lists of names from `mcpServers`.
        other = {"servers", "inputs", "allowed", "excluded", "serverCommand"}
        mcp = self.expect("mcp", tables.get("mcp", {}), dict)
        if mcp.keys() & other:
            del tables["mcp"]
        if "servers" in mcp:
            tables["mcp.servers"] = mcp["servers"]
        folder, project = self.find_project(data)
        if project.get("mcpServers"):
            tables[f"{folder}.mcpServers"] = project["mcpServers"]
        if not tables and not isinstance(data.get("projects"), dict):
            told = f"expected one of {['toolboxes', *_TABLE_KEYS]}, found {[*data]}"
            self.report("configuration", told)
        for key in sorted(data.keys() & _POLICY_KEYS):
            log.warning("%s: not applied; use `toolFilters` or --read-only", key)
        off = self.read_names("disabledMcpServers", data)
        off |= self.read_names(f"{folder}.disabledMcpServers", project)
        off |= self.read_names("mcp.excluded", mcp)
        for path, value in tables.items():
            table = self.expect(path, value, dict)
            tables[path] = table
            if mcp.get("allowed") is not None:
                allowed = self.read_names("mcp.allowed", mcp)
                off |= set(map(str.lower, table)) - allowed
            for name in table:
                if name.lower() in off:
                    table[name] = {"disabled": True}
        return tables

    def find_project(self, data: JSON) -> tuple[str, JSON]:
        """Place and content of what Claude Code keeps for the current folder."""
        found: tuple[str, JSON] = ("projects", {})
        others = []
        # Other files may use this key for something else. The current folder may have
        # been deleted.
        with suppress(AttributeError, OSError):
            for folder, project in data.get("projects", {}).items():
                if not isinstance(project, dict):
                    continue
                # `Path` knows which paths are equal on Windows.
                if Path(folder) == Path.cwd():
                    found = (f"projects.{folder}", project)
                elif project.get("mcpServers"):
                    others.append(folder)
        if others:
            log.warning("projects: not served, for other folders: %s", others[:5])
        return found

    def read_names(self, path: str, owner: JSON) -> set[str]:
        """A list of servers' names, which clients compare without regard to case."""
        names = self.expect(path, owner.get(path.rpartition(".")[2]) or [], list)
        return {str(name).lower() for name in names}


def parse_config(data: Any, source: str = "file", text: str = "") -> WorkbenchConfig:
    """Check a configuration that was decoded from this text. Raises `ConfigError`."""
    # In this copy, TOML's dates are texts, and Codex's names of variables `${NAME}`.
    data = json.loads(json.dumps(data, default=str), object_hook=_name_variables)
    # Comments and disabled entries are not read, but a token that is named there must
    # not reach other servers either.
    named = set(re.findall(_VARIABLE, text + json.dumps(data)))
    # Every server needs PATH, HOME and a few more, which the SDK lists.
    named -= get_default_environment().keys()
    withheld = {name: os.environ[name] for name in os.environ.keys() & named}
    reader = _ConfigReader()
    toolboxes = reader.read_toolboxes(data)
    if reader.problems:
        raise ConfigError("\n".join([f"{source}:", *reader.problems]))
    return WorkbenchConfig(toolboxes, withheld, source, frozenset(reader.secrets))


def find_config(argument: Path | str | None) -> WorkbenchConfig:
    """The configuration to serve: a file's, or the demo. Raises `ConfigError`."""
    given = argument or os.environ.get("WORKBENCH_CONFIG")
    path = os.path.expanduser(str(given or "workbench-config.json"))
    if not given and not os.path.exists(path):
        server = ServerConfig(sys.executable, [__file__, "--toolbox"])
        note = "This is a demo. Give your own file as argument or in WORKBENCH_CONFIG."
        demo = ToolboxConfig(f"Echo and time. {note}", {"toolbox": server})
        return WorkbenchConfig({"demo": demo}, source=note)
    is_toml = path.endswith(".toml")
    try:
        path = os.path.abspath(path)
        # Without this check, a named pipe that nobody writes to would be waited for. A
        # link to a pipe is the `<(...)` of a shell, which writes.
        if Path(path).is_fifo() and not Path(path).is_symlink():
            raise OSError(0, "expected a file, found a pipe")
        text = Path(path).read_text(encoding="utf-8-sig")
        data = tomllib.loads(text) if is_toml else _decode_json(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        language = "TOML, because of its name," if is_toml else "JSON"
        told = f"expected {language} saved as UTF-8: {error}"
        raise ConfigError(f"{path}: {told}") from None
    return parse_config(data, path, text)


# === Workbench ========================================================================
# The toolboxes and their servers, for the meta-tools of the next section. A server is
# used through a `Connection`, one for each start; see `State`.

# The full name of a tool. Only the part behind the server's name may contain `__`.
NAME_FORM = "{toolbox}__{server}__{tool}"


class ToolError(Exception):
    """An error whose text tells a model what to do."""


class NotDelivered(ToolError):
    """The server has certainly not executed the request, so it may be sent again."""


def find_cause(error: BaseException) -> BaseException:
    """The innermost cause of an error."""
    if isinstance(error, ExceptionGroup):
        return find_cause(error.exceptions[0])
    if error.__cause__ is not None:
        return find_cause(error.__cause__)
    return error


def explain(error: BaseException) -> str:
    """A readable text, never empty, for the innermost cause of an error."""
    error = find_cause(error)
    if isinstance(error, ValidationError):
        # The text of pydantic would have the value, which may be secret.
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{error.title} is not valid: {place}: {first['msg']}"
    return str(error).strip() or type(error).__name__


@dataclass
class DownstreamServer:
    """A configured server, through all its connections.

    The class decides when a server is started again, what the new start waits for, and
    which calls are repeated.
    """

    toolbox_name: str
    server_name: str
    config: ServerConfig
    workbench: Workbench
    introduced: bool = False  # a part had the server's instructions

    def __post_init__(self) -> None:
        self.name = f"{self.toolbox_name}/{self.server_name}"
        self.prefix = f"{self.toolbox_name}__{self.server_name}__"
        # A placeholder, which never runs, so that `start` makes the first connection.
        self.connection = Connection(self.name, self.config, self.workbench.shared)
        self.connection.set_state(State.ENDED)

    @property
    def tools(self) -> dict[str, types.Tool]:
        """By name, the tools that a model may see and call."""
        tools = self.connection.tools
        if self.workbench.config.read_only:
            tools = {name: t for name, t in tools.items() if is_read_only(t)}
        return tools

    def fits(self, pattern: str, tool: str | None = None) -> bool:
        """Whether a pattern fits this tool or, without a tool, may fit a tool here."""
        # Missing parts are added on the left: `read_*` is `*__*__read_*`.
        toolbox, server, name = ["*", "*", *pattern.split("__", 2)][-3:]
        if not matches(self.toolbox_name, toolbox):
            return False
        if not matches(self.server_name, server):
            return False
        return tool is None or matches(tool, name)

    def start(self) -> Connection:
        """The current connection, or a new one if the current one has closed."""
        former = self.connection
        # With an `await` between the check and the assignment, callers that come at
        # once would start the server more than once.
        if former.state > State.UP:
            self.connection = Connection(self.name, self.config, self.workbench.shared)
            self.workbench.task_group.start_soon(self._run, self.connection, former)
        return self.connection

    async def _run(self, connection: Connection, former: Connection) -> None:
        if self.config.command:
            # Two processes of one server would compete for a profile or a lock. An old
            # process that still answers a call may take for ever.
            with anyio.move_on_after(HANDOVER_TIMEOUT):
                await former.reach(State.ENDED)
        await connection.run()

    async def connect(self) -> Connection:
        """Wait until the server is up, with its tools current, or has failed."""
        connection = self.start()
        was_up = connection.state is State.UP
        await connection.wait_until_current()
        if was_up and connection.state is not State.UP:
            # The connection was lost meanwhile, or the listing has shown its loss.
            return await self.connect()
        return connection

    async def call(self, full_name: str, params: JSON, on_progress: OnProgress) -> JSON:
        """Call a tool of the server, which is started if it is not up.

        `params`, without the name, and the result are those of `tools/call` on the
        wire. Raises `ToolError`, `ValueError` for arguments or results that are not
        valid, or the server's `MCPError`.
        """
        tool = full_name.removeprefix(self.prefix)
        for _ in range(2):
            connection = self.start()
            # A name that is not known may be that of a new tool, and a connection that
            # is not up yet has no tools.
            if tool not in self.tools:
                with anyio.move_on_after(ANSWER_TIMEOUT):
                    await self.connect()
                connection = self.connection
            if connection.state is not State.UP:
                break
            if tool not in self.tools:
                names = [self.prefix + name for name in self.tools]
                near = ", ".join(difflib.get_close_matches(full_name, names, cutoff=0))
                what = f"'{self.name}' has no tool '{tool}'"
                raise ToolError(f"{what}, nearest: {near or 'none'}")
            # After `NotDelivered`, the connection is marked as closed, and the second
            # turn of the loop makes a new one. Any other call may have been executed.
            with suppress(NotDelivered):
                return await connection.call({**params, "name": tool}, on_progress)
        raise ToolError(f"server '{self.name}' is not up: {connection.why_not_up()}")


Servers = list[DownstreamServer]


def in_state(state: State, servers: Servers) -> Servers:
    """Those of the servers whose connections are in this state."""
    return [server for server in servers if server.connection.state is state]


@dataclass
class Workbench:
    """The state of a running workbench, for one client."""

    config: WorkbenchConfig
    shared: Shared
    task_group: anyio.abc.TaskGroup  # runs the connections; its end stops all servers
    # By name, the toolboxes that were opened or used. A server starts when needed.
    open_toolboxes: dict[str, Servers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file_time = modification_time(self.config.source)

    def servers_of(self, name: str) -> Servers:
        """The servers of a toolbox, which is open from now on.

        Raises `ToolError` if it is not configured.
        """
        if name not in self.config.toolboxes:
            names = ", ".join(self.config.toolboxes) or "none"
            text = f"Toolbox '{name}' not found. Available toolboxes: {names}"
            if modification_time(self.config.source) != self.file_time:
                text += f". {self.config.source} has changed: restart the workbench"
            raise ToolError(text)
        if name not in self.open_toolboxes:
            self.open_toolboxes[name] = [
                DownstreamServer(name, server, config, self)
                for server, config in self.config.toolboxes[name].servers.items()
            ]
        return self.open_toolboxes[name]

    def open_servers(self) -> Servers:
        """The servers of all toolboxes that are open."""
        return [server for its in self.open_toolboxes.values() for server in its]

    async def open(
        self, toolbox: str, patterns: list[str], on_progress: ProgressFnT
    ) -> JSON:
        """Start the servers that a pattern can match; return their states and tools.

        Waits until every server is up or has failed: up to `OPEN_TIMEOUT` if one is up
        by then, else until one is up, and up to `ANSWER_TIMEOUT` at most. Raises
        `ToolError`, also if all servers have failed.
        """
        began = anyio.current_time()
        servers = [s for s in self.servers_of(toolbox) if any(map(s.fits, patterns))]
        settled: list[DownstreamServer] = []
        async with anyio.create_task_group() as waiting:
            waiting.cancel_scope.deadline = began + ANSWER_TIMEOUT

            async def wait_for(server: DownstreamServer) -> None:
                connection = await server.connect()
                # The first server that is up shortens the wait. A deadline in the past
                # ends the wait at once.
                if connection.state is State.UP:
                    waiting.cancel_scope.deadline = began + OPEN_TIMEOUT
                settled.append(server)
                await on_progress(len(settled), len(servers), server.server_name)

            for server in servers:
                waiting.start_soon(wait_for, server)
        answer = self.compose(toolbox, servers, patterns)
        # A toolbox without servers has not failed.
        if 0 < len(answer.get("servers_failed", {})) == len(servers):
            raise ToolError(compact(answer))
        return answer

    def compose(self, toolbox: str, servers: Servers, patterns: list[str]) -> JSON:
        """The answer of `open_toolbox`: the state of these servers, and their tools."""
        is_part = patterns != ["*"]
        answer: JSON = {
            "toolbox": toolbox,
            "description": shorten(self.config.toolboxes[toolbox].description, 1_000),
            "servers_connected": len(in_state(State.UP, self.servers_of(toolbox))),
            "servers_failed": {},
            "servers_connecting": [],
            "note": "",
            "instructions": {},
            "tools": [],
        }
        for server in servers:
            name, connection = server.server_name, server.connection
            if connection.state is State.UP:
                found = []
                for tool in server.tools.values():
                    if any(server.fits(pattern, tool.name) for pattern in patterns):
                        found.append(describe_tool(server, tool))
                answer["tools"] += found
                manual = connection.session.instructions
                # An answer for the whole may have cut the manual, so the first part has
                # it again. Later parts do not.
                is_new = bool(found) and not server.introduced
                if manual and (is_new or not is_part):
                    answer["instructions"][name] = manual
                    server.introduced |= is_part
            elif connection.state is State.STARTING:
                answer["servers_connecting"].append(name)
            else:
                answer["servers_failed"][name] = connection.why_not_up()
        answer["note"] = compose_note(answer, servers, patterns)
        fit(answer, PART_LIMIT if is_part else ANSWER_LIMIT)
        optional = {"servers_failed", "servers_connecting", "note", "instructions"}
        return {k: v for k, v in answer.items() if v or k not in optional}

    def find_server(self, toolbox: str, full_name: str) -> DownstreamServer:
        """The server of the toolbox whose tool has this name. Raises `ToolError`."""
        for server in self.servers_of(toolbox):
            if full_name.startswith(server.prefix):
                return server
        names = ", ".join(self.config.toolboxes[toolbox].servers)
        text = f"No server of toolbox '{toolbox}' matches '{full_name}'."
        raise ToolError(f"{text} Use {NAME_FORM}; its servers are {names}.")


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    environment = {k: v for k, v in os.environ.items() if k not in config.withheld}
    shared = Shared(config.mask, config.learn, environment)
    # asyncio looks up host names in these threads. A look-up may hang for a minute,
    # such as while a VPN is off, and with few threads keep other servers waiting.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(500))
    async with anyio.create_task_group() as task_group:
        yield Workbench(config, shared, task_group)
        task_group.cancel_scope.cancel()


def modification_time(path: str) -> float:
    """When a file was changed last; 0 without a file, as in the demo."""
    with suppress(OSError):
        return os.path.getmtime(path)
    return 0


def compose_note(answer: JSON, servers: Servers, patterns: list[str]) -> str:
    """The note of an answer: what is missing from it, and how to get it."""
    sentences = []
    up, starting = in_state(State.UP, servers), in_state(State.STARTING, servers)
    total = sum(len(server.tools) for server in up)
    if patterns != ["*"]:
        names = ", ".join(server.server_name for server in up) or "no server"
        sentences.append(f"{len(answer['tools'])} of {total} tools of {names} match.")
        unmatched = []
        for pattern in patterns:
            is_found = any(s.fits(pattern, tool) for s in up for tool in s.tools)
            # The tools of a server that is still starting are not known yet.
            if not is_found and not any(s.fits(pattern) for s in starting):
                unmatched.append(pattern)
        if unmatched:
            names = shorten(", ".join(unmatched), 1_000)
            sentences.append(f"No tool matches {names}.")
    hidden = sum(len(server.connection.tools) for server in up) - total
    if hidden:
        how = "--read-only allows only tools that are declared read-only"
        sentences.append(f"{hidden} tools are left out: {how}.")
    if starting:
        names = ", ".join(server.server_name for server in starting)
        how = "Call open_toolbox again to get their tools."
        sentences.append(f"Still starting: {names}. {how}")
    for server in starting:
        # The output may have the address of a sign-in.
        output = shorten(server.connection.last_line(), 4_000 // len(starting))
        if output:
            sentences.append(f"Output of {server.server_name}: {output!r}.")
    return " ".join(sentences)


def is_read_only(tool: types.Tool) -> bool:
    return tool.annotations is not None and tool.annotations.read_only_hint is True


def describe_tool(server: DownstreamServer, tool: types.Tool) -> JSON:
    """The entry of a server's tool in an answer of `open_toolbox`."""
    entry: JSON = {
        "name": server.prefix + tool.name,
        "description": tool.description or f"Tool from {server.name}",
        "source_server": server.server_name,
        "toolbox_name": server.toolbox_name,
        "inputSchema": {k: v for k, v in tool.input_schema.items() if k != "$schema"},
    }
    hints = tool.annotations or types.ToolAnnotations()
    # Hints that equal the protocol's defaults would tell a model nothing.
    if is_read_only(tool):
        entry["annotations"] = {"readOnlyHint": True}
    if hints.destructive_hint is False:
        entry.setdefault("annotations", {})["destructiveHint"] = False
    return entry


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning if it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def compact(value: Any) -> str:
    """JSON without white space; non-ASCII as it is, and null for NaN and infinities."""
    return to_json(value, inf_nan_mode="null").decode()


# === MCP server =======================================================================
# The workbench as an MCP server: the two meta-tools on the SDK's low-level `Server`.
# Only this section turns errors into results of tools, and it masks their texts.
# Clients add keys of their own to arguments, which `**_` and `**more` take.


class OwnTool(NamedTuple):
    """A tool of this program. The adapter checks a call's arguments, and calls it."""

    declaration: types.Tool
    adapter: TypeAdapter[Any]


def make_tool(function: Callable[..., Awaitable[JSON]], title: str) -> OwnTool:
    """Make a tool of an async function: its name, docstring and parameters.

    The first parameter, `context`, is the SDK's request context, and not in the schema.
    """
    without_context = functools.partial(function, None)
    schema = TypeAdapter(cast(Any, without_context)).json_schema()
    for part in (schema, *schema["properties"].values()):
        # Both keys would only cost a model's context.
        part.pop("title", None)
        part.pop("additionalProperties", None)
    declaration = types.Tool(name=function.__name__, title=title, input_schema=schema)
    declaration.description = inspect.getdoc(function)
    return OwnTool(declaration, TypeAdapter(cast(Any, function)))


def tool_server(name: str, tools: list[OwnTool], mask: Mask) -> Server[Any]:
    """A low-level MCP server of these tools. The texts of their errors are masked.

    An `MCPError` is passed on, with its data as they are. Any other error becomes a
    result with `isError`.
    """
    adapters = {tool.declaration.name: tool.adapter for tool in tools}

    async def list_all(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.declaration for tool in tools])

    async def call(context: Any, params: types.CallToolRequestParams) -> Any:
        if params.name not in adapters:
            text = f"Tool '{params.name}' not found: use {' and '.join(adapters)}"
            raise MCPError(types.INVALID_PARAMS, text)
        given = ArgsKwargs((context,), params.arguments)
        try:
            # The adapter calls an async function, and so returns a coroutine.
            result = await adapters[params.name].validate_python(given)
        except MCPError as error:
            raise MCPError(error.code, mask(error.message), error.data) from None
        except (ValidationError, ToolError) as error:
            result = text_result(mask(explain(error)), is_error=True)
        except Exception as error:
            # The SDK would make "Internal server error" of it.
            log.debug("Tool '%s' failed", params.name, exc_info=True)
            text = f"Tool '{params.name}' failed: {error!r}"
            result = text_result(mask(text), is_error=True)
        # A 2026-07-28 client needs `resultType`; for others, the SDK takes it out.
        return {"resultType": "complete", **result}

    return Server(name, version=__version__, on_list_tools=list_all, on_call_tool=call)


def text_result(text: str, is_error: bool = False) -> JSON:
    """A text as the result of a tool, in its wire form."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _decode(value: Any) -> Any:
    """The JSON in a string, as models send it; any other value unchanged."""
    with suppress(TypeError, ValueError):
        value = from_json(value)
    return value


def _as_object(value: Any) -> Any:
    return _decode(value) or {}


def _as_list(value: Any) -> Any:
    decoded = _decode(value)
    patterns = decoded if isinstance(decoded, list) else [value]
    return list(filter(None, patterns)) or ["*"]


_Object = Annotated[JSON, BeforeValidator(_as_object), Field(default={})]
_Patterns = Annotated[list[str], BeforeValidator(_as_list), Field(default=["*"])]


def _begin_request(context: Any) -> Workbench:
    """Have servers ask this request's client from now on; return the workbench."""
    workbench: Workbench = context.lifespan_context
    # A client that insists on 2026-07-28 can be neither asked nor sent logs.
    if context.session.can_send_request:
        workbench.shared.client = context.session
    return workbench


async def open_toolbox(
    context: Any, /, toolbox_name: str, tools: _Patterns, **_: Any
) -> JSON:
    """Start a toolbox's servers and get their tools with input schemas.

    `tools`: names or patterns (several add up), such as read_* (any server), slack__*
    (server slack), work__slack__post_message (full name). Large toolboxes come partly
    without schemas, which full names bring.
    """
    workbench = _begin_request(context)
    answer = await workbench.open(toolbox_name, tools, context.session.report_progress)
    return text_result(compact(answer))


# Errors of a server that ask the client to act, not the model.
_FOR_CLIENT = (types.URL_ELICITATION_REQUIRED, types.MISSING_REQUIRED_CLIENT_CAPABILITY)
# `_meta` keys that apply to one hop and are not forwarded.
_ONE_HOP = re.compile(r"progressToken$|io\.modelcontextprotocol/")


async def use_tool(
    context: Any, /, toolbox_name: str, tool_name: str, arguments: _Object, **more: Any
) -> JSON:
    """Call a tool, by its full name from open_toolbox, as its inputSchema asks."""
    workbench = _begin_request(context)
    meta = context.params.get("_meta") or {}
    forwarded = {key: meta[key] for key in meta if not _ONE_HOP.match(key)}
    params = {"arguments": arguments, "_meta": forwarded}
    # Without a token of the client, the server is not asked for progress.
    on_progress = context.session.report_progress if "progressToken" in meta else None
    place = f"Error executing tool '{tool_name}' in toolbox '{toolbox_name}'"
    try:
        server = workbench.find_server(toolbox_name, tool_name)
        tool = server.tools.get(tool_name.removeprefix(server.prefix))
        # Models put arguments beside `arguments`, and the server would get none.
        if tool and not arguments:
            known = tool.input_schema.get("properties") or {}
            misplaced = ", ".join(sorted(more.keys() & known))
            if misplaced:
                raise ToolError(f"put {misplaced} into `arguments`, not beside it")
        return await server.call(tool_name, params, on_progress)
    except (ToolError, ValueError) as error:
        # Like an invalid answer, arguments that are nested too deeply are a ValueError.
        raise ToolError(f"{place}: {explain(error)}") from None
    except MCPError as error:
        if error.code in _FOR_CLIENT:
            raise
        raise ToolError(f"{place}: the server's error {error.code}: {error}") from None


def instructions(config: WorkbenchConfig) -> str:
    """The plain text about the toolboxes that a client gets when it connects.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#initialization
    """
    if not config.toolboxes:
        return f"No toolboxes configured. Add them to 'toolboxes' in {config.source}."
    # Codex shows its model the first 250 characters of the first line alone.
    how = "Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."
    names = ", ".join(config.toolboxes)
    lines = [f"{how} Toolboxes: {names}", "\nAvailable Toolboxes:"]
    for name, toolbox in config.toolboxes.items():
        noun = "server" if len(toolbox.servers) == 1 else "servers"
        lines.append(f"\n{name} ({len(toolbox.servers)} {noun})")
        lines.append(f"  Description: {toolbox.description}")
        if len(toolbox.servers) > 1:
            lines.append(f"  Servers: {', '.join(toolbox.servers)}")
    return "\n".join(lines)


def meta_tools(config: WorkbenchConfig) -> list[OwnTool]:
    """The two meta-tools, with the names of the toolboxes in the schema."""
    opening = make_tool(open_toolbox, "Open Toolbox")
    using = make_tool(use_tool, "Use Tool")
    # Clients ask a person about a tool that is not declared read-only, but start the
    # same servers themselves without asking.
    opening.declaration.annotations = types.ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True
    )
    if config.read_only:
        using.declaration.annotations = types.ToolAnnotations(read_only_hint=True)
    if config.toolboxes:
        # Many clients do not show the instructions, which have the names as well.
        properties = opening.declaration.input_schema["properties"]
        properties["toolbox_name"]["enum"] = list(config.toolboxes)
    for tool in (opening, using):
        # Claude Code would hide the tools behind a search, which models often omit.
        tool.declaration.meta = {"anthropic/alwaysLoad": True}
    return [opening, using]


def create_server(config: WorkbenchConfig) -> Server[Any]:
    """The workbench as a low-level MCP server, of which each run serves one client."""

    async def set_level(context: Any, params: types.SetLevelRequestParams) -> JSON:
        context.lifespan_context.shared.log_level = params.level
        return {}

    async def roots_changed(context: Any, _: object) -> None:
        workbench: Workbench = context.lifespan_context
        # A server that is still starting has not asked for the roots yet.
        for server in in_state(State.UP, workbench.open_servers()):
            workbench.task_group.start_soon(server.connection.tell_roots_changed)

    server = tool_server("mcp-workbench", meta_tools(config), config.mask)
    server.instructions = instructions(config)
    server.lifespan = lambda _: running_workbench(config)
    # As arguments of `Server`, these two would raise deprecation warnings.
    level = types.SetLevelRequestParams
    server.add_request_handler("logging/setLevel", level, set_level)
    changed = "notifications/roots/list_changed"
    server.add_notification_handler(changed, types.NotificationParams, roots_changed)
    return server


# === Messages =========================================================================
# JSON-RPC messages as bytes, and both directions of a connection as the SDK wants them.
# Both ends of the workbench use this section: its client's, and its servers'.

Messages = AsyncIterator[SessionMessage]
# Bytes of the largest message of a server. Parsing holds the interpreter's lock, so a
# larger message would block all threads for too long.
LINE_LIMIT = 32 << 20


@dataclass
class Streams(anyio.abc.UnreliableObjectStream[SessionMessage]):
    """Both directions of a connection, in the form that the SDK's sessions want.

    The base is anyio's smallest class with `receive`, `send` and `aclose`.
    """

    messages: Messages
    transmit: Callable[[SessionMessage], Awaitable[None]]

    async def receive(self) -> SessionMessage:
        try:
            return await anext(self.messages)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def send(self, item: SessionMessage) -> None:
        await self.transmit(item)

    async def aclose(self) -> None:
        # The SDK calls this, but the pipes and the HTTP client are the transport's.
        pass


def read_message(line: bytes) -> types.JSONRPCMessage | None:
    """The JSON-RPC message in a line or a body; None for anything else.

    An answer of JSON-RPC 2.0 that is not valid becomes an error with its id. Without
    the error, its call would wait for ever.
    """
    message = None
    text = line.decode(errors="replace")
    try:
        # `validate_json` would need more memory for a large message.
        message = from_json(text)
    except ValueError:
        # JavaScript cuts texts within surrogate pairs, and a half has no UTF-8. Servers
        # that write JSON by hand leave control characters as they are.
        with suppress(ValueError, RecursionError):
            whole = json.dumps(json.loads(text, strict=False), ensure_ascii=False)
            message = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", whole))
    with suppress(ValidationError):
        return types.jsonrpc_message_adapter.validate_python(message, by_name=False)
    if isinstance(message, dict) and not message.get("method"):
        message["error"] = {"code": types.INTERNAL_ERROR, "message": "not valid MCP"}
        with suppress(ValidationError):
            return types.jsonrpc_message_adapter.validate_python(message)
    return None


def dump_message(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


async def read_lines(stream: asyncio.StreamReader, limit: int) -> AsyncIterator[bytes]:
    """The lines of a stream, without their ends; at most `limit` bytes of each.

    `limit` is at least 64 KiB, which is the most that is read at a time.
    """
    line = bytearray()
    # A broken pipe counts as an end.
    with suppress(OSError):
        while chunk := await stream.read(65536):
            end, *others = chunk.split(b"\n")
            line += end[: limit - len(line)]
            for other in others:
                yield bytes(line)
                line = bytearray(other)
                # A server that writes without end must not block the event loop.
                await asyncio.sleep(0)
    # The rest after the last line feed, which usually is empty, is a line as well.
    yield bytes(line)


# === Connections ======================================================================
# One start of a server: its session, its tools, the calls to it, and its questions.
#
# `DownstreamServer.start` makes a `Connection` and starts a task with its `run`. `run`
# enters the transport and the session, agrees on an era, lists the tools and is up.
# Once the connection is marked as closed, `run` waits for the calls in flight, and
# leaves session and transport.
#
# A `Transport` carries the messages. The next section has the two kinds of transports.
#
# - A transport is an async context manager that yields `Streams`. If entering it fails,
#   the error is the reason why the server is not up.
# - `transmit` sends one message. For a request, `transmit` may return before the answer
#   has come (over pipes and SSE), or after that (over Streamable HTTP). `transmit`
#   raises `NotDelivered` only if the server has certainly not executed the request, and
#   `ToolError` for a request that failed in another way.
# - `messages` are the server's, the answers to requests included. At their end, the
#   session fails the open requests.
# - `on_closed` is called with a reason before the messages end. From then on, as after
#   `NotDelivered`, no new call is sent, but answers to calls in flight may still come.

Mask = Callable[[str], str]
MASK_LIMIT = 1 << 16  # bytes of a line or a text that is masked and shown
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)


@dataclass
class Shared:
    """What every connection of a workbench uses.

    `client` is the session of the client's last tool call. The questions and logs of
    servers go there. The SDK sends over the client's connection, which outlives a call.
    """

    mask: Mask
    learn: Callable[..., None]  # has further secrets masked
    environment: Mapping[str, str]  # inherited by every server process
    client: ServerSession | None = None
    log_level: types.LoggingLevel = "debug"  # the lowest that the client wants to see


@dataclass(eq=False, repr=False)
class Transport(AbstractAsyncContextManager[Streams]):
    """The way to a server: what both kinds of transports are given."""

    config: ServerConfig
    shared: Shared
    on_output: Callable[[bytes], None]  # for each line of a process that is no message
    on_closed: Callable[[str], None]  # with the reason


class State(enum.IntEnum):
    """The states of a connection, in order, and all its changes of state.

    from      to        by                when
    STARTING  UP        _stay_up          the tools are listed
    STARTING  DRAINING  _stay_up          the same, but the connection has been closed
    UP        DRAINING  mark_closed       the connection is closed
    any       ENDED     run               session and transport are left
    STARTING  ENDED     DownstreamServer  there has been no start yet
    """

    STARTING = 1
    UP = 2  # calls are sent, in this state only
    DRAINING = 3  # calls in flight may still be answered
    ENDED = 4  # session and transport are left, and no process remains


class Connection:
    """One start of a server. A connection knows neither toolboxes nor other starts.

    The task of `run` owns the connection: it alone enters and leaves the transport and
    the session. Other tasks wait until a state is reached, and call through it.
    """

    def __init__(self, name: str, config: ServerConfig, shared: Shared) -> None:
        self.name = name
        self.config = config
        self.shared = shared
        self.tools: dict[str, types.Tool] = {}  # by name, those that the filters allow
        self.session: ClientSession  # set by `run`, once the transport is entered
        self.state = State.STARTING
        self._reason = ""  # why the connection is closed
        self._output: deque[str] = deque(maxlen=20)  # last lines that were logged
        self._in_flight = 0  # calls
        self._failures = 0  # of requests, since the last success
        self._changed = anyio.Event()  # replaced by `_notify`
        # A remote server's announcement is lost while its event stream is broken, and
        # any listing may fail. Then each `wait_until_current` asks for a listing.
        self._may_miss_changes = bool(config.url)
        # Requests for a listing of the tools are numbered. A listing serves all that
        # were made before it began, even if it fails.
        self._requested = 0  # number of the last request
        self._listed = 0  # number of the last request that was served

    def _notify(self) -> None:
        """Wake everyone who waits for a state, the end of all calls, or a listing."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        # No `await` between the check and the wait: a change in between would be lost.
        while not condition():
            await self._changed.wait()

    def set_state(self, state: State) -> None:
        """Change the state. Nothing else may."""
        self.state = state
        self._notify()

    async def reach(self, state: State) -> None:
        """Wait for this state or a later one. A start that fails reaches ENDED."""
        await self._until(lambda: self.state >= state)

    def mark_closed(self, reason: str) -> None:
        """Record why the connection is closed. If it was up, no more calls are sent.

        The first reason is kept, because later ones are consequences of the first.
        """
        if not self._reason:
            self._reason = " ".join(self.shared.mask(reason).split())
        if self.state is State.UP:
            self.set_state(State.DRAINING)

    def log_line(self, line: bytes) -> None:
        """Log a line of the server's output that is no message, and remember it."""
        text = self.shared.mask(line[:MASK_LIMIT].decode(errors="replace")).strip()
        if text:
            # The address of a sign-in has several hundred characters.
            self._output.append(text[:1_000])
            log.info("[%s] %s", self.name, text)

    def why_not_up(self, separator: str = "; ") -> str:
        """The reason why the server is not up, with its last lines of output."""
        reason = self._reason or "still starting, call again"
        return separator.join([reason, *self._output])

    def last_line(self) -> str:
        """The last line of output that has an address, or else the last line."""
        lines = [*reversed(self._output), ""]
        return next((line for line in lines if "://" in line), lines[0])

    async def run(self) -> None:
        """Start the server, keep the connection, and leave no process of its group."""
        kind = RemoteServer if self.config.url else ServerProcess
        transport = kind(self.config, self.shared, self.log_line, self.mark_closed)
        try:
            # A start that fails in its transport has no `session`.
            async with transport as streams, self._session(streams) as self.session:
                with anyio.move_on_after(START_TIMEOUT) as starting:
                    await self._negotiate()
                    await self._list_tools()
                if starting.cancelled_caught:
                    raise ToolError(f"was not up within {START_TIMEOUT:g} seconds")
                await self._stay_up()
        except Exception as error:  # noqa: BLE001
            # If it left this task, the exception would end all other connections.
            self.mark_closed(explain(error))
        self.set_state(State.ENDED)
        log.info("%s: %s", self.name, self.why_not_up())

    def _session(self, streams: Streams) -> ClientSession:
        """A session that offers the server what the client supports.

        The SDK offers forms and URLs in elicitation only together. So a server is
        offered both, even if the client supports one of them.
        """
        client = self.shared.client
        declared = client.client_capabilities if client else None
        offered = declared or types.ClientCapabilities()
        sampling = types.CreateMessageRequest, types.CreateMessageResultWithTools
        elicit = types.ElicitRequest, types.ElicitResult
        roots = types.ListRootsRequest, types.ListRootsResult
        streams.messages = self._mend(streams.messages)
        return ClientSession(
            streams,
            streams,
            client_info=types.Implementation(name="mcp-workbench", version=__version__),
            message_handler=self._on_message,
            logging_callback=self._on_log,
            sampling_capabilities=offered.sampling,
            sampling_callback=self._forwarder(offered.sampling, *sampling),
            elicitation_callback=self._forwarder(offered.elicitation, *elicit),
            list_roots_callback=self._forwarder(offered.roots, *roots),
        )

    def _forwarder(self, is_offered: object, request: Any, result: Any) -> Any:
        """A callback that asks the client a server's question, if that was offered."""

        async def forward(_: object, params: Any = None) -> Any:
            # Nothing is offered until there is a client, which is never unset.
            client = cast(ServerSession, self.shared.client)
            return await client.send_request(request(params=params), result)

        return forward if is_offered else None

    async def _mend(self, messages: Messages) -> Messages:
        """Mend the small faults for which the session would refuse a whole result.

        TypeScript clients take a result of a tool without `content`. The session
        ignores this key in other results.
        """
        async for item in messages:
            if isinstance(item.message, types.JSONRPCResponse):
                result = item.message.result
                result.setdefault("content", [])
                # A tool's result may have a key `tools`, but the SDK takes further keys out.
                if isinstance(result.get("tools"), list):
                    self._remove_invalid_tools(result)
            yield item

    def _remove_invalid_tools(self, page: JSON) -> None:
        """Take out the tools for which the session would refuse the whole page."""
        version = str(self.session.protocol_version)
        valid = []
        for tool in page["tools"]:
            try:
                validate_server_result("tools/list", version, {**page, "tools": [tool]})
                # A schema may be nested too deeply to be written as JSON.
                compact({"tools": [tool]})
                valid.append(tool)
            except ValueError as error:
                # The mask comes first, because a secret that is cut is not found.
                shown = self.shared.mask(str(tool))[:99]
                text = "%s: left out a tool that is not valid, %s: %s"
                log.warning(text, self.name, shown, explain(error))
        page["tools"] = valid

    async def _negotiate(self) -> None:
        """Agree on an era: the newer one, without questions, only if need be."""
        try:
            await self.session.initialize()
        except (MCPError, ToolError, RuntimeError) as refusal:
            # The SDK raises RuntimeError for a version that it does not know.
            if self._reason:
                raise  # the connection is closed, so there is nothing to probe
            try:
                await self.session.discover()
            except Exception:  # noqa: BLE001
                # Report why `initialize` failed. Some processes exit at the probe.
                reasons = [explain(refusal), self._reason]
                self._reason = ""
                self.mark_closed("; ".join(filter(None, reasons)))
                raise refusal from None
            # A server of 2026-07-28 announces nothing unless it is listened to.
            self._may_miss_changes = True
        if self._announces_changes():
            log.debug("Server supports tool change notifications: %s", self.name)

    def _announces_changes(self) -> bool:
        declared = self.session.server_capabilities or types.ServerCapabilities()
        return declared.tools is not None and declared.tools.list_changed is True

    async def _stay_up(self) -> None:
        """Be up until the connection is closed, then wait for the calls in flight."""
        # The transport may have been closed right after the last answer of the start.
        self.set_state(State.DRAINING if self._reason else State.UP)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_current)
            await self._until(lambda: self.state > State.UP and not self._in_flight)
            tasks.cancel_scope.cancel()

    async def _on_message(self, message: object) -> None:
        if not isinstance(message, types.ToolListChangedNotification):
            return
        # People search logs for these lines, so their words are fixed.
        log.info("Received tools/list_changed notification from server: %s", self.name)
        if not self._announces_changes():
            text = "Received tools notification from server without listChanged"
            log.warning("%s capability: %s", text, self.name)
        if self._listed < self._requested:
            # The listing in progress may be older than the change: another one follows.
            text = "Skipping duplicate discovery - already in progress"
            log.debug("%s for: %s", text, self.name)
        self._request_listing()

    def _request_listing(self) -> None:
        """Have the tools listed again, in a listing that begins from now on."""
        self._requested += 1
        self._notify()

    async def wait_until_current(self) -> None:
        """Wait until the server is up or has failed, then for a listing that is due.

        A listing is waited for at most `OPEN_TIMEOUT`, and goes on after that.
        """
        if self.state is State.UP and self._may_miss_changes:
            self._request_listing()
        await self.reach(State.UP)
        # Later requests are not waited for: each listing may be followed by another.
        number = self._requested
        with anyio.move_on_after(OPEN_TIMEOUT):
            await self._until(lambda: self._listed >= number or self.state > State.UP)

    async def _keep_current(self) -> None:
        """List the tools whenever that was requested, one listing at a time."""
        while True:
            await self._until(lambda: self._listed < self._requested)
            number = self._requested
            try:
                with anyio.fail_after(ANSWER_TIMEOUT):
                    await self._list_tools()
                self._failures = 0
            except (MCPError, ToolError, ValueError, TimeoutError) as error:
                log.warning("%s: kept its old tools: %s", self.name, explain(error))
                self._may_miss_changes = True
                # A server that is slow, or whose answer is not valid, knows the session.
                if isinstance(error, MCPError | ToolError):
                    self._count_failure(error)
            self._listed = number
            self._notify()
            # A server that announces a change after each listing is listed without end.
            await anyio.sleep(LISTING_PAUSE)

    async def _list_tools(self) -> None:
        """Get all pages of the server's tools; keep those that the filters allow.

        https://modelcontextprotocol.io/specification/2025-11-25/server/tools#listing-tools
        """
        tools: dict[str, types.Tool] = {}
        cursor: str | None = None
        sent: set[str | None] = set()
        # None is the first cursor that is sent. So the loop ends at None, as at every
        # other cursor that was sent before.
        while cursor not in sent and len(sent) < MAX_PAGES:
            sent.add(cursor)
            params = types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self.session.list_tools(params=params)
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise
                break  # the server has no tools
            tools |= {t.name: t for t in page.tools if self.config.allows(t.name)}
            cursor = page.next_cursor or None
        new, old = tools.keys(), self.tools.keys()
        modified = sum(tools[name] != self.tools[name] for name in new & old)
        counts = f"{len(new - old)} added, {len(old - new)} removed"
        log.info("%s: tools: %s, %d modified", self.name, counts, modified)
        log.debug("%s: its tools are %s", self.name, ", ".join(tools))
        for pattern in set(self.config.tool_filters) - {"*"}:
            if not any(matches(tool, pattern) for tool in tools):
                log.warning("%s: toolFilters: %r offers no tool", self.name, pattern)
        self.tools = tools

    def _count_failure(self, error: Exception) -> None:
        """Close the connection if the server may have lost the session.

        A remote server that was restarted may refuse the old session with any error. So
        a post or a listing that fails closes the connection, if the request before has
        failed as well. Otherwise, all calls would fail until the workbench is restarted.
        """
        self._failures += 1
        may_be_lost = bool(self.config.url) and self._failures > 1
        if may_be_lost or isinstance(error, NotDelivered):
            self.mark_closed(explain(error))

    async def _on_log(self, params: types.LoggingMessageNotificationParams) -> None:
        log.debug("[%s] %s: %s", self.name, params.level, compact(params.data))
        client = self.shared.client
        levels = get_args(types.LoggingLevel)
        if client and levels.index(params.level) >= levels.index(self.shared.log_level):
            message = types.LoggingMessageNotification(params=params)
            await client.send_notification(message)

    async def tell_roots_changed(self) -> None:
        """Tell the server to ask for the client's roots again.

        Only a client that had declared roots before any server was started tells of a
        change, so every server was offered them.
        """
        # An exception in this task would end all connections.
        with suppress(Exception):
            await self.session.send_notification(types.RootsListChangedNotification())

    async def call(self, params: JSON, on_progress: OnProgress) -> JSON:
        """Send `tools/call` with these wire parameters, and return the wire result.

        The connection must be up. Cancelling the caller cancels the call downstream.
        Raises `NotDelivered`, `ToolError`, `ValidationError`, or the server's
        `MCPError`.
        """
        # The caller has just found the state UP, without an `await` since. So `_stay_up`
        # waits for this call.
        self._in_flight += 1
        request = types.Request[JSON, str](method="tools/call", params=params)
        try:
            # `ClientSession.call_tool` would check the result against the tool's output
            # schema, and raise after the side effect has happened.
            result: JSON = await self.session.send_request(
                request, _RAW_RESULT, progress_callback=on_progress
            )
            self._failures = 0
        except ToolError as error:
            self._count_failure(error)
            raise
        except MCPError as error:
            # A tool may refuse every call, and a new session would lose what the old
            # one holds, such as a browser. So this alone does not close the connection:
            # if the session is lost, the listing fails as well.
            self._failures += 1
            if self._may_miss_changes:
                self._request_listing()
            # A server may use this code itself, and live on.
            if error.code != types.CONNECTION_CLOSED or self.state is State.UP:
                raise
            how = "the call may have taken effect, and was not repeated"
            raise ToolError(f"the server {self.why_not_up()}; {how}") from None
        finally:
            self._in_flight -= 1
            self._notify()
        if result.get("resultType") == "input_required":
            how = "(`input_required`), which the workbench cannot forward"
            raise ToolError(f"this call needs input from the user {how}")
        # The SDK accepts any answer of a 2026-07-28 server that has a `resultType`.
        # `model_validate` raises what is wrong, and `result` stays as it is.
        types.CallToolResult.model_validate(result, by_name=False)
        return result


# === Processes ========================================================================
# A connection's messages travel over the pipes of a process.


class _Pipes(asyncio.subprocess.SubprocessStreamProtocol):
    """The pipes of a process as streams, and a future for its exit.

    `asyncio.create_subprocess_exec` is not used. On Python 3.11, asyncio's own `wait`
    returns only when all pipes are closed, and a child of the server may hold them.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(LINE_LIMIT, loop)
        self.exited = loop.create_future()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set_result(None)


class ServerProcess(Transport):
    """A server process: messages on its stdout, log lines on its stderr, and its end.

    The SDK's `stdio_client` is not used. It takes the end of stdout for the end of the
    server, although a child may hold stdout open, and leaves such a child running.

    The connection to a process is closed in one of three ways:

    - The process exits. `_report_exit` reports the status at once, and closes the pipes
      `OUTPUT_TIMEOUT` later, so the messages end.
    - stdout ends. `_messages` reports this.
    - stdin is closed. `_send` reports this at the next request.

    A process that closes a pipe usually exits, and its status tells more. So the last
    two wait for the exit first, up to `EXIT_GRACE`.
    """

    async def __aenter__(self) -> Streams:
        """Start the process, to speak to it over stdin and stdout."""
        config = self.config
        env = without_null({**self.shared.environment, **config.env})
        words = list(map(os.path.expanduser, [config.command, *config.args]))
        # Without `which`, Windows would not find `npx.cmd` for the command `npx`.
        words[0] = shutil.which(words[0], path=env.get("PATH")) or words[0]
        # Clients take an empty `cwd` for none.
        cwd = os.path.expanduser(config.cwd or ".")
        options: JSON = {"env": env, "cwd": cwd, "start_new_session": True}
        # There are no sessions on Windows, where a group keeps Ctrl-C from a server.
        options["creationflags"] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        start = asyncio.get_running_loop().subprocess_exec
        # A start that was cancelled half way would leave a process that nobody stops.
        with anyio.CancelScope(shield=True):
            try:
                self._process, self._pipes = await start(_Pipes, *words, **options)
            except OSError as error:
                raise ToolError(_explain_start(config.command, cwd, error)) from None
        if sys.platform == "win32":
            self._job = create_job(self._process)
        # The process may have exited already. Then the callback follows at once.
        self._pipes.exited.add_done_callback(self._report_exit)
        self._ends = [self._pipes.exited, asyncio.create_task(self._read_stderr())]
        return Streams(self._messages(), self._send)

    def _report_exit(self, _: object) -> None:
        status = self._process.get_returncode()
        reason = f"exited with status {status}"
        if status == 0:
            reason += ", without an error: do `args` make it a server over stdio?"
        self.on_closed(reason)
        # A child of the server may hold the pipes open for as long as it likes.
        asyncio.get_running_loop().call_later(OUTPUT_TIMEOUT, self._process.close)

    async def _messages(self) -> Messages:
        """The messages on stdout, to its end."""
        async for line in read_lines(self._pipes.stdout, LINE_LIMIT):
            if len(line) == LINE_LIMIT:
                # If this line were skipped, a call that it answers would wait for ever.
                limit = LINE_LIMIT >> 20
                self.on_closed(f"wrote a message beyond the limit of {limit} MiB")
                return
            message = read_message(line)
            if message is None:
                self.on_output(line)
            else:
                yield SessionMessage(message)
        await asyncio.wait(self._ends, timeout=EXIT_GRACE)
        self.on_closed("closed its stdout")

    async def _read_stderr(self) -> None:
        async for line in read_lines(self._pipes.stderr, MASK_LIMIT):
            self.on_output(line)

    async def _send(self, item: SessionMessage) -> None:
        """Write a message to stdin, unless the process can no longer answer."""
        pipes = self._pipes
        if not pipes.stdout.at_eof():
            # No `drain`: a server that does not read its stdin must delay nobody.
            pipes.stdin.write(dump_message(item.message) + b"\n")
        # A write to a broken pipe closes `stdin`, so this check comes after it.
        is_closed = pipes.stdout.at_eof() or pipes.stdin.is_closing()
        if is_closed and isinstance(item.message, types.JSONRPCRequest):
            await asyncio.wait(self._ends, timeout=EXIT_GRACE)
            self.on_closed("closed its stdout or stdin")
            raise NotDelivered("the server has closed its stdout or stdin")

    async def __aexit__(self, *_: object) -> None:
        """Close stdin, and end the whole process group.

        After a SIGKILL, the group has a moment to die, because the next process would
        find the locks of this one. On Windows, the first signal kills.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        # The exit that follows is not the reason for this end.
        self._pipes.exited.remove_done_callback(self._report_exit)
        self._pipes.stdin.close()
        # 0 sends nothing. 9 is SIGKILL, a name that Windows lacks.
        steps = (0, EXIT_GRACE), (signal.SIGTERM, EXIT_GRACE), (9, OUTPUT_TIMEOUT)
        with anyio.CancelScope(shield=True):
            for number, seconds in steps:
                # Once nobody is left, the number of the group may soon be another's.
                if not self.kill_group(number):
                    break
                with anyio.move_on_after(seconds):
                    while self.kill_group(0):
                        await anyio.sleep(0.02)
            await asyncio.wait(self._ends, timeout=OUTPUT_TIMEOUT)
        self._process.close()

    def kill_group(self, number: int) -> bool:
        """Signal the process group, unless 0; return whether it has any process."""
        if sys.platform == "win32":
            return signal_job(self._job, number)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.get_pid(), number)
            return True
        return False


def _explain_start(command: str, cwd: str, error: OSError) -> str:
    """Why a process could not be started, and what to do about it."""
    why = f"{error.strerror} (`command` is one program, by its full path or from PATH; "
    why += "arguments go into `args`, a URL into `url`, a longer PATH into `env`)"
    if not os.path.isdir(cwd):
        why = f"its `cwd` is no folder: '{cwd}'"
    return f"cannot start '{command}': {why}"


# === Serving ==========================================================================
# The client's stdin and stdout, the end of the process, the log, and the command line.

_REFUSAL_TIMEOUT = 5.0  # for a client to read why it is not served
Work = Awaitable[int | None]
_PROBE = "server/discover"  # the first message of clients that know the newer era
# The options that go together, but for --verbose, which goes with all.
_MODES = [{"config", "read_only", "check"}, {"config", "read_only", "call"}]
_MODES += [{"toolbox", "http"}, {"login"}]


@asynccontextmanager
async def stdio_streams() -> AsyncIterator[Streams]:
    """The client's messages on stdin, and the way to its stdout.

    The end of either ends the messages, and a moment later cancels the block. A stdout
    that is closed is noticed at the next write.

    Two threads read and write. The reader notices the end of stdin even while the event
    loop is busy. The writer alone waits for a client that does not read stdout: if
    `send` waited, so would everything that sends, even the shutdown. The SDK's own
    stdio streams cannot be left before the end of stdin.
    """
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[bytes] = asyncio.Queue()
    writer = ThreadPoolExecutor(1)
    scope = anyio.CancelScope()

    def receive(line: bytes) -> None:
        if not line:  # the end
            start_countdown(0)
        loop.call_soon_threadsafe(received.put_nowait, line)

    async def send(item: SessionMessage) -> None:
        writer.submit(_write_stdout, dump_message(item.message) + b"\n", receive)

    async def messages() -> Messages:
        while line := await received.get():
            message = read_message(line)
            if isinstance(message, types.JSONRPCRequest) and message.method == _PROBE:
                # The SDK would begin the newer era, and refuse `initialize` in it.
                await send(refuse(message, types.METHOD_NOT_FOUND, "No such method"))
            elif message:
                yield SessionMessage(message)
        # At the end of stdin, the SDK cancels the calls in flight. If a remote server
        # does not answer, the SDK tries for seconds to tell it of that. Without this
        # timer, no other server would be stopped meanwhile.
        loop.call_later(0.05, scope.cancel)

    _thread.start_new_thread(_read_stdin, (receive,))
    # The end of this block waits until `writer` has written everything.
    with writer, scope:
        yield Streams(messages(), send)


def _read_stdin(receive: Callable[[bytes], None]) -> None:
    """Hand on each line of stdin, and an empty one at its end."""
    with suppress(OSError):
        for line in sys.stdin.buffer:
            receive(line)
    receive(b"")


def _write_stdout(line: bytes, receive: Callable[[bytes], None]) -> None:
    """Write a line. A stdout that is closed counts as the end of stdin."""
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except OSError:
        receive(b"")


def refuse(request: types.JSONRPCRequest, code: int, why: str) -> SessionMessage:
    """The error that answers this request."""
    error = types.ErrorData(code=code, message=why)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error))


async def serve_stdio(server: Server[Any]) -> None:
    """Serve over stdin and stdout, and return when one of them is closed."""
    async with stdio_streams() as streams:
        await server.run(streams, streams, server.create_initialization_options())


async def refuse_client(why: str) -> int:
    """Answer every request with this text, until the end of stdin. Returns status 1.

    Clients show the answer to `initialize`. If the process ended at once instead, they
    would show "connection closed". A client may keep a server that it cannot use, so
    the time is limited.
    """
    # Nothing has to be closed, not even a stdout that nobody reads.
    asyncio.get_running_loop().call_later(_REFUSAL_TIMEOUT, os._exit, 1)
    async with stdio_streams() as streams:
        async for item in streams:
            if isinstance(item.message, types.JSONRPCRequest):
                await streams.send(refuse(item.message, types.INVALID_PARAMS, why))
    return 1


# How the process ends: a signal cancels the work, or a closed stdin or stdout ends it.
# Both stop all servers, while a thread counts down. Then the process exits.


# Only the first call counts, and the cache answers the others.
@functools.cache
def start_countdown(status: int) -> None:
    """Have the process end in `EXIT_TIMEOUT` seconds, if it has not ended until then.

    A signal handler calls this function. So it uses `_thread`: `threading` takes locks,
    which the code that the signal interrupts may hold.
    """
    _thread.start_new_thread(_end_by_force, (status,))


def _end_by_force(status: int) -> None:
    """After `EXIT_TIMEOUT` seconds, kill the group of every server, and exit.

    This function runs in a thread, because the event loop may be busy with large
    answers. On Windows, the end of this process ends the jobs.

    The processes are found by their `Popen` objects. A list of ours would lack one that
    has just been started: asyncio hands over a process after several turns of the event
    loop, in which it connects the pipes.
    """
    sleep(EXIT_TIMEOUT)
    if sys.platform != "win32":
        for process in gc.get_objects():
            if type(process) is subprocess.Popen:
                # A `Popen` has no `pid` before its process is there.
                with suppress(OSError, TypeError, AttributeError):
                    os.killpg(process.pid, signal.SIGKILL)
    os._exit(status)


async def run_until_end(work: Work, status: int) -> None:
    """Do the work, or stop it at a signal. Then end the process.

    The exit status is the result of the work, 1 after an error, or `status` if the work
    was stopped. Over HTTP, uvicorn takes SIGINT and SIGTERM instead.

    The process ends with `os._exit`, because Python would wait for threads, such as one
    that looks up a name, and could not close stdin, which a thread reads.
    """
    loop = asyncio.get_running_loop()
    scope = anyio.CancelScope()

    def stop(*_: object) -> None:
        start_countdown(status)
        loop.call_soon_threadsafe(scope.cancel)

    # The handlers stay until the end, because a second signal must not stop the
    # cleanup. A closed terminal sends SIGHUP, unless `nohup` has it ignored.
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, stop)
    try:
        with scope:
            status = await work or 0
    except Exception as error:
        # An error that left this function would end the process without `os._exit`.
        status = 1
        # A reader such as `head` has closed stdout, and wants no more.
        if not isinstance(find_cause(error), BrokenPipeError):
            log.error("%s", explain(error), exc_info=log.isEnabledFor(logging.DEBUG))
    # Not `logging.shutdown`, which would wait for a thread that writes to stderr.
    logging.root.handlers[0].flush()
    os._exit(status)


class _MaskedLog(logging.handlers.QueueHandler):
    """Hands masked lines to the thread of a `QueueListener`, which writes them.

    If the client does not read stderr, a write may block for ever, and would block the
    event loop with it. When too many lines are waiting, new ones are dropped.
    """

    mask: Mask = str  # replaced by that of the configuration
    queue: queue.Queue[logging.LogRecord]

    def format(self, record: logging.LogRecord) -> str:
        return self.mask(super().format(record))

    def flush(self) -> None:
        """Wait a moment for the lines that were logged last."""
        written = self.queue.all_tasks_done
        with written:
            written.wait_for(lambda: not self.queue.unfinished_tasks, OUTPUT_TIMEOUT)


def parse_arguments() -> argparse.Namespace:
    """Read the command line, or end the program with what is wrong in it."""
    parser = argparse.ArgumentParser(add_help=False)
    # The help is the docstring of this file, as it is.
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    # `Path` turns an empty CONFIG into the current folder, which cannot be read.
    add("config", nargs="?", type=Path, metavar="CONFIG")
    add("--check", action="store_true")
    add("--call", nargs="+", metavar=("NAME", "JSON"))
    add("--login", metavar="URL")
    add("--toolbox", action="store_true")
    add("--http", metavar="[HOST:]PORT", type=host_and_port)
    add("--read-only", action="store_true")
    add("--verbose", action="store_true")
    add("--version", action="version", version=f"mcp-workbench {__version__}")
    add("--help", "-h", action="version", version=__doc__)
    options = parser.parse_args()
    given = {name for name, value in vars(options).items() if value} - {"verbose"}
    if not any(map(given.issubset, _MODES)):
        parser.error(f"these do not go together: {', '.join(sorted(given))}")
    if options.http and not options.toolbox:
        parser.error("--http needs --toolbox")
    return options


def set_up_process() -> None:
    """Set what holds for the whole process: its streams, threads and garbage."""
    if sys.platform != "win32":
        # A client may hand over pipes that do not block. A stdin without input would
        # count as ended, and what does not fit into stdout would be lost.
        os.set_blocking(0, True)
        os.set_blocking(1, True)
    # With PYTHONUNBUFFERED, Python's own `sys.stdout` has no buffer. A write may then
    # write a part, and the rest of an answer would be lost. The buffer is flushed after
    # each line, because `os._exit` does not flush buffers.
    sys.stdout = os.fdopen(1, "w", 1, "utf-8", "replace", closefd=False)
    cast(Any, sys.stderr).reconfigure(encoding="utf-8", errors="replace")
    # The threads of stdin and stdout need the interpreter's lock. Beside a server that
    # writes without end, the event loop would not let go of the lock for long enough.
    sys.setswitchinterval(0.0001)  # seconds
    # Parsing a large message makes many objects, and no garbage. Python 3.11 would
    # search them so often that parsing takes seconds, while no other thread can run.
    gc.set_threshold(20_000)


def choose_work(options: argparse.Namespace, handler: _MaskedLog) -> Work:
    """What the command line asks for. Raises `ConfigError`."""
    if options.http:
        return serve_http(*options.http)
    if options.toolbox:
        return serve_stdio(create_toolbox_server())
    if options.login:
        return log_in(options.login)
    config = find_config(options.config)
    config.read_only = options.read_only
    handler.mask = config.mask
    if options.check:
        return check(config)
    if options.call:
        return call_once(config, *options.call)
    names = ", ".join(config.toolboxes) or "no toolbox"
    log.info("Serving %s: %s", names, config.source)
    return serve_stdio(create_server(config))


def main() -> None:
    """Do what the command line asks for, and end the process."""
    set_up_process()
    options = parse_arguments()
    # The servers inherit the environment, and a file may name its variables.
    restore_environment()
    is_serving = not any((options.check, options.call, options.login))
    handler = _MaskedLog(queue.Queue(maxsize=1000))
    logging.raiseExceptions = False  # a full queue is no error
    form = "%(asctime)s %(levelname)s %(message)s"
    # Other loggers are silent, because the SDK logs messages of servers that it has
    # shortened. A secret that was cut is not found, and so not masked.
    logging.basicConfig(format=form, handlers=[handler], level=logging.CRITICAL + 1)
    log.setLevel(logging.INFO if is_serving else logging.WARNING)
    if options.verbose:
        log.setLevel(logging.DEBUG)
        # The event loop logs the tracebacks of its callbacks.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        work = choose_work(options, handler)
    except ConfigError as error:
        if os.isatty(0) or not is_serving:
            sys.exit(str(error))
        log.error("%s", error)
        work = refuse_client(str(error))
    if is_serving and os.isatty(0):
        log.info("Waiting for an MCP client. Ctrl-C ends. Try --check or --help.")
    # Lines of the log have waited until now, so that a person who is told of a file's
    # problems gets no lines around them.
    logging.handlers.QueueListener(handler.queue, logging.StreamHandler()).start()
    asyncio.run(run_until_end(work, status=int(not is_serving)))


# === Room: Remote servers =============================================================
# Servers that have a `url`, over HTTP.

SESSION_ID = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
HEADERS = {"accept": "application/json, text/event-stream"}
HEADERS |= {"content-type": "application/json", "accept-encoding": "identity"}

# The loopback names of this machine, with or without a port.
LOOPBACK = re.compile(r"(?i)(localhost|\[?::1\]?|127(\.\d+){1,3})(:\d+)?")
# The longest pause, in seconds, before an event stream is asked for again.
RETRY_LIMIT = 60.0
Answer = types.JSONRPCResponse | types.JSONRPCError


@dataclass
class _Exchange:
    """An HTTP request, and what is known of the event stream that answers it."""

    method: str
    parts: JSON = field(default_factory=dict)  # headers and content
    awaited: str = ""  # the id of the JSON-RPC request whose answer ends the stream
    retry: float = 1.0  # seconds to wait before the stream is asked for again
    last_id: str = ""  # of its events
    last_data: str = ""


class RemoteServer(Transport):
    """A remote server, over Streamable HTTP or the older SSE transport.

    A message is posted in the task that sends it. So a request that fails ends no other
    request, and cancelling the task closes its HTTP connection.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
    """

    async def __aenter__(self) -> Streams:
        """Make the HTTP client, and begin to listen."""
        self._is_sse = self.config.transport == "sse"
        self._http = self._make_client()
        self._endpoint = self._url
        # Over SSE, the server has named its endpoint. Over Streamable HTTP, an era is
        # agreed on, and `_listen` may ask for its stream.
        self._is_ready = anyio.Event()
        # This stream keeps nothing: a server that sends without end has to wait for the
        # session, and fills no memory.
        stream = anyio.create_memory_object_stream[SessionMessage]()
        self._writer, self._reader = stream
        # A scope, because `Task.cancel` would cancel even a refresh of the tokens.
        self._listening = anyio.CancelScope()
        self._listener = asyncio.create_task(self._listen())
        return Streams(self._reader, self._send)

    def _make_client(self) -> httpx2.AsyncClient:
        # Errors show the URL as the configuration has it, so that the mask finds its
        # secrets. The text of an error about a URL may have a part of one.
        url = self.config.url
        limits = httpx2.Limits(max_connections=200, keepalive_expiry=2.0)
        try:
            self._url = httpx2.URL(url)
            proxy = find_proxy(self._url)
            headers = httpx2.Headers(self.config.headers) | HEADERS
            transport = httpx2.AsyncHTTPTransport(limits=limits, proxy=proxy)
        except (OSError, UnicodeError) as error:
            text = "`headers`, SSL_CERT_FILE or SSL_CERT_DIR cannot be used"
            raise ToolError(f"{url}: {text}: {error}") from None
        except (ImportError, ValueError, httpx2.InvalidURL):
            text = "not a valid URL, or its proxy is unusable (SOCKS needs socksio)"
            raise ToolError(f"{url}: {text}") from None
        # An `Authorization` header or a login in the URL is used instead of a sign-in.
        self._sign_in = None
        if "authorization" not in headers and not self._url.userinfo:
            self._sign_in = SignIn(url, self.shared.learn)
        return httpx2.AsyncClient(
            transport=transport,
            auth=self._sign_in,
            headers=headers,
            # Only connecting has a timeout: a call may run for hours, an upload may be
            # slow, and a request beyond 200 waits for a free connection.
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
            event_hooks={"request": [self._check_host], "response": [_check_redirect]},
            follow_redirects=True,
        )

    async def _check_host(self, request: httpx2.Request) -> None:
        # The headers may be secret, so no redirect may take them to another host or
        # port, or out of TLS.
        is_downgraded = self._url.scheme == "https" and request.url.scheme == "http"
        if request.url.netloc != self._url.netloc or is_downgraded:
            raise httpx2.RequestError(f"the server leads elsewhere: {request.url}")

    async def _send(self, item: SessionMessage) -> None:
        """Post a message. Over Streamable HTTP, wait for the answer to a request."""
        if self._is_sse:
            await self._is_ready.wait()
        message = item.message
        headers: JSON = getattr(item.metadata, "headers", None) or {}
        parts: JSON = {"headers": headers, "content": dump_message(message)}
        exchange = _Exchange("POST", parts)
        if isinstance(message, types.JSONRPCRequest) and not self._is_sse:
            exchange.awaited = str(message.id)
        try:
            await self._follow(exchange)
        except ToolError as error:
            if isinstance(message, types.JSONRPCRequest):
                raise
            log.debug("%s: not posted: %s", self.config.url, error)
        # The session sets the agreed version in the headers of its requests and
        # notifications. Its answers and the GET of `_listen` need this header, too.
        if _VERSION_HEADER in headers:
            self._http.headers[_VERSION_HEADER] = headers[_VERSION_HEADER]
            self._is_ready.set()

    async def _listen(self) -> None:
        """Read the messages that belong to no request of ours.

        A server of Streamable HTTP may have no stream of them, and refuse the GET. It is
        asked again after `RETRY_LIMIT`.
        """
        with self._listening:
            if self._is_sse:
                await self._listen_sse()
                return
            await self._is_ready.wait()
            # Without a session, the server has no messages for this client alone.
            while SESSION_ID in self._http.headers:
                with suppress(ToolError):
                    await self._follow(_Exchange("GET"))
                await anyio.sleep(RETRY_LIMIT)

    async def _listen_sse(self) -> None:
        """Read the one stream in which every message of an SSE server comes."""
        try:
            await self._fetch(_Exchange("GET"))
            self.on_closed(f"{self.config.url} ended its stream")
        except ToolError as error:
            self.on_closed(str(error))
        self._writer.close()
        # No answer can come any more. Closing the HTTP client fails every post, even
        # one that waits for the endpoint.
        await self._http.aclose()
        self._is_ready.set()

    async def __aexit__(self, *_: object) -> None:
        """End the session, and close all HTTP connections.

        Some servers keep a process or a browser for each session that was not ended.
        """
        self._listening.cancel()
        # The session reads no more messages. With this end open, `_fetch` would wait.
        self._reader.close()
        with anyio.CancelScope(shield=True), self._writer:
            with anyio.move_on_after(EXIT_GRACE), suppress(ToolError):
                if SESSION_ID in self._http.headers:
                    await self._fetch(_Exchange("DELETE"))
            await self._http.aclose()
            await asyncio.wait([self._listener])

    async def _follow(self, exchange: _Exchange) -> None:
        """Make a request, and ask for its event stream again until its answer has come.

        The pause is the server's `retry`, and doubles while the stream ends at once.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#resumability-and-redelivery
        """
        pause = 0.0
        began = anyio.current_time()
        while not await self._fetch(exchange):
            # A stream that was open for long has not ended at once.
            lasted = anyio.current_time() - began
            pause = max(exchange.retry, 0.01, 2 * pause - lasted)
            pause = min(pause, RETRY_LIMIT)
            await anyio.sleep(pause)
            began = anyio.current_time()
            exchange.method = "GET"
            exchange.parts = {}
            if exchange.last_id:
                exchange.parts = {"headers": {"last-event-id": exchange.last_id}}

    async def _fetch(self, exchange: _Exchange) -> bool:
        """Make one HTTP request, and hand on the messages of its response.

        Returns False if the event stream is to be asked for again. Raises `ToolError`
        for any failure.
        """
        is_read = exchange.awaited or exchange.method == "GET"
        stream = self._http.stream(exchange.method, self._endpoint, **exchange.parts)
        try:
            async with stream as response:
                if response.headers.get(SESSION_ID):
                    self._http.headers[SESSION_ID] = response.headers[SESSION_ID]
                if response.is_success and not is_read:
                    # The body has nothing, and may never end.
                    return True
                async for event in _events(response):
                    if await self._receive(event, exchange):
                        return True
        except Exception as error:  # noqa: BLE001
            raise ToolError(f"{self.config.url}: {explain(error)}") from None
        # Without the id of an event, the rest of an answer cannot be asked for.
        is_cut_off = exchange.awaited and not exchange.last_id
        if is_cut_off or not response.is_success:
            raise self._failure(response, exchange.last_data)
        return False

    async def _receive(
        self, event: httpx2.ServerSentEvent, exchange: _Exchange
    ) -> bool:
        """Hand on the message of an event; return whether it is the answer awaited."""
        exchange.last_data = event.data
        # An event without an id or `retry` does not change the last.
        exchange.last_id = event.id or exchange.last_id
        if event.retry is not None:
            exchange.retry = event.retry / 1000
        if self._is_sse and event.event == "endpoint":
            self._endpoint = self._url.join(event.data)
            self._is_ready.set()
        message = read_message(event.data.encode())
        if message is not None:
            await self._writer.send(SessionMessage(message))
        return isinstance(message, Answer) and str(message.id) == exchange.awaited

    def _failure(self, response: httpx2.Response, body: str) -> ToolError:
        """The reason why a request was not answered, and what to do about it."""
        status = response.status_code
        if status == 401 and self._sign_in:
            return ToolError(f"HTTP 401: {self._sign_in.hint}")
        # The mask comes before the cut, because the beginning of a secret may be too
        # short to be known.
        told = " ".join(self.shared.mask(body[:MASK_LIMIT]).split())[:300]
        text = f"{self.config.url}: HTTP {status}, no valid MCP answer: {told} "
        text += "(check `headers`, and the path in `url`, which often is /mcp)"
        sent = response.request
        has_session = sent.method == "POST" and SESSION_ID in sent.headers
        if has_session and status in (400, 404, 410):
            # The server does not accept the session, and so it has executed nothing. An
            # error of the tool would be an answer to the request.
            return NotDelivered(text)
        return ToolError(text)


async def _check_redirect(response: httpx2.Response) -> None:
    """Refuse a redirect that would make a GET of a POST, without the message."""
    if response.status_code in (301, 302, 303) and response.request.method == "POST":
        target = response.url.join(response.headers.get("location", ""))
        how = f"write {target} in `url`"
        raise httpx2.RequestError(f"HTTP {response.status_code}, a redirect: {how}")


def find_proxy(url: httpx2.URL) -> str | None:
    """The proxy of the environment that requests to a URL have to use.

    httpx2 would make all proxies of the environment, and raise for one that it cannot
    use, such as a SOCKS proxy, even if no request needs it.
    """
    host = url.netloc.decode()
    if LOOPBACK.fullmatch(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme, proxies.get("all"))
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    return proxy


async def _events(response: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
    """The events of a response. Any other body counts as one event."""
    if "event-stream" in response.headers.get("content-type", "").lower():
        # A stream that was cut is resumed like one that has ended.
        with suppress(httpx2.NetworkError, httpx2.ProtocolError):
            async for event in httpx2.EventSource(response, LINE_LIMIT):
                yield event
                # A server that writes without end must not block the event loop.
                await asyncio.sleep(0)
        return
    # A body that is too long is not read to its end: a small body may unpack to
    # gigabytes.
    body = await anext(response.aiter_bytes(LINE_LIMIT), b"")
    if len(body) == LINE_LIMIT:
        raise ToolError(f"HTTP {response.status_code}, longer than {LINE_LIMIT} bytes")
    yield httpx2.ServerSentEvent(data=body.decode(errors="replace"))


# === Room: Sign-in ====================================================================
# OAuth for remote servers. A person signs in once, with `--login` and a browser.


class SignIn(httpx2.Auth):
    """The sign-in to a remote server, stored in a file.

    The file is read for each request. So another process may refresh the tokens, and a
    new sign-in needs no restart. The SDK's `OAuthClientProvider` does not serve here:
    its lock makes all requests wait for the response to one, a restart makes it forget
    the token endpoint, and it does not know of other processes.
    """

    def __init__(self, url: str, learn: Callable[..., None]) -> None:
        self._learn = learn
        # The query may be a secret, which the hint must not show.
        address = url.partition("?")[0]
        words = [sys.executable, __file__, "--login", address]
        # All shells understand the double quotes of this form.
        command = subprocess.list2cmdline(words)
        self.hint = f"set `headers`, or sign in with: {command}"
        # Clients pass on few variables, so the folder does not depend on XDG_STATE_HOME.
        name = hashlib.sha256(address.encode()).hexdigest()
        self._path = Path(os.path.expanduser("~/.mcp-workbench"), f"{name}.json")

    def load(self) -> JSON:
        """The stored sign-in; empty if there is no file, or a broken one."""
        with suppress(OSError, ValueError, TypeError, LookupError):
            stored: JSON = from_json(self._path.read_bytes())
            self._learn(stored["access_token"], stored["refresh_token"])
            return stored
        return {}

    def save(self, stored: JSON) -> None:
        """Replace the file, which only the user can read, and nobody half-written."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(to_json(stored))
        os.replace(file.name, self._path)

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        """Send a request with the access token; after a 401, once more with a new one.

        A server that answers 401 has not executed the request. httpx2 sends what this
        generator yields, and `yield` returns the response.
        https://www.rfc-editor.org/rfc/rfc9110#section-15.5.2
        """
        stored = self.load()
        if stored:
            request.headers["authorization"] = f"Bearer {stored['access_token']}"
        response = yield request
        if response.status_code != 401:
            return
        await _drop_body(response)
        # A session is deleted while the program ends, which could lose new tokens.
        if stored and request.method != "DELETE":
            stored = await self._renew(stored)
            if stored:
                request.headers["authorization"] = f"Bearer {stored['access_token']}"
                response = yield request
                if response.status_code == 401:
                    await _drop_body(response)

    async def _renew(self, refused: JSON) -> JSON:
        """The sign-in after its access token was refused; empty if it is over.

        One process at a time refreshes the tokens, because a refresh token that is used
        twice may count as stolen, and end the sign-in.
        """
        with open(self._path.with_suffix(".lock"), "ab") as file:  # noqa: ASYNC230
            await _lock(file)
            # Another process may have refreshed the tokens while this one waited.
            stored = self.load()
            if stored != refused:
                return stored
            # A refresh is not cancelled with the call that needs it, because the answer
            # has the only refresh token that is valid from then on.
            with anyio.CancelScope(shield=True):
                renewed = await self._refresh(stored)
            # During the refresh, a person may have signed in anew, or out.
            if self.load() == stored:
                self.save(renewed)
            # Reading the new tokens has them masked, before anything can tell them.
            return self.load()

    async def _refresh(self, stored: JSON) -> JSON:
        """The sign-in with new tokens; empty if the authorization server refuses.

        Raises `ToolError` for any other failure, because a later refresh may succeed.
        """
        url = stored["token_url"]
        form = stored["form"] | {"refresh_token": stored["refresh_token"]}
        sent: JSON = {"data": form, "headers": stored["headers"]}
        with anyio.move_on_after(TOKEN_TIMEOUT), suppress(httpx2.HTTPError):
            http = httpx2.AsyncClient(transport=_ProxyTransport(), timeout=None)
            async with http, http.stream("POST", url, **sent) as response:
                # A body may never end, so no more of it is read.
                body = await anext(response.aiter_bytes(LINE_LIMIT), b"")
            with suppress(ValidationError):
                tokens = auth.OAuthToken.model_validate_json(body)
                # Without a new refresh token, the old one stays valid.
                return stored | tokens.model_dump(exclude_none=True)
            # Some servers refuse with status 200. 429 is for too many requests.
            is_final = response.status_code < 500 and response.status_code != 429
            if is_final and b'"error"' in body:
                return {}
        raise ToolError(f"no new tokens came from {url}, try again later")


async def _drop_body(response: Any) -> None:
    """Leave a body unread, because it may never end."""
    await response.stream.aclose()
    response.stream = httpx2.ByteStream(b"")


class _ProxyTransport(httpx2.AsyncBaseTransport):
    """A transport that uses, for each request, the proxy of `find_proxy` for its URL."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # Nobody closes this transport, so it must keep no connection.
        limits = httpx2.Limits(max_keepalive_connections=0)
        proxy = find_proxy(request.url)
        transport = httpx2.AsyncHTTPTransport(limits=limits, proxy=proxy)
        return await transport.handle_async_request(request)


async def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed, as soon as no other process has locked it."""
    while True:
        with suppress(OSError if sys.platform == "win32" else BlockingIOError):
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        await anyio.sleep(0.05)


class Login:
    """One sign-in in a browser, which comes back to a port of this machine.

    The SDK's `OAuthClientProvider` knows the protocol. A `Login` is its storage, which
    keeps nothing, and its way to the browser and back.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._returned: asyncio.Queue[JSON] = asyncio.Queue()

    async def _forget(self, *_: object) -> None:
        """All methods of the SDK's token storage: `run` returns what is to be stored."""

    get_tokens = set_tokens = get_client_info = set_client_info = _forget

    async def run(self) -> JSON:
        """Sign in, and return what a `SignIn` stores. Raises whatever prevents that."""
        listener = await asyncio.start_server(self._take, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        metadata = auth.OAuthClientMetadata(
            client_name="MCP Workbench",
            redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}/callback")],
            token_endpoint_auth_method="none",
        )
        provider = OAuthClientProvider(
            self._url, metadata, cast(Any, self), self._show, self._wait
        )
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        http = httpx2.AsyncClient(transport=_ProxyTransport(), auth=provider)
        http.timeout = httpx2.Timeout(TOKEN_TIMEOUT)
        http.event_hooks = {"response": [self._refuse]}
        try:
            async with http:
                await http.post(self._url, headers=HEADERS, json=ping)
        finally:
            listener.close()
        context = cast(Any, provider.context)
        # What a refresh sends, but for the refresh token.
        client_id = context.client_info.client_id
        form = {"grant_type": "refresh_token", "client_id": client_id}
        if context.should_include_resource_param():
            form["resource"] = context.get_resource_url()
        form, headers = context.prepare_token_auth(form, {})
        stored: JSON = context.current_tokens.model_dump()
        token_url = provider._get_token_endpoint()
        return stored | {"token_url": token_url, "form": form, "headers": headers}

    async def _refuse(self, response: Any) -> None:
        """Have the provider sign in. Some servers answer 401 only to a tool's call."""
        if response.request.url == self._url:
            response.status_code = 401
            await _drop_body(response)

    async def _show(self, url: str) -> None:
        print(f"Sign in at this address, if your browser does not show it yet:\n{url}")
        # A browser within the terminal blocks until it is closed.
        asyncio.get_running_loop().run_in_executor(None, webbrowser.open, url)

    async def _take(self, reader: asyncio.StreamReader, writer: Any) -> None:
        """Take what the authorization server sends through the browser."""
        head = await reader.readuntil(b"\r\n\r\n")
        query = dict(httpx2.URL(head.split()[1].decode()).params)
        # Browsers ask for an icon as well.
        if query.keys() & {"code", "error"}:
            self._returned.put_nowait(query)
        text = b"Close this page. The terminal says whether you are signed in."
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text)
        writer.close()

    async def _wait(self) -> auth.AuthorizationCodeResult:
        query = await self._returned.get()
        if "error" in query:
            raise ToolError(query.get("error_description") or query["error"])
        return auth.AuthorizationCodeResult.model_validate(query)


async def log_in(url: str) -> int:
    """Have a person sign in to a remote server. Returns the exit status."""
    config = WorkbenchConfig({})
    failed = f"Not signed in to {url}: "
    outcome = f"{failed}stopped, or not done within {LOGIN_TIMEOUT:g} seconds"
    status = 1
    try:
        with anyio.move_on_after(LOGIN_TIMEOUT):
            SignIn(url, config.learn).save(await Login(url).run())
            outcome = f"Signed in to {url}"
            status = 0
    except Exception as error:  # noqa: BLE001
        # Further lines of the SDK's errors may show tokens. `mask` takes control
        # characters out, which a server may have sent to the terminal.
        outcome = failed + config.mask(explain(error)).splitlines()[0]
    finally:
        # Ctrl-C cancels this task, which passes here as well.
        print(outcome)
    return status


# === Room: Short answers ==============================================================
# How an answer of `open_toolbox` is brought within its limit.


def summarize_tool(tool: JSON) -> None:
    """Reduce a tool to a line of description and the names of its arguments."""
    whole = tool["description"].strip()
    line = whole.partition("\n")[0][:79]
    tool["description"] = shorten(whole, len(line))
    tool["arguments"] = "…"
    # The arguments of a schema of an unusual form are not shown.
    with suppress(AttributeError, TypeError):
        tool["arguments"] = list_arguments(tool["inputSchema"])
    for key in ("inputSchema", "source_server", "toolbox_name", "annotations"):
        tool.pop(key, None)


def list_arguments(schema: JSON) -> str:
    """The arguments of a tool as a text, such as `path, mode: a|b, limit?`."""
    arguments = []
    # Servers in Go write null for what is empty.
    required = schema.get("required") or []
    for name, argument in (schema.get("properties") or {}).items():
        text = name if name in required else f"{name}?"
        # An optional enumeration is part of a union, and a list has one in its items.
        parts = [argument, argument.get("items", {}), *argument.get("anyOf", [])]
        values: list[Any] = []
        for part in parts:
            values += part.get("enum", [])
        shown = [compact(value).strip('"') for value in values[:5]]
        if len(values) > 5:
            shown.append("…")
        if shown:
            text += f": {'|'.join(shown)}"
        arguments.append(text)
    return ", ".join(arguments)


# The steps in which the tools of an answer are shortened, down to their names.
_SHORTENINGS: list[Callable[[JSON], object]] = [
    summarize_tool,
    lambda tool: tool.pop("description"),
    lambda tool: tool.pop("arguments"),
]
_LISTED = (
    "Without schemas: {} (`?`: optional argument). Call such a tool if its arguments "
    "are clear, or get its schema by its name in `tools` of open_toolbox, such as {}."
)


def fit(answer: JSON, limit: int) -> None:
    """Bring an answer of `open_toolbox` down to `limit` characters, if possible.

    The first step is applied to the tools of the largest server, then to those of the
    next largest, and so on, until the answer fits. The other steps follow in the same
    way. A tool that is alone stays whole.
    """
    cut_texts(answer["servers_failed"], answer["instructions"], limit // 3)
    by_server: dict[str, list[JSON]] = defaultdict(list)
    for tool in answer["tools"]:
        by_server[tool["source_server"]].append(tool)
    sizes = {name: len(compact(tools)) for name, tools in by_server.items()}
    largest_first = sorted(sizes, key=lambda name: sizes[name], reverse=True)
    note = answer["note"]
    listed = set()
    for shorten_tool in _SHORTENINGS:
        for name in largest_first:
            if len(compact(answer)) <= limit or len(answer["tools"]) == 1:
                return
            for tool in by_server[name]:
                shorten_tool(tool)
            listed.add(name)
            told = _LISTED.format(
                ", ".join(sorted(listed)), by_server[name][-1]["name"]
            )
            answer["note"] = f"{note} {told}".strip()


def cut_texts(failures: JSON, manuals: JSON, room: int) -> None:
    """Cut reasons of failures and servers' instructions to equal shares of `room`."""
    share = min(TEXT_LIMIT, room // max(len(failures) + len(manuals), 1))
    for name, text in failures.items():
        if len(text) > share:
            # The reason comes first, and the error of a traceback last.
            half = share // 2
            failures[name] = f"{text[:half]}…{text[-half:]}"
    for name, text in manuals.items():
        manuals[name] = shorten(text, share)


# === Room: Other clients' files =======================================================
# What other clients write into their files.
_TABLE_KEYS = ["mcpServers", "servers", "context_servers", "mcp_servers"]
_TABLE_KEYS += ["mcp", "mcp.servers", "amp.mcpServers"]
# Rules of opencode and Amp for single tools, beside their tables of servers.
_POLICY_KEYS = {"tools", "permission", "amp.tools.disable", "amp.mcpPermissions"}
# Other programs and pages quote these four lines, so their words are fixed.
_UNKNOWN_MODE = """\
Configuration field 'toolMode' set to {!r} is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


def _name_variables(entry: JSON) -> JSON:
    """Write `${NAME}` where an entry of Codex has the name of a variable."""
    headers = entry.get("env_http_headers")
    if isinstance(headers, dict):
        references = {header: f"${{{name}}}" for header, name in headers.items()}
        entry["env_http_headers"] = references
    name = entry.get("bearer_token_env_var")
    if name:
        entry["bearer_token_env_var"] = {"Authorization": f"Bearer ${{{name}}}"}
    return entry


# Editors write JSON with comments and trailing commas. Strings are matched first,
# because neither means anything inside a string. The quantifiers with `+` at the end do
# not try shorter matches: with others, a text that ends within a string takes minutes.
_COMMENT = r"//[^\n]*+ | /\*.*?(?:\*/|\Z)"
_EXTENSION = rf"""(?xs)
    (?P<string> "(?:[^"\\]++|\\.)*+"? )
    | {_COMMENT}
    | , (?= (?: \s | {_COMMENT} )*+ [\]}}] )  # a trailing comma
"""


def _decode_json(text: str) -> Any:
    """Decode JSON that may have comments and trailing commas."""

    def blank(match: re.Match[str]) -> str:
        # Spaces in place of the rest keep lines and columns in errors right.
        return match["string"] or re.sub(".", " ", match[0])

    data = json.loads(re.sub(_EXTENSION, blank, text))
    # Halves of surrogate pairs, which cannot be sent, are an error here.
    json.dumps(data, ensure_ascii=False).encode()
    return data


# === Room: Reports ====================================================================
# `--check` and `--call`.


async def check(config: WorkbenchConfig) -> int:
    """Start all servers side by side, and print a line for each as it settles.

    Returns the exit status: 1 if a server is not ok, or if there is none.
    """
    async with running_workbench(config) as workbench:
        for name in config.toolboxes:
            workbench.servers_of(name)
        servers = workbench.open_servers()
        if not servers:
            print(f"No server is configured in {config.source}.")
            return 1
        workbench.task_group.start_soon(_tell_progress, servers)
        results = await asyncio.gather(*map(_check_server, servers))
        failed = list(filter(None, results))
        summary = f"{len(servers) - len(failed)} ok"
        if failed:
            summary += f", {len(failed)} failed: {', '.join(failed)}"
        print(summary)
        if len(failed) < len(servers):
            _print_context(workbench)
    return int(bool(failed))


async def _check_server(server: DownstreamServer) -> str:
    """Start a server, and print a line about it; return its name if it is not ok."""
    began = anyio.current_time()
    connection = server.start()
    await connection.reach(State.UP)
    seconds = anyio.current_time() - began
    name = _short_name(server)
    is_ok = False
    verdict = "FAILED"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        verdict = "\x1b[31mFAILED\x1b[0m"
    if connection.state is not State.UP:
        # The first line is the reason, and the others are the server's output.
        text = connection.why_not_up("\n")
    elif not connection.tools and server.config.tool_filters != ["*"]:
        text = "its toolFilters match none of its tools"
    else:
        is_ok = True
        verdict = "ok    "
        answer = server.workbench.compose(server.toolbox_name, [server], ["*"])
        noun = "tool " if len(server.tools) == 1 else "tools"
        text = f"{len(server.tools):4} {noun} {_cost(len(compact(answer).encode()))}"
    width = max(map(len, map(_short_name, server.workbench.open_servers())))
    first, *others = text.split("\n")
    start = f"{name:{width}}  {verdict} {seconds:6.1f} s"
    print(f"{start}  {first:.300}", *others, sep="\n    ")
    return "" if is_ok else name


def _short_name(server: DownstreamServer) -> str:
    # In another client's file, each server is a toolbox of its own name.
    return server.name.removeprefix(f"{server.server_name}/")


async def _tell_progress(servers: Servers) -> None:
    """Print every ten seconds which servers are still starting, with their last lines.

    The last line of a server may be the address at which a person has to sign in.
    """
    while True:
        await anyio.sleep(10)
        waits = []
        for server in servers:
            if server.connection.state is State.STARTING:
                line = server.connection.last_line() or "no output"
                waits.append(f"{_short_name(server)}: {line}")
        if waits:
            print(f"{len(waits)} still starting: {'; '.join(waits)}")


def _print_context(workbench: Workbench) -> None:
    """Print what a model's context holds with the workbench, and without."""
    own = [tool.declaration for tool in meta_tools(workbench.config)]
    tools: list[types.Tool] = []
    for server in workbench.open_servers():
        tools += server.connection.tools.values()
    # Clients pass on only these parts of a tool's declaration to a model.
    parts = {"__all__": {"name", "description", "input_schema"}}
    before = to_json(own, include=parts) + instructions(workbench.config).encode()
    natively = len(to_json(tools, include=parts))
    print("A model's context holds:")
    print(_cost(len(before)), "before anything is opened")
    print(_cost(natively), f"natively, if all {len(tools)} tools are loaded at once")
    print(_cost(natively - len(before)), "saved until a toolbox is opened")


def _cost(size: int) -> str:
    return f"{size:9,} bytes (about {size // 4:,} tokens)"


async def call_once(config: WorkbenchConfig, name: str, *words: str) -> int:
    """Call a tool as an MCP client does, and print its result. Returns the status."""
    if name.count("__") < 2:
        print(f"expected a name {NAME_FORM}, found {name}", file=sys.stderr)
        return 1
    given = {"toolbox_name": name.split("__")[0], "tool_name": name}
    given["arguments"] = " ".join(words)
    # In the newer era, servers could not log.
    async with Client(create_server(config), mode="legacy") as client:
        result = await client.call_tool("use_tool", given)
    output = result.model_dump_json(indent=2, by_alias=True, exclude_unset=True)
    if {block.type for block in result.content} == {"text"}:
        output = "\n".join(getattr(block, "text", "") for block in result.content)
    print(output, file=sys.stderr if result.is_error else sys.stdout)
    return int(result.is_error)


# === Room: Built-in toolbox ===========================================================
# A server of our own with two tools, over stdio or HTTP.

_Text = Annotated[str, Field(description="The text to echo back.")]
_ZONE = "An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC."
_Timezone = Annotated[str, Field(default="UTC", description=_ZONE)]


async def echo(context: Any, /, text: _Text, **_: Any) -> JSON:
    """A simple tool that returns the text it was given."""
    return text_result(text)


async def time(context: Any, /, timezone: _Timezone, **_: Any) -> JSON:
    """Returns the current server time, optionally in a specific timezone."""
    try:
        # UTC needs no zone data, unlike any other.
        zone = datetime.UTC if timezone == "UTC" else zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        how = "expected an IANA name, and on Windows the package tzdata"
        raise ToolError(f"Unknown timezone {timezone!r}: {how}") from None
    return text_result(datetime.datetime.now(zone).isoformat(timespec="seconds"))


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server.

    To add a tool, write an async function like `echo` and list it here.
    """
    tools = [make_tool(echo, "Echo Tool"), make_tool(time, "Time Tool")]
    return tool_server("mcp-toolbox", tools, mask=str)


def toolbox_app(bound_to: str) -> ASGIApp:
    """The built-in toolbox as an ASGI application: Streamable HTTP, and older SSE."""
    server = create_toolbox_server()
    # Without a host, the SDK leaves the checks of Host and Origin to us.
    http = server.streamable_http_app(host="")
    sse = SseServerTransport("/mcp/messages")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_renamed(message: Message) -> None:
            # The SDK says `session_id`, and 404 for an unknown session. Clients of the
            # older toolbox, in TypeScript, expect `sessionId` and 400.
            if message.get("status") == 404:
                message["status"] = 400
            if message.get("body", b"").startswith(b"event: endpoint"):
                message["body"] = message["body"].replace(b"session_id", b"sessionId")
            await send(message)

        if scope["type"] != "http":
            # The lifespan of the Streamable HTTP sessions.
            return await http(scope, receive, send)
        request = Request(scope)
        route = f"{request.method} {request.url.path}"
        if not _is_allowed(request, bound_to):
            await Response("Invalid Host or Origin", 403)(scope, receive, send)
        elif request.url.path == "/mcp/messages":
            query = scope["query_string"].replace(b"sessionId=", b"session_id=")
            scope["query_string"] = query
            await sse.handle_post_message(scope, receive, send_renamed)
        elif route == "GET /mcp" and SESSION_ID not in request.headers:
            async with sse.connect_sse(scope, receive, send_renamed) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            await http(scope, receive, send)

    return app


def _is_allowed(request: Request, bound_to: str) -> bool:
    """Whether a request comes from no page of another site.

    Bound to loopback, the toolbox answers to the names of this machine only. Elsewhere,
    any Host is served, but no Origin, because no page belongs to the toolbox.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if LOOPBACK.fullmatch(bound_to):
        return bool(LOOPBACK.fullmatch(host)) and origin in (None, f"http://{host}")
    return origin is None


async def serve_http(host: str, port: int) -> None:
    """Serve the built-in toolbox over HTTP."""
    log.info("Starting the toolbox at http://%s:%s/mcp", host, port)
    if not LOOPBACK.fullmatch(host):
        log.warning("No authentication: bind to %s in a trusted environment only", host)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    app = toolbox_app(host)
    config = uvicorn.Config(app, host.strip("[]"), port, log_config=None)
    # Without a timeout, uvicorn would wait for the open streams.
    config.timeout_graceful_shutdown = 1
    await uvicorn.Server(config).serve()


def host_and_port(text: str) -> tuple[str, int]:
    """The host and the port of `[HOST:]PORT`. An IPv6 host keeps its brackets."""
    host, _, port = text.rpartition(":")
    if int(port) not in range(1, 65536):
        raise ValueError
    return host or "127.0.0.1", int(port)


# === Room: uv =========================================================================
# `uv run` and `uvx` change the environment, which the servers inherit.


def restore_environment() -> None:
    """Take back what `uv run` or `uvx` has added to the environment of this process.

    uv puts the `bin` or `Scripts` folders of its environments first in PATH, up to
    three with the option `--with`, and sets UV. `uv run` also sets VIRTUAL_ENV and
    UV_RUN_RECURSION_DEPTH. With all this, the command `python` of a server would start
    the Python of the workbench, which lacks the packages of the server.
    """
    # Without UV, a person has activated our environment, and nothing was added.
    if os.environ.pop("UV", None) is None:
        return
    os.environ.pop("UV_RUN_RECURSION_DEPTH", None)
    folders = os.environ.get("PATH", "").split(os.pathsep)
    while folders and _is_ours(folders[0]):
        del folders[0]
    os.environ["PATH"] = os.pathsep.join(folders)
    if os.environ.get("VIRTUAL_ENV") == sys.prefix:
        del os.environ["VIRTUAL_ENV"]
        # uv has replaced the value of an environment that a person has activated, but
        # not its folder in PATH.
        if folders and _is_environment(folders[0]):
            os.environ["VIRTUAL_ENV"] = os.path.dirname(folders[0])


def _is_environment(folder: str) -> bool:
    """Whether this folder, of PATH, has the programs of a Python environment."""
    return os.path.exists(os.path.join(os.path.dirname(folder), "pyvenv.cfg"))


def _is_ours(folder: str) -> bool:
    """Whether the running Python uses packages of the environment of this folder."""
    environment = os.path.join(os.path.dirname(folder), "")
    is_used = any(path.startswith(environment) for path in sys.path)
    return is_used and _is_environment(folder)


# === Room: Windows ====================================================================
# On Windows, no signal ends a process with its children, so a job object holds them.
# The system ends all processes of a job when its last handle is closed, even if this
# program is killed.


if sys.platform == "win32":
    import pywintypes  # type: ignore[import-untyped]
    import win32job  # type: ignore[import-untyped]

    def create_job(process: asyncio.SubprocessTransport) -> Any:
        """A job object with this process and the children that it will have."""
        job = win32job.CreateJobObject(None, "")
        kind = win32job.JobObjectExtendedLimitInformation
        limits = win32job.QueryInformationJobObject(job, kind)
        flag = win32job.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
        limits["BasicLimitInformation"]["LimitFlags"] |= flag
        win32job.SetInformationJobObject(job, kind, limits)
        # A process that has ended already cannot be assigned.
        with suppress(pywintypes.error):
            handle = process.get_extra_info("subprocess")._handle
            win32job.AssignProcessToJobObject(job, int(handle))
        return job

    def signal_job(job: Any, number: int) -> bool:
        """End the processes of a job; return whether there were any. 0 ends none."""
        if number:
            win32job.TerminateJobObject(job, 1)
        kind = win32job.JobObjectBasicAccountingInformation
        return bool(win32job.QueryInformationJobObject(job, kind)["ActiveProcesses"])


if __name__ == "__main__":
    main()
