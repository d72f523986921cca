"""Reads the source of the program that trains for statements that cannot do what they seem to, once per process.

Of the program's own files only: those with a frame on the stack where gradients are computed, and those of the modules
that are trained. Nothing of a file is kept but the names that a remark speaks of.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType

from stethos.observe.program_line import ProgramLines, parsed_source

Remark = tuple[str, str, str]  # a name in the program, a kind, and where it is

_MOST_FILES, _MOST_BYTES = 4, 1 << 16
_MOST_FRAMES = 40
_MOST_REMARKS = 8
# Methods of tensors and arrays that give a new one, with names that nothing else has for what it does in place.
_PURE = frozenset(
    {"masked_fill", "masked_scatter", "clamp", "clamp_min", "clamp_max", "log_softmax", "softmax", "unsqueeze",
     "squeeze", "permute", "transpose", "reshape", "contiguous", "detach", "index_fill", "index_add", "index_copy",
     "scatter_add", "triu", "tril", "astype", "nan_to_num", "type_as", "sigmoid", "tanh", "relu", "flatten", "clone",
     "long", "expand_as"}
)  # fmt: skip
_PURE_OF_TORCH = _PURE | {
    "dropout", "normalize", "where", "cat", "stack", "exp", "log", "sqrt", "abs", "add", "mul", "sub", "div",
    "no_grad", "inference_mode", "enable_grad",
}  # fmt: skip
_PURE_OF_NUMPY = frozenset(
    {"clip", "log", "log1p", "exp", "sqrt", "abs", "where", "nan_to_num", "reshape", "transpose", "concatenate",
     "stack", "append", "delete", "roll", "flip", "expand_dims", "squeeze"}
)  # fmt: skip
_UNARY = frozenset({"log", "log1p", "exp", "sqrt", "abs"})
_TORCHES, _NUMPIES = frozenset({"torch", "F", "functional"}), frozenset({"np", "numpy"})
_CALLED = frozenset({"zero_grad", "step", "backward", "eval", "train", "detach", "detach_", "reset_parameters"})
_ENTERED = frozenset({"no_grad", "inference_mode", "enable_grad"})
_IN_PLACE = frozenset({"inplace", "out"})
_ENDS = re.compile(r"done|termina|not_?final|alive|is_?last|mask", re.IGNORECASE)
_STORES = frozenset({"namedtuple", "append", "push", "add", "store", "remember"})
_STORED_END = re.compile(r"^_?(is_)?(dones?|terminals?|terminated|terminations?)$", re.IGNORECASE)
_DISCOUNT = re.compile(r"^(gamma|discount)", re.IGNORECASE)
_HELD_OUT = re.compile(r"(^|_)(test|val|valid|validation|te|holdout)($|_)", re.IGNORECASE)
_TRAINED_ON = re.compile(r"(^|_)(train|training|tr)($|_)|^train", re.IGNORECASE)
_MEASURED = re.compile(
    r"^_?(test|val|valid|validation|eval|held_?out)_(loss|acc|accuracy|score|error|mse|mae|r2|f1|auc)$", re.IGNORECASE
)
_COPY = re.compile(
    r"^_?(target|teacher|tgt|ema|best|averaged?|old|frozen|reference|ref)_?(net|model|q|critic|actor|policy)"
    r"?(_net|_model|_weights|_state|_params)?$",
    re.IGNORECASE,
)
_MODEL = re.compile(
    r"^_?(policy|online|student|q|critic|actor|value|main)?_?(net|model|network|student|policy)$", re.IGNORECASE
)
_BATCHES = re.compile(r"loader|batches|_dl$|^dl$", re.IGNORECASE)
_LAYERS = frozenset(
    {"Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Embedding", "LSTM", "GRU", "RNN", "BatchNorm1d",
     "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
     "MultiheadAttention", "PReLU"}
)  # fmt: skip
_PART = re.compile(
    r"^(Dropout\d?d?|ReLU|GELU|Tanh|LayerNorm|BatchNorm\dd|Parameter|Embedding|Pos\w*Enc\w*|Pos\w*Emb\w*)$"
)
_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})
_FEATURES = re.compile(r"^(x|xs|data|inputs?|features?|images?|texts?|samples?|sentences)($|_)", re.IGNORECASE)
_LABELS = re.compile(r"^(y|ys|labels?|targets?|classes|tags)($|_)", re.IGNORECASE)
_SEEDS = frozenset({"seed", "manual_seed", "seed_everything", "set_seed", "set_state", "setstate"})
# What picks or makes features, or samples, by the labels: fitted before a split it has seen the labels of the test.
_BY_LABELS = frozenset(
    {"SelectKBest", "SelectPercentile", "SelectFromModel", "SelectFpr", "SelectFdr", "SelectFwe", "RFE", "RFECV",
     "GenericUnivariateSelect", "TargetEncoder", "LinearDiscriminantAnalysis", "PLSRegression", "SMOTE", "ADASYN",
     "RandomOverSampler", "BorderlineSMOTE", "NeighborhoodComponentsAnalysis"}
)  # fmt: skip


class SourceCheck:
    """Looks once; `remarks` of the program that calls for gradients in this frame and trains these models."""

    def __init__(self) -> None:
        self._lines = ProgramLines()

    def remarks(self, frame: FrameType | None, models: Iterable[object]) -> list[Remark]:
        found: list[Remark] = []
        for file in self._files(frame, models):
            tree = parsed_source(file, _MOST_BYTES)
            if tree is not None:
                found += [(name, kind, f"{self._lines.shown(file)}:{line}") for name, kind, line in remarks_on(tree)]
        return found[:_MOST_REMARKS]

    def _files(self, frame: FrameType | None, models: Iterable[object]) -> list[str]:
        files: dict[str, None] = {}
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if self._lines.is_own(frame.f_code.co_filename):
                files[frame.f_code.co_filename] = None
            frame = frame.f_back
        for model in models:
            file = getattr(sys.modules.get(type(model).__module__), "__file__", None)
            if isinstance(file, str) and self._lines.is_own(file):
                files[file] = None
        return list(files)[:_MOST_FILES]


def remarks_on(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """What is odd about a program: a name, a kind, and a line."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    stores_end = _stores_end(tree)
    yield from _never_reset(tree)
    yield from _never_used(tree)
    for scope in _scopes(tree, used):
        own = list(_own_nodes(scope))
        for node in own:
            if isinstance(node, ast.Expr):
                yield from _without_effect(node)
            elif isinstance(node, ast.Call):
                yield from _fitted_on_held_out(node)
            elif isinstance(node, ast.BinOp):
                yield from _scaled_by_itself(node)
                if isinstance(node.op, ast.FloorDiv) and _is_pixel(node.right):
                    yield "//", "rounded-to-zero", node.lineno
            elif isinstance(node, ast.Assign):
                yield from _not_copied(node)
                yield from _measured_on_training(node)
            elif isinstance(node, ast.For | ast.AsyncFor):
                yield from _ends_early(node)
            elif isinstance(node, ast.Try):
                yield from _hidden_errors(node)
        if isinstance(scope, ast.FunctionDef) and scope.name == "forward":
            yield from _made_in_forward(own)
        yield from _picked_before_split(own)
        yield from _shuffled_apart(own)
        if stores_end:
            yield from _beyond_the_end(scope, own)


