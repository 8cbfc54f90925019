#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = ["mcp>=2.3,<3"]
# ///
"""MCP Workbench puts many MCP servers, in named toolboxes, behind two tools.

`open_toolbox` starts a toolbox's servers and returns their tools. `use_tool`
calls a tool by its full name, `{toolbox}__{server}__{tool}`.

  --read-only           serve only tools that are declared read-only
  --verbose             log more, among it the names of each server's tools
  --version, --help     print the version, or this text

Without CONFIG: WORKBENCH_CONFIG, else ./workbench-config.json, if it is there.
"""

# The core of this file is complete by itself. Each room behind it can be deleted, from
# its banner to the next (the last to `if __name__`), with the lines elsewhere that are
# marked with its name in a comment at their end. Numbers are lines of code.
#
# Core: Secrets (87), Configuration (243), Workbench (247), MCP server (131),
# Messages (59), Connections (280), Processes (91), Serving (178). A call comes in by
# `stdio_streams`, and passes `use_tool`, `DownstreamServer.call`, `Connection.call` and
# `ServerProcess._send`; its answer returns through `ServerProcess._messages`.
# Remote servers (232): a `url`. Only for them: `is_forgetful`, `Unanswered`.
# Sign-in (196): `--login`, for remote servers. Only for it: `Secrets.learn`.
# Short answers (79): without them, an answer of `open_toolbox` may be very long.
# Other clients' files (180): `mcpServers`, other keys, TOML. Only for it: `LANGUAGES`.
# Reports (116): `--check` and `--call`.
# Built-in toolbox (90): `--toolbox`, and the demo where there is no file.
# uv (18): `python` in an entry is a person's own. Windows (27): children end, too.

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
import difflib
import enum
import fnmatch
import functools
import gc
import inspect
import json
import logging.handlers
import os
import queue
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
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
    from mcp.client.stdio import get_default_environment
    from mcp.server.lowlevel.server import Server
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.message import SessionMessage
    from mcp_types.methods import validate_server_result
    from pydantic import BeforeValidator, Field, TypeAdapter
    from pydantic_core import ArgsKwargs, ValidationError, from_json, to_json
except ImportError as error:
    how = "pip install 'mcp>=2.3,<3', or start it with: uv run workbench.py"
    sys.exit(f"workbench.py needs Python 3.11 and mcp 2.3 or newer ({error}): {how}")

__version__ = "0.10.0"

# The main timeouts, in seconds.
OPEN_TIMEOUT = 5.0  # for slower servers once one is up, and for a new listing
ANSWER_TIMEOUT = 50.0  # for servers to start or to list tools; clients give up at 60
START_TIMEOUT = 180.0  # for a start: a first `npx` or `uvx` downloads its package
HANDOVER_TIMEOUT = 3.0  # for the end of a server's old process before its new one
REFUSAL_TIMEOUT = 2.0  # for a refusal of a lost session; a later one is the tool's
LISTING_PAUSE = 1.0  # between two listings of a server that is up
EXIT_GRACE = 1.0  # between the end of a server's stdin, SIGTERM and SIGKILL
OUTPUT_TIMEOUT = 0.25  # for the last output of a process, its death, and the log
# A client that ends the workbench closes its stdin, waits 2 s, sends SIGTERM, waits 2 s
# and kills it. The servers must have ended before. The sum has the steps of
# `ServerProcess.__aexit__`, the log, and a moment more.
EXIT_TIMEOUT = 2 * EXIT_GRACE + 3 * OUTPUT_TIMEOUT + 0.1

MAX_PAGES = 250  # of one `tools/list`; a server with more pages is looping

# A name that begins with one underscore is used in its own section only.

log = logging.getLogger("workbench")
JSON = dict[str, Any]  # a JSON object, such as the wire form of a result
OnProgress = ProgressFnT | None


# === Secrets ==========================================================================
# No secret is told to a model or a log. One `Secrets` object is given those of the
# configuration, learns tokens later, and masks both in all that is told.

MASK_LIMIT = 1 << 16  # characters of a text that are masked and shown
_PART = 12  # characters of a part of a secret that is masked as well
# Colours and moves of a terminal, halves of surrogate pairs, and control characters
# except \n.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\0-\t\v-\x1f\x7f-\x9f\ud800-\udfff]")


class Secrets:
    """The texts that must not be told."""

    def __init__(self) -> None:
        # A model needs the names of toolboxes and servers, so they are no secrets.
        self._names: set[str] = set()
        self._configured: set[str] = set()
        # A workbench may run for weeks, and only its newest tokens are valid.
        self._tokens: deque[str] = deque(maxlen=99)
        self._update()

    def add(self, texts: Iterable[str], names: Iterable[str] = ()) -> None:
        """Mask these texts from now on, as they are and as JSON has them.

        The names of toolboxes and servers are never masked. A path that exists is no
        secret.
        """
        self._names.update(names)
        all_names = " ".join(self._names)
        texts = {text for text in texts if text not in all_names}
        # The lines of a secret are secrets, because stderr is shown line by line.
        for text in map(str.strip, {*texts, *"\n".join(texts).splitlines()}):
            if os.path.exists(text):
                continue
            # Python's `json` has two forms of a text with other letters than ASCII.
            shown = json.dumps(text, ensure_ascii=False)[1:-1]
            for form in (text, shown, json.dumps(text)[1:-1]):
                self._configured.add(_CONTROLS.sub(" ", form).strip())
        self._update()

    def learn(self, *tokens: str) -> None:
        """Mask these tokens as well from now on; only the last 99 of them are kept."""
        new = set(filter(None, tokens)).difference(self._tokens)
        if new:
            self._tokens.extend(new)
            self._update()

    def _update(self) -> None:
        """Prepare what `mask` needs, so that it can look up a part in one step."""
        # A shorter text occurs by chance.
        known = {text for text in {*self._configured, *self._tokens} if len(text) >= 8}
        # A secret may contain another one, and is replaced first.
        self._secrets = sorted(known, key=len, reverse=True)
        self._parts = _windows(self._secrets) - _windows(self._names)

    def mask(self, text: str) -> str:
        """The text with `***` for each known secret, and without control characters.

        Programs cut secrets, and fold them into lines. So a part of one is masked as
        well, if it has 12 or more letters, digits, `_` or `-`. Line feeds stay. Of a
        text beyond `MASK_LIMIT`, only the beginning is shown.
        """
        if len(text) > MASK_LIMIT:
            # The cut may go through a secret, of which the rest would be shown.
            longest = max(map(len, self._secrets), default=0)
            return self.mask(text[:MASK_LIMIT])[: -longest or None] + "…"
        # A colour may stand right before a part of a secret.
        text = _CONTROLS.sub(" ", text)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return re.sub(rf"[A-Za-z0-9_-]{{{_PART},}}", self._mask_part, text)

    def _mask_part(self, run: re.Match[str]) -> str:
        shown, end = "", 0
        for start in range(len(run[0]) - _PART + 1):
            if run[0][start : start + _PART] in self._parts:
                # A part that overlaps the one before makes it longer.
                shown += run[0][end:start] + "***" * (start > end or not end)
                end = start + _PART
        return shown + run[0][end:]


def _windows(texts: Iterable[str]) -> set[str]:
    """All parts of these texts that have `_PART` characters."""
    windows: set[str] = set()
    for text in texts:
        windows.update(text[i : i + _PART] for i in range(len(text) - _PART + 1))
    return windows


def find_in_env(env: JSON) -> list[str]:
    """The secrets of an entry's `env`: all values, and what is secret in their URLs."""
    values = without_null(env)
    # PATH, HOME and a few more are no secrets, and their parts are in many texts.
    for name in get_default_environment():
        values.pop(name, None)
    return [*values.values(), *find_in_urls(values.values())]


def find_in_args(args: list[str]) -> list[str]:
    """The secrets of an entry's `args`: values of options that say so, and of URLs.

    The value stands behind a `=` or is the next argument. That of a header begins
    behind its `:`. The words of a shell's command count as arguments, too.
    """
    found = []
    for words in (args, " ".join(args).split()):
        for word, following in zip(words, [*words[1:], ""], strict=False):
            parts = word.split("=")
            if parts[0] in ("-H", "--header"):
                header = "=".join(parts[1:]) or following
                found += split_value(header.partition(":")[2])
            elif re.match(f"-.*{_TELLING}", word) and len(parts) == 1:
                found.append(following)
            for number, name in enumerate(parts[:-1], 1):
                if re.search(_TELLING, name):
                    found.append("=".join(parts[number:]))
                    break
    return found + find_in_urls(args)


# An option whose name has one of these words has a secret as its value.
_TELLING = "(?i:token|key|secret|pass)"


def find_in_urls(texts: Iterable[str]) -> list[str]:
    """Logins, queries, and parts of paths that look like keys, of URLs in texts."""
    found = []
    for address in re.findall(r"://(\S+)", " ".join(texts)):
        login = address.partition("/")[0].rpartition("@")[0]
        found += [login, *login.split(":"), *find_in_path(address)]
    return found


def find_in_path(address: str) -> list[str]:
    """The query of a URL with its values, and parts of its path that look like keys."""
    path, _, query = address.partition("?")
    found = [query]
    for pair in re.split("[&#]", query):
        found.append(pair.partition("=")[2])
    for part in path.split("/")[1:]:
        if len(part) >= 16 and re.search(r"\d", part) and re.search("[A-Za-z]", part):
            found.append(part)
    return found


def split_value(value: str) -> list[str]:
    """A value, and its words, which may be shown alone, such as that of `Bearer X`."""
    return [value, *value.split()]


# === Configuration ====================================================================
# A file becomes a `WorkbenchConfig`. A mistake in the entry of a server becomes the
# `problem` of this server, and costs no other. Mistakes of the file and of its
# toolboxes become one `ConfigError`, with their places.


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
    """The entry of a downstream server: the part that is the same for all kinds.

    A kind of servers is a subclass with the fields that start it. The type of a field's
    default is the JSON type that a file must have, but for null in objects.
    """

    # None takes an inherited variable away.
    env: dict[str, str | None] = field(default_factory=dict)
    tool_filters: list[str] = field(default_factory=lambda: ["*"])
    exclude_tools: list[str] = field(default_factory=list)
    problem: str = ""  # why the server is never started

    def patterns(self) -> dict[str, list[str]]:
        """The patterns of tools' names, by the keys of the entry that have them."""
        return {"toolFilters": self.tool_filters, "excludeTools": self.exclude_tools}

    def why_left_out(self, tool: str) -> str:
        """The key that hides a tool of this name from models; empty if none does."""
        if any(matches(tool, pattern) for pattern in self.exclude_tools):
            return "excludeTools"
        is_offered = any(matches(tool, pattern) for pattern in self.tool_filters)
        return "" if is_offered else "toolFilters"


@dataclass(frozen=True)
class ProcessConfig(ServerConfig):
    """A server that is a process of this machine."""

    command: str = ""
    args: list[str] = field(default_factory=list)
    cwd: str = "."


# The kinds of servers, by the key that makes an entry one of this kind.
KINDS: dict[str, type[ServerConfig]] = {"command": ProcessConfig}
# The keys of an entry, and the fields that get their values. A key without a field is
# known, and means nothing here.
FIELDS = {key: key for key in ("env", "command", "args", "cwd")}
FIELDS |= {"toolFilters": "tool_filters", "excludeTools": "exclude_tools"}
# The functions that find the secrets in the value of a field.
SECRETS_OF: dict[str, Callable[[Any], list[str]]]
SECRETS_OF = {"env": find_in_env, "args": find_in_args}
SECRETS_OF["command"] = lambda command: find_in_args([command])


@dataclass(frozen=True)
class ToolboxConfig:
    """A named group of servers that are opened together."""

    description: str
    servers: Mapping[str, ServerConfig]


