"""Which permission is missing to look into a process, and the exact way to grant it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CAP_SYS_PTRACE = 19


def why_not_readable(pid: int) -> str:
    """What stands between us and a process of another one's, in one line."""
    owner = owner_of(pid)
    if owner is None:
        return "the process has ended; `stethos ls` lists what is alive"
    if owner != os.geteuid() and not has_ptrace():
        return f"it belongs to uid {owner} and you are uid {os.geteuid()}: run the command as that user, or with sudo"
    if platform.system() != "Linux":
        return "run the command with sudo"
    scope = ptrace_scope()
    if scope == 1 and not has_ptrace():
        return (
            "kernel.yama.ptrace_scope is 1: run the command with sudo, allow it with "
            "`sudo sysctl kernel.yama.ptrace_scope=0`, or start the program with `stethos run`, whose agent needs none"
        )
    if scope is not None and scope >= 2 and not has_ptrace():
        return f"kernel.yama.ptrace_scope is {scope}: only a process with CAP_SYS_PTRACE may look; use sudo"
    if is_in_container() and not has_ptrace():
        return (
            "in a container the capability SYS_PTRACE is missing: start it with `docker run --cap-add SYS_PTRACE`, or "
            "in Kubernetes with securityContext.capabilities.add: [SYS_PTRACE]"
        )
    return "is it a Python process, and one that stays? `stethos ls` lists the observed ones"


def owner_of(pid: int) -> int | None:
    """The effective uid of a process; None if there is none."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
    except OSError:
        return None
    return None


def has_ptrace() -> bool:
    """Whether this process has CAP_SYS_PTRACE."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    except OSError:
        return False
    return False


def ptrace_scope() -> int | None:
    """Yama's setting; None where there is no Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def is_in_container() -> bool:
    """Whether this looks like a container, where rights are often taken away."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    try:
        return any(word in Path("/proc/1/cgroup").read_text(encoding="utf-8") for word in ("docker", "kubepods"))
    except OSError:
        return False
