-- What the service knows. Its outbox is the table that Postrider publishes.
CREATE TABLE orders (
    id    text    PRIMARY KEY,
    total numeric NOT NULL,
    paid  numeric NOT NULL DEFAULT 0
);
CREATE TABLE payment (
    event_id text    NOT NULL,
    order_id text    NOT NULL REFERENCES orders,
    amount   numeric NOT NULL
);