@dataclass(frozen=True)
class WorkbenchConfig:
    """A configuration of the right form, with its `${VAR}` references expanded."""

    toolboxes: Mapping[str, ToolboxConfig]
    # The environment variables that servers' entries name as `${VAR}`. A server gets
    # such a variable only through its own entry.
    withheld: frozenset[str] = frozenset()
    source: str = ""  # where it came from, for messages


_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
_TYPE_NAMES |= {int: "a number", float: "a number", type(None): "nothing"}
_VARIABLE = r"\$\{(?:env:)?(?P<name>[A-Z_][A-Z0-9_]*)(?::-(?P<default>[^}]*))?\}"
# References of other programs, such as a shell.
FOREIGN = [r"\$\{[^}]*\}", r"\$[A-Z_][A-Z0-9_]*\b"]
# Every server may need proxies and certificates.
_NEVER_WITHHELD = re.compile(r".*_PROXY|.*_CA_CERTS|SSL_CERT_.*|.*_CA_BUNDLE")


@dataclass
class ValueReader:
    """Reads the values of a part of a file, and collects what is wrong with them."""

    problems: list[str] = field(default_factory=list)
    # The variables that references may name, beside those of the environment.
    env: JSON = field(default_factory=dict)

    def report(self, path: str, problem: str) -> None:
        """Collect a problem, so that all of them are told together."""
        self.problems.append(f"{path}: {problem}")

    def expect(self, path: str, value: Any, kind: type) -> Any:
        """The value, if it is of this JSON type; otherwise an empty one."""
        if type(value) is kind:
            return value
        # Only the type is shown, because the value may be secret.
        found = _TYPE_NAMES[type(value)]
        self.report(path, f"expected {_TYPE_NAMES[kind]}, found {found}")
        return kind()

    def is_off(self, path: str, entry: JSON) -> bool:
        """Whether an entry is switched off. The keys that say so are taken from it."""
        on = self.expect(f"{path}.enabled", entry.pop("enabled", True), bool)
        off = self.expect(f"{path}.disabled", entry.pop("disabled", False), bool)
        return off or not on

    def check_name(self, path: str, name: str) -> None:
        """Report a name with which a tool's full name could be split in two ways."""
        if re.search("^$|__|_$", name):
            self.report(path, "expected a name, without '__', not ending in '_'")

    def check_keys(self, path: str, unknown: list[str]) -> None:
        """Warn of unknown keys. A misspelt filter is a problem: it filters nothing."""
        ignored = []
        fields = "tool_filters", "exclude_tools"
        filters = [key.lower() for key, name in FIELDS.items() if name in fields]
        for key in unknown:
            if key.startswith("_"):
                continue
            near = difflib.get_close_matches(key.lower(), filters, cutoff=0.8)
            if near or "tool" in key.lower():
                how = "did you mean a server's 'toolFilters' or 'excludeTools'?"
                self.report(f"{path}.{key}", f"unknown key: {how}")
            else:
                ignored.append(key)
        if ignored:
            log.warning("%s: unknown keys %s, ignored", path, sorted(ignored))

    def read(self, path: str, value: Any, kind: type) -> Any:
        """A value of this type: a text, or a list or object of texts, is expanded.

        In an object, null stays. A number or boolean in place of a text becomes one.
        """
        if kind is list and value == "*":
            value = ["*"]
        if kind is str and isinstance(value, bool | int | float):
            value = json.dumps(value)
        value = self.expect(path, value, kind)
        if kind is list:
            items = enumerate(value)
            return [self.read(f"{path}[{i}]", each, str) for i, each in items]
        if kind is dict:
            texts = dict(value)
            for key, each in without_null(value).items():
                texts[key] = self.read(f"{path}.{key}", each, str)
            return texts
        if kind is not str:
            return value
        # Text in `${` that is not closed would be cut off, so it is a problem.
        pattern = "|".join([_VARIABLE, f"(?P<foreign>{'|'.join(FOREIGN)})", r"\$\{"])
        return re.sub(pattern, functools.partial(self._expand, path), value)

    def _expand(self, path: str, reference: re.Match[str]) -> str:
        """The value of a variable, or its default. A foreign reference stays."""
        name, default, foreign = reference.group("name", "default", "foreign")
        if foreign:
            # Without braces, the text may be a password with a `$`, and is not shown.
            shown = foreign if foreign.endswith("}") else "a variable without braces"
            how = "write the value, or ${NAME} in capitals"
            log.warning("%s: %s stays as it is: %s", path, shown, how)
            return foreign
        # `${` that is not closed has no name, and so no value.
        value: str | None = {**os.environ, **self.env}.get(name, default)
        if value is None:
            name = name or "NAME"
            how = "set it in `env` of the workbench's entry in your client"
            if os.isatty(0):
                how = f"write {name}=... before the command, {how}"
            how += f", or write ${{{name}:-default}}"
            self.report(path, f"{reference[0]} is not set: {how}")
            return ""
        return value


@dataclass
class ConfigReader:
    """Reads a decoded file."""

    values: ValueReader = field(default_factory=ValueReader)  # with the file's problems
    secrets: list[str] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)  # that servers' entries name

    def read_toolboxes(self, content: Any) -> dict[str, ToolboxConfig]:
        """The toolboxes of a file by their names."""
        data = self.values.expect("configuration", content, dict)
        toolboxes: dict[str, ToolboxConfig] = {}
        data = read_tables(data, self, toolboxes)  # room: Other clients' files
        self.note_variables(data.get("toolboxes"))
        if "toolboxes" not in data:
            self.values.report("configuration", f"expected toolboxes, found {[*data]}")
        table = self.values.expect("toolboxes", data.get("toolboxes", {}), dict)
        for name, value in table.items():
            # A toolbox or server whose name begins with `_` is a comment.
            if name.startswith("_"):
                continue
            path = f"toolboxes.{name}"
            entry = without_null(self.values.expect(path, value, dict))
            if self.values.is_off(path, entry):
                continue
            self.values.check_name(path, name)
            given = entry.pop("description", None)
            text = self.values.read(f"{path}.description", given, str)
            given = entry.pop("mcpServers", None)
            servers = self.read_servers(f"{path}.mcpServers", given)
            self.values.check_keys(path, [*entry])
            toolboxes[name] = ToolboxConfig(text, servers)
        return toolboxes

    def note_variables(self, part: Any) -> None:
        """Note the variables that a part names, even where it is a comment or is off.

        A token that is named there is meant for one server, and no other may get it.
        """
        for reference in re.finditer(_VARIABLE, json.dumps(part)):
            self.variables.add(reference["name"])

    def read_servers(self, place: str, table: Any) -> dict[str, ServerConfig]:
        """The servers of a table by their names, without this workbench itself."""
        table = self.values.expect(place, table, dict)
        self.note_variables(table)
        servers = {}
        for name, value in table.items():
            if name.startswith("_"):
                continue
            reader = ValueReader()
            path = f"{place}.{name}"
            entry = without_null(reader.expect(path, value, dict))
            if reader.is_off(path, entry) and not reader.problems:
                continue
            reader.check_name(path, name)
            server = self.read_server(reader, path, entry)
            if _starts_workbench(server):
                log.warning("%s: left out, because it starts this workbench", path)
                continue
            if reader.problems:
                server = ServerConfig(problem="; ".join(reader.problems))
            servers[name] = server
        return servers

    def read_server(self, reader: ValueReader, path: str, entry: JSON) -> ServerConfig:
        """A server, of the kind that its entry says; `reader` collects its problems."""
        unknown = [key for key in entry if key not in FIELDS]
        given = {FIELDS[key] for key in entry.keys() & FIELDS if entry[key]}
        starts = [key for key in KINDS if key in given]
        if len(starts) != 1:
            found = " and ".join(starts) or "none"
            if unknown:
                found += f", unknown keys: {unknown}"
            reader.report(
                path, f"expected {' or '.join(map(repr, KINDS))}, found {found}"
            )
        reader.check_keys(path, unknown)
        kind = KINDS[starts[0]] if starts else ServerConfig
        values = read_fields(reader, path, entry, vars(kind()))
        for name in values.keys() & SECRETS_OF:
            self.secrets += SECRETS_OF[name](values[name])
        return kind(**values)


def read_fields(reader: ValueReader, path: str, entry: JSON, usual: JSON) -> JSON:
    """The values of those fields of an entry that have a usual value.

    If a field has several keys, the last counts. But exclusions and objects add up, and
    filters must agree.
    """
    values: JSON = {}
    # `env` comes first, because all other values may refer to its variables.
    for key in sorted(entry, key=lambda key: FIELDS.get(key) != "env"):
        name = FIELDS.get(key, "")
        if name not in usual:
            continue
        value = reader.read(f"{path}.{key}", entry[key], type(usual[name]))
        former = values.get(name, value)
        if name == "tool_filters" and former != value:
            reader.report(f"{path}.{key}", "expected the same in all spellings")
        if name == "exclude_tools" and name in values:
            value = former + value
        if isinstance(value, dict):
            value = former | value
        values[name] = value
        reader.env = without_null(values.get("env", {}))
    return values


def _starts_workbench(server: ServerConfig) -> bool:
    """Whether a server is this very file, with anything but its own tools."""
    if not isinstance(server, ProcessConfig) or "--toolbox" in server.args:
        return False
    # A word that is no path, such as one with a null character, is a ValueError.
    with suppress(ValueError):
        words = map(os.path.expanduser, [server.command, *server.args])
        files = filter(os.path.exists, words)
        return any(os.path.samefile(file, __file__) for file in files)
    return False


def parse_config(
    data: Any, source: str = "file", secrets: Secrets | None = None
) -> WorkbenchConfig:
    """Check a decoded configuration, and add what it has to the secrets.

    Raises `ConfigError` with all that is wrong with the file and its toolboxes.
    """
    reader = ConfigReader()
    toolboxes = reader.read_toolboxes(data)
    if reader.values.problems:
        raise ConfigError("\n".join([f"{source}:", *reader.values.problems]))
    # Every server needs PATH, HOME and a few more, which the SDK lists.
    named = reader.variables & os.environ.keys() - get_default_environment().keys()
    names = set(toolboxes)
    for toolbox in toolboxes.values():
        names.update(toolbox.servers)
    if secrets:
        secrets.add([*reader.secrets, *map(os.environ.__getitem__, named)], names)
    withheld = {name for name in named if not _NEVER_WITHHELD.fullmatch(name)}
    return WorkbenchConfig(toolboxes, frozenset(withheld), source)


# This configuration is served where there is no file.
DEFAULT: JSON = {"toolboxes": {}}
# The name of a file's language, and its decoder, by the end of the file's name.
LANGUAGES: dict[str, tuple[str, Callable[[str], Any]]] = {"": ("JSON", json.loads)}


def find_config(argument: Path | str | None, secrets: Secrets) -> WorkbenchConfig:
    """The configuration to serve, from a file or `DEFAULT`. Raises `ConfigError`."""
    given = argument or os.environ.get("WORKBENCH_CONFIG")
    path = os.path.expanduser(str(given or "workbench-config.json"))
    if not given and not os.path.exists(path):
        how = "give one as argument, in WORKBENCH_CONFIG, or as ./workbench-config.json"
        return parse_config(DEFAULT, f"no file ({how})", secrets)
    language, parse = LANGUAGES.get(Path(path).suffix, LANGUAGES[""])
    try:
        path = os.path.abspath(path)
        text = Path(path).read_text(encoding="utf-8-sig")
        if not text.strip():
            raise ValueError("the file is empty")
        data = parse(text)
        # Halves of surrogate pairs, which cannot be sent, are an error here.
        json.dumps(data, ensure_ascii=False).encode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        told = f"expected {language} saved as UTF-8: {error}"
        raise ConfigError(f"{path}: {told}") from None
    return parse_config(data, path, secrets)


# === Workbench ========================================================================
# The toolboxes and their servers, for the meta-tools of the next section. A server is
# used through a `Connection`, one for each start; see `State`.

# The full name of a tool. Only the part behind the server's name may contain `__`.
NAME_FORM = "{toolbox}__{server}__{tool}"


class ToolError(Exception):
    """An error whose text tells a model what to do."""


