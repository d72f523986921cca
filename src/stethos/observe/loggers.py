"""Hears what a program tells TensorBoard, W&B, MLflow, Lightning, Hugging Face or argparse; nothing is sent anywhere.

Each function is wrapped when its module is imported and does what it always did; afterwards what it was given is
recorded. Of loggers that call each other only the outermost is heard, so that no value is recorded twice.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from stethos.guard import attempt
from stethos.observe.media import MediaWriter
from stethos.observe.session import Session

_MOST_NESTED = 4
_MOST_IN_A_LIST = 4  # images of one call
_MOST_VALUES = 10_000  # in one call
_LIGHTNING = "trainer.connectors.logger_connector.logger_connector"
_HYPERPARAMETERS = (
    "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
    "weight_decay", "warmup_steps", "warmup_ratio", "lr_scheduler_type", "optim", "seed", "fp16", "bf16",
)  # fmt: skip


class Heard(NamedTuple):
    """A function of somebody's module, and what is recorded of its calls; `owner` is "" for the module itself."""

    module: str
    owner: str
    names: tuple[str, ...]
    record: Callable[..., None]
    is_after: bool = False  # it is told the result as well, first


class LoggerWatch:
    """Wraps the functions of `HEARD` for one session, and gives them back."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.media = MediaWriter(session)
        session.put_media = functools.partial(self.media.attempt, self.media.put_value)
        self._depth = threading.local()
        self._undo: list[Callable[[], None]] = []
        self._is_active = True

    def install(self, after_import: Callable[[str, Callable[[ModuleType], None]], None]) -> None:
        """Wrap what is imported already, and the rest when it is."""
        self.session.on_close.append(self.uninstall)
        for heard in HEARD:
            loaded = sys.modules.get(heard.module)
            if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
                self._wrap(heard, loaded)
            else:
                after_import(heard.module, functools.partial(self._wrap, heard))

    def uninstall(self) -> None:
        self._is_active = False
        while self._undo:
            self._undo.pop()()

    def _wrap(self, heard: Heard, module: ModuleType) -> None:
        owner = getattr(module, heard.owner, None) if heard.owner else module
        for name in heard.names:
            if callable(getattr(owner, name, None)):
                self._replace(owner, name, heard)

    def _replace(self, owner: Any, name: str, heard: Heard) -> None:
        original, was_own = getattr(owner, name), name in vars(owner)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._depth, "count", 0)
            self._depth.count = depth + 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth.count = depth
            if depth == 0 and self._is_active:
                given = (result, *args) if heard.is_after else args
                self.session.guard.run("loggers", heard.record, self, *given, **kwargs)
            return result

        def restore() -> None:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original) if was_own else delattr(owner, name)

        setattr(owner, name, wrapper)
        self._undo.append(restore)

    def put(self, values: Any, step: Any = None) -> None:
        """The numbers in a mapping; what is no number is left to the other logger."""
        for count, (name, value) in enumerate(_numbers_in(values)):
            if count >= _MOST_VALUES:
                self.session.note_gap("loggers", f"more than {_MOST_VALUES:,} values in one call")
                return
            self.session.put_metric(name, value, step)


def _numbers_in(values: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in values.items() if isinstance(values, Mapping) else ():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < _MOST_NESTED:
            yield from _numbers_in(value, f"{name}.", depth + 1)
        elif is_number(value):
            yield name, value


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a tensor or array of one."""
    return isinstance(value, int | float) or (hasattr(value, "item") and attempt(_size_of, value) == 1)


def _size_of(value: Any) -> int:
    return int(value.numel()) if hasattr(value, "numel") else int(value.size)


# What is recorded of each call: the arguments are those of the function, `self` included ------------------------------


