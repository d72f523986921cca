"""Let an assistant read the runs of a directory over the Model Context Protocol (MCP).

    stethos mcp --dir runs

It speaks MCP over stdin and stdout; give a client this command line and it starts the server itself. Its tools
list, diagnose, compare and query runs and show where live processes are. They only read: nothing changes a run or a
training. Needs `pip install "stethos[mcp]"`.
"""

from __future__ import annotations

import argparse

from stethos.cli.task.target import add_directory
from stethos.settings import default_runs_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)


def run(arguments: argparse.Namespace) -> int:
    from stethos.cli.task.mcp_server import make_server

    make_server(arguments.dir or default_runs_dir()).run("stdio")
    return 0
