#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = ["mcp>=2.3,<3"]
# ///
"""MCP Workbench puts many MCP servers, in named toolboxes, behind two tools.

`open_toolbox` starts a toolbox's servers and returns their tools. `use_tool` calls one
of them by its full name, `{toolbox}__{server}__{tool}`. Without CONFIG, the file is
WORKBENCH_CONFIG, else ./workbench-config.json.
"""

# A call comes in by `Stdio`, passes `use_tool`, `DownstreamServer.call`,
# `Connection.call` and `ServerProcess._transmit`, and returns by
# `ServerProcess._messages`.
#
# The core is complete by itself, with these sections and their lines of code:
# Configuration (271), Workbench (241), MCP server (162), Connections (253), Processes
# (121), Messages (36), Secrets (41), Serving (184).
#
# Each room after the core can be deleted: its section, from its banner to the next
# (the last to `if __name__`), its line here, and all lines that end in `# room: ` and
# its name. What each adds, with its lines of code:
# Remote servers (268): entries with a `url`. If it is deleted, Sign-in has to go, too.
# Sign-in (210): `--login`, and tokens for remote servers.
# Brief answers (107): `brief`, and a limit for answers of `open_toolbox`.
# Approval (73): a person is asked before some calls.
# Other clients' files (145): their tables of servers, their keys, and TOML.
# Reports (109): `--check` and `--call`.
# Built-in toolbox (105): `--toolbox`, and the demo where there is no file.
# uv (9): under uv, `python` in an entry stays a person's own.
# Windows (23): the children of servers end there, too.

# The SDK's transports to servers were tried, and are not used. If a server dies while a
# child of it still holds stdout open, `stdio_client` does not notice, and a call hangs.

# To add a key of entries, add a row to `KEYS`, or to those of one transport. To add a
# transport, write a subclass of `Transport` and add a row to `TRANSPORTS`. To add a
# meta-tool, write a model and a function and add a row to `META_TOOLS`. To add a use of
# the command line, add a row to `MODES`.

# The protocol has two eras. In the older one, up to 2025-11-25, a client begins with
# `initialize`, and a server may ask the client and log at any time. In the newer one,
# from 2026-07-28 on, a client begins with `server/discover`, and a server asks only in
# the result of a call. Most published servers know only the older era. So the workbench
# refuses `server/discover` over stdio, and clients that know both eras fall back to
# `initialize`. A client of the newer era alone can list and call tools, but cannot be
# asked.
# https://modelcontextprotocol.io/specification

from __future__ import annotations

import sys

# The folder of a script is the first in `sys.path`. A `types.py` or a `mcp` in it would
# be imported in place of the real one. With -P or -I, Python leaves the folder out, as
# `safe_path` says, which is new in 3.11.
if not getattr(sys.flags, "safe_path", False) and __name__ == "__main__":
    del sys.path[0]

import _thread
import argparse
import asyncio
import difflib
import enum
import fnmatch
import json
import logging.handlers
import os
import queue
import re
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Annotated, Any, ClassVar, NamedTuple, cast, get_args

# The SDK is written on anyio, whose cancel scopes and task groups serve here as well.
# asyncio does what anyio lacks: processes that report their exit, and tasks and timers
# that outlive a block. All packages come with `mcp`.
try:
    import anyio.abc
    from mcp import ClientSession, MCPError, ServerSession, types
    from mcp.server.lowlevel.server import Server
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
    from mcp.shared.message import SessionMessage
    from mcp_types.methods import validate_server_result
    from pydantic import BaseModel, BeforeValidator, TypeAdapter
    from pydantic_core import ValidationError, from_json, to_json
except ImportError as error:
    how = "pip install 'mcp>=2.3,<3', or start it with: uv run workbench.py"
    sys.exit(f"workbench.py needs Python 3.11 and mcp 2.3 or newer ({error}): {how}")

__version__ = "0.10.0"

# The main timeouts, in seconds.
OPEN_TIMEOUT = 5.0  # for slower servers once one is up, and for a new listing
ANSWER_TIMEOUT = 50.0  # for servers to start or to list tools; clients give up at 60
START_TIMEOUT = 180.0  # for a start: a first `npx` or `uvx` downloads its package
HANDOVER_TIMEOUT = 3.0  # for the end of a server's old process before its new one
EXIT_GRACE = 1.0  # between the end of a server's stdin, SIGTERM and SIGKILL
OUTPUT_TIMEOUT = 0.25  # for last output, such as after a SIGKILL, and for the log
# A client that ends the workbench closes stdin, waits 2 s, sends SIGTERM, waits 2 s and
# kills the workbench. Before that, the servers must have ended. The sum has the steps
# of `ServerProcess.__aexit__`, the log, and a moment more.
EXIT_TIMEOUT = 2 * EXIT_GRACE + 2 * OUTPUT_TIMEOUT + 0.35

MANUAL_LIMIT = 2_000  # characters of a server's instructions; clients cut there as well

# A name that begins with one underscore is used in its own section only, and in
# subclasses. But no name at the top level stands twice: all sections share one module.

log = logging.getLogger("workbench")
pattern_log = log.getChild("patterns")  # about patterns that match no tool
JSON = dict[str, Any]  # a JSON object, such as the wire form of a result
OnProgress = ProgressFnT | None


# === Configuration ====================================================================
# A file becomes a `WorkbenchConfig`. A mistake in the entry of a server becomes the
# `problem` of this server, and costs no other. Mistakes of the file and of its
# toolboxes become one `ConfigError`, with their places.


class ConfigError(ValueError):
    """A configuration cannot be used; the text names its file and every problem."""


def matches(name: str, *patterns: str) -> bool:
    """Whether one of these patterns, which have the wildcards of a shell, matches.

    An equal name matches as well, so that `get[1]` names the tool `get[1]`. As a
    pattern, it would match only `get1`.
    """
    if name in patterns:
        return True
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_like_rule(key: str) -> bool:
    """Whether a key reads as if it filtered tools, or had them approved.

    If such a key were ignored, a misspelt filter would hide nothing.
    """
    key = key.lower()
    if key == "tools" or "approv" in key:
        return True
    return "tool" in key and bool(re.search("filter|clude|able|allow|deny|block", key))


def without_null(members: JSON) -> JSON:
    """The members that are not null. A member that is null counts as not there."""
    return {name: value for name, value in members.items() if value is not None}


@dataclass(frozen=True)
class ServerConfig:
    """The entry of a downstream server."""

    kind: str  # a key of `TRANSPORTS`, such as `command`
    values: JSON  # by key, for all keys that an entry of this kind may have
    problem: str  # the reason to never start the server; empty if there is none
    variables: frozenset[str]  # names that the entry has as `${NAME}`

    def hidden_by(self, tool: str) -> str:
        """The key of the entry that hides a tool from models; empty if none does."""
        if matches(tool, *self.values["excludeTools"]):
            return "excludeTools"
        if not matches(tool, *self.values["toolFilters"]):
            return "toolFilters"
        return ""


@dataclass(frozen=True)
class ToolboxConfig:
    """A named group of servers that are opened together."""

    description: str
    servers: Mapping[str, ServerConfig]


@dataclass(frozen=True)
class WorkbenchConfig:
    """A configuration of the right form, with its `${VAR}` references expanded."""

    toolboxes: Mapping[str, ToolboxConfig]
    # The secret variables that entries name, unless their value is a path that exists.
    # Only a server whose own entry names such a variable inherits it.
    withheld: frozenset[str]
    secrets: Secrets
    source: str  # the file, for messages
    read_only: bool  # whether only tools that are declared read-only are served

    def describe(self, toolbox: str) -> str:
        """The description of a toolbox, for models, and so without secrets."""
        return self.secrets.mask(self.toolboxes[toolbox].description)


_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
_TYPE_NAMES |= {int: "a number", float: "a number", type(None): "nothing"}
# `${NAME}`, `${NAME:-default}`, and these with `env:` before the name. One that lacks
# the `-` or the brace is found as well, and reported. Anything else is text, such as
# `${1}` and `${x%/}` of a shell.
_REFERENCE = re.compile(
    r"""(?x)
    \$\{ (?P<prefix> (?: env: )? ) (?P<name> [A-Za-z_][A-Za-z0-9_]* )
    (?: (?P<sign> :-? ) (?P<default> [^}]* ) )? (?P<brace> \} | \Z )
    """
)
_BARE_REFERENCE = re.compile(r"(?:^|[\s=])\$[A-Z_][A-Z0-9_]*$")
# Other programs and pages quote these four lines, so their words are fixed.
_REMOVED_MODE = """\
Configuration field 'toolMode' set to {!r} is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


@dataclass
class ValueReader:
    """Reads the values of a part of a file, and collects what it finds in them.

    One reader, `top`, is for the file and its toolboxes. Each server has a reader of
    its own, which shares `secrets` and `secret_variables` with `top`.
    """

    secrets: Secrets
    # Variables that are secret by their own names, or by their places, such as MINE in
    # `--token ${MINE}`.
    secret_variables: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)  # names in references
    # The variables that references may name, beside those of the environment.
    env: JSON = field(default_factory=dict)

    def report(self, path: str, problem: str) -> None:
        """Collect a problem, so that all of them are told together."""
        self.problems.append(f"{path}: {problem}")

    def expect(self, path: str, value: Any, kind: type) -> Any:
        """The value if it is of exactly this type, or else an empty one."""
        if type(value) is kind:
            return value
        # Only the type is shown, because the value may be secret.
        found = _TYPE_NAMES[type(value)]
        self.report(path, f"expected {_TYPE_NAMES[kind]}, found {found}")
        return kind()

    def read_object(self, path: str, value: Any) -> JSON:
        """An object without comments, which are keys that begin with `_`."""
        members = self.expect(path, value, dict).items()
        return {key: member for key, member in members if not key.startswith("_")}

    def take_off_switch(self, path: str, entry: JSON) -> bool:
        """Whether an entry is switched off. The keys that say so are taken from it."""
        enabled = entry.pop("enabled", True)
        disabled = entry.pop("disabled", False)
        self.expect(f"{path}.enabled", enabled, bool)
        self.expect(f"{path}.disabled", disabled, bool)
        return enabled is False or disabled is True

    def check_name(self, path: str, name: str) -> None:
        """Report an empty name, or one that makes a tool's full name ambiguous."""
        if re.search("^$|__|_$", name):
            self.report(path, "expected a name, without '__', not ending in '_'")

    def check_keys(self, path: str, unknown: set[str]) -> None:
        """Warn of unknown keys. A key that reads like a rule for tools is a problem."""
        ignored = []
        for key in sorted(unknown):
            if is_like_rule(key):
                expected = f"a server's keys are {sorted(known_keys())}"
                self.report(f"{path}.{key}", f"unknown key: {expected}")
            else:
                ignored.append(key)
        if ignored:
            log.warning("%s: unknown keys %s, ignored", path, ignored)

    def read_patterns(self, path: str, value: Any) -> list[str]:
        """A list of names and patterns; a single "*" stands for a list of it."""
        if value == "*":
            value = ["*"]
        items = enumerate(self.expect(path, value, list))
        return [self.read_text(f"{path}[{number}]", item) for number, item in items]

    def read_arguments(self, path: str, value: Any) -> list[str]:
        """A list of arguments, in which an option names the one that follows."""
        words: list[str] = []
        option = ""
        for number, item in enumerate(self.expect(path, value, list)):
            word = self.read_text(f"{path}[{number}]", item, option)
            words.append(word)
            option = word if re.fullmatch(r"-[\w.-]+", word) else ""
        return words

    def read_texts(self, path: str, value: Any) -> JSON:
        """An object of texts by their names. A text may be null."""
        texts: JSON = {}
        for name, text in self.expect(path, value, dict).items():
            if text is not None:
                text = self.read_text(f"{path}.{name}", text, name)
            texts[name] = text
        return texts

    def read_env(self, path: str, value: Any) -> JSON:
        """The variables of an entry, which its other values may refer to."""
        variables = self.read_texts(path, value)
        self.env = without_null(variables)
        return variables

    def read_text(self, path: str, value: Any, name: str = "") -> str:
        """A text with its references expanded; numbers and booleans become texts.

        `name` is what the text is the value of, such as a variable or an option.
        """
        if isinstance(value, bool | int | float):
            value = json.dumps(value)
        text: str = self.expect(path, value, str)
        if _BARE_REFERENCE.search(text):
            # The text is not shown, because it may be a password with a `$`.
            log.warning("%s: write ${NAME} if its end is a variable", path)
        expanded, inserted = self._expand(path, text)
        places = find_secrets(name, expanded)
        for place in places:
            self.secrets.add(expanded[place.start : place.stop])
        for span, variable in inserted:
            if is_secret(variable) or any(span.start in place for place in places):
                self.secrets.add(expanded[span.start : span.stop])
                self.secret_variables.add(variable)
        return expanded

    def _expand(self, path: str, text: str) -> tuple[str, list[tuple[range, str]]]:
        """The text with its references expanded.

        Beside it, the place of each inserted value, and the variable that has it.
        """
        expanded = ""
        inserted = []
        end = 0  # of the last reference
        for reference in _REFERENCE.finditer(text):
            expanded += text[end : reference.start()]
            end = reference.end()
            begin = len(expanded)
            expanded += self._resolve(path, reference)
            variable = reference["name"]
            if sys.platform == "win32":
                variable = variable.upper()  # as in `os.environ`
            self.variables.add(variable)
            inserted.append((range(begin, len(expanded)), variable))
        return expanded + text[end:], inserted

    def _resolve(self, path: str, reference: re.Match[str]) -> str:
        """The value of a variable, or its default. If there is none, report it."""
        prefix, name, default = reference.group("prefix", "name", "default")
        # The text after the name is never shown, because it may be a secret.
        begin = "${" + prefix + name
        is_complete = reference["brace"] and reference["sign"] != ":"
        may_have_this_name = prefix or name == name.upper()
        if not (is_complete and may_have_this_name):
            how = "write the value, or ${NAME} in capitals"
            self.report(path, f"{begin}… is no variable here: {how}")
            return ""
        value: str | None = self.env.get(name, os.environ.get(name, default))
        if value is None:
            how = "set it in the terminal, in `env` of the workbench's entry, or write "
            how += begin + ":-default}"
            self.report(path, begin + "} is not set: " + how)
            return ""
        return value


class Key(NamedTuple):
    """A key that an entry may have."""

    read: Callable[[ValueReader, str, Any], Any]  # from its place and its value
    default: Any


# The keys of all entries; `TRANSPORTS` has those of each kind. `env` is read first,
# because all other values may refer to its variables. In `env`, null takes an
# inherited variable away.
KEYS: dict[str, Key] = {
    "env": Key(ValueReader.read_env, {}),
    "toolFilters": Key(ValueReader.read_patterns, ["*"]),
    "excludeTools": Key(ValueReader.read_patterns, []),
}


def known_keys() -> set[str]:
    """The keys that an entry may have, whatever its kind is."""
    known = set(KEYS)
    for transport in TRANSPORTS.values():
        known.update(transport.KEYS)
    return known


def read_toolboxes(top: ValueReader, data: JSON) -> dict[str, ToolboxConfig]:
    """The toolboxes of a decoded file by their names; `top` collects its problems."""
    table = top.read_object("toolboxes", data["toolboxes"])
    toolboxes = {}
    for name, value in table.items():
        path = f"toolboxes.{name}"
        entry = without_null(top.read_object(path, value))
        place = f"{path}.mcpServers"
        servers = read_servers(top, place, entry.pop("mcpServers", None))
        # Above, its servers were read all the same: their secrets are secrets.
        if top.take_off_switch(path, entry):
            continue
        top.check_name(path, name)
        # A reader of its own: the variables of a description are withheld from nobody.
        reader = ValueReader(top.secrets, problems=top.problems)
        given = entry.pop("description", "")
        description = reader.read_text(f"{path}.description", given)
        top.check_keys(path, set(entry))
        toolboxes[name] = ToolboxConfig(description or ", ".join(servers), servers)
    return toolboxes


def read_servers(top: ValueReader, place: str, table: Any) -> dict[str, ServerConfig]:
    """The servers of a table by their names."""
    servers = {}
    for name, value in top.read_object(place, table).items():
        reader = ValueReader(top.secrets, top.secret_variables)
        path = f"{place}.{name}"
        entry = without_null(reader.read_object(path, value))
        entry = translate_entry(path, entry, reader)  # room: Other clients' files
        is_off = reader.take_off_switch(path, entry)
        reader.check_name(path, name)
        # A server that is switched off has secrets, too.
        server = read_server(reader, path, entry)
        if not is_off:
            servers[name] = server
    return servers


def read_server(reader: ValueReader, path: str, entry: JSON) -> ServerConfig:
    """A server, of the kind that its entry says; `reader` collects its problems."""
    kinds = [kind for kind in TRANSPORTS if entry.get(kind)]
    if len(kinds) != 1:
        found = kinds or list(entry)
        reader.report(path, f"expected one of {list(TRANSPORTS)}, found {found}")
    # A key of another kind, such as `transport` beside `command`, is not read.
    reader.check_keys(path, entry.keys() - known_keys())
    # An entry of no kind or of two is never started, but may have secrets to find.
    kinds = kinds or ["command"]
    keys = dict(KEYS)
    for kind in kinds:
        keys |= TRANSPORTS[kind].KEYS
    values: JSON = {}
    for name, key in keys.items():
        values[name] = key.default
        if name in entry:
            values[name] = key.read(reader, f"{path}.{name}", entry[name])
    problem = "; ".join(reader.problems)
    return ServerConfig(kinds[0], values, problem, frozenset(reader.variables))


# The keys at the top of a file under which servers may stand, and what reads the
# toolboxes of such a file. The first of these keys that a file has decides.
FORMS: dict[str, Callable[[ValueReader, JSON], dict[str, ToolboxConfig]]] = {
    "toolboxes": read_toolboxes
}


def read_form(top: ValueReader, data: JSON) -> dict[str, ToolboxConfig]:
    """The toolboxes of a decoded file, in the form that its keys say."""
    forms = [key for key in FORMS if key in data]
    if not forms:
        report_unknown_form(top, data)
        return {}
    read = FORMS[forms[0]]
    for key in forms:
        if FORMS[key] is not read:
            log.warning("%s: not served, because of %s beside it", key, forms[0])
    return read(top, data)


def report_unknown_form(top: ValueReader, data: JSON) -> None:
    """Report that a file has no servers, with the keys that are near to a right one."""
    near = ""
    for key in data:
        for form in difflib.get_close_matches(key, FORMS, n=1):
            near += f"'{key}': did you mean '{form}'? "
    problem = f"{near}expected one of {list(FORMS)}, found {list(data)}"
    top.report("configuration", problem)


