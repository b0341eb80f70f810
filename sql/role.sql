-- The smallest set of rights for the relay's role. `postrider setup` as an administrator grants the same; a DBA can run
-- this file by hand after the SQL of `postrider setup --print-sql`, which creates the schema:
--   psql -v role=postrider -v database=shop -v schema=public -v table=outbox -f sql/role.sql
-- With mode = "poll" add -v only_polls=1; with "poll" or "auto", or poll.mark_streamed, -v polls=1; if rows are
-- deleted (layouts postrider, debezium, commerce, or poll.mark = "delete") -v deletes=1; for commerce
-- -v dlq=outbox_messages_dlq.
-- Create the role first: CREATE ROLE postrider LOGIN REPLICATION PASSWORD '...'; without REPLICATION if it only
-- polls.
-- It owns nothing: it reads and writes the rows of schema "postrider", and reads the outbox. REPLICATION lets it read
-- every published table of the cluster: treat its password accordingly. Amazon RDS and Aurora instead of ALTER ROLE:
-- GRANT rds_replication TO postrider;
\set ON_ERROR_STOP on
-- [always]
GRANT CONNECT ON DATABASE :"database" TO :"role";
GRANT USAGE ON SCHEMA postrider TO :"role";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.migration, postrider.cursor, postrider.parked,
    postrider.repair, postrider.repair_page, postrider.bookmark, postrider.replay, postrider.pause TO :"role";
-- [table]
GRANT USAGE ON SCHEMA :"schema" TO :"role";
GRANT SELECT ON TABLE :"schema".:"table" TO :"role";
-- Rows are locked while they are being published, and then updated.
\if :{?polls}
-- [polls]
GRANT UPDATE ON TABLE :"schema".:"table" TO :"role";
\endif
\if :{?deletes}
-- [deletes]
GRANT DELETE ON TABLE :"schema".:"table" TO :"role";
\endif
-- Rows that have failed for good are moved there, and never read.
\if :{?dlq}
-- [dlq]
GRANT INSERT ON TABLE :"schema".:"dlq" TO :"role";
\endif
-- Last: if it is refused, the other rights are kept. Who may grant it: docs/security.md.
\if :{?only_polls}
\else
-- [streams]
ALTER ROLE :"role" REPLICATION;
\endif
