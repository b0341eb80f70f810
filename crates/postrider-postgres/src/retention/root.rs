//! A table that is partitioned by a range of one column: its partitions, and the creation of those that are missing.
//!
//! A partition is created as a table of its own, and attached in the same transaction: `ATTACH PARTITION` waits for
//! neither writers nor readers of the table, and `CREATE TABLE … PARTITION OF` waits for all of them.

use super::hold::Hold;
use crate::catalog::BASE_TYPE_SQL;
use crate::names::{TableName, fitted, ident};
use crate::times::{AmbiguousTime, TimeType, instant_sql};
use pg_replication::error::SourceError;
use postrider_core::zone::Zone;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;
use tokio_postgres::{Client, Row};

/// Partitions that one call creates at most.
const CREATED_MAX: usize = 100;

/// How wide new partitions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// An hour, for keys that are times, as all units of time here: in UTC for columns with a zone.
    Hour,
    /// A day.
    Day,
    /// A week, which begins on Monday.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
    /// So many numbers, for keys that are whole numbers.
    Numbers(NonZeroU64),
}

impl Width {
    /// The units of time, by their names.
    pub const UNITS: [(&'static str, Self); 5] = [
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// Reads the name of a unit of time, or a number.
    pub fn parse(text: &str) -> Option<Self> {
        let unit = Self::UNITS.iter().find(|(name, _)| *name == text).map(|(_, width)| *width);
        unit.or_else(|| text.parse().ok().map(Self::Numbers))
    }

    fn unit(self) -> Option<&'static str> {
        Self::UNITS.iter().find(|(_, width)| *width == self).map(|(name, _)| *name)
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(numbers) => numbers.fmt(f),
            Self::Hour | Self::Day | Self::Week | Self::Month | Self::Year => {
                f.write_str(self.unit().unwrap_or_default())
            }
        }
    }
}

/// Whether a child is a part of its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartitionState {
    /// It is a partition.
    Attached,
    /// Its `DETACH CONCURRENTLY` was interrupted: no query of the table finds it any more.
    Detaching,
    /// It is a table of its own, which retention has detached.
    Detached,
}

/// A partition, or a table that was one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Child {
    /// Its name.
    pub name: TableName,
    /// Whether it is a partition.
    pub state: PartitionState,
    /// `FOR VALUES FROM (…) TO (…)`.
    pub bound: String,
    /// The lower bound as an SQL literal; `None` without one.
    pub from: Option<String>,
    /// The upper bound.
    pub to: Option<String>,
    /// It is the default partition.
    pub is_default: bool,
    /// Its size with indexes. Unit: bytes.
    pub bytes: u64,
    /// By its bounds every row may be old enough, and none can be added.
    pub is_past: bool,
    /// It has the comment of a detach.
    pub is_marked: bool,
}

/// A table that is partitioned by a range of one column of times or whole numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionedRoot {
    /// Its name.
    pub name: TableName,
    /// Its owner.
    pub owner: String,
    /// The column of the key.
    pub key: String,
    /// The type of the key, as SQL writes it.
    key_type: String,
    /// How the key records times; [`TimeType::Other`]: it is a number.
    kind: TimeType,
    /// The zone of a key without one.
    zone: Option<Zone>,
    /// Its partitions and the tables that were detached from it, by lower bound, the lowest first.
    pub children: Vec<Child>,
}

/// The comment on a partition that is about to be detached, up to its bounds. It is how the next pass finds the table
/// if this one ends in between.
pub(crate) fn mark(root: &TableName) -> String {
    format!("postrider retention of {root} detaches this partition: ")
}

const ROOT: &str = "\
SELECT c.oid, pg_get_userbyid(c.relowner)::text, a.attname::text, format_type(base.oid, -1), base.oid \
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
JOIN pg_partitioned_table AS p ON p.partrelid = c.oid AND p.partstrat = 'r' AND p.partnatts = 1 \
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0] ";