def parse_config(
    content: Any, source: str, secrets: Secrets, read_only: bool = False
) -> WorkbenchConfig:
    """Check a decoded configuration, and add what it has to the secrets.

    Raises `ConfigError` with all that is wrong with the file and its toolboxes.
    """
    for name in filter(is_secret, os.environ):
        secrets.add(os.environ[name])
    top = ValueReader(secrets)
    data = top.expect("configuration", content, dict)
    if data.get("toolMode", "proxy") != "proxy":
        top.problems.append(_REMOVED_MODE.format(data["toolMode"]))
    toolboxes = read_form(top, data)
    if top.problems:
        raise ConfigError(secrets.mask("\n".join([f"{source}:", *top.problems])))
    named = top.secret_variables & os.environ.keys()
    # The path of a key or a socket is no secret.
    withheld = {name for name in named if not os.path.exists(os.environ[name])}
    return WorkbenchConfig(toolboxes, frozenset(withheld), secrets, source, read_only)


# Without a file, the workbench serves this configuration.
DEFAULT: JSON = {"toolboxes": {}}


def find_config(options: argparse.Namespace, secrets: Secrets) -> WorkbenchConfig:
    """The configuration to serve, from a file or `DEFAULT`. Raises `ConfigError`."""
    given = options.CONFIG or os.environ.get("WORKBENCH_CONFIG")
    path = os.path.abspath(os.path.expanduser(given or "workbench-config.json"))
    if not given and not os.path.exists(path):
        how = "give one as argument, in WORKBENCH_CONFIG, or as ./workbench-config.json"
        return parse_config(DEFAULT, f"no file ({how})", secrets, options.read_only)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        text = translate_text(path, text)  # room: Other clients' files
        data = json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        told = "cannot be read as JSON saved as UTF-8"
        told += " (as TOML if its name ends in .toml)"  # room: Other clients' files
        raise ConfigError(f"{path}: {told}: {error}") from None
    return parse_config(data, path, secrets, options.read_only)


# === Workbench ========================================================================
# The toolboxes and their servers, for the meta-tools of the next section. A server is
# used through a `Connection`, one for each start.

# The full name of a tool. Only the part after the server's name may contain `__`.
NAME_FORM = "{toolbox}__{server}__{tool}"
NOT_REPEATED = "the call may have taken effect, and was not repeated"


class ToolError(Exception):
    """An error whose text tells a model what is wrong, and what to do about it."""


class NotDelivered(ToolError):
    """The server has certainly not executed a request, and its connection is closed."""


class State(enum.IntEnum):
    """The states of a connection, in order, and all its changes of state.

    A connection is closed once it has a `reason`. If it was up, its state says so, too.

    from      to        by                when
    STARTING  UP        run               the tools are listed
    UP        DRAINING  mark_closed       the connection is closed
    any       ENDED     run               the transport is exited
    STARTING  ENDED     DownstreamServer  it stands for a start before the first one
    """

    STARTING = 1
    UP = 2  # calls are sent, in this state only
    DRAINING = 3  # calls in flight may still be answered
    ENDED = 4  # nothing of the connection is left, such as a process


@dataclass
class ToolCall:
    """A call by `use_tool`, on its way to a server."""

    full_name: str  # the full name of the tool
    tool: str  # the tool's name within its server
    arguments: JSON
    others: JSON  # keys that the model has sent beside `arguments`
    meta: JSON  # `_meta` of the request, as far as it is for the server
    on_progress: OnProgress
    is_approved: bool = False  # room: Approval


@dataclass
class DownstreamServer:
    """A configured server, through all its connections.

    The class decides when a server is started again, and which calls are repeated.
    """

    toolbox_name: str
    server_name: str
    entry: ServerConfig
    workbench: Workbench

    def __post_init__(self) -> None:
        self.name = f"{self.toolbox_name}/{self.server_name}"
        self.prefix = f"{self.toolbox_name}__{self.server_name}__"
        # No start was made yet. `start` takes this connection for one that has ended.
        self.connection = Connection(self.name, self.entry, self.workbench)
        self.connection.set_state(State.ENDED)

    def is_named_by(self, pattern: str) -> bool:
        """Whether a pattern begins with `{server}__` or `{toolbox}__{server}__`."""
        parts = pattern.split("__")
        if len(parts) > 1 and matches(self.server_name, parts[0]):
            return True
        if len(parts) > 2 and matches(self.toolbox_name, parts[0]):
            return matches(self.server_name, parts[1])
        return False

    def find_tools(self, patterns: list[str]) -> list[types.Tool]:
        """The tools whose own name, or a fuller one, a pattern matches."""
        found = []
        for name, tool in self.connection.tools.items():
            names = [name, f"{self.server_name}__{name}", self.prefix + name]
            if any(matches(each, *patterns) for each in names):
                found.append(tool)
        return found

    def start(self) -> Connection:
        """The current connection, or a new one if the current one has closed."""
        former = self.connection
        # With an `await` between the check and the assignment, callers that come at
        # once would start the server more than once.
        if former.state > State.UP:
            self.connection = Connection(self.name, self.entry, self.workbench)
            self.workbench.task_group.start_soon(self.connection.run, former)
        return self.connection

    async def connect(self) -> None:
        """Wait until the server is up, with its tools listed anew, or has failed."""
        if self.start().state is State.UP:
            await self.connection.refresh_tools()
        # The listing may have shown that the connection is lost.
        await self.start().reach(State.UP)

    async def call(self, call: ToolCall) -> JSON:
        """Call a tool of the server, which is started if it is not up.

        The result is that of `tools/call` on the wire. Raises `ToolError`, `ValueError`
        for arguments that cannot be sent, or the server's `MCPError`.
        """
        try:
            return await self._try_call(call)
        except NotDelivered:
            # Such a call was certainly not executed, so it is sent again.
            return await self._try_call(call)

    async def _try_call(self, call: ToolCall) -> JSON:
        connection = await self.connect_for(call)
        await approve(connection, call)  # room: Approval
        return await connection.call(call)

    async def connect_for(self, call: ToolCall) -> Connection:
        """A connection that is up and has the tool of a call. Raises `ToolError`."""
        tool = call.tool
        # A connection knows tools only once it is up. A name that is not known may be
        # that of a new tool.
        if not self.start().knows(tool):
            with anyio.move_on_after(ANSWER_TIMEOUT):
                await self.connect()
        connection = self.connection
        if connection.state is not State.UP:
            raise ToolError(f"'{self.name}' is not up: {connection.why_not_up()}")
        if tool in connection.left_out:
            hidden_by = connection.left_out[tool]
            raise ToolError(f"'{tool}' of '{self.name}' is left out by {hidden_by}")
        if tool not in connection.tools:
            names = [self.prefix + name for name in connection.tools]
            near = difflib.get_close_matches(call.full_name, names, cutoff=0)
            raise ToolError(f"'{self.name}' has no tool '{tool}', nearest: {near}")
        if not call.arguments:
            refuse_misplaced(connection.tools[tool], call.others)
        return connection


def refuse_misplaced(tool: types.Tool, others: JSON) -> None:
    """Raise `ToolError` if arguments of the tool stand beside `arguments`.

    A model may put them there. A client may give `arguments` itself another name, so an
    object of any name counts, too. Without its arguments, a tool that deletes a folder
    may delete everything.
    """
    properties = tool.input_schema.get("properties") or {}
    for key, value in others.items():
        if key in properties or (value and isinstance(read_json(value), dict)):
            raise ToolError(f"put what stands in {key} into `arguments`, not beside it")


Servers = list[DownstreamServer]


def in_state(state: State, servers: Servers) -> Servers:
    """The servers, of these, whose connections are in this state."""
    return [server for server in servers if server.connection.state is state]


@dataclass
class Workbench:
    """The state of a running workbench, which serves one client.

    `client` is the session of the client, from its first tool call on. The questions
    and logs of servers go there.
    """

    config: WorkbenchConfig
    task_group: anyio.abc.TaskGroup  # runs the connections; if it ends, so do servers
    client: ServerSession | None = None
    log_level: types.LoggingLevel | None = None  # the lowest, once the client sets it
    # By name, the toolboxes that were opened or used. A server starts when needed.
    open_toolboxes: dict[str, Servers] = field(default_factory=dict)

    def use_toolbox(self, name: str) -> Servers:
        """The servers of a toolbox, which counts as open from now on.

        Raises `ToolError` if it is not configured.
        """
        if name not in self.config.toolboxes:
            names = ", ".join(self.config.toolboxes) or "none"
            raise ToolError(f"Toolbox '{name}' not found. Available toolboxes: {names}")
        if name not in self.open_toolboxes:
            entries = self.config.toolboxes[name].servers
            self.open_toolboxes[name] = [
                DownstreamServer(name, server, entry, self)
                for server, entry in entries.items()
            ]
        return self.open_toolboxes[name]

    def opened_servers(self) -> Servers:
        """The servers of all toolboxes that are open."""
        groups = self.open_toolboxes.values()
        return [server for group in groups for server in group]

    def find_servers(self, toolbox: str, patterns: list[str]) -> Servers:
        """The servers of a toolbox of which a pattern may match a tool.

        A pattern that names no server may match the tools of all. Raises `ToolError`.
        """
        servers = self.use_toolbox(toolbox)
        found: Servers = []
        for pattern in patterns:
            named = [server for server in servers if server.is_named_by(pattern)]
            found += named or servers
        # In the order of the configuration.
        return [server for server in servers if server in found]

    def find_server(self, toolbox: str, full_name: str) -> DownstreamServer:
        """The server of the toolbox whose tool has this name. Raises `ToolError`."""
        if "__" not in full_name:
            names = ", ".join(self.config.toolboxes) or "none"
            how = "`open_toolbox` lists full names"
            how += ", and so does --check --verbose"  # room: Reports
            raise ToolError(f"a full name is {NAME_FORM}; {how}; toolboxes: {names}")
        servers = self.use_toolbox(toolbox)
        for server in servers:
            if full_name.startswith(server.prefix):
                return server
        tool = full_name.rpartition("__")[2]
        names = " or ".join(server.prefix + tool for server in servers[:5])
        text = f"No server of toolbox '{toolbox}' matches '{full_name}'."
        raise ToolError(f"{text} Use {NAME_FORM}, such as {names}.")

    async def start_servers(self, servers: Servers, on_progress: ProgressFnT) -> None:
        """Start these servers, or list the tools of those that are up anew.

        Returns when each has settled, which means that it is up or has failed, or after
        `ANSWER_TIMEOUT`. Once one is up, the others have only `OPEN_TIMEOUT`. Both
        count from the beginning.
        """
        began = anyio.current_time()
        settled = 0
        async with anyio.create_task_group() as waiters:
            waiters.cancel_scope.deadline = began + ANSWER_TIMEOUT

            async def wait_for(server: DownstreamServer) -> None:
                nonlocal settled
                await server.connect()
                settled += 1
                await on_progress(settled, len(servers), server.server_name)
                # A deadline in the past ends the wait at once.
                if server.connection.state is State.UP:
                    waiters.cancel_scope.deadline = began + OPEN_TIMEOUT

            for server in servers:
                waiters.start_soon(wait_for, server)

    def compose(self, asked: OpenToolbox, servers: Servers) -> JSON:
        """The answer of `open_toolbox`: the state of these servers, and their tools."""
        name = asked.toolbox_name
        answer: JSON = {
            "toolbox": name,
            "description": self.config.describe(name),
            # This number is of the whole toolbox, and not of the servers asked for.
            "servers_connected": len(in_state(State.UP, self.open_toolboxes[name])),
            "servers_failed": {},
            "servers_connecting": [],
            "note": compose_note(servers, asked.tools),  # sentences, joined below
            "instructions": {},
            "tools": [],
        }
        for server in servers:
            add_to_answer(answer, server, asked.tools)
        fit(answer, asked)  # room: Brief answers
        answer["note"] = " ".join(answer["note"])
        for key in ("servers_failed", "servers_connecting", "note", "instructions"):
            if not answer[key]:
                del answer[key]
        return answer


@asynccontextmanager
async def running_workbench(config: WorkbenchConfig) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    async with anyio.create_task_group() as task_group:
        yield Workbench(config, task_group)
        task_group.cancel_scope.cancel()


def add_to_answer(answer: JSON, server: DownstreamServer, patterns: list[str]) -> None:
    """Add a server to an answer of `open_toolbox`, with its tools or its failure."""
    name, connection = server.server_name, server.connection
    if connection.state is State.STARTING:
        answer["servers_connecting"].append(name)
        return
    if connection.state is not State.UP:
        answer["servers_failed"][name] = connection.why_not_up()
        return
    tools = server.find_tools(patterns)
    answer["tools"] += [describe_tool(server, tool) for tool in tools]
    manual = connection.session.instructions
    # With a part of the tools, a manual for all of them would cost too much.
    if manual and len(tools) == len(connection.tools):
        answer["instructions"][name] = shorten(manual, MANUAL_LIMIT)


