"""Let an assistant read the runs of a directory, by the Model Context Protocol.

    stethos mcp --dir runs

It speaks MCP over stdin and stdout; a client starts it by itself, given that command line. Its tools list, diagnose,
compare and query runs and show where live processes are. They only read: nothing changes a run or a training. Needs
`pip install "stethos[mcp]"`.
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