class NotDelivered(ToolError):
    """The server has not received the request, or refuses it with its session."""


class Unanswered(ToolError):
    """The server may have executed a request that it has not answered."""


EXECUTED = "the call may have taken effect, and was not repeated"


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
    shared: Shared
    task_group: anyio.abc.TaskGroup  # runs the connections
    read_only: bool  # only tools that are declared so can be seen and called
    introduced: bool = False  # a part had the server's instructions

    def __post_init__(self) -> None:
        self.name = f"{self.toolbox_name}/{self.server_name}"
        self.prefix = f"{self.toolbox_name}__{self.server_name}__"
        # A placeholder, which never runs, so that `start` makes the first connection.
        self.connection = Connection(self.name, self.config, self.shared)
        self.connection.set_state(State.ENDED)

    @property
    def tools(self) -> dict[str, types.Tool]:
        """By name, the tools that a model may see and call."""
        tools = self.connection.tools
        if self.read_only:
            tools = {name: t for name, t in tools.items() if is_read_only(t)}
        return tools

    def why_left_out(self, tool: str) -> str:
        """The option or key that hides a tool from models; empty if none does."""
        if tool in self.connection.tools and tool not in self.tools:
            return "--read-only"
        return self.connection.left_out.get(tool, "")

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
            self.connection = Connection(self.name, self.config, self.shared)
            self.task_group.start_soon(self._run, self.connection, former)
        return self.connection

    async def _run(self, connection: Connection, former: Connection) -> None:
        if connection.transport_class.is_exclusive:
            # An old process that still answers a call may take for ever.
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

    async def call(
        self, full_name: str, params: JSON, others: JSON, on_progress: OnProgress
    ) -> JSON:
        """Call a tool of the server, which is started if it is not up.

        `params`, without the name, and the result are those of `tools/call` on the
        wire. `others` is what the model has sent beside the arguments. Raises
        `ToolError`, `ValueError` for arguments or results that are not valid, or the
        server's `MCPError`.
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
                raise ToolError(self._why_no_tool(tool))
            if not params["arguments"]:
                refuse_misplaced(self.tools[tool], others)
            # After `NotDelivered`, the connection is marked as closed, and the second
            # turn of the loop makes a new one. Any other call may have been executed.
            with suppress(NotDelivered):
                return await connection.call({**params, "name": tool}, on_progress)
        raise ToolError(f"server '{self.name}' is not up: {connection.why_not_up()}")

    def _why_no_tool(self, tool: str) -> str:
        """The reason why a model cannot call this tool, and names that it can call."""
        hidden_by = self.why_left_out(tool)
        if hidden_by:
            return f"'{tool}' of '{self.name}' is left out by {hidden_by}"
        names = [self.prefix + name for name in self.tools]
        near = difflib.get_close_matches(self.prefix + tool, names, cutoff=0)
        shown = ", ".join(map(quote, near)) or "none"
        return f"'{self.name}' has no tool '{tool}', nearest: {shown}"


def refuse_misplaced(tool: types.Tool, others: JSON) -> None:
    """Raise `ToolError` if what is sent beside empty arguments belongs into them.

    Models put arguments there, and one client renames the key. Without its arguments,
    a tool that deletes a folder may delete everything.
    """
    schema = compact(tool.input_schema)
    misplaced = []
    for key, value in others.items():
        # Arguments may be declared anywhere in the schema, such as in a `$ref`.
        is_known = f"{compact(key)}:" in schema
        if is_known or (isinstance(decode(value), dict) and value):
            misplaced.append(key)
    if misplaced:
        names = ", ".join(misplaced)
        raise ToolError(f"put what stands in {names} into `arguments`, not beside it")


Servers = list[DownstreamServer]


def in_state(state: State, servers: Servers) -> Servers:
    """The servers, of these, whose connections are in this state."""
    return [server for server in servers if server.connection.state is state]


@dataclass
class Workbench:
    """The state of a running workbench, for one client."""

    config: WorkbenchConfig
    shared: Shared
    task_group: anyio.abc.TaskGroup  # runs the connections; its end stops all servers
    read_only: bool
    # By name, the toolboxes that were opened or used. A server starts when needed.
    open_toolboxes: dict[str, Servers] = field(default_factory=dict)

    def servers_of(self, name: str) -> Servers:
        """The servers of a toolbox, which is open from now on.

        Raises `ToolError` if it is not configured.
        """
        if name not in self.config.toolboxes:
            names = ", ".join(self.config.toolboxes) or "none"
            raise ToolError(f"Toolbox '{name}' not found. Available toolboxes: {names}")
        if name not in self.open_toolboxes:
            own = self.shared, self.task_group, self.read_only
            self.open_toolboxes[name] = [
                DownstreamServer(name, server, config, *own)
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
        fit(answer, is_part)  # room: Short answers
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
async def running_workbench(
    config: WorkbenchConfig, secrets: Secrets, read_only: bool = False
) -> AsyncIterator[Workbench]:
    """A workbench whose servers are all stopped when the block is left."""
    environment = {k: v for k, v in os.environ.items() if k not in config.withheld}
    shared = Shared(secrets, environment)
    allow_many_lookups()  # room: Remote servers
    async with anyio.create_task_group() as task_group:
        yield Workbench(config, shared, task_group, read_only)
        task_group.cancel_scope.cancel()


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


def quote(name: str) -> str:
    """A name that a server has given, as it may stand in a text of our own."""
    return repr(shorten(name, 128))


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


def decode(value: Any) -> Any:
    """The JSON in a string, as models send it; any other value unchanged."""
    with suppress(TypeError, ValueError):
        value = from_json(value)
    return value


def _as_object(value: Any) -> Any:
    decoded = decode(value)
    return {} if decoded in (None, "") else decoded


def _as_list(value: Any) -> Any:
    decoded = decode(value)
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

    `tools`: names or patterns (several add up), such as read_* (any server), SERVER__*
    (all of one server), or full names. Large toolboxes come partly without schemas,
    which full names bring.
    """
    workbench = _begin_request(context)
    answer = await workbench.open(toolbox_name, tools, context.session.report_progress)
    return text_result(compact(answer))


# Errors of a server that ask the client to act, not the model.
_FOR_CLIENT = (types.URL_ELICITATION_REQUIRED, types.MISSING_REQUIRED_CLIENT_CAPABILITY)
# `_meta` keys that apply to one hop and are not forwarded.
_ONE_HOP = re.compile(r"progressToken$|io\.modelcontextprotocol/")


async def use_tool(
    context: Any,
    /,
    tool_name: str,
    arguments: _Object,
    toolbox_name: str = "",
    **more: Any,
) -> JSON:
    """Call a tool, by its full name from open_toolbox, as its inputSchema asks."""
    workbench = _begin_request(context)
    meta = context.params.get("_meta") or {}
    forwarded = {key: meta[key] for key in meta if not _ONE_HOP.match(key)}
    params = {"arguments": arguments, "_meta": forwarded}
    # Without a token of the client, the server is not asked for progress.
    on_progress = context.session.report_progress if "progressToken" in meta else None
    toolbox = toolbox_name or tool_name.partition("__")[0]
    place = f"Error executing tool '{tool_name}' in toolbox '{toolbox}'"
    try:
        server = workbench.find_server(toolbox, tool_name)
        return await server.call(tool_name, params, more, on_progress)
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
        return f"No toolboxes configured. Add them to 'toolboxes': {config.source}"
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


def meta_tools(config: WorkbenchConfig, read_only: bool = False) -> list[OwnTool]:
    """The two meta-tools, with the names of the toolboxes in the schema."""
    opening = make_tool(open_toolbox, "Open Toolbox")
    using = make_tool(use_tool, "Use Tool")
    # Clients ask a person about a tool that is not declared read-only, but start the
    # same servers themselves without asking.
    opening.declaration.annotations = types.ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True
    )
    if read_only:
        using.declaration.annotations = types.ToolAnnotations(read_only_hint=True)
    if config.toolboxes:
        # Many clients do not show the instructions, which have the names as well.
        properties = opening.declaration.input_schema["properties"]
        properties["toolbox_name"]["enum"] = list(config.toolboxes)
    for tool in (opening, using):
        # Claude Code would hide the tools behind a search, which models often omit.
        tool.declaration.meta = {"anthropic/alwaysLoad": True}
    return [opening, using]


def create_server(
    config: WorkbenchConfig, secrets: Secrets, read_only: bool = False
) -> Server[Any]:
    """The workbench as a low-level MCP server, of which each run serves one client."""

    async def set_level(context: Any, params: types.SetLevelRequestParams) -> JSON:
        context.lifespan_context.shared.log_level = params.level
        return {}

    async def roots_changed(context: Any, _: object) -> None:
        workbench: Workbench = context.lifespan_context
        # A server that is still starting has not asked for the roots yet.
        for server in in_state(State.UP, workbench.open_servers()):
            workbench.task_group.start_soon(server.connection.tell_roots_changed)

    tools = meta_tools(config, read_only)
    server = tool_server("mcp-workbench", tools, secrets.mask)
    server.instructions = instructions(config)
    server.lifespan = lambda _: running_workbench(config, secrets, read_only)
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
NOT_VALID = "not valid MCP"  # the error in place of an answer that cannot be read


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
        message["error"] = {"code": types.INTERNAL_ERROR, "message": NOT_VALID}
        with suppress(ValidationError):
            return types.jsonrpc_message_adapter.validate_python(message)
    return None