def compose_note(servers: Servers, patterns: list[str]) -> list[str]:
    """The sentences of a note, which tell what is missing, and how to get that."""
    up = in_state(State.UP, servers)
    sentences = []
    if patterns != ["*"]:
        names = ", ".join(server.server_name for server in up) or "no server"
        found = sum(len(server.find_tools(patterns)) for server in up)
        total = sum(len(server.connection.tools) for server in up)
        sentences.append(f"{found} of {total} tools of {names} match.")
        # While a server is not up, its tools are not known.
        if len(up) == len(servers):
            sentences += note_idle_patterns(up, patterns)
    hidden = 0
    for server in up:
        hidden += list(server.connection.left_out.values()).count("--read-only")
    if hidden:
        how = "--read-only allows only tools that are declared read-only"
        sentences.append(f"{hidden} tools are left out: {how}.")
    starting = in_state(State.STARTING, servers)
    for server in starting:
        name = server.server_name
        how = f'with ["{name}__*"] in `tools`'
        sentences.append(f"Still starting: {name}. Get its tools later, {how}.")
        output = server.connection.telling_line()
        if output:
            # The note has room for the lines of all.
            output = shorten(output, 4_000 // len(starting))
            sentences.append(f"Its last output: {output}")
    return sentences


def note_idle_patterns(servers: Servers, patterns: list[str]) -> list[str]:
    """A sentence for each pattern that matches no tool of these servers."""
    sentences = []
    for pattern in patterns:
        if not any(server.find_tools([pattern]) for server in servers):
            sentences.append(f"No tool matches {pattern!r}.")
    return sentences


def describe_tool(server: DownstreamServer, tool: types.Tool) -> JSON:
    """The entry of a server's tool in an answer of `open_toolbox`."""
    parts = {"name", "title", "description", "input_schema", "annotations"}
    declared = tool.model_dump(include=parts, by_alias=True, exclude_none=True)
    declared["inputSchema"].pop("$schema", None)
    return declared | {
        "name": server.prefix + tool.name,
        "description": tool.description or f"Tool from {server.name}",
        "source_server": server.server_name,
        "toolbox_name": server.toolbox_name,
        "original_name": tool.name,
    }


def shorten(text: str, limit: int) -> str:
    """The text, or its beginning if it has more than `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as `1 tool` or `2 tools`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def compact(value: Any) -> str:
    """JSON without white space; non-ASCII as it is, and null for NaN and infinities."""
    return to_json(value, inf_nan_mode="null").decode()


def explain(error: BaseException) -> str:
    """A readable text, never empty, for the innermost cause of an error."""
    if isinstance(error, ExceptionGroup):
        return explain(error.exceptions[0])
    if error.__cause__ is not None:
        return explain(error.__cause__)
    if isinstance(error, ValidationError):
        # The text of pydantic would have the value, which may be secret.
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place} is not valid: {first['msg']}"
    return str(error).strip() or type(error).__name__


# === MCP server =======================================================================
# The workbench as an MCP server: the two meta-tools on the SDK's low-level `Server`.
# Only this section turns errors into results of tools, and it masks their texts.


class Arguments(BaseModel, extra="allow"):
    """The base of the arguments of each tool of this program.

    A subclass has the tool's title, its docstring is the description, and its fields
    are the input schema. Clients add keys of their own, so a further key is no error.
    """


# A tool of this program is a model of its arguments, and the function that a call runs
# with them. The function's first argument is the SDK's request context. The meta-tools
# are such tools, and so are those of the room Built-in toolbox.
OwnTool = tuple[type[Arguments], Callable[[Any, Any], Awaitable[JSON]]]


def declare_tool(name: str, arguments: type[Arguments]) -> types.Tool:
    """The declaration of a tool, as clients list it."""
    schema = arguments.model_json_schema()
    about = {key: schema.pop(key) for key in ("title", "description")}
    # The parts that are taken away would only cost a model's context.
    schema.pop("additionalProperties")
    for argument in schema["properties"].values():
        argument.pop("title")
        argument.pop("additionalProperties", None)
    return types.Tool(name=name, input_schema=schema, **about)


async def run_tool(
    context: Any, tools: Mapping[str, OwnTool], secrets: Secrets
) -> JSON:
    """Run the one of these tools that a request asks for, and return its result.

    An `MCPError` is passed on, with its data as they are. Any other error of a tool
    becomes a result with `isError`. The texts of both are masked.
    """
    params = types.CallToolRequestParams.model_validate(context.params or {})
    if params.name not in tools:
        text = f"Tool '{params.name}' not found: use {' and '.join(tools)}"
        raise MCPError(types.INVALID_PARAMS, text)
    model, function = tools[params.name]
    given = without_null(params.arguments or {})
    try:
        return await function(context, model.model_validate(given))
    except MCPError as error:
        raise MCPError(error.code, secrets.mask(error.message), error.data) from None
    except Exception as error:
        # The SDK would make "Internal server error" of it.
        log.debug("Tool '%s' failed", params.name, exc_info=True)
        return text_result(secrets.mask(explain(error)), is_error=True)


def tool_server(
    name: str,
    tools: Mapping[str, OwnTool],
    declarations: list[types.Tool],
    secrets: Secrets,
) -> Server[Any]:
    """A low-level MCP server of these tools. The texts of their errors are masked."""

    async def list_tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=declarations)

    async def answer(ctx: Any, call_next: Any) -> Any:
        # The SDK would remove from the result of a handler what it does not know. So
        # this middleware, which sees all requests, answers calls itself.
        if ctx.method != "tools/call":
            return await call_next(ctx)
        result = await run_tool(ctx, tools, secrets)
        if is_of_newer_era(ctx):
            return {"resultType": "complete", **result}
        return result

    server = Server(name, version=__version__, on_list_tools=list_tools)
    server.middleware.append(answer)
    return server


def is_of_newer_era(context: Any) -> bool:
    """Whether the client of a request can be neither asked nor sent logs."""
    return not context.session.can_send_request


def text_result(text: str, is_error: bool = False) -> JSON:
    """A text as the result of a tool, in its wire form."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def read_json(value: Any) -> Any:
    """The value of a JSON text, which models send; any other value unchanged."""
    with suppress(TypeError, ValueError):
        return from_json(value)
    return value


def _as_object(value: Any) -> Any:
    if value == "":
        return {}
    found = read_json(value)
    if not isinstance(found, dict):
        # A `ValueError` would reach a model in pydantic's words.
        raise ToolError('arguments: expected a JSON object such as {"text": "hi"}')
    return found


def _as_patterns(value: Any) -> Any:
    found = read_json(value)
    if not isinstance(found, list):
        found = [value]
    return list(filter(None, found)) or ["*"]


class OpenToolbox(Arguments, title="Open Toolbox"):
    """Start a toolbox's servers and get their tools with input schemas.

    `tools`: names or patterns, such as read_* (any server), SERVER__* (all of one
    server), or full names.
    """

    toolbox_name: str
    tools: Annotated[list[str], BeforeValidator(_as_patterns)] = ["*"]


class UseTool(Arguments, title="Use Tool"):
    """Call a tool, by its full name from open_toolbox, as its inputSchema asks.

    A server starts at its first call. `toolbox_name` is not needed.
    """

    tool_name: str
    arguments: Annotated[JSON, BeforeValidator(_as_object)] = {}
    toolbox_name: str = ""


def _begin_request(context: Any) -> Workbench:
    """The workbench, which from now on sends servers' questions to this client."""
    workbench: Workbench = context.lifespan_context
    if not is_of_newer_era(context):
        workbench.client = context.session
    return workbench


async def open_toolbox(context: Any, asked: OpenToolbox) -> JSON:
    """Start the servers of a toolbox, and tell their states and their tools."""
    workbench = _begin_request(context)
    servers = workbench.find_servers(asked.toolbox_name, asked.tools)
    await workbench.start_servers(servers, context.session.report_progress)
    answer = workbench.compose(asked, servers)
    failed = answer.get("servers_failed", {})
    # A toolbox without servers has not failed.
    have_all_failed = bool(servers) and len(failed) == len(servers)
    return text_result(compact(answer), is_error=have_all_failed)


# Errors of a server that ask the client to act, not the model.
_FOR_CLIENT = (types.URL_ELICITATION_REQUIRED, types.MISSING_REQUIRED_CLIENT_CAPABILITY)
# `_meta` keys that apply to one hop and are not forwarded.
_ONE_HOP = re.compile(r"progressToken$|io\.modelcontextprotocol/")


async def use_tool(context: Any, asked: UseTool) -> JSON:
    """Call a tool of a server, and return its result as it is."""
    workbench = _begin_request(context)
    name = asked.tool_name
    meta = context.params.get("_meta") or {}
    # Without a token of the client, the server is not asked for progress.
    on_progress = context.session.report_progress if "progressToken" in meta else None
    toolbox = asked.toolbox_name or name.partition("__")[0]
    place = f"Error executing tool '{name}' in toolbox '{toolbox}'"
    try:
        server = workbench.find_server(toolbox, name)
        call = ToolCall(
            full_name=name,
            tool=name.removeprefix(server.prefix),
            arguments=asked.arguments,
            others=asked.model_extra or {},
            meta={key: meta[key] for key in meta if not _ONE_HOP.match(key)},
            on_progress=on_progress,
        )
        return await server.call(call)
    except (ToolError, ValueError) as error:
        # Arguments that are nested too deeply are a ValueError when they are sent.
        raise ToolError(f"{place}: {explain(error)}") from None
    except MCPError as error:
        if error.code in _FOR_CLIENT:
            raise
        raise ToolError(f"{place}: the server's error {error.code}: {error}") from None


# The room Brief answers replaces the row of `open_toolbox`.
META_TOOLS: dict[str, OwnTool] = {
    "open_toolbox": (OpenToolbox, open_toolbox),
    "use_tool": (UseTool, use_tool),
}


def instructions(config: WorkbenchConfig) -> str:
    """The plain text about the toolboxes that a client gets when it connects.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#initialization
    """
    if not config.toolboxes:
        return f"No toolboxes configured. Add them to 'toolboxes': {config.source}"
    # Codex shows its model the first 250 characters of the first line alone.
    how = "Use `open_toolbox` to connect to a toolbox, then `use_tool` to invoke tools."
    names = ", ".join(config.toolboxes)
    lines = [f"{how} Toolboxes: {names}", "\nAvailable Toolboxes:"]
    for name, toolbox in config.toolboxes.items():
        lines.append(f"\n{name} ({counted(len(toolbox.servers), 'server')})")
        lines.append(f"  Description: {config.describe(name)}")
        if len(toolbox.servers) > 1:
            lines.append(f"  Servers: {', '.join(toolbox.servers)}")
    return "\n".join(lines)


def declare_meta_tools(config: WorkbenchConfig) -> list[types.Tool]:
    """The meta-tools, with the names of the toolboxes in the schema."""
    declarations: dict[str, types.Tool] = {}
    for name, (arguments, _) in META_TOOLS.items():
        declarations[name] = declare_tool(name, arguments)
        # Claude Code would hide the tools behind a search, which models often omit.
        declarations[name].meta = {"anthropic/alwaysLoad": True}
    opening = declarations["open_toolbox"]
    # Clients ask a person before they call a tool that is not declared read-only. They
    # do not ask before they start servers themselves, and need not ask for it here.
    opening.annotations = types.ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True
    )
    using = declarations["use_tool"]
    using.annotations = types.ToolAnnotations(read_only_hint=config.read_only)
    if config.toolboxes:
        # Many clients do not show the instructions, which have the names as well.
        properties = opening.input_schema["properties"]
        properties["toolbox_name"]["enum"] = list(config.toolboxes)
    return list(declarations.values())


async def set_level(context: Any, params: types.SetLevelRequestParams) -> JSON:
    """Take the level of logs that the client wants, and pass it to the servers."""
    workbench: Workbench = context.lifespan_context
    workbench.log_level = params.level
    for server in in_state(State.UP, workbench.opened_servers()):
        # In the background, because a server may not answer.
        workbench.task_group.start_soon(server.connection.pass_log_level)
    return {}


async def pass_roots_changed(context: Any, _: object) -> None:
    """Tell the servers that the client's roots have changed."""
    told = types.RootsListChangedNotification()
    async with anyio.create_task_group() as telling:
        # A server that is still starting asks for the roots later, if at all.
        for server in in_state(State.UP, context.lifespan_context.opened_servers()):
            telling.start_soon(server.connection.session.send_notification, told)


def create_server(config: WorkbenchConfig) -> Server[Any]:
    """The workbench as a low-level MCP server, of which each run serves one client."""
    declarations = declare_meta_tools(config)
    server = tool_server("mcp-workbench", META_TOOLS, declarations, config.secrets)
    server.instructions = instructions(config)
    server.lifespan = lambda _: running_workbench(config)
    # As arguments of `Server`, these two would raise deprecation warnings.
    level = types.SetLevelRequestParams
    server.add_request_handler("logging/setLevel", level, set_level)
    roots = "notifications/roots/list_changed"
    server.add_notification_handler(roots, types.NotificationParams, pass_roots_changed)
    return server


# === Connections ======================================================================
# One start of a server: its session, its tools, the calls to it, and its questions.
#
# `DownstreamServer.start` makes a `Connection` and starts a task with its `run`. `run`
# enters the transport and the session, agrees on an era, lists the tools and is up.
# Once the connection is marked as closed, `run` waits for the calls in flight, and
# leaves session and transport.

_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)
# The error by which the SDK fails open requests at the end of the messages.
_CLOSED = (types.CONNECTION_CLOSED, "Connection closed")


@dataclass(eq=False, repr=False)
class Transport(AbstractAsyncContextManager["Streams"]):
    """The way to a server of one kind. Entering it gives the messages of both sides.

    Each transport keeps these promises. If entering it fails or is cancelled, nothing
    is left behind. Leaving it is shielded from cancelling, and takes less than
    `EXIT_TIMEOUT`.

    The transport calls `on_closed` when the server takes no more calls, and at the
    latest before its `Streams` end. At their end, the session fails all requests that
    are open. So the transport hands on the answers that have come before it ends them.

    Sending a message raises nothing, unless the message is a request that fails. Then
    it raises `ToolError`, and `NotDelivered` only if the connection is closed and the
    server has certainly not executed the request.
    """

    KEYS: ClassVar[dict[str, Key]]  # further keys of an entry of this kind

    entry: ServerConfig
    config: WorkbenchConfig
    on_output: Callable[[bytes], None]  # with a line of a process that is no message
    on_closed: Callable[[str], None]  # with the reason


class Dispatcher(JSONRPCDispatcher[Any]):
    """Takes results as clients in TypeScript take them, and refuses unusable ones."""

    async def send_raw_request(
        self, method: str, params: Any, opts: Any = None, **more: Any
    ) -> JSON:
        # The SDK tells the server when a request is given up. If a remote server hangs,
        # this takes up to 5 seconds, and only a call is worth that.
        opts = {**(opts or {}), "cancel_on_abandon": method == "tools/call"}
        result = await super().send_raw_request(method, params, opts, **more)
        if method == "tools/call":
            kind = result.get("resultType", "complete")
            # In the older era, a task is a result without a `resultType`.
            if "task" in result and "content" not in result:
                kind = "task"
            if kind != "complete":
                told = f"its answer is of the type {kind!r}, which cannot be completed"
                raise ToolError(f"{told}; {NOT_REPEATED}")
            # Servers leave `content` out, because clients in TypeScript do not mind.
            result.setdefault("content", [])
        if method == "tools/list" and isinstance(result.get("tools"), list):
            result["tools"] = list(filter(_is_valid, result["tools"]))
        return result


def _is_valid(tool: Any) -> bool:
    """Whether this is the declaration of a tool, which is the same in both eras.

    The session checks a whole page, and one tool that is not valid would cost them all.
    """
    try:
        validate_server_result("tools/list", "2025-11-25", {"tools": [tool]})
    except ValueError as error:
        log.warning("left out an invalid tool: %s: %s", explain(error), tool)
        return False
    return True


class Connection:
    """One start of a server.

    The task of `run` owns the connection: it alone enters and leaves the transport and
    the session. Other tasks wait until a state is reached, and call through it.
    """

    def __init__(self, name: str, entry: ServerConfig, workbench: Workbench) -> None:
        self.name = name
        self.entry = entry
        self.workbench = workbench
        self._mask = workbench.config.secrets.mask
        self.tools: dict[str, types.Tool] = {}  # by name, those for models
        self.left_out: dict[str, str] = {}  # by name, what hides it
        self.session: ClientSession  # set by `run`, once the transport is entered
        self.state = State.STARTING
        # The reason why the connection is closed; empty until then, also at the start.
        self.reason = ""
        self.output: deque[str] = deque(maxlen=20)  # lines since a call was answered
        self._in_flight = 0  # number of calls
        self._listing = anyio.Lock()
        self._changed = anyio.Event()  # replaced by `_wake_waiters`

    def knows(self, tool: str) -> bool:
        """Whether the server had a tool of this name when it was listed last."""
        return tool in self.tools or tool in self.left_out

    async def reach(self, state: State) -> None:
        """Wait for this state or a later one. A start that fails reaches ENDED."""
        while self.state < state:
            await self._changed.wait()

    def set_state(self, state: State) -> None:
        """Change the state, and wake everyone who waits."""
        self.state = state
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def mark_closed(self, reason: str) -> None:
        """Record why the connection is closed. If it was up, no more calls are sent.

        Calls in flight, and a start, go on until they fail by themselves. The first of
        several reasons is kept, because the others follow from it. Only `_negotiate`
        takes one back.
        """
        if not self.reason:
            self.reason = " ".join(self._mask(reason).split())
        if self.state is State.UP:
            self.set_state(State.DRAINING)

    def log_line(self, line: bytes) -> None:
        """Log a line of the server's output that is no message, and remember it."""
        # Masking a line of megabytes would keep the event loop busy.
        text = self._mask(line[:OUTPUT_LIMIT].decode(errors="replace")).strip()
        if text:
            # The address of a sign-in has several hundred characters.
            self.output.append(text[:1_000])
            log.info("[%s] %s", self.name, text)

    def why_not_up(self) -> str:
        """The reason why the server is not up, with its last lines of output."""
        reason = self.reason or "still starting, call again"
        return "; ".join([reason, *self.output])

    def telling_line(self) -> str:
        """The last line of output that has an address, or else the last line."""
        for line in reversed(self.output):
            if "://" in line:
                return line
        return self.output[-1] if self.output else ""

    async def run(self, former: Connection) -> None:
        """Start the server, keep the connection, and leave no process of its group.

        `former` is the server's connection before this one.
        """
        # Two processes at once would compete, such as for a profile or a lock. But the
        # old one may still answer a call for hours, so this wait is limited.
        with anyio.move_on_after(HANDOVER_TIMEOUT):
            await former.reach(State.ENDED)
        transport = TRANSPORTS[self.entry.kind](
            self.entry, self.workbench.config, self.log_line, self.mark_closed
        )
        try:
            if self.entry.problem:
                raise ToolError(self.entry.problem)
            # A start that fails in its transport has no `session`.
            async with transport as streams, self._new_session(streams) as self.session:
                await self._become_up()
                await self.reach(State.DRAINING)
                # The answers to these calls may still come.
                while self._in_flight:
                    await self._changed.wait()
        except Exception as error:  # noqa: BLE001
            # If it left this task, the exception would end all other connections.
            self.mark_closed(explain(error))
        self.set_state(State.ENDED)
        log.info("%s: %s", self.name, self.why_not_up())

    async def _become_up(self) -> None:
        """Agree on an era, and list the tools. Raises `ToolError` after too long."""
        with anyio.move_on_after(START_TIMEOUT) as starting:
            await self._negotiate()
            await self._list_tools()
        if starting.cancelled_caught:
            raise ToolError(f"was not up within {START_TIMEOUT:g} seconds")
        for warning in self.find_idle_patterns():
            pattern_log.warning("%s: %s", self.name, warning)
        # The connection may have been closed right after the last answer.
        if self.reason:
            raise ToolError(self.reason)
        # The level is sent before the first call, but its answer is not awaited.
        self.workbench.task_group.start_soon(self.pass_log_level)
        self.set_state(State.UP)

    def _new_session(self, streams: Streams) -> ClientSession:
        """A session that offers the server what the client supports.

        The SDK offers forms and URLs in elicitation only together. So a server is
        offered both, even if the client supports one of them.
        """
        client_info = types.Implementation(name="mcp-workbench", version=__version__)
        offered = types.ClientCapabilities()
        client = self.workbench.client
        if client and client.client_params:
            # Servers choose tools and texts by the name of the client.
            client_info = client.client_params.client_info
            offered = client.client_params.capabilities
        sample = self._forwarder(
            types.CreateMessageRequest, types.CreateMessageResultWithTools
        )
        elicit = self._forwarder(types.ElicitRequest, types.ElicitResult)
        list_roots = self._forwarder(types.ListRootsRequest, types.ListRootsResult)
        # Without a callback, the SDK does not offer a capability.
        return ClientSession(
            dispatcher=Dispatcher(streams, streams),
            client_info=client_info,
            message_handler=self._on_message,
            sampling_capabilities=offered.sampling,
            sampling_callback=sample if offered.sampling else None,
            elicitation_callback=elicit if offered.elicitation else None,
            list_roots_callback=list_roots if offered.roots else None,
        )

    def _forwarder(self, request: Any, result: Any) -> Any:
        """A callback that asks the client a server's question of this kind."""

        async def forward(_: object, params: Any = None) -> Any:
            # A server is offered nothing unless there is a client.
            client = cast(ServerSession, self.workbench.client)
            return await client.send_request(request(params=params), result)

        return forward

    async def _negotiate(self) -> None:
        """Agree on an era. The newer one has no questions, and is the second choice."""
        try:
            await self.session.initialize()
        except MCPError as refusal:
            # The refusal is the reason, even if a process exits at the next request.
            self.mark_closed(explain(refusal))
            await self.session.discover()
            self.reason = ""

    async def pass_log_level(self) -> None:
        """Have a server that logs do so from the level on that the client has set."""
        level = self.workbench.log_level
        declared = self.session.server_capabilities or types.ServerCapabilities()
        if level is None or declared.logging is None:
            return
        request = types.SetLevelRequest(params=types.SetLevelRequestParams(level=level))
        # A server that does not answer, or refuses, just logs as before.
        with anyio.move_on_after(OPEN_TIMEOUT), suppress(Exception):
            await self.session.send_request(request, types.EmptyResult)

    async def _on_message(self, message: Any) -> None:
        """Take a message of the server that is neither a question nor an answer."""
        if isinstance(message, types.ToolListChangedNotification):
            self._log_change_of_tools()
        elif isinstance(message, types.ElicitCompleteNotification):
            await self._notify_client(message)
        elif isinstance(message, types.LoggingMessageNotification):
            level, data = message.params.level, message.params.data
            log.debug("[%s] %s: %s", self.name, level, compact(data))
            levels = get_args(types.LoggingLevel)
            lowest = self.workbench.log_level or levels[0]
            if levels.index(level) >= levels.index(lowest):
                await self._notify_client(message)

    async def _notify_client(self, message: Any) -> None:
        if self.workbench.client:
            await self.workbench.client.send_notification(message)

    def _log_change_of_tools(self) -> None:
        # People search logs for these lines, so their words are fixed. An opening lists
        # the tools anew, with or without this message.
        log.info("Received tools/list_changed notification from server: %s", self.name)
        declared = self.session.server_capabilities or types.ServerCapabilities()
        if not (declared.tools and declared.tools.list_changed):
            text = "Received tools notification from server without listChanged"
            log.warning("%s capability: %s", text, self.name)

    async def refresh_tools(self) -> None:
        """List the tools anew. If this fails or takes too long, the old list is kept.

        Callers that come at once take turns, and do not share a list. An older list may
        lack a change that a later caller knows of.
        """
        try:
            with anyio.fail_after(OPEN_TIMEOUT):
                async with self._listing:
                    await self._list_tools()
        except (MCPError, ToolError, ValueError, TimeoutError) as error:
            log.warning("%s: kept its old tools: %s", self.name, explain(error))

    async def _list_tools(self) -> None:
        """Get the server's tools, and keep those that models may see."""
        tools: dict[str, types.Tool] = {}
        left_out: dict[str, str] = {}
        for tool in await self._fetch_pages():
            hidden_by = self._why_left_out(tool)
            if hidden_by:
                left_out[tool.name] = hidden_by
            else:
                tools[tool.name] = tool
        new, old = tools.keys(), self.tools.keys()
        modified = sum(tools[name] != self.tools[name] for name in new & old)
        counts = f"{len(new - old)} added, {len(old - new)} removed"
        log.info("%s: tools: %s, %d modified", self.name, counts, modified)
        self.tools, self.left_out = tools, left_out

    async def _fetch_pages(self) -> list[types.Tool]:
        """The tools of all pages. A page whose cursor came before is the last.

        https://modelcontextprotocol.io/specification/2025-11-25/server/tools#listing-tools
        """
        tools: list[types.Tool] = []
        cursors: list[str | None] = [None]  # those asked for; the first page has none
        while True:
            params = types.PaginatedRequestParams(cursor=cursors[-1])
            try:
                page = await self.session.list_tools(params=params)
            except MCPError as error:
                if error.code != types.METHOD_NOT_FOUND:
                    raise
                return tools  # the server has none
            tools += page.tools
            if not page.next_cursor or page.next_cursor in cursors:
                return tools
            cursors.append(page.next_cursor)

    def _why_left_out(self, tool: types.Tool) -> str:
        """The cause that hides a tool from models; empty if there is none."""
        key = self.entry.hidden_by(tool.name)
        if key:
            return key
        hints = tool.annotations or types.ToolAnnotations()
        if self.workbench.config.read_only and not hints.read_only_hint:
            return "--read-only"
        # A server may have tools for its own pages, which a client shows.
        # https://github.com/modelcontextprotocol/ext-apps
        ui = (tool.meta or {}).get("ui")
        audience = ui.get("visibility") if isinstance(ui, dict) else None
        if isinstance(audience, list) and "model" not in audience:
            return "its server, which offers it to apps alone"
        return ""

    def find_idle_patterns(self) -> list[str]:
        """A sentence for each of the entry's patterns that matches no tool.

        A person who has misspelt an exclusion relies on it in vain.
        """
        tools = [*self.tools, *self.left_out]
        idle = []
        for name, key in KEYS.items():
            # Only these keys have patterns, those of rooms included.
            if key.read is not ValueReader.read_patterns:
                continue
            for pattern in self.entry.values[name]:
                if pattern != "*" and not any(matches(tool, pattern) for tool in tools):
                    shown = self._mask(repr(pattern))
                    idle.append(f"its pattern {shown} matches none of its tools")
        return idle

    async def call(self, call: ToolCall) -> JSON:
        """Send `tools/call`, and return the result in its wire form.

        Cancelling the caller cancels the call downstream. Raises `NotDelivered`, also
        if the connection is not up, another `ToolError`, the server's `MCPError`, or
        `ValueError` for arguments that cannot be sent.
        """
        if self.state is not State.UP:
            raise NotDelivered(f"'{self.name}' is not up: {self.why_not_up()}")
        params = {"name": call.tool, "arguments": call.arguments, "_meta": call.meta}
        request = types.Request[JSON, str](method="tools/call", params=params)
        # Nothing has paused since the state was UP. So `run` waits for this call.
        self._in_flight += 1
        try:
            # `ClientSession.call_tool` would check the result against the tool's output
            # schema, and raise after the side effect has happened.
            result: JSON = await self.session.send_request(
                request, _RAW_RESULT, progress_callback=call.on_progress
            )
            # Output that came before an answer does not explain a later death.
            self.output.clear()
            # The SDK accepts any answer of a 2026-07-28 server that has a `resultType`.
            # The model is only a check, because it would change the result.
            types.CallToolResult.model_validate(result, by_name=False)
            return result
        except ValidationError as error:
            told = f"its answer is not valid MCP: {explain(error)}"
            raise ToolError(f"{told}; {NOT_REPEATED}") from None
        except MCPError as error:
            # A server may use the same code for an error of its own.
            if self.reason and (error.code, error.message) == _CLOSED:
                told = f"the server has gone: {self.why_not_up()}"
                raise ToolError(f"{told}; {NOT_REPEATED}") from None
            self.output.clear()
            raise
        finally:
            self._in_flight -= 1
            # `run` may wait for the end of the last call.
            self._wake_waiters()


