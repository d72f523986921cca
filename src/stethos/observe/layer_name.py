"""True parameter names for an optimizer, without being given the model.

An optimizer knows tensors, not names. The names are found by looking for the
live modules that own those tensors. No forward hook is involved: such hooks
end up inside `torch.compile`'s graphs.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch.nn.parameter import UninitializedParameter

SCAN_LIMIT = 8
_MOST_FOUND = 16

_PREFIXES = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPERS = frozenset(
    {
        "CheckpointWrapper",
        "DataParallel",
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        "OptimizedModule",
    }
)

Structure = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The names of an optimizer's parameters, in the order of its groups.

    `model` is the root module's class (or the name the user gave it), several
    joined by "+", or "" when no owner was found. `root` is the module that owns
    most of the parameters; None when it is unknown or when the names were taken
    over from another model of the same structure.
    """

    model: str
    layers: tuple[str, ...]
    root: weakref.ref[torch.nn.Module] | None


@dataclass(frozen=True, slots=True)
class _Cached:
    named: ParameterNames
    parameter_ids: tuple[int, ...]


class LayerNames:
    """Finds and remembers names; one object per process.

    Not thread-safe: call it from under the recorder's lock. Holds modules
    weakly and parameters not at all.
    """

    def __init__(self) -> None:
        self.scans = 0
        self._known: list[tuple[weakref.ref[torch.nn.Module], str | None]] = []
        self._found: deque[weakref.ref[torch.nn.Module]] = deque(maxlen=_MOST_FOUND)
        self._cache: dict[Structure, _Cached] = {}
        self._last: tuple[ParameterNames, list[weakref.ref[torch.Tensor]]] | None = None

    def know(self, module: torch.nn.Module, name: str | None = None) -> None:
        """Prefer this module as an owner; `name` replaces its class name."""
        self._known = [(ref, given) for ref, given in self._known if ref() is not None and ref() is not module]
        self._known.append((weakref.ref(module), name))
        self._last = None

    def of(self, optimizer: torch.optim.Optimizer) -> ParameterNames:
        """Name an optimizer's parameters.

        Modules given to `know` that own every parameter are asked first: what the
        user said is worth more than a resemblance. Then come modules found
        before (one optimizer per layer needs one search), then a model of the
        same shapes and dtypes seen before (so a deep copy per client is free),
        then a search of all live modules. Names that torch itself put into the
        groups (`param_names`) win over those found. A parameter without a
        known owner is `param_<position>`.

        A search costs 65-105 ms with torch and its compiler imported (365,000 live
        objects), on the first sight of a structure; after `SCAN_LIMIT` searches
        there are no more. Objects frozen by `gc.freeze()` are not found by it.
        """
        parameters = parameters_of(optimizer)
        named = self._named_lately(parameters)
        if named is None:
            named = self._named(parameters)
            self._last = named, list(map(weakref.ref, parameters))
        given = _given_names(optimizer)
        if given is None or len(given) != len(parameters):
            return named
        return ParameterNames(named.model, tuple(_stripped(name) for name in given), named.root)

    def _named_lately(self, parameters: Sequence[torch.Tensor]) -> ParameterNames | None:
        """The last answer, if these are the very parameters: a model that each client trains gets many optimizers."""
        if self._last is None:
            return None
        named, refs = self._last
        is_same = len(refs) == len(parameters) and all(ref() is one for ref, one in zip(refs, parameters, strict=True))
        return named if is_same and named.root is not None and named.root() is not None else None

    def _named(self, parameters: Sequence[torch.Tensor]) -> ParameterNames:
        modules = [module for ref, _ in self._known if (module := ref()) is not None]
        names = {id(ref()): name for ref, name in self._known}
        named, is_complete = _named_by(modules, parameters, names)
        if is_complete:
            return named
        found = [module for ref in self._found if (module := ref()) is not None]
        named_by_found, is_complete = _named_by([*modules, *found], parameters, names)
        if is_complete:
            return named_by_found
        ids = tuple(map(id, parameters))
        structure = tuple((parameter.shape, parameter.dtype) for parameter in parameters)
        cached = self._cache.get(structure)
        if cached is not None:
            is_same = cached.parameter_ids == ids
            return cached.named if is_same else ParameterNames(cached.named.model, cached.named.layers, None)
        if self.scans >= SCAN_LIMIT:
            return named
        self.scans += 1
        roots = _roots_of(_live_modules(), set(ids))
        self._found.extend(map(weakref.ref, roots))
        named, _ = _named_by([*modules, *roots], parameters, names)
        self._cache[structure] = _Cached(named, ids)
        return named


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """An optimizer's parameters in the order of its groups, without those of lazy modules that were never called."""
    return [p for group in optimizer.param_groups for p in group["params"] if type(p) is not UninitializedParameter]


def module_names(root: torch.nn.Module) -> dict[int, str]:
    """Name every module under `root` by its `id`: dotted paths without wrappers' parts, the root by its class."""
    return {id(module): path or _class_of(root) for path, module in reversed(list(_walk(root)))}


