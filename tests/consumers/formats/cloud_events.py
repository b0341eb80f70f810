"""Reads messages with the SDK of CloudEvents: one JSON object a line on standard input, one event a line out."""
import base64
import json
import sys

from cloudevents.core.bindings import amqp, http, kafka, rabbitmq
from cloudevents.core.formats.json import JSONFormat

FORMAT = JSONFormat()


def read(binding, headers, key, value):
    if binding == "kafka":
        headers = {name: text.encode() for name, text in headers.items()}
        return kafka.from_kafka(kafka.KafkaMessage(headers=headers, key=key, value=value), FORMAT)
    if binding == "http":
        return http.from_http(http.HTTPMessage(headers=headers, body=value), FORMAT)
    content_type = headers.pop("content-type")
    if binding == "rabbitmq":
        message = rabbitmq.RabbitMQMessage(headers=headers, content_type=content_type, body=value)
        return rabbitmq.from_rabbitmq(message, FORMAT)
    properties = {"content-type": content_type}
    message = amqp.AMQPMessage(properties=properties, application_properties=headers, application_data=value)
    return amqp.from_amqp(message, FORMAT)


for line in sys.stdin:
    message = json.loads(line)
    event = read(message["binding"], message["headers"], message["key"], base64.b64decode(message["value"]))
    attributes = {name: str(value) for name, value in event.get_attributes().items()}
    data = event.get_data()
    # A number that the reader of this line could not hold.
    data["big"] = str(data["big"])
    print(json.dumps({"attributes": attributes, "data": data}), flush=True)
