"""What the user chose; the only reader of `os.environ`.

`stethos run` hands its choices to child processes through `STETHOS_*`
variables, so that any Python child joins the same run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from stethos.errors import UsageError

Preset = Literal["light", "standard", "deep"]
CaptureMode = Literal["rounds", "suspects", "all"]
DEFAULT_CAPTURE_BYTES = 1 << 30
DEFAULT_OVERHEAD: Mapping[Preset, float] = {"light": 0.01, "standard": 0.01, "deep": 0.05}
DEFAULT_LIMIT_BYTES = 4 << 30
DEFAULT_HANG_S, DEFAULT_HANG_TIMES = 30.0, 30.0

SITE_DIR = Path(__file__).resolve().parent / "_site"
_PREFIX = "STETHOS_"
MOST_RIDE_BYTES = 1 << 20  # of rows in one reply of a federated client
_ARROW_POOL, _SYSTEM_POOL = "ARROW_DEFAULT_MEMORY_POOL", "system"  # which Arrow reads as it is imported
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@dataclass(frozen=True, slots=True)
class Settings:
    """One recording's choices. `run_dir` is None until a run has been chosen."""

    run_dir: Path | None = None
    preset: Preset = "standard"
    overhead: float = DEFAULT_OVERHEAD["standard"]
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    scratch: Path | None = None
    is_main: bool = False
    strict: bool = False
    hang_after_s: float = DEFAULT_HANG_S
    hang_times: float = DEFAULT_HANG_TIMES
    agent: bool = True
    evaluation: bool | None = None  # None: allowed, but not in a federated client
    capture: CaptureMode | None = None
    capture_bytes: int = DEFAULT_CAPTURE_BYTES
    site: Path | None = None  # whose policy says which rows leave, see `collect`
    explain_nan: bool = False  # read every loss on a device, and wait for it
    sdc: float = 0.0  # share of steps whose forward and backward pass is repeated and compared

    def to_environment(self, environment: MutableMapping[str, str]) -> None:
        """Write the choices where child processes find them."""
        environment[_PREFIX + "RUN"] = str(self.run_dir)
        environment[_PREFIX + "PRESET"] = self.preset
        environment[_PREFIX + "OVERHEAD"] = repr(self.overhead)
        environment[_PREFIX + "LIMIT_BYTES"] = str(self.limit_bytes)
        environment[_PREFIX + "HANG_AFTER"] = repr(self.hang_after_s)
        environment[_PREFIX + "HANG_TIMES"] = repr(self.hang_times)
        if self.explain_nan:
            environment[_PREFIX + "EXPLAIN_NAN"] = "1"
        if self.sdc:
            environment[_PREFIX + "SDC"] = repr(self.sdc)
        if self.site is not None:
            environment[_PREFIX + "SITE"] = str(self.site)
        if self.scratch is not None:
            environment[_PREFIX + "SCRATCH"] = str(self.scratch)
        if self.capture is not None:
            environment[_PREFIX + "CAPTURE"] = self.capture
            environment[_PREFIX + "CAPTURE_BYTES"] = str(self.capture_bytes)


def from_environment() -> Settings:
    """The settings a parent `stethos run` left for this process."""
    run = os.environ.get(_PREFIX + "RUN")
    scratch = os.environ.get(_PREFIX + "SCRATCH")
    preset = parse_preset(os.environ.get(_PREFIX + "PRESET", "standard"))
    return Settings(
        run_dir=Path(run) if run else None,
        preset=preset,
        overhead=float(os.environ.get(_PREFIX + "OVERHEAD", DEFAULT_OVERHEAD[preset])),
        limit_bytes=int(os.environ.get(_PREFIX + "LIMIT_BYTES", DEFAULT_LIMIT_BYTES)),
        scratch=Path(scratch) if scratch else None,
        is_main=os.environ.pop(_PREFIX + "MAIN", "") == "1",
        strict=os.environ.get(_PREFIX + "STRICT") == "1",
        hang_after_s=hang_after_s(),
        hang_times=float(os.environ.get(_PREFIX + "HANG_TIMES", DEFAULT_HANG_TIMES)),
        agent=os.environ.get(_PREFIX + "AGENT", "1") != "0",
        evaluation=_evaluation_allowed(),
        capture=parse_capture(os.environ.get(_PREFIX + "CAPTURE")),
        capture_bytes=int(os.environ.get(_PREFIX + "CAPTURE_BYTES", DEFAULT_CAPTURE_BYTES)),
        site=site_dir(),
        explain_nan=explains_nan(),
        sdc=sdc_share(),
    )