def dump_message(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


async def read_messages(
    stream: asyncio.StreamReader,
    on_output: Callable[[bytes], None],
    on_closed: Callable[[str], None],
) -> Messages:
    """The messages in the lines of a stream, to its end; other lines are output."""
    async for line in read_lines(stream, LINE_LIMIT):
        if len(line) == LINE_LIMIT:
            # If this line were skipped, a call that it answers would wait for ever.
            on_closed(f"wrote a message beyond the limit of {LINE_LIMIT >> 20} MiB")
            return
        message = read_message(line)
        if message is None:
            on_output(line)
        else:
            yield SessionMessage(message)


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
# A `Transport` carries the messages. The next section has that of a process.
#
# - A transport is an async context manager that yields `Streams`. If entering it fails,
#   the error is the reason why the server is not up. Leaving it is shielded, and takes
#   less than `EXIT_TIMEOUT`.
# - `transmit` sends one message. For a request, `transmit` may return before the answer
#   has come (over pipes and SSE), or after that (over Streamable HTTP). For a request
#   that failed, `transmit` raises `NotDelivered` if the server has not executed it (see
#   `_may_be_executed`), `Unanswered` if the server may have, and otherwise `ToolError`.
# - `messages` are the server's, the answers to requests included. At their end, the
#   session fails the open requests.
# - `on_closed` is called with a reason before the messages end. From then on, as after
#   `NotDelivered`, no new call is sent, but answers to calls in flight may still come.

Mask = Callable[[str], str]
_RAW_RESULT: TypeAdapter[Any] = TypeAdapter(JSON)


@dataclass
class Shared:
    """What every connection of a workbench uses.

    `client` is the session of the client's last tool call. The questions and logs of
    servers go there. The SDK sends over the client's connection, which outlives a call.
    """

    secrets: Secrets
    environment: Mapping[str, str]  # inherited by every server process
    client: ServerSession | None = None
    log_level: types.LoggingLevel = "debug"  # the lowest that the client wants to see


@dataclass(eq=False, repr=False)
class Transport(AbstractAsyncContextManager[Streams]):
    """The way to a server of one kind: what each transport is given, and is."""

    # Two connections at once would compete, such as for a profile or a lock, so that a
    # new one waits for the end of the old one.
    is_exclusive: ClassVar[bool] = False
    # The server may forget the session, or lose announcements, without a word.
    is_forgetful: ClassVar[bool] = False

    config: ServerConfig
    shared: Shared
    on_output: Callable[[bytes], None]  # for each line of a process that is no message
    on_closed: Callable[[str], None]  # with the reason


class NoTransport(Transport):
    """The way to a server whose entry cannot be used: there is none."""

    async def __aenter__(self) -> Streams:
        raise ToolError(self.config.problem)

    async def __aexit__(self, *_: object) -> None:
        """Nothing was entered."""


# The transports, by the kinds of servers.
TRANSPORTS: dict[type[ServerConfig], type[Transport]] = {ServerConfig: NoTransport}


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
        self.transport_class = TRANSPORTS[type(config)]
        self.tools: dict[str, types.Tool] = {}  # by name, those that the filters allow
        self.left_out: dict[str, str] = {}  # by name, the key that hides a tool
        self.session: ClientSession  # set by `run`, once the transport is entered
        self.state = State.STARTING
        self._reason = ""  # why the connection is closed
        self._output: deque[str] = deque(maxlen=20)  # last lines that were logged
        self._in_flight = 0  # calls
        self._is_forgotten = False  # the server does not know the session any more
        self._changed = anyio.Event()  # replaced by `_notify`
        # A remote server's announcement is lost while its event stream is broken, and
        # any listing may fail. Then each `wait_until_current` asks for a listing.
        self._may_miss_changes = self.transport_class.is_forgetful
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
            self._reason = " ".join(self.shared.secrets.mask(reason).split())
        if self.state is State.UP:
            self.set_state(State.DRAINING)

    def log_line(self, line: bytes) -> None:
        """Log a line of the server's output that is no message, and remember it."""
        # So many bytes are always more characters than the mask shows.
        shown = line[: 5 * MASK_LIMIT].decode(errors="replace")
        text = self.shared.secrets.mask(shown).strip()
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
        callbacks = self.log_line, self.mark_closed
        transport = self.transport_class(self.config, self.shared, *callbacks)
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
                # A tool's result may have a key `tools`, but the SDK takes further keys
                # out.
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
                shown = self.shared.secrets.mask(str(tool))[:99]
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
        with anyio.move_on_after(OPEN_TIMEOUT):
            await self._until_listed()

    async def _until_listed(self) -> None:
        """Wait for the listing that was requested last, or the connection's end."""
        # Later requests are not waited for: each listing may be followed by another.
        number = self._requested
        await self._until(lambda: self._listed >= number or self.state > State.UP)

    async def _keep_current(self) -> None:
        """List the tools whenever that was requested, one listing at a time."""
        while True:
            await self._until(lambda: self._listed < self._requested)
            number = self._requested
            try:
                with anyio.fail_after(ANSWER_TIMEOUT):
                    await self._list_tools()
            except (MCPError, ToolError, ValueError, TimeoutError) as error:
                log.warning("%s: kept its old tools: %s", self.name, explain(error))
                self._may_miss_changes = True
                # A server whose answer is not valid knows the session.
                is_valid = not isinstance(error, ValueError)
                if self.transport_class.is_forgetful and is_valid:
                    self._is_forgotten = isinstance(error, NotDelivered)
                    self.mark_closed(f"failed to list its tools: {explain(error)}")
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
            tools |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor or None
        left_out = {}
        for name in list(tools):
            hidden_by = self.config.why_left_out(name)
            if hidden_by:
                left_out[name] = hidden_by
                del tools[name]
        new, old = tools.keys(), self.tools.keys()
        modified = sum(tools[name] != self.tools[name] for name in new & old)
        counts = f"{len(new - old)} added, {len(old - new)} removed"
        log.info("%s: tools: %s, %d modified", self.name, counts, modified)
        log.debug("%s: its tools are %s", self.name, ", ".join(tools))
        self.tools = tools
        self.left_out = left_out
        for warning in self.find_idle_patterns():
            log.warning("%s: %s", self.name, warning)

    def find_idle_patterns(self) -> list[str]:
        """A sentence for each of the entry's patterns that matches no tool.

        A person who has misspelt an exclusion relies on it in vain.
        """
        names = [*self.tools, *self.left_out]
        idle = []
        for key, patterns in self.config.patterns().items():
            for pattern in patterns:
                if pattern != "*" and not any(matches(name, pattern) for name in names):
                    idle.append(f"{key}: {pattern!r} matches none of its tools")
        return idle

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

    async def _may_be_executed(self, error: Exception, began: float) -> bool:
        """Whether the server may have executed a call that failed with this error.

        A remote server that was restarted refuses its old sessions, often with HTTP
        404. Some frameworks answer a tool's exception in the same way, after its
        execution. A listing decides: if it is refused as well, the session is lost.
        """
        if isinstance(error, NotDelivered) and self.transport_class.is_forgetful:
            # A session is refused before the tool runs, and so at once.
            is_late = anyio.current_time() > began + REFUSAL_TIMEOUT
            await self._until_listed()
            return is_late or not self._is_forgotten
        if isinstance(error, MCPError):
            # A server may use this code itself, and live on.
            is_closed = error.code == types.CONNECTION_CLOSED
            is_closed = is_closed and self.state is not State.UP
            return is_closed or error.message == NOT_VALID
        return isinstance(error, Unanswered | ValidationError)

    async def call(self, params: JSON, on_progress: OnProgress) -> JSON:
        """Send `tools/call` with these wire parameters, and return the wire result.

        The connection must be up. Cancelling the caller cancels the call downstream.
        Raises `NotDelivered`, `ToolError`, or the server's `MCPError`.
        """
        # The caller has just found the state UP, without an `await` since. So
        # `_stay_up` waits for this call.
        self._in_flight += 1
        began = anyio.current_time()
        request = types.Request[JSON, str](method="tools/call", params=params)
        try:
            # `ClientSession.call_tool` would check the result against the tool's output
            # schema, and raise after the side effect has happened.
            result: JSON = await self.session.send_request(
                request, _RAW_RESULT, progress_callback=on_progress
            )
            if result.get("resultType") != "input_required":
                # The SDK accepts any answer of a 2026-07-28 server that has a
                # `resultType`. `model_validate` raises what is wrong, and `result`
                # stays as it is.
                types.CallToolResult.model_validate(result, by_name=False)
                return result
        except (ToolError, MCPError, ValidationError) as error:
            if self.transport_class.is_forgetful:
                self._request_listing()
            if not await self._may_be_executed(error, began):
                raise
            told = explain(error)
            if self.state is not State.UP and isinstance(error, MCPError):
                told = f"the server {self.why_not_up()}"
            raise ToolError(f"{told}; {EXECUTED}") from None
        finally:
            self._in_flight -= 1
            self._notify()
        how = "(`input_required`), which the workbench cannot forward"
        raise ToolError(f"this call needs input from the user {how}")


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

    config: ProcessConfig
    is_exclusive = True

    async def __aenter__(self) -> Streams:
        """Start the process, to speak to it over stdin and stdout."""
        config = self.config
        env = without_null({**self.shared.environment, **config.env})
        words = list(map(os.path.expanduser, [config.command, *config.args]))
        # Clients take an empty `cwd` for none.
        cwd = os.path.expanduser(config.cwd or ".")
        # A start that was cancelled half way would leave a process that nobody stops.
        with anyio.CancelScope(shield=True):
            try:
                await self.start(words, {"env": env, "cwd": cwd})
            except OSError as error:
                raise ToolError(_explain_start(words[0], cwd, error)) from None
        _running.add(self)
        # The process may have exited already. Then the callback follows at once.
        self._pipes.exited.add_done_callback(self._report_exit)
        self._ends = [self._pipes.exited, asyncio.create_task(self._read_stderr())]
        return Streams(self._messages(), self._send)

    async def start(self, words: list[str], options: JSON) -> None:
        """Start the process in a session, and so a group, of its own."""
        start = asyncio.get_running_loop().subprocess_exec
        options["start_new_session"] = True
        self._process, self._pipes = await start(_Pipes, *words, **options)

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
        stdout = self._pipes.stdout
        async for message in read_messages(stdout, self.on_output, self.on_closed):
            yield message
        await asyncio.wait(self._ends, timeout=EXIT_GRACE)
        self.on_closed("closed its stdout")

    async def _read_stderr(self) -> None:
        async for line in read_lines(self._pipes.stderr, 5 * MASK_LIMIT):
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
        find the locks of this one.

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
        _running.discard(self)

    def kill_group(self, number: int) -> bool:
        """Signal the process group, unless 0; return whether it has any process."""
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), number)
                return True
        return False


def _explain_start(command: str, cwd: str, error: OSError) -> str:
    """Why a process could not be started, and what to do about it."""
    why = f"{error.strerror} (`command` is one program, by its full path or from PATH; "
    why += "arguments go into `args`, a longer PATH into `env`)"
    if not os.path.isdir(cwd):
        why = f"its `cwd` is no folder: '{cwd}'"
    elif os.path.dirname(command) and not os.path.isabs(command):
        why = f"{error.strerror}, sought in '{os.path.abspath(cwd)}' (set `cwd`, "
        why += "or write the full path)"
    return f"cannot start '{command}': {why}"


TRANSPORTS[ProcessConfig] = ServerProcess
# All servers whose processes run, for the end by force.
_running: set[ServerProcess] = set()


def kill_all() -> None:
    """Kill every server process with its group, at once. A thread may call this."""
    for process in list(_running):
        process.kill_group(9)


# === Serving ==========================================================================
# The client's stdin and stdout, the end of the process, the log, and the command line.

_REFUSAL_TIMEOUT = 5.0  # for a client to read why it is not served
Work = Awaitable[int | None]
_PROBE = "server/discover"  # the first message of clients that know the newer era


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
    # Without a stdin, there is no `buffer`.
    with suppress(OSError, AttributeError):
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


# Only the first countdown counts, and holds this lock.
_countdown = _thread.allocate_lock()


def start_countdown(status: int) -> None:
    """Have the process end in `EXIT_TIMEOUT` seconds, if it has not ended until then.

    A signal handler calls this function. So it uses `_thread`: `threading` takes locks,
    which the code that the signal interrupts may hold.
    """
    if _countdown.acquire(blocking=False):
        _thread.start_new_thread(_end_by_force, (status,))


def _end_by_force(status: int) -> None:
    """After `EXIT_TIMEOUT` seconds, kill the group of every server, and exit.

    This function runs in a thread, because the event loop may be busy with large
    answers.
    """
    sleep(EXIT_TIMEOUT)
    kill_all()
    os._exit(status)


async def run_until_end(work: Work, status: int) -> None:
    """Do the work, or stop it at a signal. Then end the process.

    The exit status is the result of the work, 1 after an error, or `status` if the work
    was stopped.

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


class MaskedLog(logging.handlers.QueueHandler):
    """Hands masked lines to the thread of a `QueueListener`, which writes them.

    If the client does not read stderr, a write may block for ever, and would block the
    event loop with it. When too many lines are waiting, new ones are dropped.
    """

    queue: queue.Queue[logging.LogRecord]

    def __init__(self, secrets: Secrets) -> None:
        super().__init__(queue.Queue(maxsize=1000))
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.mask(super().format(record))

    def flush(self) -> None:
        """Wait a moment for the lines that were logged last."""
        written = self.queue.all_tasks_done
        with written:
            written.wait_for(lambda: not self.queue.unfinished_tasks, OUTPUT_TIMEOUT)


class Mode(NamedTuple):
    """Something that the command line can ask for, by the option of the mode's name."""

    usage: str  # a line of the help
    option: JSON  # the settings of the option, as `argparse` wants them
    work: Callable[[argparse.Namespace, WorkbenchConfig, Secrets], Work]
    takes: tuple[str, ...] = ()  # options that it goes with, such as `config`
    needs: tuple[str, ...] = ()  # options that it does not go without
    is_for_client: bool = False  # and not for a person at a terminal


def serve(
    options: argparse.Namespace, config: WorkbenchConfig, secrets: Secrets
) -> Work:
    """Serve the workbench over stdin and stdout."""
    names = ", ".join(config.toolboxes) or "no toolbox"
    log.info("Serving %s: %s", names, config.source)
    for toolbox in config.toolboxes.values():
        for server in filter(lambda each: each.problem, toolbox.servers.values()):
            log.warning("%s", server.problem)
    if config.withheld:
        which = ", ".join(sorted(config.withheld))
        log.info("Withheld from each server whose `env` does not set them: %s", which)
    return serve_stdio(create_server(config, secrets, options.read_only))