# === Processes ========================================================================
# A connection's messages travel over the pipes of a process.

SIGKILL = 9  # Windows lacks the name


class _ProcessProtocol(asyncio.subprocess.SubprocessStreamProtocol):
    """The pipes of a process as streams, and a future for its exit.

    `asyncio.create_subprocess_exec` is not used. On Python 3.11, asyncio's own `wait`
    returns only when all pipes are closed, and a child of the server may hold them.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(MESSAGE_LIMIT, loop)
        self.exited = loop.create_future()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set_result(None)


class ServerProcess(Transport):
    """A server process: messages on its stdout, log lines on its stderr, and its end.

    The SDK's `stdio_client` takes the end of stdout for the end of the server, and
    leaves children of the server running.

    The connection closes when the process exits. A process that closes its stdout or
    stdin usually exits, and its status and its last words tell more. So they are waited
    for, up to `EXIT_GRACE`.
    """

    KEYS: ClassVar = {
        "command": Key(ValueReader.read_text, ""),
        "args": Key(ValueReader.read_arguments, []),
        "cwd": Key(ValueReader.read_text, ""),
    }

    async def __aenter__(self) -> Streams:
        """Start the process, to speak to it over stdin and stdout."""
        values = self.entry.values
        words = list(map(os.path.expanduser, [values["command"], *values["args"]]))
        # Without `cwd`, the folder is that of the workbench.
        cwd = os.path.abspath(os.path.expanduser(values["cwd"]))
        try:
            # One after another: the end by force knows only a process in `RUNNING`.
            async with _SPAWNING:
                # If the start were cancelled, asyncio would kill the process, but not
                # its children.
                with anyio.CancelScope(shield=True):
                    await self.spawn(words, env=self._environment(), cwd=cwd)
                RUNNING.add(self)
        except OSError as error:
            why = _why_not_started(words[0], cwd, error)
            raise ToolError(f"cannot start '{words[0]}': {why}") from None
        self._stderr_reader = asyncio.create_task(self._read_stderr())
        # The process may have exited already. Then the callback follows at once.
        self._pipes.exited.add_done_callback(self._report_exit)
        return Streams(self._messages(), self._transmit)

    def _environment(self) -> dict[str, str]:
        """The variables of this program, without others' secrets, and of the entry."""
        env: JSON = dict(os.environ)
        for name in self.config.withheld - self.entry.variables:
            env.pop(name, None)
        return without_null(env | self.entry.values["env"])

    async def spawn(self, words: list[str], **options: Any) -> None:
        """Start the process in a session, and so a group, of its own.

        The room Windows overrides this.
        """
        self._process, self._pipes = await asyncio.get_running_loop().subprocess_exec(
            _ProcessProtocol, *words, start_new_session=True, **options
        )

    async def _wait_for_last_words(self, seconds: float) -> None:
        """Wait for the exit and the end of stderr, at most for so many seconds."""
        ends = [self._pipes.exited, self._stderr_reader]
        await asyncio.wait(ends, timeout=seconds)

    def _report_exit(self, _: object) -> None:
        status = self._process.get_returncode()
        self.on_closed(f"exited with status {status}")
        # A child of the server may hold the pipes open for as long as it likes.
        asyncio.get_running_loop().call_later(OUTPUT_TIMEOUT, self._process.close)

    async def _messages(self) -> Messages:
        """The messages on stdout, to its end. Other lines are output."""
        try:
            while line := await _read_line(self._pipes.stdout):
                message = read_message(line)
                if message is None:
                    self.on_output(line)
                else:
                    yield SessionMessage(message)
        except ValueError:
            # The call that this line answers would wait for ever.
            self.on_closed(f"wrote a message beyond {MESSAGE_LIMIT >> 20} MiB")
            return
        await self._wait_for_last_words(EXIT_GRACE)
        self.on_closed("closed its stdout")

    async def _read_stderr(self) -> None:
        while True:
            try:
                line = await _read_line(self._pipes.stderr)
            except ValueError:
                continue  # too long a line, such as that of a progress bar
            if not line:
                return
            self.on_output(line)

    async def _transmit(self, item: SessionMessage) -> None:
        """Write a message to stdin."""
        stdin = self._pipes.stdin
        # No `drain`: a server that does not read its stdin must delay nobody.
        stdin.write(dump_message(item.message) + b"\n")
        # A `write` to a broken pipe closes `stdin`.
        if stdin.is_closing() and isinstance(item.message, types.JSONRPCRequest):
            await self._wait_for_last_words(EXIT_GRACE)
            self.on_closed("closed its stdin")
            raise NotDelivered("the server has closed its stdin")

    async def __aexit__(self, *_: object) -> None:
        """Close stdin, and end the whole process group.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#shutdown
        """
        # The exit that follows is not the reason for this end.
        self._pipes.exited.remove_done_callback(self._report_exit)
        self._pipes.stdin.close()
        with anyio.CancelScope(shield=True):
            for number in (signal.SIGTERM, SIGKILL):
                # A group that has ended is sent nothing: its number may be another's.
                if await self._group_ends():
                    break
                self.signal_group(number)
            # The next process would find the locks of one that is still dying.
            await self._wait_for_last_words(OUTPUT_TIMEOUT)
        self._process.close()
        RUNNING.discard(self)

    async def _group_ends(self) -> bool:
        """Whether no process of the group is left within `EXIT_GRACE`."""
        with anyio.move_on_after(EXIT_GRACE):
            while self.signal_group(0):
                await anyio.sleep(0.02)
            return True
        return False

    def signal_group(self, number: int) -> bool:
        """Send a signal to the group; return whether it had a process to send it to.

        The signal 0 does nothing to a process. The room Windows overrides this.
        """
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), number)
                return True
        return False


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, empty at the end. Raises `ValueError` beyond `MESSAGE_LIMIT`."""
    # A server that writes without end must not block the event loop.
    await asyncio.sleep(0)
    # A broken pipe is an end.
    with suppress(OSError):
        return await stream.readline()
    return b""


def _why_not_started(command: str, cwd: str, error: OSError) -> str:
    """The one cause for which a process was not started, and what to do about it."""
    if not os.path.isdir(cwd):
        return f"the folder '{cwd}' is not there; correct `cwd`"
    if not isinstance(error, FileNotFoundError):
        return str(error.strerror)
    if os.path.exists(os.path.join(cwd, command)):
        return "the file is there, but not the program that its first line names"
    if " " in command:
        return "no such command; write what follows it into `args`"
    if os.path.basename(command) == command:
        return "it is not in PATH; write its full path, or set PATH in `env`"
    return "no such file"


# The transports, by the key of an entry that asks for one. The room Windows replaces
# the transport of a process.
TRANSPORTS: dict[str, type[Transport]] = {"command": ServerProcess}
# The servers whose processes run, for the end by force.
RUNNING: set[ServerProcess] = set()
_SPAWNING = anyio.Lock()


# === Messages =========================================================================
# JSON-RPC messages as bytes, and both directions of a connection as the SDK wants them.
# The section serves the connection to the client, and those to the servers.

Messages = AsyncIterator[SessionMessage]
# Bytes from which on a message of a server is refused. Parsing holds the interpreter's
# lock, so a larger message would block all threads for too long.
MESSAGE_LIMIT = 32 << 20
OUTPUT_LIMIT = 1 << 16  # bytes of a line of a server's output that are shown


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
        """Nothing: the SDK calls this, but what is to be closed is the transport's."""


def read_message(line: bytes) -> types.JSONRPCMessage | None:
    """The JSON-RPC message in a line or a body; None for anything else.

    An answer of JSON-RPC 2.0 that is not valid becomes an error with its id. Without
    the error, its call would wait for ever.
    """
    message = _parse_json(line.decode(errors="replace"))
    with suppress(ValidationError):
        return types.jsonrpc_message_adapter.validate_python(message)
    if isinstance(message, dict) and not message.get("method"):
        told = f"its answer is not valid MCP; {NOT_REPEATED}"
        message["error"] = {"code": types.INTERNAL_ERROR, "message": told}
        with suppress(ValidationError):
            return types.JSONRPCError.model_validate(message)
    return None


def _parse_json(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        # Servers that write JSON by hand leave control characters as they are.
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    # JavaScript cuts texts within surrogate pairs. A half of a pair cannot be written
    # as UTF-8. One in a tool's description would spoil the answer of `open_toolbox`,
    # also for the other servers.
    if re.search(r"\\u[dD]", text):
        text = json.dumps(value, ensure_ascii=False)
        value = json.loads(re.sub(r"[\ud800-\udfff]", "\ufffd", text))
    return value


def dump_message(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


# === Secrets ==========================================================================
# What the workbench itself tells a model or a log has no secrets. A value is secret if
# its name says so, and so is every header and the token of a sign-in. The configuration
# finds such values. A `Secrets` object masks them in the log, in errors and reasons, in
# lines of servers' output, and in descriptions of toolboxes. Results of servers, and
# what they say about themselves, pass as they are.

# A name says so with one of these words. The words of the first line may also end a
# longer word, as in PGPASSWORD. The words of the second line may not, as in MONKEY.
_SECRET_NAME = re.compile(
    r"""(?x)
    ( token | secret | passw(or)?d | passphrase | apikey | credential | authorization
    | (?<! [a-z] ) ( key | pass | pwd | auth | bearer | pat | cookie | dsn | jwt )
    ) s? (?! [a-z] )
    """
)
# A name before a value, as in `API_KEY=X`, `Authorization: X Y` and `"apiKey": "X"`.
_NAME = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[=:]\s*["']?""")
_URL_PASSWORD = re.compile(r"://[^\s/@:]*:(?P<password>[^\s/]+)@")
# Colours and moves of a terminal, halves of surrogate pairs, and control characters
# except \n.
CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\0-\t\v-\x1f\x7f-\x9f\ud800-\udfff]")


def is_secret(name: str) -> bool:
    """Whether a name says that its value is secret, such as `apiKey` or DB_PASS."""
    words = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return bool(_SECRET_NAME.search(words))


def find_secrets(name: str, text: str) -> list[range]:
    """The places of secret values in a text, which is the value of this name.

    Within the text, names stand as in `API_KEY=X`, `?apiKey=X`, `Authorization: X` and
    `{"Authorization": "X"}`. The password of a URL is secret as well. Places may
    overlap.
    """
    places = [range(*url.span("password")) for url in _URL_PASSWORD.finditer(text)]
    if is_secret(name):
        places.append(range(len(text)))
    for found in _NAME.finditer(text):
        if not is_secret(found[1]):
            continue
        begin = found.end()
        # Where the value ends is not known. It may be one word, or have several.
        for end in (r"""[\s"'&;#]""", r"""["'&;#]"""):
            value = re.split(end, text[begin:], maxsplit=1)[0]
            places.append(range(begin, begin + len(value)))
        if found.start() == 0:
            # In an argument such as `Authorization: X&Y`, it may be all that follows.
            places.append(range(begin, len(text)))
    return places


class Secrets:
    """The texts that must not be told."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def add(self, text: str) -> None:
        """Mask this text from now on, each of its lines, and its last word.

        A text below 8 characters occurs by chance, and a path that exists is no secret.
        """
        # If a path has a blank, its last word alone is no path.
        if os.path.exists(text):
            return
        # Output is shown line by line. The last word is that of `Bearer X`.
        parts = [text, *text.splitlines(), text.rpartition(" ")[2]]
        for part in map(str.strip, parts):
            if len(part) >= 8 and not os.path.exists(part):
                self._texts.add(part)

    def mask(self, text: str) -> str:
        """The text with `***` for each secret, and without control characters."""
        # A secret may contain another one, and is replaced first.
        for secret in sorted(self._texts, key=len, reverse=True):
            text = text.replace(secret, "***")
        return CONTROLS.sub(" ", text)


# === Serving ==========================================================================
# The client's stdin and stdout, the end of the process, the log, and the command line.

_REFUSAL_TIMEOUT = 5.0  # for a client to read why it is not served
_PROBE = "server/discover"  # the first message of clients that know the newer era
Work = Awaitable[int]  # which results in an exit status


class Stdio:
    """The messages of the client on stdin, and those to it on stdout, by two threads.

    The reading thread notices the end of stdin even while the event loop is busy. The
    writing thread waits for a client that does not read: if `_send` waited, so would
    everything that sends. After the end, `count_down` limits this wait. The SDK's
    `stdio_server` is not used, because it cannot be left before the end of stdin.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()  # None is the end
        self._writer = ThreadPoolExecutor(1)
        self._scope = anyio.CancelScope()

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[Streams]:
        """The client's messages. A moment after their end, the block is cancelled."""
        _thread.start_new_thread(self._read, ())
        # Leaving `_writer` blocks the event loop until everything is written.
        with self._writer, self._scope:
            yield Streams(self._messages(), self._send)

    def _read(self) -> None:
        """Read stdin to its end, in the reading thread."""
        read_stdin(self._put)
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        """Queue a line of the client, or None when the client has gone."""
        if line is None:
            # The event loop may be too busy to take it, so the time is limited here.
            count_down(0)
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def _messages(self) -> Messages:
        while (line := await self._lines.get()) is not None:
            message = read_message(line)
            if isinstance(message, types.JSONRPCRequest) and message.method == _PROBE:
                # The SDK would begin the newer era, and refuse `initialize` in it.
                code = types.METHOD_NOT_FOUND
                await self._send(error_reply(message, code, "No such method"))
            elif message:
                yield SessionMessage(message)
        # The SDK now cancels the calls in flight. If a remote server hangs, the SDK
        # tries for seconds to cancel its calls, and no other server would be stopped
        # meanwhile. So what runs inside of `streams` is cancelled 0.05 seconds later.
        self._loop.call_later(0.05, self._scope.cancel)

    async def _send(self, item: SessionMessage) -> None:
        self._writer.submit(self._write, dump_message(item.message) + b"\n")

    def _write(self, line: bytes) -> None:
        """Write a line to stdout, in the writing thread.

        A stdout that the client has closed is noticed here.
        """
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError:
            self._put(None)


def read_stdin(receive: Callable[[bytes], None]) -> None:
    """Hand on each line of stdin, to its end."""
    with suppress(OSError):
        for line in sys.stdin.buffer:
            receive(line)


def error_reply(request: types.JSONRPCRequest, code: int, why: str) -> SessionMessage:
    """The error that answers this request."""
    error = types.ErrorData(code=code, message=why)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error))