impl PartitionedRoot {
    /// Reads a table and its partitions; `None` if it is not partitioned like this. `keep`: how long rows are kept.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn read(
        client: &Client,
        name: &TableName,
        zone: Option<&Zone>,
        keep: Duration,
    ) -> Result<Option<Self>, SourceError> {
        let failed = |e| SourceError::control(format!("read the partitions of {name}"), e);
        let sql =
            format!("{ROOT}{BASE_TYPE_SQL} WHERE n.nspname = $1::text AND c.relname = $2::text");
        let row = client.query_opt(&sql, &[&name.schema, &name.name]).await.map_err(failed)?;
        let Some(row) = row else { return Ok(None) };
        let (oid, base): (u32, u32) =
            (row.try_get(0).map_err(failed)?, row.try_get(4).map_err(failed)?);
        let kind = TimeType::of(base);
        let is_number = matches!(base, 20 | 21 | 23 | 1700);
        if !is_number && !matches!(kind, TimeType::Absolute | TimeType::Local) {
            return Ok(None);
        }
        let mut root = Self {
            name: name.clone(),
            owner: row.try_get(1).map_err(failed)?,
            key: row.try_get(2).map_err(failed)?,
            key_type: row.try_get(3).map_err(failed)?,
            kind,
            zone: zone.cloned(),
            children: Vec::new(),
        };
        root.read_children(client, oid, keep).await?;
        Ok(Some(root))
    }

    async fn read_children(
        &mut self,
        client: &Client,
        oid: u32,
        keep: Duration,
    ) -> Result<(), SourceError> {
        let name = &self.name;
        let failed = |e| SourceError::control(format!("read the partitions of {name}"), e);
        // A bound is printed as a literal, or as MINVALUE or MAXVALUE.
        let sql = format!(
            "WITH children AS ( \
               SELECT c.oid, CASE WHEN i.inhdetachpending THEN 'detaching' ELSE 'attached' END AS state, \
                 pg_get_expr(c.relpartbound, c.oid) AS bound \
               FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = $1 \
               UNION ALL \
               SELECT c.oid, 'detached', substr(d.description, length($2::text) + 1) \
               FROM pg_description AS d JOIN pg_class AS c ON c.oid = d.objoid AND NOT c.relispartition \
               WHERE d.classoid = 'pg_class'::regclass AND d.objsubid = 0 \
                 AND starts_with(d.description, $2::text)), \
             bounds AS ( \
               SELECT h.*, \
                 nullif(btrim(substring(h.bound FROM '^FOR VALUES FROM \\((.*)\\) TO \\('), ''''), 'MINVALUE') AS lo, \
                 nullif(btrim(substring(h.bound FROM '\\) TO \\((.*)\\)$'), ''''), 'MAXVALUE') AS hi \
               FROM children AS h) \
             SELECT n.nspname::text, c.relname::text, b.state, b.bound, b.lo, b.hi, pg_total_relation_size(c.oid), \
               coalesce({past}, false), \
               coalesce(starts_with(obj_description(c.oid, 'pg_class'), $2::text), false) \
             FROM bounds AS b JOIN pg_class AS c ON c.oid = b.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace \
             ORDER BY b.lo::{key} NULLS FIRST, 2",
            past = self.past_sql("b.hi", keep),
            key = self.key_type,
        );
        let rows = client.query(&sql, &[&oid, &mark(name)]).await.map_err(failed)?;
        let children = rows.iter().map(child).collect::<Result<_, _>>().map_err(failed)?;
        self.children = children;
        Ok(())
    }

    /// Whether every row below a bound is older than `keep`, as SQL. Numbers have no age: there have to be rows above.
    fn past_sql(&self, bound: &str, keep: Duration) -> String {
        let bound = format!("{bound}::{}", self.key_type);
        if self.kind == TimeType::Other {
            format!(
                "{bound} <= (SELECT max(r.{key}) FROM {root} AS r)",
                key = ident(&self.key),
                root = self.name
            )
        } else {
            let at = instant_sql(self.kind, self.zone.as_ref(), &bound, AmbiguousTime::Later);
            format!("{at} <= statement_timestamp() - {}", super::interval(keep))
        }
    }

    /// Whether the key is a number.
    pub const fn by_number(&self) -> bool {
        matches!(self.kind, TimeType::Other)
    }

    /// The default partition, if there is one.
    pub fn default_partition(&self) -> Option<&Child> {
        self.children.iter().find(|child| child.is_default)
    }

    /// Creates the partitions that are missing up to `ahead` widths from now on, or from the highest number. Returns
    /// their names.
    ///
    /// # Errors
    /// An error of the server or of the connection. What was created before stays.
    pub async fn extend(
        &self,
        client: &Client,
        width: Width,
        ahead: u32,
    ) -> Result<Result<Vec<TableName>, Hold>, SourceError> {
        let Some(units) = self.units(width) else { return Ok(Err(Hold::NotPartitioned)) };
        let unbounded = |child: &&Child| {
            child.to.is_none() && !child.is_default && child.state != PartitionState::Detached
        };
        if let Some(child) = self.children.iter().find(unbounded) {
            return Ok(Err(Hold::NoUpperBound(child.name.to_string())));
        }
        let start = if self.kind == TimeType::Other {
            format!("coalesce((SELECT max(r.{}) FROM {} AS r), 0)", ident(&self.key), self.name)
        } else {
            "now()".to_owned()
        };
        let values = format!(
            "SELECT ({start} + k * {step})::{key} FROM generate_series(0, {ahead}) AS k",
            step = units.step,
            key = self.key_type
        );
        self.create(client, &units, &values).await.map(Ok)
    }

    /// Creates the partitions that are missing for the values of a query. Returns their names.
    ///
    /// # Errors
    /// As [`Self::extend`].
    pub async fn create_for(
        &self,
        client: &Client,
        width: Width,
        values: &str,
    ) -> Result<Result<Vec<TableName>, Hold>, SourceError> {
        let Some(units) = self.units(width) else { return Ok(Err(Hold::NotPartitioned)) };
        self.create(client, &units, values).await.map(Ok)
    }

    /// How values are rounded down to the begin of a partition; `None` if the width does not fit the key.
    fn units(&self, width: Width) -> Option<Units> {
        let key = &self.key_type;
        match (width, self.kind) {
            (Width::Numbers(numbers), TimeType::Other) => Some(Units {
                step: numbers.to_string(),
                begin: format!("(floor(v::numeric / {numbers}) * {numbers})::{key}"),
                end: format!("(floor(v::numeric / {numbers}) * {numbers} + {numbers})::{key}"),
                name: "replace(lo::text, '-', 'm')".to_owned(),
            }),
            (
                Width::Hour | Width::Day | Width::Week | Width::Month | Width::Year,
                TimeType::Absolute | TimeType::Local,
            ) => {
                let unit = width.unit()?;
                // Where a day does not begin a partition, the name has the time too.
                let name = "CASE WHEN lo::timestamp = date_trunc('day', lo::timestamp) THEN to_char(lo, 'YYYYMMDD') \
                            ELSE to_char(lo, 'YYYYMMDD_HH24MISS') END";
                Some(Units {
                    step: format!("interval '1 {unit}'"),
                    begin: format!("date_trunc('{unit}', v)::{key}"),
                    end: format!("(date_trunc('{unit}', v) + interval '1 {unit}')::{key}"),
                    name: name.to_owned(),
                })
            }
            (Width::Numbers(_), _) | (_, TimeType::Other | TimeType::Text) => None,
        }
    }

    async fn create(
        &self,
        client: &Client,
        units: &Units,
        values: &str,
    ) -> Result<Vec<TableName>, SourceError> {
        let name = &self.name;
        let failed = |e| SourceError::control(format!("find the missing partitions of {name}"), e);
        let rows = client.query(&self.missing_sql(units, values), &[]).await.map_err(failed)?;
        let mut created = Vec::new();
        for row in rows {
            let bound = |at: usize| row.try_get::<_, String>(at).map_err(failed);
            let (from, to, suffix) = (bound(0)?, bound(1)?, bound(2)?);
            let child = self.child_name(&suffix);
            self.create_child(client, &child, &from, &to).await?;
            created.push(child);
        }
        Ok(created)
    }

    /// The gaps between the partitions around the values: from, to, and a suffix for the name. A gap that is narrower
    /// than a partition, because another one has other bounds, is filled as it is.
    fn missing_sql(&self, units: &Units, values: &str) -> String {
        let key = &self.key_type;
        let literal = |bound: &Option<String>| {
            bound.as_ref().map_or_else(|| "NULL".to_owned(), |text| crate::names::literal(text))
        };
        let bounds = self.children.iter().filter(|child| !child.is_default);
        let bounds = bounds.filter(|child| child.state != PartitionState::Detached).map(|child| {
            format!(
                " UNION ALL SELECT {}::{key}, {}::{key}",
                literal(&child.from),
                literal(&child.to)
            )
        });
        format!(
            "WITH bounds(lo, hi) AS (SELECT NULL::{key}, NULL::{key} WHERE false{bounds}), \
             wanted(v) AS ({values}), \
             gaps AS (SELECT DISTINCT \
                 greatest({begin}, (SELECT max(b.hi) FROM bounds AS b WHERE b.hi <= v)) AS lo, \
                 least({end}, (SELECT min(b.lo) FROM bounds AS b WHERE b.lo > v)) AS hi \
               FROM wanted WHERE v IS NOT NULL AND NOT EXISTS (SELECT FROM bounds AS b \
                 WHERE coalesce(b.lo <= v, true) AND coalesce(v < b.hi, true))) \
             SELECT lo::text, hi::text, {suffix} FROM gaps ORDER BY gaps.lo LIMIT {CREATED_MAX}",
            bounds = bounds.collect::<String>(),
            begin = units.begin,
            end = units.end,
            suffix = units.name,
        )
    }

    fn child_name(&self, suffix: &str) -> TableName {
        let name = fitted(&self.name.name, &format!("_p{suffix}"));
        TableName::new(self.name.schema.clone(), name)
    }

    async fn create_child(
        &self,
        client: &Client,
        child: &TableName,
        from: &str,
        to: &str,
    ) -> Result<(), SourceError> {
        let failed = |e| SourceError::control(format!("create partition {child}"), e);
        let sql = format!(
            "BEGIN; SET LOCAL ROLE {owner};\n\
             CREATE TABLE {child} (LIKE {root} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED \
               INCLUDING STORAGE INCLUDING COMPRESSION);\n\
             ALTER TABLE {root} ATTACH PARTITION {child} FOR VALUES FROM ({from}) TO ({to});\n\
             COMMIT",
            owner = ident(&self.owner),
            root = self.name,
            from = crate::names::literal(from),
            to = crate::names::literal(to),
        );
        let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
        drop(client.batch_execute("ROLLBACK").await);
        Err(failed(error))
    }
}

/// Expressions over a value `v` of the key, and over the lower bound `lo` of a partition.
struct Units {
    /// The width.
    step: String,
    /// The begin of the partition of `v`.
    begin: String,
    /// Its end.
    end: String,
    /// The end of its name.
    name: String,
}

fn child(row: &Row) -> Result<Child, tokio_postgres::Error> {
    let bound: String = row.try_get(3)?;
    let state: String = row.try_get(2)?;
    Ok(Child {
        name: TableName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?),
        state: match state.as_str() {
            "detaching" => PartitionState::Detaching,
            "detached" => PartitionState::Detached,
            _ => PartitionState::Attached,
        },
        is_default: bound == "DEFAULT",
        bound,
        from: row.try_get(4)?,
        to: row.try_get(5)?,
        bytes: row.try_get::<_, i64>(6)?.unsigned_abs(),
        is_past: row.try_get(7)?,
        is_marked: row.try_get(8)?,
    })
}