def _scopes(tree: ast.Module, used: set[str]) -> Iterator[ast.AST]:
    """The module, and its functions but for those that nothing calls."""
    yield tree
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    methods = {id(one) for owner in classes for one in owner.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (id(node) in methods or node.name in used):
            yield node


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope in the order of the source, without those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own_nodes(node)


def _without_effect(statement: ast.Expr) -> Iterator[tuple[str, str, int]]:
    """A statement that is a call whose result alone counts, or a method that is not called."""
    value = statement.value
    if isinstance(value, ast.Attribute):
        if value.attr in _CALLED | _ENTERED:
            yield value.attr, "not-called", statement.lineno
        return
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return
    name, owner = value.func.attr, value.func.value
    if any(one.arg in _IN_PLACE or one.arg is None for one in value.keywords):
        return
    first = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    if first in _NUMPIES:
        is_lost = name in _PURE_OF_NUMPY and len(value.args) <= (1 if name in _UNARY else 3)  # the next one is `out`
    elif first in _TORCHES:
        is_lost = name in _PURE_OF_TORCH and len(value.args) <= (1 if name == "relu" else 3)  # the next is `inplace`
    else:
        is_lost = name in _PURE
    if is_lost:
        yield name, "not-entered" if name in _ENTERED else "result-unused", statement.lineno


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _fitted_on_held_out(call: ast.Call) -> Iterator[tuple[str, str, int]]:
    """What is learned from training data, as a scale, is learned anew from those that are held out."""
    is_fit = isinstance(call.func, ast.Attribute) and call.func.attr == "fit_transform"
    if is_fit and call.args and isinstance(call.args[0], ast.Name) and _HELD_OUT.search(call.args[0].id):
        yield "fit_transform", "fitted-on-held-out", call.lineno


def _scaled_by_itself(node: ast.BinOp) -> Iterator[tuple[str, str, int]]:
    """`(x_test - x_test.mean()) / x_test.std()`."""
    if (
        not isinstance(node.op, ast.Div)
        or not isinstance(node.left, ast.BinOp)
        or not isinstance(node.left.op, ast.Sub)
    ):
        return
    what = node.left.left
    if not isinstance(what, ast.Name) or not _HELD_OUT.search(what.id):
        return
    means = [one for one in ast.walk(node.left.right) if isinstance(one, ast.Attribute) and one.attr == "mean"]
    spreads = [one for one in ast.walk(node.right) if isinstance(one, ast.Attribute) and one.attr == "std"]
    if any(_name_of(one.value) == what.id for one in means) and any(_name_of(one.value) == what.id for one in spreads):
        yield what.id, "fitted-on-held-out", node.lineno


def _not_copied(node: ast.Assign) -> Iterator[tuple[str, str, int]]:
    """A second name for the model that is trained, where a copy of it is meant."""
    if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name | ast.Attribute):
        return
    name, value = _name_of(node.targets[0]), node.value
    is_name = isinstance(value, ast.Name | ast.Attribute) and not _COPY.match(_name_of(value))
    if is_name and _COPY.match(name) and _MODEL.match(_name_of(value)):
        yield name, "not-copied", node.lineno