async def serve_stdio(server: Server[Any]) -> int:
    """Serve over stdin and stdout until one of them is closed. Returns status 0."""
    async with Stdio().streams() as streams:
        await server.run(streams, streams, server.create_initialization_options())
    return 0


async def serve_refusal(why: str) -> int:
    """Answer requests with this text, until the end of stdin. Returns status 1.

    Clients show the answer to `initialize`. If the process ended at once instead, they
    would show "connection closed". A client may keep a server that it cannot use, so
    the time is limited.
    """
    # No server runs, so the process may end without any cleanup.
    asyncio.get_running_loop().call_later(_REFUSAL_TIMEOUT, os._exit, 1)
    async with Stdio().streams() as streams:
        async for item in streams:
            if isinstance(item.message, types.JSONRPCRequest):
                code = types.INVALID_PARAMS
                await streams.send(error_reply(item.message, code, why))
    return 1


# How the process ends: a signal cancels the work, or a closed stdin or stdout ends it.
# Either way, all servers are stopped while a thread counts down, and the process exits.


def count_down(status: int) -> None:
    """Have the process exit within `EXIT_TIMEOUT` seconds, whatever happens.

    A thread does this, because the event loop may be busy with large answers. The
    thread is started with `_thread`, because `threading` takes locks, and a signal may
    have interrupted code that holds them. If there are several threads, the first one
    ends the process.
    """
    _thread.start_new_thread(_end_by_force, (status,))


def _end_by_force(status: int) -> None:
    sleep(EXIT_TIMEOUT)
    for process in list(RUNNING):
        process.signal_group(SIGKILL)
    os._exit(status)


def stop_at_signals(scope: anyio.CancelScope, status: int) -> None:
    """Have signals cancel this scope, and the process then exit in time.

    The handlers stay until the end, because a second signal must not stop the cleanup.
    """
    loop = asyncio.get_running_loop()

    def stop(*_: object) -> None:
        count_down(status)
        loop.call_soon_threadsafe(scope.cancel)

    # SIGHUP tells of a closed terminal. Windows lacks SIGHUP and SIGQUIT.
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)


async def run_to_exit(
    work: Work, status_if_stopped: int, lines: queue.Queue[Any]
) -> None:
    """Do the work, wait for the last `lines` of the log, and exit.

    The exit status is the result of the work, 1 after an error, or `status_if_stopped`
    if a signal has stopped the work.

    The process ends with `os._exit`, because Python would wait for threads, such as one
    that looks up a name, and could not close stdin, which a thread reads.
    """
    loop = asyncio.get_running_loop()
    # A look-up of a host's name may hang, and with few threads keep others waiting.
    loop.set_default_executor(ThreadPoolExecutor(100))
    status = status_if_stopped
    scope = anyio.CancelScope()
    stop_at_signals(scope, status)
    try:
        with scope:
            status = await work
    except Exception as error:
        # An error that left this function would end the process without `os._exit`.
        status = 1
        log.error("%s", explain(error), exc_info=log.isEnabledFor(logging.DEBUG))
    # The client may not read stderr, so the wait for the last lines is limited.
    await asyncio.wait([loop.run_in_executor(None, lines.join)], timeout=OUTPUT_TIMEOUT)
    os._exit(status)


class MaskedLog(logging.handlers.QueueHandler):
    """Hands masked lines to the thread of a `QueueListener`, which writes them.

    If the client does not read stderr, a write may block for ever, and would block the
    event loop with it. When too many lines are waiting, new ones are dropped. A line is
    masked before it waits, because `QueueHandler.prepare` calls `format`.
    """

    queue: queue.Queue[logging.LogRecord]

    def __init__(self, secrets: Secrets) -> None:
        super().__init__(queue.Queue(maxsize=1000))
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.mask(super().format(record))


class Mode(NamedTuple):
    """Something that the command line can ask for."""

    usage: str  # how it is asked for
    option: JSON  # the settings of its argument, as `argparse` wants them
    # Reads what can be wrong in files and options, and returns what is left to do.
    prepare: Callable[[argparse.Namespace, Secrets], Work]
    goes_with: tuple[str, ...] = ()  # the other options that may be given with it
    is_server: bool = False  # serves a client, until the client or a signal ends it


def prepare_workbench(options: argparse.Namespace, secrets: Secrets) -> Work:
    """Read the configuration, and tell what is wrong in it. The work is to serve it."""
    config = find_config(options, secrets)
    log.info("Serving %s: %s", list(config.toolboxes), config.source)
    for toolbox in config.toolboxes.values():
        for entry in toolbox.servers.values():
            if entry.problem:
                log.warning("%s", entry.problem)
    if config.withheld:
        names = sorted(config.withheld)
        log.info("Withheld from servers whose entries do not name them: %s", names)
    return serve_stdio(create_server(config))


# The command line can ask for these. If it asks for no other, it asks for `CONFIG`.
MODES: dict[str, Mode] = {}
# `Path` makes the current folder of an empty CONFIG. So this is an error, and not the
# same as no CONFIG.
MODES["CONFIG"] = Mode(
    "[CONFIG] [--read-only]",
    {"nargs": "?", "type": Path, "help": "the file to serve"},
    prepare_workbench,
    goes_with=("--read-only",),
    is_server=True,
)
# The options that are no modes.
OPTIONS: dict[str, JSON] = {
    "--read-only": {"action": "store_true", "help": "serve only read-only tools"},
    "--verbose": {"action": "store_true", "help": "log more"},
}