# The command line can ask for these, by the names of their options.
MODES: dict[str, Mode] = {}
# `Path` turns an empty CONFIG into the current folder, which cannot be read.
MODES["config"] = Mode(
    "[CONFIG]                       serve the workbench over stdio",
    {"nargs": "?", "type": Path, "metavar": "CONFIG"},
    serve,
    takes=("config", "read_only"),
    is_for_client=True,
)


def parse_arguments() -> tuple[argparse.Namespace, Mode]:
    """Read the command line, or end the program with what is wrong in it."""
    parser = argparse.ArgumentParser(add_help=False)
    # The help is the docstring of this file, as it is, and the usage of all modes.
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    usages = [f"  python workbench.py {mode.usage}" for mode in MODES.values()]
    usage = "\n".join([str(__doc__), *usages])
    for name, mode in MODES.items():
        parser.add_argument(name if name == "config" else f"--{name}", **mode.option)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    version = f"mcp-workbench {__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--help", "-h", action="version", version=usage)
    options = parser.parse_args()
    given = {
        name for name, value in vars(options).items() if value not in (None, False)
    }
    given.discard("verbose")
    for name, mode in MODES.items():
        # Serving needs no option, not even its own.
        needed = {name, *mode.needs} - {"config"}
        if needed <= given <= needed.union(mode.takes):
            return options, mode
    shown = ", ".join(sorted(given))
    parser.error(f"these do not go together, or lack another (--help): {shown}")


def set_up_process() -> None:
    """Set what holds for the whole process: its streams, threads and garbage."""
    # A client may hand over pipes that do not block. A stdin without input would count
    # as ended, and what does not fit into stdout would be lost.
    if sys.platform != "win32":
        for number in (0, 1):
            with suppress(OSError):  # of a stdin that is closed
                os.set_blocking(number, True)
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


def set_up_log(secrets: Secrets, level: int) -> MaskedLog:
    """Have the program log from this level on, and nothing else."""
    handler = MaskedLog(secrets)
    logging.raiseExceptions = False  # a full queue is no error
    form = "%(asctime)s %(levelname)s %(message)s"
    # Other loggers are silent, because the SDK logs messages of servers that it has
    # shortened. A secret that was cut is not found, and so not masked.
    logging.basicConfig(format=form, handlers=[handler], level=logging.CRITICAL + 1)
    log.setLevel(level)
    if level == logging.DEBUG:
        # The event loop logs the tracebacks of its callbacks.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
    return handler


def main() -> None:
    """Do what the command line asks for, and end the process."""
    set_up_process()
    options, mode = parse_arguments()
    # The servers inherit the environment, and a file may name its variables.
    restore_environment()  # room: uv
    secrets = Secrets()
    level = logging.INFO if mode.is_for_client else logging.WARNING
    handler = set_up_log(secrets, logging.DEBUG if options.verbose else level)
    config = WorkbenchConfig({})
    try:
        if "config" in mode.takes:
            config = find_config(options.config, secrets)
        work = mode.work(options, config, secrets)
    except ConfigError as error:
        if os.isatty(0) or not mode.is_for_client:
            sys.exit(str(error))
        log.error("%s", error)
        work = refuse_client(str(error))
    if mode.is_for_client and os.isatty(0):
        others = ", ".join(f"--{name}" for name in [*MODES, "help"] if name != "config")
        log.info("Waiting for an MCP client. Ctrl-C ends. Other options: %s", others)
    # Lines of the log have waited until now, so that a person who is told of a file's
    # problems gets no lines around them.
    logging.handlers.QueueListener(handler.queue, logging.StreamHandler()).start()
    asyncio.run(run_until_end(work, status=int(not mode.is_for_client)))


# Here the core ends. Each section from here to the last lines is a room.


# === Room: Remote servers =============================================================
# Servers that have a `url`, over Streamable HTTP or the older SSE transport. Without
# this room, all servers are processes of this machine.

import ssl
import urllib.request

import httpx2

CONNECT_TIMEOUT = 10.0  # seconds for an HTTP connection, not for the answer

SESSION_ID = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
HEADERS = {"accept": "application/json, text/event-stream"}
HEADERS |= {"content-type": "application/json", "accept-encoding": "identity"}

# Seconds before the stream of a server that has refused it is asked for again.
RETRY_PAUSE = 60.0
Answer = types.JSONRPCResponse | types.JSONRPCError
# A header that HTTP allows, and that has a value.
_HEADER = re.compile(r"[!-~]+: [!-~]([\t -~]*[!-~])?")
# This machine, by its own names, with or without a port.
_LOOPBACK = re.compile(r"(?i)(localhost|\[?::1\]?|127(\.\d+){1,3})(:\d+)?")


@dataclass(frozen=True)
class RemoteConfig(ServerConfig):
    """A server that is an endpoint elsewhere."""

    url: str = ""
    headers: dict[str, str | None] = field(default_factory=dict)
    transport: str = ""  # `sse`, or anything else for Streamable HTTP


@dataclass
class _Exchange:
    """An HTTP request, and what is known of the event stream that answers it."""

    method: str
    parts: JSON = field(default_factory=dict)  # headers and content
    awaited: str = ""  # the id of the JSON-RPC request whose answer ends the stream
    is_accepted: bool = False  # by the server, which may have executed the request
    retry: float = 1.0  # seconds to wait before the stream is asked for again
    last_id: str = ""  # of its events
    last_data: str = ""


class RemoteServer(Transport):
    """A remote server, over Streamable HTTP or the older SSE transport.

    A message is posted in the task that sends it. So a request that fails ends no other
    request, and cancelling the task closes its HTTP connection.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/transports
    """

    config: RemoteConfig
    is_forgetful = True

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
            verify = make_ssl_context()
            transport = httpx2.AsyncHTTPTransport(verify, limits=limits, proxy=proxy)
        except OSError as error:
            text = "SSL_CERT_FILE or SSL_CERT_DIR cannot be used"
            raise ToolError(f"{url}: {text}: {error}") from None
        except (ImportError, ValueError, httpx2.InvalidURL):
            text = "not a valid URL, or its proxy is unusable (SOCKS needs socksio)"
            raise ToolError(f"{url}: {text}") from None
        client = httpx2.AsyncClient(
            transport=transport,
            headers=self._headers() | HEADERS,
            # Only connecting has a timeout: a call may run for hours, an upload may be
            # slow, and a request beyond 200 waits for a free connection.
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
            event_hooks={"request": [self._check_host], "response": [_check_redirect]},
            follow_redirects=True,
        )
        add_sign_in(client, url, self.shared.secrets)  # room: Sign-in
        return client

    def _headers(self) -> httpx2.Headers:
        """The headers of the entry. A variable may have made one of them useless."""
        given = without_null(self.config.headers)
        for name, value in given.items():
            if not value:
                log.warning("%s: header '%s' is empty", self.config.url, name)
            elif not _HEADER.fullmatch(f"{name}: {value}"):
                text = f"header '{name}' is cut off or not valid: check its variable"
                raise ToolError(f"{self.config.url}: {text}")
        return httpx2.Headers(given)

    async def _check_host(self, request: httpx2.Request) -> None:
        # The headers may be secret, so no redirect may take them to another host or
        # port, or out of TLS.
        is_downgraded = self._url.scheme == "https" and request.url.scheme == "http"
        if request.url.netloc != self._url.netloc or is_downgraded:
            target = str(request.url).partition("?")[0]
            raise httpx2.RequestError(f"the server leads elsewhere: {target}")

    async def _send(self, item: SessionMessage) -> None:
        """Post a message. Over Streamable HTTP, wait for the answer to a request."""
        if self._is_sse:
            await self._is_ready.wait()
        message = item.message
        headers: JSON = getattr(item.metadata, "headers", None) or {}
        parts = {"headers": headers, "content": dump_message(message)}
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

        A server of Streamable HTTP may have no stream of them, and refuse the GET. Then
        it is asked again after `RETRY_PAUSE`.
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
                await anyio.sleep(RETRY_PAUSE)

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

        The pause is the server's `retry`.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#resumability-and-redelivery
        """
        while not await self._fetch(exchange):
            await anyio.sleep(exchange.retry)
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
                # A GET that fails later does not change this.
                exchange.is_accepted |= response.is_success
                if response.headers.get(SESSION_ID):
                    self._http.headers[SESSION_ID] = response.headers[SESSION_ID]
                if response.is_success and not is_read:
                    # The body has nothing, and may never end.
                    return True
                async for event in _events(response):
                    if await self._receive(event, exchange):
                        return True
        except Exception as error:  # noqa: BLE001
            raise self._error(error, exchange) from None
        # Without the id of an event, the rest of an answer cannot be asked for.
        is_cut_off = exchange.awaited and not exchange.last_id
        if is_cut_off or not response.is_success:
            raise self._failure(response, exchange)
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

    def _error(self, error: Exception, exchange: _Exchange) -> ToolError:
        """The reason why a request or its response broke off."""
        told = explain(error)
        if "certificate" in told.lower():
            told += " (add its authority to a file that SSL_CERT_FILE names)"
        broken = httpx2.ReadError, httpx2.RemoteProtocolError
        is_uncertain = exchange.is_accepted or isinstance(error, broken)
        kind = Unanswered if is_uncertain else ToolError
        return kind(f"{self.config.url}: {told}")

    def _failure(self, response: httpx2.Response, exchange: _Exchange) -> ToolError:
        """The reason why a request was not answered, and what to do about it."""
        status = response.status_code
        # The mask comes before the cut, because the beginning of a secret may be too
        # short to be known.
        told = " ".join(self.shared.secrets.mask(exchange.last_data).split())[:300]
        text = f"{self.config.url}: HTTP {status}, no valid MCP answer: {told or '-'}"
        if not self._is_ready.is_set():
            text += " (check `headers`, and the path in `url`, which often is /mcp)"
        if exchange.is_accepted or status >= 500:
            return Unanswered(text)
        # So a session is refused, unless a listing works in it. An error of the tool
        # would be an answer to the request.
        return NotDelivered(text) if status in (400, 404, 410) else ToolError(text)


async def _check_redirect(response: httpx2.Response) -> None:
    """Refuse a redirect that would make a GET of a POST, without the message."""
    if response.status_code in (301, 302, 303) and response.request.method == "POST":
        target = response.url.join(response.headers.get("location", ""))
        how = f"write {str(target).partition('?')[0]} in `url`"
        raise httpx2.RequestError(f"HTTP {response.status_code}, a redirect: {how}")


def make_ssl_context() -> ssl.SSLContext:
    """The certificates of the system, or of SSL_CERT_FILE or SSL_CERT_DIR, and more.

    Companies set NODE_EXTRA_CA_CERTS for clients that are written for Node, which warn
    of a file that they cannot use, and go on.
    """
    context = httpx2.create_ssl_context()
    extra = os.environ.get("NODE_EXTRA_CA_CERTS")
    if extra:
        try:
            context.load_verify_locations(extra)
        except OSError as error:
            log.warning("NODE_EXTRA_CA_CERTS cannot be used: '%s': %s", extra, error)
    return context


def find_proxy(url: httpx2.URL) -> str | None:
    """The proxy of the environment that requests to a URL have to use.

    httpx2 would make all proxies of the environment, and raise for one that it cannot
    use, such as a SOCKS proxy, even if no request needs it.
    """
    host = url.netloc.decode()
    if _LOOPBACK.fullmatch(host) or urllib.request.proxy_bypass(host):
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
    yield httpx2.ServerSentEvent(data=body.decode("utf-8-sig", errors="replace"))


def allow_many_lookups() -> None:
    """Have asyncio look up the names of hosts in many threads.

    A look-up may hang for a minute, such as while a VPN is off, and with few threads
    keep other servers waiting.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(500))