def _measured_on_training(node: ast.Assign) -> Iterator[tuple[str, str, int]]:
    """What is called a validation or a test is given the training data, and nothing else."""
    call = node.value
    names = [_name_of(one) for one in _parts(node.targets[0])]
    if not isinstance(call, ast.Call) or not any(map(_MEASURED.match, names)):
        return
    given = [_name_of(one) for one in (*call.args, *(word.value for word in call.keywords))]
    inner = [one.id for part in call.args for one in ast.walk(part) if isinstance(one, ast.Name)]
    if any(map(_TRAINED_ON.search, given)) and not any(map(_HELD_OUT.search, (*given, *inner))):
        yield _name_of(call), "measured-on-training", node.lineno


def _ends_early(node: ast.For | ast.AsyncFor) -> Iterator[tuple[str, str, int]]:
    """A loop over batches whose last statement leaves it, always, as where a `return` is indented too far."""
    what = node.iter
    while isinstance(what, ast.Call) and _name_of(what) in ("enumerate", "tqdm", "zip") and what.args:
        what = what.args[0]
    last = node.body[-1]
    is_left = isinstance(last, ast.Return | ast.Break) and len(node.body) > 2
    if not is_left or not _BATCHES.search(_name_of(what)):
        return
    inner = [one for statement in node.body for one in ast.walk(statement)]
    has_sum = any(isinstance(one, ast.AugAssign) for one in inner)  # of something over all batches
    is_loop = any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in inner)
    if (has_sum or is_loop) and not any(isinstance(one, ast.Continue) for one in inner):
        yield _name_of(what), "ends-early", last.lineno