def parse_arguments() -> tuple[argparse.Namespace, Mode]:
    """Read the command line, or end the program with what is wrong in it."""
    parser = argparse.ArgumentParser(
        usage="".join(f"\n  python %(prog)s {mode.usage}" for mode in MODES.values()),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    settings = {name: mode.option for name, mode in MODES.items()} | OPTIONS
    actions = {name: parser.add_argument(name, **settings[name]) for name in settings}
    version = f"mcp-workbench {__version__}"
    parser.add_argument("--version", action="version", version=version)
    options = parser.parse_args()
    given = set()
    for name, action in actions.items():
        if getattr(options, action.dest) != action.default:
            given.add(name)
    # CONFIG, the first row, may stand beside an option that asks for something else.
    asked = "CONFIG"
    for name in MODES:
        if name in given:
            asked = name
    mode = MODES[asked]
    if given - {asked, "--verbose", *mode.goes_with}:
        parser.error(f"options that do not go together; expected: {mode.usage}")
    return options, mode


def set_up_log(secrets: Secrets, level: int) -> MaskedLog:
    """Have the program log from this level on."""
    handler = MaskedLog(secrets)
    logging.raiseExceptions = False  # a full queue is no error
    form = "%(asctime)s %(levelname)s %(message)s"
    # Other loggers are silent, because the SDK logs the beginnings of messages. A
    # secret that is cut is not found, and so not masked.
    logging.basicConfig(format=form, handlers=[handler], level=logging.CRITICAL + 1)
    log.setLevel(level)
    return handler


def set_up_output() -> None:
    """Have stdout and stderr take any text, and write each line at once."""
    # With PYTHONUNBUFFERED, Python's own stdout has no buffer. If a signal interrupted
    # a write of it, the rest of the line would be lost.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # `os._exit` does not flush buffers, so each line is written at once.
        cast(Any, stream).reconfigure(
            encoding="utf-8", errors="replace", line_buffering=True
        )


def main() -> None:
    """Do what the command line asks for, and end the process."""
    set_up_output()
    # The threads of stdin and stdout need the interpreter's lock. Beside a server that
    # writes without end, the event loop would keep the lock for too long at a time.
    sys.setswitchinterval(0.0001)  # seconds
    options, mode = parse_arguments()
    # The file, which is read later, may name variables.
    restore_environment()  # room: uv
    has_person = os.isatty(0)
    level = logging.INFO if mode.is_server else logging.WARNING
    if options.verbose:
        level = logging.DEBUG
    secrets = Secrets()
    handler = set_up_log(secrets, level)
    try:
        work = mode.prepare(options, secrets)
    except ConfigError as error:
        if has_person or not mode.is_server:
            sys.exit(str(error))
        log.error("%s", error)
        work = serve_refusal(str(error))
    if has_person and mode.is_server:
        uses = ", ".join([*MODES, "--help"])
        log.info("Waiting for an MCP client. Ctrl-C ends. Arguments: %s", uses)
    # Lines of the log are written from now on. Above, a person who is told what is
    # wrong with a file gets no other lines.
    logging.handlers.QueueListener(handler.queue, logging.StreamHandler()).start()
    # To be stopped is the usual end of a server, and a failure of anything else.
    status_if_stopped = 0 if mode.is_server else 1
    asyncio.run(run_to_exit(work, status_if_stopped, handler.queue))


# Here the core ends. Each section from here to the last lines is a room.


# === Room: Remote servers =============================================================
# Servers that have a `url`, over Streamable HTTP or the older SSE transport. Without
# this room, all servers are processes of this machine.
#
# The SDK's transports are not used. A request that fails there ends all others of its
# server.

import urllib.request
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx2

# The next module is private to the SDK. Without it, `AsyncClient.stream` follows
# redirects with `follow_redirects=True`, and an event hook has to refuse those that
# lead elsewhere.
from mcp.shared._httpx_utils import redirect_location, stream_within_origin

CONNECT_TIMEOUT = 10.0  # seconds for an HTTP connection, not for the answer
# Seconds until a stream is asked for again that a server has refused.
RETRY_PAUSE = 60.0

SESSION_HEADER = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
HEADERS = {"accept": "application/json, text/event-stream"}
HEADERS |= {"content-type": "application/json", "accept-encoding": "identity"}

_Opening = AbstractAsyncContextManager[httpx2.Response]
_Events = AsyncGenerator[httpx2.ServerSentEvent]
Answer = types.JSONRPCResponse | types.JSONRPCError
# What comes of a request: its answer, or the reason why there is none. Over SSE, None
# means that the answer will come in the server's stream.
_Outcome = Answer | ToolError | None


def read_headers(reader: ValueReader, path: str, value: Any) -> JSON:
    """The headers of an entry, which are secret whatever their names say."""
    headers: JSON = {}
    for name, text in without_null(reader.read_texts(path, value)).items():
        # A line end cannot be sent, and the error of the HTTP library would tell the
        # whole value, in a form in which no mask finds it.
        headers[name] = re.sub(r"[\0-\x1f\x7f]+", " ", text).strip()
        reader.secrets.add(text)
        reader.secrets.add(headers[name])
    return headers


class RemoteServer(Transport):
    """A remote server, over Streamable HTTP, or over the older SSE transport.

    A message is posted in the task that sends it. So a request that fails ends no other
    request, and cancelling the task closes its HTTP connection.

    Over Streamable HTTP, the answer to a request comes in the response to its POST. The
    response to `initialize` may name a session, whose id later requests send. Then
    `_listen` reads the messages that belong to no request of ours, and `__aexit__` ends
    the session.
    https://modelcontextprotocol.io/specification/2025-11-25/basic/transports

    Over SSE, all messages of the server come in the stream of one GET. The connection
    ends with this stream.
    https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse
    """

    KEYS: ClassVar = {
        "url": Key(ValueReader.read_text, ""),
        "headers": Key(read_headers, {}),
        # `sse`, or anything else for Streamable HTTP.
        "transport": Key(ValueReader.read_text, ""),
    }

    async def __aenter__(self) -> Streams:
        """Make the HTTP client. The first message makes the first connection."""
        self._make_client()
        self._endpoint = self.url  # where messages are posted; SSE names another
        self._is_sse = self.entry.values["transport"] == "sse"
        self._listener: asyncio.Task[None] | None = None
        self._failures = 0  # of requests, in a row
        # None is the end. Without the limit of one message, a server that sends without
        # end would fill the memory.
        self._inbox: asyncio.Queue[SessionMessage | None] = asyncio.Queue(1)
        return Streams(self._messages(), self._send)

    def _make_client(self) -> None:
        try:
            # As in a browser, blanks around a URL mean nothing.
            self.url = httpx2.URL(self.entry.values["url"].strip())
            if self.url.scheme not in ("http", "https") or not self.url.host:
                raise ValueError
            self.http = make_http_client(self.url)
            # A value that is not ASCII raises here.
            self.http.headers.update(self.entry.values["headers"])
        except (ImportError, OSError, ValueError, httpx2.InvalidURL):
            # The text of the error may have a part of the URL, or of a header.
            what = "its `url` or `headers` are not valid, or its proxy or certificates"
            raise ToolError(f"{what} cannot be used") from None
        self.http.headers.update(HEADERS)
        add_sign_in(self.http, self.url, self.config.secrets)  # room: Sign-in

    async def _messages(self) -> Messages:
        while (item := await self._inbox.get()) is not None:
            yield item

    async def _send(self, item: SessionMessage) -> None:
        """Post a message. Over Streamable HTTP, wait for the answer to a request."""
        headers: JSON = getattr(item.metadata, "headers", None) or {}
        # The session sets the agreed version in the headers of its requests and
        # notifications. Its answers, and all GETs, need this header, too.
        if _VERSION_HEADER in headers:
            self.http.headers[_VERSION_HEADER] = headers[_VERSION_HEADER]
        if isinstance(item.message, types.JSONRPCRequest):
            await self._request(item.message, headers)
            return
        content = dump_message(item.message)
        with suppress(Exception):
            async with self._open("POST", headers=headers, content=content):
                pass  # the body has nothing, and may never end
        # The first of these messages ends the handshake. Servers may refuse to open a
        # stream before that.
        if self._listener is None and SESSION_HEADER in self.http.headers:
            self._listener = asyncio.create_task(self._listen())

    async def _request(self, request: types.JSONRPCRequest, headers: JSON) -> None:
        """Post a request, and hand on its answer. Without one, raises `ToolError`."""
        if request.method == "initialize":
            outcome = await self._initialize(request, headers)
        else:
            status, outcome = await self._exchange(request, headers)
            self._close_if_lost(request.method, status, outcome)
        if isinstance(outcome, ToolError):
            raise outcome
        if outcome is not None:
            await self._inbox.put(SessionMessage(outcome))

    async def _initialize(
        self, request: types.JSONRPCRequest, headers: JSON
    ) -> _Outcome:
        """Post `initialize`. If it is refused, try SSE, as the protocol asks."""
        status, outcome = await self._exchange(request, headers)
        is_refused = isinstance(outcome, ToolError) and status in (400, 404, 405)
        if self._is_sse or not is_refused:
            return outcome
        self._is_sse = True
        _, over_sse = await self._exchange(request, headers)
        if isinstance(over_sse, ToolError):
            # The first failure tells more.
            return outcome
        return over_sse

    async def _exchange(
        self, request: types.JSONRPCRequest, headers: JSON
    ) -> tuple[int, _Outcome]:
        """Post a request. Returns the HTTP status, or 0 without a response.

        The outcome is returned as well, also if it is an error.
        """
        reading = _Reading()
        outcome: _Outcome
        try:
            # Over SSE, the first request needs the endpoint.
            if self._is_sse and self._listener is None:
                await self._open_sse()
            outcome = await self._get_answer(request, headers, reading)
        except Exception as error:  # noqa: BLE001
            outcome = self._request_error(error, request.method, reading.status)
        return reading.status, outcome

    async def _get_answer(
        self, request: types.JSONRPCRequest, headers: JSON, reading: _Reading
    ) -> Answer | None:
        """Post a request, and read what comes, up to its answer.

        If the event stream is cut, the rest is the response to a new request.
        https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#resumability-and-redelivery
        """
        content = dump_message(request)
        opening = self._open("POST", headers=headers, content=content)
        while True:
            answer = await self._hand_on(reading.events(opening), str(request.id))
            response = reading.response
            if response.headers.get(SESSION_HEADER):
                self.http.headers[SESSION_HEADER] = response.headers[SESSION_HEADER]
            # Over SSE, the answer comes in the stream of the server.
            if answer or (self._is_sse and response.is_success):
                return answer
            # Without the id of an event, the rest of a stream cannot be asked for.
            is_cut = response.is_success and _is_stream(response)
            if not (is_cut and reading.resumption):
                raise self._missing_answer(reading)
            await anyio.sleep(reading.retry)
            opening = self._open("GET", headers=reading.resumption)

    async def _hand_on(self, events: _Events, awaited: str = "") -> Answer | None:
        """Hand on the messages of a response, or return the answer with an awaited id.

        Another answer is dropped then, because its id may be that of another open
        request.
        """
        async with aclosing(events):
            async for event in events:
                message = read_message(event.data.encode())
                if awaited and isinstance(message, Answer):
                    if str(message.id) == awaited:
                        return message
                elif message is not None:
                    await self._inbox.put(SessionMessage(message))
        return None

    def _close_if_lost(self, method: str, status: int, outcome: _Outcome) -> None:
        """Close the connection if this outcome of a request shows a lost session."""
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            return
        is_unanswered = isinstance(outcome, ToolError)
        if is_unanswered or status >= 400:
            self._failures += 1
        else:
            self._failures = 0
        # With these statuses, servers refuse a session that they do not know.
        is_refused_session = is_unanswered and status in (400, 404, 410)
        # Over SSE, nothing says which failure has ended the session.
        is_failure_over_sse = is_unanswered and self._is_sse
        # Some servers tell of a lost session only by refusing a listing.
        is_refused_listing = False
        why = str(outcome) if is_unanswered else f"HTTP {status}"
        if isinstance(outcome, types.JSONRPCError):
            why = outcome.error.message
            has_method = outcome.error.code != types.METHOD_NOT_FOUND
            is_refused_listing = method == "tools/list" and has_method
        if (
            is_refused_session
            or is_failure_over_sse
            or is_refused_listing
            or self._failures > 1
        ):
            self.on_closed(f"has lost the session: {why}")

    async def _listen(self) -> None:
        """Read the messages that belong to no request of ours.

        The server may have no stream of them, and refuse each GET.
        """
        while True:
            reading = _Reading()
            with suppress(Exception):
                # A stream that was cut is asked for again, until that fails.
                while True:
                    opening = self._open("GET", headers=reading.resumption)
                    await self._hand_on(reading.events(opening))
                    reading.response.raise_for_status()
                    await anyio.sleep(reading.retry)
            await anyio.sleep(RETRY_PAUSE)

    async def _open_sse(self) -> None:
        """Open the stream of an SSE server, and read to the name of the endpoint.

        The listener reads on from there.
        """
        reading = _Reading()
        events = reading.events(self._open("GET"))
        async for event in events:
            if event.event == "endpoint":
                # The headers are for this host alone, so the host is not taken.
                path = self.url.join(event.data).raw_path
                self._endpoint = self.url.copy_with(raw_path=path)
                self._listener = asyncio.create_task(self._listen_over_sse(events))
                return
        raise self._missing_answer(reading)

    async def _listen_over_sse(self, events: _Events) -> None:
        """Read the messages of an SSE server. Their end is that of the connection."""
        with suppress(Exception):
            await self._hand_on(events)
        self.on_closed("ended its stream")
        await self._inbox.put(None)
        # This fails every POST, because no answer can come any more.
        await self.http.aclose()

    async def __aexit__(self, *_: object) -> None:
        """End the session, and close all HTTP connections.

        Servers may keep a process or a browser for each session that was not ended.
        """
        if self._listener:
            self._listener.cancel()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(EXIT_GRACE), suppress(Exception):
                if SESSION_HEADER in self.http.headers:
                    async with self._open("DELETE"):
                        pass
            await self.http.aclose()

    def _open(self, method: str, **parts: Any) -> _Opening:
        """Send an HTTP request. Its response is given before its body is read.

        Redirects are followed within the host alone, because the headers may be secret.
        A redirect that makes a GET of a POST is not followed, because the message would
        be lost.
        """
        return stream_within_origin(self.http, method, self._endpoint, **parts)

    def _missing_answer(self, reading: _Reading) -> ToolError:
        """The error for a response without an answer: what it has instead."""
        response = reading.response
        status = response.status_code
        if _is_stream(response):
            return ToolError(f"HTTP {status}, the stream ended before the answer")
        target = redirect_location(response)
        if target is not None:
            return ToolError(f"HTTP {status}, a redirect: write {target} in `url`")
        # The mask comes before the cut, because a secret that is cut is not found.
        body = self.config.secrets.mask(reading.body)
        if len(self.url.path) > 1:
            # Error pages tell the path, in which a key may stand.
            body = body.replace(self.url.path, "***")
        said = " ".join(body.split()) or "nothing"
        told = f"HTTP {status}, no valid MCP answer: {shorten(said, 300)}"
        if _VERSION_HEADER not in self.http.headers:
            told += " (check `headers`, and the path in `url`, which often is /mcp)"
        # A server that refuses a session has not executed the request.
        if SESSION_HEADER in response.request.headers and reading.status in (400, 404):
            return NotDelivered(told)
        return ToolError(told)

    def _request_error(self, error: Exception, method: str, status: int) -> ToolError:
        """The error of a request: its host, the cause, and what may have happened.

        `status` is that of the response, or 0 if none has come.
        """
        told = f"{shown_url(self.url)}: {explain(error)}"
        if "certificate" in told.lower():
            told += " (add its authority to a file that SSL_CERT_FILE names)"
        broken = httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError
        may_be_executed = status // 100 in (2, 5) or isinstance(error, broken)
        if may_be_executed and method == "tools/call":
            told += f"; {NOT_REPEATED}"
        kind = NotDelivered if isinstance(error, NotDelivered) else ToolError
        return kind(told)


class _Reading:
    """What a request reads: one response, or several if its stream is cut."""

    def __init__(self) -> None:
        self.response: httpx2.Response  # the last one
        self.status = 0  # of the first one; 0 if none has come
        self.body = ""  # of the last one, if it is no stream
        # How the rest of a stream is asked for, and after how many seconds.
        self.resumption: JSON = {}
        self.retry = 1.0

    async def events(self, opening: _Opening) -> _Events:
        """The events of a response. Any other body counts as one event."""
        async with opening as response:
            self.response = response
            self.status = self.status or response.status_code
            if not _is_stream(response):
                self.body = await _read_body(response)
                yield httpx2.ServerSentEvent(data=self.body)
                return
            # A stream that was cut is resumed like one that has ended.
            with suppress(httpx2.NetworkError, httpx2.ProtocolError):
                async for event in httpx2.EventSource(response, MESSAGE_LIMIT):
                    # An event without an id or `retry` does not change the last.
                    if event.id:
                        self.resumption = {"last-event-id": event.id}
                    if event.retry is not None and event.retry >= 0:
                        self.retry = event.retry / 1000
                    yield event
                    # A server that writes without end must not block the event loop.
                    await asyncio.sleep(0)


def make_http_client(url: httpx2.URL) -> httpx2.AsyncClient:
    """An HTTP client for a URL.

    It trusts the certificates of the system, or of SSL_CERT_FILE or SSL_CERT_DIR, and
    those of NODE_EXTRA_CA_CERTS. Companies set this variable for clients that are
    written for Node, which go on without a file that they cannot use.
    """
    context = httpx2.create_ssl_context()
    with suppress(OSError):
        context.load_verify_locations(os.environ.get("NODE_EXTRA_CA_CERTS", ""))
    return httpx2.AsyncClient(
        verify=context,
        proxy=find_proxy(url),
        trust_env=False,
        # Only connecting has a timeout, because a call may run for hours.
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        # Without the first limit, many calls to one server would use up the file
        # descriptors of all. Without the second, a request would fail that is sent over
        # an idle connection which the server is just closing.
        limits=httpx2.Limits(max_connections=200, keepalive_expiry=2.0),
    )


def find_proxy(url: httpx2.URL) -> str | None:
    """The proxy of the environment that requests to a URL have to use.

    With `trust_env`, httpx2 would make all proxies of the environment, and raise for
    one that it cannot use, such as a SOCKS proxy, even if no request needs it.
    """
    proxies = urllib.request.getproxies()
    exempt = [name.strip() for name in proxies.get("no", "").split(",")]
    # `proxy_bypass` heeds NO_PROXY, but knows neither `*.corp.example` nor loopback.
    is_direct = matches(url.host, "localhost", "127.*", "::1", *exempt)
    if is_direct or urllib.request.proxy_bypass(url.netloc.decode()):
        return None
    proxy = proxies.get(url.scheme, proxies.get("all"))
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    return proxy


async def _read_body(response: httpx2.Response) -> str:
    # The rest of a body that is too long is not read, because a small body may unpack
    # to gigabytes.
    body = await anext(response.aiter_bytes(MESSAGE_LIMIT), b"")
    if len(body) == MESSAGE_LIMIT:
        status = response.status_code
        raise ToolError(f"HTTP {status}, longer than {MESSAGE_LIMIT >> 20} MiB")
    return body.decode("utf-8-sig", errors="replace")


def _is_stream(response: httpx2.Response) -> bool:
    return "event-stream" in response.headers.get("content-type", "").lower()


def shown_url(url: httpx2.URL, path: str = "") -> str:
    """A URL without what may be secret: its login, its query, and often its path."""
    return f"{url.scheme}://{url.netloc.decode()}{path}"


TRANSPORTS["url"] = RemoteServer


# === Room: Sign-in ====================================================================
# OAuth for remote servers: a person signs in once, with `--login` and a browser. The
# tokens are stored in a file that all workbenches of this user share. While it serves,
# a workbench reads and refreshes them. Without this room, remote servers know a person
# by their `headers` alone. Needs the room Remote servers.
# https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization

import hashlib
import subprocess
import tempfile
import urllib.parse
import webbrowser
from contextlib import closing

from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared import auth
from pydantic import AnyUrl

TOKEN_TIMEOUT = 20.0  # seconds for a request to an authorization server
LOGIN_TIMEOUT = 300.0  # seconds for a person to sign in
# The errors by which an authorization server ends a sign-in. Any other error may pass,
# such as that of a gateway.
_FINAL_ERRORS = ("invalid_grant", "invalid_client", "unauthorized_client")


class Tokens(auth.OAuthToken):
    """What is stored of a sign-in: its tokens, and how they are refreshed."""

    token_url: str
    # What goes to `token_url` beside the parameters of each kind of request.
    form: dict[str, str]
    headers: dict[str, str]


class StoredTokens(httpx2.Auth):
    """The file of a sign-in to a remote server, and the requests that use it.

    The file is read for each request. So another process may refresh the tokens, and a
    new sign-in needs no restart. The SDK's `OAuthClientProvider` does not serve here:
    its lock makes all requests wait for the response to one, a restart makes it forget
    the token endpoint, and it does not know of other processes.
    """

    def __init__(self, url: httpx2.URL, secrets: Secrets) -> None:
        self._secrets = secrets
        # A query may be a secret, which the command must not show.
        address = shown_url(url, url.path)
        # All shells understand the double quotes of this form.
        words = [sys.executable, __file__, "--login", address]
        command = subprocess.list2cmdline(words)
        self._refusal = f"HTTP 401: set `headers`, or sign in with: {command}"
        # Clients pass on few variables, so the folder does not depend on
        # XDG_STATE_HOME.
        name = hashlib.sha256(address.encode()).hexdigest()
        self._path = Path(os.path.expanduser("~/.mcp-workbench"), f"{name}.json")
        self._renewal: asyncio.Task[Tokens] | None = None

    def load(self) -> Tokens | None:
        """The stored tokens; None if there is no file, or one with anything else."""
        with suppress(OSError, ValueError):
            tokens = Tokens.model_validate_json(self._path.read_bytes())
            self._secrets.add(tokens.access_token)
            self._secrets.add(tokens.refresh_token or "")
            return tokens
        return None

    def save(self, tokens: Tokens) -> None:
        """Replace the file in one step. Only the user can read it."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(to_json(tokens))
        os.replace(file.name, self._path)

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        """Send a request with the access token; after a 401, once more with a new one.

        A server that answers 401 has not executed the request. httpx2 sends what this
        generator yields, and `yield` returns the response.
        https://www.rfc-editor.org/rfc/rfc9110#section-15.5.2
        """
        tokens = self.load()
        if tokens:
            request.headers["authorization"] = f"Bearer {tokens.access_token}"
        response = yield request
        is_refused = response.status_code == 401 and _is_worth_a_renewal(request)
        if is_refused and tokens and tokens.refresh_token:
            # All requests that wait share one renewal. It is not cancelled with them,
            # because its answer has the only refresh token that is valid from then on.
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew(tokens))
            tokens = await asyncio.shield(self._renewal)
            request.headers["authorization"] = f"Bearer {tokens.access_token}"
            response = yield request
        if response.status_code == 401:
            raise ToolError(self._refusal)

    async def _renew(self, refused: Tokens) -> Tokens:
        """The tokens that replace refused ones. Raises `ToolError` if there are none.

        One process at a time refreshes them, because a refresh token that is used twice
        may count as stolen, and end the sign-in.
        """
        # A few builds of Python lack this module.
        import sqlite3

        # A transaction of SQLite is a lock on all systems, which ends with its process.
        # With the limit, a process that was stopped in a refresh does not stop others.
        file = self._path.with_suffix(".lock")
        lock = sqlite3.connect(file, TOKEN_TIMEOUT, check_same_thread=False)
        with closing(lock), suppress(sqlite3.OperationalError):
            # In a thread, because this call waits for the lock, up to the limit.
            await asyncio.to_thread(lock.execute, "BEGIN EXCLUSIVE")
            # Another process may have replaced the tokens during the wait.
            if self.load() == refused:
                self.save(await self._refresh(refused))
        # Reading the new tokens has them masked, before anything can tell them.
        tokens = self.load()
        if tokens is None or tokens == refused:
            raise ToolError("no new tokens have come, try again later")
        return tokens

    async def _refresh(self, tokens: Tokens) -> Tokens:
        """Ask the authorization server for new tokens, or raise `ToolError`."""
        form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
        url = tokens.token_url
        request = httpx2.Request("POST", url, data=tokens.form | form)
        request.headers.update(tokens.headers)
        said: Any = None
        with suppress(httpx2.HTTPError, ValueError):
            said = (await _fetch(request)).json()
            # GitHub's errors are a success for HTTP, so its status says nothing.
            new = auth.OAuthToken.model_validate(said)
            # Without a new refresh token, the old one stays valid.
            return tokens.model_copy(update=new.model_dump(exclude_none=True))
        if isinstance(said, dict) and said.get("error") in _FINAL_ERRORS:
            raise ToolError(self._refusal)
        raise ToolError(f"no new tokens came from {url}, try again later")


def _is_worth_a_renewal(request: httpx2.Request) -> bool:
    """Whether the tokens are renewed after a 401 to this request.

    In a session, a GET that only listens is not worth it, because some servers refuse
    each of them. A DELETE comes when the program ends, which could lose new tokens.
    """
    goes_on_with_answer = "last-event-id" in request.headers
    is_in_session = SESSION_HEADER in request.headers
    return request.method == "POST" or goes_on_with_answer or not is_in_session


def add_sign_in(http: httpx2.AsyncClient, url: httpx2.URL, secrets: Secrets) -> None:
    """Have a client use stored tokens, unless its entry has a login of its own."""
    if "authorization" not in http.headers and not url.userinfo:
        http.auth = StoredTokens(url, secrets)


async def _fetch(request: httpx2.Request) -> httpx2.Response:
    """Send a request through the proxy for its URL, and read the answer."""
    # A redirect to another host gets nothing secret from a GET, unlike from a form.
    is_followed = request.method == "GET"
    with anyio.move_on_after(TOKEN_TIMEOUT):
        async with make_http_client(request.url) as http:
            return await http.send(request, follow_redirects=is_followed)
    raise httpx2.ReadTimeout(f"no answer came from {request.url}")


async def _fetch_metadata(request: httpx2.Request) -> httpx2.Response:
    """Fetch a document that describes a server; 404 if it cannot be had.

    After a 404, the SDK asks at the next place where the document may be. After another
    error, it would give up.
    """
    with suppress(httpx2.HTTPError, ValueError, TypeError):
        response = await _fetch(request)
        document = dict(response.json())
        if response.is_success:
            # For the SDK, a slash at the end would make another issuer.
            document["issuer"] = str(document.get("issuer", "")).rstrip("/")
            issuers = document.get("authorization_servers") or []
            issuers = [str(issuer).rstrip("/") for issuer in issuers]
            document["authorization_servers"] = issuers
            return httpx2.Response(200, json=document)
    return httpx2.Response(404)


class BrowserSignIn(httpx2.AsyncBaseTransport):
    """The act of signing in, in the browser, by the SDK's `OAuthClientProvider`.

    The provider knows the protocol. It is the `auth` of an HTTP client that sends the
    server a ping. This class is the transport of this client, which sends the requests
    of both, and the storage to which the provider gives the tokens.
    """

    def __init__(self, url: httpx2.URL) -> None:
        self._url = url
        self._stored: JSON = {}  # the fields of `Tokens` that are known so far

    async def run(self) -> Tokens:
        """Have a person sign in. Raises whatever prevents that."""
        browser = Browser()
        with closing(await browser.listen()):
            metadata = auth.OAuthClientMetadata(
                client_name="MCP Workbench",
                redirect_uris=[AnyUrl(browser.callback)],
                token_endpoint_auth_method="none",
            )
            provider = OAuthClientProvider(
                str(self._url), metadata, self, browser.show, browser.wait
            )
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            async with httpx2.AsyncClient(transport=self, auth=provider) as http:
                await http.post(self._url, headers=HEADERS, json=ping)
        return Tokens.model_validate(self._stored)

    async def get_tokens(self) -> None: ...

    async def set_tokens(self, tokens: auth.OAuthToken) -> None:
        self._stored |= tokens.model_dump()

    async def get_client_info(self) -> None: ...

    async def set_client_info(self, info: auth.OAuthClientInformationFull) -> None: ...

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the ping of `run`, or a request by which the provider signs in."""
        if request.method == "GET":
            return await _fetch_metadata(request)
        if "json" not in request.headers["content-type"]:
            return await self._fetch_tokens(request)
        if request.url != self._url:
            return await _fetch(request)  # which registers a client
        if self._stored:
            # The provider repeats the ping with the tokens. A server of the older
            # transport would answer with a stream that never ends.
            return httpx2.Response(200)
        response = await _fetch(request)
        # The provider signs in only after a 401. Some servers answer so to a tool's
        # call, but not to a ping.
        response.status_code = 401
        return response

    async def _fetch_tokens(self, request: httpx2.Request) -> httpx2.Response:
        """Send the form for the tokens, and note what a refresh repeats of it."""
        form = dict(urllib.parse.parse_qsl(request.content.decode()))
        headers: dict[str, str] = {}
        if "authorization" in request.headers:
            headers["authorization"] = request.headers["authorization"]
            # Some servers refuse a client whose id stands in the form as well.
            form.pop("client_id")
        names = form.keys() & {"client_id", "client_secret", "resource"}
        self._stored = {
            "token_url": str(request.url),
            "form": {name: form[name] for name in names},
            "headers": headers,
        }
        changed = httpx2.Request("POST", request.url, data=form, headers=headers)
        return await _fetch(changed)


class Browser:
    """A person's browser, which comes back to a port of this machine.

    A browser on another machine cannot. Its person pastes the address into stdin.
    """

    def __init__(self) -> None:
        self._state = ""  # which the browser has to bring back
        self._addresses: asyncio.Queue[bytes] = asyncio.Queue()  # that it came to

    async def listen(self) -> asyncio.Server:
        """Choose the port, and the `callback` with it. The server is to be closed."""
        listener = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        # Authorization servers may refuse 127.0.0.1 here, but take `localhost`. A
        # browser tries all addresses of that name.
        self.callback = f"http://localhost:{port}/callback"
        return listener

    async def _answer(self, reader: asyncio.StreamReader, writer: Any) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self._addresses.put_nowait(head.split()[1])
        text = b"Close this page. The terminal says whether you are signed in."
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text)
        writer.close()

    async def show(self, url: str) -> None:
        """Open the page where a person signs in, and tell how to come back."""
        # The SDK adds its parameters with `?`, also to a page with a query of its own.
        page, _, query = url.rpartition("?")
        self._state = dict(urllib.parse.parse_qsl(query))["state"]
        if "?" in page:
            url = f"{page}&{query}"
        print(f"Sign in at this address, if your browser does not show it yet:\n{url}")
        print("If your browser runs on another machine, it ends at an address that it")
        print("cannot load. Paste that address here, and press Enter.")
        loop = asyncio.get_running_loop()

        def paste(line: bytes) -> None:
            loop.call_soon_threadsafe(self._addresses.put_nowait, line)

        _thread.start_new_thread(read_stdin, (paste,))
        # A browser within the terminal blocks until it is closed.
        loop.run_in_executor(None, webbrowser.open, url)

    async def wait(self) -> auth.AuthorizationCodeResult:
        """Wait for the browser to come back, and return what it brings."""
        query: JSON = {}
        # Any page can have the browser come here, but only the server knows the state.
        while query.get("state") != self._state:
            address = (await self._addresses.get()).decode(errors="replace")
            query = dict(urllib.parse.parse_qsl(address.strip().partition("?")[2]))
        if "error" in query:
            raise ToolError(query.get("error_description") or query["error"])
        if "iss" in query:
            query["iss"] = query["iss"].rstrip("/")
        return auth.AuthorizationCodeResult.model_validate(query)