def find_in_url(url: str) -> list[str]:
    """The secrets of an entry's `url`, even if it is not valid."""
    address = url.split("://", 1)[-1]
    # A password may have any character, so everything before the last `@` counts as the
    # login, unless a `/` stands before that `@`, as in the path `/@owner`.
    *parts, rest = re.split("(?<!/)@", address)
    login = "@".join(parts)
    words = re.split(r"[\s:/?#&=@]+", login)
    # The `@` may stand in the query, and a `?` in the password.
    found = find_in_path(address) + find_in_path(rest)
    return [login, login.partition(":")[2], *words, *found]


def find_in_headers(headers: JSON) -> list[str]:
    """The secrets of an entry's `headers`: the values, and their words."""
    found = []
    for value in without_null(headers).values():
        found += split_value(value)
    return found


FIELDS |= {"url": "url", "headers": "headers"}
FIELDS |= {"transport": "transport", "type": "transport"}
SECRETS_OF |= {"url": find_in_url, "headers": find_in_headers}
KINDS["url"] = RemoteConfig
TRANSPORTS[RemoteConfig] = RemoteServer


# === Room: Sign-in ====================================================================
# OAuth for remote servers: a person signs in once, with `--login` and a browser. The
# tokens are kept in a file that all workbenches of this user share. A workbench that
# serves only reads and refreshes them. Without this room, remote servers know a person
# by their `headers` alone. Needs the room Remote servers.
# https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization

import hashlib
import subprocess
import tempfile
import webbrowser
from contextlib import ExitStack, aclosing
from typing import IO

from mcp.client.auth import OAuthClientProvider
from mcp.shared import auth
from pydantic import AnyUrl

TOKEN_TIMEOUT = 20.0  # seconds for a request to an authorization server
LOGIN_TIMEOUT = 300.0  # seconds for a person to sign in
# The errors by which an authorization server ends a sign-in. Any other error may pass,
# such as that of a gateway.
_FINAL_ERRORS = ("invalid_grant", "invalid_client", "unauthorized_client")


class SignIn(httpx2.Auth):
    """The sign-in to a remote server, stored in a file.

    The file is read for each request. So another process may refresh the tokens, and a
    new sign-in needs no restart. The SDK's `OAuthClientProvider` does not serve here:
    its lock makes all requests wait for the response to one, a restart makes it forget
    the token endpoint, and it does not know of other processes.
    """

    def __init__(self, url: str, secrets: Secrets) -> None:
        self._secrets = secrets
        # The query may be a secret, which the hint must not show.
        address = url.partition("?")[0]
        words = [sys.executable, __file__, "--login", address]
        # All shells understand the double quotes of this form.
        command = subprocess.list2cmdline(words)
        self._hint = f"set `headers`, or sign in with: {command}"
        # Clients pass on few variables, so the folder does not depend on
        # XDG_STATE_HOME.
        name = hashlib.sha256(address.encode()).hexdigest()
        self._path = Path(os.path.expanduser("~/.mcp-workbench"), f"{name}.json")

    def load(self) -> JSON:
        """The stored sign-in; empty if there is no file, or a broken one."""
        with suppress(OSError, ValueError, TypeError, LookupError):
            stored: JSON = from_json(self._path.read_bytes())
            # A value that is missing raises here.
            keys = "access_token", "refresh_token", "token_url", "form", "headers"
            access, refresh, *_ = [str(stored[key]) for key in keys]
            self._secrets.learn(access, refresh)
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
        headers = request.headers
        stored = self.load()
        if stored:
            headers["authorization"] = f"Bearer {stored['access_token']}"
        response = yield request
        # Some servers refuse each GET that only listens, and would have the tokens
        # refreshed each minute. A session is deleted while the program ends, which
        # could lose new tokens.
        is_needed = SESSION_ID not in headers or "last-event-id" in headers
        is_needed = is_needed or request.method == "POST"
        if response.status_code == 401 and is_needed and stored.get("refresh_token"):
            # The body of the refusal may never end.
            await _drop_body(response)
            stored = await self._renew(stored)
            if stored:
                headers["authorization"] = f"Bearer {stored['access_token']}"
                response = yield request
        if response.status_code == 401:
            raise ToolError(f"HTTP 401: {self._hint}")

    async def _renew(self, refused: JSON) -> JSON:
        """The sign-in after its access token was refused; empty if it is over.

        One process at a time refreshes the tokens, because a refresh token that is used
        twice may count as stolen, and end the sign-in. Raises `ToolError` if no new
        tokens came, because a later refresh may succeed.
        """
        with open(self._path.with_suffix(".lock"), "ab") as file:  # noqa: ASYNC230
            is_first = _lock(file)
            # Without a limit, a process that was stopped in its refresh would have all
            # others wait until it goes on.
            with anyio.move_on_after(TOKEN_TIMEOUT):
                while not is_first and not _lock(file):
                    await anyio.sleep(0.05)
            # A caller that has waited begins no refresh. Behind one that got no answer,
            # the callers would fail one after another, each after `TOKEN_TIMEOUT`.
            if is_first and self.load() == refused:
                # A refresh is not cancelled with the call that needs it, because the
                # answer has the only refresh token that is valid from then on.
                with anyio.CancelScope(shield=True):
                    renewed = await self._refresh(refused)
                # During the refresh, a person may have signed in anew, or out.
                if self.load() == refused:
                    self.save(renewed)
        # Reading the new tokens has them masked, before anything can tell them.
        stored = self.load()
        if stored == refused:
            url = stored["token_url"]
            raise ToolError(f"no new tokens came from {url}, try again later")
        return stored

    async def _refresh(self, stored: JSON) -> JSON:
        """The sign-in with new tokens; empty if it is over, unchanged if none came."""
        form = stored["form"] | {"refresh_token": stored["refresh_token"]}
        sent: JSON = {"data": form, "headers": stored["headers"]}
        request = httpx2.Request("POST", stored["token_url"], **sent)
        body = b""
        with anyio.move_on_after(TOKEN_TIMEOUT), suppress(httpx2.HTTPError):
            async with aclosing(await _get_answer(request)) as response:
                # A body may never end, so no more of it is read.
                body = await anext(response.aiter_bytes(LINE_LIMIT), b"")
        with suppress(ValidationError):
            tokens = auth.OAuthToken.model_validate_json(body)
            # Without a new refresh token, the old one stays valid.
            return stored | tokens.model_dump(exclude_none=True)
        with suppress(ValueError, AttributeError):
            if from_json(body).get("error") in _FINAL_ERRORS:
                return {}
        return stored


def add_sign_in(client: httpx2.AsyncClient, url: str, secrets: Secrets) -> None:
    """Have a client sign in to this URL, unless its entry has a login of its own."""
    if "authorization" not in client.headers and not httpx2.URL(url).userinfo:
        client.auth = SignIn(url, secrets)


async def _drop_body(response: Any) -> None:
    """Leave a body unread, because it may never end."""
    await response.stream.aclose()
    response.stream = httpx2.ByteStream(b"")


async def _get_answer(request: httpx2.Request) -> httpx2.Response:
    """Send a request through the proxy for its URL. The body is left to the caller."""
    # Nobody closes the client, so it must keep no connection.
    limits = httpx2.Limits(max_keepalive_connections=0)
    proxy = find_proxy(request.url)
    verify = make_ssl_context()
    transport = httpx2.AsyncHTTPTransport(verify, limits=limits, proxy=proxy)
    http = httpx2.AsyncClient(transport=transport, timeout=None)
    with anyio.move_on_after(TOKEN_TIMEOUT):
        return await http.send(request, stream=True)
    raise httpx2.ReadTimeout(f"no answer came from {request.url}")


def _lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed. Returns False if somebody else has locked it."""
    with suppress(OSError if sys.platform == "win32" else BlockingIOError):
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class Login:
    """One sign-in in a browser, which comes back to a port of this machine.

    The SDK's `OAuthClientProvider` knows the protocol. A `Login` is its storage, which
    keeps nothing, its way to the servers, and its way to the browser and back.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._state = ""  # which the browser has to bring back
        self._returned: asyncio.Queue[JSON] = asyncio.Queue()

    async def _forget(self, *_: object) -> None:
        """Every method of the token storage; `run` returns what is to be stored."""

    get_tokens = set_tokens = get_client_info = set_client_info = _forget

    async def run(self) -> JSON:
        """Sign in, and return what a `SignIn` stores. Raises whatever prevents that."""
        port = 0
        with ExitStack() as stack:
            # A browser may take `localhost` for either address.
            for host in ("127.0.0.1", "::1"):
                # Some machines have no IPv6.
                with suppress(OSError):
                    listener = await asyncio.start_server(self._take, host, port)
                    stack.callback(listener.close)
                    port = listener.sockets[0].getsockname()[1]
            provider = await self._sign_in(f"http://localhost:{port}/callback")
        context = cast(Any, provider.context)
        # What a refresh sends, but for the refresh token.
        client_id = context.client_info.client_id
        form = {"grant_type": "refresh_token", "client_id": client_id}
        if context.should_include_resource_param():
            form["resource"] = context.get_resource_url()
        form, headers = context.prepare_token_auth(form, {})
        stored: JSON = context.current_tokens.model_dump()
        stored["url"] = self._url.partition("?")[0]  # for a person who looks for it
        stored["token_url"] = provider._get_token_endpoint()
        return stored | {"form": form, "headers": headers}

    async def _sign_in(self, callback: str) -> OAuthClientProvider:
        """Send what the SDK wants to be sent, until it has tokens."""
        metadata = auth.OAuthClientMetadata(
            client_name="MCP Workbench",
            redirect_uris=[AnyUrl(callback)],
            token_endpoint_auth_method="none",
        )
        provider = OAuthClientProvider(
            self._url, metadata, cast(Any, self), self._show, self._wait
        )
        context = provider.context
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        request = httpx2.Request("POST", self._url, headers=HEADERS, json=ping)
        async with aclosing(provider.async_auth_flow(request)) as flow:
            response = await _get_answer(await anext(flow))
            is_asked = response.status_code == 401
            # Some servers answer 401 only to a tool's call.
            response.status_code = 401
            while True:
                # The SDK's errors would tell the body of a failure, and tokens in it.
                if not response.is_success:
                    await _drop_body(response)
                request = await flow.asend(response)
                if context.current_tokens:
                    return provider
                found = context.oauth_metadata or context.protected_resource_metadata
                # The SDK would register this program even where it found no metadata.
                if request.method == "POST" and not is_asked and not found:
                    raise ToolError(f"{self._url} asks for no sign-in")
                response = await _get_answer(request)

    async def _show(self, url: str) -> None:
        self._state = httpx2.URL(url).params["state"]
        print(f"Sign in at this address, if your browser does not show it yet:\n{url}")
        # A browser within the terminal blocks until it is closed.
        asyncio.get_running_loop().run_in_executor(None, webbrowser.open, url)

    async def _take(self, reader: asyncio.StreamReader, writer: Any) -> None:
        """Take what comes through the browser, and answer it."""
        head = await reader.readuntil(b"\r\n\r\n")
        self._returned.put_nowait(dict(httpx2.URL(head.split()[1].decode()).params))
        text = b"Close this page. The terminal says whether you are signed in."
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text)
        writer.close()

    async def _wait(self) -> auth.AuthorizationCodeResult:
        query: JSON = {}
        # Any page can have the browser come here, but only the server knows the state.
        while query.get("state") != self._state:
            query = await self._returned.get()
        if "error" in query:
            raise ToolError(query.get("error_description") or query["error"])
        return auth.AuthorizationCodeResult.model_validate(query)


