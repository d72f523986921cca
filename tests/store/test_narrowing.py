"""Files that a query cannot need are left out; where it is not understood, none is."""

from __future__ import annotations

import duckdb
import pytest

from stethos.store.narrowing import Ranges, needs_of
from stethos.store.statement import tables_named, with_sources

ROUNDS: dict[str, tuple[int, int]] = {"early": (0, 4), "middle": (5, 5), "late": (6, 9)}


def needed(sql: str, table: str = "updates") -> set[str]:
    with duckdb.connect() as connection:
        is_needed = needs_of(connection, sql, with_sources(tables_named(sql)), table)
    return {name for name, span in ROUNDS.items() if is_needed({"round": span, "run": (name, name)})}


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("round = 5", {"middle"}),
        ("5 = round", {"middle"}),
        ("round = 5 AND layer IS NULL", {"middle"}),
        ("u.round = 5", {"middle"}),
        ("U.Round >= 6", {"late"}),
        ("6 <= round", {"late"}),
        ("round < 5", {"early", "middle"}),  # a bound that is left out is read as one that is not
        ("round BETWEEN 2 AND 5", {"early", "middle"}),
        ("round IN (1, 9)", {"early", "late"}),
        ("round > 4 AND round < 6", {"early", "middle", "late"}),
        ("round >= 5 AND round <= 5", {"middle"}),
        ("round = 77", set()),
        ("run = 'late'", {"late"}),
        ("run IN ('late', 'other') AND round = 2", set()),
    ],
)
def test_a_condition_leaves_files_out(where: str, files: set[str]) -> None:
    assert needed(f"SELECT client FROM updates u WHERE {where}") == files
    assert needed(f"WITH w AS (SELECT * FROM updates AS u WHERE {where}) SELECT count(*) FROM w") == files


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM updates",
        "SELECT * FROM updates WHERE round = 5 OR layer IS NULL",
        "SELECT * FROM updates WHERE NOT round = 5",
        "SELECT * FROM updates WHERE round <> 5",
        "SELECT * FROM updates WHERE round = '5'",
        "SELECT * FROM updates WHERE round + 0 = 5",
        "SELECT * FROM updates WHERE round IN (5, NULL)",
        "SELECT * FROM updates WHERE round = (SELECT max(round) FROM rounds)",
        "SELECT * FROM updates WHERE round IN (SELECT round FROM updates WHERE round = 5)",
        "SELECT * FROM updates a JOIN updates b USING (client) WHERE a.round = 5 AND b.round = 6",
        "SELECT * FROM updates AS u(process, round) WHERE round = 5",
        "SELECT * FROM updates TABLESAMPLE 50% WHERE round = 5",
        "SELECT * FROM updates WHERE round = 5 UNION ALL SELECT * FROM updates",
        "SELECT * FROM updates WHERE round = 5 AND EXISTS (FROM query_table('updates'))",
        "SUMMARIZE updates",
        "EXPLAIN SELECT * FROM updates WHERE round = 5",
        "this is no SQL about updates",
    ],
)
def test_what_is_not_understood_needs_every_file(sql: str) -> None:
    assert needed(sql) == set(ROUNDS)


def test_a_view_needs_all_of_the_table_it_is_made_of() -> None:
    assert needed("SELECT * FROM client_rounds WHERE round = 5", "client_reports") == set(ROUNDS)
    both = "SELECT * FROM client_reports WHERE round = 5 AND turn IN (SELECT turn FROM client_rounds)"
    assert needed(both, "client_reports") == set(ROUNDS)


def test_a_file_of_unknown_range_is_needed() -> None:
    with duckdb.connect() as connection:
        is_needed = needs_of(connection, "FROM updates WHERE round = 5", {"updates"}, "updates")
    unknown: Ranges = {}
    assert is_needed(unknown) and not is_needed({"round": (6, 6)})