def _hidden_errors(node: ast.Try) -> Iterator[tuple[str, str, int]]:
    """Any error of a step is caught, and nothing is said or done."""
    inner = [one for statement in node.body for one in ast.walk(statement)]
    if not any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in inner):
        return
    for one in node.handlers:
        is_any = one.type is None or _name_of(one.type) in ("Exception", "BaseException")
        if is_any and all(isinstance(statement, ast.Pass | ast.Continue) for statement in one.body):
            yield "except", "errors-hidden", one.lineno


def _made_in_forward(nodes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
    """A layer that is new at each call: it is never trained, and knows nothing of `eval()`."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = _name_of(node.func.value)
        if owner == "nn" and node.func.attr in _LAYERS:
            yield node.func.attr, "made-in-forward", node.lineno
        is_told = len(node.args) > 2 or any(word.arg in ("training", None) for word in node.keywords)
        if owner in ("F", "functional") and node.func.attr in _DROPOUTS and not is_told:
            yield node.func.attr, "always-on", node.lineno


def _picked_before_split(nodes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
    """Features or samples that are picked by all labels, before the data are split."""
    pickers: set[str] = set()
    picked: dict[str, tuple[str, int]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, names = node.value, [_name_of(one) for target in node.targets for one in _parts(target)]
            while isinstance(call.func, ast.Attribute) and call.func.attr in ("astype", "toarray", "copy"):
                inner = call.func.value
                if not isinstance(inner, ast.Call):
                    break
                call = inner
            if _name_of(call) in _BY_LABELS:
                pickers |= set(names)
            maker = call.func.value if isinstance(call.func, ast.Attribute) else call
            is_fit = isinstance(call.func, ast.Attribute) and call.func.attr in ("fit_transform", "fit_resample")
            if is_fit and (_name_of(maker) in _BY_LABELS or _name_of(maker) in pickers) and len(call.args) == 2:
                picked |= {name: (_name_of(maker), node.lineno) for name in names[:1] if name}
        elif isinstance(node, ast.Call) and _name_of(node) in ("train_test_split", "split"):
            for one in node.args[:1]:
                if _name_of(one) in picked:
                    name, line = picked.pop(_name_of(one))
                    yield name, "picked-before-split", line


def _shuffled_apart(nodes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
    """Inputs and their labels, each brought into an order of its own."""
    shuffled: dict[str, str] = {}  # by what is shuffled: how
    for node in nodes:
        name = how = ""
        if isinstance(node, ast.Call) and _name_of(node) in _SEEDS:
            shuffled.clear()
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name_of(node.value) == "shuffle":
            given = node.value.args
            name, how = _name_of(given[0]) if len(given) == 1 else "", "shuffle"
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Call):
            how = _name_of(node.slice)
            name = _name_of(node.value) if how in ("randperm", "permutation") else ""
        if not name:
            continue
        kinds = [_FEATURES, _LABELS]
        for kind, other in zip(kinds, reversed(kinds), strict=True):
            if kind.search(name) and any(other.search(one) for one in shuffled):
                yield how, "shuffled-apart", getattr(node, "lineno", 0)
                return
        shuffled[name] = how


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _never_reset(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Sums over the batches of a pass, made once for all passes, of a class whose `reset` nothing calls but itself."""
    for owner in tree.body:
        if not isinstance(owner, ast.ClassDef):
            continue
        own = {one.name: one for one in owner.body if isinstance(one, ast.FunctionDef)}
        inner = {id(node) for node in ast.walk(owner)}
        others = [node for node in ast.walk(tree) if id(node) not in inner]
        is_sum = "reset" in own and not own.keys().isdisjoint({"update", "add", "append", "accumulate"})
        is_reset = any(isinstance(one, ast.Attribute) and one.attr == "reset" for one in others)
        if not is_sum or is_reset or any(_name_of(base) == owner.name for one in others for base in _bases(one)):
            continue
        for node in others:
            if not isinstance(node, ast.Assign) or not node.targets:
                continue
            makers = [one for one in _parts(node.value) if isinstance(one, ast.Call) and _name_of(one) == owner.name]
            if makers and any(isinstance(one, ast.Attribute) for one in _parts(node.targets[0])):
                yield owner.name, "never-reset", node.lineno
                break


def _is_pixel(node: ast.expr) -> bool:
    """The number by which pixels are brought between 0 and 1."""
    return isinstance(node, ast.Constant) and node.value in (255, 256)


def _never_used(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Parts of a model that are made in its `__init__` and used nowhere, in a file that reads no attribute by name."""
    calls = {_name_of(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if calls & {"getattr", "children", "modules", "named_modules", "named_children", "vars"}:
        return
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    for owner in tree.body:
        own = [one for one in getattr(owner, "body", ()) if isinstance(one, ast.FunctionDef)]
        names = {one.name for one in own}
        if not isinstance(owner, ast.ClassDef) or not {"__init__", "forward"} <= names:
            continue
        makers = [
            node for one in own if one.name == "__init__" for node in ast.walk(one) if isinstance(node, ast.Assign)
        ]
        for node in makers:
            target, value = node.targets[0], node.value
            is_layer = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute | ast.Name)
            is_layer = is_layer and bool(_PART.search(_name_of(value)))
            if is_layer and isinstance(target, ast.Attribute) and target.attr not in read:
                yield target.attr, "never-used", node.lineno


def _bases(node: ast.AST) -> list[ast.expr]:
    return node.bases if isinstance(node, ast.ClassDef) else []


def _stores_end(tree: ast.Module) -> bool:
    """Whether the steps of episodes are kept with a note of which one was the last: as a field, or in a tuple."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _STORED_END.match(_name_of(node.target)):
            return True
        if isinstance(node, ast.Call) and _name_of(node) in _STORES:
            inner = [one for given in node.args for one in ast.walk(given)]
            words = {one.id for one in inner if isinstance(one, ast.Name)}
            words |= {
                word for one in inner if isinstance(one, ast.Constant) and isinstance(one.value, str)
                for word in re.split(r"[\s,]+", one.value)
            }  # fmt: skip
            if len(words) > 2 and any(map(_STORED_END.match, words)):
                return True
    return False


def _beyond_the_end(scope: ast.AST, nodes: list[ast.AST]) -> Iterator[tuple[str, str, int]]:
    """A reward plus the discounted value of the next state, where nothing asks whether there is one."""
    for node in nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            continue
        later = [side for side in (node.left, node.right) if _is_discounted_value(side)]
        if later and not any(
            _ENDS.search(_name_of(one))
            for one in nodes
            if isinstance(one, ast.Attribute | ast.Name) and isinstance(one.ctx, ast.Load)
        ):
            yield "target", "beyond-the-end", node.lineno
            return


def _is_discounted_value(node: ast.expr) -> bool:
    """A product of a discount and what a model says of a state, or the best of it."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    inner = list(ast.walk(node))
    has_discount = any(isinstance(one, ast.Name | ast.Attribute) and _DISCOUNT.match(_name_of(one)) for one in inner)
    has_value = any(isinstance(one, ast.Call) for one in inner) or any(
        isinstance(one, ast.Name) and re.search(r"next|max|^q|^v", one.id, re.IGNORECASE) for one in inner
    )
    return has_discount and has_value