async def log_in(url: str, secrets: Secrets) -> int:
    """Have a person sign in to a remote server. Returns the exit status."""
    secrets.add(find_in_url(url))
    failed = f"Not signed in to {url}: "
    outcome = f"{failed}stopped, or not done within {LOGIN_TIMEOUT:g} seconds"
    status = 1
    try:
        with anyio.move_on_after(LOGIN_TIMEOUT):
            SignIn(url, secrets).save(await Login(url).run())
            outcome = f"Signed in to {url}"
            status = 0
    except Exception as error:  # noqa: BLE001
        # Further lines of the SDK's errors may show tokens.
        outcome = failed + explain(error).splitlines()[0].rstrip(":")
    finally:
        # Ctrl-C cancels this task, which passes here as well. `mask` takes control
        # characters out, which a server may have sent to the terminal.
        print(secrets.mask(outcome))
    return status


MODES["login"] = Mode(
    "--login URL                    sign in to a remote server",
    {"metavar": "URL"},
    lambda options, _, secrets: log_in(options.login, secrets),
)


# === Room: Short answers ==============================================================
# How an answer of `open_toolbox` is brought within its limit, which a model's context
# can hold. Without this room, an answer is whole, however long.

from collections import defaultdict

ANSWER_LIMIT = 12_000  # characters of an answer of `open_toolbox`
PART_LIMIT = 20_000  # characters of an answer for a part of a toolbox
TEXT_LIMIT = 2_000  # characters of a server's instructions; clients cut there as well

_LISTED = "Without schemas: {} (`?`: optional, `[]`: list, `{{}}`: object). Call such "
_LISTED += "a tool as it is if its arguments are clear, or get its schema by its name "
_LISTED += "in `tools` of open_toolbox, such as {}."


