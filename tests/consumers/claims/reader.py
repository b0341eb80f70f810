"""Reads a payload by its claim check: python3 reader.py URL SIZE SHA256. Writes the payload to standard output."""

import hashlib
import sys

import boto3


def payload(s3, value, headers):
    """The payload of a record: its value, or what its headers refer to."""
    if "claim-check-url" not in headers:
        return value
    bucket, key = headers["claim-check-url"].removeprefix("s3://").split("/", 1)
    content = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    if len(content) != int(headers["claim-check-size"]):
        raise ValueError("the object has another size than the payload")
    if hashlib.sha256(content).hexdigest() != headers["claim-check-sha256"]:
        raise ValueError("the object has another digest than the payload")
    return content


if __name__ == "__main__":
    names = ["claim-check-url", "claim-check-size", "claim-check-sha256"]
    # Login, region and endpoint are those of the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and others.
    sys.stdout.buffer.write(payload(boto3.client("s3"), b"", dict(zip(names, sys.argv[1:]))))
