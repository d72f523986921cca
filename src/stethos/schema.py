"""Every table of a run: its columns, units and documentation, stated once.

Writers, readers, the documentation, `stethos tables` and error messages all
derive from `TABLES`. A column's unit stands in its name. What was not
measured is NULL, never 0; a real NaN stays NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

# Inside a ring a missing number is one special bit pattern, as R does with
# NA: a quiet NaN whose payload no arithmetic produces by itself.
NULL_F64_BITS = 0x7FF8_0000_0000_07A2
NULL_F64: float = struct.unpack("<d", struct.pack("<Q", NULL_F64_BITS))[0]
NULL_I64 = -(2**63)
NULL_I32 = -(2**31)


class Kind(Enum):
    """How a column is stored: `NAME` is one of a few repeated strings, `TEXT` is free."""

    I32 = "integer"
    I64 = "bigint"
    F64 = "double"
    BOOL = "boolean"
    NAME = "name"
    TEXT = "text"

    @property
    def sql_type(self) -> str:
        return "varchar" if self in (Kind.NAME, Kind.TEXT) else self.value


@dataclass(frozen=True, slots=True)
class Column:
    """One column: how it is stored, and what it means."""

    name: str
    kind: Kind
    doc: str


class Source(Enum):
    """Where a table's rows come from."""

    SLOT = "single rows of the training process"
    FRAME = "whole vectors or texts of the training process"
    DRAINER = "samples taken from outside the training process"
    CATALOGUE = "the run directory itself"
    VIEW = "another table"
    LIVE = "the live processes, looked at when a query asks"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: `columns` are its own, `all_columns` adds the shared ones in front.

    `is_bulk` tables go first when a run reaches its size limit. `reads` are the
    tables that a view is made of.
    """

    name: str
    number: int
    source: Source
    per: str
    doc: str
    columns: tuple[Column, ...]
    is_bulk: bool = False
    schema: str = "main"
    reads: tuple[str, ...] = ()

    @property
    def shared(self) -> tuple[Column, ...]:
        match self.source:
            case Source.SLOT | Source.FRAME:
                return (*PROCESS_COLUMNS, *CONTEXT_COLUMNS)
            case Source.DRAINER:
                return (*PROCESS_COLUMNS, TIME_COLUMN)
            case Source.CATALOGUE | Source.VIEW | Source.LIVE:
                return ()

    @property
    def all_columns(self) -> tuple[Column, ...]:
        return (*self.shared, *self.columns)

    @property
    def qualified_name(self) -> str:
        return self.name if self.schema == "main" else f"{self.schema}.{self.name}"

    def of_kind(self, *kinds: Kind) -> tuple[Column, ...]:
        """The table's own columns of these kinds, in order."""
        return tuple(column for column in self.columns if column.kind in kinds)

    @property
    def slot_fields(self) -> dict[str, str]:
        """Its row in a slot of a ring: each field's code of `struct`.

        Durations are in ns there: `step_ns` for `step_ms`. The packer, the NumPy type and the C structure are all made
        from this. A ring outlives its process and may be read by a newer version, so a new column goes to the end.
        """
        own = {column.name.removesuffix("_ms") + "_ns" if column.name.endswith("_ms") else column.name: column
               for column in self.columns}  # fmt: skip
        context = {"table": "H", "unused": "H"} | {column.name: _SLOT_CODE[column.kind] for column in CONTEXT_COLUMNS}
        return context | {name: _SLOT_CODE[column.kind] for name, column in own.items()}


_SLOT_CODE = {Kind.I32: "i", Kind.I64: "q", Kind.F64: "d", Kind.NAME: "i", Kind.BOOL: "b"}


def _columns(text: str) -> tuple[Column, ...]:
    """Read a compact listing: one `name kind  what it means` per line."""

    def parse() -> Iterator[Column]:
        for line in filter(None, map(str.strip, text.strip().splitlines())):
            name, kind, doc = line.split(maxsplit=2)
            yield Column(name, Kind[kind.upper()], doc)

    return tuple(parse())