def fit(answer: JSON, is_part: bool) -> None:
    """Bring an answer of `open_toolbox` within its limit, if possible.

    As long as it is too long, the server whose tools are longest at that moment loses
    its schemas, the next time its descriptions, and then its arguments. Names stay. A
    tool that was asked for alone stays whole.
    """
    limit = PART_LIMIT if is_part else ANSWER_LIMIT
    cut_texts(answer["servers_failed"], answer["instructions"], limit // 3)
    if is_part and len(answer["tools"]) == 1:
        return
    by_server: dict[str, list[JSON]] = defaultdict(list)
    for tool in answer["tools"]:
        by_server[tool["source_server"]].append(tool)
    sizes = {name: len(compact(tools)) for name, tools in by_server.items()}
    note = answer["note"]
    while sizes and len(compact(answer | {"tools": []})) + sum(sizes.values()) > limit:
        longest = max(sizes, key=lambda name: sizes[name])
        tools = by_server[longest]
        if not sizes[longest]:
            return
        for tool in tools:
            shorten_tool(tool)
        # Bare names do not count, or others would pay for them.
        sizes[longest] = 0 if len(tools[0]) == 1 else len(compact(tools))
        listed = [name for name in by_server if "inputSchema" not in by_server[name][0]]
        example = min((tool["name"] for tool in tools), key=len)
        told = _LISTED.format(", ".join(listed), quote(example))
        answer["note"] = f"{note} {told}".strip()


def shorten_tool(tool: JSON) -> None:
    """Take from a tool its schema, or else its description, or else its arguments."""
    if "inputSchema" in tool:
        whole = tool["description"].strip()
        line = whole.partition("\n")[0][:79]
        tool["description"] = shorten(whole, len(line))
        tool["arguments"] = list_arguments(tool["inputSchema"])
        for key in ("inputSchema", "source_server", "toolbox_name", "annotations"):
            tool.pop(key, None)
    else:
        del tool["description" if "description" in tool else "arguments"]


def list_arguments(schema: JSON) -> str:
    """The arguments of a tool as a text: `path, mode: a|b, rows: [[]], limit?`."""
    required = look_up(schema, "required", list)
    arguments = []
    for name, argument in look_up(schema, "properties").items():
        text = name if name in required else f"{name}?"
        values = outline(argument, schema)
        arguments.append(f"{text}: {values}" if values else text)
    return ", ".join(arguments)


def outline(argument: Any, schema: JSON, depth: int = 4) -> str:
    """The values of an argument: `a|b`, `[]`, `[[]]`, `{}`; empty for other types.

    `schema` is that of its tool, to which a `$ref` points.
    """
    # A schema may refer to itself.
    if not depth:
        return ""
    path = look_up(argument, "$ref", str).split("/")[1:]
    if path:
        return outline(functools.reduce(look_up, path, schema), schema, depth - 1)
    values = look_up(argument, "enum", list)
    if values:
        shown = [shorten(compact(value).strip('"'), 80) for value in values[:5]]
        return "|".join(shown + ["…"] * (len(values) > 5))
    types = [look_up(argument, "type", str), *look_up(argument, "type", list)]
    if "array" in types:
        return f"[{outline(look_up(argument, 'items'), schema, depth - 1)}]"
    if "object" in types:
        return "{}"
    # An optional argument is often a union with null.
    for union in ("anyOf", "oneOf", "allOf"):
        for part in look_up(argument, union, list)[:5]:
            found = outline(part, schema, depth - 1)
            if found:
                return found
    return ""


def look_up(schema: Any, key: str, kind: type[Any] = dict) -> Any:
    """The value of a schema's key, or an empty one where it is of another kind."""
    # Servers in Go write null for what is empty, and `true` is a schema, too.
    value = schema.get(key) if isinstance(schema, dict) else None
    return value if isinstance(value, kind) else kind()


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
# Other clients' files have tables of servers elsewhere, other keys in an entry, lists
# of servers that are switched off, TOML, and comments in JSON. Without this room, a
# file has `toolboxes`, and our own keys.

import tomllib

FIELDS |= {
    "environment": "env",
    "working_directory": "cwd",
    "serverUrl": "url",
    "httpUrl": "url",
    "includeTools": "tool_filters",
    "enabled_tools": "tool_filters",
    "tools": "tool_filters",
    "disabledTools": "exclude_tools",
    "disabled_tools": "exclude_tools",
    "http_headers": "headers",
    # The values of these three are translated below.
    "env_http_headers": "headers",
    "bearer_token_env_var": "headers",
    "env_vars": "env",
}
# Clients keep these keys in an entry for themselves.
FIELDS |= dict.fromkeys(["alwaysLoad", "autoApprove", "alwaysAllow", "trust"], "")
FIELDS |= dict.fromkeys(["timeout", "tool_timeout_sec", "startup_timeout_sec"], "")
FIELDS |= dict.fromkeys(["supports_parallel_tool_calls", "deferTools"], "")
FIELDS |= {"description": "", "type": FIELDS.get("type", "")}
_TABLE_KEYS = ["mcpServers", "servers", "context_servers", "mcp_servers"]
_TABLE_KEYS += ["mcp", "mcp.servers", "amp.mcpServers"]
# Rules for single tools, beside the tables of servers and in entries.
_POLICIES = {"tools", "permission", "amp.tools.disable", "amp.mcpPermissions"}
_APPROVALS = {"default_tools_approval_mode", "toolPermissions"}
FIELDS |= dict.fromkeys(_APPROVALS, "")
# `{env:NAME` of opencode, whose end is that of a reference.
_OTHER_NAME = r"(?<!\$)\{env:(?=[A-Z_][A-Z0-9_]*(?::-[^}]*)?\})"
FOREIGN.insert(0, r"\{(?:env|file):[^}]*\}")  # of opencode
# Other programs and pages quote these four lines, so their words are fixed.
_UNKNOWN_MODE = """\
Configuration field 'toolMode' set to {!r} is no longer supported.
Dynamic mode was removed in version 0.10.0.
Please remove the 'toolMode' field or set it to 'proxy' (though proxy mode is now implicit).
For migration guidance, see: "Upgrading" in README.md"""


def read_tables(
    data: JSON, reader: ConfigReader, toolboxes: dict[str, ToolboxConfig]
) -> JSON:
    """Read the servers that stand outside of toolboxes, each as a toolbox of its own.

    Returns the file in our form: with toolboxes, and with our keys of servers.
    """
    if data.get("toolMode", "proxy") != "proxy":
        reader.values.problems.append(_UNKNOWN_MODE.format(data["toolMode"]))
    tables = find_tables(data, reader)
    if "toolboxes" in data:
        for place, table in tables.items():
            reader.note_variables(_translate_table(place, table, is_served=False))
            log.warning("%s: not served, because there are toolboxes as well", place)
        return data | {"toolboxes": _translate_toolboxes(data["toolboxes"])}
    if not tables:
        told = f"expected one of {['toolboxes', *_TABLE_KEYS]}, found {[*data]}"
        reader.values.report("configuration", told)
    for place, table in tables.items():
        entries = _translate_table(place, table)
        for name, server in reader.read_servers(place, entries).items():
            text = ""
            if isinstance(entries[name], dict):
                given = entries[name].get("description", "")
                text = ValueReader().read(place, given, str)
            text = text or f"Tools of the MCP server '{name}'"
            if name in toolboxes:
                log.warning("%s.%s: served in place of another '%s'", place, name, name)
            toolboxes[name] = ToolboxConfig(text, {name: server})
    return data | {"toolboxes": {}}


def _translate_toolboxes(toolboxes: Any) -> Any:
    """Toolboxes of ours, whose entries of servers may come from other clients."""
    if not isinstance(toolboxes, dict):
        return toolboxes
    translated = dict(toolboxes)
    for name, box in toolboxes.items():
        if isinstance(box, dict):
            place = f"toolboxes.{name}.mcpServers"
            table = _translate_table(place, box.get("mcpServers"))
            translated[name] = box | {"mcpServers": table}
    return translated


def find_tables(data: JSON, reader: ConfigReader) -> JSON:
    """The tables of servers in another client's file, by their places.

    Servers that a list of names switches off are marked as `disabled`.
    """
    tables = without_null({key: data.get(key) for key in _TABLE_KEYS})
    # `mcp` is opencode's table. In VS Code, its `servers` is the table. In Gemini CLI,
    # it has lists of names from `mcpServers`.
    other = {"servers", "inputs", "allowed", "excluded", "serverCommand"}
    mcp = tables.get("mcp", {})
    if not isinstance(mcp, dict):
        mcp = {}
    if mcp.keys() & other:
        del tables["mcp"]
    if "servers" in mcp:
        tables["mcp.servers"] = mcp["servers"]
    for key in sorted(data.keys() & _POLICIES):
        log.warning("%s: not applied; use `toolFilters` or --read-only", key)
    off = _read_names(reader, "disabledMcpServers", data)
    off |= _read_names(reader, "mcp.excluded", mcp)
    if isinstance(data.get("projects"), dict):
        place, project = _find_project(data["projects"], reader)
        tables[f"{place}.mcpServers"] = project.get("mcpServers") or {}
        off |= _read_names(reader, f"{place}.disabledMcpServers", project)
    allowed = None
    if mcp.get("allowed") is not None:
        allowed = _read_names(reader, "mcp.allowed", mcp)
    for place, table in tables.items():
        if isinstance(table, dict):
            tables[place] = _switch_off(table, off, allowed)
    return tables


def _switch_off(table: JSON, off: set[str], allowed: set[str] | None) -> JSON:
    """The table, with `disabled` in the entries that lists of names switch off."""
    entries = {}
    for name, entry in table.items():
        is_off = name.lower() in off
        is_allowed = allowed is None or name.lower() in allowed
        if isinstance(entry, dict) and (is_off or not is_allowed):
            entry = entry | {"disabled": True}
        entries[name] = entry
    return entries


def _find_project(projects: JSON, reader: ConfigReader) -> tuple[str, JSON]:
    """Place and content of what Claude Code keeps for the current folder."""
    found: tuple[str, JSON] = ("projects", {})
    others = []
    # The current folder may have been deleted.
    with suppress(OSError):
        for folder, project in projects.items():
            if not isinstance(project, dict):
                continue
            # `Path` knows which paths are equal on Windows.
            if Path(folder) == Path.cwd():
                found = (f"projects.{folder}", project)
            elif project.get("mcpServers"):
                table = _translate_table(folder, project["mcpServers"], is_served=False)
                reader.note_variables(table)
                others.append(folder)
    if others:
        log.warning("projects: not served, for other folders: %s", others[:5])
    return found


def _read_names(reader: ConfigReader, path: str, owner: JSON) -> set[str]:
    """A list of servers' names, which clients compare without regard to case."""
    given = owner.get(path.rpartition(".")[2]) or []
    return {name.lower() for name in reader.values.read(path, given, list)}


def _translate_table(place: str, table: Any, is_served: bool = True) -> Any:
    """A table of servers in our form. Keys that our form lacks stay as they are."""
    entries = json.loads(re.sub(_OTHER_NAME, "${", json.dumps(table)))
    if not isinstance(entries, dict):
        return entries
    for name, entry in list(entries.items()):
        if not isinstance(entry, dict):
            continue
        entries[name] = entry = _translate_entry(entry)
        if name.startswith("_") or not is_served:
            continue
        # Zed's extensions and opencode's organizations bring servers whose entries here
        # have only settings.
        fields = {FIELDS.get(key) for key in entry}
        if place in ("context_servers", "mcp") and not fields & KINDS.keys():
            text = "%s.%s: left out, because it has no command and no URL"
            log.warning(text, place, name)
            entries[f"_{name}"] = entries.pop(name)
        for key in sorted(
            table[name].keys() - entry.keys() | entry.keys() & _APPROVALS
        ):
            if table[name][key] is not None:
                text = "%s.%s.%s: approvals of tools are not applied"
                log.warning(text, place, name, key)
    return entries


def _translate_entry(entry: JSON) -> JSON:
    """The entry of a server in our form, but for keys of another spelling."""
    entry = without_null(entry)
    if isinstance(entry.get("tools"), dict):
        del entry["tools"]  # Codex's approvals
    if isinstance(entry.get("command"), list):
        # opencode writes the command and its arguments as one list.
        entry["command"], *words = entry["command"] or [""]
        if isinstance(entry.setdefault("args", []), list):
            entry["args"] = words + entry["args"]
    # Codex has the names of variables, which become references. Of two headers or
    # variables of one name, the later one counts.
    if isinstance(entry.get("env_vars"), list):
        references = {}
        for each in entry.pop("env_vars"):
            name = str(each.get("name") if isinstance(each, dict) else each)
            # Codex passes on what is set. Other variables than these are not withheld.
            if name in os.environ and name.isupper():
                references[name] = f"${{{name}}}"
        entry = {"env_vars": references, **entry}
    if isinstance(entry.get("env_http_headers"), dict):
        names = entry.pop("env_http_headers")
        references = {header: f"${{{names[header]}}}" for header in names}
        entry["env_http_headers"] = references
    if isinstance(entry.get("bearer_token_env_var"), str):
        token = f"Bearer ${{{entry['bearer_token_env_var']}}}"
        entry["bearer_token_env_var"] = {"Authorization": token}
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

    return json.loads(re.sub(_EXTENSION, blank, text))


def _decode_toml(text: str) -> Any:
    """Decode TOML; its dates become texts."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


LANGUAGES[""] = ("JSON", _decode_json)
LANGUAGES[".toml"] = ("TOML, because of its name,", _decode_toml)


# === Room: Reports ====================================================================
# `--check` and `--call` print reports for a person. Without this room, an MCP client
# alone shows whether the servers work.

from mcp import Client


async def check(
    config: WorkbenchConfig, secrets: Secrets, read_only: bool, is_verbose: bool = False
) -> int:
    """Start all servers side by side, and print a line for each as it settles.

    Returns the exit status: 1 if a server is not ok, or if there is none.
    """
    async with running_workbench(config, secrets, read_only) as workbench:
        for name in config.toolboxes:
            workbench.servers_of(name)
        servers = workbench.open_servers()
        if not servers:
            print(f"No server is configured: {config.source}")
            return 1
        width = max(map(len, map(_short_name, servers)))
        checks = [_check_server(workbench, s, width, is_verbose) for s in servers]
        results = await asyncio.gather(*checks)
        failed = list(filter(None, results))
        summary = f"{len(servers) - len(failed)} ok"
        if failed:
            summary += f", {len(failed)} failed: {', '.join(failed)}"
        print(summary)
        if len(failed) < len(servers):
            _print_context(workbench)
    return int(bool(failed))


async def _check_server(
    workbench: Workbench, server: DownstreamServer, width: int, is_verbose: bool
) -> str:
    """Start a server, and print a line about it; return its name if it is not ok.

    Below the line stand the last lines of output of a server that failed; those of its
    patterns that match no tool; and all its tools, if wanted.
    """
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
        # The first line is the reason, and the others are the server's output, or
        # further problems of its entry.
        text = connection.why_not_up("\n")
        if server.config.problem:
            text = text.replace("; ", "\n")
    elif not connection.tools and server.config.tool_filters != ["*"]:
        text = "its toolFilters match none of its tools"
    else:
        is_ok = True
        verdict = "ok    "
        answer = workbench.compose(server.toolbox_name, [server], ["*"])
        noun = "tool " if len(server.tools) == 1 else "tools"
        text = f"{len(server.tools):4} {noun} {_cost(len(compact(answer).encode()))}"
    first, *others = text.split("\n")
    if is_ok:
        others += connection.find_idle_patterns()
    if is_verbose:
        others += _describe_tools(server)
    start = f"{name:{width}}  {verdict} {seconds:6.1f} s"
    print(f"{start}  {first:.300}", *others, sep="\n    ")
    return "" if is_ok else name


def _describe_tools(server: DownstreamServer) -> list[str]:
    """A line for each tool with its arguments, and for each that is left out."""
    lines = []
    for name, tool in server.tools.items():
        line = name
        line += f" {list_arguments(tool.input_schema)}"  # room: Short answers
        lines.append(line)
    for name in [*server.connection.tools, *server.connection.left_out]:
        hidden_by = server.why_left_out(name)
        if hidden_by:
            lines.append(f"{name} is left out by {hidden_by}")
    return lines


def _short_name(server: DownstreamServer) -> str:
    # In another client's file, each server is a toolbox of its own name.
    return server.name.removeprefix(f"{server.server_name}/")


def _print_context(workbench: Workbench) -> None:
    """Print what a model's context holds with the workbench, and without."""
    config = workbench.config
    own = [tool.declaration for tool in meta_tools(config, workbench.read_only)]
    tools: list[types.Tool] = []
    for server in workbench.open_servers():
        tools += server.connection.tools.values()
    # Clients pass on only these parts of a tool's declaration to a model.
    parts = {"__all__": {"name", "description", "input_schema"}}
    before = to_json(own, include=parts) + instructions(config).encode()
    natively = len(to_json(tools, include=parts))
    print("A model's context holds:")
    print(_cost(len(before)), "before anything is opened")
    print(_cost(natively), f"natively, if all {len(tools)} tools are loaded at once")
    if natively > len(before):
        print(_cost(natively - len(before)), "saved until a toolbox is opened")


def _cost(size: int) -> str:
    return f"{size:9,} bytes (about {size // 4:,} tokens)"


async def call_once(server: Server[Any], name: str, *words: str) -> int:
    """Call a tool as an MCP client does, and print its result. Returns the status."""
    if name.count("__") < 2:
        print(f"expected a name {NAME_FORM}, found {name}", file=sys.stderr)
        return 1
    given = " ".join(words)
    if words and not isinstance(decode(given), dict):
        how = 'expected a JSON object such as \'{"text": "hi"}\''
        print(f"{how}, found {given}", file=sys.stderr)
        return 1
    # In the newer era, servers could not log.
    async with Client(server, mode="legacy") as client:
        called = {"tool_name": name, "arguments": given}
        result = await client.call_tool("use_tool", called)
    output = result.model_dump_json(indent=2, by_alias=True, exclude_unset=True)
    if {block.type for block in result.content} == {"text"}:
        output = "\n".join(getattr(block, "text", "") for block in result.content)
    print(output, file=sys.stderr if result.is_error else sys.stdout)
    return int(result.is_error)


MODES["check"] = Mode(
    "[CONFIG] --check               start every server, report on each",
    {"action": "store_true"},
    lambda options, config, secrets: check(
        config, secrets, options.read_only, options.verbose
    ),
    takes=("config", "read_only"),
)
MODES["call"] = Mode(
    "[CONFIG] --call NAME [JSON]    call a tool by its full name",
    {"nargs": "+", "metavar": ("NAME", "JSON")},
    lambda options, config, secrets: call_once(
        create_server(config, secrets, options.read_only), *options.call
    ),
    takes=("config", "read_only"),
)


# === Room: Built-in toolbox ===========================================================
# A server of our own with two tools, made by `make_tool` and `tool_server` as the
# workbench is, over stdio or HTTP. It is the demo where there is no file. Without this
# room, there is neither.

import datetime
import zoneinfo

import uvicorn
from mcp.server.sse import SseServerTransport
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The loopback names of this machine, with or without a port.
LOOPBACK = re.compile(r"(?i)(localhost|\[?::1\]?|127(\.\d+){1,3})(:\d+)?")

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
        elif route == "GET /mcp" and "mcp-session-id" not in request.headers:
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
    """Serve the built-in toolbox over HTTP. uvicorn takes SIGINT and SIGTERM."""
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


DEFAULT["toolboxes"]["demo"] = {
    "description": "Echo and time. This is a demo. Give your own file as argument or "
    "in WORKBENCH_CONFIG.",
    "mcpServers": {
        "toolbox": {"command": sys.executable, "args": [__file__, "--toolbox"]},
    },
}
MODES["toolbox"] = Mode(
    "--toolbox                      serve the built-in tools, echo and time",
    {"action": "store_true"},
    lambda *_: serve_stdio(create_toolbox_server()),
    is_for_client=True,
)
MODES["http"] = Mode(
    "--toolbox --http [HOST:]PORT   ... over HTTP",
    {"metavar": "[HOST:]PORT", "type": host_and_port},
    lambda options, *_: serve_http(*options.http),
    needs=("toolbox",),
    is_for_client=True,
)


# === Room: uv =========================================================================
# `uv run` and `uvx` change the environment, which the servers inherit. Without this
# room, `python` in an entry is then the Python of the workbench.


def restore_environment() -> None:
    """Take back what `uv run` or `uvx` has added to the environment of this process.

    uv puts the `bin` or `Scripts` folder of its environment first in PATH, and sets
    UV. `uv run` also sets VIRTUAL_ENV and UV_RUN_RECURSION_DEPTH. With all this, the
    command `python` of a server would start the Python of the workbench, which lacks
    the packages of the server.
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
# program is killed. Without this room, children of servers are left behind on Windows.

if sys.platform == "win32":
    import shutil
    import subprocess

    import pywintypes  # type: ignore[import-untyped]
    import win32job  # type: ignore[import-untyped]

    class JobProcess(ServerProcess):
        """A server process in a job object, with the children that it will have."""

        async def start(self, words: list[str], options: JSON) -> None:
            # Without `which`, `npx.cmd` would not be found for the command `npx`.
            path = options["env"].get("PATH")
            words[0] = shutil.which(words[0], path=path) or words[0]
            # A group keeps Ctrl-C from the server, as a session does elsewhere.
            options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
            await super().start(words, options)
            self._job = win32job.CreateJobObject(None, "")
            kind = win32job.JobObjectExtendedLimitInformation
            limits = win32job.QueryInformationJobObject(self._job, kind)
            flag = win32job.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
            limits["BasicLimitInformation"]["LimitFlags"] |= flag
            win32job.SetInformationJobObject(self._job, kind, limits)
            # A process that has ended already cannot be assigned.
            with suppress(pywintypes.error):
                handle = self._process.get_extra_info("subprocess")._handle
                win32job.AssignProcessToJobObject(self._job, int(handle))

        def kill_group(self, number: int) -> bool:
            """End the processes of the job, unless 0; return whether there are any."""
            if number:
                win32job.TerminateJobObject(self._job, 1)
            kind = win32job.JobObjectBasicAccountingInformation
            found = win32job.QueryInformationJobObject(self._job, kind)
            return bool(found["ActiveProcesses"])

    TRANSPORTS[ProcessConfig] = JobProcess


if __name__ == "__main__":
    main()