def _scalar(
    watch: LoggerWatch, writer: Any, tag: Any, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    watch.session.put_metric(str(tag), scalar_value, global_step)


def _scalars(
    watch: LoggerWatch, writer: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    watch.put({f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()}, global_step)


def _hparams(watch: LoggerWatch, writer: Any, hparam_dict: Any, metric_dict: Any = None, *_: Any, **__: Any) -> None:
    watch.session.note_config("logger", hparam_dict)
    watch.put(metric_dict)


def _text(
    watch: LoggerWatch, writer: Any, tag: Any, text_string: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    watch.media.attempt(watch.media.put_text, str(tag), text_string, global_step)


def _histogram(
    watch: LoggerWatch, writer: Any, tag: Any, values: Any, global_step: Any = None, *_: Any, **__: Any
) -> None:
    if not watch.media.is_full:
        watch.media.attempt(watch.media.put_histogram, str(tag), values, global_step)


def _image(
    watch: LoggerWatch, writer: Any, tag: Any, img_tensor: Any, global_step: Any = None, walltime: Any = None,
    dataformats: str = "CHW", **_: Any,
) -> None:  # fmt: skip
    if not watch.media.is_full:
        watch.media.attempt(watch.media.put_image, str(tag), img_tensor, global_step, dataformats)


def _images(
    watch: LoggerWatch, writer: Any, tag: Any, img_tensor: Any, global_step: Any = None, walltime: Any = None,
    dataformats: str = "NCHW", **_: Any,
) -> None:  # fmt: skip
    """The first few of a batch of images."""
    first = attempt(operator.getitem, img_tensor, slice(_MOST_IN_A_LIST)) if dataformats[:1] == "N" else None
    for number, image in enumerate(first if first is not None else ()):
        _image(watch, writer, f"{tag}/{number}", image, global_step, dataformats=dataformats[1:])


def _wandb_log(watch: LoggerWatch, run: Any, data: Any = None, step: Any = None, *_: Any, **__: Any) -> None:
    watch.put(data, step)
    wandb_media = functools.partial(_wandb_media, watch)
    for name, value in data.items() if not watch.media.is_full else ():
        if isinstance(value, str):
            watch.media.attempt(watch.media.put_text, str(name), value, step)
        elif isinstance(value, list | tuple) and value and _is_of_wandb(value[0]):
            for number, one in enumerate(value[:_MOST_IN_A_LIST]):
                watch.media.attempt(wandb_media, f"{name}/{number}", one, step)
        elif _is_of_wandb(value):
            watch.media.attempt(wandb_media, str(name), value, step)
        elif not isinstance(value, Mapping) and not is_number(value):
            watch.media.attempt(watch.media.put_value, str(name), value, step)


def _is_of_wandb(value: Any) -> bool:
    return type(value).__module__.startswith("wandb.")


def _wandb_media(watch: LoggerWatch, name: str, value: Any, step: Any) -> None:
    """An image, a table or a histogram of W&B; other media are left to W&B."""
    match type(value).__name__:
        case "Image" if value.image is not None:
            watch.media.put_image(name, value.image.convert("RGB"), step, "HWC")
        case "Table":
            watch.media.put_table(name, value.columns, value.data, step)
        case "Histogram":
            watch.media.put_counts(name, value.histogram, value.bins, step)


def _wandb_init(watch: LoggerWatch, run: Any, *_: Any, **__: Any) -> None:
    _wandb_config(watch, run.config)


def _wandb_config(watch: LoggerWatch, config: Any, *_: Any, **__: Any) -> None:
    known = dict(config.items()) if hasattr(config, "items") else {}
    watch.session.note_config("logger", {key: value for key, value in known.items() if not str(key).startswith("_")})


def _mlflow_metric(
    watch: LoggerWatch,
    client: Any,
    run_id: Any,
    key: Any,
    value: Any,
    timestamp: Any = None,
    step: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    watch.session.put_metric(str(key), value, step)


def _mlflow_batch(
    watch: LoggerWatch, client: Any, run_id: Any, metrics: Any = (), params: Any = (), *_: Any, **__: Any
) -> None:
    for metric in metrics:
        watch.session.put_metric(str(metric.key), metric.value, metric.step)
    if params:
        watch.session.note_config("logger", {param.key: param.value for param in params})


def _mlflow_text(watch: LoggerWatch, client: Any, run_id: Any, text: Any, artifact_file: Any, *_: Any) -> None:
    watch.media.attempt(watch.media.put_text, str(artifact_file), text)


def _mlflow_image(
    watch: LoggerWatch, client: Any, run_id: Any, image: Any, artifact_file: Any = None, key: Any = None,
    step: Any = None, *_: Any, **__: Any,
) -> None:  # fmt: skip
    if not watch.media.is_full:
        content = attempt(image.to_pil) if hasattr(image, "to_pil") else image
        watch.media.attempt(watch.media.put_value, str(key or artifact_file), content, step)


def _mlflow_table(watch: LoggerWatch, client: Any, run_id: Any, data: Any, artifact_file: Any, *_: Any) -> None:
    watch.media.attempt(watch.media.put_value, str(artifact_file), data)


def _mlflow_param(watch: LoggerWatch, client: Any, run_id: Any, key: Any, value: Any, *_: Any, **__: Any) -> None:
    watch.session.note_config("logger", {str(key): value})


def _trainer_log(watch: LoggerWatch, trainer: Any, logs: Any, *_: Any, **__: Any) -> None:
    watch.put(logs, trainer.state.global_step)
    found = {name: getattr(trainer.args, name, None) for name in _HYPERPARAMETERS}
    watch.session.note_config("logger", {name: value for name, value in found.items() if value is not None})


def _lightning_log(watch: LoggerWatch, connector: Any, metrics: Any, step: Any = None, *_: Any, **__: Any) -> None:
    if step is None:
        step = metrics.get("step")
    if step is None:
        step = attempt(lambda: connector.trainer.fit_loop.epoch_loop._batches_that_stepped)
    watch.put({name: value for name, value in metrics.items() if name != "step"}, step)


def _module_settings(watch: LoggerWatch, module: Any, *_: Any, **__: Any) -> None:
    watch.session.note_config("logger", dict(module.hparams))


def _accelerate_log(watch: LoggerWatch, accelerator: Any, values: Any, step: Any = None, *_: Any, **__: Any) -> None:
    watch.put(values, step)


def _ray_report(watch: LoggerWatch, metrics: Any = None, *_: Any, **__: Any) -> None:
    watch.put(metrics)


def _parsed(watch: LoggerWatch, result: Any, parser: Any, *_: Any, **__: Any) -> None:
    """`parse_known_args` of the program itself; what installed packages parse is theirs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_parser(frame.f_code.co_filename):
        frame = frame.f_back
    if "-packages/" not in frame.f_code.co_filename:
        watch.session.note_config("arguments", vars(result[0]))


def _is_parser(file: str) -> bool:
    return file.endswith(("/argparse.py", "/hf_argparser.py", "/loggers.py", "/guard.py"))


def _composed(watch: LoggerWatch, config: Any, *_: Any, **__: Any) -> None:
    content = sys.modules["omegaconf"].OmegaConf.to_container(config, resolve=False)
    watch.session.note_config("arguments", {key: value for key, value in content.items() if key != "hydra"})


def note_arguments_in_sight(session: Session, frame: Any) -> None:
    """Arguments that were parsed before the recording began: where `watch` is called, and in its module."""
    parsers = sys.modules.get("argparse")
    for values in (frame.f_globals, frame.f_locals) if parsers is not None else ():
        for value in list(values.values()):
            if isinstance(value, parsers.Namespace):  # type: ignore[union-attr]
                session.note_config("arguments", vars(value))


_WRITER = ("add_scalar", _scalar), ("add_scalars", _scalars), ("add_hparams", _hparams), ("add_text", _text)
_MORE = ("add_histogram", _histogram), ("add_image", _image), ("add_images", _images)
HEARD: tuple[Heard, ...] = (
    *(Heard(module, "SummaryWriter", (name,), record)
      for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer") for name, record in (*_WRITER, *_MORE)),
    Heard("wandb", "", ("init",), _wandb_init, is_after=True),
    Heard("wandb.sdk.wandb_run", "Run", ("log",), _wandb_log),
    Heard("wandb.sdk.wandb_config", "Config", ("update", "__setitem__", "__setattr__"), _wandb_config),
    Heard("mlflow.tracking.client", "MlflowClient", ("log_metric",), _mlflow_metric),
    Heard("mlflow.tracking.client", "MlflowClient", ("log_batch",), _mlflow_batch),
    Heard("mlflow.tracking.client", "MlflowClient", ("log_param",), _mlflow_param),
    Heard("mlflow.tracking.client", "MlflowClient", ("log_text",), _mlflow_text),
    Heard("mlflow.tracking.client", "MlflowClient", ("log_image",), _mlflow_image),
    Heard("mlflow.tracking.client", "MlflowClient", ("log_table",), _mlflow_table),
    Heard("transformers.trainer", "Trainer", ("log",), _trainer_log),
    Heard("ray.train", "", ("report",), _ray_report),
    Heard("accelerate.accelerator", "Accelerator", ("log",), _accelerate_log),
    *(Heard(f"{package}.{_LIGHTNING}", "_LoggerConnector", ("log_metrics",), _lightning_log)
      for package in ("lightning.pytorch", "pytorch_lightning")),
    *(Heard(f"{package}.core.mixins.hparams_mixin", "HyperparametersMixin", ("save_hyperparameters",), _module_settings)
      for package in ("lightning.pytorch", "pytorch_lightning")),
    Heard("argparse", "ArgumentParser", ("parse_known_args",), _parsed, is_after=True),
    Heard("hydra._internal.hydra", "Hydra", ("compose_config",), _composed, is_after=True),
)  # fmt: skip
