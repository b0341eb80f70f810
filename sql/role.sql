-- The least that the relay's role needs. `postrider setup` as an administrator does the same; a DBA can run it by hand,
-- behind `postrider setup --print-sql`, which makes the schema:
--   psql -v role=postrider -v database=shop -v schema=public -v table=outbox -f sql/role.sql
-- The role itself, first: CREATE ROLE postrider LOGIN REPLICATION PASSWORD '...';
-- It owns the schema "postrider" and nothing else, and reads the outbox. REPLICATION lets it read every published table
-- of the cluster: treat its password accordingly. Amazon RDS and Aurora instead of ALTER ROLE: GRANT rds_replication TO
-- postrider;
\set ON_ERROR_STOP on
ALTER ROLE :"role" REPLICATION;
GRANT CONNECT ON DATABASE :"database" TO :"role";
ALTER SCHEMA postrider OWNER TO :"role";
ALTER TABLE postrider.migration OWNER TO :"role";
ALTER TABLE postrider.cursor OWNER TO :"role";
ALTER TABLE postrider.parked OWNER TO :"role";
ALTER TABLE postrider.bookmark OWNER TO :"role";
ALTER TABLE postrider.replay OWNER TO :"role";
-- The table:
GRANT USAGE ON SCHEMA :"schema" TO :"role";
GRANT SELECT ON TABLE :"schema".:"table" TO :"role";