async def log_in(address: str, secrets: Secrets) -> int:
    """Store tokens that a person gets by signing in, or raise `ToolError`."""
    url = httpx2.URL(address.strip())
    failed = f"Not signed in to {shown_url(url)}"
    try:
        with anyio.fail_after(LOGIN_TIMEOUT):
            tokens = await BrowserSignIn(url).run()
        StoredTokens(url, secrets).save(tokens)
    except TimeoutError:
        raise ToolError(f"{failed} within {LOGIN_TIMEOUT:g} seconds") from None
    except OAuthFlowError as error:
        # Further words of the SDK's errors are those of a body, which may have tokens.
        raise ToolError(f"{failed}: {str(error).partition(':')[0]}") from None
    except Exception as error:  # noqa: BLE001
        raise ToolError(f"{failed}: {' '.join(explain(error).split())}") from None
    print(f"Signed in to {shown_url(url)}")
    return 0


MODES["--login"] = Mode(
    "--login URL",
    {"metavar": "URL", "help": "sign in to a remote server, in the browser"},
    lambda options, secrets: log_in(options.login, secrets),
)


# === Room: Brief answers ==============================================================
# The brief form of an answer of `open_toolbox`, with a line for each tool, and the
# limit of every answer. Without this room, an answer is whole, however long.

ANSWER_LIMIT = 30_000  # characters of an answer; clients cut longer ones
TEXTS_LIMIT = 10_000  # characters of the instructions and reasons in an answer
LINES_LIMIT = 8_000  # characters of the lines of a brief answer
STEPS = 4  # how deep the schema of an argument is read

_SIGNS = "Signs: `?` optional, `[]` list, `{}` object with its keys, `|` between "
_SIGNS += "values, `…` more. Keep `brief`: a full name in `tools` brings the schema."
_LACKING = "These many lines have no {}: `SERVER__*`, or a part of it, brings them."
_CUT = "{} tools have no schema here: get it by full names in `tools`, fewer at a time."


class OpenWithBrief(OpenToolbox, title="Open Toolbox"):
    """Start a toolbox's servers and get their tools with input schemas.

    `brief`: true lists each tool in one line, which is enough to choose and call most
    tools; begin with it. `tools`: names or patterns, such as read_* (any server),
    SERVER__* (all of one server, also with `brief`), or full names, for schemas.
    """

    brief: bool = False


META_TOOLS["open_toolbox"] = (OpenWithBrief, open_toolbox)


