// Reads a payload by its claim check: node reader.js URL SIZE SHA256. Writes the payload to standard output.

import { createHash } from "node:crypto";
import { GetObjectCommand, S3Client } from "@aws-sdk/client-s3";

/** The payload of a record: its value, or what its headers refer to. */
async function payload(s3: S3Client, value: Uint8Array, headers: Map<string, string>): Promise<Uint8Array> {
  const place = /^s3:\/\/([^/]+)\/(.+)$/.exec(headers.get("claim-check-url") ?? "");
  if (!place) return value;
  const object = await s3.send(new GetObjectCommand({ Bucket: place[1], Key: place[2] }));
  const content = await object.Body!.transformToByteArray();
  if (content.length !== Number(headers.get("claim-check-size"))) {
    throw new Error("the object has another size than the payload");
  }
  if (createHash("sha256").update(content).digest("hex") !== headers.get("claim-check-sha256")) {
    throw new Error("the object has another digest than the payload");
  }
  return content;
}

const [url = "", size = "", sha256 = ""] = process.argv.slice(2);
const headers = new Map([["claim-check-url", url], ["claim-check-size", size], ["claim-check-sha256", sha256]]);
// Login, region and endpoint are those of the environment. A store that is not AWS needs forcePathStyle.
const s3 = new S3Client({ forcePathStyle: true });
payload(s3, new Uint8Array(), headers).then(
  (content) => process.stdout.write(content),
  (error) => {
    console.error(String(error));
    process.exitCode = 1;
  },
);
