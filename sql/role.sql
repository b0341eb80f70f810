-- What the relay's role needs, and nothing else. {role}, {database}, {schema} and {table} are filled in by `postrider
-- setup`. REPLICATION reads every published table of the cluster: treat its password accordingly. Amazon RDS and
-- Aurora instead: GRANT rds_replication TO {role};
ALTER ROLE {role} REPLICATION;
GRANT CONNECT ON DATABASE {database} TO {role};
ALTER SCHEMA postrider OWNER TO {role};
ALTER TABLE postrider.migration OWNER TO {role};
ALTER TABLE postrider.cursor OWNER TO {role};
ALTER TABLE postrider.parked OWNER TO {role};
-- table:
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON TABLE {table} TO {role};