def _given_names(optimizer: torch.optim.Optimizer) -> list[str] | None:
    names: list[str] = []
    for group in optimizer.param_groups:
        if "param_names" not in group:
            return None
        names += group["param_names"]
    return names


def _stripped(path: str) -> str:
    """A path without the parts that wrappers add; `module` only in front, as it may be the user's own name."""
    parts = [part for part in path.removeprefix("module.").split(".") if part not in _PREFIXES[1:]]
    return ".".join(parts)


def _children(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The module's children, even of one whose `__init__` did not run to its end."""
    for name, child in dict(vars(module).get("_modules") or {}).items():
        if child is not None:
            yield name, child


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in dict(vars(module).get("_parameters") or {}).items():
        if parameter is not None:
            yield name, parameter


def _walk(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module under `root` with its path, each once, as `named_modules()` orders them; wrappers leave no part."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        is_wrapper = type(module).__name__ in _WRAPPERS
        for name, child in reversed(list(_children(module))):
            part = "" if is_wrapper and name in _PREFIXES else name
            waiting.append((f"{path}.{part}" if path and part else path or part, child))


def _class_of(root: torch.nn.Module) -> str:
    """The class of the first module under the wrappers."""
    module = root
    while type(module).__name__ in _WRAPPERS:
        inner = next((child for name, child in _children(module) if name in _PREFIXES), None)
        if inner is None:
            break
        module = inner
    kind = type(module)
    is_sharded = any(base.__name__ == "FSDPModule" for base in kind.__bases__)  # FSDP2 makes a subclass of its own
    return (kind.__bases__[-1] if is_sharded else kind).__name__


def _live_modules() -> list[torch.nn.Module]:
    """Every module the garbage collector knows, looked at by exact type alone.

    Neither `isinstance` nor an attribute is used: a weakref proxy, a half-built object or
    a lazy module would run code of its own. Types are compared by id, as a metaclass may
    make them unhashable.
    """
    kinds = [torch.nn.Module]
    for kind in kinds:
        kinds += kind.__subclasses__()
    ids = set(map(id, kinds))
    objects = gc.get_objects()
    return list(compress(objects, map(ids.__contains__, map(id, map(type, objects)))))


def _roots_of(modules: Sequence[torch.nn.Module], wanted: set[int]) -> list[torch.nn.Module]:
    """The outermost modules above those that own a wanted parameter."""
    parents: dict[int, list[torch.nn.Module]] = {}
    for module in modules:
        for _, child in _children(module):
            parents.setdefault(id(child), []).append(module)
    owners = [m for m in modules if any(id(parameter) in wanted for _, parameter in _parameters(m))]
    seen = set(map(id, owners))
    roots = []
    for module in owners:  # grows while it is read: upwards through all ancestors
        above = parents.get(id(module), [])
        if not above:
            roots.append(module)
        for parent in above:
            if id(parent) not in seen:
                seen.add(id(parent))
                owners.append(parent)
    return roots


def _named_by(
    roots: Iterable[torch.nn.Module], parameters: Sequence[torch.Tensor], given: dict[int, str | None]
) -> tuple[ParameterNames, bool]:
    """Name parameters after the fewest roots that own them; say whether all were found.

    The root that owns most is taken first; of equals the smallest, so a known part beats the whole.
    """
    missing = set(map(id, parameters))
    owned = [(root, names_under(root)) for root in roots]
    chosen: list[tuple[torch.nn.Module, dict[int, str]]] = []
    while owned and missing:
        best = max(owned, key=lambda entry: (len(missing & entry[1].keys()), -len(entry[1])))
        if not missing & best[1].keys():
            break
        chosen.append(best)
        missing -= best[1].keys()
    classes = [given.get(id(root)) or _class_of(root) for root, _ in chosen]
    layers = {}
    for (_, names), prefix in reversed(list(zip(chosen, _numbered(classes), strict=True))):
        layers.update({key: f"{prefix}.{name}" if len(chosen) > 1 else name for key, name in names.items()})
    named = tuple(layers.get(id(parameter), f"param_{index}") for index, parameter in enumerate(parameters))
    return ParameterNames("+".join(classes), named, weakref.ref(chosen[0][0]) if chosen else None), not missing


def names_under(root: torch.nn.Module) -> dict[int, str]:
    """The parameters under `root` by id; one that is shared has its first name."""
    names: dict[int, str] = {}
    for path, module in _walk(root):
        for name, parameter in _parameters(module):
            names.setdefault(id(parameter), f"{path}.{name}" if path else name)
    return names


def _numbered(classes: Sequence[str]) -> list[str]:
    """The classes, those that occur more than once with a number."""
    total, so_far = Counter(classes), Counter[str]()
    numbered = []
    for name in classes:
        so_far[name] += 1
        numbered.append(f"{name}_{so_far[name]}" if total[name] > 1 else name)
    return numbered
