"""What leaves a client by default is the same whatever its labels are: two real trainings, one with permuted labels."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch
from loop import Client, make_clients, make_model
from processes import wait_for_rest

import stethos
from stethos.collect.filter import filtered
from stethos.collect.policy import Policy, parse_policy
from stethos.record.arrow import in_schema, segment_schema, serialize_batch
from stethos.schema import CLIENT_REPORTS
from stethos.store.run import open_run

L2 = parse_policy('level = "L2"')
TIMES = ("t_ns", "_ms", "_s", "_bytes")  # of the machine, not of the data: the same in both runs below


def trained(path: Path, clients: list[Client]) -> Path:
    """Two rounds of a loop that tells everything that it can."""
    model = make_model()
    with stethos.federation("toy", model=model, dir=path.parent, run=path.name, overhead=1.0) as federation:
        for rnd in federation.rounds(2):
            for client in clients:
                with rnd.client(client.name) as site:
                    state = client.train(model)
                    answers = model(client.x).argmax(1)
                    site.confusion(client.y.numpy(), answers.numpy())
                    site.note(loss=client.losses[-1], accuracy=float((answers == client.y).double().mean()))
                    site.update(state, samples=len(client.x))
            model.load_state_dict(rnd.aggregate())
    wait_for_rest(path)
    return path


def what_leaves(path: Path, policy: Policy, times: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """The turns of a run as they may leave; with the times of other turns, so that the rest can be compared."""
    with open_run(path) as run:
        found = run.arrow("SELECT * FROM client_reports ORDER BY side, client, round, turn")
    (rows,) = in_schema(found, segment_schema(CLIENT_REPORTS)).combine_chunks().to_batches()
    left = filtered(policy, CLIENT_REPORTS, rows)
    assert left is not None
    if times is None:
        return left
    columns = [times.column(name) if name.endswith(TIMES) else left.column(name) for name in left.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=left.schema)


def test_what_leaves_by_default_is_the_same_with_permuted_labels(tmp_path: Path) -> None:
    plain, permuted = make_clients(3), make_clients(3)
    for client in permuted:
        client.y = torch.tensor([2, 0, 1])[client.y]
    first, second = trained(tmp_path / "plain", plain), trained(tmp_path / "permuted", permuted)
    left = what_leaves(first, Policy())
    assert left.num_rows >= 6 and left.column("samples").null_count < left.num_rows
    assert bytes(serialize_batch(left)) == bytes(serialize_batch(what_leaves(second, Policy(), left)))
    health = what_leaves(first, L2)  # the trainings themselves differ: L2 tells of it
    assert bytes(serialize_batch(health)) != bytes(serialize_batch(what_leaves(second, L2, health)))
