"""PRG013: a function of torch's is called at the wrong place, or with arguments that it takes for something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.program.inspected import COLUMNS, NEEDS, Inspected, details, inspected_of, merge_ranks
from stethos.diagnose.training import STEP_COLUMNS
from stethos.diagnose.window import Window

# By kind: what is wrong, what to do, in which share of the calls it has to be, how sure.
KINDS: dict[str, tuple[str, str, float, float]] = {
    "targets-not-signs": (
        "pairs that do not belong together are labelled 0, but the loss expects -1 and ignores 0",
        "use 1 and -1 as targets: `2 * target - 1`", 0.5, 0.95),
    "swapped-arguments": (
        "the loss is given its arguments the other way round: the targets first",
        "pass the model's output first, then the target", 0.5, 0.93),
    "targets-not-shares": (
        "the targets are not probabilities: those of a sample do not add up to 1",
        "normalise the targets; for several classes at once use `binary_cross_entropy_with_logits`", 0.5, 0.85),
    "weights-favour-frequent": (
        "class weights favour the commonest class instead of the rare ones",
        "weight a class by the inverse of its number of samples, in the order of the classes", 0.5, 0.88),
    "targets-too-long": (
        "samples have more letters than the model has time steps, so the loss is infinite or leaves them out",
        "check `input_lengths`; leave such samples out, reduce the stride of the model, or pass `zero_infinity=True`",
        0.0, 0.93),
    "blank-in-targets": (
        "the letters to be told contain the blank of CTC, which stands for none",
        "number letters from 1 on and leave 0 to the blank, or pass `blank=` another number", 0.3, 0.95),
    "no-log-probabilities": (
        "the loss is given values that are not log-probabilities",
        "apply `log_softmax` over the classes first", 0.5, 0.95),
    "masked-answers": (
        "the right answers are masked: their outputs are hugely negative",
        "compare the labels with the mask: in contrastive learning a sample's answer is its other view, not itself",
        0.5, 0.93),
    "similarity-to-itself": (
        "each sample is compared with itself, too, and that is always the most alike",
        "leave the diagonal out: `similarity.fill_diagonal_(float('-inf'))`", 0.5, 0.88),
    "identical-pairs": (
        "both members of each pair are the same, so telling them from others is trivial",
        "make two views by augmentation, or pick another sample of the same class", 0.5, 0.9),
    "clipped-after-step": (
        "gradients are clipped before `backward()` or after the optimizer's step, where clipping has no effect",
        "call `clip_grad_norm_` between `backward()` and `optimizer.step()`", 0.8, 0.95),
    "clipped-nothing": (
        "gradients are clipped that are not there: the parameters given to clipping have none",
        "pass `model.parameters()` anew to each call: a generator is empty after its first use", 0.8, 0.88),
    "loads-itself": (
        "a model loads its own weights, so nothing changes",
        "pass the state of the other model; to come back to an earlier state keep `copy.deepcopy(model.state_dict())`: "
        "a state is not a copy", 0.0, 0.95),
    "nothing-loaded": (
        "`load_state_dict(strict=False)` loads next to nothing: the names do not match",
        "compare the names; often a prefix such as `module.` has to be removed", 0.0, 0.9),
    "not-resumed": (
        "a training goes on from a checkpoint without the state of its optimizer: momentum and schedule begin anew",
        "load all that the checkpoint holds: `optimizer.load_state_dict(...)`, `scheduler.load_state_dict(...)`",
        0.0, 0.85),
    "seeded-each-step": (
        "the same seed is set again at every step: random numbers, and what is drawn by them, repeat",
        "call `manual_seed` once, before the training", 0.5, 0.93),
    "result-unused": (
        "the result of a call is thrown away: it gives a new tensor, and changes nothing in place",
        "assign the result, `x = x.masked_fill(...)`, or call what works in place, `x.masked_fill_(...)`", 0.0, 0.93),
    "not-called": (
        "a method is named but not called, which does nothing", "add the parentheses: `optimizer.zero_grad()`",
        0.0, 0.95),
    "not-entered": (
        "a context is made but not entered, which does nothing", "use it with `with`: `with torch.no_grad():`",
        0.0, 0.93),
    "fitted-on-held-out": (
        "held-out data are scaled, or encoded, by what they are themselves: `fit_transform` learns it from them",
        "fit on the training data and call `transform` on the others", 0.0, 0.85),
    "picked-before-split": (
        "features or samples are picked by all labels before the data are split: those of the held-out part are known",
        "split first, then fit the selection, or the resampling, on the training part alone", 0.0, 0.88),
    "shuffled-apart": (
        "inputs and labels are shuffled one after the other, each into an order of its own: they no longer belong "
        "together", "draw one permutation and index both with it", 0.0, 0.93),
    "never-used": (
        "a part of the model is made and never used: its `forward` leaves it out",
        "use it in `forward`, or remove it", 0.0, 0.8),
    "rounded-to-zero": (
        "pixels are divided by `//`, which leaves nothing but 0 and 1", "use `/`", 0.0, 0.92),
    "not-copied": (
        "a second name is given to the model that is trained, where a copy of it is meant: both are one",
        "make a copy: `copy.deepcopy(model)`", 0.0, 0.88),
    "measured-on-training": (
        "what is called a validation or a test is measured on the training data", "pass the held-out data", 0.0, 0.85),
    "ends-early": (
        "a loop over batches is left at the end of its first turn: all other batches are never seen",
        "move the `return` or `break` out of the loop", 0.0, 0.85),
    "errors-hidden": (
        "errors of training steps are caught and nothing is said: steps may fail unnoticed",
        "catch what you expect alone, and print it", 0.0, 0.8),
    "made-in-forward": (
        "a layer is made anew in each forward pass: its weights are never trained, and `eval()` does not reach it",
        "make it once, in `__init__`", 0.0, 0.92),
    "always-on": (
        "dropout is called without `training=`, so it stays on in evaluations",
        "pass `training=self.training`, or use `nn.Dropout`", 0.0, 0.9),
    "never-reset": (
        "a sum over batches is made once and never reset, so each pass over the data shows the mean of all so far",
        "call its `reset()` at the start of each pass", 0.0, 0.83),
    "beyond-the-end": (
        "the value of a next state is added also where the episode has ended and there is none",
        "multiply it by `1 - done`: the ends are stored with the steps, but not read where targets are made",
        0.0, 0.85),
    "empty-loader": (
        "a data loader gives no batch at all, so nothing is trained in its loop",
        "use a smaller `batch_size`, or `drop_last=False`", 0.0, 0.93),
}  # fmt: skip

# Those that are read in the source of the program; of them what was seen is a place.
_IN_SOURCE = frozenset(
    {
        "result-unused",
        "not-called",
        "not-entered",
        "fitted-on-held-out",
        "picked-before-split",
        "beyond-the-end",
        "shuffled-apart",
    }
)


@dataclass(frozen=True, slots=True)
class WrongCall:
    """A torch function is called where it has no effect, or with arguments that mean something else to it.

    What it looks at: the first calls of losses, of gradient clipping and of `torch.load`, all calls of
    `load_state_dict`, and data loaders that give no batch; and the source of the program that trains, up to 64 KB of
    each of its own files: results that are thrown away, methods that are named but not called, what is fitted before
    a split.
    Why it matters: torch accepts such arguments silently.
    Not a fault when: a sample is left out of the loss on purpose by a target of 0, or a checkpoint's weights begin
    another training with the same learning rate.
    Next step: correct the call that the finding names.
    """

    code: ClassVar[str] = "PRG013"
    name: ClassVar[str] = "wrong-call"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = NEEDS
    reads: ClassVar[Needs] = {"inspections": COLUMNS, "steps": STEP_COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset(
        {"plateau", "slow-progress", "divergence", "exploding-gradients", "weight-explosion", "implausible-loss",
         "non-finite-loss", "non-finite-gradients", "non-finite-weights", "oscillation", "series-anomaly",
         "learning-rate-too-high", "constant-outputs", "dead-units", "overfitting", "detached-loss", "odd-evaluation"}
    )  # fmt: skip

    def check(self, window: Window) -> Iterator[Finding]:
        yield from merge_ranks(self._found(window))

    def _found(self, window: Window) -> Iterator[Finding]:
        for one in inspected_of(window):
            if not one.is_federated:
                yield from self._check(one)

    def _check(self, one: Inspected) -> Iterator[Finding]:
        last = {row["kind"]: (row, step) for row, step in zip(details(one.calls), one.calls["step"], strict=True)}
        for key, (row, step) in last.items():
            function, _, kind = str(key).partition(" ")
            if kind not in KINDS:
                continue
            title, advice, share, sure = KINDS[kind]
            if row["times"] < share * row["calls"]:
                continue
            text = f"`{function}`: {row['seen']}"
            text += "" if kind in _IN_SOURCE else f"; {row['times']} of {row['calls']} calls looked at"
            yield Finding(
                self.code, self.name, kind, self.severity, title, one.subject(float(step)), sure,
                (one.evidence(text, "detail", "call"),), advice, {"kind": kind},
            )  # fmt: skip