def _evaluation_allowed() -> bool | None:
    """Whether others may run code in this process: `STETHOS_EVAL` says, and Python's own word against it counts."""
    if os.environ.get("PYTHON_DISABLE_REMOTE_DEBUG") or "disable-remote-debug" in sys._xoptions:
        return False
    return {"0": False, "1": True}.get(os.environ.get(_PREFIX + "EVAL", ""))


def wants_verdict() -> bool:
    """Whether `stethos run` ends with the verdict in one line; `STETHOS_VERDICT=0` says no."""
    return os.environ.get(_PREFIX + "VERDICT") != "0"


def child_environment(settings: Settings, *, mark_main: bool) -> dict[str, str]:
    """The environment in which `stethos run` starts its command."""
    environment = dict(os.environ)
    environment[_PREFIX + "PYTHON"] = sys.executable
    settings.to_environment(environment)
    if mark_main:
        environment[_PREFIX + "MAIN"] = "1"
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SITE_DIR), inherited)))
    return environment


class ChildEnvironment:
    """Lets Python processes that this one starts join its run, as the children of `stethos run` do.

    Frameworks that hand down `sys.path` instead of `PYTHONPATH` are provided for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._before: dict[str, str | None] = {}

    def install(self) -> None:
        wanted = child_environment(self._settings, mark_main=False)
        changed = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
        self._before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        sys.path.insert(0, str(SITE_DIR))

    def remove(self) -> None:
        if str(SITE_DIR) in sys.path:
            sys.path.remove(str(SITE_DIR))
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}


def clean_environment() -> dict[str, str]:
    """The environment for our own processes: nothing in it makes them join a run or observe themselves."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path and Path(path) != SITE_DIR)
    return environment


def drainer_environment() -> dict[str, str]:
    """The environment of a drainer: a clean one, in which Arrow allocates as `record.memory` wants it."""
    return {_ARROW_POOL: _SYSTEM_POOL, **clean_environment()}


def choose_system_pool() -> None:
    """Have Arrow allocate by the C library, once it is imported, and in child processes; the user's choice is kept."""
    os.environ.setdefault(_ARROW_POOL, _SYSTEM_POOL)


def drainer_python() -> str:
    """The interpreter that has our dependencies: the launcher's, else this one."""
    return os.environ.get(_PREFIX + "PYTHON") or sys.executable


def is_native_allowed() -> bool:
    """Whether the callbacks written in C may be used: `STETHOS_NATIVE=0` says no."""
    return os.environ.get(_PREFIX + "NATIVE", "1") != "0"


def default_runs_dir() -> Path:
    """Where runs are kept unless `--dir` says otherwise."""
    return Path(os.environ.get(_PREFIX + "DIR", "runs"))


def registry_dir() -> Path:
    """A per-user directory that lists live runs, so that a pid is found from anywhere."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "stethos"
    return Path("/tmp") / f"stethos-{os.getuid()}"


def cache_dir() -> Path:
    """Where data that can be fetched again are kept."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "stethos"


def explains_nan() -> bool:
    """Whether losses on a device are waited for, so that a broken one is explained: `STETHOS_EXPLAIN_NAN=1`."""
    return os.environ.get(_PREFIX + "EXPLAIN_NAN") == "1"


def sdc_share() -> float:
    """The share of steps that is repeated and compared: `STETHOS_SDC`, which `stethos run --sdc` sets."""
    return parse_share(os.environ.get(_PREFIX + "SDC") or "0")


def cache_bytes() -> int:
    """How much of archived runs is kept on this machine: `STETHOS_CACHE_BYTES`, such as 20GB."""
    return parse_bytes(os.environ.get(_PREFIX + "CACHE_BYTES") or "10GB")


class ObjectStoreSettings(NamedTuple):
    """Which object store is meant; credentials are read by the libraries that need them."""

    endpoint: str | None
    region: str | None
    has_key: bool  # whether a key is in the variables, not in AWS's files or from the machine


def object_store_settings() -> ObjectStoreSettings:
    """What AWS's own variables say."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return ObjectStoreSettings(endpoint, region, bool(os.environ.get("AWS_ACCESS_KEY_ID")))


@contextmanager
def cluster_variables() -> Iterator[None]:
    """While a Ray cluster is joined or started: it does not report on its use, and leaves devices alone.

    One that is started here has workers with this environment, and they do not join a run or observe themselves.
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "DAFT_ANALYTICS_ENABLED": "0"}
    before = dict(os.environ)
    wanted = {**quiet, **clean_environment()}
    for name in before.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def worker_variables() -> dict[str, str]:
    """What a cluster's workers need of our environment, and everybody on it may see."""
    return {name: value for name, value in os.environ.items() if name in ("OMP_NUM_THREADS", "XDG_CACHE_HOME")}


