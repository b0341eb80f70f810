-- A trigger runs with the rights of whoever writes to the table, also with an administrator's: nobody but the owner may
-- add one. Who owns the tables does not depend on the version: `setup` reads it each time, and takes them over.
REVOKE CREATE ON SCHEMA postrider FROM PUBLIC;
REVOKE TRIGGER, REFERENCES, TRUNCATE ON ALL TABLES IN SCHEMA postrider FROM PUBLIC;