def fit(answer: JSON, asked: OpenToolbox) -> None:
    """Bring an answer of `open_toolbox` within its limit, if possible.

    Names always stay. A tool that is alone in the answer is not cut.
    """
    groups = [answer["servers_failed"], answer["instructions"]]
    count = sum(map(len, groups))
    for texts in groups:
        for name, text in texts.items():
            texts[name] = shorten(text, TEXTS_LIMIT // count)
    if isinstance(asked, OpenWithBrief) and asked.brief:
        list_in_lines(answer, asked.tools)
    if len(answer["tools"]) > 1:
        drop_schemas(answer)


def list_in_lines(answer: JSON, patterns: list[str]) -> None:
    """Put a line in place of each tool that is not named in full.

    While the lines are too long together, all of them are made again with one part
    less, down to names alone.
    """
    listed = [tool for tool in answer["tools"] if tool["name"] not in patterns]
    lacking: list[str] = []
    lines = {tool["name"]: make_line(tool, lacking) for tool in listed}
    for part in ("descriptions", "optional arguments", "other arguments"):
        if len("".join(lines.values())) > LINES_LIMIT:
            lacking.append(part)
            lines = {tool["name"]: make_line(tool, lacking) for tool in listed}
    answer["tools"] = [lines.get(tool["name"], tool) for tool in answer["tools"]]
    answer["note"].append(_SIGNS)
    if lacking:
        answer["note"].append(_LACKING.format(" and ".join(lacking)))


def make_line(tool: JSON, lacking: list[str]) -> str:
    """A tool as `name(path, mode: a|b, limit?): What it does…`, or less of it."""
    line = str(tool["name"])
    if "other arguments" not in lacking:
        line += list_arguments(tool["inputSchema"], "optional arguments" not in lacking)
    if "descriptions" not in lacking:
        description = " ".join(tool["description"].split())
        line += f": {shorten(description, 60)}"
    return line


def drop_schemas(answer: JSON) -> None:
    """Cut the longest tool, again and again, until the answer is within its limit.

    A tool loses its schema first, and the next time all else but its name.
    """
    tools = answer["tools"]
    # Each tool can be cut twice: its size before the cut, its place, what is left. The
    # second cut of a tool is smaller than its first. So in the order of sizes, each cut
    # is one of the tool that is the longest by then.
    cuts: list[tuple[int, int, JSON]] = []
    for place, tool in enumerate(tools):
        if isinstance(tool, dict):
            rest = {key: value for key, value in tool.items() if key != "inputSchema"}
            cuts.append((len(compact(tool)), place, rest))
            cuts.append((len(compact(rest)), place, {"name": tool["name"]}))
    # The note will have a sentence more.
    excess = len(compact(answer)) + 100 - ANSWER_LIMIT
    cut_tools = set()
    for size, place, rest in sorted(cuts, key=lambda cut: cut[0], reverse=True):
        if excess > 0:
            excess -= size - len(compact(rest))
            tools[place] = rest
            cut_tools.add(place)
    if cut_tools:
        answer["note"].append(_CUT.format(len(cut_tools)))


def list_arguments(schema: JSON, with_optional: bool = True) -> str:
    """The arguments of a tool as `(path, mode: a|b, limit?)`."""
    keys = list_keys(schema, schema, STEPS)
    if not with_optional:
        required = look_up(schema, "required", list)
        keys = {name: key for name, key in keys.items() if name in required}
    return f"({', '.join(keys.values())})"


def list_keys(schema: JSON, root: JSON, steps: int) -> dict[str, str]:
    """The keys of an object by their names, each as `path`, `mode: a|b` or `limit?`."""
    required = look_up(schema, "required", list)
    keys = {}
    for name, value in look_up(schema, "properties").items():
        keys[name] = name if name in required else f"{name}?"
        values = outline(value, root, steps)
        if values:
            keys[name] += f": {values}"
    return keys


def outline(schema: Any, root: JSON, steps: int) -> str:
    """The values of an argument: `a|b`, `[]`, `{path, tags: []}`; empty for others.

    `root` is the schema of the tool, into which a `$ref` points. The steps into a
    schema are limited, because it may refer to itself. An object takes two of them,
    because its keys make a line long.
    """
    if steps < 1:
        return ""
    reference = look_up(schema, "$ref", str)
    if reference:
        target: Any = root
        for part in reference.split("/")[1:]:
            target = look_up(target, part)
        return outline(target, root, steps - 1)
    values = look_up(schema, "enum", list)
    if values:
        return "|".join(first_of([show_value(value) for value in values], 5))
    kinds = [look_up(schema, "type", str), *look_up(schema, "type", list)]
    if "array" in kinds:
        return f"[{outline(look_up(schema, 'items'), root, steps - 1)}]"
    if "object" in kinds:
        keys = list_keys(schema, root, steps - 2)
        return "{" + ", ".join(first_of([*keys.values()], 9)) + "}"
    # An optional argument is often a union with null.
    for union in ("anyOf", "oneOf", "allOf"):
        for part in look_up(schema, union, list):
            found = outline(part, root, steps - 1)
            if found:
                return found
    return ""


def first_of(texts: list[str], limit: int) -> list[str]:
    """The texts, or the first ones and `…` if they are more than `limit`."""
    return texts if len(texts) <= limit else [*texts[:limit], "…"]


def show_value(value: Any) -> str:
    """A value of an enumeration: as JSON, and so in quotes, if it could be misread."""
    # A text is clear without signs, commas, quotes and control characters.
    if isinstance(value, str) and re.fullmatch(r"""[^?\[\]{}|…,"'\0-\x1f]+""", value):
        return value
    return compact(value)


def look_up(schema: Any, key: str, kind: type[Any] = dict) -> Any:
    """The value of a schema's key, or an empty one if it is not of this kind.

    A schema may be `true`, and servers in Go write null for what is empty.
    """
    if isinstance(schema, dict) and isinstance(schema.get(key), kind):
        return schema[key]
    return kind()


# === Room: Approval ===================================================================
# A person approves single calls: of the tools that `requireApproval` in the entry of
# their server names and, if the client can ask, of those that the server marks. Without
# this room, a server whose entry has `requireApproval` is not started, and no mark is
# heeded.

# More of a long value could push out of sight what matters.
_SHOWN_CHARACTERS = 200  # of a text
_SHOWN_ITEMS = 20  # of a list

KEYS["requireApproval"] = Key(ValueReader.read_patterns, [])
# The full names of tools that a person calls with `--call`.
TYPED_CALLS: set[str] = set()


def approve_typed(full_name: str) -> None:
    """Count the calls of a tool as approved, if a person has typed its name."""
    if os.isatty(0):
        TYPED_CALLS.add(full_name)


def entry_asks(connection: Connection, tool: str) -> bool:
    """Whether the entry of the server asks for an approval of each call of a tool."""
    return matches(tool, *connection.entry.values["requireApproval"])


def needs_approval(connection: Connection, tool: str) -> bool:
    """Whether the entry of the server, or the server itself, asks for an approval."""
    meta = connection.tools[tool].meta or {}
    is_marked = meta.get("anthropic/requiresUserInteraction") is True
    return is_marked or entry_asks(connection, tool)


def describe_approval(connection: Connection, tool: str) -> str:
    """What a report says of a tool whose calls a person approves."""
    if needs_approval(connection, tool):
        return " is approved before each call"
    return ""


async def approve(connection: Connection, call: ToolCall) -> None:
    """Ask the person about a call, if need be.

    Raises `ToolError` if the call is not approved, or if nobody can be asked about a
    tool that the entry names.

    https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation
    """
    if call.is_approved or call.full_name in TYPED_CALLS:
        return
    if not needs_approval(connection, call.tool):
        return
    client = connection.workbench.client
    if client is not None and _offers_forms(client):
        await _ask(client, call)
        call.is_approved = True
        return
    # Clients that cannot ask do not heed the mark of a server either.
    if entry_asks(connection, call.tool):
        how = "use one that can, such as Claude Code, Codex, VS Code or Cursor"
        told = "a person has to approve this call, and this client cannot ask them"
        raise ToolError(f"{told}: {how}")


def _offers_forms(client: ServerSession) -> bool:
    """Whether a client can show forms. It says so by `{}` as well."""
    if client.client_params is None:
        return False
    offered = client.client_params.capabilities.elicitation
    if offered is None:
        return False
    return offered.form is not None or offered.url is None


async def _ask(client: ServerSession, call: ToolCall) -> None:
    """Show a call to the person. Raises `ToolError` if the answer is not `accept`."""
    shown = f"Call {call.full_name} with {compact(_shorten_values(call.arguments))}?"
    form = types.ElicitRequestFormParams(
        message=_make_visible(shown),
        requested_schema={"type": "object", "properties": {}},
    )
    request = types.ElicitRequest(params=form)
    try:
        answer = await client.send_request(request, types.ElicitResult)
        action: str = answer.action
    except (MCPError, ValueError) as error:
        action = f"an error, {explain(error)}"
    if action != "accept":
        told = f"a person has to approve this call, and the client answered: {action}"
        raise ToolError(f"{told}; nothing was sent")


def _make_visible(text: str) -> str:
    """The text with an escape for each character that is not printable."""
    shown = ""
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        shown += character
    return shown


def _shorten_values(value: Any) -> Any:
    """A JSON value in which long texts and lists say how much of them is missing.

    A list is cut only if no object or list would be missing, because all names in the
    arguments are to be shown.
    """
    if isinstance(value, dict):
        return {name: _shorten_values(member) for name, member in value.items()}
    if isinstance(value, list):
        items = [_shorten_values(item) for item in value]
        others = items[_SHOWN_ITEMS:]
        if others and not any(isinstance(item, dict | list) for item in others):
            items[_SHOWN_ITEMS:] = [f"… {len(others)} more items"]
        return items
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        missing = len(value) - _SHOWN_CHARACTERS
        return f"{value[:_SHOWN_CHARACTERS]}… {missing} more characters"
    return value


# === Room: Other clients' files =======================================================
# Other clients' files have tables of servers elsewhere, other keys in an entry, lists
# of servers that are switched off, TOML, and comments in JSON. This room translates
# them into our form. Without this room, a file has `toolboxes` and our keys.

import tomllib

_PROJECT = "projects[this folder]"  # Claude Code's settings for the current folder
_TABLES = ["mcpServers", "servers", "context_servers", "mcp_servers", "mcp"]
_TABLES += ["mcp.servers", "amp.mcpServers", f"{_PROJECT}.mcpServers"]
# Keys of clients' rules about single tools, each with the table beside which it stands.
_RULES = {"tools": "mcp", "permission": "mcp", "amp.tools.disable": "amp.mcpServers"}
# Other spellings of our keys.
_SPELLINGS = {"type": "transport", "environment": "env", "http_headers": "headers"}
_SPELLINGS |= {"serverUrl": "url", "httpUrl": "url", "working_directory": "cwd"}
_SPELLINGS |= dict.fromkeys(("includeTools", "enabled_tools", "tools"), "toolFilters")
_SPELLINGS |= dict.fromkeys(("disabledTools", "disabled_tools"), "excludeTools")
# These keys of an entry are for a client: what its windows show, what it never asks
# about, how long it waits. Other unknown keys are warned of, or are a problem. A key
# that is added to `KEYS` is read although it stands here.
_IGNORED = {"alwaysLoad", "deferTools", "required", "supports_parallel_tool_calls"}
_IGNORED |= {"autoApprove", "alwaysAllow", "trust", "toolPermissions", "scopes"}
_IGNORED |= {"timeout", "tool_timeout_sec", "startup_timeout_sec", "startup_timeout_ms"}
_IGNORED |= {"source", "sourcePath", "version", "gallery", "dev", "settings"}
_IGNORED |= {"extension", "isDefaultServer"}
# A server of another client's file is a toolbox, which the entry may describe.
KEYS["description"] = Key(ValueReader.read_text, "")


def read_tables(top: ValueReader, content: JSON) -> dict[str, ToolboxConfig]:
    """A toolbox for each server in the tables of another client's file."""
    data = without_null(content)
    _spread_mcp(data)
    _spread_project(data)
    tables = {key: top.read_object(key, data[key]) for key in _TABLES if key in data}
    if not tables and "projects" not in data:
        report_unknown_form(top, content)
    warn_of_rules(data)
    off = find_off(top, data, tables)
    toolboxes: dict[str, ToolboxConfig] = {}
    for place, table in tables.items():
        # A server, even one that is off, replaces that of its name in an earlier table.
        for name in table:
            toolboxes.pop(name, None)
        for name, server in read_servers(top, place, table).items():
            if name.lower() in off:
                continue
            if _starts_workbench(server):
                log.warning("%s.%s: left out, it starts this workbench", place, name)
                continue
            default = f"Tools of the MCP server '{name}'"
            description = server.values["description"] or default
            toolboxes[name] = ToolboxConfig(description, {name: server})
    return toolboxes


def _spread_mcp(data: JSON) -> None:
    """Put each setting in `mcp` at the top of a file, such as `mcp.servers`."""
    mcp = without_null(_object(data.get("mcp")))
    # VS Code and Gemini CLI have these settings. The `mcp` of opencode is a table.
    if mcp.keys() & {"servers", "inputs", "allowed", "excluded", "serverCommand"}:
        del data["mcp"]
        data.update({f"mcp.{key}": value for key, value in mcp.items()})


def _spread_project(data: JSON) -> None:
    """Put what is for the current folder at the top, and warn of other folders."""
    others = []
    for folder, value in _object(data.get("projects")).items():
        project = without_null(_object(value))
        # `Path` knows which paths are equal on Windows.
        if Path(folder) == Path.cwd():
            data.update({f"{_PROJECT}.{key}": value for key, value in project.items()})
        elif project.get("mcpServers"):
            others.append(folder)
    if others:
        how = "start the workbench there, or move them to `mcpServers` at the top"
        log.warning("not served, the servers of other projects: %s; %s", others, how)


def find_off(top: ValueReader, data: JSON, tables: JSON) -> set[str]:
    """The names of servers that a list switches off, in small letters."""
    names = [name for table in tables.values() for name in table]
    # Without a list of allowed servers, all are allowed.
    allowed = top.expect("mcp.allowed", data.get("mcp.allowed", names), list)
    off: list[Any] = []
    for key in ("mcp.excluded", "disabledMcpServers", f"{_PROJECT}.disabledMcpServers"):
        off += top.expect(key, data.get(key, []), list)
    return _in_small(off) | (_in_small(names) - _in_small(allowed))


def _in_small(names: list[Any]) -> set[str]:
    """The names in small letters. Clients ignore the case of names in these lists."""
    return {str(name).lower() for name in names}


def warn_of_rules(data: JSON) -> None:
    """Warn of rules about single tools that stand outside of the tables."""
    rules: list[Any] = []
    for key, table in _RULES.items():
        if table in data and isinstance(data.get(key), dict | list):
            rules += data[key]
    if rules:
        how = "`excludeTools` in a server's entry does the same"
        log.warning("not applied, rules about single tools: %s; %s", rules, how)


def _starts_workbench(server: ServerConfig) -> bool:
    """Whether a server is this very file, for anything but its own tools."""
    values = server.values
    if server.kind != "command" or "--toolbox" in values["args"]:
        return False
    for word in (values["command"], *values["args"]):
        file = os.path.expanduser(os.path.join(values["cwd"], word))
        if os.path.exists(file) and os.path.samefile(file, __file__):
            return True
    return False


def _object(value: Any) -> JSON:
    """The value if it is an object, or else an empty one."""
    return value if isinstance(value, dict) else {}


def translate_entry(path: str, entry: JSON, reader: ValueReader) -> JSON:
    """The entry of a server in our form; `reader` collects contradictions."""
    command = entry.get("command")
    args = entry.get("args", [])
    if isinstance(command, list) and command and isinstance(args, list):
        # opencode writes the command and its arguments as one list.
        entry["command"] = command[0]
        entry["args"] = command[1:] + args
    _translate_approvals(path, entry, reader)
    _translate_names(entry)
    for key, ours in _SPELLINGS.items():
        if key not in entry:
            continue
        value = entry.pop(key)
        former = entry.setdefault(ours, value)
        if former == value:
            continue
        if ours == "excludeTools" and isinstance(former, list):
            entry[ours] = former + reader.expect(f"{path}.{key}", value, list)
        else:
            reader.report(f"{path}.{key}", f"expected the same as in {ours}")
    needless = _IGNORED - known_keys()
    return {key: value for key, value in entry.items() if key not in needless}


def _translate_approvals(path: str, entry: JSON, reader: ValueReader) -> None:
    """Put `requireApproval` in place of what Codex asks about.

    Without the room Approval this is an unknown key, and so a problem of the entry.
    """
    asks = []
    if entry.pop("default_tools_approval_mode", "") == "prompt":
        asks.append("*")
    if isinstance(entry.get("tools"), dict):
        for name, value in entry.pop("tools").items():
            place = f"{path}.tools.{name}"
            settings = reader.expect(place, value, dict)
            reader.check_keys(place, settings.keys() - {"approval_mode"})
            if settings.get("approval_mode") == "prompt":
                asks.append(name)
    own = entry.get("requireApproval", [])
    if asks and isinstance(own, list):
        entry["requireApproval"] = own + asks


def _translate_names(entry: JSON) -> None:
    """Put references in place of the names of variables that Codex has in an entry."""
    if isinstance(entry.get("env_vars"), list):
        for each in entry.pop("env_vars"):
            name = str(each.get("name") if isinstance(each, dict) else each)
            # Codex passes on what is set.
            if name in os.environ:
                _add(entry, "env", name, f"${{env:{name}}}")
    if isinstance(entry.get("env_http_headers"), dict):
        for header, name in entry.pop("env_http_headers").items():
            _add(entry, "http_headers", header, f"${{env:{name}}}")
    if isinstance(entry.get("bearer_token_env_var"), str):
        name = entry.pop("bearer_token_env_var")
        _add(entry, "http_headers", "Authorization", f"Bearer ${{env:{name}}}")


def _add(entry: JSON, key: str, name: str, value: str) -> None:
    """Add a member to an object of an entry, unless it has one of this name."""
    members = entry.get(key, {})
    if isinstance(members, dict):
        entry[key] = {name: value} | members


# Editors write JSON with comments and trailing commas. Strings are matched first,
# because neither means anything inside a string.
_STRING = r'(?s)("(?:[^"\\]|\\.)*")'
_COMMENT = _STRING + r"|//[^\n]*|/\*.*?\*/"
_TRAILING_COMMA = _STRING + r"|,(?=\s*[\]}])"


def translate_text(path: str, text: str) -> str:
    """The text of a file as plain JSON. Dates in TOML become texts."""
    if path.endswith(".toml"):
        text = json.dumps(tomllib.loads(text), default=str)
    # opencode writes `{env:NAME}` for `${env:NAME}`. Its `{file:PATH}` becomes a
    # reference, too, which the core reports, because it reads no files.
    text = re.sub(r"(?<!\$)\{(env|file):", r"${\1:", text)
    # Comments may stand between a comma and its bracket, and so go first.
    text = re.sub(_COMMENT, _blank, text)
    return re.sub(_TRAILING_COMMA, _blank, text)


def _blank(match: re.Match[str]) -> str:
    """A string as it is, and spaces, which keep lines and columns, for all else."""
    return match[1] or re.sub(".", " ", match[0])


FORMS |= dict.fromkeys([*_TABLES, "projects"], read_tables)


# === Room: Reports ====================================================================
# `--check` and `--call` print reports for a person. Without this room, an MCP client
# alone shows whether the servers work.

from mcp import Client


async def check(config: WorkbenchConfig) -> int:
    """Start all servers side by side, and print a line for each as it settles.

    Returns the exit status: 1 if a server is not ok. Raises `ConfigError` without any.
    """
    if not any(toolbox.servers for toolbox in config.toolboxes.values()):
        raise ConfigError(f"No server is configured: {config.source}")
    async with running_workbench(config) as workbench:
        servers: Servers = []
        for name in config.toolboxes:
            servers += workbench.use_toolbox(name)
        # The report has the warnings of patterns, so the log need not.
        pattern_log.setLevel(logging.ERROR)
        reminder = asyncio.create_task(_tell_what_is_awaited(servers))
        width = max(len(_short_name(server)) for server in servers)
        await asyncio.gather(*[_check_server(server, width) for server in servers])
        reminder.cancel()
        up = in_state(State.UP, servers)
        _print_summary(servers, up)
        if up:
            _print_context(config, up)
        return int(len(up) < len(servers))


async def _tell_what_is_awaited(servers: Servers) -> None:
    """Print on stderr after 10 seconds which servers are still starting."""
    await anyio.sleep(10)
    names = ", ".join(map(_short_name, in_state(State.STARTING, servers)))
    print(f"waiting for: {names}", file=sys.stderr)


def _short_name(server: DownstreamServer) -> str:
    # In another client's file, each server is a toolbox of its own name.
    return server.name.removeprefix(f"{server.server_name}/")


async def _check_server(server: DownstreamServer, width: int) -> None:
    """Start a server, and print a line about it, with further lines indented below."""
    began = anyio.current_time()
    connection = server.start()
    await connection.reach(State.UP)
    seconds = f"{anyio.current_time() - began:6.1f} s"
    name = _short_name(server).ljust(width)
    if connection.state is State.UP:
        print(f"{name}  ok     {seconds}  {_describe_cost(server)}")
        details = connection.find_idle_patterns()
        if log.isEnabledFor(logging.DEBUG):  # --verbose
            details += _describe_tools(server)
    else:
        print(f"{name}  FAILED {seconds}  {shorten(connection.reason, 1_000)}")
        details = list(connection.output)
    for line in details:
        print(f"    {line}")


def _describe_cost(server: DownstreamServer) -> str:
    """The number of a server's tools, and the size of the answer that opens it."""
    asked = OpenToolbox(toolbox_name=server.toolbox_name)
    answer = compact(server.workbench.compose(asked, [server]))
    tools = counted(len(server.connection.tools), "tool")
    return f"{tools:>10} {_cost(len(answer.encode()))}"


def _describe_tools(server: DownstreamServer) -> list[str]:
    """A line for each tool with its arguments, and for each that is left out."""
    connection = server.connection
    lines = []
    for name, tool in connection.tools.items():
        line = server.prefix + name
        line += list_arguments(tool.input_schema)  # room: Brief answers
        line += describe_approval(connection, name)  # room: Approval
        lines.append(line)
    for name, hidden_by in connection.left_out.items():
        lines.append(f"{server.prefix}{name} is left out by {hidden_by}")
    # A server's names may have line feeds and controls of a terminal.
    return [" ".join(CONTROLS.sub(" ", line).split()) for line in lines]


def _print_summary(servers: Servers, up: Servers) -> None:
    """Print a line such as `9 ok, 1 failed: notion; 2 warnings`."""
    summary = f"{len(up)} ok"
    failed = [_short_name(server) for server in servers if server not in up]
    if failed:
        summary += f", {len(failed)} failed: {', '.join(failed)}"
    warnings = sum(len(server.connection.find_idle_patterns()) for server in up)
    if warnings:
        summary += f"; {counted(warnings, 'warning')}"
    print(summary)


def _print_context(config: WorkbenchConfig, up: Servers) -> None:
    """Print what a model's context holds with the workbench, and without."""
    tools: list[types.Tool] = []
    for server in up:
        tools += server.connection.tools.values()
    # Clients pass on only these parts of a tool's declaration to a model.
    parts = {"__all__": {"name", "description", "input_schema"}}
    own = len(to_json(declare_meta_tools(config), include=parts))
    own += len(instructions(config).encode())
    natively = len(to_json(tools, include=parts))
    print("A model's context holds:")
    print(_cost(own), "before anything is opened")
    print(_cost(natively), f"natively, if all {len(tools)} tools are loaded at once")
    if natively > own:
        print(_cost(natively - own), "saved until a toolbox is opened")
    else:
        print("So few tools cost less natively: the workbench saves with more of them.")


def _cost(size: int) -> str:
    return f"{size:9,} bytes (about {size // 4:,} tokens)"


async def call_by_name(config: WorkbenchConfig, name: str, *words: str) -> int:
    """Call a tool as an MCP client does, and print its result. Returns the status."""
    approve_typed(name)  # room: Approval
    # In the newer era, servers could not log.
    async with Client(create_server(config), mode="legacy") as client:
        called = {"tool_name": name, "arguments": " ".join(words)}
        result = await client.call_tool("use_tool", called)
    blocks: list[Any] = result.content
    if {block.type for block in blocks} == {"text"}:
        output = "\n".join(block.text for block in blocks)
    else:
        output = result.model_dump_json(indent=2, by_alias=True, exclude_unset=True)
    stream = sys.stderr if result.is_error else sys.stdout
    if stream.isatty():
        output = CONTROLS.sub(" ", output)
    print(output, file=stream)
    return int(result.is_error)


MODES["--check"] = Mode(
    "[CONFIG] --check [--read-only]",
    {"action": "store_true", "help": "check every server; --verbose lists its tools"},
    lambda options, secrets: check(find_config(options, secrets)),
    goes_with=("CONFIG", "--read-only"),
)
MODES["--call"] = Mode(
    "[CONFIG] --call NAME [JSON] [--read-only]",
    {"nargs": "+", "metavar": ("NAME", "JSON"), "help": "call a tool by its full name"},
    lambda options, secrets: call_by_name(find_config(options, secrets), *options.call),
    goes_with=("CONFIG", "--read-only"),
)


# === Room: Built-in toolbox ===========================================================
# A server of our own with two tools, made by `tool_server` as the workbench is, over
# stdio or HTTP. Where there is no file, this server is the demo. Without this room,
# there is neither.

import datetime
import zoneinfo

import uvicorn
from mcp.server.sse import SseServerTransport
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

# The loopback names of this machine, with or without a port.
LOOPBACK = re.compile(r"(?i)(localhost|\[?::1\]?|127(\.\d+){1,3})(:\d+)?")

_ZONE = "An optional IANA timezone name (e.g., 'America/New_York'). Defaults to UTC."


class Echo(Arguments, title="Echo Tool"):
    """A simple tool that returns the text it was given."""

    text: str = Field(description="The text to echo back.")


class Time(Arguments, title="Time Tool"):
    """Returns the current server time, optionally in a specific timezone."""

    timezone: str = Field(default="UTC", description=_ZONE)


async def echo(_: object, asked: Echo) -> JSON:
    return text_result(asked.text)


async def tell_time(_: object, asked: Time) -> JSON:
    name = asked.timezone
    try:
        # UTC needs no zone data, unlike any other.
        zone = datetime.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        how = "expected an IANA name, and on Windows the package tzdata"
        raise ToolError(f"Unknown timezone {name!r}: {how}") from None
    return text_result(datetime.datetime.now(zone).isoformat(timespec="seconds"))


# To add a tool, write a model and a function for it, and add a row.
TOOLBOX: dict[str, OwnTool] = {"echo": (Echo, echo), "time": (Time, tell_time)}


def create_toolbox_server() -> Server[Any]:
    """The built-in toolbox as a low-level MCP server."""
    declarations = [declare_tool(name, tool[0]) for name, tool in TOOLBOX.items()]
    return tool_server("mcp-toolbox", TOOLBOX, declarations, Secrets())


class ToolboxApp:
    """The built-in toolbox as an ASGI application.

    Clients of Streamable HTTP and clients of the older SSE transport use the same URL.
    """

    def __init__(self, bound_to: str) -> None:
        self._bound_to = bound_to
        self._server = create_toolbox_server()
        # Without a host, the SDK leaves the checks of Host and Origin to us.
        self._http = self._server.streamable_http_app(host="")
        self._sse = SseServerTransport("/mcp/messages")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # The lifespan of the Streamable HTTP sessions.
            return await self._http(scope, receive, send)
        request = Request(scope)
        if not _is_allowed(request, self._bound_to):
            refusal = Response("Invalid Host or Origin", 403)
            return await refusal(scope, receive, send)
        if request.url.path == "/mcp/messages":
            return await self._take_message(scope, receive, send)
        is_stream = request.method == "GET" and request.url.path == "/mcp"
        # A stream of Streamable HTTP belongs to a session, and one of SSE begins one.
        if is_stream and "mcp-session-id" not in request.headers:
            return await self._serve_sse(scope, receive, send)
        return await self._http(scope, receive, send)

    # Clients of the older toolbox, in TypeScript, expect `sessionId`, and 400 for an
    # unknown session. The SDK says `session_id`, and 404.

    async def _serve_sse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a client of the older transport, for as long as its stream is open."""

        async def send_event(message: Message) -> None:
            if message.get("body", b"").startswith(b"event: endpoint"):
                message["body"] = message["body"].replace(b"session_id", b"sessionId")
            await send(message)

        options = self._server.create_initialization_options()
        async with self._sse.connect_sse(scope, receive, send_event) as (read, write):
            await self._server.run(read, write, options)

    async def _take_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a message of such a client to the server of its stream."""

        async def send_status(message: Message) -> None:
            if message.get("status") == 404:
                message["status"] = 400
            await send(message)

        query = scope["query_string"].replace(b"sessionId=", b"session_id=")
        renamed = {**scope, "query_string": query}
        await self._sse.handle_post_message(renamed, receive, send_status)


def _is_allowed(request: Request, bound_to: str) -> bool:
    """Whether a request comes from no page of another site.

    Bound to loopback, the toolbox answers to the names of this machine only. Elsewhere,
    any Host is served, but no Origin, because no page belongs to the toolbox.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if not LOOPBACK.fullmatch(bound_to):
        return origin is None
    is_local = LOOPBACK.fullmatch(host) is not None
    return is_local and origin in (None, f"http://{host}")


async def serve_http(host: str, port: int) -> int:
    """Serve the built-in toolbox over HTTP. uvicorn takes SIGINT and SIGTERM."""
    log.info("Starting the toolbox at http://%s:%s/mcp", host, port)
    if not LOOPBACK.fullmatch(host):
        log.warning("No authentication: bind to %s in a trusted environment only", host)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    settings = uvicorn.Config(ToolboxApp(host), host.strip("[]"), port, log_config=None)
    # Without a timeout, uvicorn would wait for the open streams.
    settings.timeout_graceful_shutdown = 1
    await uvicorn.Server(settings).serve()
    return 0


def host_and_port(text: str) -> tuple[str, int]:
    """The host and the port of `[HOST:]PORT`. An IPv6 host keeps its brackets."""
    host, _, port = text.rpartition(":")
    if int(port) not in range(1, 65536):
        raise ValueError
    return host or "127.0.0.1", int(port)


_ENTRY = {"command": sys.executable, "args": [__file__, "--toolbox"]}
DEFAULT["toolboxes"]["demo"] = {
    "description": "A demo. Give your own file as argument, or in WORKBENCH_CONFIG.",
    "mcpServers": {"toolbox": _ENTRY},
}


def prepare_toolbox(options: argparse.Namespace, _: Secrets) -> Work:
    """Serve the built-in toolbox, over stdio or HTTP."""
    if options.http:
        return serve_http(*options.http)
    return serve_stdio(create_toolbox_server())


MODES["--toolbox"] = Mode(
    "--toolbox [--http [HOST:]PORT]",
    {"action": "store_true", "help": "serve the built-in tools, echo and time"},
    prepare_toolbox,
    goes_with=("--http",),
    is_server=True,
)
OPTIONS["--http"] = {
    "metavar": "[HOST:]PORT",
    "type": host_and_port,
    "help": "with --toolbox, serve over HTTP",
}


# === Room: uv =========================================================================
# `uv run` and `uvx` change the environment, which the servers inherit. Without this
# room, `python` in an entry is then the Python of the workbench.


def restore_environment() -> None:
    """Take back what `uv run` or `uvx` has added to the environment of this process.

    uv puts the folder of its Python first in PATH, and sets UV. `uv run` also sets
    VIRTUAL_ENV and UV_RUN_RECURSION_DEPTH. With all this, the command `python` of a
    server would start the Python of the workbench, which lacks the server's packages.
    """
    # Without UV, a person has activated our environment, and nothing was added.
    if os.environ.pop("UV", None) is None:
        return
    os.environ.pop("UV_RUN_RECURSION_DEPTH", None)
    first, *others = os.environ.get("PATH", "").split(os.pathsep)
    if os.path.realpath(first) == os.path.realpath(os.path.dirname(sys.executable)):
        os.environ["PATH"] = os.pathsep.join(others)
    if os.environ.get("VIRTUAL_ENV") == sys.prefix:
        del os.environ["VIRTUAL_ENV"]


# === Room: Windows ====================================================================
# On Windows, no signal ends a process with its children, so a job object holds them.
# The system ends all processes of a job when its last handle is closed, even if this
# program is killed. Without this room, children of servers are left behind on Windows.

if sys.platform == "win32":
    import shutil
    import subprocess

    import pywintypes  # type: ignore[import-untyped]
    import win32job  # type: ignore[import-untyped]
    from mcp.os.win32.utilities import _create_job_object

    class JobProcess(ServerProcess):
        """A server process in a job object, with the children that it will have."""

        async def spawn(self, words: list[str], **options: Any) -> None:
            # Without `which`, `npx.cmd` would not be found for the command `npx`.
            path = options["env"].get("PATH")
            words[0] = shutil.which(words[0], path=path) or words[0]
            # A group keeps Ctrl-C from the server, as a session does elsewhere.
            options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
            await super().spawn(words, **options)
            self._job = cast(Any, _create_job_object())
            # A process that has ended already cannot be assigned.
            with suppress(pywintypes.error):
                handle = self._process.get_extra_info("subprocess")._handle
                win32job.AssignProcessToJobObject(self._job, int(handle))

        def signal_group(self, number: int) -> bool:
            """End the processes of the job, unless 0; return whether there are any."""
            if number:
                win32job.TerminateJobObject(self._job, 1)
            kind = win32job.JobObjectBasicAccountingInformation
            found = win32job.QueryInformationJobObject(self._job, kind)
            return bool(found["ActiveProcesses"])

    TRANSPORTS["command"] = JobProcess


if __name__ == "__main__":
    main()
