"""An order service: payments come from an inbox, and events go to the outbox. Saved beside consumer.py.

order_service.py WORKER
"""

import json
import sys
from decimal import Decimal

import consumer


def book(connection, event_id, aggregate, payload, worker):
    """Books a payment. Runs in the transaction that calls inbox_done."""
    payment = json.loads(payload, parse_float=Decimal)
    order = connection.execute(
        "UPDATE orders SET paid = paid + %s WHERE id = %s RETURNING total, paid",
        (payment["amount"], payment["order"]),
    ).fetchone()
    if order is None:
        raise LookupError("no such order")
    connection.execute(
        "INSERT INTO payment (event_id, order_id, amount) VALUES (%s, %s, %s)",
        (event_id, payment["order"], payment["amount"]),
    )
    event = {"payment": event_id, "paid": str(order.paid), "complete": order.paid >= order.total}
    connection.execute(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', %s, %s, %s)",
        (payment["order"], "PaymentBooked", json.dumps(event)),
    )


if __name__ == "__main__":
    consumer.effect = book
    consumer.main("work", "payment", sys.argv[1])
