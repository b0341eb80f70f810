//! The long list of bad input, in the order of the page; and what of it is not run, with the reason.

/// A section of the page.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The first cells of its rows.
    pub(super) inputs: &'static [&'static str],
    /// What no test gives, and why.
    pub(super) left_out: &'static [(&'static str, &'static str)],
}

pub(super) const HEAD: &str = "\
# What bad input gets

Each row is the answer that a test got from the real binary on real servers, in its own words; names, addresses and
positions of the run are replaced by those of an example. The same test fails when the answer changes. In all of them
nothing is lost: what was committed before and after, and can be published, arrives in order once it is mended.

Exit codes: 0 a clean stop, 1 a look that found something wrong, 2 wrong usage or configuration (nothing was touched),
3 stopped for an operator. \"waits\" is a process that goes on by itself when what is wrong is over; \"goes on\" one that
was not held up. Codes `PR…` have a section each in [operations.md](operations.md).

This page is written by the tests: `POSTRIDER_BLESS=1 scripts/test it NAME`.
";

pub(super) const LIST: &[Group] = &[
    Group {
        name: "Configuration",
        about: "Told all at once, before anything is touched.",
        inputs: &[
            "unknown key",
            "wrong type",
            "no pipeline",
            "a pipeline that is not in the file",
            "unset variable",
            "bad unit",
            "template that names no column",
            "regular expression that does not compile",
            "librdkafka property that is unknown",
            "librdkafka property that would break a promise",
            "secret file that can't be read",
            "secret file that everybody can read",
            "two pipelines on one slot",
        ],
        left_out: &[],
    },
    Group {
        name: "Source: address, login, server",
        about: "A refused login halts at the first start and is waited out afterwards; what can't be reached is always \
                waited for.",
        inputs: &[
            "wrong host",
            "wrong port",
            "wrong socket",
            "wrong user",
            "wrong password",
            "no password",
            "wrong database",
            "server without TLS where TLS is asked for",
            "certificate of an authority that is not trusted",
            "certificate that has expired",
            "certificate of another name",
            "sslrootcert that is not there",
            "login that pg_hba.conf rejects",
            "role without LOGIN",
            "role that has expired",
            "role without REPLICATION",
            "role without rights on schema postrider",
            "role without SELECT on the outbox",
            "password changed while running",
            "time-outs set on role or database",
            "DateStyle, bytea_output and the like set on role or database",
            "default_transaction_read_only set on role or database",
            "a read-only standby",
            "setup on a standby",
            "PgBouncer in between",
            "PgBouncer in between, with ignore_startup_parameters",
            "a database in LATIN1",
            "a database in SQL_ASCII, text in UTF-8",
            "a database in SQL_ASCII, bytes that are no text",
            "wal_level = replica",
            "database of another cluster",
            "schema postrider missing",
        ],
        left_out: &[],
    },
    Group {
        name: "Source: table",
        about: "Looked at before the stream starts, and again while it runs.",
        inputs: &[
            "table missing",
            "a view in place of the table",
            "a foreign table",
            "table unlogged",
            "a temporary table",
            "a partition in place of its root",
            "column missing",
            "column of the wrong type",
            "a generated column",
        ],
        left_out: &[],
    },
    Group {
        name: "Source: publication and slot",
        about: "A slot is never made by a run, since that would hide a gap.",
        inputs: &[
            "publication missing",
            "publication made after the slot",
            "publication made after the slot, on 18",
            "publication dropped while running",
            "publication without the table",
            "table taken out of the publication while running",
            "publication without inserts",
            "publication with a row filter",
            "publication with a column list",
            "slot missing",
            "slot dropped",
            "slot dropped while running",
            "slot moved by somebody else",
            "slot made anew",
            "slot that another process holds",
            "slot of test_decoding",
            "slot with two_phase",
            "a physical slot",
            "slot of another database",
            "slot invalidated: wal_removed",
            "slot invalidated: idle_timeout",
            "no replication slot is free",
            "no walsender is free",
        ],
        left_out: &[
            (
                "slot invalidated: rows_removed",
                "happens to slots on a standby alone, and a relay waits for a primary; the words are those of \
                 `fence::every_rule_says_what_it_means_and_what_mends_it`",
            ),
            (
                "slot invalidated: wal_level_insufficient",
                "on a standby as above; a primary with a logical slot does not start below `logical`",
            ),
        ],
    },
    Group {
        name: "Data",
        about: "What can be published is, as it is.",
        inputs: &[
            "empty aggregate_id",
            "empty event_type",
            "empty payload",
            "NULL payload",
            "nested headers",
            "1,000 headers",
            "headers with one name twice",
            "key with NUL-like escapes",
            "key with emoji, joiners and marks",
            "key with control characters",
            "key of 1 MB",
            "infinity as time",
            "-infinity as time",
            "time in the year 10000",
            "time before Christ",
            "NULL as time",
            "numeric NaN",
            "numeric infinity",
            "quoted, mixed-case, 63-byte and Unicode names",
            "reserved words as names",
        ],
        left_out: &[],
    },
    Group {
        name: "Statements",
        about: "Of applications, migrations and operators, while the stream runs.",
        inputs: &["column renamed", "table moved to another schema", "table dropped"],
        left_out: &[],
    },
    Group {
        name: "Broker",
        about: "What is not acknowledged waits in the database, for as long as it takes.",
        inputs: &["topic missing", "topic deleted while running"],
        left_out: &[],
    },
];