TIME_COLUMN = Column("t_ns", Kind.I64, "wall-clock time in ns since 1970, monotonic within a process")
PROCESS_COLUMNS = _columns("""
    process  name  the process that produced the row, see `processes`
    rank     i32   rank in a distributed job; NULL outside one
""")
CONTEXT_COLUMNS = (
    *_columns("""
    client     name  federated client whose turn it was; NULL outside one
    round      i32   federated round; NULL outside one
    optimizer  i32   which optimizer of the process, numbered from 1 in order of first use
    step       i64   optimizer steps completed in this process before this row, from 0
    """),
    TIME_COLUMN,
)

STEPS = Table(
    "steps",
    1,
    Source.SLOT,
    "optimizer step",
    "What one optimizer step saw and what it cost. Always on.",
    _columns("""
    local_step       i32   steps of this optimizer before this one, from 0
    model            name  class of the module that owns the parameters
    loss             f64   sum of the losses whose gradients this step applied, unscaled
    lr               f64   learning rate of the first parameter group
    grad_norm        f64   2-norm of all gradients, 0 where there are none; NULL on steps where the budget left it out
    step_ms          f64   since the previous step of this thread ended
    data_ms          f64   waiting for the data loader
    forward_ms       f64   from the batch's arrival (or the previous step) to backward, without data_ms
    backward_ms      f64   inside backward
    optimizer_ms     f64   inside the optimizer's step
    samples          i32   samples the data loader handed out for this step
    backwards        i32   backward calls since the previous step
    skipped          i32   steps the gradient scaler skipped just before this one
    allocated_bytes  i64   tensor memory: on CUDA allocated now; on CPU parameters, gradients and optimizer state
    peak_bytes       i64   peak tensor memory; on CPU the largest traced so far
    """),
)
METRICS = Table(
    "metrics",
    2,
    Source.SLOT,
    "value logged by the user or an adapter",
    "Any number given to `stethos.log(name=value)`.",
    _columns("""
    name   name  the metric's name
    value  f64   its value
    """),
)
MEDIA = Table(
    "media",
    47,
    Source.FRAME,
    "text, image, table or histogram that the program logged",
    "What the program gave to `SummaryWriter.add_text`, `add_image` or `add_histogram`, or to `wandb.log` as text, "
    "image, table or histogram: at most 2,000 rows of a process, each of at most 64 kB.",
    _columns("""
    name     name  its name
    kind     name  text, image, table or histogram
    content  text  the text; an image as PNG in base64; else a JSON object
    """),
    is_bulk=True,
)
LAYERS = Table(
    "layers",
    3,
    Source.FRAME,
    "layer x kind x sampled step",
    "Statistics of gradients, weights and activations. Taken on sampled steps, spaced by the overhead budget. "
    "Norm, mean, std, min and max are over the finite elements.",
    _columns("""
    layer       name  parameter name as in `named_parameters()`; for activations the module's name
    kind        name  gradient, weight or activation
    norm        f64   2-norm
    mean        f64   mean
    std         f64   standard deviation (population)
    min         f64   smallest element
    max         f64   largest element
    zero_share  f64   share of elements that are exactly 0
    nan         i64   number of NaN elements
    inf         i64   number of infinite elements
    drift       f64   weights: 2-norm of the change since this optimizer was first seen
    size        i64   number of elements
    checksum    i64   sum of the elements' bits, folded to 52 bits: one changed bit changes it; only on a GPU
    """),
    is_bulk=True,
)
HISTOGRAMS = Table(
    "histograms",
    54,
    Source.FRAME,
    "layer x kind x some of the sampled steps",
    "How the elements of gradients and weights are spread, in 16 buckets. Taken with some samples of `layers`, the "
    "rarer the longer the training, of at most 512 layers. Of a big tensor some 1,000 elements, evenly spaced, stand "
    "for all. The buckets reach four standard deviations to either side of the mean, or to the smallest and the "
    "largest of these elements; what lies beyond counts in the outermost ones. NaN and infinities are left out.",
    _columns("""
    layer  name  parameter name as in `named_parameters()`
    kind   name  gradient or weight
    low    f64   where the first bucket begins
    high   f64   where the last bucket ends
    b01    i64   elements in the first of 16 buckets of equal width
    b02    i64   elements in the next of 16 buckets of equal width
    b03    i64   elements in the next of 16 buckets of equal width
    b04    i64   elements in the next of 16 buckets of equal width
    b05    i64   elements in the next of 16 buckets of equal width
    b06    i64   elements in the next of 16 buckets of equal width
    b07    i64   elements in the next of 16 buckets of equal width
    b08    i64   elements in the next of 16 buckets of equal width
    b09    i64   elements in the next of 16 buckets of equal width
    b10    i64   elements in the next of 16 buckets of equal width
    b11    i64   elements in the next of 16 buckets of equal width
    b12    i64   elements in the next of 16 buckets of equal width
    b13    i64   elements in the next of 16 buckets of equal width
    b14    i64   elements in the next of 16 buckets of equal width
    b15    i64   elements in the next of 16 buckets of equal width
    b16    i64   elements in the last of 16 buckets of equal width
    """),
    is_bulk=True,
)
MODULES = Table(
    "modules",
    4,
    Source.FRAME,
    "call of a module x stage x sampled step",
    "Duration and memory of each module, with its children, on sampled steps.",
    _columns("""
    module           name  the module's name, the root by its class
    stage            name  forward, backward or step (the optimizer)
    duration_ms      f64   wall time; on CUDA the time to launch
    allocated_bytes  i64   tensor memory newly alive in the module's outputs
    alive_bytes      i64   tensor memory alive afterwards: on CPU parameters, gradients, state and traced outputs
    """),
    is_bulk=True,
)
LOGS = Table(
    "logs",
    5,
    Source.FRAME,
    "log record",
    "What the program said through Python's `logging`. Secrets are redacted.",
    _columns("""
    level      name  DEBUG, INFO, WARNING, ERROR, CRITICAL
    logger     name  the logger's name
    message    text  the formatted message
    fields     text  extra fields as a JSON object
    exception  text  traceback, if the record carried one
    """),
)
SPANS = Table(
    "spans",
    6,
    Source.FRAME,
    "timed piece of work",
    "Work marked with `stethos.span`; t_ns is its start.",
    _columns("""
    name         name  the span's name
    duration_ms  f64   wall time
    ok           bool  false if an exception passed through
    trace        text  id shared by all spans of one piece of work
    span         text  the span's own id
    parent       text  id of the enclosing span
    fields       text  fields given to the span as a JSON object
    exception    text  the exception that passed through, as `Type: message`
    """),
)
GAPS = Table(
    "gaps",
    7,
    Source.FRAME,
    "thing that could not be recorded",
    "What is missing from this run and why: refusals and failures of the recorder itself.",
    _columns("""
    what    name  the table or part concerned
    reason  text  why
    """),
)
INSPECTIONS = Table(
    "inspections",
    19,
    Source.FRAME,
    "inspected backward or pass of an evaluation",
    "What the program itself does, looked at on the first steps and now and then later: the graph of its loss, its "
    "batch, the mode of its modules; also models that run beside the trained one (`helper`) and odd calls of torch's "
    "functions (`call`). Values of tensors are looked at in CPU memory only.",
    _columns("""
    phase             name  training, evaluation (inputs, answers), helper, call, not finite, out of memory, repeated
    function          name  loss function at the root of the graph
    epoch_start       i32   1 on the first batch of a pass over a data loader
    gradient_norm     f64   2-norm of what this backward has put into the gradients, before anybody changed them
    leftover_norm     f64   2-norm of the gradients that the step before has left, at the first backward after it
    leaves            i32   tensors that get a gradient from this loss
    unoptimized       i32   of these, those that are in no optimizer
    unused            i32   parameters of optimizers that this loss does not reach and that belong to no module
    stateful          i32   modules with dropout or batch statistics
    stateful_training i32   of these, those in training mode
    dropouts          i32   of these, dropouts
    root_training     i32   1 if the model is in training mode
    batch             i32   length of the batch
    input_hash        i64   checksum of a sample of the inputs
    input_mean        f64   mean of a sample of the inputs
    input_std         f64   their standard deviation
    input_min         f64   their smallest
    input_max         f64   their largest
    input_zero_share  f64   share of inputs that are exactly 0
    input_nan_share   f64   share of inputs that are NaN
    label_hash        i64   checksum of a sample of the labels
    label_mean        f64   mean of the labels
    label_std         f64   their standard deviation
    label_min         f64   their smallest
    label_max         f64   their largest
    classes           i32   different classes in the batch
    top_class_share   f64   share of the commonest class
    outputs           i32   classes that the model can answer
    leaking_column    i32   column of the inputs that equals the labels; NULL: none
    random_hash       i64   checksum of torch's random state before this backward
    gradient_hash     i64   of a rank: checksum of its gradients after this backward
    remark            name  kind of trouble seen in the graph
    detail            text  what was seen, as a JSON object
    """),
)
ROUNDS = Table(
    "rounds",
    9,
    Source.FRAME,
    "federated round",
    "What a round did and what it cost; t_ns is its start. Phases that a loop does not mark are NULL.",
    _columns("""
    federation     name  name of the federation
    duration_ms    f64   from the round's start to its end
    selected       i32   clients asked to take part
    reported       i32   clients whose update came in
    failed         i32   clients that failed, dropped out or timed out
    select_ms      f64   choosing the clients
    download_ms    f64   sending the global model
    compute_ms     f64   local training
    upload_ms      f64   receiving the updates
    aggregate_ms   f64   making the new global model
    evaluate_ms    f64   evaluating it
    wait_ms        f64   from the first client's update to the last one's, where clients work side by side
    observe_ms     f64   time that observing the round took in this thread
    loss           f64   evaluation: loss of the new global model
    accuracy       f64   evaluation: its accuracy
    global_norm    f64   2-norm of the global model's weights at the end of the round
    drift          f64   2-norm of their change in this round
    start_drift    f64   2-norm of their change since the federation began
    global_nan     i64   NaN elements of the new global model
    global_inf     i64   infinite elements of the new global model
    evaluation     text  further numbers of the evaluation as a JSON object
    """),
)
# What clients are compared by, beside their updates.
COMPARED_REPORTS = ("entry_loss", "exit_loss", "samples", "confusion")
_CLIENT_ROUND = """
    federation      name  name of the federation
    turn            i32   turns of this client in this round before this one: 0 unless it came back
    status          name  ok, failed, dropped or timeout
    samples         i64   samples the client says it trained on: its weight in the average
    loss            f64   loss the client reports
    accuracy        f64   accuracy the client reports
    entry_loss      f64   loss of the first local batches: the incoming global model on this client's data
    exit_loss       f64   loss of the last local batches
    steps           i64   local optimizer steps
    duration_ms     f64   the client's whole turn
    download_ms     f64   receiving the global model
    compute_ms      f64   local training
    upload_ms       f64   sending the update
    wait_ms         f64   from its update's arrival to the last one's of the round, where clients work side by side
    samples_per_s   f64   samples handed out by its data loaders, per second of its turn
    peak_bytes      i64   peak memory: on CUDA of tensors, else of the process
    sent_bytes      i64   bytes the client sent
    received_bytes  i64   bytes the client received
    raw_bytes       i64   size of its update uncompressed
    base_round      i32   round whose global model it started from; less than the round before this one if stale
    label           text  what the client is called at its own place
    filters         name  privacy filters that its site applies to its update, as the site or the framework calls them
    error           text  what failed, as `Type: message`
    traceback       text  where
    confusion       text  JSON matrix: samples by local label (row) and by the incoming global model's answer (column)
    metrics         text  further numbers that came with the update as a JSON object
"""
CLIENT_REPORTS = Table(
    "client_reports",
    10,
    Source.FRAME,
    "client x round x side that saw it",
    "What the server, and what the client's own process, know of a client's turn. `client_rounds` puts them together.",
    (*_columns("side  name  server or client"), *_columns(_CLIENT_ROUND)),
)
UPDATES = Table(
    "updates",
    11,
    Source.FRAME,
    "client x round x layer, and one with layer NULL for the whole update",
    "The fingerprint of each update: the difference between the weights a client sent and the global model it was "
    "asked to start from. Without a client: the change that the round made to the global model.",
    _columns("""
    federation      name  name of the federation
    layer           name  name in the state dict; NULL: all weights together
    kind            name  weight or buffer; the whole leaves buffers out
    norm            f64   2-norm, over the finite elements
    base_norm       f64   2-norm of the global model's layer
    norm_ratio      f64   norm relative to the median of the round's clients
    cos_centre      f64   cosine to the robust centre (geometric median) of the other clients' updates
    cos_error       f64   bound of the error of the cosines (three standard deviations); 0 where they are exact
    sign_agreement  f64   share of (sampled) elements that move the way the weighted majority of the others moves
    cos_last        f64   cosine to the previous round's change of the global model
    cos_self        f64   cosine to the same client's previous update
    cos_back        f64   largest cosine to the way back to one of the last global models
    back_rounds     i32   how many rounds back that one lies
    input_cos       f64   cosine of how much the first layer changed per input to that of the other clients
    input_focus     f64   largest share of that change that goes to one input beyond its share at the others
    input_tail      f64   log of how many times more it changed in directions of the inputs that the others hardly use
    nan             i64   NaN elements sent
    inf             i64   infinite elements sent
    zero_share      f64   share of elements that did not change at all
    size            i64   number of elements
    coverage        f64   share of them that was read; the others are represented by these
    sketch          text  base64 of half floats: seeded projection of the whole update, of length 1
    output_rows     text  JSON: per row of the output layer norm and mean of the change, and change of the bias
    response        text  JSON matrix: how answers (column) to inputs that look like a class (row) have moved
    """),
    is_bulk=True,
)
EVIDENCE = Table(
    "evidence",
    44,
    Source.FRAME,
    "client's turn x kind of evidence",
    "What a client's turn shows from inside: `turn` is how its optimizer, its batches and the incoming model's answers "
    "were; `data` sketches samples that were new, class by class, and holds no sample itself.",
    _columns("""
    federation  name  name of the federation
    kind        name  turn or data
    value       text  JSON; arrays are base64 of compressed numbers; `stethos.turn_facts` spells out what `turn` says
    """),
    is_bulk=True,
)
COMPRESSION = Table(
    "compression",
    17,
    Source.FRAME,
    "measured update x layer x method, and one with layer NULL for the whole update",
    "What updates would become if they were sent smaller, measured on some real ones where "
    "`federation(measure_compression=True)` asks for it.",
    _columns("""
    federation  name  name of the federation
    layer       name  name in the state dict; NULL: all weights together
    method      name  fp16, int8, top-1% or rank-4
    raw_bytes   i64   bytes as they are
    bytes       i64   bytes this way
    error       f64   2-norm of what is lost, relative to that of the update; NULL for one that changes nothing
    """),
)
AUDIT = Table(
    "audit",
    16,
    Source.FRAME,
    "event of an act from outside",
    "Who ran code in the training, changed it or saved it: a row before it happens, and one with the outcome.",
    _columns("""
    event        name  asked, then done or refused
    op           name  eval, lr, clip, gc, checkpoint or detach; connect: another user, who was refused
    request      i64   number of the act in this process: joins the two rows
    pid          i32   process that asked
    uid          i32   user who asked
    duration_ms  f64   how long it took, with the wait for a step; NULL when asked
    who          text  for whom a gateway asked; empty for a local user
    detail       text  the code, or the arguments as a JSON object
    outcome      text  why it was refused
    """),
)
_ACTION = """
    federation   name  name of the federation; NULL outside one
    action       i64   number of the action; `stethos actions --undo` takes it
    what         name  drop-update, clip-update, quarantine, down-weight, robust-aggregate, roll-back, skip-step, ...
    mode         name  on, or dry-run: then nothing was done
    state        name  active, proposed (dry run), over, undone, or refused: held back by the bounds
    kind         name  kind of the fault that it answers
    first        i64   first round (or step, see unit) of it
    last         i64   last one so far
    unit         name  what first and last count: round or step
    times        i64   in how many rounds or steps it was applied
    reason       text  why
    evidence     text  the numbers behind it as a JSON object
    norm_before  f64   length of the round's average change without it, in its first round
    norm_after   f64   the same with all corrections of that round
    effect       text  what it did
"""
ACTION_EVENTS = Table(
    "action_events",
    18,
    Source.FRAME,
    "action x round or step in which something became of it",
    "What a correction did or, in a dry run, would have done, as it happened. `actions` has the newest of each.",
    _columns(_ACTION),
)
HOST = Table(
    "host",
    8,
    Source.DRAINER,
    "process x second",
    "Samples of each training process and its machine, taken from outside about once a second.",
    _columns("""
    cpu_share            f64   cores in use since the last sample, or the start of the process (1.0 is one core)
    rss_bytes            i64   resident memory of the process
    threads              i32   threads of the process
    read_bytes           i64   bytes read from disk since the process started
    written_bytes        i64   bytes written to disk since the process started
    machine_cpu_share    f64   share of the whole machine's cores in use, 0 to 1
    machine_cores        i32   cores of the machine
    machine_free_bytes   i64   memory available on the machine
    net_sent_bytes       i64   bytes the machine sent since boot
    net_received_bytes   i64   bytes the machine received since boot
    """),
    is_bulk=True,
)
COLLECTIVES = Table(
    "collectives",
    41,
    Source.SLOT,
    "collective call",
    "Calls of `torch.distributed` on this rank; t_ns is when the call was made. Those that Python makes are all here; "
    "those that C++ makes (the gradient buckets of DistributedDataParallel) are read now and then from torch's flight "
    "recorder, which holds the last 2,000.",
    _columns("""
    op            name  all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier, send, recv, ...
    group         name  the process group: world, or its name; the same on all ranks
    via           name  python, or c++ for calls read from the flight recorder
    seq           i64   number of the collective in its group, from 1, the same on all ranks; NULL for send and recv
    bytes         i64   size of the tensors handed over
    completed_ns  i64   wall-clock time when it was seen to be complete; NULL if it was not, or not when
    done          i32   1 complete, 0 not complete at the last check; NULL if never checked
    """),
    is_bulk=True,
)
HANGS = Table(
    "hangs",
    43,
    Source.DRAINER,
    "process in a hang",
    "What the watchdog saw when a training made no step for long: one row per process that it looked at, with its "
    "part in it. Their stacks are in `stacks` under the reason `hang N`.",
    _columns("""
    hang          i64   number of the hang in this run, from 1
    role          text  culprit, waiting (for the culprit) or beside
    cause         text  missing-rank, mismatch, exchange, data-loader, lock, disk, client, gil, busy or unknown
    silent_s      f64   since its last step
    limit_s       f64   silence that was allowed
    step          i64   steps it had made
    place         text  where its training thread stood: function (file:line)
    group         text  process group it waits in, or is missing from
    seq           i64   number of the collective in that group
    op            text  the collective
    members       text  ranks of that group as a JSON array
    missing       text  ranks that have not come to it as a JSON array
    words         text  what happened, in one sentence
    detail        text  further facts as a JSON object
    """),
)
LEGS = Table(
    "legs",
    52,
    Source.FRAME,
    "sign of life of a federation's server or client",
    "Where a round stands, as each side sees it. A server says every five seconds what it does and who has not "
    "answered; a client in a process of its own says when it has the model, every five seconds while it works, and "
    "when it has answered.",
    _columns("""
    federation  name  name of the federation
    side        name  server or client
    leg         name  select, waiting, aggregate, evaluate, between, closed; of a client received, computing, replied
    work        name  of a client: train or evaluate
    age_s       f64   for how long it has been so
    words       text  of a server: JSON, clients that have not answered as [client, work, sent or turn, seconds]
    digest      text  of a client that has answered: digest of the model that it was given
    """),
)
GROUP_SUMS = Table(
    "group_sums",
    53,
    Source.FRAME,
    "group of clients x round, where secure aggregation reveals sums alone",
    "What the clients of a random group found out about themselves, added up. No single client's numbers are here.",
    _columns("""
    federation  name  name of the federation
    clients     text  JSON list of the clients in the group
    sums        text  JSON object: each quantity, summed over the group
    """),
)
MEMORY = Table(
    "memory",
    12,
    Source.FRAME,
    "class of tensors, operator, or place of growth x sampled step",
    "Tensor memory on sampled steps. Rows with a class: the storages alive, each counted once. Rows with an op: what "
    "the operator allocated and freed in that step. Rows with a line: tensors that outlive their steps, and the line "
    "that makes them.",
    _columns("""
    class            name  model, gradient, optimizer, activation, buffer, other; on CUDA cached: reserved but unused
    device           name  cpu, cuda:0, ...
    module           name  rows of an operator: the module that ran it; backward and optimizer outside of modules
    op               name  rows of an operator: its name, as aten.mm
    line             name  rows of growth: file:line of the program that makes tensors which stay alive
    holder           name  rows of growth: what keeps them, as far as it has a name
    bytes            i64   alive after the step (activations: when its backward began); growth: of the sampled steps
    peak_bytes       i64   largest so far; activations: at any moment; cached: most that was ever reserved
    count            i64   storages alive; rows of an operator: calls
    allocated_bytes  i64   rows of an operator: allocated by it; rows of growth: what one step leaves behind
    freed_bytes      i64   rows of an operator: freed while it ran
    """),
    is_bulk=True,
)
GPU = Table(
    "gpu",
    13,
    Source.DRAINER,
    "process x GPU x second",
    "Samples of the NVIDIA GPUs that a training process uses, taken from outside about once a second.",
    _columns("""
    device             i32   number of the GPU on its machine
    busy_share         f64   share of the last moments in which a kernel ran, 0 to 1
    memory_busy_share  f64   share in which its memory was read or written, 0 to 1
    process_bytes      i64   GPU memory of the process; NULL where the driver does not tell
    used_bytes         i64   memory in use on the GPU by everybody
    total_bytes        i64   its memory
    power_w            f64   power drawn
    power_limit_w      f64   power at which it is throttled
    temperature_c      f64   temperature
    clock_mhz          f64   clock of its processors
    """),
    is_bulk=True,
)
PROCESSES = Table(
    "processes",
    20,
    Source.CATALOGUE,
    "observed process",
    "What ran, where, how it ended, what observing it cost, and what became of every row.",
    _columns("""
    process         text  the process's id in this run
    pid             i64   operating-system process id
    rank            i32   rank in a distributed job
    world_size      i32   number of ranks
    host            text  machine name
    command         text  command line, secrets redacted
    cwd             text  working directory
    python          text  Python version
    torch           text  torch version; NULL if torch was not imported
    versions        text  versions of other packages as a JSON object
    config          text  settings and the user's configuration as a JSON object
    preset          text  light, standard or deep
    started_ns      i64   wall-clock start
    ended_ns        i64   wall-clock end; NULL while running
    state           text  running, ended, failed or killed
    ending          text  how it ended, in words
    exit_code       i32   exit status; NULL if unknown; negative for a signal
    traceback       text  of the uncaught exception
    failure_order   i32   its place among the failures that its launcher has reported, 0 for the first; NULL: none
    groups          text  the last collective of each process group as a JSON list
    steps           i64   optimizer steps seen
    overhead_share  f64   measured share of the run's time spent observing on training threads
    overhead_budget f64   the share allowed for samples
    rows_produced   i64   rows the process produced
    rows_stored     i64   rows in the run directory
    rows_dropped    i64   rows dropped, see drops
    rows_lost       i64   rows lost in a crash or in damaged blocks
    drops           text  dropped rows by reason as a JSON object
    rows_withheld   i64   of a client elsewhere: rows that its site's policy keeps back
    rows_pending    i64   of a client elsewhere: rows that wait in its spool or are on their way
    """),
)
RUNS = Table(
    "runs",
    21,
    Source.CATALOGUE,
    "run",
    "The run itself.",
    _columns("""
    run          text  the run's name
    path         text  its directory
    state        text  running, ended, failed or killed
    command      text  the command given to `stethos run`, secrets redacted
    host         text  machine that started it
    git_commit   text  commit of the working directory, with + if it had changes
    version      text  version of Stethos
    started_ns   i64   wall-clock start
    ended_ns     i64   wall-clock end; NULL while running
    exit_code    i32   exit status of the command
    processes    i64   observed processes
    steps        i64   optimizer steps seen
    rows_stored  i64   rows in the run directory
    size_bytes   i64   size of the run directory
    """),
)
FINDINGS = Table(
    "findings",
    22,
    Source.CATALOGUE,
    "diagnosed problem",
    "What `stethos diagnose` found, kept with the run: each problem from the time it was first seen until it was over.",
    _columns("""
    finding      i64   number of the finding in this run
    cause        i64   finding that this one follows from; NULL for a root cause
    code         text  the detector's code, see `stethos diagnose --explain CODE`
    name         text  the detector's name
    kind         text  kind of the fault
    severity     text  error, warning or info
    state        text  open, or closed when it is over
    title        text  the problem in one sentence
    clients      text  clients it is about as a JSON array
    ranks        text  ranks it is about as a JSON array
    layers       text  layers it is about as a JSON array
    process      text  process it is about
    first        i64   first round (or step, see unit) in which it was seen
    last         i64   last one; NULL while it goes on
    unit         text  what first and last count: round, step or second
    confidence   f64   how sure, 0 to 1
    evidence     text  JSON array: what was seen in words, the SQL that shows it, the numbers
    next_step    text  what to do now
    detail       text  further facts as a JSON object
    opened_ns    i64   wall-clock time of the diagnosis that saw it first
    updated_ns   i64   wall-clock time of the last diagnosis that saw it
    closed_ns    i64   wall-clock time of the diagnosis that saw it gone; NULL while open
    proof        text  proved, refuted or undecided by `stethos prove`; NULL if not tried
    proof_detail text  the effect and its intervals as a JSON object
    """),
)
_FRAME = """
    process     text  the process
    rank        i32   rank in a distributed job
    thread      text  the thread's name
    depth       i32   0 is where the thread is now, 1 its caller, and so on
    func        text  the function
    file        text  its file
    lineno      i32   the line it is at
    frame_type  text  Python or Native
    ip          i64   address of a native frame, where known
"""
BACKTRACE = Table(
    "backtrace",
    33,
    Source.LIVE,
    "frame of a main thread",
    "Where the main thread of each live process is: captured by the SELECT itself. Empty when nothing is alive.",
    _columns(_FRAME),
    schema="python",
)
STACKS = Table(
    "stacks",
    34,
    Source.CATALOGUE,
    "frame of a captured stack",
    "All threads of the live processes, captured by the SELECT itself, and stacks that were kept when a run hung.",
    (
        *_columns("""
    t_ns        i64   when it was captured
    reason      text  why: now, or what was wrong when it was kept
        """),
        *_columns(_FRAME),
    ),
)
CLIENT_ROUNDS = Table(
    "client_rounds",
    31,
    Source.VIEW,
    "client in a round",
    "What became of each client in each round: its training, timing, traffic and failure.",
    (
        *_columns("""
    client          name  federated client
    round           i32   federated round
    t_ns            i64   wall-clock time its turn began
        """),
        *_columns(_CLIENT_ROUND),
    ),
    reads=("client_reports",),
)
ACTIONS = Table(
    "actions",
    35,
    Source.VIEW,
    "correction",
    "What was done about a problem while the training went on, or in a dry run would have been: why, how far, and what "
    "came of it.",
    (
        *_columns("""
    process      name  the process that acted
    client       name  client that it is about; NULL if about all
    t_ns         i64   wall-clock time it began
    updated_ns   i64   wall-clock time of the last news of it
        """),
        *_columns(_ACTION),
    ),
    reads=("action_events",),
)
TORCH_TRACE = Table(
    "torch_trace",
    30,
    Source.VIEW,
    "call of a module x stage x sampled step",
    "`modules` in the units of the `probing` tool: seconds and MB.",
    _columns("""
    process          name  the process
    rank             i32   rank in a distributed job
    step             i64   optimizer step
    module           name  the module's name
    stage            name  forward, backward or step
    duration         f64   seconds
    allocated        f64   MB of tensor memory alive afterwards
    allocated_delta  f64   MB newly alive in the module's outputs
    t_ns             i64   wall-clock time
    """),
    schema="python",
    reads=("modules",),
)

TABLES: dict[str, Table] = {
    table.qualified_name: table
    for table in (
        RUNS, PROCESSES, STEPS, METRICS, ROUNDS, CLIENT_ROUNDS, UPDATES, LAYERS, HISTOGRAMS, MODULES, MEMORY, LOGS,
        SPANS, GAPS, MEDIA, HOST, GPU, COLLECTIVES, HANGS, LEGS, INSPECTIONS, CLIENT_REPORTS, FINDINGS, ACTIONS,
        ACTION_EVENTS, TORCH_TRACE, AUDIT, BACKTRACE, STACKS, COMPRESSION, EVIDENCE, GROUP_SUMS,
    )
}  # fmt: skip

RECORDED: dict[int, Table] = {
    table.number: table for table in TABLES.values() if table.source in (Source.SLOT, Source.FRAME, Source.DRAINER)
}
# Told by a federation's server about its clients, and never taken from a client.
SERVERS_OWN = frozenset({ROUNDS.name, UPDATES.name, ACTION_EVENTS.name})
