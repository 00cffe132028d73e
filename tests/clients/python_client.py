"""What a program that uses Google's Python client does, sync and async, against one address.

Usage: python_client.py HOST:PORT TABLE [CA]   (the table must not exist; it is made and removed)

With the file of a CA the client uses TLS, as with Google's service; without it, the variable of the emulator.

Each step prints its name; the first difference ends the program with the reason and exit code 1. The client itself is
the published package, unchanged: nothing of it is part of this project.
"""

import asyncio
import os
import sys

ENDPOINT, TABLE = sys.argv[1], sys.argv[2]
CA = sys.argv[3] if len(sys.argv) > 3 else None
if CA:
    os.environ.pop("BIGTABLE_EMULATOR_HOST", None)
    os.environ["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = CA
else:
    os.environ["BIGTABLE_EMULATOR_HOST"] = ENDPOINT

from google.api_core import exceptions  # noqa: E402
from google.api_core.client_options import ClientOptions  # noqa: E402
from google.auth.credentials import AnonymousCredentials  # noqa: E402
from google.cloud import bigtable  # noqa: E402
from google.cloud.bigtable import data  # noqa: E402
from google.cloud.bigtable.data import mutations, read_modify_write_rules, row_filters  # noqa: E402

PROJECT, INSTANCE = "dev", "dev"
TLS = {"credentials": AnonymousCredentials(), "client_options": ClientOptions(api_endpoint=ENDPOINT)} if CA else {}


def check(name, got, wanted):
    if got != wanted:
        print(f"FAILED {name}: got {got!r}, wanted {wanted!r}")
        sys.exit(1)
    print(f"ok {name}")


def cells(row):
    return [(c.family, c.qualifier, c.value) for c in row]


def set_cell(value, qualifier=b"q", family="f"):
    return mutations.SetCell(family, qualifier, value, timestamp_micros=1_000)


LARGE = bytes(range(256)) * 20_000
LARGE_RANGE = data.RowRange("large-", "large.")
LARGE_SIZES = [(b"large-0", [5]), (b"large-1", [len(LARGE)]), (b"large-2", [5]), (b"large-3", [1_000_000] * 5), (b"large-4", [5])]


def write_large(table):
    for n in (0, 2, 4):
        table.mutate_row(f"large-{n}", set_cell(b"small"))
    table.mutate_row("large-1", set_cell(LARGE))
    for n in range(5):
        table.mutate_row("large-3", set_cell(LARGE[: 1_000_000], b"%d" % n))


def large_sizes(row):
    return (row.row_key, [len(c.value) for c in row])


def make_table():
    admin = {"admin_client_options": TLS["client_options"]} if CA else {}
    client = bigtable.Client(project=PROJECT, admin=True, **TLS, **admin)
    instance = client.instance(INSTANCE)
    table = instance.table(TABLE)
    table.create(initial_split_keys=[b"row-3", b"row-6"], column_families={"f": None, "n": None})
    check("table exists", table.exists(), True)
    check("families", sorted(table.list_column_families()), ["f", "n"])
    names = [t.table_id for t in instance.list_tables()]
    check("table is listed", TABLE in names, True)
    try:
        table.create()
        check("creating it twice", "accepted", "refused")
    except exceptions.AlreadyExists:
        print("ok creating it twice is refused")
    return table


def sync_client():
    with data.BigtableDataClient(project=PROJECT, **TLS) as client, client.get_table(INSTANCE, TABLE) as table:
        # write and read
        table.mutate_row("row-1", set_cell(b"one"))
        check("read back", cells(table.read_row("row-1")), [("f", b"q", b"one")])
        check("a row that is not there", table.read_row("absent"), None)

        # bulk, over all three tablets
        table.bulk_mutate_rows(
            [mutations.RowMutationEntry(f"row-{n}", [set_cell(b"%d" % n), set_cell(b"x", b"r")]) for n in range(9)]
        )
        rows = table.read_rows(data.ReadRowsQuery())
        check("all rows in order", [r.row_key for r in rows], [b"row-%d" % n for n in range(9)])
        check("row exists", table.row_exists("row-8"), True)

        # ranges, limits, filters
        query = data.ReadRowsQuery(row_ranges=[data.RowRange("row-2", "row-7")], limit=4)
        check("range with limit", [r.row_key for r in table.read_rows(query)], [b"row-%d" % n for n in range(2, 6)])
        query = data.ReadRowsQuery(row_keys=["row-7", "row-1", "row-4"])
        check("keys", [r.row_key for r in table.read_rows(query)], [b"row-1", b"row-4", b"row-7"])
        chain = row_filters.RowFilterChain(
            [row_filters.ColumnQualifierRegexFilter(b"r"), row_filters.StripValueTransformerFilter(True)]
        )
        check("filter", cells(table.read_row("row-5", row_filter=chain)), [("f", b"r", b"")])
        union = row_filters.RowFilterUnion(
            [row_filters.ColumnQualifierRegexFilter(b"q"), row_filters.ColumnQualifierRegexFilter(b"r")]
        )
        check("interleave", len(cells(table.read_row("row-5", row_filter=union))), 2)

        # versions
        for version in range(1, 4):
            table.mutate_row("versions", mutations.SetCell("f", b"v", b"%d" % version, timestamp_micros=version * 1000))
        newest = row_filters.CellsColumnLimitFilter(1)
        check("newest version", cells(table.read_row("versions", row_filter=newest)), [("f", b"v", b"3")])
        check("all versions", len(table.read_row("versions")), 3)

        # conditional
        predicate = row_filters.ValueRegexFilter(b"one|1")
        check(
            "condition holds",
            table.check_and_mutate_row("row-1", predicate, true_case_mutations=[set_cell(b"yes", b"c")]),
            True,
        )
        check(
            "condition fails",
            table.check_and_mutate_row(
                "row-2", predicate, true_case_mutations=[set_cell(b"yes", b"c")], false_case_mutations=[set_cell(b"no", b"c")]
            ),
            False,
        )
        check("branch taken", cells(table.read_row("row-2", row_filter=row_filters.ColumnQualifierRegexFilter(b"c"))), [("f", b"c", b"no")])

        # increment and append
        rules = [read_modify_write_rules.IncrementRule("n", b"count", 5), read_modify_write_rules.AppendValueRule("n", b"log", b"a")]
        table.read_modify_write_row("counter", rules)
        row = table.read_modify_write_row("counter", rules)
        check("increment", row.get_cells("n", b"count")[0].value, (10).to_bytes(8, "big"))
        check("append", row.get_cells("n", b"log")[0].value, b"aa")

        # deletes, and a write after a delete with an older timestamp
        table.mutate_row("row-0", mutations.DeleteRangeFromColumn("f", b"r"))
        check("column deleted", cells(table.read_row("row-0")), [("f", b"q", b"0")])
        table.mutate_row("row-0", mutations.DeleteAllFromRow())
        check("row deleted", table.read_row("row-0"), None)
        table.mutate_row("row-0", set_cell(b"again"))
        check("written after the delete", cells(table.read_row("row-0")), [("f", b"q", b"again")])

        # samples are the tablets' ends
        samples = [key for key, _ in table.sample_row_keys()]
        check("sample keys", samples, [b"row-3", b"row-6", b""])

        # rows beyond gRPC's 4 MiB a message, between small ones
        write_large(table)
        query = data.ReadRowsQuery(row_ranges=[LARGE_RANGE])
        check("large rows", [large_sizes(r) for r in table.read_rows(query)], LARGE_SIZES)
        check("a large value", table.read_row("large-1").cells[0].value == LARGE, True)

        # errors
        try:
            table.mutate_row("row-1", set_cell(b"x", family="absent"))
            check("unknown family", "accepted", "refused")
        except exceptions.NotFound:
            print("ok unknown family is NOT_FOUND")
        try:
            table.mutate_row("row-1", mutations.SetCell("f", b"q", b"x", timestamp_micros=1_001))
            check("timestamp granularity", "accepted", "refused")
        except exceptions.InvalidArgument:
            print("ok timestamp granularity is checked")


async def async_client():
    async with data.BigtableDataClientAsync(project=PROJECT, **TLS) as client:
        async with client.get_table(INSTANCE, TABLE) as table:
            await asyncio.gather(*[table.mutate_row(f"async-{n:02}", set_cell(b"%d" % n)) for n in range(20)])
            query = data.ReadRowsQuery(row_ranges=[data.RowRange("async-", "async.")])
            rows = await table.read_rows(query)
            check("async rows", [cells(r)[0][2] for r in rows], [b"%d" % n for n in range(20)])
            entries = [mutations.RowMutationEntry(f"bulk-{n:03}", [set_cell(b"v")]) for n in range(500)]
            await table.bulk_mutate_rows(entries)
            count = 0
            async for _ in await table.read_rows_stream(data.ReadRowsQuery(row_ranges=[data.RowRange("bulk-", "bulk.")])):
                count += 1
            check("async bulk and stream", count, 500)
            rule = read_modify_write_rules.IncrementRule("n", b"count", 1)
            await asyncio.gather(*[table.read_modify_write_row("async-counter", rule) for _ in range(50)])
            row = await table.read_row("async-counter")
            check("async increments", row.get_cells("n", b"count")[0].value, (50).to_bytes(8, "big"))
            held = await table.check_and_mutate_row("async-01", None, true_case_mutations=[set_cell(b"c")])
            check("async condition", held, True)
            rows = await table.read_rows(data.ReadRowsQuery(row_ranges=[LARGE_RANGE]))
            check("async large rows", [large_sizes(r) for r in rows], LARGE_SIZES)
            check("async large value", rows[1].cells[0].value == LARGE, True)
            samples = [key for key, _ in await table.sample_row_keys()]
            check("async sample keys", samples, [b"row-3", b"row-6", b""])


table = make_table()
sync_client()
asyncio.run(async_client())
table.delete()
check("table is gone", table.exists(), False)
print("all done")