def store_variables() -> dict[str, str]:
    """Where the object store is, and the keys to it: secret."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def take_variables(variables: Mapping[str, str]) -> None:
    """In a process that works for another one: have these variables from here on."""
    os.environ.update(variables)


def hang_after_s() -> float:
    """When a training counts as hung: `STETHOS_HANG_AFTER`, which `stethos run --hang-after` sets."""
    try:
        return float(os.environ.get(_PREFIX + "HANG_AFTER", DEFAULT_HANG_S))
    except ValueError:
        return DEFAULT_HANG_S


def config_dir() -> Path:
    """Where what a user has to keep is kept: the keys of a gateway."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "stethos"


def site_dir() -> Path | None:
    """The site at which this process records: `STETHOS_SITE`, which `stethos run --site` sets; None for none."""
    named = os.environ.get(_PREFIX + "SITE")
    return Path(named).absolute() if named else None


def ride_bytes() -> int:
    """How much one reply of a federated client carries of its rows: `STETHOS_RIDE_BYTES`, 32kB to 1MB, else 64kB."""
    try:
        size = parse_bytes(os.environ.get(_PREFIX + "RIDE_BYTES") or "64kB")
    except UsageError:  # met in the middle of a training
        size = 64 << 10
    return min(max(size, 32 << 10), MOST_RIDE_BYTES)


def token_file() -> Path | None:
    """The file with the token for gateways, unless `--token-file` says otherwise."""
    named = os.environ.get(_PREFIX + "TOKEN_FILE")
    return Path(named) if named else None


def asked_by() -> str:
    """For whom this command asks: a gateway says so, for the audit; empty for the user himself."""
    return os.environ.get(_PREFIX + "ASKED_BY", "")


def gateway_environment(who: str, directory: Path) -> dict[str, str]:
    """The environment in which a gateway runs a command for somebody else."""
    return {**clean_environment(), _PREFIX + "ASKED_BY": who, _PREFIX + "DIR": str(directory)}


def rank_and_world() -> tuple[int | None, int | None]:
    """Rank and number of ranks from torchrun's, SLURM's or MPI's variables."""
    return _first_integer(_RANK_VARIABLES), _first_integer(_WORLD_VARIABLES)


def elastic_variables() -> dict[str, str]:
    """What torchrun tells its workers about restarts."""
    return {name: value for name, value in os.environ.items() if name.startswith("TORCHELASTIC_")}


def shared_run_name() -> str | None:
    """The name under which all tasks of one batch job meet, each with its own `stethos run`; None outside one."""
    job, tasks = os.environ.get("SLURM_JOB_ID", ""), _first_integer(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    return f"slurm-{job}-{os.environ.get('SLURM_STEP_ID', '0')}" if job.isdecimal() and tasks and tasks > 1 else None


def _first_integer(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def parse_preset(text: str) -> Preset:
    """The preset of that name; UsageError if there is none."""
    for preset in get_args(Preset):
        if text == preset:
            return preset  # type: ignore[no-any-return]
    raise UsageError(f"unknown preset {text!r}", hint=f"choose one of {', '.join(get_args(Preset))}")


def parse_capture(text: str | None) -> CaptureMode | None:
    """What of a federation is captured; None for nothing."""
    if not text:
        return None
    for mode in get_args(CaptureMode):
        if text == mode:
            return mode  # type: ignore[no-any-return]
    raise UsageError(f"unknown capture {text!r}", hint=f"choose one of {', '.join(get_args(CaptureMode))}")


def parse_share(text: str) -> float:
    """Read `1%` or `0.01` as a share between 0 and 1."""
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UsageError(f"not a share: {text!r}", hint="write 1% or 0.01") from None
    if not 0 <= value <= 1:
        raise UsageError(f"{text} is outside 0 to 100%", hint="write 1% or 0.01")
    return value


def parse_bytes(text: str) -> int:
    """Read `500MB`, `4GB` or a plain number of bytes, at least one."""
    units = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
    digits = text.upper().rstrip("BKMGT")
    unit = text.upper()[len(digits) :].strip()
    try:
        size = int(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise UsageError(f"not a size: {text!r}", hint="write 500MB or 4GB")
    return size
